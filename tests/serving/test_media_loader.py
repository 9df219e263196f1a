"""Media of many requests at a time: within one budget of memory, at the size the judge looks at, ended with who waits."""

from __future__ import annotations

import asyncio
import base64
import gc
import io
import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from rewardlab.data.images import decode_image, to_data_url
from rewardlab.errors import MediaError
from rewardlab.judging.judge import GenerativeJudge
from rewardlab.prompts import load_template
from rewardlab.samplers.scripted import ScriptedSampler
from rewardlab.serving.admission import SHARE, Admission
from rewardlab.serving.app import create_app
from rewardlab.serving.errors import RequestTooLargeError
from rewardlab.serving.limits import Limits
from rewardlab.serving.media import Media, MediaLoader, WorkBudget, processor_pixels, run_in_thread
from rewardlab.serving.request_record import REQUEST, RequestRecord
from rewardlab.serving.service import ServerOptions
from rewardlab.types import Message
from tests.support.images import png
from tests.support.servers import running
from tests.support.serving import in_process
from tests.support.videos import film


class CountedMedia(Media):
    """Counts how many images and videos are decoded at a time, and how many bytes of images were read and are not yet decoded;
    ``data`` is what every reference stands for, if given."""

    def __init__(self, data: bytes | None = None) -> None:
        super().__init__()
        self.data, self.lock, self.now, self.most, self.encoded, self.most_encoded = data, threading.Lock(), 0, 0, 0, 0

    def read(self, reference: str, where: str, *, video: bool = False) -> bytes:
        data = self.data or super().read(reference, where, video=video)
        with self.lock:
            self.encoded += len(data)
            self.most_encoded = max(self.most_encoded, self.encoded)
        return data

    def plain(self, data: bytes, where: str, kept_pixels: int | None = None) -> bytes:
        self._work()
        image = super().plain(data, where, kept_pixels)
        with self.lock:
            self.encoded -= len(data)
        return image

    def frames(self, *args: Any, **options: Any) -> tuple[bytes, ...]:
        self._work()
        return ()

    def _work(self) -> None:
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
        time.sleep(0.02)
        with self.lock:
            self.now -= 1


@pytest.mark.parametrize(("room", "most"), [(8 * 100 * 100, 1), (3 * 8 * 100 * 100, 3)])
def test_images_are_decoded_within_a_budget(room: int, most: int) -> None:
    """Twelve at once, and no more of them at a time than there is room for."""
    media = CountedMedia()

    async def main() -> None:
        loader = MediaLoader(media, Limits(decoding_bytes=room))
        url = to_data_url(png((100, 100)))
        images = await asyncio.gather(*(loader.images([url]) for _ in range(12)))
        assert images == [(png((100, 100)),)] * 12

    asyncio.run(main())
    assert media.most == most


def test_encoded_images_are_held_within_a_budget() -> None:
    """Thirty of 5 MB at once: what was read and waits to be decoded stays within the budget, and all of them come."""
    media = CountedMedia(png((100, 100)) + bytes(5_000_000))

    async def main() -> None:
        loader = MediaLoader(media, Limits(decoding_bytes=30_000_000))
        images = await asyncio.gather(*(loader.images(["upload:x"]) for _ in range(30)))
        assert len(images) == 30

    asyncio.run(main())
    assert 10_000_000 < media.most_encoded <= 30_000_000


@pytest.mark.parametrize("kind", ["images", "frames"])
def test_who_leaves_a_thread_behind_leaves_its_room_taken(kind: str, short_video: bytes) -> None:
    """Ten that are cancelled while a thread decodes: never two threads at a time, and then there is room."""
    media = CountedMedia(png((100, 100)) if kind == "images" else short_video)

    async def main() -> None:
        loader = MediaLoader(media, Limits(decoding_bytes=8 * 100 * 100))
        load = partial(loader.images, ["upload:x"]) if kind == "images" else partial(loader.frames, "upload:x", 8)
        for _ in range(10):
            task = asyncio.create_task(load())
            await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        async with asyncio.timeout(1):
            await load()

    asyncio.run(main())
    assert media.most == 1


@pytest.mark.parametrize(("room", "most"), [(400_000, 2), (400_000_000, 4)])
def test_videos_take_what_their_size_needs(room: int, most: int, short_video: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of eight small ones as many at a time as fit, and as there may be; a picture waits for none of them."""
    monkeypatch.setattr("rewardlab.serving.media.VIDEOS_AT_A_TIME", 4)
    released, media = threading.Event(), CountedMedia()
    url = "data:video/mp4;base64," + base64.b64encode(short_video).decode()

    def wait(*args: Any) -> tuple[bytes, ...]:
        with media.lock:
            media.now += 1
        released.wait(5)
        return ()

    monkeypatch.setattr(media, "frames", wait)

    async def main() -> None:
        loader = MediaLoader(media, Limits(decoding_bytes=room))
        videos = [asyncio.create_task(loader.frames(url, 8)) for _ in range(8)]
        async with asyncio.timeout(3):
            while media.now < most:
                await asyncio.sleep(0.005)
        try:
            async with asyncio.timeout(2):
                await loader.images([to_data_url(png())])
            assert media.now == most
        finally:
            released.set()
            await asyncio.gather(*videos)

    asyncio.run(main())


def test_a_thread_that_fails_for_nobody(caplog: pytest.LogCaptureFixture) -> None:
    """Its room is free again, and nothing complains of an error that nobody has looked at."""

    def fail(is_stopped: Callable[[], bool]) -> None:
        time.sleep(0.02)
        raise MediaError("nobody reads this")

    async def main() -> None:
        budget = WorkBudget(10)

        async def work() -> None:
            async with budget.taken(10) as room:
                await run_in_thread(fail, room)

        task = asyncio.create_task(work())
        await asyncio.sleep(0.01)
        task.cancel()
        async with asyncio.timeout(1), budget.taken(10):
            assert task.cancelled()
        await asyncio.sleep(0)
        gc.collect()

    asyncio.run(main())
    assert not caplog.records


def test_a_budget_is_taken_in_turn() -> None:
    """Large work waits for its turn and gets it before what came later; who leaves the line is not waited for."""

    async def main() -> None:
        budget, order = WorkBudget(10), list[str]()

        async def work(name: str, size: int) -> None:
            async with budget.taken(size):
                order.append(name)
                await asyncio.sleep(0.01)

        names = {"a": 6, "large": 100, "left": 10, "b": 6}
        tasks = {name: asyncio.create_task(work(name, size)) for name, size in names.items()}
        await asyncio.sleep(0)
        tasks["left"].cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)
        assert order == ["a", "large", "b"]
        async with asyncio.timeout(1), budget.taken(10):
            pass

    asyncio.run(main())


def test_tenants_take_turns() -> None:
    """Who comes later with less is next, however much another has waiting; one tenant's slow hosts leave half to others."""

    async def work(budget: WorkBudget, order: list[str], tenant: str) -> None:
        REQUEST.set(RequestRecord(tenant=tenant))
        async with budget.taken(6):
            order.append(tenant)
            await asyncio.sleep(0.01)

    async def main() -> None:
        budget, order = WorkBudget(10), list[str]()
        await asyncio.gather(*(work(budget, order, tenant) for tenant in "aaaabb"))
        assert "".join(order) == "aababa"
        slow, order = WorkBudget(24, 12), []
        held = [asyncio.create_task(work(slow, order, "a")) for _ in range(4)]
        await asyncio.sleep(0)
        await work(slow, order, "b")
        assert "".join(order[:3]) == "aab"
        await asyncio.gather(*held)

    asyncio.run(main())


def test_hosts_that_do_not_answer_hold_up_their_own_key() -> None:
    """Forty URLs of one key whose host sends no header: another key's URL and its data come at once."""
    released = threading.Event()

    async def answer(request: Request) -> Response:
        while request.url.path.startswith("/slow") and not released.is_set():
            await asyncio.sleep(0.02)
        return Response(png((20, 20)))

    async def main(url: str) -> None:
        loader = MediaLoader(Media(allowed_urls=[f"{url}/"]), Limits())

        async def load(tenant: str, reference: str) -> None:
            REQUEST.set(RequestRecord(tenant=tenant))
            await loader.images([reference])

        slow = [asyncio.create_task(load("a", f"{url}/slow/{n}.png")) for n in range(40)]
        await asyncio.sleep(0.2)
        try:
            async with asyncio.timeout(10):
                await load("b", f"{url}/quick.png")
                await load("b", to_data_url(png((20, 20))))
                await load("a", to_data_url(png((30, 30))))
            assert not any(task.done() for task in slow)
        finally:
            released.set()
        await asyncio.gather(*slow)

    with running(Starlette(routes=[Route("/{path:path}", answer)])) as url:
        asyncio.run(main(url))


def test_small_pictures_wait_for_no_large_ones() -> None:
    """Nor do data wait for hosts that do not answer."""
    media, order = CountedMedia(), list[str]()

    async def main() -> None:
        loader = MediaLoader(media, Limits(decoding_bytes=8 * 1000 * 1000))
        large, small = (to_data_url(png(size)) for size in ((900, 900), (20, 20)))

        async def load(name: str, url: str) -> None:
            await loader.images([url])
            order.append(name)

        await asyncio.gather(*(load("large", large) for _ in range(6)), load("small", small))

    asyncio.run(main())
    assert order.index("small") <= 1


def test_what_the_processor_uses_is_kept(tiny_checkpoint: Path) -> None:
    """A judge here says how much; what arrives at the sampler is no larger than four times that."""
    kept = processor_pixels(judge(f"hf:{tiny_checkpoint}"))
    assert kept is not None
    assert processor_pixels(judge("openai:m@http://localhost:1/v1")) is None

    async def main() -> None:
        [image] = await MediaLoader(Media(), Limits(), kept).images([to_data_url(png((2000, 1500)))])
        width, height = decode_image(image).size
        assert kept <= width * height < 5 * kept

    asyncio.run(main())


def judge(name: str = "scripted") -> GenerativeJudge:
    def first(prompt: tuple[Message, ...], draw: int) -> str:
        return "<think>x</think><answer>1</answer>"

    return GenerativeJudge(ScriptedSampler(first, name), load_template("plain"), judge=name)


def test_images_count_as_bytes_that_are_held() -> None:
    """Also those that are not in the body of the request; each once."""

    async def main() -> None:
        media = Media()
        name, other = media.upload(png((200, 200))), media.upload(png((200, 201)))
        share = Admission(Limits(held_bytes=len(png((200, 200))) + 10)).open("")
        SHARE.set(share)
        loader = MediaLoader(media, Limits())
        await loader.images([f"upload:{name}"] * 2)
        with pytest.raises(RequestTooLargeError, match="held_bytes"):
            await loader.images([f"upload:{other}"])

    asyncio.run(main())


@pytest.fixture(scope="module")
def short_video(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return film(tmp_path_factory.mktemp("video") / "a.mp4", 3).read_bytes()


@pytest.fixture
def video(tmp_path: Path) -> bytes:
    return film(tmp_path / "a.mp4", 600).read_bytes()


def test_a_video_of_too_much_work(video: bytes) -> None:
    """A sentence, at the door of requests and of uploads."""
    limits = Limits(video_seconds=0.001)
    body: dict[str, Any] = {"question": "q", "responses": ["a", "b"]}
    body["videos"] = ["upload:" + Media().upload(video, video=True)]
    with in_process(create_app(judge(), ServerOptions(limits=limits))) as client:
        answer = client.post("/v1/uploads", content=video, headers={"Content-Type": "video/mp4"})
        image = client.post("/v1/uploads", content=png())
        assert client.post("/v1/judge", content=json.dumps(body)).status_code == 422
    assert (answer.status_code, "takes more than 0.001 s" in answer.text, image.status_code) == (422, True, 200)


def test_a_deadline_holds_for_media(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second for what takes longer to decode is a 504 after a second, natively, line by line and for a framework's group."""
    released, media, url = threading.Event(), Media(), to_data_url(png())
    monkeypatch.setattr(media, "plain", lambda *_: (released.wait(6), png())[1])
    common = {"images": [url], "timeout_s": 1, "question": "q", "responses": ["a", "b"]}
    group = {"query": {"text": "Which?", "image": url}, "documents": ["a", "b"]}
    bodies = {"/v1/judge": common, "/v1/rewards": common, "/v1/judge/live": common, "/rerank": group}

    def post(path: str) -> tuple[str, float]:
        begun = time.monotonic()
        return httpx.post(url_of + path, json=bodies[path], timeout=30).text, time.monotonic() - begun

    app = create_app(judge(), ServerOptions(media=media, limits=Limits(timeout=1.0)))
    with running(app) as url_of, ThreadPoolExecutor(4) as pool:
        try:
            for text, seconds in pool.map(post, bodies):
                assert "toolate" in text
                assert "not decoded by the deadline" in text
                assert seconds < 5
        finally:
            released.set()


def test_uploads_are_stored_as_they_are() -> None:
    """A folder of uploads may serve a judge that looks at more."""
    buffer = io.BytesIO()
    Image.new("RGB", (900, 900)).save(buffer, format="PNG")

    async def main() -> None:
        loader = MediaLoader(Media(), Limits(), kept_pixels=900)
        name = await loader.upload(buffer.getvalue(), video=False)
        assert loader.media.read(f"upload:{name}", "") == buffer.getvalue()
        [image] = await loader.images([f"upload:{name}"])
        assert decode_image(image).size == (30, 30)

    asyncio.run(main())


def test_images_that_were_checked_before_leave_turns_to_others() -> None:
    async def main() -> int:
        loader, turns = MediaLoader(Media(), Limits()), 0
        urls = [to_data_url(png(size)) for size in ((4, 4), (5, 5), (6, 6))]
        await loader.images(urls)

        async def count() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        counting = asyncio.create_task(count())
        await loader.images(urls)
        counting.cancel()
        return turns

    assert asyncio.run(main()) >= 2
