"""The long demonstration: solutions by an interpreter that reads the English, texts that give nothing away, checked steps."""

from __future__ import annotations

import random
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression

from eval.long_demo.build import LINES_OF_LEVEL, LONG, draw_pair
from eval.long_demo.judgments import Teacher, check_steps, short_judgment, verdict_only
from eval.long_demo.programs import ProgramConfig, code_pairs
from eval.long_demo.quickstart import PARTS, unpack_starts
from eval.long_demo.sheets import ERRORS, LABELS, TASKS, Sheet
from rewardlab.demo import base_model
from rewardlab.demo.build import corpus
from rewardlab.demo.judgments import Truth
from rewardlab.demo.pairs import pairs_of_split
from rewardlab.demo.server import check_consistency, favored_response
from rewardlab.demo.tasks import NUMBERS
from rewardlab.judging.judge import GenerativeJudge
from rewardlab.models.checkpoints import template_for
from rewardlab.rewards.consistency import consistency_prompt
from rewardlab.rewards.verifiable.extraction import Contract
from rewardlab.rewards.verifiable.hybrid import all_verifiers
from rewardlab.rewards.verified import VerifiedReward
from rewardlab.samplers.hf import HFSampler
from rewardlab.types import Choice, Order, PreferencePair
from rewardlab.verdicts.parse import follows_format
from rewardlab.verdicts.places import reasoning_of

Drawn = tuple[list[PreferencePair], list[Truth]]
MOST_TOKENS = 768
WORDS = NUMBERS[:10]


@pytest.fixture(scope="module")
def train() -> Drawn:
    return pairs_of_split(800, "train", seed=3, difficulty=LONG)


@pytest.fixture(scope="module")
def test() -> Drawn:
    return pairs_of_split(300, "test", seed=3, difficulty=LONG)


def run_by_hand(question: str, lines: list[tuple[str, int]]) -> list[str]:
    """The states after each line, by plain arithmetic: written for this test, from the question's English."""
    said, total, x, y = [], 0, 0, 0
    for sign, digit in lines:
        if question == "Follow the route.":
            x, y = x + digit * ((sign == "right") - (sign == "left")), y + digit * ((sign == "up") - (sign == "down"))
            said.append(f"{WORDS[x % 10]} {WORDS[y % 10]}")
        elif question == "Run the program.":
            if sign == "add" or (sign == "odd" and total % 2 == 1):
                total += digit
            elif sign == "take":
                total -= digit
            total %= 10
            said.append(WORDS[total])
        else:
            kept = question == "Add all digits." or (digit > 4 if "above four" in question else digit < 5)
            total += digit if kept else 0
            said.append(f"{WORDS[total // 10]} {WORDS[total % 10]}")
    return said


def solution_by_hand(sheet: Sheet) -> str:
    labels = load_digits().target
    states = run_by_hand(TASKS[sheet.task].question, [(line.sign, int(labels[line.scan])) for line in sheet.lines])
    return (
        ", ".join([*(f"{label} {state}" for label, state in zip(LABELS, states, strict=False)), f"answer {states[-1]}"]) + "."
    )


def test_solutions_are_right_for_one_sheet_and_wrong_for_the_other() -> None:
    """By scikit-learn's labels of the scans; errors are where they should be; every task, error and level occurs."""
    rng, seen = random.Random(0), Counter[object]()
    for _ in range(300):
        drawing = draw_pair(rng, "test")
        sheets, answers = drawing.contrast.pictures, drawing.contrast.answers
        for n, sheet in enumerate(sheets):
            assert isinstance(sheet, Sheet)
            assert answers[n] == solution_by_hand(sheet)
            assert answers[1 - n] != answers[n]
            assert len(sheet.lines) in LINES_OF_LEVEL[drawing.level]
            assert Sheet.parse(sheet.text).solution() == answers[n]
        assert (answers[0].rsplit(" answer ")[1] == answers[1].rsplit(" answer ")[1]) == (drawing.source == "cancelled")
        seen.update((drawing.source, drawing.task, drawing.level))
    assert set(seen) == {*ERRORS, *TASKS, *LINES_OF_LEVEL}


def is_a_coin(share: float, n: int) -> bool:
    return abs(share - 0.5) < 3 * (0.25 / n) ** 0.5


def test_nothing_in_the_texts_tells_the_truth(train: Drawn, test: Drawn) -> None:
    """Length and place are coins; a learner of words and word triples stays at chance."""
    pairs = train[0] + test[0]
    longer = sum((len(p.responses[0]) > len(p.responses[1])) == (p.preferred == 0) for p in pairs)
    assert is_a_coin(longer / len(pairs), len(pairs))
    assert is_a_coin(sum(p.preferred == 0 for p in pairs) / len(pairs), len(pairs))
    texts = [f"{p.question} q1 {' a1 '.join(p.responses[0].split())} q2 {' a2 '.join(p.responses[1].split())}" for p in pairs]
    labels = [p.preferred for p in pairs]
    words = TfidfVectorizer(ngram_range=(1, 3), token_pattern=r"\S+", min_df=2)
    known = words.fit_transform(texts[:800])
    score = LogisticRegression(max_iter=2000).fit(known, labels[:800]).score(words.transform(texts[800:]), labels[800:])
    assert is_a_coin(score, 300)


def lines_by_hand(truth: Truth, responses: tuple[str, str], text: str) -> list[bool]:
    """For each sentence of a judgment that begins with a label: is all of it true? Written without the checker's form."""
    sheet = Sheet.parse(truth.fact)
    states = run_by_hand(truth.question, [(line.sign, line.digit) for line in sheet.lines])
    start = "zero" if truth.question == "Run the program." else "zero zero"
    claims = [dict(step.split(" ", 1) for step in response.rstrip(".").split(", ")) for response in responses]
    results = []
    for sentence in reasoning_of(text).removesuffix(".").split(". "):
        label = sentence.split()[0]
        if label not in LABELS:
            continue
        place = LABELS.index(label)
        if place >= len(sheet.lines):
            results.append(False)
            continue
        digit, sign = sheet.lines[place].digit, sheet.lines[place].sign
        kept = {"Add the digits above four.": digit > 4, "Add the digits below five.": digit < 5}
        read = " ".join(filter(None, [sign, WORDS[digit], {True: "in", False: "out", None: ""}[kept.get(truth.question)]]))
        marks = [f"{label} {of[label]} {'yes' if of[label] == states[place] else 'no'}" for of in claims]
        before = states[place - 1] if place else start
        results.append(sentence == f"{label} {read}, {before}, {states[place]}; first {marks[0]}; second {marks[1]}")
    return results


def test_the_checker_is_exact(train: Drawn) -> None:
    """On 10,000 judgments of the teacher with right and wrong lines, and on as many with changed words and changed labels."""
    rng, teacher, seen = random.Random(1), Teacher(shallow=(0.1,) * 3, slip=0.05), Counter[bool]()
    words = [*WORDS, "yes", "no", "first", "add", "left", "in", "wait"]
    for number in range(10_000):
        pair, truth = train[0][number % 800], train[1][number % 800]
        responses = pair.shown(rng.choice(list(Order)))
        text = teacher.judge(truth, responses, rng)
        changed = re.sub(r"\b[a-z]{2,}\b", lambda word: rng.choice(words) if rng.random() < 0.01 else word[0], text)
        relabelled = re.sub(r"(?<=\. )[a-p](?= )", lambda word: rng.choice(LABELS) if rng.random() < 0.1 else word[0], text)
        for said in (text, changed, relabelled):
            if not said.startswith("<think>") or "</think><answer>" not in said:
                continue
            steps = check_steps(truth, responses, said)
            starts = [len("<think>"), *(step.end for step in steps)]
            begins = [said[start : step.end].strip() for start, step in zip(starts, steps, strict=False)]
            by_label = [
                step for step, begin in zip(steps, begins, strict=True) if begin.split(" ")[0].removesuffix(".") in LABELS
            ]
            ours = [step.kind == "line" and step.true for step in by_label]
            assert ours == lines_by_hand(truth, responses, said), said
            seen.update(ours)
    assert min(seen.values()) > 10_000


def test_a_careful_teacher_is_right(train: Drawn) -> None:
    """Without slips every line and mark is true and the verdict right; marks agree with the verdict for the checker model."""
    rng, perfect = random.Random(2), Teacher(shallow=(0.0,) * 3, half=(0.0,) * 3, misled=(0.0,) * 3, slip=0.0)
    for pair, truth in zip(train[0][:300], train[1][:300], strict=True):
        for order in Order:
            responses = pair.shown(order)
            right = 1 + responses.index(truth.right)
            for text in (perfect.judge(truth, responses, rng), short_judgment(truth, responses)):
                assert follows_format(text)
                assert text.endswith(f"<answer>{right}</answer>")
                assert all(step.true and step.follows for step in check_steps(truth, responses, text))
                assert favored_response(reasoning_of(text)) == right
                choice = Choice.FIRST if right == 1 else Choice.SECOND
                assert check_consistency(consistency_prompt(truth.question, reasoning_of(text), choice)) == "1"
            assert verdict_only(truth, responses).endswith(f"<answer>{right}</answer>")


def test_slips_propagate_and_are_mended(train: Drawn) -> None:
    """A misread line makes those behind it false though they follow; read again, they are true."""
    rng, sloppy = random.Random(3), Teacher(shallow=(0.0,) * 3, half=(0.0,) * 3, misled=(0.0,) * 3, slip=0.1, again=0.0)
    false_that_follow = 0
    for pair, truth in zip(train[0], train[1], strict=True):
        never = check_steps(truth, pair.responses, replace(sloppy, reread=0.0).judge(truth, pair.responses, rng))
        false_that_follow += sum(step.follows and not step.true for step in never if step.kind == "line")
    assert false_that_follow > 500
    share = {}
    for reread in (0.0, 1.0):
        texts = [replace(sloppy, reread=reread).judge(t, p.responses, rng) for p, t in zip(*train, strict=True)]
        share[reread] = sum(
            t.endswith(f"{1 + p.responses.index(r.right)}</answer>") for t, p, r in zip(texts, *train, strict=True)
        )
    assert share[1.0] > share[0.0] + 80


def test_judgments_are_long(train: Drawn) -> None:
    """Half of the careful judgments have more than 150 tokens, and nearly none is longer than a rollout may be."""
    tokenizer = base_model.train_tokenizer(corpus(train[0][:300], train[1][:300], random.Random(0), LONG), 900)
    rng, careful = random.Random(4), Teacher(shallow=(0.0,) * 3, half=(0.0,) * 3)
    lengths = []
    for pair, truth in zip(train[0], train[1], strict=True):
        lengths.append(len(tokenizer(careful.judge(truth, pair.responses, rng))["input_ids"]) + 1)
    lengths.sort()
    quarter, half, last = (lengths[round(share * (len(lengths) - 1))] for share in (0.25, 0.5, 0.995))
    assert quarter > 100
    assert 150 < half < 400
    assert last < MOST_TOKENS


def test_naming_what_tokens_show() -> None:
    """The vision tower learns to name digits before any text is read; the steps after that train the rest."""
    pairs, truths = pairs_of_split(30, "train", seed=0, difficulty=LONG)
    tokenizer = base_model.train_tokenizer(corpus(pairs, truths, random.Random(0), LONG), 900)
    processor, losses = base_model.build_processor(tokenizer), []
    config = base_model.PerceptionConfig(62, naming_steps=60, batch=8, difficulty=LONG)
    model = base_model.build_model(tokenizer, hidden=32, layers=1, seed=0)
    base_model.learn_to_see(model, processor, config, lambda step, metrics: losses.append(metrics["loss"]))
    assert sum(losses[50:60]) < 0.6 * sum(losses[:10])
    assert all(bool(torch.isfinite(weight).all()) for weight in model.parameters())


def test_programs_of_sheets() -> None:
    """Run as Python, the right program passes the tests, which come from the sheet's own steps; the wrong one does not."""
    pairs = code_pairs(ProgramConfig(num_train=40), "train")
    reward = VerifiedReward(all_verifiers(), None, contract=Contract.BOXED, thinking=False)
    assert reward.check(pairs)["rule"] == 40
    wrong = [pair.responses[1 - (pair.preferred or 0)] for pair in pairs]
    assert reward(pairs, wrong, [()] * 40, 0)[0] == [0.0] * 40
    assert {pair.preferred for pair in pairs} == {0, 1}


@pytest.mark.parametrize("seed", [0, 1])
def test_published_starts(seed: int, tmp_path: Path) -> None:
    """Base model and judge are where their stages would put them, and the judge judges; a run of its own keeps its own."""
    unpack_starts(tmp_path / "run", seed)
    [pair], _ = pairs_of_split(1, "test", seed=seed, difficulty=LONG)
    judge = tmp_path / "run" / PARTS["sft"]
    sampler = HFSampler.load(judge)
    judged = GenerativeJudge(sampler, template_for(judge, None), max_tokens=MOST_TOKENS, temperature=0.0).compare(pair)
    assert all(follows_format(vote.completion.text) for vote in judged.votes)
    own = tmp_path / "own"
    (own / PARTS["base"]).mkdir(parents=True)
    unpack_starts(own, seed)
    assert not (own / PARTS["sft"]).exists()
