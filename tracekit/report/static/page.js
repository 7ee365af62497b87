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
  addEventListener("beforeprint", () => document.querySelectorAll("details").forEach(fold => { fold.open = true; }));
}

function withoutTimeline(why) {
  root.classList.add("no-canvas");
  byId("panel").replaceChildren(element("h3", "The timeline cannot be drawn"), element("p", why));
}

async function start() {
  listenToPage();
  themeChanged();
  watchCharts();
  if (!byId("scene-data")) return;
  if (!("DecompressionStream" in window)) { withoutTimeline("This browser lacks DecompressionStream. The table below has the figures."); return; }
  shown = makeTimeline(await readScene());
  arrange(shown);
  showCollapsed(shown);
  showSelection(shown);
  listen(shown);
  addEventListener("resize", shown.schedule);
  draw(shown);
}

start();
