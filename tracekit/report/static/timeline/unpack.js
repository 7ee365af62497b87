// Reading the page's data: see timeline/payload.py for the format.

const byId = id => document.getElementById(id);

function whenIdle(act) {
  if (window.requestIdleCallback) requestIdleCallback(act, {timeout: 1000});
  else setTimeout(act, 50);
}

function json(id) {
  const block = byId(id);
  return block ? JSON.parse(block.textContent) : null;
}

function bytesOf(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const raw = atob(text), bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  return bytes;
}

async function inflate(id) {
  const stream = new Blob([bytesOf(byId(id).textContent)]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

function columnReader(bytes) {
  let at = 0;
  return (n, Kind) => {
    const out = new Kind(n), mode = bytes[at];
    let p = at + 1, last = 0;
    for (let i = 0; i < (mode ? n : 1); i++) {
      let value = bytes[p++];
      if (value > 127) {
        value &= 127;
        for (let scale = 128, more = true; more; scale *= 128) { // not shifts: times need more than 32 bits
          value += (bytes[p] & 127) * scale;
          more = bytes[p++] > 127;
        }
      }
      if (mode === 1) out[i] = value;
      else if (mode === 2) out[i] = last += value % 2 ? -(value + 1) / 2 : value / 2;
      else if (value) out.fill(value);
    }
    at = p;
    return out;
  };
}

// A lane is {rank, kind, label, start, end, reach, code, ...}: columns sorted by start. `reach` is the latest end so far,
// `code` what an event is painted as.
async function readScene() {
  const scene = json("scene-data");
  const column = columnReader(await inflate("scene-columns"));
  scene.shades = Uint8Array.from(scene.names, name => Math.max(0, SHADES.indexOf(name[2])));
  scene.familyOf = Uint8Array.from(scene.causes, cause => {
    const family = scene.families.findIndex(f => f.key === cause[1]);
    return family < 0 ? scene.families.length : family;
  });
  let first = 1;
  for (const kind of scene.collectives) {
    kind.first = first;
    kind.seqs = column(kind.count, Uint32Array);
    first += kind.count;
  }
  for (const rank of scene.ranks) {
    rank.ledger = readLedger(scene, rank, column);
    const [number, start, length] = [column(rank.steps, Int32Array), column(rank.steps, Float64Array), column(rank.steps, Float64Array)];
    rank.steps = Array.from(number, (n, i) => ({number: n, start: start[i], end: start[i] + length[i]}));
    let calls = 0;
    for (const lane of rank.lanes) {
      readLane(scene, rank, lane, column);
      if (lane.kind === "host") {
        lane.firstCall = calls + 1;
        calls += lane.count;
      }
    }
  }
  return scene;
}

function readLedger(scene, rank, column) {
  const n = rank.pieces, end = column(n, Float64Array), cause = column(n, Uint8Array), start = new Float64Array(n), code = new Uint8Array(n);
  let t = rank.start;
  for (let i = 0; i < n; i++) {
    start[i] = t;
    end[i] = t += end[i];
    code[i] = scene.familyOf[cause[i] & scene.coarse - 1];
  }
  rank.end = t;
  return {kind: "ledger", rank, start, end, reach: end, cause, code, count: n, label: ""};
}

function readLane(scene, rank, lane, column) {
  const n = lane.count, start = column(n, Float64Array), end = column(n, Float64Array);
  let t = lane.base, reach = -Infinity, nested = false;
  for (let i = 0; i < n; i++) {
    start[i] = t += start[i];
    end[i] += t;
    nested ||= end[i] < reach;
    reach = Math.max(reach, end[i]);
  }
  const wide = {name: scene.names.length, module: scene.modules.length};
  for (const name of scene.columns[lane.kind]) {
    const Kind = name === "wait" || name === "bytes" ? Float64Array : wide[name] > 65535 || name === "call" || name === "collective" ? Uint32Array : name in wide ? Uint16Array : Uint8Array;
    lane[name === "kind" ? "type" : name] = column(n, Kind);
  }
  Object.assign(lane, {rank, start, end, reach: end, code: new Uint8Array(n)});
  if (nested) for (let i = 1, reached = lane.reach = Float64Array.from(end); i < n; i++) reached[i] = Math.max(reached[i], reached[i - 1]);
  for (let i = 0; i < n; i++) lane.code[i] = shadeCode(scene, lane, i);
  lane.occupancy = lane.buckets ? column(lane.buckets, Uint8Array) : null;
}

// What an event is painted as.
const SHADES = ["other", "matmul", "attention", "comm", "copy", "host", "step", "phase", "module", "waiting"];
const COMM = 3, COPY = 4, CALL = 5, RANGE = 6, WAITING = 9;

function shadeCode(scene, lane, i) {
  if (lane.kind === "host") return CALL;
  if (lane.kind === "nvtx") return RANGE + lane.type[i];
  return lane.type[i] ? lane.type[i] === 1 ? COMM : COPY : scene.shades[lane.name[i]];
}

// Index of the first event that ends after t.
function firstAfter(lane, t) {
  return search(lane.reach, t, false);
}

// Index of the first entry of a sorted column beyond t (or at it).
function search(column, t, at = true) {
  let low = 0, high = column.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (at ? column[middle] < t : column[middle] <= t) low = middle + 1; else high = middle;
  }
  return low;
}

function duration(ns) {
  const size = Math.abs(ns);
  if (size >= 1e9) return (ns / 1e9).toFixed(3) + " s";
  if (size >= 1e6) return (ns / 1e6).toFixed(size >= 1e8 ? 1 : 2) + " ms";
  if (size >= 1e3) return (ns / 1e3).toFixed(size >= 1e5 ? 0 : 1) + " µs";
  return Math.round(ns) + " ns";
}

function percent(part, whole) {
  const value = 100 * part / whole;
  return value > 0 && value < 0.5 ? "<1 %" : Math.round(value) + " %";
}

function size(bytes) {
  const unit = [[1e9, "GB"], [1e6, "MB"], [1e3, "kB"]].find(([least]) => bytes >= least) || [1, "B"], value = bytes / unit[0];
  return (value < 10 && unit[0] > 1 ? value.toFixed(1) : Math.round(value)) + " " + unit[1];
}
