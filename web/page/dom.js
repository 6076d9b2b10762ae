// Building nodes. Nothing in the page ever parses text as HTML: elements come from here, words come
// in as text nodes.

const SVG = "http://www.w3.org/2000/svg";

/**
 * `h("button.primary", {type: "button", onclick: run}, "Send")`: an element with classes,
 * attributes (`true` sets an empty one; null, undefined and false set none), listeners (`on…`) and
 * children (nodes, texts, or nothing).
 */
export function h(selector, attributes = {}, ...children) {
  const [tag, ...classes] = selector.split(".");
  const element = document.createElement(tag);
  if (classes.length > 0) element.className = classes.join(" ");
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  append(element, children);
  return element;
}

function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false || child === "") continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

/** Sets the text of an element, if it differs. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Sets or removes an attribute, if it differs. */
export function setAttribute(element, name, value) {
  if (value === null || value === undefined || value === false) element.removeAttribute(name);
  else if (element.getAttribute(name) !== String(value)) {
    element.setAttribute(name, value === true ? "" : String(value));
  }
}

// Paths on a 16 × 16 grid, drawn with a stroke.
const ICONS = {
  menu: "M2.5 4.5h11M2.5 8h11M2.5 11.5h11",
  plus: "M8 3v10M3 8h10",
  send: "M8 13V3.5M4 7.2 8 3.2l4 4",
  stop: "M4.5 4.5h7v7h-7z",
  down: "M8 3v9.5M4 8.8l4 4 4-4",
  chevron: "M6 4l4 4-4 4",
  check: "M3.5 8.5l3 3 6-7",
  cross: "M4 4l8 8M12 4l-8 8",
  question: "M6 6.2a2 2 0 1 1 2.9 1.8c-.6.3-.9.7-.9 1.4M8 12v.1",
  bolt: "M9 1.8 3.8 9.2H8l-1 5 5.2-7.4H8z",
  resume: "M12.6 6.2A5 5 0 1 0 13 8M12.8 2.8v3.6H9.2",
  more: "M3.5 8h.01M8 8h.01M12.5 8h.01",
  copy: "M5.5 5.5h7v7h-7zM3.5 10.5v-7h7",
  note: "M3.5 3h9v10h-9zM6 6.2h4M6 9h4",
  lock: "M4.5 7.5h7v5.5h-7zM5.8 7.5V5.2a2.2 2.2 0 0 1 4.4 0v2.3",
  clock: "M8 4.8V8l2.2 1.6M13.5 8A5.5 5.5 0 1 1 2.5 8a5.5 5.5 0 0 1 11 0z",
  out: "M6.5 3h-3v10h3M7 8h6M10.5 5.2 13.2 8l-2.7 2.8",
};

/** A small drawing beside words that say the same; hidden from screen readers. */
export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 16 16");
  svg.setAttribute("class", `icon icon-${name}`);
  svg.setAttribute("aria-hidden", "true");
  const path = document.createElementNS(SVG, "path");
  path.setAttribute("d", ICONS[name]);
  svg.append(path);
  return svg;
}

/**
 * Makes the children of `parent` the nodes of `items`, in order. `build(item) -> {node, update}`
 * is called once for a key; `update(item)` for each later state of it. Nodes that stay are never
 * taken out of the document, so that focus, selection and open details survive.
 */
export function createKeyedList(parent, build) {
  let views = new Map();
  return (items) => {
    const next = new Map();
    // Two items with one key would tear the list apart; the first one wins.
    for (const item of items) if (!next.has(item.key)) next.set(item.key, item);
    for (const [key, view] of views) {
      if (next.get(key)?.type === view.type) continue;
      view.node.remove();
      views.delete(key);
    }
    let place = parent.firstChild;
    for (const [key, item] of next) {
      let view = views.get(key);
      if (view) view.update(item);
      else view = { type: item.type, ...build(item) };
      next.set(key, view);
      if (view.node === place) place = place.nextSibling;
      else parent.insertBefore(view.node, place);
    }
    views = next;
  };
}
