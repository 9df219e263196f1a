"""The records of the package: frozen, standard library only.

Two vocabularies never mix. On the *data side* the two responses of a pair have an index, 0 or 1, and ``preferred`` names
one. On the *prompt side* they are ``first`` and ``second`` as shown; an :class:`Order` leads from one to the other.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from hashlib import sha256


class Order(StrEnum):
    """How a pair is shown: ``given`` puts response 0 first, ``swapped`` puts response 1 first."""

    GIVEN = "given"
    SWAPPED = "swapped"

    def swap(self) -> Order:
        return Order.SWAPPED if self is Order.GIVEN else Order.GIVEN


class Tie(StrEnum):
    """Why neither response is preferred, by those who labelled the pair: they are equally good, or both bad."""

    TIE = "tie"
    BOTH_BAD = "both_bad"


@dataclass(frozen=True, slots=True)
class Rating:
    """One person's choice between the responses of a pair: 0 or 1, a tie, or None: cannot tell.

    ``order``: the order in which the person saw the responses (None: not known); ``at``: when, in ISO 8601; ``reason``: why, in
    the person's words.
    """

    rater: str
    choice: int | Tie | None
    order: Order | None = None
    at: str = ""
    reason: str = ""

    def swap(self) -> Rating:
        """Return the rating as it reads when the two responses of the pair are exchanged."""
        choice = 1 - self.choice if isinstance(self.choice, int) else self.choice
        return replace(self, choice=choice, order=None if self.order is None else self.order.swap())


class Choice(StrEnum):
    """Which of the two responses as shown a judge prefers."""

    FIRST = "first"
    SECOND = "second"

    def swap(self) -> Choice:
        return Choice.SECOND if self is Choice.FIRST else Choice.FIRST


IMAGE_MARK = "\ufffc"  # OBJECT REPLACEMENT CHARACTER: where an image stands within a text
VIDEO_MARK = "\ufff9"  # where a video stands within a question, until its frames are taken; a mark no text uses
BOTH_ORDERS = (Order.GIVEN, Order.SWAPPED)


def response_at(choice: Choice, order: Order) -> int:
    """Return the index (0 or 1) of the response shown at ``choice`` under ``order``."""
    return int((choice is Choice.SECOND) != (order is Order.SWAPPED))


def choice_of(response: int, order: Order) -> Choice:
    """Return where response ``response`` (0 or 1) is shown under ``order``; the inverse of :func:`response_at`."""
    return Choice.SECOND if (response == 1) != (order is Order.SWAPPED) else Choice.FIRST


@dataclass(frozen=True, slots=True)
class Criterion:
    """A criterion to judge by; of several, the weights (above 0) say how much each counts."""

    name: str
    weight: float = 1.0
    description: str = ""


@dataclass(frozen=True)
class PreferencePair:
    """A question about zero or more images, two responses, and which is preferred (index 0 or 1; None: unknown, or
    neither, if there is a ``tie``).

    ``images`` hold encoded files (PNG, JPEG, ...), never decoded pixels. ``order`` is how a training row is shown and
    ``judgment`` a teacher's text on it in that order; ``level`` the difficulty its maker gave it; ``attempts`` how many asks
    the teacher needed ("1".."3", "unsolved", "" not asked); ``teacher_share`` the share of the teacher's votes, as many in
    either order, that named the preferred response (None: not asked). ``response_images`` stand within the responses, each at
    an ``IMAGE_MARK`` of its text. ``videos``, and ``response_videos`` within the responses, are encoded files too; a judge is
    shown their frames (:func:`rewardlab.data.rows.with_frames`). ``ratings`` are single people's choices, ``systems`` the
    models that wrote the two responses ("": not known). No judge and no rater is shown their names. ``truth`` is what a rule
    compares responses with, if not the preferred one's final answer: tests of a program, constraints, an answer ("": none).
    ``criteria`` belong to the question; a judge without any
    chooses its own. ``others`` are further responses of a list, the better ones first, all of them worse than the two;
    judges of pairs do not see them. ``provenance`` names
    recipe and source row: ``rlaif_v:3f2a...``.
    """

    pair_id: str
    question: str
    responses: tuple[str, str]
    preferred: int | None
    images: tuple[bytes, ...] = ()
    category: str = ""
    source: str = ""
    level: int | None = None
    attempts: str = ""
    order: Order = Order.GIVEN
    judgment: str = ""
    response_images: tuple[tuple[bytes, ...], tuple[bytes, ...]] = ((), ())
    videos: tuple[bytes, ...] = ()
    response_videos: tuple[tuple[bytes, ...], tuple[bytes, ...]] = ((), ())
    tie: Tie | None = None
    teacher_share: float | None = None
    licence: str = ""
    provenance: str = ""
    ratings: tuple[Rating, ...] = ()
    systems: tuple[str, str] = ("", "")
    truth: str = ""
    criteria: tuple[Criterion, ...] = ()
    others: tuple[str, ...] = ()
    other_images: tuple[tuple[bytes, ...], ...] = ()

    def swap(self) -> PreferencePair:
        """Return the same pair with the responses exchanged; the preferred *text* and the texts' places as shown stay."""
        return replace(
            self,
            responses=(self.responses[1], self.responses[0]),
            response_images=(self.response_images[1], self.response_images[0]),
            response_videos=(self.response_videos[1], self.response_videos[0]),
            preferred=None if self.preferred is None else 1 - self.preferred,
            order=self.order.swap(),
            ratings=tuple(rating.swap() for rating in self.ratings),
            systems=(self.systems[1], self.systems[0]),
        )

    def shown(self, order: Order) -> tuple[str, str]:
        """Return the two responses in the order they are shown: (first, second)."""
        return self.responses if order is Order.GIVEN else (self.responses[1], self.responses[0])

    @property
    def listed(self) -> tuple[tuple[str, tuple[bytes, ...]], ...]:
        """Return all responses with their images: the two, then the others."""
        images = (*self.response_images, *(self.other_images or ((),) * len(self.others)))
        return tuple(zip((*self.responses, *self.others), images, strict=True))

    def places(self, order: Order) -> tuple[int, ...]:
        """Return the indices of :attr:`listed` in the order that a list shows them: drawn by the content, with response 0
        before response 1, and the reverse of it under the other order. A swapped pair is shown alike."""
        if not self.others:
            return (0, 1) if order is Order.GIVEN else (1, 0)
        keys = [f"{self.question}\0{text}".encode(errors="surrogatepass") for text in (*self.responses, *self.others)]
        indices = sorted(range(len(keys)), key=lambda n: sha256(keys[n]).digest())
        is_given = indices.index(0) < indices.index(1)
        return tuple(indices if is_given == (order is Order.GIVEN) else reversed(indices))

    def shown_images(self, order: Order) -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
        """Return the images within the two responses, in the order they are shown."""
        return self.response_images if order is Order.GIVEN else (self.response_images[1], self.response_images[0])


@dataclass(frozen=True)
class Candidates:
    """A question about zero or more images (encoded files) and two or more responses; ``best`` are the places of the known best
    ones, empty where none is known. ``response_images`` are those within each response, () if none has any; ``criteria`` are
    as in a pair."""

    prompt_id: str
    question: str
    responses: tuple[str, ...]
    images: tuple[bytes, ...] = ()
    best: tuple[int, ...] = ()
    group: str = "all"
    response_images: tuple[tuple[bytes, ...], ...] = ()
    criteria: tuple[Criterion, ...] = ()

    def pair(self, first: int, second: int) -> PreferencePair:
        """Return two of the responses as a pair to compare."""
        name = f"{self.prompt_id}#{first}-{second}"
        texts = (self.responses[first], self.responses[second])
        of = (self.response_images[first], self.response_images[second]) if self.response_images else ((), ())
        return PreferencePair(name, self.question, texts, None, self.images, response_images=of, criteria=self.criteria)

    def listed(self) -> PreferencePair:
        """Return the responses as the list of one pair, the first two."""
        others, images = self.responses[2:], self.response_images[2:]
        return replace(self.pair(0, 1), pair_id=self.prompt_id, others=others, other_images=images)


@dataclass(frozen=True)
class Part:
    """One piece of a message: text, or one encoded image."""

    text: str = ""
    image: bytes | None = None


@dataclass(frozen=True)
class Message:
    """One turn of a chat; ``role`` is "system", "user" or "assistant"."""

    role: str
    parts: tuple[Part, ...]

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.parts)

    @property
    def images(self) -> tuple[bytes, ...]:
        return tuple(part.image for part in self.parts if part.image is not None)


class FinishReason(StrEnum):
    """Why a completion ended."""

    STOP = "stop"
    LENGTH = "length"
    ERROR = "error"
    TIMEOUT = "timeout"


@dataclass(frozen=True, slots=True)  # of a million samples each byte counts
class Completion:
    """What a sampler returned for one draw. ``token_ids`` and ``logprobs`` (one per token, natural log) where it has them.

    ``num_tokens`` counts generated tokens, the end token included; 0 where the draw failed. ``num_cached_tokens`` of the
    prompt's were in the endpoint's cache, and may be cheaper. ``from_cache``: it is an answer of an earlier run
    (:mod:`rewardlab.samplers.openai_api`), not a new one.

    ``turns``: of several ratings, the text of each; of a draw that was verified, the texts of its judgment, of the
    verification, and of the revised judgment where there is one (:class:`rewardlab.samplers.base.SelfVerifying`).
    """

    text: str
    finish: FinishReason
    num_tokens: int = 0
    num_prompt_tokens: int = 0
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    error: str = ""
    num_cached_tokens: int = 0
    from_cache: bool = False
    turns: tuple[str, ...] = ()

    @property
    def failed(self) -> bool:
        """Return whether there is no answer."""
        return self.finish in (FinishReason.ERROR, FinishReason.TIMEOUT)


class VerdictStatus(StrEnum):
    """What became of the attempt to read a verdict; only ``OK`` carries a choice. UNSUPPORTED, CONTRADICTED: its checks speak
    for neither or for the other response (:mod:`rewardlab.verdicts.checklist`)."""

    OK = "ok"
    EMPTY = "empty"
    NO_VERDICT = "no_verdict"
    TIE = "tie"
    NOT_A_CHOICE = "not_a_choice"
    UNSUPPORTED = "unsupported"
    CONTRADICTED = "contradicted"
    TRUNCATED = "truncated"
    ERROR = "error"
    TIMEOUT = "timeout"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A parsed verdict: the choice as shown (None unless status is OK) and the rule that read it."""

    choice: Choice | None
    status: VerdictStatus
    rule: str = ""

    def swap(self) -> Verdict:
        return replace(self, choice=self.choice.swap() if self.choice else None)


@dataclass(frozen=True, slots=True)
class Vote:
    """One sampled judgment of a pair, in one order.

    ``margin``: log-odds of the response shown first, of judges that say how likely either verdict is; None of others, and where
    it could not be read. ``member``: of a panel of judges, the one that cast it.
    """

    order: Order
    verdict: Verdict
    completion: Completion
    margin: float | None = None
    member: str = ""
    winner: int | None = field(init=False, repr=False, compare=False)
    """The index of the response that won, None without a valid verdict; kept, for every figure of a report asks for it."""

    def __post_init__(self) -> None:
        winner = None if self.verdict.choice is None else response_at(self.verdict.choice, self.order)
        object.__setattr__(self, "winner", winner)

    def swap(self) -> Vote:
        """Return the vote as it reads when the two responses of the pair are exchanged: what was shown stays as it was."""
        return replace(self, order=self.order.swap())


class Outcome(StrEnum):
    """What the votes asked on a pair come to (:func:`rewardlab.verdicts.votes.majority`).

    NO_MAJORITY: neither response has more than half of the votes asked, and it is no TIE. NO_VALID_VOTE: no vote
    names a response, or none of one order where both were asked. ABSTAINED: the confidence does not suffice for the error that
    was asked for (:class:`rewardlab.judging.guarantee.Guarantee`).
    """

    RESPONSE_0 = "response_0"
    RESPONSE_1 = "response_1"
    TIE = "tie"
    NO_MAJORITY = "no_majority"
    NO_VALID_VOTE = "no_valid_vote"
    ABSTAINED = "abstained"

    def swap(self) -> Outcome:
        flipped = {Outcome.RESPONSE_0: Outcome.RESPONSE_1, Outcome.RESPONSE_1: Outcome.RESPONSE_0}
        return flipped.get(self, self)

    @property
    def words(self) -> str:
        """Return the outcome in words for a person to read."""
        is_unnamed = self is Outcome.NO_VALID_VOTE
        return "no vote of an order names a response" if is_unnamed else self.value.replace("_", " ")

    @property
    def winner(self) -> int | None:
        """Return the index of the winning response; None if there is none."""
        return {Outcome.RESPONSE_0: 0, Outcome.RESPONSE_1: 1}.get(self)


@dataclass(frozen=True)
class Judgment:
    """All votes on one pair and what they come to.

    ``share_0`` is the share of valid votes for response 0, averaged over the orders asked (0..1; None if fewer than half of the
    votes are valid); of a judge that weighs probabilities, the probability of response 0.
    """

    pair_id: str
    votes: tuple[Vote, ...]
    outcome: Outcome
    share_0: float | None

    def swap(self) -> Judgment:
        return replace(
            self,
            votes=tuple(vote.swap() for vote in self.votes),
            outcome=self.outcome.swap(),
            share_0=None if self.share_0 is None else 1 - self.share_0,
        )
