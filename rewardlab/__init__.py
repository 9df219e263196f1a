"""rewardlab: train, benchmark and serve generative multimodal judges whose numbers can be trusted.

Importing this package loads neither torch nor any other heavy dependency.
"""

__version__ = "0.1.0"
