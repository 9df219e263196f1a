"""Which claims of these papers hold here? ``python -m eval.studies claims``

A claim is one difference between two arms, by seed. This file has the claims; the numbers are those of the studies' trials.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from eval.studies.long_report import flat_row, rows_at
from eval.studies.study import Record
from eval.studies.tables import Mean, cell, mean_of, page, table

LONG, POLICY = "long", "policy"  # studies
GAIN, WINDOW = 0.05, 60_000  # CPU seconds are counted until the rollouts of so many tokens are right so much more often
UNITS = {  # of scores; that of others is points of right judgments or answers
    "greedy_accuracy": "points, greedy",
    "vote_5": "points, majority of 5",
    "any_5": "points, any of 5",
    "consistent": "points, reasoning that agrees",
    "waits": 'points, judgments with "wait"',
    "findings_true": "points, right findings",
    "follows": "points, verdicts that follow",
    "swap_consistency": "points, same winner in both orders",
}
RATIOS = {  # scores that are compared as a ratio
    "length": "times the tokens",
    "cpu_to_level": f"times the CPU seconds to {100 * GAIN:.0f} points more right rollouts",
}


@dataclass(frozen=True)
class Claim:
    """The score of ``arm`` is higher (``sign`` 1) or lower (-1) than that of ``against``; an empty name is the judge before RL.
    ``other_score``: the score of ``against``, if it is another one. ``when``: when the effect
    exists, in a sentence."""

    paper: str
    text: str
    arm: str
    against: str
    score: str = "accuracy"
    sign: int = 1
    other_score: str = ""
    study: str = LONG
    when: str = ""


CLAIMS = (
    Claim("R1-Reward", "RL lifts a judge after SFT", "stable_reinforce", ""),
    Claim("R1-Reward", "RL lifts a majority of 5", "stable_reinforce", "", "vote_5"),
    Claim("R1-Reward", "RL needs a cold start", "stable_reinforce", "from_base"),
    Claim("R1-Reward", "hard pairs teach more than easy ones", "stable_reinforce", "easy"),
    Claim("R1-Reward", "hard pairs teach more than all pairs", "stable_reinforce", "all"),
    Claim("R1-Reward", "votes find harder pairs than the teacher's tags", "hard_votes", "stable_reinforce"),
    Claim("R1-Reward", "pre-clip and filter keep a run of many epochs alive", "stress", "stress_neither"),
    Claim("R1-Reward", "the filter is needed beside the pre-clip", "stress", "stress_no_filter"),
    Claim("R1-Reward", "the pre-clip is needed beside the filter", "stress", "stress_no_preclip"),
    Claim(
        "R1-Reward", "a consistency reward makes reasoning agree with verdicts", "consistency", "stable_reinforce", "consistent"
    ),
    Claim("R1-Reward", "a consistency reward raises accuracy", "consistency", "stable_reinforce"),
    Claim("R1-Reward", "RL shortens judgments (by 15 %)", "stable_reinforce", "", "length", -1),
    Claim("R1-Reward", "RL makes judgments re-read more often", "stable_reinforce", "", "waits"),
    Claim("R1-Reward", "a majority of 5 beats one judgment, before RL", "", "", "vote_5", 1, "accuracy"),
    Claim(
        "R1-Reward",
        "a majority of 5 beats one judgment, after RL",
        "stable_reinforce",
        "stable_reinforce",
        "vote_5",
        1,
        "accuracy",
    ),
    Claim("Does RL widen?", "RL lowers what any of 5 judgments finds", "stable_reinforce", "", "any_5", -1),
    Claim("VC-PPO", "PPO (lambda 0.95) loses long reasoning", "ppo", "", sign=-1),
    Claim("VC-PPO", "a fitted critic and decoupled lambdas cure it", "vc_ppo", "ppo"),
    Claim("VC-PPO", "a fitted critic alone cures it", "ppo_fitted", "ppo"),
    Claim("VC-PPO", "decoupled lambdas alone cure it", "ppo_decoupled", "ppo"),
    Claim("PPO", "lambda 1 cures it", "ppo_lambda_1", "ppo"),
    Claim("VAPO", "VAPO is better than VC-PPO", "vapo", "vc_ppo"),
    Claim("VAPO", "VAPO is better than GRPO", "vapo", "grpo"),
    Claim("VAPO", "VAPO is better than DAPO", "vapo", "dapo"),
    Claim("VAPO", "its lambda by length helps", "vapo", "vapo_no_length"),
    Claim("VAPO", "its higher upper clip helps", "vapo", "vapo_no_clip_higher"),
    Claim("VAPO", "its likelihood of right rollouts helps", "vapo", "vapo_no_nll"),
    Claim("VAPO", "its groups help", "vapo", "vapo_no_groups"),
    Claim("T-PPO", "windows of 64 reach an accuracy sooner than whole rollouts", "t_ppo_64", "vapo", "cpu_to_level", -1),
    Claim("T-PPO", "windows of 128 reach it sooner", "t_ppo_128", "vapo", "cpu_to_level", -1),
    Claim("T-PPO", "windows of 256 reach it sooner", "t_ppo_256", "vapo", "cpu_to_level", -1),
    Claim("T-PPO", "windows of 128 end at a higher accuracy", "t_ppo_128", "vapo"),
    Claim("PAG", "its last judgment beats a majority of 3 without it", "pag", "stable_reinforce", "accuracy", 1, "vote_3"),
    Claim("PAG", "it does so as its authors ran it", "pag_of_its_authors", "stable_reinforce", "accuracy", 1, "vote_3"),
    Claim("PAG", "the authors' settings are better than ours", "pag_of_its_authors", "pag"),
    Claim("DAPO", "DAPO is better than GRPO", "dapo", "grpo"),
    Claim("DAPO", "its higher upper clip helps", "dapo", "dapo_no_clip_higher"),
    Claim("DAPO", "its means over tokens help", "dapo", "dapo_no_token_mean"),
    Claim("DAPO", "its dynamic sampling helps", "dapo", "dapo_no_dynamic"),
    Claim("DAPO", "its cost of length helps", "dapo", "dapo_no_overlong"),
    Claim("DAPO", "a cost of length shortens judgments", "overlong", "stable_reinforce", "length", -1),
    Claim("DAPO", "a cost of length raises accuracy", "overlong", "stable_reinforce"),
    Claim("GLM-4.1V", "a curriculum by difficulty (RLCS) is better than GRPO", "rlcs", "grpo"),
    Claim("FIRE", "a hot first token of the reasoning helps", "fire", "stable_reinforce"),
    Claim("FIRE", "a hot token of the first line helps", "fire_later", "stable_reinforce"),
    Claim("FIRE", "any of 5 judgments finds more", "fire", "stable_reinforce", "any_5"),
    Claim("Process rewards", "rewards of steps help", "process_dense", "reinforce"),
    Claim("Process rewards", "labels of steps fit a critic", "process_value", "ppo"),
    Claim("Seed1.5-VL", "thinking beats answering at once", "stable_reinforce", "answers"),
    Claim("Seed1.5-VL", "thinking beats a look at one line", "stable_reinforce", "short"),
    Claim("MJ1", "a judge that checks its claims first is better", "checks", "stable_reinforce"),
    Claim("MJ1", "a reward for verdicts that follow makes them follow", "checks_follow", "checks", "follows"),
    Claim("MJ1", "a reward for right findings makes more of them right", "checks_true", "checks", "findings_true"),
    Claim("MJ1", "a reward for agreement makes both orders agree", "checks_swap", "checks", "swap_consistency"),
    Claim("Pairwise-RL", "a judge beats a scalar head as the reward", "right_answer", "scalar", study=POLICY),
    Claim("Pairwise-RL", "the same, with the judge held near the start", "right_answer_kl", "scalar", study=POLICY),
    Claim("DPO", "an implicit reward beats a head", "likelihood", "scalar", study=POLICY),
    Claim("Pairwise-RL", "its PPO beats critic-free RL, by the truth", "truth_ppo", "truth", study=POLICY),
    Claim("Pairwise-RL", "its PPO beats critic-free RL, by the judge", "right_answer_kl_ppo", "right_answer_kl", study=POLICY),
    Claim("Pre-PPO", "a verifier is better than a judge that knows the answer", "truth", "right_answer", study=POLICY),
    Claim("Pre-PPO", "the same, near the start", "truth_kl", "right_answer_kl", study=POLICY),
    Claim(
        "Pre-PPO",
        "a judge that knows the answer is better than one with the best of N",
        "right_answer",
        "best_of_four",
        study=POLICY,
    ),
    Claim("Pre-PPO", "the same, near the start", "right_answer_kl", "best_of_four_kl", study=POLICY),
    Claim("Pre-PPO", "hard questions teach more", "hard", "truth", study=POLICY),
    Claim("Pre-PPO", "questions with rules first help", "digits_first", "two_halves", study=POLICY),
    Claim("Seed1.5-VL", "KL terms by kind of reward help", "mixed_kl_by_kind", "mixed", study=POLICY),
    Claim(
        "Seed1.5-VL", "KL terms by kind help the kind without one", "mixed_kl_by_kind", "mixed", "accuracy_digits", study=POLICY
    ),
    Claim("GLM-4.1V", "one broken reward harms its kind", "mixed_broken", "mixed", "accuracy_digits", -1, study=POLICY),
    Claim("GLM-4.1V", "one broken reward harms the other kind", "mixed_broken", "mixed", "accuracy_scenes", -1, study=POLICY),
    Claim(
        "GLM-4.1V", "it harms more without a KL term", "mixed_broken_free", "mixed_broken", "accuracy_scenes", -1, study=POLICY
    ),
    Claim("GLM-4.1V", "mixing kinds helps scenes", "mixed", "scenes", "accuracy_scenes", study=POLICY),
    Claim("GLM-4.1V", "mixing kinds helps digits", "mixed", "digits", "accuracy_digits", study=POLICY),
)
Rows = Mapping[str, Mapping[int, Record]]  # of a study: by arm ("": before training) and seed


def cpu_to_level(record: Record) -> float | None:
    """Return the CPU seconds of training until the right rollouts in a window of :data:`WINDOW` tokens are on average
    :data:`GAIN` above the accuracy of the judge before RL, in the middle of that window; None if they never are."""
    series, level = record["series"], (record["start"] or record["plain"])["accuracy"] + GAIN
    right = series.get("last_right") or series.get("right") or [None] * len(series["tokens"])
    for until in (tokens for tokens in series["tokens"] if tokens >= WINDOW):
        batches = [
            (of, seconds)
            for of, tokens, seconds in zip(right, series["tokens"], series["cpu_s"], strict=True)
            if until - WINDOW < tokens <= until and of is not None
        ]
        fraction, middle = np.mean(batches, axis=0) if batches else (0.0, 0.0)
        if fraction >= level:
            return float(middle)
    return None


def long_rows(records: Sequence[Record], budget: int) -> Rows:
    """Return the rows of the long study at a budget."""
    rows: dict[str, dict[int, Record]] = {"": {record["seed"]: flat_row(record["plain"]) for record in records}}
    for record in records:
        for seed, row in rows_at([record], budget).items():
            rows.setdefault(record["arm"], {})[seed] = {**flat_row(row), "cpu_to_level": cpu_to_level(record)}
    return rows


def policy_rows(records: Sequence[Record]) -> Rows:
    """Return the rows of the policy study."""
    rows: dict[str, dict[int, Record]] = {}
    for record in records:
        rows.setdefault(record["arm"], {})[record["seed"]] = record
    return rows


def effect_of(claim: Claim, rows: Rows) -> dict[str, Any]:
    """Return the mean difference, or ratio, by seed with its interval, and what it says of the claim.

    ``seeds`` counts the seeds with both arms; ``missing`` those of them without one of the two scores, and then there is no
    effect: a judgment's length or a level that is never reached has no mean."""
    ours, theirs = rows.get(claim.arm, {}), rows.get(claim.against, {})
    seeds = sorted(ours.keys() & theirs.keys())
    pairs = [(ours[seed].get(claim.score), theirs[seed].get(claim.other_score or claim.score)) for seed in seeds]
    whole = [(a, b) for a, b in pairs if a is not None and b is not None]
    ratio = claim.score in RATIOS
    effect = mean_of([math.log(a / b) if ratio else a - b for a, b in whole]) if len(whole) == len(pairs) else None
    facts = {
        "effect": effect,
        "seeds": len(seeds),
        "missing": len(pairs) - len(whole),
        "finding": finding_of(effect, claim.sign),
    }
    if effect and ratio:
        interval = effect["interval"] and [math.exp(bound) for bound in effect["interval"]]
        facts["effect"] = {"mean": math.exp(effect["mean"]), "interval": interval}
    return facts


def finding_of(effect: Mean | None, sign: int) -> str:
    """Return what an effect says of a claim: its interval is on the claimed side of 0, on the other one, or on both."""
    if effect is None:
        return "not measured"
    if effect["interval"] is None:
        return "one seed"
    low, high = sorted(sign * bound for bound in effect["interval"])
    return "holds" if low > 0 else "reversed" if high < 0 else "open"


def summarize_claims(rows: Mapping[str, Rows], facts: Sequence[str]) -> dict[str, Any]:
    """Return every claim with its effect; ``rows`` by study, ``facts`` for the head of the page."""
    claims = [
        {**{name: getattr(claim, name) for name in Claim.__dataclass_fields__}, **effect_of(claim, rows.get(claim.study, {}))}
        for claim in CLAIMS
    ]
    return {"facts": list(facts), "claims": claims}


def claims_markdown(summary: dict[str, Any]) -> str:
    """Return the table of claims."""
    rows = []
    for claim in summary["claims"]:
        ratio = RATIOS.get(claim["score"])
        shown = cell(claim["effect"], 1, 2) if ratio else cell(claim["effect"], 100, sign=True)
        effect = f"{shown} {ratio or UNITS.get(claim['score'], 'points')}" if claim["effect"] else shown
        missing = f", no value in {claim['missing']}" if claim["missing"] else ""
        arms = f"`{claim['arm'] or 'before'}`, `{claim['against'] or 'before'}`"
        rows.append(
            [claim["paper"], claim["text"], arms, effect, f"{claim['seeds']}{missing}", claim["finding"], claim["when"]]
        )
    facts = [
        *summary["facts"],
        "Effect: the mean difference by seed between two arms, with Student's 95 % interval over seeds. A claim holds if its "
        "interval is on the claimed side of zero. It is open if zero is within: an effect up to its ends may exist.",
    ]
    return page("Claims", facts, table(["paper", "claim", "arms", "effect", "seeds", "finding", "when it exists"], rows))
