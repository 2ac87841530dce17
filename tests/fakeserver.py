# SPDX-License-Identifier: BSD-3-Clause
"""A vfio-user server in Python, for what a correct controller never does: wrong devices,
strange answers, no mappable doorbells, sudden silence; and a discovery controller, which
answers Identify and nothing else."""

from __future__ import annotations

import array
import mmap
import os
import socket
import struct
import threading
import time

GET_INFO, REGION_INFO, IRQ_INFO, SET_IRQS, REGION_READ, REGION_WRITE, RESET = 4, 5, 7, 8, 9, 10, 13
STATUS, CAPABILITIES, MSIX = 0x06, 0x34, 0x50  # in configuration space


class FakeServer:
    """Serves one client at PATH in a thread. Behaviour is set by attributes before use."""

    def __init__(self, path):
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(path))
        self.listener.listen(1)
        self.path = path
        self.version_reply = struct.pack("<HH", 0, 1) + b'{"capabilities":{}}\0'
        self.info = struct.pack("<IIII", 16, 3, 9, 5)
        self.class_code = 0x010802
        self.bar0_size = 0x2000
        self.registers: dict[int, bytes] = {}  # by offset; 8 bytes each
        self.config = bytearray(256)
        self.config_writes: list[tuple[int, bytes]] = []
        self.region_info: bytes | None = None  # instead of BAR0's
        self.error: int | None = None  # for reads of BAR0
        self.files: dict[int, list[int]] = {}  # descriptors to send with replies, by command
        self.split_replies = False
        self.cuts: list[int] = []  # where replies are cut into several sends
        self.files_on = 0  # the piece that carries the descriptors; the last one at most
        self.pause = 0.0  # seconds between two pieces
        self.stop_at: int | None = None  # bytes of the answer to a read of BAR0; once
        self.held_back = b""  # the rest of it, sent with the next answer
        self.flood = False  # other replies without end instead of an answer to a read of BAR0
        self.noise_before_replies = False
        self.silent_after: int | None = None  # commands answered before silence
        self.close_after: int | None = None
        self.seen: list[int] = []
        self.messages: list[tuple[int, bytes]] = []
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def close(self) -> None:
        self.listener.close()
        self.thread.join(5)

    def reply(self, client, msg_id: int, command: int, payload: bytes, error: int = 0) -> None:
        flags = 1 | (0x20 if error else 0)
        message = struct.pack("<HHIII", msg_id, command, 16 + len(payload), flags, error) + payload
        if self.noise_before_replies:
            # Another's reply, and a command of the server's own (DMA_READ).
            client.sendall(struct.pack("<HHIII", msg_id ^ 0x5555, command, 16, 1, 0))
            client.sendall(struct.pack("<HHIIIQQ", 1, 11, 32, 0, 0, 0, 0))
        if self.split_replies:
            for byte in message[:20]:
                client.sendall(bytes([byte]))
                time.sleep(0.0005)
            message = message[20:]
        self.send_in_pieces(client, message, self.files.get(command, []))

    def send_in_pieces(self, client, message: bytes, files: list[int]) -> None:
        edges = [0, *(cut for cut in self.cuts if 0 < cut < len(message)), len(message)]
        carrier = min(self.files_on, len(edges) - 2)
        for piece in range(len(edges) - 1):
            data = message[edges[piece] : edges[piece + 1]]
            rights = array.array("i", files)
            ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if files else []
            if data:
                client.sendmsg([data], ancillary if piece == carrier else [])
            time.sleep(self.pause)

    def answer_bar0_read(self, client, msg_id: int, payload: bytes) -> bool:
        """In the strange ways that were asked for. False: none was."""
        while self.flood:
            client.sendall(struct.pack("<HHIII", msg_id ^ 0x5555, REGION_READ, 16, 1, 0))
        rest, self.held_back = self.held_back, b""
        client.sendall(rest)
        if self.error is not None:
            self.reply(client, msg_id, REGION_READ, b"", self.error)
            return True
        if self.stop_at is None:
            return False
        answer = self.answer(REGION_READ, payload) or b""
        header = struct.pack("<HHIII", msg_id, REGION_READ, 16 + len(answer), 1, 0)
        client.sendall((header + answer)[: self.stop_at])
        self.held_back = (header + answer)[self.stop_at :]
        self.stop_at = None
        return True

    def answer(self, command: int, payload: bytes) -> bytes | None:
        if command == 1:
            return self.version_reply
        if command == GET_INFO:
            return self.info
        if command == REGION_INFO:
            index = struct.unpack_from("<I", payload, 8)[0]
            if self.region_info is not None:
                return self.region_info
            return struct.pack("<IIIIQQ", 32, 3, index, 0, self.bar0_size, 0)
        if command == REGION_READ:
            offset, region, count = struct.unpack_from("<QII", payload)
            value = bytes(count)
            if region == 7:
                self.config[8:12] = struct.pack("<I", self.class_code << 8)
                value = bytes(self.config[offset : offset + count])
            elif region == 0 and offset in self.registers:
                value = self.registers[offset][:count]
            return payload[:16] + value
        if command == REGION_WRITE:
            offset, region, count = struct.unpack_from("<QII", payload)
            if region == 7:
                self.config_writes.append((offset, payload[16 : 16 + count]))
                self.config[offset : offset + count] = payload[16 : 16 + count]
            return payload[:16]
        if command in (2, 3, 13):
            return b""
        return None

    def map_memory(self, payload: bytes, fds) -> None:
        pass

    def take_descriptors(self, command: int, payload: bytes, fds) -> None:
        for fd in fds:
            os.close(fd)

    def serve(self) -> None:
        try:
            client, _ = self.listener.accept()
        except OSError:
            return
        with client:
            while True:
                try:
                    header, ancillary, _, _ = client.recvmsg(16, 256, socket.MSG_WAITALL)
                except ConnectionResetError:
                    return
                fds = array.array("i", b"".join(data for _, _, data in ancillary))
                if len(header) < 16:
                    return
                msg_id, command, size, _, _ = struct.unpack("<HHIII", header)
                payload = client.recv(size - 16, socket.MSG_WAITALL) if size > 16 else b""
                if command == 2:
                    self.map_memory(payload, fds)
                self.take_descriptors(command, payload, fds)
                self.seen.append(command)
                self.messages.append((command, payload))
                if self.close_after is not None and len(self.seen) > self.close_after:
                    return
                if self.silent_after is not None and len(self.seen) > self.silent_after:
                    continue
                try:
                    if command == REGION_READ and payload[8:12] == bytes(4):
                        if self.answer_bar0_read(client, msg_id, payload):
                            continue
                    answer = self.answer(command, payload)
                    self.reply(
                        client, msg_id, command, answer or b"", 0 if answer is not None else 95
                    )
                except OSError:
                    return


class FakeDiscovery(FakeServer):
    """As much of a discovery controller as a host sees before it turns away."""

    def __init__(self, path):
        super().__init__(path)
        self.memory: list[tuple[int, mmap.mmap]] = []
        self.written: dict[int, int] = {}
        self.head = 0
        self.stuck = False  # until it is reset
        self.registers[0] = struct.pack("<Q", 63 | 1 << 24 | 1 << 37)

    def map_memory(self, payload: bytes, fds) -> None:
        _, _, offset, iova, size = struct.unpack_from("<IIQQQ", payload)
        self.memory.append((iova, mmap.mmap(fds[0], size, offset=offset)))

    def at(self, iova: int) -> tuple[mmap.mmap, int]:
        return next((m, iova - base) for base, m in self.memory if base <= iova < base + len(m))

    def answer(self, command: int, payload: bytes) -> bytes | None:
        if command == RESET:
            self.stuck = False
            self.registers[0x14] = self.registers[0x1C] = bytes(8)
        if command == 10 and not self.stuck:
            offset, region, count = struct.unpack_from("<QII", payload)
            value = int.from_bytes(payload[16 : 16 + count], "little")
            if region == 0:
                self.written[offset] = value
            if region == 0 and offset == 0x14:
                self.registers[0x1C] = struct.pack("<Q", value & 1)
                self.registers[0x14] = struct.pack("<Q", value)
            if region == 0 and offset == 0x1000:
                self.identify()
        return super().answer(command, payload)

    def identify(self) -> None:
        queue, start = self.at(self.written[0x28])
        entry = queue[start + 64 * self.head : start + 64 * self.head + 64]
        cid = struct.unpack_from("<H", entry, 2)[0]
        data, at = self.at(struct.unpack_from("<Q", entry, 24)[0])
        page = bytearray(4096)
        page[111], page[512], page[513] = 2, 0x66, 0x44  # CNTRLTYPE: discovery
        page[768:802] = b"nqn.2014-08.org.nvmexpress.discove"
        data[at : at + 4096] = bytes(page)
        queue, start = self.at(self.written[0x30])
        completion = struct.pack("<IIHHHH", 0, 0, self.head + 1, 0, cid, 1)
        queue[start + 16 * self.head : start + 16 * self.head + 16] = completion
        self.head += 1


class FakeMsix(FakeServer):
    """Raises vector 1 when BAR0 is read, on the terms of SPDK's target: MSI-X Enable is set,
    Function Mask is not, and vector 0 leads somewhere."""

    def __init__(self, path, before: int = 0, at: int = MSIX):
        super().__init__(path)
        self.config[STATUS] = 0x10
        self.config[CAPABILITIES] = 0x40
        self.config[0x40:0x42] = bytes([0x01, at])
        self.at = at
        self.config[at : at + 4] = struct.pack("<BBH", 0x11, 0, before | 7)
        self.vectors: dict[int, int] = {}

    def flags(self) -> int:
        return struct.unpack_from("<H", self.config, self.at + 2)[0]

    def take_descriptors(self, command: int, payload: bytes, fds) -> None:
        if command != SET_IRQS:
            return super().take_descriptors(command, payload, fds)
        start = struct.unpack_from("<I", payload, 12)[0]
        self.vectors.update({start + i: fd for i, fd in enumerate(fds)})

    def answer(self, command: int, payload: bytes) -> bytes | None:
        if command == IRQ_INFO:
            return struct.pack("<IIII", 16, 1, 2, 8)
        if command == SET_IRQS:
            return b""
        if command == REGION_READ and payload[8:12] == bytes(4):
            if self.flags() & 0xC000 == 0x8000 and 0 in self.vectors and 1 in self.vectors:
                os.eventfd_write(self.vectors[1], 1)
        return super().answer(command, payload)
