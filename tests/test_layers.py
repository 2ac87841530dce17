# SPDX-License-Identifier: BSD-3-Clause
"""The driver's layers go down only: no file includes a header of a layer above its own."""

from __future__ import annotations

import re

from conftest import ROOT

# Lower layers first. The public headers lie below all: they are the contract.
LAYERS = ["include", "base", "pci", "transport", "core", "emulator", "cli"]
DRIVER = ROOT / "driver"


def layer_of(include: str) -> str:
    return include.split("/")[0] if "/" in include else "include"


def upward_includes() -> list[str]:
    found = []
    for layer in LAYERS:
        for path in sorted((DRIVER / layer).glob("*.[ch]")):
            for name in re.findall(r'^#include "(.*)"', path.read_text(), re.MULTILINE):
                above = layer_of(name)
                if LAYERS.index(above) > LAYERS.index(layer):
                    found.append(f"{layer}/{path.name} -> {name}")
    return found


def test_nobody_includes_upwards():
    assert upward_includes() == []


def test_every_directory_of_the_driver_is_a_layer():
    directories = {path.name for path in DRIVER.iterdir() if path.is_dir()}
    assert directories == {*LAYERS, "examples"}


def test_the_public_headers_are_all_that_programs_need():
    for path in (DRIVER / "examples").glob("*.c"):
        assert re.findall(r'^#include "(.*)"', path.read_text(), re.MULTILINE) == ["vroom.h"]
