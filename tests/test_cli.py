# SPDX-License-Identifier: BSD-3-Clause
"""The `vroom` command, as a user types it."""

from __future__ import annotations

import json
import signal
import subprocess
import time

import pytest
from conftest import BUILD, ENGINE, GIB, MIB, ROOT, VROOM, good, run, vroom


def test_help_and_version():
    top = good(vroom("--help")).out
    for command in ("list", "id", "perf", "emulate", "fio"):
        assert command in top
        assert "Usage:" in good(vroom(command, "--help")).out
    header = (ROOT / "driver/include/vroom.h").read_text()
    version = header.split('VROOM_VERSION "')[1].split('"')[0]
    assert good(vroom("--version")).out == f"vroom {version}\n"
    assert vroom().status != 0
    unknown = vroom("frobnicate")
    assert unknown.status == 2 and "frobnicate" in unknown.err


def test_completion_knows_the_commands():
    script = (
        f"source {ROOT}/driver/cli/completion.bash; PATH={BUILD}:$PATH\n"
        "COMP_WORDS=(vroom e); COMP_CWORD=1; _vroom; echo ${COMPREPLY[@]}\n"
        "COMP_WORDS=(vroom perf --wo); COMP_CWORD=2; _vroom; echo ${COMPREPLY[@]}\n"
    )
    assert good(run("bash", "-c", script)).out.split() == ["emulate", "--workload"]


def test_list():
    result = good(vroom("list", "--json"))
    assert isinstance(json.loads(result.out), list)
    assert good(vroom("list")).out.strip()


def test_id(controller):
    served = controller("--ns", "mem=8M", "--ns", "null=1T,lba=4096", "--mdts", "64K",
                        "--queues", "5", "--entries", "100", "--serial", "S3R1AL")  # fmt: skip
    told = json.loads(good(vroom("id", served.socket, "--json")).out)
    assert told["serial"] == "S3R1AL" and told["model"] == "vroom emulated NVMe controller"
    assert told["max_transfer_bytes"] == 65536 and told["max_queue_entries"] == 100
    assert told["io_queue_pairs"] == 5 and told["doorbells_mapped"] is True
    first, second = told["namespaces"]
    assert first["bytes"] == 8 * MIB and first["block_bytes"] == 512
    assert second["bytes"] == 1024 * GIB and second["block_bytes"] == 4096
    assert [f["block_bytes"] for f in second["lba_formats"]] == [512, 4096]
    assert [f["in_use"] for f in second["lba_formats"]] == [False, True]
    text = good(vroom("id", f"{served.socket},ns=2")).out
    assert "S3R1AL" in text and "4096" in text
    only = json.loads(good(vroom("id", f"{served.socket},ns=2", "--json")).out)
    assert [ns["nsid"] for ns in only["namespaces"]] == [2]
    for address, words in [
        ("/nowhere/x", "No such file"),
        (f"{served.socket},ns=7", "namespace 7"),
    ]:
        bad = vroom("id", address)
        assert bad.status == 1 and words in bad.err and len(bad.err.splitlines()) == 1
    assert vroom("id").status == 1 and "no address" in vroom("id").err


@pytest.mark.parametrize("workload", ["read", "write", "randread", "randwrite", "randrw"])
@pytest.mark.parametrize("jobs, depth", [(1, 1), (2, 32), (1, 5000)])
def test_perf(workload, jobs, depth):
    result = good(vroom("perf", "emu-mem", "-w", workload, "-q", depth, "-j", jobs, "-t", "0.2",
                        "--json"))  # fmt: skip
    told = json.loads(result.out)
    assert told["ios"] > 0 and told["errors"] == 0
    assert told["iops"] == pytest.approx(told["ios"] / told["seconds"])
    assert told["mib_per_second"] == pytest.approx(told["iops"] / 256)
    lat = told["latency_ns"]
    assert (
        0 < lat["min"] <= lat["p50"] * 1.05 <= lat["p99"] * 1.1 and lat["p99"] <= lat["max"] * 1.05
    )
    # Little's law ties the two together, whatever the machine does.
    assert lat["mean"] * told["iops"] / 1e9 <= jobs * depth * 1.1


def test_perf_counts_what_the_controller_did(controller):
    """The controller's own SMART log is the witness: as many reads as perf reports."""
    from rawclient import Nvme

    served = controller("--ns", "mem=8M")
    told = json.loads(good(vroom("perf", served.socket, "-t", "0.3", "--json")).out)
    one = Nvme(served.socket)
    assert one.admin(0x02, nsid=0xFFFFFFFF, prp1=one.data, cdw=(2 | 127 << 16,)).status == 0
    assert int.from_bytes(one.at(one.data + 64, 8), "little") == told["ios"]
    one.close()


def test_perf_writes_where_it_says(tmp_path):
    path = tmp_path / "disk"
    path.write_bytes(bytes(4 * MIB))
    good(vroom("perf", path, "-w", "write", "-o", "1M", "-q", "2", "-t", "0.3"))
    assert path.read_bytes() == b"\xa5" * 4 * MIB


def test_perf_keeps_to_its_span(tmp_path):
    path = tmp_path / "disk"
    path.write_bytes(bytes(4 * MIB))
    good(vroom("perf", path, "-w", "randwrite", "-s", "1M", "-t", "0.3"))
    data = path.read_bytes()
    assert data[:MIB] == b"\xa5" * MIB and not any(data[MIB:])
    result = vroom("perf", path, "-s", "1k")
    assert result.status != 0 and "holds not one I/O" in result.err


def test_perf_text_and_interrupt():
    process = subprocess.Popen([VROOM, "perf", "emu-null", "-t", "30"], stdout=subprocess.PIPE,
                               text=True)  # fmt: skip
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=5)
    assert process.returncode == 0 and "IOPS" in out and "p99.9" in out


@pytest.mark.parametrize("arguments, words", [
    (["-q", "0"], "1 to 65535"), (["-o", "x"], "not a size"), (["-w", "sideways"], "randrw"),
    (["-t", "-1"], "seconds"), (["-j", "0"], "1 to 1024"), (["-o", "1000"], "block size"),
    (["-o", "2G"], "1 GiB"),
])  # fmt: skip
def test_perf_bad_arguments(arguments, words):
    result = vroom("perf", "emu-mem,size=8M", *arguments)
    assert result.status != 0 and words in result.err


def test_vroom_fio_takes_the_place_of_the_engine(tmp_path):
    inner = tmp_path / "inner.fio"
    inner.write_text("ioengine = io_uring\nsqthread_poll=1\n")
    job = tmp_path / "job.fio"
    text = (
        "[global]\nioengine=libaio\nuserspace_reap\nsize=4M\nbs=4k\ndirect=1\n"
        f"filename={tmp_path}/disk,lba=4096\n[a]\nrw=randwrite\n[b]\nstonewall\n"
        f"include {inner}\nrw=read\n"
        "[c]\nioengine=cpuio\ncpuload=1\nruntime=1\nfilename=none\n"
    )
    job.write_text(text)
    result = good(vroom("fio", "--output-format=json", job, cwd=tmp_path))
    told = json.loads(result.out[result.out.index("{") :])
    a, b, c = ({**told["global options"], **job["job options"]} for job in told["jobs"])
    assert (a["ioengine"], b["ioengine"], c["ioengine"]) == (ENGINE, ENGINE, "cpuio")
    # Only vroom understands that address, and only an engine without files wants none.
    assert {p.name for p in tmp_path.iterdir()} == {"inner.fio", "job.fio", "disk"}
    assert [one["error"] for one in told["jobs"]] == [0, 0, 0]
    assert told["jobs"][0]["write"]["io_bytes"] == told["jobs"][1]["read"]["io_bytes"] == 4 * MIB
    assert "ioengine=libaio: running on vroom instead" in result.err
    assert "ioengine=io_uring: running on vroom instead" in result.err
    assert "cpuio: running" not in result.err
    assert job.read_text() == text


def test_vroom_fio_takes_engines_from_the_command_line_too(tmp_path):
    output = tmp_path / "out.json"
    output.write_text("old")
    good(vroom("fio", "--output", output, "--output-format", "json", "--ioengine=psync",
               "--name=x", f"--filename={tmp_path}/disk2,fault=exit@999999999", "--rw=write",
               "--size=1M"))  # fmt: skip
    # Only vroom understands this address: psync would have made a file of that name.
    assert (tmp_path / "disk2").exists() and '"jobs"' in output.read_text()
    missing = vroom("fio", tmp_path / "none.fio")
    assert missing.status != 0


@pytest.mark.parametrize("engine", [["--ioengine=cpuio"], ["--ioengine", "cpuio"]])
def test_vroom_fio_leaves_engines_without_files_alone(tmp_path, engine):
    result = good(vroom("fio", "--output-format=json", "--name=x", *engine, "--cpuload=1",
                        "--runtime=1", cwd=tmp_path))  # fmt: skip
    assert result.jobs[0]["job options"]["ioengine"] == "cpuio"


def test_vroom_fio_reads_standard_input(tmp_path):
    job = f"[x]\nioengine=psync\nrw=write\nsize=1M\nfilename={tmp_path}/disk,lba=4096\nbs=4k\n"
    done = subprocess.run(
        [VROOM, "fio", "-"], input=job, capture_output=True, text=True, timeout=20
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "disk").stat().st_size == MIB
    assert ENGINE.removeprefix("external:") == str(BUILD / "vroom.so")


@pytest.mark.parametrize(
    "address, function",
    [("10000:e1:00.0", "10000:e1:00.0"), ("10000.e1.00.0", "10000:e1:00.0"),
     ("fffffffe:e1:00.0", "fffffffe:e1:00.0"), ("fe:00.0", "0000:fe:00.0")],
)  # fmt: skip
def test_pci_domains_of_any_length_are_understood(tmp_path, address, function):
    """Behind Intel's VMD they have five digits. Such an address was taken for a file's name."""
    ran = run(VROOM, "id", address, cwd=tmp_path)
    assert ran.status == 1 and f"{function}: no such PCI function" in ran.text
    assert not list(tmp_path.iterdir())
