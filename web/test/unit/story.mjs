// A session's life as a server would tell it, event by event, with what each read would answer at
// each moment. Tests look at the page's state from every possible place in it.

/** Builds the story: `events`, and `at(offset)` with the answers of all reads at that moment. */
export function tellStory() {
  const id = "ses_story";
  const clock = (n) => new Date(Date.UTC(2026, 10, 30, 6, 0, 0, n * 100)).toISOString();
  const events = [];
  const moments = [];
  let session = { id, title: "Story", state: "idle", generation: 0, revision: 0, queue_length: 0, offset: 0, updated_at: clock(0) };
  let messages = [];
  let queue = [];
  let prompts = {};
  let runs = {};

  const keep = () => {
    moments[session.offset] = structuredClone({
      session,
      messages,
      inputs: queue,
      prompts: Object.values(prompts).filter((prompt) => prompt.state === "open"),
      runs: Object.values(runs).map(({ first: _first, ...run }) => run).reverse(),
      heads: Object.fromEntries(Object.values(runs).map((run) => [run.run_id, run.first])),
    });
  };
  const emit = (event, body = {}, run = null) => {
    session = { ...session, offset: session.offset + 1 };
    const record = { session_id: id, offset: session.offset, event, at: clock(session.offset), ...structuredClone(body) };
    if (run) {
      run.seq = (run.seq ?? 0) + 1;
      Object.assign(record, { run_id: run.run_id, seq: run.seq });
      run.first ??= session.offset;
    }
    events.push(record);
    keep();
  };
  // A change and the event that tells it are one transaction: nobody sees the one without the other.
  const touch = (fields = {}) => {
    session = { ...session, ...fields, queue_length: queue.length };
    emit("session.updated", { session: { ...session, offset: session.offset + 1 } });
  };
  const accept = (n, text, kind = "message") => {
    const input = { input_id: `inp_${n}`, request_id: `req_${n}`, kind, text, status: "queued", accepted_at: clock(session.offset + 1) };
    if (kind === "continuation") queue = [input, ...queue];
    else queue = [...queue, input];
    emit("input.accepted", { input_id: input.input_id, request_id: input.request_id, kind, text, delivery: "queued" });
    touch();
    return input;
  };
  const add = (row, run) => {
    const message = {
      id: messages.length + 1, position: String(messages.length + 1).padStart(4, "0"), kind: "message", recovered: false, created_at: clock(session.offset),
      ...(run && { run_id: run.run_id, generation: run.generation }), ...row,
    };
    messages = [...messages, message];
    emit("message.added", { message });
    return message;
  };
  const update = (message, fields) => {
    const next = { ...message, ...fields };
    messages = messages.map((row) => (row.id === message.id ? next : row));
    emit("message.updated", { message: next });
    return next;
  };
  const claim = (n, kind = "message") => {
    const input = queue[0];
    queue = queue.slice(1);
    const generation = session.generation + 1;
    const run = { run_id: `run_${n}`, generation, attempt: 0, state: "running", terminal: false, model: "script/story", started_at: clock(session.offset + 3) };
    session = { ...session, generation, state: "running", running: { run_id: run.run_id, generation, input_id: input.input_id, started_at: run.started_at } };
    runs = { ...runs, [run.run_id]: run };
    emit("turn.started", { generation, run_id: run.run_id, input_ids: [input.input_id] });
    add({ role: "user", kind, text: input.text, input_id: input.input_id }, run);
    emit("run.started", { generation, input_ids: [input.input_id], attempt: 0, continues: null, model: "script/story" }, run);
    touch();
    return run;
  };
  const usage = (run, input_tokens, output_tokens) => {
    const before = run.usage ?? { input_tokens: 0, output_tokens: 0 };
    run.usage = { input_tokens: before.input_tokens + input_tokens, output_tokens: before.output_tokens + output_tokens };
    emit("usage", { input_tokens, output_tokens }, run);
  };
  const end = (run, terminal_state, event, body) => {
    Object.assign(run, { state: "ended", terminal: true, terminal_state, ended_at: clock(session.offset + 1), ...(body.error && { error: body.error }), ...(body.evidence && { evidence: body.evidence, cause: body.cause }) });
    emit(event, body, run);
    session = { ...session, state: "idle", running: undefined, revision: session.revision + 1 };
    touch();
  };

  touch();
  accept(1, "First question");
  const one = claim(1);
  emit("reasoning.delta", { text: "Let me " }, one);
  emit("reasoning.delta", { text: "think. " }, one);
  for (const text of ["I ", "will ", "look."]) emit("text.delta", { text }, one);
  // The person writes on while the turn runs, and takes one of the two back.
  accept(2, "Second question");
  accept(3, "Never mind this");
  let call = { id: "call_1", name: "shell", arguments: { command: "date" }, effect: "write", state: "intended" };
  const asking = add({ role: "assistant", text: "I will look.", reasoning: "Let me think. ", tool_calls: [call] }, one);
  emit("tool.intended", { call }, one);
  usage(one, 100, 10);
  const prompt = { id: "prm_1", run_id: one.run_id, generation: 1, kind: "approval", state: "open", question: "Run shell?", call, choices: ["once", "deny"], opened_at: clock(1), expires_at: clock(9999) };
  prompts = { ...prompts, prm_1: prompt };
  session = { ...session, state: "waiting" };
  emit("prompt.opened", { prompt }, one);
  touch();
  queue = queue.filter((input) => input.input_id !== "inp_3");
  emit("input.cancelled", { input_id: "inp_3", reason: "withdrawn" });
  touch();
  prompts = { ...prompts, prm_1: { ...prompt, state: "settled", choice: "once" } };
  session = { ...session, state: "running" };
  emit("prompt.settled", { prompt: prompts.prm_1 }, one);
  touch();
  call = { ...call, state: "running" };
  update(asking, { tool_calls: [call] });
  emit("tool.output", { call_id: call.id, text: "Mon " }, one);
  emit("tool.output", { call_id: call.id, text: "30 Nov\n" }, one);
  call = { ...call, state: "succeeded", result: "Mon 30 Nov\n" };
  messages = messages.map((row) => (row.id === asking.id ? { ...row, tool_calls: [call] } : row));
  emit("tool.finished", { call }, one);
  add({ role: "tool", text: call.result, tool_call_id: call.id }, one);
  for (const text of ["It is ", "Monday."]) emit("text.delta", { text }, one);
  const last = add({ role: "assistant", text: "It is Monday." }, one);
  usage(one, 120, 5);
  end(one, "completed", "run.completed", { message_id: last.id });

  const two = claim(2);
  for (const text of ["The answer ", "has three ", "parts: "]) emit("text.delta", { text }, two);
  // The process dies here; another one records it.
  add({ role: "assistant", text: "The answer has three parts: ", recovered: true }, two);
  add({ role: "system", kind: "interruption", text: "This turn was interrupted." }, two);
  end(two, "interrupted", "run.interrupted", { cause: "process_restart", evidence: { text: "This turn was interrupted." } });
  accept(4, "Finish it.", "continuation");
  const three = claim(3, "continuation");
  for (const text of ["a, ", "b ", "and c."]) emit("text.delta", { text }, three);
  const done = add({ role: "assistant", text: "a, b and c." }, three);
  end(three, "completed", "run.completed", { message_id: done.id });

  accept(5, "Third question");
  const four = claim(4);
  emit("text.delta", { text: "No " }, four);
  add({ role: "assistant", text: "No " }, four);
  end(four, "failed", "run.failed", { error: { code: "model_unavailable", message: "it is away", permanent: false, hint: "later" } });

  return { id, events, latest: session.offset, at: (offset) => structuredClone(moments[offset]) };
}

/** The answers of reads that were made one after the other while the story went on. */
export function readAt(story, { session, messages, inputs, prompts, runs }) {
  const first = story.at(session);
  const underWay = first.session.running?.run_id;
  // The journal exists once the run has an event; until then there is nothing to replay.
  const head = underWay ? story.at(runs).heads[underWay] : undefined;
  return {
    session: first.session,
    messages: story.at(messages).messages,
    hasMore: false,
    inputs: story.at(inputs).inputs,
    prompts: story.at(prompts).prompts,
    runs: story.at(runs).runs,
    replayFrom: head === undefined ? first.session.offset : head - 1,
  };
}
