"""The tool `compare` of `rewardlab mcp`, called by the client of the package mcp; skipped where that is not installed."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from rewardlab import open_judge
from rewardlab.data.images import encode_png, to_data_url
from rewardlab.judging.guarantee import Guarantee, judge_facts
from rewardlab.metrics.guarantee import CertifiedThreshold
from tests.support.servers import running
from tests.support.serving import app_of
from tests.support.shell import ROOT

pytestmark = [pytest.mark.extra("mcp"), pytest.mark.filterwarnings("ignore")]  # warnings of its own


def by_length(prompt: Any, draw: int) -> str:
    """For "good"; for "fair" in two draws of three; for neither if "silent" is asked, or two images are missing."""
    text = prompt[0].text
    if "silent" in text or ("pictured" in text and len(prompt[0].images) != 2):
        return "I cannot say."
    right = 1 if text.find("good") + text.find("fair") < text.find("bad") else 2
    return f"<answer>{3 - right if 'fair' in text and draw % 3 == 0 else right}</answer>"


async def called(arguments: list[str], calls: list[dict[str, Any]]) -> tuple[Any, list[Any]]:
    """Return the tools of `rewardlab mcp`, started as a process of its own, and the results of calls."""
    from mcp import Client, StdioServerParameters

    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = StdioServerParameters(command=sys.executable, args=["-m", "rewardlab.cli", "mcp", *arguments], env=env)
    async with Client(command) as client:
        return await client.list_tools(), [await client.call_tool("compare", call) for call in calls]


def test_compare(tmp_path: Path) -> None:
    """Verdicts of both orders, images under the server's rules, a guaranteed error, and failures as errors, not as verdicts."""
    from PIL import Image

    (tmp_path / "media").mkdir()
    (tmp_path / "media" / "one.png").write_bytes(picture := encode_png(Image.new("RGB", (8, 8), "red")))
    good, fair = ({"question": "Which?", "answers": [answer, "bad"]} for answer in ("good", "fair"))
    calls = [
        good,
        {**fair, "question": "Which is pictured?", "votes": 3, "images": [to_data_url(picture), "media:one.png"]},
        {**good, "error": 0.05},
        {**fair, "error": 0.05},
        {**good, "error": 0.01},
        {**good, "question": "silent"},
        {**good, "images": [str(tmp_path / "media" / "one.png")]},
        {**good, "images": ["http://127.0.0.1:9/one.png"]},
        {**good, "images": ["media:../secret.png"]},
        {**good, "answers": ["good"]},
        {**good, "votes": 65},
    ]
    with running(app_of(by_length)) as endpoint:
        engine = open_judge(endpoint).engine
        threshold = CertifiedThreshold(0.05, 0.9, 0.7, 300, 250, 4, 0.04)
        Guarantee(threshold, judge_facts(engine.config, engine.identity), 3, {}).write(tmp_path / "guarantee.json")
        options = ["--judge", endpoint, "--guarantee", str(tmp_path / "guarantee.json"), "--media", str(tmp_path / "media")]
        tools, results = asyncio.run(called(options, calls))
    assert [tool.name for tool in tools.tools] == ["compare"]
    sure, seen, given, abstained, _, silent = (result.structured_content for result in results[:6])
    order = {"winner": 0, "votes": 1, "statuses": {"ok": 1}}
    assert sure == {
        "winner": 0,
        "outcome": "response_0",
        "confidence": 1.0,
        "swap_consistent": True,
        "orders": {"given": order, "swapped": order},
    }
    assert (seen["winner"], seen["confidence"], seen["orders"]["swapped"]["votes"]) == (0, pytest.approx(2 / 3), 3)
    assert (given["outcome"], abstained["outcome"], abstained["winner"]) == ("response_0", "abstained", None)
    assert (silent["outcome"], silent["winner"], silent["confidence"]) == ("no_valid_vote", None, None)
    failed = {n: result.content[0].text for n, result in enumerate(results) if result.is_error}
    said = {4: "0.05 was certified", 6: "paths are not fetched", 7: "not fetched", 8: "not a file", 9: "give two"}
    said |= {10: "65 votes"}
    assert failed.keys() == said.keys()
    assert all(words in failed[n] for n, words in said.items()), failed


def test_a_judge_that_is_gone_is_an_error() -> None:
    call = {"question": "Which?", "answers": ["good", "bad"]}
    _, [result] = asyncio.run(called(["--judge", "openai:gone@http://127.0.0.1:9", "deadline_s=1"], [call]))
    assert (result.is_error, "no vote was answered" in result.content[0].text) == (True, True)
