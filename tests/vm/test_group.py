# SPDX-License-Identifier: BSD-3-Clause
"""Two NVMe functions in one IOMMU group: bound one by one or together, driven by one job."""

from __future__ import annotations

import subprocess

import pytest
from conftest import BUILD, ROOT
from test_vm import good, refused

JOB = {"rw": "randwrite", "bs": "4k", "size": "2M", "verify": "crc32c", "verify_state_save": 0,
       "iodepth": 16, "randseed": 7}  # fmt: skip


@pytest.fixture
def pair(drive):
    return drive("pair0"), drive("pair1")


def test_each_function_of_a_group_is_bound_on_its_own(guest, pair, fio):
    """The other, on the kernel's nvme driver, is no obstacle; it is named, once."""
    one, other = pair
    ran = good(one.bind())
    notes = [line for line in ran.out.splitlines() if f"vroom bind {other.bdf}" in line]
    assert len(notes) == 1 and "IOMMU group" in notes[0], ran.text
    assert one.driver == "vfio-pci" and other.driver == "nvme"
    refused(fio(filename=one.name, rw="read", size="1M"), "IOMMU group", f"vroom bind {other.bdf}")
    assert one.bdf not in good(other.bind()).out.replace(f"{other.bdf}", "")
    good(fio(filename=one.name, rw="read", size="1M"))
    good(one.unbind())
    good(guest.run(f"cat {one.name} > /dev/null"))


def test_bind_and_unbind_take_several_addresses(guest, pair):
    one, other = pair
    names = f"{one.name} {other.name}"
    dry = good(guest.run(f"vroom bind -n {names}")).out
    assert dry.count("would write 'vfio-pci'") == 2 and "IOMMU group" not in dry
    assert "IOMMU group" not in good(guest.run(f"vroom bind {names} {one.bdf}")).out
    assert one.driver == other.driver == "vfio-pci"
    good(guest.run(f"vroom unbind {names}"))
    assert one.driver == other.driver == "nvme"


def test_nothing_is_bound_when_one_of_several_is_in_use(guest, pair):
    one, other = pair
    good(guest.run(f"(sleep 60 < {other.name}) & sleep 0.3"))
    try:
        refused(guest.run(f"vroom bind {one.name} {other.name}"), other.bdf, "held open by sleep",
                "nothing was changed")  # fmt: skip
        assert one.driver == other.driver == "nvme"
    finally:
        guest.run("pkill -x sleep")


def test_a_function_of_the_group_on_another_driver_is_named(guest, pair):
    one, other = pair
    good(other.bind("--driver", "uio_pci_generic"))
    refused(one.bind(), f"{other.bdf} is on uio_pci_generic")
    assert one.driver == "nvme"


@pytest.mark.parametrize("thread", [0, 1], ids=["fork", "thread"])
def test_one_job_drives_two_functions_of_a_group(guest, pair, fio, thread):
    one, other = pair
    both = {**JOB, "filename": f"{one.name}:{other.name}", "numjobs": 2, "offset_increment": "2M"}
    good(guest.run(f"vroom bind {one.name} {other.name}"))
    good(fio(**both, thread=thread))
    good(fio(**JOB, filename=one.name))
    good(guest.run(f"vroom unbind {one.name} {other.name}"))
    good(fio(**both, verify_only=1, ioengine="psync", direct=1))


def test_a_group_goes_to_one_program(guest, pair, fio):
    one, other = pair
    good(guest.run(f"vroom bind {one.name} {other.name}"))
    running = guest.start(f"exec vroom perf -t 8 {one.bdf}")
    try:
        guest.run(f"until vroom list | grep '^{one.bdf}' | grep -q 'in use'; do sleep 0.1; done")
        refused(guest.run(f"vroom id {other.bdf}"), "IOMMU group", "another program")
        refused(other.unbind(), "IOMMU group", f"{one.bdf}: in use by another vroom")
        assert other.driver == "vfio-pci"
    finally:
        guest.run("pkill -INT -x vroom")
        good(guest.finish(running))


# --- memory ----------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def reach() -> str:
    """Asks controllers what they reach: tests/vm/reach.c."""
    done = subprocess.run(["make", "-s", "build/tests/vm/reach"], cwd=ROOT, text=True,
                          capture_output=True)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return f"{BUILD}/tests/vm/reach"


# What a controller is not to reach the IOMMU reports: no trouble, in these tests.
FORGET_FAULTS = "status=$?; dmesg --clear; exit $status"


@pytest.mark.parametrize("driver", ["vfio-pci", "none"])
def test_a_controller_reaches_what_is_mapped_and_nothing_when_cut_off(guest, drive, reach, driver):
    main = drive("main")
    good(main.bind("--driver", driver))
    good(guest.run(f"{reach} {main.bdf}; {FORGET_FAULTS}"))


def test_functions_of_a_group_share_what_both_have_mapped(guest, pair, reach):
    one, other = pair
    good(guest.run(f"vroom bind {one.name} {other.name}"))
    good(guest.run(f"{reach} {one.bdf} {other.bdf}; {FORGET_FAULTS}"))


# --- what is left as it was found ------------------------------------------------------------


def command_register(guest, bdf: str) -> int:
    """Of the function's configuration space (PCI 3.0, 6.2.2)."""
    read = guest.run(f"od -An -tx2 -j4 -N2 /sys/bus/pci/devices/{bdf}/config")
    return int(good(read).out, 16)


def test_intx_is_off_while_polling_and_as_before_afterwards(guest, drive):
    main = drive("main")
    good(main.bind("--driver", "none"))
    before = command_register(guest, main.bdf)
    assert not before & 0x400
    running = guest.start(f"exec vroom perf -t 60 {main.bdf}")
    guest.run(
        f"until vroom list | grep '^{main.bdf}' | grep -q 'in use'; do sleep 0.1; done; sleep 1"
    )
    during = command_register(guest, main.bdf)
    guest.run("pkill -INT -x vroom")
    good(guest.finish(running))
    assert during & 0x404 == 0x404  # INTx off, bus master on
    assert command_register(guest, main.bdf) == before & ~4


@pytest.mark.parametrize("plant", ["ln -s {victim} {lock}", "ln {victim} {lock}", "mkfifo {lock}"],
                         ids=["symlink", "hard link", "pipe"])  # fmt: skip
def test_what_is_planted_in_place_of_the_lock_file_is_not_touched(guest, drive, plant):
    main = drive("main")
    names = {"victim": "/run/lock/victim", "lock": f"/run/lock/vroom-{main.bdf}"}
    good(
        guest.run(
            "echo precious > {victim}; rm -f {lock}; ".format(**names) + plant.format(**names)
        )
    )
    try:
        refused(main.bind(), names["lock"], "not vroom's lock file")
        assert main.driver == "nvme"
        assert good(guest.run("cat {victim}; stat -c %a {victim}".format(**names))).out == (
            "precious\n644\n"
        )
    finally:
        good(guest.run("rm {victim} {lock}".format(**names)))
    good(main.bind())
