# SPDX-License-Identifier: BSD-3-Clause
"""The driver's layers go down only: no file includes a header of a layer above its own."""

from __future__ import annotations

from layers import DRIVER, LAYERS, MOST_LINES, MOST_LINES_OF_A_FILE, includes, lines, upward


def test_nobody_includes_upwards():
    assert upward() == []


def test_every_directory_of_the_driver_is_a_layer():
    directories = {path.name for path in DRIVER.iterdir() if path.is_dir()}
    assert directories == {*LAYERS, "examples"}


def test_the_public_headers_are_all_that_programs_need():
    for path in (DRIVER / "examples").glob("*.c"):
        assert includes(path) == ["vroom.h"]


def test_the_driver_stays_small():
    assert sum(lines().values()) < MOST_LINES
    assert {path: n for path, n in lines().items() if n > MOST_LINES_OF_A_FILE} == {}
