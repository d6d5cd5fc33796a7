"use strict";
// Sorting and filtering of the table. The choice is stored in the URL fragment, so that it survives a
// reload and can be shared; a fragment without `=` is an anchor on the page.
(() => {
  const table = document.querySelector("table.results");
  const body = table.tBodies[0];
  const rows = [...body.querySelectorAll("tr[data-part]")];
  const headings = [...table.querySelectorAll("th")].filter((heading) => heading.querySelector("button[data-sort]"));
  const bar = document.querySelector(".filters");
  const order = bar && bar.querySelector("[name=sort]");
  const fields = bar ? [...bar.querySelectorAll("[name]")].filter((field) => field !== order) : [];
  const count = bar && bar.querySelector("output");
  const none = document.getElementById("none-shown");
  const partOf = (row) => document.getElementById(row.dataset.part);
  const words = new Map(rows.map((row) => [row, row.textContent.toLowerCase().replace(/\s+/g, " ")]));
  let sorted = { key: "", rising: true };

  const valueOf = (row, key) => {
    const cell = row.querySelector(`[data-key="${key}"]`);
    return cell ? cell.dataset.value : "";
  };
  const compare = (a, b) => {
    if (a === "" || b === "") return 0;
    const difference = Number(a) - Number(b);
    return Number.isNaN(difference) ? a.localeCompare(b, "en", { numeric: true }) : difference;
  };
  const sortedText = () => (sorted.key && (sorted.rising ? "" : "-") + sorted.key);
  const readSorted = (text) => {
    const key = text.replace(/^-/, "");
    const known = headings.some((heading) => heading.querySelector("button").dataset.sort === key);
    sorted = known ? { key, rising: !text.startsWith("-") } : { key: "", rising: true };
  };
  const sort = () => {
    if (order) order.value = sortedText();
    for (const heading of headings) {
      if (heading.querySelector("button").dataset.sort !== sorted.key) heading.removeAttribute("aria-sort");
      else heading.setAttribute("aria-sort", sorted.rising ? "ascending" : "descending");
    }
    const ordered = sorted.key ? [...rows].sort((a, b) => {
      const left = valueOf(a, sorted.key);
      const right = valueOf(b, sorted.key);
      // Rows without a number stay at the end in both directions.
      if ((left === "") !== (right === "")) return left === "" ? 1 : -1;
      return sorted.rising ? compare(left, right) : compare(right, left);
    }) : rows;
    body.append(...ordered);
    if (none) body.append(none);
  };
  const filter = () => {
    const active = fields.filter((field) => field.value.trim() !== "");
    let shown = 0;
    for (const row of rows) {
      const fits = active.every((field) => (field.name === "find"
        ? field.value.toLowerCase().split(/\s+/).every((word) => words.get(row).includes(word))
        : row.dataset[field.name] === field.value));
      row.hidden = !fits;
      partOf(row).hidden = !fits;
      shown += fits ? 1 : 0;
    }
    if (count) count.textContent = shown === rows.length ? `all ${shown} shown` : `${shown} of ${rows.length} shown`;
    if (none) none.hidden = shown > 0 || rows.length === 0;
  };
  const writeAddress = () => {
    const state = new URLSearchParams();
    for (const field of fields) if (field.value.trim()) state.set(field.name, field.value.trim());
    if (sorted.key) state.set("sort", sortedText());
    const text = state.toString();
    history.replaceState(null, "", text ? `#${text}` : location.pathname + location.search);
  };
  const readAddress = () => {
    const text = location.hash.slice(1);
    if (!text.includes("=")) {
      const target = text && document.getElementById(text);
      if (target && target.tagName === "DETAILS") { target.hidden = false; target.open = true; target.scrollIntoView(); }
      return;
    }
    const state = new URLSearchParams(text);
    for (const field of fields) {
      const value = state.get(field.name) || "";
      field.value = value;
      if (field.value !== value) field.value = "";
    }
    readSorted(state.get("sort") || "");
    sort();
    filter();
  };

  for (const heading of headings) {
    const button = heading.querySelector("button");
    button.addEventListener("click", () => {
      const key = button.dataset.sort;
      sorted = { key, rising: sorted.key === key ? !sorted.rising : true };
      sort();
      writeAddress();
    });
  }
  if (bar) {
    bar.hidden = false;
    bar.addEventListener("input", (event) => {
      if (event.target === order) { readSorted(order.value); sort(); } else filter();
      writeAddress();
    });
    bar.querySelector("button").addEventListener("click", () => {
      for (const field of fields) field.value = "";
      sorted = { key: "", rising: true };
      sort();
      filter();
      writeAddress();
      fields[0].focus();
    });
    filter();
  }
  window.addEventListener("hashchange", readAddress);
  readAddress();
  // Clicking the link of the current anchor does not change the hash.
  document.addEventListener("click", (event) => { if (event.target.closest("a[href^='#']")) setTimeout(readAddress); });
  const folds = document.querySelector("button.open-all");
  if (folds) {
    folds.hidden = false;
    folds.addEventListener("click", () => {
      const parts = [...document.querySelectorAll("details.part")].filter((part) => !part.hidden);
      const open = parts.some((part) => !part.open);
      for (const part of parts) part.open = open;
      folds.textContent = open ? "Close all" : "Open all";
    });
  }
  let unfolded = [];
  window.addEventListener("beforeprint", () => {
    unfolded = [...document.querySelectorAll("details:not([open])")];
    for (const fold of unfolded) fold.open = true;
  });
  window.addEventListener("afterprint", () => {
    for (const fold of unfolded) fold.open = false;
  });
})();
