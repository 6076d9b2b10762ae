// Small helpers without a DOM and without state.

/** A fresh id: `prefix` plus 32 hex digits of randomness. Works outside secure contexts too. */
export function freshId(prefix) {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return prefix + Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** All text parts of a content list, or the text itself: what a person would read. */
export function plainText(thing) {
  if (typeof thing === "string") return thing;
  if (!thing) return "";
  if (typeof thing.text === "string" && thing.text !== "") return thing.text;
  const parts = Array.isArray(thing) ? thing : thing.content;
  if (!Array.isArray(parts)) return "";
  return parts.filter((part) => part?.type === "text").map((part) => part.text).join("\n");
}

/** Number of image parts, so that a message that is only a picture does not look empty. */
export function imageCount(thing) {
  return Array.isArray(thing?.content) ? thing.content.filter((p) => p?.type === "image").length : 0;
}

/** The first line that says something, cut at a word near `max` characters: a title. */
export function titleFrom(text, max = 60) {
  const line = text.split("\n").map((part) => part.trim()).find((part) => part !== "") ?? "";
  const chars = Array.from(line);
  if (chars.length <= max) return line;
  const cut = chars.slice(0, max).join("");
  const space = cut.lastIndexOf(" ");
  return (space > max / 2 ? cut.slice(0, space) : cut) + "…";
}

// Characters that reorder or hide their neighbours. In an argument that somebody is asked to
// approve they could make a command look like another one, so there they are shown as what they are.
const DECEPTIVE =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u115f\u1160\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff9-\ufffb]|[\u{e0000}-\u{e007f}]/gu;

/** `text` with every deceptive character written as an escape. */
export function visible(text) {
  return text.replace(DECEPTIVE, (char) => `\\u{${char.codePointAt(0).toString(16)}}`);
}

const ANSI = /\u001b(?:\[[0-9;:?]*[ -/]*[@-~]|\][^\u0007\u001b]*(?:\u0007|\u001b\\))/g;

/** Output of a command for reading: without terminal colours, every line end a newline. */
export function outputText(text) {
  return text.replace(ANSI, "").replace(/\r\n?/g, "\n");
}

/** A count for people: 950, 1.2k, 34k, 1.5M. */
export function shortCount(number) {
  if (!Number.isFinite(number)) return "?";
  if (number < 1000) return String(number);
  const [value, unit] = number < 999_500 ? [number / 1000, "k"] : [number / 1_000_000, "M"];
  return (value < 9.95 ? value.toFixed(1).replace(/\.0$/, "") : String(Math.round(value))) + unit;
}

/** A span of milliseconds for people: 0.8 s, 12 s, 3 min 5 s, 2 h 4 min. */
export function shortSpan(ms) {
  if (!Number.isFinite(ms) || ms < 0) return "";
  if (ms < 9_950) return `${(ms / 1000).toFixed(1)} s`;
  const seconds = Math.round(ms / 1000);
  if (seconds < 60) return `${seconds} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return seconds % 60 ? `${minutes} min ${seconds % 60} s` : `${minutes} min`;
  return minutes % 60 ? `${Math.floor(minutes / 60)} h ${minutes % 60} min` : `${minutes / 60} h`;
}

/** How long ago, roughly: now, 5 min, 3 h, 2 d, else a date. */
export function ago(at, now) {
  const then = Date.parse(at);
  if (Number.isNaN(then)) return "";
  const minutes = Math.floor((now - then) / 60_000);
  if (minutes < 1) return "now";
  if (minutes < 60) return `${minutes} min`;
  if (minutes < 24 * 60) return `${Math.floor(minutes / 60)} h`;
  if (minutes < 7 * 24 * 60) return `${Math.floor(minutes / (24 * 60))} d`;
  return new Date(then).toLocaleDateString();
}

/** Date and time in the reader's own format, for tooltips. */
export function fullTime(at) {
  const then = new Date(at);
  return Number.isNaN(then.getTime()) ? "" : then.toLocaleString();
}

/** Bytes that `text` has in UTF-8. */
export function byteLength(text) {
  return new TextEncoder().encode(text).length;
}
