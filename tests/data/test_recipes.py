"""Every recipe on rows of its source's true shape, the nasty ones too: what becomes a pair, what is dropped, what is bad, and
why.
"""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from typer.testing import CliRunner

from rewardlab.cli import app
from rewardlab.cli.data import find_recipe, recipe_names
from rewardlab.data.images import encode_png
from rewardlab.data.pairs import read_pairs
from rewardlab.data.recipes import Dropped, Recipe, Rejected, convert_source, make_pair
from rewardlab.data.sources import HubStream
from rewardlab.errors import ConfigError, DataError
from rewardlab.types import PreferencePair


def png(shade: int = 90) -> bytes:
    return encode_png(Image.new("RGB", (30, 20), (shade, 40, 200)))


def embedded(shade: int = 90) -> dict[str, Any]:
    return {"bytes": png(shade), "path": None}


Found = tuple[list[PreferencePair], Counter[str], list[str]]
Run = Callable[..., Found]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Rows through a recipe by way of a file: (pairs, what was dropped, what is bad)."""

    def through(name: str, rows: list[Any], file: str = "data.parquet") -> Found:
        path = tmp_path / file
        if file.endswith(".parquet"):
            pq.write_table(pa.Table.from_pylist(rows), path)
        elif file.endswith(".jsonl"):
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        else:
            path.write_text(json.dumps(rows))
        found = list(convert_source(find_recipe(name), tmp_path))
        pairs = [one for one in found if isinstance(one, PreferencePair)]
        rejected = [one for one in found if isinstance(one, Rejected)]
        dropped = Counter(one.reason for one in rejected if one.kind == "dropped")
        return pairs, dropped, [one.reason for one in rejected if one.kind == "bad"]

    return through


def better(pair: PreferencePair) -> str:
    assert pair.preferred is not None
    return pair.responses[pair.preferred]


RLAIF: dict[str, Any] = {
    "ds_name": "RLAIF-V",
    "image": embedded(),
    "question": "What is the setting?",
    "chosen": "A train in a field.",
    "rejected": "A bus.",
    "origin_dataset": "VQAv2",
    "origin_split": "",
    "idx": "0",
    "image_path": "x.jpg",
}


def test_rlaif_v(run: Run) -> None:
    rows = [
        RLAIF | {"chosen": "A train \ufffcin a field."},
        RLAIF | {"image": None},
        RLAIF | {"chosen": " "},
        RLAIF | {"rejected": RLAIF["chosen"]},
        RLAIF | {"image": {"bytes": b"?", "path": None}},
    ]
    (pair,), dropped, bad = run("rlaif_v", rows)
    assert (pair.question, better(pair), pair.category) == ("What is the setting?", "A train in a field.", "VQAv2")
    assert (pair.source, pair.licence, pair.images) == ("rlaif_v", "cc-by-nc-4.0", (png(),))
    assert pair.provenance.startswith("rlaif_v:")
    assert dropped == {"an answer is empty": 1, "the answers are equal": 1}
    assert ["is missing" in bad[0], "not a readable image" in bad[1]] == [True, True]


def test_rlhf_v(run: Run) -> None:
    """The texts are JSON within a column; one is not, one has an empty answer."""
    text = {"question": "What stands out?", "chosen": "Black pants.", "rejected": "White pants."}
    row = {"ds_name": "RLHF-V", "image": embedded(), "text": json.dumps(text), "origin_dataset": "coco", "idx": 0}
    rows = [
        row,
        row | {"text": json.dumps(text | {"chosen": ""})},
        row | {"text": "{broken"},
        row | {"text": json.dumps({"q": 1})},
    ]
    (pair,), dropped, bad = run("rlhf_v", rows)
    assert (pair.question, better(pair)) == ("What stands out?", "Black pants.")
    assert dropped == {"an answer is empty": 1}
    assert len(bad) == 2
    assert all("shape" in reason for reason in bad)


def rated(model: str, text: str, *ratings: str) -> dict[str, Any]:
    names = ("Helpfulness", "Ethical Considerations", "Visual Faithfulness")
    notes = {name: {"Rating": value, "Rationale": "because"} for name, value in zip(names, ratings, strict=True)}
    return {"model": model, "response": text, "annotations": notes}


def test_vlfeedback(run: Run) -> None:
    """Four answers, one of which ties with another and one is rated N/A: of six pairs two are made, by hand."""
    four = [
        rated("a", "Alpha【12†source】.", "5", "5", "5"),
        rated("b", "Beta.", "4", "5", "4"),
        rated("c", "Gamma.", "5", "4", "4"),
        rated("d", "Delta【see the left】.", "NaN", "5", "5"),
    ]
    row = {"id": "svit-1", "prompt": "What is the focus?", "models": list("abcd"), "completions": four, "image": embedded()}
    turned = row | {"completions": {name: [one[name] for one in four] for name in ("annotations", "model", "response")}}
    for name, rows in (("data.parquet", [row]), ("data.parquet", [turned])):
        pairs, dropped, bad = run("vlfeedback", rows, name)
        assert sorted((better(pair), pair.responses[1 - (pair.preferred or 0)]) for pair in pairs) == [
            ("Alpha.", "Beta."),
            ("Alpha.", "Gamma."),
        ]
        assert (dropped, bad) == ({"tie": 1, "a score is missing": 1}, [])
    _, _, bad = run("vlfeedback", [row | {"image": None, "id": "again"}], "data.parquet")
    assert "does not name one surely" in bad[0]


def test_povid(run: Run, tmp_path: Path) -> None:
    """A JSON list; images by a COCO path that unpacks elsewhere; several turns with and without a common context."""
    (tmp_path / "train2014").mkdir()
    (tmp_path / "train2014" / "a.png").write_bytes(png())

    def said(*texts: str) -> list[dict[str, str]]:
        return [{"from": ("human", "gpt")[n % 2], "value": text} for n, text in enumerate(texts)]

    ask = "<image>\nDescribe this."
    row = {
        "id": "1",
        "image": "./data/coco/train2014/a.png",
        "conversations": said(ask, "A horse."),
        "rejected_conversations": said(ask, "A cow."),
    }
    more = ("Describe this.\n<image>", "A horse.", "And behind it?")
    rows = [
        row,
        row | {"conversations": said(*more, "A tree."), "rejected_conversations": said(*more, "A car.")},
        row | {"conversations": said(*more, "A tree."), "rejected_conversations": said(ask, "A cow.", more[2], "A car.")},
        row | {"rejected_conversations": said("<image>\nWhat?", "A cow.")},
        row | {"image": "./data/coco/train2014/missing.png"},
        row | {"conversations": said(ask)},
    ]
    pairs, dropped, bad = run("povid", rows, "POVID.json")
    assert [(pair.question, better(pair)) for pair in pairs] == [
        ("Describe this.", "A horse."),
        ("User: Describe this.\nAssistant: A horse.\nUser: And behind it?", "A tree."),
    ]
    assert pairs[0].images == (png(),)
    assert dropped == {"answers differ before the last turn": 1, "the two conversations ask different things": 1}
    assert len(bad) == 2
    assert "missing.png" in bad[0]
    assert "expected turns" in bad[1]


def battle(**changes: Any) -> dict[str, Any]:
    def talk(*texts: str) -> list[dict[str, Any]]:
        return [{"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(texts)]

    row = {
        "question_id": "9f",
        "model_a": "m",
        "model_b": "n",
        "conversation_a": talk("What is it?", "A duck."),
        "conversation_b": talk("What is it?", "A goose."),
        "language": "English",
        "image": embedded(),
        "anony": True,
        "winner": "model_b",
        "judge": "arena_user_1",
    }
    if "turns" in changes:
        row |= {f"conversation_{side}": talk(*texts) for side, texts in zip("ab", changes.pop("turns"), strict=True)}
    return row | changes


def test_wildvision_battle(run: Run) -> None:
    """Both kinds of tie, votes that were not blind, several turns, errors of an API in place of an answer."""
    rows = [
        battle(),
        battle(winner="model_a"),
        battle(winner="tie"),
        battle(winner="tie (bothbad)"),
        battle(anony=False),
        battle(judge="gpt4v"),
        battle(turns=(("a", "b", "c", "d"), ("a", "e", "c", "f"))),
        battle(turns=(("a", "NETWORK ERROR DUE TO HIGH TRAFFIC"), ("a", "e"))),
        battle(turns=(("a", ""), ("a", "e"))),
        battle(winner="model_c"),
    ]
    pairs, dropped, bad = run("wildvision_battle", rows)
    assert [(better(pair), pair.responses) for pair in pairs] == [
        ("A goose.", ("A duck.", "A goose.")),
        ("A duck.", ("A duck.", "A goose.")),
    ]
    assert dropped == {
        "tie": 1,
        "tie (bothbad)": 1,
        "the voter saw the models' names": 1,
        "a vote by GPT-4V": 1,
        "several turns": 1,
        "an answer is an API's error": 1,
        "an answer is empty": 1,
    }
    assert len(bad) == 1
    assert "'model_c'" in bad[0]


def test_mm_rlhf_pairs(run: Run, tmp_path: Path) -> None:
    """Images and folders of frames, frame10 after frame2; a tie; a row with neither medium."""
    (tmp_path / "long").mkdir()
    (tmp_path / "long" / "x.png").write_bytes(png())
    frames = tmp_path / "video" / "clip"
    frames.mkdir(parents=True)
    for n in range(1, 13):
        (frames / f"frame{n}.png").write_bytes(png(20 * n))
    row = {"id": "x_1", "image": "long/x.png", "prompt": "<image>\nWhat?", "chosen": "Good.", "rejected": "Bad."}
    video = {"id": "v_1", "video": "video/clip", "prompt": "What happens?", "chosen": "Good.", "rejected": "Bad."}
    rows = [row, video, row | {"is_tie": True}, {**row, "image": None}, video | {"video": "video/none"}]
    pairs, dropped, bad = run("mm_rlhf", rows, "dpo_pairs.jsonl")
    assert [(pair.question, better(pair), pair.category, len(pair.images)) for pair in pairs] == [
        ("What?", "Good.", "long", 1),
        ("What happens?", "Good.", "video", 8),
    ]
    assert (pairs[1].images[0], pairs[1].images[-1]) == (png(20), png(240))
    assert dropped == {"tie": 1}
    assert ["neither 'image' nor 'video'" in bad[0], "no such folder of frames" in bad[1]] == [True, True]


def test_mm_rlhf_rankings(run: Run, tmp_path: Path) -> None:
    """Three to five answers with scores, some missing: pairs of all whose means differ."""
    (tmp_path / "short").mkdir()
    (tmp_path / "short" / "x.png").write_bytes(png())
    row = {
        "id": "1",
        "question": "What?",
        "image": "short/x.png",
        "video": None,
        "models_output": ["A", "B", "C", "D"],
        "faithfulness": [3, 5, 3, None],
        "helpfulness": [3, 5, 3, 4],
        "ethical": [3, 5, 3, 4],
    }
    pairs, dropped, bad = run("mm_rlhf", [row, row | {"faithfulness": None}, row | {"models_output": None}], "data.jsonl")
    assert sorted((better(pair), *pair.responses) for pair in pairs) in (
        [("B", *sorted(("A", "B"))), ("B", *sorted(("B", "C")))],
    ) or {(better(pair), frozenset(pair.responses)) for pair in pairs} == {("B", frozenset("AB")), ("B", frozenset("BC"))}
    assert dropped == {"tie": 1, "a score is missing": 5}
    assert len(bad) == 1


PAIRWISE = (
    "<image>\nGiven an image and a corresponding question, please serve as an unbiased and fair judge.\n"
    "Question: [What is [this]?]\nThe first response: [A sketch [of a line].]\nThe second response: [A seven.]\nASSISTANT:\n"
)
ARENA = (
    "<image>\n<|User Prompt|>\nWhat?\n\n<|The Start of Assistant A's Answer|>\nOne.\n<|The End of Assistant A's Answer|>\n\n"
    "<|The Start of Assistant B's Answer|>\nTwo.\n<|The End of Assistant B's Answer|>"
)
SCORED = (
    "<image>\n[Question]\nWhat?\n\n[Assistant 1]\nOne.\n\n[End of Assistant 1]\n\n[Assistant 2]\nTwo.\n\n[End of Assistant 2]\n"
)


def critic(asked: str, said: str) -> dict[str, Any]:
    turns = [{"from": "human", "value": asked}, {"from": "gpt", "value": said}]
    return {"id": "1", "source": "vlfeedback", "conversations": turns, "image": embedded()}


@pytest.mark.parametrize(
    ("asked", "said", "preferred"),
    [
        (PAIRWISE, "The better response: [second]. It names the number.", 1),
        (PAIRWISE, "The first has flaws. The better response: [First].", 0),
        (
            PAIRWISE.replace("The first response", "Response 1").replace("The second response", "Response 2"),
            "The better response: 2",
            1,
        ),
        (ARENA, "At first [[A>B]], but on reflection [[B>>A]]", 1),
        (ARENA, "[[A>>B]]", 0),
        (SCORED, "8 9.5\nThe second is fuller.", 1),
        (SCORED, "7 3\n", 0),
    ],
)
def test_llava_critic_verdicts(run: Run, asked: str, said: str, preferred: int) -> None:
    (pair,), _, bad = run("llava_critic", [critic(asked, said)])
    assert (pair.preferred, bad) == (preferred, [])
    if asked.startswith(PAIRWISE[:40]):
        assert (pair.question, pair.responses) == ("What is [this]?", ("A sketch [of a line].", "A seven."))
    else:
        assert (pair.question, pair.responses) == ("What?", ("One.", "Two."))


def test_llava_critic_without_a_winner(run: Run) -> None:
    """Ties in each wording, captions that are only scored, a verdict that is none."""
    rows = [
        critic(PAIRWISE, "Both are equally good."),
        critic(PAIRWISE, "The better response: a tie."),
        critic(ARENA, "[[A=B]]"),
        critic(SCORED, "8 8\n"),
        critic("<image>\nText Caption: a cat.\nFrom 0 to 100, how well?", "Final Score: 85"),
        critic(PAIRWISE, "Hard to say."),
    ]
    pairs, dropped, bad = run("llava_critic", rows)
    assert (pairs, dropped) == ([], {"tie": 4, "no comparison of two answers": 1})
    assert "no verdict" in bad[0]


def test_r1_reward_rl(run: Run) -> None:
    """The published prompt within JSON within a column; a label that the reference's verifier would pay for anything."""
    from rewardlab.prompts import load_template, render

    asked = render(load_template("r1_reward"), "What is it?", "A duck.", "A goose.")
    content = [{"type": "text", "text": asked}, {"type": "image", "image": "/mmu/yfzhang/data/RLAIF-V-image/a.jpg"}]
    row = {
        "question": "What is it?",
        "message": json.dumps([{"role": "user", "content": content}]),
        "answer": ["<answer>2</answer>"],
        "image": base64.b64encode(png()).decode(),
    }
    url = "data:image/png;base64," + row["image"]
    rows = [row, row | {"image": url, "answer": ["<answer> 1 </answer>"]}]
    (one, two), dropped, bad = run("r1_reward_rl", rows, "a.jsonl")
    assert (one.question, one.responses, one.preferred) == ("What is it?", ("A duck.", "A goose."), 1)
    assert (two.preferred, one.category, one.images, two.images) == (0, "RLAIF-V", (png(),), (png(),))
    wrong = [
        row | {"answer": ["2"]},
        row | {"answer": []},
        row | {"answer": [2]},
        row | {"message": "[]"},
        row | {"image": "@@"},
    ]
    _, dropped, bad = run("r1_reward_rl", wrong, "a.jsonl")
    assert not dropped
    assert [reason.split(":")[-1][:12] != "" for reason in bad] == [True] * 5
    assert sum("'answer' is" in reason for reason in bad) == 3


def test_a_better_answer_is_anywhere() -> None:
    """The place is drawn by the texts alone: half of them first, whichever is better; the same place for the same two texts."""
    first = [make_pair("q", f"good {n}", f"bad {n}").preferred for n in range(1000)]
    assert 430 < sum(one or 0 for one in first) < 570
    for n in range(50):
        one, other = make_pair("q", f"x {n}", f"y {n}"), make_pair("q", f"y {n}", f"x {n}")
        assert one.responses == other.responses
        assert one.preferred != other.preferred


def test_every_recipe_says_what_it_is() -> None:
    """Name as its file, a place, a number or none; and one is listed for each."""
    assert len(recipe_names()) == 13
    for name in recipe_names():
        recipe = find_recipe(name)
        assert recipe.name == name
        assert recipe.url.startswith("https://huggingface.co/datasets/")
    listed = CliRunner().invoke(app, ["data", "recipes"]).output
    assert all(f"{name}: " in listed for name in recipe_names())


MAPPING = """
name: mine
licence: mit
question: prompt.text
images: [picture]
responses: [answers.0, answers.1]
preferred: vote
first: left
second: right
ties: [both]
category: kind
"""


def test_a_mapping_in_yaml(tmp_path: Path) -> None:
    """Nested columns, labels in words, ties; a CSV with chosen and rejected; and what is wrong with a mapping is said."""
    (tmp_path / "map.yaml").write_text(MAPPING)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.png").write_bytes(png())
    row = {"prompt": {"text": "Which?"}, "picture": "a.png", "answers": ["A", "B"], "vote": "right", "kind": "k"}
    rows = [row, row | {"vote": "both"}, row | {"vote": "?"}, row | {"answers": ["A"]}]
    (tmp_path / "in" / "a.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    found = list(convert_source(find_recipe(str(tmp_path / "map.yaml")), tmp_path / "in"))
    assert isinstance(found[0], PreferencePair)
    assert (found[0].question, found[0].responses, found[0].preferred, found[0].category) == ("Which?", ("A", "B"), 1, "k")
    assert [one.reason.partition(",")[0][:30] for one in found[1:] if isinstance(one, Rejected)] == [
        "tie",
        "'vote' is '?'; expected 'left'",
        "no 'answers.1' in the row: '1'",
    ]
    (tmp_path / "csv.yaml").write_text("name: c\nquestion: q\nchosen: good\nrejected: bad\n")
    (tmp_path / "c.csv").write_text('q,good,bad\n"Which, then?",A,B\nX,Same,Same\n')
    pair, same = convert_source(find_recipe(str(tmp_path / "csv.yaml")), tmp_path / "c.csv")
    assert isinstance(pair, PreferencePair)
    assert (pair.question, better(pair)) == ("Which, then?", "A")
    assert isinstance(same, Rejected)
    (tmp_path / "bad.yaml").write_text("name: c\nquestion: q\nchosen: good\n")
    with pytest.raises(ConfigError, match="chosen and rejected, or two responses"):
        find_recipe(str(tmp_path / "bad.yaml"))
    (tmp_path / "same.yaml").write_text("name: c\nquestion: q\nresponses: [a, b]\npreferred: p\nfirst: '1'\n")
    with pytest.raises(ConfigError, match="must be different values"):
        find_recipe(str(tmp_path / "same.yaml"))
    with pytest.raises(ConfigError, match="no recipe 'rlaif'; expected one of"):
        find_recipe("rlaif")


def test_a_recipe_of_ones_own(tmp_path: Path) -> None:
    """A Python file with a RECIPE; and files that are none."""
    (tmp_path / "own.py").write_text(
        "from rewardlab.data.recipes import Recipe, make_pair\n"
        "RECIPE = Recipe('own', '', '', None, lambda row, source: [make_pair(row['q'], row['a'], row['b'])])\n"
    )
    (tmp_path / "x.jsonl").write_text('{"q": "Which?", "a": "A", "b": "B"}\n[1]\n{"q": "Which?", "a": "A"}\n')
    found = list(convert_source(find_recipe(str(tmp_path / "own.py")), tmp_path / "x.jsonl"))
    assert isinstance(found[0], PreferencePair)
    assert [one.kind for one in found[1:] if isinstance(one, Rejected)] == ["bad", "bad"]
    (tmp_path / "empty.py").write_text("")
    with pytest.raises(ConfigError, match="has no RECIPE"):
        find_recipe(str(tmp_path / "empty.py"))
    with pytest.raises(DataError, match="no such file or folder"):
        list(convert_source(find_recipe("rlaif_v"), tmp_path / "nowhere"))


@pytest.mark.slow
def test_a_recipe_of_another_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by its entry point, listed, and built from by its name."""
    (tmp_path / "their_recipes.py").write_text(
        '"""Their pairs."""\n'
        "from rewardlab.data.recipes import Recipe, make_pair\n"
        "def convert(row, source):\n"
        "    yield make_pair(row['q'], row['a'], row['b'])\n"
        "RECIPE = Recipe('theirs', 'https://example.org', 'mit', None, convert)\n"
    )
    info = tmp_path / "their_recipes-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-recipes\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[rewardlab.recipes]\ntheirs = their_recipes:RECIPE\nbroken = their_recipes:convert\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "x.jsonl").write_text('{"q": "Which?", "a": "A", "b": "B"}\n')
    command = [
        "data",
        "build",
        "theirs",
        "--from",
        str(tmp_path / "x.jsonl"),
        "--against",
        "none",
        "--out",
        str(tmp_path / "set"),
    ]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    (pair,) = read_pairs(tmp_path / "set")
    assert (pair.source, pair.licence, better(pair)) == ("theirs", "mit", "A")
    with pytest.raises(ConfigError, match="has no RECIPE"):
        find_recipe("broken")
    (info / "entry_points.txt").write_text("[rewardlab.recipes]\ntheirs = their_recipes:RECIPE\n")
    assert (
        "theirs: unknown rows, licence mit, https://example.org\n  Their pairs."
        in CliRunner().invoke(app, ["data", "recipes"]).output
    )


def test_the_hub_out_of_reach(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Offline: a sentence with the cure."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(DataError, match=r"RLAIF-V-Dataset@main: cannot be fetched.*name its folder"):
        HubStream.parse("hf:openbmb/RLAIF-V-Dataset@main").download()


def test_what_a_recipe_did_not_expect_is_a_bad_row(tmp_path: Path) -> None:
    """Whatever the shape of a row, it is listed; the others go on."""

    def convert(row: Any, source: Any) -> list[Any]:
        return [row["list"][0], Dropped("x")] if row["list"] else [replace(None)]  # type: ignore[type-var]

    (tmp_path / "x.json").write_text(json.dumps([{"list": []}, {"list": 3}, {}, None, "text"]))
    found = list(convert_source(Recipe("r", "", "", None, convert), tmp_path / "x.json"))
    assert [one.kind for one in found if isinstance(one, Rejected)] == ["bad"] * 5
