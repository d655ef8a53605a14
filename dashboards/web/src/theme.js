// SPDX-License-Identifier: Apache-2.0
// Light or dark: as the system says until a person chooses, then as chosen, on this browser.

const storageKey = "weir-theme";
const choices = ["system", "light", "dark"];

// `changed` is called whenever other colours hold.
export function start(button, changed) {
  const apply = (choice) => {
    if (choice === "system")
      document.documentElement.removeAttribute("data-theme");
    else
      document.documentElement.setAttribute("data-theme", choice);
    button.textContent = `Colours: ${choice}`;
    button.setAttribute("aria-label", `Colours: ${choice}; changes to ${next(choice)}`);
    changed();
  };
  const next = (choice) => choices[(choices.indexOf(choice) + 1) % choices.length];
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", changed);
  const kept = localStorage.getItem(storageKey);
  let current = choices.includes(kept) ? kept : "system";
  apply(current);
  button.addEventListener("click", () => {
    current = next(current);
    if (current === "system")
      localStorage.removeItem(storageKey);
    else
      localStorage.setItem(storageKey, current);
    apply(current);
  });
}
