# SPDX-License-Identifier: BSD-3-Clause
"""A second NVMe driver, in Python and independent of vroom's: an oracle for the emulated
controller. It speaks vfio-user by the public specification and NVMe by register."""

from __future__ import annotations

import array
import json
import mmap
import os
import socket
import struct
import time
from dataclasses import dataclass

VERSION, DMA_MAP, DMA_UNMAP, GET_INFO, REGION_INFO, IO_FDS, IRQ_INFO, SET_IRQS = range(1, 9)
REGION_READ, REGION_WRITE, DEVICE_RESET = 9, 10, 13
CAP, VS, CC, CSTS, AQA, ASQ, ACQ = 0x00, 0x08, 0x14, 0x1C, 0x24, 0x28, 0x30
BAR0, CONFIG = 0, 7
IOVA = 0x40000000
PAGE = 4096


@dataclass
class Completion:
    result: int
    sqhd: int
    sqid: int
    cid: int
    status: int  # type << 8 | code
    dnr: bool


class Refused(Exception):
    """The server answered with an error number."""

    def __init__(self, error: int):
        super().__init__(os.strerror(error))
        self.error = error


class VfioUser:
    """The protocol alone."""

    def __init__(self, path: str):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(10)
        self.socket.connect(str(path))
        self.msg_id = 100

    def close(self) -> None:
        self.socket.close()

    def send(self, command: int, payload: bytes = b"", fds: list[int] = (), flags: int = 0) -> int:
        self.msg_id += 1
        header = struct.pack("<HHIII", self.msg_id, command, 16 + len(payload), flags, 0)
        ancillary = []
        if fds:
            ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
        self.socket.sendmsg([header + payload], ancillary)
        return self.msg_id

    def receive(self) -> tuple[int, int, bytes, list[int]]:
        """Message ID, error number, payload, descriptors."""
        data, fds = b"", []
        size = 16
        while len(data) < size:
            chunk, ancillary, _, _ = self.socket.recvmsg(size - len(data), socket.CMSG_SPACE(64))
            if not chunk:
                raise ConnectionError("the server hung up")
            data += chunk
            for _level, _kind, raw in ancillary:
                fds += array.array("i", raw[: len(raw) // 4 * 4]).tolist()
            if len(data) == 16:
                size = struct.unpack_from("<I", data, 4)[0]
        msg_id, _command, _size, flags, error = struct.unpack_from("<HHIII", data)
        assert flags & 0xF == 1, "not a reply"
        return msg_id, error if flags & 0x20 else 0, data[16:], fds

    def ask(
        self, command: int, payload: bytes = b"", fds: list[int] = ()
    ) -> tuple[bytes, list[int]]:
        sent = self.send(command, payload, fds)
        msg_id, error, reply, received = self.receive()
        assert msg_id == sent
        if error:
            raise Refused(error)
        return reply, received

    def version(self, major: int = 0, minor: int = 1, text: str = '{"capabilities":{}}') -> dict:
        reply, _ = self.ask(VERSION, struct.pack("<HH", major, minor) + text.encode() + b"\0")
        return json.loads(reply[4:].rstrip(b"\0"))

    def read(self, region: int, offset: int, width: int) -> int:
        reply, _ = self.ask(REGION_READ, struct.pack("<QII", offset, region, width))
        return int.from_bytes(reply[16 : 16 + width], "little")

    def write(self, region: int, offset: int, value: int, width: int) -> None:
        data = value.to_bytes(width, "little")
        self.ask(REGION_WRITE, struct.pack("<QII", offset, region, width) + data)


class Nvme(VfioUser):
    """A controller, enabled, with an admin queue pair; memory is one shared file."""

    def __init__(self, path: str, megabytes: int = 8, enable: bool = True, mapped: bool = False):
        super().__init__(path)
        self.capabilities = self.version()["capabilities"]
        fd = os.memfd_create("client")
        os.ftruncate(fd, megabytes << 20)
        self.memory = mmap.mmap(fd, megabytes << 20)
        self.ask(DMA_MAP, struct.pack("<IIQQQ", 32, 3, 0, IOVA, megabytes << 20), [fd])
        os.close(fd)
        self.size = megabytes << 20
        self.dstrd = self.read(BAR0, CAP, 8) >> 32 & 0xF
        self.doorbells = self.map_doorbells() if mapped else None
        self.queues: dict[int, dict] = {}
        self.next_cid = 1
        self.data = IOVA + (1 << 20)  # pages from here on are free for data
        if enable:
            self.enable()

    def map_doorbells(self) -> mmap.mmap:
        reply, fds = self.ask(REGION_INFO, struct.pack("<IIIIQQ", 4096, 0, BAR0, 0, 0, 0))
        at = struct.unpack_from("<I", reply, 12)[0]
        assert at, "no sparse areas"
        cap_id, _version, _next, areas = struct.unpack_from("<HHII", reply, at)
        assert cap_id == 1 and areas == 1
        offset, size = struct.unpack_from("<QQ", reply, at + 16)
        assert offset == 0x1000
        return mmap.mmap(fds[0], size, offset=offset)

    def enable(self, entries: int = 16) -> None:
        self.write(BAR0, AQA, (entries - 1) << 16 | (entries - 1), 4)
        self.write(BAR0, ASQ, IOVA, 8)
        self.write(BAR0, ACQ, IOVA + PAGE, 8)
        self.memory[0 : 2 * PAGE] = bytes(2 * PAGE)
        self.write(BAR0, CC, 4 << 20 | 6 << 16 | 1, 4)
        assert self.read(BAR0, CSTS, 4) == 1
        self.queues[0] = self.queue(0, IOVA, IOVA + PAGE, entries)

    @staticmethod
    def queue(qid: int, sq: int, cq: int, entries: int) -> dict:
        return {"qid": qid, "sq": sq - IOVA, "cq": cq - IOVA, "n": entries, "tail": 0, "head": 0,
                "phase": 1}  # fmt: skip

    def at(self, iova: int, count: int) -> bytes:
        return self.memory[iova - IOVA : iova - IOVA + count]

    def put(self, iova: int, data: bytes) -> None:
        self.memory[iova - IOVA : iova - IOVA + len(data)] = data

    def ring(self, qid: int, completion: bool, value: int) -> None:
        offset = (2 * qid + completion) * (4 << self.dstrd)
        if self.doorbells:
            self.doorbells[offset : offset + 4] = struct.pack("<I", value)
        else:
            self.write(BAR0, 0x1000 + offset, value, 4)

    def submit(self, qid: int, opcode: int, nsid: int = 0, prp1: int = 0, prp2: int = 0,
               cdw: tuple = (), flags: int = 0, ring: bool = True) -> int:  # fmt: skip
        q = self.queues[qid]
        cid = self.next_cid
        self.next_cid = cid % 0xFFFE + 1
        words = tuple(cdw) + (0,) * (6 - len(cdw))
        entry = struct.pack("<BBHIIIQQQ6I", opcode, flags, cid, nsid, 0, 0, 0, prp1, prp2, *words)
        self.memory[q["sq"] + 64 * q["tail"] : q["sq"] + 64 * q["tail"] + 64] = entry
        q["tail"] = (q["tail"] + 1) % q["n"]
        if ring:
            self.ring(qid, False, q["tail"])
        return cid

    def reap(self, qid: int, timeout: float = 5) -> Completion:
        q = self.queues[qid]
        at = q["cq"] + 16 * q["head"]
        end = time.monotonic() + timeout
        while True:
            if self.memory[at + 14] & 1 == q["phase"]:
                break
            if time.monotonic() > end:
                raise TimeoutError("no completion")
            time.sleep(0.0002)
        # Only now: what was read before the phase tag may be of before.
        result, _, sqhd, sqid, cid, status = struct.unpack_from("<IIHHHH", self.memory, at)
        q["head"] += 1
        if q["head"] == q["n"]:
            q["head"], q["phase"] = 0, q["phase"] ^ 1
        self.ring(qid, True, q["head"])
        code = (status >> 9 & 7) << 8 | (status >> 1 & 0xFF)
        return Completion(result, sqhd, sqid, cid, code, bool(status >> 15))

    def command(self, qid: int, opcode: int, **fields) -> Completion:
        cid = self.submit(qid, opcode, **fields)
        done = self.reap(qid)
        assert done.cid == cid and done.sqid == qid
        return done

    def admin(self, opcode: int, **fields) -> Completion:
        return self.command(0, opcode, **fields)

    def identify(self, cns: int, nsid: int = 0) -> bytes:
        self.put(self.data, b"\xee" * PAGE)
        done = self.admin(0x06, nsid=nsid, prp1=self.data, cdw=(cns,))
        assert done.status == 0, hex(done.status)
        return self.at(self.data, PAGE)

    def create_queue_pair(self, qid: int = 1, entries: int = 16) -> None:
        sq, cq = IOVA + (2 + 2 * qid) * PAGE, IOVA + (3 + 2 * qid) * PAGE
        self.put(cq, bytes(PAGE))
        size = (entries - 1) << 16 | qid
        assert self.admin(0x05, prp1=cq, cdw=(size, 1)).status == 0
        assert self.admin(0x01, prp1=sq, cdw=(size, qid << 16 | 1)).status == 0
        self.queues[qid] = self.queue(qid, sq, cq, entries)

    def io(self, opcode: int, slba: int = 0, blocks: int = 1, nsid: int = 1, prp1: int | None = None,
           prp2: int = 0, flags: int = 0, cdw12: int = 0, qid: int = 1) -> Completion:  # fmt: skip
        prp1 = self.data if prp1 is None else prp1
        cdw = (slba & 0xFFFFFFFF, slba >> 32, cdw12 | (blocks - 1))
        return self.command(qid, opcode, nsid=nsid, prp1=prp1, prp2=prp2, cdw=cdw, flags=flags)
