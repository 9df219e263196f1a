"""A picture in an answer is shown in that answer by every door that can carry it, and refused by the others: never left out."""

from __future__ import annotations

import base64
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image

from rewardlab.cli import main
from rewardlab.data.images import decode_image, encode_png, to_data_url
from rewardlab.integrations.client import RewardClient
from rewardlab.serving.app import create_app
from rewardlab.serving.conversations import Sample, chat_sample
from rewardlab.serving.limits import Limits
from rewardlab.serving.media import Media
from rewardlab.serving.schemas import MAX_CHARS
from rewardlab.serving.service import GroupRules, ServerOptions
from rewardlab.serving.uploads import UploadStore
from rewardlab.types import Choice, Message
from rewardlab.verdicts.parse import format_verdict
from tests.support.scripted_judge import QUESTION
from tests.support.servers import running
from tests.support.serving import in_process, judge_of
from tests.support.shell import run_main
from tests.support.videos import film

RED, BLUE = (to_data_url(encode_png(Image.new("RGB", (32, 32), color))) for color in ("red", "blue"))
USER, SAID = {"role": "user", "content": QUESTION}, {"role": "assistant", "content": "a"}
MADE = {"type": "image_generation_call", "result": "iVBORw0KGgo="}


def reddest(prompt: tuple[Message, ...], draw: int) -> str:
    """Name the response whose picture is red; none where a response has no picture."""
    shown: dict[str, bytes] = {}
    text = ""
    for part in prompt[0].parts:
        text += part.text
        if part.image is not None:
            shown["Response 2" if "Response 2" in text else "Response 1"] = part.image
    if len(shown) < 2:
        return "I see nothing"
    first, second = (decode_image(shown[name]).getpixel((1, 1))[0] for name in ("Response 1", "Response 2"))
    return format_verdict(Choice.FIRST if first >= second else Choice.SECOND, "it is red")


def part(image: str, kind: str = "image_url") -> dict[str, Any]:
    if image.startswith("data:video"):
        return {"type": "video_url", "video_url": {"url": image}}
    return {"type": kind, "image_url": {"url": image}} if kind == "image_url" else {"type": kind, "image_url": image}


def chat(image: str) -> dict[str, Any]:
    return {"messages": [USER, {"role": "assistant", "content": [{"type": "text", "text": "Here:"}, part(image)]}]}


def output(image: str) -> dict[str, Any]:
    said = {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "Here:"}, part(image, "input_image")],
    }
    return {"output": [said]}


def parts(image: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": "Here:"}, {"type": "image", "image": image}]


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    app = create_app(judge_of(reddest), ServerOptions(rules=GroupRules(group_size=2), limits=Limits(group_timeout=5)))
    with in_process(app) as client:
        yield client


def of_rewards(answer: Any) -> list[float]:
    return answer["rewards"]


def of_scores(answer: Any) -> list[float]:
    return [row["score"] for row in sorted(answer["data"], key=lambda row: row["index"])]


def of_ranks(answer: Any) -> list[float]:
    rows = answer["results"] if isinstance(answer, dict) else answer
    return [row.get("relevance_score", row.get("score")) for row in sorted(rows, key=lambda row: row["index"])]


DOCUMENTS = [{"content": [part(RED)]}, {"text": "Here:", "image": BLUE}]
GROUPS: dict[str, tuple[str, Any, Any]] = {
    "rewards": ("/v1/rewards", {"question": QUESTION, "responses": [parts(RED), parts(BLUE)]}, of_rewards),
    "rewards, by marks": (
        "/v1/rewards",
        {"question": QUESTION, "responses": ["<image>", "<image>"], "images": [RED, BLUE]},
        of_rewards,
    ),
    "compare": ("/compare", {"conversation_history": [USER], "response_objs": [output(RED), output(BLUE)]}, of_rewards),
    "score": ("/score", {"text_1": QUESTION, "text_2": DOCUMENTS}, of_scores),
    "rerank": ("/rerank", {"query": QUESTION, "documents": DOCUMENTS}, of_ranks),
    "rerank, pictures alone": ("/v2/rerank", {"query": QUESTION, "documents": [{"image": RED}, {"image": BLUE}]}, of_ranks),
    "sglang": ("/sglang/v1/rerank", {"query": QUESTION, "documents": DOCUMENTS}, of_ranks),
}
MEMBERS: dict[str, tuple[str, Any, Any]] = {
    "classify": ("/classify", chat, lambda answer: answer["data"][0]["probs"][0]),
    "pooling": ("/pooling", chat, lambda answer: answer["data"][0]["data"][0]),
    "embeddings": ("/v1/embeddings", chat, lambda answer: answer["data"][0]["embedding"][0]),
    "chat": ("/v1/chat/completions", chat, lambda answer: float(answer["choices"][0]["message"]["content"].split(":")[1])),
    "verify": (
        "/verify",
        lambda image: {"responses_create_params": {"input": QUESTION}, "response": output(image)},
        lambda answer: answer["reward"],
    ),
}


@pytest.mark.parametrize("name", GROUPS)
def test_pictures_of_a_group(client: httpx.Client, name: str) -> None:
    path, body, read = GROUPS[name]
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    red, blue = read(answer.json())
    assert red > blue


@pytest.mark.parametrize("name", MEMBERS)
def test_pictures_of_members_that_come_one_by_one(client: httpx.Client, name: str) -> None:
    better_and_worse(client, name, RED, BLUE)


def better_and_worse(client: httpx.Client, name: str, better: str, worse: str) -> None:
    """Send two members of a group with a picture or a film each."""
    path, body, read = MEMBERS[name]
    told: dict[str, httpx.Response] = {}
    members = [
        threading.Thread(target=lambda image=image: told.update({image: client.post(path, json=body(image))}))
        for image in (better, worse)
    ]
    for member in members:
        member.start()
    for member in members:
        member.join()
    assert [answer.status_code for answer in told.values()] == [200, 200], [answer.text for answer in told.values()]
    assert read(told[better].json()) > read(told[worse].json())


def clip(folder: Path, num_frames: int) -> str:
    data = film(folder / f"{num_frames}.mp4", num_frames).read_bytes()
    return f"data:video/mp4;base64,{base64.b64encode(data).decode()}"


@pytest.mark.parametrize("name", ["chat", "classify", "verify"])
def test_videos_of_members_that_come_one_by_one(client: httpx.Client, tmp_path: Path, name: str) -> None:
    """A film ends white; one of a single frame is black."""
    better_and_worse(client, name, clip(tmp_path, 4), clip(tmp_path, 1))


def test_videos_tell_prompts_and_responses_apart() -> None:
    """Responses to one text about two films are no group, and two films with one text are two responses."""

    def sample(*films: str) -> Sample:
        turns = zip(("user", "assistant"), films, strict=True)
        return chat_sample([{"role": role, "content": [{"type": "text", "text": "a"}, part(film)]} for role, film in turns])

    one, two = "data:video/mp4;base64,AA==", "data:video/mp4;base64,AAA="
    assert [sample(one, one).key == other.key for other in (sample(one, two), sample(two, one))] == [True, False]
    assert [sample(one, one).digest == other.digest for other in (sample(two, one), sample(one, two))] == [True, False]


def test_a_chat_with_a_video_is_completed(tmp_path: Path) -> None:
    """Its frames are at its place, the first and the last among them, as those of a native ``videos``; more than two videos are
    refused, as there."""

    def seen(prompt: tuple[Message, ...], draw: int) -> str:
        images = [part.image and decode_image(part.image) for part in prompt[-1].parts]
        texts = [part.text for part in prompt[-1].parts]
        return " ".join(
            f"{image.getpixel((1, 1))[0] / 255:.1f}" if image else text for image, text in zip(images, texts, strict=True)
        )

    video, told = part(clip(tmp_path, 16)), []
    with in_process(create_app(judge_of(seen))) as client:
        for videos in ([video], [video] * 3):
            content = [{"type": "text", "text": "Before"}, *videos, {"type": "text", "text": "after."}]
            told.append(client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": content}]}))
    assert told[0].status_code == 200, told[0].text
    before, *shades, after = told[0].json()["choices"][0]["message"]["content"].split()
    assert (before, len(shades), shades[0], shades[-1], after) == ("Before", 8, "0.0", "1.0", "after.")
    assert sorted(shades) == shades
    assert (told[1].status_code, "a chat has 3 videos; expected at most 2" in told[1].text) == (422, True)


def test_a_pair_and_its_order(client: httpx.Client) -> None:
    for order, better in (([RED, BLUE], 1.0), ([BLUE, RED], 0.0)):
        body = {"question": QUESTION, "responses": [parts(image) for image in order]}
        assert client.post("/v1/judge", json=body).json()["p_first_better"] == better


def test_the_judge_command_shows_pictures_of_responses(tmp_path: Path) -> None:
    """In the order of the texts; one within a sentence stays with the question."""
    paths = [tmp_path / f"{color}.png" for color in ("red", "blue")]
    for path in paths:
        Image.new("RGB", (32, 32), path.stem).save(path)

    def judge(url: str, first: str, second: str, *images: Path, question: str = QUESTION) -> Any:
        options = [option for image in images for option in ("--image", image)]
        return run_main(main, "judge", "--judge", url, "--question", question, "--first", first, "--second", second, *options)

    with running(create_app(judge_of(reddest), ServerOptions())) as url:
        done = judge(url, "<image>", "<image>", *paths)
        assert (done.returncode, "the first response is better" in done.stdout) == (0, True), done.stderr
        done = judge(url, "<image>", "Here:\n<image>", paths[0], *paths[::-1], question="Edit <image>.")
        assert (done.returncode, "the second response is better" in done.stdout) == (0, True), done.stderr
        done = judge(url, "The <image> is red.", "Its <image>.", *paths)
        assert (done.returncode, "I see nothing" in done.stdout) == (1, True), done.stderr
        for first, images in (("<image>", [paths[0], tmp_path / "no.png"]), ("a", [paths[0], tmp_path])):
            done = judge(url, first, "<image>", *images)
            assert (done.returncode, "Traceback" in done.stderr) == (2, False)


def test_the_client_of_trainers_sends_pictures() -> None:
    """As parts, or as images in memory alone."""
    import asyncio

    with running(create_app(judge_of(reddest), ServerOptions())) as url:
        responses = [Image.new("RGB", (32, 32), "red"), [{"type": "image", "image": Image.new("RGB", (32, 32), "blue")}]]
        red, blue = asyncio.run(RewardClient(url).rewards(QUESTION, responses))
    assert red is not None
    assert blue is not None
    assert red > blue


REFUSED: dict[str, tuple[str, Any]] = {
    "images outside of the content": (
        "/classify",
        {"messages": [USER, {"role": "assistant", "content": "a", "images": [RED]}]},
    ),
    "sound outside of the content": (
        "/classify",
        {"messages": [USER, {"role": "assistant", "content": "a", "audio": {"id": "1"}}]},
    ),
    "pictures that a tool made": ("/verify", {"responses_create_params": {"input": QUESTION}, "response": {"output": [MADE]}}),
    "an unknown item": ("/compare", {"conversation_history": [USER, MADE], "response_objs": [output(RED)] * 2}),
    "a document with images": ("/v2/rerank", {"query": QUESTION, "documents": [{"text": "a", "images": [RED]}, "b"]}),
    "a document with a video": (
        "/v1/rerank",
        {"query": QUESTION, "documents": [{"title": "a", "video": "upload:1"}, "b"], "rank_fields": ["title"]},
    ),
    "a place without a picture": ("/v1/rewards", {"question": QUESTION, "responses": [[{"type": "image"}], "b"]}),
    "a mark without a picture": ("/v1/rewards", {"question": f"<image>{QUESTION}", "responses": ["a", "b"]}),
    "more pictures than marks": ("/v1/judge", {"question": "<image> and <image>?", "responses": ["a", "b"], "images": [RED]}),
    "a part that is no reference": ("/v1/judge", {"question": QUESTION, "responses": [[{"type": "image", "image": 3}], "b"]}),
    "images of a query": ("/score", {"text_1": {"text": QUESTION, "images": [RED]}, "text_2": ["a", "b"]}),
    "a list as a text": ("/slime", {"prompt": QUESTION, "response": [part(RED)]}),
}


QUOTED: dict[str, tuple[str, Any]] = {
    "rewards": ("/v1/rewards", {"question": QUESTION, "images": [RED], "responses": ["The <image> is red.", "b", "c"]}),
    "a mark of ours": ("/v1/rewards", {"question": QUESTION, "images": [RED], "responses": ["The \ufffc is red.", "b"]}),
    "as many marks as images": (
        "/v1/rewards",
        {"question": QUESTION, "images": [RED, BLUE], "responses": ["The <image> is red.", "Its <image>."]},
    ),
    "as many marks as further images": (
        "/v1/judge",
        {"question": f"<image>{QUESTION}", "images": [RED, BLUE, RED], "responses": ["The <image> is red.", "Its <image>."]},
    ),
    "judge": ("/v1/judge", {"question": QUESTION, "images": [RED], "responses": ["The <image> is red.", "b"]}),
    "rerank": ("/rerank", {"query": QUESTION, "documents": [{"text": "The <image> is red."}, {"text": "b"}]}),
}


@pytest.mark.parametrize("name", QUOTED)
def test_a_mark_that_an_answer_quotes_is_text(name: str) -> None:
    """A policy that writes <image> loses nobody's reward, and moves no image."""
    prompts: list[str] = []

    def judge(prompt: tuple[Message, ...], draw: int) -> str:
        prompts.append("".join("[red]" if part.image is not None else part.text for part in prompt[0].parts))
        return format_verdict(Choice.FIRST, "first")

    path, body = QUOTED[name]
    with in_process(create_app(judge_of(judge), ServerOptions())) as client:
        answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    assert all(prompt.count("[red]") == len(body.get("images", ())) for prompt in prompts)
    assert all(prompt.startswith("[red]") for prompt in prompts if "images" in body)
    assert any("is red." in prompt for prompt in prompts)


ALONE = "\ufffc\ufff9"
MISSING: dict[str, tuple[str, Any]] = {
    "judge": ("/v1/judge", {"question": QUESTION, "responses": [f"a{ALONE}", "b"]}),
    "rewards": ("/v1/rewards", {"question": QUESTION, "responses": [ALONE, "b"]}),
    "rewards, anchor": ("/v1/rewards", {"question": QUESTION, "responses": ["b"], "strategy": "anchor", "anchor": ALONE}),
    "score": ("/score", {"text_1": QUESTION, "text_2": [ALONE, "b"]}),
    "rerank": ("/rerank", {"query": QUESTION, "documents": [{"content": ALONE}, "b"], "anchor": ALONE}),
    "compare": (
        "/compare",
        {
            "conversation_history": [{"role": "user", "content": [part(RED), {"type": "input_text", "text": QUESTION}]}],
            "response_objs": [{"output": [{**SAID, "type": "message", "content": text}]} for text in (ALONE, "b")],
        },
    ),
    "get_reward": (
        "/get_reward",
        {"query": [QUESTION + ALONE, f"{QUESTION}b"], "prompts": [QUESTION] * 2, "labels": [None] * 2},
    ),
}


@pytest.mark.parametrize("name", MISSING)
def test_the_character_of_a_missing_image_is_left_out_of_an_answer(name: str) -> None:
    """The others of its group are judged all the same; an answer of it alone is an empty one."""
    prompts: list[str] = []

    def judge(prompt: tuple[Message, ...], draw: int) -> str:
        prompts.append("".join(part.text for part in prompt[0].parts))
        return format_verdict(Choice.FIRST, "first")

    path, body = MISSING[name]
    with in_process(create_app(judge_of(judge), ServerOptions())) as client:
        answer = client.post(path, json=body)
        empty = client.post("/v1/judge", json={"question": QUESTION, "responses": [ALONE, "b"]})
    assert answer.status_code == 200, answer.text
    assert prompts
    assert not [prompt for prompt in prompts if set(ALONE) & set(prompt)]
    assert (empty.status_code, "a response is empty" in empty.text) == (422, True)


def test_a_video_of_an_answer_may_be_as_long_as_one_of_a_question(client: httpx.Client) -> None:
    """A data URL is no text: neither is refused for its characters."""
    clip = "data:video/mp4;base64," + "A" * Limits().characters
    for media in ({"responses": [[{"type": "video", "video": clip}], "b"]}, {"videos": [clip], "responses": ["a", "b"]}):
        answer = client.post("/v1/judge", json={"question": QUESTION, **media})
        assert (answer.status_code, "characters" in answer.text) == (422, False), answer.text


@pytest.mark.parametrize("part_of", [{"type": "text", "value": ""}, {"type": "text", "text": None, "value": ""}], ids=str)
def test_a_text_in_any_part_counts(client: httpx.Client, part_of: dict[str, Any]) -> None:
    body = {"question": QUESTION, "responses": [[part_of | {"value": "a" * (MAX_CHARS + 1)}], "b"]}
    for path in ("/v1/judge", "/v1/rewards"):
        answer = client.post(path, json=body)
        assert (answer.status_code, "longer than" in answer.text) == (422, True)


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_shown_is_refused(client: httpx.Client, name: str) -> None:
    path, body = REFUSED[name]
    judged = client.get("/v1/status").json()["counts"].get("asked", 0)
    assert client.post(path, json=body).status_code == 422
    assert client.get("/v1/status").json()["counts"].get("asked", 0) == judged


def test_pickles_are_refused_by_every_route(client: httpx.Client) -> None:
    """Nothing is unpickled: an object whose unpickling would be seen is not."""

    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return (SEEN.append, (1,))

    data = pickle.dumps({"images": [Trap()], "prompts": ["a"]})
    paths = client.get("/openapi.json").json()["paths"]
    posts = [path for path, methods in paths.items() if "post" in methods and "{" not in path]
    assert len(posts) > 20
    for path in posts:
        for kind in ("application/octet-stream", "application/json", "application/x-pickle"):
            answer = client.post(path, content=data, headers={"content-type": kind})
            assert answer.status_code in (400, 404, 415, 422), (path, kind, answer.status_code)
    coded = base64.b64encode(data).decode()
    assert client.post("/v1/judge", json={"question": coded, "responses": [coded, coded + "x"]}).status_code in (200, 422, 503)
    assert SEEN == []


SEEN: list[int] = []


def test_what_a_tool_returns_belongs_to_the_question(client: httpx.Client) -> None:
    """Its texts are read; its pictures are pictures of the conversation."""
    tool = {"type": "function_call_output", "call_id": "1", "output": [{"type": "input_text", "text": "a plot"}]}
    body = {"conversation_history": [USER, tool], "response_objs": [output(RED), output(BLUE)]}
    assert of_rewards(client.post("/compare", json=body).json())[0] == 1.0


LOOK = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"type": "function", "function": {"name": "look", "arguments": "{}"}}],
}


def test_calls_of_tools_in_earlier_turns_are_shown() -> None:
    """In messages as in items of the Responses API."""
    shown: list[str] = []

    def judge(prompt: tuple[Message, ...], draw: int) -> str:
        shown.append("".join(part.text for part in prompt[0].parts))
        return reddest(prompt, draw)

    body = {
        "conversation_history": [USER, LOOK, {"role": "tool", "content": "42"}],
        "response_objs": [output(RED), output(BLUE)],
    }
    with in_process(create_app(judge_of(judge), ServerOptions())) as client:
        assert client.post("/compare", json=body).status_code == 200
    assert all("Assistant: Tool call: look({})\nTool: 42" in text for text in shown)


ONE_PART = [
    [{"type": "text", "text": "Here:", "image": RED}],
    [{"type": "image", "image": RED, "text": "Here:"}],
    [{"type": "text", "value": "x" * 100_001}],
    [{"type": "text", "text": "x" * 60_000}, {"type": "text", "value": "x" * 60_000}],
]


@pytest.mark.parametrize("parts", ONE_PART, ids=["text with image", "image with text", "long value", "long together"])
def test_parts_that_would_be_cut_or_are_too_long(client: httpx.Client, parts: Any) -> None:
    body = {"question": QUESTION, "responses": [parts, "a"]}
    answers = [client.post(path, json=body) for path in ("/v1/judge", "/v1/rewards")]
    assert [answer.status_code for answer in answers] == [422, 422]
    assert all("besides" in answer.text or "longer than" in answer.text for answer in answers)


def test_an_upload_that_many_answers_name_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """2,048 readings of the same 20 MB would take a minute for a request of 100 kB."""
    read: list[str] = []

    def get(store: UploadStore, name: str) -> bytes | None:
        read.append(name)
        return get_upload(store, name)

    get_upload = UploadStore.get
    monkeypatch.setattr(UploadStore, "get", get)
    with in_process(create_app(judge_of(reddest), ServerOptions())) as client:
        name = client.post("/v1/uploads", content=encode_png(Image.new("RGB", (32, 32), "red"))).json()["id"]
        answers = [[{"type": "text", "text": str(n)}, *[{"type": "image", "image": f"upload:{name}"}] * 4] for n in range(8)]
        body = {"question": QUESTION, "responses": answers, "images": [f"upload:{name}"]}
        assert client.post("/v1/rewards", json=body).status_code == 200
    assert read == [name]


def test_a_video_that_many_answers_name_is_decoded_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    decoded: list[int] = []

    def frames(media: Media, data: bytes, *options: Any) -> tuple[bytes, ...]:
        decoded.append(len(data))
        return frames_of(media, data, *options)

    frames_of = Media.frames
    monkeypatch.setattr(Media, "frames", frames)
    data = film(tmp_path / "a.mp4", 4).read_bytes()
    video = {"type": "video", "video": f"data:video/mp4;base64,{base64.b64encode(data).decode()}"}
    body = {"question": QUESTION, "responses": [[{"type": "text", "text": str(n)}, video] for n in range(3)], "frames": 2}
    with in_process(create_app(judge_of(reddest), ServerOptions())) as client:
        assert client.post("/v1/rewards", json=body).status_code == 200
    assert decoded == [len(data)]
