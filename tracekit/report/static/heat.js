// Heat maps: colours of the theme, ink that can be read on each cell, and what a cell leads to.

function repaintHeat(trace, layout, colours) {
  const {values, top} = trace.meta, {rows, columns} = layout.meta, from = channels(colours.heat0), to = channels(colours.heat1);
  const mixed = values.map(value => from.map((channel, k) => Math.round(channel + (to[k] - channel) * Math.min(1, top ? value / top : 0))));
  trace.marker.color = mixed.map(rgb => "rgb(" + rgb + ")");
  trace.marker.line.color = colours.card;
  trace.insidetextfont = {size: 11, color: mixed.map(readableOn)};
  trace.customdata = values.map((value, i) => [rows[trace.base[i] + .5], columns[trace.x[i]], value]);
}

function channels(hex) {
  return [1, 3, 5].map(at => parseInt(hex.slice(at, at + 2), 16));
}

// Black or white, whichever has more contrast: always at least 4.5 to 1.
function readableOn(rgb) {
  const [r, g, b] = rgb.map(value => value / 255).map(v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
  return .2126 * r + .7152 * g + .0722 * b > .179 ? "#000" : "#fff";
}

// A cell of the step that the timeline shows leads to the rank's longest stretch without compute.
function visitCell(timeline, layout, point) {
  const {ranks, steps} = layout.meta, number = ranks[Math.round(point.data.base[point.pointIndex] + .5)];
  if (!timeline || steps[point.x] !== timeline.scene.step) return;
  const rank = timeline.scene.ranks.find(candidate => candidate.rank === number);
  if (!rank) return;
  const {start, end, code} = rank.ledger, compute = timeline.scene.families.findIndex(family => family.key === "compute");
  const bubbles = [...code.keys()].filter(i => code[i] !== compute).sort((a, b) => end[b] - start[b] - end[a] + start[a]);
  if (!bubbles.length) return;
  select(timeline, {lane: rank.ledger, i: bubbles[0]});
  fitSelection(timeline);
  byId("timeline").scrollIntoView();
  timeline.canvas.focus({preventScroll: true});
}
