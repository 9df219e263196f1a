"""Hard negatives of a policy's answers: which become one, by whose word, and that the label holds."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardlab.cli import main
from rewardlab.config import NegativesConfig
from rewardlab.curation.policy_negatives import (
    NegativeCounts,
    PaidAnswer,
    PolicyResult,
    as_negative,
    ask_teacher,
    by_labels,
    label_row,
    logged_answers,
    policy_result,
    sample_answers,
    write_labels,
    wrong_and_paid,
)
from rewardlab.data.pairs import read_pairs, write_parquet
from rewardlab.errors import ConfigError, DataError, EndpointError
from rewardlab.judging.judge import GenerativeJudge
from rewardlab.prompts import load_template
from rewardlab.rewards.verified import exactly
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
    with pytest.raises(ConfigError, match="differs in seed"):
        ask_teacher(readers, answers, judge, tmp_path, seed=1)


def test_a_teacher_is_asked_once_of_an_answer(tmp_path: Path) -> None:
    """Whatever answers come before it or go: those that were paid in the meantime are asked of, and no other; but anew where
    its pair has another preferred response since."""
    prompts = list[str]()

    def teacher(prompt: Any, draw: int) -> str:
        prompts.append(prompt[0].text)
        return f"<think>x</think><answer>{2 if 'Response 1: It is 9' in prompt[0].text else 1}</answer>"

    judge = GenerativeJudge(ScriptedSampler(teacher), PLAIN)
    later = [PaidAnswer(f"p{n}", "It is 9.", 1.0) for n in range(4)]
    ask_teacher(READERS, later[1:], judge, tmp_path)
    assert len(prompts) == 6
    knows = ask_teacher(READERS, later, judge, tmp_path)  # the first one could not be paid before
    assert ([knows(pair, "It is 9.") for pair in PAIRS], len(prompts)) == ([False] * 4, 8)
    knows = ask_teacher(READERS, later[:1], judge, tmp_path)
    assert (knows(PAIRS[0], "It is 9."), knows(PAIRS[1], "It is 9."), len(prompts)) == (False, None, 8)
    other = PreferencePair("p0", "Which?", ("It is blue.", "It is red."), 0)
    ask_teacher({"p0": lambda: other}, later[:1], judge, tmp_path)
    assert ("It is blue." in prompts[-1], len(prompts)) == (True, 10)
    log = tmp_path / "teacher.jsonl"
    log.write_text(log.read_text() + '{"right": 5}\n')
    with pytest.raises(DataError, match=r"teacher\.jsonl, line 5: corrupt"):
        ask_teacher(READERS, later, judge, tmp_path)


def test_a_policy_that_was_trained_on_is_asked_anew(tmp_path: Path) -> None:
    """Its folder has other weights now: the answers of those before are no answers of it."""
    weights = tmp_path / "policy" / "model.safetensors"
    weights.parent.mkdir()
    (weights.parent / "config.json").write_text("{}")
    judge = GenerativeJudge(ScriptedSampler(lambda prompt, draw: "<think>x</think><answer>1</answer>"), PLAIN)

    def answers_of(answer: str) -> set[str]:
        policy = ScriptedSampler(lambda prompt, draw: answer, f"hf:{weights.parent}")
        return {paid.answer for paid in sample_answers(PAIRS, policy, PLAIN, judge, tmp_path, NegativesConfig(number=4))[0]}

    weights.write_bytes(b"one")
    assert answers_of("It is 1.") == {"It is 1."}
    assert answers_of("It is 2.") == {"It is 1."}  # the same policy: its answers are there
    weights.write_bytes(b"trained")
    with pytest.raises(ConfigError, match="policy_weights"):
        answers_of("It is 2.")


def test_the_same_command_after_a_payment_that_failed(tmp_path: Path) -> None:
    """The answer that the judge could not pay is paid by the second run, and the teacher is asked of it alone."""
    pairs = [PreferencePair(f"p{n}", f"Which? q{n}.", (f"good {n}", "bad"), 0) for n in range(100)]
    readers = {pair.pair_id: (lambda pair=pair: pair) for pair in pairs}
    is_down, requests = True, count()

    def verdict(prompt: Any, draw: int) -> str | Completion:
        if is_down and "q7." in prompt[0].text:
            return Completion("", FinishReason.ERROR, error="503 away")
        return "<think>x</think><answer>1</answer>"

    def teacher(prompt: Any, draw: int) -> str:
        next(requests)
        return f"<think>x</think><answer>{1 if 'Response 1: good' in prompt[0].text else 2}</answer>"

    judge = GenerativeJudge(ScriptedSampler(verdict), PLAIN)
    policy = ScriptedSampler(lambda prompt, draw: "It is nine.")
    for paid_before in (99, 100):
        answers, _ = sample_answers(pairs, policy, load_template("answer"), judge, tmp_path, NegativesConfig(number=100))
        paid = [answer for answer in answers if answer.reward is not None]
        assert len(paid) == paid_before
        knows = ask_teacher(readers, paid, GenerativeJudge(ScriptedSampler(teacher), PLAIN), tmp_path)
        assert [knows(pair, "It is nine.") for pair in pairs].count(False) == paid_before
        is_down = False
    assert next(requests) == 200


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
        sample_answers(*arguments, NegativesConfig(number=4))
    is_down = False
    for _ in range(2):
        paid, _ = sample_answers(*arguments, NegativesConfig(number=4))
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
    """Lines of a policy's run, of which some could not be compared; lines that somebody has filled in."""
    log = tmp_path / "samples.jsonl"
    rows = [{"step": 1, "pair_id": "p0", "text": "<think>x</think>It is 7.", "anchor": "a", "reward": 0.5}]
    rows += [{**rows[0], "reward": reward} for reward in (None, 0, 1)]
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    answers = list(logged_answers(log))
    assert answers == [PaidAnswer("p0", "It is 7.", reward) for reward in (0.5, None, 0.0, 1.0)]
    counts = NegativeCounts()
    list(wrong_and_paid(READERS, answers, exactly, counts, least_reward=0.25))
    assert counts == NegativeCounts(answers=4, unreadable=1, paid_little=1, repeated=1, negatives=1)
    labels = tmp_path / "labels.jsonl"
    lines = [{"pair_id": "p0", "answer": text, "right": right} for text, right in zip("xyx", (False, None, None), strict=True)]
    labels.write_text("".join(json.dumps(row) + "\n" for row in lines))
    knows = by_labels(labels)
    assert [knows(PAIRS[0], text) for text in "xyz"] == [False, None, None]


@pytest.mark.parametrize(
    "reward", ["NaN", "Infinity", "-0.1", "1.5", "7.5", "true", "false", '"0.9"', "[0.5]", "1" + "0" * 400]
)
def test_a_reward_that_is_none(tmp_path: Path, reward: str) -> None:
    """It is refused, with file, line and cure: to count it would make a negative of it, and to drop it would say nothing."""
    log = tmp_path / "samples.jsonl"
    line = '{"pair_id": "p0", "answer": "It is 7.", "reward": %s}\n'
    log.write_text(line % "0.5" + line % reward)
    with pytest.raises(DataError, match=r"samples\.jsonl, line 2: the reward is .* expected a number from 0 to 1.*`phi`"):
        list(logged_answers(log))


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ('{"pair_id": "p0"}', r"expected pair_id, answer \(or text\), both texts, and .* got pair_id \(str\)"),
        ("[1, 2]", r"expected an object with pair_id, .* got \[1, 2\]"),
        ("5", "expected an object with pair_id, .* got 5"),
        ("null", "expected an object with pair_id, .* got null"),
        ("[" * 500 + "]" * 500, r"expected an object with pair_id, .* got \[\[.*\.\.\.$"),
        ('{"pair_id": ["p0"], "answer": "x", "reward": 1, "right": true}', r"got .*pair_id \(list\)"),
        ('{"pair_id": "p0", "answer": null, "reward": 1, "right": true}', r"got answer \(NoneType\)"),
        ('{"pair_id": "p0", "answer": "\\ud800 x", "reward": 1, "right": true}', "half a surrogate pair"),
    ],
)
def test_lines_that_are_none(tmp_path: Path, line: str, sentence: str) -> None:
    """In a log and in a filled-in file alike."""
    path = tmp_path / "lines.jsonl"
    path.write_text('{"pair_id": "p1", "answer": "x", "reward": 1, "right": true}\n' + line + "\n")
    for read in (lambda: list(logged_answers(path)), lambda: by_labels(path)):
        with pytest.raises(DataError, match=rf"lines\.jsonl, line 2: .*{sentence}"):
            read()


@pytest.mark.parametrize("right", ["0", "1", "0.0", '"no"', "[]"])
def test_a_label_that_is_none(tmp_path: Path, right: str) -> None:
    path = tmp_path / "labels.jsonl"
    path.write_text(f'{{"pair_id": "p0", "answer": "x", "right": {right}}}\n')
    with pytest.raises(DataError, match=r"labels\.jsonl, line 1: expected right \(true, false or null\), got"):
        by_labels(path)


def test_labels_that_contradict_each_other(tmp_path: Path) -> None:
    path = tmp_path / "labels.jsonl"
    rows = [{"pair_id": "p0", "answer": "x", "right": right} for right in (True, None, False)]
    path.write_text("".join(json.dumps(row) + "\n" for row in (*rows[:2], rows[0])))
    assert by_labels(path)(PAIRS[0], "x") is True, "one label twice"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(
        DataError, match=r"line 3: right is false, and true of the same answer in line 1; .* delete the wrong line"
    ):
        by_labels(path)


def test_labels_stay(tmp_path: Path) -> None:
    """In the line of the same answer, with what else somebody wrote there; and of an answer that is no longer unknown."""
    path = tmp_path / "to_label.jsonl"
    rows = [label_row(PaidAnswer("p0", text, 0.5), PAIRS[0]) for text in "abc"]
    assert write_labels(rows, path) == 3
    written = [json.loads(line) for line in path.read_text().splitlines()]
    assert written == rows
    filled = [{**written[0], "right": True, "note": "by hand"}, {**written[1], "right": False}, written[2]]
    path.write_text("".join(json.dumps(row) + "\n" for row in filled))
    new = [label_row(PaidAnswer("p0", text, 0.75), PAIRS[0]) for text in "da"]
    assert write_labels(new, path) == 1
    kept = [json.loads(line) for line in path.read_text().splitlines()]
    assert kept == [{**filled[0], "reward": 0.75}, filled[1], new[0]]
    path.write_text("[1]\n")
    with pytest.raises(DataError, match=r"to_label\.jsonl, line 1"):
        write_labels(new, path)
    assert path.read_text() == "[1]\n", "a file that cannot be read may be somebody's work"


def test_sampling_goes_on(tmp_path: Path) -> None:
    """The preferred response earns parity, unasked; a second run asks nobody, and another one is refused."""
    said = iter(["It is 9.", "It is 1.", "It is 5.", "It is 3."])
    policy = ScriptedSampler(lambda prompt, draw: next(said), name="policy")
    judge = GenerativeJudge(ScriptedSampler(lambda prompt, draw: "<think>x</think><answer>1</answer>"), PLAIN)
    settings = NegativesConfig(number=4, seed=1)
    answers, left_out = sample_answers(PAIRS, policy, load_template("answer"), judge, tmp_path, settings)
    assert (len(answers), left_out.total()) == (4, 0)
    assert all(answer.reward == 0.5 for answer in answers)  # the judge names the first in both orders
    result = policy_result(READERS, answers, 0, exactly)
    assert (result.questions, result.wrong, result.unknown, result.reward) == (4, 4 - result.right, 0, 0.5)
    assert result.right == sum(PAIRS[int(paid.pair_id[1:])].responses[0] == paid.answer for paid in answers)
    assert sample_answers(PAIRS, policy, load_template("answer"), judge, tmp_path, settings) == (answers, left_out)
    with pytest.raises(ConfigError):
        sample_answers(PAIRS, policy, load_template("answer"), judge, tmp_path, settings.model_copy(update={"seed": 2}))


@pytest.mark.slow
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


@pytest.mark.slow
def test_the_command_again_in_the_same_folder(tmp_path: Path) -> None:
    """What somebody has filled in stays, and may be used there; negatives of an earlier run do not."""
    write_parquet(PAIRS, tmp_path / "pairs.parquet")
    log, out = tmp_path / "samples.jsonl", tmp_path / "out"
    rows = [{"pair_id": f"p{n}", "answer": "It is 7.", "reward": reward} for n, reward in enumerate((0.5, 0.9, None, 0.1))]
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    line = ["data", "negatives", tmp_path / "pairs.parquet", "--answers", log, "--out", out, "--truth"]
    to_label, negatives = out / "to_label.jsonl", out / "negatives.parquet"

    done = run_main(main, *line, "rules")  # the pairs have no category, so no rule reads them
    assert (done.returncode, "1 that the judge could not compare, 1 paid less" in done.stdout) == (1, True)
    assert "lines without a label: 2;" in done.stdout
    lines = to_label.read_text().splitlines(keepends=True)
    to_label.write_text(lines[0].replace('"right": null', '"right": false') + lines[1])
    labels = to_label.read_text()
    for truth, status in (("rules", 1), (f"file:{to_label}", 0), (f"file:{to_label}", 0)):
        done = run_main(main, *line, truth)
        assert (done.returncode, to_label.read_text(), negatives.exists()) == (status, labels, status == 0)
        assert "lines without a label: 1;" in done.stdout
    assert [pair.pair_id.split("/")[0] for pair in read_pairs(negatives)] == ["p0"]
    done = run_main(main, *line, "rules")
    assert (done.returncode, to_label.read_text(), negatives.exists()) == (1, labels, False)


@pytest.mark.parametrize("value", ["nan", "-0.1", "1.01", "inf"])
def test_a_least_reward_that_is_none(tmp_path: Path, value: str) -> None:
    write_parquet(PAIRS, tmp_path / "pairs.parquet")
    (tmp_path / "log").write_text('{"pair_id": "p0", "answer": "It is 7.", "reward": 0.5}\n')
    words = ["data", "negatives", tmp_path / "pairs.parquet", "--answers", tmp_path / "log", "--out", tmp_path / "out"]
    done = run_main(main, *words, "--truth", "exact", f"least_reward={value}")
    assert (done.returncode, "least_reward: " in done.stderr) == (2, True)


@pytest.mark.slow
def test_a_teacher_is_not_asked_of_what_could_not_be_compared(tmp_path: Path) -> None:
    """Of a log even where any pay is enough: such an answer becomes no negative, whatever the teacher says."""
    write_parquet([replace(pair, images=()) for pair in PAIRS], tmp_path / "pairs.parquet")
    rows = [{"pair_id": f"p{n}", "answer": "It is 7.", "reward": reward} for n, reward in enumerate((0.5, None, 0))]
    (tmp_path / "log").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["data", "negatives", tmp_path / "pairs.parquet", "--answers", tmp_path / "log", "--out", tmp_path / "out"]
    done = run_main(main, *words, "--truth", "judge:demo", "teacher.max_tokens=32", "least_reward=0")
    assert (done.returncode in (0, 1), "1 that the judge could not compare" in done.stdout) == (True, True)
    _, *judged = (tmp_path / "out" / "teacher.jsonl").read_text().splitlines()
    assert sum(len(json.loads(line)["right"]) for line in judged) == 2
