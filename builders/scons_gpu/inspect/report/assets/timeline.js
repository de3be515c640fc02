// What ran when: a lane for each worker, drawn by Bokeh; the table below holds the same for those who do not see it.

const STAGES = { source: "#2f8f5b", split: "#7a6fd0", plan: "#8a5a2b", lower: "#c9702b", assemble: "#2f74c0", defer: "#8f5fc0", link: "#12808f", pack: "#64748b", manifest: "#64748b", choose: "#b0486f", verify: "#a08a12", dump: "#64748b", host: "#5b7d2e", embed: "#64748b" };
const stageColor = (stage) => STAGES[stage] ?? "#64748b";

async function showTimeline(section) {
  const { steps } = tables;
  if (!steps.rows) {
    section.append(empty("Nothing ran in this build: all was current."));
    return;
  }
  const Bokeh = bokeh();
  const all = rowsOf(steps);
  const lanes = tables.lanes.rows;
  const end = Math.max(...all.map((row) => steps.start(row) + steps.seconds(row)));
  const hidden = new Set();
  const source = new Bokeh.ColumnDataSource({ data: {} });
  const fill = () => {
    const shown = all.filter((row) => !hidden.has(steps.stage(row)));
    source.setv({
      data: {
        row: shown, lane: shown.map((row) => -steps.lane(row)), left: shown.map(steps.start), right: shown.map((row) => steps.start(row) + Math.max(steps.seconds(row), end / 5000)),
        color: shown.map((row) => (steps.result(row) === "failed" ? color("failed") : stageColor(steps.stage(row)))),
        name: shown.map(steps.name), stage: shown.map((row) => [steps.stage(row), steps.arch(row), steps.result(row)].filter(Boolean).join(", ")),
        took: shown.map((row) => seconds(steps.seconds(row))), modules: shown.map((row) => steps.modules(row).join(", ")),
      },
    });
  };
  fill();
  const range = { start: -end * 0.01, end: end * 1.01 };
  const plot = Bokeh.Plotting.figure({
    sizing_mode: "stretch_width", height: Math.min(620, 90 + lanes * 30), toolbar_location: null, tools: [], x_range: new Bokeh.Range1d({ ...range, bounds: [range.start, range.end] }), y_range: new Bokeh.Range1d({ start: -lanes + 0.3, end: 0.7 }),
    background_fill_color: null, border_fill_color: null, outline_line_color: null, min_border_right: 16,
  });
  const wheel = new Bokeh.WheelZoomTool({ dimensions: "width" });
  const bars = plot.hbar({ y: { field: "lane" }, left: { field: "left" }, right: { field: "right" }, height: 0.72, line_color: null, fill_color: { field: "color" }, source });
  plot.add_tools(new Bokeh.PanTool({ dimensions: "width" }), wheel, new Bokeh.TapTool(), new Bokeh.HoverTool({ renderers: [bars], tooltips: [["", "@name"], ["", "@stage"], ["took", "@took"], ["of", "@modules"]] }));
  plot.toolbar.active_scroll = wheel;
  const [time, worker] = [plot.xaxis, plot.yaxis].map((axes) => (axes.axes ?? [...axes])[0]);
  time.setv({ axis_label: "seconds since the build began" });
  worker.setv({ ticker: new Bokeh.FixedTicker({ ticks: Array.from({ length: lanes }, (_, lane) => -lane) }), major_label_overrides: new Map(Array.from({ length: lanes }, (_, lane) => [-lane, tables.lanes.name(lane)])) });
  const paint = () => {
    const [soft, line] = [color("soft"), color("line")];
    for (const axis of [time, worker]) axis.setv({ axis_line_color: line, major_tick_line_color: line, minor_tick_line_color: null, major_label_text_color: soft, axis_label_text_color: soft });
    for (const grid of plot.center) grid.setv?.({ grid_line_color: line });
    fill();
  };
  paint();
  painted.push(paint);
  source.selected.change.connect(() => {
    const [at] = source.selected.indices;
    if (at === undefined) return;
    const unit = steps.unit(source.data.row[at]);
    source.selected.setv({ indices: [] });
    if (unit >= 0) location.hash = unitTarget(unit);
  });

  const zoom = (by) => {
    const { start, end: right } = plot.x_range;
    const half = ((right - start) / 2) * by;
    const middle = (start + right) / 2;
    plot.x_range.setv({ start: Math.max(range.start, middle - half), end: Math.min(range.end, middle + half) });
  };
  const button = (name, label, act) => element("button", { type: "button", "aria-label": label, title: label, onclick: act }, name);
  const toggle = (stage) => {
    const made = element("button", { type: "button", "aria-pressed": "true", title: `Show or hide ${stage}` }, element("i", { style: `display: inline-block; width: 10px; height: 10px; margin-right: 7px; border-radius: 3px; background: ${stageColor(stage)}` }), stage);
    made.addEventListener("click", () => {
      if (!hidden.delete(stage)) hidden.add(stage);
      made.setAttribute("aria-pressed", String(!hidden.has(stage)));
      made.style.opacity = hidden.has(stage) ? 0.5 : 1;
      fill();
    });
    return made;
  };
  const box = element("div", { class: "plot" });
  section.append(
    element("div", { class: "controls" }, [...new Set(all.map(steps.stage))].map(toggle), button("+", "Zoom in", () => zoom(0.6)), button("−", "Zoom out", () => zoom(1 / 0.6)), button("Fit", "Show the whole build", () => plot.x_range.setv(range))),
    element("div", { class: "drawing", role: "img", "aria-label": `Timeline of ${plural(all.length, "step")} on ${plural(lanes, "worker")}, ${seconds(end)}; the table below holds the same` }, box),
    heading("Steps"),
  );
  await Bokeh.Plotting.show(plot, box);
  await showTable(section, {
    label: "Steps", rows: all, order: [[5, "desc"]],
    columns: [
      words("Step", steps.stage),
      { title: "What", value: steps.name, show: (row) => unitLink(steps.name(row), steps.unit(row)), long: true },
      words("Arch", steps.arch), words("Result", steps.result),
      figure("Began", steps.start, (value) => `${value.toFixed(2)} s`), figure("Took", steps.seconds, seconds), figure("CPU", steps.cpu, seconds),
      figure("Memory", steps.peak_kib, (value) => (value ? bytes(value * 1024) : "")), words("Worker", (row) => tables.lanes.name(steps.lane(row))),
    ],
  });
}
