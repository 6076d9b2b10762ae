// Tails laid over what the server tells: never doubled, never shorter than either, in order (P7, P8),
// whatever each of the two has seen.

import { strict as assert } from "node:assert";
import { test } from "node:test";
import { emptyState, fromSnapshot, reduce } from "../../page/feed.js";
import { itemsOf } from "../../page/items.js";
import { capture, fold, preview, relation, standing, TAIL_LIMITS, tailOf } from "../../page/tail.js";
import { parseEntry, writeEntry } from "../../page/tail-entry.js";
import { Life, randomOf } from "./life.mjs";

const SEED = Number(process.env.EVERTURN_SEED ?? Math.floor(Math.random() * 2 ** 31));
const LIVES = process.env.EVERTURN_LONG ? 2_000 : 100;
process.stdout.write(`# EVERTURN_SEED=${SEED}\n`);

const shown = (state) => itemsOf(state).filter((item) => item.type === "assistant");
const wordsOf = (state) => shown(state).flatMap((item) => item.text.match(/w\d+/g) ?? []);
const wordsOfRun = (state, run) => state.messages.filter((row) => row.run_id === run && row.role === "assistant")
  .map((row) => row.text).concat(state.live?.runId === run ? [state.live.text] : []).join("").match(/w\d+/g) ?? [];
const numbers = (words) => words.map((word) => Number(word.slice(1)));
const caughtUp = (state) => reduce(state, { event: "caught_up" });
const follow = (state, life) => life.events.filter((event) => event.offset > state.offset).reduce(reduce, state);
const whole = (life, options) => caughtUp(follow(fromSnapshot(life.snapshot(options)), life));

function checkView(folded, server, turns, what) {
  const words = wordsOf(folded);
  assert.equal(new Set(words).size, words.length, `${what}: doubled: ${words}`);
  // Words are numbered as they were said: within a conversation they only ever grow.
  assert.deepEqual(numbers(words), numbers(words).toSorted((a, b) => a - b), `${what}: order`);
  const missing = wordsOf(server).filter((word) => !words.includes(word));
  assert.deepEqual(missing, [], `${what}: shorter than the server's`);
  const keys = itemsOf(folded).map((item) => item.key);
  assert.equal(new Set(keys).size, keys.length, `${what}: keys ${keys}`);
  for (const turn of turns) {
    const how = standing(server, turn);
    if (how === "settled" || how === "stale") continue;
    const ours = turn.rows.filter((row) => row.role === "assistant").flatMap((row) => row.text.match(/w\d+/g) ?? []);
    assert.deepEqual(ours.filter((word) => !words.includes(word)), [], `${what}: shorter than what was kept, ${how}`);
  }
}

test("random lives: whatever a browser kept and whatever the server has, the view is right", () => {
  let folds = 0;
  let losses = 0;
  for (let n = 0; n < LIVES; n += 1) {
    const random = randomOf(SEED + n);
    const life = new Life(random);
    let page = { ...emptyState("ses_life"), caughtUp: true, session: life.session };
    let turns = [];
    const steps = 20 + Math.floor(random() * 60);
    for (let step = 0; step < steps; step += 1) {
      life.step();
      const what = `EVERTURN_SEED=${SEED} life ${n} step ${step}`;
      const dice = random();
      if (dice < 0.5) {
        page = follow(page, life);
        if (random() < 0.5) turns = capture(page, turns);
      } else if (dice < 0.6) {
        // A page of its own that was opened now, at every moment of what the feed repeats.
        let state = fromSnapshot(life.snapshot(random() < 0.3 ? { rows: 1 + Math.floor(random() * 4) } : {}));
        for (const event of life.events.filter((each) => each.offset > state.offset)) {
          const before = fold(state, turns);
          const words = wordsOf(before);
          assert.equal(new Set(words).size, words.length, `${what}: doubled while reading`);
          for (const word of wordsOf(state)) assert.ok(words.includes(word), `${what}: ${word} hidden while reading`);
          state = reduce(state, event);
        }
      } else if (dice < 0.66 && life.run) {
        const lost = life.losePower();
        const known = follow(page, life);
        // The cursor is in what was lost, or behind it: either way the page reads anew.
        turns = capture(page, turns);
        page = whole(life);
        if (lost) losses += 1;
        assert.ok(known);
      }
      const server = whole(life);
      const folded = fold(server, turns);
      folds += 1;
      checkView(folded, server, turns, what);
      assert.deepEqual(fold(folded, turns), folded, `${what}: folded twice`);
      // What is kept for the next page is as good as what was folded here.
      const again = capture(server, turns);
      const isOver = again.filter((turn) => turn.lost).length === TAIL_LIMITS.lostTurns;
      checkView(fold(server, again), server, isOver ? turns.filter((turn) => again.some((other) => other.run === turn.run)) : turns, `${what}: kept again`);
      if (turns.length > 0) {
        const text = writeEntry({ principal: "local", sessionId: "ses_life", at: 1_000, turns });
        const read = parseEntry(text, { principal: "local", sessionId: "ses_life", now: 2_000 });
        assert.deepEqual(read.turns, JSON.parse(JSON.stringify(turns)), what);
      }
    }
    while (life.run) life.step();
    const atEnd = capture(whole(life), turns);
    assert.ok(atEnd.every((turn) => turn.lost), "only what the server lost is kept when all is settled");
  }
  assert.ok(folds > LIVES * 15, `${folds} folds`);
  assert.ok(losses > LIVES / 20, `only ${losses} losses of text`);
});

test("random cuts of one answer: the server has any part of it, the browser any other", () => {
  const random = randomOf(SEED);
  for (let n = 0; n < LIVES; n += 1) {
    const life = new Life(random);
    life.begin();
    const states = [];
    let page = { ...emptyState("ses_life"), caughtUp: true, session: life.session };
    for (let step = 0; step < 25; step += 1) {
      if (random() < 0.12) life.callTool();
      else life.say();
      page = follow(page, life);
      states.push(page);
    }
    const ours = states[Math.floor(random() * states.length)];
    const theirs = states[Math.floor(random() * states.length)];
    const tail = tailOf(ours);
    const view = fold(theirs, [tail]);
    const what = `EVERTURN_SEED=${SEED} cut ${n}`;
    // Rows are synced; of text that is no row yet the longer one is shown.
    const most = Math.max(wordsOf(theirs).length, theirs.messages.length >= ours.messages.length ? wordsOf(ours).length : 0);
    assert.ok(wordsOf(view).length >= most, what);
    checkView(view, theirs, [], what);
    // The rest of the feed lands on the server's state, and the view has it once.
    let state = theirs;
    for (const event of life.events.filter((each) => each.offset > theirs.offset)) {
      state = reduce(state, event);
      checkView(fold(state, [tail]), state, [], what);
    }
    assert.deepEqual(wordsOf(fold(state, [tail])), wordsOf(state), what);
    assert.deepEqual(shown(fold(state, [tail])).filter((item) => item.kept), [], what);
  }
});

// ---- One by one ----------------------------------------------------------------------------------

/** A turn in mid-answer: a tool was called, and `text` was said since. */
function underWay(words = 5) {
  const life = new Life(randomOf(1));
  life.begin();
  life.say();
  life.callTool();
  for (let n = 0; n < words; n += 1) life.say();
  return life;
}

const keptTexts = (state) => shown(state).filter((item) => item.kept).map((item) => item.text.trim());

test("nothing is kept before the turn says something, nor of a conversation at rest", () => {
  const life = new Life(randomOf(1));
  assert.equal(tailOf(whole(life)), null);
  life.begin();
  assert.equal(tailOf(whole(life)), null);
  life.say();
  assert.equal(tailOf(whole(life)).rows.length, 2);
  life.keepText();
  life.end("completed", "run.completed");
  assert.equal(tailOf(whole(life)), null);
});

test("a tail that the server has settled meanwhile is dropped, however long it is", () => {
  for (const [state, event] of [["completed", "run.completed"], ["failed", "run.failed"], ["cancelled-by-user", "run.cancelled"]]) {
    const life = underWay();
    const tail = tailOf(whole(life));
    tail.rows.at(-1).text += "and something that is nowhere else";
    life.keepText();
    life.end(state, event, { error: { code: "x", message: "y" } });
    const server = whole(life);
    assert.equal(fold(server, [tail]), server, state);
    assert.deepEqual(capture(server, [tail]), [], state);
  }
});

test("a tail of a turn older than what the server has settled is dropped, even if it never heard of it", () => {
  const life = underWay();
  const tail = { ...tailOf(whole(life)), run: "run_other" };
  const server = whole(life);
  assert.equal(standing(server, tail), "stale");
  assert.equal(fold(server, [tail]), server);
  assert.deepEqual(capture(server, [tail]).map((turn) => turn.run), ["run_1"]);
});

test("what a power loss took is shown on the server's row, which keeps its id and its place above the mark", () => {
  const life = underWay(6);
  const tail = tailOf(whole(life));
  life.events.splice(-4);
  life.run.text = "w2 w3 ";
  life.session.offset += 1_000;
  life.interrupt();
  const server = whole(life);
  const view = fold(server, [tail]);
  assert.deepEqual(keptTexts(view), ["w2 w3 w4 w5 w6 w7"]);
  const recovered = server.messages.find((row) => row.recovered);
  assert.deepEqual(view.messages.map((row) => row.id), server.messages.map((row) => row.id));
  assert.equal(view.messages.find((row) => row.kept).id, recovered.id);
  const [kept] = capture(server, [tail]);
  assert.equal(kept.lost, true);
  // It outlives the continuation, whose answer is one of its own.
  if (!life.run) life.begin("continuation");
  life.say();
  const later = whole(life);
  const turns = capture(later, [kept]);
  assert.deepEqual(turns.map((turn) => [turn.run, turn.lost]), [["run_1", true], ["run_2", false]]);
  assert.deepEqual(shown(fold(later, turns)).map((item) => item.text.trim()), ["w1", "w2 w3 w4 w5 w6 w7", "w8"]);
  life.keepText();
  life.end("completed", "run.completed");
  assert.deepEqual(capture(whole(life), turns).map((turn) => turn.run), ["run_1"]);
});

test("where the server has nothing of the text, a row of its own stands above the mark", () => {
  const life = underWay(3);
  const tail = tailOf(whole(life));
  life.events.splice(-3);
  life.run.text = "";
  life.session.offset += 1_000;
  life.interrupt();
  const view = fold(whole(life), [tail]);
  const order = itemsOf(view).slice(0, 4).map((item) => [item.type, item.variant ?? item.text.trim()]);
  assert.deepEqual(order, [["user", "the same question"], ["assistant", "w1"], ["assistant", "w2 w3 w4"], ["event", "interruption"]]);
  assert.deepEqual(keptTexts(view), ["w2 w3 w4"]);
});

test("the row of a finished step is whole, whatever the browser believes", () => {
  const life = underWay(3);
  const tail = tailOf(whole(life));
  tail.rows.at(-1).text += "and something that is nowhere else";
  life.callTool();
  const server = whole(life);
  assert.equal(fold(server, [tail]), server);
});

test("a text that the server read back as several rows is not shown once more", () => {
  const life = underWay(4);
  const tail = tailOf(whole(life));
  life.run.text = "w2 w3 ";
  life.keepText({ recovered: true });
  life.run.text = "w4 w5 ";
  life.interrupt();
  const server = whole(life);
  assert.equal(fold(server, [tail]), server);
});

test("while rows in between are not read yet, a text is not placed behind the wrong one", () => {
  const life = underWay(3);
  life.callTool();
  life.say();
  const tail = tailOf(whole(life));
  life.events.pop();
  life.run.text = "";
  life.session.offset += 1_000;
  life.say();
  life.interrupt();
  const all = whole(life);
  // Of the turn the first row and the last are here.
  const hole = { ...all, hasMore: true, messages: all.messages.filter((row) => row.id <= 2 || row.recovered || row.kind === "interruption") };
  assert.equal(fold(hole, [tail]), hole);
});

test("an interruption without a power loss keeps nothing: the server has all of it", () => {
  const life = underWay();
  const tail = tailOf(whole(life));
  life.interrupt();
  const server = whole(life);
  assert.equal(fold(server, [tail]), server);
  assert.deepEqual(capture(server, [tail]).filter((turn) => turn.run === "run_1"), []);
});

test("two answers that only share their place are never joined", () => {
  const life = underWay(4);
  const tail = tailOf(whole(life));
  life.run.text = "quite another answer";
  life.events.splice(-4);
  life.session.offset += 1_000;
  life.interrupt();
  const view = fold(whole(life), [tail]);
  assert.deepEqual(shown(view).slice(0, 3).map((item) => [item.text.trim(), item.kept]), [["w1", false], ["quite another answer", false], ["w2 w3 w4 w5", true]]);
  assert.deepEqual(fold(view, [tail]), view);
  const running = underWay(0);
  running.run.text = "";
  running.emit("text.delta", { text: "quite another answer" }, running.run);
  const live = fold(whole(running), [tail]);
  assert.deepEqual(shown(live).map((item) => item.text.trim()), ["w1", "w2 w3 w4 w5", "quite another answer"]);
});

test("a live text that is behind takes the kept words and goes on without a double", () => {
  const life = underWay(6);
  const tail = tailOf(whole(life));
  const events = life.events.slice(-4);
  let state = life.events.slice(0, -4).reduce(reduce, { ...emptyState("ses_life"), caughtUp: true, session: life.session });
  assert.equal(state.live.text, "w2 w3 ");
  for (const event of events) {
    const view = fold(state, [tail]);
    assert.equal(view.live.text, "w2 w3 w4 w5 w6 w7 ");
    assert.equal(view.live.piece, state.live.piece);
    assert.equal(itemsOf(view).at(-1).key, `piece:run_1:${state.live.piece}`);
    state = reduce(state, event);
  }
  assert.equal(fold(state, [tail]), state);
});

test("what the browser saw of tools is laid over a projection that has only text", () => {
  const state = { ...emptyState("s"), caughtUp: true, session: { id: "s", generation: 1, running: { run_id: "r", generation: 1 } } };
  const call = { id: "c1", name: "shell", effect: "read", arguments: { command: "ls" }, state: "running" };
  const events = [
    { event: "run.started", offset: 1, run_id: "r", generation: 1 },
    { event: "text.delta", offset: 2, run_id: "r", text: "Let me " },
    { event: "text.delta", offset: 3, run_id: "r", text: "look." },
  ];
  const rich = [...events.slice(0, 2), { event: "tool.intended", offset: 3, run_id: "r", call }, { event: "tool.output", offset: 4, run_id: "r", call_id: "c1", text: "a\nb\n" }];
  const tail = tailOf(rich.reduce(reduce, state));
  const server = events.reduce(reduce, state);
  const view = fold(server, [tail]);
  const [item] = shown(view);
  assert.equal(item.text, "Let me look.", "the longer text is the server's");
  assert.deepEqual(item.calls.map((each) => [each.id, each.name, each.output, each.state]), [["c1", "shell", "a\nb\n", "running"]]);
  // A call that the server knows stays where the server has it; its progress is taken.
  const told = reduce(server, { event: "tool.intended", offset: 4, run_id: "r", call: { ...call, state: "intended" } });
  const both = fold(told, [tail]);
  assert.equal(shown(both).length, 1);
  assert.deepEqual(shown(both)[0].calls.map((each) => [each.id, each.output]), [["c1", "a\nb\n"]]);
  // When nobody works on it any more, nobody knows how it ended.
  const dead = reduce(server, { event: "message.added", offset: 5, message: { id: 1, position: "1", role: "assistant", text: "Let me look.", recovered: true, run_id: "r", generation: 1 } });
  const ended = reduce(dead, { event: "run.interrupted", offset: 6, run_id: "r", cause: "unknown", evidence: {} });
  assert.deepEqual(shown(fold(ended, [tail]))[0].calls.map((each) => each.state), ["unknown"]);
});

test("the request is never shown twice: by row, by input, or while it waits", () => {
  const life = underWay();
  const tail = tailOf(whole(life));
  assert.equal(itemsOf(fold(whole(life), [tail])).filter((item) => item.text === "the same question").length, 1);
  // The server of an older backup: the input stands there under another row, or waits again.
  const older = { ...emptyState("ses_life"), caughtUp: true, session: { id: "ses_life", generation: 0 } };
  const row = { id: 77, position: "1", role: "user", text: "the same question", input_id: "inp_1" };
  for (const state of [{ ...older, messages: [row] }, { ...older, inputs: { inp_1: { input_id: "inp_1", kind: "message", status: "queued", text: "the same question" } } }]) {
    const view = fold(state, [tail]);
    assert.equal(itemsOf(view).filter((item) => item.text === "the same question").length, 1);
    assert.deepEqual(keptTexts(view), ["w1", "w2 w3 w4 w5 w6"]);
    assert.deepEqual(fold(view, [tail]), view);
  }
  // The same words as another input are another request.
  const other = fold({ ...older, messages: [{ ...row, input_id: "inp_x" }] }, [tail]);
  assert.equal(itemsOf(other).filter((item) => item.text === "the same question").length, 2);
});

test("a turn above what is loaded is left alone, and kept if it was lost", () => {
  const life = underWay(6);
  const tail = tailOf(whole(life));
  life.losePower();
  while (life.run) life.step();
  for (let n = 0; n < 3; n += 1) {
    life.begin();
    life.say();
    life.keepText();
    life.end("completed", "run.completed");
  }
  const server = whole(life, { rows: 2 });
  assert.equal(fold(server, [{ ...tail, lost: true }]), server);
  assert.deepEqual(capture(server, [{ ...tail, lost: true }]).map((turn) => turn.run), ["run_1"]);
});

test("before the server answers, the request and what was said are there, under the keys that come later", () => {
  const life = underWay(3);
  const state = whole(life);
  const items = itemsOf(preview("ses_life", [tailOf(state)]));
  assert.deepEqual(items.map((item) => [item.type, item.text.trim(), item.kept, item.live ?? null]), [
    ["user", "the same question", false, null], ["assistant", "w1", false, false], ["assistant", "w2 w3 w4", false, false],
  ]);
  assert.equal(items[0].key, "row:1");
  assert.equal(items.at(-1).key, itemsOf(state).at(-1).key);
  assert.equal(items[1].calls[0].result, "result of call_2");
  assert.deepEqual(itemsOf(preview("ses_life", [])), []);
});

test("nothing is shown as at work while the server cannot be reached", () => {
  const state = { ...emptyState("s"), caughtUp: true, session: { id: "s", generation: 1, running: { run_id: "r", generation: 1 } } };
  const call = { id: "c1", name: "shell", arguments: {}, state: "running" };
  const tail = tailOf([{ event: "run.started", offset: 1, run_id: "r", generation: 1 }, { event: "tool.intended", offset: 2, run_id: "r", call }].reduce(reduce, state));
  assert.equal(itemsOf(preview("s", [tail], true))[0].calls[0].state, "unknown");
  assert.equal(itemsOf(preview("s", [tail], false))[0].calls[0].state, "running");
});

test("relation: space at the end is no difference", () => {
  assert.equal(relation("abc", "ab"), "ahead");
  assert.equal(relation("abc", "abc \n"), "ahead");
  assert.equal(relation("abc ", "abcd"), "apart");
  assert.equal(relation("abc", "abc d"), "behind");
  assert.equal(relation("", "x"), "behind");
  assert.equal(relation("abc", "abx"), "apart");
});

// ---- As stored -----------------------------------------------------------------------------------

const who = { principal: "local", sessionId: "ses_life" };
const entryOf = (turns, at = 1_000) => writeEntry({ ...who, at, turns });
const readBack = (text, now = 2_000) => parseEntry(text, { ...who, now });

test("each part is cut at its limit, and an entry to its whole", () => {
  const life = underWay(1);
  life.emit("text.delta", { text: "x".repeat(TAIL_LIMITS.text + 10) }, life.run);
  life.emit("reasoning.delta", { text: "y".repeat(TAIL_LIMITS.reasoning + 10) }, life.run);
  const state = whole(life);
  state.calls.call_2 = { ...state.calls.call_2, arguments: { command: "z".repeat(9_000) }, result: "q".repeat(9_000) };
  state.outputs.call_2 = `${"o".repeat(9_000)}end`;
  state.messages[0] = { ...state.messages[0], text: "p".repeat(TAIL_LIMITS.request + 5) };
  const tail = tailOf(state);
  const live = tail.rows.at(-1);
  assert.equal(live.text.length, TAIL_LIMITS.text);
  assert.equal(live.cut, true);
  assert.equal(live.reasoning.length, TAIL_LIMITS.reasoning);
  assert.equal(tail.rows[0].text.length, TAIL_LIMITS.request);
  const [call] = tail.rows[1].calls;
  assert.equal(call.arguments.length, TAIL_LIMITS.arguments + 1);
  assert.equal(call.result.length, TAIL_LIMITS.output);
  assert.ok(call.output.endsWith("end") && call.output.length === TAIL_LIMITS.output);
  assert.deepEqual(readBack(entryOf([tail])).turns, [tail]);
  assert.equal(fold(state, [tail]), state, "what was cut is no shorter answer");

  const big = { ...tail, rows: [tail.rows[0], ...Array.from({ length: 5 }, (_, n) => ({ ...tail.rows[1], id: 100 + n, text: "b".repeat(40_000) })), live] };
  const text = entryOf([{ ...tail, run: "run_0", lost: true }, big]);
  assert.ok(text.length <= TAIL_LIMITS.entry);
  const [kept] = readBack(text).turns;
  assert.equal(kept.run, tail.run);
  assert.deepEqual([kept.rows[0], kept.rows.at(-1)], [big.rows[0], live], "the request and the newest answer stay");
});

test("of many rows the first and the newest are kept", () => {
  const life = underWay(1);
  for (let n = 0; n < 40; n += 1) {
    life.say();
    life.callTool();
  }
  life.say();
  const tail = tailOf(whole(life));
  assert.equal(tail.rows.length, TAIL_LIMITS.rows);
  assert.equal(tail.rows[0].role, "user");
  assert.equal(tail.rows.at(-1).id, null);
  checkView(fold(whole(life), [tail]), whole(life), [tail], "many rows");
  life.events.pop();
  life.run.text = "";
  life.session.offset += 1_000;
  life.interrupt();
  assert.equal(keptTexts(fold(whole(life), [tail])).length, 1, "still placed behind the row that it follows");
});

test("a character of two halves is not cut in two", () => {
  const life = new Life(randomOf(1));
  life.begin();
  life.emit("text.delta", { text: `x${"🐙".repeat(TAIL_LIMITS.text / 2)}` }, life.run);
  const { text } = tailOf(whole(life)).rows.at(-1);
  assert.ok(text.isWellFormed());
  assert.equal(text.length, TAIL_LIMITS.text - 1);
});

test("whatever is not an entry of this principal and session is none", () => {
  const good = entryOf([tailOf(whole(underWay()))]);
  assert.ok(readBack(good));
  const day = 24 * 60 * 60 * 1000;
  assert.equal(readBack(good, 1_000 + 7 * day), null, "seven days");
  assert.ok(readBack(good, 999 + 7 * day));
  assert.equal(readBack(good, 1_000 - day), null, "from the future");
  for (const other of [{ ...who, principal: "somebody" }, { ...who, sessionId: "ses_other" }]) {
    assert.equal(parseEntry(good, { ...other, now: 2_000 }), null);
  }
  const change = (edit) => {
    const entry = JSON.parse(good);
    edit(entry);
    return JSON.stringify(entry);
  };
  const bad = [
    null, undefined, "", "{", "null", "[]", "7", "\u0000", good.slice(0, -1), `${good}${" ".repeat(TAIL_LIMITS.entry)}`,
    change((entry) => (entry.v = 2)), change((entry) => (entry.at = "now")), change((entry) => (entry.at = null)),
    change((entry) => (entry.turns = [])), change((entry) => (entry.turns = {})), change((entry) => (entry.turns = Array(5).fill(entry.turns[0]))),
    change((entry) => (entry.turns[0].run = 7)), change((entry) => (entry.turns[0].generation = "1")), change((entry) => (entry.turns[0].rows = null)),
    change((entry) => (entry.turns[0].rows[1].text = {})), change((entry) => (entry.turns[0].rows[1].calls = [null])),
    change((entry) => (entry.turns[0].rows[1].id = null)), change((entry) => (entry.turns[0].rows[1].id = { toString: 1 })),
    change((entry) => (entry.turns[0].rows[1].role = "system")), change((entry) => (entry.turns[0].rows[1].calls[0].output = 5)),
    change((entry) => (entry.turns[0].rows = Array(25).fill(entry.turns[0].rows[0]))),
  ];
  for (const text of bad) assert.equal(readBack(text), null, String(text).slice(0, 80));
  const more = readBack(change((entry) => (entry.turns[0].rows[1].onclick = "x")));
  assert.equal("onclick" in more.turns[0].rows[1], false, "only known fields come through");
});

test("random damage to an entry never throws, and whatever is still read can be folded and shown", () => {
  const random = randomOf(SEED);
  const state = whole(underWay());
  const good = entryOf([tailOf(state)]);
  let read = 0;
  for (let n = 0; n < LIVES * 25; n += 1) {
    const at = Math.floor(random() * good.length);
    const part = random() < 0.5 ? String.fromCharCode(32 + Math.floor(random() * 95)) : good.slice(at + 1, at + 1 + Math.floor(random() * 20));
    const entry = readBack(good.slice(0, at) + part + good.slice(at + 1 + Math.floor(random() * 3)));
    if (!entry) continue;
    read += 1;
    itemsOf(fold(state, entry.turns));
    itemsOf(preview("ses_life", entry.turns));
    capture(state, entry.turns);
  }
  assert.ok(read > 0, `EVERTURN_SEED=${SEED}: every damage was noticed, so nothing was tried`);
});
