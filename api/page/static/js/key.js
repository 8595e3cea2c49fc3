// Asking for a key, where the server takes one: it stays in this tab.

import { key } from "./api.js";
import { byId, say } from "./dom.js";

const WHY = "It stays in this tab and is forgotten when the tab is closed.";

/** Resolves to true when a key was given, and stored. */
export function askForKey(why = WHY) {
  const dialog = byId("ask");
  const input = byId("ask-key");
  say(byId("ask-why"), why);
  input.value = "";
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => {
    byId("ask-cancel").onclick = () => dialog.close("cancelled");
    byId("ask-form").onsubmit = () => dialog.close("given");
    dialog.onclose = () => {
      const given = dialog.returnValue === "given" && input.value.trim();
      if (given) key.set(input.value.trim());
      input.value = "";
      resolve(Boolean(given));
    };
  });
}
