// SPDX-License-Identifier: Apache-2.0
// "#/jobs/lm" -> view "jobs", argument "lm". Addresses can be kept, sent and gone back to.

export function parse(hash) {
  const [view, ...rest] = hash.replace(/^#\/?/, "").split("/");
  let argument = "";
  try {
    argument = decodeURIComponent(rest.join("/"));
  } catch {
    // Not an address of ours: as if nothing was named.
  }
  return {view, argument};
}

export const address = (view, argument) =>
    `#/${view}${argument ? `/${encodeURIComponent(argument)}` : ""}`;

// Calls onRoute now and at every change. Anchors within the page ("#main") are no addresses.
export function follow(onRoute) {
  const route = (byPerson) => {
    if (window.location.hash === "" || window.location.hash.startsWith("#/")) {
      onRoute(parse(window.location.hash), byPerson);
    }
  };
  window.addEventListener("hashchange", () => route(true));
  route(false);
}
