"use strict";
(() => {
  const table = document.querySelector("table.results");
  const body = table.tBodies[0];
  const cellOf = (row, key) => row.querySelector(`[data-key="${key}"]`);
  const valueOf = (row, key) => (cellOf(row, key) ? cellOf(row, key).dataset.value : "");
  const compare = (a, b) => {
    if (a === "" || b === "") return 0;
    const difference = Number(a) - Number(b);
    return Number.isNaN(difference) ? a.localeCompare(b, "en", { numeric: true }) : difference;
  };
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
        // Rows without a number stay at the end whichever way the others go.
        if ((left === "") !== (right === "")) return left === "" ? 1 : -1;
        return rising ? compare(left, right) : compare(right, left);
      });
      body.append(...rows);
    });
  }
  const openTarget = () => {
    const target = location.hash && document.getElementById(location.hash.slice(1));
    if (target && target.tagName === "DETAILS") target.open = true;
  };
  window.addEventListener("hashchange", openTarget);
  openTarget();
  // A click on the link of the place one is already at changes no hash.
  table.addEventListener("click", (event) => { if (event.target.closest("a")) setTimeout(openTarget); });
  window.addEventListener("beforeprint", () => {
    for (const fold of document.querySelectorAll("details")) fold.open = true;
  });
})();
