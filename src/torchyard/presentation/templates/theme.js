"use strict";
// Applies the stored theme before the first paint; without one, the system setting applies.
(() => {
  const root = document.documentElement;
  const names = ["auto", "light", "dark"];
  const kept = () => { try { return localStorage.getItem("torchyard-theme"); } catch { return null; } };
  const keep = (name) => { try { localStorage.setItem("torchyard-theme", name); } catch { /* not allowed here */ } };
  const chosen = () => { const name = kept(); return names.includes(name) ? name : "auto"; };
  let theme = chosen();
  const show = () => {
    if (theme === "auto") delete root.dataset.theme; else root.dataset.theme = theme;
    const button = document.querySelector("button.theme");
    if (button) button.textContent = `Theme: ${theme}`;
  };
  show();
  // Changed in another open page.
  window.addEventListener("storage", () => { theme = chosen(); show(); });
  document.addEventListener("DOMContentLoaded", () => {
    const button = document.querySelector("button.theme");
    if (!button) return;
    button.hidden = false;
    show();
    button.addEventListener("click", () => {
      theme = names[(names.indexOf(theme) + 1) % names.length];
      keep(theme);
      show();
    });
  });
})();
