#!/usr/bin/python3
# SPDX-License-Identifier: BSD-3-Clause
"""The driver's layers, what each of them includes, and whether any arrow goes up (`make check`)."""

from __future__ import annotations

import collections
import re
import sys
from pathlib import Path

DRIVER = Path(__file__).resolve().parent.parent / "driver"
# Lower layers first. The public headers lie below all: they are the contract.
LAYERS = ["include", "base", "pci", "transport", "core", "emulator", "cli"]
# core, transports, base and pci together; and a file.
MOST_LINES, MOST_LINES_OF_A_FILE = 6500, 650


def files(layer: str) -> list[Path]:
    return sorted((DRIVER / layer).glob("*.[ch]"))


def includes(path: Path) -> list[str]:
    return re.findall(r'^#include "(.*)"', path.read_text(), re.MULTILINE)


def layer_of(include: str) -> str:
    return include.split("/")[0] if "/" in include else "include"


def arrows() -> dict[str, collections.Counter]:
    """By layer: how many files of it include something of another layer."""
    return {
        layer: collections.Counter(
            target for path in files(layer) for target in {layer_of(i) for i in includes(path)}
        )
        for layer in LAYERS
    }


def upward() -> list[str]:
    return [
        f"{layer}/{path.name} includes {include}"
        for layer in LAYERS
        for path in files(layer)
        for include in includes(path)
        if LAYERS.index(layer_of(include)) > LAYERS.index(layer)
    ]


def lines() -> dict[Path, int]:
    counted = ("base", "pci", "transport", "core")
    return {path: path.read_text().count("\n") for layer in counted for path in files(layer)}


def main() -> int:
    for layer, targets in reversed(arrows().items()):
        below = [f"{t} ({targets[t]} files)" for t in LAYERS if targets[t] and t != layer]
        print(f"{layer:10} -> {', '.join(below) or 'nothing'}")
    print(f"{sum(lines().values())} lines in core, transport, pci and base")
    for line in upward():
        print(f"UPWARDS: {line}", file=sys.stderr)
    return 1 if upward() else 0


if __name__ == "__main__":
    sys.exit(main())
