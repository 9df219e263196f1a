"""Rows are read when their turn comes, asked as judges are asked, and each picture is decoded once."""

from __future__ import annotations

import io
import json
import pickle
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from tokenizers import AddedToken
from trl import SFTConfig as TRLSFTConfig
from trl.data_utils import prepare_multimodal_messages

from rewardlab.config import RLConfig, SFTConfig
from rewardlab.data.images import decode_image
from rewardlab.data.pair_table import PairTable
from rewardlab.data.pairs import write_parquet
from rewardlab.errors import MediaError
from rewardlab.models.families import join_images
from rewardlab.models.loading import load_processor
from rewardlab.prompts import build_messages, load_template
from rewardlab.samplers.hf import HFSampler, special_tokens
from rewardlab.training.rl import build_trainer, rl_rows
from rewardlab.training.run import folder, preflight
from rewardlab.training.run import rows as row_module
from rewardlab.training.run.folder import common_arguments
from rewardlab.training.run.preflight import TokenCounter
from rewardlab.training.run.rows import PromptReader, PromptRows, SFTDialogue, dialogue_dataset
from rewardlab.training.sft import ResumableSFTTrainer, sft_dialogues, train_sft
from rewardlab.types import BOTH_ORDERS, IMAGE_MARK, Order, PreferencePair
from tests.support.configs import short_rl_config
from tests.support.images import torn

TEMPLATES = ("plain", "r1_reward")


def picture(seed: int, side: int = 60) -> bytes:
    buffer = io.BytesIO()
    Image.frombytes("RGB", (side, side), random.Random(seed).randbytes(3 * side * side)).save(buffer, format="PNG")
    return buffer.getvalue()


def interleaved() -> list[PreferencePair]:
    """Images before the question, at two marks within it, within both responses, and none; a text with special tokens."""
    pair = PreferencePair(
        "ahead", "what is it?", ("a cat", "a dog"), 0, images=(picture(1),), judgment="<think>x</think><answer>1</answer>"
    )
    return [
        pair,
        replace(pair, pair_id="within", question=f"is {IMAGE_MARK} like {IMAGE_MARK}?", images=(picture(2), picture(3))),
        replace(
            pair,
            pair_id="responses",
            images=(picture(6),),
            responses=(f"Here: {IMAGE_MARK}", f"{IMAGE_MARK} this one"),
            response_images=((picture(4),), (picture(5),)),
        ),
        replace(pair, pair_id="none", images=()),
        replace(pair, pair_id="special", question="<|image_pad|> <start_of_image> <|im_end|> [FIG] what?"),
    ]


@pytest.mark.parametrize("name", ["qwen2_5_vl", "qwen3_vl", "gemma3"])
@pytest.mark.parametrize("template_name", TEMPLATES)
def test_training_prompts_are_the_judges(
    name: str, template_name: str, checkpoint_of: Callable[[str], Path], tmp_path: Path
) -> None:
    """Token for token and pixel for pixel in SFT, RL and judging, wherever images stand."""
    template = load_template(template_name)
    sampler = HFSampler.load(checkpoint_of(name), device="cpu")
    sampler.processor.tokenizer.add_tokens([AddedToken("[FIG]", special=True)])  # of this tokenizer alone
    specials = special_tokens(sampler.processor.tokenizer)
    config = short_rl_config(checkpoint_of(name), rollout_batch_size=2, batch_size=2, micro_batch_size=2, group_size=1)
    for pair in interleaved():
        rows = rl_rows([pair], template, both_orders=True, specials=specials)
        rl = build_trainer(rows, config, sampler.model, sampler.processor, template, tmp_path, reward=_no_reward)
        for row, order in zip(rows, BOTH_ORDERS, strict=True):
            expected = sampler.encode([build_messages(pair, order=order, template=template)])
            ids, _, fields = rl._tokenize_prompts([prepare_multimodal_messages(row["prompt"], images=row["images"])])
            assert list(ids[0]) == expected["input_ids"][0].tolist()
            pixels = join_images(fields.get("image_rows", [])).get("pixel_values")
            assert (pixels is not None) == bool(row["images"])
            assert pixels is None or pixels.equal(expected["pixel_values"])
        sampler.processor.tokenizer.padding_side = "right"
        sft = ResumableSFTTrainer(
            model=sampler.model,
            args=_sft_arguments(checkpoint_of(name), tmp_path),
            train_dataset=dialogue_dataset(PromptReader([pair], template, specials), sft_dialogues([pair], template)),
            processing_class=sampler.processor,
        )
        batch = sft.data_collator([sft.train_dataset[0]])
        sampler.processor.tokenizer.padding_side = "left"
        expected = sampler.encode([build_messages(pair, order=pair.order, template=template)])
        width = expected["input_ids"].shape[1]
        assert batch["input_ids"][0, :width].tolist() == expected["input_ids"][0].tolist()
        if pair.images or any(pair.response_images):
            assert batch["pixel_values"].equal(expected["pixel_values"])


def _no_reward(*args: Any) -> Any:
    raise AssertionError


_no_reward.__name__ = "none"


def _sft_arguments(checkpoint: Path, out: Path) -> Any:
    config = SFTConfig(model=str(checkpoint), batch_size=1, micro_batch_size=1)
    return TRLSFTConfig(max_length=None, **common_arguments(config, out))


def test_each_picture_is_decoded_once_for_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many rollouts show it, and in both orders."""
    decoded: Counter[bytes] = Counter()
    monkeypatch.setattr(
        row_module, "decode_image", lambda data, where: decoded.update([data]) or decode_image(data, where=where)
    )
    rows = rl_rows(interleaved()[:3], load_template("plain"), both_orders=True, threads=3)
    read = rows.read([row for row in rows.dataset for _ in range(8)])
    assert [row["pair_id"] for row in read] == [name for name in ("ahead", "within", "responses") for _ in range(16)]
    assert set(decoded.values()) == {1}
    assert len(decoded) == 6  # of "responses", its own and the one of the question


def test_sets_on_disk_train_as_those_in_memory(tagged: list[PreferencePair], tiny_checkpoint: Path, tmp_path: Path) -> None:
    """The same metrics, and the pairs too long for it left out alike."""
    pairs = [replace(pair, judgment=f"<think>{pair.pair_id}</think><answer>1</answer>") for pair in tagged[:12]]
    pairs[3] = replace(pairs[3], question="long " * 400)
    write_parquet(pairs, tmp_path / "pairs.parquet")
    config = SFTConfig(
        model=str(tiny_checkpoint), template="plain", batch_size=4, micro_batch_size=2, max_tokens=300, max_steps=2
    )
    logged = []
    for name, data in (("memory", pairs), ("disk", PairTable(tmp_path / "pairs.parquet"))):
        train_sft(data, config, tmp_path / name)
        assert "long " not in (tmp_path / name / "too_long.jsonl").read_text()
        logged.append([_numbers(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()])
    assert logged[0] == logged[1]


def _numbers(line: str) -> dict[str, Any]:
    clocks = ("time", "second", "runtime", "flos")
    return {name: value for name, value in json.loads(line).items() if not any(clock in name for clock in clocks)}


def test_a_picture_that_breaks_while_training_is_one_sentence(
    tagged: list[PreferencePair], tiny_checkpoint: Path, tmp_path: Path
) -> None:
    """Also where a worker process met it."""
    pairs = [replace(pair, judgment="<answer>1</answer>", images=(torn(picture(1)),)) for pair in tagged[:8]]
    with pytest.raises(MediaError, match="not a readable image") as caught:
        train_sft(pairs, SFTConfig(model=str(tiny_checkpoint), template="plain", batch_size=4), tmp_path / "run")
    assert "Traceback" not in str(caught.value)


def test_counts_come_from_bounds_where_they_can(
    tiny_checkpoint: Path, tagged: list[PreferencePair], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No text is tokenized where bytes show that it fits; no pair is read from disk."""
    asked: list[int] = []
    texts = TokenCounter.texts
    monkeypatch.setattr(TokenCounter, "texts", lambda self, *args: asked.append(len(args[0])) or texts(self, *args))
    config = RLConfig(model=str(tiny_checkpoint), template="plain")
    template = load_template("plain")
    loose = config.model_copy(update={"max_tokens": 100_000})
    assert len(preflight.drop_too_long(tagged, loose, template, Path("/nowhere"), room=10)) == len(tagged)
    assert asked == []


def test_a_pair_is_as_long_as_the_longer_of_its_orders(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """Where words meet, one order may be more tokens than the other, and it is trained on too."""
    (tmp_path / "template.txt").write_text("{question} {first}{second}")
    template, counter = load_template(f"bare:{tmp_path / 'template.txt'}"), TokenCounter(load_processor(str(tiny_checkpoint)))
    pair = PreferencePair("long", "q", ("re", "d"), 0)
    given, swapped = (counter.sample(pair, order, template).total for order in BOTH_ORDERS)
    assert given < swapped  # "red" is one token, "dre" is not
    other = replace(pair, pair_id="short", question="", responses=("a", "a"))
    config = SFTConfig(model=str(tiny_checkpoint), template="plain", max_tokens=given)
    kept = preflight.drop_too_long([pair, other], config, template, tmp_path)
    assert [one.pair_id for one in kept] == ["short"]
    assert json.loads((tmp_path / "too_long.jsonl").read_text())["total"] == swapped


def test_workers_need_shared_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where a container has too little, the trainer reads by itself, and says how to mend it."""
    config = SFTConfig(model="none", data_workers=1)
    assert folder.supervised_arguments(config, tmp_path)["dataloader_num_workers"] == 1
    monkeypatch.setattr(folder, "MIN_SHARED_MEMORY", 1 << 60)
    assert folder.supervised_arguments(config, tmp_path)["dataloader_num_workers"] == 0
    assert "--shm-size" in capsys.readouterr().err


def test_rows_can_be_sent_to_spawned_processes(demo_pairs: Any) -> None:
    """On a system that spawns processes, a loader's own are sent the dataset: pickled, it reads the same."""
    reader = PromptReader(demo_pairs[0][:2], load_template("plain"))
    dialogues = dialogue_dataset(reader, [SFTDialogue(0, Order.SWAPPED, "x", ({"role": "user", "content": "y"},))])
    for rows in (dialogues, PromptRows(reader, [(1, Order.GIVEN)]).whole_dataset()):
        assert pickle.loads(pickle.dumps(rows))[0].keys() == rows[0].keys()
