"""The teacher stage on a Ray cluster: many machines ask, one keeps the journal.

``ray.data`` reads the shards and hands batches of pairs to workers, each with its own connections; every call passes through
one actor that holds journal and purse, so that whatever dies and is started again, no call is answered or paid twice, and the
budget is that of all together. What is left is what ``rewardlab distill`` leaves: either may continue the other's run.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from pathlib import Path
from typing import Any

import pyarrow as pa

from rewardlab.config import DistillConfig
from rewardlab.data.pairs import PairSet, files_of, is_checked
from rewardlab.data.rows import Files, from_row
from rewardlab.distill.budget import BudgetSpentError, Purse
from rewardlab.distill.chat_transport import Asker, open_endpoints
from rewardlab.distill.journal import Answer, Journal
from rewardlab.distill.ledger import LocalLedger
from rewardlab.distill.pipeline import JOURNAL, finish, identity_of, survey
from rewardlab.distill.tagging import Progress
from rewardlab.errors import ConfigError, EndpointError, OutputError, RewardlabError
from rewardlab.progress import bar
from rewardlab.types import Completion, Order

try:
    import ray
    import ray.data
    import ray.exceptions
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
except ModuleNotFoundError as error:
    raise ConfigError(f"Ray is not installed ({error.name} is missing): pip install 'rewardlab[ray]'") from error

BATCH = 256  # pairs a worker is handed at a time
LOCK_WAIT_S = 60.0  # for the journal of a run that was killed a moment ago


@ray.remote(num_cpus=0, max_concurrency=1000)
class Keeper:
    """Journal and purse of the whole run, in one place."""

    def __init__(self, path: str, identity: dict[str, Any], config: DistillConfig) -> None:
        self._journal = _opened(Path(path), identity)
        self._ledger = LocalLedger(self._journal, Purse(config, self._journal.spent(), self._journal.longest_prompt()))

    async def ready(self) -> bool:
        return True

    async def answers(self, pair: str) -> list[Answer]:
        return await self._ledger.answers(pair)

    async def open(self, pair: str, attempt: int, shown: Order) -> str:
        """ "yes", "wait" until others have ended, or "spent". It never waits itself: it would keep the others from ending."""
        purse = self._ledger.purse
        if not purse.affords(1):
            return "wait" if purse.open_calls else "spent"
        await self._ledger.open(pair, attempt, shown)
        return "yes"

    async def close(self, pair: str, attempt: int, completion: Completion) -> None:
        await self._ledger.close(pair, attempt, completion)

    async def spent(self) -> tuple[float, int]:
        return self._ledger.purse.usd, self._ledger.purse.tokens

    async def shut(self) -> None:
        self._journal.close()


def _opened(path: Path, identity: dict[str, Any]) -> Journal:
    ends = time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            return Journal(path, identity)
        except OutputError:
            if time.monotonic() > ends:
                raise
            time.sleep(0.5)


class RemoteLedger:
    """The keeper's, as a worker sees it."""

    def __init__(self, keeper: Any, patience_s: float) -> None:
        self._keeper, self._patience_s = keeper, patience_s

    async def answers(self, pair: str) -> list[Answer]:
        return list(await self._keeper.answers.remote(pair))

    async def open(self, pair: str, attempt: int, shown: Order) -> None:
        ends = time.monotonic() + self._patience_s
        while (told := await self._keeper.open.remote(pair, attempt, shown)) == "wait" and time.monotonic() < ends:
            await asyncio.sleep(0.2)
        if told != "yes":  # also where a worker that died keeps its part of the budget
            raise BudgetSpentError

    async def close(self, pair: str, attempt: int, completion: Completion) -> None:
        await self._keeper.close.remote(pair, attempt, completion)


class Worker:
    """Asks about one batch after another."""

    def __init__(self, config: DistillConfig, keeper: Any) -> None:
        self._config, self._keeper = config, keeper

    def __call__(self, table: pa.Table) -> pa.Table:
        """What became of the batch: one row of numbers, and the names of pairs that failed."""
        files = Files(checked=True)
        pairs = [from_row(row, index=n, files=files) for n, row in enumerate(table.to_pylist())]
        progress = asyncio.run(self._ask(pairs))
        row = {"done": progress.done, "kept": progress.kept, "failed": sorted(progress.failed), "spent": progress.out_of_budget}
        return pa.Table.from_pylist([row], schema=SCHEMA)

    async def _ask(self, pairs: Any) -> Progress:
        endpoints = open_endpoints(self._config)
        try:
            asker = Asker(self._config, endpoints, RemoteLedger(self._keeper, 2 * self._config.deadline_s))
            await asker.run(pairs)
            return asker.progress
        finally:
            for one in endpoints:
                await one.aclose()


SCHEMA = pa.schema([("done", pa.int64()), ("kept", pa.int64()), ("failed", pa.list_(pa.string())), ("spent", pa.bool_())])


def _causes(error: BaseException) -> list[BaseException]:
    """What an error of Ray's was raised for, outermost first."""
    found: list[BaseException] = []
    seen: BaseException | None = error
    while seen is not None and seen not in found:
        found.append(seen)
        seen = getattr(seen, "cause", None) or seen.__cause__
    return found


def distill_on_ray(
    data: Path,
    config: DistillConfig,
    out: Path,
    *,
    workers: int,
    address: str | None = None,
    batch: int = BATCH,
) -> dict[str, Any]:
    """As :func:`rewardlab.distill.pipeline.distill`, of Parquet shards with media inside, by ``workers`` Ray actors.

    ``address``: of a cluster ("auto": the one this machine is in), None: a local one. ``out`` is on the machine that the keeper
    runs on, which is this one. Raises what distill raises, and ConfigError for files that are not Parquet.
    """
    data, out, shards = data.resolve(), out.resolve(), files_of(data.resolve())
    if wrong := [one for one in shards if not is_checked(one)]:
        raise ConfigError(f"{wrong[0]}: Ray takes Parquet shards as this project writes them; see `rewardlab data convert`")
    if config.transport == "batch":
        raise ConfigError("transport: batch sends files, which one process does best; leave Ray out")
    pairs = PairSet(data, frames=None)
    number, fingerprint = survey(pairs)
    with _opened(out / JOURNAL, identity_of(config, fingerprint)) as journal:  # its errors are said here, not in an actor
        if journal.open_batches():
            raise ConfigError(f"{out / JOURNAL}: batches are away; collect them by transport: batch first")
    progress, keeper = Progress(), None
    keys = {name: os.environ[name] for name in config.api_key_envs if name in os.environ}
    try:
        ray.init(
            address=address,
            ignore_reinit_error=True,
            log_to_driver=False,
            include_dashboard=False,
            runtime_env={"env_vars": keys},
        )
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        keeper = Keeper.options(scheduling_strategy=here).remote(str(out / JOURNAL), identity_of(config, fingerprint), config)
        ray.get(keeper.ready.remote())
        blocks = max(len(shards), 2 * workers)  # else small sets are one block, and one worker has it all
        batches = ray.data.read_parquet([str(one) for one in shards], override_num_blocks=blocks).map_batches(
            Worker,
            fn_constructor_args=(config, keeper),
            batch_size=batch,
            batch_format="pyarrow",
            num_cpus=0.1,  # it waits for the teacher; a whole core for each would leave none to read the shards with
            compute=ray.data.ActorPoolStrategy(size=workers),
        )
        with bar("distill", number) as advance:
            for row in batches.iter_rows():
                progress.done += row["done"]
                progress.kept += row["kept"]
                progress.failed |= set(row["failed"])
                progress.out_of_budget |= bool(row["spent"])
                usd, _ = ray.get(keeper.spent.remote())
                advance(row["done"], note=f"{progress.kept:,} kept, ${usd:,.2f}")
    except (ray.exceptions.RayError, ConnectionError) as error:
        own = [one for one in _causes(error) if isinstance(one, RewardlabError)]
        raise own[-1] if own else EndpointError(f"Ray: {error}; nothing is lost: cure it and run again") from error
    finally:
        if keeper is not None:
            with contextlib.suppress(ray.exceptions.RayError):
                ray.get(keeper.shut.remote())
            ray.kill(keeper)
        ray.shutdown()
    return finish(pairs, number, fingerprint, progress, config, out)
