// The live page: one stream of states from /ui/events, drawn as it comes. Nothing is asked of any
// other host, and nothing while the page is hidden or paused.

const $ = (id) => document.getElementById(id);
const svgNS = "http://www.w3.org/2000/svg";

// el is an element with attributes and children; text is never read as markup.
function el(name, attributes = {}, ...children) {
  const e = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) if (value !== undefined && value !== null) e.setAttribute(key, value);
  e.append(...children.filter((c) => c !== undefined && c !== null).map((c) => (c instanceof Node ? c : String(c))));
  return e;
}

function svg(name, attributes = {}) {
  const e = document.createElementNS(svgNS, name);
  for (const [key, value] of Object.entries(attributes)) e.setAttribute(key, value);
  return e;
}

// Figures

function time(ms) {
  if (ms === undefined || ms === null) return "–";
  if (ms >= 9995) return (ms / 1000).toFixed(1) + " s";
  if (ms >= 999.5) return (ms / 1000).toFixed(2) + " s";
  return ms.toFixed(ms >= 99.95 ? 0 : 1) + " ms";
}

function count(n) {
  if (n === undefined || n === null) return "–";
  if (n >= 1e6) return (n / 1e6).toFixed(1) + "M";
  if (n >= 1e4) return (n / 1e3).toFixed(n >= 1e5 ? 0 : 1) + "k";
  return String(Math.round(n));
}

const share = (v) => (v === undefined || v === null ? "–" : (100 * v).toFixed(v < 0.0995 ? 1 : 0) + " %");
const clock = (at) => new Date(at).toLocaleTimeString([], { hour12: false });
const times = (v) => v.toFixed(v < 10 ? 1 : 0) + "×";

// State

let state = null; // the last one
let names = []; // short names, by place in state.servers: P1, D2, B3
const before = []; // transfers of each pair in the last minute's states: {at, n: Map}
let chosenPair = null; // "P/D" by IDs
let chosenDecision = null; // request ID, or time, of the row that is open
let heldDecisions = null; // the list stands still while one is open
const alternatives = new Map(); // request ID -> the answer of /debug/decisions

function draw(next) {
  state = next;
  const seen = {};
  names = state.servers.map((s) => {
    const letter = { prefill: "P", decode: "D", both: "B" }[s.role];
    seen[letter] = (seen[letter] ?? 0) + 1;
    return letter + seen[letter];
  });
  rememberTransfers();
  drawHeader();
  drawFigures();
  drawGateways();
  drawCharts();
  drawServers();
  drawMatrix();
  drawScaling();
  drawDecisions();
}

const readiness = (g) => (g.ready ? "ready" : "not ready: " + g.why) + (g.apart ? ", Redis does not answer" : "");

function drawHeader() {
  const g = state.gateway;
  $("replica").textContent = [g.replica && "replica " + g.replica, g.version].filter(Boolean).join(" · ");
  $("ready").textContent = readiness(g);
  $("ready").className = g.ready && !g.apart ? "quiet" : "bad";
  const silent = state.gateways.filter((g) => g.silent).length;
  $("answered").textContent = state.gateways.length > 1 ? `${state.gateways.length - silent} of ${state.gateways.length} gateways` : "";
  $("answered").className = silent ? "bad" : "quiet";
  const select = $("model");
  const models = state.models.map((m) => m.id);
  if (select.dataset.models === JSON.stringify(models)) return;
  select.dataset.models = JSON.stringify(models);
  if (model && !models.includes(model)) models.push(model);
  select.replaceChildren(el("option", { value: "" }, "all"), ...models.map((m) => el("option", { value: m }, m)));
  select.value = model;
}

// The gateways whose work is shown, and what they are called.
const answering = () => state.gateways.filter((g) => !g.silent);
const ofGateways = () => (answering().length > 1 ? `of ${answering().length} gateways` : "of this gateway");

function drawFigures() {
  const p = state.history.lately, all = answering();
  const sum = (of) => all.reduce((n, g) => n + g[of], 0);
  const figure = (name, value, small, cls) => el("div", {}, el("dt", {}, name), el("dd", { class: cls }, value, small && el("small", {}, " " + small)));
  const per = (n) => (n / p.seconds).toFixed(n < 10 * p.seconds ? 1 : 0);
  $("figures").replaceChildren(
    figure("answers per s", per(p.answers), "last minute"),
    figure("failed before a token", count(p.failed), "last minute", p.failed ? "bad" : ""),
    figure("waiting / in flight", sum("waiting") + " / " + sum("in_flight"), "now"),
    figure("TTFT p50 / p99", p.first ? time(p.ttft_p50_ms) : "–", p.first ? "/ " + time(p.ttft_p99_ms) : ""),
    figure("ITL p50 / p99", p.gaps ? time(p.itl_p50_ms) : "–", p.gaps ? "/ " + time(p.itl_p99_ms) : ""),
    figure("cached, as reported", share(p.cached), p.cached === undefined ? "" : "predicted " + share(p.cached_predicted)),
    figure("servers up", state.servers.filter((s) => s.state === "alive").length + " / " + state.servers.length, "now"),
    figure("tokens per s, in / out", count(p.prompt_tokens / p.seconds), "/ " + count(p.output_tokens / p.seconds)),
  );
}

// Gateways: of one alone the header says everything.

function drawGateways() {
  $("gateways").hidden = state.gateways.length < 2;
  document.body.classList.toggle("alone", state.gateways.length < 2);
  $("times-of").textContent = "in steps of 10 s, " + ofGateways();
  $("gateway-rows").replaceChildren(...state.gateways.map(gatewayRow));
}

function gatewayRow(g) {
  const name = el("td", {}, clip(g.replica), g.replica === state.gateway.replica ? el("span", { class: "quiet" }, " (asked)") : "");
  const row = (...cells) => el("tr", { "data-gateway": g.replica }, name, ...cells);
  if (g.silent) return row(el("td", { class: "bad wrap", colspan: 6 }, "no answer: " + g.silent), el("td", { class: "quiet" }, clip(g.version)));
  const p = g.lately;
  return row(
    el("td", { class: g.ready && !g.apart ? "" : "bad" }, clip(readiness(g))),
    el("td", { class: "n" }, g.waiting), el("td", { class: "n" }, g.in_flight), el("td", { class: "n" }, (p.answers / p.seconds).toFixed(1)),
    el("td", { class: "n " + (p.failed ? "bad" : "") }, p.failed),
    el("td", { class: "n" }, p.first ? `${time(p.ttft_p50_ms)} / ${time(p.ttft_p99_ms)}` : "–"),
    el("td", { class: "quiet" }, clip(g.version)));
}

// Charts

const parts = [["wait_ms", "wait"], ["retry_ms", "choice, retries"], ["prefill_ms", "prefill"], ["transfer_ms", "transfer"],
  ["together_ms", "prefill and transfer"], ["aggregated_ms", "decode alone"]];
const charts = [
  { id: "chart-parts", title: "Mean TTFT", unit: time, missing: "no stream has begun", has: (p) => p.first > 0, stacked: parts.map(([key, name]) => [name, (p) => p.parts[key]]) },
  { id: "chart-ttft", title: "TTFT", unit: time, missing: "no stream has begun", has: (p) => p.first > 0, lines: [["p99", (p) => p.ttft_p99_ms], ["p50", (p) => p.ttft_p50_ms]] },
  { id: "chart-itl", title: "ITL", unit: time, missing: "no stream has had two tokens", has: (p) => p.gaps > 0, lines: [["p99", (p) => p.itl_p99_ms], ["p50", (p) => p.itl_p50_ms]] },
  { id: "chart-cached", title: "Cached share", unit: share, top: 1, missing: "no engine has reported cached tokens", has: (p) => p.cached !== undefined, lines: [["reported", (p) => p.cached], ["predicted", (p) => p.cached_predicted]] },
  { id: "chart-requests", title: "Answers per s", unit: (v) => v.toFixed(v < 10 ? 1 : 0), missing: "no request was answered", has: (p) => p.answers + p.failed > 0,
    stacked: [["answered", (p) => p.answers / state.history.step_s, "f2"], ["failed", (p) => p.failed / state.history.step_s, "fbad"]] },
];
const height = 100, width = 900;

function drawCharts() { for (const c of charts) drawChart(c); }

function drawChart(c) {
  const points = state.history.points, step = width / points.length;
  const shown = points.map((p) => (c.has(p) ? p : null));
  const values = shown.filter(Boolean).map((p) => (c.stacked ? c.stacked.reduce((sum, [, of]) => sum + of(p), 0) : Math.max(...c.lines.map(([, of]) => of(p) ?? 0))));
  const top = c.top ?? (Math.max(...values, 0) || 1);
  const drawing = svg("svg", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": c.title });
  const y = (v) => height - (height * Math.min(v, top)) / top;
  shown.forEach((p, i) => {
    if (!p || !c.stacked) return;
    let from = 0;
    c.stacked.forEach(([, of, cls], k) => {
      const v = of(p);
      if (v > 0) drawing.append(svg("rect", { x: i * step + 1, width: step - 2, y: y(from + v), height: y(from) - y(from + v), class: cls ?? "f" + k }));
      from += v;
    });
  });
  (c.lines ?? []).forEach(([, of], k) => drawing.append(svg("path", { class: "line" + k, d: linePath(shown, of, step, y) })));
  const readout = el("div", { class: "readout" });
  const read = (i) => readPoint(c, readout, i);
  drawing.addEventListener("pointermove", (e) => {
    const box = drawing.getBoundingClientRect();
    c.at = Math.max(0, Math.min(points.length - 1, Math.floor(((e.clientX - box.left) / box.width) * points.length)));
    read(c.at);
  });
  drawing.addEventListener("pointerleave", () => { c.at = undefined; read(); });
  $(c.id).replaceChildren(el("figcaption", {}, c.title, el("span", { class: "quiet" }, values.length ? "up to " + c.unit(top) : "")), drawing, readout);
  read(c.at);
}

// linePath joins the points that are there; one with none beside it is a dash.
function linePath(shown, of, step, y) {
  let d = "";
  shown.forEach((p, i) => {
    if (!p) return;
    const at = `${((i + 0.5) * step).toFixed(1)} ${y(of(p)).toFixed(1)}`;
    if (i > 0 && shown[i - 1]) d += "L" + at;
    else d += `M${(i * step + step * 0.2).toFixed(1)} ${y(of(p)).toFixed(1)}L${at}`;
  });
  return d;
}

// readPoint writes what a step was, or without one the last minute.
function readPoint(c, readout, i) {
  const p = i === undefined ? state.history.lately : state.history.points[i];
  const when = i === undefined ? "last minute" : clock(p.t * 1000);
  if (!c.has(p)) {
    const ever = state.history.points.some(c.has);
    readout.replaceChildren(when + ": " + (ever ? "nothing" : c.missing + " in 15 minutes"));
    return;
  }
  const over = i === undefined ? 60 / state.history.step_s : 1; // steps
  const rows = (c.stacked ?? c.lines).map(([name, of, cls], k) => [name, of(p), cls ?? "f" + (c.lines ? 3 * k : k)]).filter(([, v]) => v > 0 || c.lines);
  readout.replaceChildren(when, ...rows.map(([name, v, cls]) => el("span", {}, el("i", { class: cls }), name + " " + c.unit(c.id === "chart-requests" ? v / over : v))));
}

// Servers

const legs = (s) => [s.prefill, s.decode].filter(Boolean);

function stateOf(s) {
  const by = s.views ? seenBy(s, (v) => v.state === s.state) : "";
  if (s.state === "down") return ["down" + by + (s.reason ? ": " + s.reason : ""), "bad"];
  if (s.state === "unresponsive") return ["answers late" + by, "warn"];
  return s.draining ? ["draining", "warn"] : ["up", ""];
}

function drawServers() {
  const totals = {};
  state.servers.forEach((s) => {
    const t = (totals[s.role] ??= { there: 0, up: 0, draining: 0 });
    t.there++;
    if (s.state === "alive") t.up++;
    if (s.draining) t.draining++;
  });
  $("servers-summary").textContent = Object.entries(totals).map(([role, t]) => `${role}: ${t.up} of ${t.there} up` + (t.draining ? `, ${t.draining} draining` : "")).join(" · ");
  $("server-rows").replaceChildren(...(state.servers.length ? state.servers.map(serverRow) : [empty(11, "No server is known. Flags --prefill, --decode and --both name them; a file, DNS, Kubernetes or registration can too.")]));
}

function serverRow(s, i) {
  const [text, cls] = stateOf(s);
  const breakers = [...new Set(legs(s).map((l) => l.breaker))];
  const all = legs(s).reduce((n, l) => n + l.requests, 0), own = legs(s).reduce((n, l) => n + l.own, 0);
  const engine = s.running === undefined && s.waiting === undefined ? "–" : `${count(s.running)} / ${count(s.waiting)}`;
  const place = [...new Set([s.zone, s.rack, s.host].filter(Boolean))].join(" / ");
  return el("tr", { "data-server": s.id },
    el("td", { class: "quiet" }, names[i]),
    el("td", {}, clip(s.id)),
    el("td", { class: cls, title: viewsOf(s) }, clip(text)),
    el("td", { title: viewsOf(s), class: breakers.includes("open") ? "bad" : breakers.some((b) => b !== "closed") ? "warn" : "quiet" }, breakers.join(", ") + (s.views ? seenBy(s, (v) => v.breaker !== "closed") : "")),
    el("td", { class: "n" }, all, own === all ? "" : el("span", { class: "quiet" }, ` (${own})`)),
    el("td", { class: "n" }, engine),
    el("td", { class: "n" }, s.prefill ? time(s.prefill.queue_ms) : "–"),
    el("td", {}, kvMeter(s)),
    el("td", {}, s.adapters ? clip(s.adapters.map((a) => a.name + (a.running ? "*" : "")).join(", "), "* in the batch now") : el("span", { class: "quiet" }, "–")),
    el("td", { class: "quiet" }, clip(place || "–")),
    el("td", { class: "quiet" }, clip(s.models.join(", ") || "–")));
}

// seenBy says how many of the gateways see something, where they differ.
function seenBy(s, sees) {
  const n = s.views.filter(sees).length;
  return n && n < s.views.length ? ` for ${n} of ${s.views.length}` : "";
}

const viewsOf = (s) => s.views?.map((v) => `${v.gateway}: ${v.state}, ${v.breaker}`).join("\n");

function kvMeter(s) {
  if (s.kv_used === undefined) return el("span", { class: "quiet" }, "not reported");
  const of = s.kv_tokens ? ` of ${count(s.kv_tokens)}` : "";
  return el("span", {}, meter(s.kv_used, s.kv_used >= 0.97 ? "bad" : s.kv_used >= 0.9 ? "warn" : ""), share(s.kv_used), el("span", { class: "quiet" }, of));
}

function meter(part, cls) {
  const filled = el("span");
  filled.style.width = 100 * Math.max(0, Math.min(1, part)) + "%";
  return el("span", { class: "meter " + (cls ?? "") }, filled);
}

const clip = (text, title) => el("span", { class: "clip", title: title ? text + "\n" + title : text }, text);
const empty = (columns, text) => el("tr", {}, el("td", { colspan: columns, class: "empty" }, el("div", {}, text)));

// Matrix

const keyOf = (p, d) => state.servers[p].id + " " + state.servers[d].id;

// rememberTransfers keeps a minute of states, for what a pair moved in it.
function rememberTransfers() {
  const at = Date.parse(state.at);
  before.push({ at, n: new Map(state.links.pairs.map((l) => [keyOf(l.p, l.d), l.transfers])) });
  while (before.length > 1 && at - before[0].at > 60e3) before.shift();
}

function drawMatrix() {
  const able = (leg) => state.servers.flatMap((s, i) => (s[leg] ? [i] : []));
  const rows = able("prefill"), columns = able("decode");
  const moved = state.links.pairs.reduce((n, l) => n + l.transfers, 0);
  $("links-summary").textContent = `${rows.length} × ${columns.length} pairs, ${count(moved)} transfers ${ofGateways()} over ${state.links.pairs.length} of them`;
  drawClasses();
  const drawing = $("matrix");
  drawing.parentElement.hidden = !rows.length || !columns.length;
  if (!rows.length || !columns.length) {
    $("pair").textContent = "There are no pairs: " + (columns.length ? "no server prefills for others." : "no server decodes.");
    return;
  }
  layOut(drawing, rows, columns);
  const most = Math.max(1, ...state.links.pairs.map((l) => l.transfers + (l.moving ?? 0)));
  const links = new Map(state.links.pairs.map((l) => [keyOf(l.p, l.d), l]));
  for (const g of drawing.querySelectorAll("g")) drawCell(g, links.get(g.dataset.pair), most);
  readPair(links, moved);
}

// layOut makes the cells, anew only where the servers have changed.
function layOut(drawing, rows, columns) {
  const shape = JSON.stringify([rows, columns].map((list) => list.map((i) => state.servers[i].id)));
  if (drawing.shape === shape) return;
  drawing.shape = shape;
  const size = Math.max(9, Math.min(30, Math.floor(Math.min(880, window.innerWidth) / (columns.length + 3)))), edge = 26;
  const w = edge + columns.length * size + 2, h = edge + rows.length * size + 2;
  drawing.replaceChildren();
  for (const [key, value] of Object.entries({ width: w, height: h, viewBox: `0 0 ${w} ${h}`, tabindex: 0 })) drawing.setAttribute(key, value);
  const each = Math.ceil(24 / size);
  const label = (x, y, text, anchor) => {
    const t = svg("text", { x, y, "text-anchor": anchor });
    t.textContent = text;
    drawing.append(t);
  };
  columns.forEach((d, i) => i % each === 0 && label(edge + i * size + size / 2, edge - 6, names[d], "middle"));
  rows.forEach((p, k) => {
    if (k % Math.ceil(13 / size) === 0) label(edge - 5, edge + k * size + size / 2 + 3.5, names[p], "end");
    columns.forEach((d, i) => {
      const g = svg("g", { transform: `translate(${edge + i * size} ${edge + k * size})` });
      g.dataset.pair = keyOf(p, d);
      g.dataset.size = size;
      const slot = svg("rect", { class: "slot", x: 0.5, y: 0.5, width: size - 1, height: size - 1 });
      const title = svg("title");
      title.textContent = names[p] + " → " + names[d];
      g.append(slot, svg("rect", { class: "cell" }), svg("path", { class: "cross" }), title);
      g.addEventListener("pointerenter", () => { if (!pinned) choosePair(g.dataset.pair); });
      g.addEventListener("click", () => { pinned = pinned && chosenPair === g.dataset.pair ? false : true; choosePair(g.dataset.pair); });
      drawing.append(g);
    });
  });
  drawing.onkeydown = (e) => {
    const by = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[e.key];
    if (!by) return;
    e.preventDefault();
    const cells = [...drawing.querySelectorAll("g")];
    const now = Math.max(0, cells.findIndex((g) => g.dataset.pair === chosenPair));
    const row = Math.max(0, Math.min(rows.length - 1, Math.floor(now / columns.length) + by[0]));
    const column = Math.max(0, Math.min(columns.length - 1, (now % columns.length) + by[1]));
    pinned = true;
    choosePair(cells[row * columns.length + column].dataset.pair);
  };
}

let pinned = false; // the chosen pair stays when the pointer moves on

function choosePair(pair) {
  chosenPair = pair;
  drawMatrix();
}

function slowness(link) { return link.slower >= 3 ? "bad" : link.slower >= 1.5 ? "warn" : ""; }

function drawCell(g, link, most) {
  const [slot, cell, cross] = g.children, size = Number(g.dataset.size);
  slot.setAttribute("class", g.dataset.pair === chosenPair ? "slot chosen" : "slot");
  const n = link ? link.transfers + (link.moving ?? 0) : 0;
  const side = n ? Math.max(2, (size - 2) * Math.sqrt(n / most)) : link?.slower >= 1.5 ? 2 : 0;
  for (const [key, value] of Object.entries({ x: (size - side) / 2, y: (size - side) / 2, width: side, height: side, class: "cell " + (link ? slowness(link) : "") })) cell.setAttribute(key, value);
  const a = size * 0.25, b = size * 0.75;
  cross.setAttribute("d", link?.failed_at ? `M${a} ${a}L${b} ${b}M${b} ${a}L${a} ${b}` : "");
}

function readPair(links, moved) {
  const ids = chosenPair?.split(" ");
  const places = ids?.map((id) => state.servers.findIndex((s) => s.id === id));
  if (!places || places.includes(-1)) {
    chosenPair = null;
    $("pair").replaceChildren(el("p", { class: "quiet" }, moved ? "Point at a pair, or select one." : "No KV was moved yet. Prompts for which a second server would cost more than it saves run on decode alone."));
    return;
  }
  const link = links.get(chosenPair);
  const rows = [["prefill", `${names[places[0]]}  ${ids[0]}`], ["decode", `${names[places[1]]}  ${ids[1]}`]];
  if (!link) rows.push(["transfers", "none lately"]);
  else {
    const old = before[0].n.get(chosenPair) ?? link.transfers;
    const span = Math.round((Date.parse(state.at) - before[0].at) / 1000);
    const known = state.links.classes.find((c) => c.distance === link.distance);
    rows.push(["transfers", `${link.transfers}, ${Math.max(0, link.transfers - old)} in the last ${span} s` + (link.moving ? `, ${link.moving} under way` : "")]);
    rows.push(["class", known ? `${link.distance}: ${known.latency_ms.toFixed(2)} ms and ${known.gb_per_second.toFixed(1)} GB/s` : "no transfer seen"]);
    rows.push(["measured", link.measured ? times(link.measured) + " the time of its class" : "–"]);
    rows.push(["taken for", times(link.slower) + " slower" + (link.blamed ? ", blamed on " + (link.blamed === "pair" ? "the pair" : "the " + link.blamed + " server") : ""), slowness(link)]);
    rows.push(["failed", link.failed_at ? clock(link.failed_at) : "not lately", link.failed_at ? "bad" : ""]);
  }
  $("pair").replaceChildren(el("dl", {}, ...rows.flatMap(([name, value, cls]) => [el("dt", {}, name), el("dd", { class: cls }, value)])));
}

function drawClasses() {
  $("classes").replaceChildren(
    el("thead", {}, el("tr", {}, ...["class of links", "latency", "GB/s"].map((h, i) => el("th", { class: i ? "n" : "" }, h)))),
    el("tbody", {}, ...state.links.classes.map((c) => el("tr", {}, el("td", {}, c.distance === "far" ? "far" : "same " + c.distance), el("td", { class: "n" }, c.latency_ms.toFixed(2) + " ms"), el("td", { class: "n" }, c.gb_per_second.toFixed(1))))));
}

// Wanted servers

const reasons = {
  stale: "signals are too old: nothing changes", young: "too little was seen to take a server away", idle: "no demand for long", held: "requests wait for a first server",
  demand: "expected tokens per second", burst: "the last minute, far above what was expected", backlog: "demand, and the prompts that wait", kv: "KV that requests hold and wait for",
  settle: "fewer would do, not for long enough yet", pending: "fewer would do, servers are still starting", bound: "the most that are allowed", draining: "fewer will do when those that go are empty",
};

function drawScaling() {
  $("scaling-rows").replaceChildren(...(state.scaling.length ? state.scaling.map((p) => el("tr", {},
    el("td", {}, clip(p.model)), el("td", {}, p.role), el("td", { class: "quiet" }, p.variant ?? "all"),
    el("td", { class: "n" }, p.wanted ?? "–"), el("td", { class: "n " + (p.ready < p.wanted ? "warn" : "") }, p.ready), el("td", { class: "n" }, p.pending),
    el("td", { class: "n " + (p.waiting ? "bad" : "") }, p.waiting),
    el("td", { class: p.stale || p.reason === "bound" ? "warn" : "quiet" }, p.stale ? "old: of " + clock(p.at) : `${p.reason}: ${reasons[p.reason] ?? ""}`)))
    : [empty(8, "Nothing is planned yet: no model was asked for, or the first decision is still to come.")]));
}

// Decisions

// Of the time to the first token, in its order; then what a choice is priced by besides.
const terms = [["ready_ms", "ready"], ["queue_ms", "queue"], ["prefill_ms", "prefill"], ["transfer_ms", "transfer"], ["room_ms", "KV room"], ["step_ms", "step"]];
const costs = [["pace_ms", "decode cost"], ["burden_ms", "delay to others"], ["misfit_ms", "hardware mismatch"], ["eviction_ms", "eviction"]];

function drawDecisions() {
  if (!$("terms-legend").children.length) $("terms-legend").append(...terms.map(([, name], k) => [el("i", { class: "f" + k }), name]).flat());
  const list = heldDecisions ?? state.decisions;
  const slowest = Math.max(1, ...list.flatMap((d) => [d.chosen.first_token_ms, d.measured.first_token_ms ?? 0]));
  const focused = document.activeElement?.dataset?.id;
  $("decision-rows").replaceChildren(...(list.length ? list.flatMap((d) => decisionRows(d, slowest)) : [empty(10, "No request was served yet.")]));
  $("decisions-held").textContent = heldDecisions ? "the list stands still while one is open" : "predicted above, measured below; select one for every term";
  if (focused) [...$("decision-rows").children].find((row) => row.dataset.id === focused)?.focus({ preventScroll: true });
}

const nameOf = (id) => names[state.servers.findIndex((s) => s.id === id)] ?? id;
const idOf = (d) => d.id ?? d.at;

function decisionRows(d, slowest) {
  const open = chosenDecision === idOf(d), m = d.measured, c = d.chosen;
  const pair = el("span", { title: [c.prefill, c.decode].filter(Boolean).join(" → ") }, c.prefill ? `${nameOf(c.prefill)} → ${nameOf(c.decode)}` : `${nameOf(c.decode)} alone`);
  const row = el("tr", { class: "choice", tabindex: 0, "aria-expanded": open, "data-id": idOf(d) },
    el("td", {}, clock(d.at)),
    el("td", { class: d.outcome === "failed" || d.outcome === "broken" ? "bad" : "" }, d.outcome + (d.attempts > 1 ? `, attempt ${d.attempts}` : "")),
    el("td", {}, pair),
    el("td", { class: "by quiet" }, clip(d.gateway ?? "")),
    el("td", { class: "n" }, count(m.prompt_tokens ?? d.prompt_tokens)),
    el("td", { class: "n" }, count(m.cached_tokens)),
    el("td", { class: "n" }, m.output_tokens === undefined ? el("span", { class: "quiet" }, "~" + count(d.output_tokens)) : count(m.output_tokens)),
    el("td", { class: "n" }, time(d.waited_ms)),
    el("td", { class: "n" }, el("span", { class: "quiet" }, time(c.first_token_ms)), el("br"), time(m.first_token_ms)),
    el("td", { class: "bars" }, stack(terms.map(([key], k) => [c[key] ?? 0, "f" + k]), slowest), stack(measuredBars(m, c.first_gap_ms), slowest)));
  row.onclick = () => openDecision(d, open);
  row.onkeydown = (e) => { if (e.key === "Enter" || e.key === " ") { e.preventDefault(); openDecision(d, open); } };
  return open ? [row, detailRow(d)] : [row];
}

// measuredBars are what was seen of the time to the first token: queue and prefill together, then
// transfer, KV room and step together; what no leg shows apart is one bar.
function measuredBars(m, gap) {
  const first = m.first_token_ms;
  if (first === undefined) return [[m.prefill_ms ?? 0, "f2"]];
  if (gap) return [[first, "f2"], [m.transfer_ms ?? 0, "f3"]]; // prefill said the first token
  const prefill = Math.min(m.prefill_ms ?? 0, first), transfer = Math.min(m.transfer_ms ?? 0, first - prefill);
  return [[prefill, "f2"], [transfer, "f3"], [first - prefill - transfer, "f4"]];
}

function stack(values, most) {
  return el("div", { class: "stack" }, ...values.filter(([v]) => v > 0).map(([v, cls]) => {
    const bar = el("span", { class: cls });
    bar.style.width = (100 * v) / most + "%";
    return bar;
  }));
}

function openDecision(d, open) {
  chosenDecision = open ? null : idOf(d);
  heldDecisions = open ? null : heldDecisions ?? state.decisions;
  drawDecisions();
  if (open || !d.id || alternatives.has(d.id)) return;
  fetch(new URL("/debug/decisions/" + encodeURIComponent(d.id), location.origin), { cache: "no-store" })
    .then((answer) => (answer.ok ? answer.json() : null))
    .then((known) => {
      if (alternatives.size > 50) alternatives.clear();
      alternatives.set(d.id, known?.attempts?.at(-1)?.alternatives ?? []);
      drawDecisions();
    })
    .catch(() => {}); // the stream says that the connection is lost
}

function detailRow(d) {
  const c = d.chosen, m = d.measured;
  const all = [...terms, ...costs].filter(([key]) => c[key] > 0);
  const most = Math.max(1, ...all.map(([key]) => c[key]), m.prefill_ms ?? 0, m.transfer_ms ?? 0);
  const bar = (name, value, note) => el("tr", {}, el("td", {}, name), el("td", {}, meter(value / most)), el("td", { class: "n" }, time(value)), el("td", { class: "quiet" }, note ?? ""));
  const measured = [["queue + prefill", m.prefill_ms], ["transfer + KV room + step", m.transfer_ms], ["first token", m.first_token_ms], ["whole answer", m.whole_ms]];
  const table = el("table", {},
    el("tbody", {}, el("tr", {}, el("th", { colspan: 4 }, `predicted: first token ${time(c.first_token_ms)}, total ${time(c.total_ms)}` + (d.alone ? `; decode alone: ${d.alone}` : ""))),
      ...all.map(([key, name]) => bar(name, c[key])),
      el("tr", {}, el("th", { colspan: 4 }, "measured")),
      ...measured.map(([name, v]) => (v === undefined ? el("tr", {}, el("td", {}, name), el("td", { class: "quiet" }, "not seen, or not ended")) : bar(name, v)))));
  return el("tr", { class: "detail" }, el("td", { colspan: 10 }, table, ...alternativeRows(d),
    el("div", { class: "quiet" }, d.id ? "tandem explain " + d.id : "its request ID was written by the client, and is not shown")));
}

function alternativeRows(d) {
  const list = alternatives.get(d.id);
  if (!list?.length) return [];
  const most = Math.max(...list.slice(0, 8).map((a) => a.total_ms), 1);
  return [el("table", {}, el("tbody", {}, el("tr", {}, el("th", { colspan: 4 }, "alternatives, cheapest first")),
    ...list.slice(0, 8).map((a) => el("tr", {}, el("td", {}, (a.chosen ? "→ " : "") + (a.prefill ? `${nameOf(a.prefill)} → ${nameOf(a.decode)}` : `${nameOf(a.decode)} alone`)),
      el("td", {}, meter(a.total_ms / most)), el("td", { class: "n" }, time(a.total_ms)), el("td", { class: "quiet" }, "first token " + time(a.first_token_ms))))))];
}

// The stream

let model = "";
let events = null;
let paused = false;
let retry = 0;

function say(text, cls) {
  $("connection").textContent = text;
  $("connection").className = cls;
}

function connect() {
  disconnect();
  if (paused || document.hidden) return;
  const url = new URL("/ui/events", location.origin);
  if (model) url.searchParams.set("model", model);
  events = new EventSource(url);
  events.addEventListener("state", (e) => {
    draw(JSON.parse(e.data));
    say("live, " + clock(state.at), "quiet");
    document.body.dataset.events = Number(document.body.dataset.events ?? 0) + 1;
  });
  events.onerror = () => {
    say(state ? "connection lost; figures of " + clock(state.at) : "no connection", "bad");
    if (events?.readyState === EventSource.CLOSED) retry = setTimeout(connect, 5000); // refused: too many pages, or a restart
  };
}

function disconnect() {
  clearTimeout(retry);
  events?.close();
  events = null;
}

$("pause").onclick = () => {
  paused = !paused;
  $("pause").textContent = paused ? "go on" : "pause";
  $("pause").setAttribute("aria-pressed", paused);
  if (paused) say("paused" + (state ? " at " + clock(state.at) : ""), "warn");
  connect();
};
$("model").onchange = () => { model = $("model").value; connect(); };
document.addEventListener("visibilitychange", connect);
window.addEventListener("pagehide", disconnect);
window.addEventListener("resize", () => { $("matrix").shape = ""; if (state) drawMatrix(); });
connect();
