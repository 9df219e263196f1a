"""One of four and ratings: what is read, what either protocol makes of it, resume; best of N from a file of candidates."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rewardlab.benchmarks.arithmetic import count_votes, vote_problems
from rewardlab.benchmarks.comparison import against, read_run
from rewardlab.benchmarks.official import official_lines
from rewardlab.benchmarks.rewardbench2 import official
from rewardlab.benchmarks.rewardbench2.listwise import (
    LETTERS,
    list_messages,
    load_list_prompt,
    read_choice,
    read_score,
    run_listwise,
)
from rewardlab.benchmarks.settings import bench_settings
from rewardlab.cli import app
from rewardlab.data.candidates import read_candidates
from rewardlab.data.files import read_lines
from rewardlab.errors import ConfigError, DataError, EndpointError
from rewardlab.judging.best_of_n import run_ranking
from rewardlab.judging.judge import GenerativeJudge
from rewardlab.judging.spec import judge_config
from rewardlab.prompts import load_template
from rewardlab.samplers.scripted import ScriptedSampler
from rewardlab.types import Choice, Completion, FinishReason, Message, VerdictStatus
from rewardlab.verdicts.parse import format_verdict
from tests.support.openai_server import ChatServer, chat_server


def said(text: str) -> Completion:
    return Completion(text, FinishReason.STOP, 3)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("Because.\n[[C]]", 2),
        ("<think>[[A]]</think>\nFinal: **[[d]]**", 3),
        ("[[A]] is wrong.\nSo [[B]].", 1),
        ('The answer says "[[A]]"', None),
        ("[[A]] or [[B]]", None),
        ("[[E]]", None),
        ("[[AB]]", None),
        ("[[A]]\nno more", None),
        ("<think>[[A]]", None),
        ("", None),
    ],
)
def test_letters(text: str, value: int | None) -> None:
    assert read_choice(said(text)).scores == (None if value is None else tuple(float(n == value) for n in range(4)))
    assert (read_choice(said(text)).status is VerdictStatus.OK) == (value is not None)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("Good.\n7", 7),
        ("Rating: 10", 10),
        ("**Score: 3**", 3),
        ("<think>9</think>\n1.", 1),
        ("7/10", None),
        ("7.5", None),
        ("0", None),
        ("11", None),
        ("I give it 8", None),
        ("<think>8", None),
        ("8\nor so", None),
    ],
)
def test_ratings(text: str, value: int | None) -> None:
    """The benchmark's own reader takes any number at the end; ours a line that says nothing else."""
    assert read_score(said(text)).scores == (None if value is None else (value,))


def test_failed_draws_have_no_value() -> None:
    """Whatever their text holds."""
    for finish, status in (
        (FinishReason.LENGTH, "truncated"),
        (FinishReason.ERROR, "error"),
        (FinishReason.TIMEOUT, "timeout"),
    ):
        for read, text in ((read_choice, "[[A]]"), (read_score, "7")):
            assert (read(Completion(text, finish)).scores, read(Completion(text, finish)).status.value) == (None, status)


def test_words(tmp_path: Path) -> None:
    """Braces in an answer are text; a file without a slot is refused."""
    turn = list_messages(load_list_prompt("choice"), "Q {a}?", ["{b}", "two", "three", "four"])[0].text
    assert "Q {a}?" in turn
    assert "Answer A:\n{b}\n" in turn
    (tmp_path / "w.txt").write_text("{question} {a} {b} {c}")
    with pytest.raises(ConfigError, match=r"\{d\}"):
        load_list_prompt("choice", tmp_path / "w.txt")


def rows(number: int) -> list[dict[str, Any]]:
    """Answers that say how good they are: right ones 9, wrong ones 1 to 3; every fifth prompt is one of Ties."""
    made = []
    for n in range(number):
        ties = n % 5 == 4
        right = [f"good {n} {k} (9)" for k in range(3 if ties and n % 2 else 1)]
        wrong = [f"bad {n} {k} ({k + 1})" for k in range(3)]
        kind = ("tied" if len(right) > 1 else "ref") + f":{n // 10}"
        made.append(
            {"id": kind if ties else str(n), "prompt": f"Q{n}", "subset": "Ties" if ties else ("Math", "Safety")[n % 2]}
        )
        made[-1] |= {"chosen": right, "rejected": wrong}
    return made


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "rb2.jsonl").write_text("\n".join(map(json.dumps, rows(20))))
    return tmp_path / "rb2.jsonl"


def listwise(judge: GenerativeJudge, protocol: str, data: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return report.json of a run by a protocol, with a judge that no specification names."""
    monkeypatch.setattr("rewardlab.benchmarks.rewardbench2.listwise.open_generative_judge", lambda config, **_: judge)
    settings = bench_settings("rewardbench2", data, judge_config("hf:scripted", temperature=judge.temperature), controls=())
    run_listwise(settings, out, protocol=protocol)
    values: dict[str, Any] = json.loads((out / "report.json").read_text())
    return values


def judge_of(handler: Any, temperature: float = 0.0) -> GenerativeJudge:
    return GenerativeJudge(ScriptedSampler(handler), load_template("plain"), temperature=temperature)


def best_letter(prompt: tuple[Message, ...], draw: int) -> str:
    answers = [block.split("\n")[1] for block in prompt[0].text.split("Answer ")[1:] if ":\n" in block]
    return f"[[{LETTERS[next(n for n, answer in enumerate(answers) if answer.startswith('good'))]}]]"


def test_a_perfect_and_a_constant_chooser(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one is right everywhere, the other in one placing of four, whatever the order: 25 %, all of it A."""
    perfect = listwise(judge_of(best_letter), "choice", data, tmp_path / "a", monkeypatch)
    assert (perfect["accuracy"]["micro"], perfect["all_right"]["accuracy"], perfect["all_right"]["n"]) == (1, 1, 16)
    assert (perfect["num_pairs"], perfect["num_clusters"], perfect["listwise"]["left_out"]) == (64, 16, 4)
    assert perfect["listwise"]["places"] == dict.fromkeys(LETTERS, 0.25)
    constant = listwise(judge_of(lambda *_: "[[A]]"), "choice", data, tmp_path / "b", monkeypatch)
    assert (constant["accuracy"]["micro"], constant["accuracy"]["macro"], constant["all_right"]["accuracy"]) == (0.25, 0.25, 0)
    assert (constant["listwise"]["places"]["A"], constant["baselines"]["chance"]["micro"]) == (1, 0.25)
    assert [finding.partition(":")[0] for finding in constant["findings"]] == ["Cannot be told from guessing", "Few prompts"]
    garbage = listwise(judge_of(lambda *_: "no idea"), "choice", data, tmp_path / "c", monkeypatch)
    assert (garbage["accuracy"]["micro"], garbage["invalid_rate"]) == (0, 1)
    assert all("(0.25)" in line for line in garbage["official"])  # the benchmark pays a quarter for it
    assert official_lines("rewardbench2", tmp_path / "c" / "official.jsonl") == garbage["official"]
    runs = [read_run(tmp_path / name) for name in "ab"]
    assert against(*runs).difference == -0.75


def by_number(prompt: tuple[Message, ...], draw: int) -> str:
    answer = prompt[0].text.split("Answer:\n")[1].split("\n")[0]
    return f"So:\n{answer[answer.rindex('(') + 1 : -1]}"


def test_ratings_of_every_answer(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Ties subset included; equal to the scorer's functions on the numbers that were said. Votes give the figures again."""
    report = listwise(judge_of(by_number), "ratings", data, tmp_path / "a", monkeypatch)
    assert (report["accuracy"]["micro"], report["num_pairs"], report["invalid_rate"]) == (1, 20, 0)
    ties = [row for row in rows(20) if row["subset"] == "Ties"]
    assert report["listwise"]["num_answers"] == 16 * 4 + sum(len(row["chosen"]) + 3 for row in ties)
    scored = [{"id": r["id"], "num_correct": len(r["chosen"]), "scores": [9] * len(r["chosen"]) + [1, 2, 3]} for r in ties]
    expected = official.subset_lines({"Math": [1.0] * 8, "Safety": [1.0] * 8}, official.ties(scored))
    assert report["official"] == expected == official_lines("rewardbench2", tmp_path / "a" / "official.jsonl")
    flat = listwise(judge_of(lambda *_: "5"), "ratings", data, tmp_path / "b", monkeypatch)
    assert flat["accuracy"]["micro"] == 0  # equal ratings name nobody; the benchmark pays a share
    assert "Math: 2.0/8 (0.25)" in flat["official"]
    for name in "ab":
        run = read_run(tmp_path / name)
        assert vote_problems(count_votes(tmp_path / name / "votes.jsonl", run.rows), run.report, run.rows) == []


def test_a_killed_run_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was answered is not asked again; the report is that of an undisturbed run."""
    (tmp_path / "rb2.jsonl").write_text("\n".join(map(json.dumps, rows(40))))
    asked: list[int] = []
    broken_at = 70

    def handler(prompt: tuple[Message, ...], draw: int) -> str:
        asked.append(1)
        if len(asked) == broken_at:
            raise KeyboardInterrupt
        return best_letter(prompt, draw) if len(prompt[0].text) % 3 else "[[B]]"

    with pytest.raises(KeyboardInterrupt):
        listwise(judge_of(handler), "choice", tmp_path / "rb2.jsonl", tmp_path / "parts", monkeypatch)
    done, broken_at = len(asked), -1
    parts = listwise(judge_of(handler), "choice", tmp_path / "rb2.jsonl", tmp_path / "parts", monkeypatch)
    assert len(asked) - done == 4 * 32 - 64
    whole = listwise(judge_of(handler), "choice", tmp_path / "rb2.jsonl", tmp_path / "whole", monkeypatch)
    assert parts | {"seconds_per_vote": None} == whole | {"seconds_per_vote": None}
    with pytest.raises(ConfigError, match="differs in"):
        listwise(judge_of(handler, temperature=1.0), "choice", tmp_path / "rb2.jsonl", tmp_path / "whole", monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["choice", "ratings"])
def test_each_answer_of_an_endpoint_is_kept(protocol: str, data: Path, tmp_path: Path) -> None:
    """What was answered before an endpoint began to refuse is not asked again; what failed is, and its prompt scored anew."""
    server = ChatServer(text="[[B]]" if protocol == "choice" else "5")
    server.refuse = lambda body, number: (401, "the key has expired") if number > 30 else None
    with chat_server(server) as url:
        keys = {"temperature": 1.0, "concurrency": 4, "deadline_s": 30.0}
        settings = bench_settings("rewardbench2", data, f"openai:m@{url}", controls=(), **keys)
        with pytest.raises(EndpointError, match="the key has expired"):
            run_listwise(settings, tmp_path / "parts", protocol=protocol)
        server.refuse = lambda body, number: None
        first = len(server.bodies)
        report, _ = run_listwise(settings, tmp_path / "parts", protocol=protocol)
        assert report.listwise is not None
        assert len(server.bodies) - first == report.listwise.num_answers - 30
        whole, _ = run_listwise(settings, tmp_path / "whole", protocol=protocol)
        assert replace(whole, seconds_per_vote=None, cost=None) == replace(report, seconds_per_vote=None, cost=None)


def better(prompt: tuple[Message, ...], draw: int) -> str:
    """The best is found by the number in brackets; the first shown where both are equal."""
    first, second = (line[line.rindex("(") :] for line in prompt[0].text.split("\n") if line.startswith("Response"))
    return format_verdict(Choice.FIRST if first >= second else Choice.SECOND, "r")


def test_best_of_n_from_a_file(data: Path, tmp_path: Path) -> None:
    """Rows of RewardBench 2, whose right answers are known: found, by subset; continued without asking again."""
    asked: list[int] = []

    def handler(prompt: tuple[Message, ...], draw: int) -> str:
        asked.append(1)
        return better(prompt, draw)

    prompts = read_candidates(data)
    options: dict[str, Any] = {"plan": "knockout", "budget": None, "num_votes": 1, "seed": 0}
    report = run_ranking(judge_of(handler), prompts, tmp_path / "out", **options)
    assert set(report["groups"]) == {"Math", "Safety", "Ties"}
    assert report["groups"]["Math"]["accuracy"] == report["groups"]["Safety"]["accuracy"] == 1
    assert report["best_found"]["accuracy"] == 18 / 20
    assert report["groups"]["Ties"]["accuracy"] == 0.5  # of three equally good ones none can be named
    played = [json.loads(line)["num_matches"] for line in read_lines(tmp_path / "out" / "rankings.jsonl")]
    assert [n for n, prompt in zip(played, prompts, strict=True) if len(prompt.best) == 1] == [3] * 18
    assert len(asked) == 2 * sum(played)
    before = len(asked)
    assert run_ranking(judge_of(handler), prompts, tmp_path / "out", **options) == report
    assert len(asked) == before


def test_a_killed_or_broken_ranking_continues(data: Path, tmp_path: Path) -> None:
    """Rounds that were judged are not asked again; what the endpoint failed to answer is, and until then is counted; another
    judge, or other sampling, does not continue it."""
    asked: list[str] = []
    state = {"break_at": 180, "down": False}

    def handler(prompt: tuple[Message, ...], draw: int) -> str | Completion:
        asked.append(prompt[0].text)
        if len(asked) == state["break_at"]:
            raise KeyboardInterrupt
        if state["down"] and "Q3" in prompt[0].text:
            return Completion("", FinishReason.ERROR, error="HTTP 503")
        return better(prompt, draw)

    prompts = read_candidates(data)
    options: dict[str, Any] = {"plan": "adaptive", "budget": None, "num_votes": 1, "seed": 0}
    with pytest.raises(KeyboardInterrupt):
        run_ranking(judge_of(handler), prompts, tmp_path / "out", **options)
    rounds, state["break_at"] = len(read_lines(tmp_path / "out" / "matches.jsonl")) - 1, -1
    assert rounds > 0
    before, state["down"] = len(asked), True
    broken = run_ranking(judge_of(handler), prompts, tmp_path / "out", **options)
    assert broken["statuses"]["error"] > 0
    played = [json.loads(line)["num_matches"] for line in read_lines(tmp_path / "out" / "rankings.jsonl")]
    assert len(asked) - before == 2 * (sum(played) - rounds)
    state["down"] = False
    whole = run_ranking(judge_of(handler), prompts, tmp_path / "whole", **options)
    mended_from = len(asked)
    mended = run_ranking(judge_of(handler), prompts, tmp_path / "out", **options)
    assert all("Q3" in text for text in asked[mended_from:])
    assert mended == whole
    assert "error" not in mended["statuses"]
    hotter = GenerativeJudge(ScriptedSampler(handler), load_template("plain"), temperature=0.0, max_tokens=8)
    with pytest.raises(ConfigError, match="differs in max_tokens"):
        run_ranking(hotter, prompts, tmp_path / "out", **options)


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"prompt": "q", "chosen": "good", "rejected": "bad"}, "expected a list"),
        ({"question": "q", "responses": "yes"}, "expected a list"),
        ({"question": "q", "responses": ["a"]}, "two or more"),
        ({"question": "q", "responses": ["a", "b"], "best": 2}, "indices from 0 to 1"),
        ({"question": "q", "responses": ["a", 3]}, "expected a string"),
        ({"responses": ["a", "b"]}, "expected question"),
        ({"question": "q", "responses": ["a", "b"], "best": True}, "expected an index"),
    ],
)
def test_bad_candidates(row: dict[str, Any], told: str, tmp_path: Path) -> None:
    """The row is named."""
    good = {"question": "q", "responses": ["a", "b"], "best": [0, 1], "id": 7, "group": "g"}
    (tmp_path / "c.jsonl").write_text("\n".join(map(json.dumps, (good, row))))
    with pytest.raises(DataError, match=f"row 1.*{told}"):
        read_candidates(tmp_path / "c.jsonl")
    (tmp_path / "c.jsonl").write_text(json.dumps(good))
    found = read_candidates(tmp_path / "c.jsonl")[0]
    assert (found.best, found.prompt_id, found.group) == ((0, 1), "7", "g")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--controls", "other"), "--controls other: rewardbench2:choice has none"),
        (("--cluster", "pair"), "--cluster: has no effect on rewardbench2:choice"),
        (("--votes", "3"), "every request has one answer"),
        (("orders=given",), "every request has one answer"),
    ],
)
def test_options_without_an_effect(data: Path, tmp_path: Path, options: tuple[str, ...], sentence: str) -> None:
    command = ["bench", "run", "rewardbench2:choice", "--data", str(data), "--judge", "openai:m@http://127.0.0.1:9/v1"]
    done = CliRunner().invoke(app, [*command, "--out", str(tmp_path / "o"), *options])
    assert sentence in str(done.exception)
    assert not (tmp_path / "o").exists()


def test_by_the_command_with_a_real_model(tiny_checkpoint: Path, data: Path, tmp_path: Path) -> None:
    """An untrained one says nothing that can be read: no best response, a choice that is invalid throughout, both counted."""
    judge = f"hf:{tiny_checkpoint}"
    few = ["--judge", judge, "--limit", "2", "max_tokens=4", "--out"]
    done = CliRunner().invoke(app, ["rank", str(data), "template=plain", *few, str(tmp_path / "rank")])
    assert done.exit_code == 1, done.output
    assert "no vote names a response" in done.output
    assert "2 prompts, 8.0 matches each, 100.0 % undecided; 2 prompts without a single best response" in done.output
    assert "best found: 0.0 %" in done.output
    done = CliRunner().invoke(app, ["bench", "run", "rewardbench2:choice", "--data", str(data), *few, str(tmp_path / "choice")])
    assert done.exit_code == 1, done.output
    report = json.loads((tmp_path / "choice" / "report.json").read_text())
    assert (report["num_clusters"], report["listwise"]["num_answers"], report["invalid_rate"]) == (2, 8, 1)
    done = CliRunner().invoke(app, ["rank", str(data), *few, str(tmp_path / "r"), "--plan", "knockout=1"])
    assert "the budget is 1" in str(done.exception)
