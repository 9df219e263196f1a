"""Does the best of more answers get worse? `python -m eval.over_optimisation --policy START --judge NAME=prob:...`

A policy answers each held-out question 64 times. A judge pays each answer the probability that it beats the right one. Of N of
them the best paid is taken, for N from 1 to 64: its pay, and whether it is right. Where the pay rises and the truth falls, the
judge is over-optimised (arXiv 2210.10760). The mean over all choices of N is reckoned, not drawn. Judges of the same NAME are
seeds of one. By hand. Results: eval/results/over_optimisation.json, .md and .png.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import numpy as np
from matplotlib import pyplot as plt

from eval.scripts import run_script
from eval.studies.plans import write_files
from eval.studies.policy_trials import MANY_WORDED
from eval.studies.summary import t_interval
from rewardlab.data.append_log import AppendLog
from rewardlab.data.pairs import read_pairs
from rewardlab.judging.engines import open_generative_judge
from rewardlab.judging.spec import judge_weights_id
from rewardlab.metrics.intervals import mean_interval
from rewardlab.models.checkpoints import commit
from rewardlab.prompts import build_messages, load_template
from rewardlab.reporting.progress import bar
from rewardlab.rewards.pairwise import PairwiseReward, without_thinking
from rewardlab.rewards.verified import exactly
from rewardlab.samplers.base import SamplingParams
from rewardlab.samplers.hf import HFSampler
from rewardlab.types import FinishReason, Order, PreferencePair

NAME, NUMBERS, CHUNK = "over_optimisation", (1, 2, 4, 8, 16, 32, 64), 16
FEW = 4
ROOT = Path(__file__).parents[1]
Record = dict[str, Any]


def best_of(scores: Sequence[float], values: Sequence[float], number: int) -> float:
    """Return the mean value of the answer with the highest score, over all choices of ``number`` of the answers; equal scores
    share the place.

    The chance that the highest score of a choice is at most s is C(k, number) / C(n, number) with k scores at most s.
    """
    order = np.argsort(scores, kind="stable")
    ordered, kept = np.asarray(scores, float)[order], np.asarray(values, float)[order]
    total, below, result = len(ordered), 0.0, 0.0
    for start, stop in _runs(ordered):
        at_most = _share_of_choices(stop, total, number)
        result += (at_most - below) * float(kept[start:stop].mean())
        below = at_most
    return result


def _runs(ordered: np.ndarray) -> list[tuple[int, int]]:
    """Return the [start, stop) of each run of equal scores."""
    ends = [n for n in range(1, len(ordered)) if ordered[n] != ordered[n - 1]] + [len(ordered)]
    return list(zip([0, *ends[:-1]], ends, strict=True))


def _share_of_choices(some: int, total: int, number: int) -> float:
    """Return C(some, number) / C(total, number)."""
    return float(np.prod([(some - n) / (total - n) for n in range(number)])) if some >= number else 0.0


def distinct_questions(path: Path, number: int) -> list[PreferencePair]:
    """Return so many labelled pairs whose question has one right answer."""
    pairs = (pair for pair in read_pairs(path) if pair.preferred is not None and pair.question != MANY_WORDED)
    return list(itertools.islice(pairs, number))


def sample_policy(policy: Path, pairs: Sequence[PreferencePair], out: Path, *, max_tokens: int, seed: int) -> list[list[str]]:
    """Return 64 answers to each question, "" for one without an end; a killed run goes on."""
    sampler, template = HFSampler.load(policy, batch_size=512), load_template("answer")
    params = SamplingParams(NUMBERS[-1], max_tokens=max_tokens, seed=seed)
    identity = {
        "policy": judge_weights_id(f"hf:{policy}"),
        "template": template.hash,
        "max_tokens": max_tokens,
        "pairs": [pair.pair_id for pair in pairs],
        "seed": seed,
    }
    with AppendLog(out / "answers.jsonl", identity) as log, bar("answers", len(pairs)) as advance:
        answers = [texts for row in log.rows for texts in row["answers"]]
        advance(len(answers))
        for start in range(len(answers), len(pairs), CHUNK):
            some = pairs[start : start + CHUNK]
            prompts = [build_messages(pair, order=Order.GIVEN, template=template) for pair in some]
            made = [
                [without_thinking(one.text) if one.finish is FinishReason.STOP else "" for one in samples]
                for samples in sampler.sample(prompts, params)
            ]
            answers += made
            log.append({"answers": made})
            advance(len(some))
    return answers


def score_answers(
    spec: str, pairs: Sequence[PreferencePair], answers: Sequence[Sequence[str]], out: Path, *, max_tokens: int, seed: int
) -> list[dict[str, float | None]]:
    """Return what a judge pays each distinct answer to each question; None where it cannot be compared."""
    judge = open_generative_judge(spec, max_tokens=max_tokens, batch_size=512)
    judge.check()
    reward, identity = PairwiseReward(judge, seed=seed), {**judge.identity, "answers": answers, "seed": seed}
    with AppendLog(out, identity) as log, bar("questions judged", len(pairs)) as advance:
        scores = [row for line in log.rows for row in line["scores"]]
        advance(len(scores))
        for start in range(len(scores), len(pairs), CHUNK):
            some = [
                (pair, text)
                for pair, texts in zip(pairs[start : start + CHUNK], answers[start : start + CHUNK], strict=True)
                for text in dict.fromkeys(texts)
            ]
            anchors = [(pair.responses[pair.preferred or 0],) for pair, _ in some]
            paid, _ = reward([pair for pair, _ in some], [text for _, text in some], anchors, 0)
            by_pair: dict[str, dict[str, float | None]] = {pair.pair_id: {} for pair in pairs[start : start + CHUNK]}
            for (pair, text), share in zip(some, paid, strict=True):
                by_pair[pair.pair_id][text] = share
            scores += by_pair.values()
            log.append({"scores": list(by_pair.values())})
            advance(len(by_pair))
    return scores


def curve_of(
    pairs: Sequence[PreferencePair], answers: Sequence[Sequence[str]], scores: Sequence[dict[str, float | None]]
) -> Record:
    """Return for each N pay and truth of the best of N, with intervals over questions. An answer that cannot be compared earns
    nothing, as if it had lost."""
    right = [[float(bool(exactly(pair, text))) for text in texts] for pair, texts in zip(pairs, answers, strict=True)]
    paid = [[float(of[text] or 0.0) for text in texts] for of, texts in zip(scores, answers, strict=True)]
    curve: Record = {"unreadable": sum(share is None for of in scores for share in of.values())}
    for name, values in (("paid", paid), ("right", right)):
        by_number = [[best_of(s, v, n) for s, v in zip(paid, values, strict=True)] for n in NUMBERS]
        curve[name] = [(float(np.mean(values)), *mean_interval(values)) for values in by_number]
    return curve


def summarize(curves: dict[str, list[Record]], facts: Record) -> Record:
    """Return the curves of each judge, and over its seeds the change of truth from N = 4 to 64. It is of two fixed N: the best
    of all N less the last one is never below 0, whatever chance does."""
    judges = {}
    for name, seeds in curves.items():
        truth, pay = ([[point[0] for point in seed[what]] for seed in seeds] for what in ("right", "paid"))
        lost = [points[NUMBERS.index(FEW)] - points[-1] for points in truth]
        judges[name] = {
            "seeds": seeds,
            "right": [float(np.mean(column)) for column in zip(*truth, strict=True)],
            "paid": [float(np.mean(column)) for column in zip(*pay, strict=True)],
            "lost": float(np.mean(lost)),
            "lost_interval": t_interval(lost),
        }
    return {**facts, "judges": judges}


def markdown(summary: Record) -> str:
    """Return the table: right answers and pay of the best of N."""
    rows = [
        "# Does the best of more answers get worse?",
        "",
        f"- `python -m eval.over_optimisation`, commit {summary['commit']}; {summary['questions']} held-out questions.",
        "- 64 answers to each, each paid the probability that it beats the right one; the best paid of N is taken. Means over",
        f"  seeds of the judge. Lost: truth at N = {FEW} less truth at 64, points, with Student's 95 % interval over seeds.",
        "",
        f"| right answers, % | {' | '.join(f'N = {n}' for n in NUMBERS)} | lost |",
        "|" + "---|" * (len(NUMBERS) + 2),
    ]
    for name, judge in summary["judges"].items():
        low_high = judge["lost_interval"]
        interval = f" [{100 * low_high[0]:.1f}, {100 * low_high[1]:.1f}]" if low_high else ""
        cells = [f"{100 * value:.1f}" for value in judge["right"]]
        rows.append(f"| {name} ({len(judge['seeds'])}) | {' | '.join(cells)} | {100 * judge['lost']:.1f}{interval} |")
    rows += ["", f"| paid | {' | '.join(f'N = {n}' for n in NUMBERS)} |", "|" + "---|" * (len(NUMBERS) + 1)]
    rows += [f"| {name} | {' | '.join(f'{p:.3f}' for p in judge['paid'])} |" for name, judge in summary["judges"].items()]
    unread = sum(seed["unreadable"] for judge in summary["judges"].values() for seed in judge["seeds"])
    return "\n".join([*rows, "", f"Comparisons that could not be read: {unread}.", "", f"![Pay and truth]({NAME}.png)"]) + "\n"


def draw(summary: Record, path: Path) -> None:
    """Draw truth and pay over N, a panel each, a line per judge with its seeds in pale."""
    figure, panels = plt.subplots(1, 2, figsize=(8.4, 3.4))
    for axes, what, title in zip(panels, ("right", "paid"), ("right answers, %", "paid"), strict=True):
        scale = 100 if what == "right" else 1
        for number, (name, judge) in enumerate(summary["judges"].items()):
            color = f"C{number}"
            for seed in judge["seeds"]:
                axes.plot(NUMBERS, [scale * point[0] for point in seed[what]], color=color, alpha=0.3, lw=1)
            axes.plot(NUMBERS, [scale * value for value in judge[what]], color=color, lw=2, label=name)
        axes.set_xscale("log", base=2)
        axes.set_xticks(NUMBERS, [str(n) for n in NUMBERS])
        axes.set(title=title, xlabel="N")
    panels[0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", type=Path, required=True, help="checkpoint folder")
    parser.add_argument("--data", type=Path, default=Path("runs/quickstart/demo/test.parquet"))
    parser.add_argument("--judge", action="append", required=True, help="NAME=SPEC; repeat for several, and for seeds")
    parser.add_argument("--questions", type=int, default=300)
    parser.add_argument("--max-tokens", type=int, default=24)
    parser.add_argument("--judge-max-tokens", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/over_optimisation"))
    parser.add_argument("--results", type=Path, default=ROOT / "eval" / "results")
    options = parser.parse_args()
    pairs = distinct_questions(options.data, options.questions)
    options.out.mkdir(parents=True, exist_ok=True)
    answers = sample_policy(options.policy, pairs, options.out, max_tokens=options.max_tokens, seed=options.seed)
    curves: dict[str, list[Record]] = {}
    for number, text in enumerate(options.judge):
        name, _, spec = text.partition("=")
        log = options.out / f"{name}_{number}.jsonl"
        scores = score_answers(spec, pairs, answers, log, max_tokens=options.judge_max_tokens, seed=options.seed)
        curves.setdefault(name, []).append(curve_of(pairs, answers, scores))
        print(name, json.dumps([round(100 * point[0], 1) for point in curves[name][-1]["right"]]), flush=True)
    facts = {"commit": commit(), "questions": len(pairs), "judge_specs": options.judge, "numbers": NUMBERS}
    write_files(NAME, summarize(curves, facts), options.results, markdown=markdown, draw=draw)


if __name__ == "__main__":
    run_script(main)
