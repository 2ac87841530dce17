#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""The thesis' job matrix on one NVMe drive in a guest: the kernel's engines beside vroom.

One boot, one drive (QEMU's), written before. The engines take turns; a figure is the median of
the rounds. Nothing but ratios within a run means anything: the guest is emulated.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path

from guest import ROOT, Guest, GuestError

sys.path.insert(0, str(ROOT / "jobs"))
from demo import JOB, VROOM, Row, rows  # noqa: E402

# What a row is called, fio's engine, the device's name, and the driver that has the device.
KERNEL, VFIO, PCI = "nvme", "vfio-pci", "none"
ENGINES = [
    ("psync", "psync", "nvme", KERNEL),
    ("libaio", "libaio", "nvme", KERNEL),
    ("io_uring", "io_uring", "nvme", KERNEL),
    ("io_uring_cmd", "io_uring_cmd", "ng", KERNEL),
    ("vroom, vfio", VROOM, "nvme", VFIO),
    ("vroom, pci", VROOM, "nvme", PCI),
]
BASELINE = "io_uring"
# Beside the thesis' jobs: deep, but one job, so that the guest's two processors suffice.
ONE_DEEP_JOB = """
[{workload}-qd32-t1]
rw={workload}
numjobs=1
iodepth=32
"""
# vroom perf does the same workloads, by name: depth and threads.
PERF = {
    f"{workload}-qd{depth}-t{threads}": (depth, threads)
    for workload in ("randread", "randwrite")
    for depth, threads in ((1, 1), (32, 1), (32, 4))
}


def run(guest: Guest, command: str, timeout: float = 120) -> str:
    result = guest.run(command, timeout)
    if result.status:
        sys.exit(f"in the guest: {command}\n{result.err[-1000:]}{result.out[-1000:]}")
    return result.out


def run_fio(guest: Guest, name: str, engine: str, disk: str, text: str) -> list[Row]:
    extra = ""
    if engine == "io_uring_cmd":  # a character device, past the page cache in any case
        extra = "--cmd_type=nvme"
        text = text.replace("direct=1", "direct=0")
    (guest.shared / "job.fio").write_text(text.replace("filename=thesis.disk", f"filename={disk}"))
    out = run(guest, f"fio --output-format=json --ioengine={engine} {extra} /run/guest/job.fio")
    return rows(name, json.loads(out[out.index("{") :]))


def run_perf(guest: Guest, name: str, disk: str, seconds: int, workloads: list[str]) -> list[Row]:
    found = []
    for job in workloads:
        depth, threads = PERF[job]
        out = run(guest, f"vroom perf {disk} -q {depth} -j {threads} -w {job.split('-')[0]} "
                         f"-t {seconds} --json")  # fmt: skip
        one = json.loads(out)
        latency = one["latency_ns"]
        found.append(Row(job, name, one["iops"], latency["mean"] / 1000, latency["p99"] / 1000,
                         one["cpu_percent"]))  # fmt: skip
    return found


def median(table: list[Row]) -> list[Row]:
    """One row for all of the same job and engine, in the order of their first ones."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in table:
        groups.setdefault((row.job, row.engine), []).append(row)
    fields = ("iops", "mean_us", "p99_us", "cpu")
    return [
        Row(job, engine, *(statistics.median(getattr(r, field) for r in found) for field in fields))
        for (job, engine), found in groups.items()
    ]


def print_table(table: list[Row]) -> None:
    base = {row.job: row.iops for row in table if row.engine == BASELINE}
    print(f"{'job':20}{'engine':18}{'IOPS':>10}{'x ' + BASELINE:>12}{'mean us':>10}{'p99 us':>10}"
          f"{'CPU %':>8}")  # fmt: skip
    previous = None
    for row in sorted(table, key=lambda r: r.job):
        print(f"{row.job if row.job != previous else '':20}{row.engine:18}{row.iops:10,.0f}"
              f"{row.iops / base[row.job]:12.2f}{row.mean_us:10.1f}{row.p99_us:10.1f}"
              f"{row.cpu:8.0f}")  # fmt: skip
        previous = row.job


def measure(guest: Guest, arguments: argparse.Namespace) -> list[Row]:
    text = (JOB.read_text().replace("size=256M", "size=900M")
            .replace("runtime=3", f"runtime={arguments.runtime}"))  # fmt: skip
    text += "".join(ONE_DEEP_JOB.format(workload=w) for w in ("randread", "randwrite"))
    listed = json.loads(run(guest, "modprobe nvme; modprobe vfio-pci; sleep 1; vroom list --json"))
    drive = next(one for one in listed if one["serial"] == "main")
    disk = next(f"/dev/{name}" for name in drive["names"] if name.endswith("n1"))
    run(guest, "vroom hugepages 64M")
    print("writing 900 MiB ...", file=sys.stderr)
    run(guest, f"fio --name=fill --filename={disk} --ioengine=io_uring --rw=write --bs=1M "
               "--iodepth=4 --direct=1 --size=900M", 300)  # fmt: skip
    table: list[Row] = []
    bound = KERNEL
    for number in range(arguments.rounds):
        for name, engine, kind, driver in ENGINES:
            print(f"round {number + 1}: {name} ...", file=sys.stderr)
            if driver != bound:
                run(guest, f"vroom unbind {drive['address']}")
                if driver != KERNEL:
                    run(guest, f"vroom bind --driver {driver} {drive['address']}")
                bound = driver
            path = disk.replace("/dev/nvme", f"/dev/{kind}")
            table += run_fio(guest, name, engine, path, text)
            if driver != KERNEL:
                table += run_perf(guest, name.replace("vroom", "vroom perf"), disk,
                                  arguments.runtime, list(PERF))  # fmt: skip
    run(guest, f"vroom unbind {drive['address']}")
    return median(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runtime", type=int, default=2, help="seconds a job (%(default)s)")
    parser.add_argument("--rounds", type=int, default=2, help="turns of each engine (%(default)s)")
    parser.add_argument("--json", type=Path, help="write the rows to this file, too")
    arguments = parser.parse_args()
    try:
        guest = Guest()
    except GuestError as error:
        sys.exit(str(error))
    try:
        table = measure(guest, arguments)
    except GuestError as error:
        sys.exit(str(error))
    finally:
        guest.remove()
    print(f"\n4 KiB on QEMU's NVMe drive, {arguments.runtime} s each, median of "
          f"{arguments.rounds}; psync has depth 1\n")  # fmt: skip
    print_table(table)
    if arguments.json:
        arguments.json.write_text(json.dumps([row.__dict__ for row in table], indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
