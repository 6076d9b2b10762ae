// The list of conversations.

import { createKeyedList, h, icon, setAttribute, setText } from "./dom.js";
import { ago, fullTime } from "./util.js";

const STATES = {
  idle: "",
  running: "answering",
  waiting: "needs you",
  interrupted: "interrupted",
  ended: "closed",
};

/** What a conversation is called. */
export function titleOf(session) {
  return session?.title?.trim() || "Untitled conversation";
}

/** @param actions `rename(session)`, `remove(session)`, `more()` */
export function createSidebar({ list, more, empty }, actions) {
  const render = createKeyedList(list, (item) => entryView(item, actions));
  more.addEventListener("click", () => actions.more());
  return {
    /** `sessions` newest first; `current` is the id on the screen. */
    update({ sessions, current, hasMore, isRead, now, searching }) {
      render(
        sessions.map((session) => ({
          key: session.id,
          type: "session",
          session,
          isCurrent: session.id === current,
          now,
        })),
      );
      setAttribute(more, "hidden", !hasMore);
      setAttribute(empty, "hidden", sessions.length > 0 || !isRead);
      setText(empty, searching ? "Nothing found." : "No conversations yet.");
    },
  };
}

function entryView(item, actions) {
  let { session } = item;
  const dot = h("span.dot", { "aria-hidden": "true" });
  const title = h("span.entry-title");
  const about = h("span.entry-about");
  const link = h("a.entry-link", {}, dot, h("span.entry-words", {}, title, about));
  const summary = h("summary", {}, icon("more"));
  const menu = h(
    "details.menu",
    {},
    summary,
    h(
      "div.menu-items",
      {},
      h("button", { type: "button", onclick: () => choose(actions.rename) }, "Rename"),
      h("button.danger", { type: "button", onclick: () => choose(actions.remove) }, "Delete"),
    ),
  );
  const node = h("li.entry", {}, link, menu);

  function choose(action) {
    menu.open = false;
    action(session);
  }
  // A menu that is left closes.
  menu.addEventListener("focusout", (event) => {
    if (!menu.contains(event.relatedTarget)) menu.open = false;
  });

  function update(next) {
    session = next.session;
    const name = titleOf(session);
    setAttribute(link, "href", `#/s/${encodeURIComponent(session.id)}`);
    setAttribute(link, "aria-current", next.isCurrent ? "page" : null);
    setAttribute(link, "title", `${name}\n${fullTime(session.updated_at)}`);
    setAttribute(summary, "aria-label", `Actions for ${name}`);
    setText(title, name);
    const state = STATES[session.state] ?? session.state;
    const queued = session.queue_length > 0 ? `${session.queue_length} queued` : "";
    setText(about, [state, queued, ago(session.updated_at, next.now)].filter(Boolean).join(" · "));
    dot.dataset.state = session.state;
  }
  update(item);
  return { node, update };
}
