// Light or dark, as the system has it: style sheets follow by themselves, drawings are told.

const dark = matchMedia("(prefers-color-scheme: dark)");
const painted = [];

const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

function follow() {
  document.documentElement.classList.toggle("dark", dark.matches);
  for (const paint of painted) paint();
}

dark.addEventListener("change", follow);
follow();
