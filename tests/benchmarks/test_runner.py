"""The benchmark runner end to end: published figures, the replay contract, resume, and a report that can be read."""

from __future__ import annotations

import json
import math
import random
import re
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rewardlab.benchmarks import runner, vl_rewardbench
from rewardlab.benchmarks.baselines import BaselineJudge
from rewardlab.benchmarks.report import report_markdown, write_reports
from rewardlab.benchmarks.runner import run_bench
from rewardlab.benchmarks.settings import bench_settings
from rewardlab.benchmarks.vl_rewardbench import official_group
from rewardlab.data.pairs import read_pairs, write_parquet
from rewardlab.errors import ConfigError, DataError, MediaError
from rewardlab.judging.judge import GenerativeJudge, draw_orders
from rewardlab.metrics.intervals import mean_interval
from rewardlab.prompts import build_messages, load_template
from rewardlab.samplers.scripted import ScriptedSampler
from rewardlab.types import BOTH_ORDERS, Choice, Message, Order, PreferencePair, choice_of
from rewardlab.verdicts.parse import format_verdict
from tests.conftest import SHARED_DATA

VLRB = SHARED_DATA / "vl_rewardbench.jsonl"
needs_vlrb = pytest.mark.skipif(not VLRB.exists(), reason=f"needs {VLRB.name}, the published VL-RewardBench rows")
PLAIN = load_template("plain")


@pytest.fixture
def pairs_file(demo_pairs: Any, tmp_path: Path) -> Path:
    write_parquet(demo_pairs[0][:130], tmp_path / "pairs.parquet")
    return tmp_path / "pairs.parquet"


def bench(out: Path, data: Path, judge: str, **changes: Any) -> dict[str, Any]:
    values: dict[str, Any] = {"benchmark": "pairs", "data": data, "judge": judge, "controls": ()}
    return run_bench(bench_settings(**(values | changes)), out)[0].to_json()


@pytest.mark.slow
@needs_vlrb
def test_published_groups_and_length_baselines(tmp_path: Path) -> None:
    """VL-RewardBench: 183 / 749 / 318, and the longer answer right in 37.2 / 40.3 / 51.3 %."""
    report = bench(tmp_path, VLRB, "baseline:longest", benchmark="vl_rewardbench")
    groups = report["groups"]
    assert {name: cell["n"] for name, cell in groups.items()} == {"general": 183, "hallucination": 749, "reasoning": 318}
    assert {name: round(100 * cell["accuracy"], 1) for name, cell in groups.items()} == {
        "general": 37.2,
        "hallucination": 40.3,
        "reasoning": 51.3,
    }
    assert report["num_pairs"] == 1250
    assert [note[:58] for note in report["notes"]] == ["the judgments of the page are shown without their images ("]
    assert report["accuracy"]["macro"] == pytest.approx(sum(cell["accuracy"] for cell in groups.values()) / 3)
    assert report["baselines"]["first"]["micro"] == 0.5
    rows = vl_rewardbench.BENCHMARK.load(VLRB, images=None, with_images=False)
    by_hand = sum(len(r.pair.responses[0]) > len(r.pair.responses[1]) for r in rows) / 1250
    assert report["accuracy"]["micro"] == by_hand


@needs_vlrb
def test_images_that_are_missing_are_said_at_once(tmp_path: Path) -> None:
    """Before any judge is asked: how many, which, and the cure."""
    with pytest.raises(MediaError, match=r"1,250 of 1,250 media files.*--images"):
        vl_rewardbench.BENCHMARK.load(VLRB, images=tmp_path, with_images=True)


@pytest.mark.parametrize("change", [{"chosen": None}, {"image": 3}, {"rejected": "a"}])
def test_bad_rows_of_vl_rewardbench(change: dict[str, Any], tmp_path: Path) -> None:
    """The row is named; Unicode's line separators inside a text are no new row."""
    row = {"id": "mathverse_1", "prompt": "a\u2028b", "chosen": "a", "rejected": "b", "image": "a.png"}
    data = write_lines(tmp_path / "rows.jsonl", [row, row | change])
    with pytest.raises(DataError, match="row 1"):
        vl_rewardbench.BENCHMARK.load(data, images=None, with_images=False)
    assert len(vl_rewardbench.BENCHMARK.load(write_lines(tmp_path / "good.jsonl", [row]), images=None, with_images=False)) == 1


def test_official_grouping() -> None:
    """Rows are grouped by source, whatever the capitals."""
    names = [
        "RLHF-V-Dataset-1",
        "rlaif-v-3",
        "hallucination_pair-9",
        "mathverse_1",
        "mmmu_pro-2",
        "wildvision-battle-1",
        "svit-2",
    ]
    found = [official_group(name) for name in names]
    assert found == ["hallucination"] * 3 + ["reasoning"] * 2 + ["general"] * 2


def test_contract(pairs_file: Path, tmp_path: Path) -> None:
    """The fields that scripts rely on, in both orders; and a size that differs from the published one is noted."""
    report = bench(tmp_path / "r", pairs_file, "baseline:random", votes=3)
    promised = {"benchmark", "num_pairs", "accuracy", "groups", "invalid_rate", "swap_consistency", "k_curve", "judge"}
    promised |= {"orders", "seed", "versions", "commit"}
    on_disk = json.loads((tmp_path / "r" / "report.json").read_text())
    assert promised <= set(on_disk)
    assert set(on_disk["accuracy"]) == {"micro", "macro"}
    assert all({"n", "accuracy", "interval"} <= set(cell) for cell in on_disk["groups"].values())
    assert (report["num_pairs"], report["votes"], report["orders"], report["invalid_rate"]) == (130, 3, "both", 0.0)
    assert [c["k"] for c in report["k_curve"]] == [1, 3]
    low, high = report["interval"]
    assert low <= 0.5 <= high


def test_a_constant_judge_scores_one_half(pairs_file: Path, tmp_path: Path) -> None:
    """Exactly, over both orders; over given orders it scores the share of pairs whose first response is preferred."""
    both = bench(tmp_path / "both", pairs_file, "baseline:first")
    assert (both["accuracy"]["micro"], both["swap_consistency"], both["position_bias"]) == (0.5, 0.0, 0.5)
    given = bench(tmp_path / "given", pairs_file, "baseline:first", orders="given")
    assert given["swap_consistency"] is None
    assert given["accuracy"]["micro"] == sum(p.preferred == 0 for p in read_pairs(pairs_file)) / 130
    drawn = bench(tmp_path / "random", pairs_file, "baseline:first", orders="random")
    assert 0.35 < drawn["accuracy"]["micro"] < 0.65


def test_orders() -> None:
    """Drawn from the seed and the place, not from a running stream."""
    assert draw_orders("random", 10, 1) == draw_orders("random", 20, 1)[:10]
    assert {o for (o,) in draw_orders("random", 50, 1)} == set(Order)
    with pytest.raises(ConfigError, match="both, random, given"):
        draw_orders("all", 1, 0)


def replay_lines(pairs: Any, accuracy: float, num_votes: int) -> list[dict[str, Any]]:
    """Texts of a judge that is right with a fixed probability, and one unreadable vote per pair and order."""
    rng, lines = random.Random(0), []
    for row, pair in enumerate(pairs):
        for order in Order:
            for _ in range(num_votes - 1):
                right = rng.random() < accuracy
                first = (pair.preferred == 0) == (order is Order.GIVEN)
                lines.append(
                    {"row": row, "order": order.value, "text": f"<think>x</think><answer>{1 if first == right else 2}</answer>"}
                )
            lines.append({"row": row, "order": order.value, "text": "I cannot say."})
    rng.shuffle(lines)
    return lines


def write_lines(path: Path, lines: list[Any]) -> Path:
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    return path


def test_replay_scores_as_by_hand(pairs_file: Path, demo_pairs: Any, tmp_path: Path) -> None:
    """Every number of the report recounted from the file with nothing but loops."""
    pairs = demo_pairs[0][:130]
    lines = replay_lines(pairs, 0.7, 5)
    report = bench(tmp_path / "r", pairs_file, f"replay:{write_lines(tmp_path / 'a.jsonl', lines)}")
    assert report["votes"] == 5
    assert report["invalid_rate"] == pytest.approx(1 / 5)
    trials: dict[tuple[int, str], list[int]] = {}
    singles = []
    for line in lines:
        mark = 0
        if "answer" in line["text"]:
            first = "<answer>1" in line["text"]
            mark = 1 if (first == (line["order"] == "given")) == (pairs[line["row"]].preferred == 0) else -1
        trials.setdefault((line["row"], line["order"]), []).append(mark)
        singles.append(mark == 1)
    majorities = {key: (marks.count(1) > 2.5) - (marks.count(-1) > 2.5) for key, marks in trials.items()}
    assert report["accuracy"]["micro"] == pytest.approx(sum(m > 0 for m in majorities.values()) / 260)
    assert report["undecided_rate"] == pytest.approx(sum(m == 0 for m in majorities.values()) / 260)
    leads = [sum(marks) for marks in trials.values()]
    assert report["valid_majority"]["accuracy"] == pytest.approx(sum(lead > 0 for lead in leads) / 260)
    assert report["valid_majority"]["decided"] == pytest.approx(sum(lead != 0 for lead in leads) / 260)
    assert report["k_curve"][0]["accuracy"] == pytest.approx(sum(singles) / len(singles))
    assert report["one_vote"]["accuracy"] == report["k_curve"][0]["accuracy"]
    consistent = sum(
        (majorities[n, "given"] > 0 and majorities[n, "swapped"] > 0)
        or (majorities[n, "given"] < 0 and majorities[n, "swapped"] < 0)
        for n in range(130)
    )
    assert report["swap_consistency"] == pytest.approx(consistent / 130)
    assert report["statuses"]["no_verdict"] == 260


def test_replay_of_scores(pairs_file: Path, demo_pairs: Any, tmp_path: Path) -> None:
    """A scalar model has no order: consistent by nature; equal scores tie and are not right, nan is an error."""
    pairs = demo_pairs[0][:130]
    lines = [{"row": n, "scores": [1.0, 0.0] if pair.preferred == 0 else [0.0, 1.0]} for n, pair in enumerate(pairs)]
    lines[0]["scores"] = [0.5, 0.5]
    lines[1]["scores"] = [math.nan, 1.0]
    report = bench(tmp_path / "r", pairs_file, f"replay:{write_lines(tmp_path / 's.jsonl', lines)}")
    assert report["accuracy"]["micro"] == pytest.approx(128 / 130)
    assert (report["statuses"]["tie"], report["statuses"]["error"]) == (2, 2)
    assert report["invalid_rate"] == pytest.approx(1 / 130)


@pytest.mark.parametrize(
    "line",
    ["{", "[]", '{"text": "x"}', '{"row": -1, "text": "x"}', '{"row": 0, "text": 3}', '{"row": 0, "order": "x", "text": "x"}'],
)
def test_bad_replay_lines(line: str, pairs_file: Path, tmp_path: Path) -> None:
    """Named by file and line, with what was expected."""
    (tmp_path / "bad.jsonl").write_text('{"row": 0, "text": "x"}\n' + line + "\n")
    with pytest.raises(DataError, match=r"bad\.jsonl, line 2: expected"):
        bench(tmp_path / "r", pairs_file, f"replay:{tmp_path / 'bad.jsonl'}")


def judge_by(handler: Any) -> GenerativeJudge:
    return GenerativeJudge(ScriptedSampler(handler), PLAIN)


@pytest.mark.slow
def test_killed_and_continued(pairs_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The report equals an undisturbed run's, and what was judged is not asked again."""
    asked: list[int] = []

    def handler(prompt: tuple[Message, ...], draw: int) -> str:
        asked.append(draw)
        if len(asked) == broken_at:
            raise KeyboardInterrupt
        return f"<think>x</think><answer>{1 + len(prompt[0].text) % 2}</answer>"

    monkeypatch.setattr(runner, "open_any_judge", lambda settings: judge_by(handler))
    broken_at = 200
    with pytest.raises(KeyboardInterrupt):
        bench(tmp_path / "parts", pairs_file, "hf:x", controls=("greedy", "blank"))
    assert not (tmp_path / "parts" / "report.json").exists()
    done, broken_at = len(asked), -1
    parts = bench(tmp_path / "parts", pairs_file, "hf:x", controls=("greedy", "blank"))
    resumed = len(asked) - done
    whole = bench(tmp_path / "whole", pairs_file, "hf:x", controls=("greedy", "blank"))
    assert resumed == 3 * 260 - 128
    assert parts.pop("seconds_per_vote") > 0
    assert whole.pop("seconds_per_vote") > 0
    assert parts == whole
    bench(tmp_path / "whole", pairs_file, "hf:x", controls=("greedy", "blank"))
    assert len(asked) == done + resumed + 3 * 260
    with pytest.raises(ConfigError, match="differs in seed"):
        bench(tmp_path / "whole", pairs_file, "hf:x", seed=1)


@pytest.mark.slow
def test_controls_show_other_images(pairs_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A judge that knows each pair by its image is perfect, and at nothing without it; unknown controls are refused first."""
    known = {pair.images: pair for pair in read_pairs(pairs_file)}

    def handler(prompt: tuple[Message, ...], draw: int) -> str:
        pair = known.get(prompt[0].images)
        for order in Order if pair else ():
            if build_messages(pair, order=order, template=PLAIN) == prompt:
                return format_verdict(choice_of(pair.preferred, order), "x")
        return "no idea"

    monkeypatch.setattr(runner, "open_any_judge", lambda settings: judge_by(handler))
    report = bench(tmp_path / "r", pairs_file, "hf:x", controls=("greedy", "blank", "other"))
    assert report["accuracy"]["micro"] == 1.0
    assert report["controls"]["greedy"]["accuracy"]["micro"] == 1.0
    assert report["controls"]["blank"]["accuracy"]["micro"] == 0.0
    assert report["controls"]["blank"]["invalid_rate"] == 1.0
    assert report["controls"]["other"]["accuracy"]["micro"] < 0.1
    with pytest.raises(ConfigError, match="unknown controls sideways"):
        bench(tmp_path / "t", pairs_file, "hf:x", controls=("sideways",))
    assert not (tmp_path / "t").exists()


@pytest.mark.slow
def test_report_files(pairs_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One page without anything to fetch; text of answers and judges is text, never markup; plots and images inside."""
    evil = '<script>alert("x")</script>'
    monkeypatch.setattr(
        runner, "open_any_judge", lambda settings: judge_by(lambda *_: f"<think>{evil}</think><answer>1</answer>")
    )
    settings = bench_settings("pairs", pairs_file, "hf:x", votes=3, controls=("blank",))
    report, rows = run_bench(settings, tmp_path / "r")
    rows[0] = replace(rows[0], pair=replace(rows[0].pair, question=evil))
    write_reports(report, rows, tmp_path / "r")
    page = (tmp_path / "r" / "report.html").read_text()
    assert evil not in page
    assert "&lt;script&gt;" in page
    links = re.findall(r"(?:src|href)\s*=\s*(\S{6})", page)
    assert links
    assert all(re.match(r"[\"'](data:|#)", link) for link in links), links
    assert not re.search(r"url\((?!['\"]?data:)|@import", page)
    assert page.count("data:image/svg+xml") >= 2
    assert page.count("data:image/png") >= 12
    assert page.count('class="thumbnail"') == page.count('<details class="judgment"') > 0
    text = (tmp_path / "r" / "report.md").read_text()
    assert text == report_markdown(report)
    assert re.search(r"\| macro average \| \d+\.\d \[\d+\.\d, \d+\.\d\] \|", text)
    assert "text-only (blank image)" in text
    assert "baseline: longest" in text
    assert "stopping error" in text
    assert "Votes one after another" in page


@pytest.mark.slow
def test_a_group_may_be_called_anything(demo_pairs: Any, tmp_path: Path) -> None:
    """Dollars are no formula, bars no column, tags no markup."""
    names = ["cost $\\frac$ x", "a|b", "<b>c</b>"]
    pairs = [replace(pair, category=names[n % 3]) for n, pair in enumerate(demo_pairs[0][:12])]
    write_parquet(pairs, tmp_path / "p.parquet")
    report, rows = run_bench(bench_settings("pairs", tmp_path / "p.parquet", "baseline:random"), tmp_path / "r")
    write_reports(report, rows, tmp_path / "r")
    assert "a\\|b" in report_markdown(report)
    assert "<b>c" not in (tmp_path / "r" / "report.html").read_text()


def test_many_pairs_with_few_votes(tmp_path: Path) -> None:
    """30,000 pairs are scored in seconds and a few hundred MiB, where drawing every resample took most of a minute and 2 GiB.

    What is asserted is the size of the largest array, not the time: 2,000 resamples of all pairs would be 480 MB.
    """
    tracemalloc.start()
    dice = np.random.default_rng(0)
    mean_interval((dice.random(30_000) < 0.6).astype(float).tolist(), [str(n // 2) for n in range(30_000)])
    assert tracemalloc.get_traced_memory()[1] < 50_000_000
    tracemalloc.stop()


def test_what_a_replay_lacks_or_has_too_much_of(pairs_file: Path, tmp_path: Path) -> None:
    """Samples that are not there are counted and said; rows that the data does not have, and rows with two kinds of samples,
    are refused."""

    def replay(*rows: dict[str, Any], **changes: Any) -> dict[str, Any]:
        path = write_lines(tmp_path / "r.jsonl", list(rows))
        return bench(tmp_path / f"o{len(list(tmp_path.iterdir()))}", pairs_file, f"replay:{path}", **changes)

    one = {"row": 0, "text": "<answer>1</answer>"}
    assert any("129 of 130 samples are not in the replay file" in note for note in replay(one)["notes"])
    with pytest.raises(DataError, match="row 5000"):
        replay({**one, "row": 5000}, limit=3)
    with pytest.raises(DataError, match="both texts and scores"):
        replay(one, {"row": 0, "scores": [1, 2]})


@pytest.mark.parametrize("text", ['["a"]', "3", "\xff\xfe"])
def test_a_replay_that_is_none(text: str, pairs_file: Path, tmp_path: Path) -> None:
    """A sentence, whatever is in the file."""
    (tmp_path / "r.jsonl").write_bytes(text.encode("latin-1"))
    with pytest.raises(DataError, match=r"r\.jsonl"):
        bench(tmp_path / "r", pairs_file, f"replay:{tmp_path / 'r.jsonl'}")


def test_unknown_judges_and_benchmarks(pairs_file: Path, tmp_path: Path) -> None:
    """With those that exist."""
    for judge in ("gpt", "baseline:best", "openai:m", "hf:", "replay:none.jsonl"):
        with pytest.raises((ConfigError, DataError)):
            bench(tmp_path / "r", pairs_file, judge)
    with pytest.raises(ConfigError, match=r"vl_rewardbench, mm_rlhf.*pairs"):
        bench(tmp_path / "r", pairs_file, "baseline:first", benchmark="mmlu")
    assert not (tmp_path / "r").exists()


def test_unlabelled_pairs_cannot_be_scored(demo_pairs: Any, tmp_path: Path) -> None:
    """Said with the row."""
    write_parquet([demo_pairs[0][0], replace(demo_pairs[0][1], preferred=None)], tmp_path / "p.parquet")
    with pytest.raises(DataError, match="row 1: has no label"):
        bench(tmp_path / "r", tmp_path / "p.parquet", "baseline:first")


def test_baselines_vote_once_per_order() -> None:
    """Equal lengths are a tie, which is never right."""
    pair = PreferencePair("p", "q", ("ab", "cd"), 0)
    judged = BaselineJudge("longest").compare_many([pair], orders=[BOTH_ORDERS], num_votes=1, seed=0)[0]
    assert [vote.verdict.status.value for vote in judged.votes] == ["tie", "tie"]


def test_other_images_under_the_same_names_are_another_run(demo_pairs: Any, tmp_path: Path) -> None:
    """The log of one set of images is not continued on another."""
    data = tmp_path / "pairs.jsonl"
    pair = demo_pairs[0][0]
    row = {"question": pair.question, "responses": list(pair.responses), "preferred": 0, "images": ["a.png"]}
    data.write_text(json.dumps(row) + "\n")
    judge = judge_by(lambda prompt, draw: format_verdict(Choice.FIRST, "r"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "open_any_judge", lambda settings: judge)
        for number, folder in enumerate(("a", "b")):
            (tmp_path / folder).mkdir()
            (tmp_path / folder / "a.png").write_bytes(demo_pairs[0][number].images[0])
        bench(tmp_path / "out", data, "hf:x", images=tmp_path / "a", controls=())
        with pytest.raises(ConfigError, match="differs in images"):
            bench(tmp_path / "out", data, "hf:x", images=tmp_path / "b", controls=())


def test_a_report_that_does_not_add_up_is_not_written(
    pairs_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No assertion, which an optimized run leaves out."""
    monkeypatch.setattr(runner, "problems", lambda report, rows: ["the mean is not one"])
    with pytest.raises(RuntimeError, match="is inconsistent, a bug in the scoring: the mean is not one"):
        bench(tmp_path / "out", pairs_file, "baseline:first")
    assert not (tmp_path / "out" / "report.json").exists()


def test_a_judge_of_vllm_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the engine's own file, as any engine that a judge's name may have."""
    opened = []

    def open_sampler(target: str, options: Any) -> ScriptedSampler:
        opened.append((target, options.query.engine_args))
        return ScriptedSampler(lambda prompt, draw: format_verdict(Choice.FIRST, "x"))

    (tmp_path / "config.json").write_text('{"model_type": "qwen2_5_vl"}')
    monkeypatch.setattr("rewardlab.samplers.vllm.open_sampler", open_sampler)
    settings = bench_settings("pairs", tmp_path, f"vllm:{tmp_path}", template="plain", engine_args="--max-model-len 9")
    judge = runner.open_any_judge(settings)
    assert isinstance(judge, GenerativeJudge)
    assert (judge.config, opened) == (settings.judge, [(str(tmp_path), "--max-model-len 9")])
