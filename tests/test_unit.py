# SPDX-License-Identifier: BSD-3-Clause
"""The unit tests of the driver's core (tests/unit): as they are, and under sanitizers."""

from __future__ import annotations

import pytest
from conftest import BUILD, ROOT, good, needs_libraries, run

PROGRAMS = sorted(path.stem for path in (ROOT / "tests/unit").glob("test_*.c"))


def unit(build, name: str, **environment: str):
    program = build / "tests/unit" / name
    if not program.exists():
        pytest.skip(f"needs {program}: make unit-programs")
    result = good(run(program, CMOCKA_MESSAGE_OUTPUT="TAP", **environment))
    print(result.out)


@pytest.mark.parametrize("name", PROGRAMS)
def test_unit(name):
    unit(BUILD, name)


@pytest.mark.parametrize("name", PROGRAMS)
def test_unit_under_asan_and_ubsan(name):
    unit(BUILD / "asan", name)


@pytest.mark.parametrize("name", ["test_threads", "test_admin"])
def test_unit_under_tsan(name):
    unit(BUILD / "tsan", name)


@needs_libraries
@pytest.mark.parametrize("build", [BUILD, BUILD / "asan"], ids=["plain", "asan"])
def test_made_up_sequences(build):
    """Hypothesis makes sequences of operations up; a reference says what must come of them."""
    program = build / "tests/unit/ops"
    if not program.exists():
        pytest.skip(f"needs {program}: make unit-programs")
    good(run(ROOT / ".venv/bin/python", ROOT / "tests/unit/properties.py", program))
