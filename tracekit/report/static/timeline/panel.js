// Words about the timeline: tooltip, the panel below it, and the live region. Names are only ever set as text.

const PEERS_SHOWN = 64, BUBBLES_SHOWN = 5;

function element(tag, ...children) {
  const made = document.createElement(tag);
  made.append(...children);
  return made;
}

function button(text, act) {
  const made = element("button", text);
  made.type = "button";
  made.className = "go";
  made.addEventListener("click", act);
  return made;
}

function table(head, rows) {
  return element("table", element("thead", element("tr", ...head.map(text => element("th", text)))), element("tbody", ...rows));
}

function say(text) {
  byId("live").textContent = text;
}

function showTip(timeline, found, event) {
  if (!found) { hideTip(); return; }
  const tip = byId("tip"), said = describe(timeline, found), texts = said.facts.filter(([term]) => term !== "Launch").map(([, text]) => text);
  const first = element("div", element("b", said.name), said.ns === undefined ? "" : " · " + duration(said.ns));
  const lines = [texts.slice(0, 2).join(" · "), [...texts.slice(2), ...(said.place || []).map(([, text]) => text)].join(" · ")];
  tip.replaceChildren(first, ...lines.filter(Boolean).map(line => element("div", line)));
  tip.style.display = "block";
  const below = event.clientY + 16 + tip.offsetHeight < innerHeight;
  tip.style.left = Math.max(4, Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8)) + "px";
  tip.style.top = (below ? event.clientY + 16 : event.clientY - tip.offsetHeight - 10) + "px";
}

function hideTip() {
  byId("tip").style.display = "none";
}

function showSelection(timeline) {
  const {selected, peers} = timeline, panel = byId("panel");
  if (!selected) {
    const help = element("div", element("h3", "Nothing selected"), element("p", "Click an event to see it and its peers on other ranks. Drag to measure, Ctrl + wheel zooms. "), linkHere(timeline));
    panel.replaceChildren(help, longestBubbles(timeline));
    say("");
    return;
  }
  const said = describe(timeline, selected), list = element("dl"), last = lastArrival(timeline);
  const facts = [...said.facts, ...said.place];
  if (last) facts.unshift(["Cause", "rank " + last.lane.rank.rank + " arrives last"]);
  if (selected.bubble !== undefined) {
    const {ledger} = selected.lane.rank, at = selected.bubble;
    facts.unshift(["Bubble", causeOf(timeline.scene, ledger, at)[2] + " · " + duration(ledger.end[at] - ledger.start[at])]);
  }
  if (said.full) facts.push(["Full name", said.full]);
  for (const [term, fact] of facts) list.append(element("dt", term), element("dd", fact));
  const pair = launchOf(timeline, selected);
  list.append(element("dt", "Link"), element("dd", linkHere(timeline)));
  const left = element("div", element("h3", said.name, " · ", duration(said.ns)), list);
  if (pair) left.append(button(pair.call.lane === selected.lane ? "Show what it launched" : "Show its launch", () => follow(timeline)));
  panel.replaceChildren(left, peers.length > 1 ? peerTable(timeline) : element("div"));
  say([said.name, duration(said.ns), ...said.facts.map(([, text]) => text), ...said.place.map(([, text]) => text)].join(", "));
}

// The address of what is shown, which another copy of this file opens at the same place.
function linkHere(timeline) {
  const made = element("a", addressOf(timeline));
  made.href = addressOf(timeline);
  return made;
}

function peerTable(timeline) {
  const {peers, scene, selected} = timeline, last = lastArrival(timeline), first = Math.min(...peers.map(({lane, i}) => lane.start[i]));
  const longest = Math.max(...peers.map(({lane, i}) => lane.end[i] - lane.start[i])), wait = ({lane, i}) => lane.wait[i] ? lane.wait[i] - 1 : null;
  const bar = (name, ns) => {
    const part = element("i");
    part.className = "c-" + name;
    part.style.width = 92 * ns / Math.max(1, longest) + "%";
    return part;
  };
  const order = peers.length > PEERS_SHOWN ? [...peers].sort((a, b) => (wait(a) ?? 0) - (wait(b) ?? 0)).slice(0, PEERS_SHOWN) : peers;
  const rows = order.map(peer => {
    const {lane, i} = peer, ns = lane.end[i] - lane.start[i], waited = wait(peer), parts = element("td", bar("wait", waited || 0), bar("comm", ns - (waited || 0)));
    parts.className = "parts";
    const number = element("td", button(String(lane.rank.rank), () => { select(timeline, peer); timeline.canvas.focus({preventScroll: true}); }), last && peer.lane === last.lane ? " · last" : "");
    const launch = element("td", launchOf(timeline, peer) ? button("launch", () => { select(timeline, peer); follow(timeline); }) : "–");
    const row = element("tr", number, element("td", scene.aligned ? "+" + duration(lane.start[i] - first) : "–"), element("td", waited === null ? "–" : duration(waited)), parts, launch);
    if (lane === selected.lane) row.className = "now";
    return row;
  });
  const more = peers.length - rows.length;
  if (more > 0) rows.push(element("tr", element("td", more + " more ranks, which wait longer")));
  return table(["Rank", "Arrives", "Waits", "Wait, then transfer", "Host"], rows);
}

// The longest bubbles of what is shown, each a button that goes there.
function longestBubbles(timeline) {
  const {scene, view, ranks} = timeline, found = [], outside = scene.causes.length - 1;
  for (const rank of ranks) {
    const {start, end, cause} = rank.ledger, own = [];
    for (let i = firstAfter(rank.ledger, view.start); i < cause.length && start[i] < view.end; i++) {
      if (cause[i] && cause[i] < outside && end[i] - start[i] > (own.length < BUBBLES_SHOWN ? 0 : own.at(-1).ns)) {
        own.push({rank, i, ns: end[i] - start[i]});
        own.sort((a, b) => b.ns - a.ns).splice(BUBBLES_SHOWN);
      }
    }
    found.push(...own);
  }
  const seen = new Set(), first = ({rank, i}) => seen.size < seen.add(rank.rank + " " + rank.ledger.cause[i]).size;
  const rows = found.sort((a, b) => b.ns - a.ns).filter(first).slice(0, BUBBLES_SHOWN).map(({rank, i, ns}) => {
    const {ledger} = rank, mark = element("span"), cause = causeOf(scene, ledger, i);
    mark.className = "sw c-" + cause[1];
    const held = runningAt(rank, ledger.start[i], cause[1] === "copy" ? [2] : [1]);
    const what = element("td", mark, cause[2] + (held ? " in " + eventName(scene, held.lane, held.i) : ""));
    return element("tr", what, element("td", String(rank.rank)), element("td", placeOf(scene, rank, ledger.start[i]).replace(/ \(.*/, "")), element("td", button(duration(ns), () => visit(timeline, {lane: ledger, i}))));
  });
  return rows.length ? table(["Longest bubbles shown", "Rank", "At", "Lasts"], rows) : element("p");
}

// The identity inside the measured range, by rank: it adds up as the step does.
function showRange(timeline) {
  const {range, scene, ranks} = timeline, used = new Set(), lasts = duration(range.end - range.start) + " measured";
  const times = ranks.slice(0, PEERS_SHOWN).map(rank => timeByFamily(rank.ledger, range, new Float64Array(scene.families.length + 1)));
  for (const time of times) time.forEach((ns, code) => { if (ns && code < scene.families.length) used.add(code); });
  const codes = [...used].sort((a, b) => a - b);
  const rows = times.map((time, k) => element("tr", element("td", String(ranks[k].rank)), ...codes.map(code => element("td", duration(time[code])))));
  const body = element("div", element("h3", lasts), table(["Rank", ...codes.map(code => scene.families[code].label)], rows), linkHere(timeline));
  body.className = "wide";
  byId("panel").replaceChildren(body);
  say(lasts);
  timeline.schedule();
}

function showCollapsed(timeline) {
  const made = document.querySelector("[data-do=collapse]");
  made.firstChild.textContent = timeline.collapsed ? "Show streams " : "Collapse ranks ";
  made.setAttribute("aria-pressed", String(timeline.collapsed));
}
