// What the page keeps in the browser: drafts, unsent messages, small preferences.
//
// Storage can be full, switched off or throw at any call; the page then works from memory for as
// long as it is open, and whoever must know that something is not kept gets `false`.

const PREFIX = "everturn.";

/** What belongs to whoever wrote it. */
const OF_PEOPLE = ["outbox.", "draft."];
const asideKey = (principal, key) => `aside/${encodeURIComponent(principal)}/${key}`;

/** Wraps a `Storage` (or nothing at all) so that no call ever throws. */
export function createLocal(storage) {
  const memory = new Map();
  return {
    get(key) {
      if (memory.has(key)) return memory.get(key);
      try {
        return storage?.getItem(PREFIX + key) ?? null;
      } catch {
        return null;
      }
    },
    /** Returns whether a reload will find it again. */
    set(key, value) {
      try {
        if (!storage) throw new Error("no storage");
        storage.setItem(PREFIX + key, value);
        memory.delete(key);
        return true;
      } catch {
        memory.set(key, value);
        return false;
      }
    },
    /** As `set`, but where it fails the older value stays and nothing is held in its place. */
    keep(key, value) {
      try {
        if (!storage) return false;
        storage.setItem(PREFIX + key, value);
        memory.delete(key);
        return true;
      } catch {
        return false;
      }
    },
    remove(key) {
      memory.delete(key);
      try {
        storage?.removeItem(PREFIX + key);
      } catch {
        // Nothing to do: it was never kept.
      }
    },
    keys(prefix) {
      const found = new Set([...memory.keys()].filter((key) => key.startsWith(prefix)));
      try {
        for (let index = 0; index < (storage?.length ?? 0); index += 1) {
          const key = storage.key(index);
          if (key?.startsWith(PREFIX + prefix)) found.add(key.slice(PREFIX.length));
        }
      } catch {
        // Only what is in memory, then.
      }
      return [...found];
    },
    /**
     * Puts what `principal` wrote and has not sent out of the way of the next one who logs in; it
     * comes back with `bringBack`. A log-out ends it.
     */
    setAside(principal) {
      for (const prefix of OF_PEOPLE) {
        for (const key of this.keys(prefix)) {
          this.set(asideKey(principal, key), this.get(key));
          this.remove(key);
        }
      }
    },
    bringBack(principal) {
      const prefix = asideKey(principal, "");
      for (const key of this.keys(prefix)) {
        this.set(key.slice(prefix.length), this.get(key));
        this.remove(key);
      }
    },
    /** The key of a `storage` event without our prefix, or null if it is not ours. */
    ownKey(raw) {
      return raw?.startsWith(PREFIX) ? raw.slice(PREFIX.length) : null;
    },
  };
}
