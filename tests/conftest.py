"""Shared fixtures: the demonstration's pairs, one tiny untrained judge, one real server of its remote models."""

from __future__ import annotations

import gc
import hashlib
import os
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # one worker a core
os.environ.setdefault("GOMP_SPINCOUNT", "1000")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")

import pytest
from hypothesis import settings

import rewardlab
from rewardlab.demo.judgments import Truth
from rewardlab.demo.pairs import make_pairs
from rewardlab.demo.server import Faults, TeacherConfig, build_demo_app
from rewardlab.types import PreferencePair
from tests.support.servers import running

# The same examples in every run, so that a failure can be reproduced; `make nightly` tries fresh ones.
settings.register_profile("fixed", derandomize=True, deadline=None)
settings.register_profile("fresh", max_examples=500, deadline=None)
settings.load_profile("fixed")


def pytest_collection_finish() -> None:
    """Take what was imported out of garbage collection: accelerate collects before every training, half a second each."""
    gc.collect()
    gc.freeze()


SHARED_DATA = Path(__file__).parents[2] / "shared" / "data"


# Three tiers: `make check` runs what is neither slow nor nightly, `make test` what is not nightly, `make nightly` the rest.
# Files whose tests train models, start processes or browsers, or take seconds for another reason are slow, and so is every
# test of a fixture in SLOW_FIXTURES. Tests of studies, and those with the mark `nightly`, are nightly.
NIGHTLY_FILES = ("tests/studies/",)
SLOW_FILES = (
    "tests/benchmarks/test_agreement.py",
    "tests/benchmarks/test_calibrate.py",
    "tests/benchmarks/test_certificate.py",
    "tests/benchmarks/test_cost.py",
    "tests/benchmarks/test_failing_endpoints.py",
    "tests/benchmarks/test_findings.py",
    "tests/benchmarks/test_imports.py",
    "tests/benchmarks/test_index_page.py",
    "tests/benchmarks/test_loaders.py",
    "tests/benchmarks/test_own_pairs.py",
    "tests/benchmarks/test_paid_answers.py",
    "tests/benchmarks/test_prepare.py",
    "tests/benchmarks/test_recordings.py",
    "tests/benchmarks/test_report_page.py",
    "tests/benchmarks/test_revision.py",
    "tests/benchmarks/test_robustness.py",
    "tests/benchmarks/test_run_exports.py",
    "tests/benchmarks/test_systems.py",
    "tests/benchmarks/test_ties.py",
    "tests/benchmarks/test_vote_check.py",
    "tests/benchmarks/test_votes_as_they_come.py",
    "tests/cli/test_data_convert.py",
    "tests/cli/test_json_output.py",
    "tests/cli/test_push.py",
    "tests/cli/test_training_overrides.py",
    "tests/curation/test_decontaminate.py",
    "tests/data/test_pair_table.py",
    "tests/data/test_qwen_video.py",
    "tests/data/test_video.py",
    "tests/demo/test_demo.py",
    "tests/distill/test_batch_transport.py",
    "tests/distill/test_distill.py",
    "tests/distill/test_ray_transport.py",
    "tests/health/test_doctor.py",
    "tests/integrations/test_picture_doors.py",
    "tests/judging/test_few_valid_votes.py",
    "tests/judging/test_judge_config.py",
    "tests/judging/test_missing_votes.py",
    "tests/judging/test_panel.py",
    "tests/judging/test_served.py",
    "tests/laws/test_orders_and_verdicts.py",
    "tests/laws/test_pairwise_laws.py",
    "tests/metrics/test_prediction_powered.py",
    "tests/models/test_families.py",
    "tests/parity/",
    "tests/pipelines/test_runner.py",
    "tests/repo/test_contributing.py",
    "tests/repo/test_deployment.py",
    "tests/repo/test_docs_blocks.py",
    "tests/reporting/test_pages.py",
    "tests/reporting/test_run_page.py",
    "tests/rewards/test_audit.py",
    "tests/rewards/test_code.py",
    "tests/rewards/test_mathematics.py",
    "tests/rewards/test_reward_log.py",
    "tests/samplers/test_answer_cache.py",
    "tests/samplers/test_child_process.py",
    "tests/samplers/test_concurrency.py",
    "tests/samplers/test_field_fit.py",
    "tests/samplers/test_samplers.py",
    "tests/samplers/test_vllm.py",
    "tests/serving/test_dialects.py",
    "tests/serving/test_engine_restart.py",
    "tests/serving/test_fuzzing.py",
    "tests/serving/test_groups.py",
    "tests/serving/test_guarantee.py",
    "tests/serving/test_judge_versions.py",
    "tests/serving/test_media_loader.py",
    "tests/serving/test_nemo_gym.py",
    "tests/serving/test_page.py",
    "tests/serving/test_pictures_in_answers.py",
    "tests/serving/test_schedule.py",
    "tests/serving/test_server.py",
    "tests/serving/test_tenants.py",
    "tests/serving/test_uploads.py",
    "tests/serving/test_voting.py",
    "tests/serving/test_worst_bodies.py",
    "tests/training/",
    "tests/verdicts/test_panel.py",
)
SLOW_FIXTURES = ("tiny_checkpoint", "finished_run")


def is_slow_file(path: Path) -> bool:
    return path.relative_to(Path(__file__).parents[1]).as_posix().startswith((*SLOW_FILES, *NIGHTLY_FILES))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import no file whose tests ``make check`` leaves out anyway: importing trainers takes longer than many tests."""
    is_named = collection_path in {Path(argument.partition("::")[0]).resolve() for argument in config.args}
    is_left_out = config.option.markexpr == "not slow" and collection_path.is_file() and is_slow_file(collection_path)
    return True if is_left_out and not is_named else None


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark slow and nightly tests, and put slow files first, so that the processes that share the files end together."""
    for item in items:
        if Path(item.path).relative_to(Path(__file__).parents[1]).as_posix().startswith(NIGHTLY_FILES):
            item.add_marker(pytest.mark.nightly)
        extra = item.get_closest_marker("extra")
        if extra and find_spec(extra.args[0]) is None:
            item.add_marker(pytest.mark.skip(reason=f"needs {extra.args[0]}: make extras"))
        slow_fixture = set(SLOW_FIXTURES) & set(getattr(item, "fixturenames", ()))
        if is_slow_file(item.path) or slow_fixture or item.get_closest_marker("nightly"):
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
    with ExitStack() as stack:

        def start(faults: Faults | None = None, config: TeacherConfig | None = None) -> str:
            app = build_demo_app(demo_pairs[1], config or TeacherConfig(), faults)
            return stack.enter_context(running(app)) + "/v1"

        yield start


@pytest.fixture(scope="session")
def models(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for models that tests share: in pytest's cache, as long as no line of the package and no version of torch or
    transformers changes; without the cache, of this session."""
    cache = getattr(pytestconfig, "cache", None)
    if cache is None:
        return tmp_path_factory.mktemp("models")
    digest = hashlib.sha256(f"{version('torch')} {version('transformers')} {version('trl')}".encode())
    for path in sorted(Path(rewardlab.__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    folder = Path(cache.mkdir("models")) / digest.hexdigest()[:16]
    for other in folder.parent.iterdir():
        if other != folder and other.stat().st_mtime < time.time() - 3600:  # of older code, and of no session that runs
            shutil.rmtree(other, ignore_errors=True)
    folder.mkdir(exist_ok=True)
    return folder


def made_once(folder: Path, make: Callable[[Path], None]) -> Path:
    """Return a folder, filled by ``make`` unless it is there. Of two processes that make it at a time one is kept."""
    if not folder.exists():
        made = Path(tempfile.mkdtemp(dir=folder.parent))
        make(made)
        try:
            made.rename(folder)
        except OSError:  # another process was faster
            shutil.rmtree(made)
    return folder


@pytest.fixture(scope="session")
def base_checkpoint(models: Path) -> Path:
    """What :func:`tiny_checkpoint` copies: tests write nothing there."""

    def make(folder: Path) -> None:
        from rewardlab.demo.base_model import build_model, build_processor, save_model, train_tokenizer
        from rewardlab.demo.build import corpus

        pairs, truths = make_pairs(300, seed=0, held_out=False)
        tokenizer = train_tokenizer(corpus(pairs, truths, random.Random(0)), 700)
        save_model(folder, build_model(tokenizer, hidden=32, layers=2, seed=0), build_processor(tokenizer))

    return made_once(models / "base", make)


@pytest.fixture(scope="session")
def tiny_checkpoint(base_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint folder of a real, tiny, untrained Qwen2.5-VL with processor and trained tokenizer."""
    return Path(shutil.copytree(base_checkpoint, tmp_path_factory.mktemp("tiny") / "base"))


@pytest.fixture(scope="session")
def finished_run(models: Path, base_checkpoint: Path, demo_pairs: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as a quickstart leaves it; its judge has learnt to say either verdict, and is right by luck."""

    def make(folder: Path) -> None:
        from rewardlab.config import SFTConfig
        from rewardlab.data.pairs import write_parquet
        from rewardlab.training.sft import train_sft
        from rewardlab.types import choice_of
        from rewardlab.verdicts.parse import format_verdict

        pairs = [
            replace(p, attempts="1", judgment=format_verdict(choice_of((p.preferred or 0) ^ (n % 2), p.order), "x"))
            for n, p in enumerate(demo_pairs[0])
        ]
        steps = {"max_steps": 40, "batch_size": 8, "micro_batch_size": 8, "gradient_checkpointing": False, "save_steps": 1000}
        train_sft(pairs, SFTConfig(model=str(base_checkpoint), template="plain", learning_rate=1e-2, **steps), folder / "rl")
        write_parquet(pairs[:60], folder / "distill" / "distilled.parquet")
        write_parquet(pairs[60:80], folder / "demo" / "test.parquet")

    made = made_once(models / "finished", make)
    return Path(shutil.copytree(made, tmp_path_factory.mktemp("finished") / "run"))


@pytest.fixture(scope="session")
def checkpoint_of(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a tiny checkpoint of a family by its name: qwen2_5_vl, or one of ``tests.support.families.FAMILIES``."""
    from transformers import AutoTokenizer

    from tests.support import families

    made = {"qwen2_5_vl": tiny_checkpoint}

    def make(name: str) -> Path:
        if name not in made:
            tokenizer = AutoTokenizer.from_pretrained(tiny_checkpoint)
            made[name] = families.FAMILIES[name](tokenizer, tmp_path_factory.mktemp("family") / name)
        return made[name]

    return make
