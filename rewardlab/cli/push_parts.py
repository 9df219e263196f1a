"""What `rewardlab push` sends: which files of a checkpoint or of a set, and the words of their card."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from rewardlab.errors import CheckpointError, ConfigError, DataError
from rewardlab.reporting.cards import README

if TYPE_CHECKING:
    from rewardlab.benchmarks.report_model import Report

# Of a trainer, not of a model: states to go on from, and a pickle of its arguments.
TRAINER_FILES = (
    "training_args.bin",
    "optimizer*",
    "scheduler*",
    "rng_state*",
    "trainer_state.json",
    "global_step*",
    "*.partial",
)


@dataclass(frozen=True)
class Parcel:
    """``files`` of ``folder`` go as they are, ``changed`` (name -> content) in place of theirs; ``stale`` are patterns of the
    names that files of an earlier push have; ``readme`` is the text that stands in the folder."""

    folder: Path
    files: Sequence[str]
    front: Mapping[str, Any]
    body: str
    stale: Sequence[str]
    readme: str | None = None
    changed: Mapping[str, bytes] = field(default_factory=dict)
    left_out: Sequence[str] = ()
    notes: Sequence[str] = ()

    def leftovers(self, names: Sequence[str]) -> list[str]:
        """Return which files of a repository an earlier push left: not sent again, and of a name that is stale. No pattern
        matches within other folders than its own."""
        sent = {*self.files, *self.changed}
        left = [PurePosixPath(name) for name in names if name not in sent]
        patterns = [PurePosixPath(pattern) for pattern in self.stale]
        return sorted(
            str(path) for path in left if any(path.parent == p.parent and fnmatchcase(path.name, p.name) for p in patterns)
        )


def is_checkpoint(folder: Path) -> bool:
    """Return whether a folder holds a model or an adapter."""
    return any((folder / name).is_file() for name in ("config.json", "adapter_config.json"))


def checkpoint_parcel(folder: Path, repo: str, reports: Sequence[Path], *, base_model: str | None, **given: Any) -> Parcel:
    """Return a checkpoint and its card. Raise CheckpointError for one without weights, or an adapter whose base nobody else
    has; ConfigError for a report of another judge, or of a run that failed."""
    from rewardlab.models.model_card import adapter_base, is_hub_id, model_card_body, model_front_matter

    files, left_out = _files_of(folder)
    _check_weights(folder)
    base, changed = adapter_base(folder), {}
    if base is not None and base_model is not None:
        config = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
        changed["adapter_config.json"] = (
            json.dumps(config | {"base_model_name_or_path": base_model}, indent=2) + "\n"
        ).encode()
        files = [name for name in files if name not in changed]
    elif base is not None and not is_hub_id(base):
        raise CheckpointError(
            f"{folder}: an adapter of {base}, a folder that others do not have; name its base on the Hub (--base-model "
            "OWNER/NAME), or push what `rewardlab merge` makes of it"
        )
    read = [_read_report(path, folder) for path in reports]
    front = model_front_matter(folder, base_model=base_model, **given)
    whole = [report for report in read if not report.robustness]  # attacked pairs measure no accuracy of the judge
    if whole:
        front["model-index"] = _model_index(repo, whole)
    body = model_card_body(folder, repo, [line for report in read for line in _result_lines(report)])
    notes = [] if front["license"] else ["no license stated: --license apache-2.0 (or another) puts it on the card"]
    notes += [] if front["base_model"] else ["no base model stated: the checkpoint does not name one of the Hub; --base-model"]
    missing = "no model-index: accuracies are of attacked pairs alone" if read else "no accuracy on the card"
    notes += [] if whole else [f"{missing}; --report RUN of `rewardlab bench run` puts it there"]
    stale = ["*.safetensors", "*.safetensors.index.json"]
    return Parcel(folder, files, front, body, stale, _text(folder / README), changed, left_out, notes)


def _files_of(folder: Path) -> tuple[list[str], list[str]]:
    """Return the names of the files to send and of those left out, README.md in neither."""
    sent, left_out = list[str](), list[str]()
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if path.is_dir() or any(part.startswith(".") for part in name.parts) or str(name) == README:
            continue
        trainers = any(Path(part).match(pattern) for part in name.parts for pattern in TRAINER_FILES)
        (left_out if trainers else sent).append(name.as_posix())
    return sent, left_out


def _check_weights(folder: Path) -> None:
    """Raise CheckpointError where weights are missing."""
    if not any(folder.glob("*.safetensors")):
        raise CheckpointError(f"{folder}: holds no *.safetensors; expected the folder of a finished run (OUT/final)")
    for index in folder.glob("*.safetensors.index.json"):
        wanted = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        if missing := sorted(name for name in wanted if not (folder / name).is_file()):
            raise CheckpointError(f"{folder}: lacks {', '.join(missing)}, which {index.name} names; copy the whole checkpoint")


def _read_report(run: Path, folder: Path) -> Report:
    """Return the report of a run. Raise ConfigError where the run failed, and where its judge had other weights or was asked in
    other words."""
    from rewardlab.benchmarks.base import VOTES
    from rewardlab.benchmarks.comparison import read_run
    from rewardlab.models.checkpoints import read_card, weights_id

    report = read_run(run).report
    if report.failure:
        raise ConfigError(
            f"{run}: no card may have its figures, for the run failed: {report.failure}; run the same benchmark command again, "
            "which asks for what failed, or leave out this --report"
        )
    with (run / VOTES).open(encoding="utf-8") as log:
        identity = json.loads(log.readline()).get("identity", {})
    if (weights := identity.get("weights")) and weights != weights_id(folder):
        raise ConfigError(
            f"{run}: judged by {report.judge}, whose weights are not those of {folder} (a copy with new times counts as "
            "another file, too: cp -a keeps them); run the benchmark on this checkpoint"
        )
    trained = (read_card(folder) or {}).get("template_hash")
    if trained and identity.get("template") not in (None, trained):
        raise ConfigError(f"{run}: asked in words of hash {identity['template']}; {folder} was trained on {trained}")
    return report


def _result_lines(report: Report) -> list[str]:
    from rewardlab.benchmarks.report import accuracy_rows, facts
    from rewardlab.benchmarks.robustness.text import FIGURES, figure_rows, robustness_sentence
    from rewardlab.reporting.tables import markdown_table

    accuracy = f"accuracy{' on attacked pairs' if report.robustness else ''}, 95 % interval"
    lines = [f"### {report.benchmark}", "", *markdown_table(("", accuracy, "pairs"), accuracy_rows(report))]
    if report.robustness:
        lines += ["", robustness_sentence(report.robustness), "", *markdown_table(FIGURES, figure_rows(report.robustness))]
    lines += ["", *(f"- {name}: {value}" for name, value in facts(report))]
    versions = ", ".join(f"{name} {number}" for name, number in report.versions.items() if number)
    return [*lines, f"- versions: {versions}", *(f"- note: {note}" for note in report.notes), ""]


def _model_index(repo: str, reports: Sequence[Report]) -> Any:
    from huggingface_hub.repocard_data import EvalResult, eval_results_to_model_index

    results = []
    for report in reports:
        values = {"accuracy": report.scores.accuracy.micro, "invalid_rate": report.scores.invalid_rate}
        if report.scores.swap_consistency is not None:
            values["swap_consistency"] = report.scores.swap_consistency
        results += [
            EvalResult("image-text-to-text", report.benchmark, report.benchmark, name, round(value, 4))
            for name, value in values.items()
        ]
    return eval_results_to_model_index(repo.rpartition("/")[2], results)


@contextmanager
def pairs_parcel(data: Path, repo: str, *, images: Path | None, **given: Any) -> Iterator[Parcel]:
    """Yield a set as Parquet shards with media inside, written anew where it is in another form, and its card. Raise DataError
    or MediaError at the first bad row."""
    from rewardlab.data.dataset_card import SHARDS, dataset_card_body, dataset_front_matter, read_json, split_patterns
    from rewardlab.data.pairs import files_of

    if not data.exists():
        raise DataError(f"{data}: no such file or folder; expected a checkpoint, or pairs as .parquet or .jsonl")
    beside = data if data.is_dir() else data.parent / data.stem
    build, stats = read_json(beside / "report.json"), read_json(beside / "stats.json")
    with TemporaryDirectory(prefix="rewardlab-push-") as temporary:
        folder, notes = data if data.is_dir() else data.parent, list[str]()
        files = files_of(data)
        if not all(_is_whole(file) for file in files):
            files = list(_write_anew(data, folder, Path(temporary), images))
            folder = Path(temporary)
            notes.append(f"{data}: written anew as {len(files):,} Parquet shards, media inside")
        number = sum(map(_num_rows, files))
        if not number:
            raise DataError(f"{data}: holds no pairs")
        names = [file.relative_to(folder).as_posix() for file in files]
        splits = split_patterns(names)
        front = dataset_front_matter(number, build, splits, **given)
        if not front["license"]:
            notes.append("no license stated: --license cc-by-4.0 (or another) puts it on the card")
        body = dataset_card_body(repo, number, build, stats, splits)
        readme = _text(data / README) if data.is_dir() else None
        stale = sorted({SHARDS, *((PurePosixPath(name).parent / SHARDS).as_posix() for name in names)})
        yield Parcel(folder, names, front, body, stale, readme, notes=notes)


def _write_anew(data: Path, folder: Path, out: Path, images: Path | None) -> Iterator[Path]:
    """Write a set as Parquet shards with media inside, of several splits each into a folder of its name; yield the files."""
    from rewardlab.data.dataset_card import split_of
    from rewardlab.data.pairs import files_of, stream_pairs, write_shards

    files = files_of(data)
    names = {file: split_of(file.relative_to(folder).as_posix()) for file in files}
    if len(set(names.values())) == 1:
        yield from write_shards(stream_pairs(data, images=images, frames=None), out)
        return
    for split in dict.fromkeys(names.values()):
        pairs = (pair for file in files if names[file] == split for pair in stream_pairs(file, images=images, frames=None))
        yield from write_shards(pairs, out / split)


def _is_whole(file: Path) -> bool:
    """Return whether a file was written by us with its media inside."""
    from rewardlab.data.pairs import is_checked

    return is_checked(file) and not (file.parent / "media").exists()


def _num_rows(file: Path) -> int:
    import pyarrow.parquet as pq

    return int(pq.read_metadata(file).num_rows)


def _text(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.is_file() else None
