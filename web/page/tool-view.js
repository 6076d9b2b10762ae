// Tool calls as cards that open and close.

import { createKeyedList, h, icon, setAttribute, setText } from "./dom.js";
import { copyButton } from "./markdown-view.js";
import { outputText, visible } from "./util.js";

const STATES = {
  intended: { icon: "clock", label: "waiting" },
  asked: { icon: "question", label: "needs your approval" },
  running: { icon: null, label: "running" },
  succeeded: { icon: "check", label: "done" },
  failed: { icon: "cross", label: "failed" },
  denied: { icon: "cross", label: "denied" },
  not_run: { icon: "cross", label: "not run" },
  unknown: { icon: "question", label: "outcome unknown" },
};

const EFFECTS = {
  read: ["reads", "Changes nothing: it may be run again after an interruption"],
  idempotent: ["repeatable", "Running it twice is the same as running it once"],
  write: ["writes", "Runs at most once: after an interruption it is never run again"],
};

/** Characters of the line in a closed card. */
const SUMMARY_CHARS = 120;

/** Arguments as an object, or null where the model wrote something else. */
export function parseArguments(args) {
  if (args && typeof args === "object") return Array.isArray(args) ? null : args;
  try {
    const value = JSON.parse(args);
    return value && typeof value === "object" && !Array.isArray(value) ? value : null;
  } catch {
    return null;
  }
}

/** One line that says what the call is about: its first text argument. */
export function argumentLine(args) {
  const parsed = parseArguments(args);
  const first = parsed
    ? Object.values(parsed).find((value) => typeof value === "string" && value.trim() !== "")
    : typeof args === "string" ? args : "";
  const line = (first ?? "").split("\n").find((part) => part.trim() !== "") ?? "";
  const chars = Array.from(visible(line.trim()));
  return chars.length > SUMMARY_CHARS ? `${chars.slice(0, SUMMARY_CHARS).join("")}…` : chars.join("");
}

/** Arguments for people to read in full: one part each, texts as they are, all else as JSON. */
export function argumentsView(args) {
  const parsed = parseArguments(args);
  if (!parsed) {
    const raw = typeof args === "string" ? args : JSON.stringify(args);
    return [h("pre", { tabindex: "0" }, visible(raw ?? ""))];
  }
  const entries = Object.entries(parsed);
  if (entries.length === 0) return [h("p.aside", {}, "no arguments")];
  return [
    h(
      "dl.arguments",
      {},
      entries.map(([name, value]) => [
        h("dt", {}, visible(name)),
        h("dd", {}, h("pre", { tabindex: "0" }, visible(typeof value === "string" ? value : JSON.stringify(value, null, 2)))),
      ]),
    ),
  ];
}

/** Returns `{node, update(calls)}`. */
export function createToolList() {
  const node = h("div.tools");
  const render = createKeyedList(node, toolView);
  return {
    node,
    update(calls) {
      render(calls.map((call) => ({ ...call, key: call.id, type: "tool" })));
      setAttribute(node, "hidden", calls.length === 0);
    },
  };
}

function toolView(call) {
  const mark = h("span.tool-mark");
  const line = h("code.tool-line");
  const effect = h("span.badge");
  const state = h("span.tool-state");
  const args = h("div");
  const label = h("h4", {}, "Output");
  const output = h("pre.output", { tabindex: "0" });
  const copy = copyButton(() => output.textContent);
  const head = h("div.output-head", {}, label, copy);
  const node = h(
    "details.tool",
    {},
    h("summary", {}, icon("chevron"), mark, h("span.tool-name", {}, visible(call.name)), line, effect, state),
    h("div.tool-body", {}, args, head, output),
  );

  // The card opens by itself while there is something to watch and closes when that went well,
  // until the reader takes over.
  let byHand = false;
  let wanted = null;
  node.firstChild.addEventListener("click", () => (byHand = true));
  let shownState = null;
  let shownArguments = null;
  let shown = {};

  function update(next) {
    // Outputs are long and most cards do not change while another text streams.
    if (Object.keys(next).every((field) => next[field] === shown[field])) return;
    shown = next;
    const name = next.asked ? "asked" : (STATES[next.state] ? next.state : "unknown");
    if (shownState !== name) {
      shownState = name;
      node.dataset.state = name;
      const look = STATES[name];
      mark.replaceChildren(look.icon ? icon(look.icon) : h("span.spinner", { "aria-hidden": "true" }));
      setText(state, look.label);
    }
    const [word, why] = EFFECTS[next.effect] ?? ["", ""];
    setText(effect, word);
    setAttribute(effect, "title", why);
    setAttribute(effect, "hidden", word === "");

    const raw = typeof next.arguments === "string" ? next.arguments : JSON.stringify(next.arguments ?? "");
    if (shownArguments !== raw) {
      shownArguments = raw;
      setText(line, argumentLine(next.arguments));
      args.replaceChildren(...argumentsView(next.arguments));
    }
    const text = next.result ?? next.output;
    const atEnd = output.scrollHeight - output.scrollTop - output.clientHeight < 24;
    setText(output, outputText(text));
    setText(label, next.result !== null ? "Result" : "Output so far");
    setAttribute(head, "hidden", text === "");
    setAttribute(output, "hidden", text === "");
    if (atEnd && next.result === null) output.scrollTop = output.scrollHeight;

    // A call that asks is shown in full where it is answered.
    const wants = name === "unknown" || (name === "running" && text !== "");
    if (!byHand && wants !== wanted) node.open = wants;
    wanted = wants;
  }
  update(call);
  return { node, update };
}
