"""The trainer's own decoder: a prompt is read once for all its rollouts, and what is drawn does not depend on it."""

from __future__ import annotations

import json
import math
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rewardlab.models.families import prompt_batch, select_fields, vision_language_module, vision_token_ids
from rewardlab.models.loading import load_model
from rewardlab.prompts import load_template
from rewardlab.samplers.base import SamplingParams
from rewardlab.samplers.decode import draw, draw_uniforms
from rewardlab.training.policy_gradient.rollouts.sampling import Prompts, decode_rollouts, plan_slices
from rewardlab.training.policy_gradient.trainer import PolicyTrainer
from rewardlab.training.rl import build_trainer, rl_rows
from tests.support import scaled_runs
from tests.support.configs import short_rl_config
from tests.support.launching import same, train_on
from tests.support.rewards import TokenReward

LENGTH, SEED = 8, 3


@pytest.fixture(scope="module")
def trainer(demo_pairs: Any, tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> PolicyTrainer:
    """Of four pairs in both orders, the third without its image."""
    pairs = [replace(pair, attempts="2", images=() if n == 2 else pair.images) for n, pair in enumerate(demo_pairs[0][:4])]
    config = short_rl_config(tiny_checkpoint, group_size=8)
    model, processor = load_model(config.model, device="cpu")
    rows, template = rl_rows(pairs, load_template("plain"), both_orders=True), load_template("plain")
    reward = TokenReward(lambda ids, n: float(n % 2), correct=lambda ids, n: float(n % 2))
    out = tmp_path_factory.mktemp("decoder")
    return build_trainer(rows, config, model, processor, template, out, reward=reward)


@contextmanager
def readings(model: Any) -> Iterator[Counter[str]]:
    """Count the images that go through the vision tower, and the tokens of prompts through the language model."""
    counts: Counter[str] = Counter()
    inner = vision_language_module(model)

    def tower(module: Any, args: Any, kwargs: Any) -> None:
        counts["images"] += len(kwargs["grid_thw"] if "grid_thw" in kwargs else args[1])

    def language(module: Any, args: Any, kwargs: Any) -> None:
        rows, width = kwargs["inputs_embeds"].shape[:2]
        counts["tokens"] += rows * width * (width > 1)

    hooks = [
        inner.visual.register_forward_pre_hook(tower, with_kwargs=True),
        inner.language_model.register_forward_pre_hook(language, with_kwargs=True),
    ]
    yield counts
    for hook in hooks:
        hook.remove()


def prompts_of(trainer: PolicyTrainer, rows: list[int]) -> Prompts:
    """The prompts of some rows of the data as a strategy hands them to the decoder."""
    seen: list[Prompts] = []
    with pytest.MonkeyPatch.context() as patch:

        def keep(ids: Any, images: Any, fields: Any, places: Any) -> Any:
            seen.append(Prompts(ids, images, fields, trainer._tokenizer.pad_token_id))
            return [[trainer.eos_token_ids[0]] for _ in ids], None

        patch.setattr(trainer, "_sample_decoder", keep)
        trainer.sample_and_score([trainer.train_dataset[row] for row in rows])
    return seen[0]


def drawn(trainer: PolicyTrainer, prompts: Prompts, batch_size: int | None = None) -> Any:
    uniforms_NT = draw_uniforms((SEED,), range(len(prompts.ids)), LENGTH)
    params = SamplingParams(1, 1.0, 1.0, LENGTH)
    ends = frozenset(trainer.eos_token_ids)
    return decode_rollouts(trainer.model, prompts, uniforms_NT, params, ends=ends, batch_size=batch_size)


def alone(trainer: PolicyTrainer, prompts: Prompts) -> Any:
    """The same rollouts, each prompt read by itself and drawn once."""
    tokens, logprobs = [], []
    for row in range(len(prompts.ids)):
        draws = draw(
            trainer.model,
            prompt_batch(prompts.ids, prompts.fields, [row], prompts.pad),
            num_draws=1,
            max_tokens=LENGTH,
            temperature=1.0,
            top_p=1.0,
            ends=frozenset(trainer.eos_token_ids),
            suppress=vision_token_ids(trainer.model.config),
            uniforms=draw_uniforms((SEED,), [row], LENGTH),
        )
        tokens += draws.tokens
        logprobs += draws.logprobs
    return tokens, logprobs


def assert_equal(one: Any, other: Any) -> None:
    assert one[0] == other[0]
    assert len({tuple(row) for row in one[0]}) > 1
    for mine, theirs in zip(one[1], other[1], strict=True):
        torch.testing.assert_close(torch.tensor(mine), torch.tensor(theirs), atol=1e-4, rtol=0)


def test_no_pixels_of_the_last_batch_are_held_while_the_next_is_made(trainer: PolicyTrainer) -> None:
    """The micro-batches of one rollout batch are gone, and so is what was cut from them, when the next is sampled. The 16
    rollouts of both orders of a pair hold the pixels of its image once."""
    rows = [trainer.train_dataset[row] for row in (0, 1) for _ in range(8)]
    held: list[weakref.ref[torch.Tensor]] = []
    alive: list[list[bool]] = []
    sample = trainer._sample_decoder

    def look(*args: Any) -> Any:
        alive.append([pixels() is not None for pixels in held])
        return sample(*args)

    trainer.model.train()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer, "_sample_decoder", look)
        for _ in range(2):
            trainer._step = 0
            inputs = trainer._prepare_inputs(rows)
            assert trainer._buffered_inputs is not None
            rows_of = [batch["image_rows"] for batch in trainer._buffered_inputs]
            held = [weakref.ref(images["pixel_values"]) for of_batch in rows_of for images in of_batch]
            assert inputs["image_rows"] is rows_of[0]
            storages = {images["pixel_values"].untyped_storage() for of_batch in rows_of for images in of_batch}
            assert len({storage.data_ptr() for storage in storages}) == 1
            assert min(storage.nbytes() for storage in storages) == inputs["image_rows"][0]["pixel_values"].nbytes
            del storages
            del rows_of
            del inputs
    trainer.model.eval()
    assert alive[0] == []
    assert alive[1]
    assert not any(alive[1])


def test_a_picture_is_processed_once_in_a_rollout_batch(trainer: PolicyTrainer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sampled from and trained on, in 4 rollouts of both orders of three pairs, one of them without a picture: 2 pictures, not
    32. The next batch begins anew, and nothing of a batch is kept after it."""
    rows = [trainer.train_dataset[row] for row in range(6) for _ in range(4)]
    processor, shown = trainer.processing_class.image_processor, list[int]()
    preprocess = type(processor).preprocess

    def counted(images: Any, *args: Any, **kwargs: Any) -> Any:
        shown.append(len(images))
        return preprocess(processor, images, *args, **kwargs)

    monkeypatch.setattr(processor, "preprocess", counted, raising=False)
    trainer.model.train()
    for batch in (1, 2):
        trainer._step, trainer._buffered_inputs = 0, None
        trainer._prepare_inputs(rows)
        assert sum(shown) == 2 * batch
        assert not trainer._images._fields
    trainer.model.eval()


def test_a_prompt_is_read_once_for_all_its_rollouts(trainer: PolicyTrainer) -> None:
    """Eight rollouts of each order of a pair: one image, not sixteen; of tokens not more than both orders have, where the
    orders share what comes before the responses."""
    rows = [trainer.train_dataset[row] for row in (0, 1) for _ in range(8)]
    prompts = prompts_of(trainer, [0, 1])
    with readings(trainer.model) as counts:
        rollouts = trainer.sample_and_score(rows)
    assert [rollout.prompt_ids for rollout in rollouts] == [ids for ids in prompts.ids for _ in range(8)]
    assert counts["images"] == 1
    assert max(map(len, prompts.ids)) < counts["tokens"] < sum(map(len, prompts.ids))
    with readings(trainer.model) as counts:
        alone(trainer, prompts_of(trainer, [0, 1] * 8))
    assert counts["images"] == 16


@pytest.mark.parametrize("batch_size", [1, 3, 5, 8, None])
def test_rollouts_do_not_depend_on_what_is_read_together(trainer: PolicyTrainer, batch_size: int | None) -> None:
    """Groups of 1 to 4 rollouts out of order, as several processes may hold parts of groups, with and without an image."""
    prompts = prompts_of(trainer, [0, 0, 1, 4, 4, 4, 2, 0, 5, 6, 7, 7, 0])
    assert_equal(drawn(trainer, prompts, batch_size), alone(trainer, prompts))


@pytest.mark.parametrize("batch_size", [4, None])
def test_rollouts_that_are_continued(trainer: PolicyTrainer, batch_size: int | None) -> None:
    """As turns of a dialogue and windows continue them: equal prompts with other tokens after them, some with none."""
    begun = prompts_of(trainer, [0, 0, 1, 4, 0, 5, 0])
    longer = [[], [7, 8, 9], [5], [7, 8, 9], [7, 8, 9], [], [11]]
    ids = [prompt + tokens for prompt, tokens in zip(begun.ids, longer, strict=True)]
    fields = select_fields(begun.fields, range(len(ids)), list(map(len, ids)))
    prompts = replace(begun, ids=ids, fields=fields)
    assert_equal(drawn(trainer, prompts, batch_size), alone(trainer, prompts))


def test_images_are_told_apart_by_their_pixels(trainer: PolicyTrainer) -> None:
    """Equal text under another image is another prompt."""
    prompts = prompts_of(trainer, [0, 0, 2])
    prompts = replace(prompts, ids=[prompts.ids[0]] * 3)
    assert prompts.numbers() == ([0, 0, 1], [0, 0, 1])
    repeated = prompts_of(trainer, [4, 5, 0, 4])
    assert repeated.numbers() == ([0, 1, 2, 0], [0, 0, 1, 0])


@pytest.mark.parametrize(
    ("prompts", "images", "size", "expected"),
    [
        ([0, 0, 1, 1], [0, 0, 0, 0], 4, [[0, 1, 2, 3]]),
        ([0, 1, 0, 1, 2, 3, 2, 3], [0, 0, 0, 0, 1, 1, 1, 1], 4, [[0, 2, 1, 3], [4, 6, 5, 7]]),  # both orders of a pair
        ([0, 0, 0, 1, 1, 1], [0, 0, 0, 0, 0, 0], 4, [[0, 1, 2], [3, 4, 5]]),  # no room for both orders
        ([0, 0, 0, 1, 1, 1, 2, 2], [0, 0, 0, 1, 1, 1, 2, 2], 4, [[0, 1, 2, 3], [4, 5, 6, 7]]),  # whole groups: three slices
        ([0, 0, 0, 1, 1, 1, 2, 2], [0, 0, 0, 1, 1, 1, 2, 2], 5, [[0, 1, 2, 6, 7], [3, 4, 5]]),
        ([0] * 6, [0] * 6, 2, [[0, 1], [2, 3], [4, 5]]),
    ],
)
def test_slices(prompts: list[int], images: list[int], size: int, expected: list[list[int]]) -> None:
    assert plan_slices(prompts, images, size) == expected


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2)), min_size=1, max_size=40), st.integers(1, 50))
def test_slices_hold_every_row_once(drawn_of: list[tuple[int, int]], size: int) -> None:
    """No more slices than there must be, none too large; as many reads of a prompt as slices cut it, at most one more each."""
    prompts, images = [3 * prompt + image for prompt, image in drawn_of], [image for _, image in drawn_of]
    slices = plan_slices(prompts, images, size)
    assert sorted(row for rows in slices for row in rows) == list(range(len(prompts)))
    assert len(slices) == math.ceil(len(prompts) / size)
    assert max(map(len, slices)) <= size
    reads = sum(len({prompts[row] for row in rows}) for rows in slices)
    assert reads <= len(set(prompts)) + len(slices) - 1


@pytest.mark.nightly
def test_groups_and_dialogues_split_over_processes(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """Groups of four, one and a half of them a process; dialogues of which one process continues three, the other one; looks
    of one process alone. Each run is that of one process, tokens and all."""
    kinds = ("split", "verified", "looking")
    for kind in kinds:
        scaled_runs.run("rl", tiny_checkpoint, tmp_path / f"{kind}_alone", **scaled_runs.CHANGES[f"rl+{kind}"])
    train_on(tiny_checkpoint, tmp_path, *(f"rl+{kind}:{kind}" for kind in kinds))
    for kind in kinds:
        same(tmp_path / f"{kind}_alone", tmp_path / kind)
    first = json.loads((tmp_path / "verified" / "metrics.jsonl").read_text().splitlines()[0])
    assert first["verify/revised_frac"] == 0.5
    assert json.loads((tmp_path / "looking" / "metrics.jsonl").read_text().splitlines()[0])["turns/mean"] == 1.5
