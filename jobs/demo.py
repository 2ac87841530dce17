#!/usr/bin/python3
# SPDX-License-Identifier: BSD-3-Clause
"""Runs the thesis' job on one file with vroom and with fio's own engines; prints a table.

The file is written first, so that every engine reads data and not holes. fio's engines open
it with O_DIRECT, as the job says, where the file system can. vroom runs on an emulated NVMe
controller whose namespace is the file, and which keeps it in the page cache; so psync through
the page cache is shown as well.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
JOB = ROOT / "jobs" / "thesis.fio"
VROOM = f"external:{ROOT / 'build' / 'vroom.so'}"
# What a row is called, fio's engine, and whether it opens the file with O_DIRECT.
ENGINES = [
    ("vroom", VROOM, True),
    ("psync, cached", "psync", False),
    ("psync", "psync", True),
    ("libaio", "libaio", True),
    ("io_uring", "io_uring", True),
]


@dataclass
class Row:
    """One job's figures: operations a second, microseconds, per cent of one processor."""

    job: str
    engine: str
    iops: float
    mean_us: float
    p99_us: float
    cpu: float


def fio(arguments: list[str]) -> dict:
    """Runs fio and returns its JSON; ends the program with fio's own words if it fails."""
    run = subprocess.run(
        ["fio", "--output-format=json", *arguments], capture_output=True, text=True
    )
    if run.returncode:
        sys.exit(f"fio {' '.join(arguments)} failed:\n{run.stderr}{run.stdout[-2000:]}")
    return json.loads(run.stdout[run.stdout.index("{") :])


def can_do_direct_io(path: Path) -> bool:
    try:
        os.close(os.open(path, os.O_RDWR | os.O_DIRECT))
    except OSError:
        return False
    return True


def rows(engine: str, result: dict) -> list[Row]:
    found = []
    for job in result["jobs"]:
        side = job["read"] if job["read"]["total_ios"] else job["write"]
        latency = side["clat_ns"]
        found.append(
            Row(
                job=job["jobname"],
                engine=engine,
                iops=side["iops"],
                mean_us=side["lat_ns"]["mean"] / 1000,
                p99_us=latency["percentile"]["99.000000"] / 1000,
                # fio reports the mean of a group's jobs.
                cpu=(job["usr_cpu"] + job["sys_cpu"]) * int(job["job options"]["numjobs"]),
            )
        )
    return found


def print_table(table: list[Row]) -> None:
    print(f"{'job':20}{'engine':15}{'IOPS':>12}{'mean us':>10}{'p99 us':>10}{'CPU %':>8}")
    previous = None
    for row in sorted(table, key=lambda r: r.job):
        job = row.job if row.job != previous else ""
        previous = row.job
        print(
            f"{job:20}{row.engine:15}{row.iops:12,.0f}{row.mean_us:10.1f}"
            f"{row.p99_us:10.1f}{row.cpu:8.0f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", default="256M", help="of the file (%(default)s)")
    parser.add_argument("--runtime", type=int, default=2, help="seconds a job (%(default)s)")
    parser.add_argument("--dir", default=str(ROOT / "build"), help="where the file goes")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    arguments = parser.parse_args()

    with tempfile.TemporaryDirectory(dir=arguments.dir, prefix="demo-") as directory:
        target = Path(directory) / "disk"
        text = (
            JOB.read_text()
            .replace("filename=thesis.disk", f"filename={target}")
            .replace("size=256M", f"size={arguments.size}")
            .replace("runtime=3", f"runtime={arguments.runtime}")
        )
        cached = text.replace("direct=1", "direct=0\ninvalidate=0")
        job = Path(directory) / "job.fio"
        print("writing the file ...", file=sys.stderr)
        fill = ["--name=fill", f"--filename={target}", f"--size={arguments.size}", "--rw=write"]
        fio([*fill, "--bs=1M", "--end_fsync=1", f"--ioengine={VROOM}"])
        has_direct = can_do_direct_io(target)
        table: list[Row] = []
        for name, engine, direct in ENGINES:
            print(f"running {name} ...", file=sys.stderr)
            job.write_text(text if direct and has_direct else cached)
            table += rows(name, fio([f"--ioengine={engine}", str(job)]))
    if arguments.json:
        print(json.dumps([row.__dict__ for row in table], indent=2))
        return
    print(
        f"\n4 KiB on one file of {arguments.size}, {arguments.runtime} s each; psync has depth 1\n"
    )
    print_table(table)
    print(
        "\nvroom: NVMe queue pairs of an emulated controller, which keeps the file in the page"
        "\ncache as a drive would in its own: the driver's cost, not the disk's. psync, cached:"
        "\nthe page cache without NVMe. The others: the same file, "
        + ("O_DIRECT." if has_direct else "buffered (no O_DIRECT here).")
        + "\nCPU is the jobs' own, of one processor; the emulated controller takes one more."
    )


if __name__ == "__main__":
    main()
