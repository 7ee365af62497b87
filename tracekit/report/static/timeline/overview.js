// The strip above the lanes: every step (without steps: every slice of the capture) with the share of each cause.

const STRIP = 56, BARS = 34, SLICES = 240;

function overviewOf(scene) {
  const windows = new Map();
  for (const rank of scene.ranks) {
    for (const {number, start, end} of rank.steps) {
      const known = windows.get(number);
      windows.set(number, known ? {number, start: Math.min(known.start, start), end: Math.max(known.end, end)} : {number, start, end});
    }
  }
  const slice = scene.span / SLICES, steps = [...windows.values()].sort((a, b) => a.start - b.start);
  const parts = steps.length ? steps : Array.from({length: SLICES}, (_, k) => ({number: null, start: k * slice, end: (k + 1) * slice}));
  for (const part of parts) part.time = new Float64Array(scene.families.length + 1);
  for (const rank of scene.ranks) {
    const own = steps.length ? new Map(rank.steps.map(step => [step.number, step])) : null;
    for (const part of parts) {
      const window = own ? own.get(part.number) : part;
      if (window) timeByFamily(rank.ledger, window, part.time);
    }
    rank.time = timeByFamily(rank.ledger, {start: rank.start, end: rank.end}, new Float64Array(scene.families.length + 1));
  }
  return parts;
}

function timeByFamily(ledger, range, time) {
  for (let i = firstAfter(ledger, range.start); i < ledger.start.length && ledger.start[i] < range.end; i++) {
    time[ledger.code[i]] += Math.min(range.end, ledger.end[i]) - Math.max(range.start, ledger.start[i]);
  }
  return time;
}

function waitShare({scene}, rank) {
  const wait = scene.families.findIndex(family => family.key === "wait");
  return rank.time[wait] / Math.max(1, rank.end - rank.start);
}

// The bars are painted once for a width and theme; a frame copies them and draws the window.
function drawOverview(timeline) {
  const {map, colours, left, right, width, view, whole} = timeline, c = map.getContext("2d"), ratio = devicePixelRatio || 1;
  if (!width) return;  // hidden, as it is in print
  const x = t => left + (t - whole.start) / (whole.end - whole.start) * (right - left);
  if (timeline.strip?.made !== colours || timeline.strip.w !== width || timeline.strip.ratio !== ratio) {
    const copy = document.createElement("canvas");
    timeline.strip = {copy, made: colours, w: width, ratio};
    paintStrip(timeline, copy, x);
  }
  const from = x(view.start), to = x(view.end), drawn = from.toFixed(1) + to.toFixed(1);
  if (timeline.strip.drawn === drawn) return;
  timeline.strip.drawn = drawn;
  fit(map, c, width, STRIP, ratio);
  c.drawImage(timeline.strip.copy, 0, 0, width, STRIP);
  c.strokeStyle = colours.ink;
  c.lineWidth = 1.6;
  c.strokeRect(Math.max(left - 1, from), 4, Math.max(3, Math.min(right, to) - from), BARS + 4);
  c.lineWidth = 1;
}

function paintStrip(timeline, canvas, x) {
  const {scene, colours, left, right, width, overview} = timeline, c = canvas.getContext("2d");
  fit(canvas, c, width, STRIP, devicePixelRatio || 1);
  c.fillStyle = colours.page;
  c.fillRect(0, 0, width, STRIP);
  c.textBaseline = "middle";
  c.font = FONT;
  c.fillStyle = colours.ink3;
  const steps = overview[0].number !== null;
  if (left > 100) {
    c.fillText(steps ? overview.length + (overview.length === 1 ? " step," : " steps,") : "the capture,", 12, 15);
    c.fillText("share by cause", 12, 30);
  }
  let free = left;
  for (const part of overview) {
    const from = x(part.start), to = x(part.end), total = part.time.reduce((sum, ns) => sum + ns, 0), warm = steps && !scene.steady.includes(part.number);
    let y = 6 + BARS;
    c.globalAlpha = warm ? .45 : 1;
    scene.families.forEach((family, code) => {
      const h = total ? part.time[code] / total * BARS : 0;
      c.fillStyle = family.key === "compute" ? colours.pale : colours[family.key];
      c.fillRect(from, y -= h, Math.max(.6, to - from - (to - from > 4 ? 1 : 0)), h);
    });
    c.globalAlpha = 1;
    const label = part.number + (part.number === scene.step && to - from > 70 ? " median" : warm && to - from > 90 ? scene.cutOff.includes(part.number) ? " cut off" : " warm-up" : "");
    if (steps && from >= free && from + c.measureText(label).width < right) {
      c.fillStyle = colours.ink3;
      c.fillText(label, from + 2, 47.5);
      free = from + c.measureText(label).width + 8;
    }
  }
}

// A click shows the step; a drag moves the window.
function listenToOverview(timeline) {
  const {map} = timeline;
  const timeAt = event => {
    const px = event.clientX - map.getBoundingClientRect().left;
    return timeline.whole.start + (px - timeline.left) / (timeline.right - timeline.left) * (timeline.whole.end - timeline.whole.start);
  };
  let from = null;
  map.addEventListener("pointerdown", event => {
    from = event.clientX;
    map.setPointerCapture(event.pointerId);
  });
  map.addEventListener("pointermove", event => {
    if (from === null || Math.abs(event.clientX - from) < 4) return;
    from = NaN;
    const half = (timeline.view.end - timeline.view.start) / 2, t = timeAt(event);
    setView(timeline, t - half, t + half);
  });
  map.addEventListener("pointerup", event => {
    const t = timeAt(event), part = timeline.overview.find(p => t < p.end) || timeline.overview.at(-1);
    if (!Number.isNaN(from)) {
      if (part.number !== null) showStep(timeline, part.number);
      else setView(timeline, t - (timeline.view.end - timeline.view.start) / 2, t + (timeline.view.end - timeline.view.start) / 2);
    }
    from = null;
  });
}

function showStep(timeline, number) {
  const part = timeline.overview.find(p => p.number === number);
  if (!part) return false;
  const margin = (part.end - part.start) * .005;
  setView(timeline, part.start - margin, part.end + margin);
  return true;
}

// The step before or after the one in the middle of the view.
function nextStep(timeline, by) {
  const steps = timeline.overview, middle = (timeline.view.start + timeline.view.end) / 2;
  if (steps[0].number === null) return;
  const at = steps.findIndex(step => middle < step.end), now = at < 0 ? steps.length - 1 : at;
  showStep(timeline, steps[Math.min(steps.length - 1, Math.max(0, now + by))].number);
}
