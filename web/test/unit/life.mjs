// Random lives of a session for the tests of tails: every word is said once in the whole life, so that
// whatever is doubled, lost or out of order can be seen.

/** Numbers from 0 to 1, the same for the same seed. */
export function randomOf(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4_294_967_296;
  };
}

/** A server with one session, whose turns go on step by step and may die. */
export class Life {
  constructor(random) {
    this.random = random;
    this.words = 0;
    this.session = { id: "ses_life", state: "idle", generation: 0, offset: 0, running: null };
    this.events = [];
    this.messages = [];
    this.runs = [];
    this.rowIds = 0;
    this.run = null;
    this.emit("session.updated", { session: this.session });
  }

  below(count) {
    return Math.floor(this.random() * count);
  }

  at() {
    return new Date(Date.UTC(2026, 10, 30) + this.session.offset * 100).toISOString();
  }

  emit(event, body = {}, run = null) {
    this.session = { ...this.session, offset: this.session.offset + 1 };
    const record = { event, offset: this.session.offset, at: this.at(), ...(run && { run_id: run.run_id, seq: (run.seq += 1) }), ...structuredClone(body) };
    if (event === "session.updated") record.session = { ...this.session };
    this.events.push(record);
    if (run) run.first ??= record.offset;
  }

  add(row) {
    this.rowIds += 1;
    const message = {
      id: this.rowIds, position: String(this.rowIds).padStart(6, "0"), kind: "message", role: "assistant", text: "", recovered: false,
      run_id: this.run.run_id, generation: this.run.generation, created_at: this.at(), ...row,
    };
    this.messages.push(message);
    this.emit("message.added", { message });
    return message;
  }

  begin(kind = "message") {
    const generation = this.session.generation + 1;
    const run = { run_id: `run_${generation}`, generation, seq: 0, state: "running", started_at: this.at(), text: "", reasoning: "" };
    this.run = run;
    this.runs.push(run);
    this.session = { ...this.session, generation, state: "running", interrupted: undefined, running: { run_id: run.run_id, generation, input_id: `inp_${generation}`, started_at: run.started_at } };
    this.emit("turn.started", { generation, run_id: run.run_id, input_ids: [`inp_${generation}`] });
    this.add({ role: "user", kind, text: `the same question`, input_id: `inp_${generation}` });
    this.emit("run.started", { generation, input_ids: [`inp_${generation}`], attempt: 0 }, run);
    this.emit("session.updated");
  }

  say() {
    this.words += 1;
    const text = `w${this.words} `;
    this.run.text += text;
    this.emit("text.delta", { text }, this.run);
  }

  think() {
    const text = `r${this.words}.${this.run.seq} `;
    this.run.reasoning += text;
    this.emit("reasoning.delta", { text }, this.run);
  }

  keepText(more = {}) {
    const { run } = this;
    if (run.text === "" && run.reasoning === "" && !more.tool_calls) return null;
    const row = this.add({ text: run.text, ...(run.reasoning && { reasoning: run.reasoning }), ...more });
    run.text = "";
    run.reasoning = "";
    return row;
  }

  callTool() {
    const call = { id: `call_${this.rowIds + 1}`, name: "shell", effect: "write", arguments: { command: "date" }, state: "intended" };
    const row = this.keepText({ tool_calls: [{ ...call }] });
    this.emit("tool.intended", { call }, this.run);
    for (let n = this.below(4); n > 0; n -= 1) this.emit("tool.output", { call_id: call.id, text: `o${this.session.offset}\n` }, this.run);
    Object.assign(call, { state: "succeeded", result: `result of ${call.id}` });
    row.tool_calls[0] = call;
    this.emit("tool.finished", { call }, this.run);
    this.add({ role: "tool", text: call.result, tool_call_id: call.id });
  }

  end(state, event, body = {}) {
    Object.assign(this.run, { state: "ended", terminal_state: state, ended_at: this.at() });
    this.emit(event, body, this.run);
    this.session = { ...this.session, state: "idle", running: null };
    this.emit("session.updated");
    this.run = null;
  }

  /** One random thing happens. */
  step() {
    if (!this.run) return this.begin();
    const dice = this.random();
    if (dice < 0.72) return this.say();
    if (dice < 0.8) return this.think();
    if (dice < 0.92) return this.callTool();
    if (dice < 0.94) {
      this.keepText();
      return this.end("cancelled-by-user", "run.cancelled", { by: "local" });
    }
    if (dice < 0.96) return this.interrupt();
    this.keepText();
    return this.end("completed", "run.completed", {});
  }

  /** The process dies; what was told is told again. */
  interrupt() {
    this.keepText({ recovered: true });
    this.add({ role: "system", kind: "interruption", text: "This turn was interrupted." });
    this.end("interrupted", "run.interrupted", { cause: "process_restart", evidence: { text: "It is gone." } });
    if (this.random() < 0.6) this.begin("continuation");
  }

  /** The power fails: of the text that is no row yet only a beginning is left. Returns what is gone. */
  losePower() {
    const { run } = this;
    if (!run) return "";
    const isToken = (event) => event.run_id === run.run_id && /\.(delta|output)$/.test(event.event);
    let from = this.events.length;
    while (from > 0 && isToken(this.events[from - 1])) from -= 1;
    from += this.below(this.events.length - from + 1);
    const gone = this.events.splice(from);
    const lost = gone.filter((event) => event.event === "text.delta").map((event) => event.text).join("");
    run.text = run.text.slice(0, run.text.length - lost.length);
    const thought = gone.filter((event) => event.event === "reasoning.delta").map((event) => event.text).join("");
    run.reasoning = run.reasoning.slice(0, run.reasoning.length - thought.length);
    this.session = { ...this.session, offset: this.session.offset + 1_000 };
    this.interrupt();
    return lost;
  }

  /** What a page reads that is opened now, and where it follows the feed from. */
  snapshot({ rows = Infinity } = {}) {
    const all = structuredClone(this.messages);
    const messages = rows === Infinity ? all : all.slice(-rows);
    return {
      session: structuredClone(this.session),
      messages,
      hasMore: messages.length < all.length,
      inputs: [],
      prompts: [],
      runs: this.runs.map(({ text: _t, reasoning: _r, seq: _s, first: _f, ...run }) => structuredClone(run)).reverse(),
      replayFrom: this.run?.first === undefined ? this.session.offset : this.run.first - 1,
    };
  }
}
