"""Hard negatives: labels and judgments that hold, the ratio, balance, what is held out, and the command."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rewardlab.cli import main
from rewardlab.config import RLConfig
from rewardlab.curation.harden import HardenCounts, HardenSettings, harden
from rewardlab.data import pairs as data_pairs
from rewardlab.data.attacks.families import FAMILIES
from rewardlab.data.attacks.insertions import HARMLESS_IN_TRAINING
from rewardlab.data.files import UNFINISHED
from rewardlab.data.pairs import read_pairs, write_parquet
from rewardlab.errors import ConfigError, DataError
from rewardlab.training.rl import hard_pairs
from rewardlab.types import VIDEO_MARK, Choice, Order, PreferencePair, choice_of
from rewardlab.verdicts.formats import WRITERS
from rewardlab.verdicts.parse import format_verdict, parse_verdict
from tests.support.shell import run_main
from tests.support.videos import film


def judged(pairs: list[PreferencePair]) -> list[PreferencePair]:
    """Pairs with a judgment each, half of them in the swapped order."""
    ordered = [replace(pair, order=Order.SWAPPED if n % 2 else Order.GIVEN) for n, pair in enumerate(pairs)]
    return [replace(p, judgment=format_verdict(choice_of(p.preferred or 0, p.order), "seen"), attempts="1") for p in ordered]


def made(pairs: list[PreferencePair], **settings: Any) -> tuple[list[PreferencePair], HardenCounts]:
    counts = HardenCounts()
    return list(harden(pairs, HardenSettings(**settings), counts)), counts


def test_every_judgment_is_right(demo_pairs: Any) -> None:
    """In the order of its pair it names the better response: the pair's own text where that is still true, else one that names
    the defect."""
    pairs = judged(demo_pairs[0][:100])
    everything, counts = made(pairs, ratio=3.0)
    negatives = [pair for pair in everything if pair.source.startswith("harden:")]
    assert [pair for pair in everything if not pair.source.startswith("harden:")] == pairs
    assert counts.negatives == len(negatives) == counts.judged
    assert len({pair.pair_id for pair in everything}) == len(everything)
    for pair in negatives:
        family = FAMILIES[pair.source.partition(":")[2]]
        assert family.in_training
        assert parse_verdict(pair.judgment, "think_answer").choice == choice_of(pair.preferred or 0, pair.order)
        assert ("seen" in pair.judgment) == (not family.defect)
        assert family.defect in pair.judgment
        assert pair.attempts == "2"


@pytest.mark.slow
def test_ratio_and_seed(demo_pairs: Any) -> None:
    """As many as asked for on average, each family at most once a pair; another seed draws others."""
    pairs = demo_pairs[0]
    for ratio in (0.25, 1.0, 2.5):
        everything, counts = made(pairs, ratio=ratio)
        assert counts.negatives == pytest.approx(ratio * len(pairs), rel=0.2)
        of_pair = Counter((pair.provenance, pair.source) for pair in everything if pair.source.startswith("harden:"))
        assert set(of_pair.values()) == {1}
    assert made(pairs)[0] == made(pairs)[0] != made(pairs, seed=1)[0]
    assert set(made(pairs, ratio=100.0)[1].groups) >= {name for name, family in FAMILIES.items() if family.in_training}


def test_harmless_words_tell_nothing(demo_pairs: Any) -> None:
    """They stand in the better response about as often as in the other, as attacks do; a degenerate one loses to either."""
    everything, counts = made(demo_pairs[0], ratio=100.0, families=("harmless", "degenerate", "insertion"))
    groups = counts.groups
    assert abs(groups["order"] - groups["order_in_good"]) < 50
    assert groups["harmless_remarks"] + groups["harmless_remarks_in_good"] == len(demo_pairs[0])
    assert abs(groups["harmless_remarks"] - groups["harmless_remarks_in_good"]) < 50
    assert abs(groups["no_answer"] - groups["no_answer_against_wrong"]) < 50
    for pair in everything:
        if pair.source == "harden:harmless_remarks":
            assert sum(any(text in response for text in HARMLESS_IN_TRAINING) for response in pair.responses) == 1


def test_pairs_without_label_or_judgment(demo_pairs: Any) -> None:
    """One without a label stays alone; the negatives of one without a judgment or a tag have neither: what is trained on is
    chosen among all."""
    pairs = [replace(pair, preferred=None) if n % 2 else pair for n, pair in enumerate(demo_pairs[0][:40])]
    everything, counts = made(pairs, ratio=100.0)
    assert counts.unlabelled == 20
    assert counts.judged == 0 < counts.negatives
    assert not any(pair.judgment or pair.attempts for pair in everything)
    assert len(hard_pairs(everything, RLConfig())) == 20 + counts.negatives
    unsolved = [replace(pair, attempts="unsolved") for pair in judged(demo_pairs[0][:5])]
    everything, counts = made(unsolved, ratio=100.0, verdict_format="")
    assert {pair.attempts for pair in everything} == {"unsolved"}
    assert not any(pair.judgment for pair in everything if pair.source == "harden:no_answer")
    with pytest.raises(DataError, match="is already a negative of `data harden`; harden the original set instead"):
        made(everything, ratio=100.0)


@pytest.mark.parametrize("verdict_format", sorted(WRITERS))
def test_judgments_in_any_form(demo_pairs: Any, verdict_format: str) -> None:
    everything, _ = made(demo_pairs[0][:20], families=("no_answer",), ratio=1.0, verdict_format=verdict_format)
    for pair in everything:
        if pair.judgment:
            expected: Choice = choice_of(pair.preferred or 0, pair.order)
            assert parse_verdict(pair.judgment, verdict_format).choice == expected


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {"families": ("hedge",)},
            "these families are held out for `bench run`: hedge; expected some of no_answer",
        ),
        ({"families": ("caption",)}, "no training family is of the kinds caption"),
        ({"families": ("degenerate", "caption", "unseen")}, "no training family is of the kinds caption, unseen"),
        ({"families": ("emty",)}, "unknown family emty"),
        ({"ratio": 0.0}, "expected more than 0"),
        ({"ratio": float("inf")}, "expected more than 0"),
        ({"verdict_format": "latin"}, "no judgments in the format 'latin'"),
    ],
)
def test_what_is_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        HardenSettings(**settings)


def test_a_judgment_in_another_form(demo_pairs: Any) -> None:
    """Beside those that name a defect its form would tell them apart. Without such judgments any form will do."""
    pairs = judged(demo_pairs[0][:3])
    with pytest.raises(ConfigError, match="its judgment has no verdict in the form double_brackets"):
        made(pairs, ratio=1.0, verdict_format="double_brackets")
    assert made(pairs, ratio=1.0, verdict_format="")[1].negatives == 3


def test_videos_stay_videos(tmp_path: Path) -> None:
    """With the pairs and with their negatives; no response has the mark of one."""
    video = film(tmp_path / "f.mp4", 20).read_bytes()
    pairs = [
        PreferencePair(
            f"v{n}", f"{VIDEO_MARK}What happens?", ("It gets brighter", "The whole room gets darker"), 0, videos=(video,)
        )
        for n in range(8)
    ]
    write_parquet(pairs, tmp_path / "pairs.parquet")
    done = run_main(main, "data", "harden", tmp_path / "pairs.parquet", "--ratio", "20", "--out", tmp_path / "o")
    assert done.returncode == 0, done.stderr
    after = read_pairs(tmp_path / "o", frames=None)
    assert {pair.question for pair in after} == {"What happens?"}  # media come before the text
    assert all(pair.videos == (video,) and not pair.images for pair in after)
    assert any(pair.source == "harden:scrambled" for pair in after)
    assert not any(VIDEO_MARK in response for pair in after for response in pair.responses)


def test_a_run_that_was_cut_off_leaves_no_whole_set(demo_pairs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its shards are not taken for the set; the same command begins anew. Shards of others are left alone."""
    monkeypatch.setattr(data_pairs, "SHARD_ROWS", 4)
    monkeypatch.setattr(data_pairs.write_shards, "__kwdefaults__", {"rows_per_shard": 4, "embed": True})
    rows = [{"question": f"Which {n}?", "responses": ["red", "blue"], "preferred": 0} for n in range(20)]
    path, words = tmp_path / "pairs.jsonl", ("data", "harden", tmp_path / "pairs.jsonl", "--out", tmp_path / "o")
    path.write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"question": "?"}]))
    assert run_main(main, *words).returncode == 2
    assert list((tmp_path / "o").glob("part-*.parquet"))
    with pytest.raises(DataError, match="is incomplete, because the command that writes it was interrupted"):
        read_pairs(tmp_path / "o")
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert run_main(main, *words).returncode == 0
    assert not (tmp_path / "o" / UNFINISHED).exists()
    assert sum(not pair.source for pair in read_pairs(tmp_path / "o")) == 20
    done = run_main(main, *words)
    assert (done.returncode, "already has shards" in done.stderr) == (2, True)


def test_the_command(demo_pairs: Any, tmp_path: Path) -> None:
    """Shards that can be trained on, and how many of each group; nothing to make is a finding."""
    write_parquet(judged(demo_pairs[0][:30]), tmp_path / "pairs.parquet")
    done = run_main(
        main, "data", "harden", tmp_path / "pairs.parquet", "--template", "plain", "--ratio", "1", "--out", tmp_path / "o"
    )
    assert done.returncode == 0, done.stderr
    assert "30 pairs and 30 negatives, 30 of them with a judgment" in done.stdout
    assert len(read_pairs(tmp_path / "o")) == 60
    write_parquet([replace(pair, preferred=None, judgment="") for pair in demo_pairs[0][:5]], tmp_path / "bare.parquet")
    done = run_main(main, "data", "harden", tmp_path / "bare.parquet", "--out", tmp_path / "none")
    assert done.returncode == 1
    assert "no negative could be made" in done.stderr
