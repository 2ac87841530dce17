# SPDX-License-Identifier: BSD-3-Clause
"""What repeats say about a figure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence


def relative(values: Sequence[float]) -> float:
    """The range of the values as a share of their median."""
    middle = statistics.median(values)
    return (max(values) - min(values)) / middle if middle else 0.0


def overlap(a: Sequence[float], b: Sequence[float]) -> bool:
    """Do the ranges touch? Then which is larger is not known."""
    return min(a) <= max(b) and min(b) <= max(a)
