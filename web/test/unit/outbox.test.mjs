// Messages without a receipt: kept before they are sent, sent again under the same id, in order.

import { strict as assert } from "node:assert";
import { test } from "node:test";
import { ApiError, Unreachable } from "../../page/api.js";
import { createLocal } from "../../page/local.js";
import { createOutbox, parseEntry, verdict } from "../../page/outbox.js";

/** A `Storage` that can be full. */
class FakeStorage {
  map = new Map();
  full = false;
  get length() {
    return this.map.size;
  }
  key(index) {
    return [...this.map.keys()][index] ?? null;
  }
  getItem(key) {
    return this.map.get(key) ?? null;
  }
  setItem(key, value) {
    if (this.full) throw new Error("quota");
    this.map.set(key, value);
  }
  removeItem(key) {
    this.map.delete(key);
  }
}

/** A server that takes each identity once, and a page with an outbox in front of it. */
function setUp({ storage = new FakeStorage(), fail = [] } = {}) {
  const world = { storage, tries: [], taken: [], receipts: [], logins: 0, timers: [], mishaps: [...fail] };
  world.outbox = createOutbox({
    local: createLocal(storage),
    random: () => 0.5,
    now: () => 1_000,
    setTimer: (run, ms) => world.timers.push({ run, ms }) && world.timers.at(-1),
    clearTimer: (timer) => (world.timers = world.timers.filter((other) => other !== timer)),
    onChange: () => {},
    onLogin: () => (world.logins += 1),
    onReceipt: (receipt, entry) => world.receipts.push([receipt, entry.requestId]),
    async send(entry) {
      world.tries.push(entry.requestId);
      // What is in the storage before the first byte leaves is what a reload will find.
      assert.ok(storage.full || storage.getItem(`everturn.outbox.${entry.requestId}`), "sent before it was kept");
      const mishap = world.mishaps.shift();
      if (mishap === "lost receipt") {
        if (!world.taken.includes(entry.requestId)) world.taken.push(entry.requestId);
        throw new Unreachable(new Error("reset"));
      }
      if (mishap) throw mishap;
      const replayed = world.taken.includes(entry.requestId);
      if (!replayed) world.taken.push(entry.requestId);
      return { input_id: `inp_${entry.requestId}`, request_id: entry.requestId, status: "queued", replayed };
    },
  });
  return world;
}

const settle = () => new Promise((resolve) => setImmediate(resolve));
const waits = (world) => world.timers.filter((timer) => timer.ms !== 1_500);

test("a message is kept before it is sent and forgotten once its receipt came", async () => {
  const world = setUp();
  world.outbox.add({ requestId: "r1", sessionId: "s", text: "hello" });
  assert.equal(world.storage.map.size, 1);
  await settle();
  assert.deepEqual(world.receipts.map(([, id]) => id), ["r1"]);
  assert.equal(world.storage.map.size, 0);
  assert.equal(world.outbox.has("s"), false);
});

test("after a lost answer the same id is sent again, and the server takes it once", async () => {
  const world = setUp({ fail: ["lost receipt", new Unreachable(new Error("refused"))] });
  world.outbox.add({ requestId: "r1", sessionId: "s", text: "hello" });
  await settle();
  assert.equal(world.outbox.of("s")[0].tries, 1);
  waits(world).at(-1).run();
  await settle();
  waits(world).at(-1).run();
  await settle();
  assert.deepEqual(world.tries, ["r1", "r1", "r1"]);
  assert.deepEqual(world.taken, ["r1"]);
  assert.equal(world.receipts[0][0].replayed, true);
  assert.equal(world.storage.map.size, 0);
});

test("a reload in the middle finds it and sends the same id", async () => {
  const before = setUp({ fail: ["lost receipt"] });
  before.outbox.add({ requestId: "r1", sessionId: "s", text: "hello", title: "hello" });
  await settle();
  before.outbox.close();
  const after = setUp({ storage: before.storage });
  after.taken.push(...before.taken);
  after.outbox.start();
  assert.equal(after.outbox.of("s")[0].title, "hello");
  assert.equal(after.outbox.of("s")[0].quiet, true, "it may stand in the transcript already");
  await settle();
  assert.deepEqual(after.tries, ["r1"]);
  assert.equal(after.receipts[0][0].replayed, true);
  assert.equal(after.storage.map.size, 0);
});

test("messages of one conversation are sent in the order of writing, one at a time", async () => {
  const world = setUp({ fail: [new Unreachable(new Error("refused"))] });
  for (const id of ["r3", "r1", "r2"]) world.outbox.add({ requestId: id, sessionId: "s", text: id });
  world.outbox.add({ requestId: "other", sessionId: "t", text: "other" });
  await settle();
  assert.deepEqual(world.tries, ["r3", "other"], "nothing overtakes a message that waits");
  world.outbox.wake();
  await settle();
  assert.deepEqual(world.taken, ["other", "r3", "r1", "r2"]);
  const reloaded = setUp({ storage: world.storage });
  reloaded.outbox.start();
  await settle();
  assert.deepEqual(reloaded.tries, []);
});

test("the order outlives a reload, even within one millisecond", async () => {
  const offline = () => Array.from({ length: 9 }, () => new Unreachable(new Error("refused")));
  const before = setUp({ fail: offline() });
  for (const id of ["c", "a", "b"]) before.outbox.add({ requestId: id, sessionId: "s", text: id });
  await settle();
  before.outbox.close();
  const after = setUp({ storage: before.storage });
  after.outbox.start();
  await settle();
  assert.deepEqual(after.taken, ["c", "a", "b"]);
});

test("what the server will never take is shown as refused and holds nothing back", async () => {
  const refusal = new ApiError(413, { code: "text_too_large", detail: "too large", permanent: true, hint: "shorter" }, null);
  const world = setUp({ fail: [refusal] });
  world.outbox.add({ requestId: "r1", sessionId: "s", text: "x" });
  world.outbox.add({ requestId: "r2", sessionId: "s", text: "y" });
  await settle();
  assert.deepEqual(world.taken, ["r2"]);
  const [entry] = world.outbox.of("s");
  assert.deepEqual(entry.problem, { code: "text_too_large", message: "too large", hint: "shorter" });
  const reloaded = setUp({ storage: world.storage });
  reloaded.outbox.start();
  await settle();
  assert.deepEqual(reloaded.tries, [], "it is not tried again by itself");
  assert.equal(reloaded.outbox.of("s")[0].problem.code, "text_too_large");
  reloaded.outbox.retry("r1");
  await settle();
  assert.deepEqual(reloaded.taken, ["r1"]);
});

test("a log-in is waited for, and then everything goes out", async () => {
  const world = setUp({ fail: [new ApiError(401, { code: "unauthorized" }, null)] });
  world.outbox.add({ requestId: "r1", sessionId: "s", text: "x" });
  await settle();
  assert.equal(world.logins, 1);
  assert.equal(waits(world).length, 0, "nothing is tried until somebody logged in");
  assert.equal(world.storage.map.size, 1);
  world.outbox.wake();
  await settle();
  assert.deepEqual(world.taken, ["r1"]);
});

test("the feed's word is as good as a receipt", async () => {
  const world = setUp({ fail: ["lost receipt"] });
  world.outbox.add({ requestId: "r1", sessionId: "s", text: "x" });
  await settle();
  world.outbox.settle("r1");
  assert.equal(world.storage.map.size, 0);
  for (const timer of waits(world)) timer.run();
  await settle();
  assert.deepEqual(world.tries, ["r1"]);
});

test("another tab's message is shown, sent by whoever is woken, and goes with its receipt", async () => {
  const world = setUp();
  const entry = { requestId: "r9", sessionId: "s", text: "from the other tab", order: 5, createdAt: "" };
  world.storage.setItem("everturn.outbox.r9", JSON.stringify(entry));
  world.outbox.changedElsewhere("outbox.r9", JSON.stringify(entry));
  assert.equal(world.outbox.of("s")[0].text, "from the other tab");
  await settle();
  assert.deepEqual(world.tries, []);
  world.outbox.changedElsewhere("outbox.r9", null);
  assert.equal(world.outbox.has("s"), false);
  world.outbox.changedElsewhere("draft.s", "not ours");
});

test("a full storage does not stop a message; the page is told that it is not kept", async () => {
  const storage = new FakeStorage();
  storage.full = true;
  const world = setUp({ storage });
  const entry = world.outbox.add({ requestId: "r1", sessionId: "s", text: "x" });
  assert.equal(entry.kept, false);
  await settle();
  assert.deepEqual(world.taken, ["r1"]);
});

test("what cannot be read back is thrown away", () => {
  for (const bad of ["", "{", "null", "[]", "{}", '{"requestId":"r","sessionId":"s","text":""}', '{"requestId":1,"sessionId":"s","text":"x"}']) {
    assert.equal(parseEntry(bad), null, bad);
  }
});

test("what follows from a failed try", () => {
  const of = (status, problem = {}, retryAfter = null) => verdict(new ApiError(status, problem, retryAfter), 0, () => 1);
  assert.equal(of(401).kind, "login");
  assert.equal(of(400).kind, "refused");
  assert.equal(of(410, { permanent: true }).kind, "refused");
  assert.deepEqual(of(503), { kind: "retry", waitMs: 500 });
  assert.deepEqual(of(429, { permanent: false }, 5_000), { kind: "retry", waitMs: 5_000 });
  assert.deepEqual(of(503, {}, 9_999_999), { kind: "retry", waitMs: 60_000 });
  assert.equal(of(409, { permanent: false }).kind, "retry");
  assert.equal(verdict(new Unreachable(), 3, () => 1).waitMs, 4_000);
  assert.equal(verdict(new Unreachable(), 99, () => 1).waitMs, 30_000);
  assert.equal(verdict(new Unreachable(), 99, () => 0).waitMs, 15_000);
});
