# SPDX-License-Identifier: BSD-3-Clause
"""Sweeps and reports, through their commands; figures are checked against fio's own output."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import time
import tomllib
from html import unescape
from pathlib import Path

import pytest
from conftest import MIB, ROOT, TINY, good, needs_libraries, run, wait_for

pytestmark = needs_libraries
SWEEP, REPORT = ROOT / "jobs/sweep.py", ROOT / "jobs/report.py"
NAMES = ["thesis", "xnvme", "profile", "async", "interfaces"]
# vroom's own are all there; of the kernel's, enough to compare with.
ENGINES = {"profile": "vroom", "thesis": "psync,io_uring,vroom"}
SHORT = ["--runtime", "50ms", "--size", "32m"]


def definition(name: str) -> dict:
    return tomllib.loads((ROOT / f"jobs/sweeps/{name}.toml").read_text())


def figures_of(name: str) -> list[dict]:
    return [f for e in definition(name)["experiment"] for f in e.get("figure", [])]


def sweep(*arguments: object, **options):
    return run(SWEEP, *arguments, **options)


def report(*arguments: object, **options):
    return run(REPORT, *arguments, **options)


def state(folder: Path) -> dict:
    return json.loads((folder / "run.json").read_text())


def done(folder: Path) -> set[str]:
    points = folder / "points"
    return {str(p.relative_to(points)) for p in points.rglob("run*/**/*.json")}


def planned(folder: Path) -> set[str]:
    return {f"{point['path']}.json" for point in state(folder)["points"]}


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def tiny(tmp_path) -> Path:
    path = tmp_path / "tiny.toml"
    path.write_text(TINY)
    return path


# --- the five sweeps -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def all_five(tmp_path_factory):
    """Every sweep on a file, side by side; {name: (folder, status, output)}, reports made."""
    base = tmp_path_factory.mktemp("sweeps")
    running = {}
    for name in NAMES:
        engines = ["--engines", ENGINES[name]] if name in ENGINES else []
        running[name] = subprocess.Popen(
            [SWEEP, "run", name, *SHORT, *engines, "--out", base / name],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
    ended = {name: process.communicate(timeout=300)[0] for name, process in running.items()}
    made = [subprocess.Popen([REPORT, base / name], stdout=subprocess.DEVNULL) for name in NAMES]
    assert [process.wait(120) for process in made] == [0] * len(NAMES)
    return {name: (base / name, running[name].returncode, ended[name]) for name in NAMES}


@pytest.mark.timeout(420)
@pytest.mark.parametrize("name", NAMES)
def test_sweep_completes_and_shows_each_figure(all_five, name):
    folder, status, out = all_five[name]
    assert status == 0, out
    assert done(folder) == planned(folder) and state(folder)["failed"] == {}
    html = unescape((folder / "report/index.html").read_text())
    for figure in figures_of(name):
        for suffix in ("svg", "png", "csv"):
            assert (folder / f"report/{figure['name']}.{suffix}").stat().st_size > 50
        assert f'id="figure-{figure["name"]}"' in html and figure["title"] in html
        rows = list(csv.DictReader(open(folder / f"report/{figure['name']}.csv")))
        assert any("vroom" in row["series"] or "synchronous" in row["series"] for row in rows) or (
            figure.get("series") == ["rw"]
        ), figure["name"]
    assert not re.search(r"""(src|href)=["'](?!data:|#)""", html), "nothing from elsewhere"


def test_documents_figures_are_listed():
    """docs/experiments.md maps each figure of each sweep, and no other."""
    text = (ROOT / "docs/experiments.md").read_text()
    listed = set(re.findall(r"^\| (\w+): (.*?) \| `(\w+)`, ([\w-]+) \| `([\w-]+)` \|$", text, re.M))
    there = set()
    for name in NAMES:
        for experiment in definition(name)["experiment"]:
            for figure in experiment.get("figure", []):
                there.add((name, figure["seed"], name, experiment["name"], figure["name"]))
    assert listed == there and len(there) > 40


def test_figures_are_fios(all_five):
    """results.csv against the raw output: IOPS, bandwidth, and fio's own percentiles."""
    for name in ("thesis", "xnvme", "profile"):
        folder = all_five[name][0]
        rows = list(csv.DictReader(open(folder / "report/results.csv")))
        points = [p for p in state(folder)["points"] if p["tool"] == "fio"]
        rows = [row for row in rows if row["tool"] == "fio"]
        assert len(rows) == len(points) > 5
        for row, point in zip(rows, points, strict=True):
            raw = json.loads((folder / "points" / f"{point['path']}.json").read_text())
            [job] = raw["jobs"]
            sides = [job[s] for s in ("read", "write") if job[s]["total_ios"]]
            assert float(row["iops"]) == pytest.approx(sum(s["iops"] for s in sides))
            assert float(row["bw"]) == pytest.approx(sum(s["bw_bytes"] for s in sides))
            if len(sides) == 1:
                assert float(row["lat_mean"]) == pytest.approx(sides[0]["lat_ns"]["mean"])
                told = sides[0]["lat_ns"]["percentile"]["99.000000"]
                assert float(row["lat_p99"]) == pytest.approx(told, rel=0.05)


def test_jobs_are_as_the_document_says(all_five):
    """The kept fio jobs have the listing's options, and vroom ran on what others ran on."""
    folder = all_five["thesis"][0]
    for point in state(folder)["points"]:
        if point["tool"] != "fio":
            continue
        job = (folder / "points" / f"{point['path']}.fio").read_text().splitlines()
        for line in ("bs=4k", "direct=1", "norandommap=1", "group_reporting=1", "time_based=1"):
            assert line in job
        assert f"filename={folder / 'disk'}".replace(":", "\\:") in job
    assert (folder / "disk").stat().st_size == 32 * MIB
    # Written once: no holes, so that reads read something.
    assert (folder / "disk").stat().st_blocks * 512 >= 32 * MIB


def test_environment_is_kept(all_five):
    [entry] = json.loads((all_five["thesis"][0] / "environment.json").read_text())
    assert entry["kernel"] == os.uname().release and entry["cpus"] == os.cpu_count()
    assert entry["fio"] == good(run("fio", "--version")).out.strip()
    head = good(run("git", "-C", ROOT, "-c", f"safe.directory={ROOT}", "rev-parse", "HEAD")).out
    assert head.startswith(entry["git"].removesuffix("-dirty"))
    assert {"governor", "model", "firmware", "temperature_celsius", "vroom"} <= set(entry)


def test_left_out_engines_are_named(all_five):
    folder, _, out = all_five["xnvme"]
    html = (folder / "report/index.html").read_text()
    for engine, why in [("io_uring_cmd", "generic character device")]:
        assert any(e["engine"] == engine and why in e["why"] for e in state(folder)["left_out"])
        assert f"left out: {engine}" in out and why in html


@pytest.mark.timeout(240)
def test_fio_plot_reads_the_folder(all_five, tmp_path):
    folder = all_five["thesis"][0] / "points/depth/run1/vroom"
    plot = [ROOT / ".venv/bin/fio-plot", "-i", folder, "-T", "depth", "-r", "randread"]
    good(run(*plot, "-L", "-t", "iops", "-d", 1, 2, 4, 8, "-n", 1, "-o", tmp_path / "d.png",
             cwd=tmp_path, timeout=100))  # fmt: skip
    assert (tmp_path / "d.png").stat().st_size > 10_000
    folder = all_five["thesis"][0] / "points/time-writes/run1/vroom"
    good(run(ROOT / ".venv/bin/fio-plot", "-i", folder, "-T", "time", "-r", "randwrite", "-g",
             "-t", "iops", "-d", 32, "-n", 4, "-o", tmp_path / "t.png",
             cwd=tmp_path, timeout=100))  # fmt: skip
    assert (tmp_path / "t.png").stat().st_size > 10_000


# --- the report in a browser ------------------------------------------------------------------------

PROBE = """<!DOCTYPE html><meta charset="utf-8"><body><script>
const html = %s, found = [];
window.addEventListener("error", e => found.push({error: e.message}));
function frame(width) {
  return new Promise(ready => {
    const f = document.createElement("iframe");
    f.width = width; f.height = 900; f.srcdoc = html;
    f.onload = async () => {
      const d = f.contentDocument;
      await Promise.all([...d.images].map(i => i.decode().catch(e => found.push({error: i.alt}))));
      const clipped = [...d.querySelectorAll("p, h1, h2, li, figcaption")]
        .filter(e => e.getBoundingClientRect().right > width + 1).map(e => e.textContent);
      found.push({width, page: d.documentElement.scrollWidth, clipped,
        images: [...d.images].map(i => i.naturalWidth), title: d.title,
        duplicates: [...d.querySelectorAll("[id]")].map(e => e.id).filter((x, n, a) => a.indexOf(x) != n),
        alts: [...d.images].filter(i => !i.alt).length});
      ready();
    };
    document.body.append(f);
  });
}
frame(1280).then(() => frame(390)).then(() => {
  document.body.innerHTML = "<pre>RESULT" + JSON.stringify(found).replace(/[&<]/g, "") + "RESULT</pre>";
});
</script>"""


@pytest.mark.skipif(not shutil.which("chromium"), reason="needs chromium")
@pytest.mark.parametrize("name", NAMES)
def test_report_in_a_browser(all_five, name, tmp_path):
    """Opens without an error, at desktop and phone width, with all images, and does not overflow."""
    html = (all_five[name][0] / "report/index.html").read_text()
    page = tmp_path / "probe.html"
    page.write_text(PROBE % json.dumps(html).replace("</", "<\\/"))
    told = run("chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1400,1000",
               f"--user-data-dir={tmp_path / 'profile'}", "--enable-logging=stderr",
               "--virtual-time-budget=20000", "--dump-dom", f"file://{page}", timeout=100)  # fmt: skip
    assert "CONSOLE" not in told.err, told.err
    assert "RESULT" in told.out.split("<pre>")[-1], told.err[-2000:]
    found = json.loads(told.out.split("<pre>RESULT")[1].split("RESULT")[0])
    assert [entry.get("width") for entry in found] == [1280, 390], found
    for entry in found:
        assert entry["page"] <= entry["width"] and entry["clipped"] == []
        assert entry["duplicates"] == [] and entry["alts"] == 0
        assert len(entry["images"]) == len(figures_of(name)) and min(entry["images"]) > 100


# --- interleaving, repeats, comparing ----------------------------------------------------------------


def test_engines_take_turns(tiny):
    out = good(sweep("show", tiny, "--repeat", 2, "--points")).out
    runs = re.findall(r"^    tiny (\w+) (.*) run (\d)$", out, re.M)
    assert len(runs) == 16
    pairs = list(zip(runs[::2], runs[1::2], strict=True))
    for first, second in pairs:
        assert first[1:] == second[1:] and {first[0], second[0]} == {"psync", "vroom"}
    starts = [first[0] for first, _ in pairs]
    assert starts.count("psync") == starts.count("vroom") == 4
    # Reads before writes, each with all its repeats.
    assert [("randread" in axes, number) for _, axes, number in runs[::4]] == [
        (True, "1"), (True, "2"), (False, "1"), (False, "2")
    ]  # fmt: skip


@pytest.fixture(scope="module")
def repeated(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("repeated")
    (folder / "tiny.toml").write_text(TINY.replace('["4k", "16k"]', '["4k"]'))
    good(sweep("run", folder / "tiny.toml", "--repeat", 3, "--runtime", "50ms", "--out",
               folder / "out"))  # fmt: skip
    return folder / "out"


def test_fio_options_for_all_jobs(tiny, tmp_path):
    command = ["run", tiny, "--engines", "vroom", "--runtime", "50ms", "--size", "1m",
               "--out", tmp_path / "out"]  # fmt: skip
    good(sweep(*command, "--fio", "thread=1", "--fio", "cpus_allowed=0"))
    results = list((tmp_path / "out/points/tiny").rglob("*.json"))
    assert len(results) == 4
    for result in results:
        job = json.loads(result.read_text())["jobs"][0]
        assert job["job options"]["cpus_allowed"] == "0" and "thread" in job["job options"]
    for wrong in ("bs=8k", "size=4k", "ioengine=null"):
        refused = sweep(*command[:-1], tmp_path / "no", "--fio", wrong)
        assert refused.status == 1 and len(refused.err.splitlines()) == 1
        assert wrong.split("=")[0] in refused.err and not (tmp_path / "no").exists()


def test_medians_ranges_and_ratios(repeated, tmp_path):
    good(report(repeated))
    rows = list(csv.DictReader(open(repeated / "report/results.csv")))
    drawn = list(csv.DictReader(open(repeated / "report/bars.csv")))
    for bar in drawn:
        mine = [float(r["iops"]) for r in rows
                if r["engine"] == bar["engine"] and r["rw"] == bar["rw"]]  # fmt: skip
        assert float(bar["median"]) == pytest.approx(statistics.median(mine))
        assert float(bar["low"]) == pytest.approx(min(mine))
        assert float(bar["high"]) == pytest.approx(max(mine)) and int(bar["count"]) == len(mine)


def change(folder: Path, engine: str, factor: float) -> None:
    """As if that engine had run at another speed."""
    for path in (folder / "points").rglob("*.json"):
        if f"/{engine}/" in str(path) and "precondition" not in str(path):
            raw = json.loads(path.read_text())
            for side in ("read", "write"):
                raw["jobs"][0][side]["iops"] *= factor
            path.write_text(json.dumps(raw))


def test_compare_finds_what_got_slower(repeated, tmp_path):
    same, slow, fast = (tmp_path / name for name in ("same", "slow", "fast"))
    for copy in (same, slow, fast):
        shutil.copytree(repeated, copy)
    result = report("--compare", repeated, same)
    assert result.status == 0 and "4 points, 0 slower, 0 faster" in result.out
    change(slow, "vroom", 0.01)
    result = report("--compare", repeated, slow)
    assert result.status == 1 and "4 points, 2 slower, 0 faster" in result.out
    assert result.out.count("slower: tiny vroom") == 2
    assert "slower" in (slow / "report/compare.html").read_text()
    change(fast, "psync", 100)
    result = report("--compare", repeated, fast)
    assert result.status == 0 and "0 slower, 2 faster" in result.out
    result = report("--compare", repeated, tmp_path)
    assert result.status == 2 and len(result.err.splitlines()) == 1


def test_overlapping_ranges_are_marked(repeated, tmp_path):
    """psync's results made equal to vroom's: nobody is faster, and everybody says so."""
    copy = tmp_path / "equal"
    shutil.copytree(repeated, copy)
    for path in (copy / "points").rglob("vroom/**/*.json"):
        shutil.copy(path, str(path).replace("/vroom/", "/psync/"))
    good(report(copy))
    assert "1.00 ?" in (copy / "report/index.html").read_text()


def test_progress_on_a_terminal(tmp_path):
    """A bar with the time left and the current figure; elsewhere a line for each point."""
    command = f"{SWEEP} run xnvme {' '.join(SHORT)} --experiments roofline --engines null,vroom"
    shown = good(run("script", "-qec", f"{command} --out {tmp_path / 'a'}", "/dev/null"))
    assert re.search(
        r"50%\|.*\d\d:\d\d gone, \d\d:\d\d left, roofline \w+ iodepth=128: .* IOPS", shown.out
    )
    plain = good(run(*command.split(), "--out", tmp_path / "b"))
    lines = re.findall(r"^\[(\d)/2\] roofline (\w+) iodepth=128: .* IOPS", plain.err, re.M)
    assert [number for number, _ in lines] == ["1", "2"]


# --- stopping, resuming, failing ---------------------------------------------------------------------


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_resume_gives_the_same_points(tiny, tmp_path, how):
    out = tmp_path / "out"
    process = subprocess.Popen([SWEEP, "run", tiny, "--runtime", "100ms", "--out", out],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)  # fmt: skip
    wait_for(lambda: out.exists() and len(done(out)) >= 3, 30, "three points")
    process.send_signal(how)
    _, err = process.communicate(timeout=20)
    if how == signal.SIGINT:
        assert process.returncode == 130 and f"resume {out}" in err
    before = {name: (out / "points" / name).stat().st_mtime_ns for name in done(out)}
    assert 3 <= len(before) < 8
    good(sweep("resume", out))
    assert done(out) == planned(out) and len(done(out)) == 8
    for name, when in before.items():
        assert (out / "points" / name).stat().st_mtime_ns == when, "measured once only"
    assert len(json.loads((out / "environment.json").read_text())) == 2
    good(report(out))
    assert "resumed" in (out / "report/index.html").read_text()


def test_report_of_a_sweep_that_was_stopped(repeated, tmp_path):
    copy = tmp_path / "half"
    shutil.copytree(repeated, copy)
    for name in sorted(done(copy))[::2]:
        (copy / "points" / name).unlink()
    good(report(copy))
    assert "6 of 12 runs are missing" in (copy / "report/index.html").read_text()


def test_a_point_that_fails_is_named_and_tried_again(tiny, tmp_path):
    """A target that is full: the sweep goes on, says so, and ends with 1."""
    text = TINY.replace('bs = ["4k", "16k"]', 'bs = ["4k", "64m"]')
    tiny.write_text(text)  # blocks larger than the file
    result = sweep("run", tiny, "--runtime", "50ms", "--out", tmp_path / "out")
    assert result.status == 1 and "failed: tiny psync rw=randread bs=64m" in result.err
    assert len(done(tmp_path / "out")) == 4 and len(state(tmp_path / "out")["failed"]) == 4
    good(report(tmp_path / "out"))
    assert "Failed:" in (tmp_path / "out/report/index.html").read_text()


BAD = {
    "no such sweep": (["run", "nothing"], "no sweep nothing; there are: async"),
    "no such engine": (["run", "thesis", "--engines", "x"], "no engine x in this sweep"),
    "no such experiment": (["run", "thesis", "--experiments", "x"], "no experiment x"),
    "no such drive": (["run", "thesis", "--emulate", "x"], "no drive x"),
    "a drive without timing": (["run", "thesis", "--emulate", "intel-d7-p5600-1600gb"], "emulate"),
    "a bad timing": (["run", "thesis", "--emulate", "samsung-970-evo-plus-1tb,channels=x"], "channels"),
    "no such option": (["run", "thesis", "--emulate", "samsung-970-evo-plus-1tb,foo=1"], "--foo"),
    "no such device": (["run", "thesis", "--target", "/dev/nvme77n1"], "no such NVMe drive"),
    "no such directory": (["run", "thesis", "--target", "/nowhere/x"], "no such directory"),
    "a directory": (["run", "thesis", "--target", "/usr"], "is a directory"),
    "no size": (["run", "thesis", "--paper"], "--size"),
    "too large": (["run", "thesis", "--size", "900t"], "do not fit"),
    "a bad run time": (["run", "thesis", "--runtime", "soon"], "is no run time"),
    "nothing to measure": (["run", "thesis", "--target", "emu-null", "--engines", "psync"], "psync: needs"),
    "no results": (["resume", "/usr"], "no run.json"),
    "a remote drive": (["run", "thesis", "--target", "/dev/nvme0n1", "--destroy-data", "/dev/nvme0n1",
                        "--hosts", "a"], "not moved between drivers"),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_refuses_in_one_line(what, tmp_path):
    arguments, words = BAD[what]
    result = sweep(*arguments, cwd=tmp_path)
    assert result.status == 1 and len(result.err.splitlines()) == 1
    assert result.err.startswith("vroom: ") and words in result.err
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == []


@pytest.mark.parametrize(
    "wrong, words",
    [
        ('kind = "bars"', "no kind of figure"),
        ('engines = ["psync", "vroom"]', "no engine ghost"),
        ('title = "Tiny"', "'title' is missing"),
        ('name = "tiny"', "must be a word"),
        ("[options]", "tiny.toml: "),
    ],
)
def test_a_mistake_in_a_definition_is_found_first(tiny, tmp_path, wrong, words):
    mistakes = ['kind = "pie"', 'engines = ["ghost"]', "", 'name = "a/b"', "[options"]
    mistake = mistakes[
        [m in wrong for m in ("kind", "engines", "title", "name", "[opt")].index(True)
    ]
    tiny.write_text(TINY.replace(wrong, mistake, 1))
    result = sweep("run", tiny, "--out", tmp_path / "out")
    assert result.status == 1 and words in result.err and len(result.err.splitlines()) == 1
    assert not (tmp_path / "out").exists()


# --- nobody's data ------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [[], ["--destroy-data", "OTHER"]])
def test_a_controller_needs_its_serial_number(tiny, tmp_path, controller, given):
    disk = tmp_path / "data"
    disk.write_bytes(os.urandom(32 * MIB))
    before = digest(disk)
    served = controller("--serial", "S1234", "--ns", f"file={disk}")
    result = sweep("run", tiny, "--target", served.socket, *given, "--out", tmp_path / "out")
    assert result.status == 1 and "--destroy-data SERIAL-NUMBER" in result.err
    assert digest(disk) == before and not (tmp_path / "out").exists()


def test_consent_and_reading_without_it(tiny, tmp_path, controller):
    disk = tmp_path / "data"
    disk.write_bytes(os.urandom(32 * MIB))
    before = digest(disk)
    served = controller("--serial", "S1234", "--ns", f"file={disk}")
    good(sweep("run", tiny, "--target", served.socket, "--read-only", "--runtime", "50ms",
               "--out", tmp_path / "reads"))  # fmt: skip
    assert digest(disk) == before, "--read-only writes nothing"
    assert {p["options"]["rw"] for p in state(tmp_path / "reads")["points"]} == {"randread"}
    good(sweep("run", tiny, "--target", served.socket, "--destroy-data", "S1234", "--runtime", "50ms",
               "--out", tmp_path / "out"))  # fmt: skip
    assert digest(disk) != before


def test_a_file_with_data_needs_its_name(tiny, tmp_path):
    disk = tmp_path / "data"
    disk.write_bytes(os.urandom(16 * MIB))
    before = digest(disk)
    for given in ([], ["--destroy-data", "other"]):
        result = sweep("run", tiny, "--target", disk, *given, "--out", tmp_path / "out")
        assert result.status == 1 and "overwrites it" in result.err and digest(disk) == before
    good(sweep("run", "xnvme", "--target", disk, *SHORT, "--experiments", "roofline",
               "--engines", "vroom", "--out", tmp_path / "reads"))  # fmt: skip
    assert digest(disk) == before, "xnvme reads what is there"
    good(sweep("run", tiny, "--target", disk, "--destroy-data", disk, "--runtime", "50ms",
               "--engines", "vroom", "--out", tmp_path / "out"))  # fmt: skip
    assert digest(disk) != before


# --- a drive from its data sheet ------------------------------------------------------------------------

SHAPE = """
title = "Shape"
source = "the thesis' figures, one job"
about = "Depth, and writes over time."
baseline = "vroom"
[options]
bs = "4k"
direct = 1
norandommap = 1
time_based = 1
numjobs = 1
runtime = "400ms"
size = "100%"
[[experiment]]
name = "depth"
title = "Depth"
engines = ["vroom_perf"]
options = { rw = "randread" }
[experiment.vary]
iodepth = [1, 2, 4, 8, 16, 32, 64, 128, 256]
[[experiment]]
name = "writes"
title = "Writes"
engines = ["vroom"]
options = { rw = "randwrite", iodepth = 128, runtime = "1600ms" }
log = true
[[experiment.figure]]
name = "time"
title = "Writes over time"
kind = "time"
"""


def test_970_evo_plus_has_the_documents_shape(tmp_path):
    """Depth 1 near one over the latency, doubling up to the plateau, writes that drop.

    A busy machine can only make it slower; so a point that is too slow is measured again.
    """
    (tmp_path / "shape.toml").write_text(SHAPE)
    drive = tomllib.loads((ROOT / "jobs/drives/samsung-970-evo-plus-1tb.toml").read_text())[
        "emulate"
    ]
    best: dict[int, float] = {}
    for attempt in range(6):
        out = tmp_path / f"out{attempt}"
        good(sweep("run", tmp_path / "shape.toml", "--emulate",
                   "samsung-970-evo-plus-1tb,write-buffer=400M", "--out", out))  # fmt: skip
        good(report(out))
        rows = list(csv.DictReader(open(out / "report/results.csv")))
        for row in rows:
            if row["experiment"] == "depth":
                depth = int(row["iodepth"])
                best[depth] = max(best.get(depth, 0), float(row["iops"]))
        time_line = [(float(r["seconds"]), float(r["iops"]))
                     for r in csv.DictReader(open(out / "report/time.csv"))]  # fmt: skip
        early = max(iops for seconds, iops in time_line if seconds < 0.5)
        late = statistics.median(iops for seconds, iops in time_line if seconds > 1.0)
        if is_shape(best, drive) and early > 1.4 * late:
            break
    latency, plateau = drive["read-latency"] * 1e-6, drive["read-iops"]
    assert 0.7 / latency <= best[1] <= 1.01 / latency
    for depth in (2, 4, 8, 16):
        assert 1.6 <= best[depth] / best[depth // 2] <= 2.4, best
    for depth in (64, 128, 256):
        assert 0.8 * plateau <= best[depth] <= 1.01 * plateau, best
    # 300 thousand once the buffer is full, however fast the machine is.
    assert late == pytest.approx(drive["drain-bw"] / 4096, rel=0.15)
    assert late * 1.4 < early <= 1.1 * drive["write-iops"]


def is_shape(best: dict[int, float], drive: dict) -> bool:
    doubling = all(1.6 <= best[d] / best[d // 2] <= 2.4 for d in (2, 4, 8, 16))
    near = best[1] * drive["read-latency"] * 1e-6 > 0.7
    return doubling and near and min(best[d] for d in (64, 128, 256)) > 0.8 * drive["read-iops"]


def test_data_sheet_in_the_report(all_five, tmp_path):
    good(report(all_five["thesis"][0], "--drive", "samsung-970-evo-plus-1tb", "--out", tmp_path))
    html = (tmp_path / "index.html").read_text()
    assert "The data sheet: Samsung 970 EVO Plus" in html
    for value in ("3,500 MB/s", "3,300 MB/s", "19,000 IOPS", "600,000 IOPS", "550,000 IOPS"):
        assert value in html
    assert "data sheet" in (tmp_path / "iops-qd1.svg").read_text()
    # A drive of one's own is a file; the roofline is its best, at whatever depth.
    mine = tmp_path / "mine.toml"
    mine.write_text('name = "Mine"\nmodel = "M"\nsource = "me"\n[[limit]]\nlabel = "Reads"\n'
                    'rw = "randread"\niops = 777_000\n')  # fmt: skip
    good(report(all_five["xnvme"][0], "--drive", mine, "--out", tmp_path / "x"))
    assert "data sheet" in (tmp_path / "x/roofline.svg").read_text()
    assert "777,000 IOPS" in (tmp_path / "x/index.html").read_text()


# --- other hosts --------------------------------------------------------------------------------------------


def test_hosts(tiny, tmp_path):
    """Two `fio --server` here: psync's figures are the sum of both, vroom runs on one."""
    servers = [f"ip:127.0.0.1,{port}" for port in (28765, 28766)]
    running = [subprocess.Popen(["fio", f"--server={s}"], stdout=subprocess.DEVNULL,
                                stderr=subprocess.DEVNULL, cwd=tmp_path) for s in servers]  # fmt: skip
    try:
        time.sleep(0.5)
        disk = tmp_path / "disk"
        fewer = TINY.replace('["4k", "16k"]', '["4k"]')
        tiny.write_text(fewer.replace('["randread", "randwrite"]', '["randwrite"]'))
        common = ["--runtime", "100ms", "--target", disk, "--destroy-data", disk]
        refused = sweep("run", tiny, "--hosts", *servers, *common[:-2], "--out", tmp_path / "no")
        assert refused.status == 1 and "--destroy-data" in refused.err and not disk.exists()
        good(sweep("run", tiny, *common, "--engines", "psync", "--out", tmp_path / "two",
                   "--hosts", *servers))  # fmt: skip
        good(report(tmp_path / "two"))
        rows = list(csv.DictReader(open(tmp_path / "two/report/results.csv")))
        for row, point in zip(rows, state(tmp_path / "two")["points"], strict=True):
            raw = json.loads((tmp_path / "two/points" / f"{point['path']}.json").read_text())
            clients = [c for c in raw["client_stats"] if c["jobname"] != "All clients"]
            parts = [c["write"]["iops"] for c in clients]
            assert len(parts) == 2 and float(row["iops"]) == pytest.approx(sum(parts), rel=0.02)
        good(sweep("run", tiny, *common, "--engines", "vroom", "--out", tmp_path / "one",
                   "--hosts", servers[0]))  # fmt: skip
        assert done(tmp_path / "one") == planned(tmp_path / "one")
    finally:
        for process in running:
            process.terminate()
            process.wait(5)


def test_a_server_that_is_not_there(tiny, tmp_path):
    result = sweep("run", tiny, "--target", "x", "--destroy-data", "x", "--engines", "psync",
                   "--hosts", "ip:127.0.0.1,28999", "--out", tmp_path / "out")  # fmt: skip
    assert result.status == 1 and "connect" in result.err and "vroom:" in result.err


def test_without_the_libraries(tmp_path):
    """One line that says what to do, where .venv was never made."""
    copy = tmp_path / "clone"
    shutil.copytree(ROOT / "jobs", copy / "jobs")
    for program in ("sweep.py", "report.py"):
        result = run("/usr/bin/python3", copy / "jobs" / program, "list")
        assert result.status == 1 and result.err == (
            "vroom: the libraries for sweeps and reports are missing: make sweep-deps\n"
        )
