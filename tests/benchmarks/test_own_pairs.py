"""A set of one's own as a benchmark: what is one draw for the intervals, and questions about images that are not there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rewardlab.benchmarks.pairs import clusters_of
from rewardlab.benchmarks.report import report_html
from rewardlab.benchmarks.rows import load_rows
from rewardlab.benchmarks.runner import run_bench
from rewardlab.benchmarks.settings import bench_settings
from rewardlab.errors import ConfigError, DataError, MediaError
from rewardlab.judging.judge import GenerativeJudge
from rewardlab.prompts import load_template
from rewardlab.samplers.scripted import ScriptedSampler
from rewardlab.types import PreferencePair
from tests.support.images import png


def write(folder: Path, rows: list[dict[str, Any]]) -> Path:
    (folder / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / "p.jsonl"


def test_pairs_of_one_question_are_one_draw(tmp_path: Path) -> None:
    """20 questions of 10 pairs, of which a judge gets 14 questions right and 6 wrong: 20 draws, not 200."""
    rows = [
        {
            "question": f"Question {n // 10}?",
            "responses": [f"right {n}", f"wrong {n}"],
            "preferred": 0,
            "annotator": f"a{n % 4}",
        }
        for n in range(200)
    ]
    samples = [
        {
            "row": n,
            "order": order,
            "text": f"<think>t</think><answer>{1 if (n // 10 < 14) == (order == 'given') else 2}</answer>",
        }
        for n in range(200)
        for order in ("given", "swapped")
    ]
    (tmp_path / "s.jsonl").write_text("".join(json.dumps(sample) + "\n" for sample in samples))
    data, judge = write(tmp_path, rows), f"replay:{tmp_path / 's.jsonl'}"

    def width(name: str, **changes: Any) -> float:
        settings = bench_settings("pairs", data, judge, controls=(), allow_columns=("annotator",), **changes)
        scores = run_bench(settings, tmp_path / name)[0].scores
        assert scores.accuracy.micro == 0.7
        return scores.interval[1] - scores.interval[0]

    by_prompt, by_pair = width("prompt"), width("pair", cluster="pair")
    assert by_prompt > 2.5 * by_pair
    report, rows_read = run_bench(
        bench_settings("pairs", data, judge, controls=(), cluster="annotator"), tmp_path / "annotator"
    )
    assert len({row.cluster for row in rows_read}) == 4
    assert any("200 pairs of 4 prompts (by annotator)" in note for note in report.notes)
    with pytest.raises(ConfigError, match=r"row 0: has no 'judge' to cluster by.*prompt, image, question, pair"):
        run_bench(bench_settings("pairs", data, judge, controls=(), cluster="judge", allow_columns=("all",)), tmp_path / "none")


def test_clusters() -> None:
    """Prompts are those of the same images, or of the same question where there is no image."""
    shown = [("Which?", b"ab"), ("Which?", b"b"), ("Other?", b"ab"), ("which  ?", b""), ("Which ?", b""), ("Which?", b"c")]
    pairs = [
        PreferencePair(f"p{n}", question, ("x", "y"), 0, images=tuple(bytes([letter]) for letter in letters))
        for n, (question, letters) in enumerate(shown)
    ]

    def groups(by: str) -> list[list[int]]:
        keys = clusters_of(pairs, Path("none"), by)
        return sorted([n for n, key in enumerate(keys) if key == one] for one in set(keys))

    assert groups("prompt") == [[0, 2], [1], [3, 4], [5]]
    assert groups("image") == [[0, 1, 2], [3, 4], [5]]
    assert groups("question") == [[0, 1, 5], [2], [3, 4]]
    assert groups("pair") == [[n] for n in range(6)]


def test_a_question_about_an_image_that_is_not_there(tmp_path: Path) -> None:
    """A judge that looks is not asked, unless on purpose; a mixed set is said; a baseline reads texts anyway."""
    (tmp_path / "x.png").write_bytes(png())
    text = {"question": "2 + 2?", "responses": ["4", "5"], "preferred": 0}
    seen = text | {"question": "What is in the image?", "images": ["x.png"]}
    judge = GenerativeJudge(ScriptedSampler(lambda messages, draw: "<answer>1</answer>"), load_template("r1_reward"))

    def notes(*rows: dict[str, Any], **changes: Any) -> list[str]:
        settings = bench_settings("pairs", write(tmp_path, list(rows)), "openai:m@http://127.0.0.1:9/v1", **changes)
        return load_rows(settings, judge)[1]

    assert not any("image" in note for note in [*notes(text, text | {"question": "3 + 3?"}), *notes(seen)])
    assert "1 of 2 pairs have no image" in notes(seen, text)
    blind = seen | {"images": []}
    with pytest.raises(DataError, match=r"row 1: the question mentions an image but the pair has none.*--allow no-images"):
        notes(seen, blind)
    assert any(note.startswith("1 questions without an image") for note in notes(seen, blind, allow_without_images=True))
    settings = bench_settings("pairs", write(tmp_path, [seen, blind]), "baseline:longest", controls=())
    assert run_bench(settings, tmp_path / "baseline")[0].scores.num_pairs == 2
    with pytest.raises(ConfigError, match="--cluster and --allow"):
        run_bench(bench_settings("mm_rlhf", tmp_path / "p.jsonl", "baseline:longest", cluster="pair"), tmp_path / "other")


def test_a_corrupt_image_is_nothing_to_who_does_not_look(tmp_path: Path) -> None:
    """A rule and a replay judge the pair, the report says so, and the page shows the others; a judge that looks refuses it, as
    everybody does one whose file is not there."""
    (tmp_path / "good.png").write_bytes(png())
    (tmp_path / "bad.png").write_bytes(png()[:40])
    (tmp_path / "bad.mp4").write_bytes(b"no video")
    texts = {"responses": ["x", "yy"], "preferred": 1}
    media: list[dict[str, Any]] = [{"images": ["bad.png"]}, {"images": ["good.png"]}, {"videos": ["bad.mp4"]}, {}]
    rows = [{**texts, **row, "question": f"q{n}"} for n, row in enumerate(media)]
    rows.append({**texts, "question": "q", "responses": ["\ufffc", "y"], "response_images": [["bad.png"], []]})
    data = write(tmp_path, rows)
    (tmp_path / "r.jsonl").write_text("".join(json.dumps({"row": n, "right": True}) + "\n" for n in range(5)))
    for judge in ("baseline:longest", f"replay:{tmp_path / 'r.jsonl'}"):
        settings = bench_settings("pairs", data, judge, controls=())
        out = tmp_path / judge[:6]
        report, judged = run_bench(settings, out)
        (note,) = [note for note in report.notes if "cannot be read" in note]
        assert note.startswith("pairs with images that cannot be read, which this judge does not look at: 3 (")
        assert "row 0 (line 1), image 0" in note
        assert [len(row.images_to_show()) for row in judged] == [0, 1, 0, 0, 0]
        report_html(report, judged, out)
    with pytest.raises(MediaError, match=r"bad\.png"):
        load_rows(
            bench_settings("pairs", data, "hf:x"), GenerativeJudge(ScriptedSampler(lambda *_: ""), load_template("plain"))
        )
    (tmp_path / "good.png").unlink()
    with pytest.raises(MediaError, match=r"good\.png: cannot be read \(No such file"):
        run_bench(bench_settings("pairs", data, "baseline:longest"), tmp_path / "missing")
