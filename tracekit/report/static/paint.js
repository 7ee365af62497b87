// Painting lanes. Colours come from the style sheet; patterns tell families apart without colour.

const ROLES = ["page", "card", "inset", "lane", "line", "line2", "ink", "ink2", "ink3", "link", "compute", "pale", "matmul",
  "attention", "other", "wait", "order", "comm", "copy", "host", "idle", "heat0", "heat1", "hatch", "on-pale", "on-matmul", "on-attention",
  "on-other", "on-wait", "on-order", "on-comm", "on-copy", "on-host"];
const HATCHED = {wait: "/", order: "|", host: "\\", idle: "\\"};
const FONT = "11px Inter, system-ui, sans-serif";
const BOLD = "600 11px Inter, system-ui, sans-serif";

function readColours() {
  const style = getComputedStyle(document.documentElement);
  return Object.fromEntries(ROLES.map(role => [role, style.getPropertyValue("--" + role).trim()]));
}

function makeFills(context, colours) {
  const fills = {...colours};
  for (const [family, lines] of Object.entries(HATCHED)) fills[family] = hatched(context, colours, family, lines);
  return fills;
}

function hatched(context, colours, family, lines) {
  const ratio = devicePixelRatio || 1, size = Math.round(7 * ratio);
  const tile = document.createElement("canvas");
  tile.width = tile.height = size;
  const pen = tile.getContext("2d");
  if (family !== "idle") {
    pen.fillStyle = colours[family];
    pen.fillRect(0, 0, size, size);
  }
  pen.strokeStyle = family === "idle" ? colours.idle : colours.hatch;
  pen.lineWidth = 1.2 * ratio;
  pen.beginPath();
  for (const shift of [-size, 0, size]) {
    if (lines === "/") { pen.moveTo(shift, size); pen.lineTo(shift + size, 0); }
    if (lines === "\\") { pen.moveTo(shift, 0); pen.lineTo(shift + size, size); }
  }
  if (lines === "|") { pen.moveTo(size / 2, 0); pen.lineTo(size / 2, size); }
  pen.stroke();
  const pattern = context.createPattern(tile, "repeat");
  pattern.setTransform(new DOMMatrix().scale(1 / ratio));
  return pattern;
}

// Calls wide(i, x0, x1) for every event of at least a pixel, and narrow(x, code, cover) for every pixel column that holds
// only narrower ones: code is what has most time there, cover its share of the column.
function eachMark(lane, view, x, wide, narrow) {
  const perPixel = 1 / (x(1) - x(0)), time = new Float64Array(8);
  let column = null;
  const flush = () => {
    if (column === null) return;
    let best = 0, total = 0;
    for (let k = 0; k < time.length; k++) {
      total += time[k];
      if (time[k] > time[best]) best = k;
    }
    narrow(column, best, Math.min(1, total / perPixel));
    time.fill(0);
    column = null;
  };
  for (let i = firstAfter(lane, view.start); i < lane.start.length && lane.start[i] < view.end; i++) {
    const x0 = x(lane.start[i]), x1 = x(lane.end[i]);
    if (x1 - x0 >= 1) {
      flush();
      wide(i, x0, x1);
    } else if (lane.end[i] > view.start) {
      const at = Math.floor(x0);
      if (at !== column) flush();
      column = at;
      time[lane.code[i]] += Math.max(1, lane.end[i] - lane.start[i]);
    }
  }
  flush();
}

function paintLedger(c, lane, y, h, frame) {
  const {fills, colours, families} = frame;
  const fill = (code, left, width) => {
    const key = families[code].key;
    c.fillStyle = key === "compute" ? fills.pale : fills[key];
    c.fillRect(left, y, width, h);
    if (key === "compute" && h > 8) {
      c.fillStyle = fills.compute;
      c.fillRect(left, y + h - 3, width, 3);
    }
  };
  eachMark(lane, frame.view, frame.x, (i, x0, x1) => {
    const left = Math.max(x0, frame.left), right = Math.min(x1, frame.right), key = families[lane.code[i]].key;
    fill(lane.code[i], left, right - left);
    if (key === "idle" && right - left > 3) {
      c.strokeStyle = colours.idle;
      c.strokeRect(left + .5, y + .5, right - left - 1, h - 1);
    }
    if (key !== "compute" && h > 14 && right - left > 46) labelPiece(c, lane, i, key, left, right, y, h, frame);
  }, (at, code, cover) => {
    c.globalAlpha = .3 + .7 * cover;
    fill(code, at, 1);
    c.globalAlpha = 1;
  });
}

function labelPiece(c, lane, i, key, left, right, y, h, {colours, families}) {
  const short = duration(lane.end[i] - lane.start[i]), long = families[lane.code[i]].label + " " + short;
  c.font = BOLD;
  const text = [long, short].find(t => c.measureText(t).width < right - left - 12);
  if (!text) return;
  c.fillStyle = key === "idle" ? colours.card : colours[key];
  c.fillRect(left + 3, y + 4, c.measureText(text).width + 8, h - 8);
  c.fillStyle = key === "idle" ? colours.ink : colours["on-" + key];
  c.fillText(text, left + 7, y + h / 2 + .5);
}

function paintStream(c, lane, y, h, frame) {
  const {fills, colours} = frame;
  if (lane.occupancy) paintOccupancy(c, lane, y, h, frame);
  c.font = FONT;
  eachMark(lane, frame.view, frame.x, (i, x0, x1) => {
    const left = Math.max(x0, frame.left), right = Math.min(x1, frame.right), key = SHADES[lane.code[i]];
    c.fillStyle = fills[key];
    c.fillRect(left, y, right - left - (right - left > 3 ? .6 : 0), h);
    if (right - left > 34) {
      c.fillStyle = colours["on-" + key];
      fitText(c, frame.names[lane.name[i]][0], left + 4, y + h / 2 + .5, right - left - 8);
    }
  }, (at, code, cover) => {
    c.globalAlpha = .3 + .7 * cover;
    c.fillStyle = fills[SHADES[code]];
    c.fillRect(at, y, 1, h);
    c.globalAlpha = 1;
  });
}

// Operations that were not kept one by one: their share of time as height, striped.
function paintOccupancy(c, lane, y, h, frame) {
  const width = frame.span / lane.buckets;
  const first = Math.max(0, Math.floor(frame.view.start / width)), last = Math.min(lane.buckets - 1, Math.ceil(frame.view.end / width));
  c.fillStyle = frame.fills[lane.kind === "compute" ? "other" : lane.kind];
  for (let k = first; k <= last; k++) {
    const share = lane.occupancy[k] / 255, left = Math.max(frame.left, frame.x(k * width)), right = Math.min(frame.right, frame.x((k + 1) * width));
    for (let row = h - 1; row >= h - h * share; row -= 2) c.fillRect(left, y + row, Math.max(.5, right - left), 1);
  }
}

function fitText(c, text, x, y, width) {
  let shown = text;
  if (c.measureText(text).width > width) {
    const letters = Math.floor(width / (c.measureText(text).width / text.length)) - 1;
    if (letters < 3) return;
    shown = text.slice(0, letters) + "…";
  }
  c.fillText(shown, x, y);
}
