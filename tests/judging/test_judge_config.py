"""A judge is a value: one config, by every door; what was measured is what is served."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rewardlab.cli import main
from rewardlab.cli.options import judge_of, refuse_run_keys
from rewardlab.cli.serve import ServeOptions, _application, _served, _server_options, settings_of
from rewardlab.config.judge import JUDGE_KEYS, JudgeConfig
from rewardlab.data.images import to_data_url
from rewardlab.data.pairs import write_parquet
from rewardlab.demo.pairs import make_pairs
from rewardlab.errors import ConfigError
from rewardlab.judging.api import open_judge
from rewardlab.judging.engines import open_generative_judge, open_model_judge
from rewardlab.judging.spec import judge_config
from rewardlab.serving.limits import Limits
from rewardlab.types import BOTH_ORDERS
from tests.support.servers import free_port
from tests.support.serving import in_process
from tests.support.shell import run_main

ENDPOINT = "openai:m@http://127.0.0.1:9/v1"
WITHOUT_INFLUENCE = {
    "concurrency": 4,
    "deadline_s": 9.0,
    "max_tokens_field": "max_tokens",
    "batch_size": 8,
    "cache": "x",
    "api_key_env": "K",
}
CHANGES: dict[str, Any] = {
    "template": "plain",
    "temperature": 0.5,
    "top_p": 0.9,
    "max_tokens": 9,
    "votes": 3,
    "orders": "given",
    "policy": "majority",
    "stop_error": 0.1,
    "engine_args": "--dtype bfloat16",
    "reasoning_effort": "low",
    "body": {"verbosity": "low"},
}


def test_what_was_measured_is_what_is_served(tmp_path: Path) -> None:
    """The folder of a run names its judge: the endpoint has the same hash, and the same samples for the same seed."""
    pairs = make_pairs(4, seed=5, held_out=True)[0]
    write_parquet(pairs, tmp_path / "pairs.parquet")
    run = tmp_path / "run"
    keys = ("temperature=0.7", "top_p=0.9", "max_tokens=48", "--votes", "3", "--controls", "")
    done = run_main(main, "bench", "run", "pairs", "--data", tmp_path / "pairs.parquet", "--judge", "demo", "--out", run, *keys)
    assert done.returncode == 0, done.stderr
    report = json.loads((run / "report.json").read_text())
    config = judge_config(str(run))
    assert (config.hash, config.judge, config.votes, config.top_p) == (report["judge_config_hash"], "demo", 3, 0.9)

    judge = open_generative_judge(_served(config))
    direct = judge.compare_many(pairs[:1], orders=[BOTH_ORDERS], num_votes=3, seed=11)[0]
    options = ServeOptions(judge=str(run))
    with in_process(_application(options, _server_options(options, Limits.of(())), judge)) as client:
        health = client.get("/health").json()
        body = {"question": pairs[0].question, "responses": list(pairs[0].responses), "seed": 11, "votes": 3}
        answer = client.post("/v1/judge", json={**body, "images": [to_data_url(image) for image in pairs[0].images]}).json()
    assert health["judge_config_hash"] == report["judge_config_hash"]
    assert health["judge_config"] == report["judge_config"]
    assert [vote["text"] for vote in answer["votes"]] == [vote.completion.text for vote in direct.votes]
    assert len({vote["text"] for vote in answer["votes"]}) > 1  # at temperature 0.7 votes differ


def test_every_key_is_in_the_hash_or_has_no_influence() -> None:
    base = JudgeConfig.of(ENDPOINT)
    assert {*CHANGES, *WITHOUT_INFLUENCE} == set(JUDGE_KEYS)
    hashes = {name: judge_config(base, {name: value}).hash for name, value in CHANGES.items()}
    assert len({base.hash, *hashes.values()}) == 1 + len(CHANGES)
    assert {judge_config(base, {name: value}).hash for name, value in WITHOUT_INFLUENCE.items()} == {base.hash}


def test_a_judge_in_yaml(tmp_path: Path) -> None:
    """The same keys as KEY=VALUE; those over the file win, and a wrong key is a sentence that names the file."""
    path = tmp_path / "judge.yaml"
    path.write_text("judge: demo\ntemperature: 0\nvotes: 3\n")
    assert judge_config(str(path)) == judge_config("demo", temperature=0.0, votes=3)
    assert judge_config(str(path), {"votes": 5}).votes == 5
    path.write_text("judge: demo\ntemprature: 0\n")
    with pytest.raises(ConfigError, match=r"judge\.yaml: unknown key 'temprature'; did you mean 'temperature'"):
        judge_config(str(path))


@pytest.mark.parametrize(
    ("judge", "key", "value"),
    [
        ("demo", "reasoning_effort", "low"),
        ("demo", "cache", "folder"),
        (ENDPOINT, "batch_size", 8),
        (ENDPOINT, "engine_args", "--dtype float32"),
        ("http://127.0.0.1:9", "temperature", 0.0),
        ("http://127.0.0.1:9", "template", "plain"),
        ("panel:demo,http://127.0.0.1:9", "reasoning_effort", "low"),
    ],
)
def test_a_key_without_an_effect_is_refused(judge: str, key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"{key} would have no effect on this judge; leave these out"):
        open_model_judge(judge, **{key: value})


def test_orders_that_no_endpoint_has(tmp_path: Path) -> None:
    done = run_main(main, "serve", "--judge", "demo", "--port", free_port(), "orders=given")
    assert done.returncode == 2
    assert "an endpoint shows every pair in both orders" in done.stderr


@pytest.mark.parametrize(
    ("option", "value", "sentence"),
    [
        ("--keys", "missing", "--keys missing: cannot be read"),
        ("--media", "missing", "missing: no such folder of media"),
        ("--allow-url", "images.host", "images.host: expected a URL that ends with /"),
    ],
)
def test_a_wrong_option_is_refused_before_the_judge_is_loaded(tmp_path: Path, option: str, value: str, sentence: str) -> None:
    done = run_main(main, "serve", "--judge", "hf:no/judge", "--port", free_port(), option, value, folder=tmp_path)
    assert done.returncode == 2
    assert sentence in " ".join(done.stderr.split())


def test_a_judge_file_that_does_not_exist_is_named(tmp_path: Path) -> None:
    done = run_main(main, "serve", "--judge", "hf:no/judge", "--judge-file", "typo.txt", "--keys", "missing", folder=tmp_path)
    assert "opening hf:no/judge (typo.txt does not exist yet)" in " ".join(done.stderr.split())


def test_a_key_that_is_set_twice() -> None:
    done = run_main(
        main, "bench", "run", "pairs", "--data", "none.parquet", "--judge", "demo", "votes=3", "--votes", "5", "--out", "none"
    )
    assert done.returncode == 2
    assert "votes is set twice" in done.stderr


def write_run(folder: Path, **keys: Any) -> Path:
    """Write what a judge by the folder of a run is read from."""
    folder.mkdir()
    (folder / "report.json").write_text(json.dumps({"judge_config": {"judge": ENDPOINT, "orders": "both", **keys}}))
    return folder


def test_keys_over_those_of_a_run(tmp_path: Path) -> None:
    """A key within ``body`` changes alone, over a run and a config as over a file."""
    run = write_run(tmp_path / "run", body={"verbosity": "low", "top_k": 5})
    judge = judge_of(str(run), ["body.verbosity=high"])
    assert judge.body == {"verbosity": "high", "top_k": 5}
    assert judge_config(judge, {"body.top_k": 6}).body == {"verbosity": "high", "top_k": 6}


def test_a_folder_that_is_called_like_a_judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path / "demo")
    monkeypatch.chdir(tmp_path)
    assert (judge_config("demo").judge, judge_config("./demo").judge) == ("demo", ENDPOINT)


def test_a_run_names_the_judge_of_every_command(tmp_path: Path) -> None:
    """Its config says both orders, which `judge` and `rank` use anyhow; others are refused."""
    run = write_run(tmp_path / "run", votes=3)
    assert refuse_run_keys(judge_of(str(run), ())).votes == 3
    with pytest.raises(ConfigError, match="orders: this command judges both orders"):
        refuse_run_keys(judge_of(str(run), ["orders=given"]))
    with pytest.raises(ConfigError, match="orders, stop_error: this command"):
        refuse_run_keys(judge_of(str(run), ["stop_error=0.1"]))


def test_votes_of_a_config_count_in_python(tmp_path: Path) -> None:
    judge = open_judge("demo", votes=2, max_tokens=4)
    assert [len(judge.compare("q", ["a", "b"], votes=votes).votes) for votes in (None, 1)] == [4, 2]


@pytest.mark.parametrize("command", [("serve",), ("bench", "suite", "eval/quickstart.yaml", "--root", ".", "--out", "x")])
def test_a_second_judge_is_refused(command: tuple[str, ...]) -> None:
    done = run_main(main, *command, "--judge", "demo", "judge=openai:m@http://127.0.0.1:9/v1")
    assert done.returncode == 2
    assert "judge is set twice, by judge=... and by --judge" in done.stderr


def test_the_votes_of_an_endpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """KEY=VALUE overrides the file and the variable."""
    path = tmp_path / "serve.yaml"
    path.write_text("votes: 5\n")
    done = run_main(main, "serve", "--judge", "demo", "--config", path, "votes=99")
    assert "votes=99: expected at most 64 samples" in done.stderr
    monkeypatch.setenv("REWARDLAB_SERVE_VOTES", "98")
    assert "votes=99" in run_main(main, "serve", "--judge", "demo", "votes=99").stderr
    assert "votes=98" in run_main(main, "serve", "--judge", "demo", "--config", path).stderr


def test_keys_of_a_served_judge_are_yaml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are read as KEY=VALUE is, from a file as from a variable; what is no YAML is a sentence."""
    path = tmp_path / "serve.yaml"
    path.write_text("temperature: 5e-1\nbody: {mode: on}\n")
    assert settings_of(JUDGE_KEYS, path) == {"temperature": 0.5, "body": {"mode": "on"}}
    monkeypatch.setenv("REWARDLAB_SERVE_BODY", "{a: ")
    with pytest.raises(ConfigError, match=r"REWARDLAB_SERVE_BODY=\{a: : the value is not valid YAML"):
        settings_of(JUDGE_KEYS, path)


def test_a_key_that_is_no_text() -> None:
    with pytest.raises(ConfigError, match="the key 50256 is not text; expected a name, such as '50256' in quotes"):
        judge_of(ENDPOINT, ["body={logit_bias: {50256: -100}}"])


def test_one_hash_at_an_endpoint_as_in_a_report() -> None:
    """Orders that are not named are both, in a report as at an endpoint."""
    assert _served(JudgeConfig.of("demo")).hash == judge_config("demo", orders="both").hash
