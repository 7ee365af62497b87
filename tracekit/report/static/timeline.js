// The timeline's state, layout and drawing: one redraw a frame at most.

const RULER = 24, RANK_GAP = 14, LANE_GAP = 3;

function makeTimeline(scene) {
  const canvas = byId("canvas"), context = canvas.getContext("2d");
  const whole = {start: -scene.span * .005, end: scene.span * 1.005};
  const timeline = {
    scene, canvas, context, whole, view: {...whole}, selected: null, range: null,
    collapsed: scene.ranks.length > 8, rows: [], width: 0, height: 0, left: 0, right: 0, pending: false, colours: null, fills: null,
  };
  timeline.x = t => timeline.left + (t - timeline.view.start) / (timeline.view.end - timeline.view.start) * (timeline.right - timeline.left);
  timeline.time = x => timeline.view.start + (x - timeline.left) / (timeline.right - timeline.left) * (timeline.view.end - timeline.view.start);
  timeline.schedule = () => {
    if (timeline.pending) return;
    timeline.pending = true;
    requestAnimationFrame(() => { timeline.pending = false; draw(timeline); });
  };
  timeline.restyle = () => { timeline.colours = null; timeline.schedule(); };
  timeline.arrange = () => { arrange(timeline); timeline.schedule(); };
  return timeline;
}

// Rows of lanes with their place: ledger first, then streams.
function arrange(timeline) {
  const {scene, collapsed} = timeline, ledger = scene.ranks.length >= 32 && collapsed ? 8 : 26;
  let y = RULER + 8;
  timeline.rows = [];
  scene.ranks.forEach((rank, index) => {
    const top = y;
    const add = (lane, h) => { timeline.rows.push({rank, index, lane, y, h, top}); y += h + LANE_GAP; };
    add(rank.ledger, ledger);
    if (!collapsed) for (const lane of rank.lanes) add(lane, lane.kind === "copy" ? 12 : 15);
    y += ledger === 8 ? 1 : RANK_GAP - LANE_GAP;
  });
  timeline.height = y;
}

function resize(timeline) {
  const {canvas, context} = timeline, ratio = devicePixelRatio || 1;
  timeline.width = canvas.parentElement.clientWidth;
  timeline.left = timeline.width > 700 ? 126 : 62;
  timeline.right = timeline.width - 12;
  canvas.style.height = timeline.height + "px";
  canvas.width = Math.round(timeline.width * ratio);
  canvas.height = Math.round(timeline.height * ratio);
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  if (!timeline.colours) {
    timeline.colours = readColours();
    timeline.fills = makeFills(context, timeline.colours);
  }
}

function draw(timeline) {
  resize(timeline);
  const {context: c, colours, scene, rows} = timeline;
  c.fillStyle = colours.card;
  c.fillRect(0, 0, timeline.width, timeline.height);
  c.textBaseline = "middle";
  drawRuler(timeline);
  const frame = {
    view: timeline.view, x: timeline.x, left: timeline.left, right: timeline.right, fills: timeline.fills, colours,
    families: scene.families, names: scene.names, span: scene.span,
  };
  for (const row of rows) {
    drawLabel(timeline, row);
    c.save();
    c.beginPath();
    c.rect(timeline.left, row.y - 2, timeline.right - timeline.left, row.h + 4);
    c.clip();
    if (row.lane.kind === "ledger") paintLedger(c, row.lane, row.y, row.h, frame);
    else {
      c.fillStyle = colours.lane;
      c.fillRect(timeline.left, row.y, timeline.right - timeline.left, row.h);
      paintStream(c, row.lane, row.y, row.h, frame);
    }
    c.restore();
  }
  drawSelection(timeline);
  drawRange(timeline);
  showWhere(timeline);
}

function drawRuler(timeline) {
  const {context: c, colours, view, left, right, height, x} = timeline;
  const rough = (view.end - view.start) / (timeline.width > 700 ? 8 : 3), power = 10 ** Math.floor(Math.log10(rough));
  const tick = [1, 2, 5, 10].map(k => k * power).find(t => t >= rough);
  c.font = FONT;
  c.strokeStyle = colours.line;
  c.fillStyle = colours.ink3;
  for (let t = Math.ceil(view.start / tick) * tick; t < view.end; t += tick) {
    const at = Math.round(x(t)) + .5;
    c.beginPath();
    c.moveTo(at, 6);
    c.lineTo(at, height);
    c.stroke();
    const text = (t < 0 ? "" : "+") + (Math.abs(t) < tick / 2 ? "0" : duration(t));
    if (at + 4 + c.measureText(text).width < right + 10) c.fillText(text, at + 4, 13);
  }
  if (left > 100) c.fillText(timeline.scene.step === null ? "since the start" : "step " + timeline.scene.step, 12, 13);
}

function drawLabel(timeline, row) {
  const {context: c, colours} = timeline, middle = row.y + row.h / 2 + .5;
  if (row.lane.kind === "ledger") {
    if (row.index && row.h > 8) {
      c.fillStyle = colours.line;
      c.fillRect(0, row.top - RANK_GAP / 2, timeline.width, 1);
    }
    c.font = row.h > 8 ? "620 12.5px Inter, system-ui, sans-serif" : "8px Inter, system-ui, sans-serif";
    c.fillStyle = colours.ink;
    c.fillText("rank " + row.rank.rank, 12, middle);
  } else {
    c.font = "10.5px Inter, system-ui, sans-serif";
    c.fillStyle = colours.ink3;
    const kind = timeline.left > 100 ? row.lane.kind + "  " : "";
    fitText(c, kind + "s" + row.lane.stream, timeline.left > 100 ? 34 : 20, middle, timeline.left - 26);
  }
}

function drawSelection(timeline) {
  const {context: c, colours, selected, x, left, right} = timeline;
  const row = selected && timeline.rows.find(r => r.lane === selected.lane);
  if (!row) return;
  const from = Math.max(left, x(row.lane.start[selected.i])), to = Math.min(right, x(row.lane.end[selected.i]));
  if (to < left || from > right) return;
  c.strokeStyle = colours.ink;
  c.lineWidth = 2;
  c.strokeRect(from - 1, row.y - 1, Math.max(3, to - from + 2), row.h + 2);
  c.lineWidth = 1;
}

function drawRange(timeline) {
  const {context: c, colours, range, x, height} = timeline;
  if (!range) return;
  const from = Math.max(timeline.left, x(range.start)), to = Math.min(timeline.right, x(range.end));
  if (to <= from) return;
  c.globalAlpha = .13;
  c.fillStyle = colours.link;
  c.fillRect(from, RULER, to - from, height - RULER);
  c.globalAlpha = 1;
  c.strokeStyle = colours.link;
  c.strokeRect(from + .5, RULER + .5, to - from, height - RULER - 1);
  c.font = BOLD;
  const text = duration(range.end - range.start), width = c.measureText(text).width;
  const at = Math.min(timeline.right - width - 10, Math.max(timeline.left, (from + to - width) / 2 - 5));
  c.fillStyle = colours.link;
  c.fillRect(at, 4, width + 10, 18);
  c.fillStyle = colours.card;
  c.fillText(text, at + 5, 13);
}

function showWhere(timeline) {
  const bold = document.createElement("b");
  bold.textContent = duration(timeline.view.end - timeline.view.start);
  byId("where").replaceChildren(bold, " shown");
}

function setView(timeline, start, end) {
  const {whole} = timeline, least = 200, most = whole.end - whole.start;
  const length = Math.min(most, Math.max(least, end - start)), middle = (start + end) / 2;
  const from = Math.min(whole.end - length, Math.max(whole.start, middle - length / 2));
  timeline.view = {start: from, end: from + length};
  timeline.schedule();
}

function zoom(timeline, factor, at = (timeline.view.start + timeline.view.end) / 2) {
  const {start, end} = timeline.view;
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
  const row = timeline.rows.find(r => py >= r.y - 1 && py <= r.y + r.h + 1);
  if (!row || px < timeline.left || px > timeline.right) return null;
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
