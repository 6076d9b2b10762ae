// A conversation's tail as the text that is stored, and back. What comes out of a storage was written
// by an older page, another program or nobody at all, so nothing in it is believed.

import { cutTo, TAIL_LIMITS } from "./tail.js";

const VERSION = 1;

/** The text of an entry within its limits, or null where there is nothing to keep. */
export function writeEntry({ principal, sessionId, at, turns }) {
  let left = turns;
  for (;;) {
    if (left.length === 0) return null;
    const text = JSON.stringify({ v: VERSION, principal, session: sessionId, at, turns: left });
    if (text.length <= TAIL_LIMITS.entry) return text;
    left = smaller(left);
  }
}

/** Drops what is missed least: old turns, then the oldest answers, never the newest. */
function smaller(turns) {
  if (turns.length > 1) return turns.slice(1);
  const [turn] = turns;
  const oldest = turn.rows.findIndex((row) => row.role === "assistant");
  if (oldest < 0) return [];
  if (oldest < turn.rows.length - 1) return [{ ...turn, rows: turn.rows.toSpliced(oldest, 1) }];
  const [row] = turn.rows.slice(-1);
  if (row.calls.length > 0) return [{ ...turn, rows: turn.rows.with(-1, { ...row, calls: row.calls.slice(1) }) }];
  if (row.text.length > 1024) {
    const half = cutTo(row.text, row.text.length >> 1);
    return [{ ...turn, rows: turn.rows.with(-1, { ...row, text: half, cut: true }) }];
  }
  return [];
}

/**
 * Reads an entry; null for whatever is not one of this principal and session, is too old or too
 * large. Only the known fields of the known types come through.
 */
export function parseEntry(text, { principal, sessionId, now }) {
  if (typeof text !== "string" || text.length > TAIL_LIMITS.entry) return null;
  try {
    const entry = JSON.parse(text);
    if (entry?.v !== VERSION || entry.principal !== principal || entry.session !== sessionId) return null;
    if (!Number.isFinite(entry.at) || !(entry.at > now - TAIL_LIMITS.ageMs && entry.at < now + TAIL_LIMITS.aheadMs)) return null;
    if (!Array.isArray(entry.turns) || entry.turns.length === 0 || entry.turns.length > TAIL_LIMITS.lostTurns + 1) return null;
    return { at: entry.at, turns: entry.turns.map(cleanTurn) };
  } catch {
    return null;
  }
}

class Foreign extends Error {}

function need(isRight) {
  if (!isRight) throw new Foreign();
}

const isText = (value, most) => typeof value === "string" && value.length <= most;
const orNull = (value, most = TAIL_LIMITS.id) => (isText(value, most) ? value : null);
const isRowId = (id) => Number.isSafeInteger(id) || (isText(id, TAIL_LIMITS.id) && id !== "");

function cleanTurn(turn) {
  need(turn && isText(turn.run, TAIL_LIMITS.id) && turn.run !== "" && Number.isSafeInteger(turn.generation));
  need(Array.isArray(turn.rows) && turn.rows.length > 0 && turn.rows.length <= TAIL_LIMITS.rows);
  const rows = turn.rows.map(cleanRow);
  // Text that is no row yet can only be the last.
  need(rows.every((row, at) => row.id !== null || at === rows.length - 1));
  return { run: turn.run, generation: turn.generation, startedAt: orNull(turn.startedAt), lost: turn.lost === true, rows };
}

function cleanRow(row) {
  if (row?.role === "user") {
    need(isRowId(row.id) && isText(row.text, TAIL_LIMITS.request) && isText(row.kind, 64));
    return { id: row.id, role: "user", kind: row.kind, inputId: orNull(row.inputId), text: row.text, at: orNull(row.at) };
  }
  need(row?.role === "assistant" && isText(row.text, TAIL_LIMITS.text) && isText(row.reasoning, TAIL_LIMITS.reasoning));
  need(Array.isArray(row.calls) && row.calls.length <= TAIL_LIMITS.callsOfRow);
  const clean = {
    id: row.id, role: "assistant", text: row.text, cut: row.cut === true, reasoning: row.reasoning,
    at: orNull(row.at), calls: row.calls.map(cleanCall),
  };
  if (row.id !== null) {
    need(isRowId(row.id));
    return clean;
  }
  need((row.after === null || isRowId(row.after)) && (Number.isSafeInteger(row.piece) || isText(row.piece, 64)));
  return { ...clean, after: row.after, piece: row.piece };
}

function cleanCall(call) {
  need(isText(call?.id, TAIL_LIMITS.id) && isText(call.name, TAIL_LIMITS.id) && isText(call.state, 64));
  need(isText(call.output, TAIL_LIMITS.output) && (call.result === null || isText(call.result, TAIL_LIMITS.output)));
  const isPlain = isText(call.arguments, TAIL_LIMITS.arguments + 1) || (typeof call.arguments === "object" && call.arguments !== null);
  return {
    id: call.id, name: call.name, effect: orNull(call.effect), state: call.state,
    arguments: isPlain ? call.arguments : "", result: call.result, output: call.output,
  };
}
