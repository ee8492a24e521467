// The drawing of holders and waiters: parties, and the names that they wait for and hold, from left
// to right. An arrow points at what is waited for.
import { el, printable, say, show } from "./dom.js";

const svgns = "http://www.w3.org/2000/svg";
const height = 30;
const between = 10; // rows
// The widths of boxes and of the gaps between columns: the first that fit are used.
const sizes = [
  { party: 190, name: 140, gap: 38 },
  { party: 150, name: 110, gap: 30 },
  { party: 108, name: 80, gap: 20 },
];
const crowd = 5; // at most so many parties that only wait for one name are drawn one by one

function svg(tag, attributes, text) {
  const e = document.createElementNS(svgns, tag);
  for (const [k, v] of Object.entries(attributes)) e.setAttribute(k, v);
  if (text !== undefined) e.textContent = text;
  return e;
}

/** drawing makes the part of a page with the drawing. */
export function drawing() {
  const none = el("p", "none", "No waiters.");
  const canvas = el("div", "canvas");
  const left = el("p");
  const cycles = el("ul", "cycles");
  const panel = el("div", "panel drawing", none, canvas, left, cycles);
  panel.tabIndex = 0; // it may scroll
  panel.setAttribute("role", "group");
  panel.setAttribute("aria-label", "Holders and waiters");
  const part = el("section", "part", el("h3", "", "Holders and waiters"), panel);
  let drawn = "";

  /** update draws the part of the graph that concerns names with the prefix. */
  function update(graph, undrawn, prefix) {
    const g = model(graph, prefix);
    show(none, g.nodes.length === 0);
    show(left, undrawn > 0);
    say(left, `${undrawn} more holders and waiters are not drawn`);
    const mine = (graph.possible_cycles ?? []).filter((c) => c.steps.some((s) => s.waits.startsWith(prefix)));
    cycles.replaceChildren(...mine.map((c) => el("li", "", "Possible deadlock: " + c.steps.map((s) => `${printable(s.label)} waits for ${printable(s.waits)}`).join("; "))));
    const key = JSON.stringify([g.nodes.map((n) => [n.id, n.text]), g.edges.map((e) => [e.from.id, e.to.id, e.cycle]), canvas.clientWidth]);
    if (key === drawn) return;
    drawn = key;
    canvas.replaceChildren(...(g.nodes.length ? [draw(g, canvas.clientWidth)] : []));
  }

  return { part, update };
}

/** model is the nodes and edges of a graph, as far as names with the prefix are concerned. */
function model(graph, prefix) {
  const nodes = new Map();
  const edges = [];
  const node = (id, text, kind) => {
    if (!nodes.has(id)) nodes.set(id, { id, text: printable(text), kind, out: [], in: [] });
    return nodes.get(id);
  };
  const around = new Set((graph.possible_cycles ?? []).flatMap((c) => c.steps.flatMap((s, i) => {
    const next = c.steps[(i + 1) % c.steps.length];
    return [s.party + " > " + s.waits, s.waits + " > " + next.party];
  })));
  const held = new Set(graph.parties.flatMap((p) => p.holds));
  const awaited = new Set(graph.parties.flatMap((p) => p.waits));
  const edge = (from, to, cycle) => {
    const e = { from, to, cycle };
    edges.push(e);
    from.out.push(e);
    to.in.push(e);
  };
  for (const p of graph.parties) {
    const party = () => node("p " + p.id, p.label || "no label", "party");
    for (const name of p.waits) {
      if (held.has(name) && name.startsWith(prefix)) edge(party(), node("n " + name, name, "name"), around.has(p.id + " > " + name));
    }
    for (const name of p.holds) {
      if (awaited.has(name) && name.startsWith(prefix)) edge(node("n " + name, name, "name"), party(), around.has(name + " > " + p.id));
    }
  }
  return together({ nodes: [...nodes.values()], edges });
}

/** together draws many parties that only wait for the same name as one. */
function together({ nodes, edges }) {
  const gone = new Set();
  for (const name of nodes.filter((n) => n.kind === "name")) {
    const idle = name.in.map((e) => e.from).filter((n) => n.in.length === 0 && n.out.length === 1);
    if (idle.length <= crowd) continue;
    const rest = idle.slice(crowd - 1);
    rest[0].text = `and ${rest.length} more`;

    rest.slice(1).forEach((n) => gone.add(n));
  }
  return { nodes: nodes.filter((n) => !gone.has(n)), edges: edges.filter((e) => !gone.has(e.from)) };
}

/** draw places the nodes in columns: a node that is waited for is to the right of all that wait for
 *  it, unless they wait in a cycle. */
function draw({ nodes, edges }, room) {
  const state = new Map();
  const back = new Set(); // edges that close a cycle
  const visit = (n) => {
    state.set(n, "open");
    for (const e of n.out) {
      if (state.get(e.to) === "open") back.add(e);
      else if (!state.has(e.to)) visit(e.to);
    }
    state.set(n, "done");
  };
  nodes.forEach((n) => state.has(n) || visit(n));
  // the distance from the right side, where the nodes are that do not wait
  const depth = (n) => (n.depth ??= Math.max(0, ...n.out.filter((e) => !back.has(e)).map((e) => depth(e.to) + 1)));
  nodes.forEach(depth);
  const deepest = Math.max(...nodes.map((n) => n.depth));
  const columns = Array.from({ length: deepest + 1 }, () => []);
  nodes.forEach((n) => columns[deepest - n.depth].push(n));
  // each node is placed by the middle of its neighbours on the right
  for (let c = columns.length - 2; c >= 0; c--) {
    columns[c + 1].forEach((n, i) => (n.row = i));
    const middle = (n) => {
      const rows = n.out.filter((e) => e.to.row !== undefined).map((e) => e.to.row);
      return rows.length ? rows.reduce((a, b) => a + b) / rows.length : 0;
    };
    const at = new Map(columns[c].map((n) => [n, middle(n)]));
    columns[c].sort((a, b) => at.get(a) - at.get(b));
  }
  const kinds = columns.map((c) => (c.some((n) => n.kind === "party") ? "party" : "name"));
  const widthOf = (size) => kinds.reduce((w, k) => w + size[k] + size.gap, 2 - size.gap);
  const wide = sizes.find((size) => widthOf(size) <= room) ?? sizes.at(-1);
  let x = 1;
  const tallest = Math.max(...columns.map((c) => c.length));
  const total = tallest * (height + between) - between;
  for (const column of columns) {
    const w = Math.max(...column.map((n) => wide[n.kind]));
    const all = column.length * (height + between) - between;
    column.forEach((n, i) => {
      n.w = wide[n.kind];
      n.x = x + (w - n.w) / 2;
      n.y = 1 + (total - all) / 2 + i * (height + between);
    });
    x += w + wide.gap;
  }
  const width = x - wide.gap + 1;
  const picture = svg("svg", { width, height: total + 2, viewBox: `0 0 ${width} ${total + 2}`, role: "img" });
  picture.append(svg("title", {}, edges.filter((e) => e.to.kind === "name").map((e) => `${e.from.text} waits for ${e.to.text}`).join("; ")));
  for (const e of edges) picture.append(...arrow(e, back.has(e), total));
  for (const n of nodes) picture.append(box(n));
  return picture;
}

function arrow({ from, to, cycle }, goesBack) {
  const c = cycle ? " cycle" : "";
  let x1 = from.x + from.w, y1 = from.y + height / 2, x2 = to.x - 7, y2 = to.y + height / 2, path, head;
  if (goesBack) { // over the top, and in from above
    x1 = from.x + from.w / 2; y1 = from.y; x2 = to.x + to.w / 2; y2 = to.y - 7;
    const up = Math.max(4, Math.min(y1, y2) - 26);
    path = `M${x1} ${y1} C${x1} ${up} ${x2} ${up} ${x2} ${y2}`;
    head = `M${x2} ${y2 + 7} l-4 -8 l8 0 z`;
  } else {
    const mid = (x1 + x2) / 2;
    path = `M${x1} ${y1} C${mid} ${y1} ${mid} ${y2} ${x2} ${y2}`;
    head = `M${x2 + 7} ${y2} l-8 -4 l0 8 z`;
  }
  return [svg("path", { class: "edge" + c, d: path }), svg("path", { class: "head" + c, d: head })];
}

function box(n) {
  const g = svg("g", {});
  const kind = n.kind === "name" ? "name" : n.in.length === 0 ? "" : n.out.length > 0 ? "both" : "holds";
  g.append(svg("rect", { class: "box " + kind, x: n.x, y: n.y, width: n.w, height, rx: n.kind === "name" ? height / 2 : 6 }));
  g.append(svg("text", { x: n.x + n.w / 2, y: n.y + height / 2 + 4.5, "text-anchor": "middle", class: n.kind === "name" ? "on" : "" }, fit(n.text, Math.floor((n.w - 14) / 7.4))));
  g.append(svg("title", {}, n.text));
  return g;
}

/** fit cuts a text to at most so many characters. */
function fit(text, most) {
  const all = [...text];
  return all.length <= most ? text : all.slice(0, most - 1).join("") + "\u2026";
}
