// The controller's REST API as this page uses it. Where the controller wants a token, it is kept in
// sessionStorage: it ends with the tab and is never part of an address.

const storageKey = "weir-token";
const retryMilliseconds = 2000;

export class TokenNeeded extends Error {}

export const hasToken = () => sessionStorage.getItem(storageKey) !== null;
export const forgetToken = () => sessionStorage.removeItem(storageKey);

// Returns why the text cannot be a token, or an empty string once it is kept.
export function keepToken(text) {
  const token = text.trim();
  if (!/^[\x21-\x7e]+$/.test(token)) return "A token is one word of ASCII characters.";
  sessionStorage.setItem(storageKey, token);
  return "";
}

async function request(path, accept) {
  const headers = { Accept: accept };
  if (hasToken()) headers.Authorization = `Bearer ${sessionStorage.getItem(storageKey)}`;
  const response = await fetch(path, { headers });
  if (response.ok) return response;
  const status = await response.json().catch(() => ({}));
  const message = status.message || `HTTP ${response.status}`;
  if (response.status === 401) throw new TokenNeeded(message);
  throw new Error(`${path}: ${message}`);
}

export async function get(path) {
  return (await request(path, "application/json")).json();
}

// The newest decisions of a job, newest first: pages until one known already, at most `pagesMax`.
export async function newDecisions(job, known, pagesMax) {
  const found = [];
  let token = "";
  for (let page = 0; page < pagesMax; page += 1) {
    const size = known.size > 0 && page === 0 ? 10 : 100;
    const answer = await get(`/v1/decisions?job=${encodeURIComponent(job)}&page_size=${size}` +
      (token ? `&page_token=${encodeURIComponent(token)}` : ""));
    const decisions = answer.decisions || [];
    found.push(...decisions);
    token = answer.next_page_token || "";
    if (!token || decisions.some((decision) => known.has(decision.id))) break;
  }
  return found;
}

// Calls onEvent for every server-sent event, for ever; ends when a token is needed. Not an
// EventSource, because that cannot send a token.
export async function follow(path, onEvent) {
  for (;;) {
    try {
      const reader = (await request(path, "text/event-stream")).body
        .pipeThrough(new TextDecoderStream()).getReader();
      for (let rest = ""; ;) {
        const { value, done } = await reader.read();
        if (done) break;
        const lines = (rest + value).split("\n");
        rest = lines.pop();
        if (lines.some((line) => line.startsWith("event:"))) onEvent();
      }
    } catch (error) {
      if (error instanceof TokenNeeded) return;
    }
    await new Promise((resolve) => setTimeout(resolve, retryMilliseconds));
  }
}
