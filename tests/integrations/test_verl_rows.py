"""What verl is given: rows that hold the template's prompt, and rewards that are this project's own, by pairs where asked."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from PIL import Image
from typer.testing import CliRunner

from rewardlab.cli import app
from rewardlab.config import ConsistencyConfig
from rewardlab.data.pairs import write_parquet
from rewardlab.errors import DataError, EndpointError
from rewardlab.integrations.judge_rewards import JudgeRewards, verl_row, write_verl_rows
from rewardlab.prompts import build_messages, load_template
from rewardlab.rewards.consistency import GIVE_UP_AFTER, EndpointConsistencyJudge
from rewardlab.rewards.judgment import JudgedCompletion, compose
from rewardlab.rewards.scorer import JudgmentScorer
from rewardlab.types import IMAGE_MARK, Choice, Completion, FinishReason, Order, PreferencePair, choice_of
from rewardlab.verdicts.parse import format_verdict
from tests.support.rewards import reward_terms

TEMPLATE = load_template("r1_reward")
PAIR = PreferencePair("p", "Which color?", ("Red.", "Blue."), 0, (b"one", b"two"), source="demo")


@pytest.mark.parametrize("order", list(Order))
@pytest.mark.parametrize("preferred", [0, 1])
def test_a_row_says_what_was_shown(order: Order, preferred: int) -> None:
    """Images first, then the template's text; the truth is a place as shown. Swapping pair and order changes nothing shown."""
    pair = replace(PAIR, preferred=preferred)
    row = verl_row(pair, order, TEMPLATE, index=7)
    (asked,) = build_messages(pair, order=order, template=TEMPLATE)
    assert row["prompt"] == [{"role": "user", "content": f"<image><image>{asked.text}"}]
    assert row["images"] == [{"bytes": b"one"}, {"bytes": b"two"}]
    assert row["data_source"] == "demo"
    assert row["reward_model"] == {"style": "rule", "ground_truth": choice_of(preferred, order).value}
    told = {"index": 7, "pair_id": "p", "question": "Which color?", "order": order.value, "preferred": preferred}
    assert row["extra_info"] == {**told, "verdict_format": "think_answer"}
    other = verl_row(pair.swap(), order.swap(), TEMPLATE, index=7)
    assert (other["prompt"], other["reward_model"]) == (row["prompt"], row["reward_model"])


def test_as_many_places_as_images() -> None:
    """Whatever the texts speak of; images within question and responses stand in their places."""
    told = replace(PAIR, question="Is <image> a <video>, an <audio>?", responses=("<image>", "<audio> it is"))
    content = verl_row(told, Order.GIVEN, TEMPLATE)["prompt"][0]["content"]
    assert [content.count(mark) for mark in ("<image>", "<video>", "<audio>")] == [2, 0, 0]
    within = replace(
        PAIR, question=f"{IMAGE_MARK} or {IMAGE_MARK}", responses=("x", f"y {IMAGE_MARK}"), response_images=((), (b"three",))
    )
    for order, before in ((Order.GIVEN, "x"), (Order.SWAPPED, "y <image>")):
        row = verl_row(within, order, TEMPLATE)
        content = row["prompt"][0]["content"]
        assert content.count("<image>") == 3
        assert "<image> or <image>" in content
        assert content.index(before) < content.index("y <image>" if before == "x" else "x\n")
        assert [image["bytes"] for image in row["images"]] == [b"one", b"two", b"three"]


def test_pairs_without_a_label_are_counted(tmp_path: Path) -> None:
    """Both orders follow each other; an unlabelled pair is left out, and of nothing else no file is made."""
    unknown = replace(PAIR, pair_id="q", preferred=None)
    written = write_verl_rows([PAIR, unknown, replace(PAIR, pair_id="r")], tmp_path / "a.parquet", TEMPLATE, both_orders=True)
    assert (written.num_rows, written.num_unlabelled) == (4, 1)
    told = [row["extra_info"] for row in pq.read_table(tmp_path / "a.parquet").to_pylist()]
    shown = [(one["index"], one["pair_id"], one["order"]) for one in told]
    assert shown == [(0, "p", "given"), (1, "p", "swapped"), (2, "r", "given"), (3, "r", "swapped")]
    with pytest.raises(DataError, match="1 pairs without"):
        write_verl_rows([unknown], tmp_path / "b.parquet", TEMPLATE, both_orders=False)
    assert [path.name for path in tmp_path.iterdir()] == ["a.parquet"]
    with pytest.raises(DataError, match="on an unlabelled pair"):
        verl_row(unknown, Order.GIVEN, TEMPLATE)


def test_the_command(tmp_path: Path, demo_pairs: Any) -> None:
    """Own orders without --both-orders; images open; a seed shuffles pairs, not the two orders of one."""
    pairs = [replace(pair, order=Order.SWAPPED) for pair in demo_pairs[0][:12]]
    write_parquet(pairs, tmp_path / "pairs.parquet")

    def command(*options: str) -> list[dict[str, Any]]:
        out = tmp_path / "rows.parquet"
        done = CliRunner().invoke(app, ["data", "verl", str(tmp_path / "pairs.parquet"), "--out", str(out), *options])
        assert done.exit_code == 0, done.output
        assert f"template r1_reward {TEMPLATE.hash}" in done.output
        rows: list[dict[str, Any]] = pq.read_table(out).to_pylist()
        return rows

    rows = command()
    assert [row["extra_info"]["order"] for row in rows] == ["swapped"] * 12
    for row, pair in zip(rows, pairs, strict=True):
        assert row["images"] == [{"bytes": image} for image in pair.images]
        Image.open(BytesIO(row["images"][0]["bytes"])).verify()
    names = [row["extra_info"]["pair_id"] for row in command("--both-orders", "--shuffle", "1")]
    assert names[::2] == names[1::2]
    assert sorted(names[::2]) == sorted(pair.pair_id for pair in pairs)
    assert names[::2] != [pair.pair_id for pair in pairs]
    wrong = CliRunner().invoke(app, ["data", "verl", str(tmp_path / "pairs.parquet"), "--out", str(tmp_path / "rows.json")])
    assert ".parquet" in str(wrong.exception)


def said(
    choice: Choice, *, order: Order = Order.GIVEN, finish: FinishReason = FinishReason.STOP, preferred: int = 0
) -> JudgedCompletion:
    return JudgedCompletion(Completion(format_verdict(choice, "It is red."), finish, 10), "Which color?", order, preferred)


def rewards(judged: JudgeRewards, *rollouts: JudgedCompletion) -> list[Any]:
    """All asked for at once, as a trainer does."""

    async def main() -> list[Any]:
        asked = (judged.reward(one, "p", "think_answer") for one in rollouts)
        return await asyncio.gather(*asked, return_exceptions=True)

    return asyncio.run(main())


class Sure(EndpointConsistencyJudge):
    """Answers the same of every judgment."""

    def __init__(self, answer: int, *, there: bool = True) -> None:
        super().__init__(ConsistencyConfig.model_validate({}))
        self.answer, self.there, self.asked = answer, there, 0

    async def check(self) -> None:
        self.asked += 1
        if not self.there:
            raise EndpointError("nobody there")

    async def score(self, question: str, reasoning: str, verdict: Choice) -> int:
        return self.answer


@pytest.mark.parametrize("answer", [None, -1, 0, 1])
def test_rewards_are_those_of_training(answer: int | None) -> None:
    """Right, wrong, cut off, in either order: the totals of JudgmentScorer, with and without somebody to ask."""
    rollouts = [
        said(choice, order=order, finish=finish, preferred=preferred)
        for choice in Choice
        for order in Order
        for finish in (FinishReason.STOP, FinishReason.LENGTH)
        for preferred in (0, 1)
    ]
    judge = None if answer is None else Sure(answer)
    parts = compose(asyncio.run(JudgmentScorer("think_answer", judge).score(rollouts)), rollouts, reward_terms())
    found = rewards(JudgeRewards(judge, reward_terms()), *rollouts)
    assert [one["score"] for one in found] == [part.total for part in parts]
    assert max(one["score"] for one in found) == 1.5 + 0.5 * (answer or 0)
    assert [one["consistency_unknown"] for one in found] == [float(part.correct and answer == 0) for part in parts]
    assert sum(one["invalid"] for one in found) == 8
    assert judge is None or judge.asked == 1


def test_nobody_to_ask_is_no_reward() -> None:
    """At the first rollout, and asked again at the next."""
    judge = Sure(1, there=False)
    judged = JudgeRewards(judge, reward_terms())
    assert all(isinstance(one, EndpointError) for one in rewards(judged, said(Choice.FIRST), said(Choice.SECOND)))
    judge.there = True
    assert rewards(judged, said(Choice.FIRST))[0]["score"] == 2.0


class Silent(EndpointConsistencyJudge):
    """Was there when the run began; fails from then on, until it is ``back``."""

    def __init__(self) -> None:
        super().__init__(ConsistencyConfig.model_validate({}))
        self.back = False

    async def check(self) -> None:
        pass

    async def _complete(self, prompt: str) -> Completion:
        return Completion("1", FinishReason.STOP, 1) if self.back else Completion("", FinishReason.ERROR, error="HTTP 503")


def test_a_consistency_judge_that_falls_silent_ends_the_rewards() -> None:
    """As in our own trainer: a few failures are paid as unknown, then every judgment would be; until it answers again."""
    judge = Silent()
    judged = JudgeRewards(judge, reward_terms())
    results = [rewards(judged, said(Choice.FIRST))[0] for _ in range(GIVE_UP_AFTER + 2)]
    assert [one["consistency_unknown"] for one in results[: GIVE_UP_AFTER - 1]] == [1.0] * (GIVE_UP_AFTER - 1)
    assert all(isinstance(one, EndpointError) and "none of the last" in str(one) for one in results[GIVE_UP_AFTER - 1 :])
    judge.back = True
    assert rewards(judged, said(Choice.FIRST))[0]["score"] == 2.0


def test_what_cannot_be_scored_is_no_reward(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault of the reading is an error, not the zero that it is in our own trainer."""
    broken = said(Choice.FIRST)
    monkeypatch.setattr("rewardlab.rewards.scorer.verdict_of", lambda *args: 1 / 0)
    (found,) = rewards(JudgeRewards(None, reward_terms()), broken)
    assert isinstance(found, EndpointError)


def test_the_swap_is_paid_across_orders() -> None:
    """Two samples in each order. Of the other order's, the first names both 0, so a "0" agrees fully and a "1" not at all; of
    given's, one names 0 and one 1, so each of swapped's agrees by half. Format 0.5, right 1."""
    given = [said(Choice.FIRST), said(Choice.SECOND)]
    swapped = [said(Choice.SECOND, order=Order.SWAPPED)] * 2
    found = rewards(JudgeRewards(None, reward_terms(swap_weight=0.4), num_samples=2), *given, *swapped)
    assert [one["swap_agreement"] for one in found] == [1, 0, 0.5, 0.5]
    assert [one["score"] for one in found] == pytest.approx([1.5 + 0.4, 0.5, 1.5 + 0.2, 1.5 + 0.2])


def test_a_pair_that_is_not_whole_gets_no_reward() -> None:
    """The other order never comes, or the same comes twice; neither is left behind for the next epoch."""
    judged = JudgeRewards(None, reward_terms(swap_weight=0.5), deadline_s=0.05)
    (alone,) = rewards(judged, said(Choice.FIRST))
    assert isinstance(alone, EndpointError)
    assert "1 of the 2" in str(alone)
    twice = rewards(judged, said(Choice.FIRST), said(Choice.FIRST))
    assert all(isinstance(one, EndpointError) and "came as given, given" in str(one) for one in twice)
    whole = rewards(judged, said(Choice.FIRST), said(Choice.SECOND, order=Order.SWAPPED))
    assert [one["score"] for one in whole] == [2.0, 2.0]
