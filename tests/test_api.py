# SPDX-License-Identifier: BSD-3-Clause
"""What vroom.h promises to programs: tests/programs/, compiled against the library and run."""

from __future__ import annotations

import pytest
from conftest import MIB, ROOT, UNDER_TEST, VROOM, good, run

ENVIRONMENT = {"VROOM": str(VROOM)}


# --- commands --------------------------------------------------------------------------------


def test_commands_without_blocks_or_memory_are_refused(disk, program):
    """And nothing changes: zero blocks are not 65536, no memory is not memory at 0."""
    before = disk.read_bytes()
    result = run(program("refused"), disk, **ENVIRONMENT)
    assert disk.read_bytes() == before
    accepted = [line for line in result.out.splitlines() if not line.endswith(": -22")]
    assert not accepted, result.out
    good(result)


@pytest.mark.parametrize("where", ["dma", "own"])
def test_ranges_are_copied_at_submission(disk, program, where):
    before = disk.read_bytes()
    good(run(program("ranges"), disk, where, **ENVIRONMENT))
    after = disk.read_bytes()
    assert not any(after[:MIB]) and not any(after[2 * MIB : 3 * MIB])
    assert after[MIB : 2 * MIB] == before[MIB : 2 * MIB] and after[3 * MIB :] == before[3 * MIB :]


# --- deadlines -------------------------------------------------------------------------------

ETIMEDOUT, ENODEV = 110, 19


def test_lost_command_is_noticed_by_who_polls_seldom(program):
    result = good(run(program("seldom"), "emu-null,fault=drop@4", **ENVIRONMENT))
    error, seconds, line = result.out.split(" ", 2)
    assert int(error) == ETIMEDOUT and 1 <= float(seconds) < 6
    assert "deadline of 1000 ms" in line and "read of 8 blocks" in line


def test_dead_controller_is_noticed_by_who_polls_seldom(program, controller):
    served = controller("--ns", "null=1G")
    result = good(run(program("seldom"), served.socket, served.process.pid, **ENVIRONMENT))
    error, seconds, line = result.out.split(" ", 2)
    assert int(error) == ENODEV and float(seconds) < 6 and "closed the connection" in line


def test_sleeping_for_completions_survives_signals(program):
    """It takes as long as asked, and a deadline is told, however often poll() is interrupted."""
    good(run(program("waits"), "emu-null,fault=drop@1", **ENVIRONMENT))


@pytest.mark.parametrize("kind", ["flush", "zeroes", "deallocate"])
def test_commands_for_a_whole_drive_may_take_longer(program, controller, kind):
    served = controller("--ns", "mem=1M")
    result = good(run(program("patience"), served.socket, served.process.pid, kind, **ENVIRONMENT))
    assert result.out == "status 0\n"


def test_reads_may_not_take_longer(program, controller):
    served = controller("--ns", "mem=1M")
    result = good(
        run(program("patience"), served.socket, served.process.pid, "read", **ENVIRONMENT)
    )
    assert "deadline of 300 ms" in result.out


# --- headers ---------------------------------------------------------------------------------

LANGUAGES = [
    *[(compiler, "c", "c11") for compiler in ("gcc", "clang")],
    *[(compiler, "c++", f"c++{year}") for compiler in ("g++", "clang++")
      for year in ("11", "14", "17", "20")],
]  # fmt: skip


@pytest.mark.parametrize("compiler, language, standard", LANGUAGES)
def test_headers_suit_every_language(tmp_path, compiler, language, standard):
    """Standard C and C++, without a warning that one can ask for."""
    if run("sh", "-c", f"command -v {compiler}").status:
        pytest.skip(f"needs {compiler}")
    good(run(compiler, f"-std={standard}", "-O2", "-Wall", "-Wextra", "-Wconversion",
             "-Wpointer-arith", "-pedantic", "-Werror", "-I", UNDER_TEST / "driver/include",
             "-x", language, "-c", ROOT / "tests/programs/every.c", "-o", tmp_path / "every.o"))  # fmt: skip
