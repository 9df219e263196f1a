"""Verdicts in prose: endings as judges write them, read by hand first, and the traps among them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardlab.types import Choice, VerdictStatus
from rewardlab.verdicts.parse import parse_verdict

FIRST, SECOND = Choice.FIRST, Choice.SECOND
TIE, NONE, NOT = VerdictStatus.TIE, VerdictStatus.NO_VERDICT, VerdictStatus.NOT_A_CHOICE

LINES = [
    ("**Winner: Response 1**", FIRST),
    ("Winner: 2", SECOND),
    ("Verdict: B", SECOND),
    ("My final verdict is: A", FIRST),
    ("Final verdict: Response 2.", SECOND),
    ("### Final Judgment: Answer B", SECOND),
    ("The better response is (A).", FIRST),
    ("**Preferred response:** Assistant A", FIRST),
    ("Better: 2", SECOND),
    ("Overall preference - Model B", SECOND),
    ("Answer: Response B", SECOND),
    ("My choice is Option A", FIRST),
    ('"Winner: A"', FIRST),
    ("> Winner: B", SECOND),
    ("- **Better response:** 1", FIRST),
    ("### 🏆 Winner: Response A ✅", FIRST),
    ("Final decision → Response A", FIRST),
    ("The winner is the second response.", SECOND),
    ("Winner: A?", NONE),
    ("Winner: the first response to name the dog", NONE),
    ("Winner: Tie", TIE),
    ("Verdict: C", TIE),
    ("Verdict: draw", TIE),
    ("Winner: B X", NONE),
    ("Answer: B", NONE),
    ("The correct answer is B", NONE),
    ("Winner: Response 3", NONE),
    ("Winner: A or B", NONE),
    ("Winner: Response A, but only just, if you mind style", NONE),
    ("The winner is not Response A", NONE),
    ("I cannot name a winner.", NONE),
    ("Winner: B" + "." * 1999 + "no: A", NONE),
]
CHOICES = [
    ("A", FIRST),
    ("**B**", SECOND),
    ("(2).", SECOND),
    ("[[1]]", NONE),
    ("`A`", FIRST),
    ("Response 1", FIRST),
    ("The Answer B", SECOND),
    ("The first answer.", FIRST),
    ("First answer", NONE),
    ("tie", TIE),
    ("C", TIE),
    ("D", NONE),
    ("3", NONE),
    ("A or B", NONE),
    ("A B", NONE),
    ("A X", NONE),
    ("12", NONE),
    ("A cat", NONE),
    ("not A", NONE),
    ("Answer: B", NONE),
    ("B" + "." * 1999 + "no: A", NONE),
]
SENTENCES = [
    ("I think Response A is better.", FIRST),
    ("In conclusion, Answer B is the better one.", SECOND),
    ("Overall, Response 2 is significantly better because it does not hallucinate.", SECOND),
    ("Response A does not mention the dog, so Response B is better.", SECOND),
    ("Response 1 is better than Response 2.", FIRST),
    ("I prefer Answer 2 over Answer 1.", SECOND),
    ("Therefore, I choose Response B.", SECOND),
    ("I would say that Response A is slightly better.", FIRST),
    ("Response B wins.", SECOND),
    ("**The winner is Response A.**", FIRST),
    ("The better response is Response B, for its detail.", SECOND),
    ("Thus Assistant A is the winner", FIRST),
    ("Both are equally accurate, but Response A is better.", FIRST),
    ("Response B is better. Response B is the winner.", SECOND),
    ("Response 1 seems to be the better response.", FIRST),
    ('"Response B is better" aside, Response A is better.', FIRST),
    ("Response A is better than the one marked ?X", FIRST),
    ("The first response is better because it counts.", FIRST),
    ("I prefer the second answer to the first one.", SECOND),
    ("The better answer is the second one.", SECOND),
    ("Response 1 outperforms Response 2 in detail.", FIRST),
    ("If I had to choose one, I would go with Response B.", SECOND),
    ("I prefer the first response's tone.", NOT),
    ("The first response is better than nothing, but the second one wins.", NOT),
    ("The second answer tells me that the second answer is better.", NOT),
    ("Response 1 outperforms nobody.", NONE),
    ("Response 1 outperforms expectations but is wrong.", NONE),
    ("Response 1 is better written but wrong, so the second one it is.", NONE),
    ("Verdict: Response 2 is worse.", NOT),
    ("Its first answer is better.", NONE),
    ("It is a tie.", TIE),
    ("Both responses are equally good.", TIE),
    ("Response A is not better", NONE),
    ("Response A is no better than Response B.", NONE),
    ("Response A is hardly better.", NONE),
    ("Response 1 is worse than Response 2.", NONE),
    ("Is Response A better?", NONE),
    ("It is hard to say which response is better.", NONE),
    ('It says "Response B is better", which I ignore.', NONE),
    ("Response A is better in colour, but overall Response B is better.", NOT),
    ("Although Response A is better in style, Response B is better.", NOT),
    ("Neither Response A nor Response B is better.", NOT),
    ("It is not true that Response A is better.", NOT),
    ("I would not say that, on balance, Response A is better.", NOT),
    ("I doubt Response A is better.", NOT),
    ("If you want style, Response A is better.", NOT),
    ("Response A is better only if you like dogs.", NOT),
    ("In the end, Response A is better only if you like dogs.", NOT),
    ("Response A is better, isn't it?’", NOT),
    ("Unless colour counts, Response 2 is better.", NOT),
    ("Response A is better, isn't it?", NOT),
    ("Some would say Response A is better.", NOT),
    ("Response B claims that Response B is better.", NOT),
    ("The second answer tells me to write that Answer 2 is better.", NOT),
    ("Response A is better. No: Response B is better.", NOT),
    ("Response A is bested by Response B.", NONE),
    ("Response A is the better-looking but wrong one.", NONE),
    ("Response A is best avoided.", NOT),
    ("Response A is better in no respect.", NOT),
    ("Response A is preferred by nobody.", NOT),
    ("Response A is preferred over by Response B.", NOT),
    ("I prefer Response A less than Response B.", NOT),
    ("I would choose Response A last.", NOT),
    ("Response A is better, which is false.", NOT),
    ("Response A is stronger, they claim, but that is wrong.", NOT),
    ("Response A is better — not!", NOT),
    ("Response A is better in style but B is better overall.", NOT),
    ("Response A is better in style, but the other is better overall.", NOT),
    ("The better response is Response A or Response B, I cannot say.", NOT),
    ("I pick Response A or B at random.", NOT),
    ("My verdict: Response A / Response B.", NOT),
    ("The better response is Response A's opposite.", NOT),
    ("Response A is better because it does not invent a dog, and nothing is missing.", FIRST),
    ("Response A is better than Response B, which is wrong about the dog.", FIRST),
    ("I choose Response A, for the other one is not right.", FIRST),
    ("Response A is the best of the two, but not by much.", FIRST),
]
CASES = [
    *(("winner_line", *case) for case in LINES),
    *(("choice_line", *case) for case in CHOICES),
    *(("prose_sentence", *case) for case in SENTENCES),
]


@pytest.mark.parametrize(("verdict_format", "line", "expected"), CASES)
def test_endings(verdict_format: str, line: str, expected: Choice | VerdictStatus) -> None:
    """The last line decides, whatever stands above it, and nothing within the reasoning does."""
    for text in (line, f"Response B is better in detail.\nWinner: B\n\n{line}\n", f"<think>Winner: B</think>{line}"):
        verdict = parse_verdict(text, verdict_format)
        assert (verdict.choice if isinstance(expected, Choice) else verdict.status) == expected, text
    assert parse_verdict(f"{line}\nBut I am not sure.", verdict_format).choice is None
    assert parse_verdict(f"<think>{line}", verdict_format).choice is None


@pytest.mark.parametrize(("verdict_format", "line", "expected"), CASES)
def test_exchanged_names_exchange_the_verdict(verdict_format: str, line: str, expected: Choice | VerdictStatus) -> None:
    """Neither name is favoured."""
    other = {"1": "2", "2": "1", "A": "B", "B": "A", "first": "second", "second": "first"}
    exchanged = re.sub(r"\b([12AB]|first|second)\b", lambda match: other[match[0]], line)
    assert parse_verdict(exchanged, verdict_format) == parse_verdict(line, verdict_format).swap()


@pytest.mark.parametrize(("verdict_format", "line", "expected"), CASES)
def test_the_rule_is_the_place_that_was_looked_at(verdict_format: str, line: str, expected: Choice | VerdictStatus) -> None:
    unread = {"winner_line": "no_winner_line", "choice_line": "no_choice_line", "prose_sentence": "no_statement"}
    assert parse_verdict(line, verdict_format).rule == (unread[verdict_format] if expected == NONE else verdict_format)


@given(st.sampled_from(CASES), st.text(max_size=80).filter(lambda text: "think>" not in text))
def test_what_stands_above_the_last_line_never_counts(case: tuple[str, str, Choice | VerdictStatus], above: str) -> None:
    """An answer that is quoted at length cannot change the verdict below it."""
    verdict_format, line, _ = case
    assert parse_verdict(f"{above}\n{line}", verdict_format) == parse_verdict(line, verdict_format)
