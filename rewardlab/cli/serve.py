"""Serving: a judge behind HTTP, and a page on which people rate pairs."""

from __future__ import annotations

import difflib
import os
import socket
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer
import yaml

from rewardlab.cli.commands import command
from rewardlab.cli.options import (
    DATA,
    SERVING,
    Allow,
    Data,
    Images,
    JudgeKeys,
    JudgeOption,
    Out,
    RandomSeed,
    allowances,
    app,
    judge_of,
    parse_judge_keys,
    refuse_run_keys,
)
from rewardlab.errors import ConfigError

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from rewardlab.config.judge import JudgeConfig
    from rewardlab.data.label_store import LabelStore
    from rewardlab.judging.judge import GenerativeJudge
    from rewardlab.serving.limits import Limits
    from rewardlab.serving.service import ServerOptions


SERVE_PREFIX = "REWARDLAB_SERVE"


def settings_of(names: Iterable[str], path: Path | None) -> dict[str, Any]:
    """Return the keys among ``names`` that a file of settings and the environment set, the environment over the file."""
    from rewardlab.config.loading import read_yaml

    names = list(names)
    given = {} if path is None else {name: value for name, value in _read(path).items() if name in names}
    variables = {name: os.environ.get(f"{SERVE_PREFIX}_{name.upper()}") for name in names}
    for name, text in variables.items():
        try:
            given |= {} if text is None else {name: read_yaml(text)}
        except yaml.YAMLError as error:
            raise ConfigError(f"{SERVE_PREFIX}_{name.upper()}={text}: the value is not valid YAML ({error})") from error
    return given


def read_settings(context: typer.Context, path: Optional[Path]) -> Optional[Path]:
    """Use the options of a file as the command's defaults; given options and variables override them.

    Raise ConfigError for a file that cannot be read, and for a name, in it or among the variables, that is no option, no key of
    the judge and no limit.
    """
    from rewardlab.config.judge import JUDGE_KEYS
    from rewardlab.serving.limits import LIMITS

    options = {parameter.name for parameter in context.command.params if parameter.name} - {"config", "help", "overrides"}
    names = options | {*JUDGE_KEYS, *LIMITS}
    repeated = {parameter.name for parameter in context.command.params if getattr(parameter, "multiple", False)}
    prefix = f"{context.auto_envvar_prefix}_"
    variables = {name.removeprefix(prefix).lower() for name in os.environ if name.startswith(prefix)}
    for variable in sorted(variables - names - {"config"}):
        raise ConfigError(f"{prefix}{variable.upper()} is set, but there is no setting {variable}{_nearest(variable, names)}")
    if path is None:
        return None
    given = _read(path)
    for name in sorted(set(given) - names):
        raise ConfigError(f"--config {path}: there is no setting {name}{_nearest(name, names)}")
    given = {name: value for name, value in given.items() if name in options}
    for name in repeated & set(given):
        given[name] = given[name] if isinstance(given[name], list) else [given[name]]
    context.default_map = {**(context.default_map or {}), **given}
    return path


def _read(path: Path) -> dict[str, Any]:
    from rewardlab.config.loading import read_yaml

    try:
        settings = read_yaml(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"--config {path}: cannot be read ({error})") from error
    if not isinstance(settings, dict):
        raise ConfigError(
            f"--config {path}: expected a mapping of options, such as `group-size: 8`, got {type(settings).__name__}"
        )
    return {str(name).replace("-", "_"): value for name, value in settings.items()}


def _nearest(name: str, names: Iterable[str]) -> str:
    nearest = difflib.get_close_matches(name, names, 1)
    return f"; did you mean {nearest[0].replace('_', '-')}?" if nearest else "; `rewardlab serve --help` lists them"


# Panels of the options.
ADDRESS, GROUPS, ENGINE, CLIENTS = "Address", "Groups of responses", "Engine", "Clients and limits"
MEDIA = "Media"
MOST_VOTES = 64  # in each order, of a framework's request
REMOTE_THREADS = 64  # calls at a time of an engine that batches by itself
NETWORK_S = 10.0  # beside its work, for a peer's answer
GuaranteeFile = Annotated[
    Optional[Path],
    typer.Option(
        "--guarantee",
        help="The guarantee.json of `rewardlab guarantee` on a run of this judge, or the run's folder: requests may then "
        "name an error, and get a verdict or `abstained`.",
        rich_help_panel=ENGINE,
    ),
]
AllowedPrefixes = Annotated[
    Optional[list[str]],
    typer.Option(
        "--allow-url", help="Allow fetching media from URLs with this prefix; repeat for several.", rich_help_panel=MEDIA
    ),
]
MediaFolder = Annotated[
    Optional[Path],
    typer.Option("--media", help="Folder of files that requests can refer to as media:NAME.", rich_help_panel=MEDIA),
]


AllowedHosts = Annotated[
    Optional[list[str]],
    typer.Option(
        "--allowed-host",
        help="Host name that clients use, beside localhost; repeat for several. Other names are refused (default: any name, "
        "but only localhost on a server that listens on this machine alone).",
        rich_help_panel=ADDRESS,
    ),
]


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """Options of `serve`."""

    overrides: JudgeKeys = None
    judge: JudgeOption
    config: Annotated[
        Optional[Path],
        typer.Option(
            "--config",
            is_eager=True,
            callback=read_settings,
            help="YAML of options, keys of the judge and limits, each by its name: `group-size: 8`, `temperature: 0`, "
            "`queue: 256`. Each can also be set by an environment variable, such as REWARDLAB_SERVE_GROUP_SIZE. The command "
            "line overrides the variables, and the variables override the file.",
        ),
    ] = None
    host: Annotated[
        str, typer.Option("--host", help="Address to listen on; 0.0.0.0: all interfaces.", rich_help_panel=ADDRESS)
    ] = "127.0.0.1"
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="Port to listen on.", rich_help_panel=ADDRESS)] = 8000
    log_format: Annotated[
        str,
        typer.Option(
            "--log-format", help="text, or json: an object a line, with one line for each request.", rich_help_panel=ADDRESS
        ),
    ] = "text"
    allowed_host: AllowedHosts = None
    root_path: Annotated[
        str,
        typer.Option(
            "--root-path", help="Path under which a proxy exposes this server, such as /judge.", rich_help_panel=ADDRESS
        ),
    ] = ""
    strategy: Annotated[
        str,
        typer.Option(
            "--strategy",
            help="How groups are compared: all_pairs, circular, knockout, bradley_terry; whole for judges of lists.",
            rich_help_panel=GROUPS,
        ),
    ] = "all_pairs"
    group_size: Annotated[
        Optional[int],
        typer.Option(
            "--group-size",
            min=2,
            max=1024,
            help="Group size to wait for when the responses to a prompt are sent one by one (default: 8). If it is "
            "set, or with --peers, a request with several but fewer responses also waits.",
            rich_help_panel=GROUPS,
        ),
    ] = None
    peers: Annotated[
        str,
        typer.Option(
            "--peers",
            help="URL,URL of all servers that share groups, with --address: responses to one prompt that are sent one "
            "by one to different servers are grouped on one of them. All servers need the same --peers and --keys.",
            rich_help_panel=GROUPS,
        ),
    ] = ""
    address: Annotated[
        str, typer.Option("--address", help="URL of this server, as its --peers name it.", rich_help_panel=GROUPS)
    ] = ""
    judge_file: Annotated[
        Optional[Path],
        typer.Option(
            "--judge-file",
            help="File that holds the judge's name in the form of --judge, used instead of --judge. "
            "When the file changes, the new judge is loaded while the old one keeps serving, and then takes over new requests.",
            rich_help_panel=ENGINE,
        ),
    ] = None
    guarantee: GuaranteeFile = None
    certificate: Annotated[
        Optional[Path],
        typer.Option(
            "--certificate",
            help="The certificate.json of `rewardlab certificate write` for this judge: /v1/certificate returns it, and "
            "/v1/status its id.",
            rich_help_panel=ENGINE,
        ),
    ] = None
    keys: Annotated[
        Optional[Path],
        typer.Option(
            "--keys",
            help="File with one API key per line, or its sha256:HEX, followed by name=WORD, for logs and metrics, and limits: "
            "per_minute=600 (requests), samples_per_minute=N, tokens_per_minute=N, max_bytes=N, and its weight=1 while several "
            "keys wait. The file is reloaded when it changes. Without it no key is needed.",
            rich_help_panel=CLIENTS,
        ),
    ] = None
    limit: Annotated[
        Optional[list[str]],
        typer.Option(
            "--limit",
            metavar="NAME=NUMBER",
            help="A limit of the server (keys of the judge have no --limit): timeout=600, group_timeout=60, engine_timeout=600 "
            "(seconds), notice=5, drain=90 (seconds after SIGTERM), queue=1024 (waiting pairs), rate=600 (requests of a key a "
            "minute), check_rate=0.01, and more; repeat for several. The HTTP reference lists all.",
            rich_help_panel=CLIENTS,
        ),
    ] = None
    allow_url: AllowedPrefixes = None
    media: MediaFolder = None
    uploads: Annotated[
        Optional[Path],
        typer.Option(
            "--uploads",
            help="Folder for uploads, which then survive a restart (default: a temporary folder).",
            rich_help_panel=MEDIA,
        ),
    ] = None
    reward_log: Annotated[
        Optional[Path],
        typer.Option(
            "--reward-log",
            help="File to append each rewarded group to, its answers included; `rewardlab signs` reads it. It may be moved "
            "(logrotate): the next group begins a new file.",
            rich_help_panel=GROUPS,
        ),
    ] = None


@command(app, "serve", rich_help_panel=SERVING, context_settings={"auto_envvar_prefix": SERVE_PREFIX})
def serve_judge(options: ServeOptions) -> None:
    """Serve a judge: pairs, rewards of groups, and the request formats of OpenRLHF, verl, NeMo-Gym and others.

    `POST /v1/judge`, `/v1/rewards`, `/v1/uploads`; `/health`, `/ready`, `/metrics`; all are described at `/docs`. Adapters for
    trainers are in `rewardlab.integrations`.
    """
    if options.log_format != "json":
        source = options.judge
        if options.judge_file is not None:
            is_there = options.judge_file.exists()
            source = f"the judge of {options.judge_file}" if is_there else f"{source} ({options.judge_file} does not exist yet)"
        typer.echo(f"opening {source}; the server is ready once it prints its address", err=True)
    from rewardlab.config.judge import JUDGE_KEYS
    from rewardlab.config.loading import merge, nest
    from rewardlab.judging.engines import open_generative_judge
    from rewardlab.judging.spec import judge_config
    from rewardlab.serving.judge_file import JudgeFile
    from rewardlab.serving.request_record import export_spans
    from rewardlab.serving.server import check_port, listening_options, run_server

    limits = _limits(options)
    listening = listening_options(root_path=options.root_path, log_format=options.log_format)
    export_spans()
    check_port(options.host, options.port)
    _check(options, limits)
    keys = merge(nest(settings_of(JUDGE_KEYS, options.config)), nest(parse_judge_keys(options.overrides)))

    def open_judge(named: str) -> GenerativeJudge:
        return open_generative_judge(_served(judge_config(named, keys)), restart_after_s=limits.engine_timeout)

    followed = JudgeFile(options.judge_file, open_judge) if options.judge_file else None
    server = replace(_server_options(options, limits), judge_file=followed)  # refused options cost no load of the judge
    opened = open_judge(followed.read_or(options.judge) if followed else options.judge)
    app = _application(options, server, opened)
    del opened  # the application keeps it for as long as it serves
    run_server(app, host=options.host, port=options.port, **listening)


def _limits(options: ServeOptions) -> Limits:
    """Return the limits of --limit over those of the environment, and those over the file's."""
    from rewardlab.serving.limits import LIMITS, Limits

    given = options.limit or []
    names = {setting.partition("=")[0].replace("-", "_") for setting in given}
    settings = settings_of(LIMITS, options.config)
    return Limits.of([*given, *(f"{name}={value}" for name, value in settings.items() if name not in names)])


def _check(options: ServeOptions, limits: Limits) -> None:
    """Raise ConfigError for options that do not fit each other."""
    from rewardlab.judging.group_rewards import STRATEGIES

    if options.strategy not in STRATEGIES or options.strategy == "anchor":
        raise ConfigError(f"--strategy {options.strategy}: expected all_pairs, circular, knockout, bradley_terry or whole")
    if limits.check_rate and options.reward_log is None:
        raise ConfigError("--limit check_rate is for --reward-log; give both, or leave it out")
    if bool(options.peers) != bool(options.address):
        raise ConfigError("--peers and --address must be given together: the URLs of the other servers, and this server's own")
    if options.group_size is not None and options.group_size > limits.responses:
        raise ConfigError(
            f"--group-size {options.group_size}: {limits.responses:,} responses are the maximum; add --limit "
            f"responses={options.group_size}"
        )


def _served(config: JudgeConfig) -> JudgeConfig:
    """Return the config of a judge that can be served. Raise ConfigError for orders that an endpoint does not have."""
    if config.orders not in ("auto", "both"):
        raise ConfigError(f"orders={config.orders}: an endpoint shows every pair in both orders; serve it with orders=both")
    if (config.votes or 1) > MOST_VOTES:
        raise ConfigError(f"votes={config.votes}: expected at most {MOST_VOTES} samples in each order")
    return config.model_copy(update={"orders": "both"})


def _server_options(options: ServeOptions, limits: Limits) -> ServerOptions:
    """Return the options of the server that do not depend on its judge. Raise ConfigError, DataError or OutputError."""
    from rewardlab.judging.certificate import read_certificate
    from rewardlab.judging.guarantee import read_guarantee
    from rewardlab.rewards.reward_log import RewardLog
    from rewardlab.serving.auth import KeysFile
    from rewardlab.serving.media import Media
    from rewardlab.serving.middleware import accepted_hosts
    from rewardlab.serving.peers import Peers
    from rewardlab.serving.service import ServerOptions
    from rewardlab.serving.uploads import UploadStore

    timeouts = limits.group_timeout + limits.timeout + NETWORK_S
    store = UploadStore(options.uploads, max_bytes=limits.upload_bytes)
    return ServerOptions(
        keys_file=KeysFile(options.keys, per_minute=limits.rate) if options.keys else None,
        media=Media(allowed_urls=options.allow_url or (), folder=options.media, uploads=store, limits=limits),
        allowed_hosts=accepted_hosts(options.host, options.allowed_host or ()),
        limits=limits,
        peers=Peers(options.address, options.peers.split(","), wait_s=timeouts) if options.peers else None,
        reward_log=RewardLog(options.reward_log, limits.check_rate) if options.reward_log else None,
        guarantee=read_guarantee(options.guarantee) if options.guarantee else None,
        certificate=read_certificate(options.certificate) if options.certificate else None,
    )


def _application(options: ServeOptions, server: ServerOptions, opened: GenerativeJudge) -> Starlette:
    from rewardlab.judging.certificate import misfit
    from rewardlab.judging.guarantee import judge_facts
    from rewardlab.judging.lists import require_lists
    from rewardlab.judging.ranking import WHOLE
    from rewardlab.serving.app import create_app
    from rewardlab.serving.schedule import QueueOptions
    from rewardlab.serving.service import GroupRules

    limits = server.limits
    if server.guarantee is not None:
        server.guarantee.check(server.guarantee.certified.error, judge_facts(opened.config, opened.identity))
    if server.certificate is not None and (why := misfit(server.certificate, judge_facts(opened.config, opened.identity))):
        raise ConfigError(f"{options.certificate}: is of another judge: {why}")
    joins_parts = options.group_size is not None or bool(options.peers)
    group_size = options.group_size or 8
    if options.strategy == WHOLE:
        require_lists(opened.verdict_format, group_size)
    rules = GroupRules(options.strategy, group_size, joins_parts)
    queue = QueueOptions(
        max_waiting=limits.queue,
        engine_timeout_s=2 * limits.engine_timeout,  # an engine in a process has its own; this one is for all others
        max_sequences=4 * opened.config.batch_size,
        engine_batch=opened.config.batch_size,
        num_threads=REMOTE_THREADS if opened.sampler.is_batch_invariant else 1,
    )
    return create_app(opened, replace(server, rules=rules, queue=queue))


@dataclass(frozen=True, kw_only=True)
class ToolOptions:
    """Options of `rewardlab mcp`."""

    overrides: JudgeKeys = None
    judge: JudgeOption
    guarantee: GuaranteeFile = None
    allow_url: AllowedPrefixes = None
    media: MediaFolder = None


@command(app, "mcp", rich_help_panel=SERVING)
def serve_tool(options: ToolOptions) -> None:
    """Serve a judge as a tool of the Model Context Protocol, `compare`, over standard input and output.

    A client starts this command and calls `compare(question, answers, images, votes, error)`: two answers are compared in both
    orders. Images are data URLs; URLs and files only as --allow-url and --media say. `pip install 'rewardlab[mcp]'`.
    """
    from rewardlab.judging.api import open_async_judge
    from rewardlab.serving.mcp_server import mcp_server
    from rewardlab.serving.media import Media

    media = Media(allowed_urls=options.allow_url or (), folder=options.media)
    judge = open_async_judge(refuse_run_keys(judge_of(options.judge, options.overrides)), guarantee=options.guarantee)
    mcp_server(judge, media).run("stdio")


STORE, LABELS = "labels.sqlite", "labels.jsonl"


@dataclass(frozen=True, kw_only=True)
class LabelOptions:
    """Options of `rewardlab label`."""

    data: Data
    out: Out
    raters: Annotated[
        Optional[list[str]],
        typer.Option("--rater", help="Name of a rater, who gets a link; repeat for several. Earlier raters keep their links."),
    ] = None
    raters_per_pair: Annotated[
        int, typer.Option("--raters-per-pair", min=1, help="Number of raters who rate the same pair, at most.")
    ] = 3
    limit: Annotated[
        Optional[int], typer.Option("--limit", min=1, help="Rate a random sample of this many pairs (default: all).")
    ] = None
    repeat_every: Annotated[
        int,
        typer.Option(
            "--repeat-every",
            min=0,
            help="One item in so many is an earlier pair of the rater again, in the other order, for the rater's consistency "
            "(0: none).",
        ),
    ] = 20
    instruction: Annotated[str, typer.Option("--instruction", help="The question that raters answer.")] = (
        "Which answer is better?"
    )
    reasons: Annotated[
        Optional[list[str]], typer.Option("--reason", help="A reason to choose by one click; repeat for several.")
    ] = None
    export: Annotated[
        bool, typer.Option("--export", help="Write OUT/labels.jsonl and report on the raters, also while the page is served.")
    ] = False
    images: Images = None
    allow: Allow = None
    seed: RandomSeed = 0
    host: Annotated[str, typer.Option("--host", help="Address to listen on; 0.0.0.0: all interfaces.")] = "127.0.0.1"
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="Port to listen on.")] = 8000
    allowed_host: AllowedHosts = None


@command(app, "label", rich_help_panel=DATA)
def label_pairs(options: LabelOptions) -> None:
    """Let people rate pairs on a page: first, second, tie or cannot tell.

    Prints a link for each rater. Each rating is stored in OUT/labels.sqlite before the next pair is shown, and the same command
    resumes. When the server stops, and with --export, the ratings go to OUT/labels.jsonl.
    """
    from rewardlab.data.label_store import LabelStore

    if options.export:
        if not (options.out / STORE).is_file():
            raise ConfigError(f"--out {options.out}: has no {STORE}; run the command without --export first")
        _export_labels(LabelStore(options.out / STORE), options.out / LABELS)
        return
    from rewardlab.data.files import lock_file
    from rewardlab.data.pair_table import PairTable
    from rewardlab.serving.label_app import LabelQueue, LabelRules, create_label_app, run_label_server
    from rewardlab.serving.middleware import accepted_hosts
    from rewardlab.serving.server import check_port

    if options.repeat_every in (1, 2):
        raise ConfigError(f"--repeat-every {options.repeat_every}: expected 3 or more, or 0 for no repetitions")
    check_port(options.host, options.port)
    pairs = PairTable(options.data, images=options.images, frames=None, **allowances(options.allow))
    lock = lock_file(options.out / f".{STORE}.lock", options.out / STORE)
    store = LabelStore(options.out / STORE)
    store.identify({"pairs": pairs.fingerprint, "seed": options.seed})
    rules = LabelRules(options.raters_per_pair, options.repeat_every, options.limit, options.seed, options.instruction)
    rules = replace(rules, reasons=tuple(options.reasons)) if options.reasons else rules
    queue = LabelQueue(pairs, store, rules)
    tokens = store.tokens(options.raters or ()) or store.tokens(["rater"])
    host = socket.gethostname() if options.host in ("0.0.0.0", "::") else options.host
    for rater, token in tokens.items():
        typer.echo(f"{rater}: http://{f'[{host}]' if ':' in host else host}:{options.port}/ui#key={token}")
    hosts = accepted_hosts(options.host, options.allowed_host or ())
    run_label_server(create_label_app(queue, tokens, hosts), options.host, options.port)
    _export_labels(store, options.out / LABELS)
    os.close(lock)


def _export_labels(store: LabelStore, path: Path) -> None:
    """Write all ratings, and print each rater's work and consistency."""
    from rewardlab.data.ratings import write_ratings
    from rewardlab.metrics.intervals import wilson_interval
    from rewardlab.reporting.tables import with_interval

    labels = [(pair_id, rating) for pair_id, _, rating in store.ratings()]
    write_ratings(path, labels)
    for rater in store.tokens():
        summary = store.summary(rater)
        same, repeated = summary["num_same"], summary["num_repeated"]
        rate = f", {with_interval(same / repeated, wilson_interval(same, repeated))} %" if repeated else ""
        typer.echo(
            f"{rater}: {summary['num_pairs']} pairs, {summary['num_ties']} ties, {summary['num_skipped']} cannot tell; "
            f"same choice in {same} of {repeated} repetitions{rate}"
        )
    typer.echo(f"{path}: {len(labels)} ratings of {len({pair_id for pair_id, _ in labels})} pairs")
