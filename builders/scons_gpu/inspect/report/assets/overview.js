// The first view: what the build came to, what failed, what took the time, and the tree of modules.

const STATES = {
  done: "finished",
  failed: "failed",
  running: "the report was made while it ran",
  killed: "was ended before it was through",
  none: "",
};

function showOverview(section) {
  const { overview } = report;
  section.append(...overview.notes.map((text) => element("p", { class: "note", role: "note" }, text)));
  if (!overview.build && !tables.modules.rows) {
    section.append(empty("No build yet. Run scons, then make this report again."));
    return;
  }
  section.append(element("h2", {}, "The build"), tiles(overview), unitBar());
  if (tables.failures.rows) section.append(heading("What failed"), element("div", { class: "card" }, rowsOf(tables.failures).map(failure)));
  section.append(element("div", { class: "columns" }, timeByStage(overview), slowest()));
  section.append(heading("Modules", " ", element("small", {}, "kernels, units, and what this build compiled of them")), moduleTree());
}

function tiles({ counts, wall_seconds: wall, cpu_seconds: cpu, jobs }) {
  const total = Object.values(cpu).reduce((sum, each) => sum + each, 0);
  const files = rowsOf(tables.modules).flatMap((row) => tables.modules.files(row));
  const size = files.filter((file) => file.arch).reduce((sum, file) => sum + (file.bytes ?? 0), 0);
  const tile = (name, value, more, kind) =>
    element("div", { class: `tile ${kind ?? ""}` }, element("dt", {}, name), element("dd", {}, value, more ? element("small", {}, more) : null));
  return element("dl", { class: "tiles" },
    tile("Kernels", count(counts.kernels ?? 0), `in ${plural(counts.modules ?? 0, "module")}`),
    tile("Units", count(counts.unique ?? 0), `for ${plural(counts.references ?? 0, "reference")}`),
    tile("Shared", count(counts.shared ?? 0), "references that cost nothing"),
    tile("Compiled", count(counts.compiled ?? 0), `of ${count(counts.needed ?? 0)} needed`),
    tile("Reused", count(counts.reused ?? 0), "from the store"),
    counts.deferred ? tile("Deferred", count(counts.deferred), "to the link") : null,
    counts.failed ? tile("Failed", count(counts.failed), "see below", "failed") : null,
    tile("Time", seconds(wall) || "-", `${jobs === 1 ? "one job" : `${jobs} jobs`}, ${seconds(total) || "0 ms"} of CPU`),
    tile("Images", bytes(size) || "-", plural(files.filter((file) => file.arch && file.bytes !== null).length, "file")),
  );
}

function unitBar() {
  if (!tables.units.rows) return null;
  const found = Object.fromEntries(RESULTS.map((result) => [result, 0]));
  for (const row of rowsOf(tables.units)) found[tables.units.result(row)] += 1;
  const present = RESULTS.filter((result) => found[result]);
  const told = present.map((result) => `${count(found[result])} ${result}`).join(", ");
  return element("div", { class: "card", style: "margin-top: 14px" },
    element("div", { class: "bar", role: "img", "aria-label": `Units: ${told}` }, present.map((result) => element("span", { class: result, style: `flex: ${found[result]}` }))),
    element("ul", { class: "legend" }, present.map((result) => element("li", { class: result }, element("i"), `${count(found[result])} ${result}: ${MEANINGS[result]}`))),
  );
}

function failure(row) {
  const { stage, name, arch, modules, text } = tables.failures;
  const where = [stage(row), arch(row), modules(row).join(", ")].filter(Boolean).join(", ");
  return element("details", { open: row < 3 }, element("summary", {}, element("span", { class: "name" }, name(row)), ` (${where})`), element("pre", {}, text(row)));
}

function timeByStage({ cpu_seconds: cpu }) {
  const stages = Object.entries(cpu).filter(([, spent]) => spent > 0).sort((one, other) => other[1] - one[1]);
  if (!stages.length) return null;
  const rows = stages.flatMap(([stage, spent]) => [
    element("dt", {}, stage),
    element("dd", {}, element("div", { class: "length", style: `width: ${(100 * spent) / stages[0][1]}%` })),
    element("dd", { class: "amount" }, seconds(spent)),
  ]);
  return element("div", {}, heading("CPU time by stage"), element("div", { class: "card" }, element("dl", { class: "stages" }, rows)));
}

function slowest() {
  const { units } = tables;
  const timed = rowsOf(units).filter((row) => units.seconds(row) !== null).sort((one, other) => units.seconds(other) - units.seconds(one)).slice(0, 6);
  if (!timed.length) return null;
  const rows = timed.map((row) => element("li", {}, link(units.name(row), unitTarget(row), { class: "name" }), element("span", { class: "amount" }, `${units.arch(row)}, ${seconds(units.seconds(row))}`)));
  return element("div", {}, heading("Units that took longest"), element("div", { class: "card" }, element("ol", { class: "rank" }, rows)));
}

// A module reached twice stands in full where it is met first.
function moduleTree() {
  const { modules } = tables;
  const places = new Map(rowsOf(modules).map((row) => [`${modules.program(row)}/${modules.name(row)}`, row]));
  const met = new Set();
  const branch = (row) => {
    const line = [element("span", { class: "name" }, modules.name(row)), element("span", { class: "facts" }, moduleFacts(row))];
    const below = modules.submodules(row).map((name) => places.get(`${modules.program(row)}/${name}`)).filter((each) => each !== undefined);
    if (met.has(row)) return element("li", {}, element("div", { class: "leaf" }, ...line.slice(0, 1), element("span", { class: "facts" }, "shown above")));
    met.add(row);
    line.push(link("graph", moduleTarget(row), { "aria-label": `graph of ${modules.name(row)}` }));
    if (!below.length) return element("li", {}, element("div", { class: "leaf" }, line));
    return element("li", {}, element("details", { open: below.length <= 12 || modules.root(row) === 1 }, element("summary", {}, line), element("ul", {}, below.map(branch))));
  };
  const roots = rowsOf(modules).filter((row) => modules.root(row));
  return roots.length ? element("div", { class: "card" }, element("ul", { class: "tree" }, roots.map(branch))) : empty("No module is known: no build was finished here.");
}

function moduleFacts(row) {
  const { modules } = tables;
  const size = modules.files(row).filter((file) => file.arch).reduce((sum, file) => sum + (file.bytes ?? 0), 0);
  const facts = [plural(modules.kernels(row), "kernel"), plural(modules.references(row), "unit")];
  if (modules.compiled(row)) facts.push(`${count(modules.compiled(row))} compiled`);
  if (modules.failed(row)) facts.push(`${count(modules.failed(row))} failed`);
  if (size) facts.push(bytes(size));
  if (modules.link(row) && modules.link(row) !== "image") facts.push(modules.link(row));
  if (modules.bypass(row)) facts.push("bypassed: its own kernels are left out");
  return facts.join(", ");
}
