// Messages that were written but have no receipt yet.
//
// Each gets its request id before the first try and is kept in the browser until a receipt came.
// A try whose answer was lost is made again with the same id, by this page, by a reloaded one or by
// another tab: the server takes it once and answers with the same receipt (promise P2). Messages of
// one conversation are sent one after the other, so that their order is the order of writing.

import { ApiError } from "./api.js";
import { backoffMs } from "./retry.js";

const PREFIX = "outbox.";
const RETRY_AFTER_MOST_MS = 60_000;
const QUIET_MS = 1_500;

/**
 * What follows from a failed try. Pure.
 * `retry`: try again after `waitMs`; `login`: wait for a log-in; `refused`: the server will never
 * take this, a person must decide.
 */
export function verdict(error, tries, random = Math.random) {
  if (error instanceof ApiError) {
    if (error.status === 401) return { kind: "login" };
    if (error.permanent) return { kind: "refused" };
    const asked = error.retryAfterMs ?? 0;
    const waitMs = Math.max(backoffMs(tries, random), Math.min(asked, RETRY_AFTER_MOST_MS));
    return { kind: "retry", waitMs };
  }
  return { kind: "retry", waitMs: backoffMs(tries, random) };
}

/** Reads one stored entry; null for anything that is not one. */
export function parseEntry(text) {
  try {
    const entry = JSON.parse(text);
    const ok = ["requestId", "sessionId", "text"].every((key) => typeof entry[key] === "string");
    return ok && entry.text !== "" ? entry : null;
  } catch {
    return null;
  }
}

/**
 * @param {object} options
 * @param options.local where entries are kept (see local.js)
 * @param options.send `(entry) -> Promise<receipt>`
 * @param options.onReceipt `(receipt, entry)` after an entry was taken
 * @param options.onChange `(sessionId)` whenever what there is to show may differ
 * @param options.onLogin called when a try met 401
 */
export function createOutbox({
  local,
  send,
  onReceipt,
  onChange,
  onLogin,
  now = () => Date.now(),
  random = Math.random,
  setTimer = (run, ms) => setTimeout(run, ms),
  clearTimer = (timer) => clearTimeout(timer),
}) {
  const entries = new Map();
  /** Sessions at work: id -> {timer} while it waits, {} while a try is under way. */
  const working = new Map();
  let closed = false;

  function keep(entry) {
    const { requestId, sessionId, text, title, createdAt, order, problem } = entry;
    const stored = { requestId, sessionId, text, title, createdAt, order, problem };
    entry.kept = local.set(PREFIX + requestId, JSON.stringify(stored));
  }

  function forget(requestId) {
    const entry = entries.get(requestId);
    entries.delete(requestId);
    local.remove(PREFIX + requestId);
    if (entry) onChange(entry.sessionId);
    return entry;
  }

  function of(sessionId) {
    return [...entries.values()]
      .filter((entry) => entry.sessionId === sessionId)
      .sort((a, b) => a.order - b.order || (a.requestId < b.requestId ? -1 : 1));
  }

  async function work(sessionId) {
    if (closed || working.has(sessionId)) return;
    const entry = of(sessionId).find((candidate) => !candidate.problem);
    if (!entry) return;
    working.set(sessionId, {});
    let receipt = null;
    let outcome = null;
    try {
      receipt = await send(entry);
    } catch (error) {
      outcome = verdict(error, entry.tries, random);
      entry.tries += 1;
      entry.quiet = false;
      if (outcome.kind === "refused") {
        entry.problem = { code: error.code, message: error.message, hint: error.hint };
      }
    }
    working.delete(sessionId);
    if (closed) return;
    if (receipt) {
      // First tell, then forget: in between the same words are shown once, by their request id.
      onReceipt(receipt, entry);
      forget(entry.requestId);
      return work(sessionId);
    }
    // The feed or another tab may have told of it while the try was failing.
    if (!entries.has(entry.requestId)) return work(sessionId);
    if (outcome.kind === "refused") {
      keep(entry);
      onChange(sessionId);
      return work(sessionId);
    }
    onChange(sessionId);
    if (outcome.kind === "login") {
      onLogin();
      return undefined;
    }
    const timer = setTimer(() => {
      working.delete(sessionId);
      work(sessionId);
    }, outcome.waitMs);
    working.set(sessionId, { timer });
    return undefined;
  }

  function load() {
    for (const key of local.keys(PREFIX)) {
      const entry = parseEntry(local.get(key));
      if (!entry) local.remove(key);
      else if (!entries.has(entry.requestId)) {
        // Kept from an earlier page, so it may have been taken and stand in the transcript already.
        // It is shown once a try failed or took a while: the same words are not shown twice.
        entries.set(entry.requestId, { order: 0, ...entry, tries: 1, kept: true, quiet: true });
      }
    }
  }

  function unhush() {
    for (const entry of entries.values()) {
      if (!entry.quiet) continue;
      entry.quiet = false;
      onChange(entry.sessionId);
    }
  }

  return {
    /** Finds what earlier pages left, and goes to work. */
    start() {
      load();
      setTimer(unhush, QUIET_MS);
      for (const sessionId of new Set([...entries.values()].map((entry) => entry.sessionId))) {
        onChange(sessionId);
        work(sessionId);
      }
    },

    /** Takes a message. `title` is set for the first one of a new conversation. */
    add({ requestId, sessionId, text, title }) {
      const last = Math.max(0, ...[...entries.values()].map((entry) => entry.order));
      const at = now();
      const createdAt = new Date(at).toISOString();
      // Milliseconds are too coarse for order: two messages may share one.
      const entry = { requestId, sessionId, text, title, createdAt, tries: 0 };
      entry.order = Math.max(at, last + 1);
      entries.set(requestId, entry);
      keep(entry);
      onChange(sessionId);
      work(sessionId);
      return entry;
    },

    of,

    has: (sessionId) => of(sessionId).length > 0,

    size: () => entries.size,

    /** The feed told of an input with this request id: as good as a receipt. */
    settle(requestId) {
      return entries.has(requestId) ? forget(requestId) : undefined;
    },

    /** A person gave up a message that was refused. */
    discard: forget,

    /** A person wants a refused message tried again, under the same id. */
    retry(requestId) {
      const entry = entries.get(requestId);
      if (!entry) return;
      entry.problem = undefined;
      entry.tries = 0;
      keep(entry);
      onChange(entry.sessionId);
      this.wake();
    },

    /** Tries everything now: the network is back, or somebody logged in. */
    wake() {
      for (const [sessionId, { timer }] of [...working]) {
        if (timer === undefined) continue;
        clearTimer(timer);
        working.delete(sessionId);
      }
      for (const sessionId of new Set([...entries.values()].map((entry) => entry.sessionId))) {
        work(sessionId);
      }
    },

    /** Another tab changed what is kept under `key` (without the page's prefix). */
    changedElsewhere(key, value) {
      if (!key?.startsWith(PREFIX)) return;
      const requestId = key.slice(PREFIX.length);
      if (value === null) {
        const entry = entries.get(requestId);
        if (entry) {
          entries.delete(requestId);
          onChange(entry.sessionId);
        }
        return;
      }
      const entry = parseEntry(value);
      if (!entry) return;
      // The other tab is sending it; this one only shows it, and takes over when it is woken.
      entries.set(requestId, { tries: 0, ...entries.get(requestId), ...entry, kept: true });
      onChange(entry.sessionId);
    },

    /** Goes to work where nothing is under way: another tab may have left something behind. */
    nudge() {
      for (const sessionId of new Set([...entries.values()].map((entry) => entry.sessionId))) {
        work(sessionId);
      }
    },

    /** Ends all work; what is kept stays kept. */
    close() {
      closed = true;
      for (const { timer } of working.values()) if (timer !== undefined) clearTimer(timer);
      working.clear();
    },
  };
}
