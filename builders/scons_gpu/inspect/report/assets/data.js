// The page's data, as encode.py wrote it: columns become functions of a row, so that 10,000 rows cost no 10,000 objects.

const report = JSON.parse(document.getElementById("data").textContent);

function readTable(table) {
  const read = { rows: table.rows };
  for (const [name, values] of Object.entries(table.columns)) {
    if (table.text.includes(name)) read[name] = (row) => report.strings[values[row]];
    else if (table.texts.includes(name)) read[name] = (row) => values[row].map((place) => report.strings[place]);
    else read[name] = (row) => values[row];
  }
  return read;
}

const tables = Object.fromEntries(Object.entries(report.tables).map(([name, table]) => [name, readTable(table)]));

const rowsOf = (table) => Array.from({ length: table.rows }, (_, row) => row);

// Which rows of the kernels belong to a row of the units.
const kernelsOfUnit = new Map();
for (const row of rowsOf(tables.kernels)) {
  const unit = tables.kernels.unit(row);
  if (!kernelsOfUnit.has(unit)) kernelsOfUnit.set(unit, []);
  kernelsOfUnit.get(unit).push(row);
}

const RESULTS = ["compiled", "reused", "deferred", "failed", "candidate", "kept"];
const MEANINGS = {
  compiled: "made by this build",
  reused: "made by an earlier build, taken from the store",
  deferred: "left to the link as PTX",
  failed: "could not be made",
  candidate: "compiled to choose from, not taken",
  kept: "not due: its image was current",
};

const counted = new Intl.NumberFormat("en");
const count = (value) => counted.format(value);
const plural = (value, one, many = `${one}s`) => `${count(value)} ${value === 1 ? one : many}`;

function seconds(value) {
  if (value === null || value === undefined) return "";
  if (value >= 100) return `${Math.round(value)} s`;
  if (value >= 1) return `${value.toFixed(1)} s`;
  return `${Math.round(value * 1000)} ms`;
}

function bytes(value) {
  if (value === null || value === undefined) return "";
  if (value >= 1e6) return `${(value / 1e6).toFixed(1)} MB`;
  if (value >= 1e4) return `${(value / 1e3).toFixed(1)} kB`;
  return `${count(value)} B`;
}
