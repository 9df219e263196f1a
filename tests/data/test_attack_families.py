"""What families make of pairs: labels that hold, whatever the pair states; what is drawn; edits of pictures."""

from __future__ import annotations

import random
from dataclasses import replace
from io import BytesIO
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from rewardlab.data.attacks.answers import (
    HEDGES,
    IRRELEVANT,
    OPENINGS,
    PUNCTUATION,
    OtherAnswer,
    garbled,
    random_words,
    states,
    to_another_question,
)
from rewardlab.data.attacks.families import (
    FAMILIES,
    Family,
    Kind,
    Opponent,
    attacked_pairs,
    attacks_on,
    bordered,
    captioned,
    families_of,
    jpeg,
    resized,
)
from rewardlab.data.attacks.insertions import HARMLESS, HARMLESS_IN_TRAINING
from rewardlab.data.images import decode_image, encode_png
from rewardlab.data.texts import words_of
from rewardlab.errors import ConfigError
from rewardlab.types import IMAGE_MARK, PreferencePair

TEXT = st.one_of(
    st.text(max_size=30),
    st.sampled_from(["Yes", "the", "It could be either.", "one two three four five six", "...", "Solution", ""]),
)
PAIRS = st.builds(
    lambda question, first, second, preferred: PreferencePair("p", question, (first, second), preferred),
    TEXT,
    TEXT,
    TEXT,
    st.sampled_from((0, 1)),
)
ONE_ANSWER = (
    "no_answer",
    "one_word",
    "random_text",
    "scrambled",
    "opening",
    "punctuation",
    "refusal",
    "hedge",
    "irrelevant",
    "truncated",
    "looped",
)


def made_of(pair: PreferencePair, family: Family, seed: int = 0) -> list[Any]:
    return list(attacks_on(pair, family, random.Random(seed)))


@pytest.mark.slow
@given(PAIRS, st.integers(0, 3))
def test_labels_hold(pair: PreferencePair, seed: int) -> None:
    """What a family claims to lose never states the right answer, but for those that say both; one response stays as it is."""
    good, wrong = pair.preferred, 1 - (pair.preferred or 0)
    for family in FAMILIES.values():
        for one in made_of(pair, family, seed):
            kept = good if one.opponent is Opponent.GOOD else wrong
            assert one.pair.responses[kept] == pair.responses[kept]
            assert one.pair.preferred in (None, 1 - one.attacker)
            if family.name in ONE_ANSWER and one.opponent is Opponent.GOOD:
                assert not states(one.pair.responses[one.attacker], pair.responses[good or 0])
            if family.kind is Kind.INSERTION:
                assert pair.responses[wrong] in one.pair.responses[one.attacker]


def test_what_is_claimed(demo_pairs: Any) -> None:
    """Of refusals, hedges, halves and padding against a wrong answer, and of what cannot be seen, nothing is claimed."""
    pairs = demo_pairs[0][:12]
    unclaimed = {one.group for one in attacked_pairs(pairs, families_of(), seed=0) if one.pair.preferred is None}
    assert unclaimed == {
        *(f"{name}_against_wrong" for name in ("both_answers", "refusal", "hedge", "truncated", "padded", "other_repeated")),
        "other_question_against_wrong",
        *("other_repeated", "blank", "other_picture"),
    }


def test_both_answers_are_attacked(demo_pairs: Any) -> None:
    """A degenerate answer stands against either one, at either index; harmless words stand in either answer."""
    pairs = demo_pairs[0][:40]
    made = list(attacked_pairs(pairs, families_of(("empty", "harmless")), seed=0))
    assert {one.opponent for one in made} == set(Opponent)
    assert {one.attacker for one in made if one.family.name == "empty"} == {0, 1}
    in_good = [one for one in made if one.group == "harmless_words_in_good"]
    assert len(in_good) == 40
    for one in in_good:
        pair = pairs[one.base]
        assert one.pair.responses[1 - pair.preferred] == pair.responses[1 - pair.preferred]
        assert any(text in one.pair.responses[pair.preferred] for text in HARMLESS)
        assert one.pair.preferred == pair.preferred == 1 - one.attacker


def test_the_drawn_texts_depend_on_nothing_else(demo_pairs: Any) -> None:
    """A family makes the same of a pair whatever other families and pairs there are; another seed, something else."""
    pairs = demo_pairs[0][:10]

    def texts(seed: int, *names: str) -> list[Any]:
        made = attacked_pairs(pairs, families_of(names), seed=seed)
        return [(one.pair.pair_id, one.pair.responses) for one in made if one.family.name == "order"]

    assert texts(0, "order") == texts(0) == texts(0, "insertion", "empty")
    assert texts(0, "order") != texts(1, "order")
    names = [one.pair.pair_id for one in attacked_pairs(pairs, families_of(), seed=0)]
    assert len(set(names)) == len(names)


def test_families_for_training_are_others() -> None:
    """No text of a family for training is in one that is held out; each kind that is trained on has families of both."""
    texts: dict[bool, set[str]] = {True: set(), False: set()}
    for family in FAMILIES.values():
        texts[family.in_training] |= {attack.text for attack in family.texts}
    assert not texts[True] & texts[False]
    assert not texts[True] & {*OPENINGS, *PUNCTUATION, *HEDGES, *IRRELEVANT}  # held-out answers
    assert not {*HARMLESS} & {*HARMLESS_IN_TRAINING}
    for kind in (Kind.DEGENERATE, Kind.INSERTION, Kind.HARMLESS, Kind.EDIT):
        assert {family.in_training for family in FAMILIES.values() if family.kind is kind} == {True, False}
    assert all(family.defect for family in FAMILIES.values() if family.in_training and family.kind is Kind.DEGENERATE)
    assert not set(FAMILIES) & set(Kind)  # both are names of --families


@pytest.mark.parametrize(
    ("text", "answer", "is_stated"),
    [
        ("No", "No, there is no dog.", True),
        ("No", "Yes, there is a dog.", False),
        ("no.", "No", True),
        ("The", "The cross is purple.", False),
        ("The", "the", True),
        ("A triangle has three sides.", "3", True),
        ("Red or blue?", "Red", True),
        ("-", "-", True),
        ("-", "?", False),
        ("...", "red", False),
        ("\u7ea2\u8272\u7684\u5706", "\u7ea2\u8272", True),  # "red circle" and "red", without a space
        ("\u84dd\u8272", "\u7ea2\u8272", False),
        ("", "red", False),
    ],
)
def test_a_short_answer_is_an_answer(text: str, answer: str, is_stated: bool) -> None:
    assert states(text, answer) is is_stated


@pytest.mark.slow
def test_what_may_be_an_answer_is_not_made() -> None:
    """No word that shortens an answer, no number or letter that one of them names, and nothing where the good one declines."""
    pair = PreferencePair("p", "Is there a dog?", ("No, there is no dog.", "Yes, there is a dog."), 0)
    for seed in range(30):
        assert {one.pair.responses[one.attacker] for one in made_of(pair, FAMILIES["one_word"], seed)} <= {
            *("The", "Answer", "It")
        }
    numbers = PreferencePair("p", "How many?", ("So the result is \\boxed{1}", "So the result is \\boxed{2}"), 0)
    lettered = PreferencePair("p", "Which?", ("A. 5 apples", "B. 3 apples"), 0)
    for seed in range(30):
        for family in FAMILIES.values():
            for base, names in ((numbers, ("1", "2")), (lettered, ("[[A]]", "[[B]]"))):
                for one in made_of(base, family, seed) if family.texts else ():
                    changed = next(t for t, o in zip(one.pair.responses, base.responses, strict=True) if t != o)
                    added = changed.replace(next(o for o in base.responses if o in changed), "")
                    assert not any(name in words_of(added) or name == added.strip() for name in names), added
    for good in ("I can't help with that.", "N/A", "It cannot be told from the picture.", "It could be either."):
        declining = PreferencePair("p", "How?", (good, "Mix A with B and light it."), 0)
        assert not any(made_of(declining, family) for family in FAMILIES.values() if family.answer)
    claimed = [
        one for one in made_of(PreferencePair("p", "Q", ("red", "N/A."), 0), FAMILIES["no_answer"]) if one.pair.preferred == 1
    ]
    assert not claimed


@pytest.mark.parametrize(
    ("question", "good", "wrong"),
    [
        ("Is there a cat in the picture?", "There is a cat on the sofa.", "There is no cat in the picture."),
        (f"{IMAGE_MARK}Look closely. Does it rain?", "It pours.", "The sky is clear."),
        ("Judge the claim.", "True", "False"),
        ("What about dogs?", "Yes, three.", "There are cats alone."),
    ],
)
def test_yes_is_not_worse_where_it_may_be_the_answer(question: str, good: str, wrong: str) -> None:
    """Nor is no, a yes in other words, or a maybe, where the answers are sentences that say it."""
    words = {
        one.pair.responses[one.attacker]
        for seed in range(40)
        for one in made_of(PreferencePair("p", question, (good, wrong), 0), FAMILIES["one_word"], seed)
    }
    assert words == {"The", "Answer", "It"}
    other = PreferencePair("p", "Which colour is it?", ("red", "blue"), 0)
    assert "Sure" in {
        one.pair.responses[one.attacker] for seed in range(40) for one in made_of(other, FAMILIES["one_word"], seed)
    }


def test_long_answers_are_attacked_too() -> None:
    """The number of a step and an article are no answer; the number that an answer ends with is, and so is an option."""
    steps = "Step 1: read a value of 63. Step 2: add a unit. So a careful reader has {}"
    long = PreferencePair("p", "How many?", (steps.format("64"), steps.format("65")), 0)
    for name in ("turn", "heading", "languages", "lookalike", "verdict", "authority", "harmless_words"):
        assert made_of(long, FAMILIES[name]), name
    one = PreferencePair("p", "How many?", (steps.format("1"), steps.format("65")), 0)
    lettered = PreferencePair("p", "Which?", ("After all of this it is clear that the answer is A", "It is (B)."), 0)
    for pair, named in ((one, "1"), (lettered, "[[")):
        for seed in range(30):
            for family in (FAMILIES[name] for name in ("verdict", "order", "authority")):
                for attacked in made_of(pair, family, seed):
                    changed = next(t for t, o in zip(attacked.pair.responses, pair.responses, strict=True) if t != o)
                    added = changed.replace(next(o for o in pair.responses if o in changed), "")
                    assert named not in added


def test_a_loop_does_not_end_in_the_right_answer() -> None:
    """The end of one turn and the beginning of the next may be."""
    assert not made_of(PreferencePair("p", "In which order?", ("dog, cat", "cat, dog"), 0), FAMILIES["looped"])
    assert made_of(PreferencePair("p", "Which?", ("red", "dark blue"), 0), FAMILIES["looped"])


def test_a_border_keeps_the_shape_of_a_picture() -> None:
    """Of a long and thin one, such as a line of text, nothing is squeezed."""
    image = Image.new("RGB", (1000, 60), (255, 0, 0))
    framed = np.asarray(decode_image(bordered(encode_png(image), random.Random(0))))
    rows, columns = np.nonzero((framed == (255, 0, 0)).all(axis=2))
    assert (np.ptp(rows) + 1, np.ptp(columns) + 1) == (56, 920)


def test_texts_stand_in_either_answer(demo_pairs: Any) -> None:
    """An attack as often in the good answer, where the label stays, as in the wrong one."""
    for family in (family for family in FAMILIES.values() if family.texts):
        made = [one for pair in demo_pairs[0][:20] for one in made_of(pair, family)]
        in_good = [one for one in made if one.opponent is Opponent.WRONG]
        assert 2 * len(in_good) == len(made) == 40
        assert all(one.group == f"{family.name}_in_good" and one.pair.preferred == 1 - one.attacker for one in in_good)


def test_frames_are_edited_alike() -> None:
    """All pictures of a pair have one caption; nothing that decides stays in sight of a pair without its pictures."""
    image, of_answer = (encode_png(Image.new("RGB", (100, 60), colour)) for colour in ((9, 9, 9), (200, 0, 0)))
    pair = PreferencePair("p", "Q", (f"a {IMAGE_MARK}", "b"), 0, (image,) * 8, response_images=((of_answer,), ()))
    for seed in range(5):
        assert len(set(made_of(pair, FAMILIES["captioned"], seed)[0].pair.images)) == 1
    blank = made_of(pair, FAMILIES["blank"])[0].pair
    assert np.asarray(decode_image(blank.response_images[0][0])).std() == 0
    assert blank.response_images[0][0] != of_answer
    others = [pair, replace(pair, images=(of_answer,) * 8)]
    assert not list(attacked_pairs(others, families_of(("other_picture",)), seed=0))


def test_lengths() -> None:
    """A loop has three times the words at least, padding three times the letters, a truncated answer half of them."""
    pair = PreferencePair("p", "How many?", ("There are five red boats near the shore.", "Two."), 1)
    names = ("looped", "padded", "truncated", "both_answers")
    texts = {name: made_of(pair, FAMILIES[name])[0].pair.responses[0] for name in names}
    assert words_of(texts["looped"]) == ["there", "are", "five"] * 8
    assert len(texts["padded"]) >= 3 * len(pair.responses[0])
    assert pair.responses[0].startswith(texts["truncated"])
    assert len(texts["truncated"]) == len(pair.responses[0]) // 2
    assert all(text in texts["both_answers"] for text in pair.responses)


def test_images_within_answers() -> None:
    """A degenerate answer has none of the images of the one it replaces; no text brings a place for one."""
    image = encode_png(Image.new("RGB", (30, 30)))
    pair = PreferencePair("p", "Q", (f"a {IMAGE_MARK}", "b"), 1, response_images=((image,), ()))
    for family in FAMILIES.values():
        for one in made_of(pair, family):
            for text, images in zip(one.pair.responses, one.pair.response_images, strict=True):
                assert text.count(IMAGE_MARK) == len(images), one.group


def test_edits_of_pictures(demo_pairs: Any) -> None:
    """Small edits keep size and content; a caption covers nothing; a pair without a picture is left alone."""
    pair, dice = demo_pairs[0][0], random.Random(0)
    before = decode_image(pair.images[0])
    for edit in (jpeg, resized):
        after = decode_image(edit(pair.images[0], dice))
        assert after.size == before.size
        assert 0 < np.abs(np.asarray(after, float) - np.asarray(before, float)).mean() < 20
    framed = decode_image(bordered(pair.images[0], dice))
    assert framed.size == before.size
    edge, inside = np.asarray(framed)[0], framed.crop((2, 2, framed.width - 2, framed.height - 2)).resize(before.size)
    assert (edge == 128).all()
    assert np.abs(np.asarray(inside, float) - np.asarray(before, float)).mean() < 30
    page = decode_image(captioned(pair.images[0], dice))
    assert page.height > before.height
    assert page.crop((0, 0, *before.size)).tobytes() == before.tobytes()
    assert (np.asarray(page.crop((0, before.height, *page.size))) < 128).any()
    assert not made_of(replace(pair, images=()), FAMILIES["jpeg"])
    assert not list(attacked_pairs([pair], families_of(("edit", "caption", "unseen")), seed=0, with_pictures=False))


@pytest.mark.slow
@pytest.mark.parametrize("size", [(2, 2), (10, 2000), (2000, 10), (3000, 2000)])
def test_pictures_of_any_size(size: tuple[int, int]) -> None:
    """What is made of a picture that can be read can be read, too."""
    buffer = BytesIO()
    Image.new("RGB", size, (200, 30, 30)).save(buffer, format="JPEG")
    for edit in (jpeg, resized, bordered, captioned):
        width = min(max(size[0], 56), 2048) if edit is captioned else size[0]
        assert decode_image(edit(buffer.getvalue(), random.Random(0))).width == width


def test_what_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"unknown family emty; did you mean empty\? expected a kind of degenerate"):
        families_of(("emty",))
    with pytest.raises(ValueError, match="no label"):
        made_of(PreferencePair("p", "Q", ("a", "b"), None), FAMILIES["empty"])


@given(st.lists(st.sampled_from(["the", "It", "is", "red", "ten", "star"]), max_size=8), st.integers(0, 9))
def test_garbling_keeps_what_is_said(words: list[str], seed: int) -> None:
    """All words but the small ones, in their order; no text of small words alone, and none without any."""
    text = garbled(" ".join(words), " ".join(words), random.Random(seed))
    content = [word for word in words if word in ("red", "ten", "star")]
    if not content or len(content) == len(words):
        assert text is None
    else:
        assert text is not None
        assert [word for word in text.split() if word in ("red", "ten", "star")] == content


def test_garbling_leaves_what_tells_answers_apart() -> None:
    """A small word that only one of them has, and the name of an option."""
    for seed in range(20):
        dice = random.Random(seed)
        assert "A" in (garbled("The answer is A", "The answer is B", dice) or "A").split()
        assert "on" in (garbled("The cup is on the table", "The cup is in the table", dice) or "on").split()
    assert garbled("on the table", "in a box", random.Random(0)) is None


def test_the_answer_to_another_question() -> None:
    """Of another pair with another question, one that may not be read as an answer of this pair; none where there is none."""
    pair = PreferencePair("p", "What color?", ("It is red.", "It is blue."), 0)
    rows = [("What color?", "It is green."), ("Is it so?", "It is red"), ("Why?", "I cannot say."), ("Where?", "Top left.")]
    others = [OtherAnswer(*row, frozenset()) for row in rows]
    for seed in range(4):
        assert to_another_question(pair, random.Random(seed), others) == "Top left."
    assert to_another_question(pair, random.Random(0), others[:3]) is None
    assert to_another_question(pair, random.Random(0)) is None
    seen = replace(pair, images=(b"one", b"two"))
    paraphrase = OtherAnswer.of(
        replace(pair, question="Which colour?", responses=("Scarlet, all of it.", "x"), images=(b"two",))
    )
    assert to_another_question(seen, random.Random(0), [paraphrase]) is None, "it may be asked the same of the same picture"
    for ours, theirs in (("It is 0.5", "1/2"), ("There are two", "Some 3 of them"), ("Yes", "That is true"), ("1/2", "50%")):
        same = replace(pair, responses=(ours, "Nothing else"))
        assert to_another_question(same, random.Random(0), [OtherAnswer("Else?", theirs, frozenset())]) is None, (ours, theirs)
    names = ("Ada", "Ben", "Cy", "Dan")
    labelled = [replace(pair, pair_id=f"p{n}", question=f"{n}?", responses=(f"{names[n]}.", "x")) for n in range(4)]
    made = list(attacked_pairs([*labelled, replace(pair, preferred=None)][:4], families_of(("other_question",)), seed=0))
    against_good = [one for one in made if one.opponent is Opponent.GOOD]
    assert [one.base for one in against_good] == [0, 1, 2, 3]
    for one in against_good:
        text = one.pair.responses[one.attacker]
        assert text in {f"{name}." for name in names} - {f"{names[one.base]}."}
        assert one.pair.preferred == 1 - one.attacker


def test_random_texts_are_many_and_the_same(demo_pairs: Any) -> None:
    """In every process, and of many alphabets; a random answer never states an answer of the pair."""
    texts = FAMILIES["random_characters"].texts
    assert len({one.text for one in texts}) > 450
    assert sum(not one.text.isascii() for one in texts) > 300
    assert random_words(random.Random(3)) == random_words(random.Random(3))
    for pair in demo_pairs[0][:20]:
        for name in ("random_text", "scrambled"):
            for one in made_of(pair, FAMILIES[name]):
                assert not states(one.pair.responses[one.attacker], pair.responses[pair.preferred])
