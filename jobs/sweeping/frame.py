# SPDX-License-Identifier: BSD-3-Clause
"""Results of a sweep as tables: every run, medians with their range, ratios, comparisons."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from . import tools
from .definition import (
    Engine,
    Experiment,
    Sweep,
    SweepError,
    find_drive,
    load_drive,
    load_engines,
    load_sweep,
)
from .spread import overlap, relative


@dataclass
class Results:
    folder: Path
    state: dict  # run.json
    environment: list[dict]
    sweep: Sweep
    engines: dict[str, Engine]
    runs: pd.DataFrame  # a row for each run: experiment, engine, repeat, path, axes, figures
    drive: dict | None  # its data sheet
    baseline: str

    def axes(self, experiment: str) -> list[str]:
        return list(next(e for e in self.sweep.experiments if e.name == experiment).vary)

    def of(self, experiment: Experiment) -> pd.DataFrame:
        return self.runs[self.runs["experiment"] == experiment.name]

    def label(self, engine: str) -> str:
        return self.engines[engine].label


def load(folder: Path, baseline: str = "", drive: str = "") -> Results:
    try:
        state = json.loads((folder / "run.json").read_text())
        environment = json.loads((folder / "environment.json").read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        raise SweepError(f"{folder}: is no sweep's folder: no run.json in it") from None
    settings = state["settings"]
    sweep = load_sweep(settings["sweep"], settings["paper"], folder / "sweep.toml")
    rows = []
    for point in state["points"]:
        path = folder / "points" / f"{point['path']}.json"
        if not path.exists():
            continue
        row = {key: point[key] for key in ("experiment", "engine", "repeat", "tool", "log")}
        row |= point["options"] | {"path": path} | tools.metrics(point["tool"], path)
        rows.append(row)
    if not rows:
        raise SweepError(f"{folder}: holds no finished point; jobs/sweep.py resume {folder}")
    runs = pd.DataFrame(rows)
    baseline = baseline or sweep.baseline
    present = set(runs["engine"])
    if baseline not in present:
        baseline = next(name for e in sweep.experiments for name in e.engines if name in present)
    name = drive or settings["drive"] or settings["emulate"].split(",")[0]
    sheet = load_drive(name) if name else find_drive(environment[-1]["model"])
    return Results(
        folder, state, environment, sweep, load_engines(), runs, sheet, baseline
    )  # fmt: skip


def medians(runs: pd.DataFrame, by: list[str], figure: str) -> pd.DataFrame:
    """One row for each combination of BY: median, low, high, count of FIGURE."""
    have = runs.dropna(subset=[figure])
    grouped = have.groupby(by, sort=False, dropna=False)[figure]
    table = grouped.agg(median="median", low="min", high="max", count="count").reset_index()
    return table


def with_speedup(runs: pd.DataFrame, axes: list[str], baseline: str) -> pd.DataFrame:
    """Adds speedup: throughput over the baseline's median at the same point."""
    base = runs[runs["engine"] == baseline].groupby(axes, sort=False)["bw"].median()
    others = runs[runs["engine"] != baseline].copy()
    others["speedup"] = others["bw"] / others[axes].apply(tuple, axis=1).map(
        base.to_dict() if len(axes) > 1 else {(key,): value for key, value in base.items()}
    )
    return others


def rates(runs: pd.DataFrame) -> str:
    """What a comparison of points goes by."""
    return "loop_time" if "loop_time" in runs and runs["loop_time"].notna().all() else "iops"


def table(results: Results, experiment: Experiment) -> list[dict]:
    """Rows for the report: axes, then by engine the median, its spread and the ratio."""
    runs = results.of(experiment)
    axes = results.axes(experiment.name)
    rows = []
    for values, group in runs.groupby(axes, sort=False) if axes else [((), runs)]:
        by_engine = {name: g for name, g in group.groupby("engine", sort=False)}
        base = by_engine.get(results.baseline)
        for name in [e for e in experiment.engines if e in by_engine]:
            mine = by_engine[name]
            iops = list(mine["iops"])
            row = {
                "axes": dict(zip(axes, values, strict=True)),
                "engine": name,
                "runs": len(iops),
                "iops": mine["iops"].median(),
                "spread": relative(iops) if len(iops) > 1 else None,
                "ratio": None,
                "unclear": False,
            }
            for figure in ("bw", "lat_mean", "lat_p99", "cpu"):
                row[figure] = mine[figure].median() if figure in mine else None
            if base is not None and name != results.baseline:
                row["ratio"] = row["iops"] / base["iops"].median()
                row["unclear"] = min(len(iops), len(base)) > 1 and overlap(iops, list(base["iops"]))
            rows.append(row)
    return rows


def limits_of(
    drive: dict | None, point: dict, figure: str, keys: tuple = ("rw", "bs", "iodepth", "numjobs")
) -> list[dict]:
    """The data sheet's entries for such a point: what they say of KEYS is true of it."""
    if not drive or figure not in ("iops", "bw"):
        return []
    return [
        limit
        for limit in drive["limit"]
        if figure in limit and all(k not in limit or limit[k] == point.get(k) for k in keys)
    ]


def plateau_of(drive: dict | None, point: dict, figure: str) -> list[dict]:
    """The largest of the data sheet's entries for such a workload, at whatever depth."""
    found = limits_of(drive, point, figure, ("rw", "bs"))
    return sorted(found, key=lambda limit: limit[figure])[-1:]


def datasheet(results: Results) -> list[dict]:
    """Each entry of the data sheet beside the best median of each engine at such points."""
    rows = []
    for limit in (results.drive or {}).get("limit", []):
        figure = "iops" if "iops" in limit else "bw"
        mine = results.runs
        for key in ("rw", "bs", "iodepth", "numjobs"):
            if key in limit and key in mine:
                mine = mine[mine[key] == limit[key]]
            elif key in limit:
                mine = mine.iloc[:0]
        best: dict[str, float] = {}
        if len(mine):
            keys = [k for k in ("engine", "bs", "iodepth", "numjobs", "experiment") if k in mine]
            for row in medians(mine, keys, figure).itertuples():
                best[row.engine] = max(best.get(row.engine, 0), row.median)
        rows.append(
            {"label": limit["label"], "figure": figure, "limit": limit[figure]} | {"best": best}
        )
    return rows


def compare(old: Results, new: Results, tolerance: float) -> list[dict]:
    """The points that both have. `verdict` is "slower", "faster" or "same"."""
    rows = []
    for experiment in new.sweep.experiments:
        by = ["engine", *new.axes(experiment.name)]
        before, after = old.of(experiment), new.of(experiment)
        if before.empty or after.empty or any(key not in before for key in by):
            continue
        figure = rates(after)
        sign = -1 if figure == "loop_time" else 1  # less time is more
        groups = {key: list(g[figure]) for key, g in before.groupby(by, sort=False)}
        for key, group in after.groupby(by, sort=False):
            if key not in groups:
                continue
            was, now = pd.Series(groups[key]), pd.Series(list(group[figure]))
            ratio = (now.median() / was.median()) ** sign
            clear = abs(ratio - 1) > tolerance and not overlap(list(was), list(now))
            rows.append(
                {
                    "experiment": experiment.name,
                    "engine": key[0],
                    "axes": dict(zip(by[1:], key[1:], strict=True)),
                    "figure": figure,
                    "old": was.median(),
                    "new": now.median(),
                    "ratio": ratio,
                    "verdict": "same" if not clear else "faster" if ratio > 1 else "slower",
                }
            )
    return rows
