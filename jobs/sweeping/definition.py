# SPDX-License-Identifier: BSD-3-Clause
"""A sweep as it stands in jobs/sweeps/NAME.toml, and the points that it is made of."""

from __future__ import annotations

import itertools
import os
import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

JOBS = Path(__file__).resolve().parent.parent
ROOT = JOBS.parent
SWEEPS = JOBS / "sweeps"
DRIVES = JOBS / "drives"

FIGURE_KINDS = {"bars", "lines", "time", "ccdf"}
LIMITS = {"point", "plateau"}  # the data sheet's, for just such a point or for the workload
PRECONDITIONS = {"auto", "none"}
WRITES = {"write", "randwrite"}  # on a cleared drive; mixes and reads on a written one


class SweepError(Exception):
    """One line: what is wrong, and what to do."""


@dataclass(frozen=True)
class Engine:
    """An entry of engines.toml."""

    name: str
    label: str
    driver: str
    color: str
    marker: str
    dash: list[int]
    hatch: str
    ioengine: str = ""
    tool: str = "fio"
    options: dict = field(default_factory=dict)
    filename: str = ""
    max_depth: int = 0
    direct: int | None = None
    optional: bool = False
    extra: bool = False

    @property
    def fio_name(self) -> str:
        """ioengine= of a job."""
        if self.ioengine == "vroom":
            return f"external:{ROOT / 'build' / 'vroom.so'}"
        return os.path.expandvars(self.ioengine)


@dataclass(frozen=True)
class Point:
    """One engine with one set of options; measured as often as --repeat says."""

    experiment: str
    engine: str
    options: dict  # all of them
    axes: dict  # those that vary
    log: bool
    precondition: str

    @property
    def writes(self) -> bool:
        return self.options.get("rw", "read") not in ("read", "randread") or (
            self.options.get("workload", "read") != "read"
        )

    @property
    def phase(self) -> str:
        """What the drive must hold: "written", "cleared", or "" for whatever is there."""
        if self.precondition == "none":
            return ""
        return "cleared" if self.options.get("rw") in WRITES else "written"

    def path(self, repeat: int) -> str:
        """Where results go: folders that fio-plot reads, logs named as it wants them."""
        named = ("rw", "iodepth", "numjobs")
        more = "-".join(f"{k}-{v}" for k, v in self.axes.items() if k not in named)
        folder = f"{self.experiment}/run{repeat}/{self.engine}" + (f"/{more}" if more else "")
        rw, depth, jobs = (self.options.get(k, 1) for k in named)
        kind = rw if isinstance(rw, str) else self.options.get("workload", "read")
        return f"{folder}/{kind}-iodepth-{depth}-numjobs-{jobs}"


@dataclass(frozen=True)
class Experiment:
    name: str
    title: str
    engines: list[str]
    options: dict
    vary: dict
    figures: list[dict]
    log: bool
    precondition: str

    def points(self, engines: dict[str, Engine]) -> list[list[Point]]:
        """Groups of points that differ in the engine only."""
        groups = []
        for values in itertools.product(*self.vary.values()):
            axes = dict(zip(self.vary, values, strict=True))
            group = []
            for engine in (engines[name] for name in self.engines):
                options = self.options | axes
                if engine.max_depth and "iodepth" not in axes:
                    options |= {"iodepth": engine.max_depth}  # depth is not what this compares
                if fits(engine, options):
                    group.append(
                        Point(self.name, engine.name, options, axes, self.log, self.precondition)
                    )
            groups.append(group)
        return [group for group in groups if group]


@dataclass(frozen=True)
class Sweep:
    name: str
    title: str
    source: str
    about: str
    baseline: str
    runtime: str  # a point's, unless its experiment has one of its own
    experiments: list[Experiment]


def fits(engine: Engine, options: dict) -> bool:
    """Can the engine do such a point at all?"""
    if engine.max_depth and options.get("iodepth", 1) > engine.max_depth:
        return False
    return engine.direct is None or options.get("direct", 0) == 1


def load_engines() -> dict[str, Engine]:
    with open(JOBS / "engines.toml", "rb") as file:
        return {name: Engine(name=name, **entry) for name, entry in tomllib.load(file).items()}


def load_drive(name: str) -> dict:
    path = DRIVES / f"{name}.toml" if "/" not in name else Path(name)
    return read_toml(path, f"no drive {name}; there are: {', '.join(names(DRIVES))}")


def find_drive(model: str) -> dict | None:
    """The drive whose model Identify Controller gave."""
    for name in names(DRIVES):
        drive = load_drive(name)
        if drive["model"] == model:
            return drive
    return None


def names(folder: Path) -> list[str]:
    return sorted(path.stem for path in folder.glob("*.toml"))


def read_toml(path: Path, missing: str) -> dict:
    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except FileNotFoundError:
        raise SweepError(missing) from None
    except tomllib.TOMLDecodeError as error:
        raise SweepError(f"{path}: {error}") from None


def merge(base: dict, over: dict) -> dict:
    """OVER's entries replace BASE's, table by table."""
    merged = dict(base)
    for key, value in over.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = merge(merged[key], value) if both else value
    return merged


def load_sweep(name: str, paper: bool = False, path: Path | None = None) -> Sweep:
    """The sweep NAME, with the document's own run times if PAPER; from PATH if given."""
    path = path or (Path(name) if name.endswith(".toml") else SWEEPS / f"{name}.toml")
    text = read_toml(path, f"no sweep {name}; there are: {', '.join(names(SWEEPS))}")
    if paper:
        text = merge(text, text.get("paper", {}))
    try:
        sweep = Sweep(
            name=path.stem if name.endswith(".toml") else name,
            title=text["title"],
            source=text["source"],
            about=" ".join(text["about"].split()),
            baseline=text["baseline"],
            runtime=text.get("options", {}).get("runtime", "1s"),
            experiments=[load_experiment(text, e, paper) for e in text["experiment"]],
        )
    except KeyError as error:
        raise SweepError(f"{path}: {error} is missing") from None
    check(sweep, path)
    return sweep


def load_experiment(text: dict, entry: dict, paper: bool) -> Experiment:
    if paper:
        entry = merge(entry, entry.get("paper", {}))
    inherited = text.get("options", {}) if entry.get("inherit", True) else {}
    return Experiment(
        name=entry["name"],
        title=entry["title"],
        engines=entry["engines"],
        options=inherited | entry.get("options", {}),
        vary=entry.get("vary", {}),
        figures=entry.get("figure", []),
        log=entry.get("log", False),
        precondition=entry.get("precondition", "auto"),
    )


def check(sweep: Sweep, path: Path) -> None:
    """Says what is wrong in the file, before hours of work hang on it."""
    engines = load_engines()
    seen = set()
    for experiment in sweep.experiments:
        where = f"{path}: experiment {experiment.name}"
        for name in experiment.engines:
            if name not in engines:
                raise SweepError(f"{where}: no engine {name}; there are: {', '.join(engines)}")
        if experiment.precondition not in PRECONDITIONS:
            raise SweepError(f"{where}: precondition is auto or none")
        if experiment.name in seen or not re.fullmatch(r"[\w-]+", experiment.name):
            raise SweepError(f"{where}: the name must be a word, and no other's")
        seen.add(experiment.name)
        for figure in experiment.figures:
            if figure.get("limits", "point") not in LIMITS:
                raise SweepError(f"{where}: limits is point or plateau")
            if figure["kind"] not in FIGURE_KINDS:
                kinds = ", ".join(sorted(FIGURE_KINDS))
                raise SweepError(f"{where}: {figure['kind']} is no kind of figure: {kinds}")


def seconds(text: object) -> float:
    """A fio run time ("200ms", "1s", 900) in seconds; 0 where there is none."""
    match = re.fullmatch(r"([\d.]+)(us|ms|s|m|h)?", str(text or 0))
    if not match:
        raise SweepError(f"{text}: is no run time; write 500ms, 10s, 5m")
    unit = {"us": 1e-6, "ms": 1e-3, "s": 1, "m": 60, "h": 3600, None: 1}[match[2]]
    return float(match[1]) * unit


def size_bytes(text: object) -> int:
    """A size ("4k", "1g", 4096) in bytes."""
    match = re.fullmatch(r"(\d+)([kmgt]?)i?b?", str(text).lower())
    if not match:
        raise SweepError(f"{text}: is no size; write 4k, 256m, 1g")
    return int(match[1]) << 10 * " kmgt".index(match[2] or " ")


def count(value: float) -> str:
    """600000 as 600k."""
    for factor, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            return f"{value / factor:.3g}{unit}"
    return f"{value:.3g}"
