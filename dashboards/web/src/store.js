// SPDX-License-Identifier: Apache-2.0
// The page's state, in one place. Views read it and are notified of changes.

export class Store {
  constructor(state) {
    this.state = state;
    this.listeners = new Set();
  }

  // Replaces the named parts and tells everybody, if any differs.
  set(parts) {
    const changed = Object.entries(parts).some(([name, value]) => this.state[name] !== value);
    if (!changed) return;
    this.state = {...this.state, ...parts};
    for (const listener of this.listeners) listener(this.state);
  }

  subscribe(listener) {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }
}

const eventsMax = 300;

// Events by number, newest first, each once: a resumed stream may repeat some.
export function withEvent(events, event) {
  const id = Number(event.id || 0);
  if (events.some((known) => Number(known.id || 0) === id && known.unix_s === event.unix_s))
    return events;
  return [event, ...events].sort((a, b) => Number(b.unix_s) - Number(a.unix_s)).slice(0, eventsMax);
}
