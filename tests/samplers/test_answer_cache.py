"""An answer is paid for once: what is asked again in the very same way is not sent, and nothing else is taken for it."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rewardlab.benchmarks.report import facts
from rewardlab.benchmarks.report_model import Report
from rewardlab.benchmarks.runner import run_bench
from rewardlab.benchmarks.settings import bench_settings
from rewardlab.cli import main
from rewardlab.config.data import Budget, Prices
from rewardlab.config.judge import QueryConfig
from rewardlab.data.pairs import write_parquet
from rewardlab.errors import ConfigError, DataError, EndpointError
from rewardlab.judging.engines import open_model_judge
from rewardlab.samplers.base import EngineOptions, SamplingParams, StreamingSampler, prompt_seed
from rewardlab.samplers.openai_api import FILE, AnswerCache, answer_key, open_sampler
from rewardlab.types import Completion, FinishReason, Message, Part
from tests.support.openai_server import ChatServer, chat_server
from tests.support.shell import run_main

NUMBER = 6
ALL = 2 * 3 * NUMBER  # votes of a run


@pytest.fixture
def data(demo_pairs: Any, tmp_path: Path) -> Path:
    write_parquet(demo_pairs[0][:NUMBER], tmp_path / "pairs.parquet")
    return tmp_path / "pairs.parquet"


def bench(url: str, data: Path, out: Path, **changes: Any) -> Report:
    values: dict[str, Any] = {"votes": 3, "controls": (), "cache": data.parent / "cache", **changes}
    return run_bench(bench_settings("pairs", data, f"openai:m@{url}", **values), out)[0]


def test_a_second_run_asks_nobody(data: Path, tmp_path: Path) -> None:
    """In another folder: the same report, but for the cost and the time, which say so; a finished run as well as one read
    again."""
    server = ChatServer(by_seed=True, delay_s=0.02)
    with chat_server(server) as url:
        first = bench(url, data, tmp_path / "a", controls=("blank",))
        asked = len(server.bodies)
        assert asked == ALL + 2 * NUMBER
        for _ in range(2):
            second = bench(url, data, tmp_path / "b", controls=("blank",))
            assert len(server.bodies) == asked
            assert ("cached", f"{ALL} of {ALL} votes") in facts(second)
            assert (second.seconds_per_vote, second.cached_votes) == (None, ALL)
            assert second.cost is not None
            assert second.cost.requests == 0
        assert not any(name == "cached" for name, _ in facts(first))
        more = bench(url, data, tmp_path / "c", votes=4)
        assert (len(server.bodies) - asked, more.cached_votes) == (2 * NUMBER, ALL)
        assert more.seconds_per_vote is not None
        assert more.seconds_per_vote > 0.0005  # 32 at a time take 20 ms
    same = {"cost": None, "cached_votes": 0, "seconds_per_vote": None}
    assert replace(second, **same) == replace(first, **same)


def test_another_question_is_asked(tmp_path: Path) -> None:
    """With another prompt, seed, field of the request, address or model; single draws and those of a call are the same ones."""
    prompt, other = ((Message("user", (Part(text=text),)),) for text in "ab")
    sampling = SamplingParams(num_samples=2, temperature=0.7, seed=3)

    def num_asked(how: SamplingParams = sampling, *, model: str = "m", **options: Any) -> int:
        before = len(server.bodies)
        target = f"{model}@{options.pop('at', url)}"
        sampler = open_sampler(target, EngineOptions(QueryConfig(**options, cache=tmp_path)))
        [drawn] = sampler.sample([asked], how)
        assert [completion.text for completion in drawn] == [server.verdict({"seed": seed}) for seed in seeds(how)]
        return len(server.bodies) - before

    def seeds(how: SamplingParams) -> list[int]:
        return [prompt_seed(how.seed, asked) + n for n in range(how.num_samples)]

    server, asked = ChatServer(by_seed=True), prompt
    with chat_server(server) as url, chat_server(server) as elsewhere:
        assert [num_asked(), num_asked(), num_asked(replace(sampling, num_samples=3))] == [2, 0, 1]
        for change in ({"temperature": 0.5}, {"top_p": 0.9}, {"max_tokens": 99}, {"seed": 10**6}):
            assert num_asked(replace(sampling, **change)) == 2
        for options in ({"body": {"a": 1}}, {"reasoning_effort": "low"}, {"max_tokens_field": "max_completion_tokens"}):
            assert num_asked(**options) == 2
        assert [num_asked(model="n"), num_asked(at=elsewhere), num_asked(concurrency=1)] == [2, 2, 0]
        asked = other
        assert num_asked() == 2
        sampler = open_sampler(f"m@{url}", EngineOptions(QueryConfig.model_validate({"cache": tmp_path})))
        assert isinstance(sampler, StreamingSampler)
        before = len(server.bodies)
        each = [draw for batch in sampler.sample_each([(other, seed) for seed in seeds(sampling)], sampling) for draw in batch]
        assert [completion.from_cache for _, completion in each] == [True, True]
        assert len(server.bodies) == before


def test_failures_are_not_kept(data: Path, tmp_path: Path) -> None:
    """Nor do kept answers make an endpoint that refuses look as if it answered, nor cost any of a budget."""
    server = ChatServer(by_seed=True, refuse=lambda body, number: (400, "no") if number in (5, 6) else None)
    prices, budget = Prices(prompt=1.0, completion=1.0), Budget(usd=None, tokens=3_500)
    with chat_server(server) as url:
        bench(url, data, tmp_path / "a", max_failed=1.0)
        assert len(server.bodies) == ALL
        with pytest.raises(EndpointError, match="the budget is spent: 34 of 48 votes"):
            bench(url, data, tmp_path / "b", votes=4, prices=prices, budget=Budget(usd=None, tokens=220), max_tokens=1024)
        again = bench(url, data, tmp_path / "b", votes=4, prices=prices, budget=budget)
        assert (again.failure, again.cached_votes) == ("", ALL - 2)
        server.refuse = lambda body, number: (401, "no key")
        with pytest.raises(EndpointError, match="20 requests in a row failed"):
            bench(url, data, tmp_path / "c", votes=6, concurrency=1)
    assert len(server.bodies) <= ALL + 14 + 24


def test_what_is_kept(tmp_path: Path) -> None:
    """An answer as it was, with what it was asked without; none that failed, or was cut off before any text."""
    prompt = (Message("user", (Part(text="q\ud800"), Part(image=b"png"))),)
    key = answer_key("openai:m", prompt, {"seed": 1})
    assert key != answer_key("openai:m", (Message("user", (Part(text="q\ud800"), Part(image=b"gnp"))),), {"seed": 1})
    assert key != answer_key("openai:m", (*prompt, *prompt), {"seed": 1})
    cache = AnswerCache(tmp_path / "new" / "cache")
    assert cache.find(key) is None
    for bad in (
        Completion("", FinishReason.ERROR, error="x"),
        Completion("", FinishReason.TIMEOUT),
        Completion("", FinishReason.LENGTH, 9),
    ):
        cache.keep(key, bad, frozenset())
        assert cache.find(key) is None
    answer = Completion("yes", FinishReason.LENGTH, 3, 7, num_cached_tokens=2)
    cache.keep(key, answer, frozenset({"seed"}))
    assert AnswerCache(tmp_path / "new" / "cache").find(key) == (replace(answer, from_cache=True), {"seed"})


def test_what_was_left_out_is_said(data: Path, tmp_path: Path) -> None:
    """Also by a run that asked nobody."""
    refuse = lambda body, number: (400, "temperature: unsupported parameter") if "temperature" in body else None  # noqa: E731
    with chat_server(ChatServer(by_seed=True, refuse=refuse)) as url:
        for out in ("a", "b"):
            report = bench(url, data, tmp_path / out, temperature=0.5)
            assert report.temperature is None
            assert any("asked without temperature" in note for note in report.notes)
    assert report.cached_votes == ALL


def test_nobody_needs_to_answer_what_is_kept(data: Path, tmp_path: Path) -> None:
    """With the endpoint gone a run answered by the cache ends as before; one draw that is not in it, and it is missed."""
    with chat_server(ChatServer(by_seed=True)) as url:
        first = bench(url, data, tmp_path / "a")
    again = bench(url, data, tmp_path / "b")
    assert (again.scores, again.cached_votes) == (first.scores, ALL)
    with pytest.raises(EndpointError, match=r"no response from an OpenAI-compatible endpoint.*is the server running"):
        bench(url, data, tmp_path / "c", seed=1)
    sampler = open_sampler(f"m@{url}", EngineOptions(QueryConfig.model_validate({"cache": tmp_path / "none"})))
    sampler.check()
    with pytest.raises(EndpointError, match="is the server running"):
        sampler.sample([(Message("user", (Part("Hello"),)),)], SamplingParams(2))


@pytest.mark.parametrize("judge", ["demo", "http://127.0.0.1:9", "panel:demo,http://127.0.0.1:9", "baseline:first"])
def test_only_draws_of_their_own_are_kept(judge: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sentence for who asks for it; what the environment names concerns endpoints alone."""
    with pytest.raises(ConfigError, match=r"cache would have no effect on this judge; leave these out"):
        run_bench(bench_settings("pairs", data, judge, cache=tmp_path / "cache"), tmp_path / "out")
    monkeypatch.setenv("REWARDLAB_CACHE", str(tmp_path / "cache"))
    if judge == "baseline:first":
        ended = run_main(main, "bench", "run", "pairs", "--data", data, "--judge", judge, "--out", tmp_path / "out")
        assert ended.returncode == 0, ended.stderr
        assert not (tmp_path / "cache").exists()


def test_damage_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"no database, but long enough to be looked at as one " * 20)
    with pytest.raises(DataError, match=r"no cache of answers \(file is not a database\); name another folder"):
        open_model_judge("openai:m@http://127.0.0.1:9/v1", cache=tmp_path)


@pytest.mark.nightly
def test_from_the_command_line(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`bench run`, `suite` and `rank`, by option and by the environment; of a panel each endpoint's answers."""
    server = ChatServer(by_seed=True)
    row = {"subset": "Math", "num_correct": 1, "num_incorrect": 3, "chosen": ["good"], "rejected": ["b", "c", "d"]}
    (tmp_path / "rb2.jsonl").write_text("\n".join(json.dumps({**row, "id": str(n), "prompt": f"Q{n}"}) for n in range(4)))
    (tmp_path / "suite.yaml").write_text(f"title: t\nbenchmarks: [{{benchmark: pairs, data: {data.name}, controls: []}}]\n")
    with chat_server(server) as one, chat_server(server) as two:
        judge = ["--judge", f"panel:openai:m@{one},openai:m@{two}", "--out"]
        single = ["--judge", f"openai:m@{one}", "--out"]
        commands: list[tuple[list[Any], str, list[Any]]] = [
            (["bench", "run", "pairs", "--controls", "", "--data", data], "24 of 24 votes", judge),
            (["bench", "suite", tmp_path / "suite.yaml", "--root", tmp_path], "", judge),
            (["bench", "run", "rewardbench2:choice", "--data", tmp_path / "rb2.jsonl"], "cached: 16 of 16 votes", single),
            (["rank", tmp_path / "rb2.jsonl", "--plan", "circular"], "cached: 32 of 32 votes", single),
        ]
        asked = 0
        for number, (command, said, how) in enumerate(commands):
            for part in ("first", "second"):
                out = tmp_path / f"out{number}" / part
                monkeypatch.setenv("REWARDLAB_CACHE", str(tmp_path / "of environment") if part == "second" else "")
                option = [f"cache={tmp_path / 'of environment'}"] if part == "first" else []
                ended = run_main(main, *command, *how, out, *option)
                assert ended.returncode in (0, 1), ended.stderr
                asked, before = len(server.bodies), asked
            assert asked == before > 0
            assert said in ended.stdout


def test_draws_without_a_seed_of_their_own_are_different_answers(data: Path, tmp_path: Path) -> None:
    """Where the body leaves the seed out, as some endpoints want it: no draw is taken for another."""
    server = ChatServer()
    with chat_server(server) as url:
        for out in ("a", "b"):
            report = bench(url, data, tmp_path / out, body={"seed": None}, concurrency=1)
            assert len(server.bodies) == ALL
    assert not any("seed" in body for body in server.bodies)
    assert report.cached_votes == ALL


def test_a_file_that_another_process_holds_costs_no_answer(tmp_path: Path) -> None:
    """It is waited for once, and not long; what came is used all the same."""
    cache, completion = AnswerCache(tmp_path), Completion("1", FinishReason.STOP, 1)
    with sqlite3.connect(tmp_path / FILE, isolation_level=None) as other:
        other.execute("BEGIN IMMEDIATE")
        for n in range(50):
            cache.keep(b"%d" % n, completion, frozenset())
        other.execute("ROLLBACK")
    assert cache.find(b"0") is None


def test_an_answer_without_text_is_asked_for_again(tmp_path: Path) -> None:
    cache = AnswerCache(tmp_path)
    cache.keep(b"empty", Completion(" ", FinishReason.STOP, 1), frozenset())
    assert cache.find(b"empty") is None
