// Start: theme, keys, print, then timeline and charts.

const root = document.documentElement;
root.classList.add("js");
let shown = null;

function isDark() {
  return root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function themeChanged() {
  byId("theme").textContent = isDark() ? "Light" : "Dark";
  if (shown) shown.restyle();
  drawCharts();
}

function listenToPage() {
  byId("theme").addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    themeChanged();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", themeChanged);
  byId("help").addEventListener("click", () => byId("keys").showModal());
  byId("keys-close").addEventListener("click", () => byId("keys").close());
  document.addEventListener("keydown", event => {
    if (event.key === "?" && !byId("keys").open) byId("keys").showModal();
  });
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details:not([open])")];
    for (const fold of opened) fold.open = true;
  });
  addEventListener("afterprint", () => { for (const fold of opened) fold.open = false; });
}

// Long lanes are summed up for frames that show all of them while the reader still reads.
function prepare(lanes) {
  const lane = lanes.pop();
  if (lane) whenIdle(() => { if (!lane.groups) groupsOf(lane); prepare(lanes); });
}

async function start() {
  listenToPage();
  themeChanged();
  watchCharts();
  if (!byId("scene-data")) return;
  await new Promise(done => requestAnimationFrame(() => setTimeout(done))); // the text first
  shown = makeTimeline(await readScene());
  arrange(shown);
  showCollapsed(shown);
  listen(shown);
  listenToOverview(shown);
  listenToAddress(shown);
  addEventListener("resize", shown.remeasure);
  draw(shown);
  if (!goTo(shown, location.hash)) showSelection(shown);
  prepare(shown.scene.ranks.flatMap(rank => [rank.ledger, ...rank.lanes]).filter(lane => lane.start.length > 4096));
}

start();
