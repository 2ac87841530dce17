# SPDX-License-Identifier: BSD-3-Clause
"""The vfio-user client against servers that are strange, wrong or silent, and against ours
with its options turned round. Data is checked against the namespace's file."""

from __future__ import annotations

import os
import re
import shutil
import socket
import struct
import subprocess
import time

import pytest
from conftest import BUILD, MIB, VROOM, emulators, fio, good, run, vroom, wait_for
from fakeserver import MSIX, REGION_INFO, REGION_READ, FakeDiscovery, FakeMsix, FakeServer
from rawclient import VfioUser

ONES = b"\xff" * 8
STEPS = VROOM.parent / "tests" / "transport"
TIMEOUT, BUSY, UNSUPPORTED, GONE = -110, -16, -95, -19


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


def steps(*arguments: object, **options) -> dict[str, list[tuple[int, str]]]:
    """What tests/transport.c printed: by step, each time's result and line."""
    result = run(STEPS, *arguments, **{"timeout": 20, **options})
    assert "Sanitizer" not in result.text and "runtime error" not in result.text, result.text
    told: dict[str, list[tuple[int, str]]] = {}
    for line in result.out.splitlines():
        name, number, text = re.match(r"([^:]+): (-?\d+) ?(.*)", line).groups()
        told.setdefault(name, []).append((int(number), text))
    return told


def ok(*arguments: object, **options) -> dict[str, list[tuple[int, str]]]:
    """All steps went well, and no descriptor is left."""
    told = steps(*arguments, **options)
    bad = {name: results for name, results in told.items() if any(r[0] < 0 for r in results)}
    assert not bad and told["close"] == told["start"], told
    return told


@pytest.fixture
def memfd():
    made: list[int] = []

    def make(size: int) -> int:
        made.append(os.memfd_create("region"))
        os.ftruncate(made[-1], size)
        return made[-1]

    yield make
    for fd in made:
        os.close(fd)


@pytest.fixture
def msix(tmp_path):
    made: list[FakeMsix] = []

    def make(**settings) -> FakeMsix:
        made.append(FakeMsix(tmp_path / "msix.sock", **settings))
        return made[-1]

    yield make
    for server in made:
        server.close()


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
    "hangs up later": ({"close_after": 5}, "closed the connection"),
    "silent at once": ({"silent_after": 0}, "no answer to VERSION within 1000 ms"),
    "silent later": ({"silent_after": 4}, "no answer to"),
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


# --- messages ------------------------------------------------------------------------------------


def region(offset=0, size=0x2000, flags=0x7, cap_offset=0, area=None) -> bytes:
    """BAR0, as VFIO's GET_REGION_INFO tells of it: readable, writeable, mappable."""
    if area:
        flags, cap_offset = flags | 8, cap_offset or 32
    info = struct.pack("<IIIIQQ", 64, flags, 0, cap_offset, size, offset)
    return info + (struct.pack("<HHIIIQQ", 1, 1, 0, 1, 0, *area) if area else b"")


@pytest.mark.parametrize("stop", [1, 16, 20, 39])
def test_reply_that_stops_within_itself_ends_at_its_deadline(fake, stop):
    """The lock is free again, and when the rest comes at last the connection is sound."""
    fake.stop_at = stop
    told = steps(fake.path, "read", "read", "alive", "read", timeout=10)
    assert told["read"][0][0] == TIMEOUT
    assert "no answer to REGION_READ within 500 ms" in told["read"][0][1]
    assert [number for number, _ in told["read"][1:]] == [0, 0] and told["alive"] == [(0, "")]


@pytest.mark.parametrize("cuts", [[16], [7], [16, 30], [3, 5, 17, 40], list(range(1, 96))])
@pytest.mark.parametrize("files_on", [0, 1, 2, 100])
def test_reply_in_pieces_with_descriptors_on_any_of_them(fake, memfd, cuts, files_on):
    fake.region_info, fake.files = region(), {REGION_INFO: [memfd(0x2000)]}
    fake.cuts, fake.files_on = cuts, files_on
    assert ok(fake.path, "mapped", "read", "read")["mapped"][0][0] == 1


def test_reply_in_more_pieces_than_a_socket_holds(fake, memfd):
    fake.region_info, fake.files = region() + bytes(3000), {REGION_INFO: [memfd(0x2000)]}
    fake.cuts = list(range(1, 3000))
    assert ok(fake.path, "mapped", "read")["mapped"][0][0] == 1


@pytest.mark.parametrize("count", [1, 8, 9, 100])
@pytest.mark.parametrize("cuts", [[], [16]])
def test_descriptors_that_nobody_asked_for_are_closed(fake, memfd, count, cuts):
    files = [memfd(0x2000)] * count
    fake.region_info, fake.cuts, fake.files_on = region(), cuts, 1
    fake.files = {command: files for command in range(1, 14)}
    told = ok(fake.path, "fds", "read", "map", "read", "fds")
    assert told["fds"][0] == told["fds"][1]


def test_descriptors_of_a_refusal_are_closed(fake, memfd):
    fake.files, fake.error = {REGION_READ: [memfd(4096)] * 2}, 1 << 31
    told = steps(fake.path, "fds", "read", "read", "fds")
    assert told["fds"][0] == told["fds"][1] and told["close"] == told["start"]
    assert told["read"][0][0] == -22 and "refused REGION_READ" in told["read"][0][1]


@pytest.mark.parametrize("info, bytes_there, words", [
    (region(), 0x1000, "beyond its file of 4096 bytes"),
    (region(offset=0x1000), 0x2000, "beyond its file of 8192 bytes"),
    (region(offset=(1 << 64) - 0x1000), 0x2000, "beyond its file of 8192 bytes"),
    (region(area=(0x1000, 0x2000)), 0x8000, "beyond its BAR0 of 8192 bytes"),
    (region(area=(0x1000, (1 << 64) - 0x1000)), 0x8000, "beyond its BAR0 of 8192 bytes"),
    (region(area=(0, 1 << 63)), 0x8000, "beyond its BAR0 of 8192 bytes"),
], ids=range(6))  # fmt: skip
def test_region_that_is_not_there_is_refused(fake, memfd, info, bytes_there, words):
    fake.region_info, fake.files = info, {REGION_INFO: [memfd(bytes_there)]}
    told = steps(fake.path, "mapped", "read")
    assert told["open"][0][0] == -71 and words in told["open"][0][1], told
    assert str(fake.path) in told["open"][0][1]


@pytest.mark.parametrize("cap_offset", [31, 33, 60, 1 << 31, (1 << 32) - 8])
def test_capability_that_is_out_of_place_is_not_read(fake, memfd, cap_offset):
    fake.region_info = region(cap_offset=cap_offset, area=(0x1000, 0x1000))
    fake.files = {REGION_INFO: [memfd(0x2000)]}
    ok(fake.path, "mapped", "read")


def test_noise_without_end_ends_at_the_deadline(fake):
    fake.flood = True
    told = steps(fake.path, "read", timeout=10)
    assert told["read"][0][0] == TIMEOUT and "no answer to REGION_READ" in told["read"][0][1]


def test_questions_that_nobody_reads_end_at_their_deadlines(tmp_path, fake):
    """The socket is full at some time: then sending must not hang."""
    fake.silent_after = 5  # commands of bringing it up
    process = []

    class Deaf(list):
        def append(self, command):
            super().append(command)
            if len(self) > 5:
                wait_for(lambda: process, seconds=20, what="end of the client")

    fake.seen = Deaf()
    told = steps(fake.path, "drown", timeout=20)
    process.append(True)
    assert told["drown"] == [(0, "")]


@pytest.mark.parametrize("stop", [0, 1, 16, 30])
def test_process_killed_in_the_middle_of_an_exchange(fake, stop):
    """What it has left of the reply on the socket, or taken of it, is nobody else's trouble."""
    fake.stop_at = stop
    told = ok(fake.path, "victim=100", "read", "victim=0", "read", "alive")
    assert len(told["read"]) == 2


@pytest.mark.parametrize("whole", [True, False])
def test_process_killed_in_the_call_that_takes_its_answer(fake, whole):
    """All of an answer was taken, or nobody knows how much: then each process is told so."""
    fake.cuts, fake.pause = ([], 0) if whole else ([20], 0.05)
    told = steps(fake.path, "victim-receiving", "read", "read")
    assert told["victim-receiving"] == [(0, "")]
    for number, line in told["read"]:
        assert number == (0 if whole else GONE)
        assert whole or (str(fake.path) in line and "was killed while it read an answer" in line)


def test_processes_killed_anywhere_leave_a_working_connection_or_one_line(fake):
    fake.cuts, fake.pause = list(range(1, 40, 3)), 0.0005
    told = steps(fake.path, *(word for ms in range(24) for word in (f"victim={ms}", "read")))
    for number, line in told["read"]:
        assert number == 0 or (number == GONE and "was killed while it read" in line), line


def test_another_client_is_told_from_an_end(controller, fake):
    served = controller("--ns", "mem=8M")
    with socket.socket(socket.AF_UNIX) as first:
        first.connect(str(served.socket))
        time.sleep(0.1)
        number, line = steps(served.socket, "read")["open"][0]
        assert number == BUSY and line == f"{served.socket}: the controller has another client"
    fake.close_after = 1  # an end after the VERSION reply
    number, line = steps(fake.path, "read")["open"][0]
    assert number == GONE and "closed the connection" in line


def test_memory_is_unmapped_by_its_exact_range(controller, fake):
    ok(fake.path, "map", "unmap")
    assert (3, struct.pack("<IIQQ", 24, 0, 0x100000, 65536)) in fake.messages
    served = controller("--ns", "mem=8M")
    ok(served.socket, "map", "unmap", "map", "unmap")
    assert steps(served.socket, "unmap")["unmap"][0][0] < 0


@pytest.mark.parametrize("minor, answer", [(0, 0), (1, 1), (9, 1)])
def test_version_reply_is_no_newer_than_its_client(controller, minor, answer):
    """QEMU's vfio-user-pci speaks 0.0 and refuses 0.1."""
    client = VfioUser(controller("--ns", "mem=8M").socket)
    reply, _ = client.ask(1, struct.pack("<HH", 0, minor) + b"{}\0")
    client.close()
    assert struct.unpack_from("<HH", reply) == (0, answer)


# --- interrupts ----------------------------------------------------------------------------------


def test_interrupts_are_enabled_where_they_come_from(msix):
    """MSI-X Enable, no Function Mask, and a vector 0: SPDK's target raises none without."""
    server = msix(before=0x4000)
    told = ok("-i", server.path, "vectors", "irq", "read", "wait-irq")
    assert told["vectors"][0][0] == 8
    assert (MSIX + 2, struct.pack("<H", 0x8007)) in server.config_writes


def test_interrupts_that_nobody_wants_are_disabled(msix):
    """The setting of the client before survives it in some servers."""
    server = msix(before=0x8000)
    ok(server.path, "vectors", "read")
    assert server.config_writes[-1] == (MSIX + 2, struct.pack("<H", 7)) and not server.vectors


@pytest.mark.parametrize("ring", [{}, {0x40: 0x0140}, {0x40: 0x4401, 0x44: 0x4001}])
def test_interrupts_without_the_capability(fake, ring):
    """Also when the list of capabilities never ends."""
    fake.config[0x06] = 0x10 if ring else 0
    fake.config[0x34] = 0x40
    for at, value in ring.items():
        fake.config[at : at + 2] = struct.pack("<H", value)
    assert ok("-i", fake.path, "vectors", "read")["vectors"][0][0] == 0


# --- the emulated controller's process -----------------------------------------------------------


def test_emulated_controller_is_nobodys_child():
    """A program may wait for its children, and hears of no child that it did not start."""
    told = ok("emu-mem", "wait", "children", "read", timeout=10)
    assert told["children"] == [(0, "")]


@pytest.mark.parametrize("who", ["cut", "cut-in-child"])
def test_emulated_controller_is_cut_off_from_memory(who):
    told = steps("emu-mem", "map", who, "alive", who)
    assert told[who] == [(0, ""), (0, "")] and told["alive"][0][0] == GONE
    assert told["close"] == told["start"] and "children" not in told


def test_stopped_controller_is_cut_off_and_ended(tmp_path):
    before = set(emulators())
    for tail in (["sleep=700", "cut", "alive"], ["sleep=700"]):
        with subprocess.Popen(
            [STEPS, "emu-mem", *tail], stdout=subprocess.PIPE, text=True
        ) as process:
            controller = wait_for(lambda: set(emulators()) - before, what="controller").pop()
            time.sleep(0.2)
            os.kill(controller, 19)
            start = time.monotonic()
            out, _ = process.communicate(timeout=10)
            assert process.returncode == 0 and time.monotonic() - start < 2, out
            assert "cut: 0" in out or tail == ["sleep=700"]
            wait_for(lambda: not set(emulators()) - before, what="end of the controller")


def test_foreign_controller_cannot_be_cut_off(fake):
    number, line = steps(fake.path, "cut")["cut"][0]
    assert number == UNSUPPORTED and str(fake.path) in line and "end it" in line


def test_controller_ends_with_the_last_holder_of_its_socket():
    """Its starter is killed; the controller ends by itself."""
    before = set(emulators())
    process = subprocess.Popen([STEPS, "emu-mem", "sleep=10000"], stdout=subprocess.DEVNULL)
    wait_for(lambda: set(emulators()) - before, what="controller")
    process.kill()
    process.wait()
    wait_for(lambda: not set(emulators()) - before, what="end of the controller")


def test_directory_named_vroom_is_not_the_command(tmp_path):
    program = shutil.copy(STEPS, tmp_path / "program")
    (tmp_path / "vroom").mkdir()
    plain = {"VROOM": ""} if "VROOM" in os.environ else {}
    told = steps_of(program, plain)
    assert "cannot run" not in told and ("set VROOM=" in told or "read: 0" in told)
    told = steps_of(program, {"VROOM": str(tmp_path / "vroom")})
    assert f"$VROOM is {tmp_path}/vroom: not a program" in told


def steps_of(program, env: dict[str, str]) -> str:
    result = run(program, "emu-mem", "read", **env)
    return result.out


def long_path(tmp_path, length: int):
    """A file whose path has LENGTH characters, made."""
    path = str(tmp_path)
    while length - len(path) > 202:
        path += "/" + "d" * 200
    directory = os.open(tmp_path, os.O_PATH)
    for part in path[len(str(tmp_path)) + 1 :].split("/"):
        if part:
            os.mkdir(part, dir_fd=directory)
            directory = os.open(part, os.O_PATH, dir_fd=directory)
    name = "f" * (length - len(path) - 1)
    file = os.open(name, os.O_CREAT | os.O_RDWR, dir_fd=directory)
    os.ftruncate(file, 1 << 20)
    return f"{path}/{name}"


@pytest.mark.parametrize("length", [1000, 1022, 1500, 4000, 4095])
def test_long_names_work_or_are_refused_in_a_whole_line(tmp_path, length):
    path = long_path(tmp_path, length)
    ok(path, "read")
    told = steps(f"{path[:-1]}x/y"[:4095], "read")["open"][0]
    assert told[0] < 0 and re.search(
        r": (Not a directory|No such file or directory; .*it)$", told[1]
    )
    assert len(told[1]) < 1024
    number, line = steps(f"{path},bogus=1"[:4095], "read").get("open", [(0, "")])[0]
    if length < 4080:
        assert number < 0 and line.endswith("see vroom emulate --help"), line


@pytest.mark.parametrize("address, words", [
    ("x" * 4095, "File name too long"),
    ("x" * 4096, "the address is too long"),
    ("/" * 70000, "the address is too long"),
    ("emu-mem,bogus=" + "S" * 4000, "no such option"),
    ("emu-mem" + ",mdts=64K" * 450 + ",bogus=1", "bogus"),
    ("emu-mem" + ",lba=4096" * 450 + ",lba=7", "lba=7"),
    ("emu-mem," + "a=," * 1300 + "b=1", "no such option"),
], ids=range(7))  # fmt: skip
def test_long_addresses_are_refused_in_one_line(address, words):
    number, line = steps(address, "read")["open"][0]
    assert number < 0 and words in line and len(line) < 1024


def test_no_option_is_lost_in_a_long_list():
    ok("emu-mem" + ",mdts=64K" * 440 + ",size=8M", "read")
    number, line = steps("emu-mem" + ",mdts=64K" * 440 + ",queues=0", "read")["open"][0]
    assert number < 0 and "queues=0" in line
