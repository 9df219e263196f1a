"""How a server listens: with which certificate, below which path, and in what form it logs."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

from rewardlab.errors import ConfigError
from rewardlab.serving.request_log import LOG_FORMATS, log_config


def listening_options(
    *, certificate: Path | None = None, private_key: Path | None = None, root_path: str = "", log_format: str = "text"
) -> dict[str, Any]:
    """Return what uvicorn is told: with a PEM ``certificate`` (its chain) and its key it speaks TLS, ``root_path`` is the path
    that a proxy serves it under. Raise ConfigError for one of the two without the other, or that cannot be used together."""
    if log_format not in LOG_FORMATS:
        raise ConfigError(f"--log-format {log_format}: expected {' or '.join(LOG_FORMATS)}")
    if (certificate is None) != (private_key is None):
        raise ConfigError("--ssl-certfile and --ssl-keyfile belong together: give both or neither")
    if root_path and (not root_path.startswith("/") or root_path.endswith("/")):
        raise ConfigError(f"--root-path {root_path}: expected a path such as /judge")
    options = {"root_path": root_path, "log_config": log_config(log_format), "access_log": False}
    if certificate is None or private_key is None:
        return options
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(certificate, private_key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"--ssl-certfile {certificate}, --ssl-keyfile {private_key}: cannot be used ({error})") from error
    return options | {"ssl_certfile": str(certificate), "ssl_keyfile": str(private_key)}
