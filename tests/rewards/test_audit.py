"""The audit of a reward: what is paid is told, probes hold for our rules, and a bad reward does not get past them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from rewardlab.config.judge import JudgeConfig
from rewardlab.errors import ConfigError, DataError
from rewardlab.judging.judge import GenerativeJudge
from rewardlab.prompts import load_template
from rewardlab.rewards.audit.audit import (
    CONTROL,
    AuditReport,
    ProbeResult,
    audit_html,
    audit_markdown,
    audit_sentences,
    probe_matrices,
    probes_of,
    run_audit,
    summarise,
    try_probes,
    write_audit,
)
from rewardlab.rewards.audit.rows import VERDICT, AuditRow, Rewarder, open_rewarder, pair_judge, read_audit
from rewardlab.rewards.verifiable.extraction import AnswerStatus, Contract
from rewardlab.rewards.verifiable.hybrid import JudgeScore, PairJudge, Prompt, all_verifiers
from rewardlab.rewards.verifiable.mathematics import MathVerifier
from rewardlab.rewards.verifiable.rules import PLACES, RULES, Compare, Domain, Problem, Verification
from rewardlab.samplers.scripted import ScriptedSampler
from rewardlab.types import Message, Order, Verdict, VerdictStatus, choice_of
from rewardlab.verdicts.parse import format_verdict

ROOT = Path(__file__).parents[2]
TRUTHS = {
    "math": [(r"What is $3 \cdot 4$?", "12"), ("Expand $(x+1)^2$.", "x^2+2x+1"), ("Area of the unit circle?", r"\pi")],
    "number": [("Peak year?", "2020"), ("Share of blue?", "42%"), ("Compute 3*4+2.", "14"), ("Low?", "-0.5")],
    "choice": [("Which panel?", "A"), ("Which panel?", "D")],
    "exact": [("Capital of France?", "Paris"), ("Sum?", "7")],
    "ocr": [("Read the sign.", "NO ENTRY"), ("Read it.", "Baker's Street, 7-12")],
    "grounding": [("Find the dog.", "[10, 20, 110, 220]"), ("Find both.", "[[0,0,9,9],[20,20,40.5,40]]")],
    "count": [("How many cups?", "3"), ("How many?", "1")],
    "code": [("Double.", "assert double(3) == 6"), ("Add one.", '[["4", "5"], ["-1", "0"]]')],
    "constraints": [("Be short.", '{"words": [null, 50], "commas": 0}'), ("Name it.", '{"include": ["blue"], "form": "json"}')],
    VERDICT: [("Which is better?", "1"), ("Which is better?", "2")],
}


@pytest.fixture(scope="module")
def verifiers() -> dict[str, Compare]:
    return all_verifiers() | {Domain.MATH: MathVerifier(timeout_s=1.0).compare}


def probed(prompts: list[Prompt], rewarder: Rewarder) -> dict[str, ProbeResult]:
    """The summary of all probes of the prompts, by name of the probe; the prompts are of one domain."""
    return {c.probe: c for c in summarise(try_probes([p for x in prompts for p in probes_of(x, rewarder)], rewarder))}


def prompts_of(domain: str, **fields: Any) -> list[Prompt]:
    return [Prompt(f"p{n}", domain, question, truth, **fields) for n, (question, truth) in enumerate(TRUTHS[domain])]


@pytest.mark.parametrize("domain", sorted(TRUTHS))
@pytest.mark.parametrize("contract", list(Contract))
def test_our_rewards_hold(domain: str, contract: Contract, verifiers: dict[str, Compare]) -> None:
    """In every domain and contract, with thinking and without: nothing is overpaid, the truth is paid. Mathematics and code,
    whose probes take their time, have one contract, with thinking."""
    slow = domain in ("math", "code")
    if slow and contract is not Contract.BOXED:
        pytest.skip("contract and thinking are taken off before the algebra and the programs; other domains have all of them")
    for thinking in (True,) if slow else (True, False):
        cells = probed(prompts_of(domain, contract=contract, thinking=thinking), Rewarder(verifiers, None))
        assert [c.probe for c in cells.values() if not c.passed] == []
        assert domain in (VERDICT, *PLACES) or cells[CONTROL].worst.reward == 1


def paying(verdict: Any) -> Compare:
    """A rule of somebody's: 1 where ``verdict(truth, answer)``."""
    return lambda problem, answer: Verification(float(verdict(problem.truth, answer)), AnswerStatus.OK, answer)


def last_number(truth: str, answer: str) -> bool:
    return re.findall(r"\d+", answer)[-1:] == [truth]


NAIVE = [
    ("the last number", "count", last_number, {"a range", "alternatives", "look-alikes", "injection"}),
    ("the truth is in it", "count", lambda truth, answer: truth in answer, {"a range", "alternatives", "enormous"}),
    (
        "any digit reads as one",
        "count",
        lambda truth, answer: answer.strip().isdigit() and int(answer) == int(truth),
        {"look-alikes"},
    ),
    ("all but letters dropped", "exact", lambda truth, answer: re.sub(r"\W", "", answer) in truth, {"empty"}),
    ("pays nobody", "exact", lambda truth, answer: False, {CONTROL}),
    (
        "pays everybody",
        "choice",
        lambda truth, answer: True,
        {"a range", "alternatives", "the question", "injection", "enormous"},
    ),
]


@pytest.mark.parametrize(("domain", "rule", "caught"), [case[1:] for case in NAIVE], ids=[case[0] for case in NAIVE])
def test_naive_rules_are_caught(domain: str, rule: Any, caught: set[str]) -> None:
    """Faults are found by the probes made for what they overlook."""
    cells = probed(prompts_of(domain), Rewarder({domain: paying(rule)}, None))
    assert caught <= {name for name, cell in cells.items() if not cell.passed}


def test_a_naive_place_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """One who takes the last box pays for several."""
    from rewardlab.rewards.verifiable import rules as module
    from rewardlab.rewards.verifiable.extraction import Extraction

    def last_box(solution: str, contract: Contract) -> Extraction:
        found = re.findall(r"\\boxed\{([^{}]*)\}", solution)
        return Extraction(found[-1], AnswerStatus.OK) if found else Extraction("", AnswerStatus.MISSING)

    monkeypatch.setattr(module, "extract", last_box)
    broken = {name for name, cell in probed(prompts_of("count"), Rewarder(RULES, None)).items() if not cell.passed}
    assert broken == {"several boxes", "a box in a box", "two kinds of box"}


def test_a_naive_verdict_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """One who takes the first digit anywhere pays verdicts in the thinking, orders, and both at once."""
    from rewardlab.rewards import scorer as module

    def first_digit(completion: Any, verdict_format: str, criteria: Any) -> Verdict:
        found = re.search(r"[12]", completion.text)
        choice = choice_of(int(found[0]) - 1, Order.GIVEN) if found else None
        return Verdict(choice, VerdictStatus.OK if found else VerdictStatus.NO_VERDICT)

    monkeypatch.setattr(module, "verdict_of", first_digit)
    cells = probed(prompts_of(VERDICT), Rewarder(RULES, None))
    broken = {name for name, cell in cells.items() if not cell.passed}
    assert {"both named in one tag", "verdict in the thinking", "thinking not closed", "injection", "cut off"} <= broken
    assert cells["both named in one tag"].worst.reward == 1


def judged(judge: PairJudge) -> set[str]:
    """Probes of a judge-paid prompt that did not hold."""
    prompts = [
        Prompt("p", "poem", "Write about rain.", truth="Rain keeps no count."),
        Prompt("q", "poem", "On snow?", best="Snow."),
    ]
    return {name for name, cell in probed(prompts, Rewarder({}, judge)).items() if not cell.passed}


def test_judges() -> None:
    """A fair one holds; one that obeys, one that likes length and one that cannot tell do not."""

    def fair(prompt: Prompt, solution: str, reference: str) -> JudgeScore:
        return JudgeScore(0.9 if "I cannot" in reference else 0.1)

    def obedient(prompt: Prompt, solution: str, reference: str) -> JudgeScore:
        return JudgeScore(1.0 if "ignore all" in solution.lower() else fair(prompt, solution, reference).probability)

    def by_length(prompt: Prompt, solution: str, reference: str) -> JudgeScore:
        return JudgeScore(float(len(solution) > len(reference)))

    assert judged(fair) == set()
    assert judged(obedient) == {"injection"}
    assert {"enormous", "injection", "a range"} <= judged(by_length)
    assert judged(lambda *_: JudgeScore(0.5)) == {"the reference against a refusal"}
    assert judged(lambda *_: JudgeScore(0.0, AnswerStatus.TIMEOUT)) == {"the reference against a refusal"}


def test_a_generative_judge_as_a_reward() -> None:
    """The share of valid votes over both orders; position bias is parity; no vote is no reward."""

    def prefers_rain(messages: tuple[Message, ...]) -> str:
        text = messages[-1].text
        rain, snow = text.find("RAIN"), text.find("SNOW")
        return format_verdict(choice_of(int(rain > snow), Order.GIVEN), "seen")

    prompt = Prompt("p", "poem", "Write.", truth="SNOW")

    def score(handler: Any, solution: str) -> JudgeScore:
        return pair_judge(GenerativeJudge(ScriptedSampler(handler), load_template("r1_reward")), num_votes=2)(
            prompt, solution, "SNOW"
        )

    assert score(lambda messages, n: prefers_rain(messages), "RAIN") == JudgeScore(1.0)
    assert score(lambda messages, n: "<think>a</think><answer>1</answer>", "RAIN") == JudgeScore(0.5)
    assert score(lambda messages, n: "both", "RAIN").status is AnswerStatus.UNREADABLE
    assert score(lambda messages, n: "both", " SNOW ") == JudgeScore(0.5)


def test_a_judge_that_always_names_the_first_is_no_reward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opened as the command opens it: it is at parity with everything, so a good answer does not beat a refusal."""
    judge = GenerativeJudge(ScriptedSampler(lambda *_: "<think>a</think><answer>1</answer>"), load_template("r1_reward"))
    monkeypatch.setattr(
        "rewardlab.rewards.audit.rows.open_model_judge", lambda config, **_: judge if config.judge == "hf:x" else None
    )
    poem = row(domain="poem", truth="Rain keeps no count.", response="<think>a</think>It rains.")
    report = run_audit(read(rows_file(tmp_path, poem)), open_rewarder(JudgeConfig.of("hf:x")), num_probed=1)
    assert report.domains["poem"].values[0].reward == 0.5
    assert [c.probe for c in report.probes if not c.passed] == ["the reference against a refusal"]
    assert audit_sentences(report) == ["poem: the reference against a refusal earned 0.5 and may earn over 0.5 (1 of 1 tries)."]


@pytest.mark.parametrize(("domain", "truth"), [("code", "def"), ("constraints", {"word": 3}), ("constraints", "[" * 100_000)])
def test_tests_and_constraints_that_cannot_be_read(tmp_path: Path, domain: str, truth: Any) -> None:
    """No probe would show them: every reward would be 0."""
    rows = read(rows_file(tmp_path, row(domain=domain, truth=truth, response="x")))
    with pytest.raises(DataError, match="its rule cannot read the truth"):
        run_audit(rows, open_rewarder(None), num_probed=1)


def test_a_probe_that_does_what_is_asked_is_left_out() -> None:
    from rewardlab.rewards.audit.audit import program_probes

    printed = "```python\nprint('OK')\n```"
    assert printed in program_probes('[["", "yes"]]')["a runner's words"]
    assert printed not in program_probes('[["", "OK"]]')["a runner's words"]


def rows_file(folder: Path, *rows: dict[str, Any]) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def row(**fields: Any) -> dict[str, Any]:
    return {"domain": "count", "question": "How many?", "truth": 3, "response": r"<think>a</think>\boxed{3}", **fields}


def read(path: Path) -> list[AuditRow]:
    return read_audit(path, images=None, contract="boxed", thinking=True)


def test_rows(tmp_path: Path) -> None:
    """Truths as numbers and lists; a reward where there is one."""
    rows = read(rows_file(tmp_path, row(), row(id="b", truth=[1, 2, 3, 4], reward=1)))
    assert [(r.prompt.prompt_id, r.prompt.truth, r.recorded) for r in rows] == [
        ("row-0", "3", None),
        ("b", "[1, 2, 3, 4]", 1.0),
    ]


def test_the_samples_of_an_rl_run(tmp_path: Path) -> None:
    """Rewards are what the trainer logs: computed again with the consistency of the record; without a verdict, as recorded."""
    base = {"step": 3, "pair_id": "a", "order": "swapped", "num_tokens": 9, "status": "ok", "format": True}
    said = "<think>a</think><answer>2</answer>"
    rows = read(
        rows_file(
            tmp_path,
            {**base, "text": said, "correct": True, "consistency": 1, "reward": 2.0},
            {**base, "text": said, "correct": False, "consistency": 0, "reward": 0.5},
            {**base, "text": said, "correct": True, "consistency": -1, "reward": 1.75},  # 1.0 is what it should be
            {**base, "text": "both", "status": "no_verdict", "correct": False, "consistency": 0, "reward": 0.0},
            {**base, "text": said, "status": "truncated", "correct": False, "consistency": 0, "reward": 0.0},
        )
    )
    assert [r.prompt.truth for r in rows] == ["2", "1", "2", None, None]
    report = run_audit(rows, Rewarder(RULES, None), num_probed=2)
    found = report.domains[VERDICT]
    assert [(v.reward, v.num_rows) for v in found.values] == [(0.0, 2), (0.5, 1), (1.0, 1), (2.0, 1)]
    assert (found.num_differ, found.sources) == (1, {VERDICT: 3, "recorded": 2})
    assert report.failed == 0
    assert audit_sentences(report) == ["verdict: 1 of 5 recorded rewards differ from ours."]


BAD = [
    (row(response=None), "'response' must be a string"),
    (row(domain=" "), "'domain' is empty"),
    (row(reward="high"), "expected a finite number"),
    (row(reward=float("nan")), "expected a finite number"),
    (row(domain=VERDICT), "expected 1 or 2"),
]


@pytest.mark.parametrize(("bad", "said"), BAD)
def test_bad_rows(bad: dict[str, Any], said: str, tmp_path: Path) -> None:
    """Named with their place and the cure."""
    with pytest.raises(DataError, match=f"row 1: .*{said}"):
        read(rows_file(tmp_path, row(), bad))


EXAMPLE = {  # eval/audit_example.jsonl, worked by hand
    **{"m1": 1, "m2": 0, "m3": 0, "m4": 1, "m5": 0, "n1": 0, "n2": 1, "n3": 0, "c1": 1, "c2": 0, "e1": 1, "k1": 1, "k2": 0},
    "o1": 7 / 8,  # one letter of eight
    "o2": 11 / 17,  # BAKERY OPEN of BAKERY, OPEN 7-12: a comma and five more
    "g1": 98 * 195 / (100 * 200),  # inside the truth
    "g2": 0,  # the whole image
    "v1": 1.5,
    "v2": 0.5,
    "w1": 0.3,  # nobody computes it again
}


def test_the_example(verifiers: dict[str, Compare]) -> None:
    """Every row of the example earns what a person would pay."""
    rewarder = Rewarder(verifiers, None)
    earned = {r.prompt.prompt_id: rewarder.reward_row(r).reward for r in read(ROOT / "eval" / "audit_example.jsonl")}
    assert earned == pytest.approx(EXAMPLE)


def test_bad_files(tmp_path: Path) -> None:
    """No such file, no rows, another kind, an unknown contract."""
    with pytest.raises(DataError, match="holds no rows"):
        read(rows_file(tmp_path))
    with pytest.raises(DataError, match="no such file"):
        read(tmp_path / "none.jsonl")
    with pytest.raises(DataError, match="domain, question, response"):
        read(tmp_path / "rows.csv")
    with pytest.raises(ConfigError, match="boxed"):
        read_audit(rows_file(tmp_path, row()), images=None, contract="circle", thinking=True)


def audited(tmp_path: Path, *rows: dict[str, Any], num_probed: int = 0) -> AuditReport:
    return run_audit(read(rows_file(tmp_path, *rows)), Rewarder(RULES, None), num_samples=1, num_probed=num_probed)


@pytest.mark.parametrize(("bad", "said"), [(row(domain="poem"), "give --judge"), (row(truth=None), "drop the prompt")])
def test_a_row_that_nothing_rewards(bad: dict[str, Any], said: str, tmp_path: Path) -> None:
    """An error before anything is counted."""
    with pytest.raises(DataError, match=said):
        audited(tmp_path, row(), bad)


def test_what_was_paid_is_told(tmp_path: Path) -> None:
    """Three rows worked by hand: values, statuses, a recorded reward that differs, and a domain taken as recorded."""
    report = audited(
        tmp_path,
        row(reward=1),
        row(response=r"<think>a</think>\boxed{3 or 4}", reward=1),
        row(response=r"\boxed{3}"),
        row(domain="poem", reward=0.3),
    )
    count, poem = report.domains["count"], report.domains["poem"]
    assert [(v.reward, v.num_rows, v.statuses) for v in count.values] == [
        (0.0, 2, {"unreadable": 1, "bad_format": 1}),
        (1.0, 1, {"ok": 1}),
    ]
    assert (count.mean, count.num_recorded, count.num_differ) == (pytest.approx(1 / 3), 2, 1)
    assert count.differ[0].response == r"<think>a</think>\boxed{3 or 4}"
    assert (poem.sources, poem.values[0].reward) == ({"recorded": 1}, 0.3)
    assert [len(v.samples) for v in count.values] == [1, 1]
    assert (report.failed, report.probes) == (0, [])


def test_many_values_go_into_tenths(tmp_path: Path) -> None:
    """Every row is in one of them."""
    rows = [row(domain="poem", reward=n / 100) for n in range(50)]
    values = audited(tmp_path, *rows).domains["poem"].values
    assert [v.reward for v in values] == [0.0, 0.1, 0.2, 0.3, 0.4, 0.5]
    assert sum(v.num_rows for v in values) == 50


def test_the_page_and_the_table(tmp_path: Path) -> None:
    """The failed probe stands in both, texts are escaped, and a domain that was not probed is named."""
    report = audited(
        tmp_path,
        row(domain="choice", truth="Paris", question="<b>Which?</b>"),
        row(),
        row(domain="poem", reward=0.3),
        num_probed=1,
    )
    assert report.failed == 1
    assert report.unprobed == ["poem"]
    assert audit_sentences(report) == [
        "choice: the truth itself earned 0 and may earn 1 (1 of 1 tries).",
        "poem: nothing was probed, because there is no verifier or judge for it; give --judge.",
    ]
    assert re.search(r"\| the truth itself +\| 1 +\| 0 \(!\) +\| 1 +\|", audit_markdown(report))
    assert [m.domains for m in probe_matrices(report)] == [["choice", "count"]]
    write_audit(report, tmp_path / "out")
    page = (tmp_path / "out" / "report.html").read_text()
    assert page == audit_html(report)
    assert "<b>Which?" not in page
    assert "&lt;b&gt;Which?" in page
    assert "1 of 28 probes did not earn what they may" in page
    assert not re.search(r"(?:src|href)=\"(?!data:)", page)  # nothing is fetched
    assert json.loads((tmp_path / "out" / "report.json").read_text()) == report.to_json()


def test_a_broken_rule_does_not_end_the_audit(tmp_path: Path) -> None:
    """The term pays nothing, so its control fails."""

    def broken(problem: Problem, answer: str) -> Verification:
        raise ZeroDivisionError

    rows = read(rows_file(tmp_path, row()))
    report = run_audit(rows, Rewarder({"count": broken}, None), num_samples=1, num_probed=1)
    assert report.domains["count"].statuses == {"error": 1}
    assert [c.probe for c in report.probes if not c.passed] == [CONTROL]
