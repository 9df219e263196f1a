"""Are rewards mixed, lost or changed while the judge of two endpoints that share groups is replaced on one after the other?

``python -m eval.serving_rolling``, some minutes. Two processes of ``rewardlab serve --peers``, behind a balancer that sends
each connection to the next, reward TRL's ``GRPOTrainer`` (whole groups, by :mod:`rewardlab.integrations.trl`) and single
responses as OpenRLHF sends them. Most single responses have an ``Idempotency-Key`` and are sent twice, at random times; some of
the others are sent again after their group was answered. Meanwhile the judge file of one endpoint names another judge, and
seconds later that of the other; then one endpoint is killed and started again.

The judges are the demonstration's, and the same with the words "correct" and "wrong" exchanged in its output: they disagree on
nearly every pair. Both are greedy, so afterwards a lone endpoint of each judge rewards every group again: the rewards must be
wholly those of one judge. Writes ``eval/results/serving_rolling.json`` and ``.md``.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import rewardlab  # noqa: F401  (before transformers, see rewardlab/models/torchvision_cpu.py)

# isort: split

import aiohttp
import httpx
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import TrainerCallback

from eval.endpoints import GREEDY, endpoint, free_port, start_endpoint, wait_until_ready
from eval.studies import closed_loop as loop
from eval.studies.policy import Settings as StartSettings
from eval.studies.policy_trials import MANY_WORDED
from rewardlab.data.files import write_atomic
from rewardlab.data.images import to_data_url
from rewardlab.demo.pairs import make_pairs
from rewardlab.errors import EndpointError
from rewardlab.integrations.chats import chat_text, read_prompt
from rewardlab.integrations.client import RewardClient, image_urls
from rewardlab.integrations.trl import judge_reward
from rewardlab.judging.spec import DEMO_JUDGE
from rewardlab.models.checkpoints import commit
from rewardlab.types import PreferencePair

RESULTS = Path("eval/results/serving_rolling")
SIZE, GROUP_TIMEOUT_S, PATIENCE_S = 4, 20, 120.0  # of a group; a member is lost after PATIENCE_S
AT_ONCE = 6  # groups of single responses
TWICE = 0.8  # fraction of single responses with a key, which are sent twice
LOST_ANSWER = 0.1  # fraction of groups of which a response without a key is sent again after its answer
BETWEEN_S = 8.0  # between the files of the two endpoints
CALLS, GROUPS = 3, 12  # of the trainer and of single responses, answered in each phase at least
NUM_PHASES = 7
CHATML = "<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"


def opposite_judge(folder: Path) -> Path:
    """Write the demonstration's judge with "correct" and "wrong" exchanged in its output."""
    shutil.copytree(DEMO_JUDGE, folder, dirs_exist_ok=True)
    weights = load_file(folder / "model.safetensors")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    words = [tokenizer.encode(word, add_special_tokens=False).ids[0] for word in (" correct", " wrong")]
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    weights["lm_head.weight"][words] = weights["lm_head.weight"][words[::-1]]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["tie_word_embeddings"] = config["text_config"]["tie_word_embeddings"] = False
    write_atomic(folder / "config.json", json.dumps(config))
    return folder


class Balancer:
    """Sends each TCP connection to the next of ``ports`` that takes it, as an nginx without rules."""

    def __init__(self, ports: Sequence[int]) -> None:
        self._ports, self._turns, self.port = ports, itertools.cycle(range(len(ports))), free_port()

    async def connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = next(self._turns)
        for port in (*self._ports[first:], *self._ports[:first]):
            with suppress(OSError):
                other_reader, other_writer = await asyncio.open_connection("127.0.0.1", port)
                ways = (self._copy(reader, other_writer), self._copy(other_reader, writer))
                await asyncio.gather(*ways)
                return
        writer.close()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def _serve(self) -> None:
        server = await asyncio.start_server(self.connect, "127.0.0.1", self.port)
        await server.serve_forever()

    @contextmanager
    def running(self) -> Iterator[str]:
        threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True).start()
        yield f"http://127.0.0.1:{self.port}"


@dataclass(frozen=True)
class Answer:
    """The reward of a response that was sent, None if it never came, and the weights that judged it. ``copy`` counts how often
    the response was sent before."""

    member: int
    copy: int
    reward: float | None
    weights: str


@dataclass
class Group:
    """Responses to a question, and all answers to them."""

    source: str
    question: str
    images: tuple[str, ...]
    responses: list[str]
    begin: float
    answers: list[Answer] = field(default_factory=list)
    end: float = 0.0

    def reward(self, member: int, copies: Sequence[int]) -> float | None:
        """Return the reward of a response by the first of ``copies`` that has one."""
        rewards = {answer.copy: answer.reward for answer in self.answers if answer.member == member}
        return next((rewards[copy] for copy in copies if rewards.get(copy) is not None), None)

    def rewards(self, copies: Sequence[int]) -> list[float | None]:
        return [self.reward(n, copies) for n in range(len(self.responses))]


@dataclass
class Clients:
    """The single responses of groups on ``pairs``, ``AT_ONCE`` groups at a time, until ``stop``."""

    url: str
    pairs: Sequence[PreferencePair]
    groups: list[Group] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)
    stop: threading.Event = field(default_factory=threading.Event)
    rng: random.Random = field(default_factory=lambda: random.Random(0))

    async def run(self) -> None:
        pairs = iter(self.pairs)

        async def worker(session: aiohttp.ClientSession) -> None:
            while not self.stop.is_set() and (pair := next(pairs, None)) is not None:
                await self._group(session, pair)

        # one connection per request: the balancer chooses anew
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        timeout = aiohttp.ClientTimeout(total=PATIENCE_S)
        async with aiohttp.ClientSession(self.url, connector=connector, timeout=timeout) as session:
            await asyncio.gather(*(worker(session) for _ in range(AT_ONCE)))

    async def _group(self, session: aiohttp.ClientSession, pair: PreferencePair) -> None:
        others = [f"{text} Indeed." for text in pair.responses]
        group = Group(
            "single", pair.question, tuple(map(to_data_url, pair.images)), [*pair.responses, *others], time.perf_counter()
        )
        keys = [uuid.uuid4().hex if self.rng.random() < TWICE else "" for _ in group.responses]
        sends = [
            self._send(session, group, n, copy, key, self.rng.uniform(0, 3))
            for n, key in enumerate(keys)
            for copy in range(2 if key else 1)
        ]
        await asyncio.gather(*sends)
        if "" in keys and self.rng.random() < LOST_ANSWER:
            await self._send(session, group, keys.index(""), 1, "", 0)
        group.end = time.perf_counter()
        self.groups.append(group)

    async def _send(self, session: aiohttp.ClientSession, group: Group, n: int, copy: int, key: str, delay: float) -> None:
        """Send a response until it has a reward, as a trainer does."""
        await asyncio.sleep(delay)
        prompt, label = CHATML.format(question=group.question), json.dumps({"media": group.images, "question": group.question})
        body = {"query": [prompt + group.responses[n]], "prompts": [prompt], "labels": [label]}
        ends = time.perf_counter() + PATIENCE_S
        while time.perf_counter() < ends:
            try:
                async with session.post("/get_reward", json=body, headers={"Idempotency-Key": key} if key else {}) as response:
                    answer = await response.json()
                if response.status == 200:
                    weights = response.headers.get("X-Judge-Weights", "")
                    group.answers.append(Answer(n, copy, answer["rewards"][0], weights))
                    return
                self.failures[f"{response.status} {answer['status']}"] += 1
            except (aiohttp.ClientError, TimeoutError) as error:
                self.failures[type(error).__name__] += 1
            await asyncio.sleep(1.0)
        print(f"no answer to copy {copy} of response {n} to {group.question!r}, key {key!r}", flush=True)
        group.answers.append(Answer(n, copy, None, ""))


class Trainer(TrainerCallback):  # type: ignore[misc]
    """The reward function of TRL's trainer, with the groups of its calls, and the callback that stops it."""

    def __init__(self, url: str) -> None:
        self._judge, self.groups, self.num_calls, self.stop = judge_reward(url), list[Group](), 0, threading.Event()

    async def reward(self, prompts: list[Any], completions: list[Any], **columns: Any) -> list[float | None]:
        begin = time.perf_counter()
        rewards = await self._judge(prompts, completions, **columns)
        pairs = [read_prompt(prompt, [image]) for prompt, image in zip(prompts, columns["image"], strict=True)]
        urls = await image_urls([images for _, images in pairs])
        groups: dict[tuple[Any, ...], Group] = {}
        for (question, _), images, completion, reward in zip(pairs, urls, completions, rewards, strict=True):
            group = groups.setdefault((question, images), Group("trl", question, images, [], begin))
            group.answers.append(Answer(len(group.responses), 0, reward, ""))
            group.responses.append(chat_text(completion))
        for group in groups.values():
            group.end = time.perf_counter()
        self.groups += groups.values()
        self.num_calls += 1
        return rewards

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_training_stop = self.stop.is_set()


class Servers:
    """Two endpoints that share groups, each with a file that names its judge."""

    def __init__(self, judge: str, folder: Path) -> None:
        self.ports = [free_port(), free_port()]
        self.urls = [f"http://127.0.0.1:{port}" for port in self.ports]
        self._judge, self._files = judge, [folder / f"judge_{n}.txt" for n in range(2)]
        for file in self._files:
            write_atomic(file, judge + "\n")
        self.processes = [self._start(n) for n in range(2)]

    def _start(self, n: int) -> subprocess.Popen[bytes]:
        options = ["--judge-file", str(self._files[n]), "--group-size", str(SIZE), "--address", self.urls[n]]
        options += ["--peers", ",".join(self.urls), "--limit", f"group_timeout={GROUP_TIMEOUT_S}"]
        return start_endpoint(self._judge, self.ports[n], *GREEDY, *options)

    def wait(self) -> None:
        for url, process in zip(self.urls, self.processes, strict=True):
            wait_until_ready(url, process)

    def health(self) -> list[dict[str, Any]]:
        answers = [httpx.get(f"{url}/health", timeout=60).json() for url in self.urls]
        return [{name: answer[name] for name in ("judge_hash", "weights", "version")} for answer in answers]

    def replace(self, n: int, judge: str) -> None:
        """Name another judge in the file of an endpoint, and wait until it serves."""
        before = self.health()[n]["version"]
        write_atomic(self._files[n], judge + "\n")
        while self.health()[n]["version"] == before:
            time.sleep(0.2)

    def kill(self, n: int) -> None:
        self.processes[n].kill()
        self.processes[n].wait()
        self.processes[n] = self._start(n)
        self.wait()

    def end(self) -> None:
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.wait(120)


@dataclass
class Drill:
    """What happens to the servers, and when: (name, begin, end) of each phase, the judges at its end."""

    servers: Servers
    clients: Clients
    trainer: Trainer
    phases: list[dict[str, Any]] = field(default_factory=list)

    def phase(self, name: str, act: Callable[[], None]) -> None:
        begin = time.perf_counter()
        act()
        self.phases.append({"phase": name, "begin": begin, "end": time.perf_counter(), "judges": self.servers.health()})
        print(name, self.phases[-1], len(self.clients.groups), self.trainer.num_calls, dict(self.clients.failures), flush=True)

    def work(self) -> None:
        """Wait until both kinds of clients have had more answers."""
        calls, groups = self.trainer.num_calls + CALLS, len(self.clients.groups) + GROUPS
        while self.trainer.num_calls < calls or len(self.clients.groups) < groups:
            time.sleep(0.2)

    def run(self, second: str) -> None:
        try:
            self.phase("both have the first judge", self.work)
            self.phase("the judge of one is replaced", lambda: self.servers.replace(0, second))
            self.phase("they have different judges", lambda: time.sleep(BETWEEN_S))
            self.phase("the judge of the other is replaced", lambda: self.servers.replace(1, second))
            self.phase("both have the second judge", self.work)
            self.phase("one is killed and started again", lambda: self.servers.kill(0))
            self.phase("after the restart", self.work)
        finally:
            self.clients.stop.set()
            self.trainer.stop.set()


async def rewards_of(groups: Sequence[Group], url: str) -> list[list[float | None]]:
    """Return the rewards of each group by an endpoint to which nothing happens."""
    client, slots = RewardClient(url), asyncio.Semaphore(16)

    async def one(group: Group) -> list[float | None]:
        async with slots:
            return await client.rewards(group.question, group.responses, group.images)

    return await asyncio.gather(*map(one, groups))


def tally(groups: Sequence[Group], expected: Sequence[Sequence[list[float | None]]], weights: Sequence[str]) -> dict[str, Any]:
    """Return counts of groups by the judge whose rewards they have, and of responses."""
    counts: Counter[str] = Counter()
    for n, group in enumerate(groups):
        first, again = group.rewards((0, 1)), group.rewards((1, 0))
        by = [first == rewards[n] for rewards in expected]
        name = {(True, False): "first", (False, True): "second", (True, True): "both"}.get((by[0], by[1]), "neither")
        counts[name] += 1
        counts["other when sent again"] += first != again
        counts["lost"] += 0 if any(by) else first.count(None)
        counts["no verdict"] += first.count(None) if any(by) else 0
        names = {answer.weights for answer in group.answers if answer.weights}
        counts["misnamed"] += len(names) > 1 or (name in ("first", "second") and bool(names - {weights[name == "second"]}))
        counts["unanswered"] += sum(a.reward is None and group.reward(a.member, (0, 1)) is not None for a in group.answers)
    answers = [answer for group in groups for answer in group.answers]
    return {
        "groups": len(groups),
        "groups_of_the_first_judge_alone": counts["first"],
        "groups_of_the_second_judge_alone": counts["second"],
        "groups_that_both_reward_alike": counts["both"],
        "groups_of_neither": counts["neither"],
        "groups_with_other_weights_than_named": counts["misnamed"],
        "responses": sum(answer.copy == 0 for answer in answers),
        "rewards_lost": counts["lost"],
        "responses_of_which_the_judge_has_no_verdict": counts["no verdict"],
        "responses_sent_again": sum(answer.copy > 0 for answer in answers),
        "copies_without_an_answer": counts["unanswered"],
        "groups_with_other_rewards_when_sent_again": counts["other when sent again"],
    }


def table(result: dict[str, Any]) -> str:
    kinds = ("single", "trl")
    lines = ["| | single responses | TRL's GRPO |", "|---|---|---|"]
    lines += [
        f"| {name.replace('_', ' ')} | {' | '.join(str(result[kind][name]) for kind in kinds)} |" for name in result["single"]
    ]
    lines += ["", "| phase | seconds | groups answered, single and TRL's | `judge_hash` at its end |", "|---|---|---|---|"]
    for phase in result["phases"]:
        hashes = ", ".join(f"`{one['judge_hash']}`" for one in phase["judges"])
        lines.append(f"| {phase['phase']} | {phase['seconds']:.1f} | {phase['single']}, {phase['trl']} | {hashes} |")
    failures = ", ".join(f"{number} x {name}" for name, number in sorted(result["failed_tries"].items())) or "none"
    lines += ["", f"Tries that failed and were made again: {failures}. Steps of the trainer: {result['steps']}.", ""]
    return "\n".join([*lines, f"`{result['command']}` at {result['commit'][:12]}, {result['seconds']:.0f} s."]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, default=Path("runs/serving_rolling"), help="where the first policy is kept")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    settings = replace(loop.Settings(), steps=10_000, prompts=4, start=replace(StartSettings(), start_steps=150))
    by_prompt = {(pair.question, pair.images): pair for pair in make_pairs(2400, seed=5, held_out=False)[0]}
    pairs = [pair for pair in by_prompt.values() if pair.question != MANY_WORDED]
    policy = loop.taught_policy(pairs[:800], DEMO_JUDGE, options.work, settings)
    with tempfile.TemporaryDirectory() as name:
        judges = f"hf:{DEMO_JUDGE}", f"hf:{opposite_judge(Path(name) / 'opposite')}"
        servers = Servers(judges[0], Path(name))
        servers.wait()
        with Balancer(servers.ports).running() as url:
            clients, trainer = Clients(url, pairs[800:]), Trainer(url)
            drill = Drill(servers, clients, trainer)
            start = time.perf_counter()
            threads = [threading.Thread(target=lambda: asyncio.run(clients.run()))]
            threads.append(threading.Thread(target=drill.run, args=(judges[1],)))
            for thread in threads:
                thread.start()
            trained = loop.train(
                policy, pairs[:800], trainer.reward, settings, seed=0, out=options.work / "trl", callbacks=[trainer]
            )
            for thread in threads:
                thread.join()
            seconds = time.perf_counter() - start
        servers.end()
        if len(drill.phases) < NUM_PHASES:
            raise EndpointError(f"the drill ended after {len(drill.phases)} of {NUM_PHASES} phases")
        groups = [*clients.groups, *trainer.groups]
        expected, weights = [], []
        for judge in judges:
            with endpoint(judge, *GREEDY) as (lone, _):
                weights.append(httpx.get(f"{lone}/health").json()["weights"])
                expected.append(asyncio.run(rewards_of(groups, lone)))
    num = len(clients.groups)
    phases = [
        {
            "phase": phase["phase"],
            "seconds": phase["end"] - phase["begin"],
            **{
                source: sum(group.source == source and phase["begin"] <= group.end < phase["end"] for group in groups)
                for source in ("single", "trl")
            },
            "judges": phase["judges"],
        }
        for phase in drill.phases
    ]
    result = {
        "command": shlex.join(["python", "-m", "eval.serving_rolling", *sys.argv[1:]]),
        "commit": commit(),
        "seconds": seconds,
        "steps": trained.state.global_step,
        "weights": weights,
        "single": tally(clients.groups, [rewards[:num] for rewards in expected], weights),
        "trl": tally(trainer.groups, [rewards[num:] for rewards in expected], weights),
        "failed_tries": dict(clients.failures),
        "phases": phases,
    }
    write_atomic(options.out.with_suffix(".json"), json.dumps(result, indent=1) + "\n")
    write_atomic(options.out.with_suffix(".md"), text := table(result))
    print(text)


if __name__ == "__main__":
    main()
