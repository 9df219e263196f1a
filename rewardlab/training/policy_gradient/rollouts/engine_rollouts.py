"""A trainer's rollouts from a ``vllm serve`` of its own: by the newest weights, or drawn ahead (``engine.ahead``)."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from trl.data_utils import prepare_multimodal_messages

from rewardlab.config import EngineConfig
from rewardlab.rewards.rollout import Row
from rewardlab.samplers.base import SamplingParams
from rewardlab.training.policy_gradient.rollouts.ahead import AheadSampler, PlannedBatch, batches_from
from rewardlab.training.policy_gradient.rollouts.engine import EngineSampler
from rewardlab.training.run.process_group import Processes


def keys_of(rows: Sequence[Row]) -> list[Hashable]:
    """Return what tells the prompts of rows from all others."""
    return [(row["pair_id"], row["order"]) for row in rows]


def chats_of(rows: Sequence[Row]) -> list[Any]:
    """Return the prompts of rows with their images, which the rows then hold no longer."""
    return [prepare_multimodal_messages(row["prompt"], images=row.pop("images")) for row in rows]


class EngineRollouts:
    """Samples for ``trainer``, a PolicyTrainer, which says by ``prompts`` and ``keys`` what it is about to sample from.
    ``read_rows`` makes of rows of its dataset what is sampled from."""

    def __init__(
        self, trainer: Any, config: EngineConfig, num_rollbacks: int, read_rows: Callable[[Sequence[Row]], list[Row]]
    ) -> None:
        self._trainer, self._config, self._num_rollbacks, self._read_rows = trainer, config, num_rollbacks, read_rows
        self._sampler: EngineSampler | AheadSampler | None = None
        self.prompts: list[Any] = []
        self.keys: list[Hashable] = []

    def sample(self, lengths: list[int]) -> tuple[list[list[int]], list[list[float]]]:
        """Return tokens and log-probs of one completion of each prompt, which are ``lengths`` tokens long."""
        trainer, step = self._trainer, self._trainer.state.global_step
        if self._sampler is None:
            kind = AheadSampler if self._config.ahead else EngineSampler
            out, excluded = Path(trainer.args.output_dir), trainer.kept_elsewhere
            self._sampler = kind(self._config, trainer.processing_class, out, trainer.accelerator, excluded=excluded)
        if isinstance(self._sampler, EngineSampler):
            params = self._params(*trainer.draw_key(), trainer.accelerator.process_index)
            return self._sampler.sample(trainer.model_wrapped, step, self.prompts, lengths, params)
        return self._sampler.sample(trainer.model_wrapped, step, self.keys, self.prompts, lengths, self._plan())

    @property
    def metrics(self) -> dict[str, float]:
        """Of the last batch drawn ahead: by how many optimizer steps its weights were older than the policy, and how long it
        was waited for."""
        return self._sampler.metrics if isinstance(self._sampler, AheadSampler) else {}

    def _params(self, *key: int) -> SamplingParams:
        trainer, seed = self._trainer, np.random.SeedSequence(key).generate_state(1)[0]
        return SamplingParams(1, trainer.temperature, trainer.top_p, trainer.max_new_tokens, int(seed >> 1))

    def _plan(self) -> list[PlannedBatch]:
        """Return the rollout batch of now, and those that may be drawn already."""
        trainer, local = self._trainer, Processes(self._trainer.accelerator).local(len(self.keys))

        def read(number: int) -> tuple[list[Hashable], list[Any]]:
            rows = self._read_rows([dict(trainer.train_dataset[n]) for n in trainer.rollout_sampler.batch(number)[local]])
            return keys_of(rows), chats_of(rows)

        now = (trainer.state.global_step, trainer.state.max_steps, trainer.args.gradient_accumulation_steps)
        numbers = batches_from(trainer.rollout_sampler, *now, self._config.ahead)
        seed = (trainer.args.seed, self._num_rollbacks)
        return [PlannedBatch(number, partial(read, number), self._params(*seed, step, 0)) for number, step in numbers]

    def close(self) -> None:
        """End the server, if there is one."""
        if self._sampler is not None:
            self._sampler.close()
