// Words about the timeline: tooltip, the panel below it, and the live region. Names are only ever set as text.

function element(tag, ...children) {
  const made = document.createElement(tag);
  made.append(...children);
  return made;
}

function describe(timeline, {row, lane, i, bucket}) {
  const {scene} = timeline, where = "rank " + row.rank.rank, length = row.rank.end - row.rank.start;
  const whole = scene.step === null ? "the capture" : "the step";
  if (bucket !== undefined) {
    return {name: Math.round(100 * lane.occupancy[bucket] / 255) + " % busy", lines: ["with operations too short to keep one by one", where + ", stream " + lane.stream]};
  }
  const ns = lane.end[i] - lane.start[i], at = "at +" + duration(lane.start[i]);
  if (lane.kind === "ledger") {
    const roughly = row.rank.exact ? "" : "largest part of each slice; ";
    return {name: scene.families[lane.code[i]].label, ns, lines: [roughly + percent(ns, length) + " of " + whole, where + " " + at], full: null};
  }
  const [short, full] = scene.names[lane.name[i]];
  return {name: short, ns, lines: [percent(ns, length) + " of " + whole, where + ", stream " + lane.stream + " " + at], full};
}

function showTip(timeline, found, event) {
  if (!found) { hideTip(); return; }
  const tip = byId("tip"), said = describe(timeline, found);
  const first = element("div", element("b", said.name), said.ns === undefined ? "" : " · " + duration(said.ns));
  tip.replaceChildren(first, ...said.lines.map(line => element("div", line)));
  tip.style.display = "block";
  const below = event.clientY + 16 + tip.offsetHeight < innerHeight;
  tip.style.left = Math.max(4, Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8)) + "px";
  tip.style.top = (below ? event.clientY + 16 : event.clientY - tip.offsetHeight - 10) + "px";
}

function hideTip() {
  byId("tip").style.display = "none";
}

function showSelection(timeline) {
  const {selected} = timeline, panel = byId("panel");
  const row = selected && timeline.rows.find(r => r.lane === selected.lane);
  if (!row) {
    const words = element("div", element("h3", "Nothing selected"), element("p", "Click an event to see what it is. Drag to measure. Ctrl + wheel zooms."));
    panel.replaceChildren(words, longestStretches(timeline));
    byId("live").textContent = "";
    return;
  }
  const said = describe(timeline, {row, ...selected}), list = element("dl");
  const facts = [["Lasts", duration(said.ns)], ["Share", said.lines[0]], ["Where", said.lines[1]]];
  if (said.full && said.full !== said.name) facts.push(["Full name", said.full]);
  for (const [term, fact] of facts) list.append(element("dt", term), element("dd", fact));
  panel.replaceChildren(element("h3", said.name), list);
  byId("live").textContent = [said.name, duration(said.ns), ...said.lines].join(", ");
}

// The longest stretches without compute, each a button that goes there.
function longestStretches(timeline) {
  const {scene} = timeline, compute = scene.families.findIndex(family => family.key === "compute"), found = [];
  for (const rank of scene.ranks.filter(r => r.exact)) {
    const {start, end, code} = rank.ledger;
    for (let i = 0; i < code.length; i++) if (code[i] !== compute) found.push({rank, i, ns: end[i] - start[i]});
  }
  const rows = found.sort((a, b) => b.ns - a.ns).slice(0, 4).map(({rank, i, ns}) => {
    const family = scene.families[rank.ledger.code[i]], mark = element("span"), go = element("button", duration(ns));
    mark.className = "sw c-" + family.key;
    go.type = "button";
    go.className = "go";
    go.addEventListener("click", () => {
      select(timeline, {lane: rank.ledger, i});
      fitSelection(timeline);
      timeline.canvas.focus();
    });
    return element("tr", element("td", mark, family.label), element("td", String(rank.rank)), element("td", "+" + duration(rank.ledger.start[i])), element("td", go));
  });
  if (!rows.length) return element("p");
  const head = ["Longest without compute", "Rank", "At", "Lasts"].map(text => element("th", text));
  return element("table", element("thead", element("tr", ...head)), element("tbody", ...rows));
}

// The identity inside the measured range, by rank: it adds up as the step does.
function showRange(timeline) {
  const {range, scene} = timeline;
  const used = scene.families.map((_, code) => scene.ranks.some(rank => rank.ledger.code.includes(code)));
  const shown = scene.families.map((family, code) => ({...family, code})).filter(family => used[family.code]);
  const head = element("tr", element("th", "Rank"), ...shown.map(family => element("th", family.label)));
  const body = scene.ranks.map(rank => {
    const time = timeByFamily(rank.ledger, range, scene.families.length);
    return element("tr", element("td", String(rank.rank)), ...shown.map(family => element("td", duration(time[family.code]))));
  });
  byId("panel").replaceChildren(element("h3", duration(range.end - range.start) + " measured"), element("table", element("thead", head), element("tbody", ...body)));
  byId("live").textContent = duration(range.end - range.start) + " measured";
  timeline.schedule();
}

function timeByFamily(ledger, range, families) {
  const time = new Array(families).fill(0);
  for (let i = firstAfter(ledger, range.start); i < ledger.start.length && ledger.start[i] < range.end; i++) {
    time[ledger.code[i]] += Math.min(range.end, ledger.end[i]) - Math.max(range.start, ledger.start[i]);
  }
  return time;
}

function showCollapsed(timeline) {
  const button = document.querySelector("[data-do=collapse]");
  button.textContent = timeline.collapsed ? "Show streams" : "Collapse ranks";
  button.setAttribute("aria-pressed", String(timeline.collapsed));
}
