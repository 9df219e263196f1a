"""The page of a server in a real browser, at desktop and phone width; and its files."""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import subprocess
import threading
import zlib
from collections.abc import Iterator
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image
from playwright.sync_api import expect

import rewardlab.serving
from rewardlab.data.images import decode_image, encode_png
from rewardlab.judging.judge import GenerativeJudge
from rewardlab.metrics.intervals import wilson_interval
from rewardlab.prompts import load_template
from rewardlab.samplers.child_process import ProcessSampler
from rewardlab.serving.app import create_app
from rewardlab.serving.auth import Key
from rewardlab.serving.schedule import QueueOptions
from rewardlab.serving.service import ServerOptions
from rewardlab.types import Message
from tests.support.browser import CHROMIUM, DESK, PALE, PHONE, REFUSED, chromium_browser, opened, served
from tests.support.held_judge import held_sampler
from tests.support.scripted_judge import ANSWERS, handler, quality
from tests.support.servers import running
from tests.support.serving import app_of

FOLDER = Path(rewardlab.serving.__path__[0]) / "page"
MEDIA_TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
HOSTILE = '<img src=x onerror="document.title=1"><script>document.title=2</script>'
SIZES = pytest.mark.parametrize("size", [DESK, PHONE], ids=["desktop", "phone"])


def answer(prompt: tuple[Message, ...], draw: int) -> str:
    """For the first, unless a response says a number: then for the greater one. Its reasoning would be markup elsewhere."""
    first, second = re.findall(r"Response [12]: (.*)", prompt[0].text)
    verdict = 1 if quality(first) >= quality(second) else 2
    return f"<think>{len(prompt[0].images)} images. Response {verdict} wins. {HOSTILE}</think><answer>{verdict}</answer>"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("needs Chromium")
    with chromium_browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with served(answer) as address:
        yield address


@pytest.fixture
def picture(tmp_path: Path) -> Path:

    path = tmp_path / "a.png"
    path.write_bytes(encode_png(Image.new("RGB", (448, 300), (200, 0, 0))))
    return path


def fill(page: Any, question: str = "Which?", votes: int = 2, responses: tuple[str, ...] = ("It is red.", HOSTILE)) -> None:
    page.get_by_label("Question").fill(question)
    for _ in responses[2:]:
        page.get_by_role("button", name="Add a response").click()
    for letter, response in zip("ABCDEF", responses, strict=False):
        page.get_by_role("textbox", name=f"Response {letter}", exact=True).fill(response)
    page.get_by_label("Votes per order").fill(str(votes))


def press(page: Any) -> None:
    page.get_by_role("button", name="Judge", exact=True).click()


def judge(page: Any, outcome: str, **form: Any) -> None:
    fill(page, **form)
    press(page)
    expect(page.locator("#take")).to_be_visible()
    expect(page.locator("#headline")).to_have_text(outcome)


def test_no_script_but_its_own(chromium: Any, url: str) -> None:
    """The policy of the page stops scripts that are written into it, and markup made of a text."""
    with opened(chromium, url, ignored="requires 'Trusted") as page:
        attempts = """() => {
            const caught = [];
            try { document.createElement("script").text = "document.title = 'inline'"; } catch { caught.push("script"); }
            try { document.body.innerHTML = "<p>markup</p>"; } catch { caught.push("markup"); }
            return caught;
        }"""
        assert page.evaluate(attempts) == ["script", "markup"]
        policy = httpx.get(f"{url}/ui").headers["Content-Security-Policy"]
        assert "script-src 'self';" in policy
        assert "unsafe" not in policy


@SIZES
def test_a_judgment(chromium: Any, url: str, size: tuple[int, int], picture: Path) -> None:
    """An image, which opens large, and two responses; a hostile one and a hostile rationale are shown as the texts they are."""
    with opened(chromium, url, size) as page:
        page.set_input_files("#files", picture)
        judge(page, "A tie")
        votes = page.locator(".vote")
        assert votes.count() == 4
        assert (votes.first.get_attribute("open") is None) == (size is PHONE), "votes are folded where there is little room"
        for vote in votes.all()[1:] if size is DESK else votes.all():
            if size is PHONE:
                vote.locator("summary").click()
        assert HOSTILE in votes.first.inner_text()
        assert "1 images" in votes.first.inner_text()
        assert "50 %" in page.inner_text("#pair")
        assert page.title() not in ("1", "2")
        assert page.locator("#votes img, #votes script").count() == 0
        before = page.locator("#thumbs img").bounding_box()["width"]
        page.get_by_role("button", name="Resize image 1").click()
        assert page.locator("#thumbs img").bounding_box()["width"] > 2 * before


def test_names_in_rationales_are_those_of_the_page(chromium: Any, url: str) -> None:
    """Its "Response 1" is A in one order, and B in the other: each rationale names the one that stands under that letter."""
    with opened(chromium, url) as page:
        judge(page, "A tie", votes=1)
        assert "Response A (shown first) wins" in page.inner_text("[aria-label='Vote 1, A shown first']")
        assert "Response B (shown first) wins" in page.inner_text("[aria-label='Vote 1, B shown first']")
        name = page.locator("[aria-label='Vote 1, B shown first'] .name")
        assert name.get_attribute("title") == "written as 1"


NAMES = [
    ("Response 2 beats Response 1.", "given", ("Response 1", "Response 2"), "Response B (2) beats Response A (1)."),
    ("Response 2 beats Response 1.", "swapped", ("Response 1", "Response 2"), "Response A (2) beats Response B (1)."),
    ("**Responses 1 and 2** are one", "swapped", ("Response 1", "Response 2"), "**Responses B (1) and A (2)** are one"),
    ("There is 1 star. [[B]]", "swapped", ("Response A", "Response B"), "There is 1 star. [[A (2)]]"),
    ("Option A is asked for, answer B says so.", "given", ("Answer 1", "Answer 2"), "Option A is asked for, answer B says so."),
    ("Answer 2: better", "swapped", ("Answer 1", "Answer 2"), "Answer A (2): better"),
    ("Both.\nB", "swapped", ("Response A", "Response B"), "Both.\nA (2)"),
    ("Response 12 is none", "given", ("Response 1", "Response 2"), "Response 12 is none"),
]


def test_names_of_every_template(chromium: Any, url: str) -> None:
    """Numbers or letters, as the template has them; what names no response stays as it is."""
    script = """async ([address, cases]) => {
        const { named } = await import(address);
        return cases.map(([text, order, labels]) => named(text, order, labels).map(part =>
            typeof part === "string" ? part : `${"AB"[part.winner]} (${part.place === "first" ? 1 : 2})`).join(""));
    }"""
    with opened(chromium, url) as page:
        folder = page.locator("script").get_attribute("src").rpartition("/")[0]
        shown = page.evaluate(script, [f"{url}/{folder}/votes.js", [case[:3] for case in NAMES]])
        assert shown == [case[3] for case in NAMES]


@pytest.mark.parametrize(("votes", "finding"), [(2, ""), (4, "Position bias: A gets more votes when it is shown first.")])
def test_position_is_spoken_of_where_chance_does_not_explain_it(chromium: Any, url: str, votes: int, finding: str) -> None:
    """Two votes of either order are as much as chance may do, four are not."""
    with opened(chromium, url) as page:
        judge(page, "A tie", votes=votes)
        rows = page.locator("#order-rows > div").all_inner_texts()
        assert re.sub(r"\s+", " ", rows[0]) == f"A shown first {votes} of {votes} ({34 if votes == 2 else 51}–100 %)"
        assert re.sub(r"\s+", " ", rows[1]) == f"B shown first 0 of {votes} (0–{66 if votes == 2 else 49} %)"
        assert page.inner_text("#position-bias") == finding
        assert "flip" not in page.inner_text("#result")


def test_intervals_are_wilsons(chromium: Any, url: str) -> None:
    """As reports have them; a lean to either place is named where the intervals are apart."""
    script = """async ([address, cases]) => {
        const { positionBias, share, wilson } = await import(address);
        const votes = (order, winners) => winners.map(winner => ({ order, winner }));
        const orders = ["given", "swapped"];
        const lean = (...winners) => positionBias(...orders.map((order, n) => share(votes(order, winners[n]), order)));
        const zeros = [0, 0, 0, 0], ones = [1, 1, 1, 1];
        return [cases.map(([hits, number]) => wilson(hits, number)),
                [lean(zeros, ones), lean(ones, zeros), lean([0, 0, 0, 1], [0, 1, 1, 1]), lean([0, null], [null])]];
    }"""
    cases = [(hits, number) for number in (1, 4, 64) for hits in (0, 1, number // 2, number)]
    with opened(chromium, url) as page:
        folder = page.locator("script").get_attribute("src").rpartition("/")[0]
        intervals, leans = page.evaluate(script, [f"{url}/{folder}/votes.js", cases])
    assert intervals == [pytest.approx(wilson_interval(*case), abs=1e-12) for case in cases]
    sentence = "Position bias: A gets more votes when it is shown {}."
    assert leans == [sentence.format("first"), sentence.format("second"), "", ""]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_can_be_read(chromium: Any, url: str, scheme: str) -> None:
    """Each has a contrast of 4.5 to what lies behind it, and none is cut off at the width of a phone."""
    cut = """() => [...document.querySelectorAll("button, label, select, dt, dd, th, .badge, .chip, h2, h3, small")]
        .filter(one => one.checkVisibility() && getComputedStyle(one).display !== "inline")
        .filter(one => one.scrollWidth > one.clientWidth + 1)
        .map(one => one.textContent)"""
    with opened(chromium, url, PHONE, color_scheme=scheme) as page:
        for responses in (("It is red.", "It is blue."), ("It is red.", "It is blue.", "It is 7.")):
            page.reload()
            fill(page, votes=4, responses=responses)
            press(page)
            expect(page.locator("#take")).to_be_visible()
            page.evaluate("document.getAnimations().forEach(animation => animation.finish())")
            assert page.evaluate(PALE) == []
            assert page.evaluate(cut) == []


def test_shares_add_up(chromium: Any) -> None:
    """7 of 8 votes are 88 %, and 1 of 8 is 12 % beside it."""
    draws = iter(range(100))

    def one_in_eight(prompt: tuple[Message, ...], draw: int) -> str:
        first_is_red = "1: It is red" in prompt[0].text
        return f"<think>t</think><answer>{1 if first_is_red == (next(draws) != 5) else 2}</answer>"

    with served(one_in_eight) as url, opened(chromium, url) as page:
        judge(page, "Response A is better", votes=4)
        assert (page.inner_text("#share-a"), page.inner_text("#share-b")) == ("A 88 %", "B 12 %")


def test_a_group(chromium: Any, url: str) -> None:
    """Three responses are rewarded, best first."""
    with opened(chromium, url, PHONE) as page:
        judge(page, "Response B is best", responses=("I say 1.", "I say 3. " + HOSTILE, "I say 2."), votes=1)
        rows = [row.split("\t") for row in page.locator("#group tbody tr").all_inner_texts()]
        assert [(row[0].strip(), row[-1].strip()) for row in rows] == [("B", "+1.00"), ("C", "0.00"), ("A", "−1.00")]
        assert page.locator("#group img").count() == 0


@SIZES
def test_pictures_in_responses(chromium: Any, size: tuple[int, int], tmp_path: Path) -> None:
    """Chosen for a response, they are shown within it: to the judge, in the outcome, and in what a link restores."""
    prompts: list[str] = []

    def reddest(prompt: tuple[Message, ...], draw: int) -> str:
        parts = [
            part.text if part.image is None else f"[{decode_image(part.image).getpixel((9, 9))[0]}]" for part in prompt[0].parts
        ]
        prompts.append("".join(parts))
        first, second = (int(color) for color in re.findall(r"Response [12]: [^\[]*\[(\d+)\]", prompts[-1]))
        return f"<think>I see.</think><answer>{1 if first > second else 2}</answer>"

    paths = [tmp_path / f"{red}.png" for red in (250, 100, 7)]
    for path in paths:
        Image.new("RGB", (448, 300), (int(path.stem), 0, 0)).save(path)
    with served(reddest) as url, opened(chromium, url, size, permissions=["clipboard-read", "clipboard-write"]) as page:
        page.set_input_files("#files", paths[2])
        for letter, path in zip("AB", paths[1::-1], strict=True):
            page.get_by_label(f"Images and videos of {letter}", exact=True).set_input_files(path)
        page.get_by_label("Question").fill("Draw a rose.")
        page.get_by_role("textbox", name="Response B", exact=True).fill("Here:")
        page.get_by_label("Votes per order").fill("1")
        press(page)
        expect(page.locator("#headline")).to_have_text("Response B is better")
        assert "[image]" in page.inner_text("#short-a")
        assert "Here: [image]" in page.inner_text("#short-b")
        assert len(prompts) == 2
        assert all(sorted(re.findall(r"\[(\d+)\]", prompt)) == ["100", "250", "7"] for prompt in prompts)
        assert all(prompt.startswith("[7]") for prompt in prompts)
        page.get_by_role("button", name="Copy link").click()
        expect(page.locator("#copied")).to_have_text("Link copied.")
        link = page.evaluate("navigator.clipboard.readText()")
        page.get_by_role("button", name="Add a response").click()
        assert page.locator(".response img").count() == 2
        page.get_by_role("button", name="Remove the last").click()
        page.get_by_role("button", name="Remove image 1 of A").click()
        press(page)
        assert page.evaluate("document.activeElement.id") == "response-0", "a response without text and images is not sent"
        page.goto("about:blank")
        page.goto(link)
        expect(page.locator("#headline")).to_have_text("Response B is better")
        expect(page.locator("#thumbs img")).to_have_count(1)
        expect(page.locator(".response img")).to_have_count(2)


@pytest.mark.parametrize(("text", "number"), [("", 1), ("a cell", 0)])
def test_what_is_pasted(chromium: Any, url: str, text: str, number: int) -> None:
    """A file is taken as an image; a text that other programs copy with a picture of it is pasted as a text."""
    with opened(chromium, url) as page:
        is_taken = page.evaluate(
            """text => {
                const clipboardData = new DataTransfer();
                clipboardData.items.add(new File([new Uint8Array(9)], "a.png", { type: "image/png" }));
                if (text) clipboardData.setData("text/plain", text);
                const event = new ClipboardEvent("paste", { clipboardData, bubbles: true, cancelable: true });
                return !document.getElementById("response-0").dispatchEvent(event);
            }""",
            text,
        )
        assert (is_taken, page.locator(".response .thumb").count()) == (bool(number), number)


def test_a_video_and_references(chromium: Any, url: str, tmp_path: Path) -> None:
    """A video is uploaded and shown to the judge as frames; an upload is named by its id, and a URL is left to the server."""
    from tests.support.videos import film

    film(tmp_path / "clip.mp4", 6)
    with opened(chromium, url, ignored=REFUSED) as page:
        page.set_input_files("#files", tmp_path / "clip.mp4")
        judge(page, "A tie", votes=1)
        expect(page.locator(".vote").first).to_contain_text("6 images")
        page.get_by_text("Add by URL or id").click()
        page.get_by_label("URL or id").fill("https://example.org/a.png")
        page.get_by_role("button", name="Add", exact=True).click()
        assert page.get_by_role("link", name="https://example.org/a.png").get_attribute("rel") == "noreferrer noopener"
        press(page)
        expect(page.locator("#error")).to_contain_text("other URLs and paths are not fetched")
        page.get_by_label("URL or id").fill("javascript:alert(1)")
        page.get_by_role("button", name="Add", exact=True).click()
        expect(page.locator("#error")).to_contain_text("A reference is a URL")


def test_a_link_and_a_curl_line(chromium: Any, url: str, picture: Path) -> None:
    """A link shows the same judgment and its picture in another browser, and its request; the line asks the same of the API."""
    with opened(chromium, url, permissions=["clipboard-read", "clipboard-write"]) as page:
        page.set_input_files("#files", picture)
        judge(page, "A tie", question="What's $HOME?", votes=1)
        copied = {}
        for name in ("Copy link", "Copy as curl"):
            page.get_by_role("button", name=name).click()
            expect(page.locator("#copied")).to_have_text(re.compile("copied"))
            copied[name] = page.evaluate("navigator.clipboard.readText()")
            page.evaluate("document.getElementById('copied').textContent = ''")
    result = json.loads(
        subprocess.run(["bash", "-c", copied["Copy as curl"]], capture_output=True, text=True, check=True).stdout
    )
    assert [vote["winner"] for vote in result["votes"]] == [0, 1]
    assert "What'\\''s $HOME?" in copied["Copy as curl"]
    address, _, fragment = copied["Copy link"].partition("#")
    assert address == f"{url}/ui"
    with opened(chromium, url, path=f"/ui#{fragment}") as page:
        expect(page.locator("#headline")).to_have_text("A tie")
        expect(page.locator("#note")).to_have_text(re.compile("From a link"))
        assert page.get_by_label("Question").input_value() == "What's $HOME?"
        expect(page.locator("#thumbs img")).to_have_count(1)
        expect(page.locator(".vote").first).to_contain_text("1 images")


def test_a_hostile_link(chromium: Any, url: str) -> None:
    """Whoever wrote it: its texts are texts, its references lead nowhere, its words are no names of anything in the page."""
    vote = {"order": "given", "status": "constructor", "winner": None, "text": HOSTILE, "num_tokens": 1, "error": ""}
    entry = {
        "request": {
            "question": HOSTILE,
            "responses": [HOSTILE, [{"type": "text", "text": HOSTILE}, {"type": "image", "image": "javascript:alert(2)"}]],
            "images": ["constructor", "javascript:alert(1)", "https://example.org/a.png"],
            "videos": [],
            "votes": 1,
            "seed": 0,
            "policy": "majority",
        },
        "result": {"votes": [vote], "outcome": "constructor", "p_first_better": None, "seconds": 0},
        "labels": ["Response 1", "Response 2"],
    }
    with opened(chromium, url, path=f"/ui#judgment={packed(entry)}") as page:
        expect(page.locator("#headline")).to_have_text("constructor")
        expect(page.locator(".vote .chip")).to_have_text("constructor")
        expect(page.locator(".tag")).to_have_count(4)
        assert page.get_by_role("textbox", name="Response B", exact=True).input_value() == HOSTILE
        expect(page.locator(".tag a")).to_have_count(1)
        assert HOSTILE in page.inner_text(".vote")
        assert page.title() not in ("1", "2")


def packed(entry: Any) -> str:
    return base64.urlsafe_b64encode(zlib.compress(json.dumps(entry).encode(), wbits=-15)).decode().rstrip("=")


NO_PARTS = [None, {"type": "audio", "audio": "x"}, {"type": "image", "image": 1}, {"type": "__proto__"}]


def test_a_damaged_link(chromium: Any, url: str) -> None:
    """It is said to be one; nothing of it is shown."""
    request = {"question": "q", "images": [], "videos": [], "votes": 1, "policy": "majority"}
    whole = {"request": request, "result": {"votes": [], "outcome": "tie"}, "labels": ["Response 1", "Response 2"]}
    links = [packed({**whole, "request": {**request, "responses": ["a", [part]]}}) for part in NO_PARTS]
    with opened(chromium, url) as page:
        for fragment in ("!!", "AAAA", "q1YqSy0qzszPU7JSykjNyclXqgUA", *links):
            page.evaluate("fragment => { location.hash = fragment; }", "judging")
            page.evaluate("document.getElementById('error').textContent = ''")
            page.evaluate("fragment => { location.hash = fragment; }", f"judgment={fragment}")
            expect(page.locator("#error")).to_have_text("This link is damaged; ask for it again.")
            expect(page.locator("#headline")).to_have_text("No judgment yet")


def test_votes_arrive_live_and_can_be_stopped(chromium: Any) -> None:
    """The first round stands while the second one is asked; stopping leaves what is there."""
    gate, count = threading.Event(), {"n": 0}

    def slow(prompt: tuple[Message, ...], draw: int) -> str:
        count["n"] += 1
        if count["n"] > 2:
            gate.wait(5)
        return answer(prompt, draw)

    with served(slow) as url, opened(chromium, url) as page:
        fill(page, votes=4)
        page.keyboard.press("Control+Enter")
        expect(page.locator(".vote")).to_have_count(2)
        assert "2 of 8 votes" in page.inner_text("#headline")
        page.get_by_role("button", name="Stop").click()
        expect(page.locator("#headline")).to_have_text("Stopped; 2 votes came")
        gate.set()


def test_a_key_is_asked_for(chromium: Any) -> None:
    """A wrong one is refused, the right one lets the page go on; a curl line does not hold it."""
    with served(answer, keys=[Key.of("right")]) as url, opened(chromium, url, ignored=REFUSED) as page:
        for key in ("wrong", "right"):
            page.wait_for_selector("#key:not([hidden])")
            expect(page.locator("#badge")).to_have_text("key needed")
            page.fill("#key-field", key)
            page.get_by_role("button", name="Use this key").click()
        page.wait_for_selector("#key", state="hidden")
        expect(page.locator("#badge")).to_have_text("ready")
        judge(page, "A tie", votes=1)
        page.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
        shown: list[str] = []
        page.on("dialog", lambda dialog: (shown.append(dialog.default_value), dialog.dismiss()))
        page.get_by_role("button", name="Copy as curl").click()
        assert "Bearer $REWARDLAB_KEY" in shown[0]
        assert "right" not in shown[0].replace(url, "")


def test_errors_are_sentences(chromium: Any, url: str, tmp_path: Path) -> None:
    """What is missing, what is no image, and what the server refuses stand beside the button."""
    (tmp_path / "a.png").write_bytes(b"no picture")
    with opened(chromium, url, ignored=REFUSED) as page:
        press(page)
        expect(page.locator("#question:invalid")).to_be_focused()
        page.set_input_files("#files", tmp_path / "a.png")
        fill(page)
        press(page)
        expect(page.locator("#error")).to_contain_text("a.png: ")
        page.get_by_role("button", name="Remove image 1").click()
        page.get_by_label("Response A").fill("x" * 100_001)
        press(page)
        expect(page.locator("#error")).to_contain_text("100000")
        expect(page.locator("#headline")).to_have_text("Not judged")


@pytest.mark.nightly
def test_an_engine_that_dies(chromium: Any, tmp_path: Path) -> None:
    """The badge and a sentence say what happens; when the engine is back, the judgment can be made."""
    sampler, starts = ProcessSampler(partial(held_sampler, tmp_path), timeout_s=5.0), tmp_path / "starts"
    app = create_app(GenerativeJudge(sampler, load_template("plain")), ServerOptions(queue=QueueOptions(recheck_s=0.2)))
    with running(app) as url, opened(chromium, url, ignored=REFUSED) as page:
        expect(page.locator("#badge")).to_have_text("ready")
        starts.touch()
        assert sampler.pid
        os.kill(sampler.pid, signal.SIGKILL)
        fill(page, votes=1, responses=ANSWERS[:2])
        press(page)
        expect(page.locator("#headline")).to_have_text("Not judged")
        expect(page.locator("#error")).to_contain_text("engine")
        expect(page.locator("#badge")).to_have_text("judging is paused: the engine fails")
        starts.unlink()
        expect(page.locator("#badge")).to_have_text("ready", timeout=20_000)
        judge(page, "Response B is better", votes=1, responses=ANSWERS[:2])
    sampler.close()


@SIZES
def test_the_queue(chromium: Any, size: tuple[int, int]) -> None:
    """What the server counts."""
    with served(handler) as url, opened(chromium, url, size) as page:
        for number in range(2):
            judge(page, "Response B is better", votes=3, question=f"Which of {number}?", responses=ANSWERS[:2])
        page.get_by_role("link", name="Queue").click()
        expect(page.locator("#gauges")).to_contain_text("Judged6")
        assert "0 of 1024" in page.inner_text("#gauges")


@pytest.fixture(scope="module")
def locked() -> Iterator[httpx.Client]:
    """A client without a key, of a server that wants one, behind a proxy that serves it below a path."""
    app = app_of(answer, keys=[Key.of("k")])
    app.root_path = "/judge"
    with running(app) as url, httpx.Client(base_url=f"{url}/judge") as client:
        yield client


def folder_of(client: httpx.Client) -> str:
    match = re.search(r'src="(ui/[0-9a-f]{16})/main\.js"', client.get("/ui").text)
    assert match
    return match[1]


def test_files_are_public_and_immutable(locked: httpx.Client) -> None:
    """Everybody gets them; a page that changes has other addresses. They hold no inline script, style or handler."""
    assert locked.get("/ui").headers["Cache-Control"] == "no-cache"
    assert locked.get("/v1/status").status_code == 401
    pages = [path.read_text() for path in FOLDER.glob("*.html")]
    assert not any(re.search(r"<style|<script(?![^>]*src=)|\son\w+=|\sstyle=", text) for text in pages)
    names = sorted(path.name for path in FOLDER.iterdir() if path.suffix != ".html")
    assert {"main.js", "styles.css", "icon.svg"} <= set(names)
    for name in names:
        answer = locked.get(f"/{folder_of(locked)}/{name}")
        assert (answer.status_code, answer.content) == (200, (FOLDER / name).read_bytes())
        assert answer.headers["Content-Type"] == f"{MEDIA_TYPES[Path(name).suffix]}; charset=utf-8"
        assert "immutable" in answer.headers["Cache-Control"]


@pytest.mark.parametrize(
    "path",
    [
        "{0}/index.html",
        "{0}/../../v1/status",
        "{0}/..%2findex.html",
        "{0}/%2e%2e%2fpages.py",
        "ui/0123456789abcdef/main.js",
        "ui/main.js",
    ],
)
def test_nothing_else_is_public(locked: httpx.Client, path: str) -> None:
    """No other file, no other version, and no route that wants a key behind the public folder."""
    connection = HTTPConnection(locked.base_url.host, locked.base_url.port)  # sends a path as it is
    connection.request("GET", f"/judge/{path.format(folder_of(locked))}")
    assert connection.getresponse().status == 404
    connection.close()
