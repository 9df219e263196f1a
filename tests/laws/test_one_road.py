"""Every door sees the same: the pixels of a picture, the words and places of a conversation, whichever way it comes in."""

from __future__ import annotations

import ast
import base64
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageDraw

from rewardlab.benchmarks.media import read_media
from rewardlab.config.data import MappingConfig
from rewardlab.data.candidates import read_candidates
from rewardlab.data.images import decode_image, to_data_url
from rewardlab.data.inputs import candidates_of_texts, pair_of
from rewardlab.data.media import Files
from rewardlab.data.pair_table import PairTable
from rewardlab.data.pairs import read_pairs, write_jsonl, write_parquet
from rewardlab.data.recipes import Rejected, convert_source, recipe_of
from rewardlab.data.urls import AllowedUrls
from rewardlab.errors import DataError, InputError
from rewardlab.integrations.chats import read_prompt
from rewardlab.integrations.client import image_url
from rewardlab.prompts import build_messages, load_template
from rewardlab.serving.conversations import labeled_sample
from rewardlab.serving.limits import Limits
from rewardlab.serving.media import Media
from rewardlab.types import Order, PreferencePair

ROOT = Path(__file__).parents[2]
PAIR = {"question": "Which?", "responses": ["a", "b"], "preferred": 0}


def scene() -> Image.Image:
    image = Image.new("RGB", (60, 40), (200, 30, 30))
    ImageDraw.Draw(image).rectangle([5, 5, 20, 12], fill=(20, 20, 220))
    return image


def glass() -> Image.Image:
    image = Image.new("RGBA", (60, 40), (0, 0, 0, 0))
    ImageDraw.Draw(image).text((5, 5), "42", fill=(0, 0, 0, 255))
    return image


def turned(turn: int) -> dict[str, Any]:
    exif = Image.Exif()
    exif[0x0112] = turn
    return {"exif": exif}


def grey16() -> Image.Image:
    return Image.fromarray(np.array(scene().convert("L")).astype(np.uint16) * 257)


MODES: dict[str, tuple[Callable[[], Image.Image], dict[str, Any]]] = {
    "rgb.png": (scene, {}),
    "rgb.bmp": (scene, {}),
    "rgba.png": (glass, {}),
    "rgba.webp": (glass, {"lossless": True}),
    "la.png": (lambda: glass().convert("LA"), {}),
    "grey.png": (lambda: scene().convert("L"), {}),
    "bit.png": (lambda: scene().convert("1"), {}),
    "palette.png": (lambda: scene().quantize(8), {}),
    "clear_palette.png": (lambda: scene().quantize(8), {"transparency": 0}),
    "grey16.png": (grey16, {}),
    "cmyk.jpg": (lambda: scene().convert("CMYK"), {"quality": 95}),
    "moving.gif": (lambda: scene().quantize(8), {"save_all": True, "append_images": [glass().convert("RGB").quantize(8)]}),
    **{f"turn{turn}.jpg": (scene, {"quality": 95, **turned(turn)}) for turn in (3, 5, 6)},
    "turn8.png": (scene, turned(8)),
}


def line(folder: Path, row: dict[str, Any]) -> Path:
    (folder / "rows.jsonl").write_text(json.dumps(row) + "\n")
    return folder / "rows.jsonl"


def by_line(value: Callable[[Path], Any]) -> Callable[[Path], bytes]:
    return lambda path: PairTable(line(path.parent, {**PAIR, "images": [value(path)]}))[0].images[0]


def by_mapping(path: Path) -> bytes:
    config = MappingConfig(name="x", question="question", responses=["responses"], scores=["scores"], images=["image"])
    file = line(path.parent, {"question": "q", "responses": ["a", "b"], "scores": [1, 0], "image": path.name})
    [pair] = convert_source(recipe_of(config), file)
    assert isinstance(pair, PreferencePair)
    return pair.images[0]


def by_parquet(path: Path) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    row = {"question": ["q"], "responses": [["a", "b"]], "preferred": [0]}
    pq.write_table(pa.table({**row, "images": [[{"bytes": path.read_bytes(), "path": None}]]}), path.parent / "p.parquet")
    return next(iter(read_pairs(path.parent / "p.parquet"))).images[0]


def by_client(given: Callable[[Path], Any]) -> Callable[[Path], bytes]:
    """What the client of trainers sends, as the server reads it."""
    return lambda path: Media(limits=Limits()).image(image_url(given(path)))


def by_candidates(path: Path) -> bytes:
    return read_candidates(line(path.parent, {"question": "q", "responses": ["a", "b"], "images": [path.name]}))[0].images[0]


def base64_of(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


def load_image(image: Any) -> bytes:
    return Files(is_callers=True, urls=AllowedUrls()).image(image, "x")


def by_api(given: Callable[[Path], Any]) -> Callable[[Path], bytes]:
    return lambda path: load_image(given(path))


def by_part(path: Path) -> bytes:
    parts = [{"type": "text", "text": "See"}, {"type": "image", "image": Image.open(io.BytesIO(path.read_bytes()))}]
    return pair_of({**PAIR, "question": [{"role": "user", "content": parts}]}, 0, AllowedUrls()).images[0]


# Each door with the file whose code reads or decodes for it.
DOORS: dict[str, tuple[str, Callable[[Path], bytes]]] = {
    "line: path": ("rewardlab/data/media.py", by_line(lambda path: path.name)),
    "line: data URL": ("rewardlab/data/media.py", by_line(lambda path: to_data_url(path.read_bytes()))),
    "line: base64": ("rewardlab/data/media.py", by_line(base64_of)),
    "line: base64 in bytes": ("rewardlab/data/media.py", by_line(lambda path: {"bytes": base64_of(path)})),
    "line: numbers": ("rewardlab/data/media.py", by_line(lambda path: {"bytes": list(path.read_bytes())})),
    "parquet": ("rewardlab/data/media.py", by_parquet),
    "mapping": ("rewardlab/data/images.py", by_mapping),
    "candidates": ("rewardlab/data/media.py", by_candidates),
    "api: path": ("rewardlab/data/media.py", by_api(lambda path: path)),
    "api: file URL": ("rewardlab/data/media.py", by_api(lambda path: f"file://{path}")),
    "api: bytes": ("rewardlab/data/media.py", by_api(lambda path: path.read_bytes())),
    "api: PIL": ("rewardlab/data/media.py", by_api(lambda path: Image.open(io.BytesIO(path.read_bytes())))),
    "api: datasets": ("rewardlab/data/media.py", by_api(lambda path: {"bytes": path.read_bytes(), "path": "x.png"})),
    "api: part of a message": ("rewardlab/data/media.py", by_part),
    "client: path": ("rewardlab/integrations/client.py", by_client(str)),
    "client: bytes": ("rewardlab/integrations/client.py", by_client(lambda path: path.read_bytes())),
    "client: PIL": ("rewardlab/integrations/client.py", by_client(lambda path: Image.open(io.BytesIO(path.read_bytes())))),
    "server": ("rewardlab/serving/media.py", lambda path: Media(limits=Limits()).image(to_data_url(path.read_bytes()))),
    "benchmark": ("rewardlab/benchmarks/media.py", lambda path: read_media(path)[0]),
}
# These decode what a door has read: its bytes, which every decoder shows alike.
BEHIND = {
    *("rewardlab/curation/image_hashes.py", "rewardlab/data/attacks/families.py"),
    *("rewardlab/samplers/hf.py", "rewardlab/samplers/vllm.py"),
    *("rewardlab/training/run/rows.py", "rewardlab/training/run/preflight.py"),
}
# Columns of embedded images of two benchmarks, read by plain_image as in benchmarks/media.py.
READERS = {"plain_image", "plain_png", "plain_pixels", "decode_image", "open", "frombytes", "frombuffer"}


@pytest.mark.parametrize("door", DOORS)
def test_a_picture_has_the_same_pixels_by_every_door(door: str, tmp_path: Path) -> None:
    """Those of the file: upright, transparency on white, 8 bits, its first frame. As a person sees it: no mode is black."""
    for name, (make, options) in MODES.items():
        path = tmp_path / name
        make().save(path, **options)
        seen = np.array(decode_image(DOORS[door][1](path)))
        expected = np.array(decode_image(path.read_bytes()))
        assert seen.shape == expected.shape, name
        assert (seen == expected).all(), name
        assert seen.mean() > 40, name


def test_an_array_is_the_picture_it_was_made_of() -> None:
    for image in (scene(), scene().convert("L"), glass()):
        assert load_image(np.array(image)) == load_image(image)


@pytest.mark.slow
def test_every_place_that_decodes_is_a_door_or_behind_one() -> None:
    """A new way to pixels is in the table above, or fails here."""
    found = set()
    for file in (ROOT / "rewardlab").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            for called in (node.func, *node.args) if isinstance(node, ast.Call) else ():
                name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
                owner = getattr(getattr(called, "value", None), "id", "")
                if name in READERS and (owner == "Image" or name not in ("open", "frombytes", "frombuffer")):
                    found.add(file.relative_to(ROOT).as_posix())
    doors = {file for file, _ in DOORS.values()} | {"rewardlab/data/images.py"}
    embedded = {file for file in found if file.startswith("rewardlab/benchmarks/")}
    assert found - embedded == (doors | BEHIND) - {"rewardlab/benchmarks/media.py"}


# Conversations: each form of the same pair, with a system prompt, an earlier turn and pictures.
SYSTEM, EARLIER = {"role": "system", "content": "Be brief."}, {"role": "assistant", "content": "Two cats."}
ASKED = [SYSTEM, {"role": "user", "content": "Who? <image>"}, EARLIER, {"role": "user", "content": "And here? <image>"}]
GOOD, WORSE = {"role": "assistant", "content": "A dog."}, {"role": "assistant", "content": "A bird."}
QUESTION = "System: Be brief.\nUser: Who? \ufffc\nAssistant: Two cats.\nUser: And here? \ufffc"


def sharegpt(message: dict[str, str]) -> dict[str, str]:
    return {"from": {"user": "human", "assistant": "gpt"}.get(message["role"], message["role"]), "value": message["content"]}


def in_parts(message: dict[str, str]) -> dict[str, Any]:
    """The picture as a part without its file, as TRL's prompts have it."""
    texts = message["content"].split("<image>")
    parts: list[dict[str, str]] = [{"type": "text", "text": texts[0]}]
    for text in texts[1:]:
        parts += [{"type": "image"}, *([{"type": "text", "text": text}] if text else [])]
    return {"role": message["role"], "content": parts}


FORMS: dict[str, dict[str, Any]] = {
    "TRL": {"prompt": ASKED, "chosen": [GOOD], "rejected": [WORSE]},
    "TRL, implicit prompt": {"chosen": [*ASKED, GOOD], "rejected": [*ASKED, WORSE]},
    "TRL, parts": {"prompt": list(map(in_parts, ASKED)), "chosen": [in_parts(GOOD)], "rejected": [in_parts(WORSE)]},
    "ShareGPT": {"conversations": list(map(sharegpt, ASKED)), "chosen": sharegpt(GOOD), "rejected": sharegpt(WORSE)},
    "ShareGPT, system beside": {
        "system": "Be brief.",
        "conversations": list(map(sharegpt, ASKED[1:])),
        "chosen": sharegpt(GOOD),
        "rejected": sharegpt(WORSE),
    },
    "ms-swift": {"messages": [*ASKED, GOOD], "rejected_response": "A bird."},
    "ms-swift, messages": {"messages": [*ASKED, GOOD], "rejected_messages": [*ASKED, WORSE]},
    "LLaMA-Factory v1": {"chosen_messages": [*ASKED, GOOD], "rejected_messages": [*ASKED, WORSE]},
    "OpenAI": {"input": {"messages": ASKED}, "preferred_output": [GOOD], "non_preferred_output": [WORSE]},
    "pair": {"question": ASKED, "responses": ["A dog.", "A bird."], "preferred": 0},
}


def by_table(folder: Path, row: dict[str, Any]) -> PreferencePair:
    return PairTable(line(folder, row))[0]


def by_list(folder: Path, row: dict[str, Any]) -> PreferencePair:
    (folder / "rows.json").write_text(json.dumps([row]))
    return PairTable(folder / "rows.json")[0]


def by_stream(folder: Path, row: dict[str, Any]) -> PreferencePair:
    return next(iter(read_pairs(line(folder, row))))


@pytest.mark.parametrize("reader", [by_table, by_list, by_stream])
@pytest.mark.parametrize("form", FORMS)
def test_a_conversation_has_one_question_and_two_answers(form: str, reader: Any, tmp_path: Path) -> None:
    """The question is all up to the last turn of the user, the system's words and pictures in their places."""
    for name, color in (("one.png", "red"), ("two.png", "blue")):
        Image.new("RGB", (32, 32), color).save(tmp_path / name)
    pair = reader(tmp_path, {**FORMS[form], "images": ["one.png", "two.png"]})
    assert pair.question == QUESTION
    assert pair.responses[pair.preferred] == "A dog."
    assert set(pair.responses) == {"A dog.", "A bird."}
    assert [decode_image(image).getpixel((1, 1)) for image in pair.images] == [(255, 0, 0), (0, 0, 255)]


def test_trainers_prompts_are_read_by_the_same_reader() -> None:
    images = [to_data_url(b"\x89PNG one"), to_data_url(b"\x89PNG two")]
    assert read_prompt(ASKED, images) == (QUESTION, images)
    assert read_prompt(list(map(in_parts, ASKED)), images) == (QUESTION, images)


def test_conversations_that_are_no_pair_are_refused(tmp_path: Path) -> None:
    for row, sentence in (
        ({"messages": [*ASKED, GOOD]}, "no second answer"),
        ({"messages": [*ASKED, GOOD], "label": True}, "no second answer"),
        ({"chosen": [*ASKED, GOOD], "rejected": [{"role": "user", "content": "Else?"}, WORSE]}, "the same question"),
        ({"prompt": "Other?", "chosen": [*ASKED, GOOD], "rejected": [*ASKED, WORSE]}, "prompt is not in the conversations"),
        ({"prompt": ASKED[:3], "chosen": [GOOD], "rejected": [WORSE]}, "ends with the assistant"),
        ({"chosen": "A dog.", "rejected": "A bird."}, "no column is the question"),
        ({"prompt": "<image><image> Which?", "chosen": "a", "rejected": "b", "images": []}, "2 marks <image>"),
        ({"prompt": "Draw", "chosen": "<image>", "rejected": "none", "images": ["x.png"]}, "1 in the answers"),
    ):
        with pytest.raises(DataError, match=sentence):
            PairTable(line(tmp_path, row))


def shown(pair: PreferencePair) -> str:
    message = build_messages(pair, order=Order.GIVEN, template=load_template("plain"))[0]
    return "".join("[IMG]" if part.image is not None else part.text for part in message.parts)


def test_pictures_of_answers_are_shown_in_the_answers(tmp_path: Path) -> None:
    """By marks in one list, by columns and by parts; which is shown first does not tell which is better."""
    for n, name in enumerate(("source", "win", "lose")):
        Image.new("RGB", (32, 32), (80 * n, 0, 0)).save(tmp_path / f"{name}.png")
    marks = {
        "prompt": "Edit: <image>",
        "chosen": "<image>",
        "rejected": "<image>",
        "images": ["source.png", "win.png", "lose.png"],
    }
    own = {"question": "Edit: <image>", "responses": ["", ""], "preferred": 0, "images": ["source.png"]}
    own |= {"response_images": [["win.png"], ["lose.png"]]}
    parts = {"question": "Edit: <image>", "images": ["source.png"], "preferred": 0}
    parts |= {"responses": [[{"type": "image", "image": f"{name}.png"}] for name in ("win", "lose")]}
    for row in (marks, own, parts):
        pair = PairTable(line(tmp_path, row))[0]
        assert shown(pair).count("[IMG]") == 3
        assert shown(pair).index("[IMG]") > shown(pair).index("Edit:")
        assert decode_image(pair.response_images[pair.preferred or 0][0]).getpixel((1, 1)) == (80, 0, 0)
    better = [PairTable(line(tmp_path, {**marks, "prompt": f"Edit {n}: <image>"}))[0].preferred for n in range(40)]
    assert 8 < sum(map(bool, better)) < 32


# Answers that quote <image>, or hold U+FFFC without an image, beside pictures of the question: (marks of the answers, whether
# they are places). A file may mean a place, so it is refused; what is judged keeps its pictures with the question.
SENTENCES = ["It uses <image> here.", "Its tag is <image>, twice."]
LINES = ["<image>", "The other:\n<image>"]


def by_pair_file(folder: Path, question: Any, answers: list[str], images: list[str]) -> PreferencePair:
    return PairTable(line(folder, {"question": question, "responses": answers, "preferred": 0, "images": images}))[0]


def by_chosen(folder: Path, question: Any, answers: list[str], images: list[str]) -> PreferencePair:
    return PairTable(line(folder, {"prompt": question, "chosen": answers[0], "rejected": answers[1], "images": images}))[0]


def by_build(folder: Path, question: Any, answers: list[str], images: list[str]) -> PreferencePair:
    config = MappingConfig(name="x", question="prompt", chosen="chosen", rejected="rejected", images=["images"])
    file = line(folder, {"prompt": question, "chosen": answers[0], "rejected": answers[1], "images": images})
    [pair] = convert_source(recipe_of(config), file)
    if isinstance(pair, Rejected):
        raise DataError(pair.reason)
    assert isinstance(pair, PreferencePair)
    return pair


def by_compare(folder: Path, question: Any, answers: list[str], images: list[str]) -> PreferencePair:
    row = {"question": question, "responses": answers, "images": [folder / image for image in images]}
    return pair_of(row, 0, AllowedUrls())


def by_rank(folder: Path, question: Any, answers: list[str], images: list[str]) -> PreferencePair:
    return candidates_of_texts(question, answers, images=[folder / image for image in images]).pair(0, 1)


def by_rank_file(folder: Path, question: Any, answers: list[str], images: list[str]) -> PreferencePair:
    return read_candidates(line(folder, {"question": question, "responses": answers, "images": images}))[0].pair(0, 1)


FILES = [by_pair_file, by_chosen, by_build]
JUDGING = [by_compare, by_rank, by_rank_file]


@pytest.fixture
def shots(tmp_path: Path) -> list[str]:
    for name in ("a.png", "b.png", "c.png"):
        Image.new("RGB", (32, 32), (ord(name[0]), 0, 0)).save(tmp_path / name)
    return ["a.png", "b.png", "c.png"]


@pytest.mark.parametrize("reader", FILES + JUDGING)
def test_marks_on_their_own_lines_are_places(reader: Any, shots: list[str], tmp_path: Path) -> None:
    pair = reader(tmp_path, "Which?", LINES, shots[:2])
    assert pair.images == ()
    assert [len(images) for images in pair.response_images] == [1, 1]
    ahead = reader(tmp_path, "Which?", ["<image>\nHere.", "<image>"], shots[:2])
    assert {*ahead.responses} == {"\ufffc\nHere.", "\ufffc"}


@pytest.mark.parametrize("reader", FILES)
def test_a_file_in_which_a_mark_may_be_quoted_is_refused(reader: Any, shots: list[str], tmp_path: Path) -> None:
    """Unless the question has the marks of all images, or too few: then the answers have the others."""
    for answers, number in ((SENTENCES, 2), ([SENTENCES[0], "b"], 1), (["\ufffc", "b"], 0), (["\ufffc", "b"], 1)):
        with pytest.raises(DataError, match=r"in the answers, and .*; .* as parts \(in a file also as 'response_images'\)"):
            reader(tmp_path, "Which?", answers, shots[:number])
    kept = reader(tmp_path, "<image> <image> Which?", SENTENCES, shots[:2])
    assert (len(kept.images), set(kept.responses), kept.response_images) == (2, set(SENTENCES), ((), ()))
    edit = reader(tmp_path, "Edit <image> so.", ["Done: <image>", "See <image>"], shots)
    assert (len(edit.images), [len(images) for images in edit.response_images]) == (1, [1, 1])


@pytest.mark.parametrize("name", ["p.parquet", "p.jsonl"])
def test_quoted_marks_are_the_same_when_written_and_read(name: str, shots: list[str], tmp_path: Path) -> None:
    picture = {"type": "image", "image": to_data_url((tmp_path / "a.png").read_bytes())}
    asked = [{"role": "user", "content": [picture, {"type": "text", "text": "What does <image> do?"}]}]
    own = {"question": "q", "responses": ["", "No <image>."], "response_images": [["a.png"], []], "preferred": 0}
    pairs = [
        by_chosen(tmp_path, "<image> <image> Which?", SENTENCES, shots[:2]),
        by_chosen(tmp_path, "<image> <image> Which?", LINES, shots[:2]),
        by_pair_file(tmp_path, "Which?", ["<image>\nHere.", "<image>"], shots[:2]),
        by_pair_file(tmp_path, asked, SENTENCES, []),
        PairTable(line(tmp_path, own))[0],
    ]
    (write_jsonl if name.endswith("l") else write_parquet)(pairs, tmp_path / name)
    assert list(PairTable(tmp_path / name)) == pairs


@pytest.mark.parametrize("reader", JUDGING)
def test_a_mark_that_is_judged_moves_no_picture(reader: Any, shots: list[str], tmp_path: Path) -> None:
    for question, answers, number in (
        ("Which?", SENTENCES, 2),
        ("<image>Which?", SENTENCES, 3),
        ("Which?", [SENTENCES[0], "b"], 1),
        ("Which?", SENTENCES, 0),
    ):
        pair = reader(tmp_path, question, answers, shots[:number])
        assert (len(pair.images), pair.responses, any(pair.response_images)) == (number, tuple(answers), False)
        assert shown(pair).startswith("[IMG]" * number)


@pytest.mark.parametrize("reader", JUDGING)
def test_the_character_of_a_missing_image_is_left_out_of_an_answer(reader: Any, shots: list[str], tmp_path: Path) -> None:
    for number in (0, 1, 2):
        pair = reader(tmp_path, "Which?", ["It \ufffcis.", "b\ufff9"], shots[:number])
        assert (len(pair.images), pair.responses) == (number, ("It is.", "b"))


@pytest.mark.parametrize("reader", FILES + JUDGING)
def test_a_question_that_quotes_a_mark_beside_a_part(reader: Any, shots: list[str], tmp_path: Path) -> None:
    """Whichever turn it is in: the picture is where the part is."""
    url = to_data_url((tmp_path / "a.png").read_bytes())
    picture = {"type": "image", "image": url}
    quote = "What does <image> or \ufffc do here?"
    for turns in (
        [{"role": "user", "content": [{"type": "text", "text": quote}, picture]}],
        [{"role": "user", "content": [picture, {"type": "text", "text": quote}]}],
        [{"role": "user", "content": quote}, EARLIER, {"role": "user", "content": ["And here?", picture]}],
    ):
        pair = reader(tmp_path, turns, ["a", "b"], [])
        assert len(pair.images) == pair.question.count("\ufffc") == 1
        assert pair.question.strip("\ufffc") == pair.question.replace("\ufffc", "")
        assert "<image>" in pair.question
        assert read_prompt(turns) == (pair.question, [url])


def test_a_rendered_prompt_may_quote_a_mark() -> None:
    """Its picture is where the template has its tokens, and before the text if these are at the beginning."""
    pad, said = "<|vision_start|><|image_pad|><|vision_end|>", "What does <image> do?"
    for text, question in ((pad + said, f"\ufffc{said}"), (f"{said} {pad} Here.", f"{said} \ufffc Here.")):
        assert read_prompt(text, ["x.png"]) == (question, ["x.png"])
        rendered = f"<|im_start|>user\n{text}<|im_end|>\n"
        sample = labeled_sample(rendered, "a", {"media": ["upload:1"]})
        assert (sample.question, sample.images) == (question, ("upload:1",))


def test_arrays_in_conversations(tmp_path: Path) -> None:
    """As parts of messages, in prompts that answers repeat, and as media of answers; another picture is another question."""

    def said(array: Any, answer: str) -> list[dict[str, Any]]:
        asked = [{"type": "image", "image": array}, {"type": "text", "text": "Who?"}]
        return [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}]

    array = np.array(scene())
    pair = pair_of({"question": None, "responses": [said(array, "a"), said(array.copy(), "b")]}, 0, AllowedUrls())
    assert (pair.question, pair.responses) == ("Who?", ("a", "b"))
    assert pair.images == (load_image(array),)
    with pytest.raises(DataError, match="same question"):
        pair_of({"question": None, "responses": [said(array, "a"), said(255 - array, "b")]}, 0, AllowedUrls())
    own = pair_of({"question": "q", "responses": ["", ""], "response_images": [[array], [255 - array]]}, 0, AllowedUrls())
    assert own.response_images[0] == (pair.images[0],)
    parts = [[{"type": "image", "image": array}], [{"type": "image", "image": 255 - array}]]
    assert pair_of({"question": "q", "responses": parts}, 0, AllowedUrls()).response_images == own.response_images
    for column in (
        {"category": np.array(["x", "y"])},
        {"preferred": np.array([1])},
        {"tie": np.array([1, 2])},
        {"order": np.array([1, 2])},
        {"pair_id": np.array([1, 2])},
    ):
        with pytest.raises(InputError, match=r"must be a string|expected"):
            pair_of({"question": "q", "responses": ["a", "b"], **column}, 0, AllowedUrls())
    for name in ("response_images", "images"):
        with pytest.raises(InputError, match="must be a list"):
            pair_of({"question": "q", "responses": ["a", "b"], name: np.stack([array, array])}, 0, AllowedUrls())
    with pytest.raises(InputError, match="is no image"):
        load_image({"bytes": np.zeros(9, np.uint8)})
