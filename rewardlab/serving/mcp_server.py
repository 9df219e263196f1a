"""A judge as a tool of the Model Context Protocol: ``compare``, over standard input and output."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

from rewardlab import __version__
from rewardlab.errors import DataError, RewardlabError
from rewardlab.judging.api import AsyncJudge, ComparisonResult
from rewardlab.serving.media import Media
from rewardlab.types import BOTH_ORDERS
from rewardlab.verdicts.votes import in_order, majority

MOST_IMAGES, MOST_VOTES = 16, 64  # of a call


def mcp_server(judge: AsyncJudge, media: Media) -> Any:
    """Return an ``MCPServer`` with the tool ``compare``."""
    server = MCPServer("rewardlab", version=__version__, log_level="WARNING")

    async def compare(
        question: str,
        answers: list[str],
        images: list[str] | None = None,
        votes: int | None = None,
        error: float | None = None,
    ) -> dict[str, Any]:
        """Compare two answers to a question, in both orders. `images` of the question are data URLs, or media:NAME and URLs
        that the server allows. `votes` of each order. `error`, such as 0.05: abstain unless at most so many verdicts are
        wrong; needs a judge with a guarantee. `winner` is 0, 1 or null; `outcome` says why; `confidence` is its share."""
        try:
            given = images or []
            if len(answers) != 2 or len(given) > MOST_IMAGES or (votes or 1) > MOST_VOTES:
                got = f"{len(answers)} answers, {len(given)} images and {votes or 1} votes of each order"
                raise DataError(f"{got} cannot be judged; give two, at most {MOST_IMAGES} and at most {MOST_VOTES}")
            loaded = [await asyncio.to_thread(media.image, image, n) for n, image in enumerate(given)]
            return comparison_json(await judge.compare(question, answers, images=loaded, votes=votes, error=error))
        except RewardlabError as failure:
            raise ToolError(str(failure)) from failure

    server.add_tool(compare)
    return server


def comparison_json(result: ComparisonResult) -> dict[str, Any]:
    """Return a comparison as JSON: ``orders`` has the winner of each order's votes, how many there are, and those by status."""
    orders = {
        order.value: {
            "winner": majority(votes).winner,
            "votes": len(votes),
            "statuses": dict(Counter(vote.verdict.status.value for vote in votes)),
        }
        for order in BOTH_ORDERS
        if (votes := in_order(result.judgment.votes, order))
    }
    return {
        "winner": result.winner,
        "outcome": result.outcome.value,
        "confidence": result.share,
        "swap_consistent": result.swap_consistent,
        "orders": orders,
    }
