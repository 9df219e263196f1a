"""The scans of handwritten digits that travel with the package."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rewardlab.demo.digits import collection

ROOT = Path(__file__).parents[2]


def test_the_scans_are_those_of_scikit_learn() -> None:
    """Bit for bit, pictures and labels."""
    bunch = pytest.importorskip("sklearn.datasets").load_digits()
    images, labels = collection()
    assert images.shape == (1797, 8, 8)
    np.testing.assert_array_equal(images, bunch.images)
    np.testing.assert_array_equal(labels, bunch.target)


def test_the_demonstration_needs_no_scikit_learn() -> None:
    code = "import sys; sys.modules['sklearn'] = None; from rewardlab.demo.digits import collection; collection()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
