// Where the page begins. Its facts stand in the document, or, live, come from the server that sent it.

const given = JSON.parse(byId("data").textContent);
const POLL_MS = 2000, SETTLE_MS = 120;

const page = {
  live: given.live, overview: null, played: new Map(),
  async ask(route, query) {
    const answer = await fetch(`${route}?${new URLSearchParams(query || {})}`, { cache: "no-store" });
    const facts = await answer.json();
    if (!answer.ok) throw new Error(facts.error || answer.statusText);
    return facts;
  },
  trouble(text) {
    byId("trouble").textContent = text;
    byId("trouble").hidden = !text;
  },
  // Browsers allow few changes of the address in a second: it follows once a moment is kept.
  moved(episode, t, now) {
    clearTimeout(page.moving);
    const address = `#episode=${episode.number}&t=${t}`;
    if (now) history.replaceState(null, "", address);
    else page.moving = setTimeout(() => history.replaceState(null, "", address), SETTLE_MS);
  },
  step: (by) => list.step(by),
  help: () => byId("keys").showModal(),
  none: () => (page.overview.facts.health.length ? "No episode can be read: Health, below, says why." : "There are no episodes yet."),
  choose: (at, t) => choose(at, t || 0),
};
const list = episodeTable(page);
const viewer = player(page);

async function choose(at, t) {
  const { key, first } = page.overview.episodes, count = first + at;
  list.mark(key[at]);
  page.wanted = key[at];
  if (!page.live) {
    const episode = page.played.get(key[at]);
    if (episode) viewer.show(episode, t);
    else {
      byId("which").textContent = `Episode ${count}`;
      viewer.nothing(el("p", {}, `Episode ${count} cannot be played from this file.`), el("p", { class: "muted" }, "It holds some episodes only, marked ▸ in the table. For all of them, or for this one:"),
        el("code", {}, `diskreplay view ${overviewPath()}`), el("code", {}, `diskreplay report ${overviewPath()} --episode ${count} -o report.html`));
    }
    return;
  }
  try {
    const episode = await page.ask("episode", { key: key[at] });
    if (page.wanted !== key[at]) return;
    page.trouble("");
    viewer.show(episode, t);
  } catch (error) {
    page.trouble(error.message);
  }
}

const overviewPath = () => (/^[\w./~+-]+$/.test(page.overview.path) ? page.overview.path : "PATH");

function addressed() {
  const asked = new URLSearchParams(location.hash.slice(1));
  if (!/^\d+$/.test(asked.get("episode") || "")) return null;
  return { number: Number(asked.get("episode")), t: /^\d+$/.test(asked.get("t") || "") ? Number(asked.get("t")) : 0 };
}

function toAddress() {
  const asked = addressed(), rows = page.overview.episodes;
  if (!asked) return false;
  const at = asked.number - rows.first;
  if (at < 0 || at >= rows.key.length) {
    page.trouble(`there is no episode ${asked.number} here`);
    return false;
  }
  const shown = viewer.episode;
  if (!shown || shown.number !== asked.number || shown.t !== asked.t) choose(at, asked.t);
  return true;
}

function show(overview) {
  page.overview = overview;
  wholePage(overview, given.left_out || [], given.written);
  list.show(overview.episodes, page.live ? null : new Set(page.played.keys()));
}

function first() {
  const rows = page.overview.episodes;
  if (toAddress()) return;
  if (!rows.key.length) { byId("which").textContent = ""; viewer.nothing(el("p", {}, page.none())); return; }
  const at = page.live ? rows.key.length - 1 : rows.key.indexOf([...page.played.keys()][0]);
  choose(Math.max(0, at), 0);
}

async function poll() {
  try {
    const { stamp } = await page.ask("stamp");
    if (stamp !== page.overview.stamp) {
      const waited = !page.overview.episodes.key.length;
      show(await page.ask("overview"));
      const at = page.overview.episodes.key.indexOf(page.wanted);
      if (at >= 0) list.mark(page.wanted);
      if (waited) first();
    }
    lively(`live · ${plural(page.overview.facts.transitions || 0, "transition")}`, true);
  } catch (error) {
    lively(error instanceof TypeError ? "the server has stopped" : error.message, false);
  }
  setTimeout(poll, POLL_MS);
}

function lively(text, live) {
  if (byId("state").textContent !== text) byId("state").textContent = text;
  byId("state").classList.toggle("live", live);
}

// Light or dark: as the system has it, until it is chosen here.

function theme() {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches, now = document.documentElement.dataset.theme || (dark ? "dark" : "light");
  document.documentElement.dataset.theme = now === "dark" ? "light" : "dark";
}
byId("theme").append(svg("svg", { class: "icon", viewBox: "0 0 14 14", "aria-hidden": "true" },
  svg("path", { d: "M7 0a7 7 0 1 0 0 14A7 7 0 0 0 7 0zm0 1.600v10.800A5.400 5.400 0 0 1 7 1.600z", "fill-rule": "evenodd" })));
byId("theme").addEventListener("click", theme);
byId("help").addEventListener("click", page.help);
byId("keys").querySelector("button").addEventListener("click", () => byId("keys").close());
addEventListener("hashchange", () => { if (page.overview) toAddress(); });

(async () => {
  if (!page.live) {
    for (const one of given.played) page.played.set(one.key, one);
    show(given.overview);
    first();
    return;
  }
  try {
    show(await page.ask("overview"));
  } catch (error) {
    page.trouble(error.message);
    return;
  }
  first();
  setTimeout(poll, POLL_MS);
})();
