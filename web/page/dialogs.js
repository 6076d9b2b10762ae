// Small questions of the page itself, in `<dialog>` elements: rename, delete, log in.

import { h } from "./dom.js";

/** Asks for a line of text. Resolves with it, or null. */
export function askText({ title, label, value, action }) {
  const field = h("input", { type: "text", id: "dialog-field", value, autocomplete: "off", maxlength: "500" });
  return ask({
    title,
    body: [h("label", { for: "dialog-field" }, label), field],
    action,
    focus: field,
    result: () => field.value.trim() || null,
  });
}

/** Asks yes or no. Resolves with true, or null. */
export function askConfirm({ title, text, action }) {
  return ask({ title, body: [h("p", {}, text)], action, isDanger: true, result: () => true });
}

function ask({ title, body, action, isDanger = false, focus, result }) {
  return new Promise((resolve) => {
    const confirm = h(isDanger ? "button.danger.solid" : "button.primary", { type: "submit", value: "yes" }, action);
    const form = h(
      "form",
      { method: "dialog" },
      h("h2", {}, title),
      body,
      h(
        "div.actions",
        {},
        confirm,
        h("button", { type: "button", onclick: () => dialog.close() }, "Cancel"),
      ),
    );
    const dialog = h("dialog", { "aria-label": title }, form);
    dialog.addEventListener("close", () => {
      resolve(dialog.returnValue === "yes" ? result() : null);
      dialog.remove();
    });
    document.body.append(dialog);
    dialog.showModal();
    (focus ?? confirm).focus();
    focus?.select();
  });
}

/**
 * The log-in box. `attempt(token)` resolves with null when the server let us in, else with a
 * sentence that says why not.
 */
export function createLogin(dialog, attempt) {
  const form = dialog.querySelector("form");
  const field = dialog.querySelector("input");
  const problem = dialog.querySelector(".problem");
  const button = dialog.querySelector("button");
  // There is nothing behind this box that could be used without logging in, so Escape does not
  // close it (a browser may insist: then it comes back).
  let isIn = true;
  dialog.addEventListener("cancel", (event) => event.preventDefault());
  dialog.addEventListener("close", () => {
    if (!isIn) dialog.showModal();
  });
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const token = field.value.trim();
    if (token === "" || button.disabled) return;
    button.disabled = true;
    problem.textContent = "";
    const refused = await attempt(token);
    button.disabled = false;
    if (refused === null) {
      field.value = "";
      isIn = true;
      dialog.close();
    } else {
      problem.textContent = refused;
      field.focus();
      field.select();
    }
  });
  return {
    open() {
      isIn = false;
      if (dialog.open) return;
      dialog.showModal();
      field.focus();
    },
    get isOpen() {
      return dialog.open;
    },
  };
}
