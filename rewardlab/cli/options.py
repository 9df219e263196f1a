"""The command line's applications, and the options that several commands share."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional, TypedDict, TypeVar

import typer

from rewardlab import __version__
from rewardlab.cli.applications import App
from rewardlab.cli.exit_codes import EXIT_CODES
from rewardlab.errors import ConfigError
from rewardlab.processes import is_main

if TYPE_CHECKING:
    from pydantic import BaseModel

    from rewardlab.config.data import Budget, Prices
    from rewardlab.config.judge import JudgeConfig

Config = TypeVar("Config", bound="BaseModel")

# Panels of `rewardlab --help`, in their order.
DEMONSTRATION, CHECKS, DATA, TRAINING, JUDGING, SERVING, ADVANCED = PANELS = (
    "Demonstration",
    "Configs and checks",
    "Data",
    "Training",
    "Judging and measuring",
    "Serving",
    "Advanced",
)
# Commands that a first look can do without.
ADVANCED_COMMANDS = ("select", "self-distil", "steps", "rm", "prm", "merge", "harden", "audit", "score", "version")
COSTS = "Costs"  # a panel of options
SUMMARY = "Train, benchmark and serve generative multimodal judges whose numbers can be trusted."
EPILOG = "Exit status. " + " ".join(f"**{code.value}**: {text}" for code, text in EXIT_CODES.items())

app = App(help=SUMMARY, epilog=EPILOG, pretty_exceptions_enable=False, rich_markup_mode="markdown")


def echo_once(message: object) -> None:
    """Print a message once, however many processes of a run reach it."""
    if is_main():
        typer.echo(message)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"rewardlab {__version__}")
        raise typer.Exit


def sort_commands() -> None:
    """Sort the commands by their panels, once all are registered; those of :data:`ADVANCED_COMMANDS` come last."""
    for command in app.registered_commands:
        if command.name in ADVANCED_COMMANDS:
            command.rich_help_panel = ADVANCED

    def place(panel: object) -> int:
        return PANELS.index(panel) if isinstance(panel, str) and panel in PANELS else len(PANELS)

    app.registered_commands.sort(key=lambda command: place(command.rich_help_panel))


class LogLevel(StrEnum):
    """What goes to standard error beside errors; at ``error`` no progress bars either."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@app.callback()
def main_options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    log_level: Annotated[
        LogLevel,
        typer.Option("--log-level", envvar="REWARDLAB_LOG", help="Minimum severity to log; `error` also hides progress."),
    ] = LogLevel.WARNING,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="The same as --log-level error.")] = False,
) -> None:
    """Train, benchmark and serve generative multimodal judges whose numbers can be trusted."""
    level = LogLevel.ERROR if quiet else log_level
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
    logging.getLogger("rewardlab").setLevel(level.upper())


@app.command("version", rich_help_panel=ADVANCED)
def version_command() -> None:
    """Print the version: `rewardlab 1.2.3`."""
    typer.echo(f"rewardlab {__version__}")


demo_app = App(
    help="Judge six pairs with the bundled judge and write a page; subcommands rebuild its training data, "
    "servers and weights.\n\nPrints six pairs of pictures and answers, each judged in "
    "both orders; takes seconds. Other commands accept the "
    "same judge as `--judge demo`."
)
app.add_typer(demo_app, name="demo", rich_help_panel=DEMONSTRATION)
configs_app = App(help="List, show and copy the shipped configs, and look up their keys.")
app.add_typer(configs_app, name="configs", rich_help_panel=CHECKS)
data_app = App(help="Build, check, clean and convert sets of preference pairs.")
app.add_typer(data_app, name="data", rich_help_panel=DATA)
bench_app = App(help="Benchmark judges, by each benchmark's official protocol and by ours.")
app.add_typer(bench_app, name="bench", rich_help_panel=JUDGING)
certificate_app = App(help="What was measured of a judge, bound to its weights: write it, and check that it still holds.")
app.add_typer(certificate_app, name="certificate", rich_help_panel=JUDGING)

Out = Annotated[Path, typer.Option("--out", help="Folder to write to.")]
CONFIG_HELP = "YAML of differences from the defaults: a file, or a name of `rewardlab configs list` such as rl/grpo or grpo."
ConfigFile = Annotated[Optional[Path], typer.Option("--config", help=CONFIG_HELP)]
Overrides = Annotated[
    Optional[list[str]],
    typer.Argument(
        metavar="KEY=VALUE",
        help="Keys of the config, over its file: learning_rate=3e-4 max_steps=100. `rewardlab configs keys` lists them.",
    ),
]
PAIR_FILES = ".parquet, .jsonl, or a folder of either; .csv, .json, a dataset that `datasets` saved"
Data = Annotated[Path, typer.Argument(help=f"Pairs: {PAIR_FILES}.")]
Images = Annotated[
    Optional[Path],
    typer.Option("--images", help="Folder that image and video paths are relative to (default: that of the data file)."),
]
AllowColumns = Annotated[
    Optional[str],
    typer.Option("--allow", help="Columns of the data to ignore, comma-separated; all: every column without media."),
]
Allow = Annotated[
    Optional[str],
    typer.Option(
        "--allow",
        help="Comma-separated: columns of --data to ignore (all: every column without media); no-images, if questions "
        "mention images that the pairs do not have; broken-texts, if more than 1 % of the pairs have texts like `nan`.",
    ),
]
Seed = Annotated[Optional[int], typer.Option("--seed", help="Overrides the config's seed.")]
RandomSeed = Annotated[int, typer.Option("--seed", min=0, help="Random seed.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON, and nothing else, to standard output.")]
MaxFailed = Annotated[
    float,
    typer.Option(
        "--max-failed",
        min=0.0,
        max=1.0,
        help="Fraction of votes that may fail at the endpoint; above it the report is marked as failed (exit status 3).",
    ),
]
JudgeOption = Annotated[
    str,
    typer.Option(
        "--judge",
        help="The judge: demo, hf:PATH, vllm:PATH, openai:MODEL@URL, http://HOST:PORT, panel:A,B, ..., a YAML of its keys, or "
        "the folder of a `bench run`.",
    ),
]
JudgeKeys = Annotated[
    Optional[list[str]],
    typer.Argument(
        metavar="KEY=VALUE",
        help="Keys of the judge: temperature=0 max_tokens=64 template=plain. `rewardlab configs keys judge` lists them.",
    ),
]
Votes = Annotated[Optional[int], typer.Option("--votes", min=1, help="Samples per pair and order; the same as votes=N.")]
Price = Annotated[
    str,
    typer.Option(
        "--price",
        metavar="PROMPT,COMPLETION",
        help="US dollars per million prompt and completion tokens: PROMPT,COMPLETION or "
        "PROMPT,CACHED,COMPLETION; adds the cost to the report.",
        rich_help_panel=COSTS,
    ),
]
Budgets = Annotated[
    str,
    typer.Option(
        "--budget",
        metavar="AMOUNT",
        help="Maximum cost of the run, controls included: 5usd (needs --price), 200000tokens of prompts and answers, or both, "
        "comma-separated.",
        rich_help_panel=COSTS,
    ),
]


class Allowances(TypedDict):
    """The values of ``--allow``, as readers of pairs take them."""

    allow_columns: tuple[str, ...]
    allow_without_images: bool


def judge_of(judge: str, keys: Sequence[str] | None, votes: int | None = None) -> JudgeConfig:
    """Return the judge that ``--judge``, KEY=VALUE and ``--votes`` describe. Raise ConfigError for anything else, and for a key
    that is set twice."""
    from rewardlab.judging.spec import judge_config

    return judge_config(judge, parse_judge_keys(keys, votes))


def parse_judge_keys(keys: Sequence[str] | None, votes: int | None = None) -> dict[str, Any]:
    """Return the keys of a judge that KEY=VALUE and ``--votes`` set. Raise ConfigError for a key that is set twice, such as
    ``judge``, which ``--judge`` sets."""
    from rewardlab.config.loading import parse_overrides

    changes = parse_overrides(keys or ())
    if "judge" in changes or ("votes" in changes and votes is not None):
        name = "judge" if "judge" in changes else "votes"
        raise ConfigError(f"{name} is set twice, by {name}=... and by --{name}; give one of them")
    return changes if votes is None else changes | {"votes": votes}


def read_config(
    schema: type[Config], overrides: Sequence[str] | None, path: str | Path | None = None, **options: Any
) -> Config:
    """Return the config of a command: ``path``, KEY=VALUE over it, and those ``options`` that are not None."""
    from rewardlab.config.loading import load_config, parse_overrides

    return load_config(schema, path, parse_overrides(overrides or ()), **options)


def read_config_and_judge(
    schema: type[Config], judge: str, overrides: Sequence[str] | None, **options: Any
) -> tuple[Config, JudgeConfig]:
    """Return the config of a command that samples judgments, and its judge: KEY=VALUE sets keys of either."""
    from rewardlab.config.judge import JUDGE_KEYS
    from rewardlab.config.loading import load_config

    changes = parse_judge_keys(overrides)
    keys = {key: value for key, value in changes.items() if key.partition(".")[0] in JUDGE_KEYS}
    others = {key: value for key, value in changes.items() if key not in keys}
    return load_config(schema, None, others, **options), judge_of_votes(judge, keys)


def judge_of_votes(judge: str, keys: Mapping[str, Any]) -> JudgeConfig:
    """Return the judge of a command that sets the number of votes itself. Raise ConfigError for ``votes`` among the keys, and
    for keys of a run."""
    from rewardlab.judging.spec import judge_config

    if "votes" in keys:
        raise ConfigError("votes: this command sets how many judgments of a pair are sampled; leave it out")
    return refuse_run_keys(judge_config(judge, keys))


def refuse_run_keys(config: JudgeConfig) -> JudgeConfig:
    """Return the config. Raise ConfigError for a key that only a benchmark run or an endpoint uses."""
    unused = sorted(config.changed & {"orders", "policy", "stop_error"})
    if unused and (unused, config.orders) != (["orders"], "both"):  # a run's config says both
        raise ConfigError(f"{', '.join(unused)}: this command judges both orders and counts all votes; leave these out")
    return config


def parse_prices(text: str) -> Prices:
    """Return the prices of ``PROMPT,COMPLETION`` or ``PROMPT,CACHED,COMPLETION``; "" is none. Raise ConfigError."""
    from rewardlab.config.data import NO_PRICES, Prices

    if not text:
        return NO_PRICES
    try:
        values = [float(part) for part in text.split(",")]
        if len(values) not in (2, 3):
            raise ValueError("not two or three numbers")
        return Prices(prompt=values[0], cached_prompt=values[1] if len(values) == 3 else None, completion=values[-1])
    except ValueError as error:
        raise ConfigError(
            f"--price {text}: expected PROMPT,COMPLETION in US dollars per million tokens, such as 2.5,10"
        ) from error


def parse_budget(text: str) -> Budget:
    """Return the budget of ``5usd``, ``200000tokens`` or both; "" is none. Raise ConfigError."""
    from rewardlab.config.data import Budget

    amounts: dict[str, float] = {}
    for part in text.split(",") if text else ():
        form = re.fullmatch(r"\s*(\d+\.?\d*)\s*(usd|tokens)\s*", part)
        if form is None or float(form[1]) <= 0 or form[2] in amounts:
            raise ConfigError(f"--budget {text}: expected an amount above 0, such as 5usd, 200000tokens or 5usd,200000tokens")
        amounts[form[2]] = float(form[1])
    return Budget(usd=amounts.get("usd"), tokens=int(amounts["tokens"]) if "tokens" in amounts else None)


def columns_of(text: str | None, checks: Collection[str] = ()) -> tuple[str, ...]:
    """Return the columns that ``--allow`` lists, and of the command's ``checks`` those to leave out. Raise ConfigError for a
    check that the command does not make."""
    from rewardlab.data.set_checks import CHECKS as ALL_CHECKS

    names = [name.strip() for name in text.split(",")] if text else []
    if unused := [name for name in names if name in ALL_CHECKS and name not in checks]:
        raise ConfigError(f"--allow {text}: {unused[0]} has no effect on this command; leave it out")
    return tuple(names)


def allowances(text: str | None) -> Allowances:
    """Return the columns and broken-texts that ``--allow`` lists, and whether no-images is among them."""
    from rewardlab.data.set_checks import NO_IMAGES

    names = [name.strip() for name in text.split(",")] if text else []
    return {"allow_columns": tuple(name for name in names if name != NO_IMAGES), "allow_without_images": NO_IMAGES in names}
