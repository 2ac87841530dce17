# SPDX-License-Identifier: BSD-3-Clause
"""What the tests share: paths, real fio processes, real controllers."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from guest import Result

pytest_plugins = ["vm_fixtures", "qemu_fixtures"]  # vm_fixtures is of vm/

ROOT = Path(__file__).resolve().parent.parent
# Another checkout than this, built: the tests then run against its command, engine and library.
UNDER_TEST = Path(os.environ.get("VROOM_TREE_UNDER_TEST", ROOT))
BUILD = UNDER_TEST / "build"
VROOM = Path(os.environ.get("VROOM_UNDER_TEST", BUILD / "vroom"))
ENGINE = f"external:{BUILD / 'vroom.so'}"
# A sweep: one experiment, two engines, four points.
TINY = """
title = "Tiny"
source = "a test"
about = "Reads and writes."
baseline = "psync"
[options]
bs = "4k"
direct = 1
time_based = 1
runtime = "1s"
size = "16m"
[[experiment]]
name = "tiny"
title = "Tiny"
engines = ["psync", "vroom"]
log = true
[experiment.vary]
rw = ["randread", "randwrite"]
bs = ["4k", "16k"]
[[experiment.figure]]
name = "bars"
title = "Bars"
kind = "bars"
x = "rw"
y = "iops"
[[experiment.figure]]
name = "time"
title = "Time"
kind = "time"
"""
# What the static library needs besides.
LIBRARIES = "-pthread -lpciaccess -lhugetlbfs -lnuma -ljson-c -ldl".split()
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


def run(*command: object, timeout: float = 60, cwd: Path | None = None, **env: str) -> Result:
    done = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        timeout=timeout,
        cwd=cwd,
        env={**os.environ, **env},
        stdin=subprocess.DEVNULL,
    )
    return Result(done.returncode, done.stdout, done.stderr)


def vroom(*arguments: object, **options) -> Result:
    return run(VROOM, *arguments, **options)


def options(**settings: object) -> list[str]:
    """fio's command line: options(bs="4k", thread=True)."""
    return [
        f"--{name}" if value is True else f"--{name}={value}" for name, value in settings.items()
    ]


def fio(*arguments: object, cwd: Path | None = None, timeout: float = 60, **settings) -> Result:
    """Runs a job on vroom, or on ioengine=, with JSON as output."""
    settings = {"ioengine": ENGINE, "name": "job", **settings}
    command = ["fio", "--output-format=json", *options(**settings), *arguments]
    return run(*command, cwd=cwd, timeout=timeout)


def good(result: Result) -> Result:
    assert result.status == 0, result.text
    return result


PR_SET_CHILD_SUBREAPER = 36
# Processes that nobody waits for become ours, so that they can be found, and nobody else's are.
ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants(ancestor: int | None = None) -> dict[int, str]:
    """The processes that ANCESTOR, or this one, has started and that run: name by pid."""
    parents, names = {}, {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            pid, rest = stat.read_text().split(" (", 1)
        except OSError:
            continue  # it has just ended
        name, fields = rest.rsplit(") ", 1)
        state, parent = fields.split()[:2]
        if state != "Z":
            parents[int(pid)], names[int(pid)] = int(parent), name
    found, generation = {}, {ancestor or os.getpid()}
    while generation:
        generation = {pid for pid, parent in parents.items() if parent in generation}
        found.update((pid, names[pid]) for pid in generation)
    return found


def emulators() -> list[int]:
    """Emulated controllers that these tests started and that are running now."""
    return [pid for pid, name in descendants().items() if name == "vroom"]


def wait_for(condition, seconds: float = 5, what: str = "condition"):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.01)
    raise AssertionError(f"no {what} within {seconds} s")


def unescape(path: Path | str) -> str:
    """A path as fio's filename= wants it."""
    return re.sub(r"([:\\])", r"\\\1", str(path))


class Controller:
    """A `vroom emulate` that the test started by hand."""

    def __init__(self, socket: Path, *arguments: str):
        self.socket = socket
        self.process = subprocess.Popen(
            [VROOM, "emulate", "--socket", socket, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        line = self.process.stdout.readline()
        assert "listening" in line, line + self.process.stderr.read()

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.terminate()
        try:
            return self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise


@pytest.fixture
def controller(tmp_path):
    """Starts emulated controllers on sockets and ends them after the test."""
    running: list[Controller] = []

    def start(*arguments: str) -> Controller:
        running.append(Controller(tmp_path / f"nvme{len(running)}.sock", *arguments))
        return running[-1]

    yield start
    for one in running:
        one.stop()


@pytest.fixture
def disk(tmp_path) -> Path:
    """A file with 64 MiB of data that is not zero anywhere and repeats nowhere."""
    path = tmp_path / "disk"
    with open(path, "wb") as file:
        for block in range(64 * MIB // 4096):
            file.write((block + 1).to_bytes(8, "little") * 512)
    return path


@pytest.fixture(scope="session")
def program(tmp_path_factory):
    """Compiles tests/programs/NAME.c against the library: program("alloc"), with a sanitizer."""
    built = tmp_path_factory.mktemp("programs")

    def build(name: str, sanitizer: str = "") -> Path:
        path, library = built / f"{name}{sanitizer}", BUILD / "libvroom.a"
        flags = []
        if sanitizer:
            library = BUILD / sanitizer / "libvroom.a"
            flags = ["-fsanitize=thread"] if sanitizer == "tsan" else ["-fsanitize=address"]
        if not path.exists():
            good(run("gcc", "-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", *flags,
                     "-I", UNDER_TEST / "driver/include", ROOT / f"tests/programs/{name}.c",
                     "-o", path, library, *LIBRARIES))  # fmt: skip
        return path

    return build


@pytest.fixture
def huge_pages(tmp_path):
    """Reserves huge pages of 2 MiB, and takes them back."""
    sysctl = Path("/proc/sys/vm/nr_hugepages")
    mount, reserved = tmp_path / "huge", 0
    mounted = "hugetlbfs" in Path("/proc/mounts").read_text()

    def free() -> int:
        return int(Path("/proc/meminfo").read_text().split("HugePages_Free:")[1].split()[0])

    def reserve(count: int) -> None:
        nonlocal reserved
        before, had = int(sysctl.read_text()), free()
        sysctl.write_text(str(before + count))
        reserved += int(sysctl.read_text()) - before
        if free() - had < count:
            pytest.skip(f"this machine gives no {count} huge pages")

    if os.geteuid():
        pytest.skip("needs root")
    mount.mkdir()
    if not mounted and run("mount", "-t", "hugetlbfs", "none", mount).status:
        pytest.skip("hugetlbfs cannot be mounted here")
    try:
        yield reserve
    finally:
        sysctl.write_text(str(int(sysctl.read_text()) - reserved))
        # A controller that is about to end has pages of it still.
        if not mounted:
            wait_for(lambda: run("umount", mount).status == 0, 10, "end of the huge pages' users")


@pytest.fixture(autouse=True)
def nothing_left_behind():
    """Each test leaves the emulated controllers as it found them."""
    before = set(emulators())
    yield
    wait_for(lambda: set(emulators()) <= before, what="end of the emulated controllers")


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
needs_libraries = pytest.mark.skipif(
    not (ROOT / ".venv/installed").exists(), reason="needs .venv: make sweep-deps"
)
needs_tool = {
    name: pytest.mark.skipif(not shutil.which(name), reason=f"needs {name}")
    for name in ("setarch", "pkg-config", "mount")
}
