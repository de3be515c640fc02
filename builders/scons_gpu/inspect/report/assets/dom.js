// Elements without markup: what a name holds is text, never HTML.

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return made;
}

const link = (text, target, attributes = {}) => element("a", { href: target, ...attributes }, text);

const chip = (result) => element("span", { class: `chip ${result}`, title: MEANINGS[result] }, result);

const heading = (text, ...more) => element("h2", {}, text, ...more);

const empty = (text) => element("p", { class: "empty" }, text);

function select(label, values, changed) {
  const options = values.map(([value, text]) => element("option", { value }, text));
  const made = element("select", { "aria-label": label, onchange: () => changed(made.value) }, options);
  return [element("label", { class: "field" }, element("span", {}, label), made), made];
}
