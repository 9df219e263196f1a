"""Hard negatives from a policy's answers: wrong answers that a judge pays well, each beside the preferred response.

Answers are sampled from a policy, or read from its log. Whether one is right is known exactly, by a rule, by a teacher, or by
labels in a file.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from rewardlab.config import NegativesConfig
from rewardlab.data.append_log import AppendLog, undamaged
from rewardlab.data.files import write_atomic
from rewardlab.data.pair_table import fingerprint_of, pair_facts
from rewardlab.data.row_files import lines_of
from rewardlab.data.set_checks import tie_note
from rewardlab.errors import DataError, EndpointError
from rewardlab.judging.judge import GenerativeJudge
from rewardlab.judging.spec import judge_weights_id
from rewardlab.prompts import Template, build_messages
from rewardlab.reporting.progress import bar, log_line
from rewardlab.rewards.pairwise import PairwiseReward, without_thinking
from rewardlab.rewards.verified import Rightness
from rewardlab.samplers.base import Sampler, SamplingParams
from rewardlab.samplers.failures import MAX_FAILED, FailureStreak
from rewardlab.types import BOTH_ORDERS, IMAGE_MARK, FinishReason, Judgment, Order, PreferencePair

ANSWERS, TEACHER, POLICY, NEGATIVES = "answers.jsonl", "teacher.jsonl", "policy.json", "negatives.parquet"
SOURCE, CHUNK = "policy", 64
FORMAT, TEACHER_FORMAT = 3, 3  # of the two logs


@dataclass(frozen=True)
class PaidAnswer:
    """An answer of a policy to the question of a pair, and the probability that it beats the preferred response: 0.5 of that
    response itself, None where the judge could not compare the two."""

    pair_id: str
    answer: str
    reward: float | None


Readers = Mapping[str, Callable[[], PreferencePair] | None]


def readers_of(pairs: Sequence[PreferencePair]) -> Readers:
    """Return what reads a pair by its id, None for one without a label; a large set stays on disk. Raise DataError if all pairs
    are ties."""
    if note := tie_note(sum(each.tied for each in pair_facts(pairs)), len(pairs)):
        log_line(note)
    facts = enumerate(pair_facts(pairs))
    return {each.pair_id: None if each.preferred is None else partial(pairs.__getitem__, n) for n, each in facts}


def sample_answers(
    pairs: Sequence[PreferencePair],
    policy: Sampler,
    template: Template,
    judge: GenerativeJudge,
    out: Path,
    config: NegativesConfig,
) -> tuple[list[PaidAnswer], Counter[str]]:
    """Return the policy's answers to labelled questions, what the judge pays for each, and how many were left out: questions
    whose responses are ``with_images``, and answers that are ``unfinished`` or empty.

    They are kept in ``out/answers.jsonl``: a killed run resumes, and pays again where a request failed. Raise ConfigError if
    that is another run's, EndpointError if too many requests fail, and what the judge raises.
    """
    number, seed = config.number, config.seed
    labelled = [n for n, facts in enumerate(pair_facts(pairs)) if facts.preferred is not None]
    drawn = random.Random(f"answers {seed}").sample(labelled, min(number, len(labelled)))
    identity = {
        "data": fingerprint_of(pairs),
        "policy": policy.name,
        "policy_weights": judge_weights_id(policy.name),
        "policy_template": template.hash,
        **{f"answer_{name}": value for name, value in config.sampling.items()},
        "seed": seed,
        "number": number,
        "format": FORMAT,
        **judge.identity,
    }
    reward = PairwiseReward(judge, seed=seed)
    params = SamplingParams(1, **config.sampling, seed=seed)

    def pay(chunk: Sequence[int]) -> tuple[dict[str, Any], int]:
        before = reward.num_failed
        some = [pair for pair in map(pairs.__getitem__, chunk) if not any(pair.response_images)]
        sampled = policy.sample([build_messages(pair, order=Order.GIVEN, template=template) for pair in some], params)
        finished = [
            (pair, answer)
            for pair, (sample,) in zip(some, sampled, strict=True)
            if sample.finish is FinishReason.STOP and (answer := without_thinking(sample.text))
        ]
        questions, texts = [pair for pair, _ in finished], [answer for _, answer in finished]
        paid, _ = reward(questions, texts, [(_good(pair),) for pair in questions], 0)
        answers = [
            asdict(PaidAnswer(pair.pair_id, answer, share)) for (pair, answer), share in zip(finished, paid, strict=True)
        ]
        left_out = {"with_images": len(chunk) - len(some), "unfinished": len(some) - len(finished)}
        return {"answers": answers, "left_out": left_out}, reward.num_failed - before

    with AppendLog(out / ANSWERS, identity) as log, bar("answers", len(drawn)) as advance:
        rows = _in_chunks(log, drawn, advance, pay, judge.name)
    counts = Counter[str]()
    for row in rows:
        counts.update(row["left_out"])
    return [PaidAnswer(**answer) for row in rows for answer in row["answers"]], counts


def ask_teacher(
    pairs: Mapping[str, Callable[[], PreferencePair]],
    answers: Sequence[PaidAnswer],
    teacher: GenerativeJudge,
    out: Path,
    *,
    seed: int = 0,
) -> Rightness:
    """Query a teacher about answers beside the preferred response, one vote in each order. An answer is wrong if both votes are
    for the preferred response, right if both are for the answer; anything else is unknown.

    Verdicts are kept in ``out/teacher.jsonl`` by a hash of the pair: a killed run resumes, and repeats requests that failed.
    Raise ConfigError if the file is of another teacher or seed, EndpointError for a teacher that does not answer.
    """
    given = dict.fromkeys((paid.pair_id, paid.answer) for paid in answers if paid.pair_id in pairs)
    keys = {
        (name, answer): fingerprint_of([_beside_good(pair, answer)])
        for name, answer in given
        if not _is_preferred(pair := pairs[name](), answer)
    }
    identity = {"seed": seed, "format": TEACHER_FORMAT, **teacher.identity}
    failures, failed = FailureStreak(teacher.name), 0
    with AppendLog(out / TEACHER, identity) as log, bar("teacher", len(keys)) as advance:
        verdicts = _verdicts_in(log)
        missing = [name for name, key in keys.items() if key not in verdicts]
        advance(len(keys) - len(missing))
        for start in range(0, len(missing), CHUNK):
            chunk = missing[start : start + CHUNK]
            compared = [_beside_good(pairs[name](), answer) for name, answer in chunk]
            judgments = teacher.compare_many(compared, orders=[BOTH_ORDERS] * len(compared), num_votes=1, seed=seed)
            whole = {
                keys[name]: _unanimous(judgment)
                for name, judgment in zip(chunk, judgments, strict=True)
                if not any(vote.completion.failed for vote in judgment.votes)
            }
            if whole:
                log.append({"right": whole})
                verdicts.update(whole)
            for completion in (vote.completion for judgment in judgments for vote in judgment.votes):
                failed += completion.failed
                failures.take(completion)
            advance(len(chunk))
    _check_failures(teacher.name, failed, len(BOTH_ORDERS) * len(keys))
    return lambda pair, answer: verdicts.get(keys.get((pair.pair_id, answer), ""))


def _verdicts_in(log: AppendLog) -> dict[str, bool | None]:
    """Return what the teacher said in an earlier part of the run, by the hash of what it was shown."""
    verdicts = dict[str, bool | None]()
    for number, row in enumerate(log.rows, start=2):  # the first line names the run
        with undamaged(log.path, number):
            verdicts.update(row["right"])
    return verdicts


def _in_chunks(
    log: AppendLog,
    items: Sequence[int],
    advance: Callable[[int], object],
    work: Callable[[Sequence[int]], tuple[dict[str, Any], int]],
    name: str,
) -> list[dict[str, Any]]:
    """Return a row for each chunk of items: that of the log, or the one that ``work`` makes, with the number of its requests to
    ``name`` that failed. A row with failures is made again the next time. Raise EndpointError if too many failed."""
    whole = {row["chunk"]: row for row in log.rows if not row["failed"]}
    rows, num_failed = list[dict[str, Any]](), 0
    for number, start in enumerate(range(0, len(items), CHUNK)):
        chunk = items[start : start + CHUNK]
        if (row := whole.get(number)) is None:
            made, failed = work(chunk)
            row = {"chunk": number, **made, "failed": failed}
            log.append(row)
            num_failed += failed
        rows.append(row)
        advance(len(chunk))
    _check_failures(name, num_failed, len(BOTH_ORDERS) * len(items))
    return rows


def _check_failures(name: str, number: int, num_requests: int) -> None:
    """Log how many requests failed. Raise EndpointError if these are too many."""
    failures = f"{number:,} of {num_requests:,} requests failed"
    if number > MAX_FAILED * num_requests:
        raise EndpointError(f"{name}: {failures}; fix the cause and run the same command again, which repeats these")
    if number:
        log_line(f"{name}: {failures}, and nothing is known of these answers")


def _unanimous(judgment: Judgment) -> bool | None:
    winners = {vote.winner for vote in judgment.votes}
    return None if len(winners) != 1 or None in winners else winners == {0}


def _beside_good(pair: PreferencePair, answer: str) -> PreferencePair:
    """Return a pair of an answer and the preferred response, without a label."""
    images = ((), pair.response_images[pair.preferred or 0])
    return replace(pair, responses=(_shown(answer), _good(pair)), response_images=images, preferred=None)


def _shown(answer: str) -> str:
    """Return an answer without marks of images, of which a policy's text has none."""
    return answer.replace(IMAGE_MARK, "")


@dataclass
class NegativeCounts:
    """Numbers of answers: to pairs without a label, not compared, paid too little, given before, right, unknown, negatives."""

    answers: int = 0
    unlabelled: int = 0
    unreadable: int = 0
    paid_little: int = 0
    repeated: int = 0
    right: int = 0
    unknown: int = 0
    negatives: int = 0

    def sentence(self, least_reward: float) -> str:
        """Return the counts in words."""
        paid = least_reward > 0
        return (
            f"{self.answers:,} answers: {self.unreadable:,} that the judge could not compare, "
            + (f"{self.paid_little:,} paid less than {least_reward:g}, " if paid else "")
            + f"{self.repeated:,} said before, {self.right:,} right, {self.unknown:,} not known, {self.negatives:,} wrong"
            + (" and paid" if paid else "")
            + (f"; {self.unlabelled:,} to pairs without a label" if self.unlabelled else "")
        )


def wrong_and_paid(
    pairs: Readers, answers: Iterable[PaidAnswer], rightness: Rightness, counts: NegativeCounts, *, least_reward: float
) -> Iterator[tuple[PaidAnswer, PreferencePair | None]]:
    """Yield each answer that is paid ``least_reward`` or more and is wrong, with its negative, or with None if its rightness is
    unknown. Answers to pairs without a label are left out. Raise DataError for an answer to a pair that is not there."""
    seen: set[tuple[str, str]] = set()
    for paid in answers:
        counts.answers += 1
        if paid.pair_id not in pairs:
            raise DataError(
                f"an answer is to pair {paid.pair_id!r}, which the set does not have; "
                "give the set that the answers were sampled from"
            )
        if (reader := pairs[paid.pair_id]) is None:
            counts.unlabelled += 1
            continue
        if paid.reward is None:
            counts.unreadable += 1
            continue
        name = (paid.pair_id, paid.answer)
        counts.paid_little += paid.reward < least_reward
        counts.repeated += paid.reward >= least_reward and name in seen
        if paid.reward < least_reward or name in seen:
            continue
        seen.add(name)
        pair = reader()
        if not _shown(paid.answer).strip():
            counts.paid_little += 1  # no pair has an empty response, and no judge pays one
            continue
        right = is_right(pair, paid.answer, rightness)
        counts.unknown += right is None
        counts.right += right is True
        counts.negatives += right is False
        if right is None:
            yield paid, None
        elif not right:
            yield paid, as_negative(pair, paid.answer)


def is_right(pair: PreferencePair, answer: str, rightness: Rightness) -> bool | None:
    """Return whether an answer is right, None where it is not known. The preferred response is."""
    return True if _is_preferred(pair, answer) else rightness(pair, answer)


def _is_preferred(pair: PreferencePair, answer: str) -> bool:
    return _shown(answer).strip() == _good(pair).strip()


@dataclass
class PolicyResult:
    """How a policy answered ``questions``: right, wrong (not finished, or empty, is), not known; ``reward`` is the mean of
    what the judge paid for the ``paid`` answers that it could compare, 0 to 1, None where it paid nothing."""

    questions: int
    right: int
    wrong: int
    unknown: int
    paid: int
    reward: float | None

    @property
    def share_right(self) -> float | None:
        """Answers that are known to be right, in 0..1 of all questions; None where none was asked."""
        return self.right / self.questions if self.questions else None


def policy_result(pairs: Readers, answers: Sequence[PaidAnswer], unfinished: int, rightness: Rightness) -> PolicyResult:
    """Count the answers of :func:`sample_answers`, each to a labelled pair of ``pairs``."""
    counts = Counter[bool | None]()
    for paid in answers:
        reader = pairs[paid.pair_id]
        assert reader is not None  # only labelled pairs are asked
        counts[is_right(reader(), paid.answer, rightness)] += 1
    rewards = [paid.reward for paid in answers if paid.reward is not None]
    return PolicyResult(
        questions=len(answers) + unfinished,
        right=counts[True],
        wrong=counts[False] + unfinished,
        unknown=counts[None],
        paid=len(rewards),
        reward=sum(rewards) / len(rewards) if rewards else None,
    )


def as_negative(pair: PreferencePair, answer: str) -> PreferencePair:
    """Return the pair with a wrong answer in place of its other response, at a random index; it has no judgment, and the
    difficulty tag "2", which RL takes, if the pair has a tag."""
    answer = _shown(answer)
    place = random.Random(f"{pair.pair_id} {answer}").randrange(2)
    good = 1 - place
    images = pair.response_images[pair.preferred or 0]
    return replace(
        pair,
        pair_id=f"{pair.pair_id}/{SOURCE}/{hash_of(answer)}",
        responses=(answer, _good(pair)) if place == 0 else (_good(pair), answer),
        response_images=((), images) if place == 0 else (images, ()),
        preferred=good,
        judgment="",
        attempts="2" if pair.attempts else "",
        teacher_share=None,
        source=f"{SOURCE}:{pair.source}" if pair.source else SOURCE,
        provenance=f"{SOURCE}:{pair.provenance or pair.pair_id}",
    )


def hash_of(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _good(pair: PreferencePair) -> str:
    return pair.responses[pair.preferred or 0]


TO_LABEL = "to_label.jsonl"
REWARD, RIGHT = "reward (0 to 1, or null)", "right (true, false or null)"


def logged_answers(path: Path) -> Iterator[PaidAnswer]:
    """Yield the answers of a log: lines with ``pair_id``, ``answer`` (or ``text``) and ``reward``, as in ``samples.jsonl`` of
    `rewardlab policy`; null is the reward of an answer that the judge could not compare. Raise DataError for another line, and
    for a reward outside 0 to 1."""
    for number, row in _rows_of(path, "reward", REWARD):
        reward = row["reward"]
        if reward is not None and (isinstance(reward, bool) or not isinstance(reward, int | float) or not 0 <= reward <= 1):
            raise DataError(
                f"{path}, line {number}: the reward is {_in_short(reward)}; expected a number from 0 to 1, the probability "
                "of beating the preferred response, or null. A policy whose `phi` is "
                "not probability, and one under a scalar judge, "
                "log on another scale: convert these rewards, or sample answers anew with --policy and --judge"
            )
        answer = without_thinking(row.get("answer", row.get("text")))
        yield PaidAnswer(row["pair_id"], answer, None if reward is None else float(reward))


def by_labels(path: Path) -> Rightness:
    """Return the labels of a filled-in file: lines with ``pair_id``, ``answer`` and ``right``. Other answers, and those whose
    ``right`` is null, are unknown. Raise DataError for another line, and for one that contradicts another."""
    known = {name: row["right"] for name, row in _labels_of(path).items()}
    return lambda pair, answer: known.get((pair.pair_id, answer))


def label_row(paid: PaidAnswer, pair: PreferencePair) -> dict[str, Any]:
    """Return the line of an answer, to be filled in."""
    return {**asdict(paid), "question": pair.question, "preferred": pair.responses[pair.preferred or 0], "right": None}


def write_labels(rows: Sequence[Mapping[str, Any]], path: Path) -> int:
    """Write the lines of :func:`label_row`; return how many lack a label. Labels that are filled in at ``path`` stay, also
    those of answers that are not among ``rows``. Raise DataError, and keep the file, if one of its lines cannot be read."""
    new = {(row["pair_id"], row["answer"]): row for row in rows}
    lines = dict[tuple[str, str], Mapping[str, Any]]()
    for name, row in (_labels_of(path) if path.is_file() else {}).items():
        if name in new or row["right"] is not None:
            lines[name] = {**row, **new.get(name, {}), "right": row["right"]}
    lines = {**lines, **{name: row for name, row in new.items() if name not in lines}}
    write_atomic(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in lines.values()))
    return sum(row["right"] is None for row in lines.values())


def _labels_of(path: Path) -> dict[tuple[str, str], Mapping[str, Any]]:
    """Return the lines of a filled-in file by pair and answer; the last one with a label if there are several."""
    rows = dict[tuple[str, str], tuple[int, Mapping[str, Any]]]()
    for number, row in _rows_of(path, "right", RIGHT):
        right, name = row["right"], (row["pair_id"], row.get("answer", row.get("text")))
        if right is not None and not isinstance(right, bool):
            raise DataError(f"{path}, line {number}: expected {RIGHT}, got {_in_short(right)}")
        line, before = rows.get(name, (number, row))
        if None not in (right, before["right"]) and right != before["right"]:
            raise DataError(
                f"{path}, line {number}: right is {_in_short(right)}, and {_in_short(before['right'])} of the same answer in "
                f"line {line}; expected one label per answer: delete the wrong line"
            )
        if name not in rows or right is not None:
            rows[name] = (number, row)
    return {name: row for name, (_, row) in rows.items()}


def _rows_of(path: Path, field: str, expected: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield (line number, object) of lines with a ``pair_id``, an ``answer`` (or ``text``) and a ``field``, described by
    ``expected``. Raise DataError for another line."""
    for number, row in lines_of(path):
        if isinstance(row, DataError):
            raise row
        where = f"{path}, line {number}"
        if not isinstance(row, dict):
            raise DataError(f"{where}: expected an object with pair_id, answer (or text) and {expected}, got {_in_short(row)}")
        texts = (row.get("pair_id"), row.get("answer", row.get("text")))
        if not all(isinstance(text, str) for text in texts) or field not in row:
            kinds = ", ".join(f"{name} ({type(value).__name__})" for name, value in sorted(row.items())) or "nothing"
            raise DataError(f"{where}: expected pair_id, answer (or text), both texts, and {expected}, got {kinds}")
        try:
            "".join(map(str, texts)).encode()
        except UnicodeEncodeError:
            raise DataError(
                f"{where}: a text contains half a surrogate pair, which is not a valid character and "
                "cannot be stored; clean it up, or delete the line"
            ) from None
        yield number, row


def _in_short(value: Any) -> str:
    """Return a value as JSON, in 40 characters at most."""
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
