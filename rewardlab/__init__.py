"""rewardlab: train, benchmark and serve generative multimodal judges whose numbers can be trusted.

Importing this package loads neither torch nor any other heavy dependency.
"""

from rewardlab.models import torchvision_cpu as _torchvision_cpu  # noqa: F401  (a finder; see there)

__version__ = "0.1.0"
