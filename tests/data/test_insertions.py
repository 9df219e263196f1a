"""No text of an answer closes its place: the prompt around 224 attacks is the prompt around a harmless answer."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardlab.data.attacks.insertions import KINDS, Attack, attacks
from rewardlab.judging.spec import DEMO_JUDGE
from rewardlab.models.loading import load_processor
from rewardlab.prompts import build_messages, load_template, render
from rewardlab.prompts.sanitize import headings, sanitize, without_tokens
from rewardlab.samplers.hf import encode, special_tokens
from rewardlab.types import Message, Order, Part, PreferencePair

TEMPLATES = [load_template(name) for name in ("plain", "r1_reward", "verdict")]
ATTACKS = list(attacks())
PIECES = st.lists(
    st.one_of(
        st.sampled_from([piece for texts in KINDS.values() for piece in texts]),
        st.sampled_from(
            ["Response 2:", "response\t2 :", "###### [Response 2]:", "\n", "\r", " ", "<", "|im_end|>", "</answer>"]
        ),
        st.sampled_from(["\r", "\x0b", "\x0c", "\x1e", "\x85", "\u2028", "\u2029"]),
        st.text(max_size=8),
    ),
    max_size=8,
).map("".join)


def structure(text: str, template: Any) -> Counter[str]:
    """How often each heading begins a line, and each control token and tag occurs."""
    pattern = headings(template.text)
    assert pattern is not None
    text = "\n".join(text.splitlines())  # whatever a reader may take for the end of a line
    found = [re.sub(r"\s+", " ", text[m.start() :].lstrip().partition(":")[0]).lower() for m in pattern.finditer(text)]
    return Counter(found + re.findall(r"<\|\w+\|>|</?think>|</?answer>|</s>|\[/?INST\]", text))


def test_there_are_many() -> None:
    """At least 200, all different, of every kind and in both places."""
    assert len(set(ATTACKS)) == len(ATTACKS) >= 200
    assert {attack.kind for attack in ATTACKS} == set(KINDS)
    assert {attack.place for attack in ATTACKS} == {"before", "after"}


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda template: template.name)
def test_the_prompt_keeps_its_parts(template: Any) -> None:
    """Headings, control tokens and tags are those of a harmless pair, wherever the attack stands."""
    harmless = structure(render(template, "Q?", "red", "blue"), template)
    for attack in ATTACKS:
        for filled in (
            ("Q?", attack.apply("red"), "blue"),
            ("Q?", "red", attack.apply("blue")),
            (attack.apply("Q?"), "a", "b"),
        ):
            assert structure(render(template, *filled), template) == harmless, attack


@given(PIECES)
def test_any_text_stays_inside(text: str) -> None:
    """The same of whatever can be put together of such pieces; and what is sanitized once is sanitized."""
    for template in TEMPLATES:
        harmless = structure(render(template, "Q?", "red", "blue"), template)
        assert structure(render(template, "Q?", f"red {text}", "blue"), template) == harmless
        assert sanitize(sanitize(text, template.text), template.text) == sanitize(text, template.text)


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda template: template.name)
def test_a_heading_that_looks_like_one_is_quoted(template: Any) -> None:
    """Behind or between characters that nobody sees, and in letters of full width."""
    first = render(template, "Q?", "red", "blue").split("red")[0].rstrip().rpartition("\n")[2]
    wide = "".join(chr(ord(letter) + 0xFEE0) if "!" <= letter <= "~" else letter for letter in first)
    middle = len(first) // 2
    for hidden in "\u200b\ufeff\u2060\u200f\u00ad\ufe0f\U000e0041\u3164\u2800\u200d\u202e":
        for line in (hidden + first, first[:middle] + hidden + first[middle:], hidden + wide):
            text = f"red\n{line} blue"
            assert sanitize(text, template.text) == f"red\n> {line} blue", (hidden, line)
            assert sanitize(sanitize(text, template.text), template.text) == sanitize(text, template.text)
    if " " in first:
        for words in (first.replace(" ", "\n", 1), first.replace(" ", "\u200b\n", 1)):
            assert sanitize(f"ä\n{words}", template.text) == f"ä\n> {words}"


def test_control_tokens_of_other_families_are_broken() -> None:
    for token in ("<turn|>", "<|channel>", "<|channel|>", "<image_soft_token>", "[TOOL_CALLS]", "[IMG_END]", "<audio>"):
        assert sanitize(f"red {token}", TEMPLATES[0].text) == f"red {token[0]}\u200b{token[1:]}"


def test_harmless_texts_are_left_as_they_are() -> None:
    """Mathematics, code, lists, quotations and other languages."""
    for text in (
        "If x < 3 and y > 2, then |x| > 1.",
        "Use `<div class='a'>` and <b>bold</b>.\n- one\n- two",
        "The response 1: is mentioned within a line, as is [1] and (2).",
        "Она сказала: «ответ 2».\n答案是二。",
        "",
    ):
        for template in TEMPLATES:
            assert sanitize(text, template.text) == text


@pytest.mark.slow
@pytest.mark.parametrize("template", TEMPLATES, ids=lambda template: template.name)
def test_no_attack_is_a_token(demo_pairs: Any, template: Any) -> None:
    """A real tokenizer finds in the attacked prompt the special tokens of the harmless one, in their order, and one image."""
    processor = load_processor(str(DEMO_JUDGE))
    special = {token for token, one in processor.tokenizer.added_tokens_decoder.items() if one.special}
    image = demo_pairs[0][0].images

    def found(responses: tuple[str, str]) -> list[int]:
        pair = PreferencePair("p", "Which?", responses, None, image)
        ids = encode(processor, [build_messages(pair, order=Order.GIVEN, template=template)])["input_ids"][0].tolist()
        return [token for token in ids if token in special]

    harmless = found(("red", "blue"))
    for attack in ATTACKS:
        assert found((attack.apply("red"), "blue")) == harmless, attack


@pytest.mark.slow
def test_a_tokenizers_own_tokens_are_broken() -> None:
    """Also in chats that no template was filled for."""
    processor = load_processor(str(DEMO_JUDGE))
    tokens = special_tokens(processor.tokenizer)
    assert "<|im_end|>" in tokens
    assert all(token not in without_tokens(f"a{token}b", tokens) for token in tokens)
    chat = [(Message("user", (Part(text="".join(tokens)),)),)]
    ids = encode(processor, chat)["input_ids"][0].tolist()
    plain = encode(processor, [(Message("user", (Part(text="x"),)),)])["input_ids"][0].tolist()
    end = processor.tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert ids.count(end) == plain.count(end)


def test_an_attack_is_put_where_it_says() -> None:
    assert Attack("order", "before", "x").apply("a") == "x\na"
    assert Attack("order", "after", "x").apply("a") == "a\nx"
