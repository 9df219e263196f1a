"""A sample without a reward, in each trainer: none may pay it a number. TRL's arithmetic says what it does with it."""

from __future__ import annotations

import asyncio
import atexit
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from rewardlab.errors import DataError, EndpointError
from rewardlab.integrations import easyr1
from rewardlab.integrations.ms_swift import JudgeORM
from rewardlab.integrations.trl import judge_reward
from tests.support.scripted_judge import ANSWERS, QUESTION, handler
from tests.support.servers import running
from tests.support.serving import app_of

JUDGED = [-1.0, -1 / 3, None, -1 / 3]  # the third could not be judged; 0 would be the best of the group


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server whose third reward of a group is missing."""

    async def rewards(request: Request) -> JSONResponse:
        return JSONResponse({"rewards": JUDGED[: len((await request.json())["responses"])]})

    with running(Starlette(routes=[Route("/v1/rewards", rewards, methods=["POST"])])) as address:
        yield address


def test_ms_swift_gets_all_rewards_or_an_error(url: str) -> None:
    """It adds up rewards by nansum, which makes 0 of None: an advantage of +0.99 in this group."""

    class Judge(JudgeORM):
        address = url

    judge = Judge()
    messages = [[{"role": "user", "content": QUESTION}]]
    assert judge(["a", "b"], messages=messages * 2) == JUDGED[:2]
    with pytest.raises(EndpointError, match="no reward for 1 of 4 samples"):
        judge(["a", "b", "c", "d"], messages=messages * 4)
    assert judge.num_failed == 1


def same_format(completions: list[Any], **columns: Any) -> list[float]:
    return [1.0] * len(completions)


def trl_advantages(checkpoint: Path, out: Path, reward_funcs: list[Any], **options: Any) -> list[float]:
    """Return the advantages that TRL's GRPOTrainer computes of one group of four."""
    import trl
    from datasets import Dataset
    from transformers import AutoModelForImageTextToText, AutoProcessor
    from trl.trainer.utils import shutdown_event_loop_in_daemon

    config = trl.GRPOConfig(
        output_dir=str(out),
        per_device_train_batch_size=4,
        num_generations=4,
        max_completion_length=2,
        report_to="none",
        use_cpu=True,
        bf16=False,
        **options,
    )
    row = {"prompt": [{"role": "user", "content": QUESTION}]}
    trainer = trl.GRPOTrainer(
        AutoModelForImageTextToText.from_pretrained(checkpoint),
        reward_funcs=reward_funcs,
        args=config,
        train_dataset=Dataset.from_list([row]),
        processing_class=AutoProcessor.from_pretrained(checkpoint),
    )
    try:
        advantages: list[float] = trainer._generate_and_score_completions([row] * 4)["advantages"].tolist()
        return advantages
    finally:
        atexit.unregister(shutdown_event_loop_in_daemon)  # TRL leaves its loop open to the end of the process
        shutdown_event_loop_in_daemon(trainer.async_loop_thread, trainer.async_loop)
        trainer.async_loop.close()


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning")  # TRL's own
def test_trl_leaves_it_out_or_the_run_ends(url: str, tiny_checkpoint: Path, tmp_path: Path) -> None:
    """The judge alone: its advantage is 0, and the others' are those of their own group of three. Beside another function TRL
    would pay it 0, the best reward of its group: the judge raises."""
    advantages = trl_advantages(tiny_checkpoint, tmp_path, [judge_reward(url)])
    assert advantages[2] == 0
    assert advantages[1] == advantages[3] > 0 > advantages[0]
    assert sum(advantages) == pytest.approx(0, abs=1e-3)
    with pytest.raises(EndpointError, match="would count each as 0 next to its other reward functions"):
        trl_advantages(tiny_checkpoint, tmp_path, [judge_reward(url), same_format])


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning")  # TRL's own
def test_trl_gives_it_the_mean_of_its_group_where_it_normalizes_first(url: str, tiny_checkpoint: Path, tmp_path: Path) -> None:
    """Each function is normalized within its group, without what is missing, and then summed: None moves nothing, and a better
    format is paid all the same."""

    def third_is_best(completions: list[Any], **columns: Any) -> list[float]:
        return [0.0, 0.0, 1.0, 0.0]

    option = {"multi_objective_aggregation": "normalize_then_sum"}
    advantages = trl_advantages(tiny_checkpoint, tmp_path, [judge_reward(url), same_format], **option)
    assert advantages[2] == pytest.approx(0, abs=1e-3)
    assert advantages[1] == advantages[3] > 0 > advantages[0]
    assert trl_advantages(tiny_checkpoint, tmp_path, [judge_reward(url), third_is_best], **option)[2] > 1


def test_easyr1_has_an_anchor_for_one_that_comes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its validation has one response a prompt: without an anchor the error says what to do, and nothing is sent."""
    with running(app_of(handler)) as url:
        monkeypatch.setenv("REWARDLAB_URL", url)
        truths = [{"question": f"{QUESTION} {n}", "anchor": "I say 2."} for n in range(3)]
        batch = [{"response": a, "ground_truth": json.dumps(t)} for a, t in zip(ANSWERS, truths, strict=True)]
        assert easyr1.compute_score(batch) == [{"overall": -1}, {"overall": 1}, {"overall": 0}]
        group = [{"response": a, "ground_truth": json.dumps(truths[0] | {"anchor": "I say 9."})} for a in ANSWERS]
        assert easyr1.compute_score(group) == [{"overall": -1}, {"overall": 1}, {"overall": 0}]
    alone = [{"response": "a", "ground_truth": json.dumps({"question": QUESTION})}]
    with pytest.raises(DataError, match=r"1 of 4 responses .*\"anchor\".*val_override_config\.n.*val_freq=-1"):
        easyr1.compute_score([*alone, *group])


@pytest.mark.parametrize("fields", [{"media": "upload:abc"}, {"media": [1]}, {"question": 1}, {"anchor": ["a"]}])
def test_easyr1_names_the_field_that_is_wrong(fields: dict[str, Any]) -> None:
    truth = json.dumps({"question": QUESTION} | fields)
    with pytest.raises(DataError, match=f"its {next(iter(fields))} is"):
        easyr1.compute_score([{"response": a, "ground_truth": truth} for a in ANSWERS])


def test_one_response_alone_is_counted(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is sent for it, and that is in the log."""
    assert asyncio.run(judge_reward(url)([QUESTION], ["a"])) == [None]
    assert "cannot be compared" in caplog.text
