// The transcript on the screen: items (see items.js) as nodes.

import { createKeyedList, h, icon, setAttribute, setText } from "./dom.js";
import { copyButton, createMarkdown } from "./markdown-view.js";
import { createToolList } from "./tool-view.js";
import { fullTime, outputText, shortCount, shortSpan } from "./util.js";

/**
 * @param actions what the buttons do: `cancelInput(item)`, `runNext(item)`, `sendAgain(item)`,
 *   `dismiss(item)`, `tryAgain(item)`
 */
export function createTranscript(parent, actions) {
  return createKeyedList(parent, (item) => {
    switch (item.type) {
      case "user":
        return userView(item);
      case "assistant":
        return assistantView(item);
      case "pending":
        return pendingView(item, actions);
      case "result":
        return resultView(item);
      case "end":
        return endView(item);
      default:
        return eventView(item);
    }
  });
}

function pictures(count) {
  if (!count) return null;
  return h("p.aside", {}, count === 1 ? "(a picture)" : `(${count} pictures)`);
}

function userView(item) {
  const text = h("div.bubble", { title: fullTime(item.at) });
  const node = h("article.row.user", { "aria-label": "You" }, text);
  // Set anew only when it differs: a selection in it would be lost.
  let shown = null;
  function update(next) {
    if (shown === next.text) return;
    shown = next.text;
    text.replaceChildren(...[next.text, pictures(next.images)].filter(Boolean));
  }
  update(item);
  return { node, update };
}

function reasoningView() {
  const words = h("div.reasoning-text");
  const label = h("span", {}, "Reasoning");
  const node = h("details.reasoning", { hidden: true }, h("summary", {}, icon("chevron"), label), words);
  let shown = "";
  return {
    node,
    update(text, isGoingOn) {
      setAttribute(node, "hidden", text === "");
      if (shown !== text) words.textContent = text;
      shown = text;
      setText(label, isGoingOn ? "Reasoning…" : "Reasoning");
    },
  };
}

function assistantView(item) {
  const reasoning = reasoningView();
  const thinking = h("p.thinking", {}, h("span.dots", { "aria-hidden": "true" }), "Thinking");
  const markdown = createMarkdown("");
  const tools = createToolList();
  const mark = h("span.badge", { title: "Read back from the journal after an interruption" }, "recovered");
  const kept = h("span.badge.kept", {
    title: "The server has less of this answer: it lost the end, or all of it, with the power. This browser had seen it and kept it. The model does not know of it.",
  });
  let text = item.text;
  const copy = copyButton(() => text);
  const node = h(
    "article.row.assistant",
    { "aria-label": "Assistant" },
    mark, kept, reasoning.node, thinking, markdown.node, tools.node, copy,
  );
  function update(next) {
    text = next.text;
    node.classList.toggle("live", next.live);
    setAttribute(node, "aria-busy", next.live ? "true" : null);
    setAttribute(node, "title", next.live ? null : fullTime(next.at));
    reasoning.update(next.reasoning, next.live && next.text === "");
    setAttribute(thinking, "hidden", !next.thinking);
    markdown.update(next.text);
    setAttribute(markdown.node, "hidden", next.text === "");
    tools.update(next.calls);
    setAttribute(mark, "hidden", !next.recovered);
    setAttribute(kept, "hidden", !next.kept);
    const what = next.keptEnd ? "end kept by this browser only" : "kept by this browser only";
    setText(kept, next.cut ? `${what}, and not to its end` : what);
    // It stands in the gap below, where a text with tool cards has no room; and who copies wants
    // the answer.
    if (copy) setAttribute(copy, "hidden", next.live || next.text === "" || next.calls.length > 0);
  }
  update(item);
  return { node, update };
}

const PENDING = {
  sending: "Sending…",
  waiting: "Not sent yet. It is kept here and sent as soon as the server answers.",
  started: "Starting…",
};

function pendingView(item, actions) {
  const text = h("div.bubble");
  const state = h("div.pending-state");
  const node = h("article.row.user.pending", {}, text, state);
  let signature = null;
  function update(next) {
    setText(text, next.text);
    // Buttons are made anew only when they mean something else, so that focus stays.
    const now = JSON.stringify([next.variant, next.busy, next.reason, next.problem, next.kept, next.inputId, next.isNext]);
    if (now === signature) return;
    signature = now;
    node.dataset.variant = next.variant;
    setAttribute(node, "aria-label", `You, ${next.variant}`);
    state.replaceChildren(...pendingState(next, actions).filter(Boolean));
  }
  update(item);
  return { node, update };
}

function pendingState(item, actions) {
  const button = (label, action) => h("button.link", { type: "button", onclick: () => action(item) }, label);
  const words = (text) => h("span", {}, text);
  switch (item.variant) {
    case "queued":
      // Nothing is in front of it: it begins within a moment, and there is nothing to say.
      if (!item.busy) return [words("Accepted")];
      return [
        icon("clock"),
        words("Queued"),
        item.isNext ? button("Run it now", actions.runNext) : null,
        button("Cancel", actions.cancelInput),
      ];
    case "cancelled":
      return [
        words(item.reason === "stopped" ? "Not run: the turn was stopped" : "Cancelled"),
        button("Send again", actions.sendAgain),
        button("Dismiss", actions.dismiss),
      ];
    case "refused":
      return [
        h("span.problem", {}, `Refused: ${item.problem.message}`, item.problem.hint ? ` (${item.problem.hint})` : ""),
        button("Try again", actions.tryAgain),
        button("Edit", actions.sendAgain),
        button("Dismiss", actions.dismiss),
      ];
    case "waiting":
    case "sending":
      return [
        words(item.kept ? PENDING[item.variant] : "Sending. This browser keeps nothing: leave the page open."),
      ];
    default:
      return [words(PENDING[item.variant] ?? "")];
  }
}

function resultView(item) {
  const output = h("pre", { tabindex: "0" });
  const summary = h("summary", {}, icon("chevron"), h("span.tool-name", {}, "Result of a tool call"));
  const node = h("article.row", {}, h("details.tool", {}, summary, h("div.tool-body", {}, output)));
  const update = (next) => setText(output, outputText(next.text));
  update(item);
  return { node, update };
}

const EVENTS = {
  interruption: { icon: "bolt", title: "Interrupted" },
  continuation: { icon: "resume", title: "Continued where it was interrupted", folded: true },
  summary: { icon: "note", title: "Earlier messages, summarised", folded: true },
  note: { icon: "note", title: "Note" },
  "queued-continuation": { icon: "clock", title: "A continuation is queued", folded: true },
  "queued-completion": { icon: "clock", title: "A background result is queued", folded: true },
};

function eventView(item) {
  const kind = EVENTS[item.variant] ?? EVENTS.note;
  const markdown = createMarkdown(item.text);
  const head = [icon(kind.icon), h("strong", {}, kind.title)];
  const node = h("article.row.event", { "data-variant": item.variant, title: fullTime(item.at) });
  if (kind.folded && item.text !== "") {
    const what = item.variant.endsWith("continuation") ? "what the model is told" : "show";
    node.append(h("details", {}, h("summary", {}, head, h("span.aside", {}, what)), markdown.node));
  } else {
    node.append(h("div.event-head", {}, head), markdown.node);
  }
  return { node, update: (next) => markdown.update(next.text) };
}

function usageWords(item) {
  const words = [];
  const { usage } = item;
  if (usage) {
    const cached = usage.cached_input_tokens ? ` (${shortCount(usage.cached_input_tokens)} cached)` : "";
    const thought = usage.reasoning_tokens ? ` (${shortCount(usage.reasoning_tokens)} reasoning)` : "";
    words.push(`${shortCount(usage.input_tokens ?? 0)} tokens in${cached}`);
    words.push(`${shortCount(usage.output_tokens ?? 0)} out${thought}`);
    if (usage.cost) words.push(`${usage.cost.amount} ${usage.cost.currency}`);
  }
  if (Number.isFinite(item.tookMs) && item.tookMs >= 0) words.push(shortSpan(item.tookMs));
  return words.join(" · ");
}

function endView(item) {
  const node = h("div.row.end");
  let signature = null;
  function update(next) {
    const now = JSON.stringify([next.variant, next.error, next.by, next.usage, next.tookMs]);
    if (now === signature) return;
    signature = now;
    node.dataset.variant = next.variant;
    node.replaceChildren();
    if (next.variant === "failed") {
      node.append(
        h(
          "div.failure",
          { role: "group", "aria-label": "The turn failed" },
          h("div.event-head", {}, icon("cross"), h("strong", {}, "This turn failed"), h("code", {}, next.error.code ?? "error")),
          h("p", {}, next.error.message ?? ""),
          // Advice names commands and settings as code.
          next.error.hint ? h("div.advice", {}, createMarkdown(next.error.hint).node) : null,
        ),
      );
    } else if (next.variant === "cancelled") {
      node.append(h("p.stopped", {}, icon("stop"), next.by && next.by !== "local" ? `Stopped by ${next.by}` : "Stopped"));
    }
    const used = usageWords(next);
    if (used) node.append(h("p.usage", {}, used));
  }
  update(item);
  return { node, update };
}
