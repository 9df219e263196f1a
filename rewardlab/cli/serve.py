"""Serving: a judge behind HTTP."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from rewardlab.cli.options import SERVING, EngineArgs, JudgeOption, app
from rewardlab.cli.settings import SERVE_PREFIX, read_settings
from rewardlab.errors import ConfigError

REMOTE_THREADS = 64  # calls at a time of an engine that batches by itself
NETWORK_S = 10.0  # beside its work, for a peer's answer


def _renamed(old: str, new: str) -> Any:
    """Return a hidden option that is refused with the name of the new one."""

    def refuse(value: Optional[str]) -> None:
        if value is not None:
            raise ConfigError(f"{old} is now called {new}; give {new} {value}")

    return typer.Option(old, hidden=True, callback=refuse)


@app.command("serve", rich_help_panel=SERVING, context_settings={"auto_envvar_prefix": SERVE_PREFIX})
def serve_judge(
    judge: JudgeOption,
    config: Annotated[
        Optional[Path],
        typer.Option(
            "--config",
            is_eager=True,
            callback=read_settings,
            help="YAML of these options by their names (`group-size: 8`). Every option is also a variable, such as "
            "REWARDLAB_SERVE_GROUP_SIZE; what is given here counts before the variable, and that before the file.",
        ),
    ] = None,
    host: Annotated[
        str, typer.Option("--host", help="Address to listen on; 0.0.0.0 is every one of this machine.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="Port to listen on.")] = 8000,
    template: Annotated[
        Optional[str], typer.Option("--template", help="Prompt template (default: the checkpoint's; r1_reward for endpoints).")
    ] = None,
    temperature: Annotated[float, typer.Option("--temperature", min=0.0, help="Sampling temperature; 0 is greedy.")] = 1.0,
    max_tokens: Annotated[int, typer.Option("--max-tokens", min=1, help="Most tokens of a judgment.")] = 1024,
    batch_size: Annotated[int, typer.Option("--batch-size", min=1, help="Sequences at a time (hf).")] = 64,
    votes: Annotated[
        int, typer.Option("--votes", min=1, max=64, help="Samples in each order, where a framework's request cannot say it.")
    ] = 1,
    policy: Annotated[
        Optional[str],
        typer.Option("--policy", help="majority, weighted or sequential there (default: the judge's own)."),
    ] = None,
    strategy: Annotated[
        str, typer.Option("--strategy", help="How a group is compared there: all_pairs, circular, knockout or bradley_terry.")
    ] = "all_pairs",
    group_size: Annotated[
        Optional[int],
        typer.Option(
            "--group-size",
            min=2,
            max=1024,
            help="Responses to a prompt that wait for each other if sent one by one (default: 8). Given, or with --peers, "
            "several of one request that are fewer wait, too.",
        ),
    ] = None,
    group_timeout: Annotated[float, typer.Option("--group-timeout", min=0.1, help="Seconds they wait.")] = 60.0,
    timeout: Annotated[
        float,
        typer.Option("--timeout", min=1.0, help="Seconds that a group may take there; beyond it there is no reward (504)."),
    ] = 600.0,
    queue: Annotated[int, typer.Option("--queue", min=1, help="Most pairs that wait; beyond it requests get 429.")] = 1024,
    notice: Annotated[
        float,
        typer.Option("--notice", min=0.0, help="Seconds after SIGTERM in which /ready says 503 and requests are still taken."),
    ] = 5.0,
    drain: Annotated[
        float, typer.Option("--drain", min=0.0, help="Seconds after that to finish what was taken; the rest gets 503.")
    ] = 90.0,
    engine_timeout: Annotated[float, typer.Option("--engine-timeout", min=0.1, help="Most seconds of one batch.")] = 600.0,
    keys: Annotated[
        Optional[Path],
        typer.Option(
            "--keys",
            help="File with an API key a line, or sha256:HEX of it, and after it name=WORD, for logs and metrics, and limits: "
            "per_minute=600 (requests), samples_per_minute=N, tokens_per_minute=N, max_bytes=N, and its weight=1 while several "
            "keys wait. It is read again when it changes. Without it no key is needed.",
        ),
    ] = None,
    rate: Annotated[float, typer.Option("--rate", min=0.1, help="Most requests of a key per minute.")] = 1e9,
    engine_args: EngineArgs = "",
    replicas: Annotated[
        int,
        typer.Option(
            "--replicas",
            min=0,
            help="Open the judge so many times on the Ray cluster of RAY_ADDRESS, or else on this machine (0: once, here).",
        ),
    ] = 0,
    replica_gpus: Annotated[
        Optional[float],
        typer.Option("--replica-gpus", min=0.0, help="Cards of each replica (default: one where there are any)."),
    ] = None,
    judge_file: Annotated[
        Optional[Path],
        typer.Option(
            "--judge-file",
            help="File with the name of a judge, as --judge takes it, which is served in its place. When the file changes, the "
            "judge that it names then is loaded while the last one serves, and takes the requests that come from then on.",
        ),
    ] = None,
    signs_data: Annotated[
        Optional[Path],
        typer.Option(
            "--signs-data",
            help="Pairs like those that policies are trained on here: how new the words of their answers are is then among the "
            "signs of a policy that pleases the judge rather than gets better.",
        ),
    ] = None,
    check_rate: Annotated[
        float,
        typer.Option(
            "--check-rate",
            min=0.0,
            max=1.0,
            help="Share of the comparisons of groups that is asked again with blank pictures, each beside a labelled pair of "
            "--signs-data, for the signs; 0.01 costs 2 %.",
        ),
    ] = 0.0,
    peers: Annotated[
        str,
        typer.Option(
            "--peers",
            help="URL,URL of all servers that share groups, with --address: responses to one prompt that are sent one by one "
            "to different ones meet at one of them. All name the same servers and have the same keys.",
        ),
    ] = "",
    address: Annotated[str, typer.Option("--address", help="URL of this server, as its --peers name it.")] = "",
    allow_url: Annotated[
        Optional[list[str]],
        typer.Option("--allow-url", help="Media are fetched from URLs that begin with this; repeat for several."),
    ] = None,
    media: Annotated[Optional[Path], typer.Option("--media", help="Folder whose files requests name as media:NAME.")] = None,
    uploads: Annotated[
        Optional[Path],
        typer.Option("--uploads", help="Folder for uploads, which then outlive the server (default: a temporary one)."),
    ] = None,
    upload_bytes: Annotated[
        int, typer.Option("--upload-bytes", min=1, help="Bytes of uploads that are kept for each key.")
    ] = 1_000_000_000,
    log_format: Annotated[
        str, typer.Option("--log-format", help="text, or json: an object a line, with one line for each request.")
    ] = "text",
    allowed_host: Annotated[
        Optional[list[str]],
        typer.Option(
            "--allowed-host",
            help="Name that clients reach this server by, beside localhost; repeat for several. Others are refused (default: "
            "where it listens on this machine alone; else any name is taken).",
        ),
    ] = None,
    limit: Annotated[
        Optional[list[str]],
        typer.Option(
            "--limit",
            help="NAME=NUMBER, a bound of what requests and connections may take, such as comparisons=131072; repeat for "
            "several. The guide to deployment lists all.",
        ),
    ] = None,
    root_path: Annotated[str, typer.Option("--root-path", help="Path that a proxy serves this under, such as /judge.")] = "",
    ssl_certfile: Annotated[
        Optional[Path], typer.Option("--ssl-certfile", help="Certificate with its chain, PEM; then this speaks TLS.")
    ] = None,
    ssl_keyfile: Annotated[Optional[Path], typer.Option("--ssl-keyfile", help="The certificate's private key, PEM.")] = None,
    api_key_env: Annotated[
        str, typer.Option("--api-key-env", help="Variable with the key of an openai: judge.")
    ] = "OPENAI_API_KEY",
    cohort: Annotated[Optional[str], _renamed("--cohort", "--group-size")] = None,
    cohort_timeout: Annotated[Optional[str], _renamed("--cohort-timeout", "--group-timeout")] = None,
) -> None:
    """Serve a judge: pairs, rewards of groups, and the request formats of OpenRLHF, verl, NeMo-Gym and others.

    `POST /v1/judge`, `/v1/rewards`, `/v1/uploads`; `/health`, `/ready`, `/metrics`; all are described at `/docs`. Adapters for
    trainers are in `rewardlab.integrations`.
    """
    if log_format != "json":
        typer.echo(f"opening {judge_file or judge}; the server is ready when it names its address", err=True)
    from rewardlab.data.pair_table import PairTable
    from rewardlab.judging.engines import open_generative_judge
    from rewardlab.judging.group_rewards import STRATEGIES
    from rewardlab.samplers.base import Replicas
    from rewardlab.serving.answer_signs import SignRules
    from rewardlab.serving.app import create_app
    from rewardlab.serving.auth import KeysFile
    from rewardlab.serving.judge_file import JudgeFile
    from rewardlab.serving.limits import Limits
    from rewardlab.serving.media import Media
    from rewardlab.serving.middleware import accepted_hosts
    from rewardlab.serving.peers import Peers
    from rewardlab.serving.queue import QueueOptions
    from rewardlab.serving.request_record import export_spans
    from rewardlab.serving.server import StopTimes, check_port, listening_options, run_server
    from rewardlab.serving.service import GroupRules, ServerOptions
    from rewardlab.serving.uploads import UploadStore
    from rewardlab.serving.voting import POLICIES, VotingOptions

    limits = Limits.of(limit or ())
    listening = listening_options(certificate=ssl_certfile, private_key=ssl_keyfile, root_path=root_path, log_format=log_format)
    export_spans()
    check_port(host, port)
    if strategy not in STRATEGIES or strategy == "anchor":
        raise ConfigError(f"--strategy {strategy}: expected all_pairs, circular, knockout or bradley_terry")
    if policy not in (None, *POLICIES):
        raise ConfigError(f"--policy {policy}: expected {', '.join(POLICIES)}")
    if bool(peers) != bool(address):
        raise ConfigError("--peers and --address belong together: the URLs of the other servers and this one's own")
    wait_s = group_timeout + timeout + NETWORK_S
    shared = Peers(address, peers.split(","), wait_s=wait_s) if peers else None
    if group_size is not None and group_size > limits.responses:
        raise ConfigError(
            f"--group-size {group_size}: {limits.responses:,} responses are the most; add --limit responses={group_size}"
        )
    sign_rules = SignRules.of(None if signs_data is None else PairTable(signs_data), check_rate)
    keys_file = KeysFile(keys, per_minute=rate) if keys else None
    store = UploadStore(uploads, max_bytes=upload_bytes)
    sources = Media(allowed_urls=allow_url or (), folder=media, uploads=store, limits=limits)
    open_judge = partial(
        open_generative_judge,
        template=template,
        temperature=temperature,
        max_tokens=max_tokens,
        batch_size=batch_size,
        api_key=os.environ.get(api_key_env, "none"),
        engine_args=engine_args,
        restart_after_s=engine_timeout,
        replicas=Replicas(replicas, replica_gpus) if replicas else None,
    )
    if judge_file and replicas:
        raise ConfigError(
            "--judge-file and --replicas: replicas cannot be replaced while the server runs; leave one of them out"
        )
    followed = JudgeFile(judge_file, open_judge) if judge_file else None
    opened_judge = open_judge(followed.read_or(judge) if followed else judge)
    joins_parts = group_size is not None or bool(peers)
    rules = GroupRules(VotingOptions(votes, policy), strategy, group_size or 8, group_timeout, timeout, joins_parts)
    batching = QueueOptions(
        max_waiting=queue,
        max_sequences=4 * batch_size,
        engine_timeout_s=2 * engine_timeout,  # an engine in a process has its own time limit; this one is for all others
        num_threads=REMOTE_THREADS if opened_judge.sampler.is_batch_invariant else max(1, replicas),
    )
    options = ServerOptions(
        rules=rules,
        keys_file=keys_file,
        media=sources,
        allowed_hosts=accepted_hosts(host, allowed_host or ()),
        limits=limits,
        peers=shared,
        judge_file=followed,
        sign_rules=sign_rules,
        queue=batching,
    )
    app = create_app(opened_judge, options)
    del opened_judge  # the application keeps it for as long as it serves
    run_server(app, StopTimes(notice, drain), host=host, port=port, **listening)
