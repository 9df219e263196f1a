"""One exception tree.

RewardlabError
├── InputError (also ValueError)     what the user gave cannot be used: the text says what, what was expected, the cure
│   ├── ConfigError                  a YAML or an option
│   ├── DataError                    a pair, a data file, an empty set
│   ├── MediaError                   an image that is missing, corrupt, empty or a bomb
│   └── CheckpointError              a folder that is no checkpoint, or was trained with another template
├── HealthError                      a run showed a sign of going wrong and was ended
├── EndpointError                    a remote model failed: down, 429, 5xx, garbage, out of time
└── OutputError (also OSError)       a place that cannot be written
"""


class RewardlabError(Exception):
    """Root of every error this package raises on purpose."""


class InputError(RewardlabError, ValueError):
    """The user's input cannot be used."""


class ConfigError(InputError):
    """A configuration file or option is wrong."""


class DataError(InputError):
    """A pair, a data file or a set of them is wrong."""


class MediaError(InputError):
    """An image is missing, corrupt, empty or too large."""


class CheckpointError(InputError):
    """A checkpoint folder is missing, incomplete, or does not fit the template asked for."""


class HealthError(RewardlabError):
    """A training run was ended because of what it logged."""


class EndpointError(RewardlabError):
    """A remote model did not give a usable answer."""


class OutputError(RewardlabError, OSError):
    """An output path cannot be written."""
