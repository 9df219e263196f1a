"""Recordings in other tools' forms: each finds its rows, keeps its order, and says what it leaves out."""

from __future__ import annotations

import csv
import json
import zipfile
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import pytest
from typer.testing import CliRunner

from rewardlab.benchmarks.base import Benchmark, Row
from rewardlab.benchmarks.recordings import RECORDERS, Import, import_recording, length_order, sheet_rows
from rewardlab.benchmarks.registry import FORMS, PACKAGED, find_benchmark
from rewardlab.benchmarks.runner import run_bench
from rewardlab.benchmarks.settings import bench_settings
from rewardlab.cli import app
from rewardlab.errors import ConfigError, DataError, MissingPackageError
from rewardlab.types import Completion, FinishReason, Order, Vote, choice_of
from rewardlab.verdicts.formats import WRITERS
from rewardlab.verdicts.parse import verdict_of
from rewardlab.verdicts.votes import judgment

NUM_ROWS = 6
GROUPS = ("RLAIF-V-{}", "mathverse_{}", "wildvision-{}")


def write_lines(path: Path, lines: list[Any]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Six rows of VL-RewardBench as repacked, of texts of even and of odd length."""
    lines = [
        {
            "id": GROUPS[n % 3].format(n),
            "prompt": f"q{n}?",
            "chosen": "right" * (n // 2 + 1),
            "rejected": "wrong",
            "image": "x.png",
        }
        for n in range(NUM_ROWS)
    ]
    return write_lines(tmp_path / "vl.jsonl", lines)


def rows_of(data: Path, name: str = "vl_rewardbench") -> list[Row]:
    return find_benchmark(name).load(data, images=None, with_images=False)


def hub_order(row: Row) -> list[str]:
    """The responses as the Hub's copy might have them: exchanged in every second row."""
    return list(row.pair.responses if row.row % 2 == 0 else reversed(row.pair.responses))


def micro(data: Path, lines: Import, folder: Path, name: str = "vl_rewardbench") -> float:
    replay = write_lines(folder / "r.jsonl", list(lines.rows))
    settings = bench_settings(name, data, f"replay:{replay}", template=lines.template)
    report = run_bench(settings, folder / f"out{len(list(folder.iterdir()))}")[0]
    assert report.scores.invalid_rate == 0
    return report.scores.accuracy.micro


def says(first_is_better: bool) -> str:
    return f"Overall Judgment: Answer {1 if first_is_better else 2} is better."


def test_lmms_eval_and_vlmevalkit(data: Path, tmp_path: Path) -> None:
    """Response 1 is shown first where the responses have an odd number of characters; five of six are right."""
    samples, table = [], []
    for row in rows_of(data):
        responses = hub_order(row)
        shown_first = responses[length_order(responses)]
        text = says((shown_first == row.pair.responses[0]) == (row.row > 0))
        question = f"<image>\n{row.pair.question}"
        samples.append({"doc": {"query": question, "response": responses}, "resps": [[text]], "filtered_resps": [text]})
        table.append({"index": row.row, "question": row.pair.question, "response": str(responses), "prediction": text})
    lmms = import_recording("lmms_eval", write_lines(tmp_path / "samples.jsonl", samples), rows_of(data))
    assert {line["order"] for line in lmms.rows} == {"given", "swapped"}
    assert micro(data, lmms, tmp_path) == 5 / 6
    for suffix, mark in ((".tsv", "\t"), (".csv", ",")):
        with (tmp_path / f"p{suffix}").open("w", newline="") as file:
            writer = csv.DictWriter(file, list(table[0]), delimiter=mark)
            writer.writeheader()
            writer.writerows(table)
        kit = import_recording("vlmevalkit", tmp_path / f"p{suffix}", rows_of(data))
        assert kit.rows == lmms.rows
    write_sheet(tmp_path / "p.xlsx", table)
    assert import_recording("vlmevalkit", tmp_path / "p.xlsx", rows_of(data)).rows == lmms.rows
    with pytest.raises(DataError, match=r"is a table; `rewardlab bench import vlmevalkit .*p.xlsx --data DATA"):
        run_bench(bench_settings("vl_rewardbench", data, f"replay:{tmp_path / 'p.xlsx'}"), tmp_path / "none")


def write_sheet(path: Path, table: list[dict[str, Any]]) -> None:
    """A workbook as openpyxl writes it, the header among the shared texts; of each row one cell is inline."""
    shared: list[str] = []

    def cell(place: int, row: int, value: Any) -> str:
        name = f"{'ABCD'[place]}{row}"
        if isinstance(value, int):
            return f'<c r="{name}"><v>{value}</v></c>'
        if place == 3 and row > 1:
            return (
                f'<c r="{name}" t="inlineStr"><is><r><t>{escape(value[:5])}</t></r><r><t>{escape(value[5:])}</t></r></is></c>'
            )
        shared.append(value)
        return f'<c r="{name}" t="s"><v>{len(shared) - 1}</v></c>'

    lines = [list(table[0]), *(list(row.values()) for row in table)]
    rows = "".join(
        f'<row r="{n}">{"".join(cell(place, n, value) for place, value in enumerate(line))}</row>'
        for n, line in enumerate(lines, start=1)
    )
    space = 'xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"'
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("xl/worksheets/sheet1.xml", f"<worksheet {space}><sheetData>{rows}</sheetData></worksheet>")
        items = "".join(f"<si><t>{escape(text)}</t></si>" for text in shared)
        archive.writestr("xl/sharedStrings.xml", f"<sst {space}>{items}</sst>")


def test_sheets(tmp_path: Path) -> None:
    """Cells that are left out are empty, whole rows are passed over; what is no workbook is refused in a sentence."""
    space = 'xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"'
    rows = '<row><c t="inlineStr"><is><t>a</t></is></c><c r="AA1" t="str"><v>b</v></c></row><row r="3"/>'
    rows += '<row r="4"><c r="AA4" t="str"><v>x_x000D_y</v></c></row>'
    with zipfile.ZipFile(tmp_path / "s.xlsx", "w") as archive:
        archive.writestr("xl/worksheets/sheet1.xml", f"<worksheet {space}><sheetData>{rows}</sheetData></worksheet>")
    assert list(sheet_rows(tmp_path / "s.xlsx", "a table")) == [{"a": "", "b": "x\ry"}]
    (tmp_path / "n.xlsx").write_text("index\tquestion\n")
    with zipfile.ZipFile(tmp_path / "e.xlsx", "w") as archive:
        archive.writestr("other.xml", "")
    with zipfile.ZipFile(tmp_path / "x.xlsx", "w") as archive:
        archive.writestr("xl/worksheets/sheet1.xml", f"<worksheet {space}><row>")
    for name in ("n", "e", "x", "none"):
        with pytest.raises(DataError, match=r"is not a readable \.xlsx file; expected a table, or saved as \.csv"):
            list(sheet_rows(tmp_path / f"{name}.xlsx", "a table"))


def test_draws_of_the_official_inference(data: Path, tmp_path: Path) -> None:
    """Every draw in its own order, though the responses stand the other way round there."""
    draws = []
    for row in rows_of(data):
        for number in (0, 1, 1):
            responses = hub_order(row)
            text = says((responses[number] == row.pair.responses[0]) == (row.row > 1))
            meta = {"filter_choice": text, "random_number": number}
            draws.append({"id": row.pair.pair_id, "query": row.pair.question, "response": responses, "meta": meta})
    result = import_recording("vl_rewardbench", write_lines(tmp_path / "d.jsonl", draws), rows_of(data))
    assert (len(result.rows), result.num_unmatched, result.num_rows) == (18, 0, 6)
    assert micro(data, result, tmp_path) == 4 / 6
    one_column = [{"0": draw} for draw in draws]
    assert import_recording("vl_rewardbench", write_lines(tmp_path / "e.jsonl", one_column), rows_of(data)) == result


def exported(benchmark: Benchmark, rows: list[Row], folder: Path) -> Path:
    """A run of a judge that is right but for every third row, as the benchmark's inference writes it."""
    judgments = []
    for row in rows:
        assert row.pair.preferred is not None
        votes = []
        for order in Order:
            choice = choice_of(row.pair.preferred if row.row % 3 else 1 - row.pair.preferred, order)
            text = Completion(WRITERS["think_answer"](choice, "so"), FinishReason.STOP)
            votes.append(Vote(order, verdict_of(text, "think_answer"), text))
        judgments.append(judgment(row.pair.pair_id, votes))
    assert benchmark.export is not None
    records = benchmark.export.records(rows, judgments, "think_answer", 0)
    path = folder / "export.jsonl"
    return write_lines(path, records if isinstance(records, list) else [records])


@pytest.mark.parametrize("name", ["vl_rewardbench", "mm_rlhf", "mmrb2", "multimodal_rewardbench"])
def test_what_is_exported_is_imported(name: str, data: Path, tmp_path: Path) -> None:
    """The same accuracy comes back, through each benchmark's own form."""
    content = "q?"
    pairs = {
        "mm_rlhf": [
            {"id": str(n // 2), "image": "mcq/x.png", "prompt": content, "chosen": f"a{n}", "rejected": "b"} for n in range(6)
        ],
        "multimodal_rewardbench": [
            {"ID": f"vqa-{n // 2}", "Text": content, "Image": "x", "Output1": f"a{n}", "Output2": "b", "Better": "Output1"}
            | {"Category": "vqa"}
            for n in range(6)
        ],
    }
    if name == "mm_rlhf":
        data = write_lines(tmp_path / "mm.jsonl", pairs[name])
    elif name == "multimodal_rewardbench":
        data = tmp_path / "all_data.json"
        data.write_text(json.dumps(pairs[name]))
    elif name == "mmrb2":
        data = tmp_path / "t2i.json"
        sides = [{"model_name": name, "response_content": [["text", name]]} for name in "mn"]
        raw = [{"id": str(n), "response_a": sides[0], "response_b": sides[1], "chosen": "AB"[n % 2]} for n in range(6)]
        data.write_text(json.dumps({"pairs": raw}))
    rows = rows_of(data, name)
    path = exported(find_benchmark(name), rows, tmp_path)
    result = import_recording(name, path, rows)
    assert (result.num_rows, result.num_unmatched) == (6, 0)
    assert micro(data, result, tmp_path, name) == 4 / 6


def test_outcomes_and_ixc(data: Path, tmp_path: Path) -> None:
    """The published row of IXC's results: 155/183, 452/749, 200/318; the lists are told by their lengths."""
    lines, counts = [], {"wildvision-{}": (155, 183), "RLAIF-V-{}": (452, 749), "mathverse_{}": (200, 318)}
    for form, (_, number) in counts.items():
        lines += [
            {"id": form.format(n), "prompt": f"{form}{n}?", "chosen": "a", "rejected": "b", "image": "x.png"}
            for n in range(number)
        ]
    whole = write_lines(tmp_path / "whole.jsonl", lines)
    (tmp_path / "results.json").write_text(
        json.dumps([[1] * right + [0] * (number - right) for right, number in reversed(counts.values())])
    )
    result = import_recording("ixc", tmp_path / "results.json", rows_of(whole))
    replay = write_lines(tmp_path / "ixc.jsonl", list(result.rows))
    report = run_bench(bench_settings("vl_rewardbench", whole, f"replay:{replay}"), tmp_path / "ixc")[0]
    figures = {name: round(100 * group.accuracy, 2) for name, group in report.scores.groups.items()}
    assert figures == {"general": 84.70, "hallucination": 60.35, "reasoning": 62.89}
    assert round(100 * report.scores.accuracy.micro, 2) == 64.56
    (tmp_path / "results.json").write_text("[[1], [0], [1]]")
    with pytest.raises(DataError, match="183, 749, 318"):
        import_recording("ixc", tmp_path / "results.json", rows_of(whole))
    marks = [{"id": row.pair.pair_id, "correct": row.row % 2} for row in rows_of(data)]
    assert micro(data, import_recording("outcomes", write_lines(tmp_path / "o.jsonl", marks), rows_of(data)), tmp_path) == 0.5


def test_samples_without_a_row_are_counted_and_many_are_refused(data: Path, tmp_path: Path) -> None:
    """One in forty is told, one in two is another benchmark; a file of another form is one sentence."""
    marks = [{"id": "RLAIF-V-0", "right": 1}] * 39 + [{"id": "nobody", "right": 1}]
    assert import_recording("outcomes", write_lines(tmp_path / "o.jsonl", marks), rows_of(data)).num_unmatched == 1
    with pytest.raises(DataError, match="1 of 2 samples match no row"):
        import_recording("outcomes", write_lines(tmp_path / "o.jsonl", marks[-2:]), rows_of(data))
    for bad in ({"id": "RLAIF-V-0"}, {"id": "RLAIF-V-0", "right": "yes"}):
        with pytest.raises(DataError, match="a sample cannot be read"):
            import_recording("outcomes", write_lines(tmp_path / "o.jsonl", [bad]), rows_of(data))
    with pytest.raises(ConfigError, match="expected one of vl_rewardbench, lmms_eval"):
        import_recording("lm_eval", tmp_path / "o.jsonl", rows_of(data))


def test_every_form_has_a_reader() -> None:
    """By one list of names."""
    assert list(FORMS) == list(RECORDERS)
    assert set(FORMS.values()) <= set(PACKAGED)


def test_columns_that_a_run_passes_over(tmp_path: Path) -> None:
    """`bench import` and `bench export` take own pairs as `bench run` does."""
    pairs = [
        {"pair_id": f"p{n}", "question": f"q{n}", "responses": ["a", "b"], "preferred": 0, "annotator": "x"} for n in range(3)
    ]
    data = write_lines(tmp_path / "pairs.jsonl", pairs)
    marks = write_lines(tmp_path / "o.jsonl", [{"id": f"p{n}", "right": n > 0} for n in range(3)])
    imports = ["bench", "import", "outcomes", str(marks), "--data", str(data), "--out", str(tmp_path / "replay.jsonl")]
    assert "--allow annotator" in str(CliRunner().invoke(app, imports).exception)
    done = CliRunner().invoke(app, [*imports, "--allow", "annotator"])
    assert done.exit_code == 0, done.output
    command = done.output.replace("\n", " ").split("score it: rewardlab ")[1].replace("RUN", str(tmp_path / "run")).split()
    assert CliRunner().invoke(app, command).exit_code == 0
    exports = ["bench", "export", str(tmp_path / "run"), "--out", str(tmp_path / "log.json"), "--without-images"]
    assert "--allow annotator" in str(CliRunner().invoke(app, exports).exception)
    done = CliRunner().invoke(app, [*exports, "--allow", "all"])
    assert done.exit_code == 0 or isinstance(done.exception, MissingPackageError)


@pytest.mark.parametrize("form", ["outcomes", "vl_rewardbench"])
def test_import_from_the_command_line(data: Path, tmp_path: Path, form: str) -> None:
    """The command that it prints scores the file, by the template that its texts need."""
    lines: dict[str, list[Any]] = {
        "outcomes": [{"id": row.pair.pair_id, "right": row.row > 0} for row in rows_of(data)],
        "vl_rewardbench": [
            {
                "query": row.pair.question,
                "response": row.pair.responses,
                "meta": {"filter_choice": says(row.row > 0), "random_number": 0},
            }
            for row in rows_of(data)
        ],
    }
    recording = write_lines(tmp_path / "o.jsonl", lines[form])
    arguments = ["bench", "import", form, str(recording), "--benchmark", "vl_rewardbench", "--data", str(data)]
    done = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / "replay.jsonl")])
    assert done.exit_code == 0, done.output
    assert "6 of 6 samples, of 6 of 6 rows; 0 match no row" in done.output
    command = done.output.replace("\n", " ").split("score it: rewardlab ")[1].replace("RUN", str(tmp_path / "run")).split()
    assert CliRunner().invoke(app, command).exit_code == 0
    assert json.loads((tmp_path / "run" / "report.json").read_text())["accuracy"]["micro"] == 5 / 6
