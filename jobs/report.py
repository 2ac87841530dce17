#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Makes a report of a sweep: DIR/report/index.html, which is complete in itself, and the same
figures as SVG, PNG and CSV beside it. With --compare, what changed between two sweeps.

  jobs/report.py results/thesis-20260101-120000
  jobs/report.py --compare results/before results/after

Exit status: 0; with --compare 1 when something got slower; 2 for what went wrong.
"""

from __future__ import annotations

import argparse
import base64
import sys
from pathlib import Path

import project_python  # noqa: F401  the rest needs the project's libraries
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from sweeping import figures, frame
from sweeping.definition import SweepError, count

TEMPLATES = Path(__file__).resolve().parent / "templates"


def environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["count"] = lambda value: "" if missing(value) else count(value)
    made.filters["fixed"] = lambda value, digits=1: "" if missing(value) else f"{value:,.{digits}f}"
    made.filters["percent"] = lambda value: "" if missing(value) else f"{value * 100:.0f} %"
    made.filters["axis"] = lambda value, key: figures.tick_text(key, value)
    made.filters["data_uri"] = data_uri
    made.globals["axis_name"] = lambda key: figures.AXES.get(key) or key
    return made


def missing(value: float | None) -> bool:
    return value is None or value != value


def data_uri(svg: Path) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(svg.read_bytes()).decode()


def report(results: frame.Results, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    sections, absent = [], []
    for experiment in results.sweep.experiments:
        if results.of(experiment).empty:
            continue
        drawn = []
        for entry in experiment.figures:
            figure = figures.draw(results, experiment, entry, folder)
            if figure:
                drawn.append(figure)
            else:
                absent.append(entry["title"])
        sections.append(
            {"experiment": experiment, "figures": drawn, "rows": frame.table(results, experiment)}
        )
    results.runs.drop(columns="path").to_csv(folder / "results.csv", index=False)
    html = environment().get_template("report.html").render(
        results=results,
        sections=sections,
        absent=absent,
        datasheet=frame.datasheet(results),
        repeats=int(results.runs["repeat"].max()),
        points=len(results.state["points"]),
        done=len(results.runs),
    )  # fmt: skip
    path = folder / "index.html"
    path.write_text(html)
    return path


def compare(old: frame.Results, new: frame.Results, tolerance: float, folder: Path) -> int:
    rows = frame.compare(old, new, tolerance)
    if not rows:
        raise SweepError(f"{old.folder} and {new.folder} have no point in common")
    folder.mkdir(parents=True, exist_ok=True)
    html = environment().get_template("compare.html").render(
        old=old, new=new, rows=rows, tolerance=tolerance
    )  # fmt: skip
    (folder / "compare.html").write_text(html)
    changed = [row for row in rows if row["verdict"] != "same"]
    for row in sorted(changed, key=lambda r: r["ratio"]):
        axes = " ".join(f"{key}={value}" for key, value in row["axes"].items())
        print(f"{row['verdict']}: {row['experiment']} {row['engine']} {axes}: "
              f"{count(row['old'])} to {count(row['new'])} "
              f"({row['ratio']:.2f}x)")  # fmt: skip
    slower = [row for row in changed if row["verdict"] == "slower"]
    print(f"{len(rows)} points, {len(slower)} slower, {len(changed) - len(slower)} faster; "
          f"{folder / 'compare.html'}")  # fmt: skip
    return 1 if slower else 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", nargs="?", type=Path, metavar="DIR", help="a sweep's results")
    parser.add_argument("--compare", nargs=2, type=Path, metavar=("OLD", "NEW"),
                        help="two sweeps' results, point by point")  # fmt: skip
    parser.add_argument("--baseline", default="", metavar="ENGINE", help="what ratios refer to")
    parser.add_argument("--drive", default="", help="compare with this drive's data sheet")
    parser.add_argument("--tolerance", type=float, default=0.1, metavar="SHARE",
                        help="with --compare: less than this is no change (%(default)s)")  # fmt: skip
    parser.add_argument("--out", type=Path, metavar="DIR", help="where it goes (DIR/report)")
    arguments = parser.parse_args()
    if bool(arguments.folder) == bool(arguments.compare):
        parser.error("give a folder, or --compare OLD NEW")
    try:
        if arguments.compare:
            old, new = (frame.load(folder, arguments.baseline) for folder in arguments.compare)
            out = arguments.out or new.folder / "report"
            return compare(old, new, arguments.tolerance, out)
        results = frame.load(arguments.folder, arguments.baseline, arguments.drive)
        print(f"report: {report(results, arguments.out or results.folder / 'report')}")
    except SweepError as error:
        print(f"vroom: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
