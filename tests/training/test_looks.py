"""Judgments that look again at a part of an image: as they are asked, learnt, rewarded and read."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from rewardlab.config import RLConfig, SFTConfig
from rewardlab.data.images import encode_png, part_of_pixels
from rewardlab.errors import ConfigError, DataError
from rewardlab.judging.engines import open_generative_judge
from rewardlab.judging.judge import GenerativeJudge, VoteRequest
from rewardlab.models.families import (
    IMAGE_ROWS,
    TOKEN_FIELDS,
    add_images,
    image_fields,
    image_fields_of_rows,
    join_images,
    patch_token_id,
    select_fields,
    with_image_rows,
)
from rewardlab.models.loading import load_processor
from rewardlab.prompts import load_template, reading_format
from rewardlab.rewards.judgment import terms_of
from rewardlab.samplers.hf import user_turn
from rewardlab.samplers.scripted import ScriptedSampler
from rewardlab.training.policy_gradient.rollouts.sampling import Samples, Sampling
from rewardlab.training.policy_gradient.rollouts.strategies import TurnRollouts
from rewardlab.training.rl import train_rl
from rewardlab.training.run.rows import PromptReader, dialogue_dataset
from rewardlab.training.sft import sft_dialogues, train_sft
from rewardlab.types import BOTH_ORDERS, Choice, Message, Order, PreferencePair, choice_of
from rewardlab.verdicts.turns import MAX_LOOKS, Look, LookTurns, read_look
from tests.support.configs import WITH_CRITIC, short_rl_config
from tests.support.families import family
from tests.support.openai_server import ChatServer, chat_server

LOOK = load_template("look")
WIDTH, HEIGHT = 200, 100
CORNERS = {(0, 0): "red", (50, 0): "green", (0, 50): "blue", (50, 50): "white"}  # left and top, in percent


def picture() -> bytes:
    image = Image.new("RGB", (WIDTH, HEIGHT))
    for (left, top), color in CORNERS.items():
        image.paste(color, (left * WIDTH // 100, top * HEIGHT // 100, WIDTH, HEIGHT))
    return encode_png(image)


def look_at(left: int, top: int) -> str:
    return str(Look(0, (left, top, left + 50, top + 50)))


def pair_of(number: int) -> PreferencePair:
    """A pair whose judgment looks at a corner and says its color; pairs with an odd number show the other order."""
    corner = (50, 0)
    order = Order.SWAPPED if number % 2 else Order.GIVEN
    right = choice_of(0, order)
    judgment = (
        f"<think>see{look_at(*corner)}it is {CORNERS[corner]}</think><answer>{1 if right is Choice.FIRST else 2}</answer>"
    )
    return PreferencePair(
        f"p{number}", f"Which color is at {corner[0]} {corner[1]}?", (CORNERS[corner], "black"), 0, images=(picture(),),
        judgment=judgment, order=order, attempts="2",
    )  # fmt: skip


PAIRS = [pair_of(number) for number in range(16)]


@pytest.mark.parametrize(
    ("turn", "look"),
    [
        ("a <look>25 0 50 25</look>", Look(0, (25, 0, 50, 25))),
        ("<look> 2 :0  0\n100 100 </look>\n", Look(1, (0, 0, 100, 100))),
        ("<think>a<look>25 0 50 25</look></think>", Look(0, (25, 0, 50, 25))),  # of an engine that parses reasoning
        ("<look>0 0 9 9</look><look>1 1 2 2</look>", None),  # stored, it would be two turns
        ("<look>25 0 50 25</look>.", None),
        ("<look>50 0 25 25</look>", None),
        ("<look>0 9 9 9</look>", None),
        ("<look>0 0 101 9</look>", None),
        ("<look>0: 0 0 9 9</look>", None),
        ("<look>0 0 9</look>", None),
        ("<look>0.5 0 9 9</look>", None),
        ("<look>٣ 0 9 9</look>", None),
        ("<look>0 0 9 9", None),
        ("", None),
    ],
)
def test_what_is_a_look(turn: str, look: Look | None) -> None:
    assert read_look(turn) == look
    assert look is None or read_look(str(look)) == look


@given(st.text(alphabet="<look>/ 0123456789:a", max_size=200) | st.text(max_size=50))
def test_a_judgment_is_the_one_of_its_turns(text: str) -> None:
    """Of any text: it is refused, or its turns are the text, and each but the last ends in a look."""
    turns = LookTurns("")
    try:
        parts = turns.split(text)
    except ValueError:
        return
    assert turns.join(parts) == text
    assert 1 <= len(parts) <= turns.most
    assert all(map(read_look, parts[:-1]))


@pytest.mark.parametrize("looks", ["<look>50 0 25 25</look>", "<look>0 0 9 9</look>" * 4, "<look>0 0 9 9</look>"])
def test_judgments_that_nobody_learns_from(looks: str) -> None:
    """A part without area, a fourth look, and nothing after a look are refused before training."""
    end = "" if looks == "<look>0 0 9 9</look>" else "</think><answer>1</answer>"
    with pytest.raises(DataError, match=r"p0: its judgment is none for template look: .* expected up to 3 looks"):
        sft_dialogues([replace(PAIRS[0], judgment=f"<think>{looks}{end}")], LOOK)


@given(
    st.integers(0, 99), st.integers(0, 99), st.integers(1, 100), st.integers(1, 100), st.integers(2, 3000), st.integers(2, 3000)
)
def test_a_part_can_be_shown(left: int, top: int, across: int, down: int, width: int, height: int) -> None:
    """It has what was asked for, lies within its image, and is neither too small nor too thin, unless the image is."""
    box = (left, top, min(100, left + across), min(100, top + down))
    a, b, c, d = Look(0, box).pixels(width, height)
    assert 0 <= a <= box[0] * width / 100 < box[2] * width / 100 <= c <= width
    assert 0 <= b <= box[1] * height / 100 < box[3] * height / 100 <= d <= height
    assert c - a >= min(28, width)
    assert d - b >= min(28, height)
    longer, shorter = max(c - a, d - b), min(c - a, d - b)
    assert longer / shorter <= max(22, width / height, height / width)


def colors(message: Message) -> list[tuple[tuple[int, int], Any]]:
    images = [Image.open(io.BytesIO(image)).convert("RGB") for image in message.images]
    return [(image.size, image.getpixel((0, 0))) for image in images]


def test_a_large_part_is_reduced() -> None:
    """Otherwise a small JPEG costs seconds and 100 MB at each look of each vote."""
    image = Image.new("RGB", (4000, 4000))
    whole = part_of_pixels(image, Look(0, (0, 0, 100, 100)).pixels)
    assert whole.size == (2000, 2000)
    assert part_of_pixels(image, Look(0, (0, 0, 100, 50)).pixels).size == (2829, 1415)
    assert part_of_pixels(image, Look(0, (0, 0, 50, 50)).pixels).size == (2000, 2000)


def test_the_part_is_shown_next() -> None:
    """A judge that goes on looking is shown three parts, of the right pixels; then, and for what is no look, it ends."""
    asked: list[tuple[Message, ...]] = []

    def answer(prompt: tuple[Message, ...], draw: int) -> str:
        asked.append(prompt)
        number = len(prompt) // 2
        return "<look>9 9 9 9</look>" if "odd" in prompt[0].text else f"{number}{look_at(*list(CORNERS)[number])}"

    judge = GenerativeJudge(ScriptedSampler(answer), LOOK).greedy()
    vote = judge.compare(replace(PAIRS[0], judgment="")).votes[0]
    assert vote.verdict.status == "no_verdict"
    assert vote.completion.text == "".join(f"{n}{look_at(*corner)}" for n, corner in enumerate(CORNERS))
    longest = max(asked, key=len)
    assert [message.role for message in longest] == ["user", *["assistant", "user"] * MAX_LOOKS]
    assert longest[-1].text == LOOK.followup
    size = (WIDTH // 2, HEIGHT // 2)
    assert [colors(message) for message in longest[2::2]] == [
        [(size, (255, 0, 0))], [(size, (0, 128, 0))], [(size, (0, 0, 255))]
    ]  # fmt: skip
    asked.clear()
    assert {vote.winner for vote in judge.compare(replace(PAIRS[0], question="An odd question")).votes} == {None}
    assert max(map(len, asked)) == 1


def test_equal_chats_are_draws_of_one_request() -> None:
    """Five votes, of which four look at the same part: an engine whose seed comes from the chat continues them differently. An
    equal pair in the same call is judged alike, and no vote depends on it."""
    calls: list[tuple[int, int]] = []

    class Sampler(ScriptedSampler):
        def sample(self, prompts: Any, params: Any) -> Any:
            calls.append((len(prompts), params.num_samples))
            return super().sample(prompts, params)

    def said(prompt: tuple[Message, ...], draw: int) -> str:
        return look_at(50 * (draw == 3), 0) if len(prompt) == 1 else f"<think>{draw}</think><answer>{1 + draw % 2}</answer>"

    judge = GenerativeJudge(Sampler(said), LOOK)
    one, other = judge.compare_many([PAIRS[0]] * 2, orders=[(Order.GIVEN,)] * 2, num_votes=5, seed=3)
    assert calls == [(2, 5), (2, 1), (2, 4)]
    assert one == other
    assert [vote.completion.text[-30:] for vote in one.votes] == [
        f"<think>{draw}</think><answer>{1 + draw % 2}</answer>"[-30:] for draw in (0, 1, 2, 0, 3)
    ]


def test_votes_come_one_by_one(tmp_path: Path) -> None:
    """Of an endpoint whose answers stream: each when its last turn is there, the same votes as in one call, and of one seed."""
    server = ChatServer(delay_s=0.01)
    server.verdict = lambda body: (  # type: ignore[method-assign]
        look_at(0, 0) if len(body["messages"]) < 5 else f"<think>{body['seed']}</think><answer>{1 + body['seed'] % 2}</answer>"
    )
    with chat_server(server) as url:
        judge = open_generative_judge(f"openai:m@{url}", template="look", max_tokens=32)
        whole = judge.compare_many(PAIRS[:1], orders=[BOTH_ORDERS], num_votes=6, seed=1)
        requests = [VoteRequest(PAIRS[0], order, draw, 1, 0) for order in BOTH_ORDERS for draw in range(6)]
        batches = list(judge.vote_each(requests))
    single = dict(answer for batch in batches for answer in batch)
    assert len(batches) > 1  # no vote waits for all others
    assert judge.is_metered
    assert [single[n] for n in range(12)] == [vote for judged in whole for vote in judged.votes]
    assert len({vote.completion.text for vote in single.values()}) == 12
    assert {len(body["messages"]) for body in server.bodies} == {1, 3, 5}
    assert {vote.completion.num_tokens for vote in single.values()} == {30}


def test_an_image_that_is_not_there_or_unreadable() -> None:
    """A look at a second image of one ends the judgment; at one that cannot be decoded it is an error, not an exception."""
    judge = GenerativeJudge(ScriptedSampler(lambda prompt, draw: "<look>2: 0 0 9 9</look>"), LOOK)
    assert {vote.verdict.status for vote in judge.compare(PAIRS[0]).votes} == {"no_verdict"}
    judge = GenerativeJudge(ScriptedSampler(lambda prompt, draw: "<look>0 0 9 9</look>"), LOOK)
    votes = judge.compare(replace(PAIRS[0], images=(b"no image",))).votes
    assert {vote.verdict.status for vote in votes} == {"error"}
    assert votes[0].completion.error.startswith("unreadable prompt")


def test_each_turn_is_learnt_after_those_before_it() -> None:
    """With the part that it looked at behind the images of the prompt."""
    rows = list(dialogue_dataset(PromptReader(PAIRS[1:2], LOOK), sft_dialogues(PAIRS[1:2], LOOK)))
    first, second = LookTurns("").split(PAIRS[1].judgment)
    assert [row["completion"][0]["content"] for row in rows] == [first, second]
    assert [len(row["images"]) for row in rows] == [1, 2]
    assert (rows[1]["images"][1].size, rows[1]["images"][1].getpixel((0, 0))) == ((WIDTH // 2, HEIGHT // 2), (0, 128, 0))
    assert rows[1]["prompt"][-1]["content"][0] == {"type": "image"}
    away = [replace(PAIRS[0], judgment="<think><look>2: 0 0 9 9</look></think><answer>1</answer>")]
    with pytest.raises(DataError, match="p0: turn 1 of its judgment does not look at one of its 1 images"):
        list(dialogue_dataset(PromptReader(away, LOOK), sft_dialogues(away, LOOK)))


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        (WITH_CRITIC, "template look has several turns, and advantage gae takes one; use another template"),
        ({"forced_answer_length": 8}, "template look has several turns, and forced_answer_length takes one"),
        ({"overlong_margin": 8}, "overlong_margin: template look has several turns"),
        ({"template": "plain", "look_cost": 0.1}, "look_cost: judgments of template plain do not look again"),
    ],
)
def test_what_rl_refuses(changes: dict[str, Any], name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=name):
        train_rl(PAIRS, short_rl_config("hf", **{"template": "look", **changes}), tmp_path / "rl")


def test_looks_cost() -> None:
    terms = {term.name: term for term in terms_of(RLConfig.model_validate({"look_cost": 0.25}))}
    assert terms["looks"].weight == -0.25
    assert "looks" not in {term.name for term in terms_of(RLConfig.model_validate({}))}


@pytest.mark.parametrize("name", [family(name, daily=True) for name in ("qwen2_5_vl", "qwen3_vl", "gemma3")])
def test_the_tokens_of_a_part(name: str, checkpoint_of: Callable[[str], Path]) -> None:
    """A dialogue that has grown by a part is what the processor makes of the whole chat: tokens, their types, and images."""
    processor = load_processor(str(checkpoint_of(name)))
    whole_image, part = Image.open(io.BytesIO(picture())).convert("RGB"), Image.new("RGB", (100, 50), "red")
    answer = {"role": "assistant", "content": [{"type": "text", "text": "x"}]}
    chat = [
        {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Which?"}]},
        answer,
        {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Continue."}]},
    ]

    def read(messages: Any, images: list[Any]) -> dict[str, Any]:
        text = processor.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return dict(processor(text=[text], images=[images], return_tensors="pt", add_special_tokens=False))

    prompt, whole, image_token = read(chat[:1], [whole_image]), read(chat, [whole_image, part]), patch_token_id(processor)
    tokens, of_part = user_turn(processor, "Continue.", [part])
    ids = prompt["input_ids"][0].tolist()
    so_far = ids + processor.tokenizer("x", add_special_tokens=False)["input_ids"] + tokens
    assert so_far == whole["input_ids"][0].tolist()
    fields = with_image_rows(
        {k: v for k, v in prompt.items() if k not in ("input_ids", "attention_mask")}, [ids], [[part]], image_token
    )
    grown = add_images(select_fields(fields, [0], [len(so_far)]), [of_part], [so_far], image_token)
    assert [grown[kind][0] for kind in TOKEN_FIELDS if kind in grown] == [
        whole[kind][0].tolist() for kind in TOKEN_FIELDS if kind in whole
    ]
    joined = image_fields_of_rows(grown, [0])
    assert all(joined[key].equal(whole[key]) for key in joined)
    assert len(user_turn(processor, "Continue.")[0]) < len(tokens)


def test_a_prompt_without_an_image_among_others(tiny_checkpoint: Path) -> None:
    """TRL gives None as its images; a look there ends the judgment, beside one that is continued."""
    processor = load_processor(str(tiny_checkpoint))
    end, calls = processor.tokenizer.eos_token_id, []
    looking = [*processor.tokenizer(look_at(0, 0), add_special_tokens=False)["input_ids"], end]

    def sample(prompt_ids: list[list[int]], images: Any, fields: Any, rows: Any) -> Samples:
        calls.append((images, fields, list(rows)))
        return [looking if len(calls) == 1 else [end] for _ in prompt_ids], None

    image = Image.open(io.BytesIO(picture())).convert("RGB")
    fields = {IMAGE_ROWS: [dict(image_fields(processor.image_processor(images=[image], return_tensors="pt"))), {}]}
    rollouts = TurnRollouts(processor, LookTurns("Continue."))
    options = Sampling(sample, lambda flag: flag, frozenset({end}), 64)
    first, second = rollouts.complete([[7], [8]], [[image], None], fields, options)
    assert (second.tokens, second.forced, second.image_fields) == (looking, (), {})
    [images], grown, rows = calls[1]
    assert ([picture.size for picture in images], rows) == ([image.size, (WIDTH // 2, HEIGHT // 2)], [0])
    assert len(join_images(grown[IMAGE_ROWS])["image_grid_thw"]) == 2
    assert first.tokens[: len(looking)] == looking
    assert first.forced == ((len(looking), len(first.tokens) - 1),)


@pytest.mark.nightly
def test_a_run(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """Fine-tuned, judging and rewarded. The trainer's log-probs of all trained tokens are the sampler's: both read the parts
    that were looked at, at the same places."""
    steps = {"batch_size": 8, "micro_batch_size": 8, "max_steps": 60, "learning_rate": 1e-2, "lr_scheduler": "constant"}
    config = SFTConfig(model=str(tiny_checkpoint), template="look", data_workers=0, save_steps=100, **steps)
    started = train_sft(PAIRS, config, tmp_path / "sft")
    judge = open_generative_judge(f"hf:{started}", temperature=0.0, max_tokens=64)
    votes = [vote for pair in PAIRS[:4] for vote in judge.compare(replace(pair, judgment="")).votes]
    assert {vote.completion.text.count("<look>") for vote in votes} == {1}
    assert sum(vote.verdict.choice is not None for vote in votes) >= 6, [vote.completion.text for vote in votes]
    rl = short_rl_config(started, template="look", max_completion_length=48, importance={}, max_steps=2, look_cost=0.1)
    train_rl(PAIRS, rl, tmp_path / "rl")
    metrics = json.loads((tmp_path / "rl" / "metrics.jsonl").read_text().splitlines()[0])
    assert metrics["turns/mean"] > 1.5
    assert metrics["reward/looks"] > 0.5
    assert 0 < metrics["importance/gap"] < 1e-3


def test_words_of_ones_own(tmp_path: Path) -> None:
    """A template of several turns in a file has the turns, and the words of the file."""
    (tmp_path / "words.txt").write_text("{question} {first} {second}\n")
    template = load_template(f"look:{tmp_path / 'words.txt'}")
    assert (template.text, template.verdict_format, template.followup) == (
        "{question} {first} {second}", LOOK.verdict_format, LOOK.followup
    )  # fmt: skip
    assert template.looks
    assert reading_format(template.name) == "think_answer"
    checks = load_template(f"checklist_turns:{tmp_path / 'words.txt'}")
    assert (checks.verdict_format, checks.looks, checks.turns.most if checks.turns else 0) == ("checklist", False, 2)
    assert reading_format(checks.name) == "checklist"
    with pytest.raises(ConfigError, match="unknown verdict format 'plain'"):
        load_template(f"plain:{tmp_path / 'words.txt'}")
