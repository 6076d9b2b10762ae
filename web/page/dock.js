// What waits for a person, above the composer: approvals, questions, an interrupted turn.

import { createKeyedList, h, icon, setAttribute, setText } from "./dom.js";
import { openPrompts } from "./feed.js";
import { evidenceText } from "./items.js";
import { argumentsView } from "./tool-view.js";
import { shortSpan, visible } from "./util.js";

const CHOICES = {
  once: ["Allow once", "primary"],
  session: ["Allow in this conversation", ""],
  always: ["Always allow", ""],
  deny: ["Deny", "danger"],
};

/**
 * @param actions `answer(prompt, {choice | text})`, `resolve(interrupted, decision)`; both return a
 *   promise that ends when the server has answered
 */
export function createDock(parent, actions) {
  const render = createKeyedList(parent, (item) =>
    item.type === "prompt" ? promptView(item, actions) : interruptedView(item, actions),
  );
  return {
    update(state) {
      const items = state
        ? openPrompts(state).map((prompt) => ({ key: prompt.id, type: "prompt", prompt }))
        : [];
      const interrupted = state?.session?.interrupted;
      if (interrupted && !state.session.running && !isContinued(state)) {
        const isMarked = state.messages.some(
          (row) => row.kind === "interruption" && row.run_id === interrupted.run_id,
        );
        items.push({ key: interrupted.run_id, type: "interrupted", interrupted, isMarked });
      }
      render(items);
      setAttribute(parent, "hidden", items.length === 0);
    },
    /** Updates what depends on the clock. */
    tick(now) {
      for (const element of parent.querySelectorAll("[data-expires]")) {
        const left = Number(element.dataset.expires) - now;
        setText(element, left > 0 ? `expires in ${shortSpan(Math.max(1000, Math.floor(left / 1000) * 1000))}` : "expiring");
      }
    },
  };
}

/** A continuation is queued already: there is nothing to decide. */
function isContinued(state) {
  return Object.values(state.inputs).some(
    (input) => input.kind === "continuation" && input.status === "queued",
  );
}

/** Keeps buttons from being pressed twice while an answer is on its way. */
function whileBusy(node, run) {
  return async (...args) => {
    if (node.getAttribute("aria-busy")) return;
    setAttribute(node, "aria-busy", "true");
    try {
      await run(...args);
    } finally {
      setAttribute(node, "aria-busy", null);
    }
  };
}

function promptView({ prompt }, actions) {
  const heading = `prompt-${prompt.id}`;
  const node = h("section.card.prompt", { "aria-labelledby": heading });
  const answer = whileBusy(node, (body) => actions.answer(prompt, body));
  const expires = Date.parse(prompt.expires_at);
  const call = prompt.call;
  const isApproval = prompt.kind === "approval";
  const title = isApproval && call
    ? ["Allow ", h("code", {}, visible(call.name ?? "tool")), "?"]
    : [visible(prompt.question ?? "")];
  node.append(
    h(
      "div.card-head",
      {},
      icon("question"),
      h("h2", { id: heading }, title),
      Number.isNaN(expires) ? null : h("span.aside", { "data-expires": expires }),
    ),
  );
  // The whole call is shown, not the question's shortened words about it. A call that asks is the
  // question itself.
  if (isApproval && call) node.append(h("div.card-body", {}, argumentsView(call.arguments)));
  const suggested = isApproval ? null : suggestionButtons(prompt, answer);
  if (suggested) node.append(suggested);
  node.append(choiceButtons(prompt, answer) ?? answerForm(answer));
  return { node, update: () => {} };
}

/** What the model proposes as answers; the field beside them takes any other. */
function suggestionButtons(prompt, answer) {
  if (!prompt.suggestions?.length) return null;
  return h(
    "div.actions.suggestions",
    {},
    prompt.suggestions.map((text) =>
      h("button", { type: "button", onclick: () => answer({ text }) }, visible(String(text))),
    ),
  );
}

function choiceButtons(prompt, answer) {
  const choices = prompt.choices?.length ? prompt.choices : prompt.kind === "approval" ? Object.keys(CHOICES) : [];
  if (choices.length === 0) return null;
  return h(
    "div.actions",
    {},
    choices.map((choice) => {
      const [label, look] = CHOICES[choice] ?? [visible(String(choice)), ""];
      const button = h(look ? `button.${look}` : "button", { type: "button" }, label);
      button.addEventListener("click", () => answer({ choice }));
      return button;
    }),
  );
}

function answerForm(answer) {
  const field = h("input", { type: "text", "aria-label": "Your answer", autocomplete: "off" });
  const form = h("form.actions", {}, field, h("button.primary", { type: "submit" }, "Answer"));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (field.value.trim() !== "") answer({ text: field.value });
  });
  return form;
}

function interruptedView({ interrupted, isMarked }, actions) {
  const heading = `interrupted-${interrupted.run_id}`;
  const node = h("section.card.interrupted", { "aria-labelledby": heading });
  const resolve = whileBusy(node, (decision) => actions.resolve(interrupted, decision));
  node.append(
    h("div.card-head", {}, icon("bolt"), h("h2", { id: heading }, "The last turn was interrupted")),
    // The marker in the transcript has said it, where there is one.
    isMarked ? "" : h("p", {}, evidenceText(interrupted.evidence, interrupted.cause)),
    h(
      "div.actions",
      {},
      h("button.primary", { type: "button", onclick: () => resolve("continue") }, "Continue it"),
      h("button", { type: "button", onclick: () => actions.editAndSend(interrupted) }, "Edit and send again"),
      h("button", { type: "button", onclick: () => resolve("discard") }, "Leave it"),
    ),
  );
  return { node, update: () => {} };
}
