"""What a server bounds: every request beyond a limit gets a sentence with both numbers, and the server goes on."""

from __future__ import annotations

import gc
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from rewardlab.errors import ConfigError
from rewardlab.judging.group_rewards import STRATEGIES, most_matches, start_plan
from rewardlab.judging.judge import GenerativeJudge
from rewardlab.processes import memory_here
from rewardlab.prompts import load_template
from rewardlab.samplers.scripted import ScriptedSampler
from rewardlab.serving import strict_json
from rewardlab.serving.admission import Admission
from rewardlab.serving.app import create_app
from rewardlab.serving.errors import OverloadedError
from rewardlab.serving.limits import Limits
from rewardlab.serving.service import GroupRules, ServerOptions
from rewardlab.serving.strict_json import parse_json
from rewardlab.types import Message
from tests.support.scripted_judge import CHATML, PROMPT
from tests.support.servers import running
from tests.support.serving import app_of, in_process

PLAIN = load_template("plain")
PAIR: dict[str, Any] = {"question": "Which?", "responses": ["a", "b"]}
USER = {"role": "user", "content": "Which?"}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
JSON = {"Content-Type": "application/json"}


def first(prompt: tuple[Message, ...], draw: int) -> str:
    return "<think>x</think><answer>1</answer>"


def judge(**options: Any) -> GenerativeJudge:
    return GenerativeJudge(ScriptedSampler(first), PLAIN, **options)


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    rules, limits = GroupRules(group_size=2), Limits(comparisons=20_000, group_timeout=0.02)
    app = create_app(judge(max_tokens=64), ServerOptions(rules=rules, limits=limits))
    with in_process(app) as client:
        yield client


REFUSED: dict[str, tuple[str, Any, str]] = {
    "batch": ("/v1/judge/batch", [PAIR] * 1025, "the body has 1,025 entries"),
    "votes of a batch": ("/v1/rewards/batch", [PAIR | {"responses": ["a"] * 8, "votes": 64}] * 100, "358,400 votes"),
    "comparisons of a batch": ("/v1/rewards/batch", [PAIR | {"responses": ["a"] * 32}] * 41, "20,336 comparisons"),
    "inputs": ("/classify", {"input": [PROMPT + "a"] * 3000}, "input has 3,000 entries"),
    "one prompt": ("/classify", {"input": [f"{PROMPT}{n}" for n in range(1000)]}, "1,000 responses to one question"),
    "embeddings": ("/v1/embeddings", {"input": [PROMPT + "a"] * 3000, "encoding_format": "float"}, "input has 3,000 entries"),
    "pooling": ("/pooling", {"input": [PROMPT + "a"] * 3000}, "input has 3,000 entries"),
    "evaluation": ("/v1/score/evaluation", {"messages": [PROMPT + "a"] * 1025}, "messages has 1,025 entries"),
    "queries": ("/get_reward", {"query": [PROMPT + "a"] * 1025}, "query has 1,025 entries"),
    "mllm": ("/get_reward_mllm", {"query": [f"{PROMPT}{n}" for n in range(1000)]}, "1,000 responses to one question"),
    "groups": (
        "/get_reward",
        {"query": [CHATML.format(q=f"q{n % 20}") + str(n) for n in range(1000)]},
        "24,500 comparisons",
    ),
    "documents": ("/rerank", {"query": "q", "documents": ["d"] * 1025}, "documents has 1,025 entries"),
    "scores": ("/score", {"text_1": "q", "text_2": ["d"] * 1025}, "text_2 has 1,025 entries"),
    "responses": ("/v1/rewards", {"question": "q", "responses": ["a"] * 1025}, "responses has 1,025 entries"),
    "compared": ("/compare", {"conversation_history": [USER], "response_objs": [{}] * 200}, "200 responses"),
    "images": ("/v1/chat/completions", {"messages": [{"role": "user", "content": [IMAGE] * 9}] * 2}, "18 images"),
    "text": ("/classify", {"input": "<|im_start|>" * 40_000}, "480,000 characters"),
    "text of a label": ("/slime", {"prompt": "q", "response": "r", "label": '{"anchor": "%s"}' % ("a" * 400_001)}, "400,001"),
    "list of a label": (
        "/slime",
        {"prompt": "q", "response": "r", "label": {"media": ["a"] * 1025}},
        "media has 1,025 entries",
    ),
    "keys": ("/verify", {f"k{n}": 0 for n in range(1025)}, "the body has 1,025 entries"),
    "depth": ("/verify", {"responses_create_params": {}, "response": {}, "more": json.loads("[" * 70 + "]" * 70)}, "64 lists"),
    "values": ("/verify", {"more": [0] * 250_001}, "commas and opening brackets"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_request_beyond_a_bound(client: httpx.Client, name: str) -> None:
    """It is refused with the numbers before anything is judged, and costs no second."""
    path, body, sentence = REFUSED[name]
    begun = time.monotonic()
    answer = client.post(path, json=body)
    assert answer.status_code in (400, 413, 422), answer.text[:300]
    assert (answer.status_code == 413) == any(words in sentence for words in ("entries", "commas"))
    assert sentence in answer.text
    assert time.monotonic() - begun < 10
    assert client.get("/v1/status").json()["counts"]["sequences"] == 0 or name == "images"


RAW = {
    "surrogate in UTF-8": b'{"query":"q","documents":["a\xed\xa0\x80","b"]}',
    "surrogate in a number's place": b'{"query":"q","documents":["a","b"],"model":"\xed\xa0\x80"}',
    "surrogate in UTF-16": '{"query":"q","documents":["a\\ud800","b"]}'.encode("utf-16"),
    "UTF-16": '{"query":"q","documents":["a","b"]}'.encode("utf-16-le"),
    "UTF-32": '{"query":"q","documents":["a","b"]}'.encode("utf-32"),
    "escaped surrogate": b'{"query":"q","documents":["a\\uD800","b"]}',
    "escaped key": b'{"query":"q","documents":["a","b"],"\\udfff":1}',
    "infinity": b'{"query":"q","documents":["a","b"],"top_n":1e999}',
    "not a number": b'{"query":"q","documents":["a","b"],"top_n":NaN}',
    "digits": b'{"query":"q","documents":["a","b"],"top_n":' + b"1" * 5000 + b"}",
    "depth": b'{"query":"q","documents":' + b"[" * 100_000,
    "closed depth": b'{"query":' + b"[" * 90 + b"]" * 90 + b"}",
    "latin-1": '{"query":"ä","documents":["a","b"]}'.encode("latin-1"),
    "cut": b'{"query":"q","documents":["a',
    "doubled key": b'{"query":"q","documents":["a","b"],"query":"r"}',
    "label with a doubled key": b'{"query":"q","documents":["a"],"label":"{\\"query\\":1,\\"query\\":2}"}',
}


@pytest.mark.parametrize("name", RAW)
def test_bytes_that_are_no_json(client: httpx.Client, name: str) -> None:
    for path in ("/v1/judge", "/verify", "/v1/chat/completions", "/rerank"):
        answer = client.post(path, content=RAW[name], headers=JSON)
        assert answer.status_code in (400, 413, 422)
        assert answer.json()["error"]
    if name.endswith(("UTF-8", "surrogate", "infinity", "doubled key")):
        words = ("UTF-8", "surrogate", "beyond what a number", "the key 'query' appears twice")
        assert any(word in answer.text for word in words)


@pytest.mark.parametrize("backslash", [r"\\", r"\u005c"])
def test_half_a_character_in_a_label(client: httpx.Client, backslash: str) -> None:
    """JSON within JSON is read as strictly, however its backslash is written."""
    body = r'{"prompt": "q", "response": "r", "label": "{\"anchor\": \"BACKSLASHud800\"}"}'.replace("BACKSLASH", backslash)
    answer = client.post("/slime", content=body, headers=JSON)
    assert (answer.status_code, "surrogate" in answer.text) == (400, True)


@pytest.mark.parametrize("comma", [",", r"\u002c"])
def test_values_of_a_label_are_counted(client: httpx.Client, comma: str) -> None:
    """However its commas are written, and over all labels of a body."""
    label = r'"{\"more\": [' + f"0{comma}" * 90_000 + '0]}"'
    body = '{"query": ["a", "b", "c"], "labels": [' + ", ".join([label] * 3) + "]}"
    answer = client.post("/get_reward", content=body, headers=JSON)
    assert (answer.status_code, "commas and opening brackets" in answer.text) == (413, True)


def test_a_byte_order_mark_is_no_fault(client: httpx.Client) -> None:
    assert client.post("/v1/judge", content=b"\xef\xbb\xbf" + json.dumps(PAIR).encode(), headers=JSON).status_code == 200


def test_an_image_may_be_longer_than_a_text() -> None:
    """The bound of texts is not that of a data URL, wherever a format carries it; a label's too."""
    limits = Limits()
    url = f"data:image/png;base64,{'A' * 500_000}"
    for value in (
        {"images": [url]},
        {"content": [{"type": "image_url", "image_url": {"url": url}}, {"type": "image", "image": url}]},
        {"label": {"media": [url]}},
        {"labels": [json.dumps({"media": [url]})]},
    ):
        assert parse_json(json.dumps(value).encode(), limits) == value


def test_token_ids_are_as_many_as_a_text_has() -> None:
    """NeMo-Gym's rollouts carry those of each turn; an evaluation sums up all of its rollouts."""
    item = {"type": "message", "prompt_token_ids": [1] * 50_000, "generation_log_probs": [-0.5, None] * 20_000}
    for value in ({"response": {"output": [item]}}, {"verify_responses": [{"reward": 1.0}] * 5000}):
        assert parse_json(json.dumps(value).encode(), Limits()) == value


def test_garbage_is_collected_after_two_bodies_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if one ends just when the other has seen that its collection is off."""
    first_parses, first_may_end = threading.Event(), threading.Event()
    loads, disable = strict_json._loads, gc.disable

    def slow_loads(text: str, limits: Limits) -> Any:
        if text == "[1]":
            first_parses.set()
            first_may_end.wait(10)
        return loads(text, limits)

    def late_disable() -> None:
        if first_parses.is_set():
            first_may_end.set()
            first.join()
        disable()

    monkeypatch.setattr(strict_json, "_loads", slow_loads)
    monkeypatch.setattr(gc, "disable", late_disable)
    first = threading.Thread(target=parse_json, args=(b"[1]", Limits()))
    assert gc.isenabled()
    try:
        first.start()
        assert first_parses.wait(10)
        parse_json(b"[2]", Limits())
        first_may_end.set()
        first.join()
        assert gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_most_matches_of_a_strategy(strategy: str) -> None:
    """No plan plays more, even where no match is decided; one that does not compare every two plays two each at most. A whole
    list is judged once, at the price of a rating of each response, and holds every match."""
    for num in (*range(2, 9), 16, 32):
        plan, matches = start_plan(strategy, num, None)
        played = len(matches)
        try:
            while True:
                matches = plan.send([None] * len(matches))
                played += len(matches)
        except StopIteration:
            pass
        assert played <= most_matches(strategy, num) or strategy == "whole"
        assert strategy == "all_pairs" or most_matches(strategy, num) <= 2 * num
    assert most_matches("knockout", 100, 120) == 120
    assert most_matches("bradley_terry", 4, 50) == 50


@pytest.mark.parametrize("setting", ["", "comparisons", "comparison=4", "comparisons=0", "comparisons=x", "comparisons=1.5"])
def test_a_limit_that_is_none(setting: str) -> None:
    with pytest.raises(ConfigError, match="--limit"):
        Limits.of([setting])


@pytest.mark.parametrize(("groups", "size"), [(64, 16), (32, 32), (8, 128)])
def test_the_defaults_take_what_trainers_send(groups: int, size: int) -> None:
    """A step of TRL with 64 groups of 16, and the largest groups that a list of samples can hold, every two compared."""
    limits, comparisons = Limits(), groups * most_matches("all_pairs", size)
    assert groups * size <= limits.items
    limits.check_responses(size)
    limits.check_comparisons(comparisons, 2 * comparisons)
    assert limits.key_comparisons >= 4 * comparisons


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (["comparisons=300000"], "key_comparisons is 262,144; expected 300,000"),
        (["key_comparisons=1000"], "key_comparisons is 1,000; expected 65,536"),
        (["held_bytes=199999999"], "held_bytes is 199,999,999; expected 200,000,000"),
        (["body_bytes=1000", "held_bytes=60000000"], "held_bytes is 60,000,000; expected 64,000,000"),
    ],
)
def test_limits_that_let_nothing_in(settings: list[str], sentence: str) -> None:
    """A request within the other bounds would come again for ever."""
    with pytest.raises(ConfigError, match=sentence):
        Limits.of(settings)


def test_limits_by_name() -> None:
    limits = Limits.of(["comparisons=5", "json-depth=9"])
    assert (limits.comparisons, limits.json_depth, limits.items) == (5, 9, Limits().items)
    with pytest.raises(ConfigError, match="twice"):
        Limits.of(["items=1", "items=2"])
    assert [name for name, _, words in Limits.described() if not words] == []


def test_a_larger_machine_holds_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Responses that come alone hold their bodies until their group is full: a quarter of the memory, unless another number is
    given."""
    assert Limits.of([]).held_bytes == max(256_000_000, memory_here() // 4)
    for memory, held_bytes in ((8_000_000_000, 2_000_000_000), (500_000_000, 256_000_000)):
        monkeypatch.setattr("rewardlab.serving.limits.memory_here", lambda memory=memory: memory)
        assert Limits.of([]).held_bytes == held_bytes
    assert Limits.of(["held_bytes=300000000"]).held_bytes == 300_000_000


def test_bytes_are_held_until_the_answer() -> None:
    """Of one tenant alone never more than half where there are keys; what is released is free again."""
    admission = Admission(Limits(held_bytes=100), are_keys=lambda: True)
    anna, bert = admission.open("anna"), admission.open("bert")
    anna.take_bytes(50)
    with pytest.raises(OverloadedError, match="held_bytes"):
        admission.open("anna").take_bytes(10)
    bert.take_bytes(20)
    anna.release()
    bert.take_bytes(30)
    assert admission.num_bytes == 50


def test_a_body_that_waits_holds_room() -> None:
    """While one body is on its way the next is told to come again; when it has gone there is room."""
    app = app_of(first, limits=Limits(held_bytes=3000))
    with running(app) as url, httpx.Client(base_url=url, timeout=30) as client:
        go_on = threading.Event()

        def chunks() -> Iterator[bytes]:
            yield b" " * 2500
            go_on.wait(20)
            yield json.dumps(PAIR).encode()

        slow = threading.Thread(target=lambda: httpx.post(f"{url}/v1/judge", content=chunks(), headers=JSON, timeout=30))
        slow.start()
        padded = json.dumps(PAIR).encode() + b" " * 1000
        while (answer := client.post("/v1/judge", content=padded, headers=JSON)).status_code == 200:
            time.sleep(0.01)
        assert (answer.status_code, answer.headers["Retry-After"]) == (429, "2")
        assert "held_bytes" in answer.text
        go_on.set()
        slow.join()
        assert client.post("/v1/judge", content=padded, headers=JSON).status_code == 200
