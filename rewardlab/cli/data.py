"""`rewardlab data`: sets of pairs built, validated, balanced, split, filtered, decontaminated, written for other trainers."""

from __future__ import annotations

import importlib
import importlib.util
import json
import shlex
import sys
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional, cast

import typer

from rewardlab.cli.exit_codes import ExitCode
from rewardlab.cli.options import AllowColumns, Data, Images, Out, RandomSeed, columns_of, data_app
from rewardlab.errors import ConfigError, DataError, OutputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rewardlab.curation.decontaminate import Contamination
    from rewardlab.data.recipes import Recipe
    from rewardlab.types import PreferencePair

RECIPES = "rewardlab.recipes"  # group of entry points: recipes of other packages
FILE_SUFFIXES = (".jsonl", ".parquet", ".csv", ".tsv", ".json", ".ndjson", ".arrow", ".txt", ".gz", ".zip")  # of no folder
AGAINST = (
    "NAME=DATA or NAME=DATA,IMAGES, as in `bench run NAME --data DATA --images IMAGES`; again for another. "
    "IMAGES may be - where none are at hand: texts alone are compared then."
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
        raise ConfigError(f"no recipe {name!r}; there are {', '.join(recipe_names())}, or give a .py or .yaml file")
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
    """The public sources there are recipes for: licence, rows published, where they are, what to know of them."""
    for name in recipe_names():
        recipe = find_recipe(name)
        rows = "unknown" if recipe.published is None else f"{recipe.published:,}"
        typer.echo(f"{name}: {rows} rows, licence {recipe.licence or 'not stated'}, {recipe.url}")
        doc = sys.modules[recipe.convert.__module__].__doc__ or ""
        typer.echo(f"  {doc.partition(chr(10))[0]}")


def _contamination(against: list[str]) -> tuple[Contamination | None, list[str]]:
    from rewardlab.curation.decontaminate import Contamination, MatchLimits, load_benchmark_pairs, num_images, parse_against
    from rewardlab.reporting.progress import bar

    if not against:
        return None, ["compared with no benchmark (--no-decontaminate)"]
    known, notes = load_benchmark_pairs([parse_against(spec) for spec in against])
    with bar("benchmarks", num_images(known)) as advance:
        return Contamination(known, MatchLimits(), advance), notes


@data_app.command("build")
def data_build(
    recipe: Annotated[str, typer.Argument(help="A name of `rewardlab data recipes`, a .py with a RECIPE, or a .yaml mapping.")],
    source: Annotated[
        str,
        typer.Option(
            "--from",
            help="The source: its folder (a dataset saved by `datasets`, too), one file of it, or "
            "hf:OWNER/NAME[@REVISION][:CONFIG[:SPLIT]], which is streamed from the Hub and not stored.",
        ),
    ],
    out: Out,
    images: Annotated[
        Optional[Path], typer.Option("--images", help="Folder that paths of media start at (default: that of the source).")
    ] = None,
    against: Annotated[list[str], typer.Option("--against", help=AGAINST)] = [],  # noqa: B006
    decontaminate: Annotated[
        bool, typer.Option("--decontaminate/--no-decontaminate", help="Leave out what the benchmarks of --against contain.")
    ] = True,
    similarity: Annotated[
        float, typer.Option("--similarity", min=0.5, max=1.0, help="From which on pairs of one picture repeat each other.")
    ] = 0.9,
    keep_repeated: Annotated[bool, typer.Option("--keep-repeated", help="Leave near-duplicates in.")] = False,
    media_folder: Annotated[
        bool, typer.Option("--media-folder", help="Media by content in OUT/media, not in the Parquet.")
    ] = False,
    download: Annotated[
        bool, typer.Option("--download", help="Fetch the files of an hf: source first: for media that rows name by path.")
    ] = False,
    frames: Annotated[int, typer.Option("--frames", min=1, help="Of a video that comes as a folder of frames.")] = 8,
    limit: Annotated[Optional[int], typer.Option("--limit", min=1, help="Stop after so many pairs.")] = None,
    seed: RandomSeed = 0,
) -> None:
    """Make a set of pairs from a public source: converted, checked, balanced, without repetitions and benchmark rows.

    Writes Parquet shards, `rejected.jsonl` (everything left out, and why), `stats.json`, `stats.html` and `report.json`.
    `rewardlab data build rlaif_v --from downloads/rlaif_v --against vl_rewardbench=vlrb.jsonl,images --out sets/rlaif_v`
    """
    from rewardlab.curation.build import BuildOptions, build
    from rewardlab.data.sources import open_source
    from rewardlab.reporting.progress import bar

    if decontaminate and not against:
        raise ConfigError(
            "name the benchmarks that a set to train on must not contain (--against vl_rewardbench=FILE; `bench prepare` "
            "fetches them), or give --no-decontaminate, for a set of your own to benchmark on"
        )
    source_recipe = find_recipe(recipe)
    opened = open_source(source, source_recipe.files, download=download)
    contamination, notes = _contamination(against if decontaminate else [])
    options = BuildOptions(None if keep_repeated else similarity, not media_folder, frames, images, limit=limit, seed=seed)
    facts = {"against": against if decontaminate else [], "notes": notes, "command": shlex.join(["rewardlab", *sys.argv[1:]])}
    with bar(recipe, source_recipe.published) as advance:
        report = build(source_recipe, opened, out, contamination=contamination, options=options, advance=advance, facts=facts)
    counts = ("converted", "kept", "dropped", "bad", "duplicate", "contaminated")
    typer.echo(", ".join(f"{name} {report[name]:,}" for name in counts))
    for kind, reasons in report["reasons"].items():
        for reason, number in list(reasons.items())[:5]:
            typer.echo(f"  {kind}: {number:,} × {reason}")
    typer.echo(f"written: {out}/part-*.parquet, rejected.jsonl, stats.json, stats.html, report.json")


@data_app.command("balance")
def data_balance(data: Data, out: Out, images: Images = None, allow_columns: AllowColumns = None, seed: RandomSeed = 0) -> None:
    """Exchange responses so that of each source and category as many pairs prefer either response, shown first as often."""
    from rewardlab.curation.build import Balance
    from rewardlab.data.pairs import stream_pairs, write_shards

    balance = Balance(seed)
    pairs = _some_pairs(stream_pairs(data, images=images, frames=None, allow_columns=columns_of(allow_columns)), data)
    shards = list(write_shards((balance.place(pair) for pair in pairs), out))
    typer.echo(f"written: {out} ({len(shards)} shards)")


@data_app.command("split")
def data_split(
    data: Data,
    out: Annotated[Path, typer.Option("--out", help="Folder for train/ and test/.")],
    share: Annotated[float, typer.Option("--share", min=0.0, max=0.5, help="Of the pairs, to hold out.")] = 0.05,
    images: Images = None,
    allow_columns: AllowColumns = None,
    seed: RandomSeed = 0,
) -> None:
    """Two parts that share no picture, not even a re-encoded copy: `train/` and `test/`."""
    from rewardlab.curation.duplicates import hold_out_groups, picture_groups
    from rewardlab.data.files import mark_unfinished
    from rewardlab.data.pairs import PairSet, write_parts
    from rewardlab.reporting.progress import bar

    names = columns_of(allow_columns)
    pairs = PairSet(data, images=images, frames=None, allow_columns=names)
    with bar("pictures", None) as advance:
        groups = picture_groups(PairSet(data, images=images, allow_columns=names), advance)  # of videos, by their frames
    test_groups = hold_out_groups(groups, share, seed)
    if not test_groups:
        raise DataError(f"{data}: no picture's pairs fit into {share:g} of {len(groups):,}; give a larger --share")
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
    allow_columns: AllowColumns = None,
) -> None:
    """The same pairs in another form: JSON lines with a media folder beside them, one Parquet file, or a folder of shards."""
    from rewardlab.data.pairs import stream_pairs, write_jsonl, write_parquet, write_shards

    columns = columns_of(allow_columns)
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
    """Return the pairs; where there are none, say so and end with the status of a finding, before anything is written."""
    first = next(pairs, None)
    if first is None:
        typer.echo(f"{data}: holds no pairs, so nothing is written", err=True)
        raise typer.Exit(ExitCode.FINDING)
    return chain([first], pairs)


@data_app.command("filter")
def data_filter(
    data: Data,
    out: Out,
    most_alike: Annotated[
        float,
        typer.Option("--most-alike", min=0.0, max=1.0, help="Share of judgments that may begin with the same eight words."),
    ] = 0.02,
    length_fence: Annotated[
        float,
        typer.Option("--length-fence", min=0.0, help="Interquartile ranges of log length beyond which one is an outlier."),
    ] = 3.0,
    consistency_url: Annotated[
        Optional[str], typer.Option("--consistency-url", help="Endpoint that is asked whether verdict and reasoning agree.")
    ] = None,
    consistency_model: Annotated[
        str, typer.Option("--consistency-model", help="Model that --consistency-url serves.")
    ] = "Qwen/Qwen2.5-VL-7B-Instruct",
    images: Images = None,
    allow_columns: AllowColumns = None,
) -> None:
    """Take judgments out of a cold-start set that are not fit to teach from: contradictions, leaked labels, templates,
    outliers.

    Writes `kept.parquet`, `filtered.jsonl` (each with its reason) and `report.json`. Pairs without a judgment stay, and
    count as pairs alone: SFT learns from `num_judgments_kept`.
    """
    from rewardlab.curation.quality import Rules, filter_set

    rules = Rules(most_alike, length_fence)
    endpoint = (consistency_url, consistency_model)
    report = filter_set(data, rules, out, images=images, endpoint=endpoint, allow_columns=columns_of(allow_columns))
    names = ("num_pairs", "num_pairs_kept", "num_judgments", "num_judgments_kept", "reasons", "unclear")
    typer.echo(json.dumps({name: report[name] for name in names}))
    typer.echo(f"written: {out}/kept.parquet, filtered.jsonl, report.json")


@data_app.command("decontaminate")
def data_decontaminate(
    train: Annotated[Path, typer.Argument(help="Training pairs, .parquet or .jsonl.")],
    against: Annotated[
        list[str],
        typer.Option(
            "--against",
            help=AGAINST,
        ),
    ],
    out: Out,
    images: Images = None,
    allow_columns: AllowColumns = None,
    image_bits: Annotated[
        int, typer.Option("--image-bits", min=0, max=32, help="Bits of 64 that perceptual hashes of one picture may differ in.")
    ] = 8,
    similarity: Annotated[
        float, typer.Option("--similarity", min=0.1, max=1.0, help="Least Jaccard similarity of two texts' word triples.")
    ] = 0.7,
    least_words: Annotated[int, typer.Option("--least-words", min=1, help="Shorter texts are not compared.")] = 8,
) -> None:
    """Take out of a training set what benchmarks contain: same or near-same images, prompts, answers.

    Writes `clean.parquet`, `contaminated.jsonl` (each pair taken out, and why), `report.json`, and `report.html`, which shows
    the least certain finds side by side. `rewardlab data decontaminate pairs.parquet --against
    vl_rewardbench=vl_rewardbench.jsonl,images/ --out runs/clean`
    """
    from rewardlab.curation.decontaminate import MatchLimits, contamination_markdown, decontaminate, parse_against

    limits = MatchLimits(image_bits=image_bits, similarity=similarity, least_words=least_words)
    command = shlex.join(["rewardlab", *sys.argv[1:]])
    specs = [parse_against(spec) for spec in against]
    names = columns_of(allow_columns)
    report = decontaminate(train, specs, out, images=images, limits=limits, command=command, allow_columns=names)
    typer.echo(contamination_markdown(report))
    typer.echo(f"written: {out}/clean.parquet, contaminated.jsonl, report.json, report.html")


@data_app.command("verl")
def data_verl(
    data: Data,
    out: Annotated[Path, typer.Option("--out", help="A .parquet file for data.train_files or data.val_files.")],
    both_orders: Annotated[
        bool, typer.Option("--both-orders", help="Each pair twice, the two orders one after the other; else in its own.")
    ] = False,
    template: Annotated[str, typer.Option("--template", help="Of the checkpoint that is to be trained.")] = "r1_reward",
    shuffle: Annotated[
        Optional[int], typer.Option("--shuffle", help="A seed to shuffle the pairs by, in memory, for data.shuffle=False.")
    ] = None,
    images: Images = None,
    allow_columns: AllowColumns = None,
) -> None:
    """Write pairs as the Parquet that verl trains a judge on (`configs/verl/stable_reinforce_7b.sh`).

    `rewardlab data verl runs/hard --template r1_reward --out train.parquet`
    """
    import random

    from rewardlab.data.pairs import PairSet
    from rewardlab.integrations.verl_rows import write_verl_rows
    from rewardlab.prompts import load_template

    if out.suffix != ".parquet":
        raise OutputError(f"{out}: verl tells files by their ending; name it .parquet")
    judge_template = load_template(template)
    pairs: Iterable[PreferencePair] = PairSet(data, images=images, allow_columns=columns_of(allow_columns))
    if shuffle is not None:
        pairs = list(pairs)
        random.Random(shuffle).shuffle(pairs)
    written = write_verl_rows(pairs, out, judge_template, both_orders=both_orders)
    typer.echo(f"{written.num_rows:,} rows in {out}; {written.num_unlabelled:,} pairs without a label left out")
    typer.echo(f"template {judge_template.name} {judge_template.hash}; verdicts are read as {judge_template.verdict_format}")
