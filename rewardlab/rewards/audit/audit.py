"""One audit: reward every row, gather what each reward value looks like, and try the probes."""

from __future__ import annotations

import random
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import TypeVar

from rewardlab.models.checkpoints import commit, versions
from rewardlab.reporting.progress import bar
from rewardlab.rewards.audit.probes import Probe, judge_probes, verdict_probes, verifier_probes
from rewardlab.rewards.audit.report import AuditReport, DomainReport, ProbeResult, RewardValue, RowSample, WorstCase
from rewardlab.rewards.audit.rows import VERDICT, AuditRow, Rewarder, RewardResult
from rewardlab.rewards.verifiable.hybrid import Prompt, Route

MAX_VALUES = 8  # distinct rewards of a domain that are listed one by one; more are put into tenths
MAX_TEXT_CHARS = 1500  # of a text on the page and in the report

_Item = TypeVar("_Item")


def run_audit(rows: Sequence[AuditRow], rewarder: Rewarder, *, num_probed: int, seed: int, num_samples: int = 4) -> AuditReport:
    """Reward every row and try the probes.

    ``num_samples`` rows are listed of each reward value and ``num_probed`` prompts of each domain are probed, drawn by
    ``seed``. Raise DataError before anything is rewarded if a row has neither verifier, reference nor recorded reward.
    """
    for row in rows:
        rewarder.check(row)
    by_domain: dict[str, list[tuple[AuditRow, RewardResult]]] = defaultdict(list)
    with bar("rewards", len(rows)) as advance:
        for row in rows:
            by_domain[row.prompt.domain].append((row, rewarder.reward_row(row)))
            advance()
    prompts = {name: [row.prompt for row, _ in results if rewarder.source(row.prompt)] for name, results in by_domain.items()}
    probes = [
        probe
        for of_domain in prompts.values()
        for prompt in _draw(of_domain, num_probed, seed)
        for probe in probes_of(prompt, rewarder)
    ]
    return AuditReport(
        num_rows=len(rows),
        domains={name: _domain(results, num_samples, seed) for name, results in sorted(by_domain.items())},
        probes=summarise(try_probes(probes, rewarder)),
        unprobed=sorted(name for name, of_domain in prompts.items() if not of_domain),
        seed=seed,
        commit=commit(),
        versions=versions(),
    )


def _draw(items: Sequence[_Item], num: int, seed: int) -> list[_Item]:
    """Return ``num`` of the items, drawn by ``seed``, in their order."""
    places = sorted(random.Random(seed).sample(range(len(items)), min(num, len(items))))
    return [items[place] for place in places]


def probes_of(prompt: Prompt, rewarder: Rewarder) -> list[Probe]:
    """Return the probes that fit the source of a prompt's rewards."""
    source = rewarder.source(prompt)
    if source == VERDICT:
        return list(verdict_probes(prompt))
    if source == Route.VERIFIER:
        return list(verifier_probes(prompt))
    reference = prompt.truth if source == Route.JUDGE_TRUTH else prompt.best
    assert reference is not None
    return list(judge_probes(prompt, reference))


def try_probes(probes: Sequence[Probe], rewarder: Rewarder) -> list[tuple[Probe, RewardResult]]:
    """Return each probe with the reward it earns."""
    results = []
    with bar("probes", len(probes)) as advance:
        for probe in probes:
            results.append((probe, rewarder.reward(probe.prompt, probe.completion)))
            advance()
    return results


def summarise(results: Iterable[tuple[Probe, RewardResult]]) -> list[ProbeResult]:
    """Return one record per domain and probe."""
    groups: dict[tuple[str, str], list[tuple[Probe, RewardResult]]] = defaultdict(list)
    for probe, result in results:
        groups[probe.prompt.domain, probe.name].append((probe, result))
    return [_probe_result(domain, name, group) for (domain, name), group in groups.items()]


def _probe_result(domain: str, name: str, results: Sequence[tuple[Probe, RewardResult]]) -> ProbeResult:
    def excess(item: tuple[Probe, RewardResult]) -> float:
        probe, result = item
        return max(result.reward - probe.most, probe.least - result.reward)

    probe, worst = max(results, key=lambda item: (excess(item), item[1].reward))
    return ProbeResult(
        domain=domain,
        probe=name,
        least=min(p.least for p, _ in results),
        most=max(p.most for p, _ in results),
        tried=len(results),
        highest=max(result.reward for _, result in results),
        paid_wrongly=sum(excess(item) > 0 for item in results),
        statuses=_count_statuses(results),
        worst=WorstCase(_short(probe.completion.text), _short(probe.prompt.question), worst.reward),
    )


def _count_statuses(results: Iterable[tuple[object, RewardResult]]) -> dict[str, int]:
    return dict(Counter(result.status for _, result in results).most_common())


def _short(text: str | None) -> str:
    """Return a text cut to :data:`MAX_TEXT_CHARS`, with invisible characters spelt out."""
    text = "".join(f"\\u{ord(c):04x}" if unicodedata.category(c) == "Cf" else c for c in text or "")
    return text if len(text) <= MAX_TEXT_CHARS else f"{text[:MAX_TEXT_CHARS]}… ({len(text):,} characters)"


def _domain(results: Sequence[tuple[AuditRow, RewardResult]], num_samples: int, seed: int) -> DomainReport:
    """Return how many rows got which reward, with samples of each; and where the recorded reward is another."""
    values: dict[float, list[tuple[AuditRow, RewardResult]]] = defaultdict(list)
    exact = len({round(result.reward, 6) for _, result in results}) <= MAX_VALUES
    for row, result in results:
        values[round(result.reward, 6 if exact else 1)].append((row, result))
    differ = [(row, result) for row, result in results if row.recorded is not None and abs(row.recorded - result.reward) > 1e-6]
    return DomainReport(
        num_rows=len(results),
        mean=sum(result.reward for _, result in results) / len(results),
        exact_values=exact,
        sources=dict(Counter(result.source for _, result in results)),
        statuses=_count_statuses(results),
        num_recorded=sum(row.recorded is not None for row, _ in results),
        num_differ=len(differ),
        differ=[_sample(*item) for item in _draw(differ, num_samples, seed)],
        values=[
            RewardValue(value, len(rows), _count_statuses(rows), [_sample(*item) for item in _draw(rows, num_samples, seed)])
            for value, rows in sorted(values.items())
        ],
    )


def _sample(row: AuditRow, result: RewardResult) -> RowSample:
    return RowSample(
        id=row.prompt.prompt_id,
        question=_short(row.prompt.question),
        truth=_short(row.prompt.truth if row.prompt.truth is not None else row.prompt.best),
        response=_short(row.response),
        extracted=_short(result.extracted),
        status=result.status,
        reward=result.reward,
        recorded=row.recorded,
    )
