"use strict";
(() => {
  const cards = [...document.querySelectorAll(".finding")];
  const filters = document.getElementById("filters");
  const openTarget = () => {
    const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (target && target.tagName === "DETAILS") {
      target.hidden = false;
      target.open = true;
      target.scrollIntoView({ block: "start" });
    }
  };
  window.addEventListener("hashchange", openTarget);
  // A click on a link to the current hash triggers no hashchange event.
  document.addEventListener("click", (event) => {
    if (event.target.closest("a[href^='#finding-']")) setTimeout(openTarget);
  });
  openTarget();
  window.addEventListener("beforeprint", () => {
    for (const fold of document.querySelectorAll("details:not([hidden])")) fold.open = true;
  });
  if (!filters) return;
  filters.hidden = false;
  const find = document.getElementById("find");
  const shown = document.getElementById("shown");
  const openAll = document.getElementById("open-all");
  const texts = new Map(cards.map((card) => [card, card.textContent.toLowerCase()]));
  const pressed = (kind) => new Set(
    [...filters.querySelectorAll(`[data-kind="${kind}"][aria-pressed="true"]`)].map((chip) => chip.dataset.value),
  );
  const apply = () => {
    const patterns = pressed("pattern");
    const certainties = pressed("certainty");
    const words = find.value.toLowerCase().split(/\s+/).filter(Boolean);
    let count = 0;
    for (const card of cards) {
      const fits = (!patterns.size || patterns.has(card.dataset.pattern))
        && (!certainties.size || certainties.has(card.dataset.certainty))
        && words.every((word) => texts.get(card).includes(word));
      card.hidden = !fits;
      count += fits ? 1 : 0;
    }
    shown.textContent = count === cards.length ? `all ${count} shown` : `${count} of ${cards.length} shown`;
  };
  filters.addEventListener("click", (event) => {
    const chip = event.target.closest("button[data-kind]");
    if (!chip) return;
    chip.setAttribute("aria-pressed", chip.getAttribute("aria-pressed") === "true" ? "false" : "true");
    apply();
  });
  find.addEventListener("input", apply);
  openAll.addEventListener("click", () => {
    const open = openAll.textContent === "Open all";
    for (const card of cards) if (!card.hidden) card.open = open;
    openAll.textContent = open ? "Close all" : "Open all";
  });
  apply();
})();
