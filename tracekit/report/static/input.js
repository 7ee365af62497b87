// Mouse, touch and keys. The wheel alone scrolls the page.

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
    if (pointers.size === 2) drag.pinch = distance(pointers);
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
    if (drag.moved) { if (!drag.pan && !drag.pinch) showRange(timeline); }
    else if (event.type === "pointerup" && drag.from.x >= timeline.left) {
      const found = hit(timeline, drag.from.x, drag.from.y);
      timeline.range = null;
      select(timeline, found && found.i !== undefined ? {lane: found.lane, i: found.i} : null);
    }
    drag = null;
  };
  canvas.addEventListener("pointerup", release);
  canvas.addEventListener("pointercancel", release);
  canvas.addEventListener("pointerleave", hideTip);
  canvas.addEventListener("dblclick", () => fitSelection(timeline));
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
  for (const button of document.querySelectorAll("[data-do]")) button.addEventListener("click", () => ACTIONS[button.dataset.do](timeline));
}

function distance(pointers) {
  const [a, b] = [...pointers.values()];
  return Math.hypot(a.x - b.x, a.y - b.y);
}

const ACTIONS = {
  in: t => zoom(t, .7),
  out: t => zoom(t, 1 / .7),
  left: t => pan(t, -.18),
  right: t => pan(t, .18),
  whole: t => setView(t, t.whole.start, t.whole.end),
  fit: t => fitSelection(t),
  measure: t => { if (t.selected) { t.range = spanOf(t.selected); showRange(t); } },
  clear: t => { t.range = null; select(t, null); },
  previous: t => stepSelection(t, -1),
  next: t => stepSelection(t, 1),
  above: t => moveLane(t, -1),
  below: t => moveLane(t, 1),
  collapse: t => {
    t.collapsed = !t.collapsed;
    showCollapsed(t);
    t.arrange();
  },
};
const KEYS = {
  w: "in", s: "out", a: "left", d: "right", 0: "whole", f: "fit", m: "measure", c: "collapse", escape: "clear",
  ",": "previous", ".": "next", arrowup: "above", arrowdown: "below",
};

// Keys act on the focused canvas, and on the page as long as nothing in it has the focus.
function onKey(timeline, event) {
  const focus = document.activeElement;
  if (event.ctrlKey || event.metaKey || event.altKey || byId("keys").open) return;
  if (focus !== timeline.canvas && focus !== document.body && focus !== null) return;
  const action = KEYS[event.key.toLowerCase()];
  if (!action || (action === "above" || action === "below") && focus !== timeline.canvas) return;
  event.preventDefault();
  ACTIONS[action](timeline);
}

function spanOf({lane, i}) {
  return {start: lane.start[i], end: lane.end[i]};
}

function fitSelection(timeline) {
  if (!timeline.selected) return;
  const {start, end} = spanOf(timeline.selected);
  zoomTo(timeline, start, end);
}

function select(timeline, selected) {
  timeline.selected = selected;
  if (selected) {
    const {start, end} = spanOf(selected), {view} = timeline;
    if (end < view.start || start > view.end) {
      const half = (view.end - view.start) / 2, middle = (start + end) / 2;
      setView(timeline, middle - half, middle + half);
    }
  }
  showSelection(timeline);
  timeline.schedule();
}

function stepSelection(timeline, by) {
  const {selected} = timeline;
  if (!selected) return select(timeline, firstOn(timeline, timeline.rows[0]));
  const i = selected.i + by;
  return i >= 0 && i < selected.lane.start.length ? select(timeline, {lane: selected.lane, i}) : undefined;
}

// The event of a row nearest to the middle of the selection, or of the view.
function firstOn(timeline, row, t = (timeline.view.start + timeline.view.end) / 2) {
  const n = row.lane.start.length;
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
