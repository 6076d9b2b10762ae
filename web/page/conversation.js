// One conversation as the page holds it: reads it, follows its feed, comes back after every loss of
// contact, and tells the screen. It knows no DOM.

import { ApiError } from "./api.js";
import { fromSnapshot, reduce, withOlder, withPrompts, withReceipt, withRuns, withoutInput } from "./feed.js";
import { backoffMs, Pause } from "./retry.js";
import { SseParser } from "./sse.js";

/** The server sends a heartbeat every 5 s; a feed that is silent for longer than this is dead. */
const SILENCE_MS = 20_000;
/** While the feed repeats the past, the screen waits for the end of it, but not longer than this. */
const REPLAY_SHOW_MS = 400;
/** Runs whose end is read one by one when the list of turns does not reach back to them. */
const RUNS_READ_MAX = 20;

/** A feed that is refused again so soon is left alone for a while. */
const RESET_AGAIN_MS = 10_000;

/** What the connection of a conversation is doing. */
export const PHASE = {
  loading: "loading",
  live: "live",
  /** No contact; `retryAt` says when it is tried again. */
  lost: "lost",
  /** The server does not know this conversation. */
  missing: "missing",
  /** It was deleted. */
  deleted: "deleted",
  login: "login",
};

export class Conversation {
  #api;
  #hooks;
  #end = new AbortController();
  #stream = null;
  #pause = new Pause();
  #queue = [];
  #flushTimer = null;
  #attempt = 0;
  #paused = false;
  #loadingOlder = false;
  #resetAt = -Infinity;

  /**
   * @param options.hooks.changed `(state)`: there is something new to show
   * @param options.hooks.phase `(phase, {retryAt?, error?})`
   * @param options.hooks.event `(event)`: every event of the feed, once, as it is applied
   * @param options.hooks.frame schedules a function for the next frame
   */
  constructor({ id, api, hooks }) {
    this.id = id;
    this.state = null;
    this.phase = PHASE.loading;
    this.#api = api;
    this.#hooks = hooks;
  }

  /** Runs until `close()`. */
  async run() {
    const { signal } = this.#end;
    let needsSnapshot = true;
    while (!signal.aborted) {
      try {
        if (this.#paused) {
          await this.#pause.wait(Infinity, signal);
          continue;
        }
        if (needsSnapshot) await this.#load();
        needsSnapshot = false;
        needsSnapshot = await this.#follow();
        if (this.#paused || signal.aborted) continue;
        // Reading anew is done at once, unless it did not help the last time.
        const now = Date.now();
        const again = needsSnapshot && now - this.#resetAt > RESET_AGAIN_MS;
        if (needsSnapshot) this.#resetAt = now;
        if (!again) await this.#retryLater(null);
      } catch (error) {
        if (signal.aborted) return;
        if (this.#paused) continue;
        if (error instanceof ApiError && error.status === 401) {
          this.#setPhase(PHASE.login);
          await this.#pause.wait(Infinity, signal);
        } else if (error instanceof ApiError && error.status === 410) {
          this.#setPhase(PHASE.deleted, { error });
          return;
        } else if (error instanceof ApiError && error.status === 404) {
          // Perhaps its first message is still on the way: the page wakes us when it has arrived.
          this.#setPhase(PHASE.missing, { error });
          needsSnapshot = true;
          await this.#pause.wait(Infinity, signal);
        } else {
          // A refusal of the feed itself may be about its cursor; reading anew is always right.
          if (error instanceof ApiError && error.permanent) needsSnapshot = true;
          await this.#retryLater(error);
        }
      }
    }
  }

  /** Tries again at once: the network is back, somebody logged in, the first message arrived. */
  wake() {
    this.#pause.wake();
  }

  /** A page that nobody looks at gives its connection up and is no viewer; the cursor stays. */
  pause() {
    if (this.#paused) return;
    this.#paused = true;
    this.#stream?.abort();
    this.wake();
  }

  resume() {
    if (!this.#paused) return;
    this.#paused = false;
    this.#attempt = 0;
    this.wake();
  }

  close() {
    this.#end.abort();
    clearTimeout(this.#flushTimer);
  }

  get closed() {
    return this.#end.signal.aborted;
  }

  /** Reads a page of older rows. Returns whether there was one to read. */
  async older() {
    const first = this.state?.messages[0];
    if (!first || !this.state.hasMore || this.#loadingOlder) return false;
    this.#loadingOlder = true;
    try {
      const page = await this.#api.messages(this.id, { before: first.id }, this.#options());
      if (this.closed || !this.state) return false;
      this.#flush();
      this.state = withOlder(this.state, page.data, page.has_more);
      await this.#readRuns();
      if (!this.closed) this.#set(this.state);
      return true;
    } finally {
      this.#loadingOlder = false;
    }
  }

  /** A receipt for a message that this page sent. */
  receipt(receipt, text) {
    if (!this.state) return;
    this.#flush();
    this.#set(withReceipt(this.state, receipt, text));
  }

  forgetInput(inputId) {
    if (this.state) this.#set(withoutInput(this.state, inputId));
  }

  /** Reads the open prompts again, after an answer was refused. */
  async rereadPrompts() {
    const page = await this.#api.openPrompts(this.id, this.#options());
    if (this.closed || !this.state) return;
    this.#set(withPrompts(this.state, page.data));
  }

  #options() {
    return { signal: this.#end.signal };
  }

  #set(state) {
    this.state = state;
    if (!this.closed) this.#hooks.changed(state);
  }

  #setPhase(phase, details = {}) {
    this.phase = phase;
    if (!this.closed) this.#hooks.phase(phase, details);
  }

  async #retryLater(error) {
    const waitMs = Math.max(backoffMs(this.#attempt), Math.min(error?.retryAfterMs ?? 0, 60_000));
    this.#attempt += 1;
    this.#setPhase(PHASE.lost, { retryAt: Date.now() + waitMs, error });
    await this.#pause.wait(waitMs, this.#end.signal);
  }

  async #load() {
    if (!this.state) this.#setPhase(PHASE.loading);
    const options = this.#options();
    // First and alone: everything read after it knows at least as much (see feed.js).
    const session = await this.#api.session(this.id, options);
    const underWay = session.running?.run_id ?? session.interrupted?.run_id;
    const [page, inputs, prompts, turns, head] = await Promise.all([
      this.#api.messages(this.id, {}, options),
      this.#api.queuedInputs(this.id, options),
      this.#api.openPrompts(this.id, options),
      this.#api.turns(this.id, options),
      underWay ? this.#api.runHead(underWay, options).catch(ignoreMissing) : null,
    ]);
    if (this.closed) return;
    const first = head?.events?.[0]?.offset;
    // What an interrupted run had said is in the transcript once its interruption is recorded.
    const isTold = page.data.some((row) => row.kind === "interruption" && row.run_id === underWay);
    const state = fromSnapshot({
      session,
      messages: page.data,
      hasMore: page.has_more,
      inputs: inputs.data,
      prompts: prompts.data,
      runs: turns.data,
      replayFrom: Number.isFinite(first) && !isTold ? first - 1 : session.offset,
    });
    this.#queue = [];
    // Where something is on the screen already, it stays until the new state has caught up.
    if (this.state) this.state = state;
    else this.#set(state);
    await this.#readRuns();
  }

  /** Reads the ends of runs that are on the screen and that the list of turns did not hold. */
  async #readRuns() {
    const wanted = new Set();
    for (const row of this.state.messages) {
      if (row.run_id && !this.state.runs[row.run_id]) wanted.add(row.run_id);
    }
    if (wanted.size === 0) return;
    const newest = [...wanted].slice(-RUNS_READ_MAX);
    const read = await Promise.all(
      newest.map((run) => this.#api.run(run, this.#options()).catch(ignoreMissing)),
    );
    if (this.closed) return;
    this.state = withRuns(this.state, read.filter(Boolean));
  }

  /** Follows the feed until it ends. Returns whether the session must be read anew. */
  async #follow() {
    const stream = new AbortController();
    this.#stream = stream;
    const signal = AbortSignal.any([stream.signal, this.#end.signal]);
    let silence = null;
    const heard = () => {
      clearTimeout(silence);
      silence = setTimeout(() => stream.abort(), SILENCE_MS);
    };
    try {
      const response = await this.#api.feed(this.id, this.state.offset, { signal });
      heard();
      const reader = response.body.getReader();
      const decoder = new TextDecoder();
      const parser = new SseParser();
      for (;;) {
        const { done, value } = await reader.read();
        if (done) return false;
        heard();
        for (const frame of parser.push(decoder.decode(value, { stream: true }))) {
          if (frame.event === "reset") {
            this.#flush();
            return true;
          }
          this.#take(frame);
        }
      }
    } catch (error) {
      // Ended by us (a dead feed, a hidden page): the loop decides what to do.
      if (stream.signal.aborted) return false;
      if (error instanceof Hole) return true;
      throw error;
    } finally {
      clearTimeout(silence);
      stream.abort();
      this.#stream = null;
      if (!this.closed) this.#flush();
    }
  }

  #take(frame) {
    if (frame.event === "opened") return;
    let event;
    try {
      event = JSON.parse(frame.data || "{}");
    } catch {
      // A frame that cannot be read is a hole: what the server has must be read anew.
      throw new Hole(`unreadable event ${frame.event}`);
    }
    event.event ??= frame.event;
    this.#queue.push(event);
    if (event.event === "caught_up") {
      this.#attempt = 0;
      this.#flush();
      this.#setPhase(PHASE.live);
      return;
    }
    if (this.#flushTimer !== null) return;
    if (this.state.caughtUp) {
      this.#flushTimer = -1;
      this.#hooks.frame(() => this.#flush());
    } else {
      this.#flushTimer = setTimeout(() => this.#flush(), REPLAY_SHOW_MS);
    }
  }

  #flush() {
    clearTimeout(this.#flushTimer);
    this.#flushTimer = null;
    if (this.#queue.length === 0 || this.closed) return;
    const queue = this.#queue;
    this.#queue = [];
    let { state } = this;
    for (const event of queue) {
      const next = reduce(state, event);
      if (next !== state) this.#hooks.event?.(event, next);
      state = next;
    }
    this.#set(state);
  }
}

class Hole extends Error {}

function ignoreMissing(error) {
  if (error instanceof ApiError && (error.status === 404 || error.status === 410)) return null;
  throw error;
}
