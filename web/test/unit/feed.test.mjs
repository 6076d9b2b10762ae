// The state of the page against a whole story, seen from every place in it (promises P7 and P8:
// never a gap, never a double).

import { strict as assert } from "node:assert";
import { test } from "node:test";
import { emptyState, fromSnapshot, openPrompts, OUTPUT_CHARS_MAX, reduce, runningTurn, withOlder, withPrompts, withReceipt } from "../../page/feed.js";
import { itemsOf } from "../../page/items.js";
import { readAt, tellStory } from "./story.mjs";

const story = tellStory();

/** The state of a page that was open from the beginning and has seen everything up to `offset`. */
function watched(offset) {
  const begin = { ...emptyState(story.id), session: story.at(1).session, caughtUp: true };
  return story.events.slice(0, offset).reduce(reduce, begin);
}

/** What a reader sees: keys and the order of fields apart. */
function seen(state) {
  return itemsOf(state).map(({ key: _key, reason: _reason, ...item }) => item);
}

function sameView(early, offset, what) {
  const state = reduce(early, { event: "caught_up" });
  const whole = watched(offset);
  // What a person took back is remembered only by a page that saw it happen.
  const withoutCancelled = (items) => items.filter((item) => item.variant !== "cancelled" || item.type !== "pending");
  // Live output of a call is not in the transcript until the call has ended; and the transcript
  // does not tell that a call waits for an answer: the open prompts do.
  assert.deepEqual(normal(withoutCancelled(seen(state))), normal(withoutCancelled(seen(whole))), what);
  assert.deepEqual({ ...state.session, offset: 0 }, { ...whole.session, offset: 0 }, what);
  assert.deepEqual(openPrompts(state).map((p) => p.id), openPrompts(whole).map((p) => p.id), what);
  assert.deepEqual(runningTurn(state)?.run_id, runningTurn(whole)?.run_id, what);
}

function normal(items) {
  return items.map((item) => ({
    ...item,
    // Told by a page that saw the event; the list of turns says the same in its own words.
    ...(item.calls && { calls: item.calls.map(({ output: _output, ...call }) => call) }),
  }));
}

/** Moments between two transactions: where a read can fall. */
const moments = [];
for (let offset = 1; offset <= story.latest; offset += 1) {
  const next = story.events[offset];
  // These follow the event before them in the same transaction.
  const inside = next && ["session.updated", "run.started", "tool.intended", "tool.finished", "usage"].includes(next.event);
  const startsTurn = story.events[offset - 1].event === "turn.started" || story.events[offset - 1].event === "message.added";
  if (!inside && !startsTurn) moments.push(offset);
}

test("a page that loads at any moment sees what one sees that was there all along", () => {
  for (const offset of moments) {
    const state = fromSnapshot(readAt(story, { session: offset, messages: offset, inputs: offset, prompts: offset, runs: offset }));
    const followed = story.events.slice(state.offset, offset).reduce(reduce, state);
    sameView(followed, offset, `at ${offset}`);
    const atEnd = story.events.slice(followed.offset).reduce(reduce, followed);
    sameView(atEnd, story.latest, `from ${offset} to the end`);
  }
});

test("reads that fall into different moments still lead to the same view", () => {
  let tried = 0;
  for (const session of moments) {
    const later = moments.filter((offset) => offset >= session);
    // Every read at every later moment, the others at a different one.
    for (const [index, one] of later.entries()) {
      const other = later[(index * 7) % later.length];
      const state = fromSnapshot(readAt(story, { session, messages: one, inputs: other, prompts: one, runs: other }));
      const atEnd = story.events.slice(state.offset).reduce(reduce, state);
      sameView(atEnd, story.latest, `session at ${session}, messages at ${one}, queue and turns at ${other}`);
      tried += 1;
    }
  }
  assert.ok(tried > 400, `only ${tried} combinations`);
});

test("an event that comes again changes nothing", () => {
  let state = { ...emptyState(story.id), session: story.at(1).session };
  for (const [index, event] of story.events.entries()) {
    state = reduce(state, event);
    for (const again of story.events.slice(0, index + 1)) assert.equal(reduce(state, again), state, `${again.offset} after ${event.offset}`);
  }
});

test("a feed that breaks anywhere and goes on from its cursor shows each word once", () => {
  for (let cut = 1; cut < story.latest; cut += 1) {
    const before = watched(cut);
    // The server repeats from the cursor; a careless one would repeat a little more.
    const from = Math.max(0, before.offset - 3);
    const after = story.events.slice(from).reduce(reduce, before);
    sameView(after, story.latest, `cut at ${cut}`);
  }
});

test("visible text is the journal's text, at every moment of a run", () => {
  for (let offset = 1; offset <= story.latest; offset += 1) {
    const said = {};
    for (const event of story.events.slice(0, offset)) {
      if (event.event === "text.delta") said[event.run_id] = (said[event.run_id] ?? "") + event.text;
    }
    const state = watched(offset);
    const shown = {};
    for (const row of state.messages) {
      if (row.role === "assistant") shown[row.run_id] = (shown[row.run_id] ?? "") + row.text;
    }
    if (state.live) shown[state.live.runId] = (shown[state.live.runId] ?? "") + state.live.text;
    for (const [run, text] of Object.entries(said)) assert.equal(shown[run], text, `at ${offset}, ${run}`);
  }
});

test("a live text that becomes a row keeps its key", () => {
  let state = watched(0);
  let liveKey = null;
  for (const event of story.events) {
    state = reduce(state, event);
    const items = itemsOf(state);
    assert.equal(new Set(items.map((item) => item.key)).size, items.length, `keys at ${event.offset}`);
    if (event.event === "text.delta") liveKey = items.find((item) => item.live).key;
    if (event.event === "message.added" && event.message.role === "assistant") {
      const row = items.find((item) => item.key === liveKey);
      assert.equal(row.text, event.message.text);
      assert.equal(row.live, false);
    }
  }
});

test("a message of the person is never shown twice, whichever of receipt, feed and row comes first", () => {
  const receipt = { input_id: "inp_1", request_id: "req_1", session_id: story.id, status: "queued", replayed: false };
  const unsent = [{ requestId: "req_1", sessionId: story.id, text: "First question", tries: 1, createdAt: "" }];
  const mine = (state, entries) => itemsOf(state, entries).filter((item) => item.text === "First question").length;
  const told = story.events.findIndex((event) => event.event === "input.accepted") + 1;
  for (let offset = 1; offset <= story.latest; offset += 1) {
    assert.equal(mine(watched(offset), offset >= told ? [] : unsent), 1, `after the feed, at ${offset}`);
    assert.equal(mine(withReceipt(watched(offset), receipt, "First question"), []), 1, `after the receipt, at ${offset}`);
  }
  const followed = story.events.slice(1).reduce(reduce, withReceipt(watched(1), receipt, "First question"));
  assert.equal(mine(followed, []), 1);
});

test("what the session was before it was read does not come back with the feed's past", () => {
  const now = { ...story.at(20).session, viewers: 3 };
  const state = fromSnapshot({ session: now, messages: [], hasMore: false, inputs: [], prompts: [], runs: [], replayFrom: 5 });
  for (const event of story.events.slice(5, 20)) assert.equal(reduce(state, event).session, now, event.event);
});

test("a late receipt does not make a cancelled or running input wait again", () => {
  const cancelled = watched(story.latest);
  const late = { input_id: "inp_3", request_id: "req_3", status: "queued" };
  assert.equal(withReceipt(cancelled, late, "Never mind this").inputs.inp_3.status, "terminal");
  const unknown = { input_id: "inp_9", request_id: "req_9", status: "terminal", outcome: "completed" };
  assert.equal(withReceipt(cancelled, unknown, "x"), cancelled);
});

test("an input that was cancelled stays visible, ready to be sent again", () => {
  const item = itemsOf(watched(story.latest)).find((each) => each.text === "Never mind this");
  assert.equal(item.variant, "cancelled");
  assert.equal(item.reason, "withdrawn");
});

test("older pages join at the top, once each, and rows above what is loaded wait for their page", () => {
  const all = story.at(story.latest);
  const tail = fromSnapshot({ session: all.session, messages: all.messages.slice(-3), hasMore: true, inputs: [], prompts: [], runs: all.runs });
  const caughtUp = reduce(tail, { event: "caught_up" });
  const early = { event: "message.added", offset: story.latest + 1, message: { ...all.messages[0], id: 99, position: "0001b" } };
  assert.equal(reduce(caughtUp, early).messages.length, 3, "a row above the window is left to its page");
  const joined = withOlder(caughtUp, all.messages.slice(0, -2), false);
  assert.deepEqual(joined.messages.map((row) => row.id), all.messages.map((row) => row.id));
  assert.equal(joined.hasMore, false);
});

test("a recovered row that is placed above an older one is shown there", () => {
  const state = watched(story.latest);
  const row = { ...state.messages[1], id: 77, position: `${state.messages[0].position}x`, text: "late", tool_calls: undefined };
  const next = reduce(state, { event: "message.added", offset: state.offset + 1, message: row });
  assert.equal(next.messages[1].id, 77);
});

test("a finished call is not set back by a row that was read before it ended", () => {
  const state = watched(story.latest);
  const stale = { ...state.messages.find((row) => row.tool_calls), tool_calls: [{ id: "call_1", name: "shell", state: "running", arguments: {} }] };
  const next = reduce(state, { event: "message.updated", offset: state.offset + 1, message: stale });
  assert.equal(next.calls.call_1.state, "succeeded");
  assert.equal(next.calls.call_1.result, "Mon 30 Nov\n");
});

test("live output is bounded and keeps its end", () => {
  let state = watched(2);
  for (let n = 0; n < 70; n += 1) {
    state = reduce(state, { event: "tool.output", offset: 1000 + n, run_id: "run_1", call_id: "c", text: String(n % 10).repeat(2048) });
  }
  assert.equal(state.outputs.c.length, OUTPUT_CHARS_MAX);
  assert.ok(state.outputs.c.endsWith("9"));
});

test("when a run ends its open prompts are withdrawn, whether or not the feed says so", () => {
  const asked = story.events.find((event) => event.event === "prompt.opened").offset;
  const state = watched(asked);
  assert.equal(openPrompts(state).length, 1);
  const ended = reduce(state, { event: "run.cancelled", offset: asked + 1, run_id: "run_1", by: "local", at: "2026-11-30T06:00:00.000Z" });
  assert.equal(openPrompts(ended).length, 0);
  assert.equal(runningTurn(ended), null);
});

test("prompts that are gone from the server are gone from the page", () => {
  const asked = story.events.find((event) => event.event === "prompt.opened").offset;
  assert.equal(openPrompts(withPrompts(watched(asked), [])).length, 0);
});

test("events of a newer server are passed over, and the cursor moves on", () => {
  const state = watched(3);
  const next = reduce(state, { event: "task.started", offset: 4, task: {} });
  assert.equal(next.offset, 4);
  assert.deepEqual(seen(next), seen(state));
});

test("a pruned range reads as its text", () => {
  const call = { id: "c", name: "shell", state: "intended" };
  const run = { run_id: "r" };
  const events = [
    { event: "run.started", offset: 2, ...run, seq: 1, generation: 1 },
    { event: "text.snapshot", offset: 5, ...run, seq: 4, from: 2, to: 4, text: "", reasoning: "so it is" },
    { event: "text.snapshot", offset: 13, ...run, seq: 12, from: 5, to: 12, text: "all of it" },
    { event: "tool.intended", offset: 14, ...run, seq: 13, call },
    { event: "text.snapshot", offset: 16, ...run, seq: 15, from: 14, to: 15, text: "", call_id: "c", output: "1\n2\n" },
  ];
  const state = events.reduce(reduce, emptyState("s"));
  assert.equal(state.live.text, "all of it");
  assert.equal(state.live.reasoning, "so it is");
  assert.equal(state.outputs.c, "1\n2\n");
  assert.equal(state.calls.c.state, "running");
});

test("a page that had read a part of a range before it was pruned shows nothing twice", () => {
  const run = { run_id: "r" };
  const pieces = [
    { event: "run.started", offset: 2, ...run, seq: 1, generation: 1 },
    { event: "reasoning.delta", offset: 3, ...run, seq: 2, text: "so " },
    { event: "reasoning.delta", offset: 4, ...run, seq: 3, text: "it is" },
    { event: "text.delta", offset: 5, ...run, seq: 4, text: "all " },
    { event: "text.delta", offset: 6, ...run, seq: 5, text: "of it" },
    { event: "tool.output", offset: 7, ...run, seq: 6, call_id: "c", text: "1\n" },
    { event: "tool.output", offset: 8, ...run, seq: 7, call_id: "c", text: "2\n" },
  ];
  const pruned = [
    pieces[0],
    { event: "text.snapshot", offset: 4, ...run, seq: 3, from: 2, to: 3, text: "", reasoning: "so it is" },
    { event: "text.snapshot", offset: 6, ...run, seq: 5, from: 4, to: 5, text: "all of it" },
    { event: "text.snapshot", offset: 8, ...run, seq: 7, from: 6, to: 7, text: "", call_id: "c", output: "1\n2\n" },
  ];
  const whole = pieces.reduce(reduce, emptyState("s"));
  for (let cut = 0; cut <= pieces.length; cut += 1) {
    const seen = pieces.slice(0, cut).reduce(reduce, emptyState("s"));
    assert.deepEqual(pruned.reduce(reduce, seen), whole, `after ${cut} events`);
  }
});

test("a turn that failed before it wrote anything is still shown with its error", () => {
  const state = fromSnapshot({
    session: { id: "s", offset: 9, state: "idle" }, messages: [], hasMore: false, inputs: [], prompts: [],
    runs: [{ run_id: "r", generation: 1, state: "ended", terminal_state: "failed", error: { code: "model_unauthorized", message: "no key" }, started_at: "2026-11-30T06:00:00.000Z", ended_at: "2026-11-30T06:00:01.000Z" }],
  });
  const [item] = itemsOf(state);
  assert.equal(item.variant, "failed");
  assert.equal(item.error.code, "model_unauthorized");
});

test("an interruption is shown once, with its evidence, with or without a marker row", () => {
  const marked = itemsOf(watched(story.latest)).filter((item) => item.variant === "interruption");
  assert.equal(marked.length, 1);
  assert.equal(marked[0].text, "This turn was interrupted.");
  const bare = fromSnapshot({
    session: { id: "s", offset: 9, state: "interrupted" }, messages: [], hasMore: false, inputs: [], prompts: [],
    runs: [{ run_id: "r", generation: 1, state: "ended", terminal_state: "interrupted", cause: "lost_worker", evidence: { text: "It is gone." } }],
  });
  const shown = itemsOf(bare);
  assert.equal(shown.length, 1);
  assert.equal(shown[0].text, "It is gone.");
});
