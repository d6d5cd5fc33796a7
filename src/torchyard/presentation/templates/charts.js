"use strict";
// Draws the lazy charts of a page when they become visible, with the runtime in the page. With `ast`,
// Vega interprets expressions instead of compiling them, so that no eval is needed.
(() => {
  const shared = document.getElementById("chart-bases");
  const bases = shared ? JSON.parse(shared.textContent) : {};

  const unpacked = async (element) => {
    const bytes = Uint8Array.from(atob(element.textContent), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).text();
  };
  const loadRuntime = async () => {
    const element = document.getElementById("chart-runtime");
    if (!element) throw new Error("the page has no chart runtime");
    const script = document.createElement("script");
    const address = element.dataset.address;
    if (address) {
      const loaded = new Promise((done, failed) => { script.onload = done; script.onerror = failed; });
      script.src = address;
      document.head.append(script);
      await loaded;
    } else {
      script.textContent = await unpacked(element);
      document.head.append(script);
    }
    if (!window.torchyardEmbed) throw new Error("the chart runtime did not start");
    return window.torchyardEmbed;
  };
  let runtime;

  const merged = (base, own) => {
    if (!base || typeof base !== "object" || Array.isArray(base)) return own === undefined ? base : own;
    const result = { ...base };
    for (const [key, value] of Object.entries(own || {})) {
      const deep = value && typeof value === "object" && !Array.isArray(value);
      result[key] = deep ? merged(base[key], value) : value;
    }
    return result;
  };

  const bubble = document.createElement("div");
  bubble.className = "chart-tip";
  bubble.hidden = true;
  document.body.append(bubble);
  const showTip = (_, event, item, value) => {
    bubble.hidden = value === null || value === undefined || value === "";
    if (bubble.hidden) return;
    const lines = typeof value === "object" ? Object.entries(value).map(([name, text]) => `${name}: ${text}`) : [value];
    bubble.textContent = lines.join("\n");
    const maxLeft = document.documentElement.clientWidth - bubble.offsetWidth - 8;
    bubble.style.left = `${Math.max(4, Math.min(event.clientX + 14, maxLeft)) + window.scrollX}px`;
    bubble.style.top = `${event.clientY + 16 + window.scrollY}px`;
  };

  const draw = async (place) => {
    if (place.dataset.state) return;
    place.dataset.state = "drawing";
    try {
      const embed = await (runtime ??= loadRuntime());
      const spec = merged(bases[place.dataset.base], JSON.parse(place.querySelector("script").textContent));
      if (spec.data && spec.data.rows) {
        const { names, rows } = spec.data;
        spec.data = { values: rows.map((row) => Object.fromEntries(row.map((value, place) => [names[place], value]))) };
      }
      const picture = document.createElement("div");
      picture.className = "picture";
      place.append(picture);
      await embed(picture, spec, {
        mode: "vega-lite", renderer: "svg", ast: true, actions: false, defaultStyle: false,
        tooltip: showTip,
      });
      place.dataset.state = "drawn";
    } catch (error) {
      place.dataset.state = "failed";
      place.append("This chart could not be drawn; the numbers are in the tables.");
      console.error(error);
    }
  };
  window.torchyardDrawChart = draw;

  const watcher = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      watcher.unobserve(entry.target);
      draw(entry.target);
    }
  }, { rootMargin: "300px" });
  for (const place of document.querySelectorAll(".lazy-chart")) watcher.observe(place);
})();
