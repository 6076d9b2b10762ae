// How long to wait before the next try, and a wait that can be cut short.

const FIRST_MS = 500;
const MOST_MS = 30_000;

/**
 * Milliseconds before try number `attempt` (from 0): doubling, capped, with "equal" jitter, so that
 * many pages whose server went away do not all come back in the same moment.
 */
export function backoffMs(attempt, random = Math.random) {
  const full = Math.min(MOST_MS, FIRST_MS * 2 ** Math.min(attempt, 16));
  return Math.round(full / 2 + (full / 2) * random());
}

/** A wait that `wake()` ends early. One waiter at a time. */
export class Pause {
  #wake = null;

  /** Resolves after `ms`, at `wake()`, or when `signal` aborts. */
  wait(ms, signal) {
    return new Promise((resolve) => {
      if (signal?.aborted) return resolve();
      const done = () => {
        clearTimeout(timer);
        signal?.removeEventListener("abort", done);
        this.#wake = null;
        resolve();
      };
      const timer = Number.isFinite(ms) ? setTimeout(done, ms) : undefined;
      signal?.addEventListener("abort", done);
      this.#wake = done;
    });
  }

  wake() {
    this.#wake?.();
  }
}
