"""The teacher stage on a Ray cluster: many machines send requests, one keeps the journal.

``ray.data`` reads the shards and hands batches of pairs to workers, each with its own connections. Every call passes through
one actor that holds the journal and the common budget, so that no call is answered or paid twice, whatever dies and is
restarted. The files are those of ``rewardlab distill``: either may continue the other's run.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

import pyarrow as pa
import ray
import ray.data
import ray.exceptions
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rewardlab.config import DistillConfig
from rewardlab.data.media import Files
from rewardlab.data.pairs import PairSet
from rewardlab.data.row_files import files_of, is_checked
from rewardlab.data.rows import from_row
from rewardlab.distill.budget import BudgetGuard, BudgetSpentError, CallLedger
from rewardlab.distill.journal import Answer, Journal
from rewardlab.distill.pipeline import JOURNAL, WithoutTies, finish, identity_of, survey
from rewardlab.distill.statistics import Statistics
from rewardlab.distill.teacher import Progress
from rewardlab.distill.transports import ChatTransport, open_endpoints
from rewardlab.errors import ConfigError, EndpointError, OutputError, RewardlabError
from rewardlab.reporting.progress import bar
from rewardlab.types import Completion, Order, PreferencePair

BATCH = 256  # pairs that a worker gets at a time
LOCK_WAIT_S = 60.0  # for the journal of a run that was killed a moment ago


class CallPermit(StrEnum):
    """A request may be sent now, after others have ended, or never."""

    ADMITTED = "admitted"
    WAIT = "wait"
    SPENT = "spent"


class LedgerActor:
    """Journal and budget of the whole run, in one place."""

    def __init__(self, path: str, identity: Mapping[str, object], config: DistillConfig) -> None:
        self._journal = _open_journal(Path(path), identity)
        usage, longest = self._journal.usage(), self._journal.longest_prompt()
        self._ledger = CallLedger(self._journal, BudgetGuard(config.prices, config.budget, config.max_tokens, usage, longest))

    async def ready(self) -> bool:
        return True

    async def answers(self, pair: str) -> list[Answer]:
        return await self._ledger.answers(pair)

    async def open(self, pair: str, attempt: int, order: Order) -> CallPermit:
        """Admit a request without waiting, which would block the requests that must end first."""
        budget = self._ledger.budget
        if not budget.affords(1):
            return CallPermit.WAIT if budget.open_calls else CallPermit.SPENT
        await self._ledger.open(pair, attempt, order)
        return CallPermit.ADMITTED

    async def close(self, pair: str, attempt: int, completion: Completion) -> None:
        await self._ledger.close(pair, attempt, completion)

    async def spent(self) -> tuple[float, int]:
        return self._ledger.budget.usd, self._ledger.budget.tokens

    async def shut(self) -> None:
        self._journal.close()


def _open_journal(path: Path, identity: Mapping[str, object]) -> Journal:
    deadline = time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            return Journal(path, identity)
        except OutputError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)


class RemoteLedger:
    """The ledger actor as a worker sees it; waits at most ``patience_s`` for the budget that other requests hold."""

    def __init__(self, actor: Any, patience_s: float) -> None:
        self._actor, self._patience_s = actor, patience_s

    async def answers(self, pair: str) -> list[Answer]:
        return list(await self._actor.answers.remote(pair))

    async def open(self, pair: str, attempt: int, order: Order) -> None:
        deadline = time.monotonic() + self._patience_s
        while (admission := await self._actor.open.remote(pair, attempt, order)) == CallPermit.WAIT:
            if time.monotonic() >= deadline:
                break
            await asyncio.sleep(0.2)
        if admission != CallPermit.ADMITTED:  # also if a dead worker still holds some of the budget
            raise BudgetSpentError

    async def close(self, pair: str, attempt: int, completion: Completion) -> None:
        await self._actor.close.remote(pair, attempt, completion)


class Worker:
    """Asks the teacher about one batch after another."""

    def __init__(self, config: DistillConfig, ledger: Any) -> None:
        self._config, self._ledger = config, ledger

    def __call__(self, table: pa.Table) -> pa.Table:
        """Return the progress of the batch as one row: counts, and the ids of pairs that failed."""
        files = Files(checked=True)
        pairs = [from_row(row, index=n, files=files) for n, row in enumerate(table.to_pylist())]
        progress = asyncio.run(self._ask([pair for pair in pairs if pair.tie is None]))
        row = {"done": progress.done, "kept": progress.kept, "failed": sorted(progress.failed), "spent": progress.out_of_budget}
        row["left_out"] = sorted(progress.left_out)
        return pa.Table.from_pylist([row], schema=SCHEMA)

    async def _ask(self, pairs: Sequence[PreferencePair]) -> Progress:
        ledger = RemoteLedger(self._ledger, 2 * self._config.deadline_s)
        async with ChatTransport(self._config, open_endpoints(self._config), ledger) as transport:
            return await transport.run(pairs)


NAMES = pa.list_(pa.string())
SCHEMA = pa.schema([("done", pa.int64()), ("kept", pa.int64()), ("failed", NAMES), ("spent", pa.bool_()), ("left_out", NAMES)])


def _causes(error: BaseException) -> list[BaseException]:
    """Return the causes of an error of Ray's, outermost first."""
    causes: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in causes:
        causes.append(cause)
        cause = getattr(cause, "cause", None) or cause.__cause__
    return causes


def distill_on_ray(
    data: Path,
    config: DistillConfig,
    out: Path,
    *,
    batch: int = BATCH,
    allow: Collection[str] = (),
) -> Statistics:
    """Run :func:`rewardlab.distill.pipeline.distill` on Parquet shards with media inside, by the actors of ``config.ray``.

    ``out`` and the ledger actor are on this machine. Raise what distill raises, and ConfigError for files that are not Parquet.
    """
    assert config.ray is not None
    data, out, shards = data.resolve(), out.resolve(), files_of(data.resolve())
    if wrong := [shard for shard in shards if not is_checked(shard)]:
        raise ConfigError(
            f"{wrong[0]}: with Ray, --data must be Parquet shards written by rewardlab; see `rewardlab data convert`"
        )
    pairs = PairSet(data, frames=None)
    number, fingerprint = survey(pairs, allow=allow)
    with _open_journal(out / JOURNAL, identity_of(config, fingerprint)) as journal:  # raise its errors here, not in an actor
        if journal.open_batches():
            raise ConfigError(f"{out / JOURNAL}: some batches are not collected yet; collect them first (transport: batch)")
    progress = Progress()
    ledger: Any = None  # the handle of the actor, whose methods ray makes as it runs
    keys = {name: os.environ[name] for name in config.api_key_envs if name in os.environ}
    try:
        ray.init(
            address=config.ray.address,
            ignore_reinit_error=True,
            log_to_driver=False,
            include_dashboard=False,
            runtime_env={"env_vars": keys},
        )
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        actor: Any = ray.remote(LedgerActor).options(num_cpus=0, max_concurrency=1000, scheduling_strategy=here)
        ledger = actor.remote(str(out / JOURNAL), identity_of(config, fingerprint), config)
        ray.get(ledger.ready.remote())
        blocks = max(len(shards), 2 * config.ray.workers)  # else a small set is one block, for one worker
        batches = ray.data.read_parquet([str(shard) for shard in shards], override_num_blocks=blocks).map_batches(
            Worker,
            fn_constructor_args=(config, ledger),
            batch_size=batch,
            batch_format="pyarrow",
            num_cpus=0.1,  # it waits for the teacher; reading the shards needs cores, too
            compute=ray.data.ActorPoolStrategy(size=config.ray.workers),
        )
        with bar("distill", number) as advance:
            for row in batches.iter_rows():
                progress.done += row["done"]
                progress.kept += row["kept"]
                progress.failed |= set(row["failed"])
                progress.out_of_budget |= bool(row["spent"])
                progress.left_out |= set(row["left_out"])
                usd, _ = ray.get(ledger.spent.remote())
                advance(row["done"], note=f"{progress.kept:,} kept, ${usd:,.2f}")
    except (ray.exceptions.RayError, ConnectionError) as error:
        causes = [cause for cause in _causes(error) if isinstance(cause, RewardlabError)]
        raise causes[-1] if causes else EndpointError(f"Ray: {error}; nothing is lost: fix the cause and run again") from error
    finally:
        if ledger is not None:
            with contextlib.suppress(ray.exceptions.RayError):
                ray.get(ledger.shut.remote())
            ray.kill(ledger)
        ray.shutdown()
    return finish(WithoutTies(pairs), number, fingerprint, progress, config, out)
