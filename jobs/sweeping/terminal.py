# SPDX-License-Identifier: BSD-3-Clause
"""What a sweep prints when it is done: medians, ratios, and what the repeats leave open."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from . import tools
from .definition import count
from .runner import Planned, Runner
from .spread import overlap

COLUMNS = ("IOPS", "ratio", "mean us", "p99 us", "CPU %")


def by_point(runner: Runner) -> Iterator[tuple[str, dict[str, list[dict[str, float]]]]]:
    """("experiment axes", {engine: [figures of each repeat]}), in the order of the sweep."""
    found: dict[str, dict[str, list[dict[str, float]]]] = {}
    order = [name for e in runner.sweep.experiments for name in e.engines]
    for run in runner.plan.runs:
        if runner.is_done(run):
            figures = tools.metrics(run.engine.tool, runner.file(run).with_suffix(".json"))
            found.setdefault(name_of(run), {}).setdefault(run.engine.name, []).append(figures)
    for point, engines in found.items():
        yield point, dict(sorted(engines.items(), key=lambda item: order.index(item[0])))


def name_of(run: Planned) -> str:
    return f"{run.point.experiment} {run.axes}".rstrip()


def table(runner: Runner) -> str:
    """Medians of all points; ratios are to the sweep's baseline, or the first engine."""
    lines = [" " * 58 + "".join(f"{name:>11}" for name in COLUMNS)]
    for point, engines in by_point(runner):
        base = engines.get(runner.sweep.baseline) or next(iter(engines.values()))
        for number, (name, repeats) in enumerate(engines.items()):

            def median(figure: str, repeats: list = repeats) -> float | None:
                values = [figures[figure] for figures in repeats if figure in figures]
                return statistics.median(values) if values else None

            ratio = median("iops") / statistics.median(f["iops"] for f in base)
            latency = [median(figure) for figure in ("lat_mean", "lat_p99")]
            cells = [f"{median('iops'):,.0f}", f"{ratio:.2f}"]
            cells += ["" if ns is None else f"{ns / 1000:.1f}" for ns in latency]
            cells += ["" if median("cpu") is None else f"{median('cpu'):.0f}"]
            head = "" if number else point
            lines.append(f"{head:44}{name:14}" + "".join(f"{cell:>11}" for cell in cells))
    return "\n".join(lines)


def notes(runner: Runner) -> list[str]:
    """What a reader of the table must know: the spread, and what is not in it."""
    lines = []
    if runner.settings.repeat == 1:
        lines.append("one run of each point: nothing is known of the spread; --repeat 3 tells")
    else:
        lines += unclear(runner)
    for entry in runner.plan.left_out:
        lines.append(f"left out: {entry['engine']}, {entry['what']}: {entry['why']}")
    return lines


def unclear(runner: Runner) -> list[str]:
    """Comparisons with the baseline that the repeats do not decide."""
    lines = []
    for point, engines in by_point(runner):
        ranges = {name: [f["iops"] for f in repeats] for name, repeats in engines.items()}
        base = ranges.pop(runner.sweep.baseline, None)
        for name, values in ranges.items():
            if base and overlap(values, base):
                lines.append(
                    f"{point}: {name} ({spread(values)}) and {runner.sweep.baseline} "
                    f"({spread(base)}) cannot be told apart"
                )
    return lines


def spread(values: list[float]) -> str:
    return f"{count(min(values))} to {count(max(values))}"
