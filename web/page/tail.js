// The visible tail of a conversation: the request of the turn under way and what the turn has said
// and done so far, in a form that fits into the browser's storage (see memory.js and docs/web.md).
//
// Pure. `fold` lays a kept tail over what the server tells and gives back a state to be drawn; the
// server's own state stays as it is, so whatever the server tells afterwards, again or for the first
// time, lands where it belongs, and the next fold starts from that.
//
// Identity is what the server gave out: the run's id, the rows' ids, and for the text that is no row
// yet the row that it follows. Texts are compared only where that says they are the same thing.

import { emptyState, runningTurn } from "./feed.js";
import { plainText } from "./util.js";

/** Sizes are in UTF-16 units, which is what browsers count as well. */
export const TAIL_LIMITS = {
  /** Rows of one turn: the request and the newest others. */
  rows: 24,
  text: 64 * 1024,
  request: 16 * 1024,
  reasoning: 16 * 1024,
  callsOfRow: 32,
  arguments: 2 * 1024,
  /** Result and live output of one call, each; of the output the end. */
  output: 4 * 1024,
  id: 256,
  /** Turns of one conversation of which the server has less than this browser. */
  lostTurns: 3,
  /** One conversation, as stored. */
  entry: 128 * 1024,
  ageMs: 7 * 24 * 60 * 60 * 1000,
  /** A clock that was set back; anything further ahead would never grow old. */
  aheadMs: 24 * 60 * 60 * 1000,
};

const SETTLED = new Set(["succeeded", "failed", "denied", "not_run", "unknown"]);

const isRequest = (row) => row.role === "user" || row.kind === "continuation";
const isAnswer = (row) => row.role === "assistant" && row.kind !== "interruption";
const keptId = (turn, row) => `kept:${turn.run}:${row.id ?? "live"}`;

// ---- Taking --------------------------------------------------------------------------------------

/** The tail of the turn under way, or null while it has said and done nothing. */
export function tailOf(state) {
  const under = runningTurn(state) ?? state.session?.interrupted;
  if (!under || !state.caughtUp) return null;
  const run = under.run_id;
  const rows = [];
  let after = null;
  for (const row of state.messages) {
    if (row.kept && String(row.id).startsWith("kept:")) continue;
    const isOurs = row.run_id === run || (under.input_id && row.input_id === under.input_id);
    if (!isOurs) continue;
    if (isRequest(row)) rows.push(requestOf(row));
    else if (isAnswer(row)) {
      rows.push(answerOf(state, row.id, row, (row.tool_calls ?? []).map((call) => call.id)));
      after = row.id;
    }
  }
  const { live } = state;
  if (live?.runId === run && (live.text || live.reasoning || live.calls.length > 0)) {
    rows.push({ ...answerOf(state, null, live, live.calls), after, piece: live.piece, at: live.startedAt });
  }
  if (!rows.some((row) => row.role === "assistant")) return null;
  const isLong = rows.length > TAIL_LIMITS.rows;
  return {
    run,
    generation: under.generation ?? live?.generation ?? 0,
    startedAt: under.started_at ?? null,
    lost: false,
    rows: isLong ? [rows[0], ...rows.slice(1 - TAIL_LIMITS.rows)] : rows,
  };
}

/** The beginning of a text, `most` units long. */
export function cutTo(text, most) {
  if (text.length <= most) return text;
  // Not between the two halves of a character.
  const isHalf = /[\ud800-\udbff]/.test(text[most - 1]);
  return text.slice(0, isHalf ? most - 1 : most);
}

function requestOf(row) {
  const text = plainText(row);
  return {
    id: row.id,
    role: "user",
    kind: row.kind ?? "message",
    inputId: row.input_id ?? null,
    text: cutTo(text, TAIL_LIMITS.request),
    at: row.created_at ?? null,
  };
}

function answerOf(state, id, thing, calls) {
  const text = plainText(thing);
  return {
    id,
    role: "assistant",
    text: cutTo(text, TAIL_LIMITS.text),
    cut: text.length > TAIL_LIMITS.text || Boolean(thing.cut),
    reasoning: cutTo(thing.reasoning ?? "", TAIL_LIMITS.reasoning),
    at: thing.created_at ?? null,
    calls: calls.slice(0, TAIL_LIMITS.callsOfRow).map((call) => callOf(state, call)),
  };
}

function callOf(state, id) {
  const call = state.calls[id] ?? { id };
  const args = typeof call.arguments === "string" ? call.arguments : JSON.stringify(call.arguments ?? "");
  return {
    id,
    name: call.name ?? "tool",
    effect: call.effect ?? null,
    state: call.state ?? "intended",
    // Arguments that do not fit become the beginning of their text.
    arguments: args.length > TAIL_LIMITS.arguments ? `${cutTo(args, TAIL_LIMITS.arguments)}…` : (call.arguments ?? ""),
    result: typeof call.result === "string" ? cutTo(call.result, TAIL_LIMITS.output) : null,
    output: (state.outputs[id] ?? "").slice(-TAIL_LIMITS.output),
  };
}

// ---- Folding -------------------------------------------------------------------------------------

/**
 * How the server stands to a kept turn: `under_way`, `interrupted`, `settled` (it ended in another
 * way: the transcript has all of it), `unknown` (newer than all that the server has), or `stale`.
 */
export function standing(state, turn) {
  const run = state.runs[turn.run];
  if (run?.terminal_state) return run.terminal_state === "interrupted" ? "interrupted" : "settled";
  const rows = state.messages.filter((row) => row.run_id === turn.run);
  if (rows.some((row) => row.kind === "interruption")) return "interrupted";
  const isKnown =
    run || rows.length > 0 || state.live?.runId === turn.run ||
    state.session?.running?.run_id === turn.run || state.session?.interrupted?.run_id === turn.run;
  if (isKnown) return "under_way";
  return turn.generation > (state.session?.generation ?? 0) ? "unknown" : "stale";
}

/** How two copies of one text stand to each other, seen from the first; space at the end apart. */
export function relation(theirs, ours) {
  if (theirs.startsWith(ours) || theirs.trimEnd() === ours.trimEnd()) return "ahead";
  return ours.startsWith(theirs) ? "behind" : "apart";
}

const longer = (a, b) => (b.length > a.length ? b : a);

/**
 * `state` with the kept turns laid over it, to be drawn: the very same state where they add nothing.
 * What only this browser has is marked `kept`: true for a whole row, "end" for the end of one.
 */
export function fold(state, turns) {
  return turns.reduce(foldTurn, state);
}

function foldTurn(state, turn) {
  const how = standing(state, turn);
  if (how === "unknown") return appended(state, turn);
  if (how === "under_way" || how === "interrupted") return overlaid(state, turn, how === "interrupted");
  return state;
}

function rowFrom(turn, row) {
  return {
    id: keptId(turn, row),
    run_id: turn.run,
    generation: turn.generation,
    role: row.role,
    kind: row.kind ?? "message",
    text: row.text,
    created_at: row.at,
    kept: true,
    ...(row.role === "user" && row.inputId && { input_id: row.inputId }),
    ...(row.role === "assistant" && { reasoning: row.reasoning, cut: row.cut }),
  };
}

/** The server has never heard of this turn: all of it goes to the end. */
function appended(state, turn) {
  const messages = state.messages.slice();
  let next = state;
  for (const row of turn.rows) {
    if (row.role === "user") {
      // The request waits in the queue, or stands in the transcript under another turn.
      const isThere = row.inputId && (state.inputs[row.inputId] || messages.some((known) => known.input_id === row.inputId));
      if (!isThere) messages.push(rowFrom(turn, row));
      continue;
    }
    const added = withCalls(next, [], row.calls, true);
    next = added.state;
    messages.push({ ...rowFrom(turn, row), tool_calls: added.ids.map((id) => next.calls[id]) });
  }
  return { ...next, messages };
}

/**
 * Adds the calls that the server does not tell of at all to those of a row. A call that it knows
 * stands where the server puts it.
 */
function withCalls(state, ids, calls, isOver) {
  const fresh = calls.filter((call) => !state.calls[call.id]);
  if (fresh.length === 0) return { state, ids };
  const known = { ...state.calls };
  const outputs = { ...state.outputs };
  for (const { output, ...call } of fresh) {
    // Nobody works on it any more, and nobody knows how far it came.
    known[call.id] = isOver && !SETTLED.has(call.state) ? { ...call, state: "unknown" } : call;
    if (output) outputs[call.id] = output;
  }
  // In the order in which they were made, as far as both know them.
  const ours = calls.map((call) => call.id).filter((id) => ids.includes(id) || fresh.some((call) => call.id === id));
  const merged = [...ours, ...ids.filter((id) => !ours.includes(id))];
  return { state: { ...state, calls: known, outputs }, ids: merged };
}

/** Progress of calls that the server knows: what this browser saw of them and the server told not yet. */
function withProgress(state, calls) {
  let next = state;
  for (const call of calls) {
    const known = next.calls[call.id];
    if (!known) continue;
    if (!SETTLED.has(known.state) && SETTLED.has(call.state) && call.state !== "unknown") {
      next = { ...next, calls: { ...next.calls, [call.id]: { ...known, state: call.state, result: call.result } } };
    }
    const said = next.outputs[call.id] ?? "";
    if (typeof next.calls[call.id].result !== "string" && call.output.length > said.length) {
      next = { ...next, outputs: { ...next.outputs, [call.id]: call.output } };
    }
  }
  return next;
}

function overlaid(state, turn, isOver) {
  const { run } = turn;
  const isOurs = (row) => row.run_id === run;
  let next = state;
  let messages = state.messages;
  const put = (at, count, ...rows) => (messages = messages.toSpliced(at, count, ...rows));
  const find = (row) =>
    messages.findIndex((known) =>
      known.id === keptId(turn, row) || (isOurs(known) && row.id !== null && known.id === row.id) ||
      (row.role === "user" && row.inputId && known.input_id === row.inputId));
  const known = new Set(turn.rows.map(find).filter((at) => at >= 0).map((at) => messages[at].id));
  // Without the beginning of the turn nothing tells the first row from a later one.
  let isAnchored = !state.hasMore || messages.some((row) => isOurs(row) && isRequest(row));
  let cursor = -1;
  /** Ids of kept rows that have their place. */
  const placed = new Set();
  /** Rows behind all that the server has told. */
  const ahead = [];

  for (const row of turn.rows) {
    const there = find(row);
    if (there >= 0) {
      cursor = there;
      isAnchored = true;
      placed.add(row.id);
      if (row.role === "assistant" && messages[there].kept) merge(there, row);
      next = withProgress(next, row.calls ?? []);
      continue;
    }
    if (row.role === "user" || !isAnchored) continue;
    if (ahead.length > 0) {
      ahead.push(row);
      continue;
    }
    // While the feed repeats the past there may be holes; a text is placed behind its predecessor only.
    if (row.id === null && row.after !== null && !placed.has(row.after)) continue;
    next = withProgress(next, row.calls);
    const at = messages.findIndex((other, place) => place > cursor && isOurs(other) && isAnswer(other) && !known.has(other.id));
    // Where ours has an id as well, the other one is a later row.
    if (at >= 0 && row.id !== null) continue;
    placed.add(row.id);
    if (at >= 0) {
      cursor = at;
      // A row of a finished step is whole. One that was read back after the fact may be short.
      if (messages[at].recovered || messages[at].kept) merge(at, row);
    } else if (isOver) {
      add(row);
    } else {
      ahead.push(row);
    }
  }
  if (ahead.length > 0) overlayLive(ahead);
  return next === state && messages === state.messages ? state : { ...next, messages };

  /** All that the server has of this turn from place `at` on. */
  function saidFrom(at) {
    const rows = messages.slice(at).filter((row) => isOurs(row) && isAnswer(row)).map(plainText);
    return rows.join("") + (state.live?.runId === run ? state.live.text : "");
  }

  function merge(at, row) {
    const theirs = messages[at];
    const text = plainText(theirs);
    const ids = (theirs.tool_calls ?? []).map((call) => call.id);
    const added = withCalls(next, ids, row.calls, isOver);
    next = added.state;
    let merged = theirs;
    if (added.ids !== ids) merged = { ...merged, tool_calls: added.ids.map((id) => next.calls[id]), kept: merged.kept ?? "end" };
    const how = relation(saidFrom(at), row.text) === "ahead" ? "ahead" : relation(text, row.text);
    if (how === "behind") merged = { ...merged, text: row.text, cut: row.cut, kept: text.trim() === "" || theirs.kept === true ? true : "end" };
    const reasoning = theirs.reasoning ?? "";
    if (relation(reasoning, row.reasoning) === "behind") merged = { ...merged, reasoning: row.reasoning };
    if (merged !== theirs) put(at, 1, merged);
    // Two texts that only share their place stay two.
    if (how === "apart") {
      put(at + 1, 0, { ...rowFrom(turn, row), tool_calls: [] });
      cursor = at + 1;
    }
  }

  /** The server has nothing of this row: it goes behind the last one that both have. */
  function add(row) {
    if (row.text !== "" && relation(saidFrom(cursor + 1), row.text) === "ahead") return;
    const added = withCalls(next, [], row.calls, true);
    if (row.text === "" && row.reasoning === "" && added.ids.length === 0) return;
    next = added.state;
    let at = cursor + 1;
    if (cursor < 0) {
      const first = messages.findIndex(isOurs);
      if (first < 0) return;
      at = first;
    }
    // Results of the tools that the row before it called belong to that one.
    while (messages[at] && isOurs(messages[at]) && messages[at].role === "tool") at += 1;
    put(at, 0, { ...rowFrom(turn, row), tool_calls: added.ids.map((id) => next.calls[id]) });
    cursor = at;
  }

  /**
   * The turn goes on, and `rows` are behind all rows that the server told: the first of them is what
   * is live there, further ones are what another tab has seen beyond that.
   */
  function overlayLive(rows) {
    const { live } = next;
    const [row] = rows;
    const isLive = live?.runId === run && !live.ended;
    if (live && !isLive && state.caughtUp) return;
    // While the feed repeats the past, the live text may be an earlier piece of the answer.
    const anchor = messages.findLast((other, at) => at <= cursor && isOurs(other) && isAnswer(other))?.id;
    const isSame = isLive && (state.caughtUp || (anchor === undefined ? live.piece === 0 : Boolean(state.pieces[anchor])));
    const how = isSame ? relation(live.text, row.text) : "behind";
    if (how === "apart") {
      if (!state.caughtUp) return;
      for (const each of rows) put(messages.length, 0, { ...rowFrom(turn, each), tool_calls: [] });
      return;
    }
    if (isSame && rows.length === 1 && row.id === null) return joinLive(row, how);
    // What the server has is a beginning of this.
    let at = cursor < 0 ? messages.length : cursor + 1;
    while (messages[at] && isOurs(messages[at]) && messages[at].role === "tool") at += 1;
    let piece = { ...pieceOf(turn, rows.at(-1), next.pieces), text: "", reasoning: "", calls: [] };
    for (const each of rows) {
      const held = new Set(messages.flatMap((other) => (other.tool_calls ?? []).map((call) => call.id)));
      next = withProgress(withCalls(next, [], each.calls, false).state, each.calls);
      const calls = each.calls.map((call) => call.id).filter((id) => !held.has(id));
      if (each.id === null) {
        piece = { ...piece, text: each.text, reasoning: each.reasoning, calls, kept: state.caughtUp };
      } else {
        // The feed will tell the same row under the same id.
        put(at, 0, { ...rowFrom(turn, each), id: each.id, kept: false, tool_calls: calls.map((id) => next.calls[id]) });
        at += 1;
      }
    }
    next = { ...next, caughtUp: true, live: piece };
    return undefined;
  }

  function joinLive(row, how) {
    const { live } = next;
    const added = withCalls(next, live.calls, row.calls, false);
    const reasoning = relation(live.reasoning, row.reasoning) === "behind" ? row.reasoning : live.reasoning;
    const isRicher = how === "behind" || added.ids !== live.calls || reasoning !== live.reasoning;
    if (!isRicher && state.caughtUp) return;
    const text = how === "behind" ? row.text : live.text;
    const kept = how === "behind" && state.caughtUp;
    next = { ...added.state, caughtUp: true, live: { ...live, text, reasoning, calls: added.ids, kept } };
  }
}

/** A kept live text in the form of the state's. */
function pieceOf(turn, row, pieces) {
  const piece = row.piece ?? "next";
  const isTaken = Object.values(pieces).includes(`${turn.run}:${piece}`);
  return {
    runId: turn.run,
    generation: turn.generation,
    startedAt: turn.startedAt,
    // Two things on the screen never share a key.
    piece: isTaken ? `${piece}-kept` : piece,
    text: row.text,
    reasoning: row.reasoning,
    calls: row.calls.map((call) => call.id),
    ended: false,
  };
}

/**
 * A state to be drawn while the server has said nothing yet. `isOver` when it cannot be reached:
 * then nothing is shown as being at work.
 */
export function preview(sessionId, turns, isOver = false) {
  let state = { ...emptyState(sessionId), caughtUp: true };
  for (const [index, turn] of turns.entries()) {
    if (index < turns.length - 1) {
      state = appended(state, turn);
      continue;
    }
    const messages = state.messages.slice();
    for (const row of turn.rows) {
      const added = row.role === "assistant" ? withCalls(state, [], row.calls, isOver) : { state, ids: [] };
      state = added.state;
      if (row.role === "assistant" && row.id === null) {
        state = { ...state, live: { ...pieceOf(turn, row, {}), calls: added.ids, ended: true } };
      } else {
        // The ids that the server will tell: what is on the screen then stays in its place.
        messages.push({ ...rowFrom(turn, row), id: row.id, kept: false, tool_calls: added.ids.map((id) => state.calls[id]) });
      }
    }
    state = { ...state, messages };
  }
  return state;
}

// ---- Keeping -------------------------------------------------------------------------------------

/**
 * What is worth keeping at this moment: of the turns kept so far those of which the server has less,
 * and the tail of the turn under way, itself folded with what was kept of it. Empty once all is
 * settled. `state` must have caught up.
 */
export function capture(state, turns) {
  const lost = new Map();
  for (const turn of turns) {
    const how = standing(state, turn);
    const kept = turnsWorth(state, turn, how);
    if (!kept) continue;
    const other = lost.get(turn.run);
    if (!other || sizeOf(kept) > sizeOf(other)) lost.set(turn.run, kept);
  }
  const fresh = tailOf(fold(state, turns));
  return [...[...lost.values()].slice(-TAIL_LIMITS.lostTurns), ...(fresh ? [fresh] : [])];
}

const sizeOf = (turn) => turn.rows.reduce((sum, row) => sum + row.text.length, 0);

function turnsWorth(state, turn, how) {
  if (how === "unknown") return turn;
  if (how === "stale") return turn.lost && state.hasMore ? turn : null;
  if (how === "settled") return null;
  const isKept = overlaid(state, turn, how === "interrupted").messages.some((row) => row.kept && row.run_id === turn.run);
  if (isKept) return { ...turn, lost: true };
  // Its rows may be above what is loaded.
  const isAway = state.hasMore && !state.messages.some((row) => row.run_id === turn.run);
  return turn.lost && isAway ? turn : null;
}
