# SPDX-License-Identifier: BSD-3-Clause
"""The short form of `make model`: the queue code in all its interleavings, and with faults in it."""

from __future__ import annotations

from conftest import ROOT, good, run

RUN = ROOT / "tests" / "model" / "run.py"


def test_every_interleaving_of_small_queues_is_fine():
    result = good(run("/usr/bin/python3", RUN, "--short", "--only", "driver", timeout=110))
    lines = [line for line in result.out.splitlines() if line.startswith("--depth")]
    assert len(lines) == 10
    for line in lines:
        *_, verdict, _states, _steps, met, _of, there_are = line.split()
        assert verdict == "holds"
        assert met == there_are, "not all wraps and flips of the phase were met"


def test_faults_in_the_queue_code_are_found():
    result = good(run("/usr/bin/python3", RUN, "--short", "--only", "mutants", timeout=110))
    assert "NOT AS EXPECTED" not in result.out
    assert len(result.out.splitlines()) > 10
