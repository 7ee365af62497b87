// A job that stands still: the standstill as a band that is not to scale, and what each rank launched and has not finished.

function drawStandstill(timeline, visible) {
  const {context: c, colours, fills, scene: {stand}, x, left, right, offset, shown} = timeline;
  const from = Math.max(left, x(stand.start)), to = Math.min(right, x(stand.end));
  if (to > from) {
    c.fillStyle = colours.inset;
    c.fillRect(from, offset + HEAD, to - from, shown);
    c.globalAlpha = .5;
    c.fillStyle = fills.family.idle;
    c.fillRect(from, offset + HEAD, to - from, shown);
    c.globalAlpha = 1;
    c.fillStyle = colours.error;
    c.fillRect(Math.round(from), offset + HEAD, 2, shown);
  }
  const rows = new Map();
  for (const row of visible) { // the first stream of communication, else the ledger
    const {kind} = row.lane, known = rows.get(row.rank);
    if (kind === "comm" ? !known || known.lane.kind !== "comm" : kind === "ledger" && !known) rows.set(row.rank, row);
  }
  for (const [rank, row] of rows) drawPending(timeline, rank, row, from, to);
}

// The earliest ones as dashed boxes from their launch to the end, for they have none; the first one's name in the band.
function drawPending(timeline, rank, row, from, to) {
  const {context: c, colours, scene: {stand}, x, left, right} = timeline, {y, h} = row, end = Math.min(right, x(stand.end)) - 1;
  c.font = BOLD;
  if (!rank.pending.length) {
    c.fillStyle = colours.error;
    if (h > 10) fitText(c, "nothing more launched", from + 8, y + h / 2 + .5, to - from - 12);
    return;
  }
  c.strokeStyle = c.fillStyle = colours.wait;
  c.setLineDash(h > 10 ? [5, 3] : []);
  for (const [start] of rank.pending) {
    const at = Math.max(left, x(start));
    if (at < end) c.strokeRect(at + .5, y + .5, end - at, Math.max(1, h - 1));
  }
  c.setLineDash([]);
  if (h <= 10 || to - from < 30) return;
  const text = rank.pending[0][1], width = Math.min(c.measureText(text).width, to - from - 16);
  c.fillStyle = colours.card;
  c.fillRect(from + 6, y + 2, width + 4, h - 4);
  c.fillStyle = colours.ink;
  fitText(c, text, from + 8, y + h / 2 + .5, to - from - 16);
}

function nameStandstill(timeline) {
  const {scene: {stand}, x, left, right, colours} = timeline, from = Math.max(left, x(stand.start)), to = Math.min(right, x(stand.end));
  if (to - from > 20) badge(timeline, duration(stand.ns) + ": nothing happens", (from + to) / 2, colours.error, false);
}

// The view that shows it, whatever else was looked at.
function showStandstill(timeline, place) {
  timeline.focus = 0;
  setView(timeline, timeline.home.start, timeline.home.end);
  select(timeline, null, true);
  byId("timeline").scrollIntoView();
  timeline.canvas.focus({preventScroll: true});
  say(place.title);
  return true;
}
