"""Signs of a policy in what a server is asked: read of the answers of each key, told everywhere, on nobody's account."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import httpx
import pytest
from playwright.sync_api import expect

from rewardlab.config import SignsConfig
from rewardlab.data.images import to_data_url
from rewardlab.errors import DataError
from rewardlab.integrations import client
from rewardlab.integrations.client import RewardClient
from rewardlab.rewards.policy_signs import PolicySigns, known_answers
from rewardlab.serving import answer_signs
from rewardlab.serving.answer_signs import CHECKS, SignRules, WatchedAnswers
from rewardlab.serving.app import create_app
from rewardlab.serving.auth import Key
from rewardlab.serving.service import GroupRules, ServerOptions
from rewardlab.types import Message, PreferencePair
from tests.support.browser import CHROMIUM, PHONE, chromium_browser, opened
from tests.support.images import png
from tests.support.served_judge import replace, served
from tests.support.servers import running
from tests.support.serving import app_of, in_process, judge_of

PAIRS = [PreferencePair(f"p{n}", "Which?", ("It is red.", "It is blue."), 0, (png(),)) for n in range(8)]
USUAL, NOVEL = ["It is red.", "It is blue.", "It is red.", "It is blue."], ["Ned rud.", "Blu blam.", "Ned rud.", "Blu blam."]


def answer(prompt: tuple[Message, ...], draw: int) -> str:
    """Name the redder response; without a picture to see, the first."""
    first, second = prompt[0].text.split("Response 1:")[1].split("Response 2:")
    is_blank = any(image != png() for image in prompt[0].images)
    choice = 1 if is_blank or "red" in first or "red" not in second else 2
    return f"<think>x</think><answer>{choice}</answer>"


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_signs, "WINDOW", 8)
    monkeypatch.setattr(answer_signs, "LEAST_WINDOW", 2)
    monkeypatch.setattr(answer_signs, "LEAST_GAPS", 4)
    monkeypatch.setattr(client, "_TOLD", set())


def group(answers: list[str], **more: Any) -> dict[str, Any]:
    return {"question": "Which?", "responses": answers, **more}


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def send(http: httpx.Client, answers: list[str], groups: int, headers: dict[str, str] | None = None, **more: Any) -> Any:
    """Send groups one after another; every second one completes a window."""
    for _ in range(groups):
        response = http.post("/v1/rewards", json=group(answers, **more), headers=headers).raise_for_status()
    return response


def status(http: httpx.Client, headers: dict[str, str] | None = None) -> Any:
    return http.get("/v1/status", headers=headers).json()


def test_new_words_are_a_sign(caplog: pytest.LogCaptureFixture) -> None:
    """Told in the state, the metrics, the log, a header, and by the client; taken back when they are gone."""
    app = app_of(answer, sign_rules=SignRules.of(PAIRS, 0.0))
    with running(app) as url, httpx.Client(base_url=url) as http, caplog.at_level(logging.WARNING):
        send(http, USUAL, 10)
        wait_for(lambda: "answers/novelty" in status(http)["answers"])
        assert status(http)["signs"] == {}
        assert status(http)["answers"]["answers/novelty"] == [0.0, 0.0]
        assert "X-Policy-Signs" not in send(http, NOVEL, 6).headers
        wait_for(lambda: "novel_answers" in status(http)["signs"])
        assert "occur in no answer of the set" in status(http)["signs"]["novel_answers"]
        assert status(http)["answers"]["answers/novelty"] == [0.0, 1.0]
        told = http.get("/metrics").text
        assert 'rewardlab_answers{key="",measure="answers/novelty"} 1.0' in told
        assert 'rewardlab_policy_sign{key="",sign="novel_answers"} 1.0' in told
        assert 'rewardlab_policy_sign{key="",sign="repetition"} 0.0' in told
        assert "the answers of key '': novel_answers: 100.0%" in caplog.text
        reward_client = RewardClient(url)
        for _ in range(2):
            asyncio.run(reward_client.rewards("Which?", NOVEL))
        assert "novel_answers" in reward_client.signs
        warnings = [record for record in caplog.records if record.name == client.__name__]
        assert len([record for record in warnings if "'novel_answers'" in record.getMessage()]) == 1
        send(http, USUAL, 6)
        wait_for(lambda: "novel_answers" not in status(http)["signs"])
        assert 'sign="novel_answers"} 0.0' in http.get("/metrics").text


def test_keys_apart() -> None:
    """One key's answers say nothing of another's; answers after a long pause are another run's."""
    keys = [Key.of(name, name=name) for name in ("one", "two")]
    app = app_of(answer, keys=keys, sign_rules=SignRules.of(PAIRS, 0.0))
    one, two = ({"Authorization": f"Bearer {key.name}"} for key in keys)
    with in_process(app) as http:
        send(http, USUAL, 10, one)
        send(http, NOVEL, 6, one)
        send(http, NOVEL, 16, two)
        wait_for(lambda: "novel_answers" in status(http, one)["signs"])
        wait_for(lambda: status(http, two)["answers"].get("answers/novelty") == [1.0, 1.0])
        assert status(http, two)["signs"] == {}, "from its own beginning on it has not changed"
        assert "X-Policy-Signs" not in send(http, NOVEL, 1, two).headers
        app.state.service.answer_signs._watched["one"].seen_at -= answer_signs.PAUSE_S + 1
        send(http, NOVEL, 1, one)
        assert (status(http, one)["signs"], status(http, one)["answers"]) == ({}, {})


def test_checks_are_asked_besides() -> None:
    """With blank pictures, and of labelled pairs; not one of them is a request's or a key's."""
    keys = [Key.of("one", name="one")]
    app = app_of(answer, keys=keys, sign_rules=SignRules.of(PAIRS, 1.0))
    signs = app.state.service.answer_signs
    headers = {"Authorization": "Bearer one"}
    with in_process(app) as http:
        for number in count():
            send(http, ["It is red.", f"It is blue {number}."], 1, headers, images=[to_data_url(png())])
            wait_for(lambda: not any(watched.is_checking for watched in signs._watched.values()))
            if number == 7:
                break
        assert signs.num_checks == {"answered": 8}
        send(http, ["It is red.", "It is blue."], 4, headers)
        wait_for(lambda: "judge/canaries" in status(http, headers)["answers"])
        answers = status(http, headers)["answers"]
        # Of two orders a blank picture turns one: it names the first. The labelled pairs it sees, and is right.
        assert answers["judge/blank_gap"] == [0.5, 0.5]
        assert answers["judge/canaries"] == [1.0, 1.0]
        assert answers["judge/order_agreement"] == [1.0, 1.0]
        queue = app.state.service.queue
        assert status(http, headers)["counts"]["asked"] == queue.counts["asked"] == 12
        wait_for(lambda: signs.num_checks == {"answered": 9})
        assert queue.tenants[CHECKS].counts["asked"] == 8 + 8 + 1, "the next line begins with the first labelled pair"
        assert 'rewardlab_sign_checks_total{outcome="failed"} 0.0' in http.get("/metrics", headers=headers).text


def test_a_check_that_fails_costs_nobody() -> None:
    """It is counted."""

    def fails(prompt: tuple[Message, ...], draw: int) -> str:
        if any(image != png() for image in prompt[0].images):
            raise ValueError("blank")
        return answer(prompt, draw)

    app = app_of(fails, sign_rules=SignRules.of(None, 1.0))
    with in_process(app) as http:
        told = send(http, USUAL, 1, images=[to_data_url(png())]).json()
        assert None not in told["rewards"]
        wait_for(lambda: app.state.service.answer_signs.num_checks == {"failed": 1})
        assert http.get("/ready").status_code == 200, "no request has failed"
        assert app.state.service.queue.counts["failed"] == 0
        assert sum(app.state.service.queue.statuses.values()) == 2 * 6
        assert None not in send(http, USUAL, 1).json()["rewards"]


def test_a_labelled_pair_that_cannot_be_asked(caplog: pytest.LogCaptureFixture) -> None:
    """It is left out from then on, with a warning, and the others are measured."""
    scripted = judge_of(answer)
    compare_many = scripted.compare_many

    def refuses(pairs: Any, **how: Any) -> Any:
        if any(pair.question == "Too long" for pair in pairs):
            raise DataError("is longer than the model reads")
        return compare_many(pairs, **how)

    scripted.compare_many = refuses  # type: ignore[method-assign]
    pairs = [*PAIRS[:3], PreferencePair("long", "Too long", ("It is red.", "It is blue."), 0)]
    app = create_app(scripted, ServerOptions(sign_rules=SignRules(canaries=pairs, rate=1.0)))
    signs = app.state.service.answer_signs
    with in_process(app) as http:
        for _ in range(12):
            send(http, USUAL, 1)
            wait_for(lambda: not signs._watched[""].is_checking)
        wait_for(lambda: status(http)["answers"].get("judge/canaries") == [1.0, 1.0])
        assert "labelled pair 'long' is dropped from the checks: is longer than the model reads" in caplog.text
        assert caplog.text.count("is dropped from the checks") == 1
        assert signs.num_checks["failed"] == 0


def test_labelled_pairs_are_asked_anew() -> None:
    """An engine elsewhere that names the other response from now on is seen: nothing is taken from the cache."""
    is_turned = False

    def turns(prompt: tuple[Message, ...], draw: int) -> str:
        said = answer(prompt, draw)
        return said.translate(str.maketrans("12", "21")) if is_turned else said

    rules = SignRules(canaries=PAIRS[:1], rate=1.0)
    app = app_of(turns, sign_rules=rules)
    signs = app.state.service.answer_signs
    with in_process(app) as http:
        for is_turned in (False, True):
            send(http, USUAL * 2, 1)  # a window
            wait_for(lambda: not signs._watched[""].is_checking)
            assert signs._watched[""].canaries == [not is_turned] * 2
    assert signs.num_checks == {"answered": 2}


@pytest.mark.parametrize(("unread", "outcome", "right"), [((1,), "answered", [True] * 4), ((0, 1, 2), "failed", [])])
def test_votes_that_cannot_be_read_are_no_wrong_ones(unread: tuple[int, ...], outcome: str, right: list[bool]) -> None:
    """Of three votes in each order those without a verdict do not count; without any verdict the check has failed."""

    def stammers(prompt: tuple[Message, ...], draw: int) -> str:
        return "?" if draw in unread and prompt[0].images else answer(prompt, draw)

    app = app_of(stammers, sign_rules=SignRules(canaries=PAIRS[:2], rate=1.0))
    signs = app.state.service.answer_signs
    with in_process(app) as http:
        send(http, USUAL, 1, votes=3)
        wait_for(lambda: signs.num_checks == {outcome: 1})
        assert signs._watched[""].canaries == right


def test_a_gap_counts_by_its_size() -> None:
    """The redder response is the first one in every second group: blank pictures move half of the votes away from the first
    response and towards it in turns. The mean is a half, not nothing."""
    app = app_of(answer, sign_rules=SignRules(rate=1.0))
    signs = app.state.service.answer_signs
    with in_process(app) as http:
        for number in range(8):
            pair = ["It is red.", f"It is blue {number}."]
            send(http, pair if number % 2 else pair[::-1], 1, images=[to_data_url(png())])
            wait_for(lambda: not signs._watched[""].is_checking)
        assert signs.num_checks == {"answered": 8}
        wait_for(lambda: "judge/blank_gap" in status(http)["answers"])
        assert status(http)["answers"]["judge/blank_gap"] == [0.5, 0.5]


def test_the_mean_of_labelled_pairs_is_of_all_of_them() -> None:
    """Of a few it would be another one in each line, though the judge is the same."""
    watched = WatchedAnswers(PolicySigns(SignsConfig.model_validate({})), 0.0, 1)
    watched.canaries, watched.next_canary, watched.gaps = [True, False], 1, [0.5] * 3
    assert watched.take(2)[1] == {}
    watched.canaries, watched.next_canary, watched.gaps = [False], 2, []
    assert watched.take(2)[1] == {}, "one vote is not a mean over two pairs"
    watched.canaries, watched.next_canary, watched.gaps = [True, False, False, False], 2, [0.5, 0.25, 0.5, 0.25]
    assert watched.take(2)[1] == {"judge/canaries": 0.25, "judge/blank_gap": 0.375}
    assert (watched.canaries, watched.next_canary, watched.gaps) == ([], 0, [])


def test_another_judge_begins_anew() -> None:
    """What is known of the answers stays; what was measured of the judge before is not compared with the new one."""
    app = served(judge_of(answer), sign_rules=SignRules.of(PAIRS, 0.0))

    def turned(prompt: tuple[Message, ...], draw: int) -> str:
        return "<think>x</think><answer>1</answer>"  # whatever stands first

    with in_process(app) as http:
        send(http, USUAL[:2], 20)
        wait_for(lambda: "judge/order_agreement" in status(http)["answers"])
        assert status(http)["answers"]["judge/order_agreement"] == [1.0, 1.0]
        other = judge_of(turned)
        replace(app, other)
        send(http, ["It is blue.", "It is red."], 16)
        wait_for(lambda: status(http)["answers"].get("judge/order_agreement") == [0.0, 0.0])
        assert status(http)["signs"] == {}
        assert "answers/novelty" in status(http)["answers"]


def test_answers_that_come_faster_than_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows are left out and counted; nothing is held of them. What cannot be read is counted too."""
    release = threading.Event()

    def slow(*args: Any) -> dict[str, float]:
        release.wait(20)
        raise ValueError("unreadable")

    monkeypatch.setattr(answer_signs, "answer_metrics", slow)
    monkeypatch.setattr(answer_signs, "MOST_READING", 1)
    app = app_of(answer, sign_rules=SignRules.of(PAIRS, 0.0))
    signs = app.state.service.answer_signs
    with in_process(app) as http:
        send(http, USUAL, 6)
        assert signs.num_lines == {"skipped": 2}
        assert (signs._num_chars, signs._chars_reading) == (0, sum(map(len, USUAL)) * 2)
        release.set()
        wait_for(lambda: signs.num_lines == {"skipped": 2, "failed": 1})
        assert signs._chars_reading == 0
        assert 'rewardlab_sign_windows_total{outcome="skipped"} 2.0' in http.get("/metrics").text


def test_what_is_held_is_bounded_over_all_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the answers of the key that sends are read early; a key of whom nothing is heard is forgotten."""
    monkeypatch.setattr(answer_signs, "MOST_CHARS", 100)
    keys = [Key.of(name, name=name) for name in ("one", "two")]
    app = app_of(answer, keys=keys, sign_rules=SignRules.of(PAIRS, 0.0))
    signs, (one, two) = app.state.service.answer_signs, ({"Authorization": f"Bearer {key.name}"} for key in keys)
    with in_process(app) as http:
        send(http, USUAL, 1, one)
        held = sum(map(len, USUAL))
        assert (signs._num_chars, signs._watched["one"].num_chars) == (held, held)
        send(http, ["It is red. " * 2, "It is blue. " * 2], 1, two)
        assert signs._num_chars < 100
        send(http, USUAL[:2], 1, two)
        wait_for(lambda: signs.num_lines["read"] == 1)
        most = max(held, 3 * held // 2)
        assert sorted(signs._watched[name].num_chars for name in ("one", "two")) == [0, held + 3 * held // 2 - most]
        assert signs._num_chars == held + 3 * held // 2 - most


def test_long_answers_of_one_key_shorten_no_window_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither those that are being read, nor those that are too few to be: a mean of few answers would be a sign by chance."""
    sizes, release = list[tuple[bool, int]](), threading.Event()

    def slow(rows: Any, known: Any) -> dict[str, float]:
        sizes.append((len(rows[0][1]) > 50, len(rows)))
        release.wait(20)
        return {}

    monkeypatch.setattr(answer_signs, "answer_metrics", slow)
    monkeypatch.setattr(answer_signs, "MOST_CHARS", 400)
    monkeypatch.setattr(answer_signs, "LEAST_WINDOW", 4)
    keys = [Key.of(name, name=name) for name in ("long", "short")]
    app = app_of(answer, keys=keys, sign_rules=SignRules.of(PAIRS, 0.0))
    signs, (long, short) = app.state.service.answer_signs, ({"Authorization": f"Bearer {key.name}"} for key in keys)
    with in_process(app) as http:
        send(http, [f"It is {'very ' * 20}red.", f"It is {'very ' * 20}blue."], 2, long)  # 4 answers of 450 characters
        assert signs._chars_reading > 400
        send(http, USUAL, 1, short)
        assert signs.num_lines == {}
        send(http, USUAL, 1, short)  # 8, and no room to be read
        assert signs.num_lines == {"skipped": 1}
        release.set()
        wait_for(lambda: signs.num_lines["read"] == 1)
        send(http, USUAL, 2, short)
        wait_for(lambda: signs.num_lines["read"] == 2)
        send(http, [f"It is {'very ' * 40}red.", f"It is {'very ' * 40}blue."], 1, long)  # 2 of 430: too few
        assert signs.num_lines == {"skipped": 2, "read": 2}
        assert sizes == [(True, 4), (False, 8)]
        assert (signs._num_chars, signs._chars_reading) == (0, 0)


def test_a_sign_is_told_for_an_hour() -> None:
    """Of a measure that is no longer seen it says nothing of what is now."""
    app = app_of(answer, sign_rules=SignRules.of(PAIRS, 0.0))
    signs = app.state.service.answer_signs
    with in_process(app) as http:
        send(http, USUAL, 1)
        signs._watched[""].signs["picture_unused"] = ("a sentence", time.monotonic())
        assert status(http)["signs"] == {"picture_unused": "a sentence"}
        signs._watched[""].signs["picture_unused"] = ("a sentence", time.monotonic() - answer_signs.PAUSE_S - 1)
        assert status(http)["signs"] == {}


def test_a_group_of_single_responses_and_anchors() -> None:
    """Groups that are sent one response at a time are watched, too, and every sample carries the signs: a trainer's metric is a
    mean over samples. The anchor is no answer of the policy."""
    app = app_of(answer, rules=GroupRules(group_size=2), sign_rules=SignRules.of(PAIRS, 0.0))
    signs = app.state.service.answer_signs
    with in_process(app) as http, ThreadPoolExecutor(2) as pool:
        send(http, USUAL[:2], 1, strategy="anchor", anchor="Some words of another.")
        assert [row[1] for row in signs._watched[""].rows] == USUAL[:2]
        signs._watched[""].signs["one_answer"] = ("a sentence", time.monotonic())

        def single(text: str) -> str:
            body = {"prompt": "Which?", "response": text, "label": {"question": "Which?"}}
            return http.post("/slime", json=body).raise_for_status().headers["X-Policy-Signs"]

        assert list(pool.map(single, USUAL[:2])) == ["one_answer"] * 2
        assert len(signs._watched[""].rows) == 4


def test_rules() -> None:
    """Labelled pairs are needed where canaries are asked; without pairs, or without checks, there are none."""
    assert SignRules.of(None, 0.5).known is None
    assert SignRules.of(PAIRS, 0.0).canaries == ()
    assert len(SignRules.of(PAIRS, 0.5).canaries) == 8
    unlabelled = [PreferencePair("p", "Which?", ("a", "b"), None)]
    assert SignRules.of(unlabelled, 0.0).known is not None
    with pytest.raises(DataError, match="have no label"):
        SignRules.of(unlabelled, 0.5)


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_the_page_shows_them() -> None:
    limits = SignsConfig.model_validate({})
    app = app_of(answer, sign_rules=SignRules(known_answers(PAIRS, 0), limits=limits))
    with (
        running(app) as url,
        httpx.Client(base_url=url) as http,
        chromium_browser() as browser,
        opened(browser, url, PHONE) as page,
    ):
        page.get_by_role("link", name="Queue").click()
        expect(page.locator("#signs")).to_be_hidden()
        send(http, USUAL, 10)
        expect(page.locator("#sign-note")).to_contain_text("No sign")
        send(http, NOVEL, 6)
        expect(page.locator("#sign-list")).to_contain_text("occur in no answer of the set")
        expect(page.locator("#answers")).to_contain_text("0 % → 100 %")
        assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
