// The store as a whole: figures, charts, tables.

// In a narrow window each row is a block; its cells say their column's name, and those that say nothing are left out.
function table(names, rows, label) {
  const titles = names.map((one) => one.replace(/^#/, "")), kind = (at) => (names[at].startsWith("#") ? "number" : null);
  const entry = (cell, at) => el("td", { class: cell && cell.long ? "long" : kind(at), "data-name": ["–", ""].includes(cell?.long ?? cell) ? null : titles[at] }, cell?.long ?? cell);
  return el("div", { class: "wide-table", tabindex: "0", role: "region", "aria-label": label }, el("table", {},
    el("caption", { class: "unseen" }, label),
    el("thead", {}, el("tr", {}, titles.map((one, at) => el("th", { scope: "col", class: kind(at) }, one)))),
    el("tbody", {}, rows.map((cells) => el("tr", {}, cells.map(entry))))));
}

const meter = (share) => el("span", { class: "meter", "aria-hidden": "true" }, el("i", { style: { width: `${Math.max(0, Math.min(1, share)) * 100}%` } }));

function wholePage(overview, leftOut, written) {
  const { facts, episodes } = overview, finished = episodes.key.map((_, at) => at).filter((at) => episodes.complete[at] && episodes.ends[episodes.end[at]] !== "running");
  const returns = finished.map((at) => episodes.total_reward[at]).filter((one) => one !== null), lengths = finished.map((at) => episodes.length[at]);
  const average = (values) => (values.length ? values.reduce((sum, one) => sum + one, 0) / values.length : null), mean = average(returns);

  document.title = `${overview.name} · diskreplay`;
  byId("name").textContent = overview.name;
  byId("about").textContent = [overview.env_id, overview.path].filter(Boolean).join(" · ");

  const figure = (value, name, kind, title) => el("div", { class: "figure", title }, el("b", { class: kind }, value), el("span", {}, name));
  const sick = facts.health.length;
  byId("figures").replaceChildren(
    figure(facts.transitions === null ? "?" : whole(facts.transitions), `transitions of ${whole(facts.capacity)}`),
    figure(sick && !episodes.total ? "?" : whole(episodes.total), episodes.total === 1 ? "episode" : "episodes"),
    figure(number(mean), "mean return"), figure(number(median(lengths)), "median steps"),
    figure(bytes(facts.stored_bytes), facts.ratio > 1 ? `on disk, ${times(facts.ratio)} smaller` : "on disk"),
    figure(el("a", { href: "#health" }, sick ? plural(sick, "problem") : "healthy"), "quick check", sick ? "bad" : "good"));

  byId("returns").replaceChildren();
  byId("charts").replaceChildren();
  const ends = episodes.end.map((one) => episodes.ends[one]);
  if (returns.length) {
    const ended = episodes.total_reward.map((one, at) => (ends[at] === "running" ? null : one));
    trend("Returns over time", episodes.first, ended, ends, returns.length > 100 ? `mean of the last 100: ${number(average(returns.slice(-100)))}` : `mean ${number(mean)}`, "returns");
  } else chart("Returns over time", "", "returns").append(el("p", { class: "muted" }, "There is no finished episode to draw."));
  if (ends.length) trend("Lengths over time", episodes.first, episodes.length, ends, `median ${number(median(lengths))}`);
  const spread = (title, values, said) => {
    if (!values.length) return;
    const [low, high] = limits(values), different = [...new Set(values)].sort((a, b) => a - b);
    if (different.length <= 8) { histogram(title, different.map((one) => values.filter((other) => other === one).length), null, different.map(number), said); return; }
    const bins = Math.min(24, Math.max(6, Math.ceil(2 * Math.cbrt(values.length)))), counts = new Array(bins).fill(0);
    for (const one of values) counts[Math.min(bins - 1, Math.floor(((one - low) / (high - low)) * bins))] += 1;
    histogram(title, counts, counts.concat(0).map((_, at) => low + ((high - low) * at) / bins), null, said);
  };
  spread("Returns", returns, plural(returns.length, "finished episode"));
  spread("Lengths", lengths, plural(lengths.length, "finished episode"));
  if (ends.length) {
    const kinds = episodes.ends.filter((one) => ends.includes(one));
    histogram("Ends", kinds.map((one) => ends.filter((other) => other === one).length), null, kinds, "of all episodes");
  }
  for (const one of overview.distributions) {
    const name = one.name.replace(/^action\//, "action "), title = name[0].toUpperCase() + name.slice(1);
    histogram(title, one.counts, one.edges, one.labels, plural(one.counts.reduce((sum, count) => sum + count, 0), "value"));
  }
  if (overview.priorities) {
    const { values, by_age: ages, checkpoint, sampler } = overview.priorities, said = `${sampler}, checkpoint ${checkpoint}`;
    histogram("Priorities", values.counts, values.edges, values.labels, said);
    const box = chart("Mean priority by age", "oldest left"), shown = ages.map((one) => one || 0);
    plot(box, HEIGHT, `Mean priority by age, from ${number(ages[0])} of the oldest to ${number(ages[ages.length - 1])} of the newest`, [0, ages.length], [0, Math.max(...shown) || 1], (picture, toX, toY) => {
      ages.forEach((one, at) => {
        if (!one) return;
        picture.append(svg("rect", { class: "bar", x: toX(at), y: toY(one), width: Math.max(1, toX(at + 1) - toX(at) - 1), height: Math.max(1, toY(0) - toY(one)), rx: 2 }, svg("title", {}, number(one))));
      });
    }, null);
  }
  byId("charts").closest("section").hidden = !byId("charts").childNodes.length;
  byId("uncounted").replaceChildren(...overview.not_counted.map((one) => el("li", {}, one)));

  const most = Math.max(1, ...facts.columns.map((one) => one.stored_bytes)), gone = overview.evicted;
  byId("stored").replaceChildren(
    table(["Column", "#On disk", "#Raw", "#Evicted", "#Ratio", "Codec", "#Shards", "#Rows a chunk", "In RAM"], [...facts.columns].sort((a, b) => b.stored_bytes - a.stored_bytes).map((one) => [
      one.name, [bytes(one.stored_bytes), meter(one.stored_bytes / most)], bytes(one.raw_bytes), one.name in gone ? bytes(gone[one.name]) : "–", one.stored_bytes ? times(one.ratio) : "–", one.video ? one.video.codec : one.codec, whole(one.files), whole(one.chunk_rows), one.resident ? "yes" : "no"]), "Columns on disk"),
    table(["Stream", "#Transitions", "Window", "#Environments", "#No transition", "#Patches", "Last commit", "Writer"], facts.streams.map((one) => {
      const rows = (one.end - one.begin) * one.num_envs;
      return [one.name, one.transitions === null ? "?" : whole(one.transitions), [`rows ${whole(one.begin)} to ${whole(one.end)}`, meter(rows / one.capacity)], whole(one.num_envs),
        one.transitions === null ? "?" : whole(rows - one.transitions), whole(one.patches), moment(one.committed), one.writer || "none"];
    }), "Streams"));

  const text = (value) => { const told = JSON.stringify(value); return told === "{}" ? "" : told.length > 400 ? `${told.slice(0, 400)}…` : told; };
  byId("points").replaceChildren(facts.checkpoints.length
    ? table(["Name", "#Number", "Maker", "Made", "Attachments", "Metadata"], facts.checkpoints.map((one) => [one.name, one.number ? whole(one.number) : "–", one.maker ?? "a reader", moment(one.time), Object.entries(one.attachments).map(([name, size]) => `${name} (${bytes(size)})`).join(", "), { long: text(one.metadata) }]), "Checkpoints")
    : el("p", { class: "muted" }, "There are none."));
  byId("problems").replaceChildren(...(sick
    ? [el("ul", { class: "ill" }, facts.health.map((one) => el("li", {}, one))), el("p", { class: "muted" }, "diskreplay verify reads everything, and says what to do: go back to a checkpoint, or take a copy.")]
    : [el("p", {}, el("span", { class: "well" }, "✓ "), "Every file is there and looks as it should."), el("p", { class: "muted" }, "This was a quick check; diskreplay verify reads everything.")]));

  const about = { provenance: facts.provenance, settings: facts.settings };
  byId("columns").replaceChildren(
    table(["Name", "Shape", "Type", "#Stacked", "Space"], overview.schema.map((one) => [one.name, `(${one.shape.map((size) => size ?? "None").join(", ")}${one.shape.length === 1 ? "," : ""})`, one.dtype, one.frames > 1 ? whole(one.frames) : "–", { long: one.space || "–" }]), "Schema"),
    el("details", {}, el("summary", {}, "Provenance and settings"), el("pre", {}, JSON.stringify(about, null, 2))));

  const lines = leftOut.map((one) => el("li", {}, one));
  byId("foot").replaceChildren(
    lines.length ? el("p", {}, "Left out of this file:") : "", lines.length ? el("ul", {}, lines) : "",
    el("p", {}, `diskreplay ${overview.version}${written ? `, written ${new Date(written).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short" })}` : ""}`));
}
