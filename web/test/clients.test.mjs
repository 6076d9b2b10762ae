// Clients that people use against the real binary: each is cut off in every way in which networks and
// servers cut clients off, and finds its place with no gap and no double (promises P6 and P7).

import { strict as assert } from "node:assert";
import { after, afterEach, before, beforeEach, test } from "node:test";
import { Gate, Nginx } from "./clients/network.mjs";
import { assertWhole, readers } from "./clients/readers.mjs";
import { launch } from "./harness.mjs";
import { RealServer } from "./real-server.mjs";
import { SseParser } from "../page/sse.js";

const LIMIT = { timeout: 60_000 };

// Line ends that are none in `text/event-stream`, and that some clients take for some.
const SCRIPT = `
[[rule]]
reply = [{ pieces = ["\\u2028odd\\u0085{{n}} "], repeat = 300, delay_ms = 10 }]
`;

let browser;
let server;
let open;

before(async () => (browser = await launch()));
after(() => browser.close());
beforeEach(async () => {
  open = [];
  server = await new RealServer().setUp(SCRIPT);
});
afterEach(async () => {
  for (const close of open.reverse()) await close();
  await server.tearDown();
});

async function gate(port = server.port) {
  const one = await new Gate().open(port);
  open.push(() => one.close());
  return one;
}

async function nginx(port, more) {
  const one = new Nginx();
  open.push(() => one.stop());
  return one.start(port, more);
}

async function post(path, body) {
  const response = await fetch(server.url + path, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) });
  const text = await response.text();
  assert.ok(response.ok, `${path}: ${response.status} ${text}`);
  return JSON.parse(text);
}

/** The four clients at a path, each behind a port of its own. */
async function attach(ports, path) {
  const all = await readers(ports.map((port) => `http://127.0.0.1:${port}${path}`), browser);
  open.push(() => Promise.all(all.map((reader) => reader.stop())));
  return all;
}

/** All there is of a stream, as the test reads it: from the first event, on one connection. */
async function whole(path, last) {
  const response = await fetch(server.url + path, { headers: { accept: "text/event-stream" } });
  const parser = new SseParser();
  const events = [];
  for await (const text of response.body.pipeThrough(new TextDecoderStream())) {
    for (const frame of parser.push(text)) {
      if (frame.id !== undefined) events.push(frame);
      if (last(frame)) return events.map(({ id, event, data }) => ({ id, event, data }));
    }
  }
  assert.fail(`${path} ended`);
}

const all = (list, what) => Promise.all(list.map(what));
const caughtUp = ({ event }) => event === "caught_up";

/** Sessions with a turn each that has begun to answer, and clients that read a feed along, each through its own gate. */
async function readAlongAt(path, sessions, ports) {
  await all(sessions, (id) => post("/v1/sessions", { id }));
  const clients = await attach(ports, path);
  await all(sessions, (id) => post(`/v1/sessions/${id}/inputs`, { text: "go" }));
  await all(clients, (reader) => reader.until("the beginning", ({ got }) => got.length >= 60));
  return { path, sessions, clients };
}

/** The same with one session's own feed. */
const readAlong = (session, ports) => readAlongAt(`/v1/sessions/${session}/events?after=0`, [session], ports);

/** The same with the feed of many sessions, of which two are read. */
function readManyAlong(name, ports) {
  const sessions = [`${name}-1`, `${name}-2`];
  return readAlongAt(`/v1/events?session=${sessions.join("&session=")}&after=0`, sessions, ports);
}

/** Every client comes to the end, has come back, and got everything once. */
async function assertEnd({ path, sessions, clients }) {
  const ends = ({ numbered }) => numbered.filter(({ event }) => event === "run.completed").length >= sessions.length;
  await all(clients, (reader) => reader.until("the end", ends));
  if (sessions.length > 1) return assertMany(sessions, clients);
  const events = await whole(`${path}&viewer=false`, caughtUp);
  await all(clients, (reader) => reader.until("everything", ({ numbered }) => numbered.length >= events.length));
  for (const reader of clients) {
    assert.ok(reader.opened >= 2, `${reader.name} was not cut off`);
    assertWhole(reader, events);
  }
}

/** Sessions come in any order on the feed of many, and each of them as its own feed has it. */
async function assertMany(sessions, clients) {
  const plain = ({ event, data }) => ({ event, data });
  for (const session of sessions) {
    const events = (await whole(`/v1/sessions/${session}/events?after=0&viewer=false`, caughtUp)).map(plain);
    const mine = ({ numbered }) => numbered.filter(({ data }) => JSON.parse(data).session_id === session);
    await all(clients, (reader) => reader.until(`everything of ${session}`, (one) => mine(one).length >= events.length));
    for (const reader of clients) assertWhole({ name: `${reader.name}, ${session}`, numbered: mine(reader).map(plain) }, events);
  }
  for (const reader of clients) {
    assert.ok(reader.opened >= 2, `${reader.name} was not cut off`);
    const ids = reader.numbered.map(({ id }) => id);
    assert.equal(new Set(ids).size, ids.length, `${reader.name}: an id came twice`);
  }
}

const four = [0, 1, 2, 3];

/** Of a connection that is open and on which nothing comes, curl and httpx notice that not even a
    heartbeat does. An EventSource cannot: it waits until its kernel knows, which is what `notices` are. */
async function assertHushIsNoticed({ clients }, notices) {
  const [curl, httpx, ...sources] = clients;
  await all([curl, httpx], (reader) => reader.until("another connection", ({ opened }) => opened >= 2));
  for (const reader of sources) assert.equal(reader.opened, 1, reader.name);
  notices.slice(2).forEach((notice) => notice());
}

test("P7: reset, closed and gone silent in mid-answer, every client finds its place", LIMIT, async () => {
  await all(["reset", "fin", "hush"], async (way) => {
    const gates = await all(four, () => gate());
    const along = await readAlong(way, gates.map(({ port }) => port));
    const notices = gates.map((one) => one[way]());
    if (way === "hush") await assertHushIsNoticed(along, notices);
    await assertEnd(along);
  });
});

test("P7: on the feed of many sessions as well, reset, closed and gone silent, behind nginx and killed", LIMIT, async () => {
  await all(["reset", "fin", "hush"], async (way) => {
    const gates = await all(four, () => gate());
    const along = await readManyAlong(way, gates.map(({ port }) => port));
    const notices = gates.map((one) => one[way]());
    if (way === "hush") await assertHushIsNoticed(along, notices);
    await assertEnd(along);
  });
  const proxies = await all(four, () => nginx(server.port));
  const along = await readManyAlong("killed", proxies.map(({ port }) => port));
  await server.kill();
  await server.start();
  await assertEnd(along);
});

test("P6, P7: killed and started again, with and without a proxy in between, every client finds its place", LIMIT, async () => {
  const proxies = await all(four, () => nginx(server.port));
  const gates = await all(four, () => gate());
  const [direct, proxied] = await all([["direct", gates], ["proxied", proxies]], ([session, list]) => readAlong(session, list.map(({ port }) => port)));
  await server.kill();
  await server.start();
  await assertEnd(direct);
  await assertEnd(proxied);
  const { data } = await server.get("/v1/sessions/direct/turns");
  assert.deepEqual(data.map((turn) => turn.terminal_state).sort(), ["completed", "interrupted"], "the kill met the turn");
});

test("P7: behind nginx that buffers, events come when they happen, and cuts on either side of it lose nothing", LIMIT, async () => {
  // nginx passes heartbeats on and makes none, so that the client notices silence on either side.
  const ways = [["reset", "near"], ["fin", "near"], ["hush", "near"], ["reset", "far"], ["fin", "far"], ["hush", "far"]];
  await all(ways, async ([way, side]) => {
    const far = await all(four, () => gate());
    const proxies = await all(far, ({ port }) => nginx(port));
    const near = await all(proxies, ({ port }) => gate(port));
    // That this returns while the turn goes on is what tells that nothing waits in a buffer.
    const along = await readAlong(`${way}-${side}`, near.map(({ port }) => port));
    const session = await server.get(`/v1/sessions/${way}-${side}`);
    assert.equal(session.state, "running", "the beginning came before the end");
    const notices = (side === "near" ? near : far).map((one) => one[way]());
    if (way === "hush") await assertHushIsNoticed(along, notices);
    await assertEnd(along);
  });
});

test("P7: a run's stream comes whole through a proxy that gathers everything, ends, and is not asked for again", LIMIT, async () => {
  const proxies = await all(four, () => nginx(server.port, "proxy_ignore_headers X-Accel-Buffering;"));
  await post("/v1/sessions", { id: "s" });
  const { input_id } = await post("/v1/sessions/s/inputs", { text: "go" });
  let run;
  while (!run) run = (await server.get("/v1/sessions/s")).running?.run_id;
  const path = `/v1/runs/${run}/events`;
  const clients = await attach(proxies.map(({ port }) => port), path);
  assert.equal((await server.get(`/v1/inputs/${input_id}?wait=30`)).outcome, "completed");
  // The stream closes behind the last event; the client comes back, is told 204, and stays away.
  await all(clients, (reader) => reader.until("the end", ({ got }) => got.at(-1)?.event === "run.completed"));
  await all(clients, ({ ended }) => ended);
  const events = await whole(path, ({ event }) => event === "run.completed");
  for (const reader of clients) {
    assertWhole(reader, events);
    assert.equal(reader.opened, 1, reader.name);
  }
});
