# SPDX-License-Identifier: BSD-3-Clause
"""Runs a sweep: what is measured in which order, and what is kept.

Engines take turns at each point, the other way round at the next, so that drift hits all alike
and a drive changes hands once a point. Points that need a written drive come first, those that
need a cleared one after them. A point is done when its .json is there; that is all that
`resume` needs to know.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from tqdm import tqdm

from . import environment, tools
from .definition import (
    SWEEPS,
    Engine,
    Experiment,
    Point,
    Sweep,
    SweepError,
    count,
    load_drive,
    load_engines,
    load_sweep,
    seconds,
    size_bytes,
)
from .target import KERNEL, VROOM, Target, file_part, find

# Seconds beside the run time itself: starting fio, and moving a drive between drivers.
START_SECONDS, MOVE_SECONDS = 0.4, 2.0
FAILURES_IN_A_ROW = 5
# Options of fio that --fio may not set: they decide what is measured, or what fio's output looks like.
NOT_FOR_ALL = {"filename", "ioengine", "rw", "runtime", "size", "name", "group_reporting",
               "unified_rw_reporting"}  # fmt: skip
LAST_RUN_SECONDS = 10
# Somebody asked the sweep to end.
stopping = threading.Event()


@dataclass
class Settings:
    """What the command line says; kept in run.json, so that `resume` knows it."""

    sweep: str
    target: str = ""
    emulate: str = ""
    drive: str = ""
    engines: list[str] = field(default_factory=list)
    experiments: list[str] = field(default_factory=list)
    repeat: int = 1
    runtime: str = ""
    size: str = ""
    fio: dict[str, str] = field(default_factory=dict)  # options for all of fio's jobs
    paper: bool = False
    read_only: bool = False
    hosts: list[str] = field(default_factory=list)
    destroy_data: str = ""
    created: bool = False  # the target is the sweep's own file
    first_driver: str = ""  # whose the drive was, and will be again


@dataclass(frozen=True)
class Planned:
    point: Point
    engine: Engine
    repeat: int

    @property
    def path(self) -> str:
        return self.point.path(self.repeat)

    @property
    def seconds(self) -> float:
        return seconds(self.point.options.get("runtime", 1)) + START_SECONDS

    @property
    def axes(self) -> str:
        return " ".join(f"{key}={value}" for key, value in self.point.axes.items())

    def __str__(self) -> str:
        return f"{self.point.experiment} {self.engine.name} {self.axes}".rstrip()


@dataclass
class Plan:
    runs: list[Planned]
    left_out: list[dict[str, str]]  # {"engine", "what", "why"}

    @property
    def size(self) -> str:
        """The largest span that any point uses: what preconditioning covers."""
        sizes = [str(run.point.options.get("size", "100%")) for run in self.runs]
        whole = [size for size in sizes if size.endswith("%")]
        return whole[0] if whole else max(sizes, key=size_bytes, default="100%")

    def leave_out(self, engine: str, what: str, why: str) -> None:
        entry = {"engine": engine, "what": what, "why": why}
        if entry not in self.left_out:
            self.left_out.append(entry)


# --- planning -------------------------------------------------------------------------------------


def choose(what: str, wanted: list[str], known: list[str]) -> list[str]:
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise SweepError(f"no {what} {unknown[0]} in this sweep; there are: {', '.join(known)}")
    return wanted or known


def make_plan(sweep: Sweep, settings: Settings, target: Target) -> Plan:
    engines = load_engines()
    every_engine = list(dict.fromkeys(e for x in sweep.experiments for e in x.engines))
    chosen = choose("engine", settings.engines, every_engine)
    names = choose("experiment", settings.experiments, [x.name for x in sweep.experiments])
    plan = Plan([], [])
    groups: list[list[Planned]] = []
    for experiment in sweep.experiments:
        if experiment.name not in names:
            continue
        for group in experiment.points(engines):
            runs = [
                Planned(adapt(point, sweep, settings, target), engines[point.engine], 1)
                for point in group
                if point.engine in chosen
                and (settings.engines or not engines[point.engine].extra)
                and is_possible(plan, point, engines, settings, target)
            ]
            groups.append(runs)
    for phase in ("", "written", "cleared"):
        mine = [group for group in groups if group and group[0].point.phase == phase]
        for repeat in range(1, settings.repeat + 1):
            for number, group in enumerate(mine):
                turn = -1 if (number + repeat) % 2 else 1
                plan.runs += [Planned(run.point, run.engine, repeat) for run in group[::turn]]
    return plan


def adapt(point: Point, sweep: Sweep, settings: Settings, target: Target) -> Point:
    """The point with what the command line changes, on a span that the target has."""
    for name in settings.fio:
        if name in point.axes or name in NOT_FOR_ALL:
            raise SweepError(f"--fio {name}=: is for the sweep to say, point by point")
    options = point.options | settings.fio
    if "runtime" in options:
        # An experiment that runs longer than the others goes on to, by as much.
        factor = seconds(settings.runtime or sweep.runtime) / seconds(sweep.runtime)
        options["runtime"] = f"{seconds(options['runtime']) * factor * 1000:.0f}ms"
    if "size" in options and "size" not in point.axes:
        options["size"] = settings.size or options["size"]
    size = str(options.get("size", "100%"))
    if not size.endswith("%") and target.bytes and size_bytes(size) > target.bytes:
        options["size"] = str(target.bytes)
    precondition = "none" if settings.read_only else point.precondition
    return replace(point, options=options, precondition=precondition)


def is_possible(
    plan: Plan, point: Point, engines: dict[str, Engine], settings: Settings, target: Target
) -> bool:
    """False, with the reason in the plan, for what cannot be measured here."""
    engine, options = engines[point.engine], point.options
    if settings.read_only and (point.writes or point.phase == "cleared"):
        plan.leave_out("all", f"{point.experiment}: {options.get('rw', 'writes')}", "--read-only")
        return False
    why = target.why_not(engine)
    if settings.hosts and engine.tool != "fio":
        why = "runs on this host only"
    if engine.tool == "t_io_uring" and not tools.find_t_io_uring():
        why = "t/io_uring of fio's source is not there; make sweep-deps, or T_IO_URING="
    if why:
        plan.leave_out(engine.name, "all", why)
        return False
    block = options.get("bs")
    if block and size_bytes(block) % target.block_bytes:
        why = f"is no multiple of the drive's block of {target.block_bytes} bytes"
        plan.leave_out(engine.name, f"{point.experiment}: bs={block}", why)
        return False
    jobs = options.get("numjobs", 1)
    if engine.driver == "vroom" and target.queue_pairs and jobs > target.queue_pairs:
        why = f"the controller has {target.queue_pairs} I/O queue pairs"
        plan.leave_out(engine.name, f"{point.experiment}: numjobs={jobs}", why)
        return False
    return True


def wanted_state(point: Point, target: Target) -> str:
    """What the target must hold before the point: "written", "cleared" or "": as it is."""
    if target.address.startswith("emu-"):
        return ""  # a memory of its own for each run
    if target.kind == "drive" or target.kind == "controller":
        return point.phase
    # A file is never cleared, and one of ours never empty: holes measure the file system.
    return "written" if point.phase or target.created else ""


def preconditions(plan: Plan, target: Target) -> list[str]:
    """What is done to the target before points, in words."""
    states = {wanted_state(run.point, target) for run in plan.runs}
    words = {
        "written": f"{plan.size} written once",
        "cleared": f"{plan.size} trimmed before each writing point",
    }
    return [text for state, text in words.items() if state in states]


def writes(plan: Plan, target: Target) -> bool:
    return any(run.point.writes for run in plan.runs) or bool(preconditions(plan, target))


def check_consent(plan: Plan, settings: Settings, target: Target) -> None:
    """Nobody's data is overwritten unless its drive was named by its serial number."""
    ours = target.created or settings.emulate or target.address.startswith("emu-")
    if ours or not writes(plan, target):
        return
    name = file_part(target.address) if target.kind == "file" else target.serial
    if target.remote:
        name = target.address
    if settings.destroy_data == name:
        return
    what = "serial number" if name == target.serial else "name"
    wrong = f", not {settings.destroy_data}" if settings.destroy_data else ""
    raise SweepError(
        f"{target.address}: this sweep overwrites it; nothing was written. If its data may go: "
        f"--destroy-data {what.upper().replace(' ', '-')} (its {what} is {name}{wrong}); or measure reads of what is "
        "there: --read-only"
    )


# --- the target ------------------------------------------------------------------------------------


class Emulated:
    """A controller with a drive's timing, on nothing, for as long as the sweep runs."""

    def __init__(self, text: str):
        name, *options = text.split(",")
        drive = load_drive(name)
        if "emulate" not in drive:
            raise SweepError(f"{name}: says nothing of the drive's timing ([emulate])")
        timing = drive["emulate"] | dict(option.partition("=")[::2] for option in options)
        # Not in the folder of results: a socket's name must be short.
        self.folder = tempfile.TemporaryDirectory(prefix="vroom-sweep-")
        self.socket = Path(self.folder.name) / "nvme.sock"
        self.process = subprocess.Popen(
            [VROOM, "emulate", "--socket", self.socket, "--ns", "null=1T"]
            + [f"--{key}={value}" for key, value in timing.items()],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is the sweep's to handle
            preexec_fn=tools.end_with_parent,
        )
        if "listening" not in self.process.stdout.readline():
            raise SweepError(self.process.stderr.read().splitlines()[0])

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(10)
        self.folder.cleanup()


def look(settings: Settings, folder: Path) -> tuple[Target, Emulated | None]:
    if settings.emulate:
        emulated = Emulated(settings.emulate)
        return find(str(emulated.socket)), emulated
    if settings.hosts:
        is_drive = re.match(r"/dev/|[0-9a-f]{4,8}[:.]", settings.target)
        return Target(settings.target, "drive" if is_drive else "file", remote=True), None
    target = find(settings.target or str(folder / "disk"))
    target.created = target.created or settings.created
    return target, None


def look_again(settings: Settings, folder: Path) -> tuple[Target, Emulated | None]:
    """After a kill, when what the sweep ran may take a moment to end."""
    end = time.monotonic() + LAST_RUN_SECONDS
    while True:
        try:
            return look(settings, folder)
        except SweepError as error:
            if "in use" not in str(error) or time.monotonic() > end:
                raise
        time.sleep(0.2)


def look_only(settings: Settings) -> Target:
    """For `show`: what would be measured, without starting anything."""
    if settings.emulate:
        name = settings.emulate.split(",")[0]
        return Target(f"emulated {load_drive(name)['name']}", "controller")
    if not settings.target:
        return Target("a file of its own", "file", created=True)
    return look(settings, Path())[0]


# --- running ---------------------------------------------------------------------------------------


class Runner:
    def __init__(self, folder: Path, settings: Settings, sweep: Sweep, target: Target, plan: Plan):
        self.folder, self.settings, self.sweep = folder, settings, sweep
        self.target, self.plan = target, plan
        self.failed: dict[str, str] = {}
        self.in_a_row = 0
        self.state = ""  # what the target holds

    def file(self, run: Planned) -> Path:
        return self.folder / "points" / run.path

    def is_done(self, run: Planned) -> bool:
        return self.file(run).with_suffix(".json").exists()

    def save(self) -> None:
        state = {
            "settings": vars(self.settings),
            "title": self.sweep.title,
            "left_out": self.plan.left_out,
            "failed": self.failed,
            "precondition": preconditions(self.plan, self.target),
            "points": [
                {
                    "experiment": run.point.experiment,
                    "engine": run.engine.name,
                    "tool": run.engine.tool,
                    "repeat": run.repeat,
                    "path": run.path,
                    "axes": run.point.axes,
                    "options": run.point.options,
                    "log": run.point.log,
                }
                for run in self.plan.runs
            ],
        }
        tools.write_whole(self.folder / "run.json", json.dumps(state, indent=1))

    def run(self) -> None:
        self.save()
        left = [run for run in self.plan.runs if not self.is_done(run)]
        total = sum(run.seconds for run in self.plan.runs)
        done = total - sum(run.seconds for run in left)
        style = "{l_bar}{bar}| {elapsed} gone, {remaining} left{postfix}"
        # Some terminals say that they have no size, and tqdm would show nothing.
        columns, lines = shutil.get_terminal_size()
        with tqdm(total=total, initial=done, disable=None, bar_format=style, ncols=columns,
                  nrows=lines) as bar:  # fmt: skip
            try:
                for number, run in enumerate(left, len(self.plan.runs) - len(left) + 1):
                    if stopping.is_set():
                        raise KeyboardInterrupt
                    if run in self.plan.runs:
                        self.one(run, number, bar)
                    bar.update(run.seconds)
            finally:
                self.target.restore()
                self.save()

    def one(self, run: Planned, number: int, bar: tqdm) -> None:
        try:
            self.target.give_to(run.engine.driver)
        except SweepError as error:
            if not run.engine.optional:
                raise
            self.on_failure(run, str(error))
            return
        self.prepare(run)
        if self.target.kind == "file" and run.engine.driver == "vroom":
            # Another engine's direct writes, or fio's invalidate=, may have emptied it.
            self.target.warm(size_bytes(self.plan.size))
        try:
            tools.measure(self.as_run(run))
        except tools.RunError as error:
            self.on_failure(run, str(error))
            return
        self.in_a_row = 0
        self.failed.pop(run.path, None)
        figures = tools.metrics(run.engine.tool, self.file(run).with_suffix(".json"))
        text = f"{run}: {in_words(figures)}"
        bar.set_postfix_str(text)
        if bar.disable:
            print(f"[{number}/{len(self.plan.runs)}] {text}", file=sys.stderr, flush=True)

    def as_run(self, run: Planned) -> tools.Run:
        return tools.Run(
            run.point, run.engine, self.target, self.file(run), tuple(self.settings.hosts)
        )

    def on_failure(self, run: Planned, why: str) -> None:
        if run.engine.optional:
            tqdm.write(f"without {run.engine.name}: {why}", file=sys.stderr)
            self.plan.leave_out(run.engine.name, "all", why)
            self.plan.runs = [r for r in self.plan.runs if r.engine.name != run.engine.name]
            return
        tqdm.write(f"failed: {run}: {why}", file=sys.stderr)
        self.failed[run.path] = why
        self.in_a_row += 1
        if self.in_a_row == FAILURES_IN_A_ROW:
            raise SweepError(f"{FAILURES_IN_A_ROW} points in a row failed; the last: {why}")

    # --- preconditioning, through whoever has the drive now ---

    def prepare(self, run: Planned) -> None:
        wanted = wanted_state(run.point, self.target)
        if wanted == "written" and self.state != "written" and not self.settings.emulate:
            self.precondition(
                "fill", {"rw": "write", "bs": self.block("1m"), "iodepth": 8, "end_fsync": 1}
            )
        elif wanted == "cleared":
            self.precondition("clear", {"rw": "trim", "bs": self.block("16m")})
        self.state = wanted or self.state

    def block(self, largest: str) -> int:
        """A span may be smaller than the blocks that are good for large ones."""
        whole = self.plan.size.endswith("%")
        return (
            size_bytes(largest) if whole else min(size_bytes(largest), size_bytes(self.plan.size))
        )

    def precondition(self, what: str, options: dict) -> None:
        by_kernel = self.target.of_kernel
        if self.target.remote:
            by_kernel = any(run.engine.driver == KERNEL for run in self.plan.runs)
        engine = load_engines()[
            ("psync" if what == "clear" else "libaio") if by_kernel else "vroom"
        ]
        options = options | {"direct": int(self.target.kind == "drive"), "size": self.plan.size}
        point = Point(what, engine.name, options, {}, False, "none")
        path = self.folder / "points" / "precondition" / what
        hosts = tuple(self.settings.hosts)
        try:
            tools.measure(tools.Run(point, engine, self.target, path, hosts))
        except tools.RunError as error:
            raise SweepError(f"{self.target.address}: cannot {what} it: {error}") from None


def in_words(figures: dict[str, float]) -> str:
    text = f"{count(figures['iops'])} IOPS"
    if "lat_mean" in figures:
        text += f", {figures['lat_mean'] / 1000:.1f} us"
    return text


def open_folder(folder: Path, settings: Settings) -> None:
    """A new folder with the definition of the sweep as it is now."""
    if folder.exists() and any(folder.iterdir()):
        raise SweepError(f"{folder}: is there already; resume it, or name another with --out")
    folder.mkdir(parents=True, exist_ok=True)
    name = settings.sweep
    shutil.copy(name if name.endswith(".toml") else SWEEPS / f"{name}.toml", folder / "sweep.toml")


def remove_if_empty(folder: Path) -> None:
    """A sweep that was refused leaves nothing."""
    if not (folder / "run.json").exists():
        shutil.rmtree(folder)


def sweep_of(folder: Path, settings: Settings) -> Sweep:
    return load_sweep(settings.sweep, settings.paper, folder / "sweep.toml")


def start(folder: Path, settings: Settings, resumed: bool = False) -> Runner:
    """Runs what is left of a sweep in FOLDER; the runner knows what became of it."""
    sweep = sweep_of(folder, settings)
    target, emulated = look(settings, folder) if not resumed else look_again(settings, folder)
    try:
        plan = make_plan(sweep, settings, target)
        if not plan.runs:
            whys = "; ".join(f"{e['engine']}: {e['why']}" for e in plan.left_out)
            raise SweepError(f"nothing to measure on {target.address}: {whys}")
        check_consent(plan, settings, target)
        check_hosts(plan, target)
        check_span(plan, target)
        settings.created = target.created
        # After a kill the drive may still be vroom's.
        target.first_driver = settings.first_driver = settings.first_driver or target.first_driver
        now = environment.record(target)
        record_environment(folder, now, resumed)
        runner = Runner(folder, settings, sweep, target, plan)
        runner.run()
        return runner
    finally:
        if emulated:
            emulated.stop()


def check_hosts(plan: Plan, target: Target) -> None:
    drivers = {run.engine.driver for run in plan.runs if run.engine.driver}
    if target.remote and target.kind == "drive" and len(drivers) > 1:
        raise SweepError(
            f"{target.address}: a drive of another host is not moved between drivers; run twice, "
            "with the --engines of one driver each, and vroom bind there in between"
        )


def check_span(plan: Plan, target: Target) -> None:
    if target.kind == "file" and target.created and plan.size.endswith("%"):
        raise SweepError(f"{target.address}: does not exist; say how large with --size")
    if target.kind != "drive" and target.file and target.created:
        free = shutil.disk_usage(target.file.resolve().parent).free
        needed = size_bytes(plan.size) - (target.bytes or 0)
        if needed > free:
            raise SweepError(
                f"{target.address}: {plan.size} do not fit, {free >> 20} MiB are free; see --size"
            )


def record_environment(folder: Path, now: dict, resumed: bool) -> None:
    """One entry for each time that the sweep ran."""
    path = folder / "environment.json"
    entries = json.loads(path.read_text()) if path.exists() else []
    if resumed and entries:
        for key in ("host", "kernel", "fio", "vroom", "git", "model", "serial"):
            if entries[0][key] != now[key]:
                print(
                    f"vroom: {key} was {entries[0][key]}, is {now[key]}: the points before and "
                    "after differ in more than time",
                    file=sys.stderr,
                )
    tools.write_whole(path, json.dumps([*entries, now], indent=1))


def describe(experiment: Experiment, runs: list[Planned]) -> str:
    engines = ", ".join(dict.fromkeys(run.engine.name for run in runs))
    whole = sum(run.seconds for run in runs)
    return (
        f"{experiment.name:16} {len(runs):5} runs {clock(whole):>9}  {experiment.title}: {engines}"
    )


def clock(whole: float) -> str:
    return (
        time.strftime("%H:%M:%S", time.gmtime(whole)) if whole < 86400 else f"{whole / 86400:.1f} d"
    )


def total_seconds(plan: Plan, target: Target) -> float:
    moves = sum(
        a.engine.driver != b.engine.driver for a, b in zip(plan.runs, plan.runs[1:], strict=False)
    )
    moving = moves * MOVE_SECONDS if target.kind == "drive" else 0
    return sum(run.seconds for run in plan.runs) + moving
