// Finding events by the name of a kernel, call, range or module, and ranks by number.

function matches(scene, query) {
  const has = text => text.toLowerCase().includes(query);
  return {name: Uint8Array.from(scene.names, name => has(name[0]) || has(name[1]) ? 1 : 0), module: Uint8Array.from([0, ...scene.modules.map(module => has(module) ? 1 : 0)])};
}

function find(timeline, text) {
  const query = text.trim().toLowerCase(), count = byId("hits");
  timeline.query = query;
  timeline.hits = query ? new Map() : null;
  let total = 0;
  if (query) {
    const {name, module} = matches(timeline.scene, query);
    for (const rank of timeline.ranks) {
      for (const lane of rank.lanes) {
        const own = [];
        for (let i = 0; i < lane.start.length; i++) if (name[lane.name[i]] || lane.module && module[lane.module[i]]) own.push(i);
        if (own.length) timeline.hits.set(lane, Uint32Array.from(own));
        total += own.length;
      }
    }
  }
  count.textContent = query ? total.toLocaleString("en") + (total === 1 ? " hit" : " hits") : "";
  timeline.schedule();
}

// The next hit in time after the selection (or the left edge), on any lane; the search begins anew at the end.
function nextHit(timeline, by) {
  if (!timeline.hits || !timeline.hits.size) return;
  const {selected, scene} = timeline, row = new Map(scene.ranks.flatMap(rank => rank.lanes).map((lane, k) => [lane, k]));
  const now = selected ? [selected.lane.start[selected.i], row.get(selected.lane) ?? -1] : [by > 0 ? timeline.view.start : timeline.view.end, by > 0 ? -1 : Infinity];
  const beyond = (t, k) => by > 0 ? t > now[0] || t === now[0] && k > now[1] : t < now[0] || t === now[0] && k < now[1];
  let best = null, edge = null;
  const closer = (a, b) => !b || (by > 0 ? a.t < b.t || a.t === b.t && a.k < b.k : a.t > b.t || a.t === b.t && a.k > b.k);
  for (const [lane, own] of timeline.hits) {
    const k = row.get(lane), at = lowerHit(lane, own, now[0]);
    for (const j of [at - 1, at, at + 1]) {
      const found = j >= 0 && j < own.length && {lane, i: own[j], t: lane.start[own[j]], k};
      if (found && beyond(found.t, k) && closer(found, best)) best = found;
    }
    const end = own[by > 0 ? 0 : own.length - 1], first = {lane, i: end, t: lane.start[end], k};
    if (closer(first, edge)) edge = first;
  }
  const {lane, i} = best || edge;
  reveal(timeline, lane);
  select(timeline, {lane, i});
}

function lowerHit(lane, own, t) {
  let low = 0, high = own.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (lane.start[own[middle]] < t) low = middle + 1; else high = middle;
  }
  return low;
}

// "0, 4-7" as a set of numbers; null for all ranks.
function numbersIn(text) {
  const found = new Set();
  for (const [, from, to] of text.matchAll(/(\d+)(?:\s*-\s*(\d+))?/g)) {
    for (let n = +from; n <= Math.min(+(to ?? from), +from + 1e5); n++) found.add(n);
  }
  return found.size ? found : null;
}

function filterRanks(timeline, text) {
  const only = numbersIn(text);
  timeline.only = only && timeline.scene.ranks.some(rank => only.has(rank.rank)) ? only : null;
  timeline.arrange();
  if (timeline.query) find(timeline, timeline.query);
}

// Makes a lane visible: expands its rank, lets it through the filter.
function reveal(timeline, lane) {
  if (timeline.rows.some(row => row.lane === lane)) return;
  if (timeline.only && !timeline.only.has(lane.rank.rank)) {
    timeline.only = null;
    byId("ranks").value = "";
  }
  if (lane.kind !== "ledger") timeline.expanded.add(lane.rank);
  arrange(timeline);
}
