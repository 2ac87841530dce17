#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Runs a sweep over engines on a file, an NVMe drive or an emulated one; see docs/experiments.md.

jobs/sweep.py list
jobs/sweep.py show thesis --target /dev/nvme0n1
jobs/sweep.py run thesis --target /dev/nvme0n1 --destroy-data SERIAL --repeat 3
jobs/sweep.py run profile --emulate samsung-970-evo-plus-1tb
jobs/sweep.py resume results/thesis-20260101-120000
jobs/report.py results/thesis-20260101-120000
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from pathlib import Path

import project_python  # noqa: F401  the rest needs the project's libraries
from sweeping import runner, terminal
from sweeping.definition import DRIVES, SWEEPS, SweepError, load_sweep, names
from sweeping.runner import Settings


def list_sweeps(_arguments: argparse.Namespace) -> int:
    for name in names(SWEEPS):
        sweep = load_sweep(name)
        print(f"{name:12} {sweep.title}\n{'':12} {sweep.source}")
    print(f"\ndrives for --emulate and --drive: {', '.join(names(DRIVES))}")
    return 0


def show(arguments: argparse.Namespace) -> int:
    """What `run` would do; nothing is touched but looked at."""
    settings = settings_of(arguments)
    sweep = load_sweep(settings.sweep, settings.paper)
    target = runner.look_only(settings)
    plan = runner.make_plan(sweep, settings, target)
    print(f"{sweep.title}\n{sweep.source}\n\n{sweep.about}\n")
    for experiment in sweep.experiments:
        runs = [run for run in plan.runs if run.point.experiment == experiment.name]
        if runs:
            print(runner.describe(experiment, runs))
            if arguments.points:
                for run in runs:
                    print(f"    {run} run {run.repeat}")
    print(f"{'in all':16} {len(plan.runs):5} runs "
          f"{runner.clock(runner.total_seconds(plan, target)):>9}  on {target.address}")  # fmt: skip
    before = runner.preconditions(plan, target)
    print(f"written: {', '.join(before) or ('by points' if runner.writes(plan, target) else 'no')}")
    for entry in plan.left_out:
        print(f"left out: {entry['engine']}, {entry['what']}: {entry['why']}")
    return 0


def settings_of(arguments: argparse.Namespace) -> Settings:
    known = Settings.__dataclass_fields__
    given = {key: value for key, value in vars(arguments).items() if key in known}
    return Settings(**given | {"fio": dict(arguments.fio)})


def run(arguments: argparse.Namespace) -> int:
    settings = settings_of(arguments)
    name = Path(settings.sweep).stem
    folder = arguments.out or Path("results") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    load_sweep(settings.sweep, settings.paper)  # a mistake in it leaves no folder
    runner.open_folder(folder, settings)
    return finish(folder, settings)


def resume(arguments: argparse.Namespace) -> int:
    folder = arguments.folder
    try:
        settings = Settings(**json.loads((folder / "run.json").read_text())["settings"])
    except FileNotFoundError:
        raise SweepError(f"{folder}: is no sweep's folder: it has no run.json") from None
    return finish(folder, settings, resumed=True)


def finish(folder: Path, settings: Settings, resumed: bool = False) -> int:
    try:
        done = runner.start(folder.resolve(), settings, resumed)
    except KeyboardInterrupt:
        print(f"stopped; go on with: jobs/sweep.py resume {folder}", file=sys.stderr)
        return 130
    except SweepError:
        runner.remove_if_empty(folder)
        raise
    print(terminal.table(done))
    for line in terminal.notes(done):
        print(f"note: {line}", file=sys.stderr)
    print(f"results: {folder}; report: jobs/report.py {folder}")
    if done.failed:
        print(f"vroom: {len(done.failed)} points failed; try them again: "
              f"jobs/sweep.py resume {folder}", file=sys.stderr)  # fmt: skip
    return 1 if done.failed else 0


def add_choice(parser: argparse.ArgumentParser) -> None:
    def words(text: str) -> list[str]:
        return [word for word in text.split(",") if word]

    parser.add_argument("sweep", help="a name that `list` shows, or a TOML file")
    parser.add_argument("--target", default="", metavar="ADDR",
                        help="a file, /dev/nvme0n1, a PCI address, emu-mem ... (docs/addresses.md); "
                        "none: a file in the folder of results")  # fmt: skip
    parser.add_argument("--emulate", default="", metavar="DRIVE[,OPTION=VALUE...]",
                        help="instead: a controller with this drive's timing (jobs/drives/)")  # fmt: skip
    parser.add_argument("--drive", default="", metavar="DRIVE",
                        help="compare with this drive's data sheet (found by its model)")  # fmt: skip
    parser.add_argument("--engines", type=words, default=[], metavar="A,B",
                        help="of the sweep's engines, only these")  # fmt: skip
    parser.add_argument("--experiments", type=words, default=[], metavar="A,B",
                        help="of its experiments, only these")  # fmt: skip
    parser.add_argument("--repeat", type=positive, default=1, metavar="N",
                        help="runs of each point; medians and spread are reported (%(default)s)")  # fmt: skip
    parser.add_argument("--runtime", default="", metavar="TIME",
                        help="of a point, instead of the sweep's: 500ms, 10s, 5m")  # fmt: skip
    parser.add_argument("--size", default="",
                        help="span that is used, instead of the sweep's: 1g, 100%%")  # fmt: skip
    parser.add_argument("--fio", type=option, action="append", default=[], metavar="OPTION=VALUE",
                        help="for all of fio's jobs, with any engine; may be repeated")  # fmt: skip
    parser.add_argument("--paper", action="store_true", help="the document's own run times")
    parser.add_argument("--read-only", action="store_true",
                        help="leave out all that writes, and read what is there")  # fmt: skip
    parser.add_argument("--hosts", nargs="+", default=[], metavar="HOST",
                        help="run on these, where `fio --server` waits; the target is theirs")  # fmt: skip


def option(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    if not name or not value:
        raise ValueError
    return name, value


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError
    return value


def stop(*_signal: object) -> None:
    # Remembered, too: an exception that hits a finalizer is lost.
    runner.stopping.set()
    raise KeyboardInterrupt


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    listing = commands.add_parser("list", help="the sweeps that there are")
    listing.set_defaults(function=list_sweeps)
    showing = commands.add_parser("show", help="what a sweep would do, and how long")
    add_choice(showing)
    showing.add_argument("--points", action="store_true", help="each of them, in order")
    showing.set_defaults(function=show)
    running = commands.add_parser("run", help="run a sweep")
    add_choice(running)
    running.add_argument("--destroy-data", default="", metavar="SERIAL",
                         help="the serial number of the drive whose data may be overwritten")  # fmt: skip
    running.add_argument("--out", type=Path, metavar="DIR", help="where results go (results/...)")
    running.set_defaults(function=run)
    resuming = commands.add_parser("resume", help="go on with a sweep that was stopped")
    resuming.add_argument("folder", type=Path, metavar="DIR")
    resuming.set_defaults(function=resume)
    arguments = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    try:
        return arguments.function(arguments)
    except (SweepError, OSError) as error:
        print(f"vroom: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
