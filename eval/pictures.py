"""Screenshots of real pages for README and docs: ``python eval/pictures.py``

Four minutes on two cores, no network. A judge (``--judge``; by default the demonstration's teacher behind an endpoint) and a
careless judge judge held-out pairs. The run page is that of ``--run``, or of a small judge trained here; the evaluation page is
of the demonstration's judge, trained on another prompt. Chromium and playwright (the dev extra) write to ``docs/pictures``.
"""

from __future__ import annotations

import argparse
import io
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
from tests.support.servers import running

FOLDER = ROOT / "docs" / "pictures"
CHROMIUM = next((found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None)
BOTH = ("judgment", "report", "ui", "leaderboard")  # light, and dark
PLOTS = {"plot-votes": "What more votes buy"}  # plots by the start of their caption
PICTURES = (*BOTH, *(f"{name}-dark" for name in BOTH), "run", "evaluation", *PLOTS)
NUM_PAIRS, NUM_VOTES, SHOWN = 240, 5, 0
COLORS = 256  # per picture; pages have few
PATIENCE_MS = 300_000  # for a judge's votes on a busy machine
MOST_BYTES = 1_500_000  # of all pictures


@contextmanager
def teacher(**quality: Any) -> Iterator[str]:
    """Serve the demonstration's teacher, which knows the held-out pairs; yield its SPEC."""
    from rewardlab.demo.pairs import make_pairs
    from rewardlab.demo.server import TEACHER, TeacherConfig, build_demo_app

    truths = make_pairs(NUM_PAIRS, seed=0, held_out=True)[1]
    with running(build_demo_app(truths, TeacherConfig(**quality))) as url:
        yield f"openai:{TEACHER}@{url}/v1"


def judge_pairs(work: Path, judges: dict[str, str]) -> None:
    """Judge held-out pairs with each judge, write its report to ``work/NAME``, and write the leaderboard."""
    from rewardlab.benchmarks.comparison import read_run
    from rewardlab.benchmarks.leaderboard import leaderboard_html
    from rewardlab.benchmarks.report import write_reports
    from rewardlab.benchmarks.runner import run_bench
    from rewardlab.benchmarks.settings import bench_settings
    from rewardlab.data.pairs import write_parquet
    from rewardlab.demo.pairs import make_pairs

    os.chdir(work)  # the pages name their files
    write_parquet(make_pairs(NUM_PAIRS, seed=0, held_out=True)[0], Path("pairs.parquet"))
    for name, spec in judges.items():
        command = f"rewardlab bench run pairs --data pairs.parquet --judge {spec} --votes {NUM_VOTES} --out {name}"
        asks = not spec.startswith("baseline")
        keys = {"votes": NUM_VOTES, "max_tokens": 128} if asks else {}
        keys |= {"template": "plain"} if spec.startswith("openai") else {}
        settings = bench_settings("pairs", Path("pairs.parquet"), spec, controls=(), command=command, **keys)
        report, rows = run_bench(settings, Path(name))
        write_reports(report, rows, Path(name))
    Path("leaderboard.html").write_text(leaderboard_html([read_run(Path(name)) for name in judges]))


def train_run() -> Path:
    """Train a small judge briefly on grounded judgments in the current folder; return the run's folder."""
    from rewardlab.config import SFTConfig
    from rewardlab.demo.base_model import build_model, build_processor, save_model, train_tokenizer
    from rewardlab.demo.build import corpus
    from rewardlab.demo.pairs import make_pairs
    from rewardlab.training.sft import train_sft

    pairs, truths = make_pairs(300, seed=0, held_out=False)
    tokenizer = train_tokenizer(corpus(pairs, truths, random.Random(0)), 700)
    save_model(Path("base"), build_model(tokenizer, hidden=32, layers=2, seed=0), build_processor(tokenizer))
    sizes = {"learning_rate": 1e-2, "max_steps": 60, "batch_size": 8, "micro_batch_size": 8}
    train_sft(with_judgments(pairs, truths), SFTConfig(model="base", template="plain", **sizes, **SHORT), Path("sft"))
    return Path("sft").resolve()


def train_evaluated_run() -> Path:
    """Train the demonstration's judge on another prompt, with evaluations on held-out pairs, in the current folder; return the
    run's folder."""
    from rewardlab.config import SFTConfig
    from rewardlab.data.pairs import write_parquet
    from rewardlab.demo.pairs import make_pairs
    from rewardlab.judging.spec import DEMO_JUDGE
    from rewardlab.training.sft import train_sft

    Path("words.txt").write_text("Which reply is better?\nA: {first}\nB: {second}\nQuestion: {question}\n")
    write_parquet(make_pairs(200, seed=0, held_out=True)[0], Path("held_out.parquet"))
    sizes = {"learning_rate": 5e-4, "max_steps": 160, "batch_size": 32, "micro_batch_size": 32}
    evaluation = {"data": "held_out.parquet", "every_steps": 20, "max_tokens": 64}
    config = SFTConfig(model=str(DEMO_JUDGE), template="think_answer:words.txt", evaluation=evaluation, **sizes, **SHORT)
    train_sft(with_judgments(*make_pairs(2000, seed=1, held_out=False)), config, Path("evaluated"))
    return Path("evaluated").resolve()


SHORT: dict[str, Any] = {"logging_steps": 1, "save_steps": 1000, "gradient_checkpointing": False}


def with_judgments(pairs: Sequence[Any], truths: Sequence[Any]) -> list[Any]:
    """Return the pairs with judgments that look at the picture."""
    from rewardlab.demo.judgments import grounded_judgment

    return [
        replace(pair, attempts="1", judgment=grounded_judgment(truth, pair.shown(pair.order))[0])
        for pair, truth in zip(pairs, truths, strict=True)
    ]


@dataclass(frozen=True)
class Camera:
    """A browser, and the folder of its pictures."""

    browser: Any
    folder: Path

    def page(self, url: str, *, width: int, height: int, dark: bool = False, scale: float = 1.25) -> Any:
        page = self.browser.new_page(
            viewport={"width": width, "height": height},
            color_scheme="dark" if dark else "light",
            device_scale_factor=scale,
        )
        page.goto(url)
        return page

    def keep(self, name: str, png: bytes) -> bytes:
        """Write a picture with its most frequent colours, which are kept exactly; return the original."""
        pixels = np.asarray(Image.open(io.BytesIO(png)).convert("RGB"), dtype=np.int32)
        colors, places, counts = np.unique(pixels.reshape(-1, 3), axis=0, return_inverse=True, return_counts=True)
        common = colors[np.argsort(-counts)[:COLORS]]
        parts = np.array_split(colors, len(colors) // 1000 + 1)
        nearest = np.concatenate([np.square(part[:, None] - common).sum(axis=2).argmin(axis=1) for part in parts])
        few = Image.frombytes("P", pixels.shape[1::-1], nearest[places].astype(np.uint8).tobytes())
        few.putpalette(common.astype(np.uint8).tobytes())
        few.save(self.folder / f"{name}.png", optimize=True)
        return png


def judge_in_ui(page: Any, pair: Any, image: Path) -> None:
    """Fill in the server's page and wait until all votes are there."""
    page.set_input_files("#files", image)
    page.get_by_label("Question").fill(pair.question)
    for letter, text in zip("AB", pair.responses, strict=True):
        page.get_by_label(f"Response {letter}").fill(text)
    page.click("#go")
    page.locator("#take:not([hidden])").wait_for(timeout=PATIENCE_MS)
    page.evaluate("scrollTo(0, 0)")
    page.mouse.move(0, 0)
    page.wait_for_timeout(600)


def photograph(camera: Camera, work: Path, ui: str, run: Path, evaluated: Path) -> None:
    """Take all of :data:`PICTURES`; ``run`` and ``evaluated`` are pages of training runs."""
    from rewardlab.demo.pairs import make_pairs

    pair = make_pairs(NUM_PAIRS, seed=0, held_out=True)[0][SHOWN]
    (work / "pair.png").write_bytes(pair.images[0])
    report = f"file://{work}/judge/report.html"
    for dark, ending in ((False, ""), (True, "-dark")):
        page = camera.page(f"{ui}/ui", width=900, height=760, dark=dark)
        judge_in_ui(page, pair, work / "pair.png")
        left = camera.keep(f"ui{ending}", page.screenshot())
        page.close()
        page = camera.page(report, width=1000, height=900, dark=dark)
        camera.keep(f"report{ending}", page.screenshot())
        page.set_viewport_size({"width": 500, "height": 455})
        top = page.screenshot()
        page.set_viewport_size({"width": 500, "height": 305})
        page.evaluate("document.querySelector('.plots').scrollIntoView()")
        camera.keep(f"judgment{ending}", compose(left, (top, page.screenshot())))
        page.close()
        page = camera.page(f"file://{work}/leaderboard.html", width=1100, height=900, dark=dark)
        table = page.locator(".scroll").first.bounding_box()
        clip = {"x": 0, "y": 0, "width": 1100, "height": table["y"] + table["height"] + 16}
        camera.keep(f"leaderboard{ending}", page.screenshot(clip=clip, full_page=True))
        page.close()
    page = camera.page(f"file://{run}", width=1100, height=760)
    camera.keep("run", page.screenshot())
    page.goto(f"file://{evaluated}")
    page.set_viewport_size({"width": 640, "height": 760})
    top, figure = (page.locator(place).first.bounding_box() for place in ("h2", "figure img"))
    clip = {"x": 0, "y": top["y"] - 16, "width": 640, "height": figure["y"] + figure["height"] + 32 - top["y"]}
    assert top["y"] < figure["y"], "the figure is the first section"
    camera.keep("evaluation", page.screenshot(clip=clip, full_page=True))
    page.goto(report)
    for name, caption in PLOTS.items():
        camera.keep(name, page.locator("figure", has_text=caption).first.screenshot())
    page.close()


def compose(left: bytes, right: Sequence[bytes], width: int = 1600) -> bytes:
    """Return a picture beside a column of others of the same height, ``width`` px in all."""
    beside, column = Image.open(io.BytesIO(left)).convert("RGB"), [Image.open(io.BytesIO(png)).convert("RGB") for png in right]
    assert beside.height == sum(image.height for image in column)
    whole = Image.new("RGB", (beside.width + column[0].width, beside.height))
    whole.paste(beside, (0, 0))
    top = 0
    for image in column:
        whole.paste(image, (beside.width, top))
        top += image.height
    buffer = io.BytesIO()
    whole.resize((width, whole.height * width // whole.width), Image.Resampling.LANCZOS).save(buffer, format="PNG")
    return buffer.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--judge", help="SPEC of the judge to show; default: the demonstration's teacher")
    parser.add_argument("--out", type=Path, default=FOLDER)
    parser.add_argument("--run", type=Path, help="folder of a training run to show; default: a small one is trained")
    options = parser.parse_args()
    from playwright.sync_api import sync_playwright

    from rewardlab.health.run_page import write_run_page
    from rewardlab.judging.engines import open_generative_judge
    from rewardlab.serving.app import create_app

    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        out = options.out.resolve()
        out.mkdir(parents=True, exist_ok=True)
        run_folder = options.run.resolve() if options.run else None
        spec = options.judge or stack.enter_context(teacher(shallow=(0.1, 0.2, 0.3), contradict=0.1))
        careless = stack.enter_context(teacher(shallow=(0.5, 0.6, 0.7)))
        judge_pairs(work, {"judge": spec, "careless": careless, "longest": "baseline:longest"})
        run, evaluated = write_run_page(run_folder or train_run()), write_run_page(train_evaluated_run())
        opened = open_generative_judge(spec, template="plain" if options.judge is None else None, max_tokens=128)
        ui = stack.enter_context(running(create_app(opened)))
        driver = stack.enter_context(sync_playwright())
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        photograph(Camera(browser, out), work, ui, run, evaluated)
        browser.close()
        size = sum((out / f"{name}.png").stat().st_size for name in PICTURES)
        print(f"{len(PICTURES)} pictures in {out}, {size:,} bytes")
        if size > MOST_BYTES:
            raise SystemExit(f"more than {MOST_BYTES:,} bytes; lower COLORS or the sizes")


if __name__ == "__main__":
    main()
