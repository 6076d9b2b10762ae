// The page: wires the conversation on the screen, the list beside it and what waits to be sent.

import { api, ApiError, Unreachable } from "./api.js";
import { createComposer } from "./composer.js";
import { Conversation, PHASE } from "./conversation.js";
import { askConfirm, askText, createLogin } from "./dialogs.js";
import { createDock } from "./dock.js";
import { h, icon, setAttribute, setText } from "./dom.js";
import { emptyState, openPrompts, runningTurn } from "./feed.js";
import { itemsOf } from "./items.js";
import { createLocal } from "./local.js";
import { createMemory } from "./memory.js";
import { createOutbox } from "./outbox.js";
import { createScroll } from "./scroll.js";
import { createSessions } from "./sessions.js";
import { fold, preview } from "./tail.js";
import { createTranscript } from "./transcript.js";
import { titleOf } from "./sidebar.js";
import { freshId, shortSpan, titleFrom } from "./util.js";

/** A page that nobody has looked at for this long gives its connection up. */
const HIDDEN_PAUSE_MS = 30_000;
/** How often list, clock and leftovers are looked after. */
const POLL_MS = 10_000;
/** A contact lost and found within this is not worth a banner. */
const LOST_QUIET_MS = 900;
const TOAST_MS = 7_000;

const byId = (id) => document.getElementById(id);
const local = createLocal(readStorage());
const memory = createMemory({ local });
/** Without a mouse and its keyboard: no focus that would open a keyboard on the screen, no key hints. */
const isTouch = window.matchMedia("(pointer: coarse)").matches;

let info = null;
/** Whoever is logged in, as far as this browser knows; the server says it with every log-in. */
let principal = null;
let conversation = null;
/** Its id; null for one that is yet to begin, undefined before the address was looked at. */
let currentId;
let lost = null;
let stopping = null;
/** Messages with a receipt, until the conversation that they opened is read. */
let echoes = [];

for (const [id, name] of [
  ["menu", "menu"], ["sidebar-close", "cross"], ["notice-close", "cross"], ["logout", "out"],
  ["jump", "down"], ["stop", "stop"], ["send", "send"],
]) {
  byId(id).append(icon(name));
}
byId("new").prepend(icon("plus"));

function readStorage() {
  try {
    return window.localStorage;
  } catch {
    return null;
  }
}

// ---- Telling people ---------------------------------------------------------------------------

function toast(text) {
  const node = h("div.toast", {}, text);
  byId("toasts").append(node);
  setTimeout(() => node.remove(), TOAST_MS);
}

function announce(text) {
  setText(byId("announcer"), text);
}

/** Says what went wrong with something that a person asked for. */
function complain(error, what) {
  if (error instanceof ApiError && error.status === 401) return login.open();
  if (error instanceof ApiError) toast(`${what}: ${error.message}${error.hint ? ` (${error.hint})` : ""}`);
  else if (error instanceof Unreachable) toast(`${what}: the server cannot be reached.`);
  else throw error;
  return undefined;
}

// ---- Sending ----------------------------------------------------------------------------------

const outbox = createOutbox({
  local,
  async send(entry) {
    if (entry.title) {
      try {
        await api.createSession({ id: entry.sessionId, title: entry.title });
      } catch (error) {
        // An earlier try got this far.
        if (error.code !== "session_exists") throw error;
      }
    }
    return api.submit(entry.sessionId, { text: entry.text, request_id: entry.requestId });
  },
  onReceipt(receipt, entry) {
    if (conversation?.id === entry.sessionId) {
      if (conversation.state) conversation.receipt(receipt, entry.text);
      else echoes.push({ ...entry, tries: 0, quiet: false, problem: undefined });
      startConversation();
      conversation.wake();
    }
    sessions.refresh();
  },
  onChange(sessionId) {
    if (sessionId === currentId) render();
  },
  onLogin: () => login.open(),
});

function submit(text) {
  const isNew = currentId === null;
  const sessionId = isNew ? freshId("ses_") : currentId;
  // The id comes before the first try: whatever happens to the answer, it is the same message.
  outbox.add({
    requestId: freshId("web_"),
    sessionId,
    text,
    title: isNew ? titleFrom(text) : undefined,
  });
  local.remove(draftKey(currentId));
  if (isNew) window.location.hash = `#/s/${sessionId}`;
  scroll.toEnd();
  return true;
}

const draftKey = (id) => `draft.${id ?? "new"}`;

// ---- The conversation on the screen -----------------------------------------------------------

const hooks = (id) => ({
  changed(state) {
    if (id !== currentId) return;
    echoes = [];
    sessions.patch(state.session);
    memory.observe(id, state);
    render();
  },
  phase(phase, details) {
    if (id !== currentId) return;
    if (phase === PHASE.login) login.open();
    if (phase === PHASE.deleted) memory.forget(id);
    lost = phase === PHASE.lost ? { since: lost?.since ?? Date.now(), ...details } : null;
    if (phase === PHASE.live) {
      outbox.wake();
      if (!info) loadInfo();
    }
    if (lost) setTimeout(renderLost, LOST_QUIET_MS + 50);
    render();
  },
  event(event, state) {
    if (event.event === "input.accepted" && event.request_id) outbox.settle(event.request_id);
    if (state.caughtUp) announceEvent(event);
  },
  frame(run) {
    // A hidden page gets no frames, but its title still tells.
    if (document.hidden) setTimeout(run, 200);
    else requestAnimationFrame(run);
  },
});

function announceEvent(event) {
  switch (event.event) {
    case "run.completed":
      return announce("The answer is complete.");
    case "run.failed":
      return announce(`The turn failed: ${event.error?.message ?? ""}`);
    case "run.interrupted":
      return announce("The turn was interrupted.");
    case "run.cancelled":
      return announce("The turn was stopped.");
    case "prompt.opened":
      return announce(`Your answer is needed: ${event.prompt?.question ?? ""}`);
    default:
      return undefined;
  }
}

let started = null;

function startConversation() {
  if (!conversation || started === conversation) return;
  started = conversation;
  conversation.run().catch((error) => {
    if (!started?.closed) toast(`The page failed: ${error.message}. Reload it; nothing is lost.`);
    throw error;
  });
}

/** Shows the conversation that the address names, or an empty one. */
function route() {
  const match = /^#\/s\/([^/?]+)/.exec(window.location.hash);
  let id = null;
  try {
    id = match ? decodeURIComponent(match[1]) : null;
  } catch {
    // Not an address that this page made; a new conversation, then.
  }
  closeDrawer();
  if (id === currentId) return render();
  conversation?.close();
  conversation = null;
  currentId = id;
  lost = null;
  stopping = null;
  echoes = [];
  renderTranscript([]);
  composer.setText(local.get(draftKey(id)) ?? "");
  if (id !== null) {
    conversation = new Conversation({ id, api, hooks: hooks(id) });
    if (document.hidden) pauseSoon();
    // A conversation that its first message has yet to make is read when that has arrived.
    if (!outbox.of(id).some((entry) => entry.title && !entry.problem)) startConversation();
  }
  render();
  scroll.toEnd();
  if (!isTouch) composer.focus();
  return undefined;
}

const renderTranscript = createTranscript(byId("transcript"), {
  async cancelInput(item) {
    try {
      await api.cancelInput(item.inputId);
    } catch (error) {
      if (error.code === "input_not_queued") toast("It is not in the queue any more.");
      else complain(error, "Not cancelled");
    }
  },
  runNext: () => stop("keep"),
  sendAgain(item) {
    const draft = composer.text().trim() === "" ? item.text : `${composer.text()}\n\n${item.text}`;
    composer.setText(draft);
    local.set(draftKey(currentId), draft);
    forget(item);
    composer.focus();
  },
  dismiss: forget,
  tryAgain: (item) => outbox.retry(item.requestId),
});

function forget(item) {
  if (item.requestId) outbox.discard(item.requestId);
  else conversation?.forgetInput(item.inputId);
}

const dock = createDock(byId("dock"), {
  async answer(prompt, body) {
    const asked = conversation;
    try {
      await api.answer(prompt.id, { generation: prompt.generation, ...body });
    } catch (error) {
      complain(error, "Not answered");
      if (error instanceof ApiError) await asked?.rereadPrompts().catch(() => {});
    }
  },
  /** What was asked goes into the box. Sent, it is a message like any other, whose turn closes the matter. */
  editAndSend(interrupted) {
    const asked = (conversation?.state?.messages ?? [])
      .filter((row) => row.run_id === interrupted.run_id && row.role === "user" && row.kind === "message")
      .map((row) => row.text)
      .join("\n\n");
    const draft = composer.text().trim();
    composer.setText(draft === "" || draft === asked.trim() ? asked : `${draft}\n\n${asked}`);
    local.set(draftKey(currentId), composer.text());
    composer.focus();
  },
  async resolve(interrupted, decision) {
    try {
      await api.resolve(currentId, { generation: interrupted.generation, decision });
    } catch (error) {
      complain(error, "Not done");
    }
  },
});

async function stop(queue) {
  const turn = conversation?.state && runningTurn(conversation.state);
  if (!turn) return;
  stopping = turn.run_id;
  render();
  try {
    await api.stop(currentId, { generation: turn.generation, queue });
  } catch (error) {
    stopping = null;
    if (error.code === "not_running" || error.code === "stale_generation") toast("That turn is over already.");
    else complain(error, "Not stopped");
    render();
  }
}

const composer = createComposer(
  {
    form: byId("composer"),
    field: byId("composer-field"),
    send: byId("send"),
    stop: byId("stop"),
    hint: byId("hint"),
  },
  {
    submit,
    stop: () => stop("cancel"),
    draft(text) {
      if (text === "") local.remove(draftKey(currentId));
      else local.set(draftKey(currentId), text);
    },
  },
);

const scroll = createScroll({
  scroller: byId("scroller"),
  transcript: byId("transcript"),
  jump: byId("jump"),
  onStart: readOlder,
});
byId("older").addEventListener("click", readOlder);

async function readOlder() {
  try {
    await conversation?.older();
  } catch (error) {
    if (conversation && !conversation.closed) complain(error, "Earlier messages not read");
  }
}

// ---- Drawing ----------------------------------------------------------------------------------

function render() {
  const state = conversation?.state ?? null;
  const phase = conversation?.phase;
  const unsent = currentId === null ? [] : [...echoes, ...outbox.of(currentId)];
  const isMissing = phase === PHASE.missing || phase === PHASE.deleted;
  // Whoever is to log in first is shown nothing that an earlier one has read.
  const tails = currentId === null || isMissing || login.isOpen ? [] : memory.turnsOf(currentId);
  const shown = state ? fold(state, tails) : preview(currentId, tails, phase === PHASE.lost);
  const items = itemsOf(shown, unsent);
  const isAbsent = !state && unsent.length === 0 && isMissing;
  const isDeleted = phase === PHASE.deleted;

  scroll.around(() => {
    renderTranscript(isAbsent ? [] : items);
    setAttribute(byId("older"), "hidden", !state?.hasMore);
    setAttribute(byId("welcome"), "hidden", !(currentId === null || (state && items.length === 0)));
    // While the server is only being asked, nobody could read a note before the answer comes.
    setAttribute(byId("kept"), "hidden", Boolean(state) || tails.length === 0 || phase !== PHASE.lost);
    setAttribute(byId("loading"), "hidden", !(conversation && !state && !isAbsent && items.length === 0 && !isDeleted));
    setAttribute(byId("absent"), "hidden", !isAbsent && !isDeleted);
    setText(byId("absent-title"), isDeleted ? "This conversation was deleted" : "There is no such conversation");
    setText(byId("absent-text"), isDeleted ? "What is still on the screen can be read until you leave it." : "It may belong to somebody else, or to another server.");
  });
  if (state?.hasMore && scroll.fits()) readOlder();

  renderHead(state, unsent);
  renderLost();
  dock.update(state);
  dock.tick(Date.now());
  renderComposer(state, isAbsent || isDeleted);
  sessions.select(currentId);
}

function renderHead(state, unsent) {
  const title = state
    ? titleOf(state.session)
    : unsent.find((entry) => entry.title)?.title ?? (currentId === null ? "New conversation" : sessions.titleOf(currentId));
  setText(byId("title"), title);
  const [name, words] = stateWords(state);
  const chip = byId("state");
  chip.dataset.state = name;
  setText(chip, words);
  setAttribute(chip, "hidden", words === "");
  const mark = name === "waiting" ? "● " : name === "running" ? "… " : "";
  const tab = currentId === null ? "Everturn" : `${mark}${title} · Everturn`;
  if (document.title !== tab) document.title = tab;
}

function stateWords(state) {
  if (!state) return ["", ""];
  const turn = runningTurn(state);
  if (openPrompts(state).length > 0) return ["waiting", "Needs you"];
  // A continuation that a person asked for is no attempt of the server's: its number is 0.
  if (turn?.continuation?.attempt === 0) return ["running", "Continuing, as you asked"];
  if (turn?.continuation) return ["running", `Continuing, attempt ${turn.continuation.attempt}`];
  if (turn) return ["running", stopping === turn.run_id ? "Stopping" : "Answering"];
  if (state.session.state === "interrupted") return ["interrupted", "Interrupted"];
  if (state.session.state === "ended") return ["ended", "Closed"];
  return ["idle", ""];
}

function renderLost() {
  const banner = byId("lost");
  const now = Date.now();
  const shows = lost !== null && now - lost.since >= LOST_QUIET_MS;
  setAttribute(banner, "hidden", !shows);
  if (!shows) return;
  const seconds = Math.max(0, Math.ceil((lost.retryAt - now) / 1000));
  const when = seconds > 0 ? ` Trying again in ${shortSpan(seconds * 1000).replace(".0", "")}.` : " Trying again…";
  const why = lost.error instanceof ApiError ? `The server cannot serve this now: ${lost.error.message}.` : "No contact with the server.";
  setText(byId("lost-text"), `${navigator.onLine ? why : "This device is offline."} What you send is kept here.${when}`);
}

function renderComposer(state, isDisabled) {
  const turn = state && runningTurn(state);
  if (stopping !== null && stopping !== turn?.run_id) stopping = null;
  const isClosed = state?.session?.state === "ended";
  composer.update({
    running: Boolean(turn),
    stopping: stopping !== null,
    disabled: isDisabled,
    placeholder: turn ? "Write the next message" : isClosed ? "A message opens this conversation again" : "Write a message",
    usualHint: [state?.session?.model ?? info?.model, isTouch ? "" : "Enter sends, Shift+Enter makes a new line"].filter(Boolean).join(" · "),
  });
}

// ---- The list ---------------------------------------------------------------------------------

const sessions = createSessions({
  elements: {
    list: byId("entries"),
    more: byId("entries-more"),
    empty: byId("entries-empty"),
    search: byId("search"),
  },
  api,
  onUnauthorized: () => login.open(),
  async rename(session) {
    const title = await askText({ title: "Rename", label: "Title", value: session.title ?? "", action: "Rename" });
    if (title === null) return;
    try {
      await sessions.rename(session, title);
    } catch (error) {
      complain(error, "Not renamed");
    }
  },
  async remove(session) {
    const isBusy = session.state === "running" || session.state === "waiting";
    const sure = await askConfirm({
      title: "Delete this conversation?",
      text: `“${titleOf(session)}” and everything in it will be gone for good.${isBusy ? " Its running turn is stopped first." : ""}`,
      action: "Delete",
    });
    if (!sure) return;
    try {
      await sessions.remove(session);
      local.remove(draftKey(session.id));
      memory.forget(session.id);
      if (session.id === currentId) window.location.hash = "#/";
    } catch (error) {
      complain(error, "Not deleted");
    }
  },
});

// ---- Log-in and server ------------------------------------------------------------------------

const login = createLogin(byId("login"), async (token) => {
  let reply;
  try {
    reply = await api.login(token);
  } catch (error) {
    if (error instanceof ApiError && (error.status === 401 || error.status === 403)) {
      return "The server does not know this token, or it was revoked.";
    }
    return error.message;
  }
  local.set("loggedIn", "1");
  if (!isSame(reply?.principal)) return null;
  await loadInfo();
  sessions.refresh();
  conversation?.wake();
  outbox.wake();
  return null;
});

/**
 * Takes note of who the server says we are. Where that is somebody else than before, nothing of the
 * former one may stay in sight or be sent in the new one's name: the page begins again.
 */
function isSame(name) {
  if (typeof name !== "string" || name === "") return true;
  const known = principal ?? local.get("principal");
  if (known !== null && known !== name) {
    leave();
    local.setAside(known);
    local.set("principal", name);
    local.bringBack(name);
    window.location.replace("/");
    return false;
  }
  principal = name;
  if (local.get("principal") !== name) local.set("principal", name);
  memory.setPrincipal(name);
  return true;
}

/** Ends all work and takes what is on the screen away. */
function leave() {
  outbox.close();
  conversation?.close();
  memory.setPrincipal(null);
  currentId = null;
  conversation = null;
  renderTranscript([]);
}

byId("logout").addEventListener("click", async () => {
  const unsent = outbox.size() + local.keys("aside/").filter((key) => key.includes("/outbox.")).length;
  if (unsent > 0) {
    const sure = await askConfirm({
      title: "Log out?",
      text: unsent === 1 ? "One message has not been sent yet; it will be gone." : `${unsent} messages have not been sent yet; they will be gone.`,
      action: "Log out",
    });
    if (!sure) return;
  }
  try {
    await api.logout();
  } catch (error) {
    if (!(error instanceof ApiError && error.status === 401)) return complain(error, "Not logged out");
  }
  leave();
  // What was written here belongs to whoever was logged in.
  for (const key of local.keys("")) local.remove(key);
  window.location.replace("/");
  return undefined;
});

async function loadInfo() {
  try {
    info = await api.info();
  } catch (error) {
    if (error instanceof ApiError && error.status === 401) login.open();
    return;
  }
  if (!isSame(info.caller?.principal)) return;
  setText(byId("server-about"), info.version ? `Everturn ${info.version}` : "");
  if (info.home) setAttribute(byId("server-about"), "title", info.home);
  setAttribute(byId("logout"), "hidden", local.get("loggedIn") === null);
  const notice = info.notice ?? "";
  setText(byId("notice-text"), notice);
  setAttribute(byId("notice"), "hidden", notice === "" || local.get("noticeSeen") === notice);
  render();
}

byId("notice-close").addEventListener("click", () => {
  local.set("noticeSeen", info?.notice ?? "");
  setAttribute(byId("notice"), "hidden", true);
});

// ---- Window -----------------------------------------------------------------------------------

const drawer = byId("sidebar");
const narrow = window.matchMedia("(max-width: 800px)");

function setDrawer(isOpen) {
  drawer.classList.toggle("open", isOpen);
  drawer.inert = narrow.matches && !isOpen;
  byId("main").inert = narrow.matches && isOpen;
  setAttribute(byId("scrim"), "hidden", !isOpen);
  setAttribute(byId("menu"), "aria-expanded", isOpen ? "true" : "false");
}

function closeDrawer() {
  setDrawer(false);
}

byId("menu").addEventListener("click", () => {
  setDrawer(true);
  byId("sidebar-close").focus();
});
byId("sidebar-close").addEventListener("click", () => {
  closeDrawer();
  byId("menu").focus();
});
byId("scrim").addEventListener("click", closeDrawer);
narrow.addEventListener("change", closeDrawer);
// The address may stay the same, and then nothing else would close the list.
byId("entries").addEventListener("click", (event) => event.target.closest("a") && closeDrawer());
byId("new").addEventListener("click", () => {
  closeDrawer();
  composer.focus();
});

document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || event.isComposing || document.querySelector("dialog[open]")) return;
  const menu = document.querySelector(".menu[open]");
  if (menu) menu.open = false;
  else if (drawer.classList.contains("open")) closeDrawer();
  else composer.escape(Date.now());
});

let pauseTimer = null;

function pauseSoon() {
  clearTimeout(pauseTimer);
  memory.flush();
  pauseTimer = setTimeout(() => conversation?.pause(), HIDDEN_PAUSE_MS);
}

function comeBack() {
  clearTimeout(pauseTimer);
  conversation?.resume();
  if (lost) conversation?.wake();
  outbox.wake();
  sessions.refresh();
}

document.addEventListener("visibilitychange", () => (document.hidden ? pauseSoon() : comeBack()));
window.addEventListener("pagehide", () => memory.flush());
window.addEventListener("online", comeBack);
window.addEventListener("offline", renderLost);
window.addEventListener("hashchange", route);
window.addEventListener("storage", (event) => {
  const key = local.ownKey(event.key);
  if (key === "principal") changedPrincipal(event.newValue);
  else if (key) outbox.changedElsewhere(key, event.newValue);
});
/** In another tab somebody logged out, or in; tabs share the cookie. */
function changedPrincipal(name) {
  if (name === null) memory.setPrincipal(null);
  else if (principal !== null && name !== principal) {
    leave();
    window.location.replace("/");
  }
}

byId("lost-now").addEventListener("click", () => {
  conversation?.wake();
  outbox.wake();
});

setInterval(() => {
  if (document.hidden) return;
  renderLost();
  dock.tick(Date.now());
}, 1_000);
setInterval(() => {
  if (document.hidden || login.isOpen) return;
  sessions.refresh();
  outbox.nudge();
  if (!info) loadInfo();
}, POLL_MS);

setDrawer(false);
principal = local.get("principal");
memory.setPrincipal(principal);
outbox.start();
route();
loadInfo();
sessions.refresh();
