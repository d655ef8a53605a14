// SPDX-License-Identifier: Apache-2.0
// Building and updating the document without markup in strings: names from the API can never become
// elements, and the content-security policy forbids anything else.

const svgNamespace = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === true)
      element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined)
      element.setAttribute(name, value);
  }
  element.append(...children.flat(Infinity).filter(
      (child) => child !== null && child !== undefined && child !== ""));
  return element;
}

// An HTML element; an attribute that is true is set, false leaves it out.
export const h = (tag, attributes, ...children) =>
    fill(document.createElement(tag), attributes, children);

// An SVG element.
export const s = (tag, attributes, ...children) =>
    fill(document.createElementNS(svgNamespace, tag), attributes, children);

function sync(from, to) {
  for (const {name} of [...from.attributes])
    if (!to.hasAttribute(name)) from.removeAttribute(name);
  for (const {name, value} of [...to.attributes]) {
    if (from.getAttribute(name) !== value) from.setAttribute(name, value);
  }
}

const alike = (a, b) => a.nodeType === b.nodeType && a.nodeName === b.nodeName &&
    (a.nodeType !== Node.ELEMENT_NODE || a.getAttribute("data-key") === b.getAttribute("data-key"));

function morphChildren(from, to) {
  const wanted = [...to.childNodes];
  for (const [index, child] of wanted.entries()) {
    const present = from.childNodes[index];
    if (!present)
      from.append(child);
    else if (!alike(present, child))
      present.replaceWith(child);
    else
      morph(present, child);
  }
  while (from.childNodes.length > wanted.length) from.lastChild.remove();
}

function morph(from, to) {
  if (from.nodeType === Node.TEXT_NODE) {
    if (from.data !== to.data) from.data = to.data;
    return;
  }
  // Whether a person opened something is theirs to decide.
  if (from.nodeName === "DETAILS" && from.open) to.open = true;
  sync(from, to);
  morphChildren(from, to);
}

// Makes `parent` hold `children`, changing only what differs: focus, selection and scrolling stay.
// Listeners of new elements get lost where an old one is kept, so they belong on `parent`.
export function show(parent, ...children) {
  morphChildren(parent, h("div", {}, ...children));
}

// A card with a heading; `level` 2 unless nested.
export const card = (title, attributes, ...children) =>
    h("section", {class: "card", ...attributes}, h("h3", {}, title), ...children);

// columns: [{name, number, of: (row) => text or node, class}]. caption: for those who cannot see
// where it is.
export function table(caption, columns, rows, rowAttributes = () => ({})) {
  const className =
      (column) => [column.number ? "number" : "", column.class || ""].join(" ").trim() || null;
  return h("div", {class: "scroll", tabindex: "0", role: "region", "aria-label": caption},
      h("table", {}, h("caption", {class: "hidden"}, caption),
          h("thead", {},
              h("tr", {},
                  columns.map(
                      (column) => h("th", {scope: "col", class: className(column)}, column.name)))),
          h("tbody", {},
              rows.map(
                  (row, index) => h("tr", rowAttributes(row, index),
                      columns.map((column, place) => h(place === 0 ? "th" : "td",
                                      {class: className(column), scope: place === 0 ? "row" : null},
                                      column.of(row))))))));
}

// A figure with its caption: the number first, what it is below.
export const tile = (label, value, note, wide) =>
    h("div", {class: wide ? "tile wide" : "tile", "data-label": label}, h("b", {}, value),
        h("span", {}, note ? `${label} · ${note}` : label));
