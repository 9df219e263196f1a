"""Rollouts that an engine draws while the policy trains on those before them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rewardlab.config import EngineConfig, RLConfig
from rewardlab.errors import EndpointError
from rewardlab.samplers.base import SamplingParams
from rewardlab.training.policy_gradient.rollouts import engine as ahead_module
from rewardlab.training.policy_gradient.rollouts.engine import AheadSampler, PlannedBatch, batches_from
from rewardlab.training.policy_gradient.rollouts.prompts import RolloutSampler
from rewardlab.types import Completion, FinishReason, Message
from tests.support import scaled_runs, vllm_stand_in
from tests.support.launching import train_on

pytestmark = pytest.mark.timeout(600)


def lines(run: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if "importance/gap" in row]


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REWARDLAB_VLLM", str(vllm_stand_in.program(tmp_path_factory.mktemp("program"))))


def changes(ahead: int) -> dict[str, Any]:
    return scaled_runs.ENGINE | {"engine": scaled_runs.ENGINE["engine"] | {"ahead": ahead}}


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize("ahead", [1, pytest.param(2, marks=pytest.mark.nightly)])
def test_a_batch_is_drawn_by_weights_that_are_older_by_no_more_than_is_allowed(
    ahead: int, tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of every batch the prompts are those foreseen; the first is drawn by the weights of now. Weights that are older are
    farther from the policy's, which is what the correction is told."""
    drawn_again: list[str] = []
    monkeypatch.setattr(ahead_module, "log_line", drawn_again.append)
    scaled_runs.run("rl", tiny_checkpoint, tmp_path / "run", **changes(ahead), data=scaled_runs.mixed())
    rows = lines(tmp_path / "run")
    stale = [row["rollouts/staleness"] for row in rows]
    assert len(stale) == 4
    assert stale[0] == 0
    assert max(stale) <= ahead
    assert not drawn_again
    assert rows[0]["importance/gap"] < 0.01
    assert any(row["importance/gap"] > 0.05 for row in rows if row["rollouts/staleness"])


@pytest.mark.nightly
@pytest.mark.usefixtures("server")
def test_two_processes_share_what_is_drawn_ahead(tiny_checkpoint: Path, tmp_path: Path) -> None:
    train_on(tiny_checkpoint, tmp_path, "rl+ahead:run")
    assert len(lines(tmp_path / "run")) == 4
    assert lines(tmp_path / "run")[0]["importance/gap"] < 0.01


@pytest.mark.nightly
@pytest.mark.usefixtures("server")
def test_a_killed_run_goes_on_and_draws_anew(tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn_again: list[str] = []
    monkeypatch.setattr(ahead_module, "log_line", drawn_again.append)
    scaled_runs.run("rl", tiny_checkpoint, tmp_path / "run", **changes(1), kill=True)
    scaled_runs.run("rl", tiny_checkpoint, tmp_path / "run", **changes(1))
    assert [row["step"] for row in lines(tmp_path / "run")] == [1, 2, 3, 4]
    assert lines(tmp_path / "run")[2]["rollouts/staleness"] == 0
    assert not drawn_again


def test_which_batches_come_next() -> None:
    """Those that the sampler will yield, through the ends of epochs, and none that no step is left for."""
    sampler = RolloutSampler(10, batch=4, group_size=2, repeats=6, seed=3)
    yielded: list[int] = []
    for _ in range(3):
        yielded += list(sampler)
    batches = [yielded[start : start + 8] for start in range(0, len(yielded), 8)][::6]
    assert [sampler.batch(n) for n in range(6)] == batches
    assert list(batches_from(sampler, 4, 100, 3, 2)) == [(2, 4), (3, 6), (4, 8)]
    assert list(batches_from(sampler, 4, 6, 3, 2)) == [(2, 4)]
    assert list(batches_from(sampler, 4, 7, 3, 2)) == [(2, 4), (3, 6)]


class Engine:
    """Draws the number of the weights that it has."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.written, self.weights, self.began_anew = 0, 0, False
        self.failing: list[Exception | None] = []
        self.loads, self.restarts = 0, True  # whether one that fails is started again by itself

    def write(self, model: int) -> None:
        self.written = model

    def load(self) -> None:
        self.weights, self.began_anew = self.written, False
        self.loads += 1

    def await_start(self) -> None:
        self.began_anew = self.restarts

    def complete(self, prompts: Sequence[tuple[Message, ...]], params: SamplingParams) -> list[Completion]:
        if self.failing and (error := self.failing.pop(0)):
            raise error
        return [Completion(prompt[0].text, FinishReason.STOP, 1, 7, (self.weights,), (-0.5,)) for prompt in prompts]

    def read(self, completions: Sequence[Completion], lengths: Sequence[int]) -> Any:
        return [c.text for c in completions], [c.token_ids[0] for c in completions]

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def sampler(monkeypatch: pytest.MonkeyPatch) -> AheadSampler:
    monkeypatch.setattr(ahead_module, "RolloutEngine", Engine)
    alone: Any = SimpleNamespace(is_main_process=True, num_processes=1, process_index=0, device="cpu", gather=lambda x: x)
    return AheadSampler(EngineConfig(ahead=1), None, Path("runs"), alone, excluded=())


def ask(sampler: AheadSampler, step: int, words: str | None = None, ahead: int = 1) -> Any:
    def chat(number: int) -> list[Any]:
        return [[{"role": "user", "content": f"batch {number}"}]]

    plan = [
        PlannedBatch(n, lambda n=n: ([n], chat(n)), SamplingParams(max_tokens=4, seed=n))  # type: ignore[misc]
        for n in range(step, step + ahead + 1)
    ]
    prompts = [[{"role": "user", "content": words}]] if words else chat(step)
    return sampler.sample(step, step, [words or step], prompts, [7], plan)


def test_prompts_that_were_not_foreseen_are_drawn_by_the_weights_of_now(
    sampler: AheadSampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted: list[str] = []
    monkeypatch.setattr(ahead_module, "log_line", noted.append)
    ask(sampler, 0)
    assert ask(sampler, 1, "other") == (["other"], [1])
    assert noted == ["the engine sampled other prompts than those of this step; it samples again"]
    assert ask(sampler, 2) == (["batch 2"], [2])
    sampler.close()


def test_a_server_that_begins_anew_draws_again(sampler: AheadSampler) -> None:
    """By weights that it was given; one that never answers ends the run."""
    ask(sampler, 0, ahead=0)
    engine: Any = sampler._engine
    engine.failing = [EndpointError("gone"), None]
    assert ask(sampler, 1, ahead=0) == (["batch 1"], [1])
    engine.failing = [EndpointError("gone")] * ahead_module.TRIES
    with pytest.raises(EndpointError, match="gone"):
        ask(sampler, 2, ahead=0)
    engine.failing, engine.restarts, before = [EndpointError("refused"), None], False, engine.loads
    ask(sampler, 3, ahead=0)
    assert engine.loads == before + 2  # for the step, and for one that lives and answers nobody: by that it is started again
    sampler.close()
    assert engine.closed
    assert sampler._thread is not None
    assert not sampler._thread.is_alive()  # it would hold the model of a run that begins anew


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"engine": {"ahead": 1}, "advantage": "grpo", "group_size": 2, "dynamic_sampling": "refill"},
            "chooses prompts by earlier rollouts",
        ),
        ({"engine": {"ahead": 3}}, "less than or equal to 2"),
    ],
)
def test_what_cannot_be_drawn_ahead(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        RLConfig(**change)
