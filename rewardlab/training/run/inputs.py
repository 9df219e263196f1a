"""The inputs of a run: its config, its pairs, and which of these are left out because an image cannot be read.

All images are checked before the run, a part of them by each process. If only decoding shows that one is damaged, the run ends;
its pair is listed, and the same command resumes without it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

from rewardlab.config import load_config
from rewardlab.data.files import read_complete_lines, write_atomic
from rewardlab.data.images import check_image, decode_image
from rewardlab.data.pair_table import PairFacts, PairTable, fingerprint_of, pair_facts, select_pairs, text_identity
from rewardlab.data.rows import media_of
from rewardlab.data.set_checks import tie_note
from rewardlab.errors import ConfigError, DataError, MediaError
from rewardlab.models.model_config import video_policy_of
from rewardlab.processes import is_main, num_cores, num_processes, process_index
from rewardlab.reporting.progress import bar, log_line
from rewardlab.training.run.folder import CONFIG, has_begun, refuse_finished
from rewardlab.training.run.preflight import COUNTS, TOO_LONG, gather
from rewardlab.types import PreferencePair

Config = TypeVar("Config", bound=BaseModel)


def config_of(schema: type[Config], config: Config | str | Path | None, **overrides: Any) -> Config:
    """Return a config, or that of a YAML file, a name under ``configs/`` or the defaults with ``overrides``. Raise ConfigError,
    also for overrides of a complete config."""
    if not isinstance(config, BaseModel):
        return load_config(schema, config, **overrides)
    if overrides:
        raise ConfigError(f"{', '.join(overrides)}: the {schema.__name__} is complete; set the keys in it, or name a YAML file")
    return config


def refuse_repeated_ids(pairs: Sequence[PreferencePair]) -> None:
    """Raise DataError where two pairs have one id: rollouts are grouped, and what belongs to a pair is kept, by it."""
    seen = set[str]()
    for facts in pair_facts(pairs):
        if facts.pair_id in seen:
            raise DataError(
                f"pair_id {facts.pair_id!r} appears twice; every pair needs its own (`rewardlab data validate` lists them)"
            )
        seen.add(facts.pair_id)


def pairs_of(
    pairs: Sequence[PreferencePair] | str | Path,
    frames: int,
    model: str,
    *,
    images: Path | None = None,
    allow_columns: Collection[str] = (),
    allow_without_images: bool = False,
) -> Sequence[PreferencePair]:
    """Return pairs as they are, or those of a set on disk, read when used; videos as ``model``'s family shows them, or as
    ``frames``. ``images``: folder of relative media paths; ``allow_columns``: columns to ignore; ``allow_without_images``:
    accept questions that mention images in a set without any. Raise DataError or MediaError.
    """
    if not isinstance(pairs, str | Path):
        return pairs
    policy = partial(video_policy_of, model)
    return PairTable(
        Path(pairs),
        images=images,
        frames=frames,
        policy=policy,
        allow_columns=allow_columns,
        allow_without_images=allow_without_images,
    )


UNREADABLE = "unreadable.jsonl"
CHUNK = 64  # pairs that a thread reads one after the other: neighbours share a row group
THREADS = 8  # each has a row group in memory


@dataclass(frozen=True)
class ReadablePairs:
    """The pairs of a run in ``out``: of those ``given``, ``left_out`` maps unreadable numbers to reasons; ``long`` are numbers
    of pairs that are too long. ``digests`` identify pairs. ``names_left_out`` and ``num_labelled_left_out`` count pairs that
    the set no longer has, too."""

    given: Sequence[PreferencePair]
    digests: Sequence[str]
    left_out: Mapping[int, str]
    out: Path
    names_left_out: frozenset[str] = frozenset()
    num_labelled_left_out: int = 0
    long: frozenset[int] = frozenset()

    @cached_property
    def numbers(self) -> list[int]:
        """The numbers of those that are left."""
        return [n for n in range(len(self.given)) if n not in self.left_out]

    @cached_property
    def pairs(self) -> Sequence[PreferencePair]:
        """Those that are left."""
        return select_pairs(self.given, self.numbers) if self.left_out else self.given

    @cached_property
    def fingerprint(self) -> str:
        """Return what names all that were given."""
        return fingerprint_of(self.given)

    def _digest(self, left_out: Mapping[int, str]) -> str:
        kept = "".join(digest for n, digest in enumerate(self.digests) if n not in left_out and n not in self.long)
        return hashlib.sha256(kept.encode()).hexdigest()[:16]

    def without_long(self, trained: Sequence[PreferencePair]) -> ReadablePairs:
        """Return the same for a run on ``trained`` that does not depend on the pairs listed as too long: a file without them
        resumes it."""
        long = _names_in(self.out / TOO_LONG) - {pair.pair_id for pair in pair_facts(trained)}
        return replace(self, long=frozenset(n for n, pair in enumerate(pair_facts(self.given)) if pair.pair_id in long))

    def known_as(self, data: str) -> str:
        """Return ``data``, which begins with the fingerprint, as the run in ``out`` has it if the pairs that are used are the
        same: a file without the unreadable rows, or with repaired ones, resumes the run."""
        before, length = _record(self.out / CONFIG), len(self.fingerprint)
        name = before.get("data", "")
        is_same = before.get("readable") == self._digest(self.left_out) and name[length:] == data[length:]
        return name if is_same else data

    def write_record(self) -> None:
        """Write into ``run.json`` what is read in this run."""
        if is_main():
            self._write(self.left_out)

    def _write(self, left_out: Mapping[int, str]) -> None:
        before = _record(self.out / CONFIG)
        if before and before.get("readable") != (digest := self._digest(left_out)):
            write_atomic(self.out / CONFIG, json.dumps({**before, "readable": digest}, indent=1) + "\n")

    def list_pair(self, error: MediaError) -> MediaError:
        """List the pair that an error of a running run names; return the error to be shown."""
        message = str(error)
        if (number := _number_of(self.given, message)) is None:
            return error
        left_out = {**self.left_out, number: message}
        pair = pair_facts(self.given)[number]
        _write_list(self.out, {**_listed(self.out), pair.pair_id: _row(pair, message)})
        self._write(left_out)
        return MediaError(f"{message}. Its pair is listed in {self.out / UNREADABLE}: the same command continues without it")


def count_ties(pairs: Sequence[PreferencePair]) -> None:
    """Log how many pairs are ties, from whose labels nothing is learnt. Raise DataError if all are."""
    if (note := tie_note(sum(facts.tied for facts in pair_facts(pairs)), len(pairs))) and is_main():
        log_line(note)


def leave_out_unreadable(pairs: Sequence[PreferencePair], out: Path) -> ReadablePairs:
    """Return the pairs whose images can be read. The others are listed in ``out/unreadable.jsonl`` and logged; pairs listed in
    an interrupted run stay left out. Raise DataError if none is left, ConfigError for a finished run."""
    refuse_finished(out)
    facts, listed, is_resumed = pair_facts(pairs), _listed(out), has_begun(out)
    digests, left_out = _look(pairs, out)
    for n, pair in enumerate(facts):
        if pair.pair_id in listed and n not in left_out and (is_resumed or _look_at(pairs, n, decode=True)[1]):
            left_out[n] = listed[pair.pair_id]["error"]
    if len(left_out) == len(pairs):
        raise DataError(f"no pair can be read; of the first: {left_out[0]}. `rewardlab data validate` lists them all")
    names = {pair.pair_id for pair in facts}
    gone = {name: row for name, row in listed.items() if is_resumed and name not in names}
    rows = gone | {facts[n].pair_id: _row(facts[n], error) for n, error in sorted(left_out.items())}
    num_labelled = sum(facts[n].preferred is not None for n in left_out) + sum(row["labelled"] for row in gone.values())
    num_labelled += len(_names_in(out / TOO_LONG) - names) if is_resumed else 0
    if is_main():
        _write_list(out, rows)
        if left_out:
            log_line(
                f"{len(left_out):,} of {len(pairs):,} pairs have pictures that cannot be read, such as: "
                f"{next(iter(left_out.values()))}. They are left out, see {out / UNREADABLE}"
            )
    return ReadablePairs(pairs, digests, left_out, out, frozenset(rows), num_labelled)


def unreadable_rows(pairs: Sequence[PreferencePair]) -> dict[int, str]:
    """Return why pairs cannot be read, by their numbers: their pictures are decoded, many side by side."""
    errors: dict[int, str] = {}
    with ThreadPoolExecutor(min(THREADS, num_cores())) as pool, bar("pictures", len(pairs)) as advance:
        for number, (_, error) in enumerate(pool.map(lambda n: _look_at(pairs, n, decode=True), range(len(pairs)))):
            errors |= {number: error} if error else {}
            advance(1)
    return errors


@contextmanager
def pairs_named(pairs: Sequence[PreferencePair]) -> Iterator[None]:
    """Have the error of a picture say which of ``pairs`` it is of."""
    try:
        yield
    except MediaError:
        for pair in pairs:
            _check_images(pair, decode=True)
        raise


def _look(pairs: Sequence[PreferencePair], out: Path) -> tuple[list[str], dict[int, str]]:
    """Return what tells each pair from any other, and by their numbers why some cannot be read: each process its share."""
    names = [facts.pair_id for facts in pair_facts(pairs)]
    described = hashlib.sha256(repr((fingerprint_of(pairs), names)).encode(errors="surrogatepass")).hexdigest()[:16]
    first, end = (len(pairs) * n // num_processes() for n in (process_index(), process_index() + 1))

    def look() -> list[tuple[str, str]]:
        chunks = [range(start, min(start + CHUNK, end)) for start in range(first, end, CHUNK)]
        looks: list[tuple[str, str]] = []
        with ThreadPoolExecutor(min(THREADS, num_cores())) as pool, bar("pictures", len(pairs)) as advance:
            for some in pool.map(lambda chunk: [_look_at(pairs, n) for n in chunk], chunks):
                looks += some
                advance(len(some) * num_processes())
        return looks

    looks = [each for part in gather(look, out / COUNTS / f"pictures-{described}") for each in part]
    return [digest for digest, _ in looks], {n: error for n, (_, error) in enumerate(looks) if error}


def _look_at(pairs: Sequence[PreferencePair], number: int, *, decode: bool = False) -> tuple[str, str]:
    """Return (what tells a pair from any other, ""), or ("", why it cannot be read)."""
    try:
        if isinstance(pairs, PairTable):
            pair = pairs.look_at(number, decode=decode)
        else:
            _check_images(pair := pairs[number], decode=decode)
    except MediaError as error:
        return "", str(error)
    media = b"".join(hashlib.sha256(medium).digest() for medium in media_of(pair))
    return hashlib.sha256(text_identity(pair) + media).hexdigest()[:16], ""


def _check_images(pair: PreferencePair, *, decode: bool) -> None:
    check = decode_image if decode else check_image
    for image in (*pair.images, *pair.response_images[0], *pair.response_images[1]):
        check(image, where=pair.pair_id)


def _number_of(pairs: Sequence[PreferencePair], message: str) -> int | None:
    """Return the number of the pair that a message begins with: by its row in the file, or by its name."""
    if isinstance(pairs, PairTable) and (number := pairs.number_of_row(message)) is not None:
        return number
    named = [(len(facts.pair_id), n) for n, facts in enumerate(pair_facts(pairs)) if message.startswith(f"{facts.pair_id}: ")]
    return max(named)[1] if named else None


def _row(pair: PairFacts, error: str) -> dict[str, Any]:
    """Return the line of a pair in the list."""
    return {"pair_id": pair.pair_id, "error": error, "labelled": pair.preferred is not None}


def _listed(out: Path) -> dict[str, dict[str, Any]]:
    return {row["pair_id"]: row for row in read_complete_lines(out / UNREADABLE)}


def _names_in(path: Path) -> set[str]:
    return {row["pair_id"] for row in read_complete_lines(path)}


def _write_list(out: Path, rows: Mapping[str, dict[str, Any]]) -> None:
    if rows:
        write_atomic(out / UNREADABLE, "".join(json.dumps(row) + "\n" for row in rows.values()))
    elif (out / UNREADABLE).exists():
        (out / UNREADABLE).unlink()  # of a start that failed


def _record(path: Path) -> dict[str, Any]:
    """Return what ``run.json`` holds; nothing where it is not there, or no run's: opening the run says so."""
    with suppress(OSError, ValueError):
        record = json.loads(path.read_text(encoding="utf-8"))
        return record if isinstance(record, dict) else {}
    return {}
