// The two libraries, run when a view first needs them: reading 2 MB of script is no part of opening the page.

const stored = (id) => JSON.parse(document.getElementById(id).textContent);

const once = (make) => {
  let made;
  return () => (made ??= make());
};

const bokeh = once(() => {
  for (const text of stored("plot-library")) document.head.append(element("script", {}, text));
  return window.Bokeh;
});

const dataTable = once(async () => {
  const url = URL.createObjectURL(new Blob([stored("table-library")], { type: "text/javascript" }));
  const module = await import(url);
  URL.revokeObjectURL(url);
  return module.default;
});
