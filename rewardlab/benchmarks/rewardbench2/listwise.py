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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rewardlab.benchmarks.report_model import NOT_ONE_VERDICT, Accuracy, CountedEstimate, json_form
from rewardlab.benchmarks.rewardbench2 import official
from rewardlab.benchmarks.rewardbench2.loader import ListPrompt, load_prompts
from rewardlab.benchmarks.runner import omitted_fields
from rewardlab.data.append_log import AppendLog, undamaged
from rewardlab.data.files import data_hash, write_atomic
from rewardlab.data.votes import completion_of, completion_row
from rewardlab.errors import ConfigError, EndpointError
from rewardlab.judging.judge import GenerativeJudge
from rewardlab.metrics.intervals import Interval, mean_estimate
from rewardlab.models.checkpoints import commit, versions
from rewardlab.prompts.listwise import LETTERS, list_messages, load_list_prompt, read_choice, read_rating
from rewardlab.reporting.progress import bar
from rewardlab.reporting.tables import markdown_table, percent, with_interval
from rewardlab.samplers.base import StreamingSampler, prompt_seed
from rewardlab.samplers.failures import MAX_FAILED, FailureStreak, errors_in_words, failure_sentence
from rewardlab.types import Completion, Message, VerdictStatus

PROTOCOLS = ("choice", "ratings")
CHUNK = 64  # prompts that are asked together, where answers do not come one by one, and that share a seed


@dataclass(frozen=True)
class ListSettings:
    """The settings of a run. ``words`` is a file with other words than the project's own, such as the benchmark's."""

    data: Path
    protocol: str
    words: Path | None = None
    limit: int | None = None
    seed: int = 0
    command: str = ""
    max_failed: float = MAX_FAILED  # share of the answers that may fail at the endpoint


@dataclass(frozen=True)
class ListScores:
    """The scores of all prompts. Of a choice also ``places``, the shares of A, B, C and D (1/4: no bias), and the share of
    prompts that are right in all four placings."""

    num_prompts: int
    accuracy: Accuracy
    interval: Interval
    groups: Mapping[str, CountedEstimate]
    num_answers: int
    invalid_rate: float
    statuses: Mapping[str, int]
    places: Mapping[str, float | None] | None = None
    consistent: float | None = None


@dataclass(frozen=True)
class ListReport:
    """A run by a protocol; ``template`` is that of the judge's training, it is asked in other ``words`` here.

    ``asked_without``: fields of a request that the endpoint was asked without; ``temperature`` is None where it is one.
    In JSON the fields of ``scores`` stand beside the others, those that are None left out. ``failure`` says why the run is no
    evidence of the judge, "" of one that is.
    """

    benchmark: str
    protocol: str
    command: str
    data: str
    judge: str
    words: str
    template: str
    temperature: float | None
    max_tokens: int
    seed: int
    left_out: int
    scores: ListScores
    versions: Mapping[str, str]
    commit: str
    official: tuple[str, ...]
    failure: str = ""
    cached_answers: int = 0
    asked_without: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return what ``report.json`` holds."""
        flat: dict[str, Any] = json_form(self)
        scores = {name: value for name, value in flat["scores"].items() if value is not None}
        parts = [scores if name == "scores" else {name: value} for name, value in flat.items()]
        return {name: value for part in parts for name, value in part.items()}


def list_requests(prompt: ListPrompt, protocol: str, words: str) -> list[tuple[Message, ...]]:
    """Return for a choice the four placings of the right answer, the others keeping theirs; for ratings a turn per answer."""
    if protocol == "ratings":
        return [list_messages(words, prompt.question, [answer]) for answer in prompt.answers]
    placings = []
    for place in range(4):
        answers = list(prompt.answers)
        answers[0], answers[place] = answers[place], answers[0]
        placings.append(list_messages(words, prompt.question, answers))
    return placings


def _num_requests(prompt: ListPrompt, protocol: str) -> int:
    return len(prompt.answers) if protocol == "ratings" else 4


def run_listwise(judge: GenerativeJudge, settings: ListSettings, out: Path) -> ListReport:
    """Ask, score and write ``answers.jsonl``, ``report.json``, ``report.md`` and ``official.jsonl``; a killed run continues.

    Prompts of the Ties subset, and others without exactly one right and three wrong answers, can only be rated: a choice
    leaves them out and says so. Raises ConfigError, and what loading raises.
    """
    if settings.protocol not in PROTOCOLS:
        raise ConfigError(f"unknown protocol {settings.protocol!r}; expected one of {', '.join(PROTOCOLS)}")
    kind = "choice" if settings.protocol == "choice" else "rating"
    words, every = load_list_prompt(kind, settings.words), load_prompts(settings.data)[: settings.limit]
    prompts = [prompt for prompt in every if settings.protocol == "ratings" or prompt.is_one_of_four]
    if not prompts:
        raise ConfigError(f"{settings.data}: has no prompt with one right and three wrong answers; run rewardbench2:ratings")
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
    without = omitted_fields(judge, out)
    records = official_records(prompts, answers, settings.protocol, settings.seed)
    try:
        official_lines = official.text_lines(records)
    except (ValueError, TypeError) as error:  # it does, for a tied prompt with one right answer
        official_lines = [f"the benchmark's own scorer ends in an error on these rows: {error!r}"]
    report = ListReport(
        benchmark="rewardbench2",
        protocol=settings.protocol,
        command=settings.command,
        data=str(settings.data),
        judge=judge.name,
        words=str(settings.words or f"{kind}.txt"),
        template=judge.template.name,
        temperature=None if "temperature" in without else judge.temperature,
        max_tokens=judge.config.max_tokens,
        seed=settings.seed,
        left_out=len(every) - len(prompts),
        scores=(score_choices if settings.protocol == "choice" else score_ratings)(prompts, answers),
        versions=versions(),
        commit=commit(),
        official=tuple(official_lines),
        failure=failure_sentence([answer for row in answers for answer in row], settings.max_failed, "answers"),
        asked_without=tuple(sorted(without)),
        cached_answers=sum(answer.from_cache for row in answers for answer in row),
    )
    write_atomic(out / "official.jsonl", "".join(json.dumps(record) + "\n" for record in records))
    write_atomic(out / "report.json", json.dumps(report.to_json(), indent=1, allow_nan=False) + "\n")
    write_atomic(out / "report.md", listwise_markdown(report))
    return report


Place = tuple[int, int]  # number of the prompt, number of the answer asked for it
Answers = dict[Place, Completion]


def _answered(log: AppendLog) -> Answers:
    """Return what need not be asked for again. Logs of older versions have a line of all answers of a prompt."""
    answers: Answers = {}
    for line, entry in enumerate(log.rows, start=2):
        with undamaged(log.path, line):
            rows = dict(enumerate(entry["answers"])) if "answers" in entry else {entry["place"]: entry["answer"]}
            drawn = {(entry["prompt"], place): completion_of(row) for place, row in rows.items()}
            answers |= {at: completion for at, completion in drawn.items() if not completion.failed}
    return answers


def _ask(
    judge: GenerativeJudge, prompts: Sequence[ListPrompt], settings: ListSettings, words: str, log: AppendLog
) -> list[list[Completion]]:
    answers, sizes = _answered(log), [_num_requests(prompt, settings.protocol) for prompt in prompts]
    places = [(n, place) for n, size in enumerate(sizes) for place in range(size)]
    missing = [at for at in places if at not in answers]
    if missing:
        judge.check()
    failures, num_failed = FailureStreak(judge.name, answered=bool(answers)), 0
    with bar(f"bench: {settings.protocol}", len(places)) as advance:
        advance(len(places) - len(missing))
        for batch in _asked(judge, _Questions(prompts, settings, words, places), missing):
            for (n, place), completion in batch:  # all that was paid for is kept before a failure may end the run
                log.append({"prompt": n, "place": place, "answer": completion_row(completion)})
                answers[n, place] = completion
                num_failed += completion.failed
            advance(len(batch), note=f"{num_failed:,} failed" if num_failed else "")
            for completion in (completion for _, completion in batch if not completion.from_cache):
                failures.take(completion)
    every = [answers[at] for at in places]
    if all(completion.failed for completion in every):
        raise EndpointError(
            f"{judge.name}: every one of {len(every):,} requests failed: {errors_in_words(every)}; nothing is lost: fix the "
            "cause and run the same command again"
        )
    return [[answers[n, place] for place in range(size)] for n, size in enumerate(sizes)]


@dataclass(frozen=True)
class _Questions:
    """What is asked at each place, and the seed of the chunk that its prompt is in."""

    prompts: Sequence[ListPrompt]
    settings: ListSettings
    words: str
    places: Sequence[Place]

    def messages(self, at: Place) -> tuple[Message, ...]:
        return list_requests(self.prompts[at[0]], self.settings.protocol, self.words)[at[1]]

    def seed(self, chunk: int) -> int:
        return int(hashlib.sha256(f"{self.settings.seed} {chunk * CHUNK}".encode()).hexdigest()[:8], 16)


def _asked(judge: GenerativeJudge, questions: _Questions, missing: Sequence[Place]) -> Iterator[list[tuple[Place, Completion]]]:
    """Yield the answers at the missing places, those in a list that came together: each by itself where the sampler can, else
    those of a chunk, which is asked whole where draws depend on what else is asked."""
    sampler, params = judge.sampler, judge.params(1)
    if isinstance(sampler, StreamingSampler) and sampler.is_streaming:
        chats = ((questions.messages(at), questions.seed(at[0] // CHUNK)) for at in missing)
        requests = ((messages, prompt_seed(seed, messages)) for messages, seed in chats)
        for batch in sampler.sample_each(requests, params):
            yield [(missing[number], completion) for number, completion in batch]
        return
    wanted = set(missing)
    chunks = sorted({n // CHUNK for n, _ in missing})
    for chunk in chunks:
        whole = [at for at in questions.places if at[0] // CHUNK == chunk and (at in wanted or not sampler.is_batch_invariant)]
        drawn = sampler.sample([questions.messages(at) for at in whole], replace(params, seed=questions.seed(chunk)))
        yield [(at, completions[0]) for at, completions in zip(whole, drawn, strict=True) if at in wanted]


def score_choices(prompts: Sequence[ListPrompt], answers: Sequence[Sequence[Completion]]) -> ListScores:
    """Score every placing of the right answer by whether it was named."""
    read = [[read_choice(completion) for completion in completions] for completions in answers]
    is_right = [[choice.value == place for place, choice in enumerate(choices)] for choices in read]
    letters = Counter(choice.value for choices in read for choice in choices if choice.value is not None)
    total = sum(letters.values())
    return replace(
        _scores(prompts, [sum(places) / 4 for places in is_right], [choice.status for choices in read for choice in choices]),
        places={letter: letters[n] / total if total else None for n, letter in enumerate(LETTERS)},
        consistent=sum(map(all, is_right)) / len(read),
    )


def score_ratings(prompts: Sequence[ListPrompt], answers: Sequence[Sequence[Completion]]) -> ListScores:
    """Score a prompt as right where every right answer is rated above every wrong one; an answer without a rating makes its
    prompt wrong."""
    read = [[read_rating(completion) for completion in completions] for completions in answers]
    scores = []
    for prompt, ratings in zip(prompts, read, strict=True):
        values = [rating.value for rating in ratings if rating.value is not None]
        good, bad = values[: prompt.num_right], values[prompt.num_right :]
        scores.append(float(len(values) == len(ratings) and min(good) > max(bad)))
    return _scores(prompts, scores, [rating.status for ratings in read for rating in ratings])


def _scores(prompts: Sequence[ListPrompt], scores: Sequence[float], statuses: Sequence[VerdictStatus]) -> ListScores:
    groups: dict[str, list[float]] = defaultdict(list)
    for prompt, value in zip(prompts, scores, strict=True):
        groups[prompt.subset].append(value)
    cells = {name: _counted(values) for name, values in sorted(groups.items())}
    overall, counts = _counted(scores), Counter(statuses)
    return ListScores(
        num_prompts=len(prompts),
        accuracy=Accuracy(overall.accuracy, sum(cell.accuracy for cell in cells.values()) / len(cells)),
        interval=overall.interval,
        groups=cells,
        num_answers=len(statuses),
        invalid_rate=1 - counts[VerdictStatus.OK] / len(statuses),
        statuses={status.value: counts[status] for status in VerdictStatus if counts[status]},
    )


def _counted(scores: Sequence[float]) -> CountedEstimate:
    estimate = mean_estimate(scores, [str(n) for n in range(len(scores))])
    return CountedEstimate(len(scores), estimate.accuracy, estimate.interval)


def official_records(
    prompts: Sequence[ListPrompt], answers: Sequence[Sequence[Completion]], protocol: str, seed: int
) -> list[Mapping[str, Any]]:
    """A line per prompt, as ``rewardlab bench official rewardbench2`` reads them: the text of one drawn placing and its letter,
    or the texts of all ratings, right answers first."""
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


def listwise_markdown(report: ListReport) -> str:
    """Return the report for a terminal or a pull request; it has no accuracies of a run that failed, or in which nothing was
    read."""
    scores, is_unread = report.scores, report.scores.invalid_rate == 1
    cells = {**scores.groups, "all prompts": CountedEstimate(scores.num_prompts, scores.accuracy.micro, scores.interval)}
    rows = [(name, with_interval(cell.accuracy, cell.interval), f"{cell.n:,}") for name, cell in cells.items()]
    rows.append(("mean of the subsets", percent(scores.accuracy.macro), f"{scores.num_prompts:,}"))
    lines = [f"# RewardBench 2, {report.protocol}: {report.judge}", ""]
    if report.failure:  # figures would be of the endpoint
        lines += [f"**FAILED: {report.failure}**", ""]
    elif is_unread:
        unread = NOT_ONE_VERDICT.format(scores.num_answers)
        lines += [f"**{unread[0].upper()}{unread[1:]}: there is no accuracy to show**", ""]
    else:
        lines += [*markdown_table(("", "accuracy %, 95 % interval", "prompts"), rows), ""]
        lines += ["Output of the benchmark's own scorer for these answers:", "", "```text", *report.official, "```", ""]
    if not (report.failure or is_unread) and scores.places is not None and scores.consistent is not None:
        places = ", ".join(f"{letter} {'–' if s is None else f'{100 * s:.1f} %'}" for letter, s in scores.places.items())
        lines += [
            f"- named: {places} (a quarter each: no bias)",
            f"- right in all four placings: {100 * scores.consistent:.1f} %",
        ]
    failed = sum(scores.statuses.get(status, 0) for status in ("error", "timeout"))
    if failed:
        lines.append(f"- **{failed:,} of {scores.num_answers:,} answers failed at the endpoint; the same command asks again**")
    if report.asked_without:
        lines.append(f"- asked without {', '.join(report.asked_without)}: the endpoint's own defaults hold")
    if report.cached_answers:
        lines.append(f"- cached: {report.cached_answers:,} of {scores.num_answers:,} answers")
    lines += [f"- invalid rate: {100 * scores.invalid_rate:.2f} %, by status {dict(scores.statuses)}"]
    if scores.statuses.get("truncated") == scores.num_answers:
        lines.append("- every answer was cut off: raise max_tokens")
    if report.left_out:
        lines += [
            f"- {report.left_out:,} prompts left out: not one right and three wrong answers (rate them: rewardbench2:ratings)"
        ]
    return "\n".join([*lines, f"- command: {report.command or '–'}", f"- commit: {report.commit}"]) + "\n"
