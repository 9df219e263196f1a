"""Shared fixtures: the demonstration's pairs, one tiny untrained judge, one real server of its remote models."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "2")
os.environ.setdefault("GOMP_SPINCOUNT", "1000")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")

import pytest
from hypothesis import settings

from rewardlab.demo.judgments import Truth
from rewardlab.demo.pairs import make_pairs
from rewardlab.demo.server import Faults, TeacherConfig, build_demo_app
from rewardlab.types import PreferencePair
from tests.support.servers import running

# The same examples at every run and no limit in milliseconds: a failing law is one that anybody can see fail again.
# `--hypothesis-profile default` explores further.
settings.register_profile("fixed", derandomize=True, deadline=None)
settings.load_profile("fixed")

SHARED_DATA = Path(__file__).parents[2] / "shared" / "data"


# Files whose tests train models, start other processes or browsers, or take seconds for another reason: `make check` leaves
# them out (`-m "not slow"`), `make test` runs them. Fixtures named in SLOW_FIXTURES make a single test slow.
SLOW_FILES = (
    "tests/demo/test_demo.py",
    "tests/demo/test_hard.py",
    "tests/demo/test_quickstart.py",
    "tests/distill/test_batch_transport.py",
    "tests/distill/test_distill.py",
    "tests/distill/test_ray_transport.py",
    "tests/models/test_families.py",
    "tests/parity/",
    "tests/repo/test_contributing.py",
    "tests/repo/test_image_steps.py",
    "tests/repo/test_notebooks.py",
    "tests/repo/test_wheel.py",
    "tests/rewards/test_audit.py",
    "tests/rewards/test_mathematics.py",
    "tests/samplers/test_child_process.py",
    "tests/samplers/test_concurrency.py",
    "tests/samplers/test_samplers.py",
    "tests/samplers/test_vllm.py",
    "tests/serving/test_dialects.py",
    "tests/serving/test_fuzzing.py",
    "tests/serving/test_voting.py",
    "tests/studies/",
    "tests/training/",
    "tests/curation/test_decontaminate.py",
)
FAST_IN_SLOW = (
    "tests/training/test_evaluation_callback.py",
    "tests/training/test_folder.py",
    "tests/training/test_held_out.py",
    "tests/training/test_identity.py",
    "tests/training/test_policy_trainer.py",
    "tests/training/test_trl_seam.py",
    "tests/parity/test_trl_losses.py",
)
SLOW_FIXTURES = ("tiny_checkpoint", "finished_run")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark slow tests, and put the files that have some first: two processes that share the files then end together."""
    for item in items:
        name = Path(item.path).relative_to(Path(__file__).parents[1]).as_posix()
        slow_file = name.startswith(SLOW_FILES) and name not in FAST_IN_SLOW
        if slow_file or set(SLOW_FIXTURES) & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.slow)
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


@pytest.fixture(scope="session")
def demo_pairs() -> tuple[list[PreferencePair], list[Truth]]:
    """200 training pairs and their truths."""
    return make_pairs(200, seed=0, held_out=False)


@pytest.fixture
def demo_server(demo_pairs: tuple[list[PreferencePair], list[Truth]]) -> Iterator[Callable[..., str]]:
    """``start(faults=..., config=...)`` serves the demonstration's teacher and checker and returns the API's base URL."""
    from contextlib import ExitStack

    with ExitStack() as stack:

        def start(faults: Faults | None = None, config: TeacherConfig | None = None) -> str:
            app = build_demo_app(demo_pairs[1], config or TeacherConfig(), faults)
            return stack.enter_context(running(app)) + "/v1"

        yield start


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint folder of a real, tiny, untrained Qwen2.5-VL with processor and trained tokenizer."""
    import random

    from rewardlab.demo.base_model import build_model, build_processor, save_model, train_tokenizer
    from rewardlab.demo.build import corpus

    pairs, truths = make_pairs(300, seed=0, held_out=False)
    tokenizer = train_tokenizer(corpus(pairs, truths, random.Random(0)), 700)
    folder = tmp_path_factory.mktemp("tiny") / "base"
    save_model(folder, build_model(tokenizer, hidden=32, layers=2, seed=0), build_processor(tokenizer))
    return folder


@pytest.fixture(scope="session")
def finished_run(tiny_checkpoint: Path, demo_pairs: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as a quickstart leaves it; its judge has learnt to say either verdict, and is right by luck."""
    from rewardlab.config import SFTConfig
    from rewardlab.data.pairs import write_parquet
    from rewardlab.training.sft import train_sft
    from rewardlab.types import choice_of
    from rewardlab.verdicts.parse import format_verdict

    run = tmp_path_factory.mktemp("finished")
    pairs = [
        replace(p, attempts="1", judgment=format_verdict(choice_of((p.preferred or 0) ^ (n % 2), p.order), "x"))
        for n, p in enumerate(demo_pairs[0])
    ]
    config = SFTConfig(
        model=str(tiny_checkpoint),
        template="plain",
        learning_rate=1e-2,
        max_steps=40,
        batch_size=8,
        micro_batch_size=8,
        gradient_checkpointing=False,
        save_steps=1000,
    )
    train_sft(pairs, config, run / "rl")
    write_parquet(pairs[:60], run / "distill" / "distilled.parquet")
    write_parquet(pairs[60:80], run / "demo" / "test.parquet")
    return run


@pytest.fixture(scope="session")
def checkpoint_of(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a tiny checkpoint of each family: qwen2_vl, qwen2_5_vl, qwen3_vl, qwen3_5, gemma3."""
    from transformers import AutoTokenizer

    from tests.support import families

    made = {"qwen2_5_vl": tiny_checkpoint}

    def make(name: str) -> Path:
        if name not in made:
            tokenizer = AutoTokenizer.from_pretrained(tiny_checkpoint)
            made[name] = families.FAMILIES[name](tokenizer, tmp_path_factory.mktemp("family") / name)
        return made[name]

    return make
