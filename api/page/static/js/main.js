// The page, put together: the theme, the chats, and the engine from inside.

import { ask, key, Refused } from "./api.js";
import { BlockMap } from "./map.js";
import { BlockTold } from "./block.js";
import { Chats } from "./chats.js";
import { byId, make, say } from "./dom.js";
import { Figures } from "./figures.js";
import { askForKey } from "./key.js";
import { Live } from "./live.js";
import { Queue } from "./queue.js";
import { Latency, Throughput } from "./rates.js";
import { Steps } from "./steps.js";
import { startTheme } from "./theme.js";
import { PrefixTree } from "./tree.js";

startTheme(byId("theme"));
new Chats(byId("chats"));

const live = new Live();
const figures = new Figures(byId("figures"), live);
const map = new BlockMap({ root: byId("map"), legend: byId("legend"), note: byId("map-note"), live });
new BlockTold({ root: byId("block"), map, live });
new Queue({ root: byId("queue"), note: byId("queue-note"), live });
new Steps({ root: byId("steps"), note: byId("steps-note"), live });
new Throughput({ root: byId("rates"), figures });
new Latency({ root: byId("times"), live, figures });
new PrefixTree({ root: byId("tree"), note: byId("tree-note"), live });

const house = byId("house");
const narrow = matchMedia("(max-width: 1099px)");

/** Watch while there is somebody to see it: the server then does nothing for a hidden tab. */
function watchOrNot() {
  const isSeen = !document.hidden && (!narrow.matches || house.dataset.shown === "inside");
  if (isSeen && live.link !== "refused") live.open();
  else if (!isSeen && live.link !== "refused") live.close();
}

function show(part) {
  house.dataset.shown = part;
  for (const name of ["chat", "inside"]) byId(`show-${name}`).setAttribute("aria-pressed", String(name === part));
  watchOrNot();
}

byId("show-chat").addEventListener("click", () => show("chat"));
byId("show-inside").addEventListener("click", () => show("inside"));
document.addEventListener("visibilitychange", watchOrNot);
narrow.addEventListener("change", watchOrNot);

live.addEventListener("link", () => {
  const words = { open: "live", lost: "reconnecting", closed: "", refused: "no live view" };
  byId("link").dataset.state = live.link;
  byId("inside").dataset.link = live.link;
  say(byId("link"), words[live.link]);
  byId("link").title = words[live.link];
  const notice = byId("notice");
  notice.hidden = live.link !== "refused";
  if (live.link === "refused") {
    const why = live.refusal.status === 403 ? "This key opens the chat. The live view takes an admin key." : "The live view takes a key.";
    notice.replaceChildren(
      make("span", { text: why }),
      make("button", { type: "button", class: "strong", text: "Enter a key", onclick: () => changeKey(why) }),
    );
  }
  byId("key-button").hidden = live.link !== "refused" && !key.get();
});

async function changeKey(why) {
  if (!(await askForKey(why))) return;
  live.refusal = null;
  live.reopen();
  showModel();
}

byId("key-button").addEventListener("click", () => changeKey());

/** Whom one talks to. */
async function showModel() {
  try {
    const { data } = await (await ask("v1/models")).json();
    say(byId("model"), data[0].id);
    document.title = `Triolet · ${data[0].id}`;
  } catch (error) {
    say(byId("model"), error instanceof Refused ? "This server takes a key." : "The server does not answer.");
  }
}

sessionStorage.removeItem("triolet-tried");
byId("key-button").hidden = !key.get();
showModel();
watchOrNot();
