"""How an endpoint is asked: further fields, what newer models refuse, how many requests at a time; against real servers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rewardlab.benchmarks.benchmark import benchmark
from rewardlab.benchmarks.suite import entry_settings
from rewardlab.cli import main
from rewardlab.config import SuiteConfig
from rewardlab.config.judge import RequestConfig
from rewardlab.data.pairs import write_parquet
from rewardlab.distill.pipeline import distill
from rewardlab.errors import ConfigError
from rewardlab.judging.engines import open_generative_judge, open_model_judge
from rewardlab.judging.spec import judge_config
from rewardlab.samplers.base import SamplingParams
from rewardlab.samplers.field_fit import FieldFit
from rewardlab.samplers.openai_api import OpenAISampler
from rewardlab.types import FinishReason, Message, Part
from tests.support.distillation import config_for
from tests.support.openai_server import ChatServer, chat_server
from tests.support.shell import run_main

PROMPT = (Message("user", (Part(text="q"),)),)


def newer(body: dict[str, Any], number: int) -> tuple[int, str] | None:
    """Refuse as today's reasoning models do."""
    if "max_tokens" in body:
        return 400, "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
    if body.get("temperature", 1) != 1:
        return (
            400,
            "Unsupported value: 'temperature' does not support 0 with this model. Only the default (1) value is supported.",
        )
    if "seed" in body:
        return 422, "seed: Extra inputs are not permitted"
    return None


@pytest.fixture
def pairs_file(demo_pairs: Any, tmp_path: Path) -> Path:
    write_parquet(demo_pairs[0][:12], tmp_path / "pairs.parquet")
    return tmp_path / "pairs.parquet"


def test_a_model_that_reasons_is_benchmarked(pairs_file: Path, tmp_path: Path) -> None:
    """Every vote is valid; what it was asked without is said, also when the finished run is scored again."""
    server = ChatServer(refuse=newer)
    with chat_server(server) as url:
        for _ in range(2):
            report = benchmark("pairs", judge=f"openai:m@{url}", data=pairs_file, out=tmp_path / "out", temperature=0.5)
            assert report.scores.invalid_rate == 0
            assert report.temperature is None
            assert any(note.startswith("asked without seed, temperature, which the endpoint refuses") for note in report.notes)
    answered = [body for body in server.bodies if newer(body, 0) is None]
    assert len(answered) == server.answers == 48
    assert all(body["max_completion_tokens"] == 1024 for body in answered)
    assert answered[-1].keys() == {"model", "messages", "max_completion_tokens", "top_p"}


def test_a_teacher_that_reasons(demo_pairs: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """`distill` asks it as it wants to be asked, too, and says so."""
    server = ChatServer(refuse=newer)
    with chat_server(server) as url:
        for _ in range(2):  # the second time nothing is asked
            statistics = distill(demo_pairs[0][:6], config_for(url, temperature=0.7), tmp_path)
            assert (statistics["num_pairs"], statistics["asked_without"]) == (6, ["seed", "temperature"])
    assert "requests leave out seed, temperature, which the teacher refuses" in capfd.readouterr().err


def test_what_a_refusal_teaches() -> None:
    """A field that is unknown is renamed or left out; a value out of bounds is no reason to drop the field."""
    asked = {"temperature": 0.0, "top_p": 1.0, "max_tokens": 9, "seed": 3, "verbosity": "low"}

    def after(*sentences: str, field: str = "auto") -> dict[str, Any]:
        fit = FieldFit(field)
        for sentence in sentences:
            fit.adopt(fit.after(fit.fit(asked), sentence))
        return fit.fit(asked)

    assert after() == asked
    assert after("max_tokens is too large: 9. This model supports at most 8 tokens") == asked
    assert after("verbosity is not supported") == asked
    assert after("Unknown model 'temperate'") == asked
    renamed = after("max_tokens is not supported")
    assert renamed == {**{k: v for k, v in asked.items() if k != "max_tokens"}, "max_completion_tokens": 9}
    assert after("max_tokens is not supported", "max_completion_tokens: unknown field") == renamed
    assert after(field="max_completion_tokens") == renamed
    assert after("max_tokens is not supported", field="max_tokens") == asked
    both = after("`temperature` and `top_p` cannot both be specified for this model. Please use only one.")
    assert both == {k: v for k, v in asked.items() if k != "top_p"}
    assert "seed" not in FieldFit().fit({"seed": None, "top_k": None})
    assert FieldFit().fit({"top_k": None}) == {"top_k": None}


def test_a_refusal_that_repeats_the_prompt() -> None:
    """It names fields, and asking without them is refused, too: all others are asked with them."""

    def moderate(body: dict[str, Any], number: int) -> tuple[int, str] | None:
        text = body["messages"][0]["content"]
        return (400, f"content not allowed: {text!r}") if "need" in text else None

    server = ChatServer(refuse=moderate)
    with chat_server(server) as url:
        sampler = OpenAISampler(url, "m", request=RequestConfig.model_validate({"concurrency": 1}))
        refused = (Message("user", (Part(text="What temperature does the seed need?"),)),)
        rows = sampler.sample([PROMPT, refused, PROMPT], SamplingParams(temperature=0.5))
        assert [row[0].failed for row in rows] == [False, True, False]
        assert rows[1][0].error.startswith("HTTP 400: content not allowed")
        assert sampler.left_out == frozenset()
        sampler.sample([PROMPT], SamplingParams(temperature=0.5))
    assert len(server.bodies) == 5  # the refused one was asked once more
    assert [body.keys() >= {"temperature", "seed"} for body in server.bodies].count(False) == 1
    assert server.bodies[-1].keys() >= {"temperature", "seed"}


def test_a_fit_on_trial_changes_nothing() -> None:
    """It is kept once a request so made was answered; what two of them found is kept together."""
    asked = {"temperature": 0.0, "max_tokens": 9, "seed": 3}
    fit = FieldFit()
    first, second = fit.after(asked, "seed: unknown field"), fit.after(asked, "max_tokens is not supported")
    assert fit.fit(asked) == asked
    assert first.fit(asked) == {"temperature": 0.0, "max_tokens": 9}
    assert fit.after(asked, "no such model") is fit
    fit.adopt(first)
    fit.adopt(second)
    assert fit.fit(asked) == {"temperature": 0.0, "max_completion_tokens": 9}
    assert fit.left_out == {"seed"}


def test_fields_concurrency_and_deadline() -> None:
    """They reach the server as they are; no more requests at a time than asked for; a late answer is a time-out."""
    server = ChatServer(delay_s=0.05)
    with chat_server(server) as url:
        body = {"verbosity": "low", "seed": None, "chat_template_kwargs": {"a": 1}}
        keys: dict[str, Any] = {"concurrency": 2, "deadline_s": 5.0, "reasoning_effort": "low", "body": body}
        judge = open_generative_judge(f"openai:m@{url}", **keys)
        assert all(row[0].finish is FinishReason.STOP for row in judge.sampler.sample([PROMPT] * 8, SamplingParams()))
        late = open_generative_judge(f"openai:m@{url}", deadline_s=0.01).sampler
        assert late.sample([PROMPT], SamplingParams())[0][0].finish is FinishReason.TIMEOUT
    assert server.most == 2
    sent = server.bodies[0]
    assert (sent["reasoning_effort"], sent["verbosity"], sent["chat_template_kwargs"]) == ("low", "low", {"a": 1})
    assert "seed" not in sent
    assert sent["max_tokens"] == 1024


def test_another_effort_is_another_run(pairs_file: Path, tmp_path: Path) -> None:
    """The options of the command line decide the votes, but for how fast they are asked for."""
    with chat_server(ChatServer()) as url:
        run = ["bench", "run", "pairs", "--data", pairs_file, "--judge", f"openai:m@{url}", "--out", tmp_path / "out"]
        low = ["reasoning_effort=low", 'body={"verbosity": "low"}']
        assert run_main(main, *run, *low, "concurrency=3").returncode == 0
        assert run_main(main, *run, *low, "concurrency=4", "deadline_s=9").returncode == 0
        other = run_main(main, *run, "reasoning_effort=high", 'body={"verbosity": "low"}')
    assert other.returncode == 2
    assert "differs in judge" in other.stderr
    assert "reasoning_effort=low" in json.loads((tmp_path / "out" / "report.json").read_text())["judge"]


def test_a_suite_says_how_each_is_asked(pairs_file: Path, tmp_path: Path) -> None:
    """An entry's own options hold where the command says nothing."""
    entry = {"benchmark": "pairs", "data": pairs_file.name, "reasoning_effort": "low", "body": {"a": 1}, "concurrency": 3}
    config = SuiteConfig.model_validate({"title": "t", "benchmarks": [entry]})
    [settings] = entry_settings(config, tmp_path, "openai:m@http://127.0.0.1:9", {"concurrency": 4, "body": {"b": 2}})
    query = settings.judge
    assert (query.concurrency, query.reasoning_effort, query.body) == (4, "low", {"a": 1, "b": 2})


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"body": {"temperature": 0.3}}, "body: sets temperature, which temperature sets"),
        ({"body": {"max_tokens": None}}, "body: sets max_tokens, which max_tokens sets"),
        ({"body": {"stream": True}}, "answers are read as a whole"),
        ({"max_tokens_field": "limit"}, "should be 'auto', 'max_tokens' or 'max_completion_tokens'"),
        ({"concurrency": 0}, "concurrency: .* greater than or equal to 1"),
    ],
)
def test_options_that_cannot_be(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        judge_config("openai:m@http://127.0.0.1:9", options)


def test_only_endpoints_take_them(tiny_checkpoint: Path) -> None:
    """What a judge would not heed is refused; of a panel's members the endpoints heed it."""
    for spec in (f"hf:{tiny_checkpoint}", "http://127.0.0.1:9", "panel:http://127.0.0.1:9,http://127.0.0.1:8"):
        with pytest.raises(ConfigError, match="reasoning_effort would have no effect on this judge"):
            open_model_judge(spec, reasoning_effort="low")
    panel = open_model_judge("panel:openai:m@http://127.0.0.1:9/v1,http://127.0.0.1:8", reasoning_effort="low")
    assert [member.config.request_identity for member in panel.members] == ["reasoning_effort=low", ""]
    with pytest.raises(ConfigError, match="body: Input should be a valid dictionary"):
        judge_config("openai:m@http://127.0.0.1:9", {"body": [1]})


def test_cut_off_while_it_reasoned() -> None:
    """Servers that keep reasoning apart leave no text then: the answer was cut off, and nothing failed."""
    server = ChatServer(text=None, finish="length")
    with chat_server(server) as url:
        [[completion]] = OpenAISampler(url, "m").sample([PROMPT], SamplingParams())
    assert (completion.text, completion.finish, completion.num_tokens) == ("", FinishReason.LENGTH, 10)


def test_what_the_body_leaves_out_is_not_reported(pairs_file: Path, tmp_path: Path) -> None:
    """A temperature that nobody sent is none of the report's, and its controls are not greedy; of both benchmark commands."""
    server = ChatServer()
    with chat_server(server) as url:
        how: dict[str, Any] = {"judge": f"openai:m@{url}", "data": pairs_file, "out": tmp_path / "out"}
        for _ in range(2):
            report = benchmark("pairs", **how, body={"temperature": None, "seed": None}, temperature=0.0)
            assert (report.temperature, report.top_p) == (None, 1.0)
            assert "asked without seed, temperature, which the body of the requests leaves out: its own defaults hold" in (
                report.notes
            )
            assert any("not greedy" in note for note in report.notes)
        row = {"id": "1", "prompt": "Q", "subset": "Math", "chosen": ["good"], "rejected": ["b", "c", "d"]}
        (tmp_path / "rb2.jsonl").write_text(json.dumps(row | {"num_correct": 1, "num_incorrect": 3}))
        command = [
            "bench",
            "run",
            "rewardbench2:choice",
            "--data",
            tmp_path / "rb2.jsonl",
            "--judge",
            f"openai:m@{url}",
            "--out",
            tmp_path / "l",
        ]
        for _ in range(2):
            ended = run_main(main, *command, 'body={"temperature": null}')
            assert "asked without temperature" in ended.stdout
            assert json.loads((tmp_path / "l" / "report.json").read_text())["temperature"] is None
    assert not any("temperature" in body for body in server.bodies)
