#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""QEMU's NVMe controller without a guest, as a vfio-user controller on a socket.

The machine's only processor halts at once. This process plays the firmware (it places the BARs)
and then the wire: registers go through QEMU's qtest protocol; the client's memory is plugged in as
DIMMs at its IOVAs, and ejected when the client has gone; the client's eventfds are peers of an
ivshmem device, whose doorbell the controller's MSI-X messages ring. By hand:

    tests/qemubridge.py nvme.sock -drive if=none,id=d,file=disk.img,format=raw \\
        -device nvme,serial=x,drive=d
"""

from __future__ import annotations

import array
import contextlib
import errno
import itertools
import json
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterable
from typing import NoReturn

import rawclient as vfio

ECAM, BARS = 0xB0000000, 0xC0000000  # where in the machine's memory
DIMM_PORT = 0xA00  # ACPI's memory hotplug: selector, and control at 14h
SLOTS = 64
MSIX = 2  # index of the interrupts
ANSWER_BYTES = 1 << 20


class Refused(Exception):
    def __init__(self, error: int, why: str):
        super().__init__(why)
        self.error = error


def send_fds(to: socket.socket, data: bytes, fds: Iterable[int]) -> None:
    rights = array.array("i", fds)
    to.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if rights else [])


class Machine:
    """A QEMU with a halted processor: its memory, its ports, what is plugged into it."""

    def __init__(self, devices: list[str]):
        (self.qtest, qtest), (self.qmp, qmp), (self.peers, peers) = (
            socket.socketpair() for _ in range(3)
        )
        rom, shared = os.memfd_create("rom"), os.memfd_create("ivshmem")
        os.pwrite(rom, b"\xfa\xf4\xeb\xfd".ljust(16, b"\0"), 0xFFF0)  # cli; hlt; jmp hlt - 1
        os.ftruncate(shared, 4096)
        # What an ivshmem server says first: version, the device's own number, the memory.
        self.peers.sendall(struct.pack("<qq", 0, 0))
        send_fds(self.peers, struct.pack("<q", -1), [shared])
        inherited = [rom, *(end.fileno() for end in (qtest, qmp, peers))]
        chardevs = []
        for name, end in (("qtest", qtest), ("qmp", qmp), ("peers", peers)):
            chardevs += ["-chardev", f"socket,id={name},fd={end.fileno()}"]
        self.process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "qemu-system-x86_64", "-machine", "q35",
             "-accel", "tcg", "-m", f"16M,slots={SLOTS},maxmem=512G", "-nodefaults",
             "-display", "none", "-bios", f"/proc/self/fd/{rom}", *chardevs,
             "-qtest", "chardev:qtest", "-qtest-log", "none", "-mon", "chardev=qmp,mode=control",
             "-device", "ivshmem-doorbell,chardev=peers,vectors=1", *devices],
            pass_fds=inherited, stdin=subprocess.DEVNULL, stdout=sys.stderr,
        )  # fmt: skip
        for fd in (rom, shared):
            os.close(fd)
        for end in (qtest, qmp, peers):
            end.close()
        self.qtest_lines = self.qtest.makefile("r")
        self.qmp_lines = self.qmp.makefile("r")
        self.qmp_lines.readline()  # the greeting
        self.manage("qmp_capabilities")

    def close(self) -> None:
        self.process.terminate()
        self.process.wait()

    def test(self, command: str) -> str:
        """One command of the qtest protocol; what follows its OK."""
        self.qtest.sendall(command.encode() + b"\n")
        status, _, value = self.qtest_lines.readline().rstrip().partition(" ")
        if status != "OK":
            raise ConnectionError(f"QEMU: {command}: {status or 'has ended'} {value}")
        return value

    def manage(self, command: str, **arguments: object) -> None:
        message = {"execute": command, "arguments": arguments}
        self.qmp.sendall(json.dumps(message).encode())
        for line in self.qmp_lines:
            reply = json.loads(line)
            if "error" in reply:
                raise Refused(errno.EINVAL, f"{command}: {reply['error']['desc']}")
            if "return" in reply:
                return
        raise ConnectionError("QEMU has ended")

    def read(self, address: int, count: int) -> bytes:
        return bytes.fromhex(self.test(f"read {address:#x} {count:#x}")[2:])

    def write(self, address: int, data: bytes) -> None:
        self.test(f"write {address:#x} {len(data):#x} 0x{data.hex()}")

    def get(self, address: int, width: int = 4) -> int:
        return int.from_bytes(self.read(address, width), "little")

    def put(self, address: int, value: int, width: int = 4) -> None:
        self.write(address, value.to_bytes(width, "little"))

    def plug(self, slot: int, fd: int, iova: int, size: int) -> None:
        path = f"/proc/{os.getpid()}/fd/{fd}"
        self.manage("object-add", **{"qom-type": "memory-backend-file", "id": f"memory{slot}",
                                     "mem-path": path, "size": size, "share": True})  # fmt: skip
        try:
            self.manage("device_add", driver="pc-dimm", id=f"dimm{slot}", slot=slot, addr=iova,
                        memdev=f"memory{slot}")  # fmt: skip
        except Refused:
            self.manage("object-del", id=f"memory{slot}")
            raise

    def eject(self, slot: int) -> None:
        """As a guest's ACPI code does."""
        self.test(f"outl {DIMM_PORT:#x} {slot}")
        self.test(f"outb {DIMM_PORT + 0x14:#x} 8")
        self.manage("object-del", id=f"memory{slot}")

    def connect(self, peer: int, fd: int | None) -> None:
        """The doorbell for a peer of the ivshmem device signals this eventfd, or nothing."""
        send_fds(self.peers, struct.pack("<q", peer), [] if fd is None else [fd])
        for _ in range(2):  # the first may be answered before the message is looked at
            self.test("inb 0x80")


class Function:
    """A PCI function of the machine, with its BARs in place."""

    def __init__(self, machine: Machine, slot: int, free: int):
        self.machine = machine
        self.config = ECAM + (slot << 15)
        self.bars: dict[int, tuple[int, int]] = {}  # address, size
        index = 0
        while index < 6:
            at = self.config + 0x10 + 4 * index
            wide = machine.get(at) & 6 == 4
            machine.put(at, 0xFFFFFFFF)
            size = -(machine.get(at) & ~0xF) & 0xFFFFFFFF
            if size:
                self.bars[index] = (-(-free // size) * size, size)
                free = sum(self.bars[index])
            index += 1 + wide
        self.free = free  # memory from here on
        self.capability = {}
        at = machine.get(self.config + 0x34, 1)
        while at:
            self.capability[machine.get(self.config + at, 1)] = self.config + at
            at = machine.get(self.config + at + 1, 1)
        self.vectors = 0
        if msix := self.capability.get(0x11):
            self.vectors = (machine.get(msix + 2, 2) & 0x7FF) + 1
            table = machine.get(msix + 4)
            self.table = self.bars[table & 7][0] + (table & ~7)
        self.enable()

    def enable(self) -> None:
        for index, (address, _) in self.bars.items():
            self.machine.put(self.config + 0x10 + 4 * index, address)
        self.machine.put(self.config + 4, 6, 2)  # memory, bus master
        if self.vectors:
            self.machine.put(self.capability[0x11] + 2, 0x8000, 2)

    def reset(self) -> None:
        control = self.capability[0x10] + 8
        self.machine.put(control, self.machine.get(control, 2) | 0x8000, 2)  # function level
        self.enable()


class Bridge:
    """The vfio-user server: one client after the other."""

    def __init__(self, machine: Machine):
        self.machine = machine
        machine.test("outl 0xcf8 0x80000060")  # the host bridge's PCIEXBAR
        machine.test(f"outl 0xcfc {ECAM | 1:#x}")
        slots = {machine.get(ECAM + (slot << 15) + 8) >> 8: slot for slot in reversed(range(32))}
        if 0x010802 not in slots:
            raise Refused(errno.ENODEV, "the machine has no NVMe controller on its first bus")
        doorbell = Function(machine, slots[0x050000], BARS)  # class of ivshmem: RAM
        self.doorbell = doorbell.bars[0][0] + 12
        self.nvme = Function(machine, slots[0x010802], doorbell.free)
        self.regions = {**self.nvme.bars, vfio.CONFIG: (self.nvme.config, 4096)}
        self.dimms: dict[int, tuple[int, int]] = {}  # by slot: IOVA, size
        self.connected: dict[int, int] = {}  # vectors, with their peers
        self.peers = itertools.count(1)  # QEMU 7.2 crashes when one comes back
        self.commands = {
            vfio.VERSION: self.version,
            vfio.DMA_MAP: self.map,
            vfio.DMA_UNMAP: self.unmap,
            vfio.GET_INFO: lambda payload, fds: struct.pack("<IIII", 16, 3, 9, 5),
            vfio.REGION_INFO: self.region_info,
            vfio.IRQ_INFO: self.irq_info,
            vfio.SET_IRQS: self.set_irqs,
            vfio.REGION_READ: self.read,
            vfio.REGION_WRITE: self.write,
            vfio.DEVICE_RESET: self.reset,
        }

    def version(self, payload: bytes, fds: list[int]) -> bytes:
        major, minor = struct.unpack_from("<HH", payload)
        if major:
            raise Refused(errno.EINVAL, f"the client speaks vfio-user {major}.{minor}")
        capabilities = {"max_msg_fds": 8, "max_data_xfer_size": ANSWER_BYTES}
        text = json.dumps({"capabilities": capabilities}).encode()
        return struct.pack("<HH", 0, min(minor, 1)) + text + b"\0"

    def map(self, payload: bytes, fds: list[int]) -> bytes:
        _, _, offset, iova, size = struct.unpack_from("<IIQQQ", payload)
        if len(fds) != 1 or offset:  # memory-backend-file has an offset only since QEMU 8.1
            raise Refused(errno.ENOTSUP, "DMA memory must be a file from its beginning")
        slot = next((slot for slot in range(SLOTS) if slot not in self.dimms), None)
        if slot is None:
            raise Refused(errno.ENOSPC, f"all {SLOTS} memory slots are in use")
        self.machine.plug(slot, fds[0], iova, size)
        self.dimms[slot] = (iova, size)
        return b""

    def unmap(self, payload: bytes, fds: list[int]) -> bytes:
        _, flags, iova, size = struct.unpack_from("<IIQQ", payload)
        slots = [slot for slot, area in self.dimms.items() if flags & 2 or area == (iova, size)]
        if not slots and not flags & 2:
            raise Refused(errno.ENOENT, f"nothing is mapped at {iova:#x}")
        for slot in slots:
            self.machine.eject(slot)
            del self.dimms[slot]
        return payload[:24]

    def region_info(self, payload: bytes, fds: list[int]) -> bytes:
        index = struct.unpack_from("<I", payload, 8)[0]
        if index > 8:
            raise Refused(errno.EINVAL, f"no region {index}")
        size = self.regions.get(index, (0, 0))[1]
        return struct.pack("<IIIIQQ", 32, 3 if size else 0, index, 0, size, 0)

    def irq_info(self, payload: bytes, fds: list[int]) -> bytes:
        index = struct.unpack_from("<I", payload, 8)[0]
        return struct.pack("<IIII", 16, 9, index, self.nvme.vectors if index == MSIX else 0)

    def set_irqs(self, payload: bytes, fds: list[int]) -> bytes:
        _, flags, index, start, count = struct.unpack_from("<IIIII", payload)
        eventfds = bool(flags & 4)
        if not flags & 0x20 or flags & 2 or (not eventfds and count):
            raise Refused(errno.ENOTSUP, "of interrupts, eventfds are set and cleared")
        if index != MSIX or start + count > self.nvme.vectors:
            raise Refused(errno.EINVAL, f"no interrupt {start + count - 1} of kind {index}")
        for vector in range(start, start + count) if eventfds else list(self.connected):
            if vector in self.connected:
                self.machine.connect(self.connected.pop(vector), None)
            if vector - start < len(fds):
                peer = next(self.peers)
                self.machine.connect(peer, fds[vector - start])
                self.connected[vector] = peer
                message = struct.pack("<QII", self.doorbell, peer << 16, 0)  # not masked
                self.machine.write(self.nvme.table + 16 * vector, message)
        return b""

    def area(self, payload: bytes) -> tuple[int, int]:
        offset, index, count = struct.unpack_from("<QII", payload)
        address, size = self.regions.get(index, (0, 0))
        if not count or count > ANSWER_BYTES or offset + count > size:
            raise Refused(errno.EINVAL, f"{count} bytes at {offset:#x} of region {index}")
        return address + offset, count

    def read(self, payload: bytes, fds: list[int]) -> bytes:
        return payload[:16] + self.machine.read(*self.area(payload))

    def write(self, payload: bytes, fds: list[int]) -> bytes:
        address, count = self.area(payload)
        if len(payload) != 16 + count:
            raise Refused(errno.EINVAL, f"{len(payload) - 16} bytes of {count}")
        if not 0x10 <= address - self.nvme.config < 0x28:  # the BARs stay where they are
            self.machine.write(address, payload[16:])
        return payload[:16]

    def reset(self, payload: bytes = b"", fds: Iterable[int] = ()) -> bytes:
        self.nvme.reset()
        return b""

    def forget_client(self) -> None:
        self.reset()
        self.unmap(struct.pack("<IIQQ", 24, 2, 0, 0), [])
        self.set_irqs(struct.pack("<IIIII", 20, 0x21, MSIX, 0, 0), [])

    def serve(self, client: socket.socket) -> None:
        """Until the client goes."""
        data, fds = b"", []
        while True:
            while len(data) < 16 or len(data) < struct.unpack_from("<I", data, 4)[0]:
                chunk, received, _, _ = socket.recv_fds(client, ANSWER_BYTES, 16)
                if not chunk:
                    return
                data += chunk
                fds += received
            msg_id, command, size, flags, _ = struct.unpack_from("<HHIII", data)
            if size < 16:
                return
            error, reply = 0, b""
            try:
                if command not in self.commands:
                    raise Refused(errno.ENOSYS, f"command {command}")
                reply = self.commands[command](data[16:size], fds)
            except struct.error:
                error = errno.EINVAL
            except Refused as refusal:
                error = refusal.error
                print(f"qemubridge: refused: {refusal}", file=sys.stderr, flush=True)
            for fd in fds:
                os.close(fd)
            data, fds = data[size:], []
            if not flags & 0x10:
                header = (msg_id, command, 16 + len(reply), 0x21 if error else 1, error)
                client.sendall(struct.pack("<HHIII", *header) + reply)


def serve_all(path: str, machine: Machine) -> NoReturn:
    bridge = Bridge(machine)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        try:
            listener.listen(1)
            print(f"listening on {path}", flush=True)
            while True:
                client, _ = listener.accept()
                with client, contextlib.suppress(ConnectionResetError, BrokenPipeError):
                    bridge.serve(client)
                bridge.forget_client()
        finally:
            os.unlink(path)


def main() -> int:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: sys.exit(0))
    if len(sys.argv) < 3:
        print(f"usage: {sys.argv[0]} SOCKET QEMU'S-OPTIONS...", file=sys.stderr)
        return 2
    try:
        with contextlib.closing(Machine(sys.argv[2:])) as machine:
            serve_all(sys.argv[1], machine)
    except (OSError, Refused) as error:
        print(f"qemubridge: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
