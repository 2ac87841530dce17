# SPDX-License-Identifier: BSD-3-Clause
"""The emulated controller against an independent driver (rawclient): what the specification
names, and no memory touched that a command does not own."""

from __future__ import annotations

import json
import os
import signal
import struct
import time
import uuid

import pytest
from conftest import MIB, VROOM, Controller, fio, good, run, vroom, wait_for
from rawclient import (
    ACQ,
    AQA,
    ASQ,
    BAR0,
    CAP,
    CC,
    CONFIG,
    CSTS,
    DEVICE_RESET,
    DMA_MAP,
    DMA_UNMAP,
    GET_INFO,
    IO_FDS,
    IOVA,
    IRQ_INFO,
    PAGE,
    REGION_INFO,
    REGION_READ,
    REGION_WRITE,
    SET_IRQS,
    VS,
    Nvme,
    Refused,
    VfioUser,
)  # fmt: skip

READ, WRITE, FLUSH, COMPARE, ZEROES, DSM, VERIFY = 0x02, 0x01, 0x00, 0x05, 0x08, 0x09, 0x0C
INVALID_OPCODE, INVALID_FIELD, DATA_TRANSFER, INVALID_NS = 0x001, 0x002, 0x004, 0x00B
PRP_OFFSET, LBA_RANGE, COMPARE_FAILURE, SEQUENCE = 0x013, 0x080, 0x285, 0x00C


@pytest.fixture
def nvme(controller, tmp_path):
    """An enabled controller with a file, memory and nothing as namespaces, and queue pair 1."""
    path = tmp_path / "ns1"
    path.write_bytes(os.urandom(4 * MIB))
    served = controller("--ns", f"file={path}", "--ns", "mem=1M,lba=4096", "--ns", "null=1M")
    one = Nvme(served.socket)
    one.path = path
    one.create_queue_pair()
    yield one
    one.close()


def test_registers(controller):
    one = Nvme(controller("--ns", "mem=1M", "--entries", "64", "--dstrd", "2").socket, enable=False)
    cap = one.read(BAR0, CAP, 8)
    assert cap & 0xFFFF == 63 and cap >> 32 & 0xF == 2 and cap >> 37 & 1
    assert one.read(BAR0, VS, 4) >= 0x10400
    assert one.read(BAR0, CAP, 4) == cap & 0xFFFFFFFF
    assert one.read(BAR0, CAP + 4, 4) == cap >> 32
    assert one.read(BAR0, CSTS, 4) == 0
    one.enable()
    one.write(BAR0, CC, 0, 4)
    assert one.read(BAR0, CSTS, 4) == 0
    assert one.read(BAR0, ASQ, 8) == IOVA and one.read(BAR0, ACQ, 8) == IOVA + PAGE
    one.enable()
    one.write(BAR0, CC, 4 << 20 | 6 << 16 | 1 << 14 | 1, 4)
    assert one.read(BAR0, CSTS, 4) >> 2 & 3 == 2, "shutdown complete"
    one.ask(DEVICE_RESET)
    assert one.read(BAR0, CSTS, 4) == 0 and one.read(BAR0, CC, 4) == 0


@pytest.mark.parametrize("what", ["memory", "alignment", "page size", "command set", "one entry"])
def test_enabling_nonsense_is_fatal_status(controller, what):
    one = Nvme(controller("--ns", "mem=1M").socket, enable=False)
    one.write(BAR0, AQA, 0 if what == "one entry" else 0x000F000F, 4)
    one.write(
        BAR0, ASQ, 0x1000 if what == "memory" else IOVA + (8 if what == "alignment" else 0), 8
    )
    one.write(BAR0, ACQ, IOVA + PAGE, 8)
    extra = {"page size": 3 << 7, "command set": 5 << 4}.get(what, 0)
    one.write(BAR0, CC, 4 << 20 | 6 << 16 | extra | 1, 4)
    assert one.read(BAR0, CSTS, 4) == 2
    one.write(BAR0, CC, 0, 4)
    one.enable()


def test_identify(nvme):
    ctrlr = nvme.identify(1)
    assert ctrlr[4:24].decode().strip() == "VROOM0001"
    assert ctrlr[77] == 8 and struct.unpack_from("<I", ctrlr, 516)[0] == 3
    assert ctrlr[512] == 0x66 and ctrlr[513] == 0x44
    assert ctrlr[768:1024].startswith(b"nqn.")
    assert [n for n in struct.unpack("<1024I", nvme.identify(2)) if n] == [1, 2, 3]
    assert [n for n in struct.unpack("<1024I", nvme.identify(2, 2)) if n] == [3]
    ns = nvme.identify(0, 2)
    size, capacity, used = struct.unpack_from("<3Q", ns)
    assert size == capacity == 256 and ns[26] == 1 and ns[25] == 1
    assert [ns[128 + 4 * i + 2] for i in range(2)] == [9, 12]
    descriptors = nvme.identify(3, 1)
    assert descriptors[0:2] == bytes([2, 16]) and descriptors[20:22] == bytes([3, 16])
    assert descriptors[4:20] == nvme.identify(0, 1)[104:120]
    assert uuid.UUID(bytes=descriptors[24:40]).version == 4
    for cns, nsid, status in [(0, 9, INVALID_NS), (0, 0xFFFFFFFF, INVALID_NS), (3, 9, INVALID_NS),
                              (2, 0xFFFFFFFF, INVALID_NS), (0x55, 0, INVALID_FIELD)]:  # fmt: skip
        assert nvme.admin(0x06, nsid=nsid, prp1=nvme.data, cdw=(cns,)).status == status


def test_read_write_against_the_file(nvme):
    want = nvme.path.read_bytes()
    assert nvme.io(READ, slba=100, blocks=8).status == 0
    assert nvme.at(nvme.data, 4096) == want[51200 : 51200 + 4096]
    data = os.urandom(1024)
    nvme.put(nvme.data + 512, data)
    assert nvme.io(WRITE, slba=7, blocks=2, prp1=nvme.data + 512).status == 0
    assert nvme.path.read_bytes() == want[:3584] + data + want[4608:]
    # Two pages, three pages, and a list, from odd places.
    for blocks, offset in [(16, 0), (9, 256), (24, 512), (64, 0), (65, 3584)]:
        size = blocks * 512
        pages = [nvme.data + (2 * i) * PAGE for i in range((offset + size + PAGE - 1) // PAGE)]
        prp2 = 0
        if len(pages) == 2:
            prp2 = pages[1]
        elif len(pages) > 2:
            prp2 = nvme.data - PAGE
            nvme.put(prp2, struct.pack(f"<{len(pages) - 1}Q", *pages[1:]))
        assert nvme.io(READ, slba=3, blocks=blocks, prp1=pages[0] + offset, prp2=prp2).status == 0
        got = nvme.at(pages[0] + offset, min(size, PAGE - offset))
        for page in pages[1:]:
            got += nvme.at(page, min(size - len(got), PAGE))
        assert got == nvme.path.read_bytes()[1536 : 1536 + size]


def test_chained_prp_lists(controller, tmp_path):
    path = tmp_path / "ns"
    path.write_bytes(os.urandom(4 * MIB))
    one = Nvme(controller("--ns", f"file={path}", "--mdts", "0").socket, megabytes=16)
    one.create_queue_pair()
    pages = [IOVA + 8 * MIB + i * PAGE for i in range(1024)]
    lists = [IOVA + 2 * MIB, IOVA + 3 * MIB]
    # The last entry of a page is a pointer, unless it is the last of all, as in the second.
    one.put(lists[0], struct.pack("<512Q", *pages[1:512], lists[1]))
    one.put(lists[1], struct.pack("<512Q", *pages[512:1024]))
    assert one.io(READ, slba=0, blocks=8192, prp1=pages[0], prp2=lists[0]).status == 0
    assert one.at(pages[0], 4 * MIB) == path.read_bytes()


BAD_IO = {
    "opcode": (dict(opcode=0x77), INVALID_OPCODE),
    "namespace 0": (dict(opcode=READ, nsid=0), INVALID_NS),
    "namespace beyond": (dict(opcode=READ, nsid=4), INVALID_NS),
    "broadcast namespace": (dict(opcode=WRITE, nsid=0xFFFFFFFF), INVALID_NS),
    "range start": (dict(opcode=READ, slba=8192), LBA_RANGE),
    "range end": (dict(opcode=READ, slba=8190, blocks=3), LBA_RANGE),
    "range wraps": (dict(opcode=WRITE, slba=(1 << 64) - 1, blocks=8), LBA_RANGE),
    "beyond MDTS": (dict(opcode=READ, blocks=2049), INVALID_FIELD),
    "zeroes range": (dict(opcode=ZEROES, slba=8191, blocks=2), LBA_RANGE),
    "verify range": (dict(opcode=VERIFY, slba=8192), LBA_RANGE),
    "SGL": (dict(opcode=READ, flags=0x40), INVALID_FIELD),
    "fused": (dict(opcode=COMPARE, flags=0x01), INVALID_FIELD),
    "PRP1 outside memory": (dict(opcode=READ, prp1=0x1000), DATA_TRANSFER),
    "PRP1 at the end": (dict(opcode=READ, blocks=8, prp1=IOVA + 8 * MIB), DATA_TRANSFER),
    "PRP1 wraps": (dict(opcode=READ, prp1=(1 << 64) - 512), DATA_TRANSFER),
    "PRP1 not dword aligned": (dict(opcode=READ, prp1=IOVA + 2 * MIB + 2), PRP_OFFSET),
    "PRP2 not page aligned": (dict(opcode=READ, blocks=16, prp2=IOVA + 3 * MIB + 8), PRP_OFFSET),
    "PRP2 outside memory": (dict(opcode=WRITE, blocks=16, prp2=0x1000), DATA_TRANSFER),
    "list outside memory": (dict(opcode=READ, blocks=64, prp2=0x2000), DATA_TRANSFER),
    "list not qword aligned": (dict(opcode=READ, blocks=64, prp2=IOVA + 3 * MIB + 4), PRP_OFFSET),
    "list of nonsense": (dict(opcode=READ, blocks=64, prp2=IOVA + 3 * MIB), PRP_OFFSET),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_IO)
def test_invalid_io_touches_nothing(nvme, case):
    fields, status = BAD_IO[case]
    file_before = nvme.path.read_bytes()
    nvme.put(IOVA + 2 * MIB, b"\xc3" * (6 * MIB))
    nvme.put(nvme.data, b"\x3c" * PAGE)
    done = nvme.io(**fields)
    assert done.status == status and (done.dnr or status == DATA_TRANSFER)
    assert nvme.path.read_bytes() == file_before
    assert nvme.at(IOVA + 2 * MIB + PAGE, 6 * MIB - PAGE) == b"\xc3" * (6 * MIB - PAGE)
    # And it goes on.
    assert nvme.io(READ, slba=1).status == 0
    assert nvme.at(nvme.data, 512) == file_before[512:1024]


def test_compare_zeroes_deallocate_verify_flush(nvme):
    want = nvme.path.read_bytes()
    nvme.put(nvme.data, want[4096:8192])
    assert nvme.io(COMPARE, slba=8, blocks=8).status == 0
    nvme.put(nvme.data + 100, b"?")
    assert nvme.io(COMPARE, slba=8, blocks=8).status == COMPARE_FAILURE
    assert nvme.io(ZEROES, slba=16, blocks=16, prp1=0).status == 0
    ranges = struct.pack("<IIQIIQ", 0, 64, 1024, 0, 8, 40)
    nvme.put(nvme.data, ranges)
    assert nvme.command(1, DSM, nsid=1, prp1=nvme.data, cdw=(1, 4)).status == 0
    expected = bytearray(want)
    for first, count in [(16, 16), (1024, 64), (40, 8)]:
        expected[first * 512 : (first + count) * 512] = bytes(count * 512)
    assert nvme.path.read_bytes() == expected
    # One range of several out of bounds: none is touched.
    nvme.put(nvme.data, struct.pack("<IIQIIQ", 0, 8, 0, 0, 8, 8190))
    assert nvme.command(1, DSM, nsid=1, prp1=nvme.data, cdw=(1, 4)).status == LBA_RANGE
    assert nvme.path.read_bytes() == expected
    assert nvme.io(VERIFY, slba=0, blocks=100).status == 0
    assert nvme.command(1, FLUSH, nsid=1).status == 0
    assert nvme.command(1, FLUSH, nsid=0xFFFFFFFF).status == 0
    assert nvme.command(1, FLUSH, nsid=9).status == INVALID_NS


def test_memory_namespace(nvme):
    data = os.urandom(2 * PAGE)
    nvme.put(nvme.data, data)
    assert nvme.io(WRITE, nsid=2, slba=3, blocks=2, prp2=nvme.data + PAGE).status == 0
    nvme.put(nvme.data, bytes(2 * PAGE))
    assert nvme.io(READ, nsid=2, slba=3, blocks=2, prp2=nvme.data + PAGE).status == 0
    assert nvme.at(nvme.data, 2 * PAGE) == data
    nvme.put(nvme.data, struct.pack("<IIQ", 0, 1, 3))
    assert nvme.command(1, DSM, nsid=2, prp1=nvme.data, cdw=(0, 4)).status == 0
    assert nvme.io(READ, nsid=2, slba=3).status == 0
    assert nvme.at(nvme.data, PAGE) == bytes(PAGE)


def test_queue_management(nvme):
    sq, cq = IOVA + 20 * PAGE, IOVA + 21 * PAGE

    def create_cq(qid=2, size=16, prp1=cq, cdw11=1):
        return nvme.admin(0x05, prp1=prp1, cdw=((size - 1) << 16 | qid, cdw11)).status

    def create_sq(qid=2, size=16, prp1=sq, cqid=2, flags=1):
        return nvme.admin(0x01, prp1=prp1, cdw=((size - 1) << 16 | qid, cqid << 16 | flags)).status

    assert create_cq(qid=0) == create_cq(qid=999) == create_cq(qid=1) == 0x101
    assert create_cq(size=1) == create_cq(size=65536) == 0x102
    assert create_cq(prp1=cq + 8) == PRP_OFFSET and create_cq(prp1=0x1000) == DATA_TRANSFER
    assert create_cq(cdw11=0) == INVALID_FIELD and create_cq(cdw11=999 << 16 | 1) == 0x108
    assert create_sq(cqid=2) == 0x100, "no such completion queue"
    assert create_cq() == 0
    assert create_sq(qid=0) == create_sq(qid=1) == 0x101 and create_sq(size=1) == 0x102
    assert create_sq(cqid=0) == 0x100 and create_sq(flags=0) == INVALID_FIELD
    assert create_sq() == 0
    assert nvme.admin(0x04, cdw=(2,)).status == 0x10C, "in use by a submission queue"
    assert nvme.admin(0x00, cdw=(7,)).status == 0x101
    assert nvme.admin(0x00, cdw=(2,)).status == 0
    assert nvme.admin(0x04, cdw=(2,)).status == 0
    assert nvme.admin(0x04, cdw=(2,)).status == 0x101
    nvme.create_queue_pair(2)
    assert nvme.io(READ, qid=2).status == 0
    assert nvme.admin(0x09, cdw=(7, 0x00010001)).status == SEQUENCE, "queues exist already"


def test_queue_wraps_and_fills(nvme):
    """A full ring of commands is executed in one go; the completion queue never overflows."""
    want = nvme.path.read_bytes()
    for _round in range(5):
        for i in range(15):
            nvme.submit(1, READ, nsid=1, prp1=nvme.data + i * 512, cdw=(i, 0, 0), ring=False)
        nvme.ring(1, False, nvme.queues[1]["tail"])
        assert {nvme.reap(1).status for _ in range(15)} == {0}
        assert nvme.at(nvme.data, 15 * 512) == want[: 15 * 512]


def test_features(nvme):
    def get(fid, nsid=0, cdw11=0):
        return nvme.admin(0x0A, nsid=nsid, cdw=(fid, cdw11))

    def put(fid, value, nsid=0):
        return nvme.admin(0x09, nsid=nsid, cdw=(fid, value))

    for fid in (1, 2, 4, 6, 7, 8, 9, 10, 11):
        assert get(fid).status == 0, fid
    assert get(5, nsid=1).status == 0 and get(5).status == INVALID_NS
    assert get(0x0F).status == INVALID_FIELD and get(0x80).status == INVALID_FIELD
    assert get(7).result == 127 << 16 | 127
    assert put(1, 3).status == 0 and get(1).result == 3
    assert put(4, 350).status == 0 and get(4).result == 350
    assert put(6, 0).status == 0 and get(6).result == 0
    assert put(2, 1).status == INVALID_FIELD
    assert put(1 | 1 << 31, 3).status == 0x10D, "not saveable"
    assert put(7, 0xFFFF).status == INVALID_FIELD
    nvme.write(BAR0, CC, 0, 4)
    nvme.enable()
    assert get(6).result == 1, "a reset restores defaults"
    done = put(7, 0x00050003)
    assert done.status == 0 and done.result == 0x00050003
    assert nvme.admin(0x05, prp1=IOVA + 20 * PAGE, cdw=(15 << 16 | 7, 1)).status == 0x101


def test_logs(nvme):
    def log(lid, size=512, nsid=0xFFFFFFFF, offset=0):
        dwords = size // 4 - 1
        done = nvme.admin(0x02, nsid=nsid, prp1=nvme.data, prp2=nvme.data + PAGE,
                          cdw=(lid | (dwords & 0xFFFF) << 16, dwords >> 16, offset, 0))  # fmt: skip
        return done.status, nvme.at(nvme.data, size)

    assert nvme.io(READ, slba=9999999).status == LBA_RANGE
    status, errors = log(1, 128)
    count, sqid, cid, code = struct.unpack_from("<QHHH", errors)
    assert status == 0 and count == 1 and sqid == 1 and code >> 1 & 0xFF == 0x80
    assert struct.unpack_from("<Q", errors, 16)[0] == 9999999
    for _ in range(1001):
        nvme.io(READ, blocks=8)
    status, smart = log(2)
    assert status == 0 and smart[3] == 100
    assert struct.unpack_from("<Q", smart, 64)[0] == 1001
    assert struct.unpack_from("<Q", smart, 32)[0] == (1001 * 8 + 999) // 1000
    assert log(3)[1][8:16].strip() and log(3)[0] == 0
    status, supported = log(0, 1024)
    assert status == 0 and [supported[4 * i] for i in range(6)] == [1, 1, 1, 1, 1, 1]
    status, commands = log(5, 4096)
    assert commands[0x06 * 4] & 1 and commands[1024 + 2 * 4] & 1 and not commands[1024 + 0x77 * 4]
    assert log(2, 512, offset=256)[1][:256] == bytes(256)
    assert log(0x77)[0] == 0x109 and log(2, nsid=1)[0] == INVALID_NS


def test_async_events_and_abort(nvme):
    for _ in range(4):
        nvme.submit(0, 0x0C)
    assert nvme.admin(0x0C).status == 0x105, "one request too many"
    nvme.ring(1, False, 9999)
    event = nvme.reap(0)
    assert event.status == 0 and event.result & 0xFFFF == 0x0100, "invalid doorbell value"
    nvme.ring(1, False, 0)
    assert nvme.io(READ).status == 0
    done = nvme.admin(0x08, cdw=(1 | 0x1234 << 16,))
    assert done.status == 0 and done.result & 1 == 1, "not aborted"


def test_abort_of_a_slow_command(controller):
    one = Nvme(controller("--ns", "null=1G", "--read-latency", "5000000").socket)
    one.create_queue_pair()
    cid = one.submit(1, READ, nsid=1, prp1=one.data)
    time.sleep(0.05)
    done = one.admin(0x08, cdw=(1 | cid << 16,))
    assert done.status == 0 and done.result & 1 == 0
    aborted = one.reap(1)
    assert aborted.cid == cid and aborted.status == 0x007


def test_keep_alive_and_unknown_admin_commands_are_refused(nvme):
    for opcode in (0x18, 0x10, 0x0D, 0xC0, 0x7F):
        assert nvme.admin(opcode).status == INVALID_OPCODE


def test_format(nvme):
    assert nvme.admin(0x80, nsid=1, cdw=(1,)).status == 0
    assert nvme.path.read_bytes() == bytes(4 * MIB)
    ns = nvme.identify(0, 1)
    assert struct.unpack_from("<Q", ns)[0] == 1024 and ns[26] == 1
    assert nvme.io(READ, slba=1023).status == 0 and nvme.io(READ, slba=1024).status == LBA_RANGE
    assert nvme.admin(0x80, nsid=1, cdw=(5,)).status == 0x10A
    assert nvme.admin(0x80, nsid=1, cdw=(1 << 5,)).status == 0x10A
    assert nvme.admin(0x80, nsid=1, cdw=(2 << 9,)).status == INVALID_FIELD
    assert nvme.admin(0x80, nsid=9).status == INVALID_NS
    assert nvme.admin(0x80, nsid=0xFFFFFFFF, cdw=(0,)).status == 0
    assert struct.unpack_from("<Q", nvme.identify(0, 2))[0] == 2048


def test_interrupts_by_eventfd(nvme):
    reply, _ = nvme.ask(IRQ_INFO, struct.pack("<IIII", 16, 0, 2, 0))
    assert struct.unpack_from("<I", reply, 12)[0] == 129
    fd = os.eventfd(0, os.EFD_NONBLOCK)
    nvme.ask(SET_IRQS, struct.pack("<IIIII", 24, 4 | 32, 2, 3, 1), [fd])
    cq, sq = IOVA + 20 * PAGE, IOVA + 21 * PAGE
    assert nvme.admin(0x05, prp1=cq, cdw=(15 << 16 | 5, 3 << 16 | 3)).status == 0
    assert nvme.admin(0x01, prp1=sq, cdw=(15 << 16 | 5, 5 << 16 | 1)).status == 0
    nvme.queues[5] = nvme.queue(5, sq, cq, 16)
    assert nvme.io(READ, qid=5).status == 0
    assert wait_for(lambda: os.eventfd_read(fd), what="interrupt") >= 1
    nvme.ask(SET_IRQS, struct.pack("<IIIII", 20, 1 | 32, 2, 0, 0))
    assert nvme.io(READ, qid=5).status == 0
    with pytest.raises(BlockingIOError):
        os.eventfd_read(fd)


def test_unmapping_live_queues_is_fatal(nvme):
    nvme.ask(DMA_UNMAP, struct.pack("<IIQQ", 24, 0, IOVA, 8 * MIB))
    assert nvme.read(BAR0, CSTS, 4) & 2
    with pytest.raises(Refused):
        nvme.ask(DMA_UNMAP, struct.pack("<IIQQ", 24, 0, IOVA, 8 * MIB))


def test_memory_without_a_file_is_never_touched(controller):
    one = Nvme(controller("--ns", "mem=1M").socket)
    one.create_queue_pair()
    one.ask(DMA_MAP, struct.pack("<IIQQQ", 32, 3, 0, 0x90000000, MIB))
    assert one.io(READ, prp1=0x90000000).status == DATA_TRANSFER
    with pytest.raises(Refused):
        one.ask(DMA_MAP, struct.pack("<IIQQQ", 32, 3, 0, 0x90000000 + PAGE, PAGE))
    fd = os.memfd_create("ro")
    os.ftruncate(fd, MIB)
    one.ask(DMA_MAP, struct.pack("<IIQQQ", 32, 1, 0, 0xA0000000, MIB), [fd])
    assert one.io(WRITE, prp1=0xA0000000).status == 0
    assert one.io(READ, prp1=0xA0000000).status == DATA_TRANSFER, "mapped read-only"


def test_protocol_robustness(controller):
    """Unknown messages, short ones, wrong regions: answered with an error, and on it goes."""
    served = controller("--ns", "mem=1M")
    one = VfioUser(served.socket)
    assert one.version(text="")["capabilities"]["max_msg_fds"] == 8
    info, _ = one.ask(GET_INFO, struct.pack("<IIII", 16, 0, 0, 0))
    assert struct.unpack("<IIII", info) == (16, 3, 9, 5)
    for command, payload in [
        (99, b""), (DMA_MAP, b"abc"), (REGION_INFO, struct.pack("<IIIIQQ", 32, 0, 77, 0, 0, 0)),
        (REGION_READ, struct.pack("<QII", 0, 5, 4)), (REGION_READ, struct.pack("<QII", 1 << 40, 0, 4)),
        (REGION_READ, struct.pack("<QII", (1 << 64) - 1, 0, 4)), (IO_FDS, b""), (IRQ_INFO, b""),
        (REGION_READ, struct.pack("<QII", 0, 0, 5000)), (REGION_WRITE, struct.pack("<QII", 0, 0, 8)),
        (SET_IRQS, struct.pack("<IIIII", 20, 36, 2, 4000000000, 4000000000)),
    ]:  # fmt: skip
        with pytest.raises(Refused):
            one.ask(command, payload)
    # A message in three pieces, and two in one.
    whole = struct.pack("<HHIII", 7, REGION_READ, 32, 0, 0) + struct.pack("<QII", VS, BAR0, 4)
    for piece in (whole[:5], whole[5:20], whole[20:]):
        one.socket.sendall(piece)
        time.sleep(0.02)
    assert one.receive()[2][16:] == struct.pack("<I", 0x10400)
    one.socket.sendall(whole + whole)
    assert one.receive()[2] == one.receive()[2]
    # No reply wanted: none comes before that of the next message.
    one.send(REGION_WRITE, struct.pack("<QIII", AQA, BAR0, 4, 0x00050005), flags=0x10)
    assert one.read(BAR0, AQA, 4) == 0x00050005
    # Nonsense in the header: the server hangs up, and serves the next client.
    one.socket.sendall(struct.pack("<HHIII", 1, 1, 1 << 30, 0, 0))
    with pytest.raises(ConnectionError):
        one.receive()
    again = VfioUser(served.socket)
    again.version()
    other = VfioUser(served.socket)
    with pytest.raises(ConnectionError):
        other.version()
    again.close()
    wait_for(lambda: accepts(served.socket), what="next client")


def accepts(path) -> bool:
    try:
        one = VfioUser(path)
        one.version()
        one.close()
        return True
    except (TimeoutError, ConnectionError, BrokenPipeError):
        return False


def test_wrong_version_is_hung_up_on(controller):
    one = VfioUser(controller("--ns", "mem=1M").socket)
    with pytest.raises(ConnectionError):
        one.version(major=9)


def test_config_space(nvme):
    assert nvme.read(CONFIG, 0x08, 4) >> 8 == 0x010802
    nvme.write(CONFIG, 0x10, 0xFFFFFFFF, 4)
    nvme.write(CONFIG, 0x14, 0xFFFFFFFF, 4)
    size = (~(nvme.read(CONFIG, 0x10, 8) & ~0xF) + 1) & (1 << 64) - 1
    assert size >= 16384 and size & (size - 1) == 0
    nvme.write(CONFIG, 0x00, 0xFFFF, 2)
    assert nvme.read(CONFIG, 0x00, 2) != 0xFFFF
    capability, seen = nvme.read(CONFIG, 0x34, 1), []
    while capability:
        seen.append(nvme.read(CONFIG, capability, 1))
        capability = nvme.read(CONFIG, capability + 1, 1)
    assert {0x11, 0x10} <= set(seen), "MSI-X and PCI Express"


@pytest.mark.parametrize("mapped", [False, True])
def test_doorbells_mapped_or_not(controller, mapped):
    one = Nvme(controller("--ns", "mem=1M").socket, mapped=mapped)
    one.create_queue_pair()
    for _ in range(50):
        assert one.io(READ).status == 0


def test_mmap_off(controller):
    one = Nvme(controller("--ns", "mem=1M", "--mmap", "off").socket)
    reply, fds = one.ask(REGION_INFO, struct.pack("<IIIIQQ", 4096, 0, BAR0, 0, 0, 0))
    assert not fds and not struct.unpack_from("<I", reply, 4)[0] & 4
    one.create_queue_pair()
    assert one.io(READ).status == 0


def cpu_seconds(pid: int) -> float:
    fields = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize("mapped", [False, True])
def test_idle_controller_sleeps(controller, mapped):
    """With a client that only has the doorbells mapped, too: under 1 % of a processor."""
    served = controller("--ns", "mem=1M")
    one = Nvme(served.socket, mapped=mapped)
    one.create_queue_pair()
    assert one.io(READ).status == 0
    time.sleep(0.3)
    before, start = cpu_seconds(served.process.pid), time.monotonic()
    time.sleep(3)
    used = cpu_seconds(served.process.pid) - before
    assert used <= 0.01 * (time.monotonic() - start) + 0.011, "ticks are 10 ms"
    start = time.monotonic()
    assert one.io(READ).status == 0
    assert time.monotonic() - start < 0.1


def test_timing_model(controller):
    """Latency at depth 1, and a cap: from the completions' times, by the wall clock."""
    served = controller("--ns", "null=1G", "--read-latency", "2000", "--write-latency", "500",
                        "--channels", "4", "--write-iops", "1000")  # fmt: skip
    one = Nvme(served.socket)
    one.create_queue_pair()

    def seconds(opcode, count, together):
        start = time.monotonic()
        for _first in range(0, count, together):
            for _ in range(together):
                one.submit(1, opcode, nsid=1, prp1=one.data, ring=False)
            one.ring(1, False, one.queues[1]["tail"])
            for _ in range(together):
                one.reap(1)
        return time.monotonic() - start

    assert seconds(READ, 20, 1) >= 20 * 0.002
    together = seconds(READ, 40, 8)
    assert 10 * 0.002 <= together, "eight at a time on four channels"
    assert seconds(WRITE, 100, 10) >= 0.1, "a thousand a second"


def test_write_buffer(controller):
    """Fast until the buffer is full, then as slow as it drains; trimmed data leaves it."""
    served = controller("--ns", "null=1G", "--write-buffer", "8M", "--drain-bw", "8M")
    one = Nvme(served.socket)
    one.create_queue_pair()

    def seconds(megabytes):
        start = time.monotonic()
        for _ in range(megabytes * 256):
            assert one.io(WRITE, blocks=8).status == 0
        return time.monotonic() - start

    def trim():
        one.put(one.data, struct.pack("<IIQ", 0, 64 * MIB // 512, 0))
        assert one.command(1, DSM, nsid=1, prp1=one.data, cdw=(0, 4)).status == 0

    assert seconds(12) >= 4 / 8, "8 MiB find room, the others wait"
    times = []
    while len(times) < 10 and min(times, default=1) > 0.8 * 4 / 8:
        trim()
        times.append(seconds(4))
    assert min(times) < 0.8 * 4 / 8, "faster than the buffer drains"


def test_serves_the_next_client_and_keeps_data(controller, tmp_path):
    served = controller("--ns", "mem=1M")
    one = Nvme(served.socket)
    one.create_queue_pair()
    one.put(one.data, b"kept" * 128)
    assert one.io(WRITE).status == 0
    one.close()
    wait_for(lambda: accepts(served.socket), what="next client")
    two = Nvme(served.socket)
    two.create_queue_pair()
    assert two.io(READ).status == 0 and two.at(two.data, 512) == b"kept" * 128


def test_ends_cleanly_and_takes_over_a_dead_socket(controller):
    served = controller("--ns", "mem=1M")
    assert served.stop() == 0 and not served.socket.exists()
    again = controller("--ns", "mem=1M")
    again.process.send_signal(signal.SIGKILL)
    again.process.wait()
    assert again.socket.exists()
    third = vroom("emulate", "--socket", again.socket.parent / "plain", "--ns", "mem=0")
    assert third.status != 0 and "smaller than one block" in third.err
    taken = Controller(again.socket, "--ns", "mem=1M")
    second = vroom("emulate", "--socket", again.socket, "--ns", "mem=1M")
    assert second.status != 0 and "Address already in use" in second.err
    assert taken.stop() == 0


@pytest.mark.parametrize("arguments, words", [
    ([], "--socket"),
    (["--socket", "/x/y/z.sock", "--ns", "mem=1M"], "/x/y/z.sock"),
    (["--socket", "s" * 200, "--ns", "mem=1M"], "limited to"),
    (["--socket", "{dir}/s"], "no namespace"),
    (["--socket", "{dir}/s", "--ns", "mem=lots"], "not a size"),
    (["--socket", "{dir}/s", "--ns", "disk=1G"], "namespaces are"),
    (["--socket", "{dir}/s", "--ns", "file={dir}"], "Is a directory"),
    (["--socket", "{dir}/s", "--ns", "mem=1M", "--mdts", "5000"], "power of two"),
    (["--socket", "{dir}/s", "--ns", "mem=1M", "--entries", "1"], "2 to 65536"),
    (["--socket", "{dir}/s", "--ns", "mem=1M", "--fault", "x@1"], "drop@N"),
    (["--socket", "{dir}/s", "--ns", "mem=1M", "--vwc", "perhaps"], "on or off"),
])  # fmt: skip
def test_bad_arguments(tmp_path, arguments, words):
    result = run(VROOM, "emulate", *[a.format(dir=tmp_path) for a in arguments], timeout=5)
    assert result.status != 0 and words in result.err
    assert len(result.err.splitlines()) == 1


def test_drive_is_lent_the_memory_that_it_asks_for(controller):
    """The drive fills its buffer and looks at it again when it gets none of it any more."""
    served = controller("--ns", "mem=64M", "--hmb", "20M")
    shown = good(vroom("id", "--json", served.socket))
    assert json.loads(shown.out)["host_memory_bytes"] == 20 * MIB
    assert "lends the drive 20480 KiB of memory" in shown.err
    check = {"bs": "64k", "size": "32M", "verify": "crc32c", "verify_state_save": 0, "iodepth": 64}
    good(fio(filename=served.socket, rw="randwrite", numjobs=1, **check))
    served.stop()
    assert "host memory buffer" not in served.process.stderr.read()


def test_more_memory_than_is_lent_is_not_used():
    shown = good(vroom("id", "--json", "emu-mem,hmb=300M"))
    assert json.loads(shown.out)["host_memory_bytes"] == 0 and "lends" not in shown.err
