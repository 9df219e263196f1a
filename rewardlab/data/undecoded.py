"""Images of rows for who does not look at them: one that cannot be decoded makes no row bad."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rewardlab.data.images import from_data_url
from rewardlab.data.rows import Files, path_of_medium
from rewardlab.errors import MediaError


@dataclass(frozen=True)
class UndecodedFiles(Files):
    """Media for who does not look at them: an image that cannot be decoded is taken as it is, and put into ``undecodable`` with
    the reason. One that is not there is an error all the same: what shares an image is one prompt."""

    undecodable: dict[bytes, str] = field(default_factory=dict)

    def image(self, value: Any, where: str) -> bytes:
        try:
            return super().image(value, where)
        except MediaError as error:
            data = self._bytes_of(value, where)
            if not data:
                raise
            self.undecodable.setdefault(data, str(error))
            return data

    def _bytes_of(self, value: Any, where: str) -> bytes:
        data = value.get("bytes") if isinstance(value, Mapping) else None
        if isinstance(data, bytes) and data:
            return data
        path = path_of_medium(value, "image", where)
        if path.startswith("data:"):
            return from_data_url(path, where=where)
        file = self.file_of(path, where)
        return file.read_bytes() if file.is_file() else b""
