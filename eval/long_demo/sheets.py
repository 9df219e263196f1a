"""Sheets: up to 16 lines of a label, a sign and a handwritten digit; every line changes a running state.

A sheet is 112x112 px, 4x4 cells of 28 px: with Qwen2.5-VL's patch of 14 and merge of 2 a cell is one visual token. The line of
cell k has the label k and a tab of the label's colour. What a line does to the state is a :class:`Task`. The scans are those of
:mod:`rewardlab.demo.pictures`; no scan of a test sheet is in a training sheet.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from PIL import Image, ImageDraw

from rewardlab.demo.pictures import CELL_PX, enlarged_scan, scans_by_digit
from rewardlab.demo.tasks import NUMBERS, choose_other

SIDE = 4
LABELS = tuple("abcdefghijklmnop")
TABS = (
    (214, 39, 40), (255, 127, 14), (240, 220, 30), (150, 220, 40), (30, 130, 50), (20, 160, 150), (90, 220, 240), (30, 90, 200),
    (120, 60, 190), (240, 120, 210), (130, 80, 60), (130, 130, 130), (20, 20, 20), (150, 0, 70), (0, 40, 90), (200, 170, 120),
)  # fmt: skip
INK = (30, 30, 40)
MOVES = {"right": (1, 0), "left": (-1, 0), "up": (0, 1), "down": (0, -1)}
State = tuple[int, ...]  # of digits


@dataclass(frozen=True)
class Line:
    """A sign ("" for none) and a digit in a cell; ``scan`` is an index into the scan collection."""

    cell: int
    sign: str
    digit: int
    scan: int = 0

    @property
    def label(self) -> str:
        return LABELS[self.cell]

    def with_digit(self, digit: int, *, held_out: bool, rng: random.Random) -> Line:
        return replace(self, digit=digit, scan=rng.choice(scans_by_digit(held_out)[digit]))


@dataclass(frozen=True)
class Task:
    """A way to run a sheet: ``step`` returns the state after a line, ``read`` what a careful reader says of the line."""

    question: str
    category: str
    signs: tuple[str, ...]
    start: State
    step: Callable[[State, Line], State]
    read: Callable[[Line], str]


def _add(state: State, number: int) -> State:
    total = 10 * state[0] + state[1] + number
    return (total // 10, total % 10)


def _execute(state: State, line: Line) -> State:
    factor = {"add": 1, "take": -1, "odd": state[0] % 2}[line.sign]
    return ((state[0] + factor * line.digit) % 10,)


def _move(state: State, line: Line) -> State:
    return tuple((place + line.digit * step) % 10 for place, step in zip(state, MOVES[line.sign], strict=True))


def _sign_and_digit(line: Line) -> str:
    return f"{line.sign} {NUMBERS[line.digit]}"


def _filtered(question: str, keep: Callable[[int], bool]) -> Task:
    """Add the digits that ``keep`` keeps."""

    def read(line: Line) -> str:
        return f"{NUMBERS[line.digit]} {'in' if keep(line.digit) else 'out'}"

    return Task(question, "table", ("",), (0, 0), lambda state, line: _add(state, line.digit * keep(line.digit)), read)


TASKS = {
    "sum": Task(
        "Add all digits.", "sum", ("",), (0, 0), lambda state, line: _add(state, line.digit), lambda line: NUMBERS[line.digit]
    ),
    "above": _filtered("Add the digits above four.", lambda digit: digit > 4),
    "below": _filtered("Add the digits below five.", lambda digit: digit < 5),
    "route": Task("Follow the route.", "route", tuple(MOVES), (0, 0), _move, _sign_and_digit),
    "program": Task("Run the program.", "program", ("add", "take", "odd"), (0,), _execute, _sign_and_digit),
}


def words_of(state: State) -> str:
    """Return a state in words, digit by digit: "one seven"."""
    return " ".join(NUMBERS[digit] for digit in state)


def is_writable(state: State) -> bool:
    """Return whether each place of a state holds one digit; a sum beyond 99 does not."""
    return max(state) <= 9


@dataclass(frozen=True)
class Sheet:
    """The lines of a sheet and the name of its task."""

    task: str
    lines: tuple[Line, ...]

    def states(self) -> list[State]:
        """Return the state after every line."""
        task, state, states = TASKS[self.task], TASKS[self.task].start, []
        for line in self.lines:
            state = task.step(state, line)
            states.append(state)
        return states

    def solution(self) -> str:
        """Return the worked solution: the state after every line, and the answer."""
        states = [words_of(state) for state in self.states()]
        steps = [f"{line.label} {state}" for line, state in zip(self.lines, states, strict=True)]
        return f"{', '.join(steps)}, answer {states[-1]}."

    @property
    def text(self) -> str:
        """What the sheet says, without the scans: "sum a::7 b::0"."""
        return " ".join([self.task, *(f"{line.label}:{line.sign}:{line.digit}" for line in self.lines)])

    @staticmethod
    def parse(text: str) -> Sheet:
        """Return the sheet of :attr:`text`, without its scans."""
        task, *lines = text.split()
        parts = [line.split(":") for line in lines]
        return Sheet(task, tuple(Line(LABELS.index(label), sign, int(digit)) for label, sign, digit in parts))


def random_sheet(rng: random.Random, task: str, cells: Sequence[int], *, held_out: bool) -> Sheet:
    """Return a sheet with a line in each of ``cells``."""

    def line(cell: int) -> Line:
        return Line(cell, rng.choice(TASKS[task].signs), 0).with_digit(rng.randrange(10), held_out=held_out, rng=rng)

    while True:
        sheet = Sheet(task, tuple(map(line, cells)))
        if all(map(is_writable, sheet.states())):
            return sheet


ERRORS = ("early", "late", "cancelled")


def with_error(rng: random.Random, sheet: Sheet, error: str, *, held_out: bool) -> Sheet | None:
    """Return a sheet with another solution: a digit differs in the first third (``early``) or the last third of the lines
    (``late``), which changes the answer, or two digits differ and the answer does not (``cancelled``). None if a draw fails."""
    num = len(sheet.lines)
    thirds = {"early": range((num + 2) // 3), "late": range(num - (num + 2) // 3, num), "cancelled": range(num)}
    changed = sorted(rng.sample(thirds[error], 2 if error == "cancelled" else 1))
    lines = list(sheet.lines)
    for place in changed:
        digit = int(choose_other(rng, [str(d) for d in range(10)], str(lines[place].digit)))
        lines[place] = lines[place].with_digit(digit, held_out=held_out, rng=rng)
    variant = Sheet(sheet.task, tuple(lines))
    ours, theirs = sheet.states(), variant.states()
    if not all(map(is_writable, theirs)) or ours[changed[0]] == theirs[changed[0]]:
        return None
    return variant if (ours[-1] == theirs[-1]) == (error == "cancelled") else None


def _triangle(x: float, y: float, r: float, step: tuple[int, int]) -> list[tuple[float, float]]:
    dx, dy = r * step[0], -r * step[1]
    return [(x + dx, y + dy), (x - dx + dy, y - dy + dx), (x - dx - dy, y - dy - dx)]


def draw_sign(draw: ImageDraw.ImageDraw, sign: str, x: float, y: float, scale: float = 1) -> None:
    """Draw a sign around a place, ``scale`` times as large as in a cell."""
    half, width = 3 * scale, round(2 * scale)
    if sign in MOVES:
        draw.polygon(_triangle(x, y, 3.5 * scale, MOVES[sign]), fill=INK)
    elif sign == "odd":
        draw.ellipse([x - half, y - half, x + half, y + half], outline=INK, width=width)
    elif sign:
        draw.line([x - half, y, x + half, y], fill=INK, width=width)
        if sign == "add":
            draw.line([x, y - half, x, y + half], fill=INK, width=width)


def render_sheet(sheet: Sheet, rng: random.Random) -> Image.Image:
    """Draw a sheet; paper, sizes, slants and places within a cell vary with ``rng``, what is written does not."""
    image = Image.new("RGB", (SIDE * CELL_PX, SIDE * CELL_PX), tuple(rng.randint(225, 255) for _ in range(3)))
    draw = ImageDraw.Draw(image)
    for line in sheet.lines:
        top, left = (CELL_PX * place for place in divmod(line.cell, SIDE))
        draw.rectangle([left, top, left + 3, top + CELL_PX - 1], fill=TABS[line.cell])
        draw_sign(draw, line.sign, left + 8 + rng.uniform(-0.5, 0.5), top + 14 + rng.uniform(-2, 2))
        size = rng.randint(14, 16)
        ink = enlarged_scan(line.scan, size).rotate(rng.uniform(-10, 10), Image.Resampling.BILINEAR)
        image.paste(INK, (left + 12 + rng.randint(0, 16 - size), top + rng.randint(3, CELL_PX - 3 - size)), mask=ink)
    return image
