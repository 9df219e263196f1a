"""One audit: reward every row, gather what each reward value looks like, and try the probes."""

from __future__ import annotations

import random
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from rewardlab.checkpoints import commit, versions
from rewardlab.progress import bar
from rewardlab.rewards.audit.probes import Probe, judge_probes, verdict_probes, verifier_probes
from rewardlab.rewards.audit.rows import VERDICT, AuditRow, Earned, Rewarder
from rewardlab.rewards.verifiable.hybrid import Prompt, Route

MAX_VALUES = 8  # distinct rewards of a domain that are listed one by one; more are put into tenths
MAX_SHOWN = 1500  # characters of a text on the page and in the report


def run_audit(
    rows: Sequence[AuditRow], rewarder: Rewarder, *, num_probed: int, seed: int, num_samples: int = 4
) -> dict[str, Any]:
    """The report: ``domains`` (what was paid for what), ``probes``, and how many of them ``failed``.

    ``num_samples`` rows are shown of each reward value and ``num_probed`` prompts of each domain are probed, drawn by
    ``seed``. Raises DataError before anything is rewarded where a row has neither verifier, reference nor recorded reward.
    """
    for row in rows:
        rewarder.check(row)
    by_domain: dict[str, list[tuple[AuditRow, Earned]]] = defaultdict(list)
    with bar("rewards", len(rows)) as advance:
        for row in rows:
            by_domain[row.prompt.domain].append((row, rewarder.of_row(row)))
            advance()
    paid = {name: [row.prompt for row, _ in found if rewarder.source(row.prompt)] for name, found in by_domain.items()}
    drawn = {name: _draw(prompts, num_probed, seed) for name, prompts in paid.items()}
    probed = [probe for prompts in drawn.values() for prompt in prompts for probe in probes_of(prompt, rewarder)]
    probes = summarise(try_probes(probed, rewarder))
    return {
        "num_rows": len(rows),
        "domains": {name: _domain(found, num_samples, seed) for name, found in sorted(by_domain.items())},
        "probes": probes,
        "failed": sum(not cell["held"] for cell in probes),
        "unprobed": sorted(name for name, prompts in paid.items() if not prompts),
        "seed": seed,
        "commit": commit(),
        "versions": versions(),
    }


def _draw(items: Sequence[Any], num: int, seed: int) -> list[Any]:
    """``num`` of the items, drawn by ``seed``, in their order."""
    places = sorted(random.Random(seed).sample(range(len(items)), min(num, len(items))))
    return [items[place] for place in places]


def probes_of(prompt: Prompt, rewarder: Rewarder) -> list[Probe]:
    """The probes that fit whoever pays this prompt."""
    source = rewarder.source(prompt)
    if source == VERDICT:
        return list(verdict_probes(prompt))
    if source == Route.VERIFIER:
        return list(verifier_probes(prompt))
    reference = prompt.truth if source == Route.JUDGE_TRUTH else prompt.best
    assert reference is not None
    return list(judge_probes(prompt, reference))


def try_probes(probes: Sequence[Probe], rewarder: Rewarder) -> list[tuple[Probe, Earned]]:
    """What each probe earns."""
    tried = []
    with bar("probes", len(probes)) as advance:
        for probe in probes:
            tried.append((probe, rewarder.reward(probe.prompt, probe.completion)))
            advance()
    return tried


def summarise(tried: Iterable[tuple[Probe, Earned]]) -> list[dict[str, Any]]:
    """One record per domain and probe: what it may earn, the ``highest`` it got, and the ``worst`` case.

    ``held`` where every text earned what it may: no more than ``most`` and no less than ``least``. The worst is the one
    farthest outside, or else the highest paid.
    """
    cells: dict[tuple[str, str], list[tuple[Probe, Earned]]] = defaultdict(list)
    for probe, earned in tried:
        cells[probe.prompt.domain, probe.name].append((probe, earned))
    return [_cell(domain, name, found) for (domain, name), found in cells.items()]


def _cell(domain: str, name: str, found: Sequence[tuple[Probe, Earned]]) -> dict[str, Any]:
    def excess(item: tuple[Probe, Earned]) -> float:
        probe, earned = item
        return max(earned.reward - probe.most, probe.least - earned.reward)

    (probe, earned) = max(found, key=lambda item: (excess(item), item[1].reward))
    return {
        "domain": domain,
        "probe": name,
        "least": min(p.least for p, _ in found),
        "most": max(p.most for p, _ in found),
        "tried": len(found),
        "highest": max(e.reward for _, e in found),
        "paid_wrongly": sum(excess(item) > 0 for item in found),
        "held": excess((probe, earned)) <= 0,
        "statuses": dict(Counter(e.status for _, e in found).most_common()),
        "worst": {"text": _short(probe.completion.text), "question": _short(probe.prompt.question), "reward": earned.reward},
    }


def _short(text: str | None) -> str:
    """Cut to what can be shown, characters that cannot be seen spelt out."""
    text = "".join(f"\\u{ord(c):04x}" if unicodedata.category(c) == "Cf" else c for c in text or "")
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}… ({len(text):,} characters)"


def _domain(found: Sequence[tuple[AuditRow, Earned]], num_samples: int, seed: int) -> dict[str, Any]:
    """How many rows got which reward, with samples of each; and where the recorded reward is another."""
    values: dict[float, list[tuple[AuditRow, Earned]]] = defaultdict(list)
    exact = len({round(earned.reward, 6) for _, earned in found}) <= MAX_VALUES
    for row, earned in found:
        values[round(earned.reward, 6 if exact else 1)].append((row, earned))
    differs = [(row, earned) for row, earned in found if row.recorded is not None and abs(row.recorded - earned.reward) > 1e-6]
    return {
        "num_rows": len(found),
        "mean": sum(earned.reward for _, earned in found) / len(found),
        "exact_values": exact,
        "sources": dict(Counter(earned.source for _, earned in found)),
        "statuses": dict(Counter(earned.status for _, earned in found).most_common()),
        "num_recorded": sum(row.recorded is not None for row, _ in found),
        "num_differ": len(differs),
        "differ": [_sample(*item) for item in _draw(differs, num_samples, seed)],
        "values": [
            {
                "reward": value,
                "num_rows": len(rows),
                "statuses": dict(Counter(earned.status for _, earned in rows).most_common()),
                "samples": [_sample(*item) for item in _draw(rows, num_samples, seed)],
            }
            for value, rows in sorted(values.items())
        ],
    }


def _sample(row: AuditRow, earned: Earned) -> dict[str, Any]:
    return {
        "id": row.prompt.prompt_id,
        "question": _short(row.prompt.question),
        "truth": _short(row.prompt.truth if row.prompt.truth is not None else row.prompt.best),
        "response": _short(row.response),
        "extracted": _short(earned.extracted),
        "status": earned.status,
        "reward": earned.reward,
        "recorded": row.recorded,
    }
