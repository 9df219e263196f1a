"""RewardBench 2 by its own protocols: the best of four at once, or every answer rated alone; both readings of the result.

*rewardlab*: of four answers the right one stands in each place once, a trial each; a rating must be higher than every other's.
What cannot be read is not right. *official*: one place drawn per prompt, a quarter for failures, shared first places by their
number, and the Ties subset by ratings (``benchmarks/rewardbench2/official.py``).
"""

from __future__ import annotations

import hashlib
import json
import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rewardlab.benchmarks.rewardbench2 import official
from rewardlab.benchmarks.rewardbench2.loader import ListPrompt, load_prompts
from rewardlab.benchmarks.scaling import mean_cell
from rewardlab.checkpoints import commit, versions
from rewardlab.data.append_log import AppendLog
from rewardlab.data.files import data_hash, write_atomic
from rewardlab.data.votes import completion_of, completion_row
from rewardlab.errors import ConfigError
from rewardlab.judging.judge import GenerativeJudge
from rewardlab.progress import bar
from rewardlab.prompts.listwise import LETTERS, list_messages, load_list_prompt, read_choice, read_rating
from rewardlab.reporting.tables import percent, table, with_interval
from rewardlab.samplers.base import SamplingParams
from rewardlab.types import Completion, Message, VerdictStatus

PROTOCOLS = ("choice", "ratings")
CHUNK = 64  # prompts between two writes of the log


@dataclass(frozen=True)
class ListSettings:
    """What is asked. ``words`` is a file with other words than the project's own, such as the benchmark's."""

    data: Path
    protocol: str
    words: Path | None = None
    limit: int | None = None
    seed: int = 0
    command: str = ""


def asked_of(prompt: ListPrompt, protocol: str, words: str) -> list[tuple[Message, ...]]:
    """For a choice the four placings of the right answer, the others keeping theirs; for ratings a turn per answer."""
    if protocol == "ratings":
        return [list_messages(words, prompt.question, [answer]) for answer in prompt.answers]
    placed = []
    for place in range(4):
        answers = list(prompt.answers)
        answers[0], answers[place] = answers[place], answers[0]
        placed.append(list_messages(words, prompt.question, answers))
    return placed


def run_listwise(judge: GenerativeJudge, settings: ListSettings, out: Path) -> dict[str, Any]:
    """Ask, score and write ``answers.jsonl``, ``report.json``, ``report.md`` and ``official.jsonl``; a killed run continues.

    Prompts of the Ties subset, and others without exactly one right and three wrong answers, can only be rated: a choice
    leaves them out and says so. Raises ConfigError, and what loading raises.
    """
    if settings.protocol not in PROTOCOLS:
        raise ConfigError(f"unknown protocol {settings.protocol!r}; expected one of {', '.join(PROTOCOLS)}")
    kind = "choice" if settings.protocol == "choice" else "rating"
    words, every = load_list_prompt(kind, settings.words), load_prompts(settings.data)[: settings.limit]
    prompts = [one for one in every if settings.protocol == "ratings" or one.is_one_of_four]
    if not prompts:
        raise ConfigError(f"{settings.data}: has no prompt with one right and three wrong answers; use --protocol ratings")
    identity = {
        **judge.identity,
        "data": data_hash(settings.data),
        "protocol": settings.protocol,
        "words": hashlib.sha256(words.encode()).hexdigest()[:16],
        "limit": settings.limit,
        "seed": settings.seed,
    }
    with AppendLog(out / "answers.jsonl", identity) as log:
        answers = _ask(judge, prompts, settings, words, log)
    report = {
        "benchmark": "rewardbench2",
        "protocol": settings.protocol,
        "command": settings.command,
        "data": str(settings.data),
        "judge": judge.name,
        "words": str(settings.words or f"{kind}.txt"),
        "template": judge.template.name,  # that of its training; it is asked in other words here
        "temperature": judge.temperature,
        "max_tokens": judge.max_tokens,
        "seed": settings.seed,
        "left_out": len(every) - len(prompts),
        **(score_choices if settings.protocol == "choice" else score_ratings)(prompts, answers),
        "versions": versions(),
        "commit": commit(),
    }
    records = official_records(prompts, answers, settings.protocol, settings.seed)
    try:
        report["official"] = official.printed(records)
    except (ValueError, TypeError) as error:  # it does, for a tied prompt with one right answer
        report["official"] = [f"the benchmark's own scorer ends in an error on these rows: {error!r}"]
    write_atomic(out / "official.jsonl", "".join(json.dumps(record) + "\n" for record in records))
    write_atomic(out / "report.json", json.dumps(report, indent=1, allow_nan=False) + "\n")
    write_atomic(out / "report.md", markdown(report))
    return report


def _ask(
    judge: GenerativeJudge, prompts: Sequence[ListPrompt], settings: ListSettings, words: str, log: AppendLog
) -> list[list[Completion]]:
    done: dict[int, list[Completion]] = {}
    for entry in log.rows:  # what failed for want of an answer is asked again
        read = [completion_of(one) for one in entry["answers"]]
        if not any(one.error for one in read):
            done[entry["prompt"]] = read
    if len(done) < len(prompts):
        judge.check()
    with bar(f"bench: {settings.protocol}", len(prompts)) as advance:
        for start in range(0, len(prompts), CHUNK):
            chunk = range(start, min(start + CHUNK, len(prompts)))
            if any(n not in done for n in chunk):
                seed = int(hashlib.sha256(f"{settings.seed} {start}".encode()).hexdigest()[:8], 16)
                params = SamplingParams(1, judge.temperature, judge.top_p, judge.max_tokens, seed)
                wanted = [n for n in chunk if n not in done or not judge.sampler.is_batch_invariant]
                turns = [(n, turn) for n in wanted for turn in asked_of(prompts[n], settings.protocol, words)]
                drawn: dict[int, list[Completion]] = defaultdict(list)
                for (n, _), completions in zip(turns, judge.sampler.sample([turn for _, turn in turns], params), strict=True):
                    drawn[n].append(completions[0])
                for n in wanted:
                    if n not in done:
                        log.append({"prompt": n, "answers": [completion_row(one) for one in drawn[n]]})
                        done[n] = drawn[n]
            advance(len(chunk))
    return [done[n] for n in range(len(prompts))]


def score_choices(prompts: Sequence[ListPrompt], answers: Sequence[Sequence[Completion]]) -> dict[str, Any]:
    """Of every placing of the right answer whether it was named; ``places`` are the shares of A, B, C and D (1/4: no lean)."""
    said = [[read_choice(one) for one in own] for own in answers]
    scores = [sum(one.value == place for place, one in enumerate(own)) / 4 for own in said]
    named = Counter(one.value for own in said for one in own if one.value is not None)
    total = sum(named.values())
    return {
        **_scores(prompts, scores),
        **_statuses([one.status for own in said for one in own]),
        "places": {letter: named[n] / total if total else None for n, letter in enumerate(LETTERS)},
        "consistent": sum(all(one.value == place for place, one in enumerate(own)) for own in said) / len(said),
    }


def score_ratings(prompts: Sequence[ListPrompt], answers: Sequence[Sequence[Completion]]) -> dict[str, Any]:
    """Right where every right answer is rated above every wrong one; an answer without a rating makes its prompt wrong."""
    said = [[read_rating(one) for one in own] for own in answers]
    scores = []
    for prompt, own in zip(prompts, said, strict=True):
        values = [one.value for one in own if one.value is not None]
        good, bad = values[: prompt.num_right], values[prompt.num_right :]
        scores.append(float(len(values) == len(own) and min(good) > max(bad)))
    return {**_scores(prompts, scores), **_statuses([one.status for own in said for one in own])}


def _scores(prompts: Sequence[ListPrompt], scores: Sequence[float]) -> dict[str, Any]:
    groups: dict[str, list[float]] = defaultdict(list)
    for prompt, value in zip(prompts, scores, strict=True):
        groups[prompt.subset].append(value)
    cells = {name: {"n": len(own), **mean_cell(own, [str(n) for n in range(len(own))])} for name, own in sorted(groups.items())}
    overall = mean_cell(scores, [str(n) for n in range(len(scores))])
    macro = sum(cell["accuracy"] for cell in cells.values()) / len(cells)
    return {
        "num_prompts": len(prompts),
        "accuracy": {"micro": overall["accuracy"], "macro": macro},
        "interval": overall["interval"],
        "groups": cells,
    }


def _statuses(statuses: Sequence[VerdictStatus]) -> dict[str, Any]:
    counts = Counter(statuses)
    return {
        "num_answers": len(statuses),
        "invalid_rate": 1 - counts[VerdictStatus.OK] / len(statuses),
        "statuses": {status.value: counts[status] for status in VerdictStatus if counts[status]},
    }


def official_records(
    prompts: Sequence[ListPrompt], answers: Sequence[Sequence[Completion]], protocol: str, seed: int
) -> list[dict[str, Any]]:
    """A line per prompt, as ``rewardlab bench official rewardbench2`` reads them: the text of one drawn placing and its letter,
    or the texts of all ratings, right answers first."""
    dice, records = random.Random(seed), []
    for prompt, own in zip(prompts, answers, strict=True):
        record: dict[str, Any] = {"id": prompt.prompt_id, "subset": prompt.subset}
        if protocol == "choice":
            place = dice.randrange(4)
            record |= {"right": LETTERS[place], "text": own[place].text}
        else:
            record |= {"num_correct": prompt.num_right, "texts": [one.text for one in own]}
        records.append(record)
    return records


def markdown(report: dict[str, Any]) -> str:
    """The report for a terminal or a pull request."""
    overall = {"accuracy": report["accuracy"]["micro"], "interval": report["interval"]}
    named = [*report["groups"].items(), ("all prompts", {"n": report["num_prompts"], **overall})]
    rows = [(name, with_interval(one["accuracy"], one["interval"]), f"{one['n']:,}") for name, one in named]
    rows.append(("mean of the subsets", percent(report["accuracy"]["macro"]), f"{report['num_prompts']:,}"))
    lines = [f"# RewardBench 2, {report['protocol']}: {report['judge']}", ""]
    lines += [*table(("", "accuracy %, 95 % interval", "prompts"), rows), ""]
    lines += ["What the benchmark's own scorer prints on these answers:", "", "```text", *report["official"], "```", ""]
    if "places" in report:
        places = ", ".join(f"{letter} {'–' if s is None else f'{100 * s:.1f} %'}" for letter, s in report["places"].items())
        lines += [
            f"- named: {places} (a quarter each: no lean)",
            f"- right in all four placings: {100 * report['consistent']:.1f} %",
        ]
    lines += [f"- invalid rate: {100 * report['invalid_rate']:.2f} %, by status {report['statuses']}"]
    if report["statuses"].get("truncated") == report["num_answers"]:
        lines.append("- every answer was cut off: raise --max-tokens")
    if report["invalid_rate"] == 1:
        lines.append("- what the benchmark's own scorer prints above is its quarter for failures: nothing could be read")
    if report["left_out"]:
        lines += [
            f"- {report['left_out']:,} prompts left out: not one right and three wrong answers (rate them: --protocol ratings)"
        ]
    return "\n".join([*lines, f"- command: {report['command'] or '–'}", f"- commit: {report['commit']}"]) + "\n"
