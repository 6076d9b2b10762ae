// Four clients that people use, each reading a stream in its own way and coming back in its own way.
// All of them collect what they got: `{ id, event, data }`.

import { strict as assert } from "node:assert";
import { spawn } from "node:child_process";
import { fileURLToPath } from "node:url";
import { isDeepStrictEqual } from "node:util";
import { EventSource } from "eventsource";
import { SseParser } from "../../page/sse.js";
import { WAIT_MS } from "../harness.mjs";

/** An EventSource tells of events by name only, so that it must know them. */
export const NAMES = [
  "opened", "caught_up", "reset", "malformed", "input.accepted", "input.cancelled", "turn.started", "message.added", "message.updated",
  "session.updated", "run.started", "text.delta", "text.snapshot", "reasoning.delta", "tool.intended", "tool.output", "tool.finished", "prompt.opened",
  "prompt.settled", "steer.taken", "text.resumed", "usage", "run.handed_over", "run.completed", "run.failed", "run.cancelled", "run.interrupted",
];

/** What a reader got so far, and waiting for more of it. */
class Reader {
  got = [];
  opened = 0;
  #waiting = new Set();

  constructor(url) {
    this.url = url;
  }

  take(event) {
    if (event.opened) this.opened += 1;
    else this.got.push(event);
    for (const look of this.#waiting) look();
  }

  /** The events that are numbered: those that say something of the stream itself have no id. */
  get numbered() {
    return this.got.filter(({ event }) => event !== "opened" && event !== "caught_up");
  }

  /** Waits until what it got is as `found` wants it. */
  until(what, found) {
    return new Promise((resolve, reject) => {
      const last = () => JSON.stringify(this.got.slice(-3));
      const timer = setTimeout(() => give(new Error(`${this.name} did not get ${what}; it has ${this.got.length} events, the last ones are ${last()}. ${this.talk ?? ""}`)), WAIT_MS);
      const give = (error) => {
        clearTimeout(timer);
        this.#waiting.delete(look);
        if (error) reject(error);
        else resolve();
      };
      const look = () => found(this) && give();
      this.#waiting.add(look);
      look();
    });
  }
}

/** A program that is started, and prints. */
class Program extends Reader {
  talk = "";

  run(program, args, line) {
    const child = spawn(program, args, { stdio: ["ignore", "pipe", "pipe"] });
    this.child = child;
    child.stdout.setEncoding("utf8");
    child.stdout.on("data", line);
    child.stderr.on("data", (bytes) => (this.talk = (this.talk + bytes).slice(-4_000)));
    return new Promise((resolve) => {
      child.on("error", (error) => {
        this.talk += `${program}: ${error.message}; cargo xtask test sets it up`;
        resolve(-1);
      });
      child.on("close", (code) => resolve(code));
    });
  }

  async stop() {
    this.isStopped = true;
    this.child.kill("SIGKILL");
    await this.ended;
  }
}

/** curl, started again with the last id whenever it ends. */
class Curl extends Program {
  name = "curl";
  codes = [];

  start() {
    this.ended = this.#loop();
    return this;
  }

  async #loop() {
    let id;
    while (!this.isStopped) {
      // It ends when nothing comes for longer than the server's heartbeat.
      const args = ["--silent", "--show-error", "--no-buffer", "--noproxy", "*", "--fail", "--speed-limit", "1", "--speed-time", "7"];
      if (id !== undefined) args.push("--header", `Last-Event-ID: ${id}`);
      const parser = new SseParser();
      let isOpen = false;
      const code = await this.run(process.env.EVERTURN_CURL ?? "curl", [...args, "--header", "Accept: text/event-stream", this.url], (text) => {
        if (!isOpen) this.take({ opened: true });
        isOpen = true;
        for (const frame of parser.push(text)) {
          id = frame.id ?? id;
          this.take({ id, event: frame.event, data: frame.data });
        }
      });
      this.codes.push(code);
      // Nothing and no error: 204, the end.
      if (code === 0 && !isOpen) this.isStopped = true;
      if (!isOpen) await new Promise((resolve) => setTimeout(resolve, 100));
    }
  }
}

/** Python with httpx-sse. */
class Httpx extends Program {
  name = "httpx-sse";

  start() {
    let rest = "";
    const script = fileURLToPath(new URL("reader.py", import.meta.url));
    this.ended = this.run(process.env.EVERTURN_PYTHON ?? "python3", [script, this.url], (text) => {
      const lines = (rest + text).split("\n");
      rest = lines.pop();
      lines.forEach((line) => this.take(JSON.parse(line)));
    });
    return this;
  }
}

/** The package `eventsource`. */
class Npm extends Reader {
  name = "npm eventsource";

  start() {
    this.source = new EventSource(this.url);
    this.source.addEventListener("open", () => this.take({ opened: true }));
    for (const name of NAMES) {
      this.source.addEventListener(name, ({ lastEventId, data }) => this.take({ id: lastEventId, event: name, data }));
    }
    this.ended = new Promise((resolve) => {
      this.source.addEventListener("error", () => this.source.readyState === EventSource.CLOSED && resolve());
    });
    return this;
  }

  async stop() {
    this.source.close();
  }
}

/** A page's own EventSource. */
class Browser extends Reader {
  name = "Chromium";

  constructor(url, browser) {
    super(url);
    this.browser = browser;
  }

  start() {
    this.ended = new Promise((resolve) => (this.end = resolve));
    this.ready = this.#open();
    return this;
  }

  async #open() {
    this.context = await this.browser.newContext();
    const page = await this.context.newPage();
    // An empty page of the same origin, so that the server's own pages do not matter.
    const { origin, pathname, search } = new URL(this.url);
    await page.route(`${origin}/empty`, (route) => route.fulfill({ contentType: "text/html", body: "<!doctype html>" }));
    await page.goto(`${origin}/empty`);
    await page.exposeFunction("take", (event) => (event.end ? this.end() : this.take(event)));
    await page.evaluate(
      ([path, names]) => {
        const source = new EventSource(path);
        source.onopen = () => window.take({ opened: true });
        source.onerror = () => source.readyState === EventSource.CLOSED && window.take({ end: true });
        for (const name of names) {
          source.addEventListener(name, ({ lastEventId, data }) => window.take({ id: lastEventId, event: name, data }));
        }
      },
      [pathname + search, NAMES],
    );
  }

  async stop() {
    await this.ready;
    await this.context.close();
  }
}

/** Each client once, at these addresses (one for each, in order). */
export async function readers(urls, browser) {
  const [curl, httpx, npm, chromium] = urls;
  const all = [new Curl(curl), new Httpx(httpx), new Npm(npm), new Browser(chromium, browser)];
  all.forEach((reader) => reader.start());
  await all[3].ready;
  return all;
}

/** What a client got is what there is, once and in order. */
export function assertWhole(reader, whole) {
  const got = reader.numbered;
  const at = whole.findIndex((event, index) => !isDeepStrictEqual(got[index], event));
  assert.equal(at, -1, `${reader.name}: in place of ${JSON.stringify(whole[at])} it got ${JSON.stringify(got[at])}, after ${JSON.stringify(got[at - 1])}`);
  assert.equal(got.length, whole.length, `${reader.name} got more than there is: ${JSON.stringify(got[whole.length])}`);
}
