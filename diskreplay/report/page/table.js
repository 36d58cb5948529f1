// The episodes: sorted, filtered, and only those in sight are in the document.

const ROW = 32;
const COLUMNS = [
  { key: "number", title: "#", number: true, width: 4.2 },
  { key: "total_reward", title: "Return", number: true, width: 5.6 },
  { key: "length", title: "Steps", number: true, width: 5 },
  { key: "end", title: "End", width: 7.8 },
  { key: "stream", title: "Stream", width: 6 },
  { key: "env", title: "Env", number: true, width: 4 },
];

function episodeTable(page) {
  const scroller = byId("scroller"), head = byId("table").tHead, body = byId("table").tBodies[0];
  const state = { sort: "number", down: false, order: [], chosen: null, rows: null, playable: null };
  const inputs = {};
  let columns = COLUMNS;

  const value = (key, at) => {
    const table = state.rows;
    if (key === "number") return table.first + at;
    if (key === "stream") return table.streams[table.stream[at]];
    if (key === "end") return table.ends[table.end[at]];
    return table[key][at];
  };

  function setUp() {
    const table = state.rows, several = table.streams.length > 1, envs = new Set(table.env).size > 1;
    columns = COLUMNS.filter((one) => (one.key !== "stream" || several) && (one.key !== "env" || envs));
    byId("table").style.minWidth = `${columns.reduce((sum, one) => sum + one.width, 0)}rem`;
    head.replaceChildren(el("tr", {}, columns.map((one) => el("th", { scope: "col", "aria-sort": "none", "data-key": one.key, style: { width: `${one.width}rem` }, class: one.number ? "number" : "" },
      el("button", { type: "button", on: { click: () => sortBy(one.key) } }, one.title)))));
    const choice = (name, label, values) => {
      const kept = inputs[name] ? inputs[name].value : "";
      inputs[name] = el("select", { name }, el("option", { value: "" }, "all"), values.map((one) => el("option", { value: one }, String(one))));
      inputs[name].value = values.map(String).includes(kept) ? kept : "";
      return el("label", {}, label, inputs[name]);
    };
    const range = (name, label) => {
      for (const end of ["least", "most"]) {
        inputs[name + end] = inputs[name + end] || el("input", { type: "number", step: "any", placeholder: end, name: name + end, "aria-label": `${label}, ${end}` });
      }
      return el("label", {}, label, el("span", { class: "range" }, inputs[`${name}least`], inputs[`${name}most`]));
    };
    const check = (name, label) => {
      inputs[name] = inputs[name] || el("input", { type: "checkbox", name });
      return el("label", { class: "check" }, inputs[name], label);
    };
    const ends = table.ends.filter((_, at) => table.end.includes(at));
    byId("filters").replaceChildren(
      choice("end", "End", ends), several ? choice("stream", "Stream", table.streams) : "",
      envs ? choice("env", "Environment", [...new Set(table.env)].sort((a, b) => a - b).slice(0, 1000)) : "",
      table.tags.length ? choice("tag", "Tag", table.tags.map(([tag]) => tag)) : "",
      range("return", "Return"), range("length", "Steps"), check("unusual", "Unusual only"),
      state.playable ? check("playable", "In this file only") : "",
      el("button", { type: "reset" }, "Reset"));
  }

  function filtered() {
    const table = state.rows, picked = [];
    const bound = (name) => (inputs[name].value === "" ? null : Number(inputs[name].value));
    const [low, high, short, long] = ["returnleast", "returnmost", "lengthleast", "lengthmost"].map(bound);
    const end = inputs.end.value === "" ? null : table.ends.indexOf(inputs.end.value);
    const stream = inputs.stream && inputs.stream.value !== "" ? table.streams.indexOf(inputs.stream.value) : null;
    const env = inputs.env && inputs.env.value !== "" ? Number(inputs.env.value) : null;
    const [, tagged] = (inputs.tag && inputs.tag.value !== "" && table.tags.find(([tag]) => tag === inputs.tag.value)) || [];
    const chosen = tagged && new Set(tagged);
    for (let at = 0; at < table.key.length; at += 1) {
      if (chosen && !chosen.has(at)) continue;
      if (end !== null && table.end[at] !== end) continue;
      if (stream !== null && table.stream[at] !== stream) continue;
      if (env !== null && table.env[at] !== env) continue;
      if (low !== null && !(table.total_reward[at] >= low)) continue;
      if (high !== null && !(table.total_reward[at] <= high)) continue;
      if (short !== null && table.length[at] < short) continue;
      if (long !== null && table.length[at] > long) continue;
      if (inputs.unusual.checked && !table.unusual[at]) continue;
      if (state.playable && inputs.playable.checked && !state.playable.has(table.key[at])) continue;
      picked.push(at);
    }
    return picked;
  }

  function update() {
    const picked = filtered(), key = state.sort, sign = state.down ? -1 : 1;
    if (key === "number") { if (state.down) picked.reverse(); } else {
      const values = picked.map((at) => value(key, at)), by = picked.map((_, at) => at);
      by.sort((a, b) => {
        const one = values[a], other = values[b];
        if (one === null || other === null) return one === other ? a - b : one === null ? 1 : -1;
        return one < other ? -sign : one > other ? sign : a - b;
      });
      state.order = by.map((at) => picked[at]);
    }
    if (key === "number") state.order = picked;
    for (const cell of head.querySelectorAll("th")) {
      cell.setAttribute("aria-sort", cell.dataset.key === key ? (state.down ? "descending" : "ascending") : "none");
    }
    const total = state.rows.key.length, more = state.rows.total - total;
    byId("shown").textContent = (state.order.length === total ? plural(total, "episode") : `${whole(state.order.length)} of ${plural(total, "episode")}`)
      + (more > 0 ? ` (${whole(more)} older ones are not listed)` : "");
    byId("table").setAttribute("aria-rowcount", state.order.length + 1);
    draw();
  }

  function sortBy(key) {
    state.down = state.sort === key ? !state.down : key === "total_reward" || key === "length";
    state.sort = key;
    scroller.scrollTop = 0;
    update();
  }

  function row(at, place) {
    const table = state.rows, end = value("end", at), known = !state.playable || state.playable.has(table.key[at]);
    const cells = columns.map(({ key, number: counted }) => {
      let shown = value(key, at);
      if (key === "end") shown = el("span", { class: "end" }, el("span", { class: ENDS[end].hollow ? "dot hollow" : "dot", style: { "--dot": ENDS[end].color } }), end);
      else if (key === "total_reward") shown = number(shown);
      else if (key === "length") shown = whole(shown) + (table.complete[at] ? "" : "*");
      else if (key === "number") shown = [known && state.playable ? "▸ " : "", whole(shown)];
      const odd = table.unusual[at] && (key === "total_reward" || key === "length") && beyond(key, at);
      return el("td", { class: [counted ? "number" : "", odd ? "unusual" : ""].join(" ").trim() || null,
        title: odd ? "far from those of the other episodes" : key === "length" && !table.complete[at] ? "its first steps have left the window" : null }, shown,
      odd ? el("span", { "aria-label": "unusual" }, " ◆") : "");
    });
    return el("tr", { class: "episode", "aria-rowindex": place + 2, "aria-selected": table.key[at] === state.chosen ? "true" : "false",
      "data-number": table.first + at, on: { click: () => page.choose(at) } }, cells);
  }

  function beyond(key, at) {
    const fences = key === "length" ? state.rows.length_fences : state.rows.return_fences, one = state.rows[key][at];
    return fences && one !== null && (one < fences[0] || one > fences[1]);
  }

  function draw() {
    const first = Math.max(0, Math.floor(scroller.scrollTop / ROW) - 6);
    const last = Math.min(state.order.length, first + Math.ceil((scroller.clientHeight || 540) / ROW) + 14);
    const gap = (rows) => el("tr", { "aria-hidden": "true", style: { height: `${rows * ROW}px` } }, el("td", { colspan: columns.length }));
    const rows = state.order.slice(first, last).map((at, place) => row(at, first + place));
    if (first) rows.unshift(gap(first));
    if (last < state.order.length) rows.push(gap(state.order.length - last));
    if (!rows.length) rows.push(el("tr", {}, el("td", { colspan: columns.length, class: "none" }, state.rows.total ? "No episode is like that." : page.none())));
    body.replaceChildren(...rows);
  }

  function show(rows, playable) {
    const columnsBefore = state.rows && [state.rows.streams.length, new Set(state.rows.env).size, new Set(state.rows.end).size].join();
    state.rows = rows;
    state.playable = playable;
    byId("filters").hidden = !rows.total;
    scroller.style.setProperty("--rows", Math.min(rows.key.length, 30) + (rows.total ? 1.1 : 2.5));
    if (columnsBefore !== [rows.streams.length, new Set(rows.env).size, new Set(rows.end).size].join()) setUp();
    update();
  }

  function mark(key) {
    state.chosen = key;
    const place = state.order.findIndex((at) => state.rows.key[at] === key);
    if (place >= 0) {
      const top = place * ROW, visible = scroller.clientHeight - 2 * ROW;
      if (top < scroller.scrollTop) scroller.scrollTop = top;
      else if (top > scroller.scrollTop + visible) scroller.scrollTop = top - visible;
    }
    draw();
  }

  function step(by) {
    const place = state.order.findIndex((at) => state.rows.key[at] === state.chosen);
    const next = state.order[Math.max(0, Math.min(state.order.length - 1, place < 0 ? 0 : place + by))];
    if (next !== undefined) page.choose(next);
  }

  let waiting = false;
  scroller.addEventListener("scroll", () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => { waiting = false; draw(); });
  });
  scroller.addEventListener("keydown", (event) => {
    const by = { ArrowDown: 1, ArrowUp: -1, PageDown: 12, PageUp: -12 }[event.key];
    if (!by || event.target.tagName === "BUTTON") return;
    event.preventDefault();
    event.stopPropagation();
    step(by);
  });
  byId("filters").addEventListener("input", () => { scroller.scrollTop = 0; update(); });
  byId("filters").addEventListener("reset", () => setTimeout(() => { scroller.scrollTop = 0; update(); }));
  byId("filters").addEventListener("submit", (event) => event.preventDefault());
  return { show, mark, step };
}
