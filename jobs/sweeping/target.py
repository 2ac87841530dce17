# SPDX-License-Identifier: BSD-3-Clause
"""What is measured: a plain file, an NVMe drive, or an emulated controller."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
from dataclasses import dataclass
from pathlib import Path

from .definition import ROOT, Engine, SweepError

VROOM = ROOT / "build" / "vroom"
KERNEL = "nvme"  # the kernel's driver


def vroom(*arguments: object, timeout: float = 120) -> str:
    """What the vroom command prints; its one line as an error."""
    done = subprocess.run(
        [VROOM, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=timeout,
        stdin=subprocess.DEVNULL,
    )
    if done.returncode:
        raise SweepError(done.stderr.strip().removeprefix("vroom: ") or f"vroom {arguments} failed")
    return done.stdout


@dataclass
class Target:
    """KIND is "file", "drive" (a PCI function) or "controller" (emulated, or a socket)."""

    address: str
    kind: str
    model: str = ""
    serial: str = ""
    firmware: str = ""
    bytes: int = 0  # 0: a file that does not exist
    block_bytes: int = 512
    queue_pairs: int = 0  # 0: not known before the kernel lets go of the drive
    temperature: int | None = None
    bdf: str = ""
    block: str = ""  # /dev/nvme0n1
    generic: str = ""  # /dev/ng0n1
    nsid: int = 1
    created: bool = False  # the file is the sweep's own
    remote: bool = False  # on the hosts of --hosts: nothing is known of it here
    driver: str = ""  # who has the drive now: KERNEL, "vroom" or "none"
    first_driver: str = ""  # and had it at first

    @property
    def file(self) -> Path | None:
        """The plain file, without the options that may follow it."""
        return Path(file_part(self.address)) if self.kind == "file" else None

    def why_not(self, engine: Engine) -> str:
        """Why the engine cannot run on this target; "" when it can."""
        if "$" in engine.fio_name:
            return f"set {engine.fio_name.partition('$')[2]}"
        if engine.filename == "generic" and not self.generic:
            return "needs a drive with a generic character device (/dev/ng0n1)"
        if engine.filename and (self.kind != "drive" or self.remote):
            return "needs a drive of this machine"
        if engine.driver == KERNEL and self.kind == "controller":
            return "needs a file or a drive of this machine"
        if engine.driver == "none" and self.kind != "drive":
            return "needs a drive"
        return ""

    def name_for(self, engine: Engine) -> str:
        """What the engine calls it (not escaped)."""
        if self.kind == "drive" and not self.remote:
            if engine.filename == "generic":
                return self.generic
            dotted = self.bdf.replace(":", ".")
            if engine.filename:
                return engine.filename.format(dotted=dotted, nsid=self.nsid)
            return self.block or f"{dotted},ns={self.nsid}"
        return str(self.file) if self.file and engine.driver == KERNEL else self.address

    @property
    def of_kernel(self) -> bool:
        """The kernel's driver has the drive now."""
        return self.driver == KERNEL

    def warm(self, span: int) -> None:
        """Reads a file into the page cache, the emulated controller's own, where it fits."""
        pages = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        if not self.file or self.remote or span > pages:
            return
        chunk = bytearray(1 << 20)
        with open(self.file, "rb", buffering=0) as file:
            while file.tell() < span and file.readinto(chunk):
                pass

    # --- whose the drive is ------------------------------------------------------------------

    def give_to(self, driver: str) -> None:
        """Moves a drive: to the kernel's driver, to "vroom", or to "none"."""
        if self.kind != "drive" or self.remote or not driver or driver == self.driver:
            return
        if driver == KERNEL:
            self.take_names(vroom("unbind", self.bdf).split())  # maybe not the ones it had
        elif driver == "vroom":
            vroom("bind", self.bdf)
        else:
            vroom("bind", "--driver", driver, self.bdf)
        self.driver = driver

    def take_names(self, paths: list[str]) -> None:
        """The namespace's own, out of all that the kernel calls the drive."""
        for path in paths:
            if re.fullmatch(rf"/dev/nvme\d+n{self.nsid}", path):
                self.block = path
            elif re.fullmatch(rf"/dev/ng\d+n{self.nsid}", path):
                self.generic = path

    def restore(self) -> None:
        """As it was found."""
        self.give_to(self.first_driver)


def file_part(address: str) -> str:
    """An existing path wins over its being read as options, as in docs/addresses.md."""
    return address if os.path.exists(address) else address.split(",")[0]


def find(address: str) -> Target:
    """Looks at what ADDRESS names, and changes nothing."""
    for one in json.loads(vroom("list", "--json")):
        target = match_drive(address, one)
        if target:
            return target
    path = file_part(address)
    if re.match(r"emu-(mem|null)\b", address) or is_socket(path):
        target = Target(address, "controller")
    elif re.match(r"/dev/|([0-9a-f]{4,8}[:.])?[0-9a-f]{2}[:.][0-9a-f]{2}\.[0-7]", address):
        raise SweepError(f"{address}: no such NVMe drive; see vroom list")
    elif os.path.isdir(path):
        raise SweepError(f"{address}: is a directory; name a file in it")
    else:
        target = Target(address, "file")
        if not os.path.exists(path):
            if not os.path.isdir(os.path.dirname(path) or "."):
                raise SweepError(f"{address}: there is no such directory")
            target.created = True
            return target
        target.bytes = os.path.getsize(path)
    identify(target)
    return target


def is_socket(path: str) -> bool:
    if os.path.isdir(path):
        path = f"{path}/cntrl"
    return os.path.exists(path) and stat.S_ISSOCK(os.stat(path).st_mode)


def identify(target: Target) -> None:
    """What the controller says of itself; it must be vroom's to open."""
    facts = json.loads(vroom("id", target.address, "--json"))
    target.model, target.serial = facts["model"], facts["serial"]
    target.firmware = facts["firmware"]
    target.queue_pairs = facts["io_queue_pairs"]
    target.temperature = facts.get("temperature_celsius")
    if facts["namespaces"]:
        first = facts["namespaces"][0]
        target.bytes, target.block_bytes = first["bytes"], first["block_bytes"]


def match_drive(address: str, one: dict) -> Target | None:
    """The target, if ADDRESS names the PCI function that `vroom list` describes as ONE."""
    wanted, _, option = address.partition(",ns=")
    known = [one["address"], one["address"].replace(":", "."), one["address"].removeprefix("0000:")]
    names = [f"/dev/{name}" for name in one["names"]]
    if wanted not in known + names:
        return None
    number = re.search(r"n(\d+)$", wanted)
    nsid = option or (number[1] if number and wanted in names else "1")
    driver = one["driver"] or "none"
    target = Target(
        address=address,
        kind="drive",
        model=one["model"] or "",
        serial=one["serial"] or "",
        firmware=one.get("firmware") or "",
        bdf=one["address"],
        nsid=int(nsid),
        driver=driver if driver == KERNEL else "vroom",
        first_driver=driver if driver == KERNEL else "vroom",
    )
    target.take_names(names)
    if driver == KERNEL:
        block = Path("/sys/class/block") / Path(target.block).name
        target.bytes = int((block / "size").read_text()) * 512
        target.block_bytes = int((block / "queue/logical_block_size").read_text())
        target.temperature = kernel_temperature(target.block)
    else:
        identify(target)
    return target


def kernel_temperature(block: str) -> int | None:
    """Degrees Celsius by the kernel's hwmon, where it has it."""
    controller = re.sub(r"n\d+$", "", Path(block).name)
    for file in Path(f"/sys/class/nvme/{controller}").glob("hwmon*/temp1_input"):
        return round(int(file.read_text()) / 1000)
    return None
