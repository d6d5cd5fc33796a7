"use strict";
// Filters the rows of all groups and sorts them within their groups. The selection is stored in the URL
// fragment, so that it survives a reload; a fragment without `=` is an anchor.
(() => {
  const bar = document.querySelector(".filters");
  if (!bar) return;
  const rows = [...document.querySelectorAll("tr[data-verdict]")];
  const groups = [...document.querySelectorAll(".group")];
  const order = bar.querySelector("[name=order]");
  const fields = [...bar.querySelectorAll("[name]")].filter((field) => field !== order);
  const count = bar.querySelector("output");
  const words = new Map(rows.map((row) => [row, row.textContent.toLowerCase().replace(/\s+/g, " ")]));
  const asWritten = new Map(groups.map((group) => [group, [...group.querySelectorAll("tr[data-verdict]")]]));

  const filter = () => {
    const active = fields.filter((field) => field.value.trim() !== "");
    let shown = 0;
    for (const row of rows) {
      const fits = active.every((field) => (field.name === "find"
        ? field.value.toLowerCase().split(/\s+/).every((word) => words.get(row).includes(word))
        : row.dataset[field.name] === field.value));
      row.hidden = !fits;
      shown += fits ? 1 : 0;
    }
    for (const group of groups) group.hidden = asWritten.get(group).every((row) => row.hidden);
    count.textContent = shown === rows.length ? `all ${shown} shown` : `${shown} of ${rows.length} shown`;
  };
  const sort = () => {
    for (const [group, own] of asWritten) {
      const ordered = order.value === "" ? own : [...own].sort((a, b) => (order.value === "name"
        ? a.dataset.label.localeCompare(b.dataset.label, "en", { numeric: true })
        : (a.dataset.speedup === "") - (b.dataset.speedup === "") || Number(a.dataset.speedup) - Number(b.dataset.speedup)));
      group.querySelector("tbody").append(...ordered);
    }
  };
  const writeAddress = () => {
    const state = new URLSearchParams();
    for (const field of [...fields, order]) if (field.value.trim()) state.set(field.name, field.value.trim());
    const text = state.toString();
    history.replaceState(null, "", text ? `#${text}` : location.pathname + location.search);
  };
  const readAddress = () => {
    const text = location.hash.slice(1);
    if (!text.includes("=")) return;
    const state = new URLSearchParams(text);
    for (const field of [...fields, order]) {
      const value = state.get(field.name) || "";
      field.value = value;
      if (field.value !== value) field.value = "";
    }
    sort();
    filter();
  };

  bar.hidden = false;
  bar.addEventListener("input", (event) => {
    if (event.target === order) sort(); else filter();
    writeAddress();
  });
  bar.querySelector("button").addEventListener("click", () => {
    for (const field of [...fields, order]) field.value = "";
    sort();
    filter();
    writeAddress();
    fields[0].focus();
  });
  filter();
  window.addEventListener("hashchange", readAddress);
  readAddress();
})();
