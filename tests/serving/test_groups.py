"""Groups whose responses come one at a time, at one server and at several."""

from __future__ import annotations

import asyncio
import gc
import json
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from typer.testing import CliRunner

from rewardlab.cli import app
from rewardlab.errors import ConfigError, DataError
from rewardlab.judging.judge import GenerativeJudge
from rewardlab.prompts import load_template
from rewardlab.samplers.scripted import ScriptedSampler
from rewardlab.serving.auth import Key
from rewardlab.serving.conversations import Sample
from rewardlab.serving.errors import EngineFailedError, GroupTimeoutError, OverloadedError, PeerError
from rewardlab.serving.judge_versions import JudgeVersion
from rewardlab.serving.limits import Limits
from rewardlab.serving.peers import JOIN_PATH, Peers
from rewardlab.serving.service import GroupRules
from rewardlab.serving.voting import GroupBuffer
from rewardlab.types import Message
from tests.support.scripted_judge import ANSWERS, CHATML, handler
from tests.support.served_judge import replace, served
from tests.support.servers import free_port, running
from tests.support.serving import app_of
from tests.support.virtual_time import run_virtually

Buffer = GroupBuffer[int, float]


async def halves(members: list[int]) -> list[float]:
    return [member / 2 for member in members]


def buffer_of(
    size: int = 2, timeout_s: float = 60.0, reward: Callable[[list[int]], Awaitable[list[float]]] = halves
) -> GroupBuffer[int, float]:
    return GroupBuffer(reward, size=size, timeout_s=timeout_s)


def joined(buffer: Buffer, key: str, *members: int) -> list[asyncio.Task[float]]:
    return [asyncio.create_task(buffer.join(key, member)) for member in members]


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def outcomes(*tasks: asyncio.Task[float]) -> list[Any]:
    return await asyncio.gather(*tasks, return_exceptions=True)


def test_groups_that_wait() -> None:
    """Members of a key wait for each other and get their own reward; one that stays short is dissolved, in time."""

    async def main() -> None:
        asked: list[list[int]] = []

        async def reward(members: list[int]) -> list[float]:
            asked.append(members)
            return [float(member) for member in members]

        buffer = buffer_of(3, 0.2, reward)
        full = joined(buffer, "a", 1, 2, 3)
        begun = time.monotonic()
        with pytest.raises(GroupTimeoutError, match=r"only 1 of 3 responses to this prompt came within 0\.2 s; .*--group-size"):
            await buffer.join("b", 4)
        assert time.monotonic() - begun < 5
        assert await asyncio.gather(*full) == [1, 2, 3]
        gone = asyncio.create_task(buffer.join("c", 5))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.sleep(0)
        assert await asyncio.gather(*joined(buffer, "c", 6, 7, 8)) == [6, 7, 8]
        assert asked == [[1, 2, 3], [6, 7, 8]]
        assert buffer.num_dissolved == 1
        await outcomes(*joined(buffer, "d", 1, 2))
        assert (buffer.num_dissolved, buffer.num_waiting) == (2, 0)

    asyncio.run(main())


def test_the_timer_of_a_full_group_ends_no_later_one() -> None:
    async def main() -> list[float]:
        buffer = buffer_of(2, 0.6)
        assert await asyncio.gather(*joined(buffer, "key", 2, 4)) == [1, 2]
        await asyncio.sleep(0.4)
        third = asyncio.create_task(buffer.join("key", 6))
        await asyncio.sleep(0.4)  # the timer of the first two has rung
        return await asyncio.gather(third, buffer.join("key", 8))

    assert run_virtually(main()) == [3, 4]


def test_who_hangs_up_makes_room() -> None:
    """Of an open group a member is forgotten, and the others wait on; the last one takes the group along."""

    async def main() -> None:
        buffer = buffer_of(3)
        first, second = joined(buffer, "a", 2, 4)
        await settle()
        first.cancel()
        await settle()
        assert buffer.num_waiting == 1
        assert await asyncio.gather(second, *joined(buffer, "a", 6, 8)) == [2, 3, 4]
        [alone] = joined(buffer, "a", 1)
        await settle()
        alone.cancel()
        await settle()
        assert (buffer.num_waiting, buffer._open) == (0, {})

    asyncio.run(main())


def test_rewarding_ends_with_the_last_member() -> None:
    """While one is left it goes on: the others are compared with those who hung up."""

    async def main() -> None:
        ended = asyncio.Event()

        async def reward(members: list[int]) -> list[float]:
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()
            return []

        buffer = buffer_of(2, reward=reward)
        members = joined(buffer, "a", 0, 1)
        await asyncio.sleep(0.01)
        members[0].cancel()
        await asyncio.sleep(0.01)
        assert not ended.is_set()
        assert len(buffer._tasks) == 1  # kept from the garbage collector
        members[1].cancel()
        await asyncio.wait_for(ended.wait(), 5)
        await settle()
        assert not buffer._tasks

    asyncio.run(main())


def test_who_hangs_up_and_comes_back() -> None:
    """Everyone left, and sends the same again before the engine has stopped: a new group, in which each is known again."""
    calls: list[list[int]] = []

    async def reward(members: list[int]) -> list[float]:
        calls.append(members)
        try:
            await asyncio.sleep(3600 if len(calls) == 1 else 1)
        finally:
            await asyncio.sleep(0.01)
        return [member / 2 for member in members]

    async def main() -> list[float]:
        buffer = buffer_of(2, reward=reward)

        def sent(value: int) -> asyncio.Task[float]:
            return asyncio.create_task(buffer.join("a", value, f"r{value}"))

        lost = [sent(2), sent(4)]
        await settle()
        for task in lost:
            task.cancel()
        await settle()
        first, second = sent(2), sent(4)
        await asyncio.sleep(0.5)  # the first call has ended
        return await asyncio.wait_for(asyncio.gather(first, second, sent(2)), 10)

    assert run_virtually(main()) == [1, 2, 1]
    assert calls == [[2, 4]] * 2


@pytest.mark.parametrize("rewards", [[1.0], [1.0, 2.0, 3.0], ValueError("no")])
def test_a_failure_is_every_members(rewards: Any) -> None:
    """So are rewards that are too few or too many: nobody has one that may be another's, nobody waits for ever."""

    async def reward(members: list[int]) -> list[float]:
        if isinstance(rewards, Exception):
            raise rewards
        return rewards

    async def main() -> list[Any]:
        return await asyncio.wait_for(outcomes(*joined(buffer_of(2, reward=reward), "a", 1, 2)), 5)

    assert [type(outcome) for outcome in asyncio.run(main())] == [ValueError, ValueError]


def test_a_rollout_that_is_sent_again() -> None:
    """By its name it is one member while it waits, while its group is rewarded, and, if the name is unique or nobody waited for
    the answer, afterwards; another text of the same name is another member. Without a name it gets its first reward when its
    group does not fill."""
    calls: list[list[int]] = []
    gate = asyncio.Event()

    async def reward(members: list[int]) -> list[float]:
        calls.append(members)
        await gate.wait()
        return [member / 2 for member in members]

    async def main() -> None:
        buffer = buffer_of(3, reward=reward)

        def sent(value: int, name: str = "") -> asyncio.Task[float]:
            return asyncio.create_task(buffer.join("a", value, name))

        first, again, other = sent(2, "r0"), sent(2, "r0"), sent(4, "key 0")
        await settle()
        first.cancel()  # its client has gone; the second request is of the same member
        third = sent(6, "r2")
        await settle()
        late = sent(6, "r2")
        await settle()
        assert calls == [[2, 4, 6]]
        gate.set()
        assert await asyncio.gather(again, other, third, late) == [1, 2, 3, 3]
        now = asyncio.get_running_loop().time()
        assert await sent(4, "key 0") == 2
        assert asyncio.get_running_loop().time() == now  # at once
        assert buffer.num_waiting == 0
        assert await asyncio.gather(sent(2), sent(6)) == [1, 3]  # after the timeout
        assert buffer.num_dissolved == 0
        lost = await outcomes(sent(2), sent(8))
        assert [type(one) for one in lost] == [GroupTimeoutError] * 2
        await asyncio.sleep(600)
        assert [type(one) for one in await outcomes(sent(2))] == [GroupTimeoutError]
        assert calls == [[2, 4, 6]]

    run_virtually(main())


def test_a_new_rollout_of_an_old_number() -> None:
    """The same prompt again, as in the next validation: answers that were delivered are no answers to it, even where its text
    is an earlier one. Who had gone before the answer came gets it."""
    calls: list[list[int]] = []

    async def reward(members: list[int]) -> list[float]:
        calls.append(members)
        await asyncio.sleep(1)
        return [member / 2 for member in members]

    async def main() -> None:
        buffer = buffer_of(2, reward=reward)
        first, second = (asyncio.create_task(buffer.join("a", n, f"rollout {n}")) for n in (2, 4))
        await asyncio.sleep(0.5)
        second.cancel()
        assert await first == 1
        now = asyncio.get_running_loop().time()
        assert await buffer.join("a", 4, "rollout 4") == 2
        assert asyncio.get_running_loop().time() == now  # at once
        assert await asyncio.gather(buffer.join("a", 2, "rollout 2"), buffer.join("a", 6, "rollout 4")) == [1, 3]

    run_virtually(main())
    assert calls == [[2, 4], [2, 6]]


def test_so_many_rewards_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the last groups; who was displaced waits for a group, as a new response does."""
    monkeypatch.setattr("rewardlab.serving.voting.KEPT_REWARDS", 8)

    async def main() -> None:
        buffer = buffer_of(2)
        for key in "abca":  # two names and two digests of each: of two groups
            assert await asyncio.gather(*(buffer.join(key, n, f"key {n}") for n in (2, 4))) == [1, 2]
        assert await buffer.join("a", 2, "key 2") == await buffer.join("c", 2, "key 2") == 1
        assert [type(one) for one in await outcomes(asyncio.create_task(buffer.join("b", 2, "key 2")))] == [GroupTimeoutError]

    run_virtually(main())


@pytest.mark.parametrize("limit", ["group_timeout", "timeout"])
def test_an_error_holds_nothing_of_its_request(limit: str) -> None:
    """Without a search for cycles, which a busy server does every half hour."""

    def slow(prompt: tuple[Message, ...], draw: int) -> str:
        time.sleep(0.2)
        return "<answer>1</answer>"

    limits = Limits(group_timeout=0.1) if limit == "group_timeout" else Limits(timeout=1)
    size, number = (3, 2) if limit == "group_timeout" else (2, 8)
    queries = [f"{CHATML.format(q='Which is held?')}{n}" for n in range(number)]
    with running(app_of(slow, rules=GroupRules(group_size=size, joins_parts=True), limits=limits)) as url:
        gc.collect()
        gc.disable()
        try:
            answers = [httpx.post(f"{url}/get_reward", json={"query": queries}, timeout=60).status_code for _ in range(2)]
            assert answers == [408 if limit == "group_timeout" else 504] * 2
            assert not [one for one in gc.get_objects() if type(one) is Sample]
        finally:
            gc.enable()


def test_a_server_that_stops() -> None:
    """Who waits for a group and who comes later is sent elsewhere; a full group is rewarded."""

    async def main() -> None:
        buffer = buffer_of()
        full, short = joined(buffer, "a", 2, 4), joined(buffer, "b", 6)
        await asyncio.sleep(0)
        buffer.close()
        later = joined(buffer, "b", 8)
        assert await asyncio.gather(*full) == [1, 2]
        for task in (*short, *later):
            with pytest.raises(EngineFailedError) as caught:
                await task
            assert str(caught.value) == "the server is shutting down before the group is full; send its responses again"
        assert buffer.num_waiting == 0

    asyncio.run(main())


PLAIN = load_template("plain")
KEY, HEADERS = "schlüssel", {"Authorization": "Bearer schlüssel".encode()}  # with a letter beyond ASCII


@pytest.fixture(scope="module")
def pair() -> Iterator[dict[str, ExitStack]]:
    """Two servers by their address, which know each other; each ends with its stack."""
    ports = [free_port() for _ in range(2)]
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    with ExitStack() as both:
        servers = {}
        for url, port in zip(urls, ports, strict=True):
            rules, limits = GroupRules(group_size=3), Limits(group_timeout=1.0)
            served = app_of(handler, keys=[Key.of(KEY)], rules=rules, limits=limits, peers=Peers(url, urls, wait_s=10))
            servers[url] = both.enter_context(ExitStack())
            servers[url].enter_context(running(served, port=port))
        yield servers


def ask(url: str, question: str, answer: str, **headers: str) -> httpx.Response:
    prompt = CHATML.format(q=question)
    body = {"query": [prompt + answer], "prompts": [prompt], "labels": ["red"]}
    return httpx.post(f"{url}/get_reward", json=body, headers=HEADERS | headers, timeout=60)


def question_at(home: str, urls: list[str]) -> str:
    """A question whose group meets at a server."""
    from rewardlab.serving.conversations import Sample

    peers = Peers(urls[0], urls, wait_s=1)
    return next(text for n in range(100) if peers.home_of(Sample(text := f"What is number {n}?", "").key) == home)


def test_samples_meet_wherever_they_are_sent(pair: dict[str, Any]) -> None:
    """Every way of splitting a group over the servers ends in the rewards of one; each server is home to some groups."""
    urls = list(pair)
    for home in urls:
        question = question_at(home, urls)
        with ThreadPoolExecutor(3) as pool:
            answers = list(pool.map(ask, [urls[0], urls[1], urls[0]], [question] * 3, ANSWERS))
        assert [answer.json()["rewards"] for answer in answers] == [[-1], [1], [0]]


def test_samples_that_are_sent_twice(pair: dict[str, Any]) -> None:
    """To either server, before and after their group is answered: as sent once."""
    urls, chance = list(pair), random.Random(0)
    question = question_at(urls[0], urls) + " Look again."
    sends = [n for n in range(3) for _ in range(3)]
    chance.shuffle(sends)
    with ThreadPoolExecutor(9) as pool:
        tasks = [pool.submit(ask, chance.choice(urls), question, ANSWERS[n], **{"Idempotency-Key": f"{n}"}) for n in sends]
        assert [task.result().json()["rewards"] for task in tasks] == [[[-1], [1], [0]][n] for n in sends]
    assert ask(urls[1], question, ANSWERS[1], **{"Idempotency-Key": "1"}).json()["rewards"] == [1]


def test_only_peers_of_the_same_servers_are_joined(pair: dict[str, Any]) -> None:
    """With a key, and not where another list of servers would tear groups apart."""
    url = next(iter(pair))
    for options in (["--peers", url], ["--address", url]):
        done = CliRunner().invoke(app, ["serve", "--judge", "hf:x", "--port", str(free_port()), *options])
        assert "--peers and --address must be given together" in str(done.exception)
    sample = {
        "question": "q",
        "response": "a",
        "images": [],
        "anchor": None,
        "scope": "",
        "home": url,
        "servers": [url],
        "judge": "",
    }
    assert httpx.post(url + JOIN_PATH, json=sample).status_code == 401
    refused = httpx.post(url + JOIN_PATH, json=sample, headers=HEADERS)
    assert (refused.status_code, refused.json()["status"]) == (503, "peer")
    assert "give all of them the same --peers" in refused.json()["error"]
    other = httpx.post(url + JOIN_PATH, json=sample | {"home": "http://b:1", "servers": list(pair)}, headers=HEADERS)
    assert (other.status_code, other.json()["status"]) == (503, "peer")
    assert f"reaches this server as http://b:1, but its own --address is {url}" in other.json()["error"]
    unlike = httpx.post(url + JOIN_PATH, json=sample | {"servers": sorted(pair)}, headers=HEADERS)
    assert (unlike.status_code, unlike.json()["status"]) == (503, "otherjudge")
    assert "rewards of two judges are not mixed; give all servers the same judge" in unlike.json()["error"]


@pytest.mark.parametrize(
    ("code", "body", "kind", "sentence"),
    [
        (429, {"error": "busy; try again in 7 s", "status": "overloaded"}, OverloadedError, "^busy; try again in 7 s$"),
        (400, {"error": "too long", "status": "context_length_exceeded"}, DataError, "^too long$"),
        (413, {"error": "too large", "status": "toolarge"}, DataError, "^too large$"),
        (502, None, PeerError, "answered HTTP 502"),
    ],
)  # fmt: skip
def test_what_a_home_refuses(code: int, body: Any, kind: type[Exception], sentence: str) -> None:
    """What would be refused again is no reason to try again, and the sentence says once when to."""

    async def answer(request: Request) -> Response:
        return Response("no", code) if body is None else JSONResponse(body, code, {"Retry-After": "7"})

    with running(Starlette(routes=[Route(JOIN_PATH, answer, methods=["POST"])])) as url:
        peers = Peers("http://a:1", [url], wait_s=5)
        with pytest.raises(kind, match=sentence):
            asyncio.run(peers.join(url, Sample("q", "r"), str))


def test_judges_are_replaced_one_after_the_other() -> None:
    """Samples that reach a server whose judge is not that of their group's home wait until it is: all groups are rewarded, each
    by one judge, and none is lost. With judges that stay different nobody is rewarded."""

    def judge(best: str) -> GenerativeJudge:
        return GenerativeJudge(ScriptedSampler(handler if best == "6" else opposite), PLAIN, judge=f"hf:{best}")

    def opposite(prompt: tuple[Message, ...], draw: int) -> str:
        said = handler(prompt, draw)
        return said.replace("<answer>1", "<answer>x").replace("<answer>2", "<answer>1").replace("<answer>x", "<answer>2")

    ports = [free_port() for _ in range(2)]
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    with ExitStack() as stack, ThreadPoolExecutor(12) as pool:
        apps = []
        for url, port in zip(urls, ports, strict=True):
            rules, limits = GroupRules(group_size=3), Limits(group_timeout=30.0)
            options: dict[str, Any] = {"rules": rules, "limits": limits, "peers": Peers(url, urls, wait_s=30)}
            apps.append(served(judge("6"), keys=[Key.of(KEY)], **options))
            stack.enter_context(running(apps[-1], port=port))
        replace(apps[1], judge("4"))
        questions = [question_at(home, urls) for home in urls]
        sent = [pool.submit(ask, urls[n % 2], question, ANSWERS[n]) for question in questions for n in range(3)]
        time.sleep(1)
        assert not any(one.done() for one in sent)
        replace(apps[0], judge("4"))
        rewards = [one.result(30).json()["rewards"] for one in sent]
    assert rewards == [[1], [-1], [0]] * 2


def test_a_judge_that_is_replaced_while_a_peer_sends() -> None:
    """The request is of the judge that served when it came: a sample that was sent to the next one is not judged by it."""
    red, blue = (GenerativeJudge(ScriptedSampler(handler), PLAIN, judge=f"hf:{name}") for name in ("red", "blue"))
    port = free_port()
    urls = [f"http://127.0.0.1:{port}", "http://127.0.0.1:1"]
    server = served(red, limits=Limits(group_timeout=0.3), peers=Peers(urls[0], urls, wait_s=5))
    sample = {"question": "q", "response": "a", "images": [], "anchor": None, "scope": ""}
    body = sample | {"home": urls[0], "servers": sorted(urls), "judge": JudgeVersion(blue).hash}

    def pieces() -> Iterator[bytes]:
        data = json.dumps(body).encode()
        yield data[:9]
        time.sleep(0.1)
        replace(server, blue)
        yield data[9:]

    with running(server, port=port) as url:
        answer = httpx.post(url + JOIN_PATH, content=pieces(), headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["status"]) == (503, "otherjudge")


def test_a_home_that_is_down_is_no_reward(pair: dict[str, Any]) -> None:
    """503 with when to come back, at once; groups that live elsewhere are rewarded. What the home refuses is passed on."""
    urls = list(pair)
    alive, gone = urls
    alone = ask(alive, question_at(gone, urls), "I say 9.")
    assert (alone.status_code, alone.json()["status"]) == (408, "alone")
    assert "only 1 of 3" in alone.json()["error"]
    pair[gone].close()
    refused = ask(alive, question_at(gone, urls), "I say 1.")
    assert (refused.status_code, refused.json()["status"], refused.headers["Retry-After"]) == (503, "peer", "5")
    assert f"{gone}, where responses to this prompt meet, cannot be reached" in refused.json()["error"]
    with ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(ask, [alive] * 3, [question_at(alive, urls)] * 3, ["I say 4.", "I say 6.", "I say 5."]))
    assert [answer.json()["rewards"] for answer in answers] == [[-1], [1], [0]]


def test_addresses() -> None:
    """Of the same set whatever their order; groups of a server that goes are the only ones that move."""
    urls = ["http://a:1", "http://b:1", "http://c:1/judge"]
    three, two = Peers(urls[0], urls[1:], wait_s=1), Peers(urls[1], urls[:1], wait_s=1)
    assert three.servers == Peers(urls[2] + "/", reversed(urls), wait_s=1).servers  # type: ignore[arg-type]
    homes = {key: three.home_of(key) for key in map(str, range(300))}
    assert min(list(homes.values()).count(url) for url in urls) > 50
    assert all(two.home_of(key) == home for key, home in homes.items() if home != urls[2])
    for bad in ("a:1", "ftp://a", "http://", "http://a?b"):
        with pytest.raises(ConfigError, match="--peers"):
            Peers("http://a:1", [bad], wait_s=1)
    with pytest.raises(ConfigError, match="names no other server"):
        Peers("http://a:1", ["http://a:1/"], wait_s=1)
