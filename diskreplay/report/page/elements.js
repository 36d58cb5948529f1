// What the page is built of. Text of a store only ever becomes text: nothing here takes markup.

function make(space, name, properties, children) {
  const element = space ? document.createElementNS(space, name) : document.createElement(name);
  for (const [key, value] of Object.entries(properties || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key === "on") for (const [event, act] of Object.entries(value)) element.addEventListener(event, act);
    else if (key === "style") for (const [rule, set] of Object.entries(value)) element.style.setProperty(rule, set);
    else element.setAttribute(key, value === true ? "" : String(value));
  }
  for (const child of children.flat(3)) if (child !== null && child !== undefined && child !== false) element.append(child);
  return element;
}
const el = (name, properties, ...children) => make(null, name, properties, children);
const svg = (name, properties, ...children) => make("http://www.w3.org/2000/svg", name, properties, children);
const byId = (id) => document.getElementById(id);
const color = (at) => `var(--c${at % 8})`;

// Numbers as a person reads them.

const whole = (value) => Math.round(value).toLocaleString("en-US");

function number(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e7) return value.toLocaleString("en-US");
  if (size !== 0 && (size >= 1e6 || size < 1e-3)) return value.toExponential(2);
  return value.toLocaleString("en-US", { maximumSignificantDigits: 4 });
}

function bytes(count) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let at = 0;
  while (count >= 999.5 && at < units.length - 1) { count /= 1000; at += 1; }
  return `${at ? count.toPrecision(3) : count} ${units[at]}`;
}

const times = (value) => `${value >= 10 ? Math.round(value) : value.toFixed(1)}×`;
const plural = (count, noun) => `${whole(count)} ${noun}${count === 1 ? "" : "s"}`;

function moment(seconds) {
  const date = new Date(seconds * 1000);
  return Number.isNaN(date.getTime()) ? "–" : date.toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short" });
}

function median(values) {
  const ordered = Float64Array.from(values).sort();
  if (!ordered.length) return null;
  const middle = ordered.length >> 1;
  return ordered.length % 2 ? ordered[middle] : (ordered[middle - 1] + ordered[middle]) / 2;
}
