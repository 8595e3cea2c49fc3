// The tree of cached prefixes: what prompts have begun with, where they part, and who stands on it now.

import { make, say } from "./dom.js";
import { count, oneLine, plural } from "./format.js";

const DEPTH_MAX = 12;

export class PrefixTree {
  constructor({ root, note, live }) {
    this._root = root;
    this._note = note;
    this._live = live;
    live.addEventListener("change", ({ detail }) => detail.prefixes && this._show(detail.prefixes));
  }

  _show({ branches, blocks, whole }) {
    const hidden = this._live.showsText ? "" : "; their texts show to an admin key";
    say(this._note, branches.length ? `${plural(blocks, "block")}${whole ? "" : ", the newest branches"}${hidden}` : "");
    if (!branches.length) {
      this._root.replaceChildren(make("li", { class: "nothing", text: "Nothing is cached yet." }));
      return;
    }
    this._root.replaceChildren(...branches.map((branch) => this._branch(branch)));
    if (this._root.scrollHeight > this._root.clientHeight) this._root.tabIndex = 0;
    else this._root.removeAttribute("tabindex");
  }

  _branch({ depth, hash, blocks, tokens, owners, text, salted, cut }) {
    const words = text === undefined || text === null ? hash : oneLine(text);
    const line = make(
      "li",
      { "data-hash": hash },
      depth ? make("span", { class: "fork", text: "└", "aria-hidden": "true" }) : null,
      make("span", { class: "words", text: cut ? `${words} …` : words, title: salted ? "only for requests with the same salt" : null }),
      owners ? make("span", { class: "amount held", text: `${count(owners)} on it` }) : null,
      salted ? make("span", { class: "amount", text: "salted" }) : null,
      make("span", { class: "amount" }, `${count(tokens)} tokens`, make("span", { class: "wide-only", text: ` · ${plural(blocks, "block")}` })),
    );
    line.style.paddingLeft = `${Math.min(depth, DEPTH_MAX) * 1.1}rem`;
    return line;
  }
}
