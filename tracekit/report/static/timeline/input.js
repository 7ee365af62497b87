// Mouse, touch and keys. The wheel alone scrolls the page; in full-page mode it scrolls the lanes.

const DRAG_PX = 4;

function listen(timeline) {
  const {canvas} = timeline, place = event => {
    const box = canvas.getBoundingClientRect();
    return {x: event.clientX - box.left, y: event.clientY - box.top};
  };
  const pointers = new Map();
  let drag = null;

  canvas.addEventListener("pointerdown", event => {
    if (event.button > 1) return;
    const at = place(event);
    pointers.set(event.pointerId, at);
    drag = {from: at, view: {...timeline.view}, moved: false, pan: event.shiftKey || event.button === 1 || event.pointerType === "touch"};
    if (pointers.size === 2) {
      drag.pinch = distance(pointers);
      drag.from = {x: [...pointers.values()].reduce((sum, p) => sum + p.x / 2, 0)};
    }
    if (event.button === 1) event.preventDefault();
  });
  canvas.addEventListener("pointermove", event => {
    const at = place(event);
    if (!drag) { if (event.pointerType !== "touch") showTip(timeline, hit(timeline, at.x, at.y), event); return; }
    pointers.set(event.pointerId, at);
    if (!drag.moved && Math.abs(at.x - drag.from.x) < DRAG_PX && !drag.pinch) return;
    if (!drag.moved) { drag.moved = true; canvas.setPointerCapture(event.pointerId); hideTip(); }
    const {start, end} = drag.view, perPixel = (end - start) / (timeline.right - timeline.left);
    if (drag.pinch) {
      const factor = drag.pinch / Math.max(20, distance(pointers)), middle = start + (drag.from.x - timeline.left) * perPixel;
      setView(timeline, middle - (middle - start) * factor, middle + (end - middle) * factor);
    } else if (drag.pan) {
      const by = (drag.from.x - at.x) * perPixel;
      setView(timeline, start + by, end + by);
    } else {
      const [from, to] = [drag.from.x, at.x].map(x => timeline.time(Math.min(timeline.right, Math.max(timeline.left, x)))).sort((a, b) => a - b);
      timeline.range = {start: from, end: to};
      timeline.schedule();
    }
  });
  const release = event => {
    pointers.delete(event.pointerId);
    if (!drag || pointers.size) return;
    const {from} = drag;
    if (drag.moved) { if (!drag.pan && !drag.pinch) showRange(timeline); }
    else if (event.type === "pointerup" && from.x < timeline.left) toggleRank(timeline, from.y + timeline.offset);
    else if (event.type === "pointerup") {
      const found = hit(timeline, from.x, from.y);
      timeline.range = null;
      if (!found) timeline.focus = 0;
      select(timeline, found && found.i !== undefined ? withCollective(timeline, found, from.x) : null);
    }
    drag = null;
  };
  canvas.addEventListener("pointerup", release);
  canvas.addEventListener("pointercancel", release);
  canvas.addEventListener("pointerleave", hideTip);
  canvas.addEventListener("dblclick", event => place(event).x < timeline.left || fitSelection(timeline));
  canvas.addEventListener("wheel", event => {
    if (event.ctrlKey || event.metaKey) {
      event.preventDefault();
      zoom(timeline, Math.exp(event.deltaY * .0016), timeline.time(place(event).x));
    } else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      event.preventDefault();
      pan(timeline, (event.deltaX || event.deltaY) / timeline.width);
    }
  }, {passive: false});
  document.addEventListener("keydown", event => onKey(timeline, event));
  for (const each of document.querySelectorAll("[data-do]")) each.addEventListener("click", () => ACTIONS[each.dataset.do](timeline));
  byId("find").addEventListener("input", event => find(timeline, event.target.value));
  byId("find").addEventListener("keydown", event => {
    if (event.key === "Enter") nextHit(timeline, event.shiftKey ? -1 : 1);
    else if (event.key === "Escape") leaveFind(timeline);
  });
  byId("ranks").addEventListener("input", event => filterRanks(timeline, event.target.value));
  addEventListener("scroll", timeline.remeasure, {passive: true});
  timeline.scroller.addEventListener("scroll", timeline.remeasure, {passive: true});
}

function distance(pointers) {
  const [a, b] = [...pointers.values()];
  return Math.hypot(a.x - b.x, a.y - b.y);
}

function leaveFind(timeline) {
  byId("find").value = "";
  find(timeline, "");
  timeline.canvas.focus({preventScroll: true});
}

// A click on a bubble of communication is a click on its collective.
function withCollective(timeline, {lane, i}, px) {
  if (lane.kind !== "ledger" || !["wait", "comm", "order"].includes(causeOf(timeline.scene, lane, i)[1])) return {lane, i};
  const held = runningAt(lane.rank, timeline.time(px), [1]);
  return held ? {...held, bubble: i} : {lane, i};
}

function toggleRank(timeline, y) {
  const row = timeline.rows.find(r => y >= r.y - 1 && y <= r.y + r.h + 1);
  if (!row) return;
  if (!timeline.expanded.delete(row.rank)) timeline.expanded.add(row.rank);
  timeline.arrange();
}

const ACTIONS = {
  in: t => zoom(t, .7),
  out: t => zoom(t, 1 / .7),
  left: t => pan(t, -.18),
  right: t => pan(t, .18),
  median: t => { t.focus = 0; setView(t, t.home.start, t.home.end); },
  fit: t => fitSelection(t),
  measure: t => { if (t.selected) { t.range = spanOf(t.selected); showRange(t); } },
  clear: t => { t.range = null; t.focus = 0; select(t, null); },
  previous: t => stepSelection(t, -1),
  next: t => stepSelection(t, 1),
  above: t => moveLane(t, -1),
  below: t => moveLane(t, 1),
  stepBack: t => nextStep(t, -1),
  stepOn: t => nextStep(t, 1),
  launch: t => follow(t),
  peer: t => nextPeer(t),
  find: () => byId("find").focus(),
  hit: t => nextHit(t, 1),
  hitBack: t => nextHit(t, -1),
  link: t => copyLink(t),
  collapse: t => {
    t.collapsed = !t.collapsed;
    t.expanded.clear();
    showCollapsed(t);
    t.arrange();
  },
  expand: t => {
    const rank = t.selected ? t.selected.lane.rank : t.ranks[0];
    if (!t.expanded.delete(rank)) t.expanded.add(rank);
    t.arrange();
  },
  sort: t => {
    t.sorted = !t.sorted;
    document.querySelector("[data-do=sort]").setAttribute("aria-pressed", String(t.sorted));
    t.arrange();
  },
  full: t => {
    const full = t.section.classList.toggle("full");
    document.documentElement.classList.toggle("covered", full);
    document.querySelector("[data-do=full]").setAttribute("aria-pressed", String(full));
    t.remeasure();
  },
};
const KEYS = {
  w: "in", s: "out", a: "left", d: "right", 0: "median", f: "fit", m: "measure", c: "collapse", e: "expand", x: "full", y: "link", escape: "clear", "/": "find", enter: "hit",
  ",": "previous", ".": "next", "[": "launch", "]": "peer", arrowup: "above", arrowdown: "below", arrowleft: "stepBack", arrowright: "stepOn",
};

// Keys act on the focused canvas, and on the page as long as nothing in it has the focus.
function onKey(timeline, event) {
  const focus = document.activeElement, key = event.key.toLowerCase(), own = focus === timeline.canvas;
  if (event.ctrlKey || event.metaKey || byId("keys").open || !own && focus !== document.body && focus !== null) return;
  if (event.altKey) {
    if (!own || key !== "arrowleft" && key !== "arrowright") return;
    event.preventDefault();
    revisit(timeline, key === "arrowleft" ? -1 : 1);
    return;
  }
  if (/^[1-9]$/.test(key)) {
    if (showFinding(timeline, key - 1)) event.preventDefault();
    return;
  }
  const action = key === "enter" && event.shiftKey ? "hitBack" : KEYS[key];
  if (!action || !own && (key.startsWith("arrow") || key === "enter")) return;
  event.preventDefault();
  ACTIONS[action](timeline);
}

function spanOf({lane, i}) {
  return {start: lane.start[i], end: lane.end[i]};
}

function fitSelection(timeline) {
  const {selected, peers} = timeline;
  if (!selected) return;
  const shown = peers.length && timeline.scene.aligned ? peers : [selected];
  zoomTo(timeline, Math.min(...shown.map(({lane, i}) => lane.start[i])), Math.max(...shown.map(({lane, i}) => lane.end[i])));
}

function select(timeline, selected, still = false) {
  timeline.selected = selected;
  timeline.peers = selected ? peersOf(timeline.scene, selected) : [];
  if (selected && !still) bringIntoView(timeline, selected);
  showSelection(timeline);
  timeline.schedule();
}

// Sideways by the view, up and down by scrolling.
function bringIntoView(timeline, selected) {
  const {start, end} = spanOf(selected), {view, scroller} = timeline, row = rowOf(timeline, selected.lane);
  if (end < view.start || start > view.end) {
    const half = (view.end - view.start) / 2, middle = (start + end) / 2;
    setView(timeline, middle - half, middle + half);
  }
  if (!row) return;
  const above = row.y - timeline.offset - HEAD, below = row.y + row.h - timeline.offset - timeline.shown;
  const by = above < 0 ? above - 8 : below > 0 ? below + 8 : 0;
  if (by) (timeline.section.classList.contains("full") ? scroller : window).scrollBy(0, by);
}

function stepSelection(timeline, by) {
  const {selected} = timeline;
  if (!selected || !rowOf(timeline, selected.lane)) return select(timeline, firstOn(timeline, timeline.rows[0]));
  const i = selected.i + by;
  return i >= 0 && i < selected.lane.start.length ? select(timeline, {lane: selected.lane, i}) : undefined;
}

// The event of a row nearest to the middle of the selection, or of the view.
function firstOn(timeline, row, t = (timeline.view.start + timeline.view.end) / 2) {
  const n = row ? row.lane.start.length : 0;
  return n ? {lane: row.lane, i: Math.min(n - 1, firstAfter(row.lane, t))} : null;
}

function moveLane(timeline, by) {
  const {rows, selected} = timeline, at = selected ? rows.findIndex(row => row.lane === selected.lane) : -1;
  const middle = selected ? (selected.lane.start[selected.i] + selected.lane.end[selected.i]) / 2 : undefined;
  for (let k = at + by; k >= 0 && k < rows.length; k += by) {
    const found = firstOn(timeline, rows[k], middle);
    if (found) { select(timeline, found); return; }
  }
}

// From a kernel to the call that launched it, or back.
function follow(timeline) {
  const {selected} = timeline, pair = selected && launchOf(timeline, selected);
  if (!pair) { say("No launch call of this is in the page"); return; }
  const there = pair.call.lane === selected.lane ? pair.op : pair.call;
  reveal(timeline, there.lane);
  select(timeline, there);
  timeline.canvas.focus({preventScroll: true});
}

// The same collective on the next rank.
function nextPeer(timeline) {
  const {peers, selected} = timeline, at = peers.findIndex(peer => selected && peer.lane === selected.lane);
  if (peers.length < 2) return;
  const there = peers[(at + 1) % peers.length];
  reveal(timeline, there.lane);
  select(timeline, there);
}
