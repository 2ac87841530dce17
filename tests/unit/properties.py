#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Made-up sequences of operations on one queue pair, against a reference in Python.

    .venv/bin/python tests/unit/properties.py build/tests/unit/ops [EXAMPLES]

Whatever is submitted, rung, completed and polled, in whatever order: each tag comes back once,
with its data; the controller is never asked for what the specification forbids (fake.c looks).
"""

from __future__ import annotations

import os
import subprocess
import sys
import zlib

from hypothesis import given, note, settings
from hypothesis import strategies as st

EAGAIN = -11
BLOCK, BLOCKS = 512, 600
SLOWEST = 20000  # steps in which everything has to have completed


class Pair:
    """The program ops.c, and what is to be expected of it."""

    def __init__(self, program: str):
        self.process = subprocess.Popen(
            [program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def ask(self, *words: object) -> list[str]:
        line = " ".join(map(str, words))
        self.process.stdin.write(line + "\n")
        answer = self.process.stdout.readline().strip()
        note(f"{line} -> {answer}")
        assert answer, f"the program ended after: {line}"
        return answer.split()

    def open(self, depth, entries, mdts, scattered, messages):
        assert self.ask("open", depth, entries, mdts, int(scattered), int(messages)) == ["0"]
        self.disk = bytearray(BLOCK * BLOCKS)
        self.flying: dict[int, tuple[str, int, int, int]] = {}
        self.tag = 0

    def busy(self, what: str, slba: int, nlb: int) -> bool:
        """Whether the order of completions would matter."""
        return any(
            slba < other + length and other < slba + nlb and {what, kind} != {"r"}
            for kind, other, length, _ in self.flying.values()
        )

    def io(self, what, slba, nlb, offset, piece):
        nlb = min(nlb, BLOCKS - slba)
        if self.busy(what, slba, nlb):
            return
        self.tag += 1
        seed = self.tag % 251
        (answer,) = self.ask("io", self.tag, what, slba, nlb, seed, offset, piece)
        if int(answer) == EAGAIN:
            assert self.flying, "full although nothing is in flight"
            return
        assert answer == "0"
        self.flying[self.tag] = what, slba, nlb, seed

    def complete(self, n):
        assert self.ask("complete", n) != ["-2"], "the completion queue is full"

    def poll(self, most) -> int:
        count, *rest = map(int, self.ask("poll", most))
        assert 0 <= count <= most
        for tag, status, checksum in zip(rest[::3], rest[1::3], rest[2::3], strict=True):
            assert tag in self.flying, f"tag {tag} came back, and is not in flight"
            what, slba, nlb, seed = self.flying.pop(tag)
            assert status == 0
            here = slice(slba * BLOCK, (slba + nlb) * BLOCK)
            if what == "r":
                assert checksum == zlib.adler32(self.disk[here]), f"data of tag {tag}"
            else:
                self.disk[here] = written(nlb * BLOCK, seed) if what == "w" else bytes(nlb * BLOCK)
        return count

    def finish(self):
        for _ in range(SLOWEST):
            if not self.flying:
                break
            self.ask("ring")
            self.complete(0)
            self.poll(3)
        assert not self.flying, f"tags {list(self.flying)} never came back"
        assert self.poll(8) == 0

    def read_all(self):
        self.io("r", 0, BLOCKS, 0, 0)
        self.finish()


def written(length: int, seed: int) -> bytes:
    """What ops.c writes."""
    return bytes((seed * 31 + i * 7 + (i >> 9)) & 0xFF for i in range(length))


offsets = st.one_of(st.sampled_from([0, 4, 8, 512, 4092, 4096]), st.integers(0, 8191))
pieces = st.one_of(st.just(0), st.sampled_from([512, 4096]), st.integers(100, 20000))
firsts = st.one_of(st.integers(0, 64), st.integers(0, BLOCKS - 1))
lengths = st.one_of(st.integers(1, 16), st.integers(1, 150))
operation = st.one_of(
    st.tuples(st.just("io"), st.sampled_from("rwz"), firsts, lengths, offsets, pieces),
    st.tuples(st.just("ask"), st.just("ring")),
    st.tuples(st.just("complete"), st.integers(0, 1000)),
    st.tuples(st.just("poll"), st.integers(1, 9)),
)
shape = st.tuples(
    st.integers(1, 20), st.integers(2, 70), st.integers(1, 4), st.booleans(), st.booleans()
)


def main(program: str, examples: int = 250):
    pair = Pair(program)

    # In CI the same examples each time; elsewhere others each time.
    @settings(max_examples=examples, deadline=None, database=None, derandomize="CI" in os.environ)
    @given(shape, st.lists(operation, max_size=60))
    def every_tag_once_and_its_data(shape, operations):
        pair.open(*shape)
        try:
            for name, *arguments in operations:
                getattr(pair, name)(*arguments)
            pair.finish()
            pair.read_all()
        finally:
            fault = pair.ask("close")
        assert fault == ["0"], " ".join(fault)

    every_tag_once_and_its_data()
    print(f"ok - every_tag_once_and_its_data, {examples} examples")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
