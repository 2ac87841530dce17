#!/usr/bin/python3
# SPDX-License-Identifier: BSD-3-Clause
"""`make bench`: the driver alone, the engine beside fio's null engine, instructions per I/O.

Everything is measured in one run, interleaved and repeated; what is printed is the median of
the repeats and, where two things are compared, their ratio.
"""

from __future__ import annotations

import argparse
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
VROOM = ROOT / "build" / "vroom"
ENGINE = f"external:{ROOT / 'build' / 'vroom.so'}"
DEPTHS = [1, 4, 32, 128, 1024]


def perf(address: str, depth: int, seconds: float, workload: str = "randread") -> dict:
    command = [VROOM, "perf", address, "-q", str(depth), "-t", str(seconds), "-w", workload]
    return json.loads(subprocess.check_output([*command, "--json"]))


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


def instructions(depth: int) -> float:
    """Instructions that submitting and reaping one read takes, counted by callgrind."""
    reads = 64 * depth
    with tempfile.NamedTemporaryFile() as out:
        run = subprocess.run(
            [
                "valgrind",
                "--tool=callgrind",
                "--toggle-collect=submit",
                "--toggle-collect=reap",
                f"--callgrind-out-file={out.name}",
                ROOT / "build" / "tests" / "instructions",
                "emu-null",
                str(reads),
                str(depth),
            ],
            capture_output=True,
            text=True,
            check=True,
        )
    return int(re.search(r"Collected : (\d+)", run.stderr).group(1)) / reads


def resident_kib(seconds: float) -> tuple[int, int]:
    """What vroom adds to a fio job: resident memory of job and controller, less the buffers.

    The job is compared with the same one on fio's null engine.
    """

    def job_rss(engine: str, target: str) -> tuple[int, int]:
        fio_process = subprocess.Popen(
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
        children = subprocess.check_output(["pgrep", "-P", str(fio_process.pid)], text=True).split()
        sizes = {"fio": 0, "vroom": 0}
        for pid in children:
            name = Path(f"/proc/{pid}/comm").read_text().strip()
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
            sizes[name] += int(re.search(r"Rss:\s+(\d+)", rollup).group(1))
        fio_process.send_signal(signal.SIGINT)
        fio_process.wait()
        return sizes["fio"], sizes["vroom"]

    base, _ = job_rss("null", "emu-null")
    job, emulator = job_rss(ENGINE, "emu-null")
    return job - base, emulator


def memory_controller(directory: str) -> tuple[subprocess.Popen, str]:
    """A controller on 1 GiB of memory that has been written, so that reads are of real pages."""
    path = os.path.join(directory, "socket")
    server = subprocess.Popen(
        [VROOM, "emulate", "--socket", path, "--ns", "mem=1G"], stdout=subprocess.DEVNULL
    )
    while not os.path.exists(path):
        time.sleep(0.01)
    perf(path, 4, 0.1, "write")
    subprocess.check_call(
        [VROOM, "perf", path, "-o", "1M", "-q", "4", "-t", "1", "-w", "write"],
        stdout=subprocess.DEVNULL,
    )
    return server, path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=1, help="of each measurement")
    parser.add_argument("--repeat", type=int, default=3, help="odd number of measurements")
    arguments = parser.parse_args()

    with tempfile.TemporaryDirectory() as directory:
        server, memory = memory_controller(directory)
        try:
            print("vroom perf, 4 KiB random reads, median IOPS and mean latency in us")
            print(f"{'depth':>8}{'emu-null':>14}{'latency':>10}{'emu-mem':>14}{'latency':>10}")
            for depth in DEPTHS:
                cells = []
                runs = {"emu-null": [], memory: []}
                for _ in range(arguments.repeat):
                    for address, results in runs.items():
                        results.append(perf(address, depth, arguments.seconds))
                for results in runs.values():
                    iops = statistics.median(r["iops"] for r in results)
                    mean = statistics.median(r["latency_ns"]["mean"] for r in results)
                    cells.append(f"{iops:14,.0f}{mean / 1000:10.2f}")
                print(f"{depth:8}{''.join(cells)}", flush=True)
        finally:
            server.terminate()
            server.wait()

    print(
        "\nfio, 4 KiB random reads: the engine on emu-null against fio's null engine, median IOPS"
    )
    print(f"{'':24}{'vroom':>14}{'null':>14}{'ratio':>8}")
    for name, depth, extra in [
        ("depth 1", 1, []),
        ("depth 32", 32, []),
        ("depth 32, gtod_reduce", 32, ["--gtod_reduce=1"]),
        ("depth 128", 128, []),
    ]:
        vroom, null = [], []
        for _ in range(arguments.repeat):
            options = [f"--iodepth={depth}", *extra]
            vroom.append(fio(ENGINE, "emu-null", arguments.seconds, options))
            null.append(fio("null", "none", arguments.seconds, options))
        ours, theirs = statistics.median(vroom), statistics.median(null)
        print(f"{name:24}{ours:14,.0f}{theirs:14,.0f}{ours / theirs:8.2f}", flush=True)

    print("\ninstructions per I/O, submission and completion (callgrind)")
    for depth in (1, 32):
        print(f"  depth {depth}: {instructions(depth):.1f}", flush=True)

    job, emulator = resident_kib(1.5)
    print(
        f"\nresident memory beyond the null engine's, depth 32: job {job / 1024:.1f} MiB, "
        f"emulated controller {emulator / 1024:.1f} MiB"
    )


if __name__ == "__main__":
    sys.exit(main())
