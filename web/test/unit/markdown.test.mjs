// Markdown: what is understood, and that hostile text stays text and costs linear time.

import { strict as assert } from "node:assert";
import { performance } from "node:perf_hooks";
import { test } from "node:test";
import { parseInline, parseMarkdown, safeUrl } from "../../page/markdown.js";

/** Blocks in short: type, then what is in it. */
function short(text) {
  return parseMarkdown(text).map(shortBlock);
}

function shortBlock(block) {
  switch (block.type) {
    case "code":
      return ["code", block.lang, block.text, block.closed];
    case "list":
      return [block.ordered ? `ol${block.start}` : "ul", ...block.items.map((item) => item.map(shortBlock))];
    case "quote":
      return ["quote", ...block.blocks.map(shortBlock)];
    case "heading":
      return [`h${block.level}`, inline(block.inline)];
    case "table":
      return ["table", block.head.map(inline), block.align, block.rows.map((row) => row.map(inline))];
    case "rule":
      return ["rule"];
    default:
      return ["p", inline(block.inline)];
  }
}

function inline(pieces) {
  return pieces
    .map((piece) => {
      if (piece.type === "text") return piece.text;
      if (piece.type === "code") return `<code>${piece.text}</code>`;
      if (piece.type === "link") return `<a ${piece.href}>${inline(piece.inline)}</a>`;
      return `<${piece.type}>${inline(piece.inline)}</${piece.type}>`;
    })
    .join("");
}

const line = (text) => inline(parseInline(text));

test("blocks", () => {
  assert.deepEqual(short("one\ntwo\n\nthree"), [["p", "one\ntwo"], ["p", "three"]]);
  assert.deepEqual(short("# A\n### B ###\ntext"), [["h1", "A"], ["h3", "B"], ["p", "text"]]);
  assert.deepEqual(short("#no heading"), [["p", "#no heading"]]);
  assert.deepEqual(short("a\n\n---\n\nb\n* * *"), [["p", "a"], ["rule"], ["p", "b"], ["rule"]]);
  assert.deepEqual(short("> a\n> > b\n> c"), [["quote", ["p", "a"], ["quote", ["p", "b"]], ["p", "c"]]]);
  assert.deepEqual(short("line\r\nend\r\n"), [["p", "line\nend"]]);
  assert.deepEqual(short(""), []);
});

test("fenced code keeps every character and may still be open", () => {
  assert.deepEqual(short("```rust\nlet a = 1;\n\n  b **c**\n```\nafter"), [["code", "rust", "let a = 1;\n\n  b **c**", true], ["p", "after"]]);
  assert.deepEqual(short("```\nhalf"), [["code", "", "half", false]]);
  assert.deepEqual(short("````\n```\n````"), [["code", "", "```", true]]);
  assert.deepEqual(short("~~~py x\na\n~~~"), [["code", "py", "a", true]]);
  assert.deepEqual(short("text\n```\ncode\n```"), [["p", "text"], ["code", "", "code", true]]);
});

test("lists nest, number and take in code", () => {
  assert.deepEqual(short("- a\n- b\n  - c\n  - d\n- e"), [["ul", [["p", "a"]], [["p", "b"], ["ul", [["p", "c"]], [["p", "d"]]]], [["p", "e"]]]]);
  assert.deepEqual(short("3. a\n4. b"), [["ol3", [["p", "a"]], [["p", "b"]]]]);
  assert.deepEqual(short("1. a\n\n   more\n\n2. b"), [["ol1", [["p", "a"], ["p", "more"]], [["p", "b"]]]]);
  assert.deepEqual(short("- a\n  ```\n  x\n  ```\n- b"), [["ul", [["p", "a"], ["code", "", "x", true]], [["p", "b"]]]]);
  assert.deepEqual(short("- a\nlazy\n\nafter"), [["ul", [["p", "a\nlazy"]]], ["p", "after"]]);
  assert.deepEqual(short("text\n- a"), [["p", "text"], ["ul", [["p", "a"]]]]);
  assert.deepEqual(short("It was in\n1986. What a year"), [["p", "It was in\n1986. What a year"]]);
  assert.deepEqual(short("- a\n* b"), [["ul", [["p", "a"]]], ["ul", [["p", "b"]]]]);
});

test("tables", () => {
  assert.deepEqual(short("| a | b |\n|:--|--:|\n| 1 | `x` |\n| 2 |"), [
    ["table", ["a", "b"], ["start", "end"], [["1", "<code>x</code>"], ["2", ""]]],
  ]);
  assert.deepEqual(short("a | b\n--- | :-:\n1 \\| 2 | 3\n\nafter"), [["table", ["a", "b"], ["start", "center"], [["1 | 2", "3"]]], ["p", "after"]]);
  assert.deepEqual(short("a | b\nno rule"), [["p", "a | b\nno rule"]]);
});

test("inline", () => {
  assert.equal(line("**bold** and *it* and __b__ and _i_ and ~~no~~"), "<strong>bold</strong> and <em>it</em> and <strong>b</strong> and <em>i</em> and <del>no</del>");
  assert.equal(line("***both***"), "<strong><em>both</em></strong>");
  assert.equal(line("**a *b* c**"), "<strong>a <em>b</em> c</strong>");
  assert.equal(line("2 * 3 * 4 and snake_case_name and a*b"), "2 * 3 * 4 and snake_case_name and a*b");
  assert.equal(line("half **open"), "half **open");
  assert.equal(line("`a ** b` `` c`d `` `open"), "<code>a ** b</code> <code>c`d</code> `open");
  assert.equal(line("\\*not\\* \\q"), "*not* \\q");
});

test("links are http or https, and nothing else", () => {
  assert.equal(line("[a](https://x.example/p?q=1#f)"), "<a https://x.example/p?q=1#f>a</a>");
  assert.equal(line("[**a**](http://x.example)"), "<a http://x.example/><strong>a</strong></a>");
  assert.equal(line("[w](https://x.example/a_(b) \"title\")"), "<a https://x.example/a_(b)>w</a>");
  assert.equal(line("see https://x.example/a, or (https://x.example/b)."), "see <a https://x.example/a>https://x.example/a</a>, or (<a https://x.example/b>https://x.example/b</a>).");
  assert.equal(line("<https://x.example/>"), "<a https://x.example/>https://x.example/</a>");
  assert.equal(line("![pic](https://x.example/i.png)"), "<a https://x.example/i.png>pic</a>");
  assert.equal(line("[out [in](https://a.example)](https://b.example)"), "<a https://b.example/>out in</a>");
  for (const bad of [
    "javascript:alert(1)", "JaVaScRiPt:alert(1)", " javascript:alert(1)", "java\tscript:alert(1)", "data:text/html,x", "vbscript:x", "file:///etc/passwd",
    "//evil.example", "/path", "mailto:a@b.example", "https://bank.example@evil.example/", "https://user:pass@evil.example/", "https://", "http:///",
  ]) {
    assert.equal(safeUrl(bad), null, bad);
    assert.ok(!line(`[a](${bad})`).includes("<a "), bad);
  }
  assert.equal(safeUrl("blob:https://a.example/b"), null);
  assert.equal(safeUrl(`https://x.example/${"a".repeat(3000)}`), null);
});

test("markup in the text is text", () => {
  const text = "<script>x</script> <img src=x onerror=y> &amp; <!-- c -->";
  assert.equal(line(text), text);
  for (const block of parseMarkdown("<div>\n\n<style>*{}</style>")) assert.equal(block.type, "p");
});

test("no text is lost: every word of a wild text is somewhere in the blocks", () => {
  const text = "# w1 **w2\n> w3\n- w4\n  1. w5 `w6\n```w7\nw8\n```\n| w9 | w10 |\n|--|--|\n| w11 |\n***\nw12 [w13](javascript:w14) __w15 ~~w16~~\n\tw17";
  const all = JSON.stringify(short(text));
  for (let n = 1; n <= 17; n += 1) assert.ok(all.includes(`w${n}`), `w${n} is gone`);
});

test("hostile texts cost linear time", () => {
  const big = 100_000;
  const texts = {
    brackets: "[".repeat(big) + "](https://x.example)",
    links: "[a](".repeat(big / 4),
    stars: "*a ".repeat(big / 3),
    doubleStars: "**a ".repeat(big / 4),
    alternating: "*_".repeat(big / 2),
    nestedStars: "*a **b ".repeat(big / 7),
    backticks: Array.from({ length: 400 }, (_, n) => "`".repeat(n + 1)).join(" "),
    angles: "<".repeat(big),
    urls: "https://x))))".repeat(big / 13),
    oneUrl: `https://x${")".repeat(big)}`,
    quotes: ">".repeat(big),
    quoteLines: "> ".repeat(50) + "\n> ".repeat(big / 3),
    lists: Array.from({ length: 2000 }, (_, n) => `${" ".repeat(n % 12)}- a`).join("\n"),
    blanks: `- a\n${"\n".repeat(big)}  b`,
    pipes: `${"|".repeat(big)}\n${"|-".repeat(big / 2)}`,
    spaces: `#${" ".repeat(big)}x`,
    underscores: "_".repeat(big),
    backslashes: "\\".repeat(big),
    rules: "- ".repeat(big / 2),
    bangs: "![".repeat(big / 2),
  };
  for (const [name, text] of Object.entries(texts)) {
    const time = (input) => {
      const start = performance.now();
      parseMarkdown(input);
      return performance.now() - start;
    };
    // Far above what linear costs here, far below what quadratic would (minutes).
    const took = time(text);
    assert.ok(took < 3_000, `${name} took ${Math.round(took)} ms`);
  }
});
