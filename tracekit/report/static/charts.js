// Charts: the library is unpacked and run only when its section comes near. Its hash is in the page's policy.

let plotly = null;

async function loadPlotly() {
  const code = new TextDecoder().decode(await inflate("plotly-code"));
  const script = document.createElement("script");
  script.textContent = code;
  document.head.append(script);
  return window.Plotly;
}

function watchCharts() {
  const places = [...document.querySelectorAll("[data-figure]")];
  if (!places.length) return;
  const watcher = new IntersectionObserver(async entries => {
    if (!entries.some(entry => entry.isIntersecting)) return;
    watcher.disconnect();
    await new Promise(whenIdle);
    plotly = await loadPlotly();
    drawCharts();
  }, {rootMargin: "600px"});
  places.forEach(place => watcher.observe(place));
}

function drawCharts() {
  if (!plotly) return;
  const figures = json("figures-data"), colours = readColours();
  for (const place of document.querySelectorAll("[data-figure]")) {
    const {data, layout} = figures[place.dataset.figure];
    for (const trace of data) trace.meta.values ? repaintHeat(trace, layout, colours) : repaint(trace, colours);
    for (const shape of layout.shapes || []) shape.line.color = colours.ink3;
    for (const note of layout.annotations || []) note.font.color = colours.ink3;
    layout.font.color = colours.ink2;
    layout.xaxis.gridcolor = layout.yaxis.gridcolor = colours.line;
    layout.hoverlabel = {bgcolor: colours.card, bordercolor: colours.line2, font: {color: colours.ink}};
    const drawnBefore = Boolean(place.on);
    plotly.react(place, data, layout, {displayModeBar: false, responsive: true});
    if (!drawnBefore && layout.meta) place.on("plotly_click", ({points}) => visitCell(shown, layout, points[0]));
  }
}

function repaint(trace, colours) {
  const family = trace.meta.family;
  trace.marker.color = family === "compute" ? colours.pale : colours[family];
  trace.marker.pattern.fgcolor = family === "idle" ? colours.idle : colours.hatch;
  if (family === "idle") {
    trace.marker.pattern.bgcolor = colours.card;
    trace.marker.line = {width: 1, color: colours.idle};
  }
}
