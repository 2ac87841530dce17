# SPDX-License-Identifier: BSD-3-Clause
"""Memory that controllers reach: who gets it, how it grows, and that nobody else writes to it."""

from __future__ import annotations

import json
import os
import signal
import subprocess

import pytest
from conftest import BUILD, ENGINE, MIB, VROOM, good, run, vroom, wait_for


def environment(**more: str) -> dict[str, str]:
    """Programs that the tests compile find the command by this."""
    return {"VROOM": str(VROOM), **more}


def oracle(path, size: int) -> None:
    """4096 bytes full of their own number each, as the fixture disk has them."""
    with open(path, "wb") as file:
        for block in range(size // 4096):
            file.write((block + 1).to_bytes(8, "little") * 512)


# --- late DMA --------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [{}, {"thread": 1}], ids=["forked", "threads"])
def test_drive_that_wakes_up_late_writes_nowhere(tmp_path, controller, mode):
    """A stops with reads under way and its job ends; while the next job writes to B, A goes on."""
    a, b, job = tmp_path / "a", tmp_path / "b", tmp_path / "job.fio"
    a.write_bytes(b"\xaa" * 64 * MIB)
    served = controller("--ns", f"file={a}")
    job.write_text(
        f"[global]\nioengine={ENGINE}\nbs=128k\niodepth=64\nio_timeout=1\n"
        + "".join(f"{name}={value}\n" for name, value in mode.items())
        + f"[a]\nfilename={served.socket}\nrw=randread\ntime_based\nruntime=60\n"
        f"[b]\nstonewall\nfilename={b}\nrw=write\nsize=32M\nrate=16M\nbuffer_pattern=0xbb\n"
    )
    process = subprocess.Popen(["fio", job], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               text=True)  # fmt: skip

    def reads() -> int:
        io = dict(line.split(": ") for line in open(f"/proc/{served.process.pid}/io"))
        return int(io["rchar"])

    try:
        at_rest = reads()
        wait_for(lambda: reads() > at_rest + 64 * MIB, what="reads on A")
        os.kill(served.process.pid, signal.SIGSTOP)
        wait_for(lambda: b.exists() and b.stat().st_blocks * 512 > 4 * MIB, 20, "writes to B")
    finally:
        os.kill(served.process.pid, signal.SIGCONT)
    text, _ = process.communicate(timeout=30)
    assert "deadline of 1000 ms" in text
    assert text.count("err= 0") == 1, text
    data = b.read_bytes()
    assert len(data) == 32 * MIB and data.count(b"\xbb") == len(data), "B holds what is not B's"


# --- allocation ------------------------------------------------------------------------------


def test_alignments_are_kept(program):
    good(run(program("alloc"), "emu-null", "align", **environment()))


def test_sizes_that_no_machine_has_are_refused(program):
    good(run(program("alloc"), "emu-null", "sizes", **environment()))


def test_allocations_survive_kills_of_others(program):
    """Processes that allocate and free are killed at any instruction, a few hundred times."""
    assert int(good(run(program("killed"), "emu-null", 300, **environment())).out) >= 30


def test_memory_of_dead_workers_comes_back(program, controller):
    """Each worker makes memory grow by 300 MiB and is killed; the controller does not keep it."""
    served = controller("--ns", "null=1G")
    result = good(run(program("grow"), served.socket, served.process.pid, 20, **environment()))
    (first, *rest) = [tuple(map(int, line.split())) for line in result.out.splitlines()]
    assert len(rest) == 20
    assert max(mib for mib, _ in rest) <= first[0] + 2048
    assert max(mappings for _, mappings in rest) <= first[1] + 4


# --- growth ----------------------------------------------------------------------------------


@pytest.mark.parametrize("pages", [0, 240])
@pytest.mark.parametrize("mib, workers", [(64, 0), (24, 4)])
def test_reads_into_ordinary_memory_of_any_size(disk, program, huge_pages, pages, mib, workers):
    """Memory for the copies is added as it is needed, be there huge pages or not."""
    huge_pages(pages)
    good(run(program("copied"), disk, mib, workers, **environment()))


def test_large_read_goes_on_with_little_memory(disk, program):
    """There is room for a few parts at a time, not for all."""
    good(run(program("scarce"), disk, **environment()))


def test_many_deep_jobs_with_large_blocks():
    """64 queues of 512 slow commands, each with a PRP list and a buffer of its own."""
    result = run("fio", "--output-format=json", "--name=x", f"--ioengine={ENGINE}",
                 "--filename=emu-null,read-latency=100000", "--rw=randread", "--bs=16k",
                 "--iodepth=512", "--numjobs=64", "--size=1G", "--runtime=3", "--time_based",
                 timeout=100)  # fmt: skip
    assert [job["error"] for job in good(result).jobs] == [0] * 64
    assert not result.vroom_lines and "fio:" not in result.text


@pytest.mark.skipif(
    not (BUILD / "tsan/libvroom.a").exists(),
    reason="build it: make driver BUILD=build/tsan SANITIZE=thread",
)
def test_threads_that_allocate_and_grow_do_not_race(tmp_path, program):
    result = run("setarch", "-R", program("threads", "tsan"), "emu-mem,size=8M", timeout=100,
                 **environment(TSAN_OPTIONS=f"log_path={tmp_path}/tsan"))  # fmt: skip
    if "unexpected memory mapping" in result.text:
        pytest.skip("this kernel's address space layout is beyond ThreadSanitizer")
    reports = [path.read_text() for path in tmp_path.glob("tsan.*")]
    assert not reports, reports[0][:3000]
    good(result)


# --- a command that needs more than there is ---------------------------------------------------


@pytest.mark.parametrize("entries", [2, 4, 4096])
def test_large_command_at_depth_one_by_messages(entries):
    """4 MiB in parts of 8 KiB on queues of few entries, where doorbells are messages."""
    address = f"emu-mem,mmap=off,mdts=8192,entries={entries}"
    told = json.loads(good(vroom("perf", address, "-o", "4M", "-q", "1", "-w", "write", "-T", "5",
                                 "-t", "1", "--json", timeout=30)).out)  # fmt: skip
    assert told["ios"] > 0 and told["errors"] == 0


def test_perf_says_when_it_cannot_submit():
    """One line and no figures, with ever more memory that it may map: too little for the buffers at
    first, then too little for the lists of so many commands, which it finds out as it submits."""
    for limit in range(340, 1000, 8):
        result = run("prlimit", f"--as={limit * MIB}", VROOM, "perf", "emu-null,size=1G", "-q",
                     "5000", "-o", "64k", "-t", "0.1", timeout=20)  # fmt: skip
        assert result.status != 0 and "IOPS" not in result.out, result.text
        assert len(result.err.splitlines()) == 1, result.text
        if "no DMA memory for a transfer" in result.err:
            return
    pytest.fail("submission did not fail")
