# SPDX-License-Identifier: BSD-3-Clause
"""What is built and installed: instrumented binaries find nothing, programs link, files carry
their licence, and the documents tell the truth."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import BUILD, MIB, ROOT, VROOM, good, options, run

ASAN = BUILD / "asan"
TSAN = BUILD / "tsan"


def preload(library: str) -> str:
    return subprocess.check_output(["gcc", f"-print-file-name={library}"], text=True).strip()


def asan_fio(tmp_path, **settings):
    """fio itself is not instrumented, so its own allocations are not looked at for leaks."""
    settings = {"name": "job", "ioengine": f"external:{ASAN}/vroom.so", **settings}
    return run(
        "fio", *options(**settings),
        LD_PRELOAD=preload("libasan.so"),
        ASAN_OPTIONS=f"detect_leaks=0:log_path={tmp_path}/asan",
        UBSAN_OPTIONS="print_stacktrace=1:halt_on_error=1",
    )  # fmt: skip


def clean(tmp_path) -> None:
    reports = [p.read_text() for p in tmp_path.glob("asan.*")]
    assert not reports, reports[0][:3000]


needs_asan = pytest.mark.skipif(
    not (ASAN / "vroom.so").exists(), reason="build it: make BUILD=build/asan SANITIZE=address"
)
needs_tsan = pytest.mark.skipif(
    not (TSAN / "vroom").exists(), reason="build it: make driver BUILD=build/tsan SANITIZE=thread"
)


@needs_asan
@pytest.mark.parametrize("settings", [
    {"rw": "randwrite", "bsrange": "512-1M", "verify": "crc32c", "numjobs": 4,
     "offset_increment": "8M", "size": "8M", "iodepth": 8, "verify_state_save": 0},
    {"rw": "randrw", "thread": 1, "numjobs": 4, "size": "8M", "bs": "4k", "iodepth": 64},
    {"rw": "write", "bs": "4M", "iodepth": 16, "size": "64M", "fsync": 4},
    {"rw": "randtrim", "bs": "64k", "size": "8M", "iodepth": 8},
    {"rw": "randread", "bs": "7k", "size": "7M", "iodepth": 8, "io_submit_mode": "offload"},
])  # fmt: skip
def test_engine_and_controller_under_asan_and_ubsan(tmp_path, settings):
    result = good(asan_fio(tmp_path, filename=tmp_path / "disk", **settings))
    clean(tmp_path)
    assert "runtime error" not in result.text


@needs_asan
@pytest.mark.parametrize("fault", ["drop@300", "fatal@300", "exit@300", "cid@300", "error@64"])
def test_faults_under_asan(tmp_path, fault):
    result = asan_fio(tmp_path, filename=f"{tmp_path}/disk,fault={fault}", size="8M", rw="randread",
                      bs="4k", iodepth=4, io_timeout=1)  # fmt: skip
    assert result.status != 0 and result.vroom_lines
    assert "runtime error" not in result.text
    clean(tmp_path)


@needs_asan
def test_emulated_controller_under_asan_takes_nonsense(tmp_path):
    """The conformance tests again, against the instrumented controller."""
    result = run(
        "/usr/bin/python3", "-m", "pytest", "-q", "-p", "no:cacheprovider", ROOT / "tests",
        "-k", "test_emulator and not idle and not ends_cleanly and not bad_arguments",
        VROOM_UNDER_TEST=str(ASAN / "vroom"),
        ASAN_OPTIONS=f"log_path={tmp_path}/asan:detect_leaks=0", timeout=110,
    )  # fmt: skip
    assert result.status == 0, result.text[-3000:]
    clean(tmp_path)
    assert "passed" in result.out


@needs_asan
def test_no_leaks(tmp_path):
    """LeakSanitizer on the whole life of a controller, on both sides of the socket."""
    result = run(ASAN / "examples" / "hello", "emu-mem", ASAN_OPTIONS=f"log_path={tmp_path}/asan")
    assert result.status == 0, result.text
    clean(tmp_path)
    result = run(ASAN / "vroom", "id", "emu-mem", ASAN_OPTIONS=f"log_path={tmp_path}/asan")
    assert result.status == 0, result.text
    clean(tmp_path)


@needs_tsan
def test_threads_under_tsan(tmp_path):
    """Several threads, each with its queue pair, on one controller."""
    command = [
        TSAN / "vroom",
        "perf",
        "emu-mem,size=64M",
        "-j",
        "4",
        "-q",
        "8",
        "-t",
        "1",
        "-w",
        "randrw",
    ]
    prefix = ["setarch", "-R"] if shutil.which("setarch") else []
    result = run(*prefix, *command, TSAN_OPTIONS=f"log_path={tmp_path}/tsan")
    if "unexpected memory mapping" in result.text:
        pytest.skip("this kernel's address space layout is beyond ThreadSanitizer")
    assert result.status == 0, result.text
    reports = [p.read_text() for p in tmp_path.glob("tsan.*")]
    assert not reports, reports[0][:3000]


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """`make install` into a directory of its own: the prefix, and an environment that finds it."""
    prefix = tmp_path_factory.mktemp("installed") / "usr"
    good(run("make", "-s", "-C", ROOT, "install", f"PREFIX={prefix}", "BUILD=build/install",
             "CFLAGS=-O1", timeout=110))  # fmt: skip
    yield (
        prefix,
        {
            "PKG_CONFIG_PATH": str(prefix / "lib/pkgconfig"),
            "LD_LIBRARY_PATH": str(prefix / "lib"),
        },
    )
    shutil.rmtree(ROOT / "build" / "install")


def test_install_and_pkg_config(tmp_path, installed):
    """Headers, libraries, vroom.pc: the example builds against what was installed, and the
    installed command finds its own emulator and engine."""
    prefix, env = installed
    flags = good(run("pkg-config", "--cflags", "--libs", "vroom", **env)).out.split()
    program = tmp_path / "program"
    good(run("gcc", "-std=gnu11", ROOT / "driver/examples/hello.c", "-o", program, *flags))
    assert "as written" in good(run(program, "emu-mem", **env)).out
    static = good(run("pkg-config", "--static", "--libs-only-l", "vroom", **env)).out.split()
    assert "-ljson-c" in static
    assert "serial" in good(run(prefix / "bin/vroom", "id", "emu-mem")).out
    good(run(prefix / "bin/vroom", "fio", "--name=x", "--rw=read", "--filename=emu-mem", "--size=1M",
             cwd=tmp_path))  # fmt: skip


@pytest.mark.parametrize("compiler, source", [
    (["gcc", "-std=c11"], "outsider.c"), (["g++", "-std=c++11"], "outsider.cpp"),
    (["clang++", "-std=c++20"], "outsider.cpp"),
])  # fmt: skip
def test_programs_of_others(tmp_path, installed, compiler, source):
    """With memory of their own, vectors and threads, in C and C++, on the shared library; what they
    wrote is in the file: the pieces in reverse order."""
    if not shutil.which(compiler[0]):
        pytest.skip(f"needs {compiler[0]}")
    _, env = installed
    (tmp_path / source).write_text((ROOT / "tests/programs" / source).read_text())
    flags = good(run("pkg-config", "--cflags", "--libs", "vroom", **env)).out.split()
    program, disk = tmp_path / "outsider", tmp_path / "disk"
    good(run(*compiler, "-O1", "-Wall", "-Wextra", "-Werror", source, "-o", program, "-pthread",
             *flags, cwd=tmp_path))  # fmt: skip
    needed = good(run("readelf", "-d", program)).out
    assert "libvroom.so" in needed
    for target in ("emu-mem,size=16M", disk):
        if target == disk:
            disk.write_bytes(bytes(16 * MIB))
        assert "as written" in good(run(program, target, **env)).out
    factor, half = {"outsider.c": 7, "outsider.cpp": 5}[source], 4 * MIB
    for number in range(2):
        memory = b"".join(
            bytes((sector * factor + sector * 512 + i + number) & 255 for i in range(512))
            for sector in range(half // 512)
        )
        piece = half // 64
        pieces = [memory[at : at + piece] for at in range(0, half, piece)]
        with open(disk, "rb") as file:
            file.seek(number * half)
            assert file.read(half) == b"".join(reversed(pieces))


def test_public_headers_stand_alone(tmp_path):
    """Each compiles by itself."""
    for header in sorted((ROOT / "driver/include").glob("*.h")):
        source = tmp_path / "x.c"
        source.write_text(f'#include "{header.name}"\nint main(void) {{ return 0; }}\n')
        good(
            run(
                "gcc", "-Wall", "-Werror", "-I", header.parent, "-c", source, "-o", tmp_path / "x.o"
            )
        )


def test_only_the_api_is_exported():
    """libvroom.so shows vroom_* and nothing else; the engine shows what fio asks for."""
    for library, allowed in [
        (BUILD / "libvroom.so", r"vroom_\w+"),
        (BUILD / "vroom.so", r"get_ioengine|vroom_\w+"),
    ]:
        lines = good(run("nm", "-D", "--defined-only", library)).out.splitlines()
        # A is the name of a version; names are followed by theirs.
        names = [line.split()[2].split("@")[0] for line in lines if line.split()[1] != "A"]
        assert names and all(re.fullmatch(allowed, name) for name in names), names


def tracked() -> list[Path]:
    found = run("git", "-C", ROOT, "ls-files")
    if found.status:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in found.out.split("\n") if name]


def test_every_file_says_its_licence():
    missing, wrong = [], []
    for path in tracked():
        if path.suffix in (".md", ".svg", ".png") or path.name in ("LICENSE", "requirements.txt"):
            continue
        head = path.read_text()[:200]
        if "SPDX-License-Identifier" not in head:
            missing.append(path)
        gpl = "GPL-2.0-only" in head
        if gpl != (path.parent.name == "fio_plugin"):
            wrong.append(path)
    assert not missing and not wrong


def test_top_level_is_as_agreed():
    names = {p.relative_to(ROOT).parts[0] for p in tracked()}
    visible = {n for n in names if not n.startswith(".")}
    assert visible == {
        "Makefile",
        "driver",
        "fio_plugin",
        "jobs",
        "tests",
        "docs",
        "README.md",
        "LICENSE",
    }


def commands_of(document: Path) -> list[str]:
    """The shell commands that a document shows, from blocks marked sh."""
    blocks = re.findall(r"```sh\n(.*?)```", document.read_text(), re.S)
    return [line for block in blocks for line in block.splitlines() if line and line[0] != "#"]


@pytest.mark.parametrize(
    "document", ["README.md", "docs/addresses.md", "docs/engine.md", "docs/experiments.md"]
)
def test_commands_in_the_documents_work(document, tmp_path):
    """Runs every command shown, but for those that need a drive or call the suite itself."""
    ran = 0
    background = []
    (tmp_path / "build").symlink_to(BUILD)
    (tmp_path / "jobs").symlink_to(ROOT / "jobs")
    (tmp_path / "job.fio").write_text("[job]\nsize=4M\nrw=randread\nruntime=1\n")
    (tmp_path / "disk.img").write_bytes(bytes(MIB))
    for command in commands_of(ROOT / document):
        if re.match(r"make|git|sudo|cd ", command) or "/dev/nvme" in command or "0000" in command:
            continue
        if command.endswith("&"):
            process = subprocess.Popen(command.rstrip("& "), shell=True, cwd=tmp_path,
                                       stdout=subprocess.PIPE, start_new_session=True)  # fmt: skip
            process.stdout.readline()
            background.append(process)
            continue
        done = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True,
                              timeout=60)  # fmt: skip
        assert done.returncode == 0, f"{command}\n{done.stdout[-1500:]}{done.stderr}"
        ran += 1
    for process in background:
        os.killpg(process.pid, 15)
        process.wait(5)
    assert ran


def test_options_are_documented():
    """Each engine option and each option of the emulated controller stands in the documents."""
    engine = (ROOT / "docs/engine.md").read_text()
    source = (ROOT / "fio_plugin/options.c").read_text()
    names = re.findall(r'(?:ENGINE_OPTION|IGNORED|IGNORED_TEXT)\("(\w+)"', source)
    assert len(names) > 10 and [n for n in names if f"`{n}`" not in engine] == []
    addresses = (ROOT / "docs/addresses.md").read_text()
    told = good(run(VROOM, "emulate", "--help")).out
    controls = set(re.findall(r"--([a-z-]+)=", told)) - {"socket", "ns"}
    assert len(controls) > 10 and [n for n in sorted(controls) if f"`{n}" not in addresses] == []
