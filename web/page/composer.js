// The box that is written in, with its two buttons.

import { setAttribute, setText } from "./dom.js";
import { byteLength } from "./util.js";

/** The server's limit for the text of one input, in bytes. */
export const TEXT_BYTES_MAX = 1024 * 1024;

const ESC_AGAIN_MS = 2_000;

/**
 * @param elements `{form, field, send, stop, hint}`
 * @param actions `submit(text)` returns whether it took the text; `stop()`;
 *   `draft(text)` whenever it changed
 */
export function createComposer(elements, actions) {
  const { form, field, send, stop, hint } = elements;
  let isRunning = false;
  let escapedAt = -Infinity;
  let usual = "";

  function fit() {
    field.style.height = "auto";
    field.style.height = `${Math.min(field.scrollHeight, window.innerHeight * 0.4)}px`;
  }

  function show() {
    const isEmpty = field.value.trim() === "";
    send.disabled = isEmpty;
    const label = isRunning ? "Send; it runs after the current turn" : "Send";
    setAttribute(send, "aria-label", label);
    setAttribute(send, "title", label);
  }

  function submit() {
    const text = field.value;
    if (text.trim() === "") return;
    const bytes = byteLength(text);
    if (bytes > TEXT_BYTES_MAX) {
      say(`This is ${(bytes / TEXT_BYTES_MAX).toFixed(1)} MiB long; one message holds at most 1 MiB.`, true);
      return;
    }
    if (!actions.submit(text)) return;
    field.value = "";
    say("");
    fit();
    show();
  }

  function say(text, isProblem = false) {
    setText(hint, text || usual);
    hint.classList.toggle("problem", isProblem);
  }

  field.addEventListener("input", () => {
    fit();
    show();
    say("");
    actions.draft(field.value);
  });
  field.addEventListener("keydown", (event) => {
    // While an input method is composing, Enter belongs to it.
    if (event.isComposing || event.keyCode === 229) return;
    if (event.key === "Enter" && !event.shiftKey && !event.altKey) {
      event.preventDefault();
      submit();
    }
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    submit();
    field.focus();
  });
  stop.addEventListener("click", () => actions.stop());

  return {
    /** Escape, once it closed nothing else: the second one within two seconds stops the turn. */
    escape(now) {
      if (!isRunning) return;
      if (now - escapedAt < ESC_AGAIN_MS) {
        escapedAt = -Infinity;
        actions.stop();
        return;
      }
      escapedAt = now;
      say("Press Esc again to stop the turn.");
      setTimeout(() => say(""), ESC_AGAIN_MS);
    },
    setText(text) {
      field.value = text;
      fit();
      show();
    },
    text: () => field.value,
    focus() {
      field.focus({ preventScroll: true });
      field.setSelectionRange(field.value.length, field.value.length);
    },
    update({ running, stopping, disabled, placeholder, usualHint }) {
      isRunning = running;
      setAttribute(stop, "hidden", !running);
      stop.disabled = stopping;
      field.disabled = disabled;
      setAttribute(field, "placeholder", placeholder);
      if (usual !== usualHint) {
        usual = usualHint;
        say("");
      }
      show();
    },
    fit,
  };
}
