# SPDX-License-Identifier: BSD-3-Clause
"""The programs that measure a point, and what they say as figures.

A tool takes a run and leaves PATH.json, what the program printed. `metrics` reads it again, so
that a report can be made from the kept files alone.

Figures are numbers by name: iops, bw (bytes a second), lat_mean, lat_p50 ... (nanoseconds, of
the whole way), cpu (per cent of one processor, all jobs), seconds; with read_ and write_ in
front for one direction of a mix; loop_time (nanoseconds of one of `loops`).
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import re
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from .definition import ROOT, Engine, Point, seconds, size_bytes
from .target import VROOM, Target

ASYNC = ROOT / "build" / "examples" / "async"
PERCENTILES = (50, 90, 99, 99.9, 99.99)
# Beside a point's own time: start, opening a drive, the end.
SLACK_SECONDS = 120
END_SECONDS = 20


@dataclass(frozen=True)
class Run:
    point: Point
    engine: Engine
    target: Target
    path: Path  # without a suffix
    hosts: tuple[str, ...] = ()


class RunError(Exception):
    """Why a point could not be measured, in the program's own words."""


def measure(run: Run) -> None:
    """Measures one point; writes run.path.json and whatever else the tool keeps."""
    run.path.parent.mkdir(parents=True, exist_ok=True)
    {"fio": run_fio, "perf": run_perf, "async": run_async, "t_io_uring": run_t_io_uring}[
        run.engine.tool
    ](run)


def metrics(tool: str, path: Path) -> dict[str, float]:
    """The figures of a point that was measured."""
    raw = json.loads(path.read_text())
    return {"fio": of_fio, "perf": of_perf, "async": of_async, "t_io_uring": dict}[tool](raw)


def end_with_parent() -> None:
    """In a child: a sweep that is killed leaves no fio behind (prctl(2), PR_SET_PDEATHSIG)."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)


def execute(command: list[object], limit: float, cwd: Path | None = None) -> str:
    """Standard output; RunError with the line that says what went wrong."""
    process = subprocess.Popen(
        [str(part) for part in command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        preexec_fn=end_with_parent,
    )
    try:
        out, err = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        raise RunError(f"{Path(str(command[0])).name} did not end within {limit:.0f} s") from None
    finally:
        end(process)
    if process.returncode:
        raise RunError(reason(err + out))
    return out


def end(process: subprocess.Popen) -> None:
    """Asks first: fio's jobs outlive a fio that is killed."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.communicate(timeout=END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()


def reason(text: str) -> str:
    """The line of a program's output that says why it failed."""
    # fio's client says whose line it is: "<host> vroom: ...".
    lines = [re.sub(r"^<[^>]*> ", "", line).strip() for line in text.splitlines()]
    lines = [line for line in lines if line]
    for mark in ("vroom: ", "fio: ", ""):
        found = [line for line in lines if line.startswith(mark)]
        if found:
            return found[0] if mark else found[-1]
    return "failed without a word"


def write_whole(path: Path, text: str) -> None:
    """A file that is there is complete, also after a kill."""
    scratch = path.with_name(path.name + ".part")
    scratch.write_text(text)
    scratch.replace(path)


def limit_of(point: Point) -> float:
    return 3 * seconds(point.options.get("runtime", 30)) + SLACK_SECONDS


# --- fio ---------------------------------------------------------------------------------------


def escape(name: str) -> str:
    """A name as filename= wants it: colons separate files."""
    return re.sub(r"([:\\])", r"\\\1", name)


def job_file(run: Run) -> str:
    """The point as a job that fio runs by itself, all its options in one section."""
    options = {"ioengine": run.engine.fio_name}
    if run.engine.driver:
        options["filename"] = escape(run.target.name_for(run.engine))
    options |= {"numjobs": 1, "iodepth": 1, "lat_percentiles": 1} | run.point.options
    options |= run.engine.options
    if options.get("direct"):
        options["invalidate"] = 0  # the emulated controller's cache, where the target is a file
    if options.get("gtod_reduce"):
        del options["lat_percentiles"]
    if run.point.log:
        options |= {
            "write_iops_log": run.path.name,
            "log_avg_msec": log_interval(seconds(options["runtime"])),
            "per_job_logs": 0,
        }
    lines = [f"{key}={value}" for key, value in options.items()]
    return "\n".join([f"[{run.point.experiment}]", *lines, ""])


def log_interval(run_time: float) -> int:
    """Milliseconds between entries of a log: some fifty, and not more than one a second."""
    return max(20, min(1000, round(run_time * 1000 / 50)))


def run_fio(run: Run) -> None:
    job = run.path.with_suffix(".fio")
    job.write_text(job_file(run))
    where = [f"--client={host}" for host in run.hosts]
    command = ["fio", "--output-format=json+"]
    command += [part for host in where for part in (host, job)] if where else [job]
    out = execute(command, limit_of(run.point), run.path.parent)
    before, brace, rest = out.partition("{")
    try:
        raw, end = json.JSONDecoder().raw_decode(brace + rest)
    except json.JSONDecodeError:
        raise RunError(reason(out)) from None
    notes = before + (brace + rest)[end:]
    if notes.strip():
        run.path.with_suffix(".txt").write_text(notes)
    if any(side["error"] for side in fio_jobs(raw)):
        raise RunError(reason(notes) if notes.strip() else "fio reports an error")
    write_whole(run.path.with_suffix(".json"), json.dumps(raw, indent=1))


def fio_jobs(raw: dict) -> list[dict]:
    """The jobs of a result; of several hosts', what fio adds up itself."""
    if "client_stats" not in raw:
        return raw["jobs"]
    everyone = [c for c in raw["client_stats"] if c["jobname"] == "All clients"]
    return everyone or raw["client_stats"]


def job_options(raw: dict) -> dict:
    """The options of the one job that a point is."""
    first = (raw.get("client_stats") or raw["jobs"])[0]
    return first.get("job options", {}) | (raw.get("global options") or {})


def histogram(sides: Iterable[dict]) -> Counter[int]:
    """I/Os by latency in nanoseconds, out of json+."""
    bins: Counter[int] = Counter()
    for side in sides:
        for latency, count in side["lat_ns"].get("bins", {}).items():
            bins[int(latency)] += count
    return bins


def percentiles(bins: Counter[int]) -> dict[str, float]:
    found, seen, wanted = {}, 0, list(PERCENTILES)
    total = sum(bins.values())
    for latency in sorted(bins):
        seen += bins[latency]
        while wanted and seen >= total * wanted[0] / 100:
            found[f"lat_p{wanted.pop(0):g}"] = float(latency)
    return found


def of_fio(raw: dict) -> dict[str, float]:
    found: dict[str, float] = {"iops": 0, "bw": 0, "cpu": 0}
    sides, total, options = [], {}, job_options(raw)
    for job in fio_jobs(raw):
        found["cpu"] += (job["usr_cpu"] + job["sys_cpu"]) * int(options.get("numjobs", 1))
        found["seconds"] = max(found.get("seconds", 0), job["job_runtime"] / 1000)
        for name in ("read", "write"):
            side = job[name]
            if not side["total_ios"]:
                continue
            sides.append(side)
            found["iops"] += side["iops"]
            found["bw"] += side["bw_bytes"]
            found[f"{name}_iops"] = found.get(f"{name}_iops", 0) + side["iops"]
            found[f"{name}_bw"] = found.get(f"{name}_bw", 0) + side["bw_bytes"]
            if side["lat_ns"]["mean"]:
                count, so_far = total.get(name, (0, 0))
                total[name] = (
                    count + side["total_ios"],
                    so_far + side["total_ios"] * side["lat_ns"]["mean"],
                )
        if "loops" in options and found["seconds"]:
            found["loop_time"] = found["seconds"] * 1e9 / int(options["loops"])
    for name, (count, nanoseconds) in total.items():
        found[f"{name}_lat_mean"] = nanoseconds / count
    if total:
        counts, times = zip(*total.values(), strict=True)
        found["lat_mean"] = sum(times) / sum(counts)
    return found | percentiles(histogram(sides))


def ccdf(paths: list[Path]) -> list[tuple[float, float]]:
    """(latency in nanoseconds, share of I/Os that took longer) of a fio point's repeats."""
    bins = histogram(
        job[name]
        for path in paths
        for job in fio_jobs(json.loads(path.read_text()))
        for name in ("read", "write")
    )
    total, left, curve = sum(bins.values()), sum(bins.values()), []
    for latency in sorted(bins):
        left -= bins[latency]
        curve.append((float(latency), left / total))
    return curve


def iops_over_time(path: Path) -> list[tuple[float, float]]:
    """(seconds, I/Os a second of all jobs) out of the log beside PATH."""
    options = job_options(json.loads(path.read_text()))
    interval, jobs = int(options["log_avg_msec"]), int(options["numjobs"])
    logs = sorted(path.parent.glob(f"{path.stem}_iops.log*"))
    sums: Counter[int] = Counter()
    entries: Counter[int] = Counter()
    for log in logs:
        for line in log.read_text().splitlines():
            when, value = line.split(",")[:2]
            slot = round(int(when) / interval)
            sums[slot] += int(value)
            entries[slot] += 1
    # A job may miss a slot or have two of them: the mean entry, times the jobs.
    jobs *= max(1, len(logs))
    return [(slot * interval / 1000, sums[slot] / entries[slot] * jobs) for slot in sorted(sums)]


# --- vroom perf, the async example, t/io_uring -----------------------------------------------------


def run_perf(run: Run) -> None:
    options = run.point.options
    rw = "randrw" if options["rw"] == "rw" else options["rw"]
    size = str(options.get("size", "100%"))
    out = execute(
        [
            VROOM, "perf", run.target.name_for(run.engine), "--json",
            "--depth", options.get("iodepth", 1), "--jobs", options.get("numjobs", 1),
            "--io-size", size_bytes(options["bs"]), "--workload", rw,
            "--time", seconds(options["runtime"]),
            *([] if size.endswith("%") else ["--size", size_bytes(size)]),
        ],
        limit_of(run.point),
    )  # fmt: skip
    write_whole(run.path.with_suffix(".json"), out)


def of_perf(raw: dict) -> dict[str, float]:
    latency = {f"lat_{name}": value for name, value in raw["latency_ns"].items()}
    return latency | {
        "iops": raw["iops"],
        "bw": raw["iops"] * raw["io_bytes"],
        "cpu": raw["cpu_percent"],
        "seconds": raw["seconds"],
    }


def run_async(run: Run) -> None:
    options = run.point.options
    out = execute(
        [
            ASYNC, run.target.name_for(run.engine), "--json", "--workload", options["workload"],
            "--blocks", options["blocks"], "--files", options.get("files", 1),
            "--trials", options["trials"], *(["--sync"] if run.engine.name == "sync" else []),
        ],
        limit_of(run.point),
    )  # fmt: skip
    write_whole(run.path.with_suffix(".json"), out)


def of_async(raw: dict) -> dict[str, float]:
    return {
        "bw": raw["bytes_per_second"],
        "seconds": raw["mean_us"] / 1e6,
        "iops": raw["bytes_per_second"] / raw["block_bytes"],
    }


def find_t_io_uring() -> Path | None:
    """fio's own benchmark of the interface: of the fio that vroom.so was built with, or yours."""
    found = os.environ.get("T_IO_URING") or shutil.which("t_io_uring")
    return Path(found) if found else next((ROOT / "build").glob("fio-src/fio/t/io_uring"), None)


def run_t_io_uring(run: Run) -> None:
    options = run.point.options
    depth = options.get("iodepth", 1)
    batch = max(1, depth // 4)
    out = execute(
        [
            find_t_io_uring() or "t/io_uring", "-p", 0, "-d", depth, "-s", batch, "-c", batch,
            "-b", size_bytes(options["bs"]), "-n", options.get("numjobs", 1),
            "-R", int(options["rw"].startswith("rand")),
            # It reports once a second, after the first.
            "-r", math.ceil(seconds(options["runtime"])) + 1,
            run.target.name_for(run.engine),
        ],
        limit_of(run.point),
    )  # fmt: skip
    match = re.search(r"Maximum IOPS=([\d.]+)([KM]?)", out)
    if not match or not float(match[1]):
        raise RunError(reason(out))
    iops = float(match[1]) * {"": 1, "K": 1e3, "M": 1e6}[match[2]]
    run.path.with_suffix(".txt").write_text(out)
    raw = {"iops": iops, "bw": iops * size_bytes(options["bs"])}
    write_whole(run.path.with_suffix(".json"), json.dumps(raw))
