// A server for working on the page: it speaks the shapes of the API from memory, keeps nothing, and
// can be told to misbehave at a chosen moment, which a real server cannot. It is a test fixture and
// proves nothing about Everturn; test/browser.test.mjs runs the page against the real binary.
//
// `node test/fake-server.mjs PORT` serves it for a browser. Messages choose what happens: see PLAYS.

import { createServer } from "node:http";
import { readFile } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import { join } from "node:path";

const PAGE = fileURLToPath(new URL("../page/", import.meta.url));
const TYPES = { html: "text/html; charset=utf-8", js: "text/javascript; charset=utf-8", css: "text/css; charset=utf-8", svg: "image/svg+xml" };
export const CSP =
  "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'self'; frame-ancestors 'none'";

class Refusal extends Error {
  constructor(status, code, detail, headers = {}) {
    super(detail);
    Object.assign(this, { status, code, headers });
  }
}

const MARKDOWN = `## What a turn goes through

Every input is **admitted**, *claimed*, run and settled. The order is fixed:

1. The input is written and synced; only then you get a receipt.
2. A node takes the lease and gives the turn its number.
   - a later holder has a higher epoch
   - an older one can write nothing
3. Deltas are committed, then published.

> What was shown is kept. After a crash it can be read again, byte for byte.

\`\`\`rust
fn settle(lease: &Lease, end: End) -> Result<Settled, OpError> {
    // One transaction: the last message, usage, the terminal record.
    lease.commit(Record::End(end))
}
\`\`\`

| promise | in short | test |
| --- | --- | ---: |
| P1 | accepted means durable | 14 |
| P6 | what was shown is kept | 9 |

See [the design](https://example.com/design) or run \`everturn doctor\`. A link like [this](javascript:alert(1)) is just text.`;

const HOSTILE = `<script>window.pwned = 1</script><img src=x onerror="window.pwned = 2"> <style>body{display:none}</style>

[click](javascript:window.pwned=3) [data](data:text/html,<script>1</script>) ![pic](https://evil.example/track.png)

<iframe src="https://evil.example"></iframe> [good](https://example.com/?a=1&b="2") https://user:pw@evil.example/ <https://example.com/x>

\`<b>code</b>\` **<i>bold</i>**`;

/** What the "model" does: words in the message -> steps. */
const PLAYS = [
  [/hostile/i, () => [{ text: HOSTILE }]],
  [/markdown/i, () => [{ reasoning: "They want to see formatting. I show a heading, a list, code and a table." }, { text: MARKDOWN }]],
  [/shell|approve/i, () => [
    { text: "I would like to run a command for that." },
    { call: { name: "shell", effect: "write", arguments: { command: "cargo test -p everturn-core\n# a second line", timeout_s: 60 }, ask: true, output: "running 42 tests\ntest digest::canonical ... ok\n".repeat(4), result: "exit code 0\n42 passed" } },
    { text: "All 42 tests pass." },
  ]],
  [/ask me/i, () => [
    { text: "One thing first." },
    { call: { name: "ask_user", effect: "read", arguments: { question: "Which colour <b>exactly</b>?", choices: ["red", "dark blue"] }, question: "Which colour <b>exactly</b>?", suggestions: ["red", "dark blue"] } },
    { text: "Thank you." },
  ]],
  [/files|tool/i, () => [
    { text: "Let me look at the workspace." },
    { call: { name: "list_files", effect: "read", arguments: { path: "src" }, output: "", result: "lib.rs\nmain.rs" } },
    { call: { name: "read_file", effect: "read", arguments: { path: "src/lib.rs" }, output: "", result: "//! A crate.\n", fails: true } },
    { text: "There are two files: `lib.rs` and `main.rs`." },
  ]],
  [/fail/i, () => [{ text: "This will not go" }, { fail: { code: "model_unauthorized", message: "the provider refused the key (401)", permanent: true, hint: "check the provider's API key in the environment; `everturn doctor` tests it" } }]],
  [/slow|long/i, () => [{ reasoning: "Counting takes a while." }, { text: Array.from({ length: 400 }, (_, n) => `word${n + 1}`).join(" "), pause: 40 }]],
];

export class FakeServer {
  constructor({ token = null, paceMs = 4, notice = null, model = "script/demo" } = {}) {
    Object.assign(this, { token, paceMs, notice, model });
    /** Tokens of further principals; `token` is that of `local`. */
    this.people = new Map();
    this.sessions = new Map();
    this.inputs = new Map();
    this.identities = new Map();
    this.runs = new Map();
    this.prompts = new Map();
    this.count = 0;
    /** How often each kind of mishap is still to happen. */
    this.mishaps = { lostReceipt: 0, refuseSubmit: 0, unavailable: 0, reset: 0 };
    /** Everything that was asked: "METHOD path". */
    this.log = [];
    this.sockets = new Set();
    this.feeds = new Set();
  }

  async listen(port = 0) {
    this.server = createServer((request, response) => this.#serve(request, response));
    this.server.on("connection", (socket) => {
      this.sockets.add(socket);
      socket.on("close", () => this.sockets.delete(socket));
    });
    await new Promise((resolve) => this.server.listen(port, "127.0.0.1", resolve));
    this.port = this.server.address().port;
    this.url = `http://127.0.0.1:${this.port}`;
    return this;
  }

  /** Cuts every connection and listens no more; what is in memory stays, runs go on. */
  async vanish() {
    const closed = new Promise((resolve) => this.server.close(resolve));
    for (const socket of this.sockets) socket.destroy();
    await closed;
  }

  async close() {
    for (const run of this.runs.values()) run.stopped = true;
    await this.vanish();
  }

  dropFeeds() {
    for (const feed of this.feeds) feed.response.destroy();
  }

  #id(prefix) {
    this.count += 1;
    return `${prefix}${String(this.count).padStart(8, "0")}`;
  }

  // ---- What happens -----------------------------------------------------------------------------

  emit(session, event, body, run) {
    session.offset += 1;
    const at = new Date().toISOString();
    const head = { session_id: session.id, offset: session.offset };
    if (run) Object.assign(head, { run_id: run.run_id, seq: (run.last_seq += 1) });
    const record = { ...head, event, at, ...body };
    session.feed.push(record);
    if (run) run.events.push(record);
    for (const feed of this.feeds) if (feed.session === session && feed.live) feed.send(record);
    return record;
  }

  wire(session) {
    const { id, title, generation, revision, offset, created_at, updated_at } = session;
    const run = session.running;
    const isWaiting = [...this.prompts.values()].some((p) => p.session_id === id && p.state === "open");
    return {
      id, title, generation, revision, offset, created_at, updated_at,
      state: run ? (isWaiting ? "waiting" : "running") : session.interrupted ? "interrupted" : "idle",
      model: null, policy: {}, queue_length: session.queue.length, viewers: 1, metadata: {},
      ...(run && { running: { run_id: run.run_id, generation: run.generation, input_id: run.input_id, started_at: run.started_at, ...(run.continuation && { continuation: run.continuation }) } }),
      ...(session.interrupted && { interrupted: session.interrupted }),
    };
  }

  touch(session) {
    session.updated_at = new Date().toISOString();
    session.offset += 1;
    const wire = this.wire(session);
    session.offset -= 1;
    this.emit(session, "session.updated", { session: wire });
  }

  create(id, title = null, owner = "local") {
    const at = new Date().toISOString();
    const session = { id, title, owner, lostFrom: Infinity, lostTo: -1, generation: 0, revision: 0, offset: 0, created_at: at, updated_at: at, feed: [], messages: [], queue: [], running: null, interrupted: null };
    this.sessions.set(id, session);
    this.touch(session);
    return session;
  }

  add(session, row, run) {
    const id = session.messages.length + 1;
    const message = {
      id, position: id.toString(16).padStart(16, "0"), role: "assistant", kind: "message", text: "", recovered: false,
      created_at: new Date().toISOString(),
      ...(run && { run_id: run.run_id, generation: run.generation }),
      ...row,
    };
    session.messages.push(message);
    this.emit(session, "message.added", { message });
    return message;
  }

  submit(session, text, requestId, kind = "message") {
    const input = { input_id: this.#id("inp_"), session_id: session.id, request_id: requestId, status: "queued", delivery: "queued", replayed: false, kind, text, accepted_at: new Date().toISOString() };
    this.inputs.set(input.input_id, input);
    this.identities.set(`${session.id} ${requestId}`, input);
    if (kind === "continuation") session.queue.unshift(input);
    else session.queue.push(input);
    this.emit(session, "input.accepted", { input_id: input.input_id, request_id: requestId, kind, text, delivery: "queued" });
    setImmediate(() => this.claim(session));
    return input;
  }

  claim(session) {
    if (session.running || session.queue.length === 0) return;
    const input = session.queue.shift();
    session.generation += 1;
    const run = {
      run_id: this.#id("run_"), session_id: session.id, input_id: input.input_id, input_ids: [input.input_id], generation: session.generation, attempt: input.attempt ?? 0,
      state: "running", terminal: false, last_seq: 0, model: this.model, started_at: new Date().toISOString(), events: [], text: "", reasoning: "", continuation: input.continuation,
    };
    this.runs.set(run.run_id, run);
    session.running = run;
    session.interrupted = null;
    input.status = "started";
    this.emit(session, "turn.started", { generation: run.generation, run_id: run.run_id, input_ids: run.input_ids });
    this.add(session, { role: "user", kind: input.kind === "continuation" ? "continuation" : "message", text: input.text, input_id: input.input_id }, run);
    this.emit(session, "run.started", { generation: run.generation, input_ids: run.input_ids, attempt: run.attempt, continues: null, model: this.model }, run);
    this.touch(session);
    this.#play(session, run, input).catch((error) => {
      if (error !== STOPPED) throw error;
    });
  }

  async #wait(run, ms) {
    await new Promise((resolve) => setTimeout(resolve, ms));
    if (run.stopped) throw STOPPED;
  }

  async #play(session, run, input) {
    const found = PLAYS.find(([pattern]) => pattern.test(input.said ?? input.text));
    let steps = found ? found[1]() : [{ text: `You said: ${input.text}` }];
    if (input.kind === "continuation") steps = [{ text: input.rest }];
    let calls = [];
    for (const [index, step] of steps.entries()) {
      if (step.reasoning) await this.#say(session, run, "reasoning", step);
      if (step.text) await this.#say(session, run, "text", step);
      if (step.call) calls.push(step.call);
      if (step.fail) {
        this.#keepText(session, run);
        run.error = step.fail;
        return this.#end(session, run, "failed", "run.failed", { error: step.fail });
      }
      if (calls.length > 0 && !steps[index + 1]?.call) {
        await this.#callTools(session, run, calls);
        calls = [];
      }
    }
    const used = { input_tokens: 1234, output_tokens: 56 };
    run.usage = used;
    this.emit(session, "usage", used, run);
    const message = this.#keepText(session, run);
    return this.#end(session, run, "completed", "run.completed", { message_id: message?.id ?? 0 });
  }

  async #say(session, run, field, step) {
    for (const piece of step[field].match(/\s*\S+/g)) {
      await this.#wait(run, step.pause ?? this.paceMs);
      run[field] += piece;
      this.emit(session, `${field}.delta`, { text: piece }, run);
    }
  }

  #keepText(session, run, more = {}) {
    if (run.text === "" && run.reasoning === "" && !more.tool_calls) return null;
    const message = this.add(session, { text: run.text, ...(run.reasoning && { reasoning: run.reasoning }), ...more }, run);
    run.text = "";
    run.reasoning = "";
    return message;
  }

  async #callTools(session, run, plans) {
    const calls = plans.map(({ name, effect, arguments: args }) => ({ id: this.#id("call_"), name, effect, arguments: args, state: "intended" }));
    const message = this.#keepText(session, run, { tool_calls: calls });
    for (const call of calls) this.emit(session, "tool.intended", { call: { ...call } }, run);
    for (const [index, call] of calls.entries()) {
      const plan = plans[index];
      if (plan.question) {
        call.state = "succeeded";
        call.result = await this.#clarify(session, run, call, plan);
      } else if (plan.ask && !(await this.#ask(session, run, call))) {
        Object.assign(call, { state: "denied", result: "The person denied this call." });
      } else {
        call.state = "running";
        this.emit(session, "message.updated", { message: structuredClone(message) });
        for (const line of plan.output.match(/.*\n/g) ?? []) {
          await this.#wait(run, this.paceMs * 5);
          this.emit(session, "tool.output", { call_id: call.id, text: line }, run);
        }
        await this.#wait(run, this.paceMs * 10);
        Object.assign(call, { state: plan.fails ? "failed" : "succeeded", result: plan.result });
      }
      this.emit(session, "tool.finished", { call: { ...call } }, run);
      this.add(session, { role: "tool", text: call.result, tool_call_id: call.id }, run);
    }
  }

  async #ask(session, run, call) {
    const what = { kind: "approval", question: `Run ${call.name}?`, choices: ["once", "session", "always", "deny"] };
    const prompt = await this.#put(session, run, call, what, 300_000);
    return prompt.choice !== "deny";
  }

  async #clarify(session, run, call, { question, suggestions }) {
    const what = { kind: "clarification", question, choices: [], ...(suggestions && { suggestions }) };
    const prompt = await this.#put(session, run, call, what, 3_600_000);
    return prompt.text;
  }

  async #put(session, run, call, what, waits) {
    const prompt = {
      id: this.#id("prm_"), session_id: session.id, run_id: run.run_id, generation: run.generation, state: "open", ...what,
      call: { ...call }, opened_at: new Date().toISOString(), expires_at: new Date(Date.now() + waits).toISOString(),
    };
    this.prompts.set(prompt.id, prompt);
    this.emit(session, "prompt.opened", { prompt: { ...prompt } }, run);
    this.touch(session);
    await new Promise((resolve) => (prompt.settled = resolve));
    if (run.stopped) throw STOPPED;
    this.emit(session, "prompt.settled", { prompt: { ...prompt } }, run);
    this.touch(session);
    return prompt;
  }

  #end(session, run, state, event, body) {
    Object.assign(run, { state: "ended", terminal: true, terminal_state: state, ended_at: new Date().toISOString() });
    for (const prompt of this.prompts.values()) {
      if (prompt.run_id === run.run_id && prompt.state === "open") prompt.state = "withdrawn";
    }
    session.running = null;
    session.revision += 1;
    this.emit(session, event, body, run);
    for (const id of run.input_ids) {
      const input = this.inputs.get(id);
      Object.assign(input, { status: "terminal", outcome: state === "cancelled-by-user" ? "cancelled" : state });
    }
    this.touch(session);
    setImmediate(() => this.claim(session));
  }

  /** The executor of the running turn dies and another one takes over, as in API.md. */
  interrupt(session, { continues = true } = {}) {
    const run = session.running;
    run.stopped = true;
    for (const prompt of this.prompts.values()) if (prompt.run_id === run.run_id) prompt.settled?.();
    const said = this.inputs.get(run.input_id).said ?? this.inputs.get(run.input_id).text;
    const whole = PLAYS.find(([pattern]) => pattern.test(said))?.[1]().find((step) => step.text)?.text ?? "";
    const rest = whole.slice(run.text.length);
    const text = `This turn was interrupted: the process that ran it is gone and a newer process of the same home is running. Its last recorded event is text.delta (number ${run.last_seq}) of ${new Date().toISOString()}.`;
    this.#keepText(session, run, { recovered: true });
    this.add(session, { role: "system", kind: "interruption", text }, run);
    const evidence = { text, holder: "node_1", rebooted: false, last_seq: run.last_seq };
    if (!continues) session.interrupted = { run_id: run.run_id, generation: run.generation, cause: "process_restart", evidence };
    run.evidence = evidence;
    this.#end(session, run, "interrupted", "run.interrupted", { cause: "process_restart", evidence });
    if (continues) this.#continue(session, run, rest, said);
    else session.resume = () => this.#continue(session, run, rest, said);
  }

  /**
   * The power fails and takes what was not synced: of the running turn's text only `chars` characters
   * are left, and numbers go on above whatever anybody may have seen. Then as `interrupt`.
   */
  losePower(session, chars, options) {
    const run = session.running;
    const isLost = new Set();
    let length = 0;
    for (const event of run.events.filter((each) => each.event === "text.delta")) {
      length += event.text.length;
      if (length > chars) isLost.add(event);
    }
    session.feed = session.feed.filter((event) => !isLost.has(event));
    run.events = run.events.filter((event) => !isLost.has(event));
    run.text = run.events.filter((event) => event.event === "text.delta").map((event) => event.text).join("");
    session.lostFrom = Math.min(...[...isLost].map((event) => event.offset));
    session.offset += 1_000;
    session.lostTo = session.offset;
    this.interrupt(session, options);
  }

  #continue(session, run, rest, said) {
    const input = this.submit(session, `Finish the interrupted answer to: ${said}`, `continue:${run.run_id}`, "continuation");
    Object.assign(input, { rest, said, attempt: run.attempt + 1, continuation: { attempt: run.attempt + 1, interrupted_at: run.ended_at, of_run: run.run_id, of_generation: run.generation } });
  }

  // ---- HTTP -------------------------------------------------------------------------------------

  async #serve(request, response) {
    const url = new URL(request.url, this.url);
    this.log.push(`${request.method} ${url.pathname}`);
    try {
      if (!url.pathname.startsWith("/v1/")) return await this.#asset(url.pathname, response);
      const chunks = [];
      for await (const chunk of request) chunks.push(chunk);
      const text = Buffer.concat(chunks).toString();
      const body = text ? JSON.parse(text) : {};
      if (url.pathname === "/v1/login") {
        const principal = this.#principalOf(body.token);
        if (!principal) throw new Refusal(401, "unauthorized", "no such token");
        response.writeHead(200, { "content-type": "application/json", "set-cookie": `everturn=${body.token}; HttpOnly; SameSite=Strict; Path=/` });
        return response.end(JSON.stringify({ principal, scopes: ["read", "submit", "control", "approve"] }));
      }
      if (url.pathname === "/v1/logout") {
        response.writeHead(204, { "set-cookie": "everturn=; Max-Age=0; Path=/" });
        return response.end();
      }
      const cookie = /(?:^|; )everturn=([^;]*)/.exec(request.headers.cookie ?? "")?.[1];
      const caller = this.token || this.people.size > 0 ? this.#principalOf(cookie) : "local";
      if (!caller) throw new Refusal(401, "unauthorized", "a valid token is needed");
      if (this.mishaps.unavailable > 0) {
        this.mishaps.unavailable -= 1;
        throw new Refusal(503, "storage_unavailable", "the store cannot be used");
      }
      const reply = this.#route(request, url, body, response, caller);
      if (reply === undefined) return undefined;
      response.writeHead(reply.status ?? 200, { "content-type": "application/json" });
      return response.end(JSON.stringify(reply.body));
    } catch (error) {
      if (!(error instanceof Refusal)) throw error;
      const problem = { type: "about:blank", title: error.code, status: error.status, detail: error.message, code: error.code, permanent: error.status < 500 && error.status !== 429 };
      response.writeHead(error.status, { "content-type": "application/problem+json", ...error.headers });
      return response.end(JSON.stringify(problem));
    }
  }

  #principalOf(token) {
    return token && token === this.token ? "local" : this.people.get(token);
  }

  async #asset(path, response) {
    const name = path === "/" ? "index.html" : /^\/assets\/([a-z-]+\.[a-z]+)$/.exec(path)?.[1];
    const type = TYPES[name?.split(".").pop()];
    let bytes = null;
    if (type) bytes = await readFile(join(PAGE, name)).catch(() => null);
    if (!bytes) {
      response.writeHead(404, { "content-type": "text/plain" });
      return response.end("not found");
    }
    response.writeHead(200, { "content-type": type, "cache-control": "no-cache", "content-security-policy": CSP, "x-content-type-options": "nosniff" });
    return response.end(bytes);
  }

  #route(request, url, body, response, caller) {
    const [, , kind, id, part, more] = url.pathname.split("/").map(decodeURIComponent);
    const { method } = request;
    const query = url.searchParams;
    if (kind === "info") return { body: { version: "0.1.0", model: this.model, caller: { principal: caller, scopes: [] }, ...(this.notice && { notice: this.notice }) } };
    if (kind === "sessions" && !id) {
      if (method === "POST") {
        if (this.sessions.has(body.id)) throw new Refusal(409, "session_exists", "the id is taken");
        return { status: 201, body: this.wire(this.create(body.id, body.title, caller)) };
      }
      const q = query.get("q")?.toLowerCase();
      const data = [...this.sessions.values()]
        .filter((s) => s.owner === caller)
        .filter((s) => !q || s.title?.toLowerCase().includes(q))
        .sort((a, b) => (a.updated_at < b.updated_at ? 1 : -1)).map((s) => this.wire(s));
      return { body: { data, next_cursor: null } };
    }
    if (kind === "inputs") {
      const input = this.inputs.get(id);
      const session = this.sessions.get(input?.session_id);
      if (!session?.queue.includes(input)) throw new Refusal(409, "input_not_queued", "it no longer waits");
      session.queue = session.queue.filter((other) => other !== input);
      Object.assign(input, { status: "terminal", outcome: "cancelled" });
      this.emit(session, "input.cancelled", { input_id: id, reason: "withdrawn" });
      this.touch(session);
      return { body: input };
    }
    if (kind === "prompts") {
      const prompt = this.prompts.get(id);
      if (!prompt) throw new Refusal(404, "prompt_not_found", "no such prompt");
      if (prompt.state !== "open") throw new Refusal(409, "already_resolved", "the prompt was settled already");
      if (prompt.generation !== body.generation) throw new Refusal(409, "stale_generation", "another turn was meant");
      const fits = prompt.kind === "approval" ? body.choice !== undefined : body.choice === undefined && typeof body.text === "string";
      if (!fits) throw new Refusal(400, "bad_request", "this is no answer to this prompt");
      Object.assign(prompt, { state: "settled", ...(body.choice && { choice: body.choice }), ...(body.text && { text: body.text }) });
      prompt.settled();
      return { body: prompt };
    }
    if (kind === "runs") {
      const run = this.runs.get(id);
      if (!run) throw new Refusal(404, "run_not_found", "no such run");
      if (part === "events") {
        const events = run.events.slice(0, Number(query.get("max") ?? Infinity));
        return { body: { run_id: id, events, malformed: 0, last_seq: run.last_seq, terminal: run.terminal } };
      }
      return { body: this.#runWire(run) };
    }
    return this.#sessionRoute({ method, id, part, more, query, body, request, response, caller });
  }

  #runWire(run) {
    const { events: _events, text: _text, reasoning: _reasoning, stopped: _stopped, ...wire } = run;
    return wire;
  }

  #sessionRoute({ method, id, part, query, body, request, response, caller }) {
    let session = this.sessions.get(id);
    const isForeign = session && session.owner !== caller;
    if (isForeign || !session && !(part === "inputs" && method === "POST")) throw new Refusal(404, "session_not_found", "there is no such session");
    switch (part) {
      case undefined:
        if (method === "PATCH") {
          if (body.expected_revision !== session.revision) throw new Refusal(409, "revision_conflict", "the session changed meanwhile");
          session.title = body.title;
          session.revision += 1;
          this.touch(session);
        } else if (method === "DELETE") {
          this.sessions.delete(id);
          return { body: {} };
        }
        return { body: this.wire(session) };
      case "messages": {
        const before = query.get("before");
        const limit = Number(query.get("limit") ?? 50);
        const all = before ? session.messages.filter((row) => row.id < Number(before)) : session.messages;
        return { body: { data: all.slice(-limit), has_more: all.length > limit } };
      }
      case "inputs":
        if (method === "GET") return { body: { data: session.queue } };
        if (this.mishaps.refuseSubmit > 0) {
          this.mishaps.refuseSubmit -= 1;
          throw new Refusal(413, "text_too_large", "the text is larger than 1 MiB");
        }
        {
          const known = this.identities.get(`${id} ${body.request_id}`);
          session ??= this.create(id, null, caller);
          const input = known ?? this.submit(session, body.text, body.request_id);
          if (this.mishaps.lostReceipt > 0) {
            this.mishaps.lostReceipt -= 1;
            response.destroy();
            return undefined;
          }
          return { status: 202, body: { ...input, replayed: Boolean(known) } };
        }
      case "turns":
        return { body: { data: [...this.runs.values()].filter((run) => run.session_id === id).reverse().map((run) => this.#runWire(run)), has_more: false } };
      case "prompts":
        return { body: { data: [...this.prompts.values()].filter((p) => p.session_id === id && p.state === "open") } };
      case "stop": {
        const run = session.running;
        if (!run) throw new Refusal(409, "not_running", "no turn is running");
        run.stopped = true;
        for (const prompt of this.prompts.values()) if (prompt.run_id === run.run_id) prompt.settled?.();
        if (body.queue !== "keep") {
          for (const input of session.queue) {
            Object.assign(input, { status: "terminal", outcome: "cancelled" });
            this.emit(session, "input.cancelled", { input_id: input.input_id, reason: "stopped" });
          }
          session.queue = [];
        }
        this.#keepText(session, run);
        this.#end(session, run, "cancelled-by-user", "run.cancelled", { by: "local" });
        return { body: this.#runWire(run) };
      }
      case "resolve": {
        const resume = session.resume;
        session.interrupted = null;
        this.touch(session);
        if (body.decision === "continue") resume();
        return { body: this.wire(session) };
      }
      case "events":
        return this.#feed(session, Number(request.headers["last-event-id"] ?? query.get("after") ?? session.offset), response);
      default:
        throw new Refusal(404, "not_found", "there is no such thing");
    }
  }

  #feed(session, after, response) {
    response.writeHead(200, { "content-type": "text/event-stream" });
    const write = (event, data, id) => response.write(`${id === undefined ? "" : `id: ${id}\n`}event: ${event}\ndata: ${JSON.stringify(data)}\n\n`);
    const feed = { session, live: true, response, send: (record) => write(record.event, record, record.offset) };
    write("opened", { from: after + 1, earliest: 1, latest: session.offset });
    const isLost = after >= session.lostFrom && after < session.lostTo;
    if (this.mishaps.reset > 0 || after > session.offset || isLost) {
      this.mishaps.reset = Math.max(0, this.mishaps.reset - 1);
      write("reset", { reason: after > session.offset ? "ahead" : "lost", latest: session.offset });
    } else {
      for (const record of session.feed) if (record.offset > after) feed.send(record);
    }
    write("caught_up", { at: new Date().toISOString() });
    this.feeds.add(feed);
    const beat = setInterval(() => response.write(": beat\n\n"), 5_000);
    response.on("close", () => {
      clearInterval(beat);
      this.feeds.delete(feed);
    });
    return undefined;
  }
}

const STOPPED = new Error("stopped");

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const server = await new FakeServer({ paceMs: 40, notice: "No model is set up: the built-in demo script answers.", token: process.env.TOKEN ?? null }).listen(Number(process.argv[2] ?? 0));
  process.stdout.write(`listening on ${server.url}\n`);
}
