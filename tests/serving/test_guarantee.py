"""Requests that name an error: a verdict, `abstained`, or a sentence that no guarantee fits."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from rewardlab.judging.drift import DriftReference
from rewardlab.judging.guarantee import Guarantee, judge_facts
from rewardlab.metrics.guarantee import CertifiedThreshold
from rewardlab.types import Message, PreferencePair
from tests.support.serving import app_of, in_process, judge_of

CERTIFIED = CertifiedThreshold(0.05, 0.9, 0.7, 300, 250, 4, 0.04)
SURE, UNSURE = (["good", "bad"], ["fair", "bad"])


def wavers(prompt: tuple[Message, ...], draw: int) -> str:
    """For "good" against "bad" in every draw, for "fair" in two of three; between these two for the second shown."""
    text = prompt[0].text
    best = "good" if "good" in text else "fair"
    first = text.find(best) < text.find("bad")
    return f"<answer>{1 if first == (best == 'good' or draw % 3 > 0) else 2}</answer>"


def guarantee() -> Guarantee:
    engine = judge_of(wavers)
    return Guarantee(CERTIFIED, judge_facts(engine.config, engine.identity), 3, {})


def post(path: str, held: Guarantee | None, **fields: Any) -> Any:
    with in_process(app_of(wavers, guarantee=held)) as client:
        return client.post(path, json={"question": "Which?", "error": 0.05, **fields})


def test_a_verdict_or_abstained() -> None:
    with in_process(app_of(wavers, guarantee=guarantee())) as client:
        ask = [{"question": "Which?", "responses": responses, "error": 0.05} for responses in (SURE, UNSURE)]
        sure, unsure = client.post("/v1/judge/batch", json=ask).json()
        assert (sure["outcome"], sure["p_first_better"], sure["num_valid"]) == ("response_0", 1.0, 6)
        assert (unsure["outcome"], unsure["p_first_better"], unsure["num_valid"]) == ("abstained", None, 6)
        lines = client.post("/v1/judge/live", json=ask[0]).text.splitlines()
        assert (len(lines), json.loads(lines[-1])["judgment"]["outcome"]) == (7, "response_0")
        assert client.post("/v1/judge", json={**ask[1], "error": None, "votes": 3}).json()["outcome"] == "response_0"
        assert client.get("/v1/status").json()["certified_error"] == 0.05
        told = client.post("/v1/rewards", json={**ask[1], "responses": ["good", "fair", "bad"]}).json()
        assert [match["outcome"] for match in told["matches"]].count("abstained") == 2
        assert told["rewards"] == [1.0, None, -1.0]
        told = client.post("/v1/rewards", json=ask[1]).json()
        assert (told["rewards"], told["num_failed"]) == ([None, None], 1)


def test_traffic_that_leaves_what_was_certified(caplog: pytest.LogCaptureFixture) -> None:
    """The state and, once, the log name what left; a group of responses counts as one comparison."""
    certified = judge_of(wavers).compare(PreferencePair("", "Which?", ("good", "bad"), None), num_votes=3)
    held = replace(guarantee(), reference=DriftReference.of([certified] * 200))
    with in_process(app_of(wavers, guarantee=held)) as client:
        for path, responses, left in (
            ("/v1/judge", SURE, []),
            ("/v1/rewards", [*UNSURE, "poor"], []),
            ("/v1/judge", UNSURE, ["confidence"]),
        ):
            one = {"question": "Which?", "responses": responses, "error": 0.05}
            assert client.post(f"{path}/batch", json=[one] * (2 if path == "/v1/rewards" else 12)).status_code == 200
            drift = client.get("/v1/status").json()["drift"]
            assert list(drift) == left
            assert f'rewardlab_drift{{key="",what="confidence"}} {len(left)}.0' in client.get("/metrics").text
    unsure = judge_of(wavers).compare(PreferencePair("", "Which?", ("fair", "bad"), None), num_votes=3)
    with in_process(app_of(wavers, guarantee=replace(held, reference=DriftReference.of([unsure] * 200)))) as client:
        client.post("/v1/judge/batch", json=[one] * 12)
        assert not client.get("/v1/status").json()["drift"]  # abstained from, as before
    [logged] = [record.message for record in caplog.records if "left what was certified" in record.message]
    assert logged.endswith(drift["confidence"])


@pytest.mark.parametrize("path", ["/v1/judge", "/v1/rewards"])
@pytest.mark.parametrize(
    ("held", "fields", "said"),
    [
        (None, {}, "this server has no guarantee"),
        (guarantee(), {"error": 0.01}, "0.01 was requested, but 0.05 was certified"),
        (guarantee(), {"votes": 5}, "votes is 5, but the guarantee is of 3"),
        (guarantee(), {"policy": "sequential"}, "leave out policy and orders"),
        (replace(guarantee(), judge={**guarantee().judge, "weights": "ab"}), {}, "the guarantee is of another judge"),
    ],
)
def test_no_guarantee_fits(path: str, held: Guarantee | None, fields: dict[str, Any], said: str) -> None:
    told = post(path, held, responses=SURE, **fields)
    assert told.status_code == 422
    assert said in told.json()["error"]


def test_others_of_a_batch_stand() -> None:
    with in_process(app_of(wavers, guarantee=guarantee())) as client:
        ask = [{"question": "Which?", "responses": SURE, "error": error} for error in (0.05, 0.01)]
        right, refused = client.post("/v1/judge/batch", json=ask).json()
        assert (right["outcome"], refused["status"]) == ("response_0", "config")
        [line] = client.post("/v1/judge/live", json=ask[1]).text.splitlines()
        assert "0.05 was certified" in json.loads(line)["error"]


def test_one_order_has_no_guarantee() -> None:
    assert "leave out policy and orders" in post("/v1/judge", guarantee(), responses=SURE, orders="given").json()["error"]


def test_the_certificate_of_the_judge_that_serves() -> None:
    """Returned whole, and named in the state; one of another judge is neither."""
    engine = judge_of(wavers)
    content = {"id": "ab12", "judge": {"config": {}, **judge_facts(engine.config, engine.identity)}}
    with in_process(app_of(wavers, certificate=content)) as client:
        assert client.get("/v1/certificate").json() == content
        assert client.get("/v1/status").json()["certificate"] == "ab12"
    other = {**content, "judge": {**content["judge"], "template": "other"}}
    for none in (other, None):
        with in_process(app_of(wavers, certificate=none)) as client:
            answer = client.get("/v1/certificate")
            assert answer.status_code == 404
            assert "no certificate fits the judge that serves" in answer.text
            assert client.get("/v1/status").json()["certificate"] is None
