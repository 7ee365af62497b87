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

// A cell leads to the rank's longest bubble in that step.
function visitCell(timeline, layout, point) {
  const {ranks, steps} = layout.meta, number = ranks[Math.round(point.data.base[point.pointIndex] + .5)];
  const rank = timeline && timeline.scene.ranks.find(candidate => candidate.rank === number), step = rank && rank.steps.find(s => s.number === steps[point.x]);
  if (!step) return;
  const {start, end, cause} = rank.ledger;
  let best = -1;
  for (let i = firstAfter(rank.ledger, step.start); i < start.length && start[i] < step.end; i++) {
    if (cause[i] && !(end[i] - start[i] <= end[best] - start[best])) best = i;
  }
  showStep(timeline, step.number);
  if (best >= 0) {
    reveal(timeline, rank.ledger);
    visit(timeline, {lane: rank.ledger, i: best});
  }
}
