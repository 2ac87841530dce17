# SPDX-License-Identifier: BSD-3-Clause
"""Plots of a sweep's figures. An engine looks the same in all of them: colour, marker, dashes and
hatch, so that they can be told apart in print and by everybody.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt  # noqa: E402
import pandas as pd  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter  # noqa: E402

from . import tools  # noqa: E402
from .definition import Experiment, count, size_bytes  # noqa: E402
from .frame import Results, limits_of, medians, plateau_of, with_speedup  # noqa: E402

# What a figure is called on an axis, and what it is divided by for that unit.
UNITS = {
    "iops": ("IOPS", 1),
    "bw": ("throughput (MB/s)", 1e6),
    "lat_mean": ("mean latency (µs)", 1e3),
    "loop_time": ("time of a run (ms)", 1e6),
    "seconds": ("time (s)", 1),
    "cpu": ("processor use (% of one)", 1),
    "speedup": ("speedup", 1),
}
AXES = {
    "iodepth": "I/O depth",
    "numjobs": "jobs",
    "bs": "block size",
    "rwmixread": "reads (%)",
    "rw": "",
    "direct": "",
    "blocks": "blocks",
    "files": "files",
    "size": "file size",
    "engine": "",
    "workload": "",
}
LINEAR = {"rwmixread"}
WORKLOADS = {
    "read": "sequential read",
    "write": "sequential write",
    "randread": "random read",
    "randwrite": "random write",
    "randrw": "mixed",
}
# For series that are no engines (Okabe and Ito), and for the second part of a name.
COLORS = ["#D55E00", "#0072B2", "#009E73", "#E69F00", "#56B4E9", "#CC79A7", "#000000"]
DASHES = [[], [5, 2], [1, 1], [5, 1, 1, 1]]

plt.rcParams.update(
    {
        "figure.figsize": (7.5, 4.2),
        "figure.constrained_layout.use": True,
        "font.size": 10,
        "font.family": "sans-serif",
        "axes.grid": True,
        "axes.axisbelow": True,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "grid.color": "#dddddd",
        "hatch.linewidth": 0.6,
        "svg.fonttype": "none",
        "svg.hashsalt": "vroom",
    }
)


@dataclass
class Figure:
    """A figure that was drawn: files beside each other, NAME.svg, NAME.png, NAME.csv."""

    name: str
    title: str
    seed: str
    alt: str
    svg: Path


@dataclass
class Series:
    """What is drawn in one colour: POINTS has x, median, low, high."""

    label: str
    engine: str
    style: dict
    points: pd.DataFrame


def draw(results: Results, experiment: Experiment, entry: dict, folder: Path) -> Figure | None:
    """None where there is nothing to be drawn: no engine of the figure could run."""
    runs = select(results, experiment, entry)
    if runs.empty:
        return None
    fig, ax = plt.subplots()
    kind: Callable = {"bars": bars, "lines": lines, "time": over_time, "ccdf": tail}[entry["kind"]]
    data = kind(ax, results, experiment, entry, runs)
    if data is None or data.empty:
        plt.close(fig)
        return None
    if entry["kind"] != "ccdf":
        ax.set_ylim(bottom=0)
    handles, labels = ax.get_legend_handles_labels()
    if handles:
        columns = 4 if len("".join(labels)) < 60 else 2
        columns = min(columns, len(labels))
        fig.legend(handles, labels, loc="outside upper center", ncols=columns, frameon=False)
    name = entry["name"]
    data.to_csv(folder / f"{name}.csv", index=False)
    fig.savefig(folder / f"{name}.svg", metadata={"Date": None, "Title": entry["title"]})
    fig.savefig(folder / f"{name}.png", dpi=150)
    plt.close(fig)
    series = ", ".join(labels) or results.label(runs["engine"].iloc[0])
    alt = f"{entry['title']}: {series}. The numbers are in {name}.csv."
    return Figure(name, entry["title"], entry.get("seed", ""), alt, folder / f"{name}.svg")


def select(results: Results, experiment: Experiment, entry: dict) -> pd.DataFrame:
    """The runs that a figure is about."""
    names = [experiment.name, *entry.get("also", [])]
    runs = results.runs[results.runs["experiment"].isin(names)]
    order = [*experiment.engines, *set(runs["engine"])]
    runs = runs.sort_values("engine", key=lambda e: e.map(order.index), kind="stable")
    for key, values in entry.get("where", {}).items():
        runs = runs[runs[key].isin(values)]
    return runs


def as_list(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


def collect(
    results: Results, experiment: Experiment, entry: dict, runs: pd.DataFrame
) -> list[Series]:
    """The figure's series, in the order of the experiment's engines."""
    x, wanted = entry["x"], as_list(entry["y"])
    by = entry.get("series", ["engine"])
    if "speedup" in wanted:
        runs = with_speedup(runs, results.axes(experiment.name), results.baseline)
    found: list[Series] = []
    order = {name: i for i, name in enumerate(experiment.engines)}
    for figure in wanted:
        if figure not in runs:
            continue
        table = medians(runs, [*dict.fromkeys([*by, "engine", x])], figure)
        for key, points in table.groupby(by, sort=False):
            parts = dict(zip(by, key, strict=True))
            parts["engine"] = points["engine"].iloc[0]
            if len(wanted) > 1:
                parts["figure"] = figure.split("_")[0]
            found.append(named(results, parts, points, by))
    found.sort(key=lambda s: order.get(s.engine, 0))
    return with_styles(results, found)


def named(results: Results, parts: dict, points: pd.DataFrame, by: list[str]) -> Series:
    """Labels without what all series share are for the caller to shorten; here all is said."""
    words = [results.label(parts["engine"])] if "engine" in by else []
    words += [value_text(key, parts[key]) for key in by if key != "engine"]
    if "figure" in parts:
        words.append(f"{parts['figure']}s")
    return Series(", ".join(words), parts["engine"], {}, points)


def with_styles(results: Results, found: list[Series]) -> list[Series]:
    seen: dict[str, int] = defaultdict(int)
    several = len({series.engine for series in found}) < len(found)
    single = len({series.engine for series in found}) == 1 and several
    for number, series in enumerate(found):
        engine = results.engines[series.engine]
        turn = seen[series.engine]
        seen[series.engine] += 1
        series.style = {
            "color": COLORS[number % len(COLORS)] if single else engine.color,
            "marker": engine.marker,
            "dashes": DASHES[turn % len(DASHES)] if several else engine.dash,
            "hatch": engine.hatch + ("" if turn == 0 else "...."[: 2 * turn]),
            "hollow": turn > 0,
        }
    return found


def value_text(key: str, value: object) -> str:
    if key in ("bs", "size"):
        return f"{str(value)[:-1]} {str(value)[-1].upper()}iB"
    if key == "direct":
        return "direct" if value else "buffered"
    if key == "rw":
        return WORKLOADS.get(str(value), str(value))
    if key in ("workload", "engine"):
        return str(value)
    return f"{value:.0f} {AXES[key]}".strip()


def tick_text(key: str, value: object) -> str:
    if isinstance(value, float) and value == int(value):
        value = int(value)  # a column that other experiments leave empty
    return value_text(key, value) if key in ("bs", "size", "direct", "rw") else str(value)


def plain_text(value: float) -> str:
    """3500 as 3,500."""
    return f"{value:,.0f}" if abs(value) >= 10 or value == int(value) else f"{value:.3g}"


def formatter(figure: str) -> Callable[[float], str]:
    return count if figure.endswith("iops") else plain_text


def ticks_by(text: Callable[[float], str]) -> FuncFormatter:
    return FuncFormatter(lambda value, _position: text(value))


def label_axes(ax: Axes, x: str, y: str | list[str]) -> float:
    """Names the axes with their units; the divisor of y."""
    figure = as_list(y)[0]
    bare = figure.removeprefix("read_").removeprefix("write_")
    text, unit = UNITS[bare]
    ax.set_xlabel(AXES[x])
    ax.set_ylabel(text)
    ax.yaxis.set_major_formatter(ticks_by(formatter(bare)))
    return unit


def numbered(key: str, values: list) -> list[float]:
    return [float(size_bytes(v)) if key in ("bs", "size") else float(v) for v in values]


def to_table(entry: dict, series: list[Series]) -> pd.DataFrame:
    """What is drawn, as it goes into the CSV file, in base units."""
    parts = [s.points.assign(series=s.label) for s in series]
    return pd.concat(parts)[["series", "engine", entry["x"], "median", "low", "high", "count"]]


# --- kinds ---------------------------------------------------------------------------------------------


def bars(ax: Axes, results: Results, experiment: Experiment, entry: dict, runs: pd.DataFrame):
    series = collect(results, experiment, entry, runs)
    if not series:
        return None
    x = entry["x"]
    groups = list(dict.fromkeys(value for s in series for value in s.points[x]))
    if x == "iodepth":
        groups.sort()
    unit = label_axes(ax, x, entry["y"])
    width = 0.8 / len(series)
    for number, one in enumerate(series):
        place = {
            value: i + (number - (len(series) - 1) / 2) * width for i, value in enumerate(groups)
        }
        at = [place[value] for value in one.points[x]]
        height = one.points["median"] / unit
        error = [height - one.points["low"] / unit, one.points["high"] / unit - height]
        drawn = ax.bar(at, height, width * 0.92, label=one.label, color=one.style["color"],
                       edgecolor="#333333", linewidth=0.6, hatch=one.style["hatch"])  # fmt: skip
        if (one.points["count"] > 1).any():
            ax.errorbar(at, height, error, fmt="none", ecolor="#222222", capsize=2, linewidth=1)
        if len(series) * len(groups) <= 12:
            texts = [formatter(as_list(entry["y"])[0])(value) for value in height]
            behind = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.8}
            ax.bar_label(drawn, texts, padding=3, fontsize=8, bbox=behind, zorder=4)
    ax.set_xticks(range(len(groups)), [tick_text(x, value) for value in groups])
    ax.grid(axis="x", visible=False)
    constant = runs.iloc[0].to_dict()
    if entry.get("limits") == "point":
        for place, value in enumerate(groups):
            found = limits_of(results.drive, constant | {x: value}, entry["y"])
            draw_limits(ax, found, entry["y"], unit, (place - 0.45, place + 0.45))
    elif entry.get("limits") == "plateau":
        draw_limits(ax, plateau_of(results.drive, constant, entry["y"]), entry["y"], unit)
    ax.margins(y=0.12)
    return to_table(entry, series)


def draw_limits(ax: Axes, limits: list[dict], figure: str, unit: float, span=None) -> None:
    """The data sheet's word as a dashed line, over all of the figure or over SPAN."""
    for limit in limits:
        height = limit[figure] / unit
        style = {"color": "#222222", "linestyle": (0, (6, 3)), "linewidth": 1.2}
        label = None if "data sheet" in ax.get_legend_handles_labels()[1] else "data sheet"
        if span:
            ax.plot(span, [height, height], label=label, **style)
        else:
            ax.axhline(height, label=label, **style)


def lines(ax: Axes, results: Results, experiment: Experiment, entry: dict, runs: pd.DataFrame):
    series = collect(results, experiment, entry, runs)
    if not series:
        return None
    x = entry["x"]
    unit = label_axes(ax, x, entry["y"])
    ticks = sorted({v for s in series for v in s.points[x]}, key=lambda v: numbered(x, [v])[0])
    for one in series:
        points = one.points.assign(at=numbered(x, list(one.points[x]))).sort_values("at")
        height = points["median"] / unit
        error = [height - points["low"] / unit, points["high"] / unit - height]
        style = one.style
        [line] = ax.plot(points["at"], height, label=one.label, color=style["color"],
                         marker=style["marker"], markersize=6,
                         markerfacecolor="white" if style["hollow"] else style["color"])  # fmt: skip
        if style["dashes"]:
            line.set_dashes(style["dashes"])
        if (points["count"] > 1).any():
            ax.errorbar(points["at"], height, error, fmt="none", ecolor=style["color"], capsize=3)
    if x not in LINEAR:
        ax.set_xscale("log", base=2)
    ax.set_xticks(numbered(x, ticks), [tick_text(x, value) for value in ticks])
    ax.minorticks_off()
    if entry.get("limits") == "plateau":
        limits = plateau_of(results.drive, runs.iloc[0].to_dict(), entry["y"])
        draw_limits(ax, limits, entry["y"], unit)
    if entry["y"] == "speedup":
        ax.axhline(1, color="#222222", linewidth=1)
        ax.set_ylabel(f"speedup over {results.label(results.baseline)}")
    return to_table(entry, series)


def over_time(ax: Axes, results: Results, experiment: Experiment, entry: dict, runs: pd.DataFrame):
    by = entry.get("series", ["engine"])
    rows = []
    for number, (key, group) in enumerate(runs.groupby(by, sort=False)):
        slots: dict[float, list[float]] = defaultdict(list)
        for path in group["path"]:
            for when, iops in tools.iops_over_time(path):
                slots[when].append(iops)
        parts = zip(by, key, strict=True)
        label = ", ".join(results.label(v) if k == "engine" else value_text(k, v) for k, v in parts)
        engine = results.engines[group["engine"].iloc[0]]
        values = [(when, statistics.median(found)) for when, found in sorted(slots.items())]
        if not values:
            continue  # too short for an entry
        [line] = ax.plot(*zip(*values, strict=True), label=label, linewidth=1.6,
                         color=engine.color if by == ["engine"] else COLORS[number])  # fmt: skip
        if by == ["engine"] and engine.dash:
            line.set_dashes(engine.dash)
        rows += [{"series": label, "seconds": when, "iops": iops} for when, iops in values]
    ax.set_xlabel("time (s)")
    ax.set_ylabel("IOPS")
    ax.yaxis.set_major_formatter(ticks_by(count))
    return pd.DataFrame(rows)


def tail(ax: Axes, results: Results, experiment: Experiment, entry: dict, runs: pd.DataFrame):
    rows = []
    for name in experiment.engines:
        mine = runs[(runs["engine"] == name) & (runs["tool"] == "fio")]
        if mine.empty:
            continue
        curve = tools.ccdf(list(mine["path"]))
        engine = results.engines[name]
        above = [(latency / 1000, share) for latency, share in curve if share > 0]
        if not above:
            continue
        [line] = ax.plot(*zip(*above, strict=True), label=engine.label, color=engine.color,
                         drawstyle="steps-post", linewidth=1.6)  # fmt: skip
        if engine.dash:
            line.set_dashes(engine.dash)
        rows += [{"series": engine.label, "latency_ns": ns, "share_above": s} for ns, s in curve]
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlabel("latency (µs)")
    ax.set_ylabel("share of I/Os that take longer")
    ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.xaxis.set_major_formatter(ticks_by(plain_text))
    ax.xaxis.set_minor_formatter(NullFormatter())
    return pd.DataFrame(rows)
