"""How long the HTML page takes to show and move its timeline, beside a bare canvas that draws the same rectangles.

    python benchmarks/page.py                      # a generated capture of 1 M kernels
    python benchmarks/page.py --capture FILE

The bare page holds the same rectangles (pieces of every rank's top lane, events of its streams) as deflated columns.
It has no text, no causes and one colour a lane, and skips what is narrower than half a pixel beside what it has drawn:
what a plain canvas can do at best. Both pages are opened in turn in one browser without a limit on frames and go
through the same views, from everything to 40 µs and sideways. First paint counts from the navigation to the first drawn
canvas, a frame from the key to the next frame but one.
"""

from __future__ import annotations

import argparse
import base64
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from playwright.sync_api import Browser, sync_playwright

from tracekit.analysis import examine
from tracekit.capture import open_captures
from tracekit.report.html import write_html
from tracekit.report.summary import summarise
from tracekit.report.timeline.lanes import LANE_KINDS
from tracekit.report.timeline.payload import varints
from tracekit.report.timeline.scene import Scene, make_scene

HERE = Path(__file__).parent
VIEWS = "s" * 14 + "w" * 40 + "d" * 6 + "a" * 6
"""Out to everything, in again, and sideways."""
ARGUMENTS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-gpu-vsync", "--disable-frame-rate-limit"]
DRAWN = "performance.getEntriesByName('timeline-drawn').map(e => e.startTime)[0] || 0"
FRAMES = """async keys => {
  const frame = () => new Promise(requestAnimationFrame), took = [];
  document.querySelector("#canvas").focus();
  for (const key of keys) {
    await frame();
    const begun = performance.now();
    document.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true}));
    await frame();
    await frame();
    took.push(performance.now() - begun);
  }
  return took;
}"""
BARE = """<!doctype html><meta charset="utf-8"><style>body{margin:24px}canvas{width:1230px;height:HEIGHTpx}</style>
<canvas id="canvas" tabindex="0" width="1230" height="HEIGHT"></canvas>
<script type="text/plain" id="data">DATA</script><script>
const canvas = document.querySelector("canvas"), c = canvas.getContext("2d"), lanes = LANES, left = 140, right = 1218;
let view = VIEW, pending = false;
async function read() {
  const text = atob(document.getElementById("data").textContent), packed = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) packed[i] = text.charCodeAt(i);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
  let p = 0;
  const column = n => {
    const out = new Float64Array(n);
    for (let i = 0; i < n; i++) {
      let value = bytes[p++];
      if (value > 127) for (let scale = 128, more = (value &= 127, true); more; scale *= 128) {
        value += (bytes[p] & 127) * scale;
        more = bytes[p++] > 127;
      }
      out[i] = value;
    }
    return out;
  };
  for (const lane of lanes) {
    lane.start = column(lane.n);
    lane.end = column(lane.n);
    for (let i = 0, t = 0; i < lane.n; i++) {
      lane.start[i] = t += lane.start[i];
      lane.end[i] += t;
    }
  }
}
function firstAfter({end}, t) {
  let low = 0, high = end.length;
  while (low < high) { const middle = (low + high) >> 1; if (end[middle] <= t) low = middle + 1; else high = middle; }
  return low;
}
function draw() {
  pending = false;
  c.fillStyle = "#fff";
  c.fillRect(0, 0, 1230, HEIGHT);
  const scale = (right - left) / (view[1] - view[0]);
  for (const {start, end, y, h, colour} of lanes) {
    c.fillStyle = colour;
    let last = -9;
    for (let i = firstAfter({end}, view[0]); i < start.length && start[i] < view[1]; i++) {
      const x1 = Math.min(right, left + (end[i] - view[0]) * scale);
      if (x1 < last + .5) continue;
      const x0 = Math.max(left, left + (start[i] - view[0]) * scale);
      c.fillRect(x0, y, Math.max(.7, x1 - x0 - .6), h);
      last = x1;
    }
  }
  performance.mark("timeline-drawn");
}
addEventListener("keydown", ({key}) => {
  const [from, to] = view, length = to - from, middle = (from + to) / 2;
  const factor = {w: .7, s: 1 / .7}[key], by = {a: -.18, d: .18}[key];
  if (factor) view = [middle - length * factor / 2, middle + length * factor / 2];
  if (by) view = [from + by * length, to + by * length];
  if (!pending) requestAnimationFrame(draw);
  pending = true;
});
read().then(draw);
</script>"""


def bare_page(scene: Scene) -> str:
    lanes, columns, y = [], [], 52.0
    for rank in scene.ranks:
        shown = [("#BCD6F5", 26, rank.edges[:-1], rank.edges[1:])]
        for lane in rank.lanes:
            kind = LANE_KINDS[lane.kind]
            if kind in {"compute", "comm"}:
                shown.append(("#3F88DF" if kind == "compute" else "#55249F", 15, lane.start, lane.end))
        for colour, height, start, end in shown:
            lanes.append(f'{{n:{len(start)},y:{y},h:{height},colour:"{colour}"}}')
            columns += [varints(np.diff(start, prepend=0)), varints(end - start)]
            y += height + 3
        y += 11
    data = base64.b64encode(zlib.compress(b"".join(columns), 6)).decode("ascii")
    first, last = scene.focus
    view = f"[{first - (last - first) * 0.005},{last + (last - first) * 0.005}]"
    page = BARE.replace("HEIGHT", str(round(y))).replace("LANES", f"[{','.join(lanes)}]").replace("VIEW", view)
    return page.replace("DATA", data)


@dataclass
class Run:
    drawn_ms: float
    frames_ms: list[float]


def measure(browser: Browser, path: Path) -> Run:
    context = browser.new_context(viewport={"width": 1280, "height": 900}, offline=True)
    page: Any = context.new_page()
    page.goto(path.as_uri())
    while not (drawn := page.evaluate(DRAWN)):
        page.wait_for_timeout(50)
    page.evaluate("document.querySelector('#canvas').scrollIntoView()")
    page.wait_for_timeout(4000)  # what the page prepares while its reader reads, charts included
    frames = page.evaluate(FRAMES, list(VIEWS))
    context.close()
    return Run(drawn, frames)


def report(name: str, ours: list[float], bare: list[float]) -> None:
    ratios = [a / b for a, b in zip(ours, bare, strict=True)]
    print(
        f"{name:24} page {statistics.median(ours):8.0f} ms   bare {statistics.median(bare):8.0f} ms   "
        f"ratio, pair by pair: {' '.join(f'{ratio:.2f}' for ratio in ratios)}; median {statistics.median(ratios):.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--capture", type=Path, help="an nsys SQLite export (default: generate one)")
    parser.add_argument("--kernels", type=int, default=1_000_000, help="size of the generated capture")
    parser.add_argument("--processes", type=int, default=4, help="processes in the generated capture")
    parser.add_argument("--pairs", type=int, default=5, help="measured turns of each")
    arguments = parser.parse_args()
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        parser.error("there is no Chromium on the PATH")
    with tempfile.TemporaryDirectory() as folder:
        capture = arguments.capture
        if capture is None:
            capture = Path(folder) / "generated.sqlite"
            size = ["--kernels", str(arguments.kernels), "--processes", str(arguments.processes)]
            subprocess.run([sys.executable, str(HERE / "generate.py"), str(capture), *size], check=True)
        timeline = open_captures(capture)
        analysis, detail = examine(timeline)
        scene = detail and make_scene(analysis, timeline, detail, summarise(analysis))
        assert scene
        page, bare = Path(folder) / "page.html", Path(folder) / "bare.html"
        size = write_html(analysis, timeline, page, detail=detail)
        bare.write_text(bare_page(scene), "utf-8")
        pieces = sum(len(rank.codes) for rank in scene.ranks)
        print(
            f"{capture.name}: {scene.events:,} events in full, {pieces:,} pieces of top lanes; "
            f"page {size / 1e6:.1f} MB, bare {bare.stat().st_size / 1e6:.1f} MB; {os.cpu_count()} cores"
        )
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
            measure(browser, page)
            measure(browser, bare)
            turns = [(measure(browser, page), measure(browser, bare)) for _ in range(arguments.pairs)]
            browser.close()
    report("first drawn canvas", [a.drawn_ms for a, _ in turns], [b.drawn_ms for _, b in turns])
    for name, pick in (("frame, median", statistics.median), ("frame, slowest tenth", slowest_tenth)):
        report(name, [pick(a.frames_ms) for a, _ in turns], [pick(b.frames_ms) for _, b in turns])


def slowest_tenth(frames: list[float]) -> float:
    """The 90th percentile."""
    return statistics.quantiles(frames, n=10)[-1]


if __name__ == "__main__":
    main()
