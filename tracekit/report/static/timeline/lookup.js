// What is known of an event: its collective and peers, its launch, what runs around a bubble. Only looked up, not measured.

function kindOf(scene, number) {
  return scene.collectives.find(kind => number >= kind.first && number < kind.first + kind.count);
}

// {kind, seq, number} of a matched collective, or null.
function collectiveOf(scene, {lane, i}) {
  const number = lane.collective ? lane.collective[i] : 0, kind = number && kindOf(scene, number);
  return kind ? {kind, number, seq: kind.seqs[number - kind.first]} : null;
}

// The same collective on every rank that the page holds it of, in order of rank.
function peersOf(scene, event) {
  const number = event.lane.collective ? event.lane.collective[event.i] : 0, found = [];
  if (!number) return found;
  for (const rank of scene.ranks) {
    for (const lane of rank.lanes) {
      const i = lane.collective ? lane.collective.indexOf(number) : -1;
      if (i >= 0) found.push({lane, i});
    }
  }
  return found;
}

// The peer that arrives last, where waiting could be told.
function lastArrival({peers}) {
  const told = peers.filter(({lane, i}) => lane.wait[i]);
  return told.length > 1 ? told.reduce((a, b) => a.lane.wait[a.i] <= b.lane.wait[b.i] ? a : b) : null;
}

// {call, op} of a launch and what it launched, from either; null where one is not in the page.
function launchOf(timeline, {lane, i}) {
  if (lane.call && lane.call[i]) {
    const call = lane.call[i], host = lane.rank.lanes.find(l => l.kind === "host" && call >= l.firstCall && call < l.firstCall + l.count);
    return host ? {op: {lane, i}, call: {lane: host, i: call - host.firstCall}} : null;
  }
  if (lane.kind !== "host") return null;
  for (const stream of lane.rank.lanes) {
    const at = stream.call ? stream.call.indexOf(lane.firstCall + i) : -1;
    if (at >= 0) return {call: {lane, i}, op: {lane: stream, i: at}};
  }
  return null;
}

function isStream(lane) {
  return Boolean(lane.call);
}

// The communication or copy that runs at an instant; the one that began first.
function runningAt(rank, t, kinds) {
  let found = null;
  for (const lane of rank.lanes.filter(isStream)) {
    for (let i = firstAfter(lane, t); i < lane.start.length && lane.start[i] <= t; i++) {
      if (kinds.includes(lane.type[i]) && lane.end[i] > t && !(found && found.lane.start[found.i] <= lane.start[i])) found = {lane, i};
    }
  }
  return found;
}

// {before, after}: what ended last before a bubble, and what starts next after it.
function around(rank, start, end) {
  let before = null, after = null;
  for (const lane of rank.lanes.filter(isStream)) {
    for (let i = search(lane.start, start) - 1, looked = 0; i >= 0 && looked < 16; i--, looked++) {
      if (lane.end[i] <= start && !(before && before.lane.end[before.i] >= lane.end[i])) before = {lane, i};
    }
    const i = search(lane.start, end);
    if (i < lane.start.length && !(after && after.lane.start[after.i] <= lane.start[i])) after = {lane, i};
  }
  return {before, after};
}

function stepAt(rank, t) {
  return rank.steps.find(step => step.start <= t && t < step.end);
}

// "+5.20 ms in step 8", and the instant on the first rank's clock.
function placeOf(scene, rank, t) {
  const step = stepAt(rank, t);
  const absolute = scene.origin === null ? "" : " (" + ((scene.origin + t) / 1e9).toFixed(6) + " s)";
  return "+" + duration(t - (step ? step.start : 0)) + (step ? " in step " + step.number : "") + absolute;
}

// {name, ns, facts: [[term, text]], full}: all that is known of what `hit` returns.
function describe(timeline, {lane, i, bucket}) {
  const {scene} = timeline, {rank} = lane, where = "rank " + rank.rank;
  if (bucket !== undefined) {
    return {name: Math.round(100 * lane.occupancy[bucket] / 255) + " % busy", facts: [["Shown", "as occupancy: not kept one by one here"], ["Where", where + ", " + lane.label]]};
  }
  const start = lane.start[i], ns = lane.end[i] - start, step = stepAt(rank, start), place = [["Where", where + (lane.label ? ", " + laneName(lane) : "")], ["At", placeOf(scene, rank, start)]];
  const share = step ? percent(ns, step.end - step.start) + " of step " + step.number : percent(ns, scene.span) + " of the capture";
  if (lane.kind === "ledger") return {ns, ...describePiece(scene, lane, i, share), place};
  const [short, full] = scene.names[lane.name[i]], facts = [];
  if (lane.kind === "host" || lane.kind === "nvtx") facts.push(["Share", share]);
  else if (lane.type[i] === 1) facts.push(...describeCollective(scene, lane, i, ns));
  else {
    facts.push(["Share", share]);
    if (lane.bytes[i]) facts.push(["Bytes", size(lane.bytes[i] - 1) + (ns ? " · " + ((lane.bytes[i] - 1) / ns).toFixed(1) + " GB/s" : "")]);
  }
  if (lane.module && (lane.module[i] || lane.phase[i])) {
    facts.push(["Module", [lane.module[i] && scene.modules[lane.module[i] - 1], lane.phase[i] && scene.phaseNames[lane.phase[i] - 1]].filter(Boolean).join(", ")]);
  }
  const pair = launchOf(timeline, {lane, i}), launched = pair && lane.call;
  if (launched) facts.push(["Launch", duration(start - pair.call.lane.start[pair.call.i]) + " before, " + pair.call.lane.label]);
  return {name: short, ns, facts, place, full: full === short ? null : full};
}

function laneName(lane) {
  return lane.kind === "host" || lane.kind === "nvtx" ? lane.label : "stream " + lane.label.slice(1);
}

function describePiece(scene, lane, i, share) {
  const cause = causeOf(scene, lane, i), facts = [["Share", share]], {rank} = lane, term = cause[1], t = lane.start[i];
  if (lane.cause[i] >= scene.coarse) facts.push(["Shown", "the largest part of a slice"]);
  else if (cause[0] !== "compute" && cause[0] !== "outside") {
    const held = runningAt(rank, t, term === "copy" ? [2] : [1]), {before, after} = around(rank, t, lane.end[i]);
    if (held && held.lane.start[held.i] <= t) facts.push(["In", eventName(scene, held.lane, held.i)]);
    const name = event => event ? scene.names[event.lane.name[event.i]][0] : "nothing";
    if (before || after) facts.push(["Between", name(before) + " and " + name(after)]);
  }
  return {name: cause[2], facts, full: null};
}

function describeCollective(scene, lane, i, ns) {
  const facts = [], wait = lane.wait[i] ? lane.wait[i] - 1 : null, bytes = lane.bytes[i] ? lane.bytes[i] - 1 : null, found = collectiveOf(scene, {lane, i});
  if (wait !== null) facts.push(["Time", duration(wait) + " wait + " + duration(ns - wait) + " transfer"]);
  const moved = bytes === null ? [] : [size(bytes)];
  if (bytes && wait !== null && ns > wait && found && found.kind.factor) {
    const bus = bytes * found.kind.factor / (ns - wait), {peak} = found.kind;
    moved.push(bus.toFixed(0) + " GB/s bus" + (peak ? ", " + percent(bus, peak) + " of peak" : ""));
  }
  if (moved.length) facts.push(["Moved", moved.join(" · ")]);
  if (found) facts.push(["Which", "seq " + found.seq + (found.kind.communicator ? " of communicator " + found.kind.communicator : "")]);
  return facts;
}
