#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""A guest with QEMU's NVMe controllers, booted from Debian's kernel on this machine's own root.

The root file system is this machine's, over 9p, read-only below a tmpfs; the repository and its
build are therefore where they are outside. Commands go in, and come back with their status,
through a shared directory; a serial port rings the bell. By hand:

    tests/vm/guest.py 'vroom list; fio --version'
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MODULES = ["9p", "9pnet_virtio", "virtio_pci", "overlay"]

INIT = """#!/bin/busybox sh
/bin/busybox --install -s /bin
mkdir -p /proc /sys /dev /ro /rw /root
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
for module in /mod/*; do insmod "$module"; done
mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,cache=loose,ro host /ro
mount -t tmpfs -o mode=755 tmpfs /rw; mkdir -m 755 /rw/upper /rw/work
mount -t overlay -o lowerdir=/ro,upperdir=/rw/upper,workdir=/rw/work overlay /root
mount --move /dev /root/dev; mount --move /proc /root/proc; mount --move /sys /root/sys
mount -t tmpfs -o mode=755 tmpfs /root/run
mkdir -p /root/run/guest /root/run/lock /root/dev/shm; chmod 1777 /root/run/lock
mount -t tmpfs tmpfs /root/dev/shm
mount -t 9p -o trans=virtio,version=9p2000.L guest /root/run/guest
exec switch_root /root /bin/bash /run/guest/agent
"""

# Runs each job that is announced on the second serial port, in the background. Each process that
# is not started saves a tenth of a second here.
AGENT = """
export PATH={path} HOME=/root LANG=C.UTF-8
mkdir -p /lib/modules; ln -sfn {kernel}/lib/modules/{version} /lib/modules/{version}
ulimit -l unlimited
# Without an IOMMU in front, interrupts get lost in QEMU: not for the kernel's driver.
for device in /sys/bus/pci/devices/*; do
    [ -e $device/iommu_group ] || [ "$(cat $device/class)" != 0x010802 ] ||
        echo none > $device/driver_override
done
stty -F /dev/ttyS1 raw -echo
exec 3<> /dev/ttyS1
echo ready >&3
while read -r job <&3; do
    (
        mkdir "/tmp/$job" && cd "/tmp/$job"
        (. "/run/guest/$job.sh") > "/run/guest/$job.out" 2> "/run/guest/$job.err" < /dev/null 3>&-
        echo $? > "/run/guest/$job.status"
        echo "done $job" >&3
    ) &
done
"""


@dataclass
class Result:
    """A process that has ended, here or in the guest."""

    status: int
    out: str
    err: str

    @property
    def text(self) -> str:
        return self.out + self.err

    @property
    def vroom_lines(self) -> list[str]:
        """The lines that vroom itself said."""
        return [line for line in self.text.splitlines() if line.startswith("vroom")]

    @property
    def jobs(self) -> list[dict]:
        """Of fio's JSON, which may have lines of text in front."""
        return json.loads(self.out[self.out.index("{") :])["jobs"]


class GuestError(Exception):
    """The guest did not boot, hangs or died; the message ends with its console."""


@dataclass(frozen=True)
class Drive:
    """One controller: its serial number, namespaces as (bytes, LBA size), and QEMU's options."""

    serial: str
    namespaces: tuple[tuple[str, int], ...]
    options: str = ""
    bus: str = "pcie.0"
    cache: str = "unsafe"


DRIVES = (
    Drive("main", (("1G", 512),)),
    Drive("small", (("256M", 512),), "max_ioqpairs=1,mdts=5", cache="writethrough"),
    Drive("two", (("256M", 4096), ("128M", 512)), "mdts=0"),
    # On the other NUMA node, with a controller memory buffer, and without an IOMMU in front.
    Drive("remote", (("256M", 512),), "cmb_size_mb=16", bus="far"),
    # Two functions of one device, and no word of which may reach which: one IOMMU group.
    Drive("pair0", (("64M", 512),), "addr=0x10.0,multifunction=on"),
    Drive("pair1", (("64M", 512),), "addr=0x10.1"),
)


def has_kvm() -> bool:
    """Does KVM set up a processor here? That the device file exists says little."""
    probe = ["qemu-system-x86_64", "-accel", "kvm", "-machine", "q35", "-cpu", "max", "-display",
             "none", "-S", "-monitor", "stdio"]  # fmt: skip
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return False
    return subprocess.run(probe, input="quit\n", capture_output=True, text=True).returncode == 0


class Guest:
    def __init__(self, drives: tuple[Drive, ...] = DRIVES):
        self.work = Path(tempfile.mkdtemp(prefix="vroom-vm-"))
        self.shared = self.work / "guest"
        self.shared.mkdir()
        self.console = self.work / "console"
        self.ids = itertools.count()
        self.pending: set[str] = set()
        self.buffer = ""
        kernel = Path(run([ROOT / "tests/vm/fetch-kernel.sh"]).strip())
        self.version = next((kernel / "lib/modules").iterdir()).name
        self._initrd(kernel)
        path = f"{ROOT}/build:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        (self.shared / "agent").write_text(
            AGENT.format(kernel=kernel, version=self.version, path=path)
        )
        self.bell = socket.socket(socket.AF_UNIX)
        self.bell.bind(str(self.work / "bell"))
        self.bell.listen(1)
        with open(self.work / "qemu", "w") as log:
            self.qemu = subprocess.Popen(
                self._command(kernel, drives), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self.bell.settimeout(30)
        try:
            self.bell, _ = self.bell.accept()
            self._wait_for("ready", 120)
        except (GuestError, TimeoutError) as error:
            self.close()
            raise GuestError(f"the guest does not boot: {error}\n{self.log()}") from None

    def _initrd(self, kernel: Path) -> None:
        tree = self.work / "initrd.d"
        (tree / "bin").mkdir(parents=True)
        (tree / "mod").mkdir()
        shutil.copy(shutil.which("busybox") or "/bin/busybox", tree / "bin/busybox")
        needed: list[str] = []
        for module in MODULES:
            lines = run(["/sbin/modprobe", "-d", kernel, "-S", self.version, "--show-depends",
                         module])  # fmt: skip
            needed += [line.split()[1] for line in lines.splitlines() if "insmod" in line]
        for number, path in enumerate(dict.fromkeys(needed)):
            shutil.copy(path, tree / f"mod/{number:02}-{Path(path).name}")
        (tree / "init").write_text(INIT)
        (tree / "init").chmod(0o755)
        with open(self.work / "initrd", "wb") as out:
            subprocess.run("find . | cpio -o -H newc --quiet", shell=True, cwd=tree, stdout=out,
                           check=True)  # fmt: skip

    def _command(self, kernel: Path, drives: tuple[Drive, ...]) -> list[str]:
        kvm = has_kvm()
        machine = "q35,kernel-irqchip=split" if kvm else "q35"
        accel = "kvm" if kvm else "tcg,thread=multi"
        shares = []
        for tag, path, mode in (("host", "/", ",readonly=on,multidevs=remap"),
                                ("guest", self.shared, "")):  # fmt: skip
            shares += ["-fsdev", f"local,id={tag},path={path},security_model=none{mode}",
                       "-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}"]  # fmt: skip
        command = [
            "qemu-system-x86_64", "-accel", accel, "-machine", machine, "-cpu", "max",
            "-smp", "2", "-m", "4G",
            "-object", "memory-backend-ram,id=near,size=1536M",
            "-object", "memory-backend-ram,id=far-memory,size=2560M",
            "-numa", "node,nodeid=0,memdev=near,cpus=0",
            "-numa", "node,nodeid=1,memdev=far-memory,cpus=1",
            "-display", "none", "-no-reboot", "-vga", "none", "-net", "none",
            "-serial", f"file:{self.console}",
            "-serial", f"unix:{self.work / 'bell'}",
            "-kernel", str(kernel / f"boot/vmlinuz-{self.version}"),
            "-initrd", str(self.work / "initrd"),
            # A look at the clock must not be a call into QEMU, as it is with the HPET.
            "-append", "console=ttyS0 quiet panic=-1 intel_iommu=on iommu=pt mitigations=off "
                       "tsc=reliable clocksource=tsc "
                       "hugepagesz=1G hugepages=1 default_hugepagesz=2M",
            *shares,
            "-device", "intel-iommu,intremap=on" if kvm else "intel-iommu",
            "-device", "pxb-pcie,id=far-bus,bus_nr=64,numa_node=1,bypass_iommu=on",
            "-device", "pcie-root-port,id=far,bus=far-bus,chassis=1",
        ]  # fmt: skip
        for drive in drives:
            options = f",{drive.options}" if drive.options else ""
            command += ["-device", f"nvme,id={drive.serial},serial={drive.serial},bus={drive.bus}"
                        + options]  # fmt: skip
            for nsid, (size, lba) in enumerate(drive.namespaces, 1):
                name = f"{drive.serial}{nsid}"
                image = self.work / name
                run(["truncate", "-s", size, image])
                command += [
                    "-drive", f"file={image},if=none,id={name},format=raw,cache={drive.cache},"
                              "discard=unmap",
                    "-device", f"nvme-ns,drive={name},bus={drive.serial},nsid={nsid},"
                               f"logical_block_size={lba},physical_block_size={lba}",
                ]  # fmt: skip
        return command

    def log(self) -> str:
        """What QEMU and the guest's console said last."""
        texts = []
        for path in (self.work / "qemu", self.console):
            if path.exists():
                texts.append(path.read_text(errors="replace")[-3000:])
        return "\n".join(texts)

    def _wait_for(self, line: str, seconds: float) -> None:
        end = time.monotonic() + seconds
        while True:
            *lines, self.buffer = self.buffer.split("\n")
            self.pending |= {text.strip() for text in lines}
            if line in self.pending:
                self.pending.remove(line)
                return
            left = end - time.monotonic()
            if left <= 0:
                raise GuestError(f"no answer within {seconds:.0f} s")
            self.bell.settimeout(left)
            try:
                data = self.bell.recv(4096)
            except TimeoutError:
                continue
            if not data:
                raise GuestError("it has ended")
            self.buffer += data.decode(errors="replace")

    def start(self, command: str) -> str:
        """Begins a command, as root; its name is for finish()."""
        job = f"job{next(self.ids)}"
        (self.shared / f"{job}.sh").write_text(command)
        self.bell.sendall(f"{job}\n".encode())
        return job

    def finish(self, job: str, timeout: float = 60) -> Result:
        try:
            self._wait_for(f"done {job}", timeout)
        except GuestError as error:
            command = (self.shared / f"{job}.sh").read_text()
            self.close()
            raise GuestError(f"the guest hangs in '{command}': {error}\n{self.log()}") from None
        read = {end: (self.shared / f"{job}.{end}").read_text(errors="replace")
                for end in ("status", "out", "err")}  # fmt: skip
        return Result(int(read["status"]), read["out"], read["err"])

    def run(self, command: str, timeout: float = 60) -> Result:
        return self.finish(self.start(command), timeout)

    def close(self) -> None:
        if self.qemu.poll() is None:
            self.qemu.kill()
        self.qemu.wait()

    def remove(self) -> None:
        self.close()
        shutil.rmtree(self.work, ignore_errors=True)


def run(command: list[object]) -> str:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode:
        raise GuestError(f"{command[0]}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def main() -> int:
    parser = argparse.ArgumentParser(description="Boots a guest with NVMe drives, runs a command.")
    parser.add_argument("command", help="for bash, as root; drives: see DRIVES in this file")
    parser.add_argument("--timeout", type=float, default=300, help="seconds (300)")
    arguments = parser.parse_args()
    try:
        guest = Guest()
    except GuestError as error:
        print(error, file=sys.stderr)
        return 1
    try:
        result = guest.run("modprobe nvme; sleep 1\n" + arguments.command, arguments.timeout)
    except GuestError as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        guest.remove()
    sys.stdout.write(result.out)
    sys.stderr.write(result.err)
    return result.status


if __name__ == "__main__":
    sys.exit(main())
