# SPDX-License-Identifier: BSD-3-Clause
"""On what machine, with what software and on which drive a sweep ran."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import time
from pathlib import Path

from .definition import ROOT
from .target import VROOM, Target


def output(*command: object) -> str:
    """What a command prints, "" where there is none."""
    try:
        done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def first_line(path: str) -> str:
    try:
        return Path(path).read_text().strip().splitlines()[0]
    except (OSError, IndexError):
        return ""


def git(*arguments: str) -> str:
    return output("git", "-C", ROOT, "-c", f"safe.directory={ROOT}", *arguments)


def record(target: Target) -> dict[str, object]:
    cpu = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.M)
    memory = re.search(r"^MemTotal:\s*(\d+)", Path("/proc/meminfo").read_text(), re.M)
    scaling = "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"
    return {
        "time": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "host": platform.node(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpu": cpu[1] if cpu else "",
        "cpus": os.cpu_count(),
        "memory_bytes": int(memory[1]) * 1024 if memory else 0,
        "governor": first_line(scaling) or "none (a virtual machine, or not scaled)",
        "clocksource": first_line(
            "/sys/devices/system/clocksource/clocksource0/current_clocksource"
        ),
        "hugepages": first_line("/proc/sys/vm/nr_hugepages"),
        "fio": output("fio", "--version"),
        "vroom": output(VROOM, "--version"),
        "git": git("describe", "--always", "--dirty", "--abbrev=12"),
        "target": target.address,
        "target_kind": target.kind,
        "model": target.model,
        "serial": target.serial,
        "firmware": target.firmware,
        "bytes": target.bytes,
        "block_bytes": target.block_bytes,
        "temperature_celsius": target.temperature,
    }
