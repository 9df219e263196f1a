"""What a run asks with and goes on from: its template, the seed of each chunk, and the last word on a row."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rewardlab.benchmarks import runner
from rewardlab.benchmarks.runner import run_bench
from rewardlab.benchmarks.settings import BenchSettings, bench_settings
from rewardlab.data.pairs import write_parquet
from rewardlab.errors import ConfigError
from rewardlab.judging.judge import GenerativeJudge
from rewardlab.prompts import load_template
from rewardlab.samplers.base import SamplingParams
from rewardlab.samplers.scripted import ScriptedSampler
from rewardlab.types import Choice, Completion, FinishReason, Message
from rewardlab.verdicts.parse import format_verdict


@pytest.fixture
def data(demo_pairs: Any, tmp_path: Path) -> Path:
    write_parquet(demo_pairs[0][:130], tmp_path / "pairs.parquet")
    return tmp_path / "pairs.parquet"


def bench(out: Path, data: Path, judge: str = "hf:x", **changes: Any) -> dict[str, Any]:
    values: dict[str, Any] = {"benchmark": "pairs", "data": data, "judge": judge, "controls": ()}
    return run_bench(bench_settings(**(values | changes)), out)[0].to_json()


def test_other_words_under_the_same_name_are_another_run(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log of one template is not continued with another, whose file was written anew."""
    words = tmp_path / "words.txt"

    def judge(settings: BenchSettings) -> GenerativeJudge:
        sampler = ScriptedSampler(lambda prompt, draw: format_verdict(Choice.FIRST, "x"))
        return GenerativeJudge(sampler, load_template(f"think_answer:{words}"))

    monkeypatch.setattr(runner, "open_any_judge", judge)
    for text in ("Which is better? {question} {first} {second}", "Which is worse? {question} {first} {second}"):
        words.write_text(text)
        load_template.cache_clear()  # as in another process
        if "worse" in text:
            with pytest.raises(ConfigError, match="differs in template"):
                bench(tmp_path / "out", data, template=f"think_answer:{words}", limit=4)
        else:
            bench(tmp_path / "out", data, template=f"think_answer:{words}", limit=4)


class SeedSampler(ScriptedSampler):
    """Keeps the seeds that it is asked with."""

    def __init__(self) -> None:
        super().__init__(lambda prompt, draw: format_verdict(Choice.FIRST, "x"))
        self.seeds: list[int] = []

    def sample(self, prompts: Sequence[tuple[Message, ...]], params: SamplingParams) -> list[list[Completion]]:
        if params.seed not in self.seeds:
            self.seeds.append(params.seed)
        return super().sample(prompts, params)


def test_each_chunk_has_a_seed_of_its_own(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the run's seed, the pass and the place: 130 pairs are three chunks of each pass; another run asks the same."""
    seeds = {}
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        sampler = SeedSampler()
        monkeypatch.setattr(runner, "open_any_judge", lambda _, s=sampler: GenerativeJudge(s, load_template("plain")))
        bench(tmp_path / name, data, controls=("greedy",), seed=seed)
        seeds[name] = sampler.seeds
    assert len(set(seeds["a"])) == len(seeds["a"]) == 6
    assert seeds["b"] == seeds["a"]
    assert not set(seeds["c"]) & set(seeds["a"])


def test_a_row_that_was_asked_again_counts_once(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the votes.jsonl of a run that was continued a row may stand twice: read again, its last entry is what counts."""
    asked = []

    def answer(prompt: tuple[Message, ...], draw: int) -> str | Completion:
        asked.append(draw)
        if len(asked) in (1, 5, 9):
            return Completion("", FinishReason.ERROR, error="HTTP 503")
        return format_verdict(Choice.FIRST, "x")

    monkeypatch.setattr(
        runner, "open_any_judge", lambda settings: GenerativeJudge(ScriptedSampler(answer), load_template("plain"))
    )
    first = bench(tmp_path / "out", data, limit=12)
    assert first["statuses"]["error"] == 3
    second = bench(tmp_path / "out", data, limit=12)
    monkeypatch.undo()
    rows = [json.loads(line)["row"] for line in (tmp_path / "out" / "votes.jsonl").read_text().splitlines()[1:]]
    assert len(rows) == 15 > len(set(rows)) == 12
    again = bench(tmp_path / "again", data, judge=f"replay:{tmp_path / 'out' / 'votes.jsonl'}", limit=12)
    same = ("accuracy", "statuses", "num_votes_total", "votes", "swap_consistency")
    assert {name: again[name] for name in same} == {name: second[name] for name in same}
    assert (again["votes"], again["num_votes_total"], again["statuses"]["ok"]) == (1, 24, 24)
