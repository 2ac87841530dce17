# SPDX-License-Identifier: BSD-3-Clause
"""fio jobs on the engine: every mode runs, and the data is where it belongs."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess

import pytest
from conftest import ENGINE, GIB, KIB, MIB, ROOT, fio, good, needs_root, options, run, unescape


def sha(path, start=0, length=None) -> str:
    with open(path, "rb") as file:
        file.seek(start)
        return hashlib.sha256(file.read(length)).hexdigest()


def ios(result, side="read") -> int:
    return sum(job[side]["total_ios"] for job in result.jobs)


# --- data against the bare file -----------------------------------------------------------

VERIFY = {
    "rw": "randwrite",
    "bsrange": "512-1M",
    "verify": "crc32c",
    "size": "16M",
    "offset_increment": "16M",
    "numjobs": 4,
    "iodepth": 8,
    "verify_state_save": 0,
}


@pytest.mark.quick
@pytest.mark.parametrize("writer, reader", [("vroom", "psync"), ("psync", "vroom")])
def test_written_here_verified_there(tmp_path, writer, reader):
    engines = {"vroom": ENGINE, "psync": "psync"}
    path = tmp_path / "disk"
    good(fio(filename=path, ioengine=engines[writer], do_verify=0, **VERIFY))
    assert verified(fio(filename=path, ioengine=engines[reader], verify_only=True, **VERIFY))
    # The check can fail: damage one byte of each job's range and it does.
    with open(path, "r+b") as file:
        for job in range(4):
            file.seek(job * 16 * MIB + 8 * MIB + 100)
            byte = file.read(1)
            file.seek(-1, 1)
            file.write(bytes([byte[0] ^ 0xFF]))
    assert not verified(fio(filename=path, ioengine=engines[reader], verify_only=True, **VERIFY))


def verified(result) -> bool:
    """fio 3.33 ends with 0 even when a verify_only job has found damage; it says so, though."""
    assert result.status == 0, result.text
    assert all(job["read"]["total_ios"] for job in result.jobs), "nothing was read back"
    damage = any(words in result.text for words in ("verify: bad", "verify failed", "Expected CRC"))
    return not damage and not any(job["error"] for job in result.jobs)


@pytest.mark.quick
def test_verify_through_vroom_alone(tmp_path):
    good(fio(filename=tmp_path / "disk", **{**VERIFY, "size": "8M", "offset_increment": "8M"}))


@pytest.mark.quick
def test_reads_what_the_file_holds(disk, tmp_path):
    """Reads everything with an engine that stores nothing; the checksum is in the data."""
    before = sha(disk)
    good(fio(filename=disk, rw="randread", bs="4k", iodepth=32))
    assert sha(disk) == before
    # verify_pattern compares each read with a value that the test wrote.
    with open(disk, "wb") as file:
        file.write(b"\xab\xcd" * (4 * MIB))
    check = {"rw": "read", "bs": "64k", "verify": "pattern", "verify_pattern": "0xabcd"}
    good(fio(filename=disk, size="8M", **check))
    with open(disk, "r+b") as file:
        file.seek(5 * MIB + 1)
        file.write(b"\x00")
    assert fio(filename=disk, size="8M", **check).status != 0


def test_writes_only_where_told(disk):
    before = [sha(disk, i * MIB, MIB) for i in range(64)]
    good(fio(filename=disk, rw="write", bs="64k", offset="10M", size="3M", iodepth=16))
    after = [sha(disk, i * MIB, MIB) for i in range(64)]
    changed = [i for i in range(64) if before[i] != after[i]]
    assert changed == [10, 11, 12]


def test_trim_makes_a_hole(disk):
    used = os.stat(disk).st_blocks
    good(fio(filename=disk, rw="trim", bs="1M", offset="8M", size="16M", iodepth=4))
    assert os.stat(disk).st_blocks <= used - 16 * MIB // 512
    assert os.stat(disk).st_size == 64 * MIB
    with open(disk, "rb") as file:
        data = file.read()
    assert not any(data[8 * MIB : 24 * MIB])
    assert any(data[8 * MIB - 8 : 8 * MIB])
    assert any(data[24 * MIB : 24 * MIB + 8])


@pytest.mark.parametrize("rw", ["randtrim", "trimwrite"])
def test_trim_modes(disk, rw):
    good(fio(filename=disk, rw=rw, bs="64k", iodepth=8))


def test_syncs_reach_the_disk(tmp_path):
    """Flush is fdatasync() of the file, FUA a write with RWF_DSYNC: the controller's own calls."""
    shim, log = tmp_path / "syncs.so", tmp_path / "calls"
    good(run("gcc", "-shared", "-fPIC", ROOT / "tests/programs/syncs.c", "-o", shim, "-ldl"))

    def calls(**settings) -> tuple[int, int, int]:
        """As fio counts syncs, and as the controller made calls: fdatasync(), durable writes."""
        log.write_bytes(b"")
        result = good(
            run("fio", "--output-format=json", "--name=x", f"--ioengine={ENGINE}", "--size=1M",
                "--rw=randwrite", "--bs=4k", f"--filename={tmp_path}/disk", *options(**settings),
                LD_PRELOAD=str(shim), SYNCS=str(log))
        )  # fmt: skip
        made = log.read_bytes()
        shutdown = 1  # flushes, too
        return result.jobs[0]["sync"]["total_ios"], made.count(b"f") - shutdown, made.count(b"d")

    assert calls() == (0, 0, 0)
    asked, flushes, durable = calls(fsync=16)
    assert asked in (15, 16) and (flushes, durable) == (asked, 0)
    _, flushes, durable = calls(fdatasync=8)  # which fio does not count
    assert flushes in (31, 32) and durable == 0
    assert calls(end_fsync=1)[1:] == (1, 0)
    assert calls(sync="dsync") == (0, 0, 256)
    assert calls(writefua=1) == (0, 0, 256)


# --- job modes ------------------------------------------------------------------------------

FORKED = {"numjobs": 4, "group_reporting": True}
THREADS = {**FORKED, "thread": 1}
MODES = {
    "forked": FORKED,
    "threads": THREADS,
    "eight forked": {"numjobs": 8},
    "eight threads": {"numjobs": 8, "thread": 1},
    "depth 1": {"iodepth": 1},
    "depth 2048": {"iodepth": 2048},
    "depth beyond the queue": {"iodepth": 5000},
    "batches": {"iodepth": 32, "iodepth_batch": 8, "iodepth_batch_complete_min": 4},
    "batch of all": {"iodepth": 16, "iodepth_batch": 16, "iodepth_batch_complete_min": 16},
    "low mark": {"iodepth": 32, "iodepth_low": 8},
    "offload": {"iodepth": 16, "io_submit_mode": "offload"},
    "interrupt": {"wait": "interrupt"},
    "interrupt, forked": {**FORKED, "wait": "interrupt"},
    "hybrid, threads": {**THREADS, "wait": "hybrid"},
    "rate": {"rate_iops": 5000, "runtime": 1, "time_based": 1},
    "strided zones": {"zonemode": "strided", "zonesize": "1M", "zoneskip": "1M"},
    "loops": {"loops": 2, "size": "4M"},
    "ramp": {"ramp_time": 1, "runtime": 1, "time_based": 1},
    "think time": {"thinktime": 10, "size": "1M"},
    "percentage": {"size": "50%"},
    "gtod_reduce": {"gtod_reduce": 1},
    "no serialisation": {"create_serialize": 0},
    "foreign memory option": {"mem": "mmap"},
    "options of io_uring": {"hipri": True, "fixedbufs": True, "registerfiles": True},
    "cpu affinity": {"cpus_allowed": "0"},
    "buffered, as far as fio knows": {"direct": 0},
    "direct": {"direct": 1},
}


@pytest.mark.parametrize("mode", MODES)
def test_mode(disk, mode):
    settings = {"rw": "randrw", "bs": "4k", "iodepth": 8, "filename": disk, "size": "16M"}
    result = good(fio(**{**settings, **MODES[mode]}))
    assert ios(result) > 0 and ios(result, "write") > 0
    assert not result.vroom_lines


@pytest.mark.parametrize("mode", [FORKED, THREADS])
def test_offload_starts_every_time(disk, mode):
    """fio's own engines hang in one of five such runs."""
    for _ in range(8):
        good(fio(filename=disk, rw="randrw", bs="4k", iodepth=16, io_submit_mode="offload",
                 size="1M", **mode))  # fmt: skip


@pytest.mark.parametrize("bs, depth", [("4M", 64), ("512k", 16), ("16M", 2), ("1000k", 4)])
def test_large_blocks_are_split(tmp_path, bs, depth):
    path = tmp_path / "disk"
    settings = {"filename": path, "bs": bs, "iodepth": depth, "size": "256M"}
    good(fio(rw="write", verify="crc32c", verify_state_save=0, **settings))
    good(fio(rw="read", verify="crc32c", ioengine="psync", verify_state_save=0, **settings))


@pytest.mark.parametrize("limits", ["mdts=8K", "mdts=0", "mdts=64K,entries=4", "mpsmin=2,mdts=64K"])
def test_data_under_odd_limits(tmp_path, limits):
    """Splits, chained PRP lists (mdts=0 moves 16 MiB at once), tiny queues, larger pages."""
    path = tmp_path / "disk"
    settings = {"bs": "4M", "iodepth": 8, "size": "64M", "verify": "crc32c", "verify_state_save": 0}
    good(fio(filename=f"{path},{limits}", rw="write", **settings))
    good(fio(filename=path, rw="read", ioengine="psync", **settings))
    settings["bs"] = "20M"
    good(fio(filename=f"{path},{limits}", rw="write", **settings))
    good(fio(filename=path, rw="read", ioengine="psync", **settings))


def test_unaligned_buffers_are_bounced(disk):
    """iomem_align and odd sizes move buffers off page boundaries; data stays right."""
    settings = {"filename": disk, "size": "8M", "bssplit": "512/30:1536/30:7k/40", "iodepth": 16}
    good(fio(rw="randwrite", verify="crc32c", verify_state_save=0, iomem_align=512, **settings))


def test_size_comes_from_the_device(controller):
    socket = controller("--ns", "mem=8M,lba=4096").socket
    result = good(fio(filename=socket, rw="read", bs="64k"))
    assert ios(result) == 8 * MIB // (64 * KIB)


def test_no_filename_no_existing_file(tmp_path):
    good(fio(rw="randwrite", bs="4k", size="4M", numjobs=2, nrfiles=2, cwd=tmp_path))
    names = sorted(p.name for p in tmp_path.iterdir())
    assert names == ["job.0.0", "job.0.1", "job.1.0", "job.1.1"]
    assert {os.stat(tmp_path / n).st_size for n in names} == {2 * MIB}


def test_one_step_job(tmp_path):
    """The command line of the benchmarking notes (seed 004), smaller."""
    command = (
        f"fio --randrepeat=1 --ioengine={ENGINE} --direct=1 --gtod_reduce=1 --name=test "
        "--filename=test --bs=1k --iodepth=64 --size=64M --readwrite=randread"
    )
    good(run(*command.split(), cwd=tmp_path))
    assert os.stat(tmp_path / "test").st_size == 64 * MIB


def test_thesis_job_unmodified(tmp_path):
    result = good(
        run(
            "fio",
            f"--ioengine={ENGINE}",
            "--output-format=json",
            ROOT / "jobs/thesis.fio",
            cwd=tmp_path,
        )
    )
    assert [job["jobname"] for job in result.jobs] == [
        "randread-qd1-t1", "randread-qd32-t4", "randwrite-qd1-t1", "randwrite-qd32-t4",
    ]  # fmt: skip
    assert all(job["error"] == 0 for job in result.jobs)


def test_several_targets_and_files_in_one_job(tmp_path, controller):
    socket = controller("--ns", "mem=32M", "--ns", "mem=32M").socket
    names = [tmp_path / "a", tmp_path / "b", f"{socket},ns=2", "emu-mem", socket]
    result = fio(
        filename=":".join(str(n) for n in names), rw="randrw", bs="4k", size="40M", iodepth=16,
        verify="crc32c", verify_state_save=0, file_service_type="random",
    )  # fmt: skip
    good(result)
    assert os.stat(tmp_path / "a").st_blocks and os.stat(tmp_path / "b").st_blocks


def test_jobs_on_different_targets(tmp_path):
    job = tmp_path / "job.fio"
    job.write_text(
        f"[global]\nsize=8M\nbs=4k\niodepth=4\n[a]\nrw=write\nfilename={tmp_path}/a\n"
        f"[b]\nrw=randwrite\nfilename={tmp_path}/b\n[c]\nstonewall\nrw=read\nfilename={tmp_path}/a\n"
        f"[d]\nioengine=psync\nrw=write\nfilename={tmp_path}/d\n"
    )
    result = good(run("fio", f"--ioengine={ENGINE}", "--output-format=json", job))
    assert [job["error"] for job in result.jobs] == [0] * 4
    picked = good(run("fio", f"--ioengine={ENGINE}", "--output-format=json", "--section=b", job))
    assert [job["jobname"] for job in picked.jobs] == ["b"]


@pytest.mark.parametrize("name", ["with space", "comma,here", "a,b=c", "colon:s", "ünï", "x,ns=1y"])
def test_odd_file_names(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(b"\x11" * MIB)
    good(fio(filename=unescape(path), rw="write", bs="4k", buffer_pattern="0x77"))
    assert path.read_bytes() == b"\x77" * MIB
    assert [p.name for p in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("mode", ["recorded", "redirected", "two jobs"])
def test_iolog_replay(tmp_path, mode):
    log, path, other = tmp_path / "log", tmp_path / "disk", tmp_path / "other"
    good(fio(filename=path, rw="randrw", bs="4k", size="4M", iodepth=4, write_iolog=log))
    extra = {"redirected": {"replay_redirect": other}, "two jobs": {"numjobs": 2}}.get(mode, {})
    result = good(fio(read_iolog=log, iodepth=8, replay_no_stall=1, **extra))
    jobs = 2 if mode == "two jobs" else 1
    assert ios(result) + ios(result, "write") == jobs * 4 * MIB // (4 * KIB)
    assert (mode == "redirected") == other.exists()


def test_logs_and_unlink(tmp_path):
    prefix = tmp_path / "log"
    good(fio(filename=tmp_path / "disk", rw="randread", bs="4k", size="4M", unlink=1,
             write_lat_log=prefix, write_iops_log=prefix, write_bw_log=prefix))  # fmt: skip
    assert not (tmp_path / "disk").exists()
    assert (tmp_path / "log_clat.1.log").stat().st_size > 0
    assert (tmp_path / "log_iops.1.log").exists()


def test_parse_only_and_readonly(tmp_path):
    settings = {"filename": tmp_path / "disk", "rw": "write", "bs": "4k", "size": "1M"}
    good(run("fio", "--parse-only", "--name=x", f"--ioengine={ENGINE}",
             *[f"--{k}={v}" for k, v in settings.items()]))  # fmt: skip
    assert fio("--readonly", **settings).status != 0
    assert not (tmp_path / "disk").exists()


def test_daemon_and_client(tmp_path):
    """`fio --server --daemonize`, and a client that sends it a job for vroom."""
    pidfile, socket = tmp_path / "pid", tmp_path / "sock"
    good(run("fio", f"--server=sock:{socket}", f"--daemonize={pidfile}"))
    try:
        job = tmp_path / "job.fio"
        job.write_text(
            f"[x]\nioengine={ENGINE}\nfilename={tmp_path}/disk\nrw=randwrite\nsize=4M\nbs=4k\n"
            "iodepth=8\nnumjobs=2\n"
        )
        result = good(run("fio", f"--client=sock:{socket}", job, timeout=30))
        assert "err= 0" in result.text
        assert os.stat(tmp_path / "disk").st_blocks * 512 >= 4 * MIB
    finally:
        os.kill(int(pidfile.read_text()), 15)


def test_enghelp_names_the_options():
    result = run("fio", f"--enghelp={ENGINE.removeprefix('external:')}")
    for option in ("io_timeout", "readfua", "writefua", "hipri"):
        assert option in result.out


def test_another_fio_release_is_refused(tmp_path):
    """The engine was built for this fio; one that calls itself otherwise gets a line."""
    fake = tmp_path / "fio"
    data = open(shutil.which("fio"), "rb").read()
    version = subprocess.check_output(["fio", "--version"]).strip()
    assert data.count(version + b"\0") >= 1
    fake.write_bytes(data.replace(version + b"\0", b"fio-9.99"[: len(version)] + b"\0"))
    fake.chmod(0o755)
    result = run(fake, "--name=x", f"--ioengine={ENGINE}", "--filename=emu-null", "--size=1M")
    assert result.status != 0
    lines = result.vroom_lines
    assert len(lines) == 1 and version.decode() in lines[0] and "FIO_SRC=" in lines[0]


def test_memory_that_a_job_costs(tmp_path):
    """Under 16 MiB resident beyond the I/O buffers, job and controller together."""
    process = subprocess.Popen(
        ["fio", "--name=x", f"--ioengine={ENGINE}", "--filename=emu-null", "--rw=randread",
         "--size=1G", "--iodepth=128", "--runtime=3", "--time_based"],
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    base = subprocess.Popen(
        ["fio", "--name=x", "--ioengine=null", "--rw=randread", "--size=1G", "--iodepth=128",
         "--runtime=3", "--time_based"],
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    subprocess.run(["sleep", "1.5"], check=True)

    def resident(pid: int) -> int:
        children = subprocess.check_output(["pgrep", "-P", str(pid)], text=True).split()
        total = 0
        for child in children:
            rollup = open(f"/proc/{child}/smaps_rollup").read()
            total += int(rollup.split("Rss:")[1].split()[0]) * KIB
        return total

    added = resident(process.pid) - resident(base.pid)
    process.wait()
    base.wait()
    assert 0 < added < 16 * MIB


def test_unserialised_jobs_share_a_target(disk):
    """create_serialize=0 skips the setup in the parent; four forked jobs still share a file."""
    good(fio(filename=disk, rw="randrw", bs="4k", iodepth=4, create_serialize=0, numjobs=4))


@needs_root
def test_huge_pages_are_used_and_given_back(tmp_path):
    """With huge pages reserved, buffers come from them; afterwards all are free again."""
    count = "/proc/sys/vm/nr_hugepages"
    before = open(count).read().strip()
    mounted = "hugetlbfs" in open("/proc/mounts").read()
    mount = tmp_path / "huge"
    mount.mkdir()

    def free() -> int:
        text = open("/proc/meminfo").read()
        return int(text.split("HugePages_Free:")[1].split()[0])

    try:
        open(count, "w").write(str(int(before) + 64))
        if int(open(count).read()) < int(before) + 64:
            pytest.skip("this kernel gives no huge pages")
        if not mounted and run("mount", "-t", "hugetlbfs", "none", mount).status:
            pytest.skip("hugetlbfs cannot be mounted here")
        idle = free()
        process = subprocess.Popen(
            ["fio", "--name=x", f"--ioengine={ENGINE}", f"--filename={tmp_path}/disk",
             "--rw=randrw", "--size=64M", "--iodepth=8", "--bs=64k", "--runtime=2",
             "--time_based", "--numjobs=2"],
            stdout=subprocess.DEVNULL,
        )  # fmt: skip
        subprocess.run(["sleep", "1"], check=True)
        assert free() < idle
        assert process.wait() == 0
        assert free() == idle
        assert list(mount.iterdir()) == []
    finally:
        if not mounted:
            run("umount", mount)
        open(count, "w").write(before)


def test_far_offsets_in_a_sparse_file(tmp_path):
    path = tmp_path / "disk"
    good(fio(filename=path, rw="write", bs="1M", offset="3T", size="4M", buffer_pattern="0x3c"))
    assert os.stat(path).st_size == 3 * 1024 * GIB + 4 * MIB
    with open(path, "rb") as file:
        file.seek(3 * 1024 * GIB)
        assert file.read() == b"\x3c" * 4 * MIB
