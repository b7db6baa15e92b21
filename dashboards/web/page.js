"use strict";
// Everything is drawn from /api/v1: status and counts every 2 s, the series every 5 s. Text reaches the page as text only.

const STATUS_MS = 2000, SERIES_MS = 5000, GIVE_UP_MS = 4000;
const RED_AT_KV = 0.95, UNKNOWN_KV = 1e9, LEAST_SHOWN_S = 300;
const view = { minutes: 15, model: null, status: null, slos: null, series: null, answeredAt: null, failing: false, at: null };
const $ = (id) => document.getElementById(id);

// -- small helpers ----------------------------------------------------------------------------------------------------

function el(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name === "class") node.className = value; else node.setAttribute(name, value);
  }
  for (const child of children) if (child !== null && child !== undefined) node.append(child);
  return node;
}

function svg(tag, attributes, text) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes || {})) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

const value = (x) => (x === "inf" ? Infinity : x);  // JSON has no infinity
const digits = (x, n) => (x === 0 ? "0" : Number(x.toPrecision(n)).toLocaleString("en", { maximumFractionDigits: 6, useGrouping: false }));

function seconds(x) {
  if (x === null || x === undefined) return "–";
  if (x === Infinity) return "no answer";
  return x < 0.9995 ? digits(x * 1e3, 3) + " ms" : digits(x, 3) + " s";
}

const percent = (x, n = 0) => (x === null || x === undefined ? "–" : (x * 100).toFixed(n) + " %");
const count = (x) => Number(x).toLocaleString("en").replaceAll(",", " ");
const clock = (s, long) => new Date(s * 1000).toLocaleTimeString([], long ? { hour12: false } : { hour: "2-digit", minute: "2-digit", hour12: false });

function ago(s) {
  if (s < 10) return s.toFixed(1) + " s";
  if (s < 120) return Math.round(s) + " s";
  if (s < 7200) return Math.round(s / 60) + " min";
  return Math.round(s / 3600) + " h";
}

const upper = (x) => x.toUpperCase();
const percentile = (reading) => "P" + digits(reading.percentile * 100, 4) + " " + upper(reading.signal);

// -- asking -----------------------------------------------------------------------------------------------------------

async function ask(path) {
  const giveUp = new AbortController();
  const timer = setTimeout(() => giveUp.abort(), GIVE_UP_MS);
  try {
    const response = await fetch(path, { signal: giveUp.signal, cache: "no-store" });
    if (!response.ok) throw new Error(path + " answered " + response.status);
    return await response.json();
  } finally {
    clearTimeout(timer);
  }
}

async function askStatus() {
  try {
    [view.status, view.slos] = await Promise.all([ask("api/v1/status"), ask("api/v1/slos")]);
    view.answeredAt = Date.now();
    view.failing = false;
  } catch (error) {
    view.failing = true;
  }
  draw();
  setTimeout(askStatus, STATUS_MS);
}

let seriesTimer = null;
async function askSeries() {
  clearTimeout(seriesTimer);
  const minutes = view.minutes;
  try {
    const found = await ask("api/v1/series?minutes=" + minutes);
    if (minutes === view.minutes) view.series = found;
  } catch (error) { /* the status says so */ }
  draw();
  clearTimeout(seriesTimer);
  seriesTimer = setTimeout(askSeries, SERIES_MS);
}

// -- the top ----------------------------------------------------------------------------------------------------------

const STATES = {
  active: ["on", "active"], shadow: ["held", "shadow"], pinned: ["held", "pinned"], hold: ["held", "hold"],
  fallback_home: ["off", "fallback"], offline: ["off", "offline"],
};

function chooseModel() {
  const models = view.status.models, names = Object.keys(models).sort();
  const wanted = view.model !== null && names.includes(view.model) ? view.model
    : names.reduce((best, name) => (best === null || models[name].turns > models[best].turns ? name : best), null);
  const select = $("model");
  $("model-label").hidden = names.length < 2;
  if ([...select.options].map((option) => option.value).join("\n") !== names.join("\n")) {
    select.replaceChildren(...names.map((name) => el("option", { value: name }, name)));
  }
  if (wanted !== null && select.value !== wanted) select.value = wanted;
  return wanted;
}

function drawTop(model) {
  const status = view.status;
  $("title").textContent = status.title || "";
  const [kind, word] = STATES[status.state] || ["held", status.state];
  $("state").className = "chip " + (status.health === "ok" && !view.failing ? kind : "off");
  $("state").textContent = view.failing ? "no answer" : status.health === "ok" ? word : "degraded";
  $("state").hidden = false;
  $("source").textContent = "source: " + status.source;
  $("source").hidden = false;
  const told = view.failing ? "The control process does not answer. Its last word: " + status.headline : status.headline;
  $("headline").textContent = told.replace(/(\d) (m?s)\b/g, "$1\u00a0$2");  // a number stays with its unit
  document.title = (status.title ? status.title + ": " : "") + told;
  const parts = [];
  if (model !== null) {
    const m = status.models[model];
    parts.push(model, digits(m.qps, 2) + " turns/s");
    if (m.local_share !== null) parts.push(percent(m.local_share) + " of later turns went local");
    if (m.state !== "active" || m.reason !== "running") parts.push(m.why + (m.since ? " since " + clock(Date.parse(m.since) / 1000) : ""));
    if (m.held) parts.push("weights held");
    if (m.waiting) parts.push(m.waiting + " waiting for a first token");
    parts.push(count(m.turns) + " turns since " + clock(status.now_s - status.uptime_s));
  }
  $("subline").textContent = parts.join(" · ");
}

function banner(kind, head, text) { return el("p", { class: "banner " + kind }, el("b", {}, head), text); }

function drawBanners() {
  const found = [], status = view.status;
  if (view.failing) {
    const since = view.answeredAt === null ? "" : " since " + clock(view.answeredAt / 1000, true);
    found.push(banner("alarm", "No answer", "from the control process" + since + ". Routers go on with the last publication" +
      (view.answeredAt === null ? "." : "; what is shown is from then.")));
  }
  if (status !== null) {
    const pin = status.pin, pinned = Object.entries(pin.routers);
    if (status.observe && !pinned.length) {
      found.push(banner("info", "Observing", "Routers act as pinned to x=" + pin.configured_x + ". What control comes to is shown below and changes nothing."));
    } else if (pinned.length || pin.configured_x !== null) {
      const x = pinned.length ? pinned.map(([name, share]) => name + ": x=" + share).join(", ") : "x=" + pin.configured_x + " by configuration";
      const who = pin.x === null ? "" : " By " + (pin.by || "unknown") + (pin.at ? ", " + new Date(pin.at).toLocaleString([], { hour12: false }) : "") + ".";
      found.push(banner("info", "Pinned", x + ". The price is held until the pin is lifted." + who));
    }
    for (const text of status.warnings) {
      const grave = /^No tick|cannot be held|has not reported|cannot be used/.test(text);
      found.push(banner(grave ? "alarm" : "", grave ? "Attention" : "Note", text));
    }
    for (const engine of Object.values(status.engines || {})) {
      for (const alarm of engine.alarms || []) found.push(banner("", "Engine " + alarm.node, alarm.what));
    }
  }
  const now = found.map((node) => node.textContent).join("\n");
  if (now !== drawBanners.before) $("banners").replaceChildren(...found);  // so that a reader is not told twice
  drawBanners.before = now;
}

// -- charts -----------------------------------------------------------------------------------------------------------

function niceTicks(high, n) {
  const raw = high / n, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= raw);
  const found = [];
  for (let at = 0; at <= high * 1.0001; at += step) found.push(at);
  return found;
}

function timeTicks(from, to, room) {
  const wanted = Math.max(2, Math.floor(room / 80));
  const step = [60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600].find((s) => (to - from) / s <= wanted) || 43200;
  const shift = new Date(from * 1000).getTimezoneOffset() * 60, found = [];
  for (let at = Math.ceil((from - shift) / step) * step + shift; at <= to; at += step) found.push(at);
  return found;
}

// A frame with axes; `y` maps a value to pixels, `ticks` are [value, label].
function frame(figure, ticks, y, from, to) {
  const plot = figure.querySelector(".plot"), w = plot.clientWidth, h = plot.clientHeight;
  const box = { left: 44, right: w - 6, top: 8, bottom: h - 20 };
  const root = svg("svg", { viewBox: `0 0 ${w} ${h}`, role: "img" });
  const place = y(box.top, box.bottom);
  const x = (t) => box.left + ((t - from) / (to - from)) * (box.right - box.left);
  for (const [tick, label] of ticks) {
    const at = place(tick);
    if (at < box.top - 0.5 || at > box.bottom + 0.5) continue;
    root.append(svg("line", { class: "grid", x1: box.left, x2: box.right, y1: at, y2: at }));
    root.append(svg("text", { x: box.left - 6, y: at + 4, "text-anchor": "end" }, label));
  }
  for (const tick of timeTicks(from, to, box.right - box.left)) {
    root.append(svg("line", { class: "axis", x1: x(tick), x2: x(tick), y1: box.bottom, y2: box.bottom + 4 }));
    if (x(tick) < box.right - 14 && x(tick) > box.left + 14) root.append(svg("text", { x: x(tick), y: h - 3, "text-anchor": "middle" }, clock(tick)));
  }
  root.append(svg("line", { class: "axis", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom }));
  return { root, box, x, y: place, plot };
}

function pinnedBands(chart, data, from) {
  let begin = null, labelled = false;
  for (let i = 0; i <= data.t_s.length; i++) {
    const pinned = i < data.t_s.length && data.state[i] === "pinned";
    if (pinned && begin === null) begin = data.t_s[i];
    if (!pinned && begin !== null) {
      const end = data.t_s[Math.min(i, data.t_s.length - 1)];
      const left = chart.x(Math.max(begin, from)), width = chart.x(end) - left;
      if (width > 0) {
        chart.root.append(svg("rect", { class: "band", x: left, y: chart.box.top, width, height: chart.box.bottom - chart.box.top }));
        if (!labelled && width > 50) chart.root.append(svg("text", { class: "band-text", x: left + 4, y: chart.box.top + 11 }, "pinned"));
        labelled = labelled || width > 50;
      }
      begin = null;
    }
  }
}

// Runs of neighbouring points that have a value: lists of indices. A gap in time or value ends a run.
function runs(data, known, gap) {
  const found = [];
  let run = [];
  for (let i = 0; i < data.t_s.length; i++) {
    if (!known(i) || (run.length && data.t_s[i] - data.t_s[run[run.length - 1]] > gap)) {
      if (run.length) found.push(run);
      run = [];
    }
    if (known(i)) run.push(i);
  }
  if (run.length) found.push(run);
  return found;
}

const path = (points) => points.map(([x, y], i) => (i ? "L" : "M") + x.toFixed(1) + " " + y.toFixed(1)).join("");

function nothing(chart, text) {
  chart.root.append(svg("text", { class: "empty", x: (chart.box.left + chart.box.right) / 2, y: (chart.box.top + chart.box.bottom) / 2, "text-anchor": "middle" }, text));
}

function finish(figure, chart, label) {
  chart.root.setAttribute("aria-label", label);
  if (view.at !== null && view.at >= chart.from && view.at <= chart.to) {
    const at = chart.x(view.at);
    chart.root.append(svg("line", { class: "cross", x1: at, x2: at, y1: chart.box.top, y2: chart.box.bottom }));
  }
  chart.plot.replaceChildren(chart.root);
  chart.plot.chart = chart;
}

// The index to tell the value of: under the pointer, or the newest.
function told(data) {
  if (!data || !data.t_s.length) return -1;
  if (view.at === null) return data.t_s.length - 1;
  let best = 0;
  for (let i = 1; i < data.t_s.length; i++) if (Math.abs(data.t_s[i] - view.at) < Math.abs(data.t_s[best] - view.at)) best = i;
  return best;
}

function caption(figure, name, text, note, over) {
  figure.querySelector(".name").textContent = name;
  figure.querySelector(".value").textContent = text;
  figure.querySelector(".value").className = "value" + (over ? " over" : "");
  figure.querySelector(".note").replaceChildren(...(Array.isArray(note) ? note : [note]));
}

// The other clock's word. Engines tell the edges of the bucket that holds the P99; where the law runs on that
// (control.signal: engine), it is what is drawn, and the router's own percentile is told beside it.
function engines(name, id, reading) {
  const engine = (view.status.engines && name !== null && view.status.engines[name]) || {};
  const edges = (q) => (q.high_s === null ? "≥ " + seconds(q.low_s) : seconds(q.low_s) + " to " + seconds(q.high_s));
  const parts = Object.entries(engine.p99 || {}).filter(([signal, q]) => q && signal.startsWith(id)).map(([signal, q]) => {
    const part = signal.slice(id.length + 1);
    return (part ? part + " " : "") + edges(q);
  });
  const told = parts.length ? " · engines say " + parts.join(", ") : "";
  if (view.status.signal !== "engine") return told;
  const row = reading ? (engine.slos || []).find((r) => r.slo === reading.slo) : null;
  return " · engines' clock" + told + (row && row.router_s !== null ? " · routers say " + seconds(value(row.router_s)) : "");
}

function drawLatency(id, data, name, reading, from, to, gap) {
  const figure = $(id), values = data ? data[id + "_s"].map(value) : [], limits = data ? data[id + "_slo_s"] : [];
  const slo = reading ? reading.threshold_s : limits.findLast((x) => x !== null) || null;
  const finite = values.filter((x) => x !== null && x !== Infinity);
  const highest = Math.max(...finite, slo || 0, 1e-3);
  const top = slo ? Math.min(Math.max(1.3 * slo, 1.08 * highest), 4 * slo) : 1.1 * highest;
  const inMs = (slo || highest) < 0.9995;
  const ticks = niceTicks(top, 4).map((t) => [t, digits(inMs ? t * 1e3 : t, 3) + (inMs ? " ms" : " s")]);
  const chart = frame(figure, ticks, (up, down) => (v) => down - (Math.min(v, top) / top) * (down - up), from, to);
  chart.from = from; chart.to = to;
  if (data) pinnedBands(chart, data, from);
  const { box, root } = chart;
  if (slo) {
    root.append(svg("rect", { class: "above", x: box.left, y: box.top, width: box.right - box.left, height: Math.max(0, chart.y(slo) - box.top) }));
  }
  const clipped = (cls, upTo, downTo) => {
    const clip = svg("clipPath", { id: `${id}-${cls}` });
    clip.append(svg("rect", { x: box.left - 3, y: upTo, width: box.right - box.left + 6, height: Math.max(0, downTo - upTo) }));
    root.append(clip);
    const group = svg("g", { "clip-path": `url(#${id}-${cls})` });
    root.append(group);
    return group;
  };
  const edge = slo ? chart.y(slo) : box.top - 4;
  const groups = [["over", clipped("over", box.top - 4, edge)], ["inside", clipped("inside", edge, box.bottom + 3)]];
  for (const run of data ? runs(data, (i) => values[i] !== null, gap) : []) {
    const points = run.map((i) => [chart.x(data.t_s[i]), chart.y(values[i])]);
    for (const [cls, group] of groups) {
      if (points.length > 1) group.append(svg("path", { class: "line " + cls, d: path(points) }));
      else group.append(svg("circle", { class: "dot " + cls, cx: points[0][0], cy: points[0][1], r: 2 }));
    }
  }
  let marked = -9;
  for (let i = 0; i < values.length; i++) {
    const at = chart.x(data.t_s[i]);
    if (values[i] !== null && values[i] > top && at - marked > 6) {  // beyond the picture
      root.append(svg("path", { class: "beyond", d: `M${at - 3} ${box.top}L${at + 3} ${box.top}L${at} ${box.top - 5}Z` }));
      marked = at;
    }
  }
  if (slo) {
    root.append(svg("line", { class: "slo", x1: box.left, x2: box.right, y1: edge, y2: edge }));
    root.append(svg("text", { class: "slo-text", x: box.left + 4, y: edge - 4 }, "SLO " + seconds(slo)));
  }
  if (!values.some((x) => x !== null)) nothing(chart, "not enough turns yet");
  const i = told(data), now = i < 0 ? null : values[i];
  const over = now !== null && slo !== null && now > slo;
  const title = reading ? percentile(reading) : "P99 " + upper(id);
  const note = (reading ? reading.slo + (slo ? ", at most " + seconds(slo) : "") : "no such SLO is declared") +
    (view.at !== null && i >= 0 ? " · at " + clock(data.t_s[i], true) : (over ? " · over its SLO" : "") + engines(name, id, reading));
  caption(figure, title, now === null ? "–" : seconds(now), note, over);
  finish(figure, chart, `${title}: ${seconds(now)}, SLO ${seconds(slo)}`);
}

function drawPrice(data, model, from, to, gap) {
  const figure = $("price"), values = data ? data.price.map(value) : [];
  const finite = values.filter((x) => x !== null && x > 0 && x !== Infinity);
  const middle = Math.sqrt(Math.min(...finite, Infinity) * Math.max(...finite, 0)) || 0.4;
  const spread = finite.length ? Math.max(3, 1.5 * Math.sqrt(Math.max(...finite) / Math.min(...finite))) : 3;
  const low = middle / spread, high = middle * spread;
  const ticks = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20].filter((t) => t >= low && t <= high).map((t) => [t, String(t)]);
  const y = (up, down) => (v) => down - (Math.log(v / low) / Math.log(high / low)) * (down - up);
  const chart = frame(figure, ticks, y, from, to);
  chart.from = from; chart.to = to;
  if (data) pinnedBands(chart, data, from);
  for (const run of data ? runs(data, (i) => values[i] > 0 && values[i] !== Infinity, gap) : []) {
    const points = [];
    for (const i of run) {  // a price holds until the next one
      if (points.length) points.push([chart.x(data.t_s[i]), points[points.length - 1][1]]);
      points.push([chart.x(data.t_s[i]), chart.y(values[i])]);
    }
    chart.root.append(svg("path", { class: "line", d: path(points) }));
  }
  if (!finite.length) nothing(chart, "no ticks yet");
  const i = told(data);
  const now = i >= 0 && view.at !== null ? values[i] : value(model ? model.price : view.status.publication.default_price);
  const note = view.at !== null && i >= 0 ? "at " + clock(data.t_s[i], true)
    : "ms of TTFT per ms × sequence, log scale; lower sends more local";
  caption(figure, "Price", now === null ? "–" : digits(now, 3), note, false);
  finish(figure, chart, "price " + (now === null ? "unknown" : digits(now, 3)));
}

// Share of local turns around each point, over about half a minute: a single tick has few turns.
function shares(data, width) {
  const half = Math.max(0, Math.round(width / 2));
  return data.t_s.map((_, i) => {
    let local = 0, later = 0;
    for (let k = Math.max(0, i - half); k <= Math.min(data.t_s.length - 1, i + half); k++) {
      if (Math.abs(data.t_s[k] - data.t_s[i]) <= 60 * Math.max(1, view.minutes / 60)) { local += data.local_turns[k]; later += data.later_turns[k]; }
    }
    return later ? local / later : null;
  });
}

function drawRoutes(data, step, from, to, gap) {
  const figure = $("routes");
  const values = data ? shares(data, Math.max(1, Math.round(30 / step))) : [];
  const ticks = [0, 0.25, 0.5, 0.75, 1].map((t) => [t, t * 100 + " %"]);
  const chart = frame(figure, ticks, (up, down) => (v) => down - v * (down - up), from, to);
  chart.from = from; chart.to = to;
  for (const run of data ? runs(data, (i) => values[i] !== null, gap) : []) {
    const points = run.map((i) => [chart.x(data.t_s[i]), chart.y(values[i])]);
    if (points.length === 1) points.push([points[0][0] + 2, points[0][1]]);
    const first = points[0][0], last = points[points.length - 1][0];
    chart.root.append(svg("path", { class: "local", d: path([...points, [last, chart.box.bottom], [first, chart.box.bottom]]) + "Z" }));
    chart.root.append(svg("path", { class: "transfer", d: path([...points, [last, chart.box.top], [first, chart.box.top]]) + "Z" }));
  }
  if (data) pinnedBands(chart, data, from);
  if (!values.some((x) => x !== null)) nothing(chart, "no later turns yet");
  const i = told(data), now = i < 0 ? null : values[i];
  const note = [el("span", { class: "key local" }), "local (prefill where it decodes)  ", el("span", { class: "key transfer" }), "transfer (through a prefill node)"];
  if (view.at !== null && i >= 0) note.push(" · at " + clock(data.t_s[i], true));
  caption(figure, "Routes of later turns", now === null ? "–" : percent(now) + " local", note, false);
  finish(figure, chart, now === null ? "no later turns yet" : percent(now) + " of later turns go local");
}

// -- tables -----------------------------------------------------------------------------------------------------------

function table(id, columns, rows, none) {
  if (!rows.length) { $(id).replaceChildren(el("p", { class: "none" }, none)); return; }
  const head = el("tr", {}, ...columns.map(([name, cls]) => el("th", { class: cls || "", scope: "col" }, name)));
  const body = rows.map((cells) => el("tr", {}, ...cells.map((cell, i) => el("td", { class: columns[i][1] || "" }, cell))));
  $(id).replaceChildren(el("table", {}, el("thead", {}, head), el("tbody", {}, ...body)));
}

const word = (text, cls) => el("span", { class: cls }, text);

function budgetLeft(slo) {
  const budget = slo.budget;
  if (!budget || budget.left === null) return word("–", "dim");
  const cell = word(percent(budget.left, 1) + " · " + count(budget.bad_left) + (budget.method === "slices" ? " slices" : ""), budget.left <= 0 ? "bad" : "");
  cell.title = slo.why;
  return cell;
}

function alertState(slo) {
  const alert = slo.alert;
  if (!alert) return word(slo.kept === null ? "no turns yet" : slo.kept ? "kept" : "missed", slo.kept === null ? "dim" : slo.kept ? "good" : "bad");
  if (!alert.since) return word(slo.verdict === "unknown" ? "too few turns" : slo.verdict === "breach" ? "outside" : "ok", slo.verdict === "ok" ? "good" : slo.verdict === "breach" ? "bad" : "dim");
  const cell = word(`${alert.severity} ${alert.state} since ${clock(Date.parse(alert.since) / 1000)}`, "bad");
  cell.title = alert.summary;
  return cell;
}

function drawSlos(model) {
  const readings = model ? model.readings : [];
  const columns = [["promise"], ["now", "n"], ["good", "n"], ["of turns", "n roomy"], ["bad", "n roomy"], ["budget left", "n"], ["alert", ""]];
  const rows = view.slos.slos.map((slo) => {
    const reading = readings.find((r) => r.slo === slo.slo), now = reading ? value(reading.value_s) : null;
    const over = now !== null && now > slo.threshold_s;
    const share = slo.good_share === null ? "–" : percent(slo.good_share, 2);
    return [el("span", { id: `slo-${slo.slo}` }, slo.promise), now === null ? word("–", "dim") : word(seconds(now), over ? "bad" : ""), share, count(slo.valid), count(slo.bad), budgetLeft(slo), alertState(slo)];
  });
  table("slos", columns, rows, "No SLO is declared: nothing drives the price.");
}

// Observe mode: served turns as they were, and as they would have been at the price where the law in shadow stands.
function drawObserved(name) {
  const observed = view.status.observe, card = $("observed");
  const seen = observed && observed.models && name !== null ? observed.models[name] : null;
  card.hidden = !observed;
  if (!observed) return;
  const [told, notes] = [card.querySelector(".told"), card.querySelector(".none")];
  told.textContent = observed.error ? "It went wrong: " + observed.error : seen ? seen.headline : "Nothing to compare yet.";
  notes.textContent = [...(seen ? seen.cautions.map((each) => each.what) : []), observed.label || ""].filter((text) => text).join("; ") + ".";
  const range = (side) => (side.low_s === null && side.high_s === null ? "" : `${seconds(value(side.low_s))} to ${side.high_s === null ? "unknown" : seconds(value(side.high_s))}`);
  const columns = [["over " + ago(seen ? seen.span_s : 0)], ["as it is", "n"], ["sampled within", "n roomy dim"], ["had control acted", "n"], ["sampled within", "n roomy dim"], ["turns", "n"]];
  const rows = seen === null ? [] : [["P99 TTFT", seen.ttft], ["P99 TPOT", seen.tpot]].map(([what, side]) => [
    what, seconds(value(side.acted.value_s)), range(side.acted), seconds(value(side.shadow.value_s)), range(side.shadow), count(side.acted.n)]);
  for (const slo of seen === null ? [] : seen.slos) {
    const share = (side) => word(side.value === null ? "–" : percent(side.value, 2), side.value > slo.allowed_share ? "bad" : "");
    const within = (side) => (side.value === null ? "" : `${percent(side.low, 2)} to ${percent(side.high, 2)}`);
    rows.push([`miss ${slo.slo} (${seconds(slo.threshold_s)}, ${percent(slo.allowed_share, 1)} may)`, share(slo.share.acted), within(slo.share.acted), share(slo.share.shadow), within(slo.share.shadow), count(slo.turns)]);
  }
  table("observe", columns, rows, "Turns are compared some 20 s after they end.");
}

function drawNodes() {
  const columns = [["node", "id"], ["role", "roomy"], ["state"], ["sequences", "n"], ["queue", "n"], ["KV memory", "whole"], ["address", "dim roomy"]];
  const rows = view.status.nodes.map((node) => {
    const known = node.kv_capacity_tokens > 0 && node.kv_capacity_tokens < UNKNOWN_KV, share = known ? node.kv_tokens / node.kv_capacity_tokens : 0;
    const fill = el("i", { class: share >= RED_AT_KV ? "full" : "" });
    fill.style.width = Math.min(100, share * 100) + "%";
    const state = !node.healthy ? word("down", "bad") : node.draining ? word("draining", "dim") : word("up", "good");
    const memory = known ? el("span", {}, el("span", { class: "meter", "aria-hidden": "true" }, fill), percent(share)) : word("–", "dim");
    return [node.id, node.role, state, String(node.sequences), seconds(node.backlog_ms / 1e3), memory, node.url];
  });
  table("nodes", columns, rows, "No router has told of its nodes yet.");
}

function drawRouters() {
  const columns = [["router", "id"], ["last report", "n"], ["acts on", "n"], ["waiting", "n"], ["dropped", "n roomy"]];
  const rows = view.status.routers.map((router) => [
    router.router,
    word(ago(router.age_s) + " ago", router.silent ? "bad" : ""),
    router.pin_x !== null ? word("pin x=" + router.pin_x, "") : word("v" + router.policy_version, router.behind ? "bad" : ""),
    String(router.waiting),
    count(router.dropped_records),
  ]);
  table("routers", columns, rows, "No router has reported yet.");
}

function drawPolicy() {
  const s = view.status, p = s.publication;
  const rows = [
    ["publication", `version ${p.version}, ${clock(s.now_s - Math.max(0, s.now_s - Date.parse(p.published_at) / 1000), true)}`],
    ["why", p.provenance || "–"],
    ["policy", p.sha256.slice(0, 12)],
    ["law", s.mode === "load_aware" ? s.law || "none: observe only" : "none: the paper's table"],
    ["last tick", ago(s.tick_age_s) + " ago"],
    ["history", s.store.on_disk ? (s.store.problem ? "not written: see above" : "on disk, 24 h") : "in memory only"],
  ];
  $("policy").replaceChildren(...rows.flatMap(([name, text]) => [el("dt", {}, name), el("dd", {}, text)]));
}

// -- all --------------------------------------------------------------------------------------------------------------

function draw() {
  document.body.classList.toggle("stale", view.failing);
  drawBanners();
  const status = view.status;
  if (status === null) {
    if (view.failing) $("headline").textContent = "The control process does not answer.";
    return;
  }
  const name = chooseModel(), model = name === null ? null : status.models[name];
  drawTop(name);
  drawCharts(name, model);
  drawObserved(name);
  drawSlos(model);
  drawNodes();
  drawRouters();
  drawPolicy();
  $("footer").textContent = `Trimtab ${status.version} · source: ${status.source} · data of ${clock(status.now_s, true)} · also at /api/v1/status, /api/v1/series, /metrics`;
}

function drawCharts(name, model) {
  const series = view.series, now = Math.max(view.status.now_s, series ? series.now_s : 0);
  const data = series && name !== null && series.models[name] ? series.models[name] : null;
  // A young process need not fill a corner of the picture, but a picture of less than five minutes says little.
  const first = data && data.t_s.length ? data.t_s[0] - 5 : now;
  const from = Math.max(now - view.minutes * 60, Math.min(first, now - LEAST_SHOWN_S)), to = now;
  const step = series ? series.step_s : view.status.tick_s, gap = 3.5 * Math.max(step, view.status.tick_s);
  const declared = (signals) => {  // before the first turn there is no model to ask
    const slo = view.slos.slos.find((s) => signals.includes(s.signal));
    return slo ? { ...slo, percentile: slo.objective } : null;
  };
  drawLatency("ttft", data, name, model ? model.binding.ttft : declared(["ttft"]), from, to, gap);
  drawLatency("tpot", data, name, model ? model.binding.tpot : declared(["tpot", "itl"]), from, to, gap);
  drawPrice(data, model, from, to, gap);
  drawRoutes(data, step, from, to, gap);
}

function point(event) {
  const plot = event.currentTarget, chart = plot.chart;
  if (!chart) return;
  const x = event.clientX - plot.getBoundingClientRect().left, share = (x - chart.box.left) / (chart.box.right - chart.box.left);
  view.at = share < 0 || share > 1 ? null : chart.from + share * (chart.to - chart.from);
  draw();
}

function setMinutes(minutes) {
  view.minutes = minutes;
  for (const button of document.querySelectorAll("[data-minutes]")) button.setAttribute("aria-pressed", String(Number(button.dataset.minutes) === minutes));
}

function start() {
  const wanted = new URLSearchParams(location.hash.slice(1));
  view.model = wanted.get("model");
  setMinutes([15, 60, 1440].includes(Number(wanted.get("minutes"))) ? Number(wanted.get("minutes")) : 15);
  const remember = () => {
    const hash = new URLSearchParams({ minutes: view.minutes, ...(view.model === null ? {} : { model: view.model }) });
    history.replaceState(null, "", "#" + hash);
  };
  for (const button of document.querySelectorAll("[data-minutes]")) {
    button.addEventListener("click", () => { setMinutes(Number(button.dataset.minutes)); remember(); askSeries(); });
  }
  $("model").addEventListener("change", (event) => { view.model = event.target.value; remember(); draw(); });
  for (const plot of document.querySelectorAll(".plot")) {
    plot.addEventListener("pointermove", point);
    plot.addEventListener("pointerleave", () => { view.at = null; draw(); });
  }
  new ResizeObserver(() => draw()).observe($("all"));
  askStatus();
  askSeries();
}

start();
