// The list of conversations as the page holds it: reads pages of it, keeps it fresh.

import { ApiError } from "./api.js";
import { createSidebar, titleOf } from "./sidebar.js";

const SEARCH_WAIT_MS = 250;

/**
 * A first page that was read again, and what was known before it: whatever is newer than the end of
 * the page is replaced by it (or gone); older entries, which further pages brought, stay.
 */
export function mergeFirstPage(known, page) {
  const end = page.at(-1)?.updated_at ?? "";
  const fresh = new Set(page.map((session) => session.id));
  return [...page, ...known.filter((old) => !fresh.has(old.id) && old.updated_at < end)];
}

/** A session of a page, unless the feed has told of a later state while the page was on its way. */
export function newestOf(known, session) {
  const old = known.find((each) => each.id === session.id);
  return old && old.offset > session.offset ? old : session;
}

export function createSessions({ elements, api, rename, remove, onUnauthorized }) {
  let sessions = [];
  let nextCursor = null;
  let hasFurtherPages = false;
  let isRead = false;
  let current = null;
  let query = "";
  let searchTimer = null;
  // Answers that come out of order are dropped.
  let asked = 0;

  const sidebar = createSidebar(elements, { rename, remove, more });

  function show() {
    sidebar.update({
      sessions,
      current,
      hasMore: nextCursor !== null,
      isRead,
      now: Date.now(),
      searching: query !== "",
    });
  }

  async function read(cursor) {
    asked += 1;
    const mine = asked;
    let page;
    try {
      page = await api.sessions({ q: query || undefined, cursor });
    } catch (error) {
      if (error instanceof ApiError && error.status === 401) onUnauthorized();
      // The conversation's own banner says when there is no contact; the list just stays as it is.
      return;
    }
    if (mine !== asked) return;
    isRead = true;
    const data = page.data.map((session) => newestOf(sessions, session));
    if (cursor) {
      const known = new Set(sessions.map((session) => session.id));
      sessions = [...sessions, ...data.filter((session) => !known.has(session.id))];
      hasFurtherPages = true;
    } else {
      sessions = hasFurtherPages ? mergeFirstPage(sessions, data) : data;
    }
    if (cursor || !hasFurtherPages) nextCursor = page.next_cursor ?? null;
    show();
  }

  function more() {
    if (nextCursor !== null) read(nextCursor);
  }

  elements.search.addEventListener("input", () => {
    clearTimeout(searchTimer);
    searchTimer = setTimeout(() => {
      query = elements.search.value.trim();
      nextCursor = null;
      hasFurtherPages = false;
      read();
    }, SEARCH_WAIT_MS);
  });

  return {
    refresh: () => read(),
    select(id) {
      current = id;
      show();
    },
    /** Takes in what the feed told of one session. */
    patch(session) {
      const at = sessions.findIndex((known) => known.id === session.id);
      if (at >= 0) sessions = sessions.with(at, session);
    },
    titleOf(id) {
      const session = sessions.find((each) => each.id === id);
      return session ? titleOf(session) : "…";
    },
    async rename(session, title) {
      const fresh = await api.session(session.id);
      const changed = await api.patchSession(session.id, { title, expected_revision: fresh.revision });
      this.patch(changed ?? { ...session, title });
      show();
    },
    async remove(session) {
      const fresh = await api.session(session.id);
      const force = fresh.state === "running" || fresh.state === "waiting";
      await api.deleteSession(session.id, { generation: fresh.generation, force });
      sessions = sessions.filter((known) => known.id !== session.id);
      show();
    },
  };
}
