"""The interface of every kind of rollouts; whole ones, which are sampled in one step by the trainer's own decoder.

The decoder is the one that benchmarks and serves the judge; it reads a prompt once for all its rollouts on a process. The state
of rollouts in a checkpoint is one file per process, which any number of processes can read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from rewardlab.config import EngineConfig
from rewardlab.errors import CheckpointError
from rewardlab.metrics.running import Metric, Metrics
from rewardlab.models.families import Fields, prompt_batch, vision_token_ids
from rewardlab.models.processed_images import image_key
from rewardlab.rewards.rollout import Rollout, Row, Scored, Trajectory
from rewardlab.samplers.base import SamplingParams
from rewardlab.samplers.decode import HotToken, draw
from rewardlab.samplers.shared_prefix import group_numbers

Samples = tuple[list[list[int]], list[list[float]] | None]
Score = Callable[[Sequence[Rollout]], Scored]


@dataclass(frozen=True)
class Sampling:
    """The trainer's functions for a strategy. ``sample(prompt_ids, images, fields, rows)`` returns tokens and log-probs, one
    completion per prompt of at most ``max_new_tokens``; ``rows`` names the process's rollouts, and so their random numbers.
    ``all_processes(flag)``: whether a flag holds everywhere; ``ends``: tokens that end a turn; ``max_completion_length`` bounds
    a turn.
    """

    sample: Callable[[list[list[int]], Any, Fields, Sequence[int]], Samples]
    all_processes: Callable[[bool], bool]
    ends: frozenset[int]
    max_completion_length: int


@dataclass(frozen=True)
class Collected:
    """The scored rollouts of one process, and metrics."""

    rollouts: list[Rollout]
    metrics: dict[str, Metric]


class RolloutStrategy(Protocol):
    """Makes prompts into scored rollouts, for one process of one run. ``max_new_tokens``: of one call of the sampler; None: the
    whole completion. ``continues_rollouts``: rollouts of a batch may be unfinished and without a reward."""

    max_new_tokens: int | None
    continues_rollouts: bool

    def choose_rows(self, rows: list[Row]) -> list[Row]:
        """Return the rows to make rollouts of, as many as ``rows``, which TRL's data loader gave."""
        ...

    def complete(self, prompt_ids: list[list[int]], images: Any, fields: Fields, sampling: Sampling) -> list[Trajectory]:
        """Return one completion a prompt. ``images`` are those of each prompt, ``fields`` the model inputs made of them."""
        ...

    def collect(self, rollouts: list[Rollout], score: Score) -> Collected:
        """Return the rollouts with their rewards."""
        ...

    def state_dict(self) -> State:
        """Return what a resumed run needs to go on with the same rollouts; {} where that is nothing."""
        ...

    def load_state_dicts(self, states: Sequence[State]) -> None:
        """Go on where all processes of the run so far, of which there may have been more or fewer, have stopped."""
        ...


def as_metrics(metrics: Metrics, weight: float = 1.0) -> dict[str, Metric]:
    """Return plain numbers as means over ``weight`` things, metrics as they are."""
    return {name: value if isinstance(value, Metric) else Metric(float(value), weight) for name, value in metrics.items()}


class WholeRollouts:
    """Each prompt is completed and scored once."""

    max_new_tokens: int | None = None
    continues_rollouts = False

    def choose_rows(self, rows: list[Row]) -> list[Row]:
        return rows

    def complete(self, prompt_ids: list[list[int]], images: Any, fields: Fields, sampling: Sampling) -> list[Trajectory]:
        tokens, logprobs = sampling.sample(prompt_ids, images, fields, range(len(prompt_ids)))
        return [Trajectory(ids, None if logprobs is None else logprobs[n]) for n, ids in enumerate(tokens)]

    def collect(self, rollouts: list[Rollout], score: Score) -> Collected:
        scored = score(rollouts)
        return Collected(scored.attach(rollouts), as_metrics(scored.metrics))

    def state_dict(self) -> State:
        return {}

    def load_state_dicts(self, states: Sequence[State]) -> None:
        """Nothing is kept between steps."""


@dataclass(frozen=True)
class SamplingOptions:
    """``hot_token``: one early token is sampled hot (FIRE), and not trained on. ``batch_size``: completions decoded at a time;
    None: all. ``engine``: a ``vllm serve`` instead of the decoder. ``num_rollbacks`` of this run: each changes the samples."""

    hot_token: HotToken | None = None
    batch_size: int | None = None
    engine: EngineConfig | None = None
    num_rollbacks: int = 0
    orders_per_pair: int = 1


State = dict[str, Any]  # what a strategy, or dynamic sampling, goes on with
_FILE = "rollouts-{process}.pt"


def save_state(checkpoint: Path, state: State, process: int, num_processes: int) -> None:
    """Write the state of one of ``num_processes`` into a checkpoint folder, which is made."""
    checkpoint.mkdir(exist_ok=True)
    torch.save({**state, "num_processes": num_processes}, checkpoint / _FILE.format(process=process))


def load_states(checkpoint: Path) -> list[State]:
    """Return the states of all processes that wrote the checkpoint. Raise CheckpointError where one is missing."""
    paths = sorted(checkpoint.glob(_FILE.format(process="*")), key=lambda path: int(path.stem.rsplit("-", 1)[1]))
    states = [torch.load(path) for path in paths]
    if not states or len(states) != states[0]["num_processes"]:
        needed = states[0]["num_processes"] if states else "those"
        raise CheckpointError(
            f"{checkpoint}: it has the rollouts of only {len(states)} of {needed} processes; restore the missing "
            f"files ({_FILE.format(process='N')}), or delete the checkpoint to resume from the previous one"
        )
    return states


@dataclass(frozen=True)
class Prompts:
    """One prompt per rollout, with repetitions: token ids, images (None if no prompt has any), model inputs made of them, and
    the padding token."""

    ids: Sequence[list[int]]
    images: Any
    fields: Fields
    pad: int

    def numbers(self) -> tuple[list[int], list[int]]:
        """Return two numbers of each prompt, by first occurrence: one for its token ids and images, one for its images."""
        images = group_numbers([tuple(map(image_key, pictures or ())) for pictures in self.images or [()] * len(self.ids)])
        return group_numbers(list(zip(map(tuple, self.ids), images, strict=True))), images


def plan_slices(prompts: Sequence[int], images: Sequence[int], size: int) -> list[list[int]]:
    """Return rows to decode together: at most ``size``, in the fewest slices. ``prompts`` and ``images`` number what each row
    reads. Prompts with the same images stay together if that takes no more slices; else the rows of each prompt; else as many
    as fit. One more slice costs more than a prompt read twice.
    """
    rows = sorted(range(len(prompts)), key=lambda row: (images[row], prompts[row]))
    fewest = math.ceil(len(rows) / size)
    for unit in (images.__getitem__, prompts.__getitem__, int):
        slices = _pack([list(members) for _, members in groupby(rows, unit)], size)
        if len(slices) == fewest and max(map(len, slices), default=0) <= size:
            break
    return slices


def _pack(units: Sequence[list[int]], size: int) -> list[list[int]]:
    """Return the units in slices of at most ``size`` rows, each in the first that has room; a longer unit is a slice."""
    slices: list[list[int]] = []
    for unit in units:
        room = next((rows for rows in slices if len(rows) + len(unit) <= size), None)
        if room is None:
            slices.append(list(unit))
        else:
            room += unit
    return slices


def decode_rollouts(
    policy: Any,
    prompts: Prompts,
    uniforms_NT: Tensor,
    params: SamplingParams,
    *,
    ends: frozenset[int],
    batch_size: int | None = None,
    hot_token: HotToken | None = None,
) -> Samples:
    """Return one completion of each prompt, sampled by inverse CDF of its row of ``uniforms_NT``, at most ``batch_size`` at a
    time (None: all). In float32 samples depend neither on the slices nor on repetitions of a prompt. Equal prompts are read
    once, and so is the common beginning of prompts about the same images. Image tokens are never sampled.
    """
    by_prompt, by_image = prompts.numbers()
    tokens: list[list[int]] = [[] for _ in prompts.ids]
    logprobs: list[list[float]] = [[] for _ in prompts.ids]
    for rows in plan_slices(by_prompt, by_image, batch_size or len(prompts.ids)):
        repeats = [list(members) for _, members in groupby(rows, by_prompt.__getitem__)]
        leaders = [members[0] for members in repeats]
        batch = prompt_batch(prompts.ids, prompts.fields, leaders, prompts.pad)
        draws = draw(
            policy,
            {name: value.to(uniforms_NT.device) for name, value in batch.items()},
            num_draws=[len(members) for members in repeats],
            **params.fields,
            ends=ends,
            suppress=vision_token_ids(policy.config),
            hot=hot_token,
            groups=group_numbers([by_image[row] for row in leaders]),
            uniforms=uniforms_NT[rows],
        )
        for n, row in enumerate(rows):
            tokens[row], logprobs[row] = draws.tokens[n], draws.logprobs[n]
    return tokens, logprobs
