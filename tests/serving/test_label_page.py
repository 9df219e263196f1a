"""Rating pairs: what each rater sees and when, the page in a real browser, and a server that is killed."""

from __future__ import annotations

import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image
from playwright.sync_api import expect

from rewardlab.cli import main
from rewardlab.data.images import encode_png
from rewardlab.data.label_store import LabelStore
from rewardlab.data.pair_table import PairTable
from rewardlab.data.pairs import write_jsonl, write_parquet
from rewardlab.data.ratings import read_labels
from rewardlab.errors import ConfigError, DataError
from rewardlab.serving.label_app import HOLD_S, Item, LabelQueue, LabelRequest, LabelRules, create_label_app
from rewardlab.types import IMAGE_MARK, VIDEO_MARK, Order, PreferencePair, Rating, Tie
from tests.support.browser import CHROMIUM, DESK, PALE, PHONE, chromium_browser, opened
from tests.support.servers import free_port, running
from tests.support.serving import in_process
from tests.support.shell import run_main

RED, BLUE, GREY = (encode_png(Image.new("RGB", (40, 30), color)) for color in ((200, 0, 0), (0, 0, 200), (9, 9, 9)))
CLIP = b"\x1a\x45\xdf\xa3 of a Matroska file"


def pair_of(number: int, **fields: Any) -> PreferencePair:
    """A pair whose better answer says a greater number."""
    texts = (f"It is {number + 1000}.", f"It is {number}.")
    preferred = number % 2
    responses = texts if preferred == 0 else texts[::-1]
    return PreferencePair(f"id-{number}", f"Which number? ({number})", responses, preferred, source="secret-model", **fields)


def queue_of(folder: Path, num_pairs: int = 8, **rules: Any) -> LabelQueue:
    path = folder / "pairs.parquet"
    if not path.exists():
        write_parquet(map(pair_of, range(num_pairs)), path)
    return LabelQueue(PairTable(path, frames=None), LabelStore(folder / "labels.sqlite"), LabelRules(**rules))


def rate(queue: LabelQueue, rater: str, shown: dict[str, Any], choice: str = "first") -> dict[str, Any]:
    return queue.rate(rater, LabelRequest(item=shown["item"], choice=choice))


def better_of(texts: list[str]) -> str:
    """The choice of a rater who knows which number is greater."""
    first, second = (int(re.findall(r"\d+", text)[0]) for text in texts)
    return "first" if first > second else "second"


def texts_of(shown: dict[str, Any]) -> list[str]:
    return [side[0]["text"] for side in shown["sides"][1:]]


@pytest.mark.slow
def test_one_item_in_twenty_is_an_earlier_pair_in_the_other_order(tmp_path: Path) -> None:
    """And nothing that the rater sees tells it: the progress counts on, towards a total that is right from the beginning."""
    queue, seen, progress = queue_of(tmp_path, 95), defaultdict(list), []
    shown = queue.show("ann")
    while "item" in shown:
        seen[shown["sides"][0][0]["text"]].append(texts_of(shown))
        progress.append((shown["num_rated"], shown["num_items"]))
        shown = rate(queue, "ann", shown, better_of(texts_of(shown)))
    assert progress == [(number, 100) for number in range(100)]
    twice = [both for both in seen.values() if len(both) > 1]
    assert len(seen) == 95
    assert len(twice) == 5
    assert all(second == first[::-1] for first, second in twice)
    assert shown["summary"] == {"num_pairs": 95, "num_ties": 0, "num_skipped": 0, "num_repeated": 5, "num_same": 5}
    orders = Counter(rating.order for _, visit, rating in LabelStore(tmp_path / "labels.sqlite").ratings() if not visit)
    assert 25 < orders[Order.SWAPPED] < 70, "the order is drawn"


def test_raters_share_pairs_up_to_a_number(tmp_path: Path) -> None:
    """Three raters at once, two for each pair: each pair gets two ratings, by different raters, and no more."""
    queue, raters = queue_of(tmp_path, 30, raters_per_pair=2, repeat_every=0), ("ann", "bob", "cy")
    shown = {rater: queue.show(rater) for rater in raters}
    assert shown["ann"]["item"] == shown["bob"]["item"] != shown["cy"]["item"], "two see the first pair; a third has the next"
    while any("item" in one for one in shown.values()):
        for rater in raters:
            if "item" in shown[rater]:
                shown[rater] = rate(queue, rater, shown[rater])
    by_pair: dict[str, list[str]] = defaultdict(list)
    for pair_id, _, rating in LabelStore(tmp_path / "labels.sqlite").ratings():
        by_pair[pair_id].append(rating.rater)
    assert len(by_pair) == 30
    assert all(len(set(of_pair)) == len(of_pair) == 2 for of_pair in by_pair.values())


def test_a_rater_who_is_done_reads_no_other_ratings(tmp_path: Path) -> None:
    """Of a million ratings the summary would take half a minute, in which all raters wait."""
    LabelStore(tmp_path / "labels.sqlite").add("id-0", 0, Rating("bob", 5))  # which cannot be read
    queue = queue_of(tmp_path, 1)
    assert rate(queue, "ann", queue.show("ann"))["summary"]["num_pairs"] == 1


def test_a_pair_left_open_is_free_again_after_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rater who has rated the pair and is done holds no second place of it."""
    queue, now = queue_of(tmp_path, 1, raters_per_pair=1), [0.0]
    monkeypatch.setattr("rewardlab.serving.label_app.time.monotonic", lambda: now[0])
    assert "item" in queue.show("ann")
    assert "summary" in queue.show("bob")
    now[0] = HOLD_S
    assert "item" in queue.show("bob")
    queue = queue_of(tmp_path, raters_per_pair=2)
    assert "summary" in rate(queue, "ann", queue.show("ann"))
    assert "item" in queue.show("bob")
    assert "summary" in queue.show("cy")


def test_a_restart_continues(tmp_path: Path) -> None:
    """Another process shows the same pair in the same order; undone ratings are gone, and the pair is shown again."""
    queue = queue_of(tmp_path)
    second = rate(queue, "ann", first := queue.show("ann"), "tie")
    third = rate(queue, "ann", second, "skip")
    assert queue_of(tmp_path).show("ann") == third
    assert queue.undo("ann") == second
    assert queue.undo("ann") == first
    assert queue.undo("ann") == first, "there is nothing to undo"
    again = queue_of(tmp_path)
    assert again.show("ann") == first
    rate(again, "ann", first, "tie")
    rate(again, "ann", first, "skip")  # sent twice, as after a lost answer: the last one counts
    ratings = LabelStore(tmp_path / "labels.sqlite").ratings()
    assert [(visit, rating.choice) for _, visit, rating in ratings] == [(0, None)]


def test_the_order_of_pairs_is_a_sample(tmp_path: Path) -> None:
    """A limit takes pairs from the whole set; another seed takes others; other pairs are not mixed into old ratings."""
    ids = {seed: queue_of(tmp_path, 200, limit=10, seed=seed)._ids for seed in (0, 1)}
    assert len({*ids[0]}) == 10
    assert ids[0] != ids[1]
    assert max(int(name[3:]) for name in ids[0]) > 100
    store = LabelStore(tmp_path / "labels.sqlite")
    store.identify({"pairs": "a", "seed": 0})
    store.identify({"pairs": "b", "seed": 0})  # nothing could be lost
    store.add("id-1", 0, Rating("ann", 1))
    with pytest.raises(ConfigError, match="other pairs; use the same"):
        store.identify({"pairs": "c", "seed": 0})
    for name in ("#1", "", " ann", "ann\nbob: http://other/ui#key=1"):
        with pytest.raises(ConfigError, match=r"--rater '.*': expected words"):
            store.tokens(["ann", name])
    (tmp_path / "twice.jsonl").write_text('{"pair_id": "a", "question": "q", "responses": ["x", "y"], "preferred": 0}\n' * 2)
    with pytest.raises(DataError, match="'a' appears twice"):
        LabelQueue(PairTable(tmp_path / "twice.jsonl"), store, LabelRules())


def test_a_damaged_store_is_refused_in_a_sentence(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "labels.sqlite") as other:
        other.execute("CREATE TABLE ratings (of TEXT)")
    other.close()
    with pytest.raises(DataError, match=r"labels\.sqlite: cannot be used \(no such column"):
        queue_of(tmp_path)
    failed = run_main(main, "label", tmp_path / "no_file.jsonl", "--out", tmp_path / "new", "--port", free_port())
    assert failed.returncode == 2
    assert not (tmp_path / "new").exists(), "nothing is left behind"


def test_media_in_their_places(tmp_path: Path) -> None:
    """As the rater sees them: images and clips of an answer move with it. A pair whose image is gone is left out."""
    answers = (IMAGE_MARK, f"{VIDEO_MARK} then {IMAGE_MARK}")
    of_answers: Any = {"response_images": ((RED,), (BLUE,)), "response_videos": ((), (CLIP,))}
    mixed = PreferencePair("mixed", f"Like {IMAGE_MARK}?", answers, 0, (BLUE,), **of_answers)
    write_jsonl([mixed, pair_of(0, images=(RED,)), pair_of(1, images=(GREY,))], tmp_path / "pairs.jsonl")
    pairs = PairTable(tmp_path / "pairs.jsonl", frames=None)
    [gone] = [path for path in (tmp_path / "media").rglob("*.png") if path.read_bytes() == GREY]
    gone.unlink()
    queue, seen = LabelQueue(pairs, LabelStore(tmp_path / "s"), LabelRules(seed=1)), []
    while "item" in (shown := queue.show("ann")):
        kinds = [[(*part,)[0] for part in side] for side in shown["sides"]]
        media = [number for side in shown["sides"] for part in side for kind, number in part.items() if kind != "text"]
        seen.append((kinds, [queue.medium("ann", Item(*shown["item"]), number) for number in media]))
        rate(queue, "ann", shown)
    assert shown["num_items"] == 2
    plain, both = sorted(seen, key=lambda one: len(one[1]))
    assert plain == ([["image", "text"], ["text"], ["text"]], [RED])
    given = [["image"], ["video", "text", "image"]]
    is_given = both[0][1:] == given
    assert both == (
        [["text", "image", "text"], *(given if is_given else given[::-1])],
        [BLUE, *((RED, CLIP, BLUE) if is_given else (CLIP, BLUE, RED))],
    )


def test_only_raters_get_in_and_see_no_source(tmp_path: Path) -> None:
    """No id, label or source leaves the server; an item that a rater has not seen cannot be rated."""
    app = create_label_app(queue_of(tmp_path), LabelStore(tmp_path / "labels.sqlite").tokens(["ann"]))
    token = LabelStore(tmp_path / "labels.sqlite").tokens()["ann"]
    with in_process(app) as stranger:
        assert stranger.get("/v1/labels/next").status_code == 401
        assert stranger.post("/v1/labels", json={"item": [0, 0], "choice": "tie"}).status_code == 401
        assert 'src="ui/' in stranger.get("/ui").text
    with in_process(create_label_app(queue_of(tmp_path), {"ann": token}), token) as client:
        answer = client.get("/v1/labels/next")
        assert not re.search("secret|id-|preferred", answer.text)
        for item in ([0, 1], [8, 0], [-1, 0]):
            assert client.post("/v1/labels", json={"item": item, "choice": "tie"}).status_code == 422
        assert client.post("/v1/labels", json={"item": [0, 0], "choice": "both"}).status_code == 422
        assert client.get("/v1/labels/media/0/0/0").status_code == 422
    assert LabelStore(tmp_path / "labels.sqlite").ratings() == []


def test_a_raters_summary(tmp_path: Path) -> None:
    """Counted by hand: p1 twice with one choice, p2 twice with two, p3 cannot tell once, p4 once; bob has rated nothing."""
    ratings = [("p1", 0), ("p2", 1), ("p3", None), ("p4", Tie.TIE), ("p1", 0), ("p2", 0), ("p3", 1)]
    store, names = LabelStore(tmp_path / "s"), ("num_pairs", "num_ties", "num_skipped", "num_repeated", "num_same")
    for n, (pair_id, choice) in enumerate(ratings):
        store.add(pair_id, int(n >= 4), Rating("ann", choice))
    store.add("p1", 0, Rating("cy", 1))
    assert [store.summary("ann"), store.summary("bob")] == [
        dict(zip(names, (4, 1, 1, 2, 1), strict=True)),
        dict.fromkeys(names, 0),
    ]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("needs Chromium")
    with chromium_browser() as browser:
        yield browser


def rate_on_page(page: Any, *, by_key: bool = False) -> None:
    """Rate the pair that a page shows, and wait until the page has moved on."""
    choice = better_of([page.inner_text("#side-1"), page.inner_text("#side-2")])
    before = page.inner_text("#count")
    if by_key:
        page.keyboard.press({"first": "1", "second": "ArrowRight"}[choice])
    else:
        page.click(f"#choices [value={choice}]")
    expect(page.locator("#count")).not_to_have_text(before)


@pytest.mark.nightly
def test_two_raters_at_once(chromium: Any, tmp_path: Path) -> None:
    """On a desk by keys and on a phone by touch: a reason, undo, a tie, and a lost connection, which loses no rating."""
    write_parquet((pair_of(number, images=(RED,)) for number in range(7)), tmp_path / "pairs.parquet")
    tokens = LabelStore(tmp_path / "labels.sqlite").tokens(["ann", "bob"])
    paths = [f"/ui#key={token}" for token in tokens.values()]
    with (
        running(create_label_app(queue_of(tmp_path, repeat_every=6), tokens)) as url,
        opened(chromium, url, DESK, path=paths[0], ignored="ERR_INTERNET") as ann,
        opened(chromium, url, PHONE, path=paths[1], has_touch=True, color_scheme="dark") as bob,
    ):
        for page in (ann, bob):
            expect(page.locator("#side-0 img")).to_have_js_property("naturalWidth", 40)
            assert page.evaluate(PALE) == []
        ann.keyboard.press("s")
        ann.get_by_label("Another reason").fill("I counted 3 sides")
        ann.get_by_label("Another reason").press("Enter")
        bob.click("summary")
        bob.get_by_role("button", name="Looks better").click()
        bob.click("#choices [value=tie]")
        expect(bob.locator("#count")).to_have_text("1 of 8 rated")
        bob.click("#undo")
        expect(bob.locator("#choices [value=tie]")).to_have_attribute("aria-pressed", "true")
        ann.context.set_offline(True)
        ann.keyboard.press("1")
        expect(ann.locator("#error")).to_have_text("The server cannot be reached; is it running?")
        expect(ann.locator("#count")).to_have_text("0 of 8 rated")
        ann.context.set_offline(False)
        for _ in range(8):
            rate_on_page(ann, by_key=True)
            rate_on_page(bob)
        for page in (ann, bob):
            expect(page.locator("#done")).to_contain_text("Same choice both times1 of 1")
    labels = LabelStore(tmp_path / "labels.sqlite").ratings()
    preferred = {f"id-{number}": number % 2 for number in range(7)}
    assert Counter(rating.rater for _, _, rating in labels) == {"ann": 8, "bob": 8}
    assert all(rating.choice == preferred[pair_id] for pair_id, _, rating in labels)
    assert [rating.reason for _, _, rating in labels if rating.reason] == [
        "Follows the request; I counted 3 sides",
        "Looks better",
    ]


def has_ipv6() -> bool:
    with socket.socket(socket.AF_INET6) as probe, suppress(OSError):
        probe.bind(("::1", 0))
        return True
    return False


@contextmanager
def label_process(folder: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, str]]]:
    """`rewardlab label`, and the link of each rater; killed at the end if it still runs."""
    command = [sys.executable, "-m", "rewardlab.cli", "label", str(folder / "pairs.parquet"), "--out", str(folder)]
    command += ["--port", str(free_port()), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            links = dict(process.stdout.readline().strip().split(": ", 1) for _ in range(2))
            with httpx.Client(transport=httpx.HTTPTransport(retries=9)) as client:
                client.get(links["ann"])
            yield process, links
        finally:
            process.kill()


@pytest.mark.nightly
def test_kill_loses_nothing(tmp_path: Path) -> None:
    """After kill -9 every answered rating is there; the same links work, and SIGTERM exports all."""
    write_parquet(map(pair_of, range(12)), tmp_path / "pairs.parquet")
    raters = ("--rater", "ann", "--rater", "bob")

    def rate_over_http(link: str, number: int) -> None:
        url, _, token = link.partition("/ui#key=")
        with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {token}"}) as client:
            shown = client.get("/v1/labels/next").json()
            for _ in range(number):
                rating = {"item": shown["item"], "choice": better_of(texts_of(shown))}
                shown = client.post("/v1/labels", json=rating).raise_for_status().json()

    with label_process(tmp_path, *raters, "--allowed-host", "rate.example.org") as (process, links):
        for host, status in (("rate.example.org", 200), ("other.example.org", 421)):
            assert httpx.get(links["ann"], headers={"Host": host}).status_code == status
        rate_over_http(links["ann"], 5)
        rate_over_http(links["bob"], 3)
        process.kill()
    assert len(LabelStore(tmp_path / "labels.sqlite").ratings()) == 8
    with label_process(tmp_path, "--host", "::1" if has_ipv6() else "127.0.0.1") as (process, again):
        assert {name: link.partition("#")[2] for name, link in again.items()} == {
            name: link.partition("#")[2] for name, link in links.items()
        }
        rate_over_http(again["ann"], 7)
        report = run_main(main, "label", tmp_path / "pairs.parquet", "--out", tmp_path, "--export").stdout
        assert "ann: 12 pairs, 0 ties, 0 cannot tell; same choice in" in report
        assert "labels.jsonl: 15 ratings of 12 pairs" in report
        rate_over_http(again["bob"], 1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 0
    labels = read_labels(tmp_path / "labels.jsonl")
    assert sum(map(len, labels.values())) == 16
    assert all(rating.choice == int(name[3:]) % 2 for name, ratings in labels.items() for rating in ratings)
    assert os.stat(tmp_path / "labels.sqlite").st_mode & 0o077 == 0


@pytest.mark.nightly
def test_a_hundred_labels(chromium: Any, tmp_path: Path) -> None:
    """Two raters at once, at both widths, and a server that is killed after a third and after two thirds."""
    write_parquet((pair_of(number, images=(RED,)) for number in range(95)), tmp_path / "pairs.parquet")
    done = 0
    for _ in range(3):
        with label_process(tmp_path, "--rater", "ann", "--rater", "bob") as (process, links):
            url = links["ann"].partition("/ui")[0]
            paths = [link.removeprefix(url) for link in links.values()]
            with opened(chromium, url, DESK, path=paths[0]) as ann, opened(chromium, url, PHONE, path=paths[1]) as bob:
                for page in (ann, bob):
                    expect(page.locator("#count")).to_have_text(f"{done} of 100 rated")
                for _ in range(34 if done < 68 else 32):
                    rate_on_page(ann, by_key=True)
                    rate_on_page(bob)
                    done += 1
            process.kill()
    ratings = LabelStore(tmp_path / "labels.sqlite").ratings()
    assert Counter(rating.rater for _, _, rating in ratings) == {"ann": 100, "bob": 100}
    assert Counter(visit for _, visit, _ in ratings) == {0: 190, 1: 10}
    assert all(rating.choice == int(pair_id[3:]) % 2 for pair_id, _, rating in ratings)
