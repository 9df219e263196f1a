"""RewardBench 2 by its own protocols: the best of four at once (``choice``), or every answer rated alone (``ratings``).

*rewardlab*: of four answers the right one is shown in each place once, a trial each; a rating must be higher than every
other's. What cannot be read is not right. *official*: one placing sampled per prompt, a quarter for failures, shared first
places by their number, and the Ties subset by ratings (``benchmarks/rewardbench2/official.py``).
"""

from __future__ import annotations

import hashlib
import json
import math
import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from rewardlab.benchmarks.base import OFFICIAL, Benchmark, Row
from rewardlab.benchmarks.report_model import ListwiseScores, Report
from rewardlab.benchmarks.rewardbench2 import official
from rewardlab.benchmarks.rewardbench2.loader import ListPrompt, load_prompts, load_rewardbench2
from rewardlab.benchmarks.runner import Extra, check_budget, judge_rows
from rewardlab.benchmarks.settings import BenchSettings, check_names
from rewardlab.data.files import write_atomic
from rewardlab.errors import ConfigError
from rewardlab.judging.engines import open_generative_judge
from rewardlab.judging.judge import GenerativeJudge
from rewardlab.judging.spec import JudgeSpec, judge_config
from rewardlab.metrics.accuracy import OUTCOME
from rewardlab.prompts import load_text
from rewardlab.types import (
    Choice,
    Completion,
    FinishReason,
    Judgment,
    Message,
    Order,
    Part,
    PreferencePair,
    Verdict,
    VerdictStatus,
    Vote,
)
from rewardlab.verdicts.lists import ListReading, list_reading

LETTERS = "ABCD"
SLOTS = {"choice": ("{question}", "{a}", "{b}", "{c}", "{d}"), "rating": ("{question}", "{first}")}
_SLOT = re.compile(r"\{(question|first|a|b|c|d)\}")


@cache
def load_list_prompt(kind: str, file: Path | None = None) -> str:
    """Return the prompt of a ``choice`` among four or a ``rating``, or a file's. Raise ConfigError for a missing slot."""
    try:
        text = load_text(f"{kind}.txt") if file is None else file.read_text(encoding="utf-8").removesuffix("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: cannot be read as the prompt of a {kind} ({error})") from error
    if any(text.count(slot) != 1 for slot in SLOTS[kind]):
        raise ConfigError(f"{file}: the prompt of a {kind} must have each of {', '.join(SLOTS[kind])} once")
    return text


def list_messages(words: str, question: str, answers: Sequence[str]) -> tuple[Message, ...]:
    """Return one user turn with the answers in the order given; braces inside a question or an answer are plain text."""
    values = {"question": question, "first": answers[0], **dict(zip("abcd", answers, strict=False))}
    return (Message("user", (Part(text=_SLOT.sub(lambda match: values[match[1]], words)),)),)


def read_choice(completion: Completion) -> ListReading:
    """Return the scores of the four answers by :func:`rewardlab.verdicts.lists.read_best`."""
    return list_reading(completion, "best", len(LETTERS))


def read_score(completion: Completion) -> ListReading:
    """Return the rating of one answer by :func:`rewardlab.verdicts.lists.read_rating`."""
    return list_reading(completion, "rating", 1)


@dataclass(frozen=True)
class ListRequest:
    """The ``answers`` that a request shows, in their order, and the place of the right one; None if one answer is rated."""

    answers: tuple[str, ...]
    right: int | None


class ListwiseJudge(GenerativeJudge):
    """A generative judge that is asked in ``words`` about one answer or four: the ``requests`` by pair."""

    def __init__(self, judge: GenerativeJudge, words: str, name: str, requests: Mapping[PreferencePair, ListRequest]) -> None:
        super().__init__(judge.sampler, judge.template, judge.config)
        self._words, self._name, self._requests = words, name, requests

    @property
    def verdict_format(self) -> str:  # type: ignore[override]
        return ""

    @property
    def template_name(self) -> str | None:  # type: ignore[override]
        return self._name

    @property
    def identity(self) -> dict[str, str | float]:
        return super().identity | {"template": hashlib.sha256(self._words.encode()).hexdigest()[:16]}

    def messages(self, pair: PreferencePair, order: Order) -> tuple[Message, ...]:
        return list_messages(self._words, pair.question, self._requests[pair].answers)

    def vote(self, pair: PreferencePair, order: Order, completion: Completion) -> Vote:
        """Return a vote for the right answer or against it; a rating names none."""
        right = self._requests[pair].right
        reading = read_score(completion) if right is None else read_choice(completion)
        choice = None if right is None or reading.scores is None else _outcome(reading.scores[right] == 1)
        return Vote(order, Verdict(choice, reading.status, OUTCOME), completion)


def _outcome(is_right: bool) -> Choice:
    return Choice.FIRST if is_right else Choice.SECOND


def run_choice(settings: BenchSettings, out: Path, selected: Sequence[str]) -> tuple[Report, list[Row]]:
    """Run RewardBench 2 by the best of four answers."""
    return run_listwise(settings, out, protocol="choice", selected=selected)


def run_ratings(settings: BenchSettings, out: Path, selected: Sequence[str]) -> tuple[Report, list[Row]]:
    """Run RewardBench 2 by a rating of each answer."""
    return run_listwise(settings, out, protocol="ratings", selected=selected)


def run_listwise(
    settings: BenchSettings, out: Path, *, protocol: str, selected: Sequence[str] = ()
) -> tuple[Report, list[Row]]:
    """Judge the prompts of RewardBench 2 by a protocol, one answer to each request; a killed run continues.

    ``choice``: a row is a placing of the right answer, its cluster the prompt, so that ``all_right`` are the prompts that are
    right in all four. Prompts of the Ties subset, and others without exactly one right and three wrong answers, are left out.
    ``ratings``: a row is a prompt; the pass ``answers`` has a rating of each of its answers. Raise ConfigError for settings
    without an effect, and what :func:`rewardlab.benchmarks.runner.run_bench` raises.
    """
    judge_keys = settings.judge
    if (judge_keys.votes or 1) > 1 or judge_keys.orders not in ("auto", "both") or judge_keys.stop_error is not None:
        raise ConfigError("votes, orders, stop_error: every request has one answer; leave these out")
    given: dict[str, object] = {"--images": settings.images, "--cluster": settings.cluster, "a selection": selected}
    given |= {"--allow": settings.allow_columns or settings.allow_without_images}
    if unused := [name for name, value in given.items() if value]:
        raise ConfigError(f"{', '.join(unused)}: has no effect on {settings.benchmark}:{protocol}; leave out")
    if others := sorted(set(settings.controls) - {"blank"}):  # the default of other runs
        raise ConfigError(f"--controls {','.join(others)}: {settings.benchmark}:{protocol} has none; leave out")
    spec, words_path = JudgeSpec.parse(judge_keys.judge), judge_keys.template
    if spec.by_probability or spec.verifies:
        raise ConfigError(
            f"--judge {judge_keys.judge}: expected hf:PATH, vllm:PATH or openai:MODEL@URL, which can write answers of their own"
        )
    kind = "choice" if protocol == "choice" else "rating"
    words = load_list_prompt(kind, None if words_path is None else Path(words_path))
    config = judge_config(judge_keys.model_copy(update={"template": None}), votes=1, orders="given")
    check_names(settings.benchmark, (), config)
    every = load_prompts(settings.data)[: settings.limit]
    prompts = [prompt for prompt in every if protocol == "ratings" or prompt.is_one_of_four]
    if not prompts:
        raise ConfigError(f"{settings.data}: has no prompt with one right and three wrong answers; run rewardbench2:ratings")
    request_rows, requests = _requests(prompts, protocol)
    judge = ListwiseJudge(open_generative_judge(config, api_key=settings.api_key), words, words_path or f"{kind}.txt", requests)
    settings = replace(settings, judge=config, controls=())
    check_budget(settings, judge)
    rows = request_rows if protocol == "choice" else _prompt_rows(prompts)

    def derive(answers: Mapping[str, Sequence[Judgment]]) -> list[list[Vote]]:
        grouped = _by_prompt(prompts, protocol, answers[ANSWERS])
        return [[rated_vote(prompt, completions)] for prompt, completions in zip(prompts, grouped, strict=True)]

    def finish(judgments: Sequence[Judgment], others: Mapping[str, Sequence[Judgment]], report: Report) -> Report:
        grouped = _by_prompt(prompts, protocol, others.get(ANSWERS, judgments))
        records = official_records(prompts, grouped, protocol, settings.seed)
        write_atomic(out / OFFICIAL, "".join(json.dumps(record) + "\n" for record in records))
        try:
            lines = official.text_lines(records)
        except (ValueError, TypeError) as error:  # it does, for a tied prompt with one right answer
            lines = [f"the benchmark's own scorer ends in an error on these rows: {error!r}"]
        part = ListwiseScores(
            protocol=protocol,
            num_answers=sum(map(len, grouped)),
            left_out=len(every) - len(prompts),
            places=places_of(grouped) if protocol == "choice" else None,
        )
        return replace(report, listwise=part, official=tuple(lines))

    chances = [1 / math.comb(len(prompt.answers), prompt.num_right) for prompt in prompts]
    return judge_rows(
        settings,
        Benchmark(f"rewardbench2:{protocol}", load_rewardbench2, whole_prompts=protocol == "choice"),
        judge,
        rows,
        [],
        out,
        extra=Extra(
            passes={} if protocol == "choice" else {ANSWERS: request_rows},
            identity={"benchmark": f"rewardbench2:{protocol}"},
            finish=finish,
            votes=None if protocol == "choice" else derive,
            chance=sum(chances) / len(chances),
        ),
    )


ANSWERS = "answers"  # the pass that asks for ratings


def _requests(prompts: Sequence[ListPrompt], protocol: str) -> tuple[list[Row], dict[PreferencePair, ListRequest]]:
    """Return a row for each request, and what it shows: for a choice the four placings of the right answer, the others keeping
    theirs; for ratings each answer alone."""
    rows, requests = list[Row](), dict[PreferencePair, ListRequest]()
    for prompt in prompts:
        for place in range(_num_requests(prompt, protocol)):
            name, slices = f"{prompt.prompt_id}#{place}", dict[str, str]()
            if protocol == "choice":
                answers = list(prompt.answers)
                answers[0], answers[place] = answers[place], answers[0]
                pair = PreferencePair(name, prompt.question, _sides(prompt), 0, category=prompt.subset, source="rewardbench2")
                requests[pair], slices = ListRequest(tuple(answers), place), {"place of the right answer": LETTERS[place]}
            else:
                pair = PreferencePair(name, prompt.question, (prompt.answers[place], ""), None, category=prompt.subset)
                requests[pair] = ListRequest((prompt.answers[place],), None)
            rows.append(Row(len(rows), pair, prompt.subset, prompt.prompt_id, slices))
    return rows, requests


def _num_requests(prompt: ListPrompt, protocol: str) -> int:
    return len(prompt.answers) if protocol == "ratings" else 4


def _sides(prompt: ListPrompt) -> tuple[str, str]:
    """Return the right answers and the wrong ones, as a page shows them."""
    return "\n\n".join(prompt.answers[: prompt.num_right]), "\n\n".join(prompt.answers[prompt.num_right :])


def _prompt_rows(prompts: Sequence[ListPrompt]) -> list[Row]:
    pairs = [
        PreferencePair(prompt.prompt_id, prompt.question, _sides(prompt), 0, category=prompt.subset, source="rewardbench2")
        for prompt in prompts
    ]
    return [Row(n, pair, pair.category, pair.pair_id, {}) for n, pair in enumerate(pairs)]


def _by_prompt(prompts: Sequence[ListPrompt], protocol: str, judgments: Sequence[Judgment]) -> list[list[Completion]]:
    """Return the answers to the requests of each prompt."""
    answers = iter(judgments)
    return [[next(answers).votes[0].completion for _ in range(_num_requests(prompt, protocol))] for prompt in prompts]


def rated_vote(prompt: ListPrompt, completions: Sequence[Completion]) -> Vote:
    """Return what the ratings of a prompt's answers come to: right if every right answer is rated above every wrong one; the
    first answer without a rating leaves the prompt without a verdict. The vote itself cost nothing."""
    ratings = [read_score(completion) for completion in completions]
    values = [rating.scores[0] for rating in ratings if rating.scores is not None]
    unread = [(rating, completion) for rating, completion in zip(ratings, completions, strict=True) if rating.scores is None]
    if unread:
        rating, completion = unread[0]
        return Vote(Order.GIVEN, Verdict(None, rating.status, OUTCOME), replace(completion, from_cache=True))
    is_right = min(values[: prompt.num_right]) > max(values[prompt.num_right :])
    text = "\n\n".join(completion.text for completion in completions)
    verdict = Verdict(_outcome(is_right), VerdictStatus.OK, OUTCOME)
    return Vote(Order.GIVEN, verdict, Completion(text, FinishReason.STOP, from_cache=True))


def places_of(answers: Sequence[Sequence[Completion]]) -> dict[str, float | None]:
    """Return the fraction of choices that name A, B, C and D; 1/4 each is no bias."""
    readings = [read_choice(completion) for completions in answers for completion in completions]
    choices = Counter(reading.scores.index(1) for reading in readings if reading.scores is not None)
    total = choices.total()
    return {letter: choices[place] / total if total else None for place, letter in enumerate(LETTERS)}


def official_records(
    prompts: Sequence[ListPrompt], answers: Sequence[Sequence[Completion]], protocol: str, seed: int
) -> list[Mapping[str, Any]]:
    """Return a line per prompt, as ``rewardlab bench official rewardbench2`` reads them: the text of one placing, sampled by
    the seed, and its letter, or the texts of all ratings, right answers first."""
    dice, records = random.Random(seed), list[Mapping[str, Any]]()
    for prompt, completions in zip(prompts, answers, strict=True):
        record: dict[str, Any] = {"id": prompt.prompt_id, "subset": prompt.subset}
        if protocol == "choice":
            place = dice.randrange(4)
            record |= {"right": LETTERS[place], "text": completions[place].text}
        else:
            record |= {"num_correct": prompt.num_right, "texts": [completion.text for completion in completions]}
        records.append(record)
    return records
