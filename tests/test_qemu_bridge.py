# SPDX-License-Identifier: BSD-3-Clause
"""The driver and the engine on a controller that others wrote: QEMU's, without a guest. What was
written is looked up in the image behind it, which neither vroom nor its emulator touches."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import time
from pathlib import Path

import pytest
from conftest import ENGINE, GIB, KIB, MIB, Result, fio, good, options, vroom, wait_for
from qemu_fixtures import Namespace, Shape
from rawclient import (
    CONFIG,
    DMA_MAP,
    DMA_UNMAP,
    IOVA,
    IRQ_INFO,
    SET_IRQS,
    VERSION,
    Refused,
    VfioUser,
)

BLOCKS_4K = "logical_block_size=4096,physical_block_size=4096"
BLOCKS_64K = "logical_block_size=65536,physical_block_size=65536"
PMR = ("-object", "memory-backend-ram,id=pmr,size=16M,share=on")
SUBSYSTEM = ("-device", "nvme-subsys,id=sub,nqn=together")
ZONED = "zoned=on,zoned.zone_size=4M"


def pattern(size: int, bs: int, start: int = 0) -> bytes:
    """What fio writes as verify_pattern=%o: each block is full of its own offset."""
    return b"".join(struct.pack("<Q", at) * (bs // 8) for at in range(start, start + size, bs))


def first(image: Path, size: int, start: int = 0) -> bytes:
    with open(image, "rb") as file:
        file.seek(start)
        return file.read(size)


def offsets(bs: int, size: int = 8 * MIB, **settings) -> dict:
    return {"rw": "randwrite", "bs": bs, "size": size, "verify": "pattern",
            "verify_pattern": "%o", "verify_state_save": 0, **settings}  # fmt: skip


@pytest.fixture(autouse=True)
def nothing_left_behind():
    """In place of the suite's: no emulator is started here, and qemu_nvme looks for the rest."""


def refusal(result: Result, words: str) -> None:
    """One clear line, and a status."""
    assert result.status != 0
    assert len(result.vroom_lines) == 1, result.text
    assert words in result.vroom_lines[0]


# --- the shapes that are used: limits as QEMU was told, data where it belongs -----------------

USED = {
    "default": (Shape(), {"max_transfer_bytes": 512 * KIB, "io_queue_pairs": 64}),
    "mdts=0": (Shape("mdts=0"), {"max_transfer_bytes": 2 * MIB}),
    "mdts=1": (Shape("mdts=1"), {"max_transfer_bytes": 8 * KIB}),
    "mdts=5": (Shape("mdts=5"), {"max_transfer_bytes": 128 * KIB}),
    "one queue pair": (Shape("max_ioqpairs=1"), {"io_queue_pairs": 1}),
    "one vector": (Shape("msix_qsize=1"), {}),
    "vectors in a BAR": (Shape("msix-exclusive-bar=on"), {}),
    "CMB": (Shape("cmb_size_mb=8"), {}),
    "PMR": (Shape("pmrdev=pmr", others=PMR), {}),
    "no events": (Shape("aerl=0,aer_max_queued=0"), {}),
    "vsl=1": (Shape("vsl=1"), {}),
    "Intel": (Shape("use-intel-id=on"), {}),
    "ioeventfd": (Shape("ioeventfd=on"), {}),
    "subsystem": (Shape("subsys=sub", others=SUBSYSTEM), {}),
    "SR-IOV": (
        Shape("subsys=sub,sriov_max_vfs=1,max_ioqpairs=6,sriov_vq_flexible=2,sriov_vi_flexible=1",
              others=SUBSYSTEM),
        {"io_queue_pairs": 4},
    ),
    "4 KiB blocks": (Shape("mdts=0", (Namespace(BLOCKS_4K),)), {}),
    "64 KiB blocks": (Shape(namespaces=(Namespace(BLOCKS_64K),)), {}),
    "throttled": (Shape(namespaces=(Namespace(iops=2000),)), {}),
}  # fmt: skip


@pytest.mark.parametrize("name", USED)
def test_data_is_in_the_image(qemu_nvme, name):
    shape, limits = USED[name]
    nvme = qemu_nvme(shape)
    shown = json.loads(good(vroom("id", "--json", nvme.socket)).out)
    assert limits.items() <= shown.items()
    [namespace] = shown["namespaces"]
    block = int(dict(pair.split("=") for pair in shape.namespaces[0].options.split(",") if pair)
                .get("logical_block_size", 512))  # fmt: skip
    assert (namespace["bytes"], namespace["block_bytes"]) == (64 * MIB, block)
    job = {"rw": "randwrite", "bsrange": f"{block}-1M", "size": "16M", "offset": "32M",
           "verify": "crc32c", "iodepth": 16, "verify_state_save": 0}  # fmt: skip
    good(fio(filename=nvme.socket, **job))
    checked = fio(filename=nvme.images[0], ioengine="psync", verify_only=True, **job)
    assert good(checked).jobs[0]["read"]["total_ios"] and "verify:" not in checked.text


@pytest.mark.parametrize("bs, iodepth", [(512, 1), (512, 128), (4 * KIB, 32), (4 * KIB, 128),
                                         (128 * KIB, 1), (MIB, 32), (MIB, 128)])  # fmt: skip
def test_block_sizes_and_depths(qemu_nvme, bs, iodepth):
    nvme = qemu_nvme()
    size = min(1024 * bs, 16 * MIB)
    good(fio(filename=nvme.socket, iodepth=iodepth, do_verify=0, **offsets(bs, size)))
    assert first(nvme.images[0], size) == pattern(size, bs)
    read = {**offsets(bs, size), "rw": "read"}
    good(fio(filename=nvme.socket, iodepth=iodepth, **read))


def test_reads_come_from_the_image(qemu_nvme):
    nvme = qemu_nvme()
    nvme.images[0].write_bytes(pattern(64 * MIB, 64 * KIB))
    job = {**offsets(64 * KIB), "rw": "randread", "iodepth": 8, "filename": nvme.socket}
    good(fio(**job))
    with open(nvme.images[0], "r+b") as file:
        file.seek(8 * MIB - 1)
        file.write(b"\xff")
    assert fio(**job).status != 0


@pytest.mark.parametrize("shape, mode", [
    ("default", {}), ("default", {"thread": 1}), ("default", {"wait": "interrupt"}),
    ("vectors in a BAR", {"wait": "interrupt", "thread": 1}), ("SR-IOV", {"wait": "hybrid"}),
])  # fmt: skip
def test_jobs_side_by_side(qemu_nvme, shape, mode):
    nvme = qemu_nvme(USED[shape][0])
    job = {"offset_increment": "2M", "numjobs": 3, "iodepth": 16}
    good(fio(filename=nvme.socket, fsync=64, **job, **mode, **offsets(4 * KIB, 2 * MIB)))
    assert first(nvme.images[0], 6 * MIB) == pattern(6 * MIB, 4 * KIB)


def test_deeper_than_the_queue(qemu_nvme):
    nvme = qemu_nvme(Shape("mdts=1"))
    shown = json.loads(good(vroom("id", "--json", nvme.socket)).out)
    assert shown["max_queue_entries"] == 2048
    good(fio(filename=nvme.socket, iodepth=5000, **offsets(512, 3 * MIB)))
    assert first(nvme.images[0], 3 * MIB) == pattern(3 * MIB, 512)
    # Each of these is 128 commands.
    good(fio(filename=nvme.socket, iodepth=24, **offsets(MIB, 24 * MIB)))
    assert first(nvme.images[0], 24 * MIB) == pattern(24 * MIB, MIB)


@pytest.mark.parametrize("name", ["default", "mdts=1", "4 KiB blocks"])
def test_trimmed_blocks_are_holes(qemu_nvme, name):
    nvme = qemu_nvme(USED[name][0])
    image = nvme.images[0]
    image.write_bytes(b"\xa5" * 64 * MIB)
    before = os.stat(image).st_blocks
    good(fio(filename=nvme.socket, rw="randtrim", bs="64k", iodepth=32, offset="8M", size="16M"))
    data = first(image, 64 * MIB)
    assert data[8 * MIB : 24 * MIB] == bytes(16 * MIB)
    assert data.count(b"\xa5") == 48 * MIB
    assert before - os.stat(image).st_blocks > 15 * MIB // 512  # some are for bookkeeping


@pytest.mark.parametrize("settings", [{"writefua": 1}, {"readfua": 1}, {"fdatasync": 8}], ids=str)
def test_durability_settings(qemu_nvme, settings):
    nvme = qemu_nvme()
    good(fio(filename=nvme.socket, iodepth=8, **settings, **offsets(4 * KIB, MIB)))
    assert first(nvme.images[0], MIB) == pattern(MIB, 4 * KIB)


def test_more_memory_than_the_first_region(qemu_nvme):
    """The client maps a second one beside it, while the controller runs."""
    nvme = qemu_nvme()
    job = {"numjobs": 3, "thread": 1, "iodepth": 24, "offset_increment": "20M"}
    good(fio(filename=nvme.socket, **job, **offsets(4 * MIB, 20 * MIB)))
    assert first(nvme.images[0], 60 * MIB) == pattern(60 * MIB, 4 * MIB)


def test_the_command_measures(qemu_nvme):
    nvme = qemu_nvme()
    for arguments in (["-w", "randrw", "-q", "64", "-j", "2"], ["-W", "interrupt", "-q", "4"]):
        result = good(vroom("perf", "--json", "-t", "0.2", *arguments, nvme.socket))
        assert json.loads(result.out)["iops"] > 100


@pytest.mark.parametrize("bs", [
    4 * MIB,
    5 * MIB,
])  # fmt: skip
def test_largest_command(qemu_nvme, bs):
    nvme = qemu_nvme(Shape("mdts=0"))
    good(fio(filename=nvme.socket, iodepth=2, do_verify=0, **offsets(bs, 4 * bs)))
    assert first(nvme.images[0], 4 * bs) == pattern(4 * bs, bs)


def test_blocks_larger_than_a_command_may_move(qemu_nvme):
    nvme = qemu_nvme(Shape("mdts=1", (Namespace(BLOCKS_64K),)))
    refusal(vroom("perf", "-t", "0.1", "-o", "64K", nvme.socket, timeout=2), "65536")


def test_far_beyond_32_bits_of_blocks(qemu_nvme):
    nvme = qemu_nvme(Shape(namespaces=(Namespace(size=3 * 1024 * GIB + 512),)))
    start = 2560 * GIB
    job = {"filename": nvme.socket, "iodepth": 32, "size": 4 * MIB, "offset": start}
    good(fio(do_verify=0, **{**offsets(4 * KIB), **job}))
    assert first(nvme.images[0], 4 * MIB, start) == pattern(4 * MIB, 4 * KIB, start)
    good(fio(rw="trim", bs="1M", **job))
    assert first(nvme.images[0], 4 * MIB, start) == bytes(4 * MIB)
    # The last block, which is alone.
    last = {"offset": 3 * 1024 * GIB, "size": 512}
    good(fio(filename=nvme.socket, **{**offsets(512), **last}))
    assert first(nvme.images[0], 512, 3 * 1024 * GIB) == pattern(512, 512, 3 * 1024 * GIB)


# --- several namespaces, or none ---------------------------------------------------------------


def test_namespaces_are_apart(qemu_nvme):
    nvme = qemu_nvme(Shape(namespaces=(
        Namespace("nsid=2"), Namespace(f"nsid=5,{BLOCKS_4K}", 32 * MIB), Namespace("nsid=7"),
    )))  # fmt: skip
    shown = json.loads(good(vroom("id", "--json", nvme.socket)).out)["namespaces"]
    assert [(one["nsid"], one["block_bytes"], one["bytes"] // MIB) for one in shown] == [
        (2, 512, 64), (5, 4096, 32), (7, 512, 64)]  # fmt: skip
    for nsid, image in zip((2, 5, 7), nvme.images, strict=True):
        job = offsets(4 * KIB, 4 * MIB, offset=f"{nsid}M", filename=f"{nvme.socket},ns={nsid}")
        good(fio(iodepth=16, do_verify=0, **job))
        written = pattern(4 * MIB, 4 * KIB, nsid * MIB)
        size = 64 * MIB if nsid != 5 else 32 * MIB
        assert image.read_bytes() == (bytes(nsid * MIB) + written).ljust(size, b"\0")
    refusal(fio(filename=nvme.socket, rw="read"), "has no namespace 1")
    assert "4096" in fio(filename=f"{nvme.socket},ns=5", rw="read", bs=512).vroom_lines[0]


def test_detached_namespace(qemu_nvme):
    nvme = qemu_nvme(Shape("subsys=sub", (Namespace("detached=on,nsid=1"),), SUBSYSTEM))
    assert json.loads(good(vroom("id", "--json", nvme.socket)).out)["namespaces"] == []
    refusal(fio(filename=nvme.socket, rw="read"), "has no namespace 1")


# --- shapes that are refused ---------------------------------------------------------------------

REFUSED = {
    "ms=8": (Namespace("ms=8"), "8 bytes of metadata"),
    "ms=8,mset=1": (Namespace("ms=8,mset=1"), "8 bytes of metadata"),
    "ms=16": (Namespace("ms=16"), "16 bytes of metadata"),
    "ms=64,mset=1": (Namespace("ms=64,mset=1"), "64 bytes of metadata"),
    "4 KiB, ms=64": (Namespace(f"ms=64,{BLOCKS_4K}"), "64 bytes of metadata"),
    "pi=1": (Namespace("ms=8,pi=1"), "8 bytes of metadata"),
    "pi=2,pil=1": (Namespace("ms=8,pi=2,pil=1"), "8 bytes of metadata"),
    "pi=3,mset=1": (Namespace("ms=8,pi=3,mset=1"), "8 bytes of metadata"),
    "pi=1,pif=2": (Namespace("ms=16,pi=1,pif=2"), "16 bytes of metadata"),
    "128 KiB blocks": (Namespace("logical_block_size=131072,physical_block_size=131072"), "2^17"),
    "zoned": (Namespace(ZONED), "zoned"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_in_one_line(qemu_nvme, name):
    namespace, words = REFUSED[name]
    nvme = qemu_nvme(Shape(namespaces=(Namespace(), namespace)))
    for result in (
        vroom("id", nvme.socket),
        vroom("perf", "-t", "0.1", f"{nvme.socket},ns=2"),
        fio(filename=f"{nvme.socket},ns=2", rw="write", bs="128k", size="1M"),
    ):
        refusal(result, words)
        assert "namespace 2" in result.vroom_lines[0]
    assert not nvme.images[1].read_bytes().strip(b"\0")
    good(vroom("perf", "-t", "0.1", nvme.socket))  # the one beside it is used


# --- errors ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind, words", [
    ("read", "Unrecovered Read Error"), ("write", "Write Fault"), ("discard", "Internal Error"),
])  # fmt: skip
def test_media_error(qemu_nvme, kind, words):
    """The bad sector is at 1 MiB; the line says so, and all around is well."""
    nvme = qemu_nvme(Shape(namespaces=(Namespace(errors=((kind, 2048),)),)))
    job = {"rw": {"discard": "trim"}.get(kind, kind), "filename": nvme.socket, "bs": "64k"}
    result = fio(size="4M", iodepth=4, **job)
    refusal(result, words)
    assert "offset 1048576" in result.vroom_lines[0]
    good(fio(size="1M", **job))
    good(fio(offset=MIB + 64 * KIB, size="2M", **job))


def test_failed_flush(qemu_nvme):
    nvme = qemu_nvme(Shape(namespaces=(Namespace(errors=(("flush", -1),)),)))
    result = fio(filename=nvme.socket, rw="write", size="1M", fsync=16)
    assert result.vroom_lines and "sync" in result.vroom_lines[0]
    assert result.status != 0


def test_read_only_image(qemu_nvme):
    """QEMU 7.2 does not say that the namespace is write-protected; writes fail."""
    nvme = qemu_nvme(Shape(namespaces=(Namespace(read_only=True),)))
    good(fio(filename=nvme.socket, rw="read", bs="64k", size="1M"))
    refusal(fio(filename=nvme.socket, rw="write", size="1M"), "Write Fault")


def test_slow_drive_meets_the_deadline(qemu_nvme):
    nvme = qemu_nvme(Shape(namespaces=(Namespace(iops=1),)))
    job = {"filename": nvme.socket, "rw": "randread", "size": "1M", "iodepth": 8}
    refusal(fio(io_timeout=1, **job), "deadline of 1000 ms")
    good(vroom("id", nvme.socket))  # the commands that were left are over


def test_more_jobs_than_queue_pairs_or_vectors(qemu_nvme):
    job = {"rw": "read", "size": "1M", "numjobs": 3}
    nvme = qemu_nvme(Shape("max_ioqpairs=2"))
    refusal(fio(filename=nvme.socket, **job), "all 2 I/O queue pairs")
    nvme = qemu_nvme(Shape("msix_qsize=1"))
    result = fio(filename=nvme.socket, wait="interrupt", **{**job, "numjobs": 1})
    refusal(result, "1 MSI-X vectors")


# --- clients that come and go ------------------------------------------------------------------


def test_killed_client_and_the_next(qemu_nvme):
    """Each leaves commands in flight; the next finds a controller at rest, and all data."""
    nvme = qemu_nvme(Shape(namespaces=(Namespace(), Namespace())))
    good(fio(filename=nvme.socket, do_verify=0, iodepth=32, **offsets(4 * KIB)))
    job = options(name="job", ioengine=ENGINE, filename=f"{nvme.socket},ns=2", rw="randwrite",
                  bs="16k", iodepth=64, size="64M", numjobs=2, time_based=True, runtime=30)  # fmt: skip
    ours = set(nvme.processes())
    for _ in range(3):
        written = os.stat(nvme.images[1]).st_mtime_ns
        process = subprocess.Popen(["fio", *job], stdout=subprocess.DEVNULL)
        wait_for(lambda then=written: os.stat(nvme.images[1]).st_mtime_ns != then, what="writes")
        for pid in set(nvme.processes()) - ours:
            os.kill(pid, signal.SIGKILL)
        process.wait()
        good(vroom("id", nvme.socket))
    good(fio(filename=nvme.socket, **{**offsets(4 * KIB), "rw": "read"}))
    assert first(nvme.images[0], 8 * MIB) == pattern(8 * MIB, 4 * KIB)


def test_queue_pair_of_a_killed_job_is_used_again(qemu_nvme):
    nvme = qemu_nvme(Shape("max_ioqpairs=2"))
    job = {"ioengine": ENGINE, "filename": nvme.socket, "rw": "randwrite", "size": "16M",
           "iodepth": 16, "time_based": True, "numjobs": 2}  # fmt: skip
    command = ["fio", *options(name="one", **job, runtime=30),
               *options(name="two", stonewall=True, **job, runtime="200ms")]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    written = os.stat(nvme.images[0]).st_mtime_ns
    wait_for(lambda: os.stat(nvme.images[0]).st_mtime_ns != written, what="writes")
    found = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    jobs = wait_for(lambda: len(found.read_text().split()) == 2 and found.read_text(), what="jobs")
    for pid in jobs.split():
        os.kill(int(pid), signal.SIGKILL)
    text, _ = process.communicate(timeout=20)
    assert text.count("two: (groupid") == 2 and "vroom:" not in text
    assert text.count("err= 0") >= 2


def test_controller_dies(qemu_nvme):
    nvme = qemu_nvme()
    process = subprocess.Popen(
        ["fio", *options(name="job", ioengine=ENGINE, filename=nvme.socket, rw="randwrite",
                         size="16M", iodepth=16, time_based=True, runtime=30)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)  # fmt: skip
    written = os.stat(nvme.images[0]).st_mtime_ns
    wait_for(lambda: os.stat(nvme.images[0]).st_mtime_ns != written, what="writes")
    os.kill(nvme.qemu, signal.SIGKILL)
    start = time.monotonic()
    _, text = process.communicate(timeout=10)
    assert process.returncode != 0 and time.monotonic() - start < 5
    assert "closed the connection" in text
    assert nvme.process.wait(5) == 1


# --- the bridge itself --------------------------------------------------------------------------


def test_it_is_quick(qemu_nvme):
    start = time.monotonic()
    nvme = qemu_nvme()
    started = time.monotonic()
    good(vroom("id", nvme.socket))
    assert started - start < 1 and time.monotonic() - started < 0.5


def test_the_protocol(qemu_nvme):
    nvme = qemu_nvme()
    client = VfioUser(nvme.socket)
    for minor in (0, 1, 9):
        reply, _ = client.ask(VERSION, struct.pack("<HH", 0, minor) + b"{}\0")
        assert struct.unpack_from("<HH", reply) == (0, min(minor, 1))
    with pytest.raises(Refused):
        client.version(major=1)
    assert client.read(CONFIG, 8, 4) >> 8 == 0x010802
    bar = client.read(CONFIG, 0x10, 4)
    client.write(CONFIG, 0x10, 0xFFFFFFFF, 4)
    assert client.read(CONFIG, 0x10, 4) == bar
    assert client.ask(IRQ_INFO, struct.pack("<IIII", 16, 0, 2, 0))[0][12:] == b"\x41\0\0\0"
    for region, offset in ((0, 1 << 20), (6, 0), (CONFIG, 4096), (99, 0)):
        with pytest.raises(Refused):
            client.read(region, offset, 4)
    client.close()
    good(vroom("id", nvme.socket))


def test_memory_comes_and_goes(qemu_nvme):
    """Areas that touch, are taken away and come back; what does not fit is refused."""
    nvme = qemu_nvme()
    client = VfioUser(nvme.socket)
    client.version()
    fd = os.memfd_create("memory")
    os.ftruncate(fd, 8 * MIB)

    def area(command: int, iova: int, size: int, fds: list[int] = (), offset: int = 0):
        where = (offset, iova, size) if command == DMA_MAP else (iova, size)
        client.ask(command, struct.pack(f"<II{len(where)}Q", 8 + 8 * len(where), 3
                   if command == DMA_MAP else 0, *where), fds)  # fmt: skip

    for _ in range(3):
        area(DMA_MAP, 4 * GIB, 2 * MIB, [fd])
        area(DMA_MAP, 4 * GIB + 2 * MIB, 4 * MIB, [fd])
        with pytest.raises(Refused):
            area(DMA_MAP, 4 * GIB + 4 * MIB, 2 * MIB, [fd])
        area(DMA_UNMAP, 4 * GIB, 2 * MIB)
        area(DMA_MAP, 4 * GIB, 2 * MIB, [fd])
        area(DMA_UNMAP, 4 * GIB + 2 * MIB, 4 * MIB)
        area(DMA_UNMAP, 4 * GIB, 2 * MIB)
    for wrong in ((IOVA, [fd], 0), (4 * GIB, [], 0), (4 * GIB, [fd], 4096)):
        with pytest.raises(Refused):
            area(DMA_MAP, wrong[0], 2 * MIB, wrong[1], wrong[2])
    with pytest.raises(Refused):
        area(DMA_UNMAP, 4 * GIB, 2 * MIB)
    with pytest.raises(Refused):
        client.ask(SET_IRQS, struct.pack("<IIIII", 20, 0x24, 2, 65, 1), [fd])
    os.close(fd)
    client.close()
    good(vroom("id", nvme.socket))
