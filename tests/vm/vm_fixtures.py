# SPDX-License-Identifier: BSD-3-Clause
"""One guest for all tests of this directory, and its drives by serial number."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass

import pytest
from conftest import ENGINE, options
from guest import Guest, GuestError, Result

# In the kernel's log after a test.
TROUBLE = re.compile(r"BUG:|Oops|DMAR.*fault|hung|WARNING|segfault", re.IGNORECASE)
NEEDED = ["qemu-system-x86_64", "busybox", "cpio"]


@dataclass
class Device:
    guest: Guest
    bdf: str
    name: str  # /dev/nvme0n1; "" for one that the kernel's driver never had

    def bind(self, *arguments: str) -> Result:
        return self.guest.run(f"vroom bind {' '.join(arguments)} {self.bdf}")

    def unbind(self) -> Result:
        return self.guest.run(f"vroom unbind {self.bdf}")

    @property
    def driver(self) -> str:
        link = self.guest.run(f"readlink /sys/bus/pci/devices/{self.bdf}/driver").out
        return link.rpartition("/")[2].strip()


@pytest.fixture(scope="session")
def booted():
    for tool in NEEDED:
        if not shutil.which(tool):
            pytest.skip(f"needs {tool}")
    guest = Guest()
    started = guest.run("modprobe nvme && sleep 1 && modprobe vfio-pci && vroom hugepages 64M")
    assert started.status == 0, started.text
    yield guest
    guest.remove()


@pytest.fixture
def guest(booted):
    """The guest; after the test all drives are the kernel's again, and nothing is left over."""
    if booted.qemu.poll() is not None:
        pytest.fail("the guest has ended in an earlier test")
    yield booted
    if booted.qemu.poll() is not None:
        return
    tidy = booted.run(
        """
        for record in /run/vroom/*:*; do
            [ ! -e "$record" ] || vroom unbind "${record##*/}" > /dev/null
        done
        for process in /proc/[0-9]*/comm; do
            read -r name < "$process" || continue
            [[ $name != @(fio|vroom) ]] || echo "$name is left"
        done 2> /dev/null
        shopt -s nullglob dotglob
        for file in /dev/hugepages/*; do echo "$file is left"; done
        cat /sys/kernel/mm/hugepages/hugepages-2048kB/{nr,free,resv}_hugepages
        dmesg --clear --read-clear
        """
    ).out
    numbers, log = tidy.split("\n")[:3], tidy.split("\n")[3:]
    assert numbers == ["32", "32", "0"], tidy
    assert not [line for line in log if TROUBLE.search(line)], tidy


@pytest.fixture(scope="session")
def listed(booted):
    return json.loads(booted.run("vroom list --json").out)


@pytest.fixture
def drive(guest, listed):
    """Looks a drive up by its serial number."""

    def find(serial: str) -> Device:
        for one in listed:
            if one["serial"] == serial or (serial == "remote" and one["iommu_group"] is None):
                names = [name for name in one["names"] if name.startswith("nvme") and "n1" in name]
                return Device(guest, one["address"], f"/dev/{names[0]}" if names else "")
        raise AssertionError(f"no drive {serial} in {listed}")

    return find


@pytest.fixture
def fio(guest):
    """A fio job in the guest, on vroom unless ioengine= says otherwise."""

    def run(timeout: float = 60, prefix: str = "", **settings: object) -> Result:
        settings = {"ioengine": ENGINE, "name": "job", **settings}
        return guest.run(f"{prefix} fio {' '.join(options(**settings))}", timeout)

    return run


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    """A guest that died or hangs is a failure with its console, not a traceback."""
    report = (yield).get_result()
    if call.excinfo and call.excinfo.errisinstance(GuestError):
        report.longrepr = str(call.excinfo.value)
