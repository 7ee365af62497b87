// Reading the page's data: see payload.py for the format.

const byId = id => document.getElementById(id);

function json(id) {
  const block = byId(id);
  return block ? JSON.parse(block.textContent) : null;
}

async function inflate(id) {
  const bytes = Uint8Array.from(atob(byId(id).textContent), c => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

function varintReader(bytes) {
  let at = 0;
  return () => {
    let value = 0, scale = 1, byte;
    do {
      byte = bytes[at++];
      value += (byte & 127) * scale; // not shifts: times need more than 32 bits
      scale *= 128;
    } while (byte & 128);
    return value;
  };
}

// A lane is {kind, stream, start, end, reach, name, code, colours}: columns sorted by start, `reach` the latest end so far.
async function readScene() {
  const scene = json("scene-data");
  if (!scene) return null;
  const next = varintReader(await inflate("scene-columns"));
  const column = (n, Kind) => Kind.from({length: n}, next);
  for (const rank of scene.ranks) {
    rank.ledger = readLedger(rank, column);
    for (const lane of rank.lanes) readLane(lane, scene, column);
  }
  return scene;
}

function readLedger(rank, column) {
  const n = rank.pieces, lengths = column(n, Float64Array), code = column(n, Uint8Array);
  const start = new Float64Array(n), end = new Float64Array(n);
  let t = rank.start;
  for (let i = 0; i < n; i++) {
    start[i] = t;
    t += lengths[i];
    end[i] = t;
  }
  return {kind: "ledger", start, end, reach: end, code};
}

function readLane(lane, scene, column) {
  const n = lane.count, steps = column(n, Float64Array), lengths = column(n, Float64Array);
  lane.start = new Float64Array(n);
  lane.end = new Float64Array(n);
  lane.reach = new Float64Array(n);
  let t = lane.base, reach = -Infinity;
  for (let i = 0; i < n; i++) {
    t += steps[i];
    lane.start[i] = t;
    lane.end[i] = t + lengths[i];
    lane.reach[i] = reach = Math.max(reach, lane.end[i]);
  }
  lane.name = column(n, Uint32Array);
  const kinds = column(n, Uint8Array);
  lane.code = Uint8Array.from(kinds, (kind, i) => shadeCode(scene, kind, lane.name[i]));
  lane.occupancy = lane.buckets ? column(lane.buckets, Uint8Array) : null;
}

// What an event on a stream is painted as.
const SHADES = ["other", "matmul", "attention", "comm", "copy"];

function shadeCode(scene, kind, name) {
  const key = scene.kinds[kind];
  return Math.max(0, SHADES.indexOf(key === "compute" ? scene.names[name][2] : key));
}

// Index of the first event that ends after t.
function firstAfter(lane, t) {
  let low = 0, high = lane.reach.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (lane.reach[middle] <= t) low = middle + 1; else high = middle;
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
