// What stands on the screen, in order: `(state, unsent) -> items`. Pure, so that it can be tested
// without a browser. Every item has a `key` that stays the same for as long as it is the same thing
// to a reader (a live piece of text keeps its key when it becomes a row of the transcript).

import { imageCount, plainText } from "./util.js";

const CAUSES = {
  process_restart: "The process that ran this turn is gone; a newer one is running.",
  split_brain: "The process that ran this turn lost its right to write to another one.",
  lost_worker: "The process that ran this turn is gone.",
  lease_lost: "The process that ran this turn let go of it.",
  unknown: "The process that ran this turn stopped reporting.",
};

/** The sentence that says what was observed when a turn was interrupted. */
export function evidenceText(evidence, cause) {
  if (typeof evidence === "string" && evidence !== "") return evidence;
  for (const field of ["sentence", "text", "detail"]) {
    if (typeof evidence?.[field] === "string" && evidence[field] !== "") return evidence[field];
  }
  return CAUSES[cause] ?? CAUSES.unknown;
}

/** @returns {object[]} items for the transcript, top to bottom. */
export function itemsOf(state, unsent = []) {
  const items = [];
  const shownCalls = callsShown(state);
  const lastRow = lastRowOfRuns(state);
  const markedRuns = new Set();

  for (const row of state.messages) {
    const item = rowItem(state, row, shownCalls);
    if (item) items.push(item);
    if (row.kind === "interruption" && row.run_id) markedRuns.add(row.run_id);
    if (row.run_id && lastRow.get(row.run_id) === row.id && state.live?.runId !== row.run_id) {
      pushEnd(items, state.runs[row.run_id], markedRuns);
    }
  }

  pushLive(items, state);
  if (state.live) pushEnd(items, state.runs[state.live.runId], markedRuns);
  pushRunsWithoutRows(items, state, lastRow, markedRuns);
  pushInputs(items, state, unsent);
  return items;
}

function callsShown(state) {
  const shown = new Set(state.live?.calls ?? []);
  for (const row of state.messages) for (const call of row.tool_calls ?? []) shown.add(call.id);
  return shown;
}

function lastRowOfRuns(state) {
  const last = new Map();
  for (const row of state.messages) if (row.run_id) last.set(row.run_id, row.id);
  return last;
}

function rowItem(state, row, shownCalls) {
  const base = {
    key: `row:${row.id}`,
    text: plainText(row),
    images: imageCount(row),
    at: row.created_at,
    recovered: Boolean(row.recovered),
    // Laid over what the server told, by tail.js.
    kept: Boolean(row.kept),
    keptEnd: row.kept === "end",
    cut: Boolean(row.kept && row.cut),
  };
  if (row.kind === "interruption") return { ...base, type: "event", variant: "interruption" };
  if (row.kind === "continuation") return { ...base, type: "event", variant: "continuation" };
  if (row.kind === "summary") return { ...base, type: "event", variant: "summary" };
  if (row.kind === "note" || row.role === "system") return { ...base, type: "event", variant: "note" };
  if (row.role === "tool") {
    if (shownCalls.has(row.tool_call_id)) return null;
    return { ...base, type: "result" };
  }
  if (row.role === "user") return { ...base, type: "user" };
  const piece = state.pieces[row.id];
  return {
    ...base,
    key: piece ? `piece:${piece}` : base.key,
    type: "assistant",
    live: false,
    reasoning: row.reasoning ?? "",
    calls: (row.tool_calls ?? []).map((call) => callItem(state, call.id, call)),
  };
}

function callItem(state, id, fallback) {
  const call = state.calls[id] ?? fallback ?? { id };
  const asked = Object.values(state.prompts).find(
    (prompt) => prompt.state === "open" && prompt.call?.id === id,
  );
  return {
    id,
    name: call.name ?? "tool",
    arguments: call.arguments,
    state: call.state ?? "intended",
    effect: call.effect ?? null,
    result: call.result ?? null,
    output: state.outputs[id] ?? "",
    asked: Boolean(asked),
  };
}

function pushLive(items, state) {
  const { live } = state;
  if (!live || !state.caughtUp) return;
  const shows = live.text !== "" || live.reasoning !== "" || live.calls.length > 0;
  if (!shows && live.ended) return;
  const calls = live.calls.map((id) => callItem(state, id));
  items.push({
    key: `piece:${live.runId}:${live.piece}`,
    type: "assistant",
    live: !live.ended,
    text: live.text,
    images: 0,
    reasoning: live.reasoning,
    calls,
    at: live.startedAt,
    recovered: false,
    kept: Boolean(live.kept),
    keptEnd: Boolean(live.kept),
    cut: false,
    // Nothing to read yet and no tool at work: the model has been asked and is silent.
    thinking: !live.ended && !shows && !toolAtWork(state),
  });
}

function toolAtWork(state) {
  const last = state.messages.findLast((row) => row.role === "assistant");
  return (last?.tool_calls ?? []).some((call) => {
    const now = state.calls[call.id]?.state;
    return now === "intended" || now === "running";
  });
}

function pushEnd(items, run, markedRuns) {
  if (!run?.terminal_state) return;
  const base = { key: `end:${run.run_id}`, type: "end", at: run.ended_at, usage: run.usage ?? null };
  base.tookMs = Date.parse(run.ended_at) - Date.parse(run.started_at);
  if (run.terminal_state === "failed") {
    items.push({ ...base, variant: "failed", error: run.error ?? {} });
  } else if (run.terminal_state === "cancelled-by-user") {
    items.push({ ...base, variant: "cancelled", by: run.by ?? null });
  } else if (run.terminal_state === "interrupted") {
    // The marker in the transcript says it; this is for the case that there is none.
    if (!markedRuns.has(run.run_id)) {
      const text = evidenceText(run.evidence, run.cause);
      items.push({ ...base, type: "event", variant: "interruption", text });
    }
  } else if (run.usage || base.tookMs >= 0) {
    items.push({ ...base, variant: "completed", model: run.model ?? null });
  }
}

/** A turn that ended before it wrote anything still says how, if it is later than what is shown. */
function pushRunsWithoutRows(items, state, lastRow, markedRuns) {
  const newest = state.messages.reduce((most, row) => Math.max(most, row.generation ?? 0), 0);
  const runs = Object.values(state.runs)
    .filter((run) => !lastRow.has(run.run_id) && state.live?.runId !== run.run_id)
    .filter((run) => run.generation > newest)
    .sort((a, b) => a.generation - b.generation);
  for (const run of runs) pushEnd(items, run, markedRuns);
}

function pushInputs(items, state, unsent) {
  const rows = new Set(state.messages.map((row) => row.input_id).filter(Boolean));
  const busy = Boolean(state.session?.running) || Boolean(state.live && !state.live.ended);
  const told = new Set();
  let isNext = true;
  for (const input of Object.values(state.inputs)) {
    if (input.request_id) told.add(input.request_id);
    if (rows.has(input.input_id)) continue;
    const cancelled = input.outcome === "cancelled";
    if (input.status === "terminal" && !cancelled) continue;
    const person = input.kind === "message" || input.kind === "steer";
    if (!person && cancelled) continue;
    items.push({
      key: input.request_id ? `sent:${input.request_id}` : `input:${input.input_id}`,
      type: person ? "pending" : "event",
      variant: person ? (cancelled ? "cancelled" : input.status) : `queued-${input.kind}`,
      inputId: input.input_id,
      text: input.text,
      at: input.at,
      busy,
      // The first in the queue: what runs when the turn under way is stopped and the queue kept.
      isNext: isNext && input.status === "queued",
      reason: input.reason ?? null,
    });
    if (input.status === "queued") isNext = false;
  }
  for (const entry of unsent) {
    if (told.has(entry.requestId) || entry.quiet) continue;
    items.push({
      key: `sent:${entry.requestId}`,
      type: "pending",
      variant: entry.problem ? "refused" : entry.tries > 0 ? "waiting" : "sending",
      requestId: entry.requestId,
      text: entry.text,
      at: entry.createdAt,
      problem: entry.problem ?? null,
      kept: entry.kept !== false,
    });
  }
}
