// Several conversations at once, a tab each. One that is not shown goes on being answered.

import { Chat } from "./chat.js";
import { make, say } from "./dom.js";

export class Chats {
  constructor(root) {
    this._root = root;
    this._chats = [];
    this._shown = null;
    this._list = make("div", { class: "tablist", role: "tablist", "aria-label": "Chats", onkeydown: (event) => this._onKey(event) });
    const add = make("button", {
      type: "button",
      class: "new",
      text: "+",
      "aria-label": "New chat",
      title: "New chat",
      onclick: () => this.add().focus(),
    });
    this._close = make("button", {
      type: "button",
      class: "new",
      text: "×",
      "aria-label": "Close this chat",
      title: "Close this chat",
      onclick: () => this.close(),
    });
    root.replaceChildren(make("div", { class: "tabs" }, this._list, this._close, add));
    this.add();
  }

  /** A new chat, shown. */
  add() {
    const chat = new Chat({ onChange: (changed) => this._mark(changed) });
    const tab = make(
      "button",
      {
        type: "button",
        class: "tab",
        id: `${chat.id}-tab`,
        role: "tab",
        "aria-controls": chat.id,
        onclick: () => this._show(chat),
      },
      make("i", { class: "dot" }),
      make("span", { text: chat.title }),
    );
    this._chats.push({ chat, tab });
    this._list.append(tab);
    this._root.append(chat.element);
    this._show(chat);
    return chat;
  }

  /** Let the shown chat go, its answer stopped. The last one stays. */
  close() {
    const place = this._chats.findIndex(({ chat }) => chat === this._shown);
    const [{ chat, tab }] = this._chats.splice(place, 1);
    chat.answer?.stop();
    chat.element.remove();
    tab.remove();
    const next = this._chats[Math.min(place, this._chats.length - 1)];
    this._show(next.chat);
    next.chat.focus();
  }

  _show(shown) {
    this._shown = shown;
    this._close.hidden = this._chats.length < 2;
    for (const { chat, tab } of this._chats) {
      const isShown = chat === shown;
      chat.element.hidden = !isShown;
      tab.setAttribute("aria-selected", String(isShown));
      tab.tabIndex = isShown ? 0 : -1;
      if (isShown) tab.scrollIntoView?.({ block: "nearest", inline: "nearest" });
    }
  }

  _mark(changed) {
    const { tab } = this._chats.find(({ chat }) => chat === changed) ?? {};
    if (!tab) return;
    tab.dataset.busy = String(changed.isBusy);
    tab.title = changed.isBusy ? `${changed.title} (being answered)` : changed.title;
    say(tab.lastChild, changed.title);
  }

  _onKey(event) {
    const moves = { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity };
    if (!(event.key in moves)) return;
    event.preventDefault();
    const now = this._chats.findIndex(({ chat }) => chat === this._shown);
    const last = this._chats.length - 1;
    const next = Math.min(Math.max(now + moves[event.key], 0), last);
    this._show(this._chats[next].chat);
    this._chats[next].tab.focus();
  }
}
