"""Ratings of single people: in files of labels and in pairs, and the label that they come to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rewardlab.config import MappingConfig
from rewardlab.data.pairs import read_pairs, write_jsonl, write_parquet
from rewardlab.data.ratings import PeoplesLabel, peoples_label, read_labels, write_ratings
from rewardlab.data.recipes import Dropped, SourceFolder, recipe_of
from rewardlab.errors import DataError
from rewardlab.types import Order, PreferencePair, Rating, Tie

RATINGS = (
    Rating("ann", 0, Order.SWAPPED, "2026-11-27T10:00:00+00:00", "sharper"),
    Rating("bob", 1, Order.GIVEN),
    Rating("cem", Tie.BOTH_BAD),
    Rating("dee", None),
)


def test_labels_are_read_as_written(tmp_path: Path) -> None:
    path = tmp_path / "labels.jsonl"
    write_ratings(path, [("p1", RATINGS[0]), ("p\u2028 2", RATINGS[2]), *(("p1", rating) for rating in RATINGS[1:])])
    assert read_labels(path) == {"p1": (RATINGS[0], *RATINGS[1:]), "p\u2028 2": (RATINGS[2],)}
    first = json.loads(path.read_text().split("\n")[0])
    assert first == {"pair_id": "p1", "rater": "ann", "choice": 0, "shown": "swapped", "at": RATINGS[0].at, "reason": "sharper"}


@pytest.mark.parametrize("write", [write_jsonl, write_parquet])
def test_pairs_keep_their_ratings(write: object, tmp_path: Path) -> None:
    pair = PreferencePair("p1", "Which?", ("a", "b"), None, ratings=RATINGS)
    path = tmp_path / f"pairs.{'parquet' if write is write_parquet else 'jsonl'}"
    write([pair, PreferencePair("p2", "Which?", ("a", "b"), 1)], path)  # type: ignore[operator]
    assert [one.ratings for one in read_pairs(path)] == [RATINGS, ()]


def test_a_swapped_pair_has_swapped_ratings() -> None:
    pair = PreferencePair("p1", "Which?", ("a", "b"), 0, ratings=RATINGS)
    assert [(rating.choice, rating.order) for rating in pair.swap().ratings] == [
        (1, Order.GIVEN),
        (0, Order.SWAPPED),
        (Tie.BOTH_BAD, None),
        (None, None),
    ]
    assert pair.swap().swap() == pair


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"rater": "ann", "choice": 0}', "line 2: 'pair_id' is None"),
        ('{"pair_id": "p", "choice": 0}', "line 2: 'rater' is None; expected a name"),
        ('{"pair_id": "p", "rater": " ", "choice": 0}', "'rater' is ' '"),
        ('{"pair_id": "p", "rater": "ann", "choice": 2}', "'choice' is 2; expected 0, 1, tie, both_bad or skip"),
        ('{"pair_id": "p", "rater": "ann", "choice": true}', "'choice' is True"),
        ('{"pair_id": "p", "rater": "ann", "choice": 0, "reason": "\\ud800"}', "line 2: contains half a surrogate pair"),
        ('{"pair_id": "p", "rater": "ann"}', "'choice' is None"),
        ('{"pair_id": "p", "rater": "\\ud800", "choice": 1}', "half a surrogate pair"),
        ('{"pair_id": "p", "rater": "ann", "choice": 1, "reason": "\\udc00"}', "half a surrogate pair"),
        ('{"pair_id": "p", "rater": "ann", "choice": 1, "shown": "left"}', "'shown' is 'left'; expected given or swapped"),
        ('{"pair_id": "p", "rater": "ann", "choice": 1, "vote": 3}', "unknown field 'vote'; expected rater, choice"),
        ("[1]", "line 2"),
        ("{", "line 2"),
    ],
)
def test_a_bad_line_is_named(line: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "labels.jsonl"
    path.write_text('{"pair_id": "p", "rater": "ann", "choice": 0}\n' + line + "\n")
    with pytest.raises(DataError) as caught:
        read_labels(path)
    assert said in str(caught.value)


def test_no_labels(tmp_path: Path) -> None:
    (tmp_path / "labels.jsonl").write_text("\n")
    with pytest.raises(DataError, match="has no ratings"):
        read_labels(tmp_path / "labels.jsonl")
    with pytest.raises(DataError, match="no such file"):
        read_labels(tmp_path / "none.jsonl")
    with pytest.raises(DataError, match="is a folder; expected a file of JSON lines"):
        read_labels(tmp_path)


@pytest.mark.parametrize(
    ("choices", "label"),
    [
        ([0, 0, 1], PeoplesLabel(0, 2 / 3, 3)),
        ([1, None, None], PeoplesLabel(1, 1.0, 1)),
        ([0, 1], PeoplesLabel(Tie.TIE, 0.5, 2)),
        ([Tie.BOTH_BAD, Tie.TIE, Tie.BOTH_BAD, 0], PeoplesLabel(Tie.BOTH_BAD, 0.75, 4)),
        ([Tie.TIE, Tie.BOTH_BAD, 1], PeoplesLabel(Tie.TIE, 2 / 3, 3)),
        ([None], PeoplesLabel(None, 0.0, 0)),
        ([], PeoplesLabel(None, 0.0, 0)),
    ],
)
def test_the_label_of_ratings(choices: list[int | Tie | None], label: PeoplesLabel) -> None:
    assert peoples_label([Rating(str(n), choice) for n, choice in enumerate(choices)]) == label


def test_a_rater_counts_once() -> None:
    """The first rating of a pair is the rater's; a repetition only shows how consistent the rater is."""
    assert peoples_label([Rating("ann", 0), Rating("ann", 1), Rating("ann", 1)]) == PeoplesLabel(0, 1.0, 1)


def built(folder: Path, rows: list[dict[str, object]], **mapping: object) -> list[PreferencePair | str]:
    """Return the pairs of a mapping with two responses, or why there is none."""
    recipe = recipe_of(MappingConfig(name="mine", question="q", responses=["a", "b"], **mapping))  # type: ignore[arg-type]
    source = SourceFolder(folder)
    items = [item for n, row in enumerate(rows) for item in recipe.convert({"q": f"{n}?", "a": "x", "b": "y", **row}, source)]
    return [item.reason if isinstance(item, Dropped) else item for item in items]


def test_columns_of_people(tmp_path: Path) -> None:
    """One column per person, a list of labels, counts of votes: the label of most, and each rating."""
    words = {"first": "left", "second": "right", "ties": ["both bad"], "keep_ties": True}
    rows: list[dict[str, object]] = [
        {"ann": "left", "bob": "right", "cem": "left"},
        {"ann": "", "bob": "both bad", "cem": None},
        {"ann": "", "bob": None, "cem": ""},
    ]
    first, second, third = built(tmp_path, rows, raters=["ann", "bob", "cem"], **words)
    assert isinstance(first, PreferencePair)
    assert (first.preferred, first.ratings) == (0, (Rating("ann", 0), Rating("bob", 1), Rating("cem", 0)))
    assert isinstance(second, PreferencePair)
    assert (second.tie, second.ratings) == (Tie.BOTH_BAD, (Rating("bob", Tie.BOTH_BAD),))
    assert third == "no rating"
    assert built(tmp_path, rows[:2], raters=["ann", "bob", "cem"], least_agreement=0.7, **words)[0] == "people disagree"
    (listed,) = built(tmp_path, [{"votes": ["right", "", "right"]}], raters=["votes"], first="left", second="right")
    assert isinstance(listed, PreferencePair)
    assert (listed.preferred, listed.ratings) == (1, (Rating("rater 1", 1), Rating("rater 3", 1)))
    alone = built(tmp_path, [{"ann": 0}, {"ann": 1}, {"ann": None}], raters=["ann"])
    assert [pair.ratings if isinstance(pair, PreferencePair) else pair for pair in alone] == [
        (Rating("ann", 0),),
        (Rating("ann", 1),),
        "no rating",
    ]
    (counted,) = built(tmp_path, [{"n": [1, 3, 1]}], counts=["n"], least_agreement=0.6)
    assert isinstance(counted, PreferencePair)
    assert (counted.preferred, [rating.choice for rating in counted.ratings]) == (1, [0, 1, 1, 1, Tie.TIE])
    assert all(rating.rater.startswith("#") for rating in counted.ratings)
    for n, m in (("0", "2"), (0.0, 2.0), ("0.0", "2.0")):  # as CSV has numbers, and a column with gaps
        (counted,) = built(tmp_path, [{"n": n, "m": m}], counts=["n", "m"])
        assert isinstance(counted, PreferencePair)
        assert [rating.choice for rating in counted.ratings] == [1, 1]
    (gaps,) = built(tmp_path, [{"ann": None, "bob": 1.0, "cem": "0.0", "dan": 1}], raters=["ann", "bob", "cem", "dan"])
    assert isinstance(gaps, PreferencePair)
    assert [rating.choice for rating in gaps.ratings] == [1, 0, 1]


@pytest.mark.parametrize(
    ("row", "mapping", "said"),
    [
        ({"ann": "up"}, {"raters": ["ann"]}, "'up' is none of '0', '1'"),
        ({"n": [1, -1]}, {"counts": ["n"]}, "expected votes (0 to 1000)"),
        ({"n": [1]}, {"counts": ["n"]}, "expected votes"),
        ({"n": 1, "m": True}, {"counts": ["n", "m"]}, "expected votes"),
        ({"n": 1, "m": 1.5}, {"counts": ["n", "m"]}, "expected votes"),
    ],
)
def test_bad_columns_of_people(row: dict[str, object], mapping: dict[str, object], said: str, tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        built(tmp_path, [row], **mapping)
    assert said in str(caught.value)


def test_a_mapping_has_one_label() -> None:
    shared = {"name": "mine", "question": "q", "responses": ["a", "b"]}
    with pytest.raises(ValueError, match="give either chosen and rejected"):
        MappingConfig(**shared, raters=["c"], counts=["d"])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="least_agreement needs raters or counts"):
        MappingConfig(**shared, preferred="c", least_agreement=0.5)  # type: ignore[arg-type]
