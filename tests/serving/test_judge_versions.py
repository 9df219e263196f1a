"""A judge that is replaced while the server runs: every request has one judge, whole, and none is lost."""

from __future__ import annotations

import gc
import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from rewardlab.errors import CheckpointError, ConfigError, EndpointError
from rewardlab.judging.judge import GenerativeJudge
from rewardlab.judging.margins import ProbabilityJudge
from rewardlab.judging.served import ServedJudge
from rewardlab.judging.spec import DEMO_JUDGE
from rewardlab.prompts import load_template
from rewardlab.samplers.scripted import ScriptedSampler
from rewardlab.serving.app import create_app
from rewardlab.serving.judge_file import JudgeFile, refuse_another_engine, refuse_another_kind
from rewardlab.serving.judge_versions import JudgeVersion
from rewardlab.serving.schedule import QueueOptions
from rewardlab.serving.service import GroupRules, ServerOptions
from rewardlab.types import Message, PreferencePair
from tests.support.served_judge import replace, served
from tests.support.servers import free_port, running
from tests.support.serving import in_process

PLAIN = load_template("plain")
WORDS = ("red", "blue")
GROUP: dict[str, Any] = {"question": "Which?", "responses": ["it is red", "it is blue", "it is redder", "it is bluer"]}


def judge_naming(word: str, gate: threading.Event | None = None) -> GenerativeJudge:
    """Return a judge that names the response with the word, or else the first; it waits for the gate with every answer."""

    def answer(prompt: tuple[Message, ...], draw: int) -> str:
        if gate is not None:
            gate.wait(30)
        first, second = prompt[0].text.split("Response 1:")[1].split("Response 2:")
        choice = 1 if word in first or word not in second else 2
        return f"<think>{word}</think><answer>{choice}</answer>"

    return GenerativeJudge(ScriptedSampler(answer), PLAIN, judge=f"hf:{word}")


def until(good: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not good():
        assert time.monotonic() < end
        time.sleep(0.01)


def winner(answer: dict[str, Any]) -> str:
    """Return which of the two judges gave these rewards, all of them: the better two are those with its word."""
    order = sorted(range(4), key=lambda n: -answer["rewards"][n])
    words = {"red" if n % 2 == 0 else "blue" for n in order[:2]}
    assert len(words) == 1
    return words.pop()


def test_requests_are_judged_whole() -> None:
    """Those that came before are finished by the old judge while the new one answers others, each by its name; the old one is
    dropped after its last request."""
    gate = threading.Event()
    app = served(judge_naming("red", gate), queue=QueueOptions(num_threads=4, max_sequences=4))
    queue = app.state.service.queue
    with in_process(app) as client, ThreadPoolExecutor(8) as pool:
        ask = lambda seed: client.post("/v1/rewards", json={**GROUP, "seed": seed}).json()  # noqa: E731
        before = [pool.submit(ask, seed) for seed in range(3)]
        until(lambda: queue.counts["asked"] == 18)
        replace(app, judge_naming("blue"))
        after = [pool.submit(ask, seed) for seed in range(3)]
        assert client.get("/v1/status").json()["num_draining"] == 1
        assert client.get("/health").json()["version"] == 2
        gate.set()
        for futures, word in ((before, "red"), (after, "blue")):
            for future in futures:
                answer = future.result()
                assert (winner(answer), answer["judge"], answer["num_failed"]) == (word, f"hf:{word}", 0)
        until(lambda: client.get("/v1/status").json()["num_draining"] == 0)


def test_a_replaced_judge_votes_as_its_own_config_says() -> None:
    """A framework's request has the votes of the judge that answers it, and /health names them."""
    red = judge_naming("red")
    blue = GenerativeJudge(red.sampler, PLAIN, judge="hf:blue", votes=3)
    app = served(red)
    service = app.state.service
    with in_process(app) as client:
        for judge, votes in ((None, 1), (blue, 3)):
            if judge is not None:
                replace(app, judge)
            before = service.queue.counts["sequences"]
            client.post("/get_reward", json={"query": ["Which?a", "Which?b"], "prompts": ["Which?"] * 2})
            assert service.queue.counts["sequences"] - before == 2 * votes
            assert client.get("/health").json()["judge_config"].get("votes", 1) == votes


def test_the_old_judge_is_let_go() -> None:
    """Its memory is free once it has no request."""
    old = judge_naming("red")
    gone = weakref.ref(old)
    app = served(old)
    del old
    with in_process(app) as client:
        assert winner(client.post("/v1/rewards", json=GROUP).json()) == "red"
        replace(app, judge_naming("blue"))
        assert winner(client.post("/v1/rewards", json=GROUP).json()) == "blue"
        gc.collect()
        assert gone() is None


def test_what_was_kept_is_the_judges_own() -> None:
    """A result that is kept counts for the judge that gave it, also when that one comes back."""
    app = served(judge_naming("red"))
    queue = app.state.service.queue
    with in_process(app) as client:
        for turn, word in enumerate(("red", "blue", "red")):
            if turn:
                replace(app, judge_naming(word))
            assert winner(client.post("/v1/rewards", json=GROUP).json()) == word
        assert (queue.counts["judged"], queue.counts["cached"]) == (12, 6)


def test_a_group_that_came_one_by_one() -> None:
    """Its members came before and after the change; they have one judge, that of the member that completed the group."""
    app = served(judge_naming("red"), rules=GroupRules(group_size=4))
    service = app.state.service
    with in_process(app) as client, ThreadPoolExecutor(4) as pool:
        send = lambda text: client.post("/get_reward", json={"query": ["Which?" + text], "prompts": ["Which?"]}).json()  # noqa: E731
        first = [pool.submit(send, text) for text in GROUP["responses"][:2]]
        until(lambda: service.group_buffer.num_waiting == 2)
        replace(app, judge_naming("blue"))
        last = [pool.submit(send, text) for text in GROUP["responses"][2:]]
        rewards = [future.result()["rewards"][0] for future in (*first, *last)]
        assert winner({"rewards": rewards}) == "blue"


@contextmanager
def following(path: Path, opened: dict[str, GenerativeJudge]) -> Iterator[httpx.Client]:
    def open_judge(name: str) -> GenerativeJudge:
        if name == "hf:broken":
            raise KeyError("a checkpoint with anything in it")
        if name not in opened:
            raise CheckpointError(f"{name}: no such checkpoint")
        return opened[name]

    path.write_text("hf:red\n")
    followed = JudgeFile(path, open_judge, recheck_s=0.02)
    app = create_app(opened[followed.read()], ServerOptions(judge_file=followed))
    with in_process(app) as client:
        yield client


def test_the_file_is_followed(tmp_path: Path) -> None:
    """Another name in it is another judge. A name of none, and of one that cannot be opened, change nothing and are said."""
    path = tmp_path / "judge"
    status = lambda: client.get("/v1/status").json()  # noqa: E731
    with following(path, {f"hf:{word}": judge_naming(word) for word in WORDS}) as client:
        for text, said in (
            ("nonsense and a secret", "ConfigError"),
            ("hf:none", "CheckpointError"),
            ("vllm:red", "ConfigError"),
            ("hf:broken", "KeyError"),
            ("\xff" * 9000, "ConfigError"),
        ):
            path.write_text(text, encoding="latin-1")
            until(lambda said=said: said in (status()["load_error"] or ""))  # type: ignore[misc]
            assert "secret" not in client.get("/v1/status").text
            assert winner(client.post("/v1/rewards", json=GROUP).json()) == "red"
            path.write_text("hf:none")
            until(lambda: "CheckpointError" in (status()["load_error"] or ""))
        path.unlink()
        until(lambda: "ConfigError" in (status()["load_error"] or ""))
        path.write_text("hf:blue\n")
        until(lambda: status()["version"] == 2)
        assert (status()["judge"], status()["load_error"], status()["loading"]) == ("hf:blue", None, None)
        assert winner(client.post("/v1/rewards", json=GROUP).json()) == "blue"


def test_the_file_names_what_the_option_takes(tmp_path: Path) -> None:
    """The folder of a run, or a YAML of a judge's keys."""
    named = tmp_path / "red.yaml"
    named.write_text("judge: hf:red\ntemperature: 0\n")
    path = tmp_path / "judge"
    path.write_text(f"{named}\n")
    assert JudgeFile(path, lambda name: judge_naming(name)).read() == str(named)
    refuse_another_engine(str(named), judge_naming("red"))
    named.write_text("judge: openai:m@http://127.0.0.1:9/v1\n")
    with pytest.raises(ConfigError, match="of the engine openai cannot replace one of hf"):
        refuse_another_engine(str(named), judge_naming("red"))


def test_judges_of_another_kind_are_refused() -> None:
    """An engine, before it is opened; a scale of rewards that the server was not started for."""
    red = judge_naming("red")
    refuse_another_kind(judge_naming("blue"), red)
    refuse_another_engine("hf:blue", red)
    for spec in ("vllm:red", "openai:red@http://localhost:1/v1"):
        with pytest.raises(ConfigError, match="cannot replace one of hf"):
            refuse_another_engine(spec, red)
    with pytest.raises(ConfigError, match="different scales"):
        refuse_another_kind(ProbabilityJudge(red.sampler, PLAIN, judge="hf:red"), red)


def test_requests_on_one_connection() -> None:
    """Pipelined ones begin within the answer to the one before, and have the judge that serves when they come."""
    gate = threading.Event()
    app = served(judge_naming("red", gate))
    queue = app.state.service.queue
    with running(app) as url:
        body = json.dumps({**GROUP, "seed": 1}).encode()
        head = f"POST /v1/rewards HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))) as connection:
            connection.sendall(3 * (head.encode() + body))
            until(lambda: queue.counts["asked"] == 6)
            replace(app, judge_naming("blue"))
            gate.set()
            text = b""
            while text.count(b'"template_hash"') < 3:
                text += connection.recv(1 << 16)
        assert re.findall(rb'"judge":"hf:(\w+)"', text) == [b"red", b"blue", b"blue"]
        until(lambda: queue.versions.num_draining == 0)


def test_another_verdict_temperature_is_another_judge() -> None:
    """Its rewards are on another scale: nothing that was kept is given, and clients are told another hash. The sampling
    temperature is another setting, which the judge's votes depend on as well."""

    def judge(tau: float, temperature: float = 1.0) -> GenerativeJudge:
        sampler = ScriptedSampler(lambda prompt, draw: "")
        return GenerativeJudge(sampler, PLAIN, judge="hf:red", temperature=temperature, verdict_temperature=tau)

    versions = [JudgeVersion(judge(tau)) for tau in (1.5, 1.5, 4.0)] + [JudgeVersion(judge(1.5, 0.5))]
    assert versions[0].cache_name == versions[1].cache_name
    assert len({version.cache_name for version in versions}) == 3
    app = served(judge(1.5))
    with running(app) as url:
        before = httpx.get(f"{url}/health").json()
        client = ServedJudge(url)
        identity = client.identity
        client.compare(PreferencePair("p", "Which?", ("a", "b"), None))
        replace(app, judge(4.0))
        after = httpx.get(f"{url}/health").json()
        assert {name for name in before if before[name] != after[name]} == {"judge_hash", "version"}
        assert client.identity != identity
        with pytest.raises(
            EndpointError, match=f"replaced its judge .*{before['judge_hash']} before, .*{after['judge_hash']} now"
        ):
            client.compare(PreferencePair("q", "Which?", ("a", "b"), None))


def test_the_engine_of_a_replaced_judge_is_closed() -> None:
    """A child process does not wait for the memory of its parent to be tidied up."""
    red = judge_naming("red")
    closed = threading.Event()
    red.sampler.close = closed.set  # type: ignore[attr-defined]
    app = served(red)
    with in_process(app) as client:
        replace(app, judge_naming("blue"))
        assert closed.wait(10)
        assert winner(client.post("/v1/rewards", json=GROUP).json()) == "blue"


def test_the_same_checkpoint_in_two_folders_is_one_judge(tmp_path: Path) -> None:
    """Its hash is that of what it contains; overwritten in place it is another judge, whose kept answers are not these."""
    for name in ("one", "two"):
        shutil.copytree(DEMO_JUDGE, tmp_path / name)

    def version(name: str) -> JudgeVersion:
        return JudgeVersion(GenerativeJudge(ScriptedSampler(lambda prompt, draw: ""), PLAIN, judge=f"hf:{tmp_path / name}"))

    first, second = version("one"), version("two")
    assert first.weights
    assert first.never_thinks_apart
    assert (first.hash, first.cache_name) == (second.hash, second.cache_name)
    with (tmp_path / "two" / "model.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x01")
    assert version("two").cache_name != first.cache_name
    assert second.cache_name == first.cache_name  # that of the weights as they were opened
    (tmp_path / "two" / "chat_template.jinja").write_text("{% if enable_thinking %}<think>{% endif %}")
    assert not version("two").never_thinks_apart


@pytest.mark.nightly
def test_a_real_server_changes_its_judge(tmp_path: Path, demo_pairs: Any) -> None:
    """`rewardlab serve --judge-file`, requests all the while: none fails, and each says whose it is."""
    from rewardlab.judging.spec import DEMO_JUDGE

    folders = [tmp_path / name for name in ("one", "two")]
    for n, folder in enumerate(folders):
        shutil.copytree(DEMO_JUDGE, folder)
        if n:
            with (folder / "model.safetensors").open("r+b") as file:  # another last weight
                file.seek(-1, 2)
                file.write(b"\x01")
    name, port = tmp_path / "judge", free_port()
    name.write_text(f"hf:{folders[0]}")
    command = [sys.executable, "-m", "rewardlab.cli", "serve", "--judge", "demo", "--judge-file", str(name)]
    command += ["max_tokens=16", "--port", str(port), "--limit", "notice=0"]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    answers: list[Any] = []
    stop = threading.Event()
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:

            def health() -> dict[str, Any]:
                try:
                    return dict(client.get("/health").json())
                except httpx.TransportError:
                    return {}

            def ask() -> None:
                pair = demo_pairs[0][0]
                while not stop.is_set():
                    answers.append(client.post("/v1/judge", json={"question": pair.question, "responses": pair.responses}))

            def wait_for(version: int) -> str:
                end = time.monotonic() + 120
                while health().get("version") != version:
                    assert time.monotonic() < end
                    time.sleep(0.2)
                return str(health()["weights"])

            weights = [wait_for(1)]
            load = [threading.Thread(target=ask) for _ in range(2)]
            for thread in load:
                thread.start()
            for version, folder in enumerate(folders[1:], start=2):
                name.write_text(f"hf:{folder}")
                weights.append(wait_for(version))
            num = len(answers)
            while len(answers) < num + 4:
                time.sleep(0.1)
            stop.set()
            for thread in load:
                thread.join()
            assert {answer.status_code for answer in answers} == {200}
            seen = [json.loads(answer.content)["weights"] for answer in answers]
            assert list(dict.fromkeys(seen)) == weights
            assert len(set(weights)) == 2
            assert [answer.headers["X-Judge-Weights"] for answer in answers] == seen
    finally:
        stop.set()
        process.send_signal(signal.SIGTERM)
        process.wait(60)
