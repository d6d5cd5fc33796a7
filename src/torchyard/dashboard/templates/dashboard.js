"use strict";
(() => {
  // Sorting of a table by the buttons in its headings.
  const valueOf = (row, key) => {
    const cell = row.querySelector(`[data-key="${key}"]`);
    return cell ? cell.dataset.value : "";
  };
  const compare = (a, b) => {
    const difference = Number(a) - Number(b);
    return Number.isNaN(difference) ? a.localeCompare(b, "en", { numeric: true }) : difference;
  };
  for (const table of document.querySelectorAll("table.list, table.sorted")) {
    const body = table.tBodies[0];
    for (const button of table.querySelectorAll("button[data-sort]")) {
      button.addEventListener("click", () => {
        const key = button.dataset.sort;
        const heading = button.closest("th");
        const rising = heading.getAttribute("aria-sort") !== "ascending";
        for (const other of table.querySelectorAll("th[aria-sort]")) other.removeAttribute("aria-sort");
        heading.setAttribute("aria-sort", rising ? "ascending" : "descending");
        const rows = [...body.rows];
        rows.sort((a, b) => {
          const left = valueOf(a, key);
          const right = valueOf(b, key);
          // Rows without a value stay at the end in both directions.
          if (left === "" || right === "") return left === right ? 0 : left === "" ? 1 : -1;
          return rising ? compare(left, right) : compare(right, left);
        });
        body.append(...rows);
      });
    }
  }

  // Pages without a server filter their rows.
  for (const field of document.querySelectorAll("input[data-filter]")) {
    const table = document.getElementById(field.dataset.filter);
    const shown = document.querySelector(`[data-shown="${field.dataset.filter}"]`);
    const filter = () => {
      const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
      let visible = 0;
      const rows = [...table.tBodies[0].rows];
      for (const row of rows) {
        const text = row.textContent.toLowerCase();
        row.hidden = !words.every((word) => text.includes(word));
        visible += row.hidden ? 0 : 1;
      }
      shown.textContent = words.length ? `${visible} of ${rows.length} shown` : "";
    };
    field.addEventListener("input", filter);
    field.form.addEventListener("submit", (event) => event.preventDefault());
    filter();
  }

  // Progress of running runs.
  const MARKS = { faster: "▲", slower: "▼", same: "=", undecided: "?", untrusted: "!", wrong: "✗", failed: "✗" };
  const element = (name, className, text) => {
    const made = document.createElement(name);
    if (className) made.className = className;
    made.textContent = text;
    return made;
  };
  const watch = (card) => {
    const bar = card.querySelector("progress");
    const part = (name) => card.querySelector(`[data-part="${name}"]`);
    const made = new Map();
    const show = (event) => {
      if (typeof event.fraction === "number") {
        bar.value = Math.max(0, Math.min(1, event.fraction));
        part("percent").textContent = `${Math.round(100 * bar.value)}%`;
      }
      if (event.kind === "comparison" && event.verdict in MARKS) {
        const key = JSON.stringify([event.workload, event.candidate]);
        const row = made.get(key) || part("made").appendChild(document.createElement("li"));
        made.set(key, row);
        const verdict = element("span", `verdict ${event.verdict}`, `${MARKS[event.verdict]} ${event.verdict}`);
        const number = typeof event.speedup === "number" ? `${event.speedup.toFixed(3)}x` : "";
        const speedup = number && event.trusted === false ? `(${number})` : number;
        row.replaceChildren(verdict, element("span", "", `${event.workload} · ${event.candidate}`), element("span", "muted", speedup));
      } else {
        part("now").textContent = event.workload ? `${event.workload}: ${event.text}` : event.text;
      }
    };
    const source = new EventSource(card.dataset.events);
    source.addEventListener("open", () => { made.clear(); part("made").replaceChildren(); });
    source.addEventListener("progress", (message) => show(JSON.parse(message.data)));
    source.addEventListener("end", (message) => {
      source.close();
      const state = JSON.parse(message.data).state;
      const badge = card.querySelector(".state");
      badge.textContent = state;
      badge.className = `state ${state}`;
      part("now").textContent = state === "finished" ? "The run has finished." : `The run is ${state}. Its results so far are kept.`;
      if (state === "finished") { bar.value = 1; part("percent").textContent = "100%"; }
    });
    window.addEventListener("pagehide", () => source.close());
  };
  const live = document.getElementById("live");
  if (live) {
    document.getElementById("no-scripts").remove();
    for (const card of live.querySelectorAll("[data-events]")) watch(card);
    const known = new Set([...live.querySelectorAll("[data-run]")].map((card) => card.dataset.run));
    const poll = async () => {
      if (document.hidden) return;
      const answer = await fetch("api/live").catch(() => null);
      if (!answer || !answer.ok) return;
      const running = (await answer.json()).runs.map((run) => run.id);
      if (running.some((id) => !known.has(id))) location.reload();
    };
    setInterval(poll, 5000);
  }
})();
