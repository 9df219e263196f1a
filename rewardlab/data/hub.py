"""A repository of the Hub: its README, and a folder sent to it in one commit: a card stands beside its own files."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rewardlab.errors import ConfigError, OutputError
from rewardlab.reporting.cards import README


@dataclass(frozen=True)
class HubRepo:
    """A repository: ``kind`` is "model" or "dataset", ``name`` OWNER/NAME. ``HF_ENDPOINT`` names another hub than the public
    one, ``HF_TOKEN`` the token of who writes, else the one of `hf auth login`.
    """

    name: str
    kind: str

    def __post_init__(self) -> None:
        if self.name.count("/") != 1 or not all(self.name.split("/")):
            raise ConfigError(f"{self.name!r}: expected OWNER/NAME, the repository to push to")

    @property
    def _api(self) -> Any:
        from huggingface_hub import HfApi

        return HfApi(endpoint=os.environ.get("HF_ENDPOINT") or None)

    def read_readme(self) -> str | None:
        """Return the README that stands in the repository, None where there is none. Raise OutputError where it cannot be
        asked."""
        with self._failures("nothing of it was sent"):
            if not self._api.file_exists(self.name, README, repo_type=self.kind):
                return None
            path = self._api.hf_hub_download(self.name, README, repo_type=self.kind)
            return Path(path).read_text(encoding="utf-8")

    def create(self, *, private: bool) -> str:
        """Create the repository where it is not there yet; return its address. Raise ConfigError for one that is public where
        ``private`` is wanted, OutputError where the token may not write."""
        with self._failures("nothing of it was sent"):
            self._api.whoami()
            url = str(self._api.create_repo(self.name, repo_type=self.kind, private=private or None, exist_ok=True))
            is_public = private and not self._api.repo_info(self.name, repo_type=self.kind).private
        if is_public:
            raise ConfigError(f"{self.name}: is there and public; make it private on its page, or leave --private out")
        return url

    def list_files(self) -> list[str]:
        """Return the names of the repository's files; [] where there is no repository, or none that the token may see. Raise
        OutputError where it cannot be asked."""
        from huggingface_hub.errors import RepositoryNotFoundError

        with self._failures("nothing of it was sent"):
            try:
                return list(self._api.list_repo_files(self.name, repo_type=self.kind))
            except RepositoryNotFoundError:
                return []

    def upload(
        self, folder: Path, files: Sequence[str], *, deleted: Collection[str], changed: Mapping[str, bytes], message: str
    ) -> str:
        """Send ``files`` of ``folder`` and ``changed`` (name -> content), the card among it, and delete ``deleted``, in one
        commit; return its address. Raise OutputError where the repository stays as it was."""
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete

        operations = [CommitOperationAdd(name, folder / name) for name in files]
        operations += [CommitOperationAdd(name, content) for name, content in changed.items()]
        with self._failures("the repository is as it was; the same command goes on"):
            deletions = [CommitOperationDelete(name, is_folder=False) for name in deleted]
            commit = self._api.create_commit(self.name, [*operations, *deletions], repo_type=self.kind, commit_message=message)
        return str(commit.commit_url)

    @contextmanager
    def _failures(self, consequence: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # the boundary: an upload may break in any way of the library's
            status = getattr(getattr(error, "response", None), "status_code", None)
            cure = {
                401: "the token is missing or wrong; log in by `hf auth login`, or set HF_TOKEN",
                403: "the token may not write there; take one with write access, or another owner",
            }.get(status or 0, "see the network and HF_ENDPOINT")
            if type(error).__name__ == "LocalTokenNotFoundError":
                cure = "there is no token; log in by `hf auth login`, or set HF_TOKEN"
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            raise OutputError(f"{self.name}: cannot be pushed ({reason}); {cure}; {consequence}") from error
