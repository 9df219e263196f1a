"""Rows without their padding, and passes of rows of like width."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rewardlab.models.padding import PassLimits, trim, untrim

WIDTHS = st.lists(st.integers(1, 50), min_size=1, max_size=20)


@given(WIDTHS, st.integers(1, 8), st.integers(1, 200))
def test_every_row_is_read_once_within_the_limits(widths: list[int], rows: int, positions: int) -> None:
    for limits in (PassLimits(rows), PassLimits(None, positions), PassLimits(rows, positions)):
        passes = limits.cut(widths)
        assert sorted(row for part in passes for row in part) == list(range(len(widths)))
        for part in passes:
            assert limits.rows is None or len(part) <= rows
            assert limits.positions is None or len(part) == 1 or len(part) * max(widths[row] for row in part) <= positions
    assert len(PassLimits(rows).cut(widths)) == -(-len(widths) // rows)  # on every process the same, whatever their widths


@pytest.mark.slow
@given(WIDTHS, st.integers(1, 200), st.data())
def test_all_processes_have_as_many_passes(widths: list[int], positions: int, data: st.DataObject) -> None:
    alone = len(PassLimits(positions=positions).cut(widths))
    number = data.draw(st.integers(alone, len(widths)))
    passes = PassLimits(positions=positions, max_processes=lambda own: max(own, number)).cut(widths)
    assert len(passes) == number
    assert all(passes)
    assert sorted(row for part in passes for row in part) == list(range(len(widths)))


def test_fewer_rows_than_passes() -> None:
    with pytest.raises(ValueError, match="2 rows cannot be split into 3 passes"):
        PassLimits(positions=9, max_processes=lambda own: 3).cut([4, 4])


def test_rows_of_one_width_stay_in_their_order() -> None:
    assert PassLimits(rows=2).cut([5, 5, 5, 5, 5]) == [[0, 1], [2, 3], [4]]
    assert PassLimits(rows=2).cut([3, 9, 3, 8]) == [[1, 3], [0, 2]]


def test_padding_on_both_sides_is_cut_and_put_back() -> None:
    mask = torch.tensor([[0, 0, 1, 1, 1, 0], [0, 1, 1, 0, 0, 0]])
    ids = torch.tensor([[0, 0, 5, 6, 7, 0], [0, 8, 9, 0, 0, 0]])
    trimmed = trim({"ids": ids, "mask": mask}, mask)
    assert trimmed["ids"].tolist() == [[5, 6, 7], [8, 9, 0]]
    assert trimmed["mask"].tolist() == [[1, 1, 1], [1, 1, 0]]
    back = untrim(trimmed["ids"], mask, slice(None))
    assert (back * mask).tolist() == ids.tolist()
    assert untrim(trimmed["ids"], mask, slice(4, 6)).tolist() == [[7, 7], [9, 9]]
