"""Serving: a judge behind HTTP."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer
import yaml

from rewardlab.cli.commands import command
from rewardlab.cli.options import SERVING, JudgeKeys, JudgeOption, Votes, app, parse_judge_keys
from rewardlab.errors import ConfigError

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from rewardlab.config.judge import JudgeConfig
    from rewardlab.judging.judge import GenerativeJudge
    from rewardlab.serving.limits import Limits
    from rewardlab.serving.service import ServerOptions


SERVE_PREFIX = "REWARDLAB_SERVE"


def judge_defaults(path: Path | None) -> dict[str, Any]:
    """Return the keys of the judge that a file of options and the environment set, the environment over the file."""
    from rewardlab.config.judge import JUDGE_KEYS
    from rewardlab.config.loading import read_yaml

    given = {} if path is None else {name.replace("-", "_"): value for name, value in _read(path).items()}
    variables = {name: os.environ.get(f"{SERVE_PREFIX}_{name.upper()}") for name in JUDGE_KEYS}
    for name, text in variables.items():
        try:
            given |= {} if text is None else {name: read_yaml(text)}
        except yaml.YAMLError as error:
            raise ConfigError(f"{SERVE_PREFIX}_{name.upper()}={text}: the value is not valid YAML ({error})") from error
    return {name: value for name, value in given.items() if name in JUDGE_KEYS}


def read_settings(context: typer.Context, path: Optional[Path]) -> Optional[Path]:
    """Use the options of a file as the command's defaults; given options and variables override them.

    Raise ConfigError for a file that cannot be read or holds no options, and for a name, in it or among the variables, of none.
    """
    from rewardlab.config.judge import JUDGE_KEYS

    names = {parameter.name for parameter in context.command.params if parameter.name} - {"config", "help", "overrides"}
    options, names = names, names | set(JUDGE_KEYS)
    repeated = {parameter.name for parameter in context.command.params if getattr(parameter, "multiple", False)}
    prefix = f"{context.auto_envvar_prefix}_"
    variables = {name.removeprefix(prefix).lower() for name in os.environ if name.startswith(prefix)}
    for variable in sorted(variables - names - {"config"}):
        raise ConfigError(
            f"{prefix}{variable.upper()} is set, but there is no option {_option(variable)}{_nearest(variable, names)}"
        )
    if path is None:
        return None
    given = {name.replace("-", "_"): value for name, value in _read(path).items()}
    for name in sorted(set(given) - names):
        raise ConfigError(f"--config {path}: there is no option {_option(name)}{_nearest(name, names)}")
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
    return {str(name): value for name, value in settings.items()}


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _nearest(name: str, names: Iterable[str]) -> str:
    nearest = difflib.get_close_matches(name, names, 1)
    return f"; did you mean {_option(nearest[0])}?" if nearest else "; `rewardlab serve --help` lists them"


# Panels of the options.
ADDRESS, GROUPS, ENGINE, CLIENTS = "Address", "Groups of responses", "Engine", "Clients and limits"
MEDIA, SIGNS = "Media", "Signs of a policy that pleases the judge"
MOST_VOTES = 64  # in each order, of a framework's request
REMOTE_THREADS = 64  # calls at a time of an engine that batches by itself
NETWORK_S = 10.0  # beside its work, for a peer's answer


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
            help="YAML of these options and of the judge's keys by their names (`group-size: 8`, `temperature: 0`). Each can "
            "also be set by an environment variable, such as REWARDLAB_SERVE_GROUP_SIZE. The command "
            "line overrides the variables, and the variables override the file.",
        ),
    ] = None
    votes: Votes = None
    host: Annotated[
        str,
        typer.Option(
            "--host",
            help="Address to listen on; 0.0.0.0: all interfaces.",
            rich_help_panel=ADDRESS,
        ),
    ] = "127.0.0.1"
    port: Annotated[
        int,
        typer.Option(
            "--port",
            min=1,
            max=65535,
            help="Port to listen on.",
            rich_help_panel=ADDRESS,
        ),
    ] = 8000
    log_format: Annotated[
        str,
        typer.Option(
            "--log-format", help="text, or json: an object a line, with one line for each request.", rich_help_panel=ADDRESS
        ),
    ] = "text"
    allowed_host: Annotated[
        Optional[list[str]],
        typer.Option(
            "--allowed-host",
            help="Host name that clients use, beside localhost; repeat for several. Other names are refused (default: any "
            "name, but only localhost on a server that listens on this machine alone).",
            rich_help_panel=ADDRESS,
        ),
    ] = None
    root_path: Annotated[
        str,
        typer.Option(
            "--root-path",
            help="Path under which a proxy exposes this server, such as /judge.",
            rich_help_panel=ADDRESS,
        ),
    ] = ""
    ssl_certfile: Annotated[
        Optional[Path],
        typer.Option("--ssl-certfile", help="Certificate with its chain (PEM); enables TLS.", rich_help_panel=ADDRESS),
    ] = None
    ssl_keyfile: Annotated[
        Optional[Path],
        typer.Option(
            "--ssl-keyfile",
            help="The certificate's private key, PEM.",
            rich_help_panel=ADDRESS,
        ),
    ] = None
    strategy: Annotated[
        str,
        typer.Option(
            "--strategy",
            help="How groups are compared: all_pairs, circular, knockout or bradley_terry.",
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
    group_timeout: Annotated[
        float,
        typer.Option(
            "--group-timeout",
            min=0.1,
            help="Seconds they wait.",
            rich_help_panel=GROUPS,
        ),
    ] = 60.0
    timeout: Annotated[
        float,
        typer.Option(
            "--timeout",
            min=1.0,
            help="Maximum seconds to judge a group; beyond it the request gets 504 and no reward.",
            rich_help_panel=GROUPS,
        ),
    ] = 600.0
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
        str,
        typer.Option(
            "--address",
            help="URL of this server, as its --peers name it.",
            rich_help_panel=GROUPS,
        ),
    ] = ""
    notice: Annotated[
        float,
        typer.Option(
            "--notice",
            min=0.0,
            help="Seconds after SIGTERM during which /ready returns 503 while requests are still accepted.",
            rich_help_panel=ENGINE,
        ),
    ] = 5.0
    drain: Annotated[
        float,
        typer.Option(
            "--drain",
            min=0.0,
            help="Seconds after --notice to finish accepted requests; the rest get 503.",
            rich_help_panel=ENGINE,
        ),
    ] = 90.0
    engine_timeout: Annotated[
        float,
        typer.Option(
            "--engine-timeout",
            min=0.1,
            help="Maximum seconds per batch.",
            rich_help_panel=ENGINE,
        ),
    ] = 600.0
    replicas: Annotated[
        int,
        typer.Option(
            "--replicas",
            min=0,
            help="Number of copies of the judge to open on the Ray cluster of "
            "RAY_ADDRESS, or else on this machine (0: once, here).",
            rich_help_panel=ENGINE,
        ),
    ] = 0
    replica_gpus: Annotated[
        Optional[float],
        typer.Option(
            "--replica-gpus",
            min=0.0,
            help="GPUs per replica (default: 1 if there are any).",
            rich_help_panel=ENGINE,
        ),
    ] = None
    judge_file: Annotated[
        Optional[Path],
        typer.Option(
            "--judge-file",
            help="File that holds the judge's name in the form of --judge, used instead of --judge. "
            "When the file changes, the new judge is loaded while the old one keeps serving, and then takes over new requests.",
            rich_help_panel=ENGINE,
        ),
    ] = None
    queue: Annotated[
        int,
        typer.Option("--queue", min=1, help="Maximum pairs in the queue; beyond it requests get 429.", rich_help_panel=CLIENTS),
    ] = 1024
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
    rate: Annotated[
        float,
        typer.Option(
            "--rate",
            min=0.1,
            help="Maximum requests per key and minute.",
            rich_help_panel=CLIENTS,
        ),
    ] = 1e9
    limit: Annotated[
        Optional[list[str]],
        typer.Option(
            "--limit",
            help="NAME=NUMBER, a limit on requests or connections, such as comparisons=131072; "
            "repeat for several. The deployment guide lists all.",
            rich_help_panel=CLIENTS,
        ),
    ] = None
    allow_url: Annotated[
        Optional[list[str]],
        typer.Option(
            "--allow-url", help="Allow fetching media from URLs with this prefix; repeat for several.", rich_help_panel=MEDIA
        ),
    ] = None
    media: Annotated[
        Optional[Path],
        typer.Option(
            "--media",
            help="Folder of files that requests can refer to as media:NAME.",
            rich_help_panel=MEDIA,
        ),
    ] = None
    uploads: Annotated[
        Optional[Path],
        typer.Option(
            "--uploads",
            help="Folder for uploads, which then survive a restart (default: a temporary folder).",
            rich_help_panel=MEDIA,
        ),
    ] = None
    upload_bytes: Annotated[
        int,
        typer.Option(
            "--upload-bytes",
            min=1,
            help="Maximum bytes of uploads kept per key.",
            rich_help_panel=MEDIA,
        ),
    ] = 1_000_000_000
    signs_data: Annotated[
        Optional[Path],
        typer.Option(
            "--signs-data",
            help="Pairs like those that policies are trained on with this server: the novelty of the answers' "
            "wording is then monitored, as one of the indicators of reward hacking.",
            rich_help_panel=SIGNS,
        ),
    ] = None
    check_rate: Annotated[
        float,
        typer.Option(
            "--check-rate",
            min=0.0,
            max=1.0,
            help="Fraction of group comparisons to repeat with blank images, each with a labelled pair "
            "of --signs-data, to detect reward hacking; 0.01 costs 2 %.",
            rich_help_panel=SIGNS,
        ),
    ] = 0.0


@command(app, "serve", rich_help_panel=SERVING, context_settings={"auto_envvar_prefix": SERVE_PREFIX})
def serve_judge(options: ServeOptions) -> None:
    """Serve a judge: pairs, rewards of groups, and the request formats of OpenRLHF, verl, NeMo-Gym and others.

    `POST /v1/judge`, `/v1/rewards`, `/v1/uploads`; `/health`, `/ready`, `/metrics`; all are described at `/docs`. Adapters for
    trainers are in `rewardlab.integrations`.
    """
    if options.log_format != "json":
        typer.echo(f"opening {options.judge_file or options.judge}; the server is ready once it prints its address", err=True)
    from rewardlab.config.loading import merge, nest
    from rewardlab.judging.engines import open_generative_judge
    from rewardlab.judging.spec import judge_config
    from rewardlab.samplers.base import Replicas
    from rewardlab.serving.judge_file import JudgeFile
    from rewardlab.serving.limits import Limits
    from rewardlab.serving.request_record import export_spans
    from rewardlab.serving.server import StopTimes, check_port, listening_options, run_server

    limits = Limits.of(options.limit or ())
    listening = listening_options(
        certificate=options.ssl_certfile,
        private_key=options.ssl_keyfile,
        root_path=options.root_path,
        log_format=options.log_format,
    )
    export_spans()
    check_port(options.host, options.port)
    _check(options, limits)
    if options.judge_file and options.replicas:
        raise ConfigError(
            "--judge-file and --replicas: replicas cannot be replaced while the server runs; leave one of them out"
        )
    defaults = judge_defaults(options.config)
    votes = None if options.votes == defaults.get("votes") else options.votes  # else --votes has the default
    keys = merge(nest(defaults), nest(parse_judge_keys(options.overrides, votes)))
    replicas = Replicas(options.replicas, options.replica_gpus) if options.replicas else None

    def open_judge(named: str) -> GenerativeJudge:
        config = _served(judge_config(named, keys))
        return open_generative_judge(config, restart_after_s=options.engine_timeout, replicas=replicas)

    followed = JudgeFile(options.judge_file, open_judge) if options.judge_file else None
    server = replace(_server_options(options, limits), judge_file=followed)  # refused options cost no load of the judge
    opened = open_judge(followed.read_or(options.judge) if followed else options.judge)
    app = _application(options, server, opened)
    del opened  # the application keeps it for as long as it serves
    run_server(app, StopTimes(options.notice, options.drain), host=options.host, port=options.port, **listening)


def _check(options: ServeOptions, limits: Limits) -> None:
    """Raise ConfigError for options that do not fit each other."""
    from rewardlab.judging.group_rewards import STRATEGIES

    if options.strategy not in STRATEGIES or options.strategy == "anchor":
        raise ConfigError(f"--strategy {options.strategy}: expected all_pairs, circular, knockout or bradley_terry")
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
    from rewardlab.data.pair_table import PairTable
    from rewardlab.serving.answer_signs import SignRules
    from rewardlab.serving.auth import KeysFile
    from rewardlab.serving.media import Media
    from rewardlab.serving.middleware import accepted_hosts
    from rewardlab.serving.peers import Peers
    from rewardlab.serving.service import ServerOptions
    from rewardlab.serving.uploads import UploadStore

    timeouts = options.group_timeout + options.timeout + NETWORK_S
    store = UploadStore(options.uploads, max_bytes=options.upload_bytes)
    return ServerOptions(
        keys_file=KeysFile(options.keys, per_minute=options.rate) if options.keys else None,
        media=Media(allowed_urls=options.allow_url or (), folder=options.media, uploads=store, limits=limits),
        allowed_hosts=accepted_hosts(options.host, options.allowed_host or ()),
        limits=limits,
        peers=Peers(options.address, options.peers.split(","), wait_s=timeouts) if options.peers else None,
        sign_rules=SignRules.of(None if options.signs_data is None else PairTable(options.signs_data), options.check_rate),
    )


def _application(options: ServeOptions, server: ServerOptions, opened: GenerativeJudge) -> Starlette:
    from rewardlab.serving.app import create_app
    from rewardlab.serving.queue import QueueOptions
    from rewardlab.serving.service import GroupRules
    from rewardlab.serving.voting import VotingOptions

    config = opened.config
    policy = config.policy or (None if config.stop_error is None else "sequential")
    voting = VotingOptions(config.votes or 1, policy)
    voting = voting if config.stop_error is None else replace(voting, error=config.stop_error)
    joins_parts = options.group_size is not None or bool(options.peers)
    group_size = options.group_size or 8
    rules = GroupRules(voting, options.strategy, group_size, options.group_timeout, options.timeout, joins_parts)
    queue = QueueOptions(
        max_waiting=options.queue,
        engine_timeout_s=2 * options.engine_timeout,  # an engine in a process has its own; this one is for all others
        max_sequences=4 * config.batch_size,
        num_threads=REMOTE_THREADS if opened.sampler.is_batch_invariant else max(1, options.replicas),
    )
    return create_app(opened, replace(server, rules=rules, queue=queue))
