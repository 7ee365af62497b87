// Painting lanes. Colours come from the style sheet; patterns tell families apart without colour.

const ROLES = ["page", "card", "inset", "lane", "line", "line2", "ink", "ink2", "ink3", "link", "error", "compute", "pale", "matmul",
  "attention", "other", "wait", "order", "comm", "copy", "host", "idle", "heat0", "heat1", "hatch", "on-pale", "on-matmul", "on-attention",
  "on-other", "on-wait", "on-order", "on-comm", "on-copy", "on-host"];
const HATCHED = {wait: "/", order: "|", host: "\\", idle: "\\"};
const SANS = "px Inter, system-ui, sans-serif", FONT = "11" + SANS, BOLD = "600 11" + SANS, SMALL = "10.5" + SANS;
const GROUPS = [1024, 32], CODES = 10;

function readColours() {
  const style = getComputedStyle(document.documentElement);
  return Object.fromEntries(ROLES.map(role => [role, style.getPropertyValue("--" + role).trim()]));
}

function makeFills(context, colours) {
  const fills = {...colours, host: colours.line2, call: colours.line2, step: colours.line2, phase: colours.inset, module: colours.line, waiting: colours.comm};
  fills.family = {...colours};
  for (const [family, lines] of Object.entries(HATCHED)) fills.family[family] = hatched(context, colours, family, lines);
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

// Time by code of each 32 and 1024 neighbours, so that a frame of a million events need not look at each.
function groupsOf(lane) {
  const n = lane.start.length, fine = Math.floor(n / 32), rough = Math.floor(n / 1024);
  lane.groups = [new Float32Array(rough * CODES), new Float32Array(fine * CODES)];
  for (let i = 0; i < fine * 32; i++) addTime(lane, i, lane.groups[1], (i >> 5) * CODES);
  for (let k = 0; k < rough * 32 * CODES; k++) lane.groups[0][Math.floor(k / (32 * CODES)) * CODES + k % CODES] += lane.groups[1][k];
  return lane.groups;
}

function addTime(lane, i, time, at) {
  const ns = Math.max(1, lane.end[i] - lane.start[i]), wait = lane.wait && lane.wait[i] > 1 ? Math.min(ns, lane.wait[i] - 1) : 0;
  time[at + lane.code[i]] += ns - wait;
  if (wait) time[at + WAITING] += wait;
}

// Calls wide(i, x0, x1) for every event of at least a pixel, and narrow(x, width, code, cover) for runs of pixel columns
// that hold only narrower ones: code is what has most time there, cover its share of the column in eighths.
function eachMark(lane, view, frame, wide, narrow) {
  const {start, end} = lane, n = start.length, perPixel = (view.end - view.start) / (frame.right - frame.left), origin = frame.left - view.start / perPixel;
  const time = new Float64Array(CODES), many = !lane.groups && n > 4096 && firstAfter(lane, view.end) - firstAfter(lane, view.start) > 4096;
  const groups = lane.groups || (many ? groupsOf(lane) : []);
  let column = null, run = null;
  const endRun = () => { if (run) narrow(run.x, run.width, run.code, run.eighths / 8); run = null; };
  const flush = () => {
    if (column === null) return;
    let best = 0, total = 0;
    for (let k = 0; k < CODES; k++) {
      total += time[k];
      if (time[k] > time[best]) best = k;
    }
    time.fill(0);
    const eighths = Math.max(1, Math.min(8, Math.round(8 * total / perPixel)));
    if (run && run.x + run.width === column && run.code === best && run.eighths === eighths) run.width++;
    else {
      endRun();
      run = {x: column, width: 1, code: best, eighths};
    }
    column = null;
  };
  const enter = t => {
    const at = Math.max(frame.left, Math.floor(origin + t / perPixel));
    if (at !== column) flush();
    column = at;
  };
  let i = firstAfter(lane, view.start);
  walk: while (i < n && start[i] < view.end) {
    for (let level = 0; level < 2; level++) {
      const size = GROUPS[level];
      if (i % size === 0 && groups[level] && i + size <= n && lane.reach[i + size - 1] - start[i] < perPixel) {
        enter(start[i]);
        for (let k = 0, at = i / size * CODES; k < CODES; k++) time[k] += groups[level][at + k];
        i += size;
        continue walk;
      }
    }
    if (end[i] - start[i] >= perPixel) {
      flush();
      endRun();
      wide(i, origin + start[i] / perPixel, origin + end[i] / perPixel);
    } else if (end[i] > view.start) {
      enter(start[i]);
      addTime(lane, i, time, 0);
    }
    i++;
  }
  flush();
  endRun();
}

function paintLedger(c, lane, y, h, frame) {
  const {fills, colours, scene, focus} = frame, {families} = scene, focused = focus && scene.familyOf[focus];
  const fill = (code, left, width) => {
    if (code >= families.length) return;
    const key = families[code].key;
    c.fillStyle = key === "compute" ? fills.pale : h > 8 ? fills.family[key] : colours[key];
    c.fillRect(left, y, width, h);
    if (key === "compute" && h > 8) {
      c.fillStyle = fills.compute;
      c.fillRect(left, y + h - 3, width, 3);
    }
  };
  eachMark(lane, frame.view, frame, (i, x0, x1) => {
    const left = Math.max(x0, frame.left), right = Math.min(x1, frame.right), code = lane.code[i], key = code < families.length && families[code].key;
    const faded = focus && code && (lane.cause[i] & scene.coarse - 1) !== focus;
    c.globalAlpha = faded ? .34 : 1;
    fill(code, left, right - left);
    if (key === "idle" && right - left > 3) {
      c.strokeStyle = colours.idle;
      c.strokeRect(left + .5, y + .5, right - left - 1, h - 1);
    }
    if (code && key && !faded && h > 14 && right - left > 46) labelPiece(c, lane, i, key, left, right, y, h, frame);
    c.globalAlpha = 1;
  }, (at, width, code, cover) => {
    if (cover < .5) return; // the wide pieces beside it have most of the pixel
    c.globalAlpha = focus && code && code !== focused ? .34 : 1;
    fill(code, at, width);
    c.globalAlpha = 1;
  });
}

function causeOf(scene, lane, i) {
  return scene.causes[lane.cause[i] & scene.coarse - 1];
}

function labelPiece(c, lane, i, key, left, right, y, h, {colours, scene}) {
  const short = duration(lane.end[i] - lane.start[i]), long = causeOf(scene, lane, i)[2] + " " + short;
  c.font = BOLD;
  const text = [long, short].find(t => c.measureText(t).width < right - left - 12);
  if (!text) return;
  c.fillStyle = key === "idle" ? colours.card : colours[key];
  c.fillRect(left + 3, y + 4, c.measureText(text).width + 8, h - 8);
  c.fillStyle = key === "idle" ? colours.ink : colours["on-" + key];
  c.fillText(text, left + 7, y + h / 2 + .5);
}

// Only the events of `only` (sorted indices), where given: what a search has found.
function paintStream(c, lane, y, h, frame, only) {
  const {fills, colours} = frame;
  if (lane.occupancy && !only) paintOccupancy(c, lane, y, h, frame);
  c.font = FONT;
  const shown = only ? {...lane, ...picked(lane, only), groups: null} : lane;
  eachMark(shown, frame.view, frame, (i, x0, x1) => {
    const left = Math.max(x0, frame.left), right = Math.min(x1, frame.right), key = SHADES[shown.code[i]], gap = right - left > 3 ? .6 : 0;
    c.fillStyle = fills[key];
    let from = left;
    if (shown.wait && shown.wait[i] > 1) {
      from = Math.min(right, Math.max(left, x0 + (shown.wait[i] - 1) / (shown.end[i] - shown.start[i]) * (x1 - x0)));
      thin(c, left, from - left, y, h);
    }
    c.fillRect(from, y, Math.max(.8, right - from - gap), h);
    if (right - from > 34) {
      c.fillStyle = colours["on-" + key] && key !== "host" ? colours["on-" + key] : colours.ink;
      fitText(c, eventName(frame.scene, shown, i), from + 4, y + h / 2 + .5, right - from - 8);
    }
  }, (at, width, code, cover) => {
    const alpha = c.globalAlpha;
    c.globalAlpha = alpha * (.3 + .7 * cover);
    c.fillStyle = fills[SHADES[code]];
    if (code === WAITING) thin(c, at, width, y, h);
    else c.fillRect(at, y, width, h);
    c.globalAlpha = alpha;
  });
}

function thin(c, left, width, y, h) {
  const alpha = c.globalAlpha;
  c.globalAlpha = alpha * .3;
  c.fillRect(left, y + h * .3, width, h * .4);
  c.globalAlpha = alpha;
}

function picked(lane, only) {
  const take = column => column && column.constructor.from(only, i => column[i]), start = take(lane.start), end = take(lane.end);
  return {start, end, reach: end, code: take(lane.code), name: take(lane.name), wait: take(lane.wait), module: take(lane.module)};
}

function eventName(scene, lane, i) {
  const module = lane.module && lane.code[i] === COMM && lane.module[i] ? " " + scene.modules[lane.module[i] - 1] : "";
  return scene.names[lane.name[i]][0] + module;
}

// Events that were not kept one by one: their share of time as height, striped.
function paintOccupancy(c, lane, y, h, frame) {
  const width = frame.scene.span / lane.buckets, {view} = frame;
  const first = Math.max(0, Math.floor(view.start / width)), last = Math.min(lane.buckets - 1, Math.ceil(view.end / width));
  c.fillStyle = frame.fills[{compute: "other", nvtx: "module"}[lane.kind] || lane.kind];
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
