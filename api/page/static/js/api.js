// The server as this page sees it: where it is, with which key it is asked, and what it says when it refuses.

const STORED = "triolet-key";

/** Where the routes are: the page may stand behind a proxy, under a path of its own. */
export const base = new URL("../../", import.meta.url);

export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export const key = {
  get: () => sessionStorage.getItem(STORED),
  set(value) {
    if (value) sessionStorage.setItem(STORED, value);
    else sessionStorage.removeItem(STORED);
  },
};

/** Ask a route. Throws Refused with the server's own words, or TypeError where it does not answer. */
export async function ask(path, { body, signal, headers = {}, method } = {}) {
  const told = { ...headers };
  const stored = key.get();
  if (stored) told.Authorization = `Bearer ${stored}`;
  if (body !== undefined) told["Content-Type"] = "application/json";
  const response = await fetch(new URL(path, base), {
    method: method ?? (body === undefined ? "GET" : "POST"),
    headers: told,
    body: body === undefined ? undefined : JSON.stringify(body),
    signal,
    cache: "no-store",
    credentials: "omit",
  });
  if (!response.ok) throw new Refused(response.status, await wordsOf(response));
  return response;
}

async function wordsOf(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `The server answered ${response.status}.`;
  }
}

/** The data of a response's server-sent events, one string each, as they come. */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let pending = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      pending += value;
      let end;
      while ((end = pending.indexOf("\n\n")) >= 0) {
        const block = pending.slice(0, end);
        pending = pending.slice(end + 2);
        const data = block
          .split("\n")
          .filter((line) => line.startsWith("data:"))
          .map((line) => line.slice(5).trimStart());
        if (data.length) yield data.join("\n");
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
