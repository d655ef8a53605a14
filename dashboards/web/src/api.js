// SPDX-License-Identifier: Apache-2.0
// The controller's REST API as this page uses it. Where the controller wants a token, it is kept in
// sessionStorage: it ends with the tab and is never part of an address.

const storageKey = "weir-token";
// Proves that this page sends a request, not another one in the browser that has the session's
// cookie. Storage belongs to one origin; cookies are sent to every port of a host.
const csrfKey = "weir-csrf";
const timeoutMs = 10000;
const silenceMs = 30000;  // the controller says something every 10 s
const backoffMs = {
  first: 500,
  max: 30000
};

export class TokenNeeded extends Error {}

// The controller was not reached, or its answer did not come in time or was cut.
export class NoAnswer extends Error {}

// `answer`: a promise of the browser for a response or for its body.
const reached = (answer) => answer.catch((error) => {
  throw new NoAnswer(error.message);
});

// An error answer of the controller; `code` as in google.rpc.Code.
export class Refused extends Error {
  constructor(message, code) {
    super(message);
    this.code = code;
  }
}

export const hasToken = () => sessionStorage.getItem(storageKey) !== null;
export const forgetToken = () => sessionStorage.removeItem(storageKey);
export const hasSession = () => localStorage.getItem(csrfKey) !== null;

// Returns why the text cannot be a token, or an empty string once it is kept.
export function keepToken(text) {
  const token = text.trim();
  if (!/^[\x21-\x7e]+$/.test(token)) return "A token is one word of ASCII characters.";
  sessionStorage.setItem(storageKey, token);
  return "";
}

let roleKnown = () => {};
// `listener` is told which role the controller grants: "viewer", "operator" or "admin".
export function onRole(listener) {
  roleKnown = listener;
}

async function request(path, options) {
  const headers = {Accept: "application/json", ...options.headers};
  if (options.method && hasSession()) headers["Weir-CSRF"] = localStorage.getItem(csrfKey);
  if (hasToken()) headers.Authorization = `Bearer ${sessionStorage.getItem(storageKey)}`;
  const response = await reached(fetch(path, {...options, headers}));
  const role = response.headers.get("Weir-Role");
  if (role) roleKnown(role);
  if (response.ok) return response;
  const status = await response.json().catch(() => ({}));
  const message = status.message || `HTTP ${response.status}`;
  if (response.status === 401) throw new TokenNeeded(message);
  throw new Refused(message, status.code || 0);
}

export async function get(path) {
  const response = await request(path, {signal: AbortSignal.timeout(timeoutMs)});
  return reached(response.json());
}

// POST or PUT of a JSON body; further headers such as If-Match.
export async function send(method, path, body, headers = {}) {
  const answer = await request(path, {
    method,
    body: JSON.stringify(body),
    signal: AbortSignal.timeout(timeoutMs),
    headers: {"Content-Type": "application/json", ...headers},
  });
  return reached(answer.json());
}

// Begins a session with a code of `weirctl page`; its cookie is not visible here.
export async function beginSession(code) {
  const begun = await send("POST", "/v1/session", {code});
  localStorage.setItem(csrfKey, begun.csrf);
}

export async function endSession() {
  try {
    await send("DELETE", "/v1/session", {});
  } finally {
    localStorage.removeItem(csrfKey);
  }
}

// Every item of a list that comes in pages, its field `nodes` for instance. At most `pagesMax` pages.
export async function getList(path, field, pagesMax = 20) {
  const found = [];
  let token = "";
  for (let page = 0; page < pagesMax; page += 1) {
    const answer = await get(path + (token ? `?page_token=${encodeURIComponent(token)}` : ""));
    found.push(...(answer[field] || []));
    token = answer.next_page_token || "";
    if (!token) break;
  }
  return found;
}

const decisionsPath = (job, size, token) => `/v1/decisions?job=${encodeURIComponent(job)}&page_size=${size}` +
    (token ? `&page_token=${encodeURIComponent(token)}` : "");

// The newest decisions of a job, without their candidates: {decisions, rest}. Of a job that is known
// all that are new, of another one the first page; `rest` is the token of the older ones.
export async function newDecisions(job, known, pagesMax = 20) {
  const found = [];
  let token = "";
  for (let page = 0; page < pagesMax; page += 1) {
    const answer = await get(decisionsPath(job, known.size > 0 && page === 0 ? 10 : 100, token));
    const decisions = answer.decisions || [];
    found.push(...decisions);
    token = answer.next_page_token || "";
    if (!token || known.size === 0 || decisions.some((decision) => known.has(decision.id))) break;
  }
  return {decisions: found, rest: token};
}

export async function olderDecisions(job, token) {
  const answer = await get(decisionsPath(job, 500, token));
  return {decisions: answer.decisions || [], rest: answer.next_page_token || ""};
}

// Splits a stream of text into server-sent events {id, event, data}; comments are dropped.
export class EventParser {
  constructor() {
    this.rest = "";
    this.fields = {};
  }

  push(text) {
    const events = [];
    const lines = (this.rest + text).split("\n");
    this.rest = lines.pop();
    for (const line of lines) {
      if (line === "") {
        if (this.fields.data !== undefined) events.push(this.fields);
        this.fields = {};
        continue;
      }
      const colon = line.indexOf(":");
      if (colon > 0) this.fields[line.slice(0, colon)] = line.slice(colon + 1).replace(/^ /, "");
    }
    return events;
  }
}

async function readEvents(path, last, onEvent) {
  const abort = new AbortController();
  let silence = null;
  const heard = () => {
    clearTimeout(silence);
    silence = setTimeout(() => abort.abort(), silenceMs);
  };
  const headers = {Accept: "text/event-stream"};
  if (last.id) headers["Last-Event-ID"] = last.id;
  heard();
  try {
    const reader = (await request(path, {headers, signal: abort.signal}))
                       .body.pipeThrough(new TextDecoderStream())
                       .getReader();
    const parser = new EventParser();
    for (;;) {
      const {value, done} = await reader.read();
      if (done) return;
      heard();
      last.failures = 0;
      for (const event of parser.push(value)) {
        if (event.id) last.id = event.id;
        onEvent(JSON.parse(event.data));
      }
    }
  } finally {
    clearTimeout(silence);
    abort.abort();
  }
}

// How long to wait after so many failures in a row: doubling, with a random part so that the pages
// of a team do not come back all at once.
export function backoff(failures, random = Math.random()) {
  return Math.min(backoffMs.max, backoffMs.first * 2 ** Math.min(failures, 10)) *
      (0.5 + random / 2);
}

// Calls onEvent for every server-sent event, for ever; ends when a token is needed. Goes on after
// the last event seen. Not an EventSource, because that cannot send a token.
export async function followEvents(path, onEvent) {
  const last = {id: "", failures: 0};
  for (;;) {
    try {
      await readEvents(path, last, onEvent);
    } catch (error) {
      if (error instanceof TokenNeeded) return;
    }
    await new Promise((resolve) => setTimeout(resolve, backoff(last.failures)));
    last.failures += 1;
  }
}
