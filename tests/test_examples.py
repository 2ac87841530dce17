# SPDX-License-Identifier: BSD-3-Clause
"""The example programs, on files that are then read without vroom."""

from __future__ import annotations

import json
import struct

import pytest
from conftest import BUILD, MIB, good, run

ASYNC = BUILD / "examples" / "async"


def checksum(block: bytes) -> int:
    """Fletcher's, of 32 bits."""
    a = b = 0
    for byte in block:
        a = (a + byte) % 65535
        b = (b + a) % 65535
    return b << 16 | a


@pytest.mark.parametrize("mode", [["--sync"], []], ids=["sync", "async"])
def test_transaction_on_the_disk(tmp_path, mode):
    """Inodes, free map, checksums and data are where the layout says, whatever the mode."""
    files, blocks, size = 20, 300, 512
    result = json.loads(good(run(ASYNC, f"{tmp_path}/disk,size=8M", "-w", "append", "-b", blocks,
                                 "-f", files, "-n", 3, "--json", *mode)).out)  # fmt: skip
    assert result["mode"] == ("async" if not mode else "sync") and len(result["trial_us"]) == 3
    assert result["data_bytes"] == files * blocks * size
    image = (tmp_path / "disk").read_bytes()
    map_at = files * size
    sums_at = map_at + -(-files * blocks // (size * 8)) * size
    data_at = sums_at + -(-files * blocks * 4 // size) * size
    assert result["data_lba"] * size == data_at
    data = [image[data_at + i * size :][:size] for i in range(files * blocks)]
    for i, block in enumerate(data):
        assert block.startswith(b"file %d block %d trial 2\nccc" % (i // blocks, i % blocks))
    assert image[map_at : map_at + files * blocks // 8] == b"\xff" * (files * blocks // 8)
    sums = struct.unpack(f"<{files * blocks}I", image[sums_at : sums_at + 4 * files * blocks])
    assert list(sums) == [checksum(block) for block in data]
    for i in range(files):
        inode = struct.unpack("<QQQ", image[i * size : i * size + 24])
        assert inode == (i, data_at // size + i * blocks, blocks)


def test_sequences(tmp_path):
    disk = f"{tmp_path}/disk,size=1M"
    good(run(ASYNC, disk, "-w", "write", "-b", 500, "-n", 1))
    image = (tmp_path / "disk").read_bytes()
    at = image.index(b"file 0 block 0 trial 0\n")
    assert image[at + 499 * 512 :].startswith(b"file 0 block 499 trial 0\n")
    before = (tmp_path / "disk").read_bytes()
    good(run(ASYNC, disk, "-w", "read", "-b", 500, "--sync"))
    assert (tmp_path / "disk").read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["emu-mem,size=1M", "-b", 100000], "too small"),
        (["emu-mem", "-w", "erase"], "read, write or append"),
        (["emu-mem", "-b", "0"], "1 to"),
        (["/nowhere/none"], "No such file"),
    ],
)
def test_async_refuses(arguments, line):
    result = run(ASYNC, *arguments)
    assert result.status != 0 and line in result.err and len(result.err.splitlines()) <= 3


def test_lost_controller_ends_the_example():
    result = run(ASYNC, f"emu-mem,size={4 * MIB},fault=exit@50")
    assert result.status != 0 and "closed the connection" in result.err
