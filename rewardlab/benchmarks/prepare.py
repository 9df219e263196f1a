"""Fetching a benchmark's files, and checking what is at hand: hashes, counts, labels.

From the Hub every file of a data format is fetched at one revision, and compared with the hash that the Hub names of large
files. Files whose hash is known here, of the copies in circulation, are compared with that. What was fetched is written down,
so that the same files can be told again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from rewardlab.benchmarks.base import size_notes
from rewardlab.benchmarks.runner import BENCHMARKS
from rewardlab.data.files import sha256_of, write_atomic
from rewardlab.errors import ConfigError, DataError, OutputError
from rewardlab.progress import bar

RECORD = "prepared.json"
PATTERNS = (".parquet", ".json", ".jsonl")
R1_REWARD = "https://raw.githubusercontent.com/yfzhang114/r1_reward/main/inference"
MMRB2 = "https://raw.githubusercontent.com/facebookresearch/MMRB2/main/benchmark"


@dataclass(frozen=True)
class Source:
    """Where a benchmark is: a dataset of the Hub, or single ``urls`` by file name. ``known`` are SHA-256 by file name;
    ``media`` says how to get what is not fetched."""

    repo: str = ""
    urls: dict[str, str] = field(default_factory=dict)
    known: dict[str, str] = field(default_factory=dict)
    media: str = ""


SOURCES: dict[str, Source] = {
    "vl_rewardbench": Source(
        repo="MMInstruction/VL-RewardBench",
        known={"vl_rewardbench.jsonl": "17588bca00bf24d11d62cccbd3ab9e1327f08351d40a53d77370039861e02ec1"},
        media="the Hub's parquet has its images inside",
    ),
    "mm_rlhf": Source(
        urls={"mm_reward_bench.jsonl": f"{R1_REWARD}/MM-RLHF-Reward/mm_reward_bench.jsonl"},
        known={"mm_reward_bench.jsonl": "6d7b3589750b8837b54291b601220cdb000593a17b8bb1b81de298e5ebe772b9"},
        media="images, and folders of video frames, come with the release of Kwai-YuanQi/MM-RLHF",
    ),
    "multimodal_rewardbench": Source(
        repo="MMRB/Multimodal-RewardBench",
        media="inside the Hub's copy, or built by scripts/ of facebookresearch/multimodal_rewardbench",
    ),
    "mmrb2": Source(
        urls={
            f"{task}_response_only.json": f"{MMRB2}/{task}_response_only.json"
            for task in ("t2i", "edit", "interleaved", "reasoning")
        },
        known={
            "t2i_response_only.json": "b07eb7010934f475ea6e9195f9113c94911b99140b41ba59f9839771df714d8f",
            "edit_response_only.json": "c4c500c75742be4cafe0e48a6a27ee22089125f599baf970ccf783932cab416b",
            "interleaved_response_only.json": "8f71e0d699814715dc271bd83ee75eabedea3e9c420cb11dc98e4f7c591fa6f1",
            "reasoning_response_only.json": "f709e7cb72780c76ace483f38571f60f00ec2b5822f2ef91288915eb0ada732b",
        },
        media="prompts and images are added by build_from_hf.py of facebookresearch/MMRB2; give its output to bench run",
    ),
    "rewardbench2": Source(repo="allenai/reward-bench-2", media="there is none: text only"),
    "videorewardbench": Source(repo="Dragonriser/VideoRewardBench", media="videos are in the same dataset of the Hub"),
}


def fetch(name: str, out: Path, *, hub: str = "https://huggingface.co") -> dict[str, Any]:
    """Fetch to ``out`` what is not there yet; returns the record, which is also written there.

    Raises ConfigError for an unknown benchmark, DataError where the network or a hash says no: nothing half-written stays.
    """
    source, before = _source(name), _record(out)
    if out.exists() and not out.is_dir():
        raise OutputError(f"{out}: is a file; name a folder with --out")
    try:
        with httpx.Client(follow_redirects=True, timeout=60) as client:
            revision, files, hashes = (
                _hub_files(client, hub, source.repo) if source.repo else ("main", source.urls, source.known)
            )
            same = before.get("files", {}) if before.get("revision") == revision and source.repo else {}
            for file, url in files.items():
                _download(client, url, _inside(out, file), hashes.get(file), same.get(file))
    except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, DataError):
            raise
        place = f"the dataset {source.repo} of the Hub" if source.repo else ", ".join(source.urls.values())
        raise DataError(
            f"{name} could not be fetched ({error}); on a machine with a network fetch {place}, copy it here, and check it "
            f"with `rewardlab bench prepare {name} --check PATH`"
        ) from error
    record = {"benchmark": name, "repo": source.repo, "revision": revision}
    record["files"] = {file: sha256_of(out / file) for file in files}
    write_atomic(out / RECORD, json.dumps(record, indent=1) + "\n")
    return record


def _inside(out: Path, file: str) -> Path:
    """Where a file goes; a name that leads out of the folder is refused."""
    path = out / file
    if not path.resolve().is_relative_to(out.resolve()):
        raise DataError(f"a file named {file!r} would be written outside of {out}; the source is not to be trusted")
    return path


def _source(name: str) -> Source:
    if name not in SOURCES:
        raise ConfigError(f"unknown benchmark {name!r}; expected one of {', '.join(SOURCES)}")
    return SOURCES[name]


def _hub_files(client: httpx.Client, hub: str, repo: str) -> tuple[str, dict[str, str], dict[str, str]]:
    """The revision that ``main`` is, the URL of every data file there, and the SHA-256 of those that the Hub keeps as large."""
    answer = client.get(f"{hub}/api/datasets/{repo}/revision/main", params={"blobs": True})
    answer.raise_for_status()
    info = answer.json()
    files = [one for one in info["siblings"] if one["rfilename"].endswith(PATTERNS)]
    urls = {one["rfilename"]: f"{hub}/datasets/{repo}/resolve/{info['sha']}/{one['rfilename']}" for one in files}
    return info["sha"], urls, {one["rfilename"]: one["lfs"]["sha256"] for one in files if (one.get("lfs") or {}).get("sha256")}


def _download(client: httpx.Client, url: str, path: Path, expected: str | None, recorded: str | None) -> None:
    """To a neighbour, then into place. What is there already is kept only if its hash is the right one, or, where the source
    names none, the one recorded of the same revision."""
    if path.exists() and sha256_of(path) == (expected or recorded):
        return
    partial = path.with_name(f".{path.name}.partial")
    try:
        with client.stream("GET", url) as answer:
            answer.raise_for_status()
            path.parent.mkdir(parents=True, exist_ok=True)
            size = int(answer.headers.get("content-length", 0))
            with partial.open("wb") as file, bar(path.name, size) as advance:
                for block in answer.iter_bytes(1 << 20):
                    file.write(block)
                    advance(len(block))
        if expected and (found := sha256_of(partial)) != expected:
            raise DataError(f"{url}: its SHA-256 is {found}, expected {expected}; the file was changed, or damaged on its way")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def check(name: str, data: Path) -> tuple[list[str], bool]:
    """(sentences, whether all is as known): each file's hash, then what its loader counts. Raises DataError, ConfigError."""
    source, told, good = _source(name), [], True
    recorded = _record(data if data.is_dir() else data.parent).get("files", {})
    for file in _files(data):
        found = sha256_of(file)
        before = recorded.get(str(file.relative_to(data)) if data.is_dir() else file.name)
        if found in source.known.values():
            told.append(f"{file.name}: SHA-256 {found}, the known file")
        elif before == found:
            told.append(f"{file.name}: SHA-256 {found}, as fetched")
        elif before or file.name in source.known:
            told.append(f"{file.name}: SHA-256 {found}, expected {before or source.known[file.name]}: not the same file")
            good = False
        else:
            told.append(f"{file.name}: SHA-256 {found}, nothing to compare it with")
    if name in BENCHMARKS:
        rows = BENCHMARKS[name].load(_loadable(data), images=None, with_images=False)
        groups = ", ".join(
            f"{group} {sum(row.group == group for row in rows):,}" for group in dict.fromkeys(r.group for r in rows)
        )
        told.append(f"{len(rows):,} pairs: {groups}")
        notes = size_notes(BENCHMARKS[name], rows)
        told, good = [*told, *notes], good and not notes
    return [*told, f"media: {source.media}"], good


def _files(data: Path) -> Iterable[Path]:
    if not data.exists():
        raise DataError(f"{data}: no such file or folder")
    found = (
        sorted(path for path in data.rglob("*") if path.name.endswith(PATTERNS) and path.name != RECORD)
        if data.is_dir()
        else [data]
    )
    if not found:
        raise DataError(f"{data}: has no file of {', '.join(PATTERNS)}")
    return found


def _record(folder: Path) -> dict[str, Any]:
    """What was fetched to a folder; {} where nothing was, or the record is damaged."""
    try:
        found = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _loadable(data: Path) -> Path:
    """What a loader takes: the file, the only file of a folder, or the folder."""
    files = list(_files(data))
    return files[0] if len(files) == 1 else data
