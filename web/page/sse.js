// A parser for `text/event-stream`. The page reads its feed with fetch and not with EventSource,
// because only fetch tells a refused log-in from a lost connection, and lets the page choose when
// to come back.

/** Takes text as it arrives, in pieces of any size, and gives back the frames that are complete. */
export class SseParser {
  #buffer = "";
  #event = "";
  #id = undefined;
  #data = [];
  #started = false;
  #skipLf = false;

  /** @returns {{event: string, id: string | undefined, data: string}[]} */
  push(chunk) {
    if (chunk === "") return [];
    if (!this.#started) {
      this.#started = true;
      if (chunk.charCodeAt(0) === 0xfeff) chunk = chunk.slice(1);
    }
    if (this.#skipLf && chunk[0] === "\n") chunk = chunk.slice(1);
    this.#skipLf = false;
    const text = this.#buffer + chunk;
    const frames = [];
    let start = 0;
    // Only the new part can hold a line end; what was buffered had none.
    let index = this.#buffer.length;
    for (; index < text.length; index += 1) {
      const code = text.charCodeAt(index);
      if (code !== 10 && code !== 13) continue;
      const frame = this.#line(text.slice(start, index));
      if (frame) frames.push(frame);
      if (code === 13) {
        if (index + 1 === text.length) this.#skipLf = true;
        else if (text.charCodeAt(index + 1) === 10) index += 1;
      }
      start = index + 1;
    }
    this.#buffer = text.slice(start);
    return frames;
  }

  #line(line) {
    if (line === "") return this.#dispatch();
    const colon = line.indexOf(":");
    if (colon === 0) return null;
    const field = colon < 0 ? line : line.slice(0, colon);
    let value = colon < 0 ? "" : line.slice(colon + 1);
    if (value[0] === " ") value = value.slice(1);
    if (field === "event") this.#event = value;
    else if (field === "data") this.#data.push(value);
    else if (field === "id" && !value.includes("\0")) this.#id = value;
    return null;
  }

  #dispatch() {
    const data = this.#data;
    const frame = { event: this.#event || "message", id: this.#id, data: data.join("\n") };
    this.#event = "";
    this.#id = undefined;
    this.#data = [];
    return data.length > 0 ? frame : null;
  }
}
