"""Hard negatives for a judge: pairs of a set under attack, whose better response is known (`rewardlab data harden`).

Only families that are for training are used; ``rewardlab bench run`` tests on the others. Texts are put into the good
response as often as into the wrong one: else a judge would learn that strange words lose.
"""

from __future__ import annotations

import math
import random
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from rewardlab.data.attacks.answers import OtherAnswer
from rewardlab.data.attacks.families import FAMILIES, NUM_OTHERS, AttackedPair, Family, Kind, Opponent, attacks_on, families_of
from rewardlab.errors import ConfigError, DataError
from rewardlab.types import PreferencePair, VerdictStatus, choice_of
from rewardlab.verdicts.formats import WRITERS
from rewardlab.verdicts.parse import format_verdict, parse_verdict

SOURCE = "harden"
READABLE = (VerdictStatus.OK, VerdictStatus.TIE)


@dataclass(frozen=True)
class HardenSettings:
    """How negatives are made: ``ratio`` of them for each pair of the set, drawn by ``seed`` from ``families`` (names or kinds;
    none: all that are for training). A negative of a pair with a judgment has one that names the defect, in the form
    ``verdict_format``; "" writes none.

    Raise ConfigError for a family that is held out, for an unknown family or format, and for a ratio that is not positive.
    """

    ratio: float = 0.5
    seed: int = 0
    families: tuple[str, ...] = ()
    verdict_format: str = "think_answer"

    def __post_init__(self) -> None:
        if not 0 < self.ratio < math.inf:
            raise ConfigError(f"ratio {self.ratio:g}: expected more than 0 negatives for each pair")
        if self.verdict_format and self.verdict_format not in WRITERS:
            raise ConfigError(f"no judgments in the format {self.verdict_format!r}; expected one of {', '.join(WRITERS)}")
        if held_out := [name for name in self.families if name in FAMILIES and not FAMILIES[name].in_training]:
            known = ", ".join(name for name, family in FAMILIES.items() if family.in_training)
            raise ConfigError(f"these families are held out for `bench run`: {', '.join(held_out)}; expected some of {known}")
        if bare := [name for name in self.families if not any(family.in_training for family in families_of((name,)))]:
            raise ConfigError(f"no training family is of the kinds {', '.join(bare)}")

    @property
    def chosen(self) -> list[Family]:
        return [family for family in families_of(self.families) if family.in_training]


@dataclass
class HardenCounts:
    """Numbers of pairs of the set, of those without a label, and of negatives by group."""

    pairs: int = 0
    unlabelled: int = 0
    judged: int = 0
    groups: Counter[str] = field(default_factory=Counter)

    @property
    def negatives(self) -> int:
        return sum(self.groups.values())


def harden(pairs: Iterable[PreferencePair], settings: HardenSettings, counts: HardenCounts) -> Iterator[PreferencePair]:
    """Yield every pair of a set, each followed by its negatives; ``counts`` is kept up to date.

    A negative has its pair's order. If the attack leaves the pair's judgment true, the negative keeps it; for a degenerate
    response a judgment is written that names the defect. Negatives of a pair without a judgment or tag have none either. Raise
    DataError for a set that has such negatives already, and ConfigError for a judgment in another form than the written ones.
    """
    families, others = settings.chosen, deque[OtherAnswer](maxlen=NUM_OTHERS)  # of the pairs before
    for pair in pairs:
        _check(pair, settings)
        counts.pairs += 1
        yield pair
        counts.unlabelled += pair.preferred is None
        if pair.preferred is None:
            continue
        negatives = negatives_of(pair, families, settings, tuple(others))
        others.append(OtherAnswer.of(pair))
        for negative in negatives:
            made = finished(negative, settings)
            counts.groups[negative.group] += 1
            counts.judged += bool(made.judgment)
            yield made


def _check(pair: PreferencePair, settings: HardenSettings) -> None:
    if pair.source.startswith(f"{SOURCE}:"):
        raise DataError(f"{pair.pair_id}: is already a negative of `data harden`; harden the original set instead")
    form = settings.verdict_format
    if form and pair.judgment and parse_verdict(pair.judgment, form).status not in READABLE:
        raise ConfigError(
            f"{pair.pair_id}: its judgment has no verdict in the form {form}, which the new judgments use; set "
            "--template to the template of these judgments, or to none"
        )


def negatives_of(
    pair: PreferencePair, families: Sequence[Family], settings: HardenSettings, others: Sequence[OtherAnswer] = ()
) -> list[AttackedPair]:
    """Return the negatives of a pair, as many as ``ratio`` says on average: of each family one at most. Fewer where fewer
    families make something of it that has a better response. ``others`` are those of :func:`attacks_on`."""
    dice = random.Random(f"harden {settings.seed} {pair.pair_id}")
    whole, part = divmod(settings.ratio, 1)
    number = int(whole) + (dice.random() < part)
    drawn = list[AttackedPair]()
    for family in dice.sample(families, len(families)):
        if len(drawn) == number:
            break
        if made := [attack for attack in attacks_on(pair, family, dice, 0, others) if attack.pair.preferred is not None]:
            drawn.append(dice.choice(made))
    return drawn


def finished(negative: AttackedPair, settings: HardenSettings) -> PreferencePair:
    """Return a negative with its judgment, tag and provenance."""
    pair = negative.pair
    judgment = pair.judgment
    if judgment and negative.family.kind is Kind.DEGENERATE:
        judgment = defect_judgment(negative, settings.verdict_format) if settings.verdict_format else ""
    return replace(
        pair,
        judgment=judgment,
        attempts=pair.attempts if pair.attempts in ("", "unsolved") else "2",  # a tag that RL takes
        teacher_share=None,
        truth="",  # a rule's, which the attacked texts may break; negatives teach judges
        source=f"{SOURCE}:{negative.family.name}",
        provenance=f"{SOURCE}:{pair.provenance or pair.pair_id}",
    )


def defect_judgment(negative: AttackedPair, verdict_format: str) -> str:
    """Return a judgment that says what is wrong with a degenerate response, and names the other."""
    order, other = negative.pair.order, 1 - negative.attacker
    answers = "answers the question" if negative.opponent is Opponent.GOOD else "is an answer, right or wrong"
    reasons = (
        f"The {choice_of(negative.attacker, order)} response {negative.family.defect}. "
        f"The {choice_of(other, order)} response {answers}."
    )
    return format_verdict(choice_of(other, order), reasons, verdict_format)
