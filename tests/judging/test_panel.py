"""Panels of judges behind real servers: what they come to, who fails, and what a report says of the members."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

import rewardlab
from rewardlab.benchmarks.report import report_markdown, write_reports
from rewardlab.benchmarks.report_model import Report
from rewardlab.benchmarks.runner import run_bench
from rewardlab.benchmarks.settings import bench_settings
from rewardlab.cli import main
from rewardlab.data.pairs import write_jsonl, write_parquet
from rewardlab.errors import ConfigError, DataError, EndpointError
from rewardlab.judging.api import SyncJudge
from rewardlab.judging.engines import open_model_judge
from rewardlab.judging.judge import GenerativeJudge
from rewardlab.judging.panel import PanelJudge
from rewardlab.judging.spec import DEMO_JUDGE
from rewardlab.samplers.scripted import ScriptedSampler
from rewardlab.types import BOTH_ORDERS, Message, Outcome, PreferencePair
from tests.support.images import png
from tests.support.judge_servers import ANSWERS, PLAIN, judge_servers
from tests.support.scripted_judge import QUESTION
from tests.support.servers import running
from tests.support.shell import run_main

PAIRS = [PreferencePair(f"p{n}", QUESTION, (f"I say {n}.", f"I say {9 - n}."), int(n < 9 - n), (png(),)) for n in range(8)]
PLAIN_WORDS = "template=plain"
NAMES = ("greater", "first", "smaller", "mute", "down")


@pytest.fixture(scope="module")
def urls() -> Iterator[dict[str, str]]:
    with judge_servers(*NAMES) as addresses:
        yield dict(zip(NAMES, addresses, strict=True))


@pytest.mark.parametrize("other", ["first", "mute"])
def test_who_looks_decides(other: str, urls: dict[str, str]) -> None:
    """Two members that look beside one that names a place, or gives no verdict. By either rule."""
    members = [f"openai:judge@{urls['greater']}/v1", urls["greater"], urls[other]]
    for rule in ("panel", "pool"):
        judge = rewardlab.open_judge(f"{rule}:{','.join(members)}", template="plain")
        judge.check()
        results = judge.compare_many(PAIRS, votes=3)
        assert [result.winner for result in results] == [pair.preferred for pair in PAIRS]
        assert results[0].invalid == ({"no_verdict": 6} if other == "mute" else {})
        assert [vote.member for vote in results[0].votes] == [name for name in members for _ in range(6)]
        assert members[0] in results[0]._repr_html_()
        assert judge.rank(QUESTION, ["1", "3", "2"]).best == 1
        assert judge.rewards(QUESTION, ["1", "3", "2"])[1] == max(r for r in judge.rewards(QUESTION, ["1", "3", "2"]) if r)


def test_a_panel_is_greedy_where_all_members_are() -> None:
    """One that samples says something else when it is asked again, and so does the panel."""

    def member(name: str, temperature: float) -> GenerativeJudge:
        return GenerativeJudge(ScriptedSampler(ANSWERS["greater"], name), PLAIN, temperature=temperature)

    hot, cold = member("hot", 0.7), member("cold", 0.0)
    assert PanelJudge([cold, hot]).temperature == PanelJudge([hot, cold]).temperature == 0.7
    assert PanelJudge([cold]).temperature == PanelJudge([cold, hot]).greedy().temperature == 0.0


def test_one_member_is_that_member(urls: dict[str, str]) -> None:
    for name in NAMES:
        alone = open_model_judge(urls[name])
        panel = PanelJudge([open_model_judge(urls[name])])
        how: dict[str, Any] = {"orders": [BOTH_ORDERS] * len(PAIRS), "num_votes": 3, "seed": 1}
        mine, theirs = alone.compare_many(PAIRS, **how), panel.compare_many(PAIRS, **how)
        assert [(j.outcome, j.share_0) for j in mine] == [(j.outcome, j.share_0) for j in theirs]
        assert [[v.completion for v in j.votes] for j in mine] == [[v.completion for v in j.votes] for j in theirs]


def test_a_failing_member_is_counted_and_no_coin(urls: dict[str, str]) -> None:
    """It abstains, and one of two members is no majority; where all fail the call raises, in a server's words; a refused member
    ends everything."""
    result = rewardlab.open_judge(f"panel:{urls['greater']},{urls['down']}").compare(QUESTION, ["1", "2"])
    assert (result.outcome, result.share_0, result.winner) == (Outcome.NO_MAJORITY, 0.0, None)
    assert (result.invalid, result.failed) == ({"error": 2}, False)
    assert "too small" in result.votes[-1].error
    even = rewardlab.open_judge(f"panel:{urls['greater']},{urls['smaller']}").compare(QUESTION, ["1", "2"])
    assert (even.outcome, even.share_0) == (Outcome.TIE, 0.5)
    with pytest.raises(EndpointError, match=r"no vote was answered: .*too small"):
        rewardlab.open_judge(f"panel:{urls['down']},").compare(QUESTION, ["1", "2"])
    with pytest.raises(EndpointError, match="no response from a `rewardlab serve`"):
        rewardlab.open_judge(f"panel:{urls['greater']},http://127.0.0.1:9").check()


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("panel:,", "a panel needs members"),
        ("panel:{greater},{greater}", "named twice"),
        ("panel:{greater},{greater}/", "named twice"),
        ("panel:{greater},{greater}/v1", "named twice"),
        ("panel:openai:m@{greater}/v1,openai:m@{greater}/v1/", "named twice"),
        ("panel:demo,hf:{demo}", "named twice"),
        ("panel:{greater};pool:{first}", "not panels"),
        ("panel:{greater},baseline:first", "unknown judge"),
        ("verify:panel:{greater}", "unknown judge"),
    ],
)
def test_bad_panels(urls: dict[str, str], spec: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        rewardlab.open_judge(spec.format(**urls, demo=DEMO_JUDGE))


@pytest.mark.parametrize(
    "spec",
    [
        "panel:openai:m,openai:m@http://127.0.0.1:9/v1",
        "pool:openai:m@http://127.0.0.1:8/v1;openai:m@http://127.0.0.1:9/v1",
        "panel:openai:m@http://127.0.0.1:9/v1,http://127.0.0.1:9",
        "panel:http://127.0.0.1:9,demo",
    ],
)
def test_one_key_goes_to_one_host(spec: str) -> None:
    with pytest.raises(ConfigError, match=r"api_key is one key, .*Open each member with its own"):
        rewardlab.open_judge(spec, api_key="sk")


def test_a_served_member_gets_its_own_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """The key of the other members is not sent to it; a served judge alone takes the key that is given."""
    sent: list[str] = []

    async def answer(request: Request) -> JSONResponse:
        sent.append(request.headers.get("authorization", ""))
        return JSONResponse({"judge": "x", "judge_hash": "0", "template_hash": "y"})

    monkeypatch.setenv("OPENAI_API_KEY", "sk")
    monkeypatch.setenv("REWARDLAB_API_KEY", "mine")
    with running(Starlette(routes=[Route("/{path:path}", answer)])) as url:
        rewardlab.open_judge(f"panel:openai:m,{url}").engine.members[1].check()  # type: ignore[attr-defined]
        assert set(sent) == {"Bearer mine"}
        sent.clear()
        rewardlab.open_judge(url, api_key="given").check()
        assert set(sent) == {"Bearer given"}
    rewardlab.open_judge("panel:openai:one@http://127.0.0.1:9/v1,openai:other@http://127.0.0.1:9/v1", api_key="sk")


def test_report_tells_of_the_members(urls: dict[str, str], tmp_path: Path) -> None:
    """Each member's own accuracy, agreement, abstentions and failures; how often they differ; it reads back, and resumes."""
    write_jsonl(PAIRS, tmp_path / "pairs.jsonl")
    spec = "panel:" + ";".join(urls[name] for name in ("greater", "smaller", "first", "down"))
    how: dict[str, Any] = {"data": tmp_path / "pairs.jsonl", "judge": spec}
    report = rewardlab.benchmark("pairs", **how, out=tmp_path / "run", votes=1)
    assert report.panel is not None
    assert report.panel.disagreement == 1.0
    members = {member.judge: member for member in report.panel.members}
    assert [members[urls[name]].accuracy.accuracy for name in ("greater", "smaller", "first")] == [1.0, 0.0, 0.0]
    assert [members[urls[name]].agreement for name in ("greater", "down")] == [None, None]  # the panel is even
    assert (members[urls["down"]].abstained, members[urls["down"]].failed_votes) == (8, 16)
    assert members[urls["first"]].abstained == 0  # it found a tie each time
    assert report.scores.decision is not None
    assert report.scores.decision.accuracy == 0.0
    assert report.scores.k_curve == ()
    assert Report.from_json(json.loads((tmp_path / "run" / "report.json").read_text())) == report
    text = report_markdown(report)
    assert "A panel of 4 by majority; members name different winners in 100.0 % of the pairs on which two or more" in text
    # The panel's row and its members' are by one rule: of four votes in an order two are no majority.
    assert re.search(r"\| the panel \| 0\.0 \[[^|]*\| 0\.0 \[", text)
    assert re.search(rf"\| {urls['first']} \| 50\.0 \[[^|]*\| 0\.0 \[", text)
    assert f"| {urls['greater']} | 100.0 [" in text
    assert any("16 votes failed" in note for note in report.notes)
    again = rewardlab.benchmark("pairs", **how, out=tmp_path / "run", votes=1)
    assert again.scores == report.scores
    with pytest.raises(DataError, match="the votes of a panel"):
        run_bench(bench_settings("pairs", how["data"], f"replay:{tmp_path / 'run' / 'votes.jsonl'}"), tmp_path / "replay")
    with pytest.raises(ConfigError, match="decides by its members"):
        rewardlab.benchmark("pairs", **how, out=tmp_path / "stop", votes=3, stop_error=0.05)
    with pytest.raises(ConfigError, match="decides by a rule of its own"):
        rewardlab.benchmark("pairs", **{**how, "judge": urls["first"]}, out=tmp_path / "stop", votes=3, stop_error=0.05)


def test_consistency_is_of_members_with_a_voice() -> None:
    """One that looks, in both orders alike; two that are read in one order only and name the other response there."""

    def once(prompt: tuple[Message, ...], draw: int) -> str:
        return str(ANSWERS["first" if "Response 1: 1" in prompt[0].text else "mute"](prompt, draw))

    samplers = [ScriptedSampler(ANSWERS["greater"], "looks"), ScriptedSampler(once, "b"), ScriptedSampler(once, "c")]
    panel = SyncJudge(PanelJudge([GenerativeJudge(sampler, PLAIN) for sampler in samplers]))
    result = panel.compare(QUESTION, ["1", "2"])
    assert (result.winner, result.share_0, result.swap_consistent) == (None, None, True)  # one of three has a voice
    assert SyncJudge(PanelJudge(panel.engine.members[1:])).compare(QUESTION, ["1", "2"]).swap_consistent is None  # type: ignore[attr-defined]


def test_commands_take_panels(urls: dict[str, str], tmp_path: Path) -> None:
    """bench run with its pages, and judge, which says who cast each vote."""
    write_parquet(PAIRS, tmp_path / "pairs.parquet")
    spec = f"pool:openai:judge@{urls['greater']}/v1,{urls['greater']},{urls['mute']}"
    out = tmp_path / "run"
    done = run_main(
        main, "bench", "run", "pairs", "--data", tmp_path / "pairs.parquet", "--judge", spec, "--out", out, PLAIN_WORDS
    )
    assert done.returncode == 0, done.stderr
    assert "panel by log-odds, over both orders | 100.0 [" in done.stdout
    assert f"| {urls['mute']} | 0.0 [" in done.stdout
    assert "<h2>Panel</h2>" in (out / "report.html").read_text()
    done = run_main(main, "judge", "--judge", spec, "--question", QUESTION, "--first", "1", "--second", "2", PLAIN_WORDS)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(f"{urls['greater']}: <think>") == 2
    assert "the second response is better" in done.stdout
    assert run_main(main, "bench", "check", out).returncode == 0


def test_pages_of_a_panel(urls: dict[str, str], tmp_path: Path) -> None:
    """The page counts voices, not votes."""
    write_jsonl(PAIRS, tmp_path / "pairs.jsonl")
    settings = bench_settings("pairs", tmp_path / "pairs.jsonl", f"panel:{urls['greater']},{urls['smaller']}", controls=())
    report, rows = run_bench(settings, tmp_path / "run")
    write_reports(report, rows, tmp_path / "run")
    assert "A panel of 2 by majority" in (tmp_path / "run" / "report.html").read_text()
