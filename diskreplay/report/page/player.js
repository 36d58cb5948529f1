// One episode: its frames, and its values under them, with one cursor in all.

const SPEEDS = [1, 5, 15, 30, 60, 120];
const TRACK = { small: 66, large: 104 }; // height of a curve, beside pictures and without
const ICONS = {
  before: "M2 2h2v10H2zM12 2v10L5 7z", back: "M10 2v10L3 7z", play: "M3 1.5v11L12.5 7z", pause: "M3 2h3v10H3zM8 2h3v10H8z",
  on: "M4 2v10l7-5z", after: "M10 2h2v10h-2zM2 2v10l7-5z", share: "M1 4h7v9H1zm1.5 1.5v6h4v-6zM5 1h8v9H9.5V8.5h2v-6h-5V3H5z", done: "M1.5 7.5 3 6l2.5 2.5L11 3l1.500 1.500-7 7z",
};
const icon = (name) => svg("svg", { class: "icon", viewBox: "0 0 14 14", "aria-hidden": "true" }, svg("path", { d: ICONS[name], "fill-rule": "evenodd" }));

function player(page) {
  const state = { episode: null, t: 0, playing: false, speed: 15, strips: [], screens: [], tracks: [], asked: 0, last: 0 };
  const button = (label, text, act, kind) => el("button", { type: "button", "aria-label": label, title: label, class: kind, on: { click: act } }, text);
  const controls = {
    before: button("Previous episode ( [ )", icon("before"), () => page.step(-1)),
    back: button("One step back (←)", icon("back"), () => go(state.t - 1)),
    play: button("Play (space)", icon("play"), toggle, "main"),
    on: button("One step on (→)", icon("on"), () => go(state.t + 1)),
    after: button("Next episode ( ] )", icon("after"), () => page.step(1)),
    speed: el("select", { "aria-label": "Steps a second", on: { change: (event) => { state.speed = Number(event.target.value); } } },
      SPEEDS.map((one) => el("option", { value: one, selected: one === 15 }, `${one}/s`))),
    scrub: el("input", { type: "range", min: 0, max: 0, value: 0, "aria-label": "Step of the episode", on: { input: (event) => go(Number(event.target.value)) } }),
    step: el("output", { id: "step" }, "–"),
    share: button("Copy the address of this moment", icon("share"), share),
  };
  byId("controls").append(...Object.values(controls));
  enable(false);

  function enable(on) {
    for (const one of [controls.back, controls.play, controls.on, controls.scrub, controls.share, controls.speed]) one.disabled = !on;
  }

  // Frames

  function screen(camera) {
    const canvas = el("canvas", { width: camera.width, height: camera.height, role: "img", "aria-label": `${camera.name}, a frame` });
    const badge = el("span", { class: "badge", hidden: true });
    const note = `${camera.name} · ${camera.width}×${camera.height}${camera.note ? ` · ${camera.note}` : ""}`;
    byId("screens").append(el("figure", {}, el("div", { class: "glass" }, canvas, badge), el("figcaption", { title: note }, note)));
    return { camera, canvas, badge, drawn: null };
  }

  // The strip that holds a moment; null where it must be asked for, and then it is.
  function stripAt(camera, t) {
    const held = state.strips.filter((one) => one.camera === camera.name);
    const fits = (one) => t >= one.first && t < one.first + one.every * one.count;
    const found = held.find(fits);
    if (found || !page.live) return found || held[held.length - 1] || null;
    const first = Math.floor(t / camera.part_frames) * camera.part_frames;
    const strip = { camera: camera.name, first, every: 1, count: Math.min(camera.part_frames, state.episode.length + 1 - first), pending: true };
    state.strips.push(strip);
    if (state.strips.length > 6 * state.screens.length) state.strips.splice(0, state.screens.length);
    const asked = state.asked;
    page.ask("strip", { key: state.episode.key, camera: camera.name, first, every: 1 }).then((answer) => {
      if (asked !== state.asked) return;
      Object.assign(strip, answer, { pending: false });
      open(strip);
    }).catch((error) => { if (asked === state.asked) page.trouble(error.message); });
    return strip;
  }

  function open(strip) {
    strip.image = new Image();
    strip.image.onload = () => { strip.ready = true; frames(); };
    strip.image.src = strip.src;
  }

  function frames() {
    for (const screen of state.screens) {
      const strip = stripAt(screen.camera, state.t);
      if (!strip || !strip.ready) continue;
      const at = Math.min(strip.count - 1, Math.floor((state.t - strip.first) / strip.every));
      const { width, height } = screen.camera, pen = screen.canvas.getContext("2d");
      pen.clearRect(0, 0, width, height);
      pen.drawImage(strip.image, (at % strip.line) * width, Math.floor(at / strip.line) * height, width, height, 0, 0, width, height);
      const step = strip.first + at * strip.every, said = strip.damaged.includes(at) ? "damaged: cannot be read" : described(step);
      screen.badge.textContent = said;
      screen.badge.hidden = !said;
      screen.canvas.dataset.step = step;
      screen.canvas.setAttribute("aria-label", `${screen.camera.name}, frame of step ${step}${said ? `, ${said}` : ""}`);
    }
  }

  function described(step) {
    if (step < state.episode.length) return step === state.t ? "" : `frame of step ${whole(step)}`;
    return { truncated: "true final observation · truncated", terminated: "true final observation · terminated", both: "true final observation · terminated and truncated",
      cut: "last observation before the cut", running: "newest observation; the episode goes on" }[state.episode.end];
  }

  // Values

  function track(series) {
    const single = series.curves.length === 1, values = el("span", { class: single ? "values plain" : "values" });
    const spans = series.curves.map((curve, at) => el("span", { style: { "--dot": color(at) } }));
    values.append(...spans);
    const title = series.kind === "reward" ? "reward" : series.name.replace(/^obs\//, "");
    const box = el("div", { class: "track", "data-series": series.name }, el("div", { class: "title" }, el("b", { title: series.name }, title), values));
    byId("tracks").append(box);
    const length = state.episode.length, every = state.episode.every;
    const few = series.kind === "action" && single && new Set(series.curves[0].values).size <= 32 && series.curves[0].values.every((one) => one === null || Number.isInteger(one));
    const [low, high] = limits(series.curves.flatMap((one) => one.values), series.kind === "reward");
    const y = series.kind === "reward" || few ? [low - (high - low) * 0.04, high + (high - low) * 0.04] : [low, high];
    const dots = (of, toX, toY) => of.map((one, at) => (one === null ? "" : `M${toX(at * every).toFixed(1)} ${toY(one).toFixed(1)}h0`)).join("");
    const stems = (of, toX, toY) => `M${toX(0)} ${toY(0)}H${toX(length)}${of.map((one, at) => (one ? `M${toX(at * every).toFixed(1)} ${toY(0).toFixed(1)}V${toY(one).toFixed(1)}` : "")).join("")}`;
    let scale = null, cursor = null;
    const picture = plot(box, state.episode.cameras.length ? TRACK.small : TRACK.large, `${title}: ${single ? "one value" : `${series.curves.length} values`} a step, from ${number(low)} to ${number(high)}`, [0, Math.max(1, length)], y,
      (drawing, toX, toY, area) => {
        series.curves.forEach((curve, at) => {
          const path = svg("path", { d: few ? dots(curve.values, toX, toY) : series.kind === "reward" ? stems(curve.values, toX, toY) : line(curve.values, toX, toY, area), fill: "none",
            "stroke-width": few ? (length > 300 ? 3 : 5) : series.kind === "reward" ? 1.5 : 1.3, "stroke-linecap": "round", "stroke-linejoin": "round" });
          path.style.setProperty("stroke", color(at));
          drawing.append(path);
        });
        cursor = svg("path", { class: "cursor" });
        drawing.append(cursor);
        scale = { toX, area };
        place();
      }, null);
    function place() {
      if (scale && cursor) cursor.setAttribute("d", `M${Math.round(scale.toX(state.t)) + 0.5} ${scale.area.top - 4}V${scale.area.bottom + 4}`);
    }
    // Of many points only the least and the largest of each pixel are drawn.
    function line(of, toX, toY, area) {
      const room = Math.max(1, area.right - area.left), step = Math.max(1, Math.floor(of.length / room)), parts = [];
      let gap = true;
      for (let at = 0; at < of.length; at += step) {
        const slice = of.slice(at, at + step).filter((one) => one !== null);
        if (!slice.length) { gap = true; continue; }
        const x = toX(at * every).toFixed(1), ys = step === 1 ? [slice[0]] : [Math.min(...slice), Math.max(...slice)];
        for (const one of ys) { parts.push(`${gap ? "M" : "L"}${x} ${toY(one).toFixed(1)}`); gap = false; }
      }
      return parts.join("");
    }
    const scrub = (event) => {
      const box_ = picture.getBoundingClientRect(), at = event.clientX - box_.left;
      go(Math.round(((at - scale.area.left) / (scale.area.right - scale.area.left)) * length));
    };
    picture.addEventListener("pointerdown", (event) => { pause(); picture.setPointerCapture(event.pointerId); scrub(event); });
    picture.addEventListener("pointermove", (event) => { if (event.buttons) scrub(event); });
    return () => {
      place();
      const at = Math.floor(state.t / every);
      series.curves.forEach((curve, i) => {
        const value = at < curve.values.length ? curve.values[at] : undefined;
        const name = curve.label && !single ? `[${curve.label}] ` : "";
        const said = value === null || value === undefined ? "" : series.labels[String(value)];
        spans[i].textContent = name + (value === undefined ? "–" : value === null ? "damaged" : number(value)) + (said ? ` ${said}` : "");
      });
      if (series.kind === "reward" && single) {
        const so = series.curves[0].values.slice(0, at + 1).reduce((sum, one) => sum + (one || 0), 0);
        spans[0].textContent += ` · return so far ${number(Number(so.toPrecision(7)))}`;
      }
    };
  }

  // Moving

  function go(t) {
    if (!state.episode) return;
    state.t = Math.max(0, Math.min(state.episode.length, Math.round(t)));
    controls.scrub.value = state.t;
    controls.step.value = state.t === state.episode.length ? `end, ${whole(state.t)}` : `${whole(state.t)} / ${whole(state.episode.length)}`;
    controls.scrub.setAttribute("aria-valuetext", `step ${state.t} of ${state.episode.length}`);
    frames();
    for (const update of state.tracks) update();
    if (!state.playing) page.moved(state.episode, state.t);
  }

  function toggle() {
    if (state.playing) pause(); else play();
  }

  function play() {
    if (!state.episode) return;
    if (state.t >= state.episode.length) go(0);
    state.playing = true;
    state.last = 0;
    controls.play.replaceChildren(icon("pause"));
    controls.play.setAttribute("aria-label", "Pause (space)");
    requestAnimationFrame(turn);
  }

  function pause() {
    if (!state.playing) return;
    state.playing = false;
    controls.play.replaceChildren(icon("play"));
    controls.play.setAttribute("aria-label", "Play (space)");
    go(state.t);
  }

  function turn(now) {
    if (!state.playing) return;
    if (!state.last) state.last = now;
    const steps = Math.floor(((now - state.last) / 1000) * state.speed);
    const waits = state.screens.some((one) => { const strip = stripAt(one.camera, state.t); return strip && !strip.ready; });
    if (waits) state.last = now;
    else if (steps > 0) {
      state.last += (steps / state.speed) * 1000;
      go(state.t + steps);
      if (state.t >= state.episode.length) { pause(); return; }
    }
    requestAnimationFrame(turn);
  }

  async function share() {
    page.moved(state.episode, state.t, true);
    try {
      await navigator.clipboard.writeText(location.href);
      controls.share.replaceChildren(icon("done"));
    } catch (error) {
      byId("which").textContent = "the address of this moment stands in the address bar";
    }
    setTimeout(() => { controls.share.replaceChildren(icon("share")); }, 1200);
  }

  function keys(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || byId("keys").open) return;
    const tag = event.target.tagName, typing = tag === "SELECT" || tag === "TEXTAREA" || (tag === "INPUT" && !["range", "checkbox"].includes(event.target.type));
    if (typing || event.key.startsWith("Arrow") && event.target.closest(".wide-table")) return;
    if (event.key === " " && (tag === "BUTTON" || tag === "SUMMARY" || event.target.type === "checkbox")) return;
    const far = event.shiftKey ? 10 : 1;
    const acts = {
      " ": toggle, k: toggle, ArrowLeft: () => { pause(); go(state.t - far); }, ArrowRight: () => { pause(); go(state.t + far); },
      Home: () => go(0), End: () => go(state.episode ? state.episode.length : 0), "[": () => page.step(-1), "]": () => page.step(1),
      "+": () => faster(1), "=": () => faster(1), "-": () => faster(-1), "?": page.help,
    };
    const act = acts[event.key];
    if (!act || !state.episode && !["[", "]", "?"].includes(event.key)) return;
    event.preventDefault();
    act();
  }

  function faster(by) {
    const at = Math.max(0, Math.min(SPEEDS.length - 1, SPEEDS.indexOf(state.speed) + by));
    state.speed = SPEEDS[at];
    controls.speed.value = SPEEDS[at];
  }

  document.addEventListener("keydown", keys);

  function show(episode, t) {
    pause();
    Object.assign(state, { episode, t: 0, strips: [], screens: [], tracks: [], asked: state.asked + 1 });
    for (const id of ["screens", "tracks", "notes"]) byId(id).replaceChildren();
    enable(true);
    controls.scrub.max = episode.length;
    byId("which").textContent = `Episode ${episode.number}${episode.why ? ` (${episode.why})` : ""} · ${plural(episode.length, "step")} · return ${number(episode.total_reward)} · ${episode.end}`;
    byId("screens").hidden = !episode.cameras.length;
    state.screens = episode.cameras.map(screen);
    state.strips = episode.strips.map((one) => ({ ...one }));
    state.strips.forEach(open);
    state.tracks = episode.series.map(track);
    const notes = [...episode.facts.map(([name, told]) => ["", `${name}: ${told}`]), ...episode.damaged.slice(0, 20).map((one) => ["bad", `damaged: ${one}`]), ...episode.not_shown.map((one) => ["", one])];
    if (episode.every > 1) notes.push(["", `1 of ${episode.every} steps is drawn; rewards are summed in between`]);
    for (const camera of page.live ? [] : episode.cameras) {
      if (!episode.strips.some((one) => one.camera === camera.name)) notes.push(["", `${camera.name}: its frames were too large for this file`]);
    }
    byId("notes").append(...notes.map(([kind, text]) => el("li", { class: kind || null }, text)));
    go(t);
  }

  function nothing(...said) {
    pause();
    Object.assign(state, { episode: null, strips: [], screens: [], tracks: [], asked: state.asked + 1 });
    enable(false);
    controls.step.value = "–";
    for (const id of ["tracks", "notes"]) byId(id).replaceChildren();
    byId("screens").hidden = false;
    byId("screens").replaceChildren(el("div", { class: "empty" }, ...said));
  }

  return { show, nothing, get episode() { return state.episode; }, get t() { return state.t; } };
}
