# SPDX-License-Identifier: BSD-3-Clause
"""QEMU's NVMe controllers without a guest, in the shape that a test asks for."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import MIB, ROOT, wait_for

BRIDGE = ROOT / "tests/qemubridge.py"
NEEDED = ["qemu-system-x86_64", "setpriv"]


@dataclass(frozen=True)
class Namespace:
    """QEMU's options of it, and what becomes of accesses to its image."""

    options: str = ""
    size: int = 64 * MIB
    errors: tuple[tuple[str, int], ...] = ()  # (read, write, flush or discard; sector or -1)
    iops: int = 0  # at most
    read_only: bool = False

    def arguments(self, name: str, image: Path) -> list[str]:
        access = {"discard": "unmap", "read-only": self.read_only}
        node = {"driver": "file", "filename": str(image), **access}
        node = {"driver": "raw", "file": node, **access}
        before = []
        if self.errors:
            rules = [{"event": "none", "iotype": kind, "sector": sector, "errno": 5,
                      "once": False} for kind, sector in self.errors]  # fmt: skip
            node = {"driver": "blkdebug", "image": node, "inject-error": rules, **access}
        if self.iops:
            before = ["-object", f"throttle-group,id={name}-pace,x-iops-total={self.iops}"]
            node = {"driver": "throttle", "throttle-group": f"{name}-pace", "file": node, **access}
        return [*before, "-blockdev", json.dumps({**node, "node-name": name}),
                "-device", f"nvme-ns,bus=nvme,drive={name}{self.options and ','}{self.options}",
                ]  # fmt: skip


@dataclass(frozen=True)
class Shape:
    """QEMU's options of the controller, its namespaces, and what else the machine has."""

    controller: str = ""
    namespaces: tuple[Namespace, ...] = (Namespace(),)
    others: tuple[str, ...] = ()


class QemuNvme:
    """A controller that serves one client after the other on SOCKET."""

    def __init__(self, shape: Shape, directory: Path):
        directory.mkdir()
        self.directory = directory
        self.socket = directory / "nvme.sock"
        self.images: list[Path] = []
        options = f"nvme,id=nvme,serial=qemu{shape.controller and ','}{shape.controller}"
        command = [*shape.others, "-device", options]
        for number, namespace in enumerate(shape.namespaces, 1):
            image = directory / f"image{number}"
            image.touch()
            os.truncate(image, namespace.size)
            self.images.append(image)
            command += namespace.arguments(f"ns{number}", image)
        self.process = subprocess.Popen(
            [sys.executable, BRIDGE, self.socket, *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        line = self.process.stdout.readline()
        assert "listening" in line, line + self.process.stderr.read()

    def processes(self) -> list[int]:
        """All that were told of this controller: the bridge, QEMU, and clients."""
        found = []
        for entry in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                if str(self.directory).encode() + b"/" in entry.read_bytes():
                    found.append(int(entry.parent.name))
            except OSError:  # has ended
                continue
        return found

    @property
    def qemu(self) -> int:
        children = f"/proc/{self.process.pid}/task/{self.process.pid}/children"
        return int(Path(children).read_text())

    def stop(self) -> str:
        """What the bridge and QEMU complained about."""
        self.process.terminate()
        return self.process.communicate(timeout=10)[1]


@pytest.fixture
def qemu_nvme(tmp_path) -> Iterator:
    """Starts controllers of a Shape; ends them after the test, when all clients are gone."""
    for tool in NEEDED:
        if not shutil.which(tool):
            pytest.skip(f"needs {tool}")
    running: list[QemuNvme] = []

    def start(shape: Shape | None = None) -> QemuNvme:
        running.append(QemuNvme(shape or Shape(), tmp_path / f"qemu{len(running)}"))
        return running[-1]

    yield start
    for one in running:
        one.stop()
    wait_for(lambda: not any(one.processes() for one in running), what="end of the clients")
