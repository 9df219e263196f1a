"""The judge that travels with the package: its files, its card, and that it sees; ``rewardlab demo`` as anybody runs it."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import httpx
import pytest
from safetensors import safe_open

from rewardlab.config import load_yaml
from rewardlab.data.files import sha256_of
from rewardlab.data.images import decode_image, to_data_url
from rewardlab.data.pairs import read_pairs
from rewardlab.data.rows import with_blank_images
from rewardlab.demo.examples import EXAMPLES, DemoRun, ExampleJudgment, ExampleResult, write_examples_page
from rewardlab.demo.pairs import make_pairs
from rewardlab.judging.engines import open_generative_judge
from rewardlab.judging.judge import GenerativeJudge
from rewardlab.judging.spec import DEMO_JUDGE
from rewardlab.prompts import load_template
from rewardlab.samplers.scripted import ScriptedSampler
from rewardlab.serving.app import create_app
from rewardlab.types import BOTH_ORDERS, Choice, Order, PreferencePair
from rewardlab.verdicts.parse import format_verdict
from tests.support.servers import running

CARD = json.loads((DEMO_JUDGE / "card.json").read_text(encoding="utf-8"))


def test_its_files() -> None:
    """At most 3 MB in half precision; the weights are those that the card names, and nothing of a machine is in it."""
    names = {path.name for path in DEMO_JUDGE.iterdir()}
    assert {"model.safetensors", "config.json", "tokenizer.json", "rewardlab.json", "card.json", "README.md"} <= names
    assert "training_args.bin" not in names
    assert sum(path.stat().st_size for path in DEMO_JUDGE.iterdir()) <= 3_000_000
    assert CARD["sha256"] == sha256_of(DEMO_JUDGE / "model.safetensors")
    assert re.fullmatch("[0-9a-f]{40}", CARD["commit"])
    with safe_open(DEMO_JUDGE / "model.safetensors", "pt") as tensors:
        weights = [tensors.get_tensor(name) for name in tensors.keys()]  # noqa: SIM118
    assert {str(weight.dtype) for weight in weights} == {"torch.float16"}
    assert sum(weight.numel() for weight in weights) == CARD["parameters"] < 1_000_000


def test_its_card() -> None:
    """What the page for people says is what the record says; the recipe is that of the quickstart."""
    text = (DEMO_JUDGE / "README.md").read_text(encoding="utf-8")
    figures = CARD["figures"]
    for name, cell in (
        ("one greedy answer", figures["greedy"]),
        ("one sampled answer", figures["sampled_at_1"]),
        ("majority of 5 sampled answers", figures["votes"]["5"]),
        ("majority of 15 sampled answers", figures["votes"]["15"]),
        ("one greedy answer, blank image (50 is chance)", figures["blank"]),
        ("one greedy answer, another pair's image", figures["other"]),
    ):
        low, high = cell["interval"]
        assert f"| {name} | {100 * cell['accuracy']:.1f} [{100 * low:.1f}, {100 * high:.1f}] |" in text
    assert f"| invalid, sampled | {100 * figures['invalid_rate']:.1f} |" in text
    assert f"| same winner in both orders, greedy | {100 * figures['swap_consistency_greedy']:.1f} |" in text
    assert f"{CARD['parameters']:,} parameters" in text
    for fact in (CARD["sha256"], CARD["commit"], CARD["cpu"], f"`{CARD['command']}`", f"seed {CARD['seed']}", "Apache-2.0"):
        assert fact in text
    assert figures["num_pairs"] == 1000
    assert CARD["recipe"] == {name: load_yaml(f"tiny/{name}") for name in ("demo", "distill", "sft", "rl")}


def test_its_examples_are_the_first_held_out_pairs() -> None:
    """Of each of six kinds the first, not the best: texts, labels and every pixel."""
    shipped, pairs = read_pairs(EXAMPLES / "pairs.jsonl"), make_pairs(60, seed=0, held_out=True)[0]
    tasks = ("count", "relation", "read", "describe", "where", "color")
    for ours, task in zip(shipped, tasks, strict=True):
        fresh = next(pair for pair in pairs if pair.pair_id.endswith(f"-{task}"))
        assert (ours.pair_id, ours.question, ours.responses, ours.preferred) == (
            fresh.pair_id,
            fresh.question,
            fresh.responses,
            fresh.preferred,
        )
        assert decode_image(ours.images[0]).tobytes() == decode_image(fresh.images[0]).tobytes()


@pytest.mark.slow
def test_it_sees() -> None:
    """As often right on 150 held-out pairs as its card says, but for chance; before blank images it guesses."""
    pairs = make_pairs(150, seed=0, held_out=True)[0]
    judge = open_generative_judge("demo", temperature=0.0, max_tokens=64, batch_size=300)
    for name, shown in (("greedy", pairs), ("blank", with_blank_images(pairs))):
        judgments = judge.compare_many(shown, orders=[BOTH_ORDERS] * 150, num_votes=1, seed=0)
        right = [vote.winner == pair.preferred for pair, j in zip(pairs, judgments, strict=True) for vote in j.votes]
        claim = CARD["figures"][name]["accuracy"]
        assert sum(right) / 300 == pytest.approx(claim, abs=3.5 * math.sqrt(claim * (1 - claim) / 150))


@pytest.mark.slow
def test_it_answers_by_name() -> None:
    """``--judge demo`` over HTTP, with the template that it was trained on: right about the example of a colour."""
    pair = next(pair for pair in read_pairs(EXAMPLES / "pairs.jsonl") if pair.pair_id.endswith("color"))
    body = {"question": pair.question, "responses": pair.responses, "images": [to_data_url(pair.images[0])], "votes": 3}
    with running(create_app(open_generative_judge("demo"))) as url:
        answer = httpx.post(f"{url}/v1/judge", json=body, timeout=60).json()
    assert answer["outcome"] == f"response_{pair.preferred}"
    assert answer["num_valid"] == 6


@pytest.mark.slow
def test_the_command(tmp_path: Path) -> None:
    """``rewardlab demo`` prints six judgments in both orders and leaves one page with their pictures; no browser opens."""
    env = {**os.environ, "COLUMNS": "100", "DISPLAY": ""}
    command = [sys.executable, "-m", "rewardlab.cli", "demo", "--no-open", "--out", str(tmp_path / "a" / "page.html")]
    done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert len(re.findall(r"^   A first  → [AB]  ", done.stdout, re.MULTILINE)) == 6
    assert len(re.findall(r"^   B first  → [AB]  ", done.stdout, re.MULTILINE)) == 6
    right = int(re.search(r"6 pairs: (\d) right in both orders", done.stdout)[1])  # type: ignore[index]
    assert 4 <= right <= 6
    assert done.stdout.count(" right in both orders ") >= right
    page = (tmp_path / "a" / "page.html").read_text(encoding="utf-8")
    for pair in read_pairs(EXAMPLES / "pairs.jsonl"):
        assert to_data_url(pair.images[0]) in page
        assert pair.question in done.stdout


@pytest.mark.slow
def test_a_package_that_is_missing() -> None:
    """One sentence with the cure, and exit status 2."""
    code = "import sys; sys.modules['torch'] = None; sys.argv = ['rewardlab', 'demo']; from rewardlab.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2
    said = " ".join(done.stderr.split())
    assert said == "error: the demo needs torch, which is not installed: pip install 'rewardlab[demo]'"


class Text(HTMLParser):
    """The text of a page, without its styles."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.words, self._hidden = "", False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag != "script"
        self._hidden = tag == "style"

    def handle_endtag(self, tag: str) -> None:
        self._hidden = False

    def handle_data(self, data: str) -> None:
        self.words += "" if self._hidden else data


def run_of(*choices: tuple[Choice | None, Choice | None]) -> DemoRun:
    """Judgments by a judge that says so in the two orders, with markup in every text."""
    said = [choice for pair_choices in choices for choice in pair_choices]
    texts = ["<script>x</script>" if c is None else format_verdict(c, f"<b>because {c}</b>") for c in said]
    sampler = ScriptedSampler(lambda prompt, n: texts.pop(0))
    judge = GenerativeJudge(sampler, load_template("plain"))
    pair = PreferencePair("p", "Is <i>it</i>?", ("<u>yes</u>", "no & no"), 0)
    return DemoRun(tuple(ExampleJudgment(pair, judge.compare(pair)) for _ in choices), 1.0, 2.0)


def test_the_page(tmp_path: Path) -> None:
    """Both orders of every pair, what each named, all texts as text; each kind of result is counted and named."""
    first, second = Choice.FIRST, Choice.SECOND
    run = run_of((first, second), (second, first), (first, first), (first, None))
    assert [example.result for example in run.examples] == [
        ExampleResult.RIGHT,
        ExampleResult.WRONG,
        ExampleResult.FLIP,
        ExampleResult.INVALID,
    ]
    assert run.examples[2].vote(Order.SWAPPED).winner == 1
    write_examples_page(run, tmp_path / "page.html")
    words = " ".join(Text((tmp_path / "page.html").read_text(encoding="utf-8")).words.split())
    sentence = "4 pairs: 1 right in both orders, 1 wrong in both orders, 1 changed with the order, 1 without a verdict"
    assert sentence in words
    assert words.count("A shown first") == words.count("B shown first") == 4
    assert words.count("→ A, right") == 4
    assert words.count("→ B, wrong") == 3
    assert words.count("no verdict (") == 1
    for text in ("Is <i>it</i>?", "<u>yes</u>", "no & no", "<b>because", "<script>x</script>"):
        assert text in words
