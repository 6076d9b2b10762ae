// What the browser keeps of a turn under way, in a browser: a tab that dies, a server that is away or
// has lost what it had not synced, and people who take turns at one browser. The rules one by one are
// in unit/tail.test.mjs and unit/memory.test.mjs.

import { strict as assert } from "node:assert";
import { after, afterEach, before, beforeEach, test } from "node:test";
import { FakeServer } from "./fake-server.mjs";
import { answers, cachePage, crash, idle, keptTail, launch, mine, openPage, say, sessionIdOf, storedTails, streaming, tryNow } from "./harness.mjs";

let browser;
let server;
let pages;

before(async () => (browser = await launch()));
after(() => browser.close());
beforeEach(async () => {
  server = await new FakeServer().listen();
  pages = [];
});
afterEach(async () => {
  const complaints = pages.flatMap((page) => page.complaints);
  for (const context of new Set(pages.map((page) => page.context()))) await context.close();
  await server.close();
  assert.deepEqual(complaints, []);
});

async function open(options = {}, path = "/") {
  const page = await openPage(browser, options);
  pages.push(page);
  await page.goto(server.url + path);
  return page;
}

const WORDS = Array.from({ length: 400 }, (_, n) => `word${n + 1}`).join(" ");
/** Rows are set as paragraphs of their own, without the space that a row may begin with. */
const spaceless = (texts) => texts.join("").replace(/\s/g, "");
const theSession = (page) => server.sessions.get(sessionIdOf(page));

test("a tab that dies in mid-turn while the server is gone is opened again and shows what was seen; then the server comes back and nothing is doubled", async () => {
  const page = await open();
  await say(page, "show the files");
  await idle(page);
  await say(page, "a slow one");
  await streaming(page, 200);
  await keptTail(page, 200);
  const address = page.url();
  const session = theSession(page);
  const [[, entry]] = await storedTails(page);
  const kept = JSON.parse(entry).turns.at(-1).rows.at(-1).text;
  await server.vanish();
  await crash(page);

  const context = page.context();
  await cachePage(context);
  const again = await openPage(browser, { context });
  pages.push(again);
  await again.goto(address);
  await again.waitForSelector("#kept:not([hidden])");
  assert.match(await again.textContent("#kept"), /server cannot be reached.*this browser kept/);
  const [text, ...more] = await answers(again);
  assert.deepEqual(more, []);
  assert.ok(WORDS.startsWith(text) && text.trim().length >= kept.trim().length, text);
  assert.deepEqual(await mine(again), ["a slow one"]);
  assert.equal(await again.isHidden("#loading"), true);
  await again.waitForSelector("#lost:not([hidden])");
  if (process.env.EVERTURN_PICTURES) await again.screenshot({ path: `${process.env.EVERTURN_PICTURES}/kept.png` });

  // From here on every state of the screen is looked at: never a doubled word, never a shorter answer.
  await again.evaluate(() => {
    window.faults = [];
    let most = 0;
    new MutationObserver(() => {
      const texts = [...document.querySelectorAll(".assistant .prose:not([hidden])")].map((node) => node.textContent);
      const words = texts.join(" ").match(/word\d+/g) ?? [];
      if (new Set(words).size !== words.length) window.faults.push(`doubled: ${texts.join(" | ")}`);
      if (words.length < most) window.faults.push(`shorter: ${words.length} after ${most}`);
      most = Math.max(most, words.length);
    }).observe(document.body, { subtree: true, childList: true, characterData: true });
  });
  await server.listen(server.port);
  await tryNow(again);
  await again.waitForSelector("#kept", { state: "hidden" });
  await streaming(again, text.length + 40);
  assert.equal((await answers(again)).length, 3);
  assert.deepEqual(await mine(again), ["show the files", "a slow one"]);
  assert.equal((await again.$$(".badge.kept:not([hidden])")).length, 0, "the server has all of it");
  await again.click("#stop");
  await idle(again);
  assert.equal((await answers(again)).at(-1), session.messages.at(-1).text);
  assert.deepEqual(await again.evaluate(() => window.faults), []);
  assert.deepEqual(await storedTails(again), [], "a settled turn is kept no longer");
});

test("going back to the page while the server is gone shows what was seen, out of the browser's cache", async () => {
  const page = await open();
  await say(page, "a slow one");
  await streaming(page, 100);
  const [seen] = await answers(page);
  await page.goto("about:blank");
  await server.vanish();
  await page.goBack();
  await page.waitForSelector("#kept:not([hidden])");
  const [text] = await answers(page);
  // Written as the page was left.
  assert.ok(text.startsWith(seen), text);
  await server.listen(server.port);
  await tryNow(page);
  await streaming(page, text.length + 20);
  assert.equal((await answers(page)).length, 1);
});

test("what a power loss took from the server stays on the screen, marked, beside the continuation's own answer", async () => {
  const page = await open();
  await say(page, "a slow one");
  await streaming(page, 300);
  const session = theSession(page);
  await server.vanish();
  await page.waitForSelector("#lost:not([hidden])");
  const [seen] = await answers(page);
  server.paceMs = 0;
  server.losePower(session, 100, { continues: false });
  await server.listen(server.port);
  await tryNow(page);
  await page.waitForSelector("[data-variant=interruption]");
  await page.waitForSelector("#lost", { state: "hidden" });
  for (const round of ["at once", "after a reload"]) {
    assert.deepEqual((await answers(page)).map((text) => text.trim()), [seen.trim()], round);
    assert.deepEqual(await page.$$eval(".badge.kept:not([hidden])", (nodes) => nodes.map((node) => node.textContent)), ["end kept by this browser only"], round);
    if (process.env.EVERTURN_PICTURES) await page.screenshot({ path: `${process.env.EVERTURN_PICTURES}/lost-${round.replaceAll(" ", "-")}.png` });
    await page.reload();
    await page.waitForSelector("[data-variant=interruption]");
    await page.waitForSelector(".badge.kept:not([hidden])");
  }
  await page.click("text=Continue it");
  await page.waitForFunction(() => [...document.querySelectorAll(".assistant")].at(-1).textContent.includes("word400"));
  await idle(page);
  const recovered = session.messages.find((row) => row.recovered).text;
  assert.ok(seen.length > recovered.length + 100);
  for (const round of ["at once", "after a reload"]) {
    const texts = await answers(page);
    assert.equal(texts.length, 2, round);
    assert.equal(texts[0].trim(), seen.trim(), round);
    // The model goes on from what the server has.
    assert.equal(spaceless([recovered, texts[1]]), spaceless([WORDS]), round);
    await page.reload();
    await idle(page);
    await page.waitForSelector(".badge.kept:not([hidden])");
  }
  // Somebody else's browser shows what the server has.
  const other = await open({}, `/${new URL(page.url()).hash}`);
  await idle(other);
  assert.equal(spaceless(await answers(other)), spaceless([WORDS]));
});

async function logIn(page, token) {
  await page.waitForSelector("#login[open]");
  await page.fill("#login-token", token);
  await page.press("#login-token", "Enter");
}

test("P14: who logs in as another principal sees nothing of the former one, nor sends anything in the other's name", async () => {
  server.token = "evt_local";
  server.people.set("evt_ann", "ann").set("evt_bob", "bob");
  const page = await open();
  await logIn(page, "evt_ann");
  await page.waitForSelector("#login[open]", { state: "detached" });
  await say(page, "slow, and Ann's secret");
  await streaming(page, 60);
  await keptTail(page, 20);
  const address = page.url();
  const session = theSession(page);
  const other = await open({ context: page.context() }, `/${new URL(address).hash}`);
  await streaming(other, 60);
  // Ann's token is revoked.
  server.people.delete("evt_ann");
  server.dropFeeds();
  await page.fill("#composer-field", "Ann's unsent message");
  await page.press("#composer-field", "Enter");
  await logIn(page, "evt_bob");
  for (const tab of [page, other]) {
    await tab.waitForURL(`${server.url}/`);
    await tab.waitForSelector("#welcome:not([hidden])");
    assert.doesNotMatch(await tab.textContent("body"), /Ann's|word5/);
  }
  await say(page, "hello from Bob");
  await idle(page);
  assert.deepEqual([...server.sessions.values()].map((each) => each.owner).sort(), ["ann", "bob"]);
  assert.deepEqual([...server.inputs.values()].map((input) => input.text).sort(), ["hello from Bob", "slow, and Ann's secret"]);
  // Her address does not help him, also while the server says nothing.
  await server.vanish();
  await cachePage(page.context());
  await page.goto("about:blank");
  await page.goto(address);
  await page.waitForSelector("#lost:not([hidden])");
  assert.doesNotMatch(await page.textContent("#main"), /Ann's|word5/);
  await server.listen(server.port);
  // Ann comes back, and with her what she had not sent.
  server.people.delete("evt_bob");
  server.people.set("evt_ann2", "ann");
  server.paceMs = 0;
  session.running.stopped = true;
  await tryNow(page);
  await logIn(page, "evt_ann2");
  await page.waitForURL(`${server.url}/`);
  await page.goto("about:blank");
  await page.goto(address);
  await page.waitForFunction(() => [...document.querySelectorAll(".bubble")].some((node) => node.textContent.includes("unsent message")));
  assert.deepEqual(await page.evaluate(() => Object.keys(localStorage).filter((key) => key.includes("aside/bob"))), []);
});

test("P14: a log-out leaves nothing in the browser, though a turn is under way", async () => {
  server.token = "evt_local";
  const page = await open();
  await logIn(page, "evt_local");
  await page.waitForSelector("#login[open]", { state: "detached" });
  await say(page, "a slow one");
  await streaming(page, 60);
  await keptTail(page, 20);
  await page.click("#logout");
  await page.waitForSelector("#login[open]");
  assert.deepEqual(await page.evaluate(() => Object.keys(localStorage)), []);
});
