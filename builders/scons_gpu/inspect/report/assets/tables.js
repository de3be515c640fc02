// The views that are tables. DataTables sorts, searches, pages and moves by keyboard; here stands what each cell holds.

const text = (value) => element("span", {}, String(value));

const words = (title, value, more = {}) => ({ title, value, show: (row) => text(value(row)), ...more });

// `null` sorts below every number, and shows as nothing.
const figure = (title, value, show = (amount) => (amount === null ? "" : count(amount)), more = {}) =>
  ({ title, value: (row) => value(row) ?? -1, show: (row) => text(show(value(row))), number: true, ...more });

const unitLink = (name, unit) => (unit < 0 ? text(name) : link(name, unitTarget(unit), { class: "name" }));

async function showTable(section, { label, columns, rows, order, controls = [] }) {
  const DataTable = await dataTable();
  const table = element("table", { class: "display", "aria-label": label, style: "width: 100%" });
  section.append(...controls, element("div", { class: "tablebox" }, table));
  const shown = new DataTable(table, {
    data: rows.map((row) => ({ row })),
    columns: columns.map((column) => ({
      title: column.title,
      type: column.number ? "num" : "string", // said, so that 10,000 rows are not searched for it
      className: [column.number ? "number" : "", column.long ? "long" : ""].join(" ").trim(),
      orderSequence: column.number ? ["desc", "asc"] : ["asc", "desc"], // of figures, the largest are looked for
      data: (item, type) => (type === "display" ? column.show(item.row) : column.value(item.row)),
    })),
    order,
    autoWidth: false,
    deferRender: true,
    orderClasses: false,
    keys: true,
    pageLength: 50,
    lengthMenu: [20, 50, 200],
    language: { search: "Search", lengthMenu: "_MENU_ rows a page", emptyTable: "nothing to show", info: "_START_ to _END_ of _TOTAL_", infoFiltered: "(of _MAX_)", infoEmpty: "none" },
    layout: { topStart: "search", topEnd: "info", bottomStart: "pageLength", bottomEnd: "paging" },
  });
  // Arrow keys move from cell to cell, Enter follows the row's link.
  shown.on("key", (event, api, key, cell) => key === 13 && api.row(cell.index().row).node().querySelector("a")?.click());
  section.querySelector("[id^=keytable-focus-capture]")?.setAttribute("aria-label", `${label}: move by arrow keys`);
  return shown;
}

const chosenOf = (values) => [["", "all"], ...[...new Set(values)].sort().map((value) => [value, value || "-"])];

async function showKernels(section) {
  const { kernels, units } = tables;
  if (!kernels.rows) {
    section.append(empty("No kernel is known: no build was finished here."));
    return;
  }
  const result = (row) => (kernels.unit(row) < 0 ? "" : units.result(kernels.unit(row)));
  const owners = (row) => (kernels.unit(row) < 0 ? [] : units.modules(kernels.unit(row)));
  const several = new Set(rowsOf(kernels).map(kernels.program)).size > 1;
  const columns = [
    { title: "Kernel", value: kernels.name, show: (row) => unitLink(kernels.name(row), kernels.unit(row)), long: true },
    ...(several ? [words("Program", kernels.program)] : []),
    words("Module", kernels.module),
    words("Arch", kernels.arch),
    { title: "Result", value: result, show: (row) => (result(row) ? chip(result(row)) : text("")) },
    figure("Registers", kernels.registers),
    figure("Spills", kernels.spill_bytes, bytes),
    figure("Shared", kernels.shared_bytes, bytes),
    figure("Stack", kernels.stack_bytes, bytes),
    figure("Occupancy", kernels.occupancy, (value) => (value === null ? "" : `${Math.round(value)} %`)),
    figure("Code", kernels.code_bytes, bytes),
    figure("Time", (row) => (kernels.unit(row) < 0 ? null : units.seconds(kernels.unit(row))), seconds),
    figure("Threads", kernels.max_threads),
    words("Source", kernels.source),
    { title: "Owners", value: (row) => owners(row).join(" "), show: (row) => text(owners(row).length > 3 ? `${owners(row).slice(0, 3).join(", ")} and ${owners(row).length - 3} more` : owners(row).join(", ")) },
    ...(rowsOf(kernels).some((row) => kernels.chosen(row)) ? [words("Chosen", kernels.chosen, { long: true })] : []),
  ];
  const wanted = { module: "", arch: "", result: "" };
  let table;
  const filter = (label, name, values) =>
    select(label, chosenOf(values), (value) => {
      wanted[name] = value;
      table.draw();
    });
  const fields = [
    filter("Module", "module", rowsOf(kernels).map(kernels.module)),
    filter("Architecture", "arch", rowsOf(kernels).map(kernels.arch)),
    filter("Result", "result", rowsOf(kernels).map(result)),
  ];
  table = await showTable(section, {
    label: "Kernels", columns, rows: rowsOf(kernels), order: [], controls: [element("div", { class: "controls" }, fields.map(([field]) => field))],
  });
  table.search.fixed("fields", (_, { row }) =>
    (!wanted.module || kernels.module(row) === wanted.module) && (!wanted.arch || kernels.arch(row) === wanted.arch) && (!wanted.result || result(row) === wanted.result));
  showKernels.only = (module) => {
    const [, box] = fields[0];
    box.value = module;
    wanted.module = module;
    table.draw();
  };
  if (showKernels.asked) showKernels.only(showKernels.asked);
}

async function showRebuilt(section) {
  const { reasons } = tables;
  if (!reasons.rows) {
    section.append(empty("Nothing was made by this build: all was current."));
    return;
  }
  await showTable(section, {
    label: "What was made, and why", rows: rowsOf(reasons), order: [],
    columns: [
      words("Step", reasons.stage),
      { title: "What", value: reasons.name, show: (row) => unitLink(reasons.name(row), reasons.unit(row)), long: true },
      words("Arch", reasons.arch),
      words("Modules", (row) => reasons.modules(row).join(", ")),
      words("Why", reasons.why, { long: true }),
    ],
  });
}

async function showTwins(section) {
  const { twins, units } = tables;
  if (!twins.rows) {
    section.append(empty("No twins: no two units differ in nothing but names."));
    return;
  }
  section.append(element("p", { class: "hint" }, "Units of one group differ in nothing but names. With GPU_SHARE_TWINS=1 those of one bundle share one object."));
  await showTable(section, {
    label: "Twins", rows: rowsOf(twins), order: [[0, "asc"]],
    columns: [
      figure("Group", (row) => twins.group(row) + 1),
      { title: "Unit", value: (row) => units.name(twins.unit(row)), show: (row) => unitLink(units.name(twins.unit(row)), twins.unit(row)), long: true },
      words("Arch", (row) => units.arch(twins.unit(row))),
      words("Modules", (row) => units.modules(twins.unit(row)).join(", ")),
      figure("Time", (row) => units.seconds(twins.unit(row)), seconds),
      words("Object", (row) => twins.object(row).slice(0, 12)),
    ],
  });
}

async function showTools(section) {
  const { tools } = tables;
  if (!tools.rows) {
    section.append(empty("No tool is known: no build was finished here."));
    return;
  }
  await showTable(section, {
    label: "Tools that took part", rows: rowsOf(tools), order: [[0, "asc"], [1, "asc"]],
    columns: [words("Program", tools.program), words("Tool", tools.name), words("Version", tools.version), { title: "Identity", value: tools.identity, show: (row) => element("code", { style: "overflow-wrap: anywhere" }, tools.identity(row)) }],
  });
}
