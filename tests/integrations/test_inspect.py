"""The scorer in a task that Inspect itself runs, and people's ratings of a log; skipped where inspect_ai is not installed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rewardlab.data.images import encode_png, to_data_url
from rewardlab.data.ratings import read_labels, write_ratings
from rewardlab.errors import DataError
from rewardlab.types import Tie
from tests.support.servers import running
from tests.support.serving import app_of

pytestmark = [pytest.mark.extra("inspect_ai"), pytest.mark.filterwarnings("ignore")]  # warnings of Inspect's own


def by_length(prompt: Any, draw: int) -> str:
    """For the longer answer; for none where "silent" is among them; the first shown where "torn" is."""
    text = prompt[0].text
    if "silent" in text:
        return "I cannot say."
    longer_first = text.find("long answer") < text.find("short")
    return f"<answer>{1 if 'torn' in text or longer_first else 2}</answer>"


def test_scores_of_a_task(tmp_path: Path) -> None:
    """One for the better answer, nothing for a failure: no verdict, an endpoint that is gone, an image that is none."""
    from inspect_ai import Task, eval
    from inspect_ai.dataset import Sample
    from inspect_ai.model import ChatMessageUser, ContentImage, ContentText, ModelOutput, ModelUsage, get_model
    from PIL import Image

    from rewardlab.integrations.inspect import judge_scorer

    picture = to_data_url(encode_png(Image.new("RGB", (8, 8), "red")))

    def asked(image: str) -> list[Any]:
        return [ChatMessageUser(content=[ContentText(text="Which?"), ContentImage(image=image)])]

    samples = [
        Sample(id="won", input="Which?", target="short", metadata={"rival": "short"}),
        Sample(id="lost", input="Which?", target="the long answer", metadata={"rival": "short"}),
        Sample(id="tie", input="Which? torn", target="short", metadata={"rival": "short"}),
        Sample(id="silent", input="Which? silent", target="short", metadata={"rival": "short"}),
        Sample(id="seen", input=asked(picture), target="short", metadata={"rival": "short"}),
        Sample(id="unseen", input=asked("data:image/png;base64,AAAA"), target="short", metadata={"rival": "short"}),
    ]
    outputs = ["the long answer", "short", *["the long answer"] * 4]
    said = [ModelOutput.from_content("mockllm/model", text).model_copy(update={"usage": ModelUsage()}) for text in outputs]
    model = get_model("mockllm/model", custom_outputs=said)
    with running(app_of(by_length)) as endpoint:
        scorers = [judge_scorer(endpoint), judge_scorer(endpoint, other="rival", votes=2)]
        [log] = eval(
            Task(samples, scorer=scorers), model, log_dir=str(tmp_path), display="none", max_samples=1, max_connections=1
        )
    assert log.status == "success", log.error
    scores = {sample.id: next(iter(sample.scores.values())) for sample in log.samples}
    values = {name: score.value for name, score in scores.items() if score.value == score.value}
    assert values == {"won": 1.0, "lost": 0.0, "tie": 0.5, "seen": 1.0}
    assert (scores["silent"].reason, scores["unseen"].reason) == ("no_valid_vote", "failed")
    assert "image" in scores["unseen"].explanation
    assert scores["won"].metadata == {"share": 1.0, "swap_consistent": True, "invalid": {}}
    assert scores["tie"].metadata["swap_consistent"] is False
    first, second = log.results.scores
    assert first.metrics["mean"].value == pytest.approx(2.5 / 4)
    assert (first.scored_samples, first.unscored_samples) == (4, 2)
    assert second.metrics["mean"].value == pytest.approx(2.5 / 3)  # of "lost" both answers are the same, which is no pair


def test_ratings_of_a_log(tmp_path: Path) -> None:
    """Ratings that `precomputed_scores` put on a log, of one rater or of several, come back as a file of labels."""
    from inspect_ai import Task, eval, score
    from inspect_ai.dataset import Sample
    from inspect_ai.log import write_eval_log
    from inspect_ai.scorer import precomputed_scores

    from rewardlab.integrations.inspect import ratings_of_log

    samples = [Sample(id=n, input="q", metadata={"pair_id": f"p{n}"} if n else {}) for n in range(4)]
    [log] = eval(Task(samples), "mockllm/model", log_dir=str(tmp_path), display="none")
    given = [
        {"id": 0, "value": "A", "metadata": {"rater": "ann"}, "explanation": "clearer"},
        {"id": 1, "value": {"ann": "B", "ben": "both bad"}},
        {"id": 2, "value": "skip"},
    ]

    def rated(records: list[Any]) -> str:
        (tmp_path / "people.json").write_text(json.dumps(records))
        scored = score(log, precomputed_scores(str(tmp_path / "people.json"), metrics=[]), action="overwrite", display="none")
        write_eval_log(scored, str(tmp_path / "rated.eval"))
        return str(tmp_path / "rated.eval")

    write_ratings(tmp_path / "labels.jsonl", ratings_of_log(rated(given)))
    labels = read_labels(tmp_path / "labels.jsonl")
    assert {pair: [(one.rater, one.choice) for one in ratings] for pair, ratings in labels.items()} == {
        "0": [("ann", 0)],
        "p1": [("ann", 1), ("ben", Tie.BOTH_BAD)],
        "p2": [("precomputed_scores", None)],
    }
    assert labels["0"][0].reason == "clearer"
    with pytest.raises(DataError, match=r"sample 0, precomputed_scores of ann: 1; expected A, B, a tie or skip"):
        ratings_of_log(rated([{"id": 0, "value": 1, "metadata": {"rater": "ann"}}]))
    with pytest.raises(DataError, match="has no ratings by precomputed_scores"):
        ratings_of_log(rated([{"id": "other", "value": "A"}]))
