// Small things: words for people, what is shown of deceptive text, the merged list, headers.

import { strict as assert } from "node:assert";
import { test } from "node:test";
import { ApiError, retryAfterMs } from "../../page/api.js";
import { evidenceText } from "../../page/items.js";
import { mergeFirstPage, newestOf } from "../../page/sessions.js";
import { argumentLine, parseArguments } from "../../page/tool-view.js";
import { ago, freshId, outputText, plainText, shortCount, shortSpan, titleFrom, visible } from "../../page/util.js";

test("ids are fresh and well formed", () => {
  const ids = new Set(Array.from({ length: 1000 }, () => freshId("ses_")));
  assert.equal(ids.size, 1000);
  for (const id of ids) assert.match(id, /^ses_[0-9a-f]{32}$/);
});

test("a title is the first line that says something", () => {
  assert.equal(titleFrom("\n  Hello there  \nmore"), "Hello there");
  assert.equal(titleFrom("word ".repeat(40)), "word word word word word word word word word word word word…");
  assert.equal(Array.from(titleFrom("🙂".repeat(100))).length, 61);
});

test("characters that deceive are written out", () => {
  assert.equal(visible("rm \u202e-rf"), "rm \\u{202e}-rf");
  assert.equal(visible("a\u200bb\u0000c\u001b[1m\ufeff"), "a\\u{200b}b\\u{0}c\\u{1b}[1m\\u{feff}");
  assert.equal(visible("tab\there\nüñ🙂 日本"), "tab\there\nüñ🙂 日本");
  assert.equal(visible("\u{e0041}x"), "\\u{e0041}x");
  assert.equal(visible("a\rb"), "a\\u{d}b");
});

test("output is read without terminal codes", () => {
  assert.equal(outputText("\u001b[31mred\u001b[0m\r\nnext\rlast \u001b]0;title\u0007end"), "red\nnext\nlast end");
});

test("numbers and spans for people", () => {
  assert.deepEqual([0, 999, 1000, 1234, 9_960, 34_400, 999_600, 1_500_000, Number.NaN].map(shortCount), ["0", "999", "1k", "1.2k", "10k", "34k", "1M", "1.5M", "?"]);
  assert.deepEqual([0, 840, 12_000, 65_000, 120_000, 7_440_000, 7_200_000, -5].map(shortSpan), ["0.0 s", "0.8 s", "12 s", "1 min 5 s", "2 min", "2 h 4 min", "2 h", ""]);
  const now = Date.parse("2026-11-30T12:00:00Z");
  assert.equal(ago("2026-11-30T11:59:30Z", now), "now");
  assert.equal(ago("2026-11-30T11:15:00Z", now), "45 min");
  assert.equal(ago("2026-11-29T12:00:00Z", now), "1 d");
  assert.equal(ago("nonsense", now), "");
});

test("text of a content list", () => {
  assert.equal(plainText({ text: "a" }), "a");
  assert.equal(plainText({ content: [{ type: "text", text: "a" }, { type: "image" }, { type: "text", text: "b" }] }), "a\nb");
  assert.equal(plainText(undefined), "");
});

test("arguments: an object, its text, or whatever the model wrote", () => {
  assert.deepEqual(parseArguments({ a: 1 }), { a: 1 });
  assert.deepEqual(parseArguments('{"a":1}'), { a: 1 });
  for (const odd of ["{oops", "[1]", "7", null, undefined]) assert.equal(parseArguments(odd), null);
  assert.equal(argumentLine({ n: 1, command: "\nls -l\nmore" }), "ls -l");
  assert.equal(argumentLine("{oops"), "{oops");
  assert.equal(argumentLine({ command: "a\u202eb" }), "a\\u{202e}b");
  assert.equal(argumentLine({}), "");
});

test("evidence as a sentence, as an object, or missing", () => {
  assert.equal(evidenceText("It is gone.", "unknown"), "It is gone.");
  assert.equal(evidenceText({ text: "It is gone.", holder: "n" }, "unknown"), "It is gone.");
  assert.match(evidenceText(undefined, "lost_worker"), /is gone/);
  assert.match(evidenceText(null, "something_new"), /stopped reporting/);
});

test("a first page read again replaces the top of the list and keeps the rest", () => {
  const s = (id, updated_at) => ({ id, updated_at });
  const known = [s("a", "9"), s("b", "8"), s("c", "7"), s("d", "6"), s("e", "5")];
  const ids = (list) => list.map((each) => each.id).join("");
  assert.equal(ids(mergeFirstPage(known, [s("n", "99"), s("a", "9"), s("b", "8")])), "nabcde", "a new one");
  assert.equal(ids(mergeFirstPage(known, [s("a", "9"), s("c", "7"), s("d", "6")])), "acde", "one was deleted");
  assert.equal(ids(mergeFirstPage(known, [s("e", "99"), s("a", "9"), s("b", "8")])), "eabcd", "an old one woke up");
  assert.equal(ids(mergeFirstPage(known, [])), "");
});

test("a list that was read before the feed told more does not set a session back", () => {
  const known = [{ id: "a", offset: 9, state: "idle" }];
  assert.equal(newestOf(known, { id: "a", offset: 7, state: "running" }).state, "idle");
  assert.equal(newestOf(known, { id: "a", offset: 11, state: "running" }).state, "running");
  assert.equal(newestOf(known, { id: "b", offset: 1, state: "running" }).state, "running");
});

test("Retry-After in seconds or as a date", () => {
  assert.equal(retryAfterMs("3"), 3000);
  assert.equal(retryAfterMs("Mon, 30 Nov 2026 06:00:10 GMT", Date.parse("2026-11-30T06:00:00Z")), 10_000);
  assert.equal(retryAfterMs("Mon, 30 Nov 2026 06:00:00 GMT", Date.parse("2026-11-30T06:00:10Z")), 0);
  for (const odd of [null, "", "soon"]) assert.equal(retryAfterMs(odd), null, String(odd));
});

test("a refusal without a problem body is judged by its status", () => {
  assert.equal(new ApiError(503, {}, null).permanent, false);
  assert.equal(new ApiError(404, {}, null).permanent, true);
  assert.equal(new ApiError(404, {}, null).code, "http_404");
  assert.equal(new ApiError(429, { permanent: true }, null).permanent, true);
});
