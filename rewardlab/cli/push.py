"""`rewardlab push`: a checkpoint or a set of pairs to a hub repository, with a card that carries what was measured."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from rewardlab.cli.commands import command
from rewardlab.cli.options import TRAINING, Images, app
from rewardlab.errors import CheckpointError, ConfigError, DataError
from rewardlab.reporting.cards import README

if TYPE_CHECKING:
    from rewardlab.benchmarks.report_model import Report
    from rewardlab.data.hub import HubRepo, HubUpload


CARD_KEYS = ("license", "datasets", "base_model")
EVAL_RESULTS = ".eval_results"  # the folder of a model's repository that leaderboards of the Hub read


@dataclass(frozen=True, kw_only=True)
class Push:
    """Options of `rewardlab push`."""

    folder: Annotated[Path, typer.Argument(help="A checkpoint (OUT/final, a merged one), or pairs: .parquet, .jsonl, folder.")]
    repo: Annotated[str, typer.Argument(help="OWNER/NAME on the Hub (HF_ENDPOINT names another hub).")]
    card: Annotated[
        Optional[list[str]],
        typer.Argument(
            metavar="KEY=VALUE",
            help="Values on the card: license=apache-2.0, datasets=OWNER/NAME or datasets=[A/B,C/D] (the training sets), "
            "base_model=OWNER/NAME if the checkpoint names a folder.",
        ),
    ] = None
    report: Annotated[
        Optional[list[Path]], typer.Option("--report", help="Folder of a `bench run` of this checkpoint; repeat for several.")
    ] = None
    images: Images = None
    private: Annotated[bool, typer.Option("--private", help="Create the repository as a private one.")] = False
    replace_card: Annotated[
        bool, typer.Option("--replace-card", help="Overwrite README.md, including text that others wrote.")
    ] = False
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the card and list the files to send and delete; send nothing.")
    ] = False


@command(app, "push", rich_help_panel=TRAINING)
def push_command(options: Push) -> None:
    """Push a checkpoint or a set of pairs to the Hub, with a card: accuracy in both orders, template hash, command, versions.

    Files, card and deletions are pushed as one commit: an interrupted push changes nothing, and the same command retries it. A
    README that you wrote is kept: only the section between rewardlab's markers is replaced.
    `HF_TOKEN=... rewardlab push runs/rl/final me/my-judge license=apache-2.0 --report runs/bench`
    """
    from rewardlab.data.hub import HubRepo, pairs_upload
    from rewardlab.reporting.cards import author_text, merge_card

    folder, values = options.folder, card_values(options.card or ())
    with ExitStack() as stack:
        if is_checkpoint(folder):
            target = HubRepo(options.repo, "model")
            upload = checkpoint_upload(folder, options.repo, options.report or [], values)
        elif options.report or "base_model" in values:
            raise ConfigError(f"{folder}: not a checkpoint; --report and base_model= need one")
        else:
            target = HubRepo(options.repo, "dataset")
            upload = stack.enter_context(pairs_upload(folder, options.repo, images=options.images, **values))
        remote = None if options.dry_run else target.read_readme()
        human = None if options.replace_card else _author_readme(folder, upload.readme, remote)
        card = merge_card(human or "", upload.front, upload.body, given=values)
        if options.dry_run:
            _show(upload, card, target)
            return
        url = target.create(private=options.private)
        deleted = upload.leftovers(target.list_files())
        commit = target.send(upload, card, deleted=deleted)
    typer.echo(f"{len(upload.files):,} files and the card: {url} ({commit})")
    _say_deleted(deleted)
    if human is not None and author_text(human):
        typer.echo(
            f"{README}: text by others is kept, rewardlab's section is replaced (--replace-card rewrites the whole file)"
        )
    _say(upload)


def card_values(assignments: Sequence[str]) -> dict[str, Any]:
    """Return the values that KEY=VALUE put on the card. Raise ConfigError for another key."""
    from rewardlab.config import parse_overrides

    values = parse_overrides(assignments)
    if unknown := [key for key in values if key not in CARD_KEYS]:
        near = get_close_matches(unknown[0], CARD_KEYS, n=1)
        meant = f"; did you mean {near[0]}?" if near else ""
        raise ConfigError(f"{unknown[0]}: expected one of {', '.join(CARD_KEYS)}{meant}")
    if isinstance(values.get("datasets"), str):
        values["datasets"] = [values["datasets"]]
    return values


def _author_readme(folder: Path, local: str | None, remote: str | None) -> str | None:
    """Return the README whose text is kept: the repository's, or else the folder's. Raise DataError if both have different
    texts."""
    from rewardlab.reporting.cards import author_text

    written = [text for text in (local, remote) if text is not None and author_text(text)]
    if len(written) == 2 and author_text(written[0]) != author_text(written[1]):
        raise DataError(
            f"{folder}: README.md here and that of the repository differ; copy one over the other, or "
            "give --replace-card to overwrite it"
        )
    return written[0] if written else remote or local


def _show(upload: HubUpload, card: str, target: HubRepo) -> None:
    from rewardlab.models.hub import reaches_hub

    typer.echo(card)
    for name in upload.files:
        typer.echo(f"{(upload.folder / name).stat().st_size:>14,}  {name}")
    for name in (*upload.changed, README):
        typer.echo(f"{'written':>14}  {name}")
    if reaches_hub():
        _say_deleted(upload.leftovers(target.list_files()))
    else:
        typer.echo("the Hub cannot be reached, so the files that a push would delete are unknown")
    _say(upload)


def _say_deleted(names: list[str]) -> None:
    """List the deleted files of an earlier push."""
    for name in names:
        typer.echo(f"{'deleted':>14}  {name}")


def _say(upload: HubUpload) -> None:
    if upload.left_out:
        typer.echo(f"left out: {', '.join(upload.left_out)}")
    for note in upload.notes:
        typer.echo(note)


# Files of a trainer, not of the model.
TRAINER_FILES = (
    "training_args.bin",
    "optimizer*",
    "scheduler*",
    "rng_state*",
    "trainer_state.json",
    "global_step*",
    "*.partial",
)


def is_checkpoint(folder: Path) -> bool:
    """Return whether a folder holds a model or an adapter."""
    return any((folder / name).is_file() for name in ("config.json", "adapter_config.json"))


def checkpoint_upload(folder: Path, repo: str, reports: Sequence[Path], values: Mapping[str, Any]) -> HubUpload:
    """Return a checkpoint and its card. Raise CheckpointError if it lacks weights, or is an adapter of a local base;
    ConfigError for a report of another judge, or of a failed run."""
    from rewardlab.benchmarks.base import run_date
    from rewardlab.data.hub import HubUpload, readme_of
    from rewardlab.models.model_card import adapter_base, is_hub_id, model_card_body, model_front_matter

    files, left_out = _files_of(folder)
    _check_weights(folder)
    base, base_model, changed = adapter_base(folder), values.get("base_model"), {}
    if base is not None and base_model is not None:
        config = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
        changed["adapter_config.json"] = (
            json.dumps(config | {"base_model_name_or_path": base_model}, indent=2) + "\n"
        ).encode()
        files = [name for name in files if name not in changed]
    elif base is not None and not is_hub_id(base):
        raise CheckpointError(
            f"{folder}: an adapter of {base}, a folder that others do not have; name its base on the Hub "
            "(base_model=OWNER/NAME), or push the output of `rewardlab merge`"
        )
    read = [_read_report(path, folder) for path in reports]
    front = model_front_matter(folder, **values)
    whole = [report for report in read if not report.robustness]  # accuracy on attacked pairs is not the judge's accuracy
    if whole:
        front["model-index"] = _model_index(repo, whole)
    lines = [*(line for report in read for line in _result_lines(report)), *_certificate_lines(folder)]
    body = model_card_body(folder, repo, lines)
    notes = [] if front["license"] else ["no license stated: license=apache-2.0 (or another) puts it on the card"]
    notes += (
        [] if front["base_model"] else ["no base model stated: the checkpoint names none of the Hub; base_model=OWNER/NAME"]
    )
    missing = "no model-index: accuracies are of attacked pairs alone" if read else "no accuracy on the card"
    notes += [] if whole else [f"{missing}; --report RUN of `rewardlab bench run` puts it there"]
    for path, report in zip(reports, read, strict=True):
        dataset, reason = _dataset_of(report)
        if dataset and report in whole:
            changed |= eval_results(repo, report, dataset, run_date(path))
        elif report in whole:
            notes.append(f"{report.benchmark}: no {EVAL_RESULTS} for leaderboards of the Hub, for {reason}")
    stale = ["*.safetensors", "*.safetensors.index.json", f"{EVAL_RESULTS}/rewardlab-*.yaml"]
    return HubUpload(folder, files, front, body, stale, readme_of(folder), changed, left_out, notes)


def _certificate_lines(folder: Path) -> list[str]:
    """Return the card's lines on the checkpoint's certificate, if it has one. Raise DataError for one that was altered,
    CheckpointError for one of other weights."""
    from rewardlab.judging.certificate import CERTIFICATE, certificate_lines, read_certificate
    from rewardlab.judging.spec import judge_weights_id

    if not (folder / CERTIFICATE).exists():
        return []
    content, weights = read_certificate(folder), judge_weights_id(f"hf:{folder}")
    if content["judge"]["weights"] != weights:
        raise CheckpointError(
            f"{folder}/{CERTIFICATE}: is of the weights {content['judge']['weights']!r}, those of the folder are {weights!r}; "
            "write a new one, or remove it"
        )
    return ["", *(f"- {line}" for line in certificate_lines(content))]


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
    """Raise CheckpointError if weights are missing."""
    if not any(folder.glob("*.safetensors")):
        raise CheckpointError(f"{folder}: holds no *.safetensors; expected the folder of a finished run (OUT/final)")
    for index in folder.glob("*.safetensors.index.json"):
        wanted = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        if missing := sorted(name for name in wanted if not (folder / name).is_file()):
            raise CheckpointError(f"{folder}: lacks {', '.join(missing)}, which {index.name} names; copy the whole checkpoint")


def _read_report(run: Path, folder: Path) -> Report:
    """Return the report of a run. Raise ConfigError if the run failed, or its judge had other weights or another template."""
    from rewardlab.benchmarks.base import VOTES
    from rewardlab.benchmarks.comparison import read_run
    from rewardlab.models.checkpoints import read_card, weights_id

    report = read_run(run).report
    if report.failure:
        raise ConfigError(
            f"{run}: a card cannot report a failed run: {report.failure}; run the same benchmark command "
            "again to retry what failed, or leave out this --report"
        )
    with (run / VOTES).open(encoding="utf-8") as log:
        identity = json.loads(log.readline()).get("identity", {})
    if (weights := identity.get("weights")) and weights != weights_id(folder):
        raise ConfigError(
            f"{run}: judged by {report.judge}, whose weights are not those of {folder}; run the benchmark on this checkpoint"
        )
    trained = (read_card(folder) or {}).get("template_hash")
    if trained and identity.get("template") not in (None, trained):
        raise ConfigError(f"{run}: it used a template with hash {identity['template']}; {folder} was trained on {trained}")
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


def _dataset_of(report: Report) -> tuple[str, str]:
    """Return the dataset on the Hub that a report is of, and "" or why there is none or the report is not of all its pairs."""
    from rewardlab.benchmarks.registry import PACKAGED, find_benchmark
    from rewardlab.benchmarks.rows import LIMITED

    benchmark = find_benchmark(report.benchmark) if report.benchmark in PACKAGED else None
    if benchmark is None or benchmark.files is None or not benchmark.files.repo:
        return "", "its data is no dataset of the Hub"
    num_pairs = report.scores.num_pairs + (report.ties.num_ties if report.ties else 0)
    if sum(benchmark.sizes.values()) not in (0, num_pairs) or any(note.startswith(LIMITED) for note in report.notes):
        return "", f"{num_pairs:,} pairs are not the whole benchmark"
    if report.listwise or report.scores.invalid_rate == 1:
        return "", "its accuracy is not of pairs, or no verdict was read"
    return benchmark.files.repo, ""


def eval_results(repo: str, report: Report, dataset: str, date: str) -> dict[str, bytes]:
    """Return the files of the Hub's evaluation results by name, for the model ``repo`` OWNER/NAME: the accuracy (percent) over
    all pairs as the task ``default``, and that of each group as the task of its name. ``date``: ISO 8601.

    Each figure has its own file, since the Hub ignores a file with a task that the dataset's ``eval.yaml`` does not have.
    """
    import yaml
    from huggingface_hub import EvalResultEntry, constants, eval_result_entries_to_yaml

    scores, written = report.scores, dict[str, bytes]()
    figures = {"default": (scores.accuracy.micro, scores.interval)}
    figures |= {name: (cell.accuracy, cell.interval) for name, cell in scores.groups.items() if len(scores.groups) > 1}
    for task, (accuracy, (low, high)) in figures.items():
        facts = [f"95 % interval [{100 * low:.1f}, {100 * high:.1f}]", f"orders: {report.orders}"]
        facts += [f"votes of each: {report.votes}", f"invalid {100 * scores.invalid_rate:.2f} %", report.command]
        entry = EvalResultEntry(
            dataset_id=dataset,
            task_id=task,
            value=round(100 * accuracy, 2),
            date=date,
            source_url=f"{constants.ENDPOINT}/{repo}",
            source_name="Model card, by rewardlab",
            notes="; ".join(filter(None, facts)),
        )
        name = re.sub(r"[^\w.-]+", "-", f"rewardlab-{report.benchmark}-{task}".removesuffix("-default"))
        text = yaml.safe_dump(eval_result_entries_to_yaml([entry]), sort_keys=False, allow_unicode=True)
        written[f"{EVAL_RESULTS}/{name}.yaml"] = text.encode()
    return written
