"""`rewardlab data`: build, check, balance, split, filter and decontaminate sets of pairs, and write them for other trainers."""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
import shlex
import sys
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional, cast

import typer

from rewardlab.cli.commands import command
from rewardlab.cli.exit_codes import ExitCode
from rewardlab.cli.options import (
    AllowColumns,
    AsJson,
    Data,
    Images,
    Out,
    Overrides,
    RandomSeed,
    Seed,
    columns_of,
    data_app,
    read_config,
)
from rewardlab.errors import ConfigError, DataError, InputError, OutputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rewardlab.curation.decontaminate import Contamination
    from rewardlab.data.recipes import Recipe
    from rewardlab.types import PreferencePair


RECIPES = "rewardlab.recipes"  # group of entry points: recipes of other packages
FILE_SUFFIXES = (".jsonl", ".parquet", ".csv", ".tsv", ".json", ".ndjson", ".arrow", ".txt", ".gz", ".zip")  # of no folder
AGAINST = (
    "A benchmark: NAME=DATA or NAME=DATA,IMAGES, as in `bench run NAME --data DATA --images IMAGES`; repeat for several. "
    "With - for IMAGES only texts are compared."
)


def find_recipe(name: str) -> Recipe:
    """Return a recipe by its name in ``data_recipes`` or the entry points of group ``rewardlab.recipes``, by a .py file with a
    ``RECIPE``, or by a .yaml mapping. Raises ConfigError.
    """
    from rewardlab.config import MappingConfig, load_config
    from rewardlab.data.recipes import Recipe, recipe_of
    from rewardlab.extensions import load_extension

    if name.endswith((".yaml", ".yml")):
        return recipe_of(load_config(MappingConfig, Path(name)))
    if name in _shipped_recipes():
        return cast(Recipe, importlib.import_module(f"data_recipes.{name}").RECIPE)
    recipe = load_extension(name, Recipe, attribute="RECIPE", group=RECIPES)
    if recipe is None:
        raise ConfigError(f"no recipe {name!r}; expected one of {', '.join(recipe_names())}, or give a .py or .yaml file")
    return recipe


def _shipped_recipes() -> list[str]:
    """Return the names of ``data_recipes``, found by name and not imported: they know rewardlab, not the other way round."""
    spec = importlib.util.find_spec("data_recipes")
    folders = spec.submodule_search_locations if spec else None
    return [path.stem for folder in folders or () for path in Path(folder).glob("[!_]*.py")]


def recipe_names() -> list[str]:
    """Return the names of all recipes that are installed."""
    from rewardlab.extensions import extension_names

    return sorted({*_shipped_recipes(), *extension_names(RECIPES)})


@data_app.command("recipes")
def data_recipes_list() -> None:
    """List the public sources with a recipe: licence, published rows, location and caveats."""
    for name in recipe_names():
        recipe = find_recipe(name)
        rows = "unknown" if recipe.published is None else f"{recipe.published:,}"
        typer.echo(f"{name}: {rows} rows, licence {recipe.licence or 'not stated'}, {recipe.url}")
        doc = sys.modules[recipe.convert.__module__].__doc__ or ""
        typer.echo(f"  {doc.partition(chr(10))[0]}")


@dataclass(frozen=True, kw_only=True)
class DataBuild:
    """Options of `rewardlab data build`."""

    recipe: Annotated[str, typer.Argument(help="A name of `rewardlab data recipes`, a .py with a RECIPE, or a .yaml mapping.")]
    overrides: Overrides = None
    source: Annotated[
        str,
        typer.Option(
            "--from",
            help="The source: its folder (or a dataset saved by `datasets`), one file of it, or "
            "hf:OWNER/NAME[@REVISION][:CONFIG[:SPLIT]], which is streamed from the Hub.",
        ),
    ]
    out: Out
    against: Annotated[
        list[str], typer.Option("--against", help=f"{AGAINST} Its rows are left out; none: compare with no benchmark.")
    ] = field(default_factory=list)
    images: Annotated[
        Optional[Path], typer.Option("--images", help="Folder that media paths are relative to (default: that of the source).")
    ] = None
    limit: Annotated[Optional[int], typer.Option("--limit", min=1, help="Stop after this many pairs.")] = None
    seed: Seed = None


@command(data_app, "build")
def data_build(options: DataBuild) -> None:
    """Make a set of pairs from a public source: converted, checked, balanced, without duplicates and benchmark rows.

    Writes Parquet shards, `rejected.jsonl` (everything left out, and why), `stats.json`, `stats.html` and `report.json`.
    `rewardlab data build rlaif_v --from downloads/rlaif_v --against vl_rewardbench=vlrb.jsonl,images --out sets/rlaif_v`
    """
    from rewardlab.config import BuildConfig
    from rewardlab.curation.build import build
    from rewardlab.data.sources import open_source
    from rewardlab.reporting.progress import bar

    if not options.against:
        raise ConfigError(
            "name the benchmarks that a set to train on must not contain (--against vl_rewardbench=FILE; `bench prepare` "
            "fetches them), or give --against none, for a set of your own to benchmark on"
        )
    recipe = find_recipe(options.recipe)
    config = read_config(BuildConfig, options.overrides, images=options.images, limit=options.limit, seed=options.seed)
    source = open_source(options.source, recipe.files, download=config.download)
    against = [] if options.against == ["none"] else options.against
    contamination, notes = _contamination(against)
    facts = {"against": against, "notes": notes, "command": shlex.join(["rewardlab", *sys.argv[1:]])}
    with bar(options.recipe, recipe.published) as advance:
        report = build(recipe, source, options.out, config=config, contamination=contamination, advance=advance, facts=facts)
    counts = ("converted", "kept", "dropped", "bad", "duplicate", "contaminated")
    typer.echo(", ".join(f"{name} {report[name]:,}" for name in counts))
    for kind, reasons in report["reasons"].items():
        for reason, number in list(reasons.items())[:5]:
            typer.echo(f"  {kind}: {number:,} × {reason}")
    typer.echo(f"written: {options.out}/part-*.parquet, rejected.jsonl, stats.json, stats.html, report.json")


def _contamination(against: list[str]) -> tuple[Contamination | None, list[str]]:
    from rewardlab.config import MatchConfig
    from rewardlab.curation.decontaminate import Contamination, load_benchmark_pairs, num_images, parse_against
    from rewardlab.reporting.progress import bar

    if not against:
        return None, ["compared with no benchmark (--against none)"]
    known, notes = load_benchmark_pairs([parse_against(spec) for spec in against])
    with bar("benchmarks", num_images(known)) as advance:
        return Contamination(known, MatchConfig.model_validate({}), advance), notes


@data_app.command("balance")
def data_balance(data: Data, out: Out, images: Images = None, allow: AllowColumns = None, seed: RandomSeed = 0) -> None:
    """Swap responses so that within each source and category both are preferred, and shown first, equally often."""
    from rewardlab.curation.build import Balance
    from rewardlab.data.pairs import stream_pairs, write_shards

    balance = Balance(seed)
    pairs = _some_pairs(stream_pairs(data, images=images, frames=None, allow_columns=columns_of(allow)), data)
    shards = list(write_shards((balance.place(pair) for pair in pairs), out))
    typer.echo(f"written: {out} ({len(shards)} shards)")


@data_app.command("split")
def data_split(
    data: Data,
    out: Annotated[Path, typer.Option("--out", help="Folder for train/ and test/.")],
    share: Annotated[float, typer.Option("--share", min=0.0, max=0.5, help="Fraction of the pairs to hold out.")] = 0.05,
    images: Images = None,
    allow: AllowColumns = None,
    seed: RandomSeed = 0,
) -> None:
    """Split a set into `train/` and `test/`, which share no picture, not even a re-encoded copy."""
    from rewardlab.curation.duplicates import hold_out_groups, picture_groups
    from rewardlab.data.files import mark_unfinished
    from rewardlab.data.pairs import PairSet, with_unique_ids, write_parts
    from rewardlab.reporting.progress import bar

    names = columns_of(allow)
    pairs = PairSet(data, images=images, frames=None, allow_columns=names)
    with bar("pictures", None) as advance:
        every = with_unique_ids(PairSet(data, images=images, allow_columns=names), data)  # videos by their frames
        groups = picture_groups(every, advance)
    test_groups = hold_out_groups(groups, share, seed)
    if not test_groups:
        raise DataError(f"{data}: every image has more pairs than --share {share:g} of {len(groups):,}; give a larger one")
    with mark_unfinished(out / "train"), mark_unfinished(out / "test"):  # neither is whole before both are
        for name, wanted in (("train", False), ("test", True)):
            part = (pair for pair, group in zip(pairs, groups, strict=True) if (group in test_groups) == wanted)
            list(write_parts(part, out / name))
    num_test = sum(group in test_groups for group in groups)
    typer.echo(f"{len(set(groups)):,} groups; train {len(groups) - num_test:,} pairs, test {num_test:,}")


@data_app.command("convert")
def data_convert(
    data: Data,
    out: Annotated[Path, typer.Option("--out", help="A .jsonl or .parquet file, or a folder for shards.")],
    images: Images = None,
    allow: AllowColumns = None,
) -> None:
    """Convert pairs to JSON lines with a media folder beside them, one Parquet file, or a folder of shards."""
    from rewardlab.data.pairs import stream_pairs, write_jsonl, write_parquet, write_shards

    columns = columns_of(allow)
    if out.suffix not in (".jsonl", ".parquet") and out.suffix.lower() in FILE_SUFFIXES:
        raise OutputError(f"{out}: {out.suffix} is not written; name a .jsonl or .parquet file, or a folder for shards")
    pairs = _some_pairs(stream_pairs(data, images=images, frames=None, allow_columns=columns, decode=True), data)
    if out.suffix == ".jsonl":
        number = write_jsonl(pairs, out)
    elif out.suffix == ".parquet":
        number = write_parquet(pairs, out)
    else:
        number = sum(1 for _ in write_shards(pairs, out))
        typer.echo(f"{number:,} shards in {out}")
        return
    typer.echo(f"{number:,} pairs in {out}")


def _some_pairs(pairs: Iterator[PreferencePair], data: Path) -> Iterator[PreferencePair]:
    """Return the pairs; if there are none, exit with status 1 before anything is written. Raise DataError for equal ids."""
    from rewardlab.data.pairs import with_unique_ids

    pairs = with_unique_ids(pairs, data)
    first = next(pairs, None)
    if first is None:
        typer.echo(f"{data}: holds no pairs, so nothing is written", err=True)
        raise typer.Exit(ExitCode.FINDING)
    return chain([first], pairs)


@data_app.command("filter")
def data_filter(
    data: Data,
    out: Out,
    overrides: Overrides = None,
    images: Images = None,
    allow: AllowColumns = None,
) -> None:
    """Remove judgments that are unfit as training targets: contradictions, leaked labels, templates, outliers.

    Writes `kept.parquet`, `filtered.jsonl` (each with its reason) and `report.json`. Pairs without a judgment stay, and
    count as pairs only: SFT learns from `num_judgments_kept`. With `consistency=MODEL@URL` a model checks for contradictions.
    """
    from rewardlab.config import FilterConfig
    from rewardlab.curation.quality import filter_set

    config = read_config(FilterConfig, overrides)
    report = filter_set(data, config, out, images=images, allow_columns=columns_of(allow))
    names = ("num_pairs", "num_pairs_kept", "num_judgments", "num_judgments_kept", "reasons", "unclear")
    typer.echo(json.dumps({name: report[name] for name in names}))
    typer.echo(f"written: {out}/kept.parquet, filtered.jsonl, report.json")


@dataclass(frozen=True, kw_only=True)
class DataDecontaminate:
    """Options of `rewardlab data decontaminate`."""

    train: Annotated[Path, typer.Argument(help="Training pairs, .parquet or .jsonl.")]
    overrides: Overrides = None
    against: Annotated[list[str], typer.Option("--against", help=AGAINST)]
    out: Out
    images: Images = None
    allow: AllowColumns = None


@command(data_app, "decontaminate")
def data_decontaminate(options: DataDecontaminate) -> None:
    """Remove from a training set what benchmarks contain: same or near-same images, prompts, answers.

    Writes `clean.parquet`, `contaminated.jsonl` (each removed pair, and why), `report.json`, and `report.html`, which shows
    the least certain matches side by side. `rewardlab data decontaminate pairs.parquet --against
    vl_rewardbench=vl_rewardbench.jsonl,images/ --out runs/clean`
    """
    from rewardlab.config import MatchConfig
    from rewardlab.curation.decontaminate import contamination_markdown, decontaminate, parse_against

    report = decontaminate(
        options.train,
        [parse_against(spec) for spec in options.against],
        options.out,
        images=options.images,
        limits=read_config(MatchConfig, options.overrides),
        command=shlex.join(["rewardlab", *sys.argv[1:]]),
        allow_columns=columns_of(options.allow),
    )
    typer.echo(contamination_markdown(report))
    typer.echo(f"written: {options.out}/clean.parquet, contaminated.jsonl, report.json, report.html")


@data_app.command("verl")
def data_verl(
    data: Data,
    out: Annotated[Path, typer.Option("--out", help="A .parquet file for data.train_files or data.val_files.")],
    both_orders: Annotated[
        bool,
        typer.Option(
            "--both-orders", help="Write each pair in both orders, one after the other, instead of its own order only."
        ),
    ] = False,
    template: Annotated[str, typer.Option("--template", help="Prompt template of the checkpoint to be trained.")] = "r1_reward",
    shuffle: Annotated[
        Optional[int],
        typer.Option("--shuffle", help="Seed for shuffling the pairs before they are written, for data.shuffle=False."),
    ] = None,
    images: Images = None,
    allow: AllowColumns = None,
) -> None:
    """Write pairs as the Parquet that verl trains a judge on (`configs/verl/stable_reinforce_7b.sh`).

    `rewardlab data verl runs/hard --template r1_reward --out train.parquet`
    """
    import random

    from rewardlab.data.pairs import PairSet
    from rewardlab.integrations.judge_rewards import write_verl_rows
    from rewardlab.prompts import load_template, require_one_turn, require_pairs

    if out.suffix != ".parquet":
        raise OutputError(f"{out}: verl recognises files by their suffix; use .parquet")
    judge_template = require_pairs(require_one_turn(load_template(template), "verl"), "verl")
    pairs: Iterable[PreferencePair] = PairSet(data, images=images, allow_columns=columns_of(allow))
    if shuffle is not None:
        pairs = list(pairs)
        random.Random(shuffle).shuffle(pairs)
    written = write_verl_rows(pairs, out, judge_template, both_orders=both_orders)
    typer.echo(f"{written.num_rows:,} rows in {out}; {written.num_unlabelled:,} pairs without a label left out")
    typer.echo(f"template {judge_template.name} {judge_template.hash}; verdicts are read as {judge_template.verdict_format}")


@dataclass(frozen=True, kw_only=True)
class PreferenceSet:
    """Options of `rewardlab data dpo` and `rewardlab data kto`."""

    run: Annotated[Path, typer.Argument(help="A finished `bench run pairs`, or `rank`: its folder or its log of votes.")]
    data: Annotated[Path, typer.Option("--data", help="The pairs (or candidates) that were judged: the run's own --data.")]
    out: Annotated[Path, typer.Option("--out", help="A .parquet file.")]
    min_margin: Annotated[
        float,
        typer.Option(
            "--min-margin", min=0.0, max=1.0, help="Minimum margin: the winner's fraction of votes minus the loser's."
        ),
    ] = 0.0
    keep_inconsistent: Annotated[
        bool, typer.Option("--keep-inconsistent", help="Keep pairs whose winner depends on the order they are shown in.")
    ] = False
    images: Images = None
    allow: AllowColumns = None


@command(data_app, "dpo")
def data_dpo(options: PreferenceSet) -> None:
    """Write pairs with a judge's decisions as labels, for DPO: prompt, chosen, rejected, images, in TRL's conversational form.

    Further columns: `margin`, `share`, `swap_consistent` and `pair_id`. The judge's winner is the chosen response, whatever the
    label. Dropped pairs are counted by reason.
    `rewardlab data dpo runs/bench --data pairs.parquet --min-margin 0.5 --out dpo.parquet`
    """
    _write("dpo", options)


@command(data_app, "kto")
def data_kto(options: PreferenceSet) -> None:
    """Write responses with a judge's decisions as labels, for KTO: prompt, completion, label, images; two rows for each pair
    kept.

    `rewardlab data kto runs/rank --data candidates.jsonl --out kto.parquet`
    """
    _write("kto", options)


def _write(kind: str, options: PreferenceSet) -> None:
    from rewardlab.data.judgments import PreferenceRules, read_judged, write_preferences

    judged = read_judged(options.run, options.data, images=options.images, allow_columns=columns_of(options.allow))
    rules = PreferenceRules(options.min_margin, options.keep_inconsistent)
    counts = write_preferences(judged, options.out, kind, rules)
    dropped = sum(counts.dropped.values())
    typer.echo(f"{counts.num_rows:,} rows of {counts.kept:,} pairs in {options.out}; {dropped:,} pairs left out")
    for reason, number in counts.dropped.items():
        typer.echo(f"  {number:,} × {reason}")


SHOWN = 5  # bad rows of a kind
_NUMBER = re.compile(r"\d+")


class ReasonCount:
    """Counts reasons by kind: reasons of one kind differ only in numbers."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._first: dict[str, str] = {}

    def is_shown(self, reason: str) -> bool:
        """Count a reason and return whether it is among the first of its kind."""
        kind = _NUMBER.sub("0", reason)
        self._first.setdefault(kind, reason)
        self._counts[kind] += 1
        return self._counts[kind] <= SHOWN

    def rest(self) -> list[str]:
        """Return a line for each kind with more reasons than are shown."""
        return [
            f"and {number - SHOWN:,} more like: {self._first[kind]}" for kind, number in self._counts.items() if number > SHOWN
        ]


@data_app.command("validate")
def data_validate(
    data: Data,
    out: Annotated[Optional[Path], typer.Option("--out", help="Folder for the good rows, as Parquet shards.")] = None,
    images: Images = None,
    allow: AllowColumns = None,
    suggest: Annotated[
        bool, typer.Option("--suggest", help="Print a mapping of the file's columns for `data build`, and check nothing.")
    ] = False,
) -> None:
    """Check every row: list the bad ones with their reasons, and with --out keep the good ones.

    Exit status 1 if any row is bad, or there are no rows. Five rows are listed per reason, and the others
    counted. Unknown columns are listed once, at the end; rows that have them are not kept.
    """
    if suggest:
        if out or images or allow:
            raise ConfigError("--suggest prints a mapping and checks nothing; give it without other options")
        from rewardlab.data.column_mapping import suggested_mapping

        return typer.echo(suggested_mapping(data), nl=False)
    from rewardlab.data.columns import UnreadColumnsError, unread_words
    from rewardlab.data.pairs import BadRow, validate_rows, write_shards
    from rewardlab.data.set_checks import BROKEN_TEXTS, SetCheck

    reasons, allowed = ReasonCount(), columns_of(allow, (BROKEN_TEXTS,))
    bad, unlabelled, ties, names, media = 0, 0, 0, set[str](), SetCheck()
    unread, num_unread = dict[str, str](), 0

    def checked() -> Iterator[PreferencePair]:
        nonlocal bad, unlabelled, ties, num_unread
        with closing(validate_rows(data, images=images, allow_columns=allowed, decode=True)) as rows:
            for index, row in enumerate(rows):
                error = row.error if isinstance(row, BadRow) else None
                if isinstance(error, UnreadColumnsError):
                    unread.update(error.columns)
                    row = BadRow(index, error.rest) if isinstance(error.rest, InputError) else error.rest
                reason = row.reason if isinstance(row, BadRow) else ""
                if not isinstance(row, BadRow) and row.pair_id in names:
                    reason = f"{data}, row {index}: pair_id {row.pair_id!r} appears twice; every pair needs its own"
                if reason:
                    bad += 1
                    if reasons.is_shown(reason):
                        typer.echo(reason)
                elif not isinstance(row, BadRow):
                    media.add(row, index)
                    unlabelled += row.preferred is None and row.tie is None
                    ties += row.tie is not None
                    names.add(row.pair_id)
                    num_unread += error is not None
                    if error is None:
                        yield row

    for _ in write_shards(checked(), out) if out else checked():
        pass
    for line in reasons.rest():
        typer.echo(line)
    without = f" ({unlabelled:,} without a label: not for a benchmark without --labels, nor to train on)" if unlabelled else ""
    without += f" ({ties:,} ties: for a benchmark, not to train on)" if ties else ""
    if unread:
        typer.echo(unread_words(unread))
    but_for = f", {num_unread:,} good but for columns that are not read" if num_unread else ""
    num_good = len(names) - num_unread
    typer.echo(f"{num_good:,} good{but_for}{without}, {bad:,} bad, {media.num_with_media:,} with images")
    for note in media.notes():
        typer.echo(note)
    if not names and not bad:
        typer.echo(f"{data}: holds no pairs")
    media.refuse_broken(str(data), allowed)
    if bad or unread or not names:
        raise typer.Exit(ExitCode.FINDING)


@data_app.command("stats")
def data_stats(
    data: Data,
    out: Out,
    images: Images = None,
    allow: AllowColumns = None,
    seed: RandomSeed = 0,
    as_json: AsJson = False,
) -> None:
    """Show statistics of a set: balance, lengths, length bias. Writes `stats.json`, and `stats.html`
    with example pairs."""
    from rewardlab.curation.overview import Overview, summary_lines
    from rewardlab.data.pairs import stream_pairs
    from rewardlab.reporting.progress import bar

    overview = Overview(seed)
    with bar("stats", None) as advance:
        for pair in stream_pairs(data, images=images, allow_columns=columns_of(allow)):
            overview.add(pair)
            advance()
    numbers = overview.write(out, title=f"{data.name}: {overview.num_pairs:,} pairs")
    if as_json:
        typer.echo(json.dumps(numbers))
        return
    for line in summary_lines(numbers):
        typer.echo(line)
    typer.echo(f"written: {out}/stats.json, stats.html")
