// The graph's view: Bokeh draws boxes and edges and is moved by mouse and keys; beside it stands in words what the chosen node is.

const KINDS = ["program", "module", "bundle", "fatbin", "image", "object", "deferred", "unit", "state", "table", "source", "header"];

const shorten = (name, most) => (name.length <= most ? name : `${name.slice(0, most - 9)}…${name.slice(-8)}`);

// A canvas that boxes are drawn on, one unit of the ranges a pixel at scale 1.
function canvas(box, chosen) {
  const Bokeh = bokeh();
  const boxes = new Bokeh.ColumnDataSource({ data: columnsOfBoxes([], [], {}) });
  const lines = new Bokeh.ColumnDataSource({ data: columnsOfLines([], []) });
  const plot = new Bokeh.Plot({
    sizing_mode: "stretch_both", x_range: new Bokeh.Range1d(), y_range: new Bokeh.Range1d(), toolbar_location: null, min_border: 0,
    background_fill_color: null, border_fill_color: null, outline_line_color: null,
  });
  const hover = new Bokeh.HoverTool({ tooltips: [["", "@full"], ["", "@facts"]] });
  const wheel = new Bokeh.WheelZoomTool();
  plot.add_tools(new Bokeh.PanTool(), wheel, new Bokeh.TapTool(), hover);
  plot.toolbar.active_scroll = wheel;
  const curve = plot.add_glyph(new Bokeh.Bezier({
    x0: { field: "x0" }, y0: { field: "y0" }, x1: { field: "x1" }, y1: { field: "y1" }, cx0: { field: "cx0" }, cy0: { field: "y0" }, cx1: { field: "cx1" }, cy1: { field: "y1" },
  }), lines);
  const rect = plot.add_glyph(new Bokeh.Rect({
    x: { field: "x" }, y: { field: "y" }, width: BOX.width, height: BOX.height, border_radius: 7, fill_color: { field: "fill" }, line_color: { field: "border" }, line_width: { field: "thick" },
  }), boxes);
  hover.renderers = [rect];
  for (const glyph of [rect.selection_glyph, rect.nonselection_glyph]) if (glyph?.setv) glyph.setv({ fill_alpha: 1, line_alpha: 1 });
  const label = (y, field) => plot.add_glyph(new Bokeh.Text({ x: { field: "left" }, y: { field: y }, text: { field }, text_baseline: "middle", text_font: "system-ui, sans-serif" }), boxes);
  const labels = [[label("upper", "label"), 13], [label("lower", "below"), 11]];

  let scale = 1;
  const scaled = () => {
    const now = plot.inner_width / (plot.x_range.end - plot.x_range.start) || 1;
    if (Math.abs(now - scale) < 1e-4) return;
    scale = now;
    for (const [renderer, size] of labels) {
      renderer.visible = size * scale >= 3.5;
      renderer.glyph.setv({ text_font_size: { value: `${size * scale}px` } });
    }
  };
  plot.x_range.change.connect(scaled);

  const look = (x, y, wanted) => {
    const [wide, high] = [plot.inner_width || box.clientWidth, plot.inner_height || box.clientHeight];
    plot.x_range.setv({ start: x - wide / wanted / 2, end: x + wide / wanted / 2 });
    plot.y_range.setv({ start: y - high / wanted / 2, end: y + high / wanted / 2 });
    scaled();
  };
  const middle = () => [(plot.x_range.start + plot.x_range.end) / 2, (plot.y_range.start + plot.y_range.end) / 2];
  boxes.selected.change.connect(() => {
    const [at] = boxes.selected.indices;
    if (at === undefined) return;
    boxes.selected.setv({ indices: [] });
    chosen(at);
  });
  const paint = () => {
    for (const [renderer] of labels) renderer.glyph.setv({ text_color: { value: color(renderer === labels[0][0] ? "text" : "soft") } });
    curve.glyph.setv({ line_color: { value: color("soft") }, line_alpha: { value: 0.45 } });
  };
  paint();
  return {
    plot, boxes, lines, paint, look,
    draw: () => Bokeh.Plotting.show(plot, box),
    zoom: (by) => look(...middle(), scale * by),
    move: (right, down) => look(middle()[0] + right / scale, middle()[1] - down / scale, scale),
    resized: () => look(...middle(), scale),
  };
}

async function showGraph(section) {
  if (!graph.size) {
    section.append(empty("No graph: no build was finished here."));
    return;
  }
  const present = new Set(rowsOf({ rows: graph.size }).map(graph.kind));
  const state = { focus: null, opened: new Set() };
  const plotBox = element("div", { class: "plot" });
  const drawing = element("div", { class: "drawing", role: "application", tabindex: "0", "aria-label": "Drawing of the graph: arrow keys move it, plus and minus zoom, 0 shows all" }, plotBox);
  const panel = element("div", { class: "panel", role: "region", "aria-label": "The chosen node", "aria-live": "polite", tabindex: "0" });
  let drawn = { nodes: [], edges: [], x: [], y: [] };
  let extent = [0, 1, 0, 1];
  const show = (node) => (location.hash = `#graph/${node}`);
  const on = canvas(plotBox, (at) => {
    const { node, into, from } = drawn.nodes[at];
    show(node ?? into ?? from);
  });

  const fit = (least = 0) => {
    const [left, right, low, high] = extent;
    const box = drawing.getBoundingClientRect();
    const scale = Math.min(box.width / (right - left + 40), box.height / (high - low + 40), 1.1);
    if (scale >= least) return on.look((left + right) / 2, (low + high) / 2, scale);
    // Not all of it can be read at a time: the node in focus first, or the end that all leads to.
    return on.look(state.focus === null ? right + 20 - box.width / least / 2 : drawn.x[0], state.focus === null ? (low + high) / 2 : -drawn.y[0], least);
  };
  const readable = () => (state.focus !== null || drawing.clientWidth < 700 ? 0.66 : state.opened.size ? 0.3 : 0.4);
  const redraw = () => {
    const picked = selection(state);
    const at = place(picked.nodes.length, picked.edges);
    drawn = { ...picked, x: at.map(([x]) => x), y: at.map(([, y]) => y) };
    on.boxes.setv({ data: columnsOfBoxes(drawn.nodes, at, state) });
    on.lines.setv({ data: columnsOfLines(drawn.edges, at) });
    const [xs, ys] = [at.map(([x]) => x), at.map(([, y]) => -y)];
    extent = [Math.min(...xs) - BOX.width / 2, Math.max(...xs) + BOX.width / 2, Math.min(...ys) - BOX.height / 2, Math.max(...ys) + BOX.height / 2];
    fit(readable());
    panel.replaceChildren(...describe(state, { open: (node) => (state.opened.has(node) ? state.opened.delete(node) : state.opened.add(node), fold()) }));
    drawing.dataset.drawn = drawn.nodes.length;
  };
  const fold = () => {
    if (state.focus !== null) show("");
    else redraw();
  };

  const button = (name, label, act) => element("button", { type: "button", "aria-label": label, title: label, onclick: act }, name);
  section.append(
    element("div", { class: "controls" },
      searchBox("Search the graph", show),
      button("+", "Zoom in", () => on.zoom(1.4)), button("−", "Zoom out", () => on.zoom(1 / 1.4)), button("Fit", "Show all that is drawn", () => fit()),
      button("Modules", "Fold everything: modules only", () => (state.opened.clear(), show("")))),
    element("div", { class: "split" }, drawing, panel),
    element("ul", { class: "kinds" }, KINDS.filter((kind) => present.has(kind)).map((kind) => element("li", {}, element("i", { style: `background: var(--${kind})` }), kind))),
  );
  const keys = { "+": () => on.zoom(1.4), "=": () => on.zoom(1.4), "-": () => on.zoom(1 / 1.4), 0: () => fit(), ArrowLeft: () => on.move(-60, 0), ArrowRight: () => on.move(60, 0), ArrowUp: () => on.move(0, -60), ArrowDown: () => on.move(0, 60) };
  drawing.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  });
  painted.push(() => (on.paint(), redraw()));
  await on.draw();
  new ResizeObserver(() => requestAnimationFrame(on.resized)).observe(drawing);
  showGraph.focus = (wanted) => {
    const node = /^\d+$/.test(wanted) && Number(wanted) < graph.size ? Number(wanted) : null;
    state.focus = node;
    redraw();
  };
}

function columnsOfBoxes(nodes, at, state) {
  const chosen = color("accent-soft");
  const plain = color("card");
  return {
    x: at.map(([x]) => x), y: at.map(([, y]) => -y), left: at.map(([x]) => x - BOX.width / 2 + 10), upper: at.map(([, y]) => -y + 9), lower: at.map(([, y]) => -y - 10),
    label: nodes.map(({ node, more, of }) => (node === undefined ? `${count(more)} more ${of}` : shorten(graph.name(node), ["object", "deferred"].includes(graph.kind(node)) ? 24 : 28))),
    below: nodes.map(({ node }) => (node === undefined ? "in the table of kernels" : shorten(nodeFacts(node), 33))),
    full: nodes.map(({ node, more, of }) => (node === undefined ? `${count(more)} more ${of}` : graph.name(node))),
    facts: nodes.map(({ node }) => (node === undefined ? "" : nodeFacts(node))),
    fill: nodes.map(({ node }) => (node === state.focus || state.opened.has(node) ? chosen : plain)),
    border: nodes.map(({ node }) => color(node === undefined ? "more" : graph.result(node) === "failed" ? "failed" : graph.kind(node))),
    thick: nodes.map(({ node }) => (node !== undefined && node === state.focus ? 3 : 1.5)),
  };
}

function columnsOfLines(edges, at) {
  const x0 = edges.map(([input]) => at[input][0] + BOX.width / 2);
  const x1 = edges.map(([, user]) => at[user][0] - BOX.width / 2);
  const bend = (index) => Math.max(40, Math.abs(x1[index] - x0[index]) / 2);
  return { x0, x1, y0: edges.map(([input]) => -at[input][1]), y1: edges.map(([, user]) => -at[user][1]), cx0: x0.map((x, index) => x + bend(index)), cx1: x1.map((x, index) => x - bend(index)) };
}

// What the panel says: of the node in focus, or of the whole.
function describe({ focus, opened }, { open }) {
  if (focus === null) return describeAll(opened, open);
  const kind = graph.kind(focus);
  const parts = [element("h3", {}, kind), element("p", { class: "what name" }, graph.name(focus)), facts(focus)];
  if (kind === "module") {
    parts.push(element("p", {}, element("button", { type: "button", onclick: () => open(focus) }, opened.has(focus) ? "Fold it among the modules" : "Open it among the modules"), " ",
      element("a", { href: "#kernels", onclick: () => kernelsOf(graph.name(focus)) }, "its kernels")));
  }
  return [...parts, ...neighbours("Made from", graph.inputs[focus]), ...neighbours("Used by", graph.users[focus])];
}

function describeAll(opened, open) {
  const modules = rowsOf({ rows: graph.size }).filter((node) => graph.kind(node) === "module");
  const item = (node) => element("li", {}, element("button", { type: "button", class: "plain", "aria-expanded": String(opened.has(node)), "aria-label": `${opened.has(node) ? "fold" : "open"} ${graph.name(node)}`, onclick: () => open(node) }, opened.has(node) ? "−" : "+"), " ",
    link(graph.name(node), `#graph/${node}`, { class: "name" }), " ", element("small", { class: "hint" }, nodeFacts(node)));
  return [element("h3", {}, `${plural(modules.length, "module")}, folded`), element("p", { class: "hint" }, "Inputs stand left of what is made from them. Choose a node to see all it comes from and leads to; open a module to see its parts among the others."), element("ul", {}, modules.map(item))];
}

function facts(node) {
  const row = graph.row(node);
  const pairs = [];
  if (graph.kind(node) === "unit") {
    const { units, kernels } = tables;
    pairs.push(["Architecture", units.arch(row)], ["Result", chip(units.result(row))], ["Time", seconds(units.seconds(row)) || "not known"], ["Slice", bytes(units.slice_bytes(row))], ["Owners", units.modules(row).join(", ")], ["Digest", element("code", {}, units.digest(row))]);
    if (units.joined(row)) pairs.push(["Joined", units.joined(row)]);
    const [kernel] = kernelsOfUnit.get(row) ?? [];
    if (kernel !== undefined && kernels.registers(kernel) !== null) pairs.push(["Registers", kernels.registers(kernel)], ["Spills", bytes(kernels.spill_bytes(kernel))], ["Occupancy", kernels.occupancy(kernel) === null ? "" : `${Math.round(kernels.occupancy(kernel))} %`]);
    const why = rowsOf(tables.reasons).find((each) => tables.reasons.unit(each) === row);
    if (why !== undefined) pairs.push(["Why", tables.reasons.why(why)]);
  } else {
    pairs.push(["What", nodeFacts(node)]);
  }
  return element("dl", {}, pairs.filter(([, value]) => value !== "").flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]));
}

function neighbours(title, nodes) {
  if (!nodes.length) return [];
  const most = 200;
  const items = [...nodes].sort(byInterest).slice(0, most).map((node) => element("li", {}, link(graph.name(node), `#graph/${node}`, { class: "name" }), " ", element("small", { class: "hint" }, graph.kind(node))));
  if (nodes.length > most) items.push(element("li", { class: "hint" }, `and ${count(nodes.length - most)} more: search for them`));
  return [element("h3", {}, `${title} ${count(nodes.length)}`), element("ul", {}, items)];
}

function kernelsOf(module) {
  showKernels.asked = module;
  showKernels.only?.(module);
}

// A search field with a list below it, as the ARIA practices have it: arrows choose, Enter takes, Escape closes.
function searchBox(label, take) {
  const list = element("ul", { class: "found", id: "found", role: "listbox", "aria-label": "Found", hidden: true });
  const input = element("input", { type: "search", placeholder: "kernel, module, source", role: "combobox", "aria-label": label, "aria-expanded": "false", "aria-controls": "found", "aria-autocomplete": "list", autocomplete: "off" });
  let found = [];
  let at = -1;
  const close = () => {
    list.hidden = true;
    input.setAttribute("aria-expanded", "false");
    input.removeAttribute("aria-activedescendant");
  };
  const choose = (index) => {
    at = index;
    [...list.children].forEach((item, place) => item.setAttribute("aria-selected", String(place === at)));
    if (at >= 0) input.setAttribute("aria-activedescendant", `found-${at}`);
    list.children[at]?.scrollIntoView({ block: "nearest" });
  };
  const enter = (index) => {
    close();
    take(found[index]);
  };
  input.addEventListener("input", () => {
    found = searchNodes(input.value);
    list.replaceChildren(...found.map((node, index) => element("li", { id: `found-${index}`, role: "option", "aria-selected": "false", onpointerdown: (event) => (event.preventDefault(), enter(index)) }, element("span", { class: "name" }, graph.name(node)), element("small", {}, nodeFacts(node)))));
    list.hidden = !found.length;
    input.setAttribute("aria-expanded", String(!list.hidden));
    choose(-1);
  });
  input.addEventListener("keydown", (event) => {
    if (event.key === "Escape") close();
    else if (event.key === "Enter" && found.length) enter(Math.max(at, 0));
    else if (event.key === "ArrowDown" && found.length) choose((at + 1) % found.length);
    else if (event.key === "ArrowUp" && found.length) choose((at - 1 + found.length) % found.length);
    else return;
    event.preventDefault();
  });
  input.addEventListener("blur", close);
  return element("div", { class: "search" }, input, list);
}
