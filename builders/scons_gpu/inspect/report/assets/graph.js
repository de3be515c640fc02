// Which part of the graph is drawn: modules folded to one node each, a module that is opened, or one node with all it comes from and leads to.

const FEW = 40; // nodes of one kind that are drawn side by side; the rest is one node that says how many

const graph = (() => {
  const { nodes, edges } = tables;
  const inputs = Array.from({ length: nodes.rows }, () => []);
  const users = Array.from({ length: nodes.rows }, () => []);
  for (const row of rowsOf(edges)) {
    inputs[edges.user(row)].push(edges.input(row));
    users[edges.input(row)].push(edges.user(row));
  }
  return { size: nodes.rows, kind: nodes.kind, name: nodes.name, module: nodes.module, result: nodes.result, row: nodes.row, inputs, users };
})();

const nodeOfUnit = new Map(rowsOf(tables.nodes).filter((node) => graph.kind(node) === "unit").map((node) => [graph.row(node), node]));
const nodeOfModule = new Map(rowsOf(tables.nodes).filter((node) => graph.kind(node) === "module").map((node) => [graph.row(node), node]));

const unitTarget = (row) => `#graph/${nodeOfUnit.get(row) ?? ""}`;
const moduleTarget = (row) => `#graph/${nodeOfModule.get(row) ?? ""}`;

const isGroup = (node) => graph.kind(node) === "program" || graph.kind(node) === "module";

// What is drawn: `nodes` of { node } or { more, of }, and `edges` between their places.
function selection({ focus, opened }) {
  return focus === null ? folded(opened) : around(focus);
}

function folded(opened) {
  const shown = new Map();
  const picked = { nodes: [], edges: [] };
  const add = (node) => shown.has(node) || shown.set(node, picked.nodes.push({ node }) - 1);
  for (let node = 0; node < graph.size; node += 1) if (isGroup(node)) add(node);
  for (const module of opened) open(module, picked, add);
  connect(picked, shown);
  return picked;
}

// The parts of one module: what leads to it without passing another module.
function open(module, picked, add) {
  const parts = reach(module, graph.inputs, (node) => !isGroup(node));
  const units = parts.filter((node) => graph.kind(node) === "unit").sort(byInterest);
  const left = new Set(units.slice(FEW));
  const near = { object: graph.inputs, deferred: graph.inputs, source: graph.users };
  for (const node of parts) {
    const ways = near[graph.kind(node)];
    if (graph.kind(node) !== "header" && !left.has(node) && !ways?.[node].every((each) => left.has(each))) add(node);
  }
  if (units.length > FEW) picked.nodes.push({ more: units.length - FEW, of: "units", into: module });
}

function around(focus) {
  const shown = new Map();
  const picked = { nodes: [], edges: [] };
  const add = (node) => shown.has(node) || shown.set(node, picked.nodes.push({ node }) - 1);
  add(focus);
  for (const ways of [graph.inputs, graph.users]) {
    let level = [focus];
    const seen = new Set(level);
    while (level.length) {
      const next = [...new Set(level.flatMap((node) => ways[node]))].filter((node) => !seen.has(node)).sort(byInterest);
      for (const node of next.slice(0, FEW)) {
        seen.add(node);
        add(node);
      }
      if (next.length > FEW) picked.nodes.push({ more: next.length - FEW, of: `${graph.kind(next[FEW])}s`, into: ways === graph.inputs ? level[0] : null, from: ways === graph.users ? level[0] : null });
      level = next.slice(0, FEW);
    }
  }
  connect(picked, shown);
  return picked;
}

function connect(picked, shown) {
  for (const [node, at] of shown) for (const user of graph.users[node]) if (shown.has(user)) picked.edges.push([at, shown.get(user)]);
  picked.nodes.forEach(({ into, from }, at) => {
    if (shown.has(into)) picked.edges.push([at, shown.get(into)]);
    if (shown.has(from)) picked.edges.push([shown.get(from), at]);
  });
}

function reach(start, ways, through) {
  const found = new Set();
  const waiting = [start];
  while (waiting.length) {
    for (const node of ways[waiting.pop()]) {
      if (!found.has(node) && through(node)) {
        found.add(node);
        waiting.push(node);
      }
    }
  }
  return [...found];
}

const byInterest = (one, other) => interest(other) - interest(one) || one - other;
function interest(node) {
  const weight = { failed: 4e6, compiled: 2e6, deferred: 1e6 }[graph.result(node)] ?? 0;
  return weight + (graph.kind(node) === "unit" ? tables.units.seconds(graph.row(node)) ?? 0 : 0);
}

// What a node says besides its name.
function nodeFacts(node) {
  const kind = graph.kind(node);
  const row = graph.row(node);
  if (kind === "module") return moduleFacts(row);
  if (kind === "unit") return [tables.units.arch(row), graph.result(node), seconds(tables.units.seconds(row))].filter(Boolean).join(", ");
  return [kind, graph.module(node)].filter(Boolean).join(" of ");
}

// Up to `most` nodes whose names hold all the words; whole beginnings first.
function searchNodes(words, most = 12) {
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  if (!wanted.length) return [];
  const found = [];
  for (let node = 0; node < graph.size && found.length < 2000; node += 1) {
    const name = graph.name(node).toLowerCase();
    if (wanted.every((word) => name.includes(word))) found.push([isGroup(node) ? 0 : 1, name.startsWith(wanted[0]) ? 0 : 1, name.length, node]);
  }
  found.sort((one, other) => one[0] - other[0] || one[1] - other[1] || one[2] - other[2] || one[3] - other[3]);
  return found.slice(0, most).map((each) => each[3]);
}
