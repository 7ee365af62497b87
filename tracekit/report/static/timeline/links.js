// The address: #t=START-END&r=0,2&c=SEQ (ns since the capture's start), #f=TK201 (#f=TK201.2 the second one), #step=8.

const SETTLED_MS = 400;

function addressOf(timeline) {
  const {view, selected, only, scene} = timeline, parts = ["t=" + Math.round(view.start) + "-" + Math.round(view.end)];
  if (only) parts.push("r=" + [...only].join(","));
  const found = selected && collectiveOf(scene, selected);
  if (found) parts.push("c=" + found.seq + (communicatorsOf(scene).length > 1 ? "." + communicatorsOf(scene).indexOf(found.kind.communicator) : ""));
  return "#" + parts.join("&");
}

function communicatorsOf(scene) {
  return [...new Set(scene.collectives.map(kind => kind.communicator))];
}

// Goes where an address says; whether it says anything.
function goTo(timeline, hash) {
  const said = new URLSearchParams(hash.replace(/^#/, "")), {scene} = timeline, span = /^(-?\d+)-(-?\d+)$/.exec(said.get("t") || "");
  const finding = /^(\w+)(?:\.(\d+))?$/.exec(said.get("f") || "");
  if (said.has("r")) {
    byId("ranks").value = said.get("r").replace(/[^\d,\- ]/g, "");
    filterRanks(timeline, byId("ranks").value);
  }
  if (finding) return showFinding(timeline, findingNumber(scene, finding[1], +(finding[2] || 1)));
  if (said.has("step")) {
    if (!showStep(timeline, parseInt(said.get("step"), 10))) return false;
  } else if (span && +span[2] > +span[1]) setView(timeline, +span[1], +span[2]);
  else return false;
  timeline.focus = 0;
  const wanted = /^(\d+)(?:\.(\d+))?$/.exec(said.get("c") || ""), event = wanted && bySeq(scene, +wanted[1], +(wanted[2] || 0), timeline.only);
  select(timeline, event || null, true);
  return true;
}

function findingNumber(scene, rule, which) {
  let seen = 0;
  return scene.places.findIndex(place => place && place.rule === rule && ++seen === which);
}

function bySeq(scene, seq, communicator, only) {
  const name = communicatorsOf(scene)[communicator];
  for (const kind of scene.collectives.filter(k => k.communicator === name)) {
    const at = kind.seqs.indexOf(seq);
    if (at < 0) continue;
    for (const rank of scene.ranks.filter(r => !only || only.has(r.rank))) {
      for (const lane of rank.lanes) {
        const i = lane.collective ? lane.collective.indexOf(kind.first + at) : -1;
        if (i >= 0) return {lane, i};
      }
    }
  }
  return null;
}

// Shows where a finding is proved: its longest instance ± 60 %, other causes faded, its collective selected.
function showFinding(timeline, number) {
  const {scene} = timeline, place = scene.places[number], rank = place && scene.ranks.find(r => r.rank === place.rank);
  if (!rank) return false;
  if (place.cause === "stand") return showStandstill(timeline, place);
  reveal(timeline, rank.ledger);
  const middle = (place.start + place.end) / 2, i = Math.min(rank.ledger.count - 1, firstAfter(rank.ledger, middle));
  visit(timeline, {lane: rank.ledger, i}, place);
  say(place.title);
  return true;
}

// Shows a bubble ± 60 %; in communication its collective is selected, with its peers.
function visit(timeline, bubble, {start, end} = {start: bubble.lane.start[bubble.i], end: bubble.lane.end[bubble.i]}) {
  const {scene} = timeline, {lane, i} = bubble, term = causeOf(scene, lane, i)[1], held = runningAt(lane.rank, (start + end) / 2, [1]);
  timeline.focus = lane.cause[i] & scene.coarse - 1;
  zoomTo(timeline, start, end);
  select(timeline, held && term !== "copy" ? {...held, bubble: i} : bubble, true);
  byId("timeline").scrollIntoView();
  timeline.canvas.focus({preventScroll: true});
}

// Called on each frame: once the view has settled it goes into the address and the history.
function rememberView(timeline) {
  clearTimeout(timeline.settling);
  timeline.settling = setTimeout(() => whenIdle(() => {
    const {view, past, at, home} = timeline, same = (a, b) => Math.abs(a.start - b.start) < 1 && Math.abs(a.end - b.end) < 1;
    if (!same(view, past[at])) {
      past.splice(at + 1, Infinity, {...view});
      timeline.at = past.length - 1;
    }
    if (!timeline.selected && !timeline.range) showSelection(timeline);
    for (const link of byId("panel").querySelectorAll("a")) link.href = link.textContent = addressOf(timeline);
    const untouched = same(view, home) && !timeline.selected && !timeline.only;
    if (untouched && !location.hash) return;
    const address = untouched ? location.pathname + location.search : addressOf(timeline);
    try { history.replaceState(null, "", address); } catch { /* some browsers forbid it for files, or limit how often */ }
  }), SETTLED_MS);
}

function revisit(timeline, by) {
  const view = timeline.past[timeline.at + by];
  if (!view) return;
  timeline.at += by;
  setView(timeline, view.start, view.end);
}

function copyLink(timeline) {
  const link = location.href.replace(/#.*/, "") + addressOf(timeline), done = () => say("Link copied"), failed = () => say(link);
  if (navigator.clipboard) navigator.clipboard.writeText(link).then(done, failed);
  else failed();
}

function listenToAddress(timeline) {
  addEventListener("hashchange", () => goTo(timeline, location.hash));
  document.addEventListener("click", event => {
    const link = event.target.closest ? event.target.closest("a[href^='#']") : null;
    if (link && goTo(timeline, link.getAttribute("href"))) {
      event.preventDefault();
      byId("timeline").scrollIntoView();
    }
  });
}
