// What the page knows of one session, and how each event of its feed changes that.
//
// Pure: `(state, event) -> state`, no clock, no network, no DOM. A state is never changed in place;
// an event that is covered already gives back the very same state.
//
// How the page finds its place (see docs/web.md): it reads the session first, whose `offset` says
// how much of the feed that answer holds, then transcript, queue, prompts and turns, which may
// know more. Then it follows the feed, from the first event of the run under way if there is one,
// else from `offset`. Whatever the feed then repeats is recognised: rows by their id, session and
// queue by `offset`, and every event by its own offset.

import { plainText } from "./util.js";

/** Characters of one tool's live output that are kept; the beginning is dropped. */
export const OUTPUT_CHARS_MAX = 64 * 1024;

const RANK = { queued: 0, started: 1, terminal: 2 };

/** A state that knows nothing yet. */
export function emptyState(sessionId) {
  return {
    sessionId,
    session: null,
    /** Rows of the transcript that are loaded, in the order of `position`: a contiguous tail. */
    messages: [],
    hasMore: false,
    /** Every tool call that was seen, by id, in its latest state. */
    calls: {},
    /** Output of running tools by call id. */
    outputs: {},
    /** Prompts by id, in the order in which they were opened. */
    prompts: {},
    /** Inputs that were not a row of the transcript when they were seen, by id, in queue order. */
    inputs: {},
    /** How each run ended and what it used, by run id. */
    runs: {},
    /** What the run under way has said since its last row of the transcript. */
    live: null,
    /** Which live piece of text a row came from, by message id; keeps its place on the screen. */
    pieces: {},
    /** Last offset of the feed that this state holds. */
    offset: 0,
    /** Up to here session and queue were read as a whole: the feed has nothing new about them. */
    covered: 0,
    /**
     * Whether the feed has told all that the reads may have known before it. Until then a text may
     * be here twice, as a row that was read and as the deltas that the feed repeats.
     */
    caughtUp: false,
  };
}

/**
 * A state from what was read. `session` must have been read before everything else; `replayFrom` is
 * the offset after which the feed will be followed.
 */
export function fromSnapshot({ session, messages, hasMore, inputs, prompts, runs, replayFrom }) {
  const state = emptyState(session.id);
  state.session = session;
  state.covered = session.offset;
  state.offset = Math.min(replayFrom ?? session.offset, session.offset);
  state.hasMore = Boolean(hasMore);
  let next = state;
  for (const message of messages) next = withMessage(next, message);
  for (const run of runs) next = withRun(next, run.run_id, runSummary(run));
  for (const prompt of prompts) next = withPrompt(next, prompt);
  for (const input of inputs) next = withInput(next, input);
  return next;
}

/** Adds a page of older rows that was read with `before`. */
export function withOlder(state, messages, hasMore) {
  let next = state;
  for (const message of messages) {
    if (!next.messages.some((known) => known.id === message.id)) next = withMessage(next, message);
  }
  return { ...next, hasMore: Boolean(hasMore) };
}

/** Takes in a receipt, which may come before or after the feed told the same. */
export function withReceipt(state, receipt, text) {
  if (receipt.status === "terminal" && !state.inputs[receipt.input_id]) return state;
  return withInput(state, { ...receipt, text });
}

/** Takes in runs that were read one by one or as a list. */
export function withRuns(state, runs) {
  return runs.reduce((next, run) => withRun(next, run.run_id, runSummary(run)), state);
}

/** Takes in prompts that were read again, for example after an answer was refused. */
export function withPrompts(state, prompts) {
  const open = new Set(prompts.map((prompt) => prompt.id));
  let next = state;
  for (const prompt of Object.values(state.prompts)) {
    if (prompt.state === "open" && !open.has(prompt.id)) {
      next = withPrompt(next, { ...prompt, state: "expired" });
    }
  }
  return prompts.reduce(withPrompt, next);
}

/** Forgets an input that the person has dealt with (sent again, or dismissed). */
export function withoutInput(state, inputId) {
  const { [inputId]: _gone, ...inputs } = state.inputs;
  return { ...state, inputs };
}

/** Applies one event of the session's feed. */
export function reduce(state, event) {
  if (event.event === "caught_up") return state.caughtUp ? state : { ...state, caughtUp: true };
  const offset = event.offset;
  const before = state.offset;
  if (Number.isFinite(offset)) {
    if (offset <= before) return state;
    state = { ...state, offset };
  }
  const isCovered = Number.isFinite(offset) && offset <= state.covered;
  switch (event.event) {
    case "session.updated":
      return isCovered ? state : { ...state, session: event.session };
    case "input.accepted":
      return isCovered ? state : withInput(state, { ...event, status: "queued" });
    case "input.cancelled":
      return isCovered ? state : withCancelled(state, event);
    case "turn.started": {
      if (isCovered) return state;
      return (event.input_ids ?? []).reduce(
        (next, id) => withStatus(next, id, "started"),
        state,
      );
    }
    case "message.added":
      // A row above what is loaded (one that arrived late) will be read when the reader gets there.
      if (state.caughtUp && state.hasMore && event.message.position < state.messages[0]?.position) {
        return state;
      }
      return withMessage(state, event.message, true);
    case "message.updated":
      return state.messages.some((known) => known.id === event.message.id)
        ? withMessage(state, event.message)
        : state;
    case "run.started":
      return withStart(state, event, isCovered);
    case "text.delta":
      return withLive(state, event, (live) => ({ ...live, text: live.text + event.text }));
    case "text.snapshot":
      return withSnapshot(state, event, before);
    case "reasoning.delta":
      return withLive(state, event, (live) => ({ ...live, reasoning: live.reasoning + event.text }));
    case "tool.intended":
      return withLiveCall(withCall(state, event.call), event);
    case "tool.output":
      return withOutput(state, event);
    case "tool.finished":
      return withCall(state, event.call);
    case "prompt.opened":
    case "prompt.settled":
      return withPrompt(state, event.prompt);
    case "steer.taken":
      return withStatus(state, event.input_id, "terminal");
    case "usage":
      return withUsage(state, event);
    case "run.handed_over":
      return withRun(state, event.run_id, { state: "handed_over" });
    case "run.completed":
      return withEnd(state, event, { terminal_state: "completed" });
    case "run.failed":
      return withEnd(state, event, { terminal_state: "failed", error: event.error });
    case "run.cancelled":
      return withEnd(state, event, { terminal_state: "cancelled-by-user", by: event.by });
    case "run.interrupted":
      return withEnd(state, event, {
        terminal_state: "interrupted",
        cause: event.cause,
        evidence: event.evidence,
      });
    default:
      // A newer server may tell more than this page understands.
      return state;
  }
}

/** The prompts that still wait for an answer. */
export function openPrompts(state) {
  return Object.values(state.prompts).filter((prompt) => prompt.state === "open");
}

/** The run under way, as the session tells it, else as the feed does. */
export function runningTurn(state) {
  if (state.session?.running) return state.session.running;
  if (state.live && !state.live.ended) {
    return { run_id: state.live.runId, generation: state.live.generation };
  }
  return null;
}

function freshRun(event) {
  return {
    run_id: event.run_id,
    generation: event.generation,
    attempt: event.attempt ?? 0,
    continues: event.continues ?? null,
    model: event.model ?? null,
  };
}

function freshLive(event) {
  return {
    runId: event.run_id,
    generation: event.generation ?? null,
    startedAt: event.at ?? null,
    piece: 0,
    text: "",
    reasoning: "",
    calls: [],
    ended: false,
  };
}

/** The fields of a run on the wire that the page shows. */
function runSummary(run) {
  const summary = {};
  for (const field of [
    "run_id", "generation", "attempt", "continues", "model", "state", "terminal_state", "usage",
    "error", "cause", "evidence", "started_at", "ended_at",
  ]) {
    if (run[field] !== undefined && run[field] !== null) summary[field] = run[field];
  }
  return summary;
}

function withRun(state, runId, fields, fresh = false) {
  const known = fresh ? {} : state.runs[runId];
  return { ...state, runs: { ...state.runs, [runId]: { ...known, run_id: runId, ...fields } } };
}

function withMessage(state, message, isAdded = false) {
  const messages = state.messages.slice();
  const at = messages.findIndex((known) => known.id === message.id);
  if (at >= 0) messages.splice(at, 1);
  let place = messages.length;
  while (place > 0 && messages[place - 1].position > message.position) place -= 1;
  messages.splice(place, 0, message);

  let next = { ...state, messages };
  for (const call of message.tool_calls ?? []) next = withCall(next, call);
  if (message.input_id) next = withStatus(next, message.input_id, "started");
  // A row that the run under way adds holds what was live until now: the piece becomes the row. That
  // is so even if the row is known already, from a read that was ahead of the feed.
  const { live } = state;
  const takesLive = isAdded && live && message.role === "assistant" && message.run_id === live.runId;
  if (takesLive) {
    const held = new Set((message.tool_calls ?? []).map((call) => call.id));
    next = {
      ...next,
      pieces: { ...next.pieces, [message.id]: `${live.runId}:${live.piece}` },
      live: {
        ...live,
        piece: live.piece + 1,
        text: "",
        reasoning: "",
        calls: live.calls.filter((id) => !held.has(id)),
      },
    };
  }
  return next;
}

const SETTLED = new Set(["succeeded", "failed", "denied", "not_run", "unknown"]);

function withCall(state, call) {
  if (!call?.id) return state;
  const known = state.calls[call.id];
  // A settled call stays settled: a row that was written before its end may be read after it.
  if (known && SETTLED.has(known.state) && !SETTLED.has(call.state)) return state;
  return { ...state, calls: { ...state.calls, [call.id]: { ...known, ...call } } };
}

function withLive(state, event, change) {
  const live = state.live?.runId === event.run_id ? state.live : freshLive(event);
  return { ...state, live: change(live) };
}

/** All of the text of a range of pieces that was pruned. */
function withSnapshot(state, event, before) {
  // The page had read some of the range already: the snapshot holds that as well. (Should anything
  // of the same answer stand before the range, the answer's row, which follows, brings it back.)
  const isAgain = event.offset - (event.to - event.from) <= before;
  const joined = (known, text) => (isAgain ? text : known + text);
  if (event.call_id) {
    const outputs = isAgain ? { ...state.outputs, [event.call_id]: "" } : state.outputs;
    return withOutput({ ...state, outputs }, { ...event, text: event.output ?? "" });
  }
  if (typeof event.reasoning === "string") {
    return withLive(state, event, (live) => ({
      ...live,
      reasoning: joined(live.reasoning, event.reasoning),
    }));
  }
  return withLive(state, event, (live) => ({ ...live, text: joined(live.text, event.text) }));
}

function withLiveCall(state, event) {
  const id = event.call?.id;
  if (!id || state.messages.some((row) => row.tool_calls?.some((call) => call.id === id))) {
    return state;
  }
  return withLive(state, event, (live) =>
    live.calls.includes(id) ? live : { ...live, calls: [...live.calls, id] },
  );
}

function withOutput(state, event) {
  const text = (state.outputs[event.call_id] ?? "") + event.text;
  const kept = text.length > OUTPUT_CHARS_MAX ? text.slice(-OUTPUT_CHARS_MAX) : text;
  const next = { ...state, outputs: { ...state.outputs, [event.call_id]: kept } };
  const call = state.calls[event.call_id];
  return call?.state === "intended" ? withCall(next, { ...call, state: "running" }) : next;
}

function withPrompt(state, prompt) {
  if (!prompt?.id) return state;
  const known = state.prompts[prompt.id];
  if (known && known.state !== "open" && prompt.state === "open") return state;
  let next = { ...state, prompts: { ...state.prompts, [prompt.id]: { ...known, ...prompt } } };
  if (prompt.call) next = withCall(next, prompt.call);
  return next;
}

function withInput(state, input) {
  const id = input.input_id ?? input.id;
  if (!id) return state;
  const known = state.inputs[id];
  if (!known && state.messages.some((row) => row.input_id === id)) return state;
  const fresh = {
    input_id: id,
    request_id: input.request_id ?? null,
    kind: input.kind ?? "message",
    text: plainText(input),
    status: input.status ?? "queued",
    outcome: input.outcome ?? null,
    at: input.at ?? input.accepted_at ?? null,
  };
  const merged = known ? { ...fresh, ...known, text: known.text || fresh.text } : fresh;
  if (RANK[fresh.status] > RANK[merged.status]) merged.status = fresh.status;
  return { ...state, inputs: { ...state.inputs, [id]: merged } };
}

function withStatus(state, id, status) {
  const known = state.inputs[id];
  if (!known || RANK[known.status] >= RANK[status]) return state;
  return { ...state, inputs: { ...state.inputs, [id]: { ...known, status } } };
}

function withCancelled(state, event) {
  const known = state.inputs[event.input_id];
  if (!known) return state;
  const cancelled = { ...known, status: "terminal", outcome: "cancelled", reason: event.reason };
  return { ...state, inputs: { ...state.inputs, [event.input_id]: cancelled } };
}

function withUsage(state, event) {
  const used = event.usage ?? event;
  const known = state.runs[event.run_id]?.usage ?? {};
  const usage = { ...known };
  for (const field of ["input_tokens", "output_tokens", "cached_input_tokens", "reasoning_tokens"]) {
    if (Number.isFinite(used[field])) usage[field] = (known[field] ?? 0) + used[field];
  }
  if (used.cost) usage.cost = used.cost;
  return withRun(state, event.run_id, { usage });
}

// Session and prompts are told of as well when a run begins and ends; the page does not wait for
// that, so that no button is offered for a turn that is over.

function withStart(state, event, isCovered) {
  const next = {
    ...withRun(state, event.run_id, { ...freshRun(event), started_at: event.at }, true),
    live: freshLive(event),
  };
  if (isCovered || !state.session || state.session.running?.run_id === event.run_id) return next;
  const running = { run_id: event.run_id, generation: event.generation, started_at: event.at };
  return { ...next, session: { ...state.session, state: "running", running } };
}

function withEnd(state, event, fields) {
  let next = withRun(state, event.run_id, { ...fields, state: "ended", ended_at: event.at });
  for (const prompt of openPrompts(state)) {
    if (prompt.run_id === event.run_id) next = withPrompt(next, { ...prompt, state: "withdrawn" });
  }
  if (state.session?.running?.run_id === event.run_id) {
    next = { ...next, session: { ...state.session, state: "idle", running: null } };
  }
  if (state.live?.runId !== event.run_id) return next;
  // What is still live stays on the screen until its row comes or another turn begins.
  return { ...next, live: { ...next.live, ended: true } };
}
