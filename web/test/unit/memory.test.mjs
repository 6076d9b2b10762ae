// Where tails are kept: seldom written, bounded, one for each principal and session, and never a
// trouble to the page.

import { strict as assert } from "node:assert";
import { test } from "node:test";
import { emptyState, reduce } from "../../page/feed.js";
import { createLocal } from "../../page/local.js";
import { createMemory, keyOf, MEMORY_LIMITS, namesOf } from "../../page/memory.js";
import { TAIL_LIMITS } from "../../page/tail.js";
import { Life, randomOf } from "./life.mjs";

const DAY_MS = 24 * 60 * 60 * 1000;

/** A `Storage` that counts writes and can be full or broken. */
class FakeStorage {
  map = new Map();
  writes = 0;
  fails = null;
  get length() {
    return this.map.size;
  }
  key(index) {
    return [...this.map.keys()][index] ?? null;
  }
  getItem(key) {
    if (this.fails === "all") throw new Error("no");
    return this.map.get(key) ?? null;
  }
  setItem(key, value) {
    if (this.fails) throw new Error("quota");
    this.writes += 1;
    this.map.set(key, String(value));
  }
  removeItem(key) {
    if (this.fails === "all") throw new Error("no");
    this.map.delete(key);
  }
}

/** A browser: storage and clock that its tabs share. */
class Browser {
  storage = new FakeStorage();
  nowMs = 10 * DAY_MS;
  timers = [];

  tab(principal = "local") {
    const local = createLocal(this.storage);
    local.set("principal", principal);
    const memory = createMemory({
      local,
      now: () => this.nowMs,
      setTimer: (run, ms) => {
        const timer = { run, at: this.nowMs + ms };
        this.timers.push(timer);
        return timer;
      },
      clearTimer: (timer) => (this.timers = this.timers.filter((other) => other !== timer)),
    });
    memory.setPrincipal(principal);
    return memory;
  }

  pass(ms) {
    const end = this.nowMs + ms;
    for (;;) {
      const next = this.timers.filter((timer) => timer.at <= end).sort((a, b) => a.at - b.at)[0];
      if (!next) break;
      this.nowMs = next.at;
      this.timers = this.timers.filter((timer) => timer !== next);
      next.run();
    }
    this.nowMs = end;
  }

  tails() {
    return [...this.storage.map.keys()].filter((key) => key.startsWith("everturn.tail/"));
  }
}

/** A session in mid-answer, and the state of a page that has seen all of it. */
function session(words = 3) {
  const life = new Life(randomOf(7));
  life.begin();
  for (let n = 0; n < words; n += 1) life.say();
  return life;
}

const seen = (life) => life.events.reduce(reduce, { ...emptyState("s"), caughtUp: true, session: life.session });
const textOf = (turns) => turns.map((turn) => turn.rows.at(-1).text.trim());

test("it writes at most once in 250 ms, however many pieces come, and the last one is there", () => {
  const browser = new Browser();
  const memory = browser.tab();
  const life = session(1);
  const before = browser.storage.writes;
  for (let n = 0; n < 200; n += 1) {
    life.say();
    memory.observe("s", seen(life));
    browser.pass(5);
  }
  browser.pass(MEMORY_LIMITS.writeMs);
  const writes = browser.storage.writes - before;
  assert.ok(writes <= 5 && writes >= 4, `${writes} writes in a second`);
  assert.deepEqual(textOf(browser.tab().turnsOf("s")), textOf([{ rows: [{ text: seen(life).live.text }] }]));
});

test("a slow storage is written to more seldom", () => {
  const browser = new Browser();
  const memory = browser.tab();
  const set = browser.storage.setItem;
  browser.storage.setItem = function slow(key, value) {
    browser.nowMs += 100;
    set.call(this, key, value);
  };
  const life = session(1);
  memory.observe("s", seen(life));
  browser.pass(300);
  const before = browser.storage.writes;
  for (let n = 0; n < 19; n += 1) {
    life.say();
    memory.observe("s", seen(life));
    browser.pass(100);
  }
  assert.equal(browser.storage.writes, before, "not within twenty times what the last one took");
  browser.pass(200);
  assert.equal(browser.storage.writes, before + 1);
});

test("leaving the page writes at once what was seen", () => {
  const browser = new Browser();
  const memory = browser.tab();
  memory.observe("s", seen(session(4)));
  assert.deepEqual(browser.tails(), []);
  memory.flush();
  assert.deepEqual(textOf(browser.tab().turnsOf("s")), ["w1 w2 w3 w4"]);
});

test("a turn that settles is gone at that moment, and nothing is written for it later", () => {
  const browser = new Browser();
  const memory = browser.tab();
  const life = session(4);
  memory.observe("s", seen(life));
  browser.pass(300);
  assert.equal(browser.tails().length, 1);
  life.keepText();
  life.end("completed", "run.completed");
  memory.observe("s", seen(life));
  assert.deepEqual(browser.tails(), []);
  browser.pass(10_000);
  assert.deepEqual(browser.tails(), []);
  assert.equal(browser.timers.length, 0);
  // A turn that is faster than a write leaves nothing either.
  life.begin();
  life.say();
  memory.observe("s", seen(life));
  life.keepText();
  life.end("completed", "run.completed");
  memory.observe("s", seen(life));
  browser.pass(10_000);
  memory.flush();
  assert.deepEqual(browser.tails(), []);
});

test("a conversation at rest costs nothing", () => {
  const browser = new Browser();
  const memory = browser.tab();
  const life = session(1);
  life.keepText();
  life.end("completed", "run.completed");
  const before = browser.storage.writes;
  for (let n = 0; n < 10; n += 1) memory.observe("s", seen(life));
  browser.pass(10_000);
  assert.equal(browser.storage.writes, before);
  assert.equal(browser.timers.length, 0);
});

test("what was seen right before a state is read anew is not forgotten", () => {
  const browser = new Browser();
  const memory = browser.tab();
  const life = session(5);
  memory.observe("s", seen(life));
  life.events.splice(-3);
  life.run.text = "w1 w2 ";
  life.session.offset += 1_000;
  life.interrupt();
  // Either of the two may come first: a state that is still being read, or one that has caught up.
  memory.observe("s", { ...seen(life), covered: life.session.offset });
  browser.pass(300);
  const [turn] = memory.turnsOf("s");
  assert.equal(turn.lost, true);
  assert.deepEqual(textOf([turn]), ["w1 w2 w3 w4 w5"]);
  memory.observe("s", { ...seen(life), caughtUp: false });
  assert.deepEqual(textOf(browser.tab().turnsOf("s").slice(0, 1)), ["w1 w2 w3 w4 w5"]);
});

test("two tabs with one conversation: the one that has seen less takes nothing from the other", () => {
  const browser = new Browser();
  const [one, two] = [browser.tab(), browser.tab()];
  const life = session(2);
  const early = seen(life);
  for (let n = 0; n < 4; n += 1) life.say();
  one.observe("s", seen(life));
  one.flush();
  two.observe("s", early);
  two.flush();
  assert.deepEqual(textOf(browser.tab().turnsOf("s")), ["w1 w2 w3 w4 w5 w6"]);
  // Nor when a tool was called meanwhile, and the tab has not heard of it.
  life.callTool();
  life.say();
  one.observe("s", seen(life));
  one.flush();
  two.observe("s", early);
  two.flush();
  const [turn] = browser.tab().turnsOf("s");
  assert.deepEqual(turn.rows.map((row) => row.text.trim()), ["the same question", "w1 w2 w3 w4 w5 w6", "w7"]);
  // A turn that ended is not brought back by a tab that still shows it under way: it is dropped again.
  const late = seen(life);
  life.keepText();
  life.end("completed", "run.completed");
  one.observe("s", seen(life));
  assert.deepEqual(browser.tails(), []);
  two.observe("s", late);
  two.flush();
  two.observe("s", seen(life));
  assert.deepEqual(browser.tails(), []);
});

test("a tab that lags behind does not clear the turn that another one watches", () => {
  const browser = new Browser();
  const [one, two] = [browser.tab(), browser.tab()];
  const life = session(2);
  two.observe("s", seen(life));
  two.flush();
  life.keepText();
  life.end("completed", "run.completed");
  const atRest = seen(life);
  life.begin();
  life.say();
  one.observe("s", seen(life));
  one.flush();
  two.observe("s", atRest);
  two.flush();
  assert.deepEqual(browser.tab().turnsOf("s").map((turn) => turn.run), ["run_2"]);
});

test("tabs with different conversations have nothing in common", () => {
  const browser = new Browser();
  const [one, two] = [browser.tab(), browser.tab()];
  one.observe("a", seen(session(2)));
  two.observe("b", seen(session(3)));
  one.flush();
  two.flush();
  one.forget("a");
  assert.deepEqual(browser.tails(), ["everturn.tail/local/b"]);
});

test("no principal sees or keeps anything of another, and none is written for after a log-out", () => {
  const browser = new Browser();
  const ann = browser.tab("ann");
  ann.observe("s", seen(session(2)));
  ann.flush();
  const bob = browser.tab("bob");
  assert.deepEqual(bob.turnsOf("s"), []);
  bob.observe("s", seen(session(3)));
  bob.flush();
  assert.deepEqual(browser.tails().sort(), ["everturn.tail/ann/s", "everturn.tail/bob/s"]);
  // Bob's log-in was in another tab: what Ann's tab still holds is not written any more.
  const before = browser.storage.map.get("everturn.tail/ann/s");
  ann.observe("s", seen(session(9)));
  ann.flush();
  assert.equal(browser.storage.map.get("everturn.tail/ann/s"), before);
  // A log-out clears the storage, and the page is left afterwards.
  bob.observe("s", seen(session(9)));
  bob.setPrincipal(null);
  browser.storage.map.clear();
  bob.flush();
  browser.pass(10_000);
  bob.observe("s", seen(session(9)));
  bob.flush();
  assert.deepEqual(browser.tails(), []);
  assert.deepEqual(bob.turnsOf("s"), []);
});

test("names of principals and sessions cannot be taken for one another", () => {
  for (const [principal, id] of [["a/b", "c"], ["a", "b/c"], ["a%2Fb", "c"], ["ä.", "ses_1.2"]]) {
    assert.deepEqual(namesOf(keyOf(principal, id)), { principal, sessionId: id });
  }
  assert.notEqual(keyOf("a/b", "c"), keyOf("a", "b/c"));
  for (const key of ["tail/", "tail/a", "tail/a/b/c", "tail/%/a", "outbox.1"]) assert.equal(namesOf(key), null);
  assert.equal(keyOf("x".repeat(600), "s"), null);
  const browser = new Browser();
  const memory = browser.tab("x".repeat(600));
  memory.observe("s", seen(session()));
  memory.flush();
  assert.deepEqual(browser.tails(), []);
});

test("24 entries and no more: the oldest goes", () => {
  const browser = new Browser();
  const memory = browser.tab();
  for (let n = 0; n < MEMORY_LIMITS.entries + 3; n += 1) {
    memory.observe(`s${n}`, seen(session(2)));
    memory.flush();
    browser.pass(1_000);
  }
  assert.equal(browser.tails().length, MEMORY_LIMITS.entries);
  assert.ok(!browser.tails().includes("everturn.tail/local/s2"));
  assert.ok(browser.tails().includes("everturn.tail/local/s3"));
});

test("all entries together stay within a million characters", () => {
  const browser = new Browser();
  const memory = browser.tab();
  for (let n = 0; n < 20; n += 1) {
    const life = session(1);
    life.emit("text.delta", { text: "x".repeat(TAIL_LIMITS.text) }, life.run);
    life.callTool();
    life.emit("text.delta", { text: "y".repeat(60_000) }, life.run);
    memory.observe(`s${n}`, seen(life));
    memory.flush();
    browser.pass(1_000);
  }
  const sizes = browser.tails().map((key) => browser.storage.map.get(key).length);
  assert.ok(sizes.length >= 6, `${sizes.length} entries`);
  assert.ok(sizes.every((size) => size <= TAIL_LIMITS.entry));
  assert.ok(sizes.reduce((a, b) => a + b) <= MEMORY_LIMITS.all);
});

test("after seven days an entry is gone, as soon as a page is opened", () => {
  const browser = new Browser();
  const memory = browser.tab();
  memory.observe("s", seen(session(2)));
  memory.flush();
  browser.pass(7 * DAY_MS - 1);
  assert.equal(browser.tab().turnsOf("s").length, 1);
  browser.pass(1);
  assert.deepEqual(browser.tab().turnsOf("s"), []);
  assert.deepEqual(browser.tails(), []);
});

test("what is no entry is thrown away, and what is not ours stays", () => {
  const browser = new Browser();
  browser.tab().setPrincipal(null);
  const { map } = browser.storage;
  map.set("everturn.tail/local/s", "{broken");
  map.set("everturn.tail/what is this", "x");
  map.set("everturn.tail/local/t", "x".repeat(TAIL_LIMITS.entry + 1));
  map.set("everturn.draft.s", "half a thought");
  map.set("somebody.else", "theirs");
  const memory = browser.tab();
  assert.deepEqual(memory.turnsOf("s"), []);
  assert.deepEqual([...map.keys()].sort(), ["everturn.draft.s", "everturn.principal", "somebody.else"]);
  map.set("everturn.tail/local/s", "[]");
  assert.deepEqual(browser.tab().turnsOf("s"), []);
  memory.observe("s", seen(session(2)));
  map.set("everturn.tail/local/s", "{broken again");
  memory.flush();
  assert.deepEqual(textOf(browser.tab().turnsOf("s")), ["w1 w2"]);
});

test("a full storage costs the new words and nothing else; a broken or missing one nothing at all", () => {
  const browser = new Browser();
  const memory = browser.tab();
  memory.observe("s", seen(session(2)));
  memory.flush();
  browser.storage.fails = "full";
  memory.observe("s", seen(session(6)));
  memory.flush();
  assert.deepEqual(textOf(memory.turnsOf("s")), ["w1 w2 w3 w4 w5 w6"], "this page still knows");
  assert.deepEqual(textOf(browser.tab().turnsOf("s")), ["w1 w2"], "the older words stay");
  browser.storage.fails = null;
  memory.observe("s", seen(session(7)));
  memory.flush();
  assert.deepEqual(textOf(browser.tab().turnsOf("s")), ["w1 w2 w3 w4 w5 w6 w7"]);
  browser.storage.fails = "all";
  memory.observe("s", seen(session(8)));
  memory.flush();
  memory.forget("s");
  const none = createMemory({ local: createLocal(null) });
  none.setPrincipal("local");
  none.observe("s", seen(session(2)));
  none.flush();
  assert.deepEqual(none.turnsOf("other"), []);
});

test("what one wrote is set aside for the next one who logs in, and comes back", () => {
  const storage = new FakeStorage();
  const local = createLocal(storage);
  local.set("outbox.r1", "mine");
  local.set("draft.ses.1", "half");
  local.set("noticeSeen", "x");
  local.setAside("ann");
  assert.deepEqual(local.keys("outbox."), []);
  assert.deepEqual(local.keys("draft."), []);
  local.set("draft.ses.1", "bob's");
  local.setAside("bob");
  local.bringBack("ann");
  assert.equal(local.get("outbox.r1"), "mine");
  assert.equal(local.get("draft.ses.1"), "half");
  local.setAside("ann");
  local.bringBack("bob");
  assert.equal(local.get("outbox.r1"), null);
  assert.equal(local.get("draft.ses.1"), "bob's");
  assert.equal(local.get("noticeSeen"), "x");
});

test("random tabs over one conversation: what any of them saw is found by the next page, once", () => {
  const seed = Number(process.env.EVERTURN_SEED ?? Math.floor(Math.random() * 2 ** 31));
  process.stdout.write(`# EVERTURN_SEED=${seed}\n`);
  const random = randomOf(seed);
  for (let n = 0; n < 60; n += 1) {
    const browser = new Browser();
    const life = session(0);
    const tabs = Array.from({ length: 3 }, () => ({ memory: browser.tab(), state: seen(life) }));
    let most = 0;
    for (let step = 0; step < 60; step += 1) {
      if (random() < 0.1) life.callTool();
      else life.say();
      const at = Math.floor(random() * tabs.length);
      const tab = tabs[at];
      if (random() < 0.6) tab.state = seen(life);
      tab.memory.observe("s", tab.state);
      const words = life.words;
      if (random() < 0.3) {
        tab.memory.flush();
        if (tab.state.offset === life.session.offset) most = words;
      }
      browser.pass(Math.floor(random() * 200));
      if (random() < 0.1) tabs[at] = { memory: browser.tab(), state: tab.state };
      const [turn] = browser.tab().turnsOf("s");
      const said = (turn?.rows ?? []).map((row) => row.text).join("").match(/w\d+/g) ?? [];
      const what = `EVERTURN_SEED=${seed} round ${n} step ${step}`;
      assert.equal(new Set(said).size, said.length, what);
      // Of very long turns the oldest rows are left out.
      if (turn && turn.rows.length < TAIL_LIMITS.rows) assert.ok(said.length >= most, `${what}: ${said.length} of ${most}`);
    }
  }
});
