// Light or dark: as the system says, until the switch is used. Not a module, so that it runs before the first paint.
"use strict";
{
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);

  const remembered = localStorage.getItem("konvoi-theme");
  if (remembered) root.dataset.theme = remembered;

  addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme");
    const show = () => button.setAttribute("aria-checked", isDark());
    button.addEventListener("click", () => {
      root.dataset.theme = isDark() ? "light" : "dark";
      localStorage.setItem("konvoi-theme", root.dataset.theme);
      show();
    });
    system.addEventListener("change", show);
    show();
  });
}
