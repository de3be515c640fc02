// Which view is shown: the address after `#` says it, so that each can be kept as a bookmark. A view is made when it is first shown.

const VIEWS = { overview: showOverview, kernels: showKernels, graph: showGraph, timeline: showTimeline, rebuilt: showRebuilt, twins: showTwins, tools: showTools };
const made = new Map();

function head() {
  const { overview } = report;
  document.getElementById("program").textContent = overview.programs.join(", ") || "No program";
  const began = overview.build ? new Date(overview.began * 1000).toLocaleString() : "";
  document.getElementById("build").textContent = [overview.build && `build ${overview.build}`, began, STATES[overview.state]].filter(Boolean).join(", ");
  const items = [...document.querySelectorAll("main > section")].map((section) => element("li", {}, link(section.dataset.title, `#${section.dataset.view}`)));
  document.getElementById("views").append(...items);
}

async function route() {
  const [, name, rest] = /^#?([a-z]*)\/?(.*)$/.exec(location.hash) ?? [];
  const view = VIEWS[name] ? name : "overview";
  for (const section of document.querySelectorAll("main > section")) section.hidden = section.dataset.view !== view;
  for (const each of document.querySelectorAll("#views a")) {
    if (each.hash === `#${view}`) each.setAttribute("aria-current", "page");
    else each.removeAttribute("aria-current");
  }
  const section = document.getElementById(`view-${view}`);
  if (!made.has(view)) made.set(view, VIEWS[view](section));
  await made.get(view);
  if (view === "graph") showGraph.focus?.(rest);
  section.dataset.ready = "yes";
}

head();
addEventListener("hashchange", route);
await route();
performance.mark("ready");
document.documentElement.dataset.ready = "yes";
