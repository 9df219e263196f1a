"""The quickstart in its own processes, too small to learn anything: every stage, the page, the endpoint, and again."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from rewardlab.benchmarks.browser import JudgmentView
from rewardlab.demo.build import DemoConfig, build_pairs
from rewardlab.demo.judge_training import is_shipped, train_judge
from rewardlab.demo.quickstart import MAIN_ROWS, WORDS, quickstart, two_judgments
from rewardlab.demo.summary import SUMMARY_ROWS, Summary
from rewardlab.errors import ConfigError

pytestmark = pytest.mark.nightly

CONFIGS: dict[str, str] = {
    "demo": "{num_train: 150, num_test: 24, hidden: 32, layers: 2, vocab_size: 700, base_steps: 3}",
    "distill": "{model: demo-teacher, template: plain, concurrency: 8}",
    "sft": "{template: plain, max_steps: 2, batch_size: 8, micro_batch_size: 8, save_steps: 1, gradient_checkpointing: false}",
    "rl": "{template: plain, max_steps: 2, rollout_batch_size: 8, batch_size: 4, micro_batch_size: 4, save_steps: 2,"
    " max_completion_length: 8, gradient_checkpointing: false, consistency: {model: demo-checker}}",
}
STAGES = {"pairs", "base model", "distill", "sft", "rl", "bench-base", "bench-sft", "bench-rl", "bench-endpoint"}


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Summary]:
    folder = tmp_path_factory.mktemp("quickstart")
    for name, text in CONFIGS.items():
        (folder / f"{name}.yaml").write_text(text)
    before = os.times()
    summary = quickstart(folder / "run", folder, 0)
    after = os.times()
    used = sum(after[n] - before[n] for n in range(4))  # of this process and of children that were waited for
    (folder / "used").write_text(str(used))
    return folder, folder / "run", summary


def test_every_stage_leaves_its_result(done: tuple[Path, Path, Summary]) -> None:
    """Checkpoints with cards, reports, statistics; three stages in the summary; the endpoint answered over HTTP."""
    _, out, summary = done
    for name in ("demo/base/config.json", "distill/distilled.parquet", "sft/final/rewardlab.json", "rl/final/rewardlab.json"):
        assert (out / name).exists(), name
    assert set(summary.stages) == {"base", "sft", "rl"}
    assert all(stage.num_pairs == 24 for stage in summary.stages.values())
    assert summary.stages["rl"].invalid_rate == 1.0
    assert summary.stages["rl"].reasoning["agrees"] is None
    assert summary.served.invalid_rate == 1.0
    assert {*STAGES, "total"} <= set(summary.seconds)


def test_cpu_seconds(done: tuple[Path, Path, Summary]) -> None:
    """Every stage's, the servers' and the command's own are recorded; together they are what the operating system counted."""
    folder, out, summary = done
    assert set(summary.cpu_seconds) == {*STAGES, "teacher and checker", "endpoint", "quickstart itself", "total"}
    total = summary.cpu_seconds["total"]
    assert sum(s for name, s in summary.cpu_seconds.items() if name != "total") == pytest.approx(total, abs=1)
    assert total == pytest.approx(float((folder / "used").read_text()), rel=0.02, abs=2)
    assert json.loads((out / "pipeline.json").read_text())["cpu_seconds"] == summary.cpu_seconds
    assert all(summary.cpu_seconds[name] > 0.5 for name in STAGES)
    assert f"{summary.cpu_seconds['sft']:.0f} s of CPU" in (out / "report.html").read_text()


def test_the_judge_of_a_finished_run(done: tuple[Path, Path, Summary], tmp_path: Path) -> None:
    """In half precision, with a card of its own numbers and no path of this machine; trained stages are not trained again."""
    folder, out, _ = done
    shutil.copytree(out, tmp_path / "run", ignore=shutil.ignore_patterns(".lock"))
    judge = train_judge(tmp_path / "run", folder, 0)
    full, half = (load_file(path / "model.safetensors") for path in (out / "rl" / "final", judge))
    assert full.keys() == half.keys()
    for name, weights in full.items():
        assert half[name].dtype == torch.float16
        assert torch.equal(half[name], weights.half())
    card = json.loads((judge / "card.json").read_text())
    assert card["sha256"] == hashlib.sha256((judge / "model.safetensors").read_bytes()).hexdigest()
    assert card["parameters"] == sum(weights.numel() for weights in full.values())
    assert card["figures"]["num_pairs"] == 24
    assert card["recipe"]["rl"]["max_steps"] == 2
    assert all(str(tmp_path) not in path.read_text() for path in judge.iterdir() if path.suffix in (".json", ".md"))
    assert not is_shipped(judge)
    assert {p.name for p in judge.iterdir()} >= {"rewardlab.json", "tokenizer.json", "README.md"}


def test_the_page_stands_alone(done: tuple[Path, Path, Summary]) -> None:
    """Plots and images inside, nothing to fetch, valid JSON beside it."""
    _, out, _ = done
    page = (out / "report.html").read_text()
    links = re.findall(r"(?:src|href)\s*=\s*(\S{6})", page)
    assert len(links) > 10
    assert all(re.match(r"[\"'](data:|#)", link) for link in links)
    assert page.count("<details") == 24 + 2
    above, _, below = page.partition("<details><summary>More figures")
    assert above.count("<tr>") == 1 + 6
    assert below.partition("</table>")[0].count("<tr>") == 1 + 5

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    for path in out.rglob("*.json"):
        json.loads(path.read_text(), parse_constant=refuse)


def test_again_does_nothing_again(done: tuple[Path, Path, Summary]) -> None:
    """Stages that are done are kept, byte for byte, with their seconds; a total that a killed call has not is not made up."""
    folder, out, first = done
    record = json.loads((out / "pipeline.json").read_text())
    total = record["seconds"].pop("total")
    (out / "pipeline.json").write_text(json.dumps(record))
    before = {p: p.stat().st_mtime_ns for p in out.rglob("*") if p.suffix in (".safetensors", ".parquet", ".jsonl")}
    second = quickstart(out, folder, 0)
    assert {p: p.stat().st_mtime_ns for p in before} == before
    assert second.stages == first.stages
    assert second.seconds | {"total": total} == first.seconds


def test_another_seed_needs_another_folder(done: tuple[Path, Path, Summary]) -> None:
    """Else its table would be the first seed's under a false name; changed configs likewise."""
    folder, out, _ = done
    with pytest.raises(ConfigError, match=r"other settings \(seed\)"):
        quickstart(out, folder, 1)
    with pytest.raises(ConfigError, match="a demonstration that differs in seed"):
        build_pairs(out / "demo", DemoConfig.load(folder / "demo.yaml", seed=1))
    (folder / "rl.yaml").write_text(CONFIGS["rl"].replace("max_steps: 2", "max_steps: 4"))
    with pytest.raises(ConfigError, match=r"other settings \(configs\)"):
        quickstart(out, folder, 0)


def view(row: int, *kinds: str) -> JudgmentView:
    return JudgmentView(row, str(row), "g", list(kinds), "q", ["a", "b"], 0, "", [], [[], []], 2, 1, "", [])


def test_one_of_each_kind() -> None:
    """The first that is right in both orders, and the first that changes with the order; none is made up."""
    views = [view(0, "wrong"), view(1, "wrong", "flipped"), view(2, "right"), view(3, "right"), view(4, "wrong", "flipped")]
    assert [(meaning, one.row) for meaning, one in two_judgments(views)] == [
        ("Right in both orders", 2),
        ("Another winner in the other order", 1),
    ]
    assert [one.row for _, one in two_judgments(views[2:4])] == [2]
    assert two_judgments([]) == []


def test_every_row_is_explained() -> None:
    """Six rows above the fold; each name of the table has a sentence."""
    names = [name for name, _ in SUMMARY_ROWS]
    assert len(MAIN_ROWS) == 6
    assert set(MAIN_ROWS) <= set(names)
    assert {"majority of N" if name.startswith("majority") else name.strip() for name in names} == set(WORDS)
