"""The rules of each domain: what is the truth, what is not, and what is no answer at all."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest

from rewardlab.rewards.verifiable.extraction import AnswerStatus, Contract, is_year, parse_number, parse_quantity, terminates
from rewardlab.rewards.verifiable.rules import RULES, Domain, Problem, Verification, edit_distance, iou, read_boxes, verify


def compared(domain: Domain, truth: str, answer: str, question: str = "What is it?") -> Verification:
    return RULES[domain](Problem(domain, question, truth, Contract.BOXED), answer)


# domain, truth, answer, score; None: unreadable
CASES: list[tuple[Domain, str, str, float | None]] = [
    (Domain.NUMBER, "7", "7", 1),
    (Domain.NUMBER, "40", "41", 1),  # exactly 2.5 % off
    (Domain.NUMBER, "40", "41.01", 0),
    (Domain.NUMBER, "40", "-40", 0),
    (Domain.NUMBER, "0", "0.0", 1),
    (Domain.NUMBER, "0", "0.0001", 0),
    (Domain.NUMBER, "-5", "−5", 1),  # the minus sign of Unicode
    (Domain.NUMBER, "1,234.5", "1234.5", 1),
    (Domain.NUMBER, "42%", "42", 1),
    (Domain.NUMBER, "42", "42%", 1),
    (Domain.NUMBER, "0.42", "42%", 0),
    (Domain.NUMBER, "42", "42 million", None),
    (Domain.NUMBER, "42 million", "42 Million", 1),
    (Domain.NUMBER, "$5", "5", 1),
    (Domain.NUMBER, "$5", "€5", None),
    (Domain.NUMBER, "1e3", "1000", 1),
    (Domain.NUMBER, "7", "between 0 and 10", None),
    (Domain.NUMBER, "7", "6-8", None),
    (Domain.NUMBER, "7", "7 8", None),
    (Domain.NUMBER, "7", "7, 8", None),
    (Domain.NUMBER, "7", "７", None),
    (Domain.NUMBER, "7", "٧", None),
    (Domain.NUMBER, "7", "nan", None),
    (Domain.NUMBER, "7", "inf", None),
    (Domain.NUMBER, "7", "1_0", None),
    (Domain.NUMBER, "7", "9^9^9^9", None),
    (Domain.NUMBER, "7", "9" * 4000, None),
    (Domain.NUMBER, "7", "1e999", 0),
    # a truth that looks like a year is one, however the answer is written
    (Domain.NUMBER, "2020", "2020", 1),
    (Domain.NUMBER, "2020", "2019", 0),
    (Domain.NUMBER, "2020", "2019.0", 0),
    (Domain.NUMBER, "2020", "2,019", 0),
    (Domain.NUMBER, "2,020", "2019", 1),
    (Domain.NUMBER, "2020.5", "2019", 1),
    (Domain.NUMBER, "3020", "3019", 1),
    (Domain.COUNT, "7", "7", 1),
    (Domain.COUNT, "7", "8", 0),
    (Domain.COUNT, "7", "7.0", None),
    (Domain.COUNT, "7", "seven", None),
    (Domain.COUNT, "7", "7 or 8", None),
    (Domain.COUNT, "7", "７", None),
    (Domain.COUNT, "7", "9" * 4000, None),
    (Domain.CHOICE, "B", "B", 1),
    (Domain.CHOICE, "B", "(b).", 1),
    (Domain.CHOICE, "(B)", r"\text{B}", 1),
    (Domain.CHOICE, "B", "C", 0),
    (Domain.CHOICE, "B", "В", None),  # Cyrillic
    (Domain.CHOICE, "B", "A or B", None),
    (Domain.CHOICE, "B", "AB", None),
    (Domain.CHOICE, "B", "B because it is blue", None),
    (Domain.EXACT, "Paris", " Paris ", 1),
    (Domain.EXACT, "Paris", "paris", 0),
    (Domain.EXACT, "Paris", "Paris or London", 0),
    (Domain.EXACT, "caf\u00e9", "cafe\u0301", 1),  # the same letters, composed or not
    (Domain.EXACT, "Paris", "Pаris", 0),  # one letter is Cyrillic
    (Domain.OCR, "STOP", "STOP", 1),
    (Domain.OCR, "STOP", "SHOP", 0.75),
    (Domain.OCR, "STOP", "STOP HERE", 4 / 9),
    (Domain.OCR, "STOP\n  HERE", "STOP HERE", 1),
    (Domain.OCR, "STOP", "x" * 4000, 0),
    (Domain.GROUNDING, "[0,0,10,10]", "[0, 0, 10, 10]", 1),
    (Domain.GROUNDING, "[0,0,10,10]", "[0,0,10,8]", 0.8),
    (Domain.GROUNDING, "[0,0,10,10]", "[0,0,10,5]", 0),  # 0.5 is not more than 0.5
    (Domain.GROUNDING, "[0,0,10,10]", "[[0,0,10,10]]", 1),
    (Domain.GROUNDING, "[0,0,10,10]", "[0,0,1000,1000]", 0),
    (Domain.GROUNDING, "[[0,0,10,10],[20,0,30,10]]", "[[20,0,30,10],[0,0,10,10]]", 1),
    (Domain.GROUNDING, "[[0,0,10,10],[20,0,30,10]]", "[0,0,10,10]", 0.5),
    (Domain.GROUNDING, "[[0,0,10,10],[20,0,30,10]]", "[[0,0,10,10],[0,0,10,9]]", 0.5),  # one object, found twice
    (Domain.GROUNDING, "[0,0,10,10]", "[10,10,0,0]", None),
    (Domain.GROUNDING, "[0,0,10,10]", "[0,0,10]", None),
    (Domain.GROUNDING, "[0,0,10,10]", "about [0,0,10,10]", None),
    (Domain.GROUNDING, "[0,0,10,10]", "[0,0,10,10] or [20,0,30,10]", None),
]


@pytest.mark.parametrize(("domain", "truth", "answer", "score"), CASES)
def test_cases(domain: Domain, truth: str, answer: str, score: float | None) -> None:
    """Scores worked by hand."""
    found = compared(domain, truth, answer)
    assert found.status is (AnswerStatus.UNREADABLE if score is None else AnswerStatus.OK)
    assert found.score == pytest.approx(score or 0)


@pytest.mark.parametrize("question", ["", "In which year?"])
def test_the_year_rule_asks_nothing_of_the_question(question: str) -> None:
    """The rule holds with and without one."""
    assert compared(Domain.NUMBER, "2020", "2019", question).score == 0


def test_more_boxes_than_objects_hedge() -> None:
    """However right one of them is."""
    found = compared(Domain.GROUNDING, "[0,0,10,10]", "[[0,0,10,10],[20,0,30,10]]")
    assert found == Verification(0.0, AnswerStatus.SEVERAL, "[[0,0,10,10],[20,0,30,10]]")


@pytest.mark.parametrize("domain", [Domain.NUMBER, Domain.CHOICE, Domain.COUNT, Domain.GROUNDING])
def test_a_truth_that_cannot_be_read_is_an_error(domain: Domain) -> None:
    """Counted, and never paid, also for the same nonsense."""
    problem = Problem(domain, "?", "who knows", Contract.BOXED)
    assert verify(problem, r"\boxed{who knows}", RULES) == Verification(0.0, AnswerStatus.ERROR, "who knows")


def test_what_breaks_is_a_status() -> None:
    """An exception, an unknown domain, a bad place: no reward and no raise."""

    def broken(problem: Problem, answer: str) -> Verification:
        raise RecursionError(answer)

    problem = Problem(Domain.COUNT, "?", "7", Contract.BOXED)
    assert verify(problem, r"\boxed{7}", RULES).score == 1
    assert verify(problem, r"\boxed{7}", {Domain.COUNT: broken}).status is AnswerStatus.ERROR
    assert verify(problem, r"\boxed{7}", {}).status is AnswerStatus.ERROR
    assert verify(problem, "7", RULES) == Verification(0.0, AnswerStatus.MISSING)


def test_only_ok_carries_a_score() -> None:
    """A record that says otherwise cannot be made."""
    for score, status in [
        (1.0, AnswerStatus.TIMEOUT),
        (1.5, AnswerStatus.OK),
        (-0.1, AnswerStatus.OK),
        (float("nan"), AnswerStatus.OK),
    ]:
        with pytest.raises(AssertionError):
            Verification(score, status)


def table_distance(first: str, second: str) -> int:
    """The textbook's table, row by row."""
    row = list(range(len(second) + 1))
    for n, letter in enumerate(first, start=1):
        below = [n]
        for m, other in enumerate(second, start=1):
            below.append(min(row[m] + 1, below[-1] + 1, row[m - 1] + (letter != other)))
        row = below
    return row[-1]


def test_edit_distance() -> None:
    """The distance is as the table has it, on random words; symmetric, and quick on long ones."""
    draw = random.Random(0)
    for _ in range(1500):
        a, b = ("".join(draw.choices("abc", k=draw.randrange(14))) for _ in range(2))
        assert edit_distance(a, b) == table_distance(a, b) == edit_distance(b, a)
    assert edit_distance("kitten", "sitting") == 3
    assert edit_distance("ab" * 2000, "ba" * 2000) == 2


def test_iou_equals_counted_cells() -> None:
    """On a grid, by counting."""
    draw = random.Random(0)
    for _ in range(200):
        cells, boxes = [], []
        for _ in range(2):
            x, y = draw.randrange(6), draw.randrange(6)
            w, h = draw.randrange(1, 6), draw.randrange(1, 6)
            boxes.append((float(x), float(y), float(x + w), float(y + h)))
            cells.append({(i, j) for i in range(x, x + w) for j in range(y, y + h)})
        assert iou(*boxes) == pytest.approx(len(cells[0] & cells[1]) / len(cells[0] | cells[1]))
    assert read_boxes("[1, 2.5,3,4] [5,6,7,8]") == [(1, 2.5, 3, 4), (5, 6, 7, 8)]
    assert read_boxes("[[1,2,3,4] , [5,6,7,8],\n[9,9,10,10]\n]") == [(1, 2, 3, 4), (5, 6, 7, 8), (9, 9, 10, 10)]
    lines = "\n".join(f"[{n}, 10, {n + 9}, 19]" for n in range(300))
    assert read_boxes(f"[\n{lines}\n...]") == []  # in no time: with two ways to read each gap it would take 2^300 steps
    assert len(read_boxes(f"[\n{lines}\n]")) == 300


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7", Fraction(7)),
        ("-1,234.5", Fraction(-2469, 2)),
        (".5", Fraction(1, 2)),
        ("1{,}000", Fraction(1000)),
        (r"\frac12", Fraction(1, 2)),
        (r"-\frac{3}{4}", Fraction(-3, 4)),
        (r"1\frac{1}{2}", Fraction(3, 2)),
        ("6/4", Fraction(3, 2)),
        (r"3 \times 10^{5}", Fraction(300_000)),
        ("2e-2", Fraction(1, 50)),
        *(
            (text, None)
            for text in ("", "7 8", "1,23", "3\\cdot 4", "2^{10}", "7+0", "1/0", "seven", "７", "1e9999", "--7", "7.")
        ),
    ],
)
def test_literals(text: str, value: Fraction | None) -> None:
    """Exact values; an expression to be evaluated is none."""
    assert parse_number(text) == value


def test_units_years_and_decimals() -> None:
    """What is written about a number, what looks like a year, and what has a finite decimal."""
    assert [parse_quantity(t).unit for t in ("5", "5 %", "$5", "5 kg")] == ["", "%", "$", "kg"]  # type: ignore[union-attr]
    assert [parse_quantity(t) for t in ("$5%", "5 kg or so", "+-5", "kg")] == [None] * 4
    assert [is_year(t) for t in ("1000", "2999", "999", "3000", "2,020", "2020.0", "-2020", "2020 AD")] == [True] * 2 + [
        False
    ] * 6
    assert [terminates(Fraction(1, n)) for n in (1, 2, 5, 40, 3, 6, 7)] == [True] * 4 + [False] * 3
