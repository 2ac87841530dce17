#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Builds the model checker, runs it on the driver's queue code, and on the same with faults put in.

The first table has a line per configuration: what holds, in how many states, and how many of the
places where both queues' indices and phase can be were met. The second has a line per mutant, a
fault of one line in a copy of the driver's files, and what found it under either memory model.
Exits with 1 when the driver violates something or a mutant is not found.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
CC = os.environ.get("CC", "gcc")
UNDER_TEST = [
    f"driver/core/{name}.c" for name in ("qpair", "request", "watchdog", "doorbell", "admin")
]
BESIDE = [f"driver/core/{name}.c" for name in ("prp",)]
INSTRUMENTED = [
    "-O1",
    "-fsanitize=thread",
    "-D__builtin_ia32_rdtsc()=0ull",
    *(f"-D{name}=model_{name}" for name in ("calloc", "aligned_alloc", "free", "clock_gettime")),
]
# The admin queue is not modelled: of admin.c only what makes the queues' memory and doorbells is.
ADMIN_QUEUE = ["-Dvroom_admin=unused_admin", "-Dvroom_admin_locked=unused_admin_locked"]
QUEUE, QPAIR = "include/vroom_queue.h", "include/vroom_qpair.h"
CREATION, MEMORY = "core/qpair.c", "core/admin.c"
REST, REQUEST = "core/watchdog.c", "core/request.c"


@dataclass(frozen=True)
class Mutant:
    name: str
    file: str
    old: str
    new: str
    options: str = "--aborts"
    more: tuple[tuple[str, str], ...] = ()
    tso: bool = True  # is it a fault under this memory model?
    weak: bool = True
    short: bool = False


MUTANTS = [
    Mutant("doorbells are stored relaxed", QUEUE, "__ATOMIC_RELEASE", "__ATOMIC_RELAXED",
           tso=False, short=True),
    # No fault: an entry is written anew only after commands that a later tail doorbell announced.
    Mutant("the head doorbell is stored relaxed", QUEUE,
           "vroom_doorbell_write(&cq->doorbell, cq->head)",
           "__atomic_store_n(cq->doorbell.reg, cq->head, __ATOMIC_RELAXED)", tso=False, weak=False),
    Mutant("the phase is loaded relaxed", QUEUE, "__ATOMIC_ACQUIRE", "__ATOMIC_RELAXED",
           tso=False, short=True),
    Mutant("the phase is a plain load", QUEUE,
           "__atomic_load_n((const uint32_t *)(const void *)&head->cid, __ATOMIC_ACQUIRE)",
           "*(const uint32_t *)(const void *)&head->cid", tso=False),
    Mutant("the result is read before the phase", QPAIR,
           "\t\tuint32_t last = vroom_cq_peek(",
           "\t\tuint64_t early = nvme_cqe_result(cqe);\n\t\tuint32_t last = vroom_cq_peek(",
           more=(("result = nvme_cqe_result(cqe)", "result = early"),),
           short=True),
    Mutant("phases never flip", QUEUE, "\tcq->phase ^= NVME_CQE_PHASE;\n", "", short=True),
    Mutant("poll forgets the phase", QPAIR,
           "\tif (VROOM_UNLIKELY(cq->left", "\tcq->phase = phase;\n\tif (VROOM_UNLIKELY(cq->left",
           more=(("uint32_t head = cq->head;", "uint32_t head = cq->head, phase = cq->phase;"),)),
    Mutant("phases begin with 0", CREATION, "qp->cq.phase = NVME_CQE_PHASE", "qp->cq.phase = 0"),
    Mutant("sq wraps an entry late", QUEUE, "next == sq->size ?", "next > sq->size ?"),
    Mutant("sq wraps an entry early", QUEUE, "next == sq->size ?", "next == sq->size - 1 ?",
           short=True),
    Mutant("cq wraps an entry late", QUEUE, "++head != cq->size", "++head <= cq->size"),
    Mutant("cq wraps an entry early", QUEUE, "++head != cq->size", "++head != cq->size - 1"),
    Mutant("rings before the entry is whole", QPAIR, "\tentry[7] =",
           "\tvroom_sq_advance(&qp->sq);\n\tvroom_sq_ring(&qp->sq);\n\tentry[7] =",
           more=(("PLAIN;\n\tvroom_sq_advance(&qp->sq);", "PLAIN;"),), short=True),
    Mutant("rings before it advances", QPAIR, "\tvroom_sq_advance(&qp->sq);",
           "\tvroom_sq_ring(&qp->sq);\n\tvroom_sq_advance(&qp->sq);",
           more=(("{\n\tvroom_sq_ring(&qp->sq);\n}", "{\n\t(void)qp;\n}"),)),
    Mutant("rung is not updated", QUEUE, "\tsq->rung = tail;\n", "", short=True),
    Mutant("rings although there is nothing new", QUEUE, "if (sq->rung == tail)", "if (0)"),
    Mutant("the identifier is the sq slot", QPAIR, "uint32_t cid = qp->free_slot;",
           "uint32_t cid = qp->sq.tail % qp->depth;", short=True),
    Mutant("a freed slot ends the list", QPAIR, "slot->next_free = qp->free_slot;",
           "slot->next_free = VROOM_NO_SLOT;"),
    Mutant("a completed slot stays taken", QPAIR, "\t\tslot->state = VROOM_SLOT_FREE;\n", ""),
    Mutant("submission leaves the slot free", QPAIR, "\tqp->free_slot = slot->next_free;\n", ""),
    Mutant("the tag is read after the slot's reuse", QPAIR, "out->tag = slot->tag;",
           "out->tag = qp->slots[qp->free_slot % qp->depth].tag;"),
    Mutant("slack is one too many", CREATION, "qp->cq.size - 1 - qp->depth",
           "qp->cq.size - qp->depth", short=True),
    Mutant("cq has as many entries as commands", CREATION,
           "VROOM_MIN(VROOM_MAX(2 * qp->sq.size, 64u), entries)", "qp->depth"),
    Mutant("sq has as many entries as commands", CREATION, "qp->sq.size = qp->depth + 1",
           "qp->sq.size = qp->depth"),
    Mutant("slack does not count the last batch", QPAIR,
           "cq->left < count", "cq->left < 0"),
    Mutant("the head doorbell is never rung", REST, "cq->left < 0", "0"),
    Mutant("the head doorbell gives one more back", QUEUE, "&cq->doorbell, cq->head)",
           "&cq->doorbell, (cq->head + 1) % cq->size)", short=True),
    Mutant("the head doorbell is rung before reading", REST,
           "\t\tn = vroom_complete(",
           "\t\tuint32_t at = cq->head, phase = cq->phase;\n"
           "\t\tcq->head = vroom_cq_next(cq, at);\n"
           "\t\tvroom_cq_ring(cq);\n\t\tcq->head = at, cq->phase = phase;\n"
           "\t\tn = vroom_complete(", "--split"),
    Mutant("the head doorbell comes after the parts", REST,
           "\tcq->left -= taken;\n",
           "\tcq->left -= taken;\n\tint32_t left = cq->left;\n"
           "\tif (qp->blocked && !qp->error)\n\t\tvroom_request_continue(qp);\n"
           "\tcq->left = left < 0 ? left : cq->left;\n", "--split"),
    Mutant("a blocked queue pair keeps its slack", REQUEST,
           "\t\tqp->cq.slack = qp->cq.left = 0;\n", "", "--split --entries 4"),
    Mutant("blocking rings although nothing is new", REQUEST,
           "\t\tqp->blocked = true;\n",
           "\t\tvroom_cq_ring(&qp->cq);\n\t\tqp->blocked = true;\n", "--split"),
    Mutant("the slow path begins with an old head", QPAIR, "\t\t\tcq->head = head;\n", "",
           "--split"),
    Mutant("slack does not count what was slow", REST, "\t\ttaken++;\n", "", "--split"),
    Mutant("parts end a request early", REQUEST, "if (r->outstanding || ", "if (",
           "--split --aborts"),
    Mutant("memory is not zeroed", MEMORY, "\t\tmemset(mem, 0, bytes);", "\t\treturn mem;",
           short=True),
    Mutant("the cq is deleted first", CREATION,
           "\tret = delete_queue_locked(c, NVME_ADMIN_DELETE_SQ, qp->qid);",
           "\tret = delete_queue_locked(c, NVME_ADMIN_DELETE_CQ, qp->qid);"),
    Mutant("memory is freed before deletion", CREATION, "\tvroom_lock(&c->shared->lock);\n\tret =",
           "\tvroom_dma_free(c, qp->sq.entries);\n\tvroom_lock(&c->shared->lock);\n\tret ="),
    Mutant("looks before ringing whether it sleeps", QUEUE,
           "\t__atomic_store_n(db->reg, value, __ATOMIC_RELEASE);\n"
           "\tif (VROOM_UNLIKELY(*db->needs_kick))",
           "\tuint32_t kick = *db->needs_kick;\n"
           "\t__atomic_store_n(db->reg, value, __ATOMIC_RELEASE);\n"
           "\tif (VROOM_UNLIKELY(kick))", "--sleep", short=True),
    Mutant("the controller sleeps without a barrier", QUEUE, "", "", "--sleep --no-barrier"),
]  # fmt: skip


def configurations(short: bool) -> list[str]:
    """Options of the checker; each runs under both memory models."""
    few = ["--depth 2 --entries 3 --aborts", "--depth 2 --entries 4 --eager --aborts"]
    few += ["--depth 2 --entries 3 --split --eager", "--depth 2 --entries 3 --sleep"]
    few += ["--depth 3 --entries 4 --eager"]
    if short:
        return few
    full = [f"--depth 2 --entries {entries} --aborts" for entries in (3, 4, 5, 16)]
    full += [f"--depth 2 --entries {entries} --split" for entries in (3, 4)]
    full += [f"--depth 2 --entries {entries} --sleep" for entries in (3, 4, 6)]
    full += [f"--depth 3 --entries {entries}" for entries in (4, 6)]
    full += ["--depth 2 --entries 6 --split --eager", "--depth 3 --entries 4 --split --eager"]
    full += [f"--depth 3 --entries {entries} --eager --aborts" for entries in (4, 5, 6, 8, 16)]
    full += [f"--depth 4 --entries {entries} --eager" for entries in (5, 6)]
    return full


def compile_objects(driver: Path, sources: list[str], out: Path) -> list[Path]:
    """Instrumented objects of SOURCES, with the driver's files from DRIVER."""
    out.mkdir(parents=True, exist_ok=True)
    objects = []
    for name in sources:
        source = driver.parent / name if name.startswith("driver/") else ROOT / name
        objects.append(out / f"{source.stem}.o")
        only = ADMIN_QUEUE if source.stem == "admin" else []
        run(CC, *INSTRUMENTED, *only, *flags(driver), "-c", source, "-o", objects[-1])
    return objects


def flags(driver: Path) -> list[object]:
    return ["-std=gnu11", "-D_GNU_SOURCE", f"-I{HERE}", f"-I{driver / 'include'}", f"-I{driver}"]


def run(*command: object) -> None:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")


class Checker:
    """What the same objects serve for: the driver's files and their mutants, built below OUT."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.objects = []
        for name in ("model", "host"):
            self.objects.append(out / f"{name}.o")
            warnings = ["-Wall", "-Wextra", "-Werror"]
            source = HERE / f"{name}.c"
            run(CC, "-O2", *warnings, *flags(ROOT / "driver"), "-c", source, "-o", self.objects[-1])
        self.beside = compile_objects(ROOT / "driver", BESIDE, out)

    def build(self, driver: Path, out: Path) -> Path:
        objects = compile_objects(driver, ["tests/model/api.c", *UNDER_TEST], out)
        run(CC, *self.objects, *self.beside, *objects, "-o", out / "model")
        return out / "model"


@dataclass(frozen=True)
class Verdict:
    status: int
    text: str

    @property
    def says(self) -> str:
        if found := re.search(r"^VIOLATED ([^:]*):", self.text, re.MULTILINE):
            return found[1]
        if self.status < 0:
            return f"crash (signal {-self.status})"
        return {0: "holds", 3: "INCOMPLETE"}.get(self.status, "does not run")


def check(model: Path, options: str) -> Verdict:
    done = subprocess.run([model, *options.split()], capture_output=True, text=True)
    return Verdict(done.returncode, done.stdout + done.stderr)


def run_configurations(model: Path, short: bool, pool: ThreadPoolExecutor) -> bool:
    lines = [(options, order) for options in configurations(short) for order in ("x86-TSO", "weak")]
    limit = " --max 250000" if short else ""  # a table for fewer states is quicker
    verdicts = pool.map(
        lambda line: check(model, line[0] + limit + (" --weak" if line[1] == "weak" else "")), lines
    )
    print(f"{'configuration':44} {'memory':8} {'verdict':12} {'states':>9} {'steps':>10} positions")
    fine = True
    total = [0, 0]
    for (options, order), verdict in zip(lines, verdicts, strict=True):
        counts = [int(n) for n in re.findall(r"(?:states|steps)=(\d+)", verdict.text)]
        total = [a + b for a, b in zip(total, counts or (0, 0), strict=True)]
        states, steps = counts or ("", "")
        positions = "".join(re.findall(r"positions=(.*)", verdict.text))
        print(
            f"{options:44} {order:8} {verdict.says:12} {states:>9} {steps:>10} {positions}",
            flush=True,
        )
        if verdict.status:
            fine = False
            print(verdict.text)
    print(f"{'':44} {'':8} {'':12} {total[0]:>9} {total[1]:>10}\n")
    return fine


def mutate(mutant: Mutant, out: Path) -> Path:
    """A copy of the driver's files with the fault."""
    driver = out / "driver"
    for part in ("include", "core", "base", "transport"):
        shutil.copytree(ROOT / "driver" / part, driver / part)
    path = driver / mutant.file
    text = path.read_text()
    for old, new in ((mutant.old, mutant.new), *mutant.more):
        if old not in text:
            sys.exit(f"mutant '{mutant.name}': {mutant.file} has no '{old}' any more")
        text = text.replace(old, new, 1)
    path.write_text(text)
    return driver


def judge(checker: Checker, mutant: Mutant) -> list[Verdict]:
    """Under x86-TSO and the weak model, each with buffered and with eager doorbells."""
    out = checker.out / re.sub(r"\W+", "-", mutant.name)
    model = checker.build(mutate(mutant, out), out)
    ways = [""] if "--sleep" in mutant.options else ["", " --eager"]
    base = f"--max 2000000 --depth 2 --entries 3 {mutant.options}"
    verdicts = [check(model, base + weak + way) for weak in ("", " --weak") for way in ways]
    shutil.rmtree(out)
    return verdicts


def run_mutants(checker: Checker, short: bool, pool: ThreadPoolExecutor) -> bool:
    mutants = [mutant for mutant in MUTANTS if mutant.short or not short]
    print(f"{'mutant':42} {'file':22} {'x86-TSO':20} {'weak'}")
    fine = True
    for mutant, verdicts in zip(
        mutants, pool.map(lambda mutant: judge(checker, mutant), mutants), strict=True
    ):
        half = len(verdicts) // 2
        tso, weak = (
            " / ".join(dict.fromkeys(verdict.says for verdict in part))
            for part in (verdicts[:half], verdicts[half:])
        )
        found = [verdict.status not in (0, 2, 3) for verdict in verdicts]
        good = found == [mutant.tso] * half + [mutant.weak] * half
        good &= all(verdict.status in (0, 1) or verdict.status < 0 for verdict in verdicts)
        file = mutant.file if mutant.old else "(the controller)"
        print(f"{mutant.name:42} {file:22} {tso:20} {weak}{'' if good else '  NOT AS EXPECTED'}")
        sys.stdout.flush()
        fine &= good
    return fine


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--short", action="store_true", help="a few seconds")
    parser.add_argument("--only", choices=["driver", "mutants"])
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    fine = True
    with tempfile.TemporaryDirectory() as out, ThreadPoolExecutor(args.jobs) as pool:
        checker = Checker(Path(out))
        if args.only != "mutants":
            model = checker.build(ROOT / "driver", Path(out) / "driver")
            fine &= run_configurations(model, args.short, pool)
        if args.only != "driver":
            fine &= run_mutants(checker, args.short, pool)
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
