// Keeps tails of conversations (see tail.js) in the browser's storage, so that a page that was
// killed in mid-turn has something to show before the server answers, and so that what a server lost
// with the power is not lost to the one who read it.
//
// One key for each principal and session, nothing in common: two tabs never write over each other's
// conversations, and within one conversation a write first takes in what is there. A storage that is
// full or broken costs what it would have kept and nothing else.

import { capture } from "./tail.js";
import { parseEntry, writeEntry } from "./tail-entry.js";

export const MEMORY_LIMITS = {
  /** At most one write in this time … */
  writeMs: 250,
  /** … and no more than one part in this many of the time goes into writing. */
  writeShare: 20,
  entries: 24,
  /** UTF-16 units of all entries together, of whatever principal. */
  all: 1024 * 1024,
  key: 512,
};

const PREFIX = "tail/";
const PRINCIPAL = "principal";

/** The key of an entry, or null for names that are too long to be kept. */
export function keyOf(principal, sessionId) {
  const key = `${PREFIX}${encodeURIComponent(principal)}/${encodeURIComponent(sessionId)}`;
  return key.length <= MEMORY_LIMITS.key ? key : null;
}

/** What a key says, or null. */
export function namesOf(key) {
  const parts = key.split("/");
  if (parts.length !== 3 || `${parts[0]}/` !== PREFIX) return null;
  try {
    return { principal: decodeURIComponent(parts[1]), sessionId: decodeURIComponent(parts[2]) };
  } catch {
    return null;
  }
}

/**
 * @param options.local where entries are kept (see local.js); `local.get("principal")` is whoever is
 *   logged in, in every tab
 */
export function createMemory({
  local,
  now = () => Date.now(),
  setTimer = (run, ms) => setTimeout(run, ms),
  clearTimer = (timer) => clearTimeout(timer),
}) {
  let principal = null;
  /** Session id -> turns, as far as they were asked for. */
  let kept = new Map();
  /** Session id -> text that this page wrote last. */
  let written = new Map();
  let pending = null;
  let timer = null;
  let tookMs = 0;

  function read(sessionId) {
    const key = principal === null ? null : keyOf(principal, sessionId);
    const text = key && local.get(key);
    if (!text) return [];
    const entry = parseEntry(text, { principal, sessionId, now: now() });
    if (!entry) local.remove(key);
    return entry?.turns ?? [];
  }

  function turnsOf(sessionId) {
    if (principal === null) return [];
    if (!kept.has(sessionId)) kept.set(sessionId, read(sessionId));
    return kept.get(sessionId);
  }

  function drop(sessionId) {
    const key = principal === null ? null : keyOf(principal, sessionId);
    kept.set(sessionId, []);
    written.delete(sessionId);
    if (key) local.remove(key);
  }

  function flush() {
    clearTimer(timer);
    timer = null;
    if (!pending) return;
    const { sessionId, state } = pending;
    pending = null;
    const key = principal === null ? null : keyOf(principal, sessionId);
    if (!key) return;
    const begun = now();
    const there = local.get(key);
    // What another tab wrote meanwhile, which may have seen more.
    const others = there && there !== written.get(sessionId) ? read(sessionId) : [];
    const turns = capture(state, [...others, ...turnsOf(sessionId)]);
    kept.set(sessionId, turns);
    // Somebody logged out, or in as another one, in another tab: nothing is written for them.
    if (local.get(PRINCIPAL) !== principal) return;
    const text = writeEntry({ principal, sessionId, at: begun, turns });
    if (text === null) {
      written.delete(sessionId);
      if (there !== null) local.remove(key);
      return;
    }
    if (there === null) makeRoom(key, text.length);
    if (local.keep(key, text)) written.set(sessionId, text);
    tookMs = now() - begun;
  }

  /** Throws away what is no entry or too old, and the oldest beyond the limits. */
  function makeRoom(fresh = null, freshLength = 0) {
    const found = [];
    for (const key of local.keys(PREFIX)) {
      if (key === fresh) continue;
      const names = namesOf(key);
      const text = local.get(key);
      const entry = names && parseEntry(text, { ...names, now: now() });
      if (entry) found.push({ key, at: entry.at, length: text.length });
      else local.remove(key);
    }
    found.sort((a, b) => b.at - a.at);
    let count = fresh === null ? 0 : 1;
    let length = freshLength;
    for (const entry of found) {
      count += 1;
      length += entry.length;
      if (count > MEMORY_LIMITS.entries || length > MEMORY_LIMITS.all) local.remove(entry.key);
    }
  }

  return {
    /** Who is logged in, or null. What is kept of another one is out of sight from here on. */
    setPrincipal(name) {
      if (name === principal) return;
      clearTimer(timer);
      timer = null;
      pending = null;
      kept = new Map();
      written = new Map();
      principal = name;
      if (name !== null) makeRoom();
    },

    /** The turns to fold over a conversation's state, oldest first. */
    turnsOf,

    /** Takes note of a state. Cheap: it is called for every change of the screen. */
    observe(sessionId, state) {
      if (principal === null) return;
      // A state that is being read anew knows less for a while: what was there before it is kept first.
      const isOther = pending && (pending.sessionId !== sessionId || pending.state.covered !== state?.covered);
      if (!state?.caughtUp || isOther) flush();
      if (!state?.caughtUp) return;
      const turns = turnsOf(sessionId);
      const last = turns.at(-1);
      const isUnderWay = state.session?.running || state.session?.interrupted || (state.live && !state.live.ended);
      if (!isUnderWay && turns.length === 0 && !pending) return;
      pending = { sessionId, state };
      // A settled turn leaves at once.
      if (last && !last.lost && state.runs[last.run]?.terminal_state) return flush();
      timer ??= setTimer(flush, Math.max(MEMORY_LIMITS.writeMs, tookMs * MEMORY_LIMITS.writeShare));
      return undefined;
    },

    /** Writes what waits: the page is being left or hidden. */
    flush,

    /** A conversation was deleted. */
    forget(sessionId) {
      if (pending?.sessionId === sessionId) pending = null;
      drop(sessionId);
    },
  };
}
