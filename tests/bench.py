#!/usr/bin/python3
# SPDX-License-Identifier: BSD-3-Clause
"""`make bench`: the driver alone, the engine beside fio's null engine, instructions per I/O.

Everything is measured in one run, in short cells that take turns; what is printed is the median of
the cells and, where two things are compared, the median of the ratios of neighbours. Cells in which
the driver did not have its processor to itself are thrown away. With --base=DIR the same is done
with another build of vroom, and each cell shows the ratio to that.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"
DEPTHS = [1, 4, 32, 128, 1024]
# A cell counts when the driver, which polls, had this much of a processor.
UNDISTURBED_PERCENT = 95
# A round trip of a cache line that takes longer is one between processors far apart.
FAR_NS = 200


def perf(vroom: Path, address: str, depth: int, seconds: float, workload: str) -> dict:
    command = [vroom, "perf", address, "-q", str(depth), "-t", str(seconds), "-w", workload]
    return json.loads(subprocess.check_output([*command, "--json"]))


def cells(builds: list[Path], address: str, depth: int, workload: str, options) -> list[list[dict]]:
    """Rounds of one result a build, all of them undisturbed if there are enough such."""
    good, all_rounds = [], []
    for turn in range(3 * options.repeat):
        order = builds if turn % 2 else builds[::-1]
        by_build = {b: perf(b, address, depth, options.seconds, workload) for b in order}
        results = [by_build[build] for build in builds]
        all_rounds.append(results)
        if all(result["cpu_percent"] >= UNDISTURBED_PERCENT for result in results):
            good.append(results)
        if len(good) == options.repeat:
            return good
    print(f"  (disturbed: depth {depth})", file=sys.stderr)
    return good or all_rounds


def median(values) -> float:
    return statistics.median(values)


def driver_table(builds: list[Path], memory: str, options) -> None:
    print("vroom perf, 4 KiB, median M IOPS (mean latency in us)", end="")
    print("; ratio to --base" if len(builds) > 1 else "")
    kinds = [("emu-null", "randread"), (memory, "randread"), (memory, "randwrite")]
    names = ["emu-null reads", "emu-mem reads", "emu-mem writes"]
    print(f"{'depth':>8}" + "".join(f"{name:>24}" for name in names))
    for depth in DEPTHS:
        line = f"{depth:8}"
        for address, workload in kinds:
            rounds = cells(builds, address, depth, workload, options)
            iops = median(r[0]["iops"] for r in rounds) / 1e6
            mean = median(r[0]["latency_ns"]["mean"] for r in rounds) / 1000
            cell = f"{iops:.2f} ({mean:.2f})"
            if len(builds) > 1:
                cell += f" {median(r[0]['iops'] / r[1]['iops'] for r in rounds):.2f}"
            line += f"{cell:>24}"
        print(line, flush=True)


def fio(engine: str, target: str, seconds: float, extra: list[str]) -> float:
    command = [
        "fio",
        "--name=bench",
        f"--ioengine={engine}",
        f"--filename={target}",
        "--size=64G",
        "--rw=randread",
        "--bs=4k",
        "--norandommap",
        "--time_based",
        f"--runtime={seconds}",
        "--output-format=json",
        *extra,
    ]
    result = json.loads(subprocess.check_output(command))
    return result["jobs"][0]["read"]["iops"]


def engine_table(builds: list[Path], options) -> None:
    print(
        "\nfio, 4 KiB random reads: the engine on emu-null, median M IOPS, and as ratio to others"
    )
    engines = [f"external:{build.parent / 'vroom.so'}" for build in builds]
    heads = ["vroom", "null", "to null", "to --base"][: 3 + (len(builds) > 1)]
    print(f"{'':24}" + "".join(f"{head:>12}" for head in heads))
    for name, depth, extra in [
        ("depth 1", 1, []),
        ("depth 1, gtod_reduce", 1, ["--gtod_reduce=1"]),
        ("depth 32", 32, []),
        ("depth 32, gtod_reduce", 32, ["--gtod_reduce=1"]),
        ("depth 128", 128, []),
    ]:
        rounds = []
        for _ in range(options.repeat):
            job = [f"--iodepth={depth}", *extra]
            null = fio("null", "none", max(options.seconds, 1), job)
            rounds.append(
                (*(fio(e, "emu-null", max(options.seconds, 1), job) for e in engines), null)
            )
        ours, null = (median(r[i] for r in rounds) for i in (0, -1))
        line = f"{name:24}{ours / 1e6:12.2f}{null / 1e6:12.2f}"
        line += f"{median(r[0] / r[-1] for r in rounds):12.2f}"
        if len(builds) > 1:
            line += f"{median(r[0] / r[1] for r in rounds):12.2f}"
        print(line, flush=True)


def functions_of(header: Path) -> list[tuple[int, int, str]]:
    """First and last line, and the name, of each function in one of our headers."""
    found, start, name = [], 0, ""
    for number, text in enumerate(header.read_text().splitlines(), 1):
        head = re.match(r"static inline .*?(\w+)\(", text)
        if head:
            start, name = number, head.group(1)
        if text == "}" and name:
            found.append((start, number, name))
            name = ""
    return found


def profile(depth: int) -> collections.Counter:
    """Instructions by function that submitting and reaping reads takes, per read (callgrind)."""
    reads = 64 * depth
    headers = {h.name: functions_of(h) for h in (ROOT / "driver/include").glob("*.h")}
    counts: collections.Counter = collections.Counter()
    files: dict[str, str] = {}
    with tempfile.NamedTemporaryFile() as out:
        collect = ["--toggle-collect=count_submit", "--toggle-collect=count_reap"]
        program = [BUILD / "tests" / "instructions", "emu-null", str(reads), str(depth)]
        options = ["--tool=callgrind", *collect, f"--callgrind-out-file={out.name}"]
        subprocess.run(["valgrind", *options, *program], capture_output=True, check=True)
        lines = Path(out.name).read_text().splitlines()
    file, line, after_call = "", 0, False
    for text in lines:
        switch = re.match(r"(?:fl|fi|fe)=\((\d+)\)(?: (.*))?", text)
        if switch:
            files.setdefault(switch.group(1), switch.group(2) or "")
            file = Path(files[switch.group(1)]).name
        elif text.startswith("calls="):
            after_call = True
        elif cost := re.match(r"([+-]?\d+|\*) (\d+)$", text):
            where = cost.group(1)
            line = line if where == "*" else int(where) + (line if where[0] in "+-" else 0)
            if not after_call:
                name = next((n for a, b, n in headers.get(file, []) if a <= line <= b), file)
                counts[name] += int(cost.group(2))
            after_call = False
    return collections.Counter({name: count / reads for name, count in counts.items()})


def instruction_table() -> None:
    depths = (1, 32)
    profiles = [profile(depth) for depth in depths]
    print("\ninstructions of a read, submission and completion, by function (callgrind)")
    print(f"{'':28}" + "".join(f"{f'depth {depth}':>12}" for depth in depths))
    for name in sorted(set(itertools.chain(*profiles)), key=lambda n: -profiles[1][n]):
        row = "".join(f"{p[name]:12.1f}" for p in profiles)
        print(f"{name.replace('instructions.c', '(the loop around it)'):28}{row}")
    totals = [sum(p.values()) for p in profiles]
    print(f"instructions per I/O: depth 1: {totals[0]:.0f}, depth 32: {totals[1]:.0f}", flush=True)


def tree_of(pid: int) -> list[int]:
    """PID and all that it started."""
    found = [pid]
    for parent in found:
        children = subprocess.run(["pgrep", "-P", str(parent)], capture_output=True, text=True)
        found += [int(child) for child in children.stdout.split()]
    return found


def resident_kib(engine: str, target: str, seconds: float) -> dict[str, int]:
    """Resident memory of a fio job, and of the controller that it started."""
    before = set(subprocess.getoutput("pgrep -x vroom").split())
    process = subprocess.Popen(
        [
            "fio",
            "--name=rss",
            f"--ioengine={engine}",
            f"--filename={target}",
            "--size=1G",
            "--rw=randread",
            "--iodepth=32",
            "--time_based",
            f"--runtime={seconds + 2}",
        ],
        stdout=subprocess.DEVNULL,
    )
    time.sleep(seconds)
    controllers = set(subprocess.getoutput("pgrep -x vroom").split()) - before
    pids = [*tree_of(process.pid)[1:], *(int(pid) for pid in controllers)]
    sizes: dict[str, int] = collections.Counter()
    for pid in pids:
        name = Path(f"/proc/{pid}/comm").read_text().strip()
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        sizes[name] += int(re.search(r"Rss:\s+(\d+)", rollup).group(1))
    process.send_signal(signal.SIGINT)
    process.wait()
    return sizes


def memory_table() -> None:
    """What vroom adds to a fio job, compared with the same one on fio's null engine."""
    base = resident_kib("null", "emu-null", 1.5)["fio"]
    sizes = resident_kib(f"external:{BUILD / 'vroom.so'}", "emu-null", 1.5)
    print(
        f"\nresident memory beyond the null engine's, depth 32: job "
        f"{(sizes['fio'] - base) / 1024:.1f} MiB, emulated controller "
        f"{sizes['vroom'] / 1024:.1f} MiB"
    )


def memory_controller(directory: str) -> tuple[subprocess.Popen, str]:
    """A controller on 1 GiB of memory that has been written, so that reads are of real pages."""
    path = os.path.join(directory, "socket")
    server = subprocess.Popen(
        [BUILD / "vroom", "emulate", "--socket", path, "--ns", "mem=1G"],
        stdout=subprocess.DEVNULL,
    )
    while not os.path.exists(path):
        time.sleep(0.01)
    fill = [BUILD / "vroom", "perf", path, "-o", "1M", "-q", "4", "-t", "1", "-w", "write"]
    subprocess.check_call(fill, stdout=subprocess.DEVNULL)
    return server, path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=0.5, help="of each cell (0.5)")
    parser.add_argument("--repeat", type=int, default=5, help="cells, an odd number (5)")
    parser.add_argument("--base", type=Path, help="a build directory of vroom to compare with")
    options = parser.parse_args()
    builds = [BUILD / "vroom", *([options.base.resolve() / "vroom"] if options.base else [])]

    apart = float(subprocess.check_output([BUILD / "tests" / "roundtrip"]))
    mode = "far" if apart > FAR_NS else "near"
    print(f"a cache line's round trip between the processors: {apart:.0f} ns (mode: {mode})\n")
    instruction_table()
    with tempfile.TemporaryDirectory() as directory:
        server, memory = memory_controller(directory)
        try:
            print()
            driver_table(builds, memory, options)
        finally:
            server.terminate()
            server.wait()
    engine_table(builds, options)
    memory_table()


if __name__ == "__main__":
    sys.exit(main())
