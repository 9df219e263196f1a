"""The newcomer's trial, small: what it counts, and that a wrong or blind number would be seen."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from eval.newcomer import README, ROOT, Case, Outcome, Step, all_cases, documented, table, truth_of, try_case
from eval.newcomers.cures import CURES
from eval.newcomers.eyes import name_of, pixels_of, right_place, scene_of
from eval.newcomers.server import STYLES, Judge
from eval.newcomers.sets import FORMS, newcomers_pairs
from rewardlab.data.images import to_data_url
from rewardlab.data.rows import with_blank_images
from rewardlab.prompts import build_messages, load_template
from rewardlab.types import Order, PreferencePair

PAIRS = newcomers_pairs(40)


def body_of(pair: PreferencePair, order: Order) -> dict[str, Any]:
    """Return the request of a pair, as an endpoint gets it."""
    (message,) = build_messages(pair, order=order, template=load_template("r1_reward"))
    parts = [
        {"type": "text", "text": part.text}
        if part.image is None
        else {"type": "image_url", "image_url": {"url": to_data_url(part.image)}}
        for part in message.parts
    ]
    return {"messages": [{"role": "user", "content": parts}]}


def test_the_eyes_know_every_scene_and_nothing_of_a_blank_one() -> None:
    for pair, blank in zip(PAIRS, with_blank_images(PAIRS), strict=True):
        seen, unseen = (pixels_of(each.images[0]) for each in (pair, blank))
        assert seen is not None
        assert unseen is not None
        assert right_place(pair.question, pair.responses, scene_of(seen)) == pair.preferred
        assert right_place(pair.question, pair.responses, scene_of(unseen)) is None
    assert len({name_of(picture) for pair in PAIRS if (picture := pixels_of(pair.images[0]))}) == len(PAIRS)
    assert pixels_of(b"no picture") is None


def test_the_server_s_record_tells_a_seeing_run_from_a_blind_one(tmp_path: Path) -> None:
    """Four fifths right where it was shown the pictures, in both orders alike; without them nothing counts as seen."""
    for name, pairs in (("seen", PAIRS), ("blank", with_blank_images(PAIRS)), ("none", [replace(p, images=()) for p in PAIRS])):
        judge = Judge(tmp_path / name)
        for pair in pairs:
            for order in Order:
                judge.answer(body_of(pair, order))
    truth, unseen = truth_of(PAIRS, tmp_path / "seen")
    rows = [json.loads(line) for line in (tmp_path / "seen").read_text().splitlines()]
    assert unseen == 0
    assert 0.65 < truth < 0.95
    by_hand = [row["shown"][row["named"]] for row in rows]
    assert by_hand[::2] == by_hand[1::2]
    assert truth == sum(text == p.responses[p.preferred or 0] for text, p in zip(by_hand[::2], PAIRS, strict=True)) / 40
    assert truth_of(PAIRS, tmp_path / "blank") == truth_of(PAIRS, tmp_path / "none") == (0.0, 40)
    lines = (tmp_path / "seen").read_text().splitlines()
    (tmp_path / "half").write_text("\n".join(lines[:-1]))
    assert truth_of(PAIRS, tmp_path / "half")[1] == 1


def test_faults_of_an_outcome() -> None:
    good = Outcome(Case(), [Step("rewardlab", 0, 4.0)], 73.3, 44 / 60, 44 / 60)
    assert good.fault == ""
    assert replace(good, figure=50.0).fault == "50.0 % where the server says 73.3 %"
    assert replace(good, report=0.5).fault
    assert replace(good, unseen=3).fault == "3 pictures were not seen"
    assert replace(good, steps=[Step("rewardlab", 0, 301.0)]).fault == "301 s"
    assert replace(good, figure=None).fault.startswith("no number")
    bad = replace(good, unseen=3)
    assert "1 of 2 cases" in table([good, bad], 60, "python eval/newcomer.py", "abc")
    assert "**3 pictures were not seen**" in table([good, bad], 60, "python eval/newcomer.py", "abc")


def test_every_cure_is_named_and_every_form_tried() -> None:
    cases = all_cases(60)
    assert {(case.form, case.style) for case in cases} >= {(form, style) for form in FORMS for style in STYLES}
    assert len({cure.name for cure in CURES}) == len(CURES)
    for page in ("docs/how-to/benchmarks/own_pairs.md", README):
        check, run = documented(ROOT / page)
        assert check == ["rewardlab", "data", "validate", "pairs.jsonl"]
        assert {"--data", "--judge", "--votes", "--out"} <= set(run)


SLICE = [
    (Case(), ""),
    (Case("JSON lines, pictures in a column scan", "letter"), "column renamed, recorded answers read anew"),
    (Case("saved dataset, chosen and rejected", "winner"), "recorded answers read anew"),
    (Case(refuses="401"), "key given"),
    (Case(dies_after=40), "server started again"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("case", "cures"), SLICE, ids=[f"{case.form}, {case.server}" for case, _ in SLICE])
def test_a_slice(case: Case, cures: str, tmp_path: Path) -> None:
    """Real commands and a real server, by what the commands say."""
    outcome = try_case(case, PAIRS[:12], tmp_path)
    assert outcome.fault == ""
    assert ", ".join(step.cure for step in outcome.steps if step.cure) == cures
