// The parser of event streams: any cut of the bytes gives the same frames.

import { strict as assert } from "node:assert";
import { test } from "node:test";
import { SseParser } from "../../page/sse.js";

const STREAM = [
  ": hello\n",
  "event: opened\ndata: {\"from\":1}\n\n",
  "id: 7\nevent: text.delta\ndata: {\"text\":\"a: b\"}\n\n",
  "id:8\r\nevent:x\r\ndata:one\r\ndata: two\r\n\r\n",
  "data\n\n",
  ": beat\n\n",
  "event: nothing\n\n",
  "retry: 5\rdata: cr\r\r",
  "data: ünï – 🙂\n\n",
].join("");

const FRAMES = [
  { event: "opened", id: undefined, data: '{"from":1}' },
  { event: "text.delta", id: "7", data: '{"text":"a: b"}' },
  { event: "x", id: "8", data: "one\ntwo" },
  { event: "message", id: undefined, data: "" },
  { event: "message", id: undefined, data: "cr" },
  { event: "message", id: undefined, data: "ünï – 🙂" },
];

test("a stream in one piece", () => {
  assert.deepEqual(new SseParser().push(STREAM), FRAMES);
});

test("a stream cut at any place, and character by character", () => {
  for (let cut = 0; cut <= STREAM.length; cut += 1) {
    const parser = new SseParser();
    assert.deepEqual([...parser.push(STREAM.slice(0, cut)), ...parser.push(STREAM.slice(cut))], FRAMES, `cut at ${cut}`);
  }
  const parser = new SseParser();
  assert.deepEqual(STREAM.split("").flatMap((char) => parser.push(char)), FRAMES);
});

test("a byte order mark at the start is not part of the first field", () => {
  assert.deepEqual(new SseParser().push("\ufeffdata: a\n\n"), [{ event: "message", id: undefined, data: "a" }]);
});

test("a frame without its empty line is not given out", () => {
  assert.deepEqual(new SseParser().push("data: half\n"), []);
});
