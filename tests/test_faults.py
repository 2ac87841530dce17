# SPDX-License-Identifier: BSD-3-Clause
"""Signals, dying controllers and bad input: one clear line, nothing hangs, nothing is left."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest
from conftest import (
    ENGINE,
    MIB,
    VROOM,
    emulators,
    fio,
    good,
    needs_root,
    options,
    run,
    vroom,
    wait_for,
)

JOB = {
    "name": "job",
    "ioengine": ENGINE,
    "rw": "randrw",
    "bs": "4k",
    "iodepth": 8,
    "numjobs": 4,
    "size": "64M",
    "runtime": 20,
    "time_based": True,
    "group_reporting": True,
}


class Running:
    """A fio job in mid-run."""

    def __init__(self, path: Path, **settings):
        command = ["fio", *options(**{**JOB, "filename": path, **settings})]
        others = set(emulators())
        self.started = time.monotonic()
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.controller = wait_for(lambda: set(emulators()) - others, what="controller").pop()
        wait_for(lambda: len(self.jobs()) == 4, what="jobs")
        time.sleep(0.7)

    def jobs(self) -> list[int]:
        found = run("pgrep", "-x", "-P", self.process.pid, "fio").out
        return [int(pid) for pid in found.split()]

    def end(self, within: float) -> tuple[int, str]:
        start = time.monotonic()
        try:
            text, _ = self.process.communicate(timeout=within)
        except subprocess.TimeoutExpired:
            self.process.kill()
            os.kill(self.controller, signal.SIGKILL)
            raise
        assert time.monotonic() - start < within
        assert run("pgrep", "-g", self.process.pid).out == ""
        return self.process.returncode, text


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_the_run(disk, number):
    job = Running(disk)
    job.process.send_signal(number)
    status, text = job.end(10)
    assert status == 128 and "terminating on signal" in text and "IOPS=" in text
    assert "vroom:" not in text


def test_ctrl_c_in_a_terminal_reaches_the_jobs_only(disk):
    """The signal goes to the whole foreground group; the controller is not in it."""
    job = Running(disk)
    assert os.getpgid(job.controller) not in (os.getpgid(job.process.pid), os.getpgid(0))
    job.process.send_signal(signal.SIGINT)
    job.end(10)


def test_kill_one_job_and_the_others_go_on(tmp_path):
    """Its data stays, its queue pair is reclaimed, and the parent does not fall over."""
    path = tmp_path / "disk"
    job = Running(path, rw="write", buffer_pattern="0x5a", runtime=3, offset_increment="64M")
    os.kill(job.jobs()[0], signal.SIGKILL)
    status, text = job.end(15)
    assert status == 0 and "got signal=9" in text and "IOPS=" in text
    data = path.read_bytes()
    assert data[: 2 * MIB] == b"\x5a" * 2 * MIB
    # The last job's beginning: how far it comes in the time is the machine's affair.
    assert data[192 * MIB : 194 * MIB] == b"\x5a" * 2 * MIB


def test_queue_pairs_of_killed_jobs_are_reclaimed(tmp_path):
    """Four queue pairs, three jobs killed: as many jobs again start in the same run."""
    job_file = tmp_path / "job.fio"
    job_file.write_text(
        f"[global]\nioengine={ENGINE}\nfilename={tmp_path}/disk,queues=3\nsize=16M\nbs=4k\n"
        "rw=randwrite\ntime_based\n[first]\nnumjobs=3\nruntime=30\n"
        "[second]\nstonewall\nnumjobs=3\nruntime=1\n"
    )
    process = subprocess.Popen(
        ["fio", job_file], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )

    def jobs():
        return run("pgrep", "-x", "-P", process.pid, "fio").out.split()

    wait_for(lambda: len(jobs()) == 3, what="jobs")
    time.sleep(0.7)
    for pid in jobs():
        os.kill(int(pid), signal.SIGKILL)
    text, _ = process.communicate(timeout=30)
    assert text.count("second: (groupid") == 3 and "vroom:" not in text
    assert text.count("err= 0") >= 3


def test_kill_all_of_fio(disk):
    job = Running(disk)
    pids = [job.process.pid, *job.jobs()]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    job.process.wait()
    wait_for(lambda: job.controller not in emulators(), what="end of the controller")
    good(fio(filename=disk, rw="read", bs="64k", size="1M"))


def test_killed_controller_ends_the_jobs(disk):
    job = Running(disk)
    os.kill(job.controller, signal.SIGKILL)
    status, text = job.end(5)
    assert status != 0
    lines = [line for line in text.splitlines() if line.startswith("vroom:")]
    assert 1 <= len(lines) <= 4
    assert all(str(disk) in line and "LBA" in line and "no completion" in line for line in lines)
    good(fio(filename=disk, rw="read", bs="64k", size="1M"))


def test_stopped_controller_ends_the_jobs_at_the_deadline(disk):
    job = Running(disk, io_timeout=2)
    os.kill(job.controller, signal.SIGSTOP)
    start = time.monotonic()
    status, text = job.end(12)
    assert status != 0 and time.monotonic() - start > 1.5
    assert "deadline of 2000 ms" in text and str(disk) in text
    good(fio(filename=disk, rw="read", bs="64k", size="1M"))


FAULTS = {
    "drop@500": "deadline of 1000 ms",
    "fatal@500": "fatal status",
    "exit@500": "closed the connection",
    "cid@500": "is not outstanding",
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("mode", [{}, {"thread": 1, "numjobs": 2}])
def test_faults_in_mid_job(disk, fault, mode):
    start = time.monotonic()
    result = fio(filename=f"{disk},fault={fault}", rw="randread", bs="4k", iodepth=4, size="32M",
                 io_timeout=1, **mode)  # fmt: skip
    assert result.status != 0
    assert time.monotonic() - start < 10
    assert any(FAULTS[fault] in line and str(disk) in line for line in result.vroom_lines)
    assert 1 <= len(result.vroom_lines) <= mode.get("numjobs", 1)


@pytest.mark.parametrize("number, command, seconds, option", [
    (4, "flush", 2, "flush_timeout="), (5, "write of 8 blocks", 1, "io_timeout="),
])  # fmt: skip
def test_flushes_have_a_deadline_of_their_own(disk, number, command, seconds, option):
    """Every second command is a flush; one of either kind is dropped. The line names the option."""
    start = time.monotonic()
    result = fio(filename=f"{disk},fault=drop@{number}", rw="write", bs="4k", iodepth=1, fsync=1,
                 size="1M", io_timeout=1, flush_timeout=2)  # fmt: skip
    assert result.status != 0 and seconds <= time.monotonic() - start < seconds + 8
    [line] = result.vroom_lines
    assert command in line and f"deadline of {seconds}000 ms" in line and f"({option})" in line


def test_perf_reports_a_lost_command():
    result = vroom("perf", "emu-null,fault=drop@100000", "-t", "40", "-T", "1")
    assert result.status != 0
    assert len(result.vroom_lines) == 1 and "deadline of 1000 ms" in result.vroom_lines[0]


def test_media_error_is_an_io_error(disk):
    result = fio(filename=f"{disk},fault=error@2048", rw="read", bs="64k")
    assert result.status != 0
    [line] = result.vroom_lines
    assert "Unrecovered Read Error" in line and str(disk) in line and "1048576" in line
    good(fio(filename=f"{disk},fault=error@2048", rw="read", bs="64k", offset="2M"))


# --- bad input ---------------------------------------------------------------------------------

BAD = {
    "no such file": ({"filename": "{dir}/none"}, "none: No such file"),
    "a directory": ({"filename": "{dir}"}, "is a directory"),
    "a character device": ({"filename": "/dev/zero", "size": "1M"}, "not an NVMe one"),
    "a fifo": ({"filename": "{dir}/fifo", "size": "1M"}, "neither a file"),
    "a PCI function": ({"filename": "0000\\:ff\\:1f.7"}, "PCI"),
    "no such namespace": ({"filename": "{disk},ns=3"}, "no namespace 3"),
    "a bad namespace": ({"filename": "{disk},ns=x"}, "not a namespace number"),
    "bs no multiple": ({"filename": "{disk},lba=4096", "bs": "512"}, "block size of 4096"),
    "bs range no multiple": ({"filename": "{disk}", "bsrange": "100-4k"}, "block size of 512"),
    "beyond the namespace": ({"filename": "emu-mem,size=8M", "size": "16M"}, "beyond the namespace"),
    "unknown address option": ({"filename": "{disk},nope=1"}, "no such option"),
    "bad address option": ({"filename": "{disk},lba=513"}, "512 and 4096"),
    "bad number": ({"filename": "{disk},queues=0"}, "queues=0"),
    "socket nobody serves": ({"filename": "{dir}/dead.sock"}, "nobody listens"),
    "socket and options": ({"filename": "{dir}/dead.sock,lba=4096"}, "emulated controllers only"),
    "more jobs than queues": ({"filename": "{disk},queues=1", "numjobs": 2}, "queue pairs"),
    "smaller than a block": ({"filename": "{dir}/tiny"}, "smaller than one block"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_target(tmp_path, case):
    disk = tmp_path / "disk"
    disk.write_bytes(b"x" * MIB)
    (tmp_path / "tiny").write_bytes(b"x" * 100)
    os.mkfifo(tmp_path / "fifo")
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(tmp_path / "dead.sock"))
    dead.close()
    settings, words = BAD[case]
    settings = {key: str(value).format(dir=tmp_path, disk=disk) for key, value in settings.items()}
    names = sorted(p.name for p in tmp_path.iterdir())
    result = fio(**{"rw": "randread", "bs": "4k", **settings}, timeout=20)
    assert result.status != 0
    assert len(result.vroom_lines) == 1, result.text
    assert words in result.vroom_lines[0]
    assert disk.read_bytes() == b"x" * MIB
    assert sorted(p.name for p in tmp_path.iterdir()) == names


def test_unknown_engine_option(disk):
    job = disk.parent / "job.fio"
    job.write_text(f"[x]\nioengine={ENGINE}\nfilename={disk}\nrw=read\nio_timeoutt=3\n")
    result = run("fio", job)
    assert result.status != 0 and "io_timeoutt" in result.text


def test_target_in_use_names_the_holder(disk):
    job = Running(disk)
    try:
        result = fio(filename=disk, rw="read", bs="4k", size="1M")
        assert result.status != 0
        [line] = result.vroom_lines
        assert "in use by process" in line and str(job.controller) in line
    finally:
        job.process.send_signal(signal.SIGINT)
        job.end(10)


def test_listener_that_never_answers(tmp_path):
    path = tmp_path / "silent.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(1)
        start = time.monotonic()
        result = fio(filename=path, rw="read", io_timeout=1)
        assert result.status != 0 and time.monotonic() - start < 8
        [line] = result.vroom_lines
        assert "no answer to VERSION" in line and str(path) in line


def test_full_disk_under_a_namespace(tmp_path):
    """Capacity Exceeded becomes ENOSPC; what was written stays."""
    small = tmp_path / "small"
    small.mkdir()
    if os.geteuid() or run("mount", "-t", "tmpfs", "-o", "size=8M", "none", small).status:
        pytest.skip("needs the right to mount a small tmpfs")
    try:
        path = small / "disk"
        result = fio(filename=path, rw="write", bs="64k", size="64M", buffer_pattern="0x42")
        assert result.status != 0
        [line] = result.vroom_lines
        assert "Capacity Exceeded" in line and str(path) in line
        assert "No space left" in result.text
        assert path.read_bytes()[: 4 * MIB] == b"\x42" * 4 * MIB
    finally:
        run("umount", small)


@needs_root
def test_read_only_file_and_missing_permission(tmp_path):
    """As an ordinary user, for whom permissions count."""
    disk = tmp_path / "disk"
    disk.write_bytes(b"x" * MIB)
    for parent in [tmp_path, *tmp_path.parents]:
        if len(parent.parts) > 2 and parent.stat().st_uid == 0 and parent.parts[1] == "tmp":
            parent.chmod(0o755)
    user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]

    def as_user(rw: str):
        return run(*user, "fio", "--name=x", f"--ioengine={ENGINE}", f"--filename={disk}",
                   f"--rw={rw}", "--bs=4k", cwd=tmp_path)  # fmt: skip

    if run(*user, "test", "-r", VROOM).status:
        pytest.skip("the build directory cannot be read by other users")
    disk.chmod(0o444)
    good(as_user("read"))
    written = as_user("write")
    assert written.status != 0 and "is read-only" in written.vroom_lines[0]
    disk.chmod(0o000)
    denied = as_user("read")
    assert denied.status != 0 and "Permission denied" in denied.vroom_lines[0]
    disk.chmod(0o644)
    assert disk.read_bytes() == b"x" * MIB
