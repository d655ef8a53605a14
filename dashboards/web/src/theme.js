// SPDX-License-Identifier: Apache-2.0
// Light or dark: as the system says until a person chooses, then as chosen, on this browser.

const storageKey = "weir-theme";
const choices = ["system", "light", "dark"];

export function start(button) {
  const apply = (choice) => {
    if (choice === "system")
      document.documentElement.removeAttribute("data-theme");
    else
      document.documentElement.setAttribute("data-theme", choice);
    button.textContent = `Colours: ${choice}`;
    button.setAttribute("aria-label", `Colours: ${choice}; changes to ${next(choice)}`);
  };
  const next = (choice) => choices[(choices.indexOf(choice) + 1) % choices.length];
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
