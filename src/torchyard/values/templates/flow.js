"use strict";
// Controls of the flow graph and the panel that describes the selected operator.
(() => {
  const holder = document.getElementById("flow-data");
  if (!holder) return;
  const at = (id) => document.getElementById(id);
  const flow = readFlow(holder.textContent);
  const { items, views } = flow;
  const sizes = views.filter((view) => view.kind === "heaviest");
  const panel = at("panel");
  const number = (value) => value.toLocaleString("en");
  at("graph").hidden = false;
  const picture = new FlowPicture(at("canvas"), flow, (item) => describe(item));

  const show = (view) => {
    picture.show(view);
    for (const button of at("kinds").children) {
      button.setAttribute("aria-pressed", String(button.dataset.kind === view.kind));
    }
    at("size-label").hidden = view.kind !== "heaviest" || sizes.length < 2;
    at("size").max = String(Math.max(0, sizes.length - 1));
    if (view.kind === "heaviest") at("size").value = String(sizes.indexOf(view));
    at("about").textContent = view.about;
  };
  const element = (name, text, parent, className) => {
    const made = document.createElement(name);
    if (text !== undefined) made.textContent = text;
    if (className) made.className = className;
    if (parent) parent.append(made);
    return made;
  };
  const button = (text, parent, act) => {
    const made = element("button", text, parent);
    made.type = "button";
    made.addEventListener("click", act);
    return made;
  };
  const fact = (list, name, text) => {
    if (text === "" || text === undefined) return;
    element("dt", name, list);
    element("dd", text, list);
  };
  const describe = (item) => {
    panel.replaceChildren();
    if (item < 0) {
      element("p", "Select a box to see its details.", panel, "muted");
      return;
    }
    const one = items[item];
    element("h3", one.title, panel);
    if (one.path) element("p", one.path, panel, "muted");
    const list = element("dl", undefined, panel);
    if (one.file) fact(list, "location", `${one.file}:${one.line}`);
    fact(list, "module", one.title === one.module ? "" : one.module);
    fact(list, "class", one.title === one.kind ? "" : one.kind);
    fact(list, "pass", one.backward ? "backward" : "forward");
    if (one.members !== undefined) fact(list, "operators", number(one.members));
    if (one.calls !== undefined) fact(list, "calls", number(one.calls));
    fact(list, "written", formatSize(one.bytes));
    if (one.outside) fact(list, "from external memory", formatSize(one.outside));
    if (one.waste) fact(list, "wasted", `${one.waste}% of its writes`);
    if (one.source) element("pre", one.source, panel);
    if (one.findings.length) {
      element("h4", "Findings", panel);
      const links = element("ul", undefined, panel);
      for (const finding of one.findings) {
        const link = element("a", `${finding + 1}: ${flow.findings[finding]}`, element("li", undefined, links));
        link.href = `#finding-${finding + 1}`;
      }
    }
    if (one.members !== undefined) {
      button("Show its operators", element("p", undefined, panel), () => showMembers(item));
    }
    if (picture.view.kind === "lines") {
      const wasted = (position) => items[picture.view.members[position]].bytes * items[picture.view.members[position]].waste;
      const lines = picture.view.members.map((_, position) => position).filter((position) => wasted(position) > 0);
      lines.sort((first, second) => wasted(second) - wasted(first));
      listOf("Source lines with findings", lines.map((other) => ({ other })), 20);
    }
    const { positions, around } = picture.view;
    for (const [here, other, relation] of flow.links) {
      if (here === item && positions.has(other)) listOf(flow.texts[relation], [{ other: positions.get(other) }]);
      if (other === item && positions.has(here)) listOf(`Related operator, ${flow.texts[relation]} this one`, [{ other: positions.get(here) }]);
    }
    const edges = around.get(positions.get(item));
    if (edges) {
      listOf("Reads from", edges.from);
      listOf("Read by", edges.to);
    }
  };
  const listOf = (heading, edges, most = 8) => {
    if (!edges.length) return;
    element("h4", heading, panel);
    const list = element("ul", undefined, panel);
    const heaviest = [...edges].sort((one, other) => (other.bytes || 0) - (one.bytes || 0));
    for (const edge of heaviest.slice(0, most)) {
      const item = picture.view.members[edge.other];
      const made = button(`${items[item].title} `, element("li", undefined, list), () => {
        picture.choose(item);
        picture.centre(edge.other, 0.5);
      });
      const what = edge.bytes === undefined ? items[item].under : formatSize(edge.bytes) + (edge.passed ? ", indirectly" : "");
      element("span", what, made, "muted");
    }
    if (heaviest.length > most) element("li", `and ${number(heaviest.length - most)} more`, list, "muted");
  };
  const showMembers = (group) => {
    at("search").value = "";
    picture.found = new Set(items.flatMap((item, index) => (item.group === group || item.lines === group ? [index] : [])));
    const holds = (view) => view.members.some((item) => picture.found.has(item));
    show((items[group].line ? views.find((view) => view.kind === "waste" && holds(view)) : undefined) || views[flow.start]);
    picture.choose(-1);
    const first = picture.view.members.findIndex((item) => picture.found.has(item));
    if (first >= 0) picture.centre(first, 0.4);
  };
  const reveal = (item) => {
    const holds = (view) => { FlowPicture.prepare(view, flow); return view.positions.has(item); };
    const view = holds(picture.view) ? picture.view : views.find(holds);
    if (!view) return;
    picture.found = null;
    at("search").value = "";
    show(view);
    picture.choose(item);
    picture.centre(view.positions.get(item), 0.8);
  };
  at("search").addEventListener("input", () => {
    const words = at("search").value.toLowerCase().split(/\s+/).filter(Boolean);
    const fits = (item) => words.every((word) => items[item].words.includes(word));
    picture.found = words.length ? new Set(picture.view.members.filter(fits)) : null;
    picture.choose(-1);
    if (picture.found === null) return;
    panel.replaceChildren();
    const places = [...picture.found].map((item) => ({ other: picture.view.positions.get(item) }));
    if (places.length) listOf(`${number(places.length)} ${places.length === 1 ? "match" : "matches"}`, places);
    else element("p", "No matches in this view.", panel, "muted");
  });
  at("search").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || !picture.found || !picture.found.size) return;
    const [first] = picture.found;
    picture.choose(first);
    picture.centre(picture.view.positions.get(first), 0.7);
  });
  at("size").addEventListener("input", () => show(sizes[Number(at("size").value)] || sizes[0]));
  at("kinds").addEventListener("click", (event) => {
    const kind = event.target.dataset.kind;
    if (!kind) return;
    at("search").value = "";
    picture.found = null;
    picture.choose(-1);
    show(kind === "heaviest" ? views[flow.start] : views.find((view) => view.kind === kind));
  });
  at("zoom-in").addEventListener("click", () => picture.zoom(1.25));
  at("zoom-out").addEventListener("click", () => picture.zoom(0.8));
  at("fit").addEventListener("click", () => picture.fit());
  for (const chip of at("kinds").children) {
    chip.hidden = !views.some((view) => view.kind === chip.dataset.kind);
  }
  for (const link of document.querySelectorAll(".to-graph")) {
    link.hidden = false;
    link.addEventListener("click", () => {
      reveal(Number(link.dataset.item));
      at("graph").scrollIntoView({ block: "start" });
      at("canvas").focus({ preventScroll: true });
    });
  }
  show(views[flow.opening]);
  // Open on the largest waste, with its source beside it.
  const worst = picture.worst();
  if (worst >= 0) {
    picture.choose(views[flow.opening].members[worst]);
    if (picture.scale < 0.75) picture.centre(worst, FlowPicture.READABLE);
  }
})();
