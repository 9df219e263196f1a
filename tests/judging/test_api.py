"""Judges for Python programs, against real servers: what a stranger's first lines do, and what fails aloud."""

from __future__ import annotations

import asyncio
import io
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

import rewardlab
from rewardlab import AsyncJudge, ConfigError, DataError, EndpointError, SyncJudge
from rewardlab.data.images import to_data_url
from rewardlab.errors import MediaError
from rewardlab.judging.judge import GenerativeJudge
from rewardlab.prompts import load_template
from rewardlab.samplers.scripted import ScriptedSampler
from rewardlab.types import Completion, FinishReason, Message, Order, Outcome, PreferencePair
from tests.support.base_install import base_environment
from tests.support.images import png
from tests.support.judge_servers import ANSWERS, judge_servers
from tests.support.scripted_judge import ANSWERS as RESPONSES
from tests.support.scripted_judge import QUESTION
from tests.support.servers import running

PLAIN = load_template("plain")


def scripted(answer: Callable[[tuple[Message, ...], int], str | Completion], **options: Any) -> SyncJudge:
    return SyncJudge(GenerativeJudge(ScriptedSampler(answer), PLAIN), **options)


@pytest.fixture(scope="module")
def served() -> Iterator[str]:
    with judge_servers("greater") as [url]:
        yield url


def test_first_lines(demo_server: Callable[..., str], demo_pairs: Any, tmp_path: Path) -> None:
    """A remote model by its name: winner, share, consistency, reasons; the same as the parts underneath say."""
    pair = demo_pairs[0][0]
    (tmp_path / "star.png").write_bytes(pair.images[0])
    judge = rewardlab.open_judge(f"openai:demo-teacher@{demo_server()}", template="plain")
    verdict = judge.compare(pair.question, list(pair.responses), images=[tmp_path / "star.png"], votes=5)
    below = judge.engine.compare(replace(pair, pair_id="pair", preferred=None), num_votes=5)
    assert (verdict.winner, verdict.share_0, verdict.outcome) == (below.outcome.winner, below.share_0, below.outcome)
    assert [vote.text for vote in verdict.votes] == [vote.completion.text for vote in below.votes]
    assert [vote.order for vote in verdict.votes] == [Order.GIVEN] * 5 + [Order.SWAPPED] * 5
    assert all(vote.reasoning and "<" not in vote.reasoning and vote.reasoning in vote.text for vote in verdict.votes)
    assert verdict.invalid == {}
    assert not verdict.failed
    assert verdict.swap_consistent in (True, False)


def test_openai_without_an_address(demo_server: Callable[..., str], demo_pairs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked at OPENAI_BASE_URL, which its name then says; without one at OpenAI's, where nothing works without a key."""
    pair, url = demo_pairs[0][0], demo_server()
    monkeypatch.setenv("OPENAI_BASE_URL", url)
    judge = rewardlab.open_judge("openai:demo-teacher", template="plain")
    assert judge.spec == f"openai:demo-teacher@{url}"
    assert len(judge.compare(pair.question, pair.responses, images=pair.images).votes) == 2
    monkeypatch.delenv("OPENAI_BASE_URL")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ConfigError, match="set OPENAI_API_KEY"):
        rewardlab.open_judge("openai:gpt-4o")
    assert rewardlab.open_judge("openai:gpt-4o", api_key="k").spec == "openai:gpt-4o@https://api.openai.com/v1"
    with pytest.raises(ConfigError, match="expected openai:MODEL@URL"):
        rewardlab.open_judge("openai:gpt-4o@localhost:8000")


def test_an_endpoint_that_refuses_raises(demo_server: Callable[..., str], demo_pairs: Any) -> None:
    """A model that is not there, in the server's words, from every method; never a silent None."""
    pair = demo_pairs[0][0]
    judge = rewardlab.open_judge(f"openai:gpt-9@{demo_server()}", template="plain")
    ask: list[Callable[[], object]] = [
        lambda: judge.compare(pair.question, pair.responses, images=pair.images),
        lambda: judge.compare_many([pair, pair]),
        lambda: judge.rank(pair.question, pair.responses, images=pair.images),
        lambda: judge.rewards(pair.question, pair.responses, images=pair.images),
    ]
    for call in ask:
        with pytest.raises(EndpointError, match=r"no vote was answered: HTTP 404.*no model 'gpt-9'"):
            call()


def test_a_dead_judge_is_asked_once() -> None:
    """The rounds of a plan end with the first, where nothing answers; a match that fails later is a match without a winner."""
    asked: list[str] = []

    def dies(prompt: tuple[Message, ...], draw: int) -> str | Completion:
        asked.append(prompt[0].text)
        return ANSWERS["down"](prompt, draw) if len(asked) > alive else ANSWERS["greater"](prompt, draw)

    alive = 0
    with pytest.raises(EndpointError, match="too small"):
        scripted(dies).rank(QUESTION, ["1", "2", "3", "4"], plan="knockout")
    assert len(asked) == 4
    asked, alive = [], 4
    assert scripted(dies).rank(QUESTION, ["1", "2", "3", "4"], plan="knockout").undecided == 1


def test_a_pair_that_failed_among_others_shows() -> None:
    """It has no outcome and says why; an order without a valid vote leaves no outcome either."""
    judge = scripted(ANSWERS["greater"])
    good, bad = judge.compare_many(
        [{"question": QUESTION, "responses": ["1", "2"]}, {"question": "down?", "responses": ["1", "2"]}], votes=2
    )
    assert (good.winner, good.failed, good.share, good.swap_consistent) == (1, False, 1.0, True)
    assert (bad.winner, bad.failed, bad.share, bad.share_0, bad.swap_consistent) == (None, True, None, None, None)
    assert bad.invalid == {"error": 4}
    assert bad.votes[0].error == "HTTP 503"
    assert "failed: every vote; HTTP 503" in repr(bad)
    one_sided = scripted(lambda prompt, n: "?" if "Response 1: a" in prompt[0].text else "<answer>1</answer>")
    result = one_sided.compare(QUESTION, ["a", "b"])
    assert (result.outcome, result.winner, result.share_0) == (Outcome.NO_VALID_VOTE, None, None)
    assert result.invalid == {"no_verdict": 1}


def test_a_judge_of_one_place() -> None:
    """Naming what is shown first is a tie, and is not consistent."""
    result = scripted(ANSWERS["first"]).compare(QUESTION, ["a", "b"], votes=3)
    assert (result.outcome, result.winner, result.share, result.share_0) == (Outcome.TIE, None, None, 0.5)
    assert result.swap_consistent is False


def test_images_in_every_form(tmp_path: Path) -> None:
    """The judge sees the same bytes of a path, bytes, a PIL image, a data URL, a row's object."""
    seen: list[tuple[bytes, ...]] = []

    def look(prompt: tuple[Message, ...], draw: int) -> str:
        seen.append(prompt[0].images)
        return "<answer>1</answer>"

    data = png()
    (tmp_path / "a.png").write_bytes(data)
    judge = scripted(look)
    decoded = Image.open(io.BytesIO(data))
    for image in (tmp_path / "a.png", str(tmp_path / "a.png"), data, bytearray(data), to_data_url(data), {"bytes": data}):
        judge.compare(QUESTION, ["a", "b"], images=[image])
        assert seen.pop() == seen.pop() == (data,)
    judge.compare(QUESTION, ["a", "b"], images=[decoded])
    [[shown], _] = seen
    assert Image.open(io.BytesIO(shown)).tobytes() == decoded.convert("RGB").tobytes()
    clear = Image.new("RGBA", (8, 8), (255, 0, 0, 0))  # transparency is shown on white, as of a file
    judge.compare(QUESTION, ["a", "b"], images=[clear])
    assert Image.open(io.BytesIO(seen[-1][0])).convert("RGB").getpixel((0, 0)) == (255, 255, 255)


def test_urls_are_fetched_only_where_allowed() -> None:
    async def image(request: Any) -> Response:
        return Response(png())

    with running(Starlette(routes=[Route("/{path:path}", image)])) as url:
        answer = ANSWERS["first"]
        with pytest.raises(MediaError, match=r"is not fetched; allow it with allow_urls=\['http://127.0.0.1:\d+/set/'\]"):
            scripted(answer).compare(QUESTION, ["a", "b"], images=[f"{url}/set/a.png"])
        engine = scripted(answer).engine
        judge = SyncJudge(engine, rewardlab_urls(f"{url}/set/"))
        assert judge.compare(QUESTION, ["a", "b"], images=[f"{url}/set/a.png"]).pair.images == (png(),)
        for outside in (f"{url}/other/a.png", f"{url}/set/../other/a.png", "http://127.0.0.1:9/set/a.png"):
            with pytest.raises(MediaError, match="is not fetched"):
                judge.compare(QUESTION, ["a", "b"], images=[outside])
    with pytest.raises(ConfigError, match="ends with /"):
        rewardlab.open_judge("http://127.0.0.1:9", allow_urls=["https://images.host"])


def rewardlab_urls(*beginnings: str) -> Any:
    from rewardlab.data.urls import AllowedUrls

    return AllowedUrls(beginnings)


BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"responses": ["a"]}, DataError, "list of two strings"),
    ({"responses": "ab"}, DataError, "list of two strings"),
    ({"responses": ["a", "a"]}, DataError, "are equal"),
    ({"responses": ["a", " "]}, DataError, "a response is empty"),
    ({"responses": ["a", 3]}, DataError, "expected a string, a list of"),
    ({"question": " "}, DataError, "the question is empty"),
    ({"question": None}, DataError, "question is empty"),
    ({"images": [3]}, MediaError, "expected the path of the image, its bytes"),
    ({"images": [b"no image"]}, MediaError, "not a readable image"),
    ({"images": ["none.png"]}, MediaError, "none.png: cannot be read"),
    ({"images": ["http://[bad/a.png"]}, MediaError, "is not fetched"),
    ({"videos": [b"no video"]}, MediaError, "video"),
    ({"votes": 0}, ConfigError, "votes is 0"),
    ({"votes": True}, ConfigError, "votes is True"),
]


@pytest.mark.parametrize(("changes", "kind", "said"), BAD, ids=[str(changes)[:40] for changes, _, _ in BAD])
def test_what_cannot_be_judged_is_refused(changes: dict[str, Any], kind: type[Exception], said: str) -> None:
    values = {"question": QUESTION, "responses": ["a", "b"]} | changes
    with pytest.raises(kind, match=said):
        scripted(ANSWERS["first"]).compare(values.pop("question"), values.pop("responses"), **values)


def test_pairs_of_many_kinds_in_one_call() -> None:
    """Rows with a data file's columns, and pairs; one call of the engine for all; a bad one is named by its number."""
    calls: list[int] = []
    judge = scripted(ANSWERS["greater"])
    engine, sample = judge.engine, judge.engine.sampler.sample  # type: ignore[attr-defined]

    def counted(prompts: Any, params: Any) -> Any:
        calls.append(len(prompts))
        return sample(prompts, params)

    engine.sampler.sample = counted  # type: ignore[attr-defined]
    parts = [{"type": "text", "text": "I see 7 "}, {"type": "image", "image": png()}]
    rows = [
        PreferencePair("mine", QUESTION, ("5", "4"), 1),
        {"question": QUESTION, "responses": ["1", "2"], "images": [png()], "preferred": 0, "category": "x"},
        {"question": QUESTION, "responses": [parts, "I say 9"]},
    ]
    results = judge.compare_many(rows)
    assert calls == [6]
    assert [result.winner for result in results] == [0, 1, 1]
    assert [result.pair.pair_id for result in results] == ["mine", "row-1", "row-2"]
    assert results[2].pair.response_images == ((png(),), ())
    assert judge.compare_many([]) == []
    with pytest.raises(DataError, match="pair 1: 'responses'"):
        judge.compare_many([rows[0], {"question": QUESTION}])
    with pytest.raises(DataError, match="pair 0: expected a PreferencePair or a row"):
        judge.compare_many(["text"])  # type: ignore[list-item]


def test_rank_and_rewards(served: str) -> None:
    """The best of N by any plan; rewards are those of the endpoint's /v1/rewards, by every strategy."""
    judge = scripted(ANSWERS["greater"])
    for plan in ("adaptive", "knockout", "round_robin", "circular"):
        assert judge.rank(QUESTION, RESPONSES, plan=plan).best == 1
    for strategy in ("all_pairs", "circular", "knockout", "bradley_terry", "anchor"):
        more = {"strategy": strategy, "anchor": "I say 2." if strategy == "anchor" else None}
        body = {"question": QUESTION, "responses": RESPONSES, "votes": 2, **more}
        expected = httpx.post(f"{served}/v1/rewards", json=body).json()["rewards"]
        assert judge.rewards(QUESTION, RESPONSES, votes=2, **more) == expected  # type: ignore[arg-type]
    assert judge.rewards(QUESTION, ["", "2"]) == [-1.0, 1.0]  # policies write such
    with pytest.raises(ConfigError, match="unknown strategy"):
        judge.rewards(QUESTION, RESPONSES, strategy="lottery")
    with pytest.raises(ConfigError, match="needs an anchor"):
        judge.rewards(QUESTION, RESPONSES, strategy="anchor")
    with pytest.raises(DataError, match="give two or more"):
        judge.rank(QUESTION, ["a"])


def test_one_order_alone_ranks_nobody() -> None:
    """By every plan: a match of which an order failed names no winner."""

    def one_sided(prompt: tuple[Message, ...], draw: int) -> str | Completion:
        one, other = (text.split("\n")[0] for text in prompt[0].text.split("Response ")[-2:])
        return ANSWERS["greater" if one[-1] < other[-1] else "down"](prompt, draw)

    for plan in ("adaptive", "knockout", "round_robin", "circular", "anchored"):
        ranking = scripted(one_sided).rank(QUESTION, ["1", "2", "3"], plan=plan)
        assert (ranking.best, ranking.undecided) == (None, ranking.num_matches)


def test_what_could_not_be_judged_has_no_reward() -> None:
    """None, not 0: of a response whose every match was unreadable in an order."""

    def silent(prompt: tuple[Message, ...], draw: int) -> str | Completion:
        return "?" if "Response 1: x" in prompt[0].text else ANSWERS["greater"](prompt, draw)

    assert scripted(silent).rewards(QUESTION, ["x", "1", "2"]) == [None, -1.0, 1.0]


def test_repr_is_short_and_the_page_is_safe() -> None:
    """No token ids, no megabytes; a hostile response stays text on the page, and the votes of each order are there."""
    hostile = "<script>alert(1)</script>'\"><img src=x onerror=alert(1)>"

    def write(prompt: tuple[Message, ...], draw: int) -> Completion:
        text = f"<think>{hostile}</think><answer>1</answer>"
        return Completion(text, FinishReason.STOP, 9, token_ids=tuple(range(9000)), logprobs=(0.0,) * 9000)

    result = scripted(write).compare(hostile, [hostile, "b" * 5000], images=[png((2000, 1000))], votes=2)
    assert len(repr(result)) < 500
    assert len(repr(result).splitlines()) == 4
    assert len(repr(result.votes)) < 1000
    page = result._repr_html_()
    assert "<script" not in page
    assert "<img src=x" not in page
    assert page.count("&lt;script&gt;alert(1)&lt;/script&gt;") == 2 + 4
    assert page.index("response 0 shown first") < page.index("response 1 shown first")
    assert page.count("<details") == 4
    assert "data:image/jpeg;base64," in page  # a thumbnail, not two megapixels
    assert "http" not in page.replace(hostile, "")


def test_reasoning_of_other_formats() -> None:
    """Within the tags, to the end where they are not closed, and all of it without them."""
    for text, reasoning in [
        ("<think> a </think><answer>1</answer>", "a"),
        ("<think>cut off", "cut off"),
        ("Because.\n[[A]]", "Because.\n[[A]]"),
        ("", ""),
    ]:
        result = scripted(lambda prompt, n, text=text: text).compare(QUESTION, ["a", "b"])  # type: ignore[misc]
        assert result.votes[0].reasoning == reasoning


@pytest.mark.slow
def test_async_calls_run_at_the_same_time() -> None:
    """Four requests of sixteen calls reach a remote judge before it has answered any of them."""
    together, calling = threading.Barrier(4), True

    def slow(prompt: tuple[Message, ...], draw: int) -> str | Completion:
        if calling:
            together.wait(60)
        return ANSWERS["greater"](prompt, draw)

    from rewardlab.serving.app import create_app
    from rewardlab.serving.schedule import QueueOptions
    from rewardlab.serving.service import ServerOptions

    app = create_app(
        GenerativeJudge(ScriptedSampler(slow), PLAIN), ServerOptions(queue=QueueOptions(num_threads=64, max_sequences=1))
    )

    async def all_of_them(url: str) -> list[Any]:
        judge = rewardlab.open_async_judge(f"openai:judge@{url}/v1", template="plain")
        await judge.check()
        calls = [judge.compare(QUESTION, [f"{n}", "100"]) for n in range(16)]
        nonlocal calling
        results = await asyncio.gather(*calls)
        calling = False
        return [
            *results,
            await judge.rewards(QUESTION, ["1", "2"]),
            await judge.rank(QUESTION, ["1", "2"]),
        ]

    with running(app) as url:
        *results, rewards, ranking = asyncio.run(all_of_them(url))
    assert [result.winner for result in results] == [1] * 16
    assert (rewards, ranking.best) == ([-1.0, 1.0], 1)


def test_async_calls_of_a_local_judge_take_turns() -> None:
    """An engine that computes here is never called by two threads, and errors come to who awaits."""
    inside, most = 0, 0

    class Local(ScriptedSampler):
        is_batch_invariant = False  # type: ignore[assignment]

    def answer(prompt: tuple[Message, ...], draw: int) -> str:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        time.sleep(0.01)
        inside -= 1
        return "<answer>1</answer>"

    judge = AsyncJudge(SyncJudge(GenerativeJudge(Local(answer), PLAIN)))

    async def run() -> None:
        await asyncio.gather(*(judge.compare_many([{"question": QUESTION, "responses": ["a", "b"]}]) for _ in range(5)))
        with pytest.raises(DataError):
            await judge.compare(QUESTION, ["a"])

    asyncio.run(run())
    assert most == 1


BASE_INSTALL = """
import rewardlab
judge = rewardlab.open_judge({spec!r}, template="plain")
image = {image!r}
responses = {responses!r}
result = judge.compare({question!r}, responses, images=[image], votes=3)
assert result.winner in (0, 1, None) and len(result.votes) == 6 and result._repr_html_(), result
assert len(judge.rewards({question!r}, responses, images=[image], votes=3)) == 2
assert judge.rank({question!r}, responses, images=[image], plan="knockout").num_matches == 1
for use in (lambda: rewardlab.open_judge("hf:{checkpoint}"), lambda: rewardlab.train_sft):
    try:
        use()
    except rewardlab.RewardlabError as error:
        assert isinstance(error, ImportError) and "pip install 'rewardlab[" in str(error), error
    else:
        raise AssertionError(use)
print("done")
"""


@pytest.mark.slow
def test_the_base_install_is_enough(demo_server: Callable[..., str], demo_pairs: Any, tmp_path: Path) -> None:
    """A remote judge compares, rewards and ranks where the base install alone can be imported; what needs more says so."""
    pair = demo_pairs[0][0]
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    code = BASE_INSTALL.format(
        checkpoint=tmp_path / "model",
        spec=f"openai:demo-teacher@{demo_server()}",
        image=to_data_url(pair.images[0]),
        question=pair.question,
        responses=list(pair.responses),
    )
    environment = base_environment(tmp_path / "base")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stdout.strip()) == (0, "done"), done.stderr


BAD_OPTIONS: list[dict[str, Any]] = [
    {"temperature": "x"},
    {"temperature": float("inf")},
    {"temperature": None},
    {"top_p": 1.5},
    {"max_tokens": 1.5},
    {"batch_size": 0},
]


@pytest.mark.parametrize("options", BAD_OPTIONS, ids=str)
def test_options_that_cannot_be(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(options))}: Input should be"):
        rewardlab.open_judge("openai:m@http://127.0.0.1:9/v1", **options)


def test_a_judge_is_given_by_its_name(tmp_path: Path) -> None:
    """Not by an object: a sentence."""
    (tmp_path / "pairs.jsonl").write_text('{"pair_id": "p", "question": "Which?", "responses": ["a", "b"], "preferred": 0}')
    for judge in (scripted(ANSWERS["first"]), None, Path("runs/rl/final")):
        with pytest.raises(ConfigError, match="is not a judge's spec; expected a spec"):
            rewardlab.open_judge(judge)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="is not a judge's spec; expected a spec"):
            rewardlab.benchmark("pairs", data=tmp_path / "pairs.jsonl", judge=judge, out=tmp_path / "out")  # type: ignore[arg-type]
