"""The prompts of judges: a pair in a stated order becomes messages. Every text is a ``.txt`` file in this folder."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby
from pathlib import Path

from rewardlab.errors import ConfigError, DataError
from rewardlab.prompts.sanitize import CRITERIA, sanitize
from rewardlab.types import IMAGE_MARK, Criterion, Message, Order, Part, PreferencePair
from rewardlab.verdicts.formats import READERS, format_id, reader_of
from rewardlab.verdicts.lists import LETTERS, LIST_FORMATS, MAX_LISTED, SCALES, SCORES
from rewardlab.verdicts.turns import CheckTurns, JudgmentTurns, LookTurns

UNREAD = "unread"  # the format of what holds no verdict
# template -> the format (of rewardlab.verdicts.parse) that reads its answers.
# r1_reward: the published prompt of R1-Reward (arXiv 2505.02835, Table 1); a judge must be asked what it was trained on.
# plain: no instructions, for judges whose fine-tuning is the instruction.
# verdict: the verdict at once, without reasoning, for a judge that is a classifier (Pairwise-RL, arXiv 2504.04950).
# single: one response alone, the one shown first, for a scalar reward model; nothing is written, so nothing is read.
# answer: the question itself, asked of a policy whose answers a judge compares.
# reply: the same with the response as the model's own answer, whose likelihood is its score.
# checklist_turns: a checklist in two turns, its checks and then their verification, which a followup asks for.
# look: a judgment that may look again at parts of the images (rewardlab.verdicts.turns).
# rating, best, ordering: one response alone, or a list of any number (rewardlab.verdicts.lists).
# Every verdict format is a template too: words that ask for exactly that form.
TEMPLATE_FORMATS = {
    **{name: name for name in READERS},
    "r1_reward": "think_answer",
    "plain": "think_answer",
    "verdict": "bare",
    "single": UNREAD,
    "answer": UNREAD,
    "reply": UNREAD,
    "checklist_turns": "checklist",
    "look": "think_answer",
    **{name: name for name in LIST_FORMATS if name != SCORES},
}
_FOLLOWUPS = {"checklist_turns": "checklist_verify.txt", "look": "look_reply.txt"}
DEFAULT_TEMPLATE = "r1_reward"
REPLY = "reply"
_SAME_WORDS = {"think_answer": "r1_reward", "bare": "verdict", REPLY: "answer"}  # formats whose words have a name of their own

SLOTS = ("{question}", "{first}", "{second}", "{answers}")
_SLOT = re.compile(r"\{(question|first|second|response_[0-9]+)\}")


@dataclass(frozen=True)
class Template:
    """A prompt text with the slots {question}, {first} and (but for a single response) {second}, or of a list {question} and
    {answers}, and the verdict format it asks for.

    Images come before the text, in training as in inference. ``hash`` names all of this: it is stored in a checkpoint and
    checked when the checkpoint is loaded, so that a judge is never asked in words it was not trained on. ``followup`` is
    what the user says after a turn, "" if a judgment is one turn.
    """

    name: str
    text: str
    verdict_format: str
    followup: str = ""

    @property
    def turns(self) -> JudgmentTurns | None:
        """Return the turns of its judgments; None if they are one."""
        if not self.followup:
            return None
        return CheckTurns(self.followup) if self.verdict_format == "checklist" else LookTurns(self.followup)

    @property
    def num_turns(self) -> int:
        """Return the most turns of its judgments."""
        return self.turns.most if self.turns else 1

    @property
    def looks(self) -> bool:
        """Return whether its judgments may look again at parts of the images."""
        return isinstance(self.turns, LookTurns)

    @property
    def is_list(self) -> bool:
        """Return whether its prompt shows a whole list."""
        return "{answers}" in self.text

    @property
    def shows_one(self) -> bool:
        """Return whether its prompt shows one response alone."""
        return self.is_reply or ("{first}" in self.text and "{second}" not in self.text)

    @property
    def is_reply(self) -> bool:
        """Return whether the response is a turn of the model's own."""
        return self.name == REPLY

    @property
    def slots(self) -> tuple[str, ...]:
        """Return the slots that its text must have, each once."""
        if self.verdict_format in SCALES:
            return ("{question}", "{first}")
        lists = self.verdict_format in LIST_FORMATS and self.verdict_format != SCORES
        return ("{question}", "{answers}") if lists else ("{question}", "{first}", "{second}")

    def text_of(self, num: int) -> str:
        """Return the text with a slot for each of ``num`` responses of a list; the text of another template as it is."""
        blocks = [f"Answer {letter}:\n{{response_{n}}}" for n, letter in enumerate(LETTERS[:num])]
        return self.text.replace("{answers}", "\n\n".join(blocks))

    @property
    def hash(self) -> str:
        """Return the first 16 hex digits of the SHA-256 of text, verdict format and the place of the images."""
        words = f"{self.text}\n{self.followup}" if self.followup else f"{self.text}\n{REPLY}" if self.is_reply else self.text
        return hashlib.sha256(f"images-first\n{format_id(self.verdict_format)}\n{words}".encode()).hexdigest()[:16]


def load_text(file: str) -> str:
    """Return the text of a ``file`` in this folder, without the line end at its end."""
    return (Path(__file__).parent / file).read_text(encoding="utf-8").removesuffix("\n")


@cache
def load_template(name: str) -> Template:
    """Return the template called ``name``, or one's own: ``FORMAT:FILE``, for a benchmark's words or another judge's.

    The name of a verdict format is that of words that ask for it. FORMAT is a verdict format or one's own reader
    (:func:`rewardlab.verdicts.formats.reader_of`), or a template of several turns, which a judgment then has. Raise ConfigError
    for an unknown name or format, and for a file that is not there or lacks a slot.
    """
    verdict_format, colon, file = name.partition(":")
    if colon:
        return _template_in_file(name, verdict_format, Path(file))
    if name not in TEMPLATE_FORMATS:
        raise ConfigError(
            f"unknown prompt template {name!r}; expected one of {sorted(TEMPLATE_FORMATS)}, or FORMAT:FILE with your own text"
            + (f", here {name}:FILE" if _is_format(name) else "")
        )
    followup = load_text(_FOLLOWUPS[name]) if name in _FOLLOWUPS else ""
    return Template(name, load_text(f"{_SAME_WORDS.get(name, name)}.txt"), TEMPLATE_FORMATS[name], followup)


def require_one_turn(template: Template, what: str) -> Template:
    """Return a template whose judgments are one turn. Raise ConfigError for another, for ``what`` needs such."""
    if template.followup:
        others = "template=checklist" if template.verdict_format == "checklist" else "another template"
        raise ConfigError(f"template {template.name} has several turns, and {what} takes one; use {others}")
    return template


def require_judgments(template: Template, what: str) -> Template:
    """Return a template whose prompt asks for a judgment. Raise ConfigError for another, for ``what`` needs such."""
    if template.verdict_format == UNREAD:
        raise ConfigError(f"template {template.name} asks for no judgment, and {what} needs one; use another template")
    return template


def require_turns(model: str, template: Template, opening: str) -> None:
    """Raise ConfigError for a template of several turns and a model whose chat template opens the thinking."""
    if opening:
        require_one_turn(template, f"{model}, whose chat template opens <think> in every turn,")


def require_pairs(template: Template, what: str) -> Template:
    """Return a template whose judgment is of two responses, which one text tells. Raise ConfigError for another, for ``what``
    needs such."""
    require_judgments(template, what)
    if template.verdict_format in LIST_FORMATS:
        raise ConfigError(f"template {template.name} rates responses or orders a list, and {what} takes verdicts on pairs")
    return template


def reading_format(name: str) -> str:
    """Return the verdict format by which recorded answers are read: that of a template, or a format itself.

    Of ``FORMAT:FILE`` the file is not looked at, for nothing is asked. Raise ConfigError for an unknown name.
    """
    form = name.partition(":")[0]
    verdict_format = TEMPLATE_FORMATS[form] if name == form in TEMPLATE_FORMATS or form in _FOLLOWUPS else form
    if verdict_format in LIST_FORMATS:
        raise ConfigError(f"template {name!r}: recorded votes are read as verdicts on pairs; expected another template")
    try:
        reader_of(verdict_format)
    except ConfigError as error:
        raise ConfigError(f"template {name!r}: {error}, or a prompt template of {sorted(TEMPLATE_FORMATS)}") from error
    return verdict_format


def _is_format(name: str) -> bool:
    """Return whether there is a reader of this name, such as a Python file, which has no words of its own."""
    try:
        reader_of(name)
    except ConfigError:
        return False
    return True


def _template_in_file(name: str, form: str, path: Path) -> Template:
    _format_of(name, form)  # before the file
    try:
        text = path.read_text(encoding="utf-8").removesuffix("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"template {name!r}: {path} cannot be read ({error})") from error
    return own_template(name, text, form)


def _format_of(name: str, form: str) -> str:
    """Return the verdict format of one's own template: ``form``, or that of the template of several turns of this name."""
    verdict_format = TEMPLATE_FORMATS[form] if form in _FOLLOWUPS else form
    try:
        reader_of(verdict_format)
    except ConfigError as error:
        raise ConfigError(f"template {name!r}: {error}") from error
    return verdict_format


def own_template(name: str, text: str, form: str) -> Template:
    """Return a template of one's own words. ``form`` is a verdict format, or a template of several turns, whose turns its
    judgments have. Raise ConfigError for an unknown one, and for words that lack a slot."""
    verdict_format = _format_of(name, form)
    if verdict_format == SCORES:
        raise ConfigError(f"template {name!r}: scores are those of a head, which nothing asks for; expected another format")
    template = Template(name, text, verdict_format, load_text(_FOLLOWUPS[form]) if form in _FOLLOWUPS else "")
    if wrong := [slot for slot in SLOTS if text.count(slot) != (slot in template.slots)]:
        raise ConfigError(f"template {name!r}: must have each of {', '.join(template.slots)} once, and no other; see {wrong}")
    return template


def render(template: Template, question: str, first: str, second: str) -> str:
    """Fill the slots, all at once: braces inside a question or an answer are plain text, and so is what looks like a part of
    the prompt (:mod:`rewardlab.prompts.sanitize`)."""
    values = _sanitized(template.text, {"question": question, "first": first, "second": second})
    return _SLOT.sub(lambda match: values[match.group(1)], template.text)


def _sanitized(words: str, values: dict[str, str]) -> dict[str, str]:
    return {name: sanitize(text, words) for name, text in values.items()}


def with_criteria(question: str, criteria: Sequence[Criterion]) -> str:
    """Return a question with the criteria that its answers are to be judged by, and their weights."""
    lines = [
        f"- {criterion.name}, weight {criterion.weight:g}" + (f": {criterion.description}" if criterion.description else "")
        for criterion in criteria
    ]
    return "\n".join([question, "", CRITERIA, *lines]) if lines else question


def build_messages(pair: PreferencePair, *, order: Order, template: Template) -> tuple[Message, ...]:
    """Return one user turn: the images, then the filled template with the responses in ``order``; the label is not used. With
    the template ``reply`` the response is a second turn.

    The criteria of the pair follow its question. A question with as many places (``IMAGE_MARK``) as images shows them there,
    and a response with images its own. Raise DataError if a response with images has more or fewer places than these.
    """
    (first, second), (of_first, of_second) = pair.shown(order), pair.shown_images(order)
    in_list = [pair.listed[n] for n in pair.places(order)] if template.is_list else []
    if len(in_list) > MAX_LISTED:
        raise DataError(f"{pair.pair_id}: a list has {len(in_list)} responses; expected at most {MAX_LISTED}, a letter each")
    words = template.text_of(len(in_list))
    texts = {"first": first, "second": second} | {f"response_{n}": text for n, (text, _) in enumerate(in_list)}
    placed = bool(pair.images) and pair.question.count(IMAGE_MARK) == len(pair.images)
    within = {"first": of_first, "second": of_second, "question": pair.images if placed else ()}
    within |= {f"response_{n}": images for n, (_, images) in enumerate(in_list)}
    ahead = [Part(image=image) for image in (() if placed else pair.images)]
    values, parts = _sanitized(words, {"question": pair.question, **texts}), ahead
    criteria = [replace(criterion, description=sanitize(criterion.description, words)) for criterion in pair.criteria]
    values["question"] = with_criteria(values["question"], criteria)
    for place, piece in enumerate(_SLOT.split(words)):  # text, slot, text, slot, ..., text
        slot = place % 2 == 1
        images = within[piece] if slot else ()
        parts += interleaved(values[piece], images) if images else [Part(text=values[piece] if slot else piece)]
    of_user = Message("user", tuple(joined(parts)))
    if not template.is_reply:
        return (of_user,)
    if of_first:
        raise DataError(f"{pair.pair_id}: a response with images is no answer in words; use template single")
    return of_user, Message("assistant", (Part(text=first),))


def interleaved(text: str, images: Sequence[bytes]) -> list[Part]:
    """Return a text with its images at their marks. Raise DataError if their numbers differ."""
    pieces = text.split(IMAGE_MARK)
    if len(pieces) != len(images) + 1:
        raise DataError(f"a text has {len(pieces) - 1} image placeholders for {len(images)} images: {text[:60]!r}")
    parts = [part for piece, image in zip(pieces, images, strict=False) for part in (Part(text=piece), Part(image=image))]
    return [*parts, Part(text=pieces[-1])]


def joined(parts: Sequence[Part]) -> Iterator[Part]:
    """Yield the parts with neighbouring texts joined and empty ones left out, so that they are tokenised as they read."""
    for is_text, group in groupby(parts, key=lambda part: part.image is None):
        neighbours = list(group)
        text = "".join(part.text for part in neighbours)
        if not is_text:
            yield from neighbours
        elif text:
            yield Part(text=text)
