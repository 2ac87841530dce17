# SPDX-License-Identifier: BSD-3-Clause
"""The vfio-user client against servers that are strange, wrong or silent, and against ours
with its options turned round. Data is checked against the namespace's file."""

from __future__ import annotations

import os
import struct
import time

import pytest
from conftest import BUILD, MIB, fio, good, run, vroom
from fakeserver import FakeDiscovery, FakeServer

ONES = b"\xff" * 8


@pytest.fixture
def fake(tmp_path):
    server = FakeServer(tmp_path / "fake.sock")
    yield server
    server.close()


def refused(server, words: str, seconds: float = 10) -> None:
    """One line that names the socket and holds WORDS, soon."""
    start = time.monotonic()
    result = fio(filename=server.path, rw="read", bs="4k", io_timeout=1)
    assert result.status != 0 and time.monotonic() - start < seconds
    lines = [line for line in result.vroom_lines if "resetting the function" not in line]
    assert len(lines) == 1, result.text
    assert words in lines[0] and str(server.path) in lines[0]


def cap(mqes=1023, timeout=1, css=1, mpsmin=0) -> bytes:
    return struct.pack("<Q", mqes | timeout << 24 | css << 37 | mpsmin << 48)


CASES = {
    "another major version": ({"version_reply": struct.pack("<HH", 3, 0)}, "speaks vfio-user 3.0"),
    "a short version": ({"version_reply": b"\0"}, "answered with 1 bytes"),
    "not a PCI device": ({"info": struct.pack("<IIII", 16, 4, 9, 5)}, "not a PCI function"),
    "a short answer": ({"info": b"1234"}, "answered with 4 bytes"),
    "another class of device": ({"class_code": 0x020000}, "class 020000h"),
    "no room for doorbells": ({"bar0_size": 0x1000}, "no room for doorbells"),
    "all ones": ({"registers": {0: ONES, 8: ONES, 0x14: ONES, 0x1C: ONES}}, "all ones"),
    "no command set": ({"registers": {0: cap(css=0x80)}}, "no NVM command set"),
    "queues of one entry": ({"registers": {0: cap(mqes=0)}}, "queues hold one entry"),
    "huge pages only": ({"registers": {0: cap(mpsmin=9)}}, "smallest page is 2048 KiB"),
    "never ready": ({"registers": {0: cap()}}, "no CSTS.RDY=1 within 500 ms"),
    "never disabled": (
        {"registers": {0: cap(), 0x14: b"\1" + bytes(7), 0x1C: b"\1" + bytes(7)}},
        "no CSTS.RDY=0 within 500 ms",
    ),
    "fatal status": ({"registers": {0: cap(), 0x1C: b"\2" + bytes(7)}}, "fatal status"),
    "hangs up at once": ({"close_after": 0}, "the controller has another client"),
    "hangs up later": ({"close_after": 7}, "closed the connection"),
    "silent at once": ({"silent_after": 0}, "no answer to VERSION within 1000 ms"),
    "silent later": ({"silent_after": 5}, "no answer to"),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("wire", ["whole", "in pieces", "with noise"])
def test_strange_servers(fake, case, wire):
    settings, words = CASES[case]
    for name, value in settings.items():
        setattr(fake, name, value)
    fake.split_replies = wire == "in pieces"
    fake.noise_before_replies = wire == "with noise"
    refused(fake, words)


def test_discovery_controller_is_told_from_an_io_controller(tmp_path):
    server = FakeDiscovery(tmp_path / "discovery.sock")
    refused(server, "is a discovery controller (subsystem nqn.2014-08.org.nvmexpress.discove")
    server.close()


def test_controller_that_does_not_stop_is_reset(tmp_path):
    """Found enabled, and deaf to CC.EN=0; after a reset it is like any other."""
    server = FakeDiscovery(tmp_path / "stuck.sock")
    server.stuck = True
    server.registers[0x14] = server.registers[0x1C] = b"\1" + bytes(7)
    result = vroom("id", server.path)
    server.close()
    assert 13 in server.seen
    assert "resetting the function" in result.vroom_lines[0]
    assert "is a discovery controller" in result.vroom_lines[1]


@pytest.mark.parametrize("setting", [["--mmap", "off"], ["--dstrd", "0"], ["--dstrd", "10"],
                                     ["--entries", "2"], ["--queues", "1"], ["--mpsmin", "4"],
                                     ["--mdts", "128K"], ["--vwc", "off"]])  # fmt: skip
def test_data_with_any_controller(controller, tmp_path, setting):
    path = tmp_path / "ns"
    path.write_bytes(bytes(16 * MIB))
    served = controller("--ns", f"file={path}", *setting)
    check = {"bs": "4k", "size": "2M", "verify": "crc32c", "verify_state_save": 0, "iodepth": 16}
    good(fio(filename=served.socket, rw="randwrite", **check))
    good(fio(filename=path, rw="randwrite", ioengine="psync", verify_only=True, **check))
    example = good(run(BUILD / "examples" / "hello", served.socket))
    assert "read back as written" in example.out
    assert served.process.poll() is None


def test_directory_with_a_cntrl_socket(controller, tmp_path):
    """How SPDK's target lays out a vfio-user address."""
    served = controller("--ns", "mem=8M")
    os.rename(served.socket, tmp_path / "cntrl")
    result = good(vroom("id", tmp_path))
    assert "vroom emulated NVMe controller" in result.out


def test_second_client_is_told(controller):
    served = controller("--ns", "mem=8M")
    import socket

    with socket.socket(socket.AF_UNIX) as first:
        first.connect(str(served.socket))
        time.sleep(0.1)
        result = vroom("id", served.socket)
        assert result.status != 0 and "the controller has another client" in result.err
    good(vroom("id", served.socket))


def test_one_controller_many_namespaces(controller, tmp_path):
    for name in "ab":
        (tmp_path / name).write_bytes(bytes(8 * MIB))
    served = controller("--ns", f"file={tmp_path}/a", "--ns", f"file={tmp_path}/b,lba=4096")
    for nsid, pattern in ((1, "0x11"), (2, "0x22")):
        good(
            fio(filename=f"{served.socket},ns={nsid}", rw="write", bs="64k", buffer_pattern=pattern)
        )
    assert (tmp_path / "a").read_bytes() == b"\x11" * 8 * MIB
    assert (tmp_path / "b").read_bytes() == b"\x22" * 8 * MIB
