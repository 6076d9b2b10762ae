// Blocks of Markdown as nodes. A text that grows is re-rendered from the first block that differs.

import { h, icon, setText } from "./dom.js";
import { parseMarkdown } from "./markdown.js";

/** Longer texts are shown as they are: nobody reads their formatting. */
const FORMATTED_CHARS_MAX = 200_000;

/** Returns `{node, update(text)}`. */
export function createMarkdown(text) {
  const node = h("div.prose");
  let shown = [];
  let last = null;
  function update(next) {
    if (next === last) return;
    last = next;
    const blocks =
      next.length > FORMATTED_CHARS_MAX ? [{ type: "plain", raw: next }] : parseMarkdown(next);
    let same = 0;
    while (
      same < shown.length && same < blocks.length &&
      shown[same].block.raw === blocks[same].raw && shown[same].block.type === blocks[same].type
    ) {
      same += 1;
    }
    // The block that is being written changes with every piece of text; code keeps its node, so
    // that its scroll position and a selection in it stay.
    const growing = shown[same];
    if (growing?.block.type === "code" && blocks[same]?.type === "code" && growing.block.lang === blocks[same].lang) {
      setText(growing.node.querySelector("code"), blocks[same].text);
      growing.block = blocks[same];
      same += 1;
    }
    for (const { node: old } of shown.splice(same)) old.remove();
    for (const block of blocks.slice(same)) {
      const made = blockNode(block);
      shown.push({ block, node: made });
      node.append(made);
    }
  }
  update(text);
  return { node, update };
}

function blockNode(block) {
  switch (block.type) {
    case "heading":
      // The page has its own h1 and h2.
      return h(`h${Math.min(6, block.level + 2)}`, {}, inlineNodes(block.inline));
    case "code":
      return codeNode(block);
    case "quote":
      return h("blockquote", {}, block.blocks.map(blockNode));
    case "list":
      return listNode(block);
    case "table":
      return tableNode(block);
    case "rule":
      return h("hr");
    case "plain":
      return h("p", {}, block.raw);
    default:
      return h("p", {}, inlineNodes(block.inline));
  }
}

function listNode(block) {
  const items = block.items.map((blocks) => {
    // An item that is one paragraph is set tight.
    const [first, ...rest] = blocks;
    if (first?.type !== "p") return h("li", {}, blocks.map(blockNode));
    return h("li", {}, h("span", {}, inlineNodes(first.inline)), rest.map(blockNode));
  });
  if (!block.ordered) return h("ul", {}, items);
  return h("ol", { start: block.start === 1 ? null : block.start }, items);
}

function tableNode(block) {
  const cell = (tag) => (inline, at) => h(`${tag}.${block.align[at]}`, {}, inlineNodes(inline));
  return h(
    "div.table",
    { tabindex: "0", role: "region", "aria-label": "Table" },
    h(
      "table",
      {},
      h("thead", {}, h("tr", {}, block.head.map(cell("th")))),
      h("tbody", {}, block.rows.map((row) => h("tr", {}, row.map(cell("td"))))),
    ),
  );
}

/** A block of code with its language and a button that copies it. */
export function codeNode({ lang, text }) {
  const code = h("code", {}, text);
  return h(
    "div.code",
    {},
    h("div.code-head", {}, h("span", {}, lang || "text"), copyButton(() => code.textContent)),
    h("pre", { tabindex: "0" }, code),
  );
}

/** A button that copies what `text()` gives; absent where the browser offers no clipboard. */
export function copyButton(text, label = "Copy") {
  if (!navigator.clipboard) return null;
  const words = h("span", {}, label);
  const button = h("button.quiet.copy", { type: "button" }, icon("copy"), words);
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text());
      setText(words, "Copied");
    } catch {
      setText(words, "Not copied");
    }
    setTimeout(() => setText(words, label), 1_600);
  });
  return button;
}

function inlineNodes(inline) {
  return inline.map((piece) => {
    switch (piece.type) {
      case "code":
        return h("code", {}, piece.text);
      case "strong":
      case "em":
      case "del":
        return h(piece.type, {}, inlineNodes(piece.inline));
      case "link":
        return h(
          "a",
          { href: piece.href, title: piece.href, target: "_blank", rel: "noopener noreferrer nofollow" },
          inlineNodes(piece.inline),
        );
      default:
        return piece.text;
    }
  });
}
