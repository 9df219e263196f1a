"""Judges that rate, or order whole lists: pairs, ranks, rewards and the endpoint from one judgment of all responses."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

import rewardlab
from rewardlab import ConfigError, DataError, SyncJudge
from rewardlab.benchmarks.runner import run_bench
from rewardlab.benchmarks.settings import bench_settings
from rewardlab.data.rows import from_row, to_row
from rewardlab.judging.best_of_n import run_ranking
from rewardlab.judging.engines import judge_kind
from rewardlab.judging.judge import GenerativeJudge
from rewardlab.judging.lists import ListJudge, matches_of
from rewardlab.judging.spec import judge_config
from rewardlab.prompts import build_messages, load_template, own_template, reading_format, require_pairs
from rewardlab.samplers.base import SamplingParams
from rewardlab.samplers.scripted import ScriptedSampler
from rewardlab.serving.app import create_app
from rewardlab.serving.service import ServerOptions
from rewardlab.types import BOTH_ORDERS, Candidates, Completion, FinishReason, Message, Order, Outcome, PreferencePair
from rewardlab.verdicts.lists import LIST_FORMATS, write_list
from tests.support.images import png
from tests.support.scripted_judge import QUESTION, quality
from tests.support.servers import running

RESPONSES = ["I say 3.", "I say 1.", "I say 9.", "I say 5."]
ASKED: list[str] = []


def by_number(list_format: str) -> Any:
    def answer(prompt: tuple[Message, ...], draw: int) -> str | Completion:
        ASKED.append(prompt[0].text)
        if "down" in prompt[0].text:
            return Completion("", FinishReason.ERROR, error="HTTP 503")
        shown = re.findall(r"I say +\d+\.", prompt[0].text)
        return write_list(list_format, [quality(text) for text in shown], "By their numbers.")

    return answer


def judge(list_format: str) -> GenerativeJudge:
    template = load_template(list_format)
    return judge_kind(template)(ScriptedSampler(by_number(list_format)), template)


@pytest.fixture(scope="module", params=["rating", "ordering", "best"])
def list_format(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def server(list_format: str) -> Iterator[str]:
    with running(create_app(judge(list_format), ServerOptions())) as url:
        yield url


@pytest.mark.parametrize("door", ["here", "served"])
def test_pairs(door: str, list_format: str, server: str) -> None:
    asked = SyncJudge(judge(list_format)) if door == "here" else rewardlab.open_judge(server)
    result = asked.compare(QUESTION, RESPONSES[:2], votes=2)
    assert (result.winner, result.share, result.swap_consistent, len(result.votes)) == (0, 1, True, 4)
    even = asked.compare(QUESTION, ["I say 2.", "I say  2."])  # the best is the one shown first
    assert even.outcome is (Outcome.TIE if list_format == "best" else Outcome.NO_VALID_VOTE)
    assert {vote.status for vote in even.votes} == {"ok" if list_format == "best" else "tie"}


def test_one_judgment_of_a_list_holds_every_match(list_format: str) -> None:
    """A list is asked once in each order, a rating once for each response and order; rewards follow the numbers."""
    ASKED.clear()
    rewards = SyncJudge(judge(list_format)).rewards(QUESTION, RESPONSES, strategy="whole")
    assert len(ASKED) == (8 if list_format == "rating" else 2)
    expected = [-1 / 3, -1 / 3, 1, -1 / 3] if list_format == "best" else [-1 / 3, -1, 1, 1 / 3]  # equal scores are half a win
    assert rewards == pytest.approx(expected)
    ranking = SyncJudge(judge(list_format)).rank(QUESTION, RESPONSES, plan="whole")
    assert ranking.best == 2
    assert list_format == "best" or ranking.tiers == ((2,), (3,), (0,), (1,))


def test_the_endpoint(list_format: str, server: str) -> None:
    body = {"question": QUESTION, "responses": RESPONSES, "strategy": "whole"}
    answer = httpx.post(f"{server}/v1/rewards", json=body).raise_for_status().json()
    assert answer["rewards"][2] == 1
    assert answer["tiers"][0] == [2]
    assert len(answer["matches"]) == 6
    assert answer["num_failed"] == 0
    sequential = httpx.post(f"{server}/v1/rewards", json=body | {"policy": "sequential", "votes": 4})
    assert (sequential.status_code, "the policy" in sequential.text) == (422, True)
    down = httpx.post(f"{server}/v1/rewards", json=body | {"question": "down?"})
    assert down.status_code == 503


def test_what_whole_lists_do_not_take() -> None:
    """Refused before anything is asked: judges of pairs, more responses than letters, and an error."""

    def never(prompt: tuple[Message, ...], draw: int) -> str:
        raise AssertionError("asked")

    pairs = SyncJudge(GenerativeJudge(ScriptedSampler(never), load_template("plain")))
    lists = SyncJudge(ListJudge(ScriptedSampler(never), load_template("ordering")))
    whole: dict[str, Any] = {"strategy": "whole"}
    with pytest.raises(ConfigError, match="whole lists need a judge of its own with one of the templates rating, "):
        pairs.rewards(QUESTION, RESPONSES, **whole)
    with pytest.raises(ConfigError, match="whole lists need a judge of its own"):
        pairs.rank(QUESTION, RESPONSES, plan="whole")
    with pytest.raises(ConfigError, match="27 responses in one list; expected at most 26"):
        lists.rewards(QUESTION, ["I say 1."] * 27, **whole)
    with pytest.raises(ConfigError, match="strategy whole has one of a list"):
        lists.rewards(QUESTION, RESPONSES, error=0.1, **whole)


def test_a_place_earns_nothing() -> None:
    """A judge that always writes one order of letters has the reverse of it under the other order, so all are equal."""
    first = ListJudge(ScriptedSampler(lambda prompt, draw: "[[A > B > C > D]]"), load_template("ordering"))
    assert SyncJudge(first).rewards(QUESTION, RESPONSES, strategy="whole") == [0, 0, 0, 0]


def test_no_rating_is_two_votes() -> None:
    """Orders and rounds of votes have draws of their own: the prompts are the same, so the seeds must differ."""
    seeds: list[int] = []

    class Seeded(ScriptedSampler):
        def sample(self, prompts: Sequence[tuple[Message, ...]], params: SamplingParams) -> list[list[Completion]]:
            seeds.extend(params.seed + draw for draw in range(params.num_samples))
            return super().sample(prompts, params)

    rater = ListJudge(Seeded(lambda prompt, draw: "7"), load_template("rating"))
    pair = PreferencePair("p", "Q?", ("a", "b"), None)
    for turn in range(3):
        for orders in (BOTH_ORDERS, (Order.SWAPPED,)):
            before = len(seeds)
            judged = rater.compare_many([pair], orders=[orders], num_votes=2, seed=2 * turn)[0]
            assert [vote.order for vote in judged.votes] == [order for order in orders for _ in range(2)]
            if orders != BOTH_ORDERS:
                assert seeds[before:] == seeds[before - 2 : before]  # whatever was asked beside it
                del seeds[before:]
    assert len({*seeds}) == len(seeds) == 12
    assert {vote.verdict.status.value for vote in judged.votes} == {"tie"}


def test_recorded_votes_are_of_pairs() -> None:
    with pytest.raises(ConfigError, match="recorded votes are read as verdicts on pairs"):
        reading_format("rating")
    with pytest.raises(ConfigError, match="rates responses or orders a list, and rl takes verdicts on pairs"):
        require_pairs(load_template("best"), "rl")
    with pytest.raises(ConfigError, match="single asks for no judgment, and rl needs one"):
        require_pairs(load_template("single"), "rl")
    with pytest.raises(ConfigError, match="answer asks for no judgment, and a judge needs one"):
        judge_kind(load_template("answer"))


def test_ranked_files_resume(list_format: str, tmp_path: Path) -> None:
    """`rewardlab rank --plan whole`: from its log, with nothing asked again."""
    prompts = [Candidates(str(n), f"{QUESTION} {n}", tuple(RESPONSES), best=(2,)) for n in range(3)]
    how: dict[str, Any] = {"plan": "whole", "budget": None, "num_votes": 1, "seed": 0}
    report = run_ranking(judge(list_format), prompts, tmp_path, **how)
    assert report["best_found"]["accuracy"] == 1
    ASKED.clear()
    assert run_ranking(judge(list_format), prompts, tmp_path, **how)["best_found"] == report["best_found"]
    assert ASKED == []


def test_a_benchmark_of_pairs(list_format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"question": f"Q{n}?", "responses": [f"I say {n + 2}.", "I say 1."], "preferred": 0} for n in range(8)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.setattr("rewardlab.benchmarks.runner.open_any_judge", lambda settings: judge(list_format))
    config = judge_config("hf:scripted", template=list_format)
    report, _ = run_bench(bench_settings("pairs", tmp_path / "pairs.jsonl", config, controls=()), tmp_path / "out")
    assert report.scores.accuracy.micro == 1
    assert report.verdict_format == list_format
    assert report.revision is None


def test_failures_are_statuses(list_format: str) -> None:
    pair = PreferencePair("p", "down?", ("I say 3.", "I say 1."), None, others=("I say 2.",))
    judged = judge(list_format).compare_many([pair], orders=[BOTH_ORDERS], num_votes=2, seed=0)[0]
    matches = matches_of(pair, judged, list_format)
    assert [match for match, _ in matches] == [(0, 1), (0, 2), (1, 2)]
    assert {vote.verdict.status.value for _, of in matches for vote in of.votes} == {"error"}
    assert {of.outcome for _, of in matches} == {Outcome.NO_VALID_VOTE}


def test_places() -> None:
    """The places are drawn, the other order is the reverse, and a swapped pair is shown alike."""
    pair = PreferencePair("p", "Q?", ("a", "b"), 0, others=("c", "d", "e"))
    given, swapped = pair.places(Order.GIVEN), pair.places(Order.SWAPPED)
    assert sorted(given) == sorted(swapped) == [0, 1, 2, 3, 4]
    assert list(reversed(given)) == list(swapped)
    assert given.index(0) < given.index(1)
    texts = [pair.listed[n][0] for n in given]
    other = pair.swap()
    assert [other.listed[n][0] for n in other.places(Order.SWAPPED)] == texts
    ends = {replace(pair, question=str(n)).places(order)[0] for n in range(200) for order in BOTH_ORDERS}
    assert ends == {0, 1, 2, 3, 4}
    assert from_row(to_row(pair), index=0).others == pair.others


def test_prompts_of_lists() -> None:
    """Every response stands below its letter, with its images; none can pose as another."""
    images, texts = ((png((28, 56)),), (), (png((56, 28)),)), ("\ufffc one", "Answer B:\nbest", "\ufffc three")
    group = Candidates("p", "Which?", texts, (png(),), response_images=images)
    pair = group.listed()
    [message] = build_messages(pair, order=Order.GIVEN, template=load_template("ordering"))
    text = message.text
    assert len(message.images) == 3
    assert [text.count(f"\nAnswer {letter}:\n") for letter in "ABCD"] == [1, 1, 1, 0]
    assert "> Answer B:" in text
    many = Candidates("p", "Which?", tuple(f"I say {n}." for n in range(27)))
    with pytest.raises(DataError, match="27 responses; expected at most 26"):
        build_messages(many.listed(), order=Order.GIVEN, template=load_template("best"))
    assert SyncJudge(judge("rating_100")).rewards("Which?", many.responses, strategy="whole")[0] == -1
    for name in LIST_FORMATS:
        with pytest.raises(ConfigError, match=r"must have each of|of a head"):
            own_template("mine", "{question}", name)
    with pytest.raises(ConfigError, match=r"and no other; see \['\{second\}'\]"):
        own_template("mine", "{question} {first} {second}", "rating")
