"""Hard negatives of a policy's answers: which become one, by whose word, and that the label holds."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardlab.cli import main
from rewardlab.curation.policy_negatives import (
    NegativeCounts,
    PaidAnswer,
    PolicyResult,
    as_negative,
    ask_teacher,
    by_labels,
    logged_answers,
    policy_result,
    sample_answers,
    wrong_and_paid,
)
from rewardlab.data.pairs import read_pairs, write_parquet
from rewardlab.errors import ConfigError, DataError, EndpointError
from rewardlab.judging.judge import GenerativeJudge
from rewardlab.prompts import load_template
from rewardlab.rewards.policy_signs.truth import exactly
from rewardlab.samplers.scripted import ScriptedSampler
from rewardlab.types import IMAGE_MARK, Completion, FinishReason, PreferencePair
from tests.support.images import png
from tests.support.shell import run_main

PLAIN = load_template("plain")
PAIRS = [PreferencePair(f"p{n}", "Which?", (f"It is {n}.", "It is red."), 0, (png(),), attempts="1") for n in range(4)]
READERS = {pair.pair_id: (lambda pair=pair: pair) for pair in PAIRS}


def test_which_answers_become_negatives() -> None:
    """Those that are paid enough and known to be wrong, each once; what is unknown is handed on."""
    answers = [
        PaidAnswer("p0", "It is 7.", 0.5),
        PaidAnswer("p0", "It is 7.", 0.6),
        PaidAnswer("p0", "it is 0", 0.9),
        PaidAnswer("p1", "It is 8.", 0.1),
        PaidAnswer("p2", "?", 0.4),
        PaidAnswer("p3", "It is 9.", None),
    ]
    counts = NegativeCounts()
    known = lambda pair, answer: None if answer == "?" else exactly(pair, answer)  # noqa: E731
    made = list(wrong_and_paid(READERS, answers, known, counts, least_reward=0.25))
    assert [(paid.answer, pair is not None) for paid, pair in made] == [("It is 7.", True), ("?", False)]
    assert counts == NegativeCounts(answers=6, unreadable=1, paid_little=1, repeated=1, right=1, unknown=1, negatives=1)
    # Of the policy itself all count, paid or not; an answer without an end is wrong.
    result = policy_result(READERS, answers, 2, known)
    assert result == PolicyResult(questions=8, right=1, wrong=6, unknown=1, paid=5, reward=pytest.approx(0.5))
    assert result.share_right == 1 / 8, "of all questions: what nothing is known of is no success"
    assert policy_result(READERS, [], 0, known).share_right is None
    with pytest.raises(DataError, match="does not have"):
        list(wrong_and_paid(READERS, [PaidAnswer("none", "x", 1.0)], known, NegativeCounts(), least_reward=0))


@given(st.text(min_size=1, max_size=40), st.sampled_from((0, 1)))
def test_the_preferred_response_stays_preferred(answer: str, preferred: int) -> None:
    """At either index, whatever the answer is; the same in every process."""
    pair = PreferencePair("p", "q", ("good", "bad") if preferred == 0 else ("bad", "good"), preferred, attempts="3")
    negative = as_negative(pair, answer)
    assert negative.responses[negative.preferred or 0] == "good"
    assert negative.responses[1 - (negative.preferred or 0)] == answer
    assert (negative.attempts, negative.judgment, as_negative(pair, answer)) == ("2", "", negative)


def test_both_indices_are_used() -> None:
    """Else a judge would learn that the second response is the policy's."""
    assert {as_negative(PAIRS[0], f"It is {n}.").preferred for n in range(20)} == {0, 1}


def test_by_a_teacher(tmp_path: Path) -> None:
    """Both of its votes; one that leans to a place says nothing. What it said is not asked for again."""
    asked = count()

    def teacher(prompt: Any, draw: int) -> str:
        next(asked)
        first = prompt[0].text.split("Response 1:")[1].split("Response 2:")[0]
        if "leans" in prompt[0].text:
            return "<think>x</think><answer>1</answer>"
        return f"<think>x</think><answer>{1 if 'good' in first else 2}</answer>"

    judge = GenerativeJudge(ScriptedSampler(teacher), PLAIN)
    one = PreferencePair("one", "Which?", ("good one", "bad"), 0)
    other = PreferencePair("other", "Which?", ("one", "bad"), 0)
    readers = {"one": lambda: one, "other": lambda: other}
    answers = [PaidAnswer("one", "wrong", 1.0), PaidAnswer("one", "leans", 1.0), PaidAnswer("other", "a good one", 1.0)]
    knows = ask_teacher(readers, answers, judge, tmp_path)
    assert (knows(one, "wrong"), knows(one, "leans"), knows(other, "a good one")) == (False, None, True)
    assert knows(one, "not asked") is None
    number = next(asked)
    again = ask_teacher(readers, answers, judge, tmp_path)
    assert (again(one, "wrong"), next(asked)) == (False, number + 1)
    with pytest.raises(ConfigError):
        ask_teacher(readers, answers[:1], judge, tmp_path)


def test_a_judge_that_fails(tmp_path: Path) -> None:
    """Answers that it could not pay are paid when it is back, and those of whole chunks are not asked again."""
    is_down, calls = True, count()

    def verdict(prompt: Any, draw: int) -> str | Completion:
        next(calls)
        return Completion("", FinishReason.ERROR, error="503 away") if is_down else "<think>x</think><answer>1</answer>"

    judge = GenerativeJudge(ScriptedSampler(verdict), PLAIN)
    policy = ScriptedSampler(lambda prompt, draw: "It is nine.")
    arguments = (PAIRS, policy, load_template("answer"), judge, tmp_path)
    with pytest.raises(EndpointError, match="8 of 8 requests failed"):
        sample_answers(*arguments, number=4)
    is_down = False
    for _ in range(2):
        paid, _ = sample_answers(*arguments, number=4)
        assert [answer.reward for answer in paid] == [pytest.approx(0.5)] * 4
    assert next(calls) == 16


def test_a_teacher_that_fails(tmp_path: Path) -> None:
    """What failed is not known, and is asked again; who answers nothing at all, or is gone, ends the run with nothing kept."""
    down = {"one": True, "two": True}

    def teacher(prompt: Any, draw: int) -> str | Completion:
        if any(name in prompt[0].text and is_down for name, is_down in down.items()):
            return Completion("", FinishReason.ERROR, error="503 away")
        first = prompt[0].text.split("Response 1:")[1].split("Response 2:")[0]
        return f"<think>x</think><answer>{1 if 'good' in first else 2}</answer>"

    judge = GenerativeJudge(ScriptedSampler(teacher), PLAIN)
    pair = PreferencePair("p", "Which?", ("good", "bad"), 0)
    answers = [PaidAnswer("p", "one", 1.0), PaidAnswer("p", "two", 1.0)]
    for failed in (4, 2):
        with pytest.raises(EndpointError, match=f"{failed} of 4 requests failed"):
            ask_teacher({"p": lambda: pair}, answers, judge, tmp_path)
        down["two"] = False
    down["one"] = False
    assert ask_teacher({"p": lambda: pair}, answers, judge, tmp_path)(pair, "one") is False
    down["one"] = True
    assert ask_teacher({"p": lambda: pair}, answers, judge, tmp_path)(pair, "one") is False  # kept
    many = [PaidAnswer("p", f"one {n}", 1.0) for n in range(100)]
    with pytest.raises(EndpointError, match="20 requests in a row failed"):
        ask_teacher({"p": lambda: pair}, many, judge, tmp_path / "many")
    assert len((tmp_path / "many" / "teacher.jsonl").read_text().splitlines()) == 1  # who asks, and nothing else


def test_marks_of_images_and_unlabelled_pairs() -> None:
    """A policy's text has no image within; of a pair without a label nothing is said."""
    readers = {"p0": lambda: PAIRS[0], "none": None}
    counts = NegativeCounts()
    answers = [PaidAnswer("p0", f"It is {IMAGE_MARK}7.", 0.9), PaidAnswer("none", "x", 0.9), PaidAnswer("p0", IMAGE_MARK, 0.9)]
    ((_, negative),) = wrong_and_paid(readers, answers, exactly, counts, least_reward=0)
    assert negative is not None
    assert IMAGE_MARK not in "".join(negative.responses)
    assert (counts.unlabelled, counts.negatives, counts.paid_little) == (1, 1, 1)


def test_logs_and_labels(tmp_path: Path) -> None:
    """Lines of a policy's run; lines that somebody has filled in; a sentence for what is neither."""
    log = tmp_path / "samples.jsonl"
    rows = [{"step": 1, "pair_id": "p0", "text": "<think>x</think>It is 7.", "anchor": "a", "reward": 0.5}]
    rows.append({**rows[0], "reward": None})
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert list(logged_answers(log)) == [PaidAnswer("p0", "It is 7.", 0.5)]
    log.write_text('{"pair_id": "p0"}\n')
    with pytest.raises(DataError, match="expected pair_id, answer"):
        list(logged_answers(log))
    labels = tmp_path / "labels.jsonl"
    labels.write_text('{"pair_id": "p0", "answer": "x", "right": false}\n{"pair_id": "p0", "answer": "y", "right": null}\n')
    knows = by_labels(labels)
    assert [knows(PAIRS[0], text) for text in "xyz"] == [False, None, None]
    labels.write_text('{"pair_id": "p0", "answer": "x", "right": "no"}\n')
    with pytest.raises(DataError, match=r"right \(true, false or null\)"):
        by_labels(labels)


def test_sampling_goes_on(tmp_path: Path) -> None:
    """The preferred response earns parity, unasked; a second run asks nobody, and another one is refused."""
    said = iter(["It is 9.", "It is 1.", "It is 5.", "It is 3."])
    policy = ScriptedSampler(lambda prompt, draw: next(said), name="policy")
    judge = GenerativeJudge(ScriptedSampler(lambda prompt, draw: "<think>x</think><answer>1</answer>"), PLAIN)
    how: dict[str, Any] = {"number": 4, "seed": 1}
    answers, left_out = sample_answers(PAIRS, policy, load_template("answer"), judge, tmp_path, **how)
    assert (len(answers), left_out.total()) == (4, 0)
    assert all(answer.reward == 0.5 for answer in answers)  # the judge names the first in both orders
    result = policy_result(READERS, answers, 0, exactly)
    assert (result.questions, result.wrong, result.unknown, result.reward) == (4, 4 - result.right, 0, 0.5)
    assert result.right == sum(PAIRS[int(paid.pair_id[1:])].responses[0] == paid.answer for paid in answers)
    assert sample_answers(PAIRS, policy, load_template("answer"), judge, tmp_path, **how) == (answers, left_out)
    with pytest.raises(ConfigError):
        sample_answers(PAIRS, policy, load_template("answer"), judge, tmp_path, **{**how, "seed": 2})


def test_the_command(tmp_path: Path) -> None:
    """From a log, by exact answers; then by a filled-in file; exit status 1 where there is no negative."""
    write_parquet(PAIRS, tmp_path / "pairs.parquet")
    log = tmp_path / "samples.jsonl"
    log.write_text(
        json.dumps({"pair_id": "p0", "text": "It is 7.", "reward": 0.5})
        + "\n"
        + json.dumps({"pair_id": "p1", "text": "It is 1.", "reward": 0.9})
        + "\n"
    )
    line = ["data", "negatives", str(tmp_path / "pairs.parquet"), "--answers", str(log), "--out"]
    done = run_main(main, *line, str(tmp_path / "exact"), "--truth", "exact")
    assert (done.returncode, "1 wrong and paid" in done.stdout) == (0, True)
    (negative,) = read_pairs(tmp_path / "exact" / "negatives.parquet")
    assert negative.responses[1 - (negative.preferred or 0)] == "It is 7."
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    done = run_main(main, *line, str(tmp_path / "none"), "--truth", f"file:{empty}")
    assert done.returncode == 1
    filled = [json.loads(row) for row in (tmp_path / "none" / "to_label.jsonl").read_text().splitlines()]
    empty.write_text("".join(json.dumps({**row, "right": False}) + "\n" for row in filled))
    done = run_main(main, *line, str(tmp_path / "labelled"), "--truth", f"file:{empty}")
    assert (done.returncode, len(read_pairs(tmp_path / "labelled" / "negatives.parquet"))) == (0, 1)
    write_parquet([*PAIRS, PAIRS[0]], tmp_path / "pairs.parquet")
    done = run_main(main, *line, str(tmp_path / "twice"), "--truth", "exact")
    assert (done.returncode, "share a pair_id" in done.stderr) == (2, True)
    write_parquet(PAIRS, tmp_path / "pairs.parquet")
    for words, said in (
        (["--truth", "luck"], "expected exact"),
        (["--truth", "exact", "--judge", "demo"], "--policy and --judge"),
    ):
        done = run_main(main, *line, str(tmp_path / "x"), *words)
        assert (done.returncode, said in done.stderr) == (2, True)
