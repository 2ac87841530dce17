# SPDX-License-Identifier: BSD-3-Clause
"""vroom on PCIe: QEMU's NVMe controllers, with and without an IOMMU, beside the kernel."""

from __future__ import annotations

import json
import subprocess
import time

import pytest
from conftest import BUILD, ENGINE, MIB, ROOT, TINY, needs_libraries, wait_for

NOBODY = "setpriv --reuid=65534 --regid=65534 --clear-groups"
VERIFY = {"bsrange": "512-128k", "verify": "crc32c", "verify_state_save": 0, "size": "2M",
          "numjobs": 4, "offset_increment": "2M", "group_reporting": True, "iodepth": 8,
          "randseed": 7}  # fmt: skip


def good(result):
    assert result.status == 0, result.text
    return result


def refused(result, *words: str) -> None:
    """One line of vroom's that has all WORDS, and a status that says no."""
    lines = result.vroom_lines
    assert result.status != 0, result.text
    assert len(lines) == 1, result.text
    for word in words:
        assert word in lines[0], lines[0]


# --- what the machine has --------------------------------------------------------------------


def test_list(guest, drive):
    listed = {one["serial"]: one for one in json.loads(good(guest.run("vroom list --json")).out)}
    assert listed["main"]["driver"] == "nvme" and listed["main"]["used_by"] == "nobody"
    assert listed["main"]["bytes"] == 1 << 30
    assert listed["two"]["bytes"] == 384 * MIB  # both namespaces
    assert listed["main"]["iommu_group"] is not None
    # The fourth was never the kernel's: nobody asked it who it is.
    assert listed[None]["numa_node"] == 1 and listed[None]["iommu_group"] is None
    text = good(guest.run("vroom list")).out
    for word in ("MODEL", "USED BY", "QEMU NVMe Ctrl", "1.1 GB", drive("main").bdf):
        assert word in text


def test_device_of_the_kernel_is_left_alone(guest, drive):
    main = drive("main")
    refused(
        guest.run(f"vroom id {main.name}"), "the kernel's driver nvme", f"vroom bind {main.bdf}"
    )
    refused(guest.run(f"vroom id {main.name}p1"), "is a partition", main.name)
    assert main.driver == "nvme"


@pytest.mark.parametrize("document, heading", [("README.md", "## On a real drive"),
                                               ("docs/devices.md", "## From the list")])  # fmt: skip
def test_commands_of_the_documents(guest, drive, document, heading):
    """Word for word, on the drive that is called /dev/nvme0n1 here."""
    section = (ROOT / document).read_text().split(heading)[1]
    commands = section.split("```sh\n")[1].split("```")[0]
    commands = commands.replace("sudo ", "").replace("/dev/nvme0n1", drive("main").name)
    good(guest.run(f"set -e; cd {ROOT}\n{commands}"))
    assert drive("main").driver == "nvme"


# --- data ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "driver, settings",
    [
        ("vfio-pci", {}),
        ("vfio-pci", {"wait": "interrupt"}),
        ("vfio-pci", {"wait": "hybrid", "thread": 1}),
        ("none", {}),
        ("none", {"thread": 1}),
    ],
    ids=["vfio-fork", "vfio-interrupt-fork", "vfio-hybrid-thread", "pci-fork", "pci-thread"],
)
def test_written_here_read_by_the_kernel(drive, fio, driver, settings):
    main = drive("main")
    good(main.bind("--driver", driver))
    good(fio(filename=main.name, rw="randwrite", **VERIFY, **settings))
    good(main.unbind())
    good(fio(filename=main.name, rw="randwrite", verify_only=1, ioengine="psync", direct=1,
             **VERIFY))  # fmt: skip


@pytest.mark.parametrize("driver", ["vfio-pci", "none"])
def test_written_by_the_kernel_read_here(guest, drive, fio, driver):
    main = drive("main")
    job = {**VERIFY, "bsrange": "4k-4k", "verify": "pattern", "verify_pattern": "0x5eed"}
    good(fio(filename=main.name, rw="write", ioengine="psync", direct=1, do_verify=0, **job))
    good(main.bind("--driver", driver))
    good(fio(filename=main.name, rw="read", **job))
    # One bit of one block spoilt behind everybody's back.
    with open(guest.work / "main1", "r+b") as image:
        image.seek(300 * 4096 + 77)
        byte = image.read(1)[0]
        image.seek(300 * 4096 + 77)
        image.write(bytes([byte ^ 1]))
    assert fio(filename=main.name, rw="read", **job).status != 0


def test_backing_file_has_what_was_written(guest, drive, fio):
    """The host looks at the drive's image, which neither vroom nor the guest's kernel serves."""
    main = drive("main")
    good(main.bind())
    good(fio(filename=main.name, rw="write", bs="64k", offset="512M", size="8M", iodepth=4,
             buffer_pattern="0x12345678", end_fsync=1))  # fmt: skip
    with open(guest.work / "main1", "rb") as image:
        image.seek(511 * MIB)
        data = image.read(10 * MIB)
    pattern = bytes.fromhex("12345678") * (MIB // 4)
    assert data[MIB : 9 * MIB] == pattern * 8
    assert pattern[:4096] not in data[:MIB] and pattern[:4096] not in data[9 * MIB :]


@pytest.mark.parametrize("driver", ["vfio-pci", "none"])
def test_large_and_deep(guest, drive, fio, driver):
    main = drive("main")
    good(main.bind("--driver", driver))
    job = {"filename": main.name, "size": "32M", "verify": "crc32c", "verify_state_save": 0}
    good(fio(rw="randwrite", bs="4M", iodepth=3, **job))
    good(fio(rw="randwrite", bs="4k", iodepth=2048, **{**job, "size": "12M"}))


def test_threads_that_start_together(drive, fio):
    """Each first use of the doorbells is many threads' at once; none of their rings is lost."""
    main = drive("main")
    good(main.bind())
    for _ in range(4):
        good(fio(filename=main.name, rw="randread", bs="4k", size="1M", iodepth=4, number_ios=20,
                 numjobs=8, thread=1, io_timeout=3))  # fmt: skip


@pytest.mark.parametrize("driver", ["vfio-pci", "none"])
def test_small_controller(guest, drive, fio, driver):
    """One I/O queue pair, 128 KiB transfers, write-through cache."""
    small = drive("small")
    good(small.bind("--driver", driver))
    out = json.loads(good(guest.run(f"vroom id --json {small.bdf}")).out)
    assert out["io_queue_pairs"] == 1 and out["max_transfer_bytes"] == 128 << 10
    good(fio(filename=small.name, rw="write", bs="1M", size="16M", iodepth=4, verify="md5",
             verify_state_save=0))  # fmt: skip
    two = fio(filename=small.name, rw="read", bs="4k", size="256k", numjobs=2)
    refused(two, "all 1 I/O queue pairs", "fewer jobs")


def test_two_namespaces_and_4k_blocks(guest, drive, fio):
    two = drive("two")
    second = two.name[:-1] + "2"
    good(two.bind())
    refused(fio(filename=two.name, rw="read", bs="512", size="1M"), "multiple", "4096 bytes")
    settings = {"rw": "randwrite", "bs": "4k", "size": "4M", "verify": "crc32c",
                "verify_state_save": 0, "iodepth": 16}  # fmt: skip
    good(fio(filename=f"{two.name}:{second}", **settings))
    good(two.unbind())
    good(fio(filename=f"{two.name}:{second}", verify_only=1, ioengine="psync", **settings))


def test_two_devices_in_one_job(guest, drive, fio):
    main, two = drive("main"), drive("two")
    settings = {"filename": f"{main.name}:{two.name}", "rw": "randwrite", "bs": "4k", "size": "1M",
                "verify": "crc32c", "verify_state_save": 0, "iodepth": 16}  # fmt: skip
    for drivers in (("none", "none"), ("vfio-pci", "none")):
        for device, driver in zip((main, two), drivers, strict=True):
            good(device.bind("--driver", driver))
        good(fio(**settings))
        for device in (main, two):
            good(device.unbind())
        good(fio(verify_only=1, **{**settings, "ioengine": "psync"}))


def test_without_an_iommu(guest, drive, fio):
    """Another NUMA node, a controller memory buffer, and no IOMMU in front."""
    remote = drive("remote")
    ran = good(fio(filename=remote.bdf.replace(":", "."), rw="randrw", bs="4k", size="4M",
                   verify="crc32c", verify_state_save=0, iodepth=16, cpus_allowed="0"))  # fmt: skip
    hint = [line for line in ran.text.splitlines() if "NUMA node 1" in line]
    assert len(hint) == 1 and "node 0" in hint[0]
    near = good(fio(filename=remote.bdf.replace(":", "."), rw="read", size="1M", cpus_allowed="1"))
    assert "NUMA" not in near.text
    refused(remote.bind("--driver", "vfio-pci"), "no IOMMU", "--driver none")
    refused(guest.run(f"vroom perf -W interrupt {remote.bdf}"), "vfio-pci")


def test_an_iommu_that_translates_is_noticed(guest, drive):
    main = drive("main")
    group = guest.run(f"readlink -f /sys/bus/pci/devices/{main.bdf}/iommu_group").out.strip()
    good(main.bind("--driver", "none"))
    good(guest.run(f"echo DMA > {group}/type"))
    try:
        refused(guest.run(f"vroom id {main.bdf}"), "IOMMU translates", "vfio-pci")
        refused(main.bind("--driver", "none"), "IOMMU translates")
    finally:
        good(guest.run(f"echo identity > {group}/type"))


def test_interrupts_leave_the_processor_alone(guest, drive):
    main = drive("main")
    good(main.bind())
    used = {}
    for wait in ("poll", "interrupt"):
        ran = good(guest.run(f"vroom perf -q 1 -t 1 --wait {wait} --json {main.bdf}"))
        used[wait] = json.loads(ran.out)["cpu_percent"]
    assert used["interrupt"] < 0.75 * used["poll"]


ASAN = BUILD / "asan" / "vroom"


@pytest.mark.skipif(not ASAN.exists(), reason="the sanitized build is made by make test")
@pytest.mark.parametrize("driver", ["vfio-pci", "none"])
def test_under_asan_and_ubsan(guest, drive, driver):
    main = drive("main")
    good(main.bind("--driver", driver))
    for arguments in ("-q 64 -o 512k -w randrw", "-q 8 -j 2 -w randread"):
        good(guest.run(f"{ASAN} perf {main.bdf} -t 0.5 {arguments}"))
    if driver == "vfio-pci":
        good(guest.run(f"{ASAN} perf {main.bdf} -t 0.5 -W interrupt"))


# --- bind and unbind --------------------------------------------------------------------------


def test_mounted_drive_is_refused_and_comes_back_intact(guest, drive, fio):
    two = drive("two")
    good(guest.run(f"mkfs.ext4 -q -F {two.name} && mkdir -p /mnt/two && mount {two.name} /mnt/two "
                   "&& head -c 8M /dev/urandom > /mnt/two/data && sync"))  # fmt: skip
    before = guest.run("sha256sum < /mnt/two/data").out
    try:
        refused(two.bind(), "mounted on /mnt/two", "nothing was changed")
        assert two.driver == "nvme"
        refused(guest.run(f"vroom id {two.name}"), "mounted on /mnt/two")
        assert "mounted on /mnt/two" in guest.run("vroom list").out
        assert guest.run("sha256sum < /mnt/two/data").out == before
    finally:
        good(guest.run("umount /mnt/two"))
    good(two.bind())
    good(fio(filename=two.name, rw="randread", bs="4k", size="8M", iodepth=8, readonly=True))
    good(two.unbind())
    after = guest.run(
        f"mount {two.name} /mnt/two && sha256sum < /mnt/two/data; umount /mnt/two"
    ).out
    assert after == before


@pytest.mark.parametrize(
    "hold, release, words",
    [
        ("mkswap {name} > /dev/null && swapon {name}", "swapoff {name}", ["swap"]),
        (
            "echo 0 2048 linear {name} 0 | dmsetup create --noudevsync held",
            "dmsetup remove --noudevsync held",
            ["held"],
        ),
        ("(sleep 60 < {name}) & sleep 0.3", "pkill -x sleep", ["held open by sleep", "pid"]),
        (
            "unshare -m sh -c 'mkfs.ext4 -q -F {name} && mount {name} /mnt && sleep 60' &"
            " until grep -q sleep /proc/[0-9]*/comm; do sleep 0.1; done",
            "pkill -x sleep; sleep 0.5",
            ["claimed"],
        ),
    ],
    ids=["swap", "device-mapper", "open", "mounted elsewhere"],
)
def test_drive_in_use_is_refused(guest, drive, hold, release, words):
    main = drive("main")
    good(guest.run("{ " + hold.format(name=main.name) + "; } 2>&1"))
    try:
        refused(main.bind(), "nothing was changed", *words)
        assert main.driver == "nvme"
    finally:
        guest.run(release.format(name=main.name))
    good(main.bind())


def test_name_still_works_after_bind_and_record_is_gone_after_unbind(guest, drive):
    main = drive("main")
    assert "vroom unbind" in good(main.bind()).out
    assert guest.run(f"ls {main.name}").status != 0
    assert json.loads(good(guest.run(f"vroom id --json {main.name}")).out)["serial"] == "main"
    listed = guest.run("vroom list").out
    assert "main" in listed and "vfio-pci" in listed
    [one] = [d for d in json.loads(guest.run("vroom list --json").out) if d["serial"] == "main"]
    assert main.name.removeprefix("/dev/") in one["names"] and one["firmware"]
    good(guest.run(f"ls /run/vroom/{main.bdf}"))
    assert main.name in good(main.unbind()).out
    assert guest.run(f"ls /run/vroom/{main.bdf}").status != 0
    good(guest.run(f"ls {main.name}"))


def test_dry_run_changes_nothing(guest, drive):
    main = drive("main")
    said = good(main.bind("--dry-run")).out
    assert "would write 'vfio-pci'" in said and "drivers_probe" in said
    assert main.driver == "nvme" and guest.run("ls -A /run/vroom").out == ""


def test_bind_takes_root(guest, drive):
    main = drive("main")
    refused(guest.run(f"{NOBODY} vroom bind {main.bdf}"), "takes root")
    refused(guest.run(f"{NOBODY} vroom hugepages 8M"), "takes root")
    good(main.bind("--driver", "none"))
    refused(guest.run(f"{NOBODY} vroom id {main.bdf}"), "only root")


def test_module_that_is_missing(guest, drive):
    main, modules = drive("main"), "/lib/modules/$(uname -r)"
    good(guest.run(f"modprobe -r vfio-pci && mv {modules} /lib/elsewhere"))
    try:
        refused(main.bind(), "the module vfio-pci cannot be loaded", "modprobe vfio-pci")
        assert main.driver == "nvme"
    finally:
        good(guest.run(f"mv /lib/elsewhere {modules} && modprobe vfio-pci"))


def test_transport_that_does_not_fit_its_driver(guest, drive, fio):
    main = drive("main")
    good(main.bind())
    refused(guest.run(f"vroom id -x pci {main.bdf}"), "vfio-pci", "--driver none")
    assert fio(filename=main.name, rw="read", size="1M", transport="pci").status != 0
    good(fio(filename=main.name, rw="read", size="1M", transport="vfio"))


# --- owners and ends --------------------------------------------------------------------------


def test_owned_by_another_vroom(guest, drive):
    main = drive("main")
    good(main.bind())
    running = guest.start(f"exec vroom perf -t 8 {main.bdf}")
    try:
        pid = wait_for(lambda: guest.run("pgrep -x vroom").out.strip(), what="vroom perf")
        wait_for(lambda: "in use by another" in guest.run("vroom list").out, what="its lock")
        refused(guest.run(f"vroom id {main.bdf}"), "in use by another vroom", f"pid {pid}")
        refused(main.unbind(), f"pid {pid}")
        assert main.driver == "vfio-pci"
    finally:
        guest.run("pkill -INT -x vroom")
        good(guest.finish(running))


def start_writing(guest, name: str) -> str:
    job = guest.start(f"fio --ioengine={ENGINE} --name=job --filename={name} --rw=randwrite --bs=4k "
                      "--iodepth=32 --numjobs=2 --size=256M --time_based --runtime=60")  # fmt: skip
    wait_for(lambda: len(guest.run("pgrep -x fio").out.split()) >= 3, what="fio's jobs")
    time.sleep(0.5)
    return job


def test_kill_without_an_iommu_leaves_memory_that_is_reclaimed(guest, drive, fio):
    main = drive("main")
    good(main.bind("--driver", "none"))
    job = start_writing(guest, main.name)
    guest.run("pkill -9 -x fio")
    guest.finish(job)
    left = guest.run(
        "ls /dev/hugepages; cat /sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages"
    )
    assert f"vroom-{main.bdf}" in left.out and "32" not in left.out.split()
    again = good(fio(filename=main.name, rw="randwrite", bs="4k", size="4M", verify="crc32c",
                     verify_state_save=0, iodepth=8))  # fmt: skip
    lines = [line for line in again.text.splitlines() if "killed run" in line]
    assert len(lines) == 1 and "disabled" in lines[0] and "reclaimed" in lines[0]
    assert "killed run" not in fio(filename=main.name, rw="read", size="1M").text


def test_kill_without_an_iommu_then_unbind(guest, drive):
    main = drive("main")
    good(main.bind("--driver", "none"))
    job = start_writing(guest, main.name)
    guest.run("pkill -9 -x fio")
    guest.finish(job)
    assert "reclaimed" in good(main.unbind()).err  # and the fixture counts the pages


def test_kill_with_vfio(guest, drive, fio):
    main = drive("main")
    good(main.bind())
    job = start_writing(guest, main.name)
    guest.run("pkill -9 -x fio")
    guest.finish(job)
    good(fio(filename=main.name, rw="read", bs="4k", size="4M", iodepth=8))


def test_device_that_goes_away(guest, drive):
    """It no longer decodes its registers: QEMU reads zeroes then, other machines ones."""
    remote = drive("remote")
    job = guest.start(f"exec taskset -c 1 vroom perf -t 60 -T 5 {remote.bdf}")
    wait_for(lambda: guest.run("pgrep -x vroom").out, what="vroom perf")
    time.sleep(1)
    guest.run(f"printf '\\0\\0' | dd of=/sys/bus/pci/devices/{remote.bdf}/config bs=1 seek=4 "
              "conv=notrunc status=none")  # fmt: skip
    refused(guest.finish(job, 30), remote.bdf, "CSTS.RDY", "removed")
    good(guest.run(f"vroom id {remote.bdf}"))


# --- what is missing --------------------------------------------------------------------------


def test_no_huge_pages(guest, drive, fio):
    main = drive("main")
    good(main.bind("--driver", "none"))
    good(guest.run("vroom hugepages 0"))
    try:
        refused(fio(filename=main.name, rw="read", size="1M"), "huge pages", "vroom hugepages")
        # A device behind an IOMMU does with ordinary memory.
        good(main.bind("--driver", "vfio-pci"))
        good(fio(filename=main.name, rw="read", size="1M"))
    finally:
        good(guest.run("vroom hugepages 64M"))


def test_huge_pages_of_1_gib(guest, drive, fio):
    main = drive("main")
    good(main.bind("--driver", "none"))
    good(guest.run("vroom hugepages 0 && vroom hugepages --page-size 1G 1G"))
    try:
        good(fio(filename=main.name, rw="randwrite", bs="4k", size="4M", verify="crc32c",
                 verify_state_save=0, iodepth=8))  # fmt: skip
    finally:
        good(guest.run("umount /dev/hugepages-1G && vroom hugepages 64M"))


def test_ordinary_user_through_vfio(guest, drive):
    main = drive("main")
    job = (f"fio --ioengine={ENGINE} --name=job --filename={main.name} --rw=randwrite --bs=4k "
           "--size=4M --iodepth=8 --numjobs=2 --offset_increment=4M --verify=crc32c "
           "--verify_state_save=0")  # fmt: skip
    good(main.bind())
    refused(guest.run(f"{NOBODY} {job} --numjobs=1"), "/dev/vfio/", "vroom bind --user")
    good(main.bind("--user", "nobody"))
    ran = good(guest.run(f"ulimit -l 65536; {NOBODY} {job}"))
    assert "vroom:" not in ran.text
    refused(
        guest.run(f"ulimit -l 1024; {NOBODY} {job} --numjobs=1"),
        "locked memory",
        "1024 KiB",
        "ulimit -l",
    )


# --- sweeps ----------------------------------------------------------------------------------

SWEEP = (
    TINY.replace('["psync", "vroom"]', '["io_uring_cmd", "vroom"]')
    .replace('bs = ["4k", "16k"]', "iodepth = [8]")
    .replace('size = "16m"', 'size = "8m"')
)


@needs_libraries
def test_sweep_moves_the_drive_by_itself(guest, drive):
    """Refused with another's serial number; then the kernel's engine and vroom in turn."""
    main = drive("main")
    (guest.shared / "tiny.toml").write_text(SWEEP)
    command = f"{ROOT}/jobs/sweep.py run /run/guest/tiny.toml --target {main.name} --runtime 100ms"
    good(guest.run(f"head -c 8M /dev/urandom > /run/sample; dd if=/run/sample of={main.name} bs=1M "
                   "oflag=direct"))  # fmt: skip
    refused(
        guest.run(f"{command} --destroy-data small --out /run/guest/no"), "--destroy-data", "main"
    )
    good(guest.run(f"cmp -n 8388608 /run/sample {main.name} && ! ls /run/guest/no"))
    assert main.driver == "nvme"

    job = guest.start(f"{command} --destroy-data main --out /run/guest/results")
    points = guest.shared / "results/points"
    wait_for(lambda: list(points.rglob("run1/**/vroom/*.fio")), 60, "vroom's turn")
    good(guest.run("pkill -KILL -f sweep.py; sleep 0.5"))
    assert guest.finish(job).status == 137 and main.driver == "vfio-pci"
    job = guest.start(f"{ROOT}/jobs/sweep.py resume /run/guest/results")
    wait_for(lambda: list(points.rglob("run1/**/vroom/randwrite*.fio")), 60, "vroom's next turn")
    good(guest.run("pkill -INT -f sweep.py"))
    stopped = guest.finish(job)
    assert stopped.status == 130 and "resume" in stopped.err
    assert main.driver == "nvme", "as it was before the first run, although it was stopped"
    good(guest.run(f"{ROOT}/jobs/sweep.py resume /run/guest/results", 120))
    assert main.driver == "nvme"
    state = json.loads((guest.shared / "results/run.json").read_text())
    there = {str(p.relative_to(points)) for p in points.rglob("run*/**/*.json")}
    assert there == {f"{point['path']}.json" for point in state["points"]} and len(there) == 4
    [first, *_] = json.loads((guest.shared / "results/environment.json").read_text())
    assert first["model"] == "QEMU NVMe Ctrl" and first["serial"] == "main"
    assert first["firmware"] and first["temperature_celsius"] == 50  # QEMU's default, 323 K
    # The report is made here.
    made = subprocess.run([ROOT / "jobs/report.py", guest.shared / "results"], text=True,
                          capture_output=True)  # fmt: skip
    assert made.returncode == 0, made.stderr
    assert "QEMU NVMe Ctrl" in (guest.shared / "results/report/index.html").read_text()


def test_kernel_that_is_locked_down(guest, drive, fio):
    """The last one: there is no way back. Without an IOMMU nothing goes, through vfio all does."""
    main = drive("main")
    good(guest.run("mount -t securityfs none /sys/kernel/security; "
                   "echo integrity > /sys/kernel/security/lockdown"))  # fmt: skip
    good(main.bind("--driver", "none"))
    refused(guest.run(f"vroom id {main.name}"), "not locked down", "vfio-pci")
    good(main.unbind())
    good(main.bind())
    good(fio(filename=main.name, rw="randread", bs="4k", size="1M"))
