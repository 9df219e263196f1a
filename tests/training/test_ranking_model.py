"""One backbone that ranks and explains: its losses are their formulas, it sees, learns, resumes, and judges by its scores."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import rewardlab
from rewardlab.config import RMConfig
from rewardlab.errors import CheckpointError, ConfigError, DataError
from rewardlab.judging.engines import open_generative_judge
from rewardlab.models.loading import load_model, load_processor
from rewardlab.models.value_model import HEAD, RankingModel
from rewardlab.prompts import build_messages, load_template
from rewardlab.rl.objectives import bradley_terry_loss, ranking_loss
from rewardlab.samplers.hf import encode
from rewardlab.training.reward_model import (
    RankedCollator,
    RankedRows,
    RankingTrainer,
    best_first,
    build_ranking_trainer,
    train_reward_model,
)
from rewardlab.types import BOTH_ORDERS, Choice, Order, PreferencePair, choice_of
from rewardlab.verdicts.parse import format_verdict
from tests.support.configs import short_config
from tests.support.killing import killed_after_a_save

config_for = partial(short_config, RMConfig, template="plain")
PLAIN = load_template("plain")


@pytest.fixture(scope="module")
def pairs(demo_pairs: Any) -> list[PreferencePair]:
    """Sixteen pairs with judgments, response 0 preferred in every other one."""
    made = [replace(pair, preferred=n % 2, order=BOTH_ORDERS[n // 2 % 2]) for n, pair in enumerate(demo_pairs[0][:16])]
    return [replace(pair, judgment=format_verdict(choice_of(int(pair.preferred or 0), pair.order), "so")) for pair in made]


@pytest.fixture
def trainer(tiny_checkpoint: Path, pairs: list[PreferencePair], tmp_path: Path) -> RankingTrainer:
    """On a head that says something."""
    processor = load_processor(str(tiny_checkpoint))
    made = build_ranking_trainer(pairs, config_for(tiny_checkpoint, explain_weight=0.5), processor, tmp_path)
    made.model.head.weight.data.normal_(generator=torch.Generator().manual_seed(0))
    return made


def test_the_ranking_loss() -> None:
    """Over every two of a list the Bradley-Terry loss; of two responses that alone."""
    scores = torch.tensor([[0.3, -1.0, 2.0, 9.0]])
    expected = [math.log(1 + math.exp(low - high)) for high, low in ((2.0, 0.3), (2.0, -1.0), (0.3, -1.0))]
    assert ranking_loss(scores, [[2, 0, 1]]).item() == pytest.approx(sum(expected) / 3)
    two = torch.tensor([[0.5, -0.5], [1.0, 4.0]])
    assert ranking_loss(two, [[0, 1], [1, 0]]).item() == pytest.approx(
        bradley_terry_loss(torch.tensor([0.5, 4.0]), torch.tensor([-0.5, 1.0])).item()
    )


def test_the_losses_are_the_formulas(trainer: RankingTrainer, tiny_checkpoint: Path, pairs: list[PreferencePair]) -> None:
    """Worked row by row, unpadded: the scores after the prompt alone, and the judgment's tokens by the whole model's logits,
    in the order that the judgment is of."""
    rows = [(pair, order) for pair in pairs[:3] for order in BOTH_ORDERS]
    model, processor = trainer.model.eval(), load_processor(str(tiny_checkpoint))
    whole, _ = load_model(str(tiny_checkpoint), device="cpu")
    ranking, explaining = [], []
    with torch.no_grad():
        for pair, order in rows:
            inputs = encode(processor, [build_messages(pair, order=order, template=PLAIN)])
            scores_K = model(**inputs)[0][0]
            better = choice_of(int(pair.preferred or 0), order) is Choice.FIRST
            margin = (scores_K[0] - scores_K[1]).item() * (1 if better else -1)
            ranking.append(math.log(1 + math.exp(-margin)))
            explaining.append(0.0)
            if order is pair.order:
                ids = [*processor.tokenizer.encode(pair.judgment, add_special_tokens=False), processor.tokenizer.eos_token_id]
                both = encode(processor, [build_messages(pair, order=order, template=PLAIN)], [pair.judgment])
                logits = whole(**both).logits[0].log_softmax(-1)
                start = both["input_ids"].shape[1] - (len(ids) - 1)
                explaining[-1] = -sum(logits[start - 1 + n, token].item() for n, token in enumerate(ids)) / len(ids)
        assert len({round(loss, 4) for loss in ranking}) == 6
        batch = trainer.data_collator(rows)
        batch.pop("num_images")
        expected = sum(ranking) / 6 + 0.5 * sum(explaining) / 6
        assert trainer.compute_loss(model, batch).item() == pytest.approx(expected, abs=1e-4)


def test_rows_are_both_orders(pairs: list[PreferencePair]) -> None:
    rows = RankedRows(pairs[:2])
    assert [(pair.pair_id, order) for pair, order in rows] == [(p.pair_id, order) for p in pairs[:2] for order in BOTH_ORDERS]
    listed = replace(pairs[1], others=("c", "d"))
    for order in BOTH_ORDERS:
        texts = [listed.listed[n][0] for n in listed.places(order)]
        ranked = [texts[place] for place in best_first(listed, order)]
        assert ranked == [listed.responses[1], listed.responses[0], "c", "d"]


def test_another_image_changes_the_scores(trainer: RankingTrainer, pairs: list[PreferencePair]) -> None:
    collate = RankedCollator(trainer.processing_class or trainer.data_collator._processor, PLAIN, explains=False)
    other = replace(pairs[0], images=pairs[3].images)
    batch = collate([(pairs[0], Order.GIVEN), (other, Order.GIVEN)])
    inputs = {name: batch[name] for name in batch if name not in ("labels", "reads", "ranks", "num_images")}
    with torch.no_grad():
        scores_NK = trainer.model.eval()(**inputs)[0]
    assert (scores_NK[0] - scores_NK[1]).abs().max() > 1e-6
    assert (batch["labels"] == -100).all()


def test_a_run(tiny_checkpoint: Path, pairs: list[PreferencePair], tmp_path: Path) -> None:
    """Its folder answers at once as head:, and explains as hf:; its margins are the differences of its scores."""
    config = config_for(tiny_checkpoint, explain_weight=1.0)
    final = train_reward_model(pairs, config, tmp_path / "rm")
    judge = rewardlab.open_judge(f"head:{final}")
    pair = pairs[0]
    result = judge.compare(pair.question, pair.responses, images=pair.images, votes=1)
    model, processor = RankingModel.for_scoring(final, "cpu"), load_processor(str(final))
    with torch.no_grad():
        scores = [
            model(**encode(processor, [build_messages(pair, order=order, template=PLAIN)]))[0][0] for order in BOTH_ORDERS
        ]
    margins = [float(score[0] - score[1]) for score in scores]
    assert [vote.margin for vote in result.judgment.votes] == pytest.approx(margins, abs=1e-5)
    assert result.share_0 == pytest.approx(1 / (1 + math.exp(-(margins[0] - margins[1]) / 2)), abs=1e-5)
    assert open_generative_judge(f"hf:{final}").template.name == "plain"
    assert (final / HEAD).exists()


@pytest.mark.nightly
def test_a_killed_run_ends_alike(tiny_checkpoint: Path, pairs: list[PreferencePair], tmp_path: Path) -> None:
    """Resumed from its checkpoint, with the weights of a run that was not interrupted: those of the language model and the
    head."""
    config = config_for(tiny_checkpoint, explain_weight=1.0)
    whole = train_reward_model(pairs, config, tmp_path / "whole")
    with killed_after_a_save(RankingTrainer):
        train_reward_model(pairs, config, tmp_path / "parts")
    parts = train_reward_model(pairs, config, tmp_path / "parts")
    a, b, fresh = (RankingModel.from_pretrained(str(folder)).state_dict() for folder in (whole, parts, tiny_checkpoint))
    for name, weight in a.items():
        torch.testing.assert_close(weight, b[name], atol=1e-6, rtol=1e-5, msg=name)
        assert not torch.equal(weight, fresh[name]), name


def test_gradient_checkpointing_changes_no_gradient(tiny_checkpoint: Path, pairs: list[PreferencePair], tmp_path: Path) -> None:
    grads = []
    for checkpointing in (False, True):
        config = config_for(tiny_checkpoint, gradient_checkpointing=checkpointing, explain_weight=1.0)
        made = build_ranking_trainer(pairs, config, load_processor(str(tiny_checkpoint)), tmp_path)
        made.model.head.weight.data.normal_(generator=torch.Generator().manual_seed(0))
        batch = made.data_collator([(pair, pair.order) for pair in pairs[:3]])
        batch.pop("num_images")
        made.compute_loss(made.model.train(), batch).backward()
        grads.append({name: p.grad for name, p in made.model.named_parameters()})
    for name, grad in grads[0].items():
        assert grad is not None, name
        torch.testing.assert_close(grad, grads[1][name], atol=1e-5, rtol=1e-4, msg=name)


def test_lists_in_one_pass(tiny_checkpoint: Path, pairs: list[PreferencePair], tmp_path: Path) -> None:
    """All responses of a list are in one prompt for each order, and each has a reward."""
    lists = [replace(pair, others=("It is another one.", "Nothing."), judgment="") for pair in pairs]
    final = train_reward_model(lists, config_for(tiny_checkpoint, template="ordering", num_listed=4), tmp_path / "rm")
    judge = rewardlab.open_judge(f"head:{final}")
    group = [text for text, _ in lists[0].listed]
    rewards = judge.rewards(lists[0].question, group, images=lists[0].images, strategy="whole")
    assert len(rewards) == 4
    assert all(reward is not None for reward in rewards)
    assert judge.rewards(lists[0].question, [*group, "A fifth."], images=lists[0].images, strategy="whole") == [None] * 5
    with pytest.raises(DataError, match="4 responses, more than num_listed 3"):
        train_reward_model(lists, config_for(tiny_checkpoint, template="ordering", num_listed=3), tmp_path / "few")


def test_a_scalar_head_judges_too(tiny_checkpoint: Path, pairs: list[PreferencePair], tmp_path: Path) -> None:
    final = train_reward_model(pairs, config_for(tiny_checkpoint, template="single"), tmp_path / "rm")
    judge = rewardlab.open_judge(f"head:{final}")
    result = judge.compare(pairs[0].question, pairs[0].responses, images=pairs[0].images)
    assert result.swap_consistent is True  # it sees one response at a time
    rewards = judge.rewards(pairs[0].question, [*pairs[0].responses, "x"], images=pairs[0].images, strategy="whole")
    assert all(reward is not None for reward in rewards)


def test_what_is_refused(tiny_checkpoint: Path, pairs: list[PreferencePair], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="explain_weight: template single shows one response alone"):
        train_reward_model(pairs, config_for(tiny_checkpoint, template="single", explain_weight=1.0), tmp_path / "a")
    with pytest.raises(ConfigError, match="a reward model takes one"):
        train_reward_model(pairs, config_for(tiny_checkpoint, template="checklist_turns"), tmp_path / "b")
    with pytest.raises(CheckpointError, match="not a reward model"):
        open_generative_judge(f"head:{tiny_checkpoint}")
    with pytest.raises(ConfigError, match="a head is read by its scores"):
        open_generative_judge(f"prob:head:{tiny_checkpoint}")
    with pytest.raises(ConfigError, match="temperature"):
        open_generative_judge(f"head:{tiny_checkpoint}", temperature=0.5)
