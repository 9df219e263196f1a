"""OpenAI's API as its clients use it: what is not supported is refused in its shape of errors, and a repeated chat is drawn
anew."""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import httpx
import openai
import pytest
from PIL import Image

from rewardlab.data.images import encode_png, to_data_url
from rewardlab.judging.judge import GenerativeJudge
from rewardlab.judging.spec import DEMO_JUDGE
from rewardlab.samplers.base import SamplingParams
from rewardlab.samplers.openai_api import OpenAISampler
from rewardlab.samplers.scripted import ScriptedSampler
from rewardlab.serving.app import create_app
from rewardlab.types import Completion, FinishReason, Message
from tests.support.judge_servers import PLAIN
from tests.support.openai_server import ChatServer, chat_server
from tests.support.scripted_judge import ANSWERS, PROMPT, handler
from tests.support.servers import running

IMAGE = to_data_url(encode_png(Image.new("RGB", (30, 20))))
CALL = {"type": "function_call", "name": "f", "arguments": "{}", "call_id": "c"}
CHAT: Any = [{"role": "user", "content": "Which number?"}]


class SeededSampler(ScriptedSampler):
    """Completes a chat with its seed and the roles of its messages, so that a new draw can be told from a kept one."""

    def sample(self, prompts: Sequence[tuple[Message, ...]], params: SamplingParams) -> list[list[Completion]]:
        if "Response 1" in prompts[0][0].text:
            return super().sample(prompts, params)
        roles = [" ".join(message.role for message in prompt) for prompt in prompts]
        return [[Completion(f"{params.seed} {text}", FinishReason.STOP, num_tokens=2)] * params.num_samples for text in roles]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with running(create_app(GenerativeJudge(SeededSampler(handler, "runs/rl/final"), PLAIN))) as address:
        yield address


@pytest.fixture(scope="module")
def api(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        yield client


def completed(api: openai.OpenAI, **options: Any) -> str:
    response = api.chat.completions.create(**{"model": "m", "messages": CHAT, **options})
    return str(response.choices[0].message.content)


def test_a_repeated_chat_is_drawn_anew(api: openai.OpenAI) -> None:
    """Best of n by repeated requests gets n draws; with a seed the same request has the same answer."""
    assert len({completed(api) for _ in range(5)}) == 5
    assert {completed(api, seed=7) for _ in range(3)} == {"7 user"}
    with pytest.raises(openai.UnprocessableEntityError, match="n must be 1"):
        completed(api, messages=[*CHAT, {"role": "assistant", "content": "I say 1."}], n=2)


@pytest.mark.parametrize("pictures", [0, 1])
def test_a_mark_of_images_in_a_text_is_text(api: openai.OpenAI, pictures: int) -> None:
    """U+FFFC is in texts that office programs copy."""
    content: list[Any] = [{"type": "image_url", "image_url": {"url": IMAGE}}] * pictures
    said: Any = [*content, {"type": "text", "text": "Which \ufffc number?"}] if pictures else "Which \ufffc number?"
    assert completed(api, messages=[{"role": "user", "content": said}], seed=1) == "1 user"


def test_developer_is_system(api: openai.OpenAI) -> None:
    """For completions and for rewards."""
    system: list[Any] = [{"role": "developer", "content": "Be brief."}]
    assert completed(api, messages=system + CHAT, seed=1) == "1 system user"
    with pytest.raises(openai.UnprocessableEntityError, match="'tool'; expected system, developer, user or assistant"):
        completed(api, messages=[*CHAT, {"role": "tool", "content": "5", "tool_call_id": "1"}])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("stop", ["\n"]),
        ("logprobs", True),
        ("top_logprobs", 3),
        ("response_format", {"type": "json_object"}),
        ("tools", [{"type": "function", "function": {"name": "f", "parameters": {}}}]),
        ("tool_choice", "required"),
        ("logit_bias", {"5": 1}),
        ("presence_penalty", 0.5),
        ("frequency_penalty", -0.5),
        ("modalities", ["text", "audio"]),
        ("audio", {"voice": "alloy", "format": "wav"}),
        ("reasoning_effort", "high"),
        ("top_k", 5),
        ("of_their_own", 5),
    ],
)
def test_what_is_not_supported_is_refused(api: openai.OpenAI, name: str, value: Any) -> None:
    """400 with a sentence, the parameter and a code, in place of an answer to another question."""
    with pytest.raises(openai.BadRequestError, match=f"the parameter '{name}' is not supported here: leave it out") as refused:
        completed(api, extra_body={name: value})
    assert (refused.value.code, refused.value.type, refused.value.param) == ("unsupported", "invalid_request_error", name)


def test_defaults_of_clients_are_accepted(api: openai.OpenAI) -> None:
    """What asks for nothing, and what no answer depends on."""
    defaults = {
        "stop": None,
        "logprobs": False,
        "response_format": {"type": "text"},
        "presence_penalty": 0,
        "frequency_penalty": 0.0,
        "logit_bias": {},
        "tools": [],
        "tool_choice": "auto",
        "user": "anna",
        "metadata": {"run": "7"},
        "store": False,
    }
    assert completed(api, seed=3, extra_body=defaults) == "3 user"


def test_json_of_an_engine_that_writes_it() -> None:
    """The format is passed on as it is; answers in another form, and rewards, are refused, and a kept text is no answer."""
    json_object: Any = {"type": "json_object"}
    schema: Any = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "object"}, "strict": True}}
    engine = ChatServer(text='{"score": 5}')
    with chat_server(engine) as address, running(create_app(GenerativeJudge(OpenAISampler(address, "m"), PLAIN))) as served:
        api = openai.OpenAI(base_url=f"{served}/v1", api_key="none", max_retries=0)
        for form in ({"type": "text"}, json_object, schema):
            assert completed(api, seed=1, response_format=form) == '{"score": 5}'
        assert [body.get("response_format") for body in engine.bodies] == [None, json_object, schema]
        engine.text = "Five."
        with pytest.raises(openai.BadRequestError, match="the answer is not JSON") as refused:
            completed(api, response_format=json_object)
        assert (refused.value.code, refused.value.param) == ("unsupported", "response_format")
        with pytest.raises(openai.BadRequestError, match="the parameter 'response_format' is not supported here"):
            completed(api, messages=[*CHAT, {"role": "assistant", "content": "I say 1."}], response_format=json_object)


def test_what_other_clients_send(api: openai.OpenAI, monkeypatch: pytest.MonkeyPatch) -> None:
    """``do_sample`` without sampling is greedy; more tokens than the server writes are lowered, which the answer says; to
    switch off thinking has no effect where a chat template knows no switch, and is refused where that is not known. Nothing
    that the judge sends with any request is refused."""
    asked = list[SamplingParams]()
    sample = SeededSampler.sample

    def noting(self: Any, prompts: Any, params: SamplingParams) -> Any:
        asked.append(params)
        return sample(self, prompts, params)

    monkeypatch.setattr(SeededSampler, "sample", noting)
    long = api.chat.completions.create(model="m", messages=CHAT, max_tokens=4096, extra_body={"do_sample": False})
    assert (asked[-1].temperature, asked[-1].max_tokens) == (0.0, 1024)
    assert long.model_extra == {"max_tokens": 1024}
    short = api.chat.completions.create(model="m", messages=CHAT, max_tokens=5, extra_body={"do_sample": True})
    assert (asked[-1].temperature, asked[-1].max_tokens, short.model_extra) == (1.0, 5, {"max_tokens": None})
    with pytest.raises(openai.UnprocessableEntityError, match="do_sample is false, which is greedy"):
        completed(api, temperature=0.7, extra_body={"do_sample": False})
    no_thinking = {"chat_template_kwargs": {"enable_thinking": False}}
    with pytest.raises(openai.BadRequestError, match="chat_template_kwargs"):
        completed(api, extra_body=no_thinking)
    sampler = ScriptedSampler(lambda prompt, draw: "fine")
    with running(create_app(GenerativeJudge(sampler, PLAIN, judge=f"hf:{DEMO_JUDGE}"))) as address:
        local = openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)
        assert completed(local, extra_body=no_thinking) == "fine"
        with pytest.raises(openai.BadRequestError, match="chat_template_kwargs"):
            completed(local, extra_body={"chat_template_kwargs": {"enable_thinking": True}})
    body = {**no_thinking, "top_k": 20}
    with running(create_app(GenerativeJudge(sampler, PLAIN, judge="openai:m@http://engine/v1", body=body))) as address:
        remote = openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)
        assert completed(remote, extra_body=body) == "fine"
        for other in ({"chat_template_kwargs": {"enable_thinking": True}}, {"top_k": 10}):
            with pytest.raises(openai.BadRequestError, match=next(iter(other))):
                completed(remote, extra_body=other)


def test_tokens_of_a_stream(api: openai.OpenAI) -> None:
    """In a last event of their own where they are asked for, else nowhere: who adds them up counts them once."""
    plain = list(api.chat.completions.create(model="m", messages=CHAT, n=2, stream=True))
    assert [event.usage for event in plain] == [None, None]
    counted = list(
        api.chat.completions.create(model="m", messages=CHAT, n=2, stream=True, stream_options={"include_usage": True})
    )
    assert [event.usage.completion_tokens if event.usage else None for event in counted] == [None, None, 4]
    assert counted[-1].choices == []


def test_embeddings_in_base64(url: str, api: openai.OpenAI) -> None:
    """The default of OpenAI's packages, of which the one for JavaScript reads nothing else; dimensions are refused."""
    texts = [PROMPT + answer + "<|im_end|>" for answer in ANSWERS]
    told = httpx.post(f"{url}/v1/embeddings", json={"model": "m", "input": texts, "encoding_format": "base64"}).json()
    assert [struct.unpack("<f", base64.b64decode(one["embedding"])) for one in told["data"]] == [(-1,), (1,), (0,)]
    for options in ({}, {"encoding_format": "float"}):
        read = api.embeddings.create(model="m", input=texts, **options)
        assert [one.embedding for one in read.data] == [[-1], [1], [0]]
    with pytest.raises(openai.BadRequestError, match="'dimensions' is not supported"):
        api.embeddings.create(model="m", input=texts, dimensions=8)
    with pytest.raises(openai.UnprocessableEntityError, match="token ids; this server reads texts"):
        api.embeddings.create(model="m", input=[[1, 2], [3]])


def test_a_model_by_its_name(api: openai.OpenAI) -> None:
    """Slashes included; another one is not here, which is another 404 than a path's."""
    assert api.models.retrieve("runs/rl/final").id == "runs/rl/final"
    with pytest.raises(openai.NotFoundError, match="there is no model 'gpt-9' here"):
        api.models.retrieve("gpt-9")


def test_responses(api: openai.OpenAI, monkeypatch: pytest.MonkeyPatch) -> None:
    """A text or items, with ``instructions`` of the system; the answer is that of chat completions, its limits too."""
    asked = list[tuple[tuple[Message, ...], SamplingParams]]()
    sample = SeededSampler.sample

    def noting(self: Any, prompts: Any, params: SamplingParams) -> Any:
        asked.append((prompts[0], params))
        return sample(self, prompts, params)

    monkeypatch.setattr(SeededSampler, "sample", noting)
    plain = api.responses.create(model="m", input="Which number?")
    assert (plain.output_text.split()[1:], plain.status, plain.model) == (["user"], "completed", "m")
    assert (plain.usage.output_tokens, plain.usage.total_tokens) == (2, 2 + plain.usage.input_tokens)
    said: Any = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "3", "annotations": []}]}
    user: Any = {
        "role": "user",
        "content": [{"type": "input_text", "text": "Which?"}, {"type": "input_image", "image_url": IMAGE}],
    }
    items = [user, {"type": "reasoning", "id": "r", "summary": []}, said, user]
    long = api.responses.create(
        model="m", input=items, instructions="Be brief.", max_output_tokens=4096, temperature=0.5, top_p=0.9
    )
    assert long.output_text.split()[1:] == ["system", "user", "assistant", "user"]
    prompt, params = asked[-1]
    assert (prompt[0].text, prompt[2].text, len(prompt[3].images)) == ("Be brief.", "3", 1)
    assert (params.temperature, params.top_p, params.max_tokens, long.max_output_tokens) == (0.5, 0.9, 1024, 1024)
    monkeypatch.setattr(SeededSampler, "sample", lambda *_: [[Completion("cut", FinishReason.LENGTH)]])
    cut = api.responses.create(model="m", input="Which number?", max_output_tokens=1)
    assert (cut.output_text, cut.status, cut.incomplete_details.reason) == ("cut", "incomplete", "max_output_tokens")


@pytest.mark.parametrize(
    "options",
    [
        {"stream": True},
        {"previous_response_id": "resp_1"},
        {"store": True},
        {"background": True},
        {"text": {"format": {"type": "json_object"}}},
        {"tools": [{"type": "web_search"}]},
        {"reasoning": {"effort": "high"}},
        {"extra_body": {"messages": CHAT}},
    ],
    ids=str,
)
def test_what_responses_do_not_support_is_refused(api: openai.OpenAI, options: dict[str, Any]) -> None:
    name = next(iter(options.get("extra_body", options)))
    with pytest.raises(openai.BadRequestError, match=f"the parameter '{name}' is not supported here: leave it out"):
        api.responses.create(**{"model": "m", "input": "Which number?", **options})


@pytest.mark.parametrize(
    "value", [[], [{"type": "reasoning"}], [{"type": "item_reference", "id": "a"}], [CALL], [5], 5], ids=str
)
def test_an_input_that_is_no_chat(api: openai.OpenAI, value: Any) -> None:
    with pytest.raises(openai.UnprocessableEntityError):
        api.responses.create(model="m", input=value)
