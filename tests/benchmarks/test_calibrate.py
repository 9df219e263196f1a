"""A temperature of verdict probabilities: fitted on a run, stored with the checkpoint, and used wherever its judge is."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from typer.testing import CliRunner

from rewardlab.benchmarks.calibrate import calibrate_run, combined_margins
from rewardlab.benchmarks.runner import run_bench
from rewardlab.benchmarks.settings import BenchSettings, bench_settings
from rewardlab.cli import app
from rewardlab.data.pairs import write_parquet
from rewardlab.data.votes import vote_of
from rewardlab.demo.pairs import make_pairs
from rewardlab.errors import CheckpointError, ConfigError, DataError
from rewardlab.judging.engines import open_generative_judge
from rewardlab.judging.margins import probability_judge_of
from rewardlab.judging.spec import DEMO_JUDGE
from rewardlab.models.checkpoints import CARD, VERDICT_TEMPERATURE, read_card
from rewardlab.models.model_card import model_card_body
from rewardlab.serving.app import create_app
from rewardlab.types import PreferencePair
from tests.support.servers import running

PAIRS = make_pairs(120, seed=5, held_out=True)[0]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a checkpoint and a run of it, on pairs one in four of which is labelled the wrong way round: no judge is
    sure of these, and the demonstration's is too sure."""
    folder = tmp_path_factory.mktemp("calibrate")
    shutil.copytree(DEMO_JUDGE, folder / "judge")
    pairs = [replace(pair, preferred=1 - (pair.preferred or 0)) if n % 4 == 0 else pair for n, pair in enumerate(PAIRS)]
    write_parquet(pairs, folder / "pairs.parquet")
    run_bench(settings_of(folder), folder / "run")
    return folder


def settings_of(folder: Path, **changes: Any) -> BenchSettings:
    values = {"benchmark": "pairs", "data": folder / "pairs.parquet", "judge": f"prob:{folder / 'judge'}", "controls": ()}
    return bench_settings(**{**values, "max_tokens": 48, "batch_size": 240, **changes})


@pytest.fixture
def copied(finished: Path, tmp_path: Path) -> Path:
    """The same, to be changed. Files have new times, which are not what names the weights."""
    shutil.copytree(finished, tmp_path / "all", copy_function=shutil.copy)
    log = tmp_path / "all" / "run" / "votes.jsonl"
    log.write_text(log.read_text().replace(str(finished), str(tmp_path / "all")))
    report = tmp_path / "all" / "run" / "report.json"
    report.write_text(report.read_text().replace(str(finished), str(tmp_path / "all")))
    return tmp_path / "all"


def test_fitted_stored_and_used(copied: Path) -> None:
    """What scikit-learn finds; then every judge of the checkpoint divides by it, unless its specification says otherwise."""
    checkpoint, spec = copied / "judge", f"prob:{copied / 'judge'}"
    before = open_generative_judge(spec, max_tokens=48)
    assert before.verdict_temperature == 1
    result = CliRunner().invoke(app, ["bench", "calibrate", str(copied / "run")])
    assert result.exit_code == 0, result.output
    card = read_card(checkpoint) or {}
    fit = card[VERDICT_TEMPERATURE]
    assert f"temperature {fit['tau']:.4g} on {fit['pairs']} pairs" in " ".join(result.output.split())
    rows = [json.loads(line) for line in (copied / "run" / "votes.jsonl").read_text().splitlines()[1:]]
    labels = [json.loads(line)["preferred"] for line in (copied / "run" / "scores.jsonl").read_text().splitlines()]
    read = [(m, labels[row["row"]]) for row in rows for m in combined_margins([vote_of(vote) for vote in row["votes"]])]
    margins, preferred = (np.array(column) for column in zip(*read, strict=True))
    theirs = LogisticRegression(C=np.inf, fit_intercept=False, tol=1e-10).fit(margins[:, None], 1 - preferred)
    assert fit["tau"] == pytest.approx(1 / theirs.coef_[0, 0], rel=1e-3)
    assert fit["tau"] > 1.5
    assert fit["nll"] < fit["nll_before"]
    assert fit["ece"] < fit["ece_before"]
    assert (fit["pairs"] + fit["unreadable"], fit["rationales"]) == (120, 1)
    assert {name: value for name, value in card.items() if name != VERDICT_TEMPERATURE} == read_card(DEMO_JUDGE)

    after, without = open_generative_judge(spec, max_tokens=48), open_generative_judge(f"prob@1:{checkpoint}", max_tokens=48)
    sampled = open_generative_judge(f"hf:{checkpoint}", max_tokens=48)
    assert [judge.identity.get(VERDICT_TEMPERATURE) for judge in (before, after, without, sampled)] == [None, fit["tau"]] + [
        None
    ] * 2
    assert [v.margin for v in judged(before)] == [v.margin for v in judged(without)]
    assert [v.margin * fit["tau"] for v in judged(after) if v.margin] == pytest.approx(
        [v.margin for v in judged(before) if v.margin]
    )
    assert [v.verdict for v in judged(after)] == [v.verdict for v in judged(before)]
    assert after.greedy().verdict_temperature == fit["tau"]
    weigher = probability_judge_of(sampled)
    assert weigher is not None
    assert weigher.identity[VERDICT_TEMPERATURE] == fit["tau"]
    with running(create_app(sampled)) as url:
        assert httpx.get(f"{url}/health").json()[VERDICT_TEMPERATURE] == fit["tau"]
    assert f"| temperature of verdict probabilities | {fit['tau']:.4g}, fitted on" in model_card_body(checkpoint)
    with pytest.raises(ConfigError, match="differs in verdict_temperature"):
        run_bench(settings_of(copied), copied / "run")  # a log of another judge is not continued


def judged(judge: Any) -> list[Any]:
    return [vote for pair in PAIRS[:3] for vote in judge.compare(pair, seed=1).votes]


def test_a_run_at_a_temperature_gives_the_same_one(copied: Path) -> None:
    """Margins in a log are divided already: fitted on them again, the temperature is not applied twice."""
    first = calibrate_run(copied / "run")
    log = copied / "run" / "votes.jsonl"
    head, *rows = [json.loads(line) for line in log.read_text().splitlines()]
    head["identity"][VERDICT_TEMPERATURE] = 4.0
    for row in rows:
        for vote in row["votes"]:
            vote["margin"] = None if vote["margin"] is None else vote["margin"] / 4
    log.write_text("".join(json.dumps(line) + "\n" for line in (head, *rows)))
    again = calibrate_run(copied / "run")
    assert (again.tau, again.nll_before, again.ece) == pytest.approx((first.tau, first.nll_before, first.ece))


@pytest.mark.parametrize("margin", [float("nan"), float("inf"), "1.5"])
def test_a_damaged_margin_is_a_sentence(margin: Any, copied: Path) -> None:
    log = copied / "run" / "votes.jsonl"
    head, *rows = [json.loads(line) for line in log.read_text().splitlines()]
    rows[0]["votes"][0]["margin"] = margin
    log.write_text("".join(json.dumps(line) + "\n" for line in (head, *rows)))
    with pytest.raises(DataError, match="a finite number"):
        calibrate_run(copied / "run")


def test_what_cannot_be_calibrated(copied: Path) -> None:
    """Other weights, a judge without a checkpoint or a card, too few pairs, and pairs that are all right: nothing is stored."""
    checkpoint, run = copied / "judge", copied / "run"
    plain = (checkpoint / CARD).read_bytes()
    scores = (run / "scores.jsonl").read_text().splitlines()

    def relabel(change: Any, lines: list[str] = scores) -> None:
        changed = [json.loads(line) for line in lines]
        (run / "scores.jsonl").write_text("".join(json.dumps(change(row)) + "\n" for row in changed))

    votes = {row["row"]: row["votes"] for row in map(json.loads, (run / "votes.jsonl").read_text().splitlines()[1:])}

    def named(row: dict[str, Any]) -> int:
        return int(sum(combined_margins([vote_of(vote) for vote in votes[row["row"]]])) < 0)

    relabel(lambda row: row, scores[:90])
    with pytest.raises(DataError, match="pairs have probabilities in both orders; expected 100 or more"):
        calibrate_run(run)
    relabel(lambda row: {**row, "preferred": named(row)})
    with pytest.raises(DataError, match="every pair is judged right"):
        calibrate_run(run)
    relabel(lambda row: {**row, "preferred": 1 - named(row)})
    with pytest.raises(DataError, match="right no more often than a coin"):
        calibrate_run(run)
    relabel(lambda row: row)
    assert (checkpoint / CARD).read_bytes() == plain
    (checkpoint / CARD).unlink()
    with pytest.raises(CheckpointError, match=r"has no rewardlab\.json"):
        calibrate_run(run)
    (checkpoint / CARD).write_bytes(plain)
    weights = (checkpoint / "model.safetensors").read_bytes()
    (checkpoint / "model.safetensors").write_bytes(weights[:-1] + bytes([weights[-1] ^ 1]))
    with pytest.raises(ConfigError, match="its weights have changed since the run"):
        calibrate_run(run)
    report = run / "report.json"
    report.write_text(report.read_text().replace(f"prob:{checkpoint}", "openai:gpt"))
    with pytest.raises(ConfigError, match="is not a local checkpoint folder"):
        calibrate_run(run)


@pytest.mark.parametrize("tau", [0, -1.0, "2", True, None])
def test_a_damaged_temperature_is_no_temperature(copied: Path, tau: Any) -> None:
    path = copied / "judge" / CARD
    path.write_text(json.dumps(json.loads(path.read_text()) | {VERDICT_TEMPERATURE: {"tau": tau}}))
    with pytest.raises(CheckpointError, match="expected a positive number"):
        open_generative_judge(f"prob:{copied / 'judge'}")


def test_every_pair_of_votes_is_combined(demo_pairs: Any) -> None:
    """Two readable votes given, one of two swapped; none where an order has none."""
    judge = open_generative_judge("prob:demo", max_tokens=48)
    pair: PreferencePair = demo_pairs[0][0]
    votes = list(judge.compare(pair, num_votes=2).votes)
    margins = (1.0, 2.0, None, -3.0)
    votes = [replace(vote, margin=margin) for vote, margin in zip(votes, margins, strict=True)]
    assert combined_margins(votes) == [2.0, 2.5]
    assert combined_margins(votes[:3]) == []
