"""`python -m rewardlab.cli`."""

from rewardlab.cli import main

main()
