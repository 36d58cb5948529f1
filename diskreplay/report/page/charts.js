// Charts as SVG, each drawn for the width that it has. Colours are those of the style, so that light and dark need nothing.

const HEIGHT = 140;

const ENDS = {
  terminated: { color: "var(--c0)", hollow: false }, truncated: { color: "var(--c1)", hollow: false },
  both: { color: "var(--c3)", hollow: false }, cut: { color: "var(--c6)", hollow: true },
  running: { color: "var(--c2)", hollow: true },
};

function limits(values, zero) {
  let low = Infinity, high = -Infinity;
  for (const value of values) if (value !== null && Number.isFinite(value)) {
    if (value < low) low = value;
    if (value > high) high = value;
  }
  if (low > high) return [0, 1];
  if (zero) { low = Math.min(low, 0); high = Math.max(high, 0); }
  return low === high ? [low - 0.5, high + 0.5] : [low, high];
}

function ticks(low, high, most, least = 0) {
  const rough = (high - low) / most, power = 10 ** Math.floor(Math.log10(rough));
  const step = Math.max(least, [1, 2, 5, 10].map((one) => one * power).find((one) => one >= rough) || rough);
  const found = [];
  for (let at = Math.ceil(low / step); at * step <= high + step * 1e-9 && found.length < 20; at += 1) found.push(at * step);
  return found;
}

const tick = (value, step) => Math.abs(value) >= 1e5 || (value !== 0 && Math.abs(value) < 1e-3)
  ? value.toExponential(0) : String(Number(value.toFixed(Math.max(0, Math.min(6, Math.ceil(-Math.log10(step || 1)))))));

// A frame with axes; `draw` gets the two scales and adds to the picture. Drawn again when its width changes.
function plot(box, height, label, x, y, draw, marks) {
  const picture = svg("svg", { role: "img", "aria-label": label, height });
  box.append(picture);
  const redraw = () => {
    const width = Math.max(120, picture.clientWidth || box.clientWidth || 300);
    picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const ys = ticks(y[0], y[1], 4), step = ys.length > 1 ? ys[1] - ys[0] : 1;
    const names = ys.map((value) => tick(value, step));
    const left = 10 + 6.5 * Math.max(marks ? 2 : 5, ...names.map((one) => one.length)), bottom = marks ? 20 : 4;
    const toX = (value) => left + ((value - x[0]) / (x[1] - x[0] || 1)) * (width - left - 8);
    const toY = (value) => height - bottom - 4 - ((value - y[0]) / (y[1] - y[0] || 1)) * (height - bottom - 12);
    picture.replaceChildren();
    ys.forEach((value, at) => picture.append(
      svg("path", { class: "grid", d: `M${left} ${Math.round(toY(value)) + 0.5}H${width - 6}` }),
      svg("text", { x: left - 6, y: toY(value) + 4, "text-anchor": "end" }, names[at])));
    if (marks) marks(x, width).forEach(({ at, text }) => picture.append(
      svg("text", { x: Math.min(toX(at), width - 4 - 3.3 * text.length), y: height - 4, "text-anchor": "middle" }, text)));
    draw(picture, toX, toY, { left, right: width - 8, top: 8, bottom: height - bottom - 4 });
  };
  redraw();
  new ResizeObserver((entries) => {
    if (entries[0].contentRect.width && Math.abs(entries[0].contentRect.width - picture.viewBox.baseVal.width) > 1) redraw();
  }).observe(picture);
  return picture;
}

const numbered = (x, width, least) => {
  const found = ticks(x[0], x[1], Math.max(2, Math.floor(width / 90)), least), step = found.length > 1 ? found[1] - found[0] : 1;
  return found.map((at) => ({ at, text: tick(at, step) }));
};

function chart(title, said, into = "charts") {
  const box = el("figure", { class: "chart" }, el("h3", {}, title, el("span", {}, said || "")));
  byId(into).append(box);
  return box;
}

// Counts of bins, or of named values.
function histogram(title, counts, edges, labels, said) {
  const box = chart(title, said), most = Math.max(1, ...counts), total = counts.reduce((sum, one) => sum + one, 0);
  if (labels) return named(box, title, counts, labels, most, total);
  const about = `${title}: ${whole(total)} values from ${number(edges[0])} to ${number(edges[edges.length - 1])}`;
  plot(box, HEIGHT, about, [edges[0], edges[edges.length - 1]], [0, most], (picture, toX, toY) => {
    counts.forEach((count, at) => {
      if (!count) return;
      const from = toX(edges[at]), width = Math.max(1, toX(edges[at + 1]) - from - 1);
      const bar = svg("rect", { class: "bar", x: from, y: toY(count), width, height: Math.max(1, toY(0) - toY(count)), rx: Math.min(2, width / 3) });
      bar.append(svg("title", {}, `${number(edges[at])} to ${number(edges[at + 1])}: ${whole(count)}`));
      picture.append(bar);
    });
  }, numbered);
}

function named(box, title, counts, labels, most, total) {
  const shown = labels.slice(0, 32), line = Math.max(15, Math.min(26, (HEIGHT - 4) / Math.max(1, shown.length)));
  const height = line * shown.length + 4;
  const picture = svg("svg", { role: "img", "aria-label": `${title}: ${shown.map((one, at) => `${one} ${whole(counts[at])}`).slice(0, 12).join(", ")}` });
  picture.style.setProperty("height", `${height}px`);
  box.append(picture);
  const redraw = () => {
    const width = Math.max(120, picture.clientWidth), left = Math.min(width * 0.4, 14 + 6.6 * Math.max(...shown.map((one) => one.length)));
    picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
    picture.replaceChildren();
    shown.forEach((label, at) => {
      const share = total ? counts[at] / total : 0, room = width - left - 96, y = at * line + 2;
      const bar = svg("rect", { class: "bar", x: left, y: y + 1, width: Math.max(counts[at] ? 2 : 0, (counts[at] / most) * room), height: line - 5, rx: 2 });
      const fill = ENDS[label] && title === "Ends" ? ENDS[label].color : null;
      if (fill) bar.style.setProperty("fill", fill);
      const cut = Math.max(3, Math.floor((left - 10) / 6.3));
      const name = svg("text", { x: left - 8, y: y + line / 2 + 2, "text-anchor": "end" }, label.length > cut ? `${label.slice(0, cut - 1)}…` : label);
      name.append(svg("title", {}, label));
      picture.append(name, bar, svg("text", { x: left + (counts[at] / most) * room + 6, y: y + line / 2 + 2 },
        `${whole(counts[at])} · ${(100 * share).toFixed(share < 0.1 ? 1 : 0)} %`));
    });
  };
  redraw();
  new ResizeObserver(redraw).observe(picture);
}

// Values over their numbers: each as a point, or, where there are many, the range and the mean of every few.
function trend(title, first, values, ends, said, into) {
  const box = chart(title, said, into), y = limits(values, false), count = values.length;
  plot(box, HEIGHT, `${title}: ${whole(count)} episodes, from ${number(y[0])} to ${number(y[1])}`, [first, first + Math.max(1, count - 1)], y,
    (picture, toX, toY, area) => {
      const parts = Math.min(count, 160), step = count / Math.max(1, parts);
      if (count <= 1500) {
        const paths = {};
        values.forEach((value, at) => {
          if (value !== null) paths[ends[at]] = `${paths[ends[at]] || ""}M${toX(first + at).toFixed(1)} ${toY(value).toFixed(1)}h0`;
        });
        for (const [end, d] of Object.entries(paths)) {
          const path = svg("path", { class: "point", d });
          path.style.setProperty("stroke", ENDS[end].color);
          if (count < 50) path.style.setProperty("stroke-width", 8);
          picture.append(path);
        }
      }
      const upper = [], lower = [], means = [];
      for (let part = 0; part < parts; part += 1) {
        const from = Math.floor(part * step), to = Math.max(from + 1, Math.floor((part + 1) * step));
        const slice = values.slice(from, to).filter((one, i) => one !== null && ends[from + i] !== "running");
        if (!slice.length) continue;
        const at = toX(first + (part + 0.5) * step - 0.5).toFixed(1), range = limits(slice);
        if (slice.every((one) => one === slice[0])) range.fill(slice[0]);
        upper.push(`${at} ${toY(range[1]).toFixed(1)}`);
        lower.unshift(`${at} ${toY(range[0]).toFixed(1)}`);
        means.push([Number(at), slice.reduce((sum, one) => sum + one, 0) / slice.length]);
      }
      if (count > 1500 && upper.length) {
        const band = svg("path", { class: "band", d: `M${upper.join("L")}L${lower.join("L")}Z` });
        band.style.setProperty("fill", color(0));
        picture.append(band);
      }
      const reach = Math.max(1, Math.round(means.length / 24));
      const line = means.map(([at], i) => {
        const near = means.slice(Math.max(0, i - reach), i + reach + 1);
        return `${at} ${toY(near.reduce((sum, one) => sum + one[1], 0) / near.length).toFixed(1)}`;
      });
      if (line.length > 2) picture.append(svg("path", { class: "mean", d: `M${line.join("L")}` }));
    }, (x, width) => numbered(x, width, 1));
}
