// Light and dark: what the system prefers, until the reader says otherwise (kept in this browser).

const STORED = "triolet-theme";
const preference = matchMedia("(prefers-color-scheme: dark)");
export const themed = new EventTarget();

const chosen = () => localStorage.getItem(STORED) ?? (preference.matches ? "dark" : "light");

function apply() {
  document.documentElement.dataset.theme = chosen();
  themed.dispatchEvent(new Event("change"));
}

/** A colour of the theme by the name of its property. */
export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

export function startTheme(button) {
  const show = () => {
    const next = chosen() === "dark" ? "light" : "dark";
    button.textContent = chosen() === "dark" ? "☀" : "☾";
    button.setAttribute("aria-label", `Switch to the ${next} theme`);
    button.title = `Switch to the ${next} theme`;
  };
  button.addEventListener("click", () => {
    localStorage.setItem(STORED, chosen() === "dark" ? "light" : "dark");
    apply();
  });
  preference.addEventListener("change", apply);
  themed.addEventListener("change", show);
  apply();
}
