"""Step labels of a judge's reasoning, by completing its prefixes (arXiv 2410.17621): from which step on is the verdict lost?

The judge first judges each pair ``completions`` times in each order. If that is no better than guessing, or depends on the
order, no step is blamed (``no_footing``). Otherwise bisection searches the reasoning of each judgment: a prefix is good while
at least ``least_right`` of its completions name the preferred response.

Only the empty prefix must be right in both orders. A reasoning refers to Response 1 and 2 as shown; rewriting it for the other
order would make a text that the judge never wrote, and cannot be done reliably ("the former", a list). So longer prefixes are
completed in their own order. Position bias stays out of the labels because the empty prefix is tested in both orders, and
judgments of both orders are labelled.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Generator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, TypedDict, cast

from rewardlab.config import StepsConfig
from rewardlab.data.append_log import AppendLog
from rewardlab.data.files import read_lines, write_atomic
from rewardlab.data.pair_table import without_ties
from rewardlab.distill.pipeline import survey
from rewardlab.errors import ConfigError, DataError
from rewardlab.judging.judge import GenerativeJudge
from rewardlab.metrics.intervals import mean_interval
from rewardlab.prompts import build_messages
from rewardlab.reporting.progress import bar
from rewardlab.rewards.steps import has_footing, judgment_steps, least_correct_or_raise, search, step_labels, token_ends
from rewardlab.samplers.hf import HFSampler, thinking_opening, token_texts
from rewardlab.types import BOTH_ORDERS, Completion, FinishReason, Order, PreferencePair, choice_of
from rewardlab.verdicts.parse import continuation, verdict_of

STEPS, STATISTICS, JOURNAL = "steps.jsonl", "statistics.json", "journal.jsonl"


class StepStatus(StrEnum):
    """The status of a judgment; only ``LABELLED`` has labels."""

    LABELLED = "labelled"
    NO_FOOTING = "no_footing"
    NO_STEPS = "no_steps"


_Queries = TypedDict("_Queries", {"asked": list[list[int]]})  # noqa: UP013  (the file's key, no name of ours)


class JudgmentRow(_Queries):
    """One line of ``steps.jsonl``: ``ends`` are offsets in ``text``, ``labels`` one for each, ``first_bad`` the first bad step,
    from 1; ``right``: the judgment's own verdict is right; ``asked`` are [steps, correct completions]."""

    pair_id: str
    order: str
    text: str
    status: str
    verdict: str
    right: bool
    ends: list[int]
    labels: list[int]
    first_bad: int | None


class BatchRecord(TypedDict):
    """One line of the journal; ``right_of_empty``: correct completions of the empty prefix, [given, swapped] for each pair."""

    batch: int
    right_of_empty: list[list[int]]
    drawn: int
    invalid: int
    judgments: list[JudgmentRow]


@dataclass
class Bisection:
    """One judgment under search: ``cuts[k]`` are the tokens up to the end of step k; ``queries`` (k, how many right)."""

    pair: PreferencePair
    order: Order
    completion: Completion
    ends: list[int]
    cuts: list[tuple[int, ...]]
    status: StepStatus
    queries: list[tuple[int, int]] = field(default_factory=list)
    bad: int | None = None
    next_k: int | None = None
    _questions: Generator[int, bool, int | None] | None = None

    def start(self) -> None:
        self._questions = search(len(self.ends))
        self.next_k = next(self._questions)

    def record(self, right: int, least: int) -> None:
        """Take the number of completions of the current prefix that were right."""
        assert self._questions is not None
        assert self.next_k is not None
        self.queries.append((self.next_k, right))
        try:
            self.next_k = self._questions.send(right >= least)
        except StopIteration as stop:
            self.next_k, self.bad = None, stop.value

    def row(self, verdict_format: str) -> JudgmentRow:
        """Return one line of ``steps.jsonl``."""
        assert self.pair.preferred is not None
        verdict = verdict_of(self.completion, verdict_format)
        labelled = self.status is StepStatus.LABELLED
        return {
            "pair_id": self.pair.pair_id,
            "order": self.order.value,
            "text": self.completion.text,
            "status": self.status.value,
            "verdict": verdict.status.value,
            "right": verdict.choice is choice_of(self.pair.preferred, self.order),
            "ends": self.ends,
            "labels": step_labels(len(self.ends), self.bad) if labelled else [],
            "first_bad": self.bad,
            "asked": [list(query) for query in self.queries],
        }


class _Labeller:
    """One run: has the judge complete prefixes, and counts completions without a verdict."""

    def __init__(self, config: StepsConfig, sampler: HFSampler, judge: GenerativeJudge) -> None:
        self.config, self.sampler, self.judge, self.template = config, sampler, judge, judge.template
        self.tokenizer, self._opening = sampler.processor.tokenizer, thinking_opening(sampler.processor)
        self.least = least_correct_or_raise(config.completions, config.alpha)
        self.drawn = self.invalid = 0

    def _complete(
        self, requests: Sequence[tuple[PreferencePair, Order, tuple[int, ...]]], seed: str
    ) -> tuple[list[int], list[list[Completion]]]:
        """Return how many completions of each (pair, order, prefix) name the preferred response, and the completions."""
        number = int(hashlib.sha256(f"{self.config.seed} {seed}".encode()).hexdigest()[:7], 16)
        params = self.judge.params(self.config.completions, number)
        prompts = [build_messages(pair, order=order, template=self.template) for pair, order, _ in requests]
        rows = self.sampler.sample(prompts, params, [prefix for _, _, prefix in requests])
        return [self._right(pair, order, p, row) for (pair, order, p), row in zip(requests, rows, strict=True)], rows

    def _right(self, pair: PreferencePair, order: Order, prefix: tuple[int, ...], row: Sequence[Completion]) -> int:
        assert pair.preferred is not None
        prefix_text = self.tokenizer.decode(prefix, skip_special_tokens=True)
        preferred, num_correct = choice_of(pair.preferred, order), 0
        for completion in row:
            judgment = Completion(prefix_text + completion.text, completion.finish, error=completion.error)
            choice = verdict_of(judgment, self.template.verdict_format).choice
            num_correct += choice is preferred
            self.invalid += choice is None
        self.drawn += len(row)
        return num_correct

    def batch(self, pairs: Sequence[PreferencePair], number: int) -> BatchRecord:
        """Return the journal's record of one batch of pairs."""
        self.drawn = self.invalid = 0
        requests = [(pair, order, ()) for pair in pairs for order in BOTH_ORDERS]
        num_correct, rows = self._complete(requests, f"{number} empty")
        searches = []
        for n, pair in enumerate(pairs):
            given, swapped = num_correct[2 * n : 2 * n + 2]
            footing = has_footing(given, swapped, self.config.completions, self.config.alpha)
            judgments = self._judgments(pair, rows[2 * n : 2 * n + 2])
            searches += [self._search(pair, order, completion, ids, footing) for order, completion, ids in judgments]
        self._bisect(searches, number)
        return {
            "batch": number,
            "right_of_empty": [num_correct[n : n + 2] for n in range(0, len(num_correct), 2)],
            "drawn": self.drawn,
            "invalid": self.invalid,
            "judgments": [bisection.row(self.template.verdict_format) for bisection in searches],
        }

    def _judgments(
        self, pair: PreferencePair, samples: Sequence[Sequence[Completion]]
    ) -> list[tuple[Order, Completion, tuple[int, ...]]]:
        """Return (order, judgment, its tokens) of those to label: the first samples, or the pair's own."""
        if self.config.source == "pairs":
            judgment = continuation(pair.judgment, self._opening)
            ids = tuple(self.tokenizer.encode(judgment, add_special_tokens=False))
            text = self.tokenizer.decode(ids, skip_special_tokens=True)
            return [(pair.order, Completion(text, FinishReason.STOP), ids)] if pair.judgment else []
        return [
            (order, completion, completion.token_ids)
            for order, completions in zip(BOTH_ORDERS, samples, strict=True)
            for completion in completions[: self.config.judgments_per_order]
        ]

    def _search(
        self, pair: PreferencePair, order: Order, completion: Completion, ids: tuple[int, ...], footing: bool
    ) -> Bisection:
        ends = judgment_steps(completion.text, opened=bool(self._opening))
        cuts = [(), *(ids[: last + 1] for last in token_ends(ends, token_texts(self.tokenizer, ids)))]
        status = StepStatus.LABELLED if footing else StepStatus.NO_FOOTING
        return Bisection(pair, order, completion, ends, cuts, status if ends else StepStatus.NO_STEPS)

    def _bisect(self, searches: Sequence[Bisection], number: int) -> None:
        """Run all searches of a batch together: one round of completions makes one step of each."""
        for bisection in searches:
            if bisection.status is StepStatus.LABELLED:
                bisection.start()
        turn = 0
        while waiting := [bisection for bisection in searches if bisection.next_k is not None]:
            requests = [(bisection.pair, bisection.order, bisection.cuts[bisection.next_k or 0]) for bisection in waiting]
            for bisection, right in zip(waiting, self._complete(requests, f"{number} turn {turn}")[0], strict=True):
                bisection.record(right, self.least)
            turn += 1


def statistics_of(records: Sequence[BatchRecord], config: StepsConfig) -> dict[str, object]:
    """Return the statistics of a labelling, from its journal's records."""
    rows = [row for record in records for row in record["judgments"]]
    labelled = [row for row in rows if row["status"] == StepStatus.LABELLED]
    bad = [float(row["first_bad"] is not None) for row in labelled]
    pairs = [row["pair_id"] for row in labelled]
    num_completions, queries = sum(record["drawn"] for record in records), [len(row["asked"]) for row in labelled]
    return {
        "num_pairs": sum(len(record["right_of_empty"]) for record in records),
        "num_judgments": len(rows),
        "statuses": {status.value: sum(row["status"] == status for row in rows) for status in StepStatus},
        "share_with_bad_step": sum(bad) / len(bad) if bad else None,
        "share_with_bad_step_interval": list(mean_interval(bad, pairs)) if bad else None,
        "bad_step_but_right_verdict": sum(row["right"] and row["first_bad"] is not None for row in labelled),
        "no_bad_step_but_wrong_verdict": sum(not row["right"] and row["first_bad"] is None for row in labelled),
        "first_bad": {
            str(k): sum(row["first_bad"] == k for row in labelled)
            for k in sorted({r["first_bad"] or 0 for r in labelled} - {0})
        },
        "steps_per_judgment": sum(len(row["ends"]) for row in labelled) / len(labelled) if labelled else None,
        "queries_per_judgment": sum(queries) / len(queries) if queries else None,
        "most_queries": max(queries, default=0),
        "num_completions": num_completions,
        "invalid_completions": sum(record["invalid"] for record in records) / num_completions if num_completions else None,
        "least_right": least_correct_or_raise(config.completions, config.alpha),
        **config.model_dump(mode="json"),
    }


def label_steps(
    pairs: Sequence[PreferencePair],
    config: StepsConfig,
    judge: GenerativeJudge,
    out: Path,
    *,
    allow: Collection[str] = (),
) -> dict[str, object]:
    """Label steps (or resume) into folder ``out``; return the statistics, which are also written.

    A resumed run gives the labels of an uninterrupted one. Raises ConfigError for a judge that cannot continue a text, or if
    ``out`` holds another run's journal; DataError for pairs without labels or, with source: pairs, without judgments.
    """
    _, data = survey(pairs, allow=allow)
    pairs = without_ties(pairs)
    if config.source == "pairs" and not any(pair.judgment for pair in pairs):
        raise DataError("no pair carries a judgment; use source: judge, or the output of `rewardlab distill`")
    if not isinstance(judge.sampler, HFSampler):
        raise ConfigError(f"{judge.name}: a judge behind an API cannot continue its own answer from a prefix; use hf:PATH")
    if judge.config.temperature == 0:
        raise ConfigError("temperature=0: all completions of a prefix would be equal; expected a temperature above 0")
    judgments = [(pair.order.value, pair.judgment) for pair in pairs] if config.source == "pairs" else []
    identity = {
        "data": data + hashlib.sha256(repr(judgments).encode()).hexdigest()[:8],
        **judge.identity,
        **config.model_dump(mode="json"),
    }
    labeller = _Labeller(config, judge.sampler, judge)
    with AppendLog(out / JOURNAL, identity) as journal, bar("steps", len(pairs)) as advance:
        records: list[BatchRecord] = [cast(BatchRecord, row) for row in journal.rows]
        size = config.pairs_per_batch
        advance(min(len(pairs), len(records) * size))
        for number in range(len(records), -(-len(pairs) // size)):
            batch = pairs[number * size : (number + 1) * size]
            records.append(labeller.batch(batch, number))
            journal.append(records[-1])
            labelled = sum(row["status"] == StepStatus.LABELLED for record in records for row in record["judgments"])
            advance(len(batch), note=f"{labelled:,} judgments labelled")
    rows = [row for record in records for row in record["judgments"]]
    statistics = statistics_of(records, config)
    write_atomic(out / STEPS, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    write_atomic(out / STATISTICS, json.dumps(statistics, indent=1) + "\n")
    return statistics


def read_steps(path: Path) -> list[dict[str, Any]]:
    """Return the labelled judgments of a ``steps.jsonl``. Raises DataError if there is none, or a line is of another kind."""
    try:
        rows = [json.loads(line) for line in read_lines(path)]
        labelled = [row for row in rows if row["status"] == StepStatus.LABELLED and len(row["labels"]) == len(row["ends"])]
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); expected the steps.jsonl of `rewardlab steps`") from error
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path}: not the steps.jsonl of `rewardlab steps` ({error!r})") from error
    if not labelled:
        raise DataError(f"{path}: holds no labelled judgment; label more pairs, or easier ones")
    return labelled
