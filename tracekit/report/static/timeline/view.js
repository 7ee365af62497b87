// The timeline's state, layout and drawing: one redraw a frame at most.

const HEAD = 44, RULER = 20, RANK_GAP = 14, LANE_GAP = 3, LEAST_NS = 20;

function makeTimeline(scene) {
  const canvas = byId("canvas"), context = canvas.getContext("2d"), margin = (scene.focus[1] - scene.focus[0]) * .005;
  const timeline = {
    scene, canvas, context, section: canvas.closest("section"), lanes: byId("lanes"), scroller: byId("scroller"), map: byId("overview"),
    whole: {start: -scene.span * .005, end: scene.span * 1.005},
    home: {start: scene.focus[0] - margin, end: scene.focus[1] + margin},
    selected: null, peers: [], range: null, focus: 0, query: "", hits: null, only: null, sorted: false, collapsed: scene.ranks.length > 8,
    expanded: new Set(scene.ranks.length === 1 ? scene.ranks : []), rows: [], width: 0, height: 0, left: 0, right: 0, offset: 0,
    pending: false, colours: null, fills: null, parts: null,
    get overview() { return this.parts ||= overviewOf(scene); },
  };
  timeline.view = {...timeline.home};
  timeline.past = [{...timeline.view}];
  timeline.at = 0;
  timeline.x = t => timeline.left + (t - timeline.view.start) / (timeline.view.end - timeline.view.start) * (timeline.right - timeline.left);
  timeline.time = x => timeline.view.start + (x - timeline.left) / (timeline.right - timeline.left) * (timeline.view.end - timeline.view.start);
  timeline.schedule = () => {
    if (timeline.pending) return;
    timeline.pending = true;
    requestAnimationFrame(() => { timeline.pending = false; draw(timeline); });
  };
  timeline.remeasure = () => { timeline.measured = false; timeline.schedule(); };
  timeline.restyle = () => { timeline.colours = null; timeline.schedule(); };
  timeline.arrange = () => { arrange(timeline); timeline.schedule(); };
  return timeline;
}

// Rows of lanes with their place: ledger first, then streams, and in an expanded rank copies, host threads and NVTX.
function arrange(timeline) {
  const {scene, collapsed, expanded, only} = timeline;
  const ranks = scene.ranks.filter(rank => !only || only.has(rank.rank));
  if (timeline.sorted && timeline.overview) ranks.sort((a, b) => waitShare(timeline, b) - waitShare(timeline, a));
  const ledger = !collapsed ? 26 : ranks.length >= 128 ? 3 : ranks.length >= 32 ? 8 : 26, gap = ledger < 26 ? ledger === 8 ? 1 : 0 : RANK_GAP;
  let y = HEAD + 8;
  timeline.rows = [];
  timeline.ranks = ranks;
  ranks.forEach((rank, index) => {
    const top = y, all = expanded.has(rank);
    const add = (lane, h) => { timeline.rows.push({rank, index, lane, y, h, top}); y += h + LANE_GAP; };
    add(rank.ledger, all ? 26 : ledger);
    for (const lane of rank.lanes) {
      const stream = lane.kind === "compute" || lane.kind === "comm";
      if (all || !collapsed && stream) add(lane, stream ? 15 : 12);
    }
    y += gap - LANE_GAP;
  });
  timeline.height = y + (gap ? 0 : 8);
  timeline.lanes.style.height = timeline.height + "px";
  timeline.measured = false;
}

// Reads sizes and places, which costs a layout: not on frames that only zoom or pan.
function resize(timeline) {
  if (timeline.measured && timeline.colours) return;
  timeline.measured = true;
  const {canvas, context, section, lanes} = timeline, ratio = devicePixelRatio || 1, full = section.classList.contains("full");
  const room = full ? timeline.scroller.clientHeight : innerHeight;
  timeline.width = lanes.clientWidth;
  timeline.left = timeline.width > 700 ? 140 : 62;
  timeline.right = timeline.width - 12;
  timeline.shown = Math.max(60, Math.min(timeline.height, room));
  fit(canvas, context, timeline.width, timeline.shown, ratio);
  timeline.offset = Math.max(0, canvas.getBoundingClientRect().top - lanes.getBoundingClientRect().top);
  if (!timeline.colours) {
    timeline.colours = readColours();
    timeline.fills = makeFills(context, timeline.colours);
  }
}

function fit(canvas, context, width, height, ratio) {
  const w = Math.round(width * ratio), h = Math.round(height * ratio);
  if (canvas.width !== w || canvas.height !== h) {
    canvas.width = w;
    canvas.height = h;
    canvas.style.height = height + "px";
  }
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
}

function draw(timeline) {
  resize(timeline);
  const {context: c, colours, scene, rows, offset, shown, left, right} = timeline;
  c.fillStyle = colours.card;
  c.fillRect(0, 0, timeline.width, shown);
  c.textBaseline = "middle";
  const frame = {view: timeline.view, x: timeline.x, left, right, fills: timeline.fills, colours, scene, focus: timeline.focus};
  c.save();
  c.translate(0, -offset);
  const visible = rows.filter(row => row.y + row.h > offset + HEAD && row.y < offset + shown);
  drawGrid(timeline, offset);
  for (const row of visible) drawLabel(timeline, row);
  c.beginPath();
  c.rect(left, offset, right - left, shown);
  c.clip();
  for (const {lane, y, h} of visible) {
    if (lane.kind === "ledger") { paintLedger(c, lane, y, h, frame); continue; }
    c.fillStyle = colours.lane;
    c.fillRect(left, y, right - left, h);
    c.globalAlpha = timeline.query ? .2 : 1;
    paintStream(c, lane, y, h, frame);
    c.globalAlpha = 1;
    const found = timeline.hits && timeline.hits.get(lane);
    if (found && found.length) paintStream(c, lane, y, h, frame, found);
  }
  if (scene.stand) drawStandstill(timeline, visible);
  drawPeers(timeline);
  drawArrow(timeline);
  drawSelection(timeline);
  c.restore();
  drawHead(timeline);
  if (scene.stand) nameStandstill(timeline);
  drawRange(timeline);
  showWhere(timeline);
  rememberView(timeline);
  if (timeline.drawn) drawOverview(timeline);
  else { // the lanes first: the strip takes a look at every piece
    timeline.drawn = performance.mark("timeline-drawn");
    timeline.schedule();
  }
}

// Where the ruler counts from: the step in the middle of the view; with several steps in view, the capture's start.
function baseOf({scene, view, ranks}) {
  const steps = ranks.length ? ranks[0].steps : [], middle = (view.start + view.end) / 2;
  const step = steps.find(s => s.start <= middle && middle < s.end);
  return step && view.end - view.start < 3 * (step.end - step.start) ? {t: step.start, name: "step " + step.number} : {t: 0, name: "since the start"};
}

function ticks({view, width, scene}, base) {
  const rough = (view.end - view.start) / (width > 700 ? 8 : 3), power = 10 ** Math.floor(Math.log10(rough));
  const tick = [1, 2, 5, 10].map(k => k * power).find(t => t >= rough), found = [];
  const end = scene.stand ? Math.min(view.end, scene.stand.start) : view.end; // the band is not to scale
  for (let k = Math.ceil((view.start - base) / tick); base + k * tick < end; k++) found.push({t: k * tick, tick});
  return found;
}

// As exact as neighbouring ticks need to differ.
function tickText({t, tick}) {
  const [unit, name] = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"]].find(([least]) => Math.abs(t) >= least) || [1, "ns"];
  const digits = Math.max(0, Math.round(Math.log10(unit) - Math.floor(Math.log10(tick) + 1e-9)));
  return t ? (t > 0 ? "+" : "") + (t / unit).toFixed(digits) + " " + name : "+0";
}

function drawGrid(timeline, offset) {
  const {context: c, colours, x, shown} = timeline, base = baseOf(timeline).t;
  c.fillStyle = colours.line;
  for (const {t} of ticks(timeline, base)) c.fillRect(Math.round(x(base + t)), offset + HEAD - 8, 1, shown);
}

// Phases and ruler stay in place while the lanes scroll by.
function drawHead(timeline) {
  const {context: c, colours, x, left, right, width, scene} = timeline, {t: base, name} = baseOf(timeline);
  c.fillStyle = colours.card;
  c.fillRect(0, 0, width, HEAD);
  c.font = FONT;
  const [starts, codes] = scene.phases;
  for (let i = Math.max(0, search(starts, timeline.view.start, false) - 1); i < starts.length && starts[i] < timeline.view.end; i++) {
    const from = Math.max(left, x(starts[i])), to = Math.min(right, x(i + 1 < starts.length ? starts[i + 1] : scene.span));
    if (to - from < 1 || codes[i] < 0) continue;
    c.fillStyle = codes[i] % 2 ? colours.lane : colours.inset;
    c.fillRect(from, 3, to - from, 16);
    c.fillStyle = colours.line2;
    c.fillRect(from, 3, 1, 16);
    c.fillStyle = colours.ink2;
    fitText(c, scene.phaseNames[codes[i]], from + 6, 11.5, to - from - 10);
  }
  c.fillStyle = colours.ink3;
  for (const tick of ticks(timeline, base)) {
    const at = Math.round(x(base + tick.t)) + 4, text = tickText(tick);
    if (at >= left && at + c.measureText(text).width < right + 10) c.fillText(text, at, RULER + 13);
  }
  if (left > 100) {
    if (starts.length) c.fillText("rank " + scene.ranks[0].rank + " phases", 12, 11.5);
    c.fillText(name, 12, RULER + 13);
  }
  c.fillStyle = colours.line;
  c.fillRect(0, HEAD - 1, width, 1);
}

function drawLabel(timeline, row) {
  const {context: c, colours, left} = timeline, middle = row.y + row.h / 2 + .5, number = row.rank.rank;
  if (row.lane.kind !== "ledger") {
    c.font = SMALL;
    c.fillStyle = colours.ink3;
    const kind = left > 100 && row.lane.kind !== row.lane.label ? ({comm: "nccl"}[row.lane.kind] || row.lane.kind) + "  " : "";
    fitText(c, kind + row.lane.label, left > 100 ? 34 : 20, middle, left - (left > 100 ? 38 : 22));
    return;
  }
  if (row.h < 26) {
    const every = Math.ceil(9 / (row.h + 1));
    c.font = "9" + SANS;
    c.fillStyle = colours.ink;
    if (row.index % every === 0) c.fillText("rank " + number, 12, middle);
    return;
  }
  if (row.index) {
    c.fillStyle = colours.line;
    c.fillRect(0, row.top - RANK_GAP / 2, timeline.width, 1);
  }
  c.font = SMALL;
  c.fillStyle = colours.ink3;
  c.fillText(timeline.expanded.has(row.rank) ? "▾" : "▸", left > 100 ? 12 : 4, middle);
  c.font = "620 12" + SANS;
  c.fillStyle = colours.ink;
  c.fillText((left > 100 ? "rank " : "r") + number, left > 100 ? 24 : 14, middle);
  const wait = timeline.parts ? waitShare(timeline, row.rank) : 0, at = 24 + c.measureText("rank " + number).width + 6;
  c.font = SMALL;
  c.fillStyle = colours.ink3;
  if (left > 100 && wait >= .005) fitText(c, "waits " + percent(wait, 1), at, middle, left - at - 2);
}

function rowOf(timeline, lane) {
  return timeline.rows.find(row => row.lane === lane);
}

// A box around an event, where its lane or at least its rank's ledger is shown.
function boxOf(timeline, {lane, i}) {
  const row = rowOf(timeline, lane) || rowOf(timeline, lane.rank.ledger);
  if (!row) return null;
  const from = Math.max(timeline.left - 4, timeline.x(lane.start[i])), to = Math.min(timeline.right + 4, timeline.x(lane.end[i]));
  return to < timeline.left || from > timeline.right ? null : {row, from, to, y: row.y, h: row.h};
}

function drawSelection(timeline) {
  const {context: c, colours, selected} = timeline, box = selected && boxOf(timeline, selected);
  if (!box) return;
  c.strokeStyle = colours.ink;
  c.lineWidth = 2;
  c.strokeRect(box.from - 1, box.y - 1, Math.max(3, box.to - box.from + 2), box.h + 2);
  c.lineWidth = 1;
}

// The selected collective on all ranks: outlines, a dot at each arrival, a dashed line where the last one arrives.
function drawPeers(timeline) {
  const {context: c, colours, peers, scene, offset, shown} = timeline;
  if (peers.length < 2) return;
  c.strokeStyle = c.fillStyle = colours.ink;
  c.lineWidth = 1.8;
  for (const peer of peers) {
    const box = boxOf(timeline, peer);
    if (!box || box.h < 8) continue;
    c.strokeRect(box.from, box.y - 1, Math.max(2, box.to - box.from), box.h + 2);
    c.beginPath();
    c.arc(timeline.x(peer.lane.start[peer.i]), box.y + box.h / 2, 3.2, 0, 7);
    c.fill();
  }
  c.lineWidth = 1;
  const last = lastArrival(timeline);
  if (!scene.aligned || !last) return;
  const at = Math.round(timeline.x(last.lane.start[last.i])) + .5;
  c.setLineDash([4, 3]);
  c.beginPath();
  c.moveTo(at, offset + HEAD - 4);
  c.lineTo(at, offset + shown);
  c.stroke();
  c.setLineDash([]);
}

function drawArrow(timeline) {
  const {context: c, colours, selected} = timeline, pair = selected && launchOf(timeline, selected);
  if (!pair || !rowOf(timeline, pair.call.lane)) return;
  const from = boxOf(timeline, pair.call), to = boxOf(timeline, pair.op);
  if (!from && !to) return;
  const row = {call: rowOf(timeline, pair.call.lane), op: rowOf(timeline, pair.op.lane) || rowOf(timeline, pair.op.lane.rank.ledger)};
  const x0 = timeline.x(pair.call.lane.end[pair.call.i]), y0 = row.call.y, x1 = timeline.x(pair.op.lane.start[pair.op.i]), y1 = row.op.y + row.op.h;
  c.strokeStyle = c.fillStyle = colours.ink2;
  c.beginPath();
  c.moveTo(x0, y0);
  c.bezierCurveTo(x0, (y0 + y1) / 2, x1, (y0 + y1) / 2, x1, y1 + 6);
  c.stroke();
  c.beginPath();
  c.moveTo(x1, y1);
  c.lineTo(x1 - 3.5, y1 + 7);
  c.lineTo(x1 + 3.5, y1 + 7);
  c.fill();
}

function drawRange(timeline) {
  const {context: c, colours, range, x, shown} = timeline, last = lastArrival(timeline);
  if (timeline.peers.length > 1 && timeline.scene.aligned && last) badge(timeline, "rank " + last.lane.rank.rank + " arrives last", x(last.lane.start[last.i]), colours.ink, true);
  if (!range) return;
  const from = Math.max(timeline.left, x(range.start)), to = Math.min(timeline.right, x(range.end));
  if (to <= from) return;
  c.globalAlpha = .13;
  c.fillStyle = colours.link;
  c.fillRect(from, RULER, to - from, shown - RULER);
  c.globalAlpha = 1;
  c.strokeStyle = colours.link;
  c.strokeRect(from + .5, RULER + .5, to - from, shown - RULER - 1);
  badge(timeline, duration(range.end - range.start), (from + to) / 2, colours.link, false);
}

function badge(timeline, text, at, ground, beside) {
  const {context: c, colours} = timeline;
  if (at < timeline.left || at > timeline.right) return;
  c.font = BOLD;
  const width = c.measureText(text).width + 10, wanted = beside ? at : at - width / 2;
  const left = Math.min(timeline.right - width, Math.max(timeline.left, wanted));
  c.fillStyle = ground;
  c.fillRect(left, RULER + 4, width, 18);
  c.fillStyle = colours.card;
  c.fillText(text, left + 5, RULER + 13.5);
}

function showWhere(timeline) {
  const {name} = baseOf(timeline), {step} = timeline.scene, said = byId("where"), length = duration(timeline.view.end - timeline.view.start);
  const where = (name.startsWith("step") ? name + (name === "step " + step ? " (median) · " : " · ") : "");
  if (said.textContent === where + length + " shown") return;
  const bold = document.createElement("b");
  bold.textContent = length;
  said.replaceChildren(where, bold, " shown");
}

function setView(timeline, start, end) {
  const {whole} = timeline, most = whole.end - whole.start, length = Math.min(most, Math.max(LEAST_NS, end - start));
  const from = Math.min(whole.end - length, Math.max(whole.start, (start + end - length) / 2));
  timeline.view = {start: from, end: from + length};
  timeline.schedule();
}

function zoom(timeline, factor, at = (timeline.view.start + timeline.view.end) / 2) {
  const {start, end} = timeline.view;
  if (end - start <= LEAST_NS && factor < 1) return;
  setView(timeline, at - (at - start) * factor, at + (end - at) * factor);
}

function pan(timeline, share) {
  const {start, end} = timeline.view, by = (end - start) * share;
  setView(timeline, start + by, end + by);
}

function zoomTo(timeline, start, end) {
  const margin = Math.max(end - start, 400) * .6;
  setView(timeline, start - margin, end + margin);
}

// What is under a point: {row, lane, i}, or {row, lane, bucket} for occupancy, or null. Narrow events within 2 px count.
function hit(timeline, px, py) {
  if (py < HEAD || px < timeline.left || px > timeline.right) return null;
  const y = py + timeline.offset, row = timeline.rows.find(r => y >= r.y - 1 && y <= r.y + r.h + 1);
  if (!row) return null;
  const lane = row.lane, t = timeline.time(px), near = (timeline.view.end - timeline.view.start) / (timeline.right - timeline.left) * 2;
  let best = -1, gap = Infinity;
  for (let i = firstAfter(lane, t - near); i < lane.start.length && lane.start[i] <= t + near; i++) {
    const away = t < lane.start[i] ? lane.start[i] - t : t >= lane.end[i] ? t - lane.end[i] : 0;
    if (away < gap || (away === gap && lane.end[i] - lane.start[i] > lane.end[best] - lane.start[best])) { best = i; gap = away; }
  }
  if (best >= 0) return {row, lane, i: best};
  const bucket = lane.occupancy ? Math.floor(t / timeline.scene.span * lane.buckets) : -1;
  return bucket >= 0 && lane.occupancy[bucket] ? {row, lane, bucket} : null;
}
