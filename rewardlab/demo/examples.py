"""Six held-out pairs of the demonstration that travel with the package, judged in both orders by the judge beside them."""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path

from rewardlab.data.files import write_atomic
from rewardlab.data.pairs import read_pairs
from rewardlab.errors import ConfigError
from rewardlab.judging.spec import DEMO
from rewardlab.types import BOTH_ORDERS, Judgment, Order, PreferencePair, Vote
from rewardlab.verdicts.places import reasoning_of

EXAMPLES = Path(__file__).parent / "examples"
PACKAGES = ("torch", "torchvision", "transformers", "jinja2")  # what judging with a local checkpoint needs
MAX_TOKENS = 64


class ExampleResult(StrEnum):
    """The result of a pair in both orders."""

    RIGHT = "right in both orders"
    WRONG = "wrong in both orders"
    FLIP = "changed with the order"
    INVALID = "without a verdict in one order or both"


@dataclass(frozen=True)
class ExampleJudgment:
    """A pair and one judgment of it in each order."""

    pair: PreferencePair
    judgment: Judgment

    def vote(self, order: Order) -> Vote:
        return next(vote for vote in self.judgment.votes if vote.order is order)

    def reasoning(self, order: Order) -> str:
        """Return the reasoning in one order, or all that was written where none can be told from the verdict."""
        text = self.vote(order).completion.text
        return reasoning_of(text) or text

    @property
    def result(self) -> ExampleResult:
        winners = [self.vote(order).winner for order in BOTH_ORDERS]
        if None in winners:
            return ExampleResult.INVALID
        if winners[0] != winners[1]:
            return ExampleResult.FLIP
        return ExampleResult.RIGHT if winners[0] == self.pair.preferred else ExampleResult.WRONG


@dataclass(frozen=True)
class DemoRun:
    """The judgments of the examples; ``load_s`` and ``judge_s`` are seconds of the clock."""

    examples: tuple[ExampleJudgment, ...]
    load_s: float
    judge_s: float

    def count(self, result: ExampleResult) -> int:
        return sum(example.result is result for example in self.examples)

    @property
    def sentence(self) -> str:
        """Return how many of the examples came to each result."""
        counts = ", ".join(f"{self.count(result)} {result}" for result in ExampleResult if self.count(result))
        return f"{len(self.examples)} pairs: {counts}"


def judge_examples() -> DemoRun:
    """Return the bundled judge's judgments of the examples, one in each order. Raise ConfigError if a package is missing."""
    if missing := next((name for name in PACKAGES if find_spec(name) is None), None):
        raise ConfigError(f"the demo needs {missing}, which is not installed: pip install 'rewardlab[demo]'")
    start = time.monotonic()
    import torch

    from rewardlab.judging.engines import open_model_judge

    torch.set_num_threads(1)  # of so small a model, threads would only wait for each other
    pairs = read_pairs(EXAMPLES / "pairs.jsonl")
    opened = open_model_judge(DEMO, temperature=0.0, max_tokens=MAX_TOKENS, batch_size=2 * len(pairs))
    loaded = time.monotonic()
    judgments = opened.compare_many(pairs, orders=[BOTH_ORDERS] * len(pairs), num_votes=1, seed=0)
    examples = tuple(ExampleJudgment(pair, judgment) for pair, judgment in zip(pairs, judgments, strict=True))
    return DemoRun(examples, loaded - start, time.monotonic() - loaded)


def write_examples_page(run: DemoRun, out: Path) -> None:
    """Write the judgments as one page that needs no other file."""
    from rewardlab.data.images import to_data_url
    from rewardlab.reporting.pages import page_environment

    page = page_environment("rewardlab.demo").get_template("examples.html")
    text = page.render(run=run, orders=BOTH_ORDERS, results=ExampleResult, data_url=to_data_url)
    write_atomic(out, text)
