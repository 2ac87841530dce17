#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Runs a sweep in a guest, on QEMU's NVMe drive, which it moves between drivers by itself; makes the
report here. All arguments are those of `jobs/sweep.py run`. Nothing but ratios within one boot means
anything: the guest is emulated.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

from guest import ROOT, Guest, GuestError

# The span that a sweep uses of the 1 GiB drive, unless told otherwise.
SIZE = "900m"
HOURS = 3600


def follow(path: Path, ended: threading.Event) -> None:
    """Copies a growing file to standard error."""
    position = 0
    while not ended.wait(0.5) or position < path.stat().st_size:
        if path.exists():
            with open(path) as file:
                file.seek(position)
                sys.stderr.write(file.read())
                position = file.tell()


def start(guest: Guest, arguments: list[str]) -> str:
    """Begins the sweep on the drive whose serial number is "main"; results go to guest.shared."""
    words = shlex.join(arguments)
    return guest.start(
        f"""
        modprobe nvme && sleep 1 && modprobe vfio-pci && vroom hugepages 64M || exit 1
        drive=$(grep -lx 'main *' /sys/block/nvme*n1/device/serial | cut -d/ -f4)
        cd {shlex.quote(str(ROOT))}
        jobs/sweep.py run --target "/dev/$drive" --destroy-data main --size {SIZE} \
            --out /run/guest/results {words}
        """
    )


def main() -> int:
    if not sys.argv[1:] or sys.argv[1].startswith("-"):
        sys.exit("usage: tests/vm/sweep.py SWEEP [arguments of jobs/sweep.py run]")
    try:
        guest = Guest()
    except GuestError as error:
        sys.exit(str(error))
    kept = Path("results") / f"vm-{sys.argv[1]}-{time.strftime('%Y%m%d-%H%M%S')}"
    try:
        ended = threading.Event()
        job = start(guest, sys.argv[1:])
        reader = threading.Thread(target=follow, args=(guest.shared / f"{job}.err", ended))
        reader.start()
        try:
            result = guest.finish(job, 12 * HOURS)
        finally:
            ended.set()
            reader.join()
        sys.stdout.write(result.out)
    except GuestError as error:
        sys.exit(str(error))
    finally:
        if (guest.shared / "results").exists():
            shutil.copytree(guest.shared / "results", kept)
            print(f"results: {kept}")
        guest.remove()
    if result.status:
        return result.status
    return subprocess.run([ROOT / "jobs/report.py", kept]).returncode


if __name__ == "__main__":
    sys.exit(main())
