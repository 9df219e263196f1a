"""The long demonstration's teacher behind an HTTP endpoint: `python -m eval.long_demo.serve --folder runs/long/demo`."""

from __future__ import annotations

import argparse
from pathlib import Path

from eval.long_demo.judgments import Teacher
from rewardlab.demo.build import TRUTHS
from rewardlab.demo.server import serve_demo


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="where the demonstration was built")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    serve_demo(options.folder / TRUTHS, port=options.port, teacher=Teacher(seed=options.seed))


if __name__ == "__main__":
    main()
