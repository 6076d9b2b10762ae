// The page in a browser against a server that misbehaves on command (fake-server.mjs): lost answers,
// cut feeds, refused cursors, hostile text. What needs no mishap is tried against the real binary in
// browser.test.mjs.

import { strict as assert } from "node:assert";
import { after, afterEach, before, beforeEach, test } from "node:test";
import { FakeServer } from "./fake-server.mjs";
import { answers, fitsSideways, idle, launch, mine, namesEverything, openPage, say, sessionIdOf, streaming } from "./harness.mjs";

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
/** Waits for the answer's last word: a page may be idle for a moment before it hears of a turn. */
const saidAll = (page) =>
  page.waitForFunction((last) => document.querySelector("#transcript").textContent.includes(last), WORDS.slice(-7));
const theSession = (page) => server.sessions.get(sessionIdOf(page));
/** What the running turn's journal says up to now. */
const journal = (page) => {
  const run = theSession(page).running;
  return run.events.filter((event) => event.event === "text.delta").map((event) => event.text).join("");
};

test("a first message opens a conversation, the answer streams in and is complete", async () => {
  const page = await open();
  await page.evaluate(() => {
    window.lengths = new Set();
    new MutationObserver(() => window.lengths.add(document.querySelector(".assistant .prose")?.textContent.length ?? 0)).observe(document.body, { subtree: true, childList: true, characterData: true });
  });
  await say(page, "a slow one");
  await streaming(page);
  assert.equal(await page.textContent("#state"), "Answering");
  await page.waitForFunction(() => window.lengths.size > 5);
  assert.equal(await page.textContent("#title"), "a slow one");
  assert.equal(await page.inputValue("#composer-field"), "");
  server.paceMs = 0;
  await page.click("#stop");
  await idle(page);
  assert.deepEqual(await mine(page), ["a slow one"]);
  assert.ok(WORDS.startsWith((await answers(page)).join("")));
  assert.match(await page.textContent(".end"), /Stopped/);
  await page.waitForSelector(".entry [aria-current=page]");
});

test("a reload in mid-answer finds its place: the text is the journal's, once, and goes on", async () => {
  const page = await open();
  await say(page, "a slow one");
  await streaming(page, 60);
  for (let round = 0; round < 3; round += 1) {
    const had = journal(page);
    await page.reload();
    await page.waitForFunction((text) => document.querySelector(".live .prose")?.textContent.startsWith(text), had);
    const texts = await answers(page);
    assert.equal(texts.length, 1);
    assert.ok(WORDS.startsWith(texts[0]), texts[0]);
    assert.ok(journal(page).startsWith(texts[0]));
    await streaming(page, texts[0].length + 10);
  }
  assert.deepEqual(await mine(page), ["a slow one"]);
});

test("a feed that is cut again and again shows every word once", async () => {
  const page = await open();
  await say(page, "a slow one");
  for (const length of [30, 200, 400, 600]) {
    await streaming(page, length);
    server.dropFeeds();
  }
  await streaming(page, 900);
  const [text] = await answers(page);
  assert.ok(WORDS.startsWith(text), text);
  await page.click("#stop");
  await idle(page);
  assert.deepEqual(await answers(page), [theSession(page).messages.at(-1).text]);
});

test("a refused cursor makes the page read anew, without a gap or a double", async () => {
  const page = await open();
  await say(page, "show the files");
  await idle(page);
  await say(page, "a slow one");
  await streaming(page, 50);
  server.mishaps.reset = 1;
  const before = await answers(page);
  server.dropFeeds();
  await page.waitForFunction(() => document.querySelector("#lost").hidden);
  await streaming(page, before.at(-1).length + 50);
  const texts = await answers(page);
  assert.equal(texts.length, 3);
  assert.ok(WORDS.startsWith(texts.at(-1)), texts.at(-1));
  assert.deepEqual(await mine(page), ["show the files", "a slow one"]);
});

test("a message whose answer was lost is sent again with the same id and taken once", async () => {
  const page = await open();
  server.mishaps.lostReceipt = 3;
  await say(page, "only once please");
  await idle(page);
  assert.deepEqual(await mine(page), ["only once please"]);
  assert.equal(server.inputs.size, 1);
  assert.equal(await page.evaluate(() => Object.keys(localStorage).filter((key) => key.includes("outbox")).length), 0);
});

test("a reload before the answer sends the same message, which is taken once", async () => {
  const page = await open();
  await say(page, "first");
  await idle(page);
  server.mishaps.lostReceipt = 1_000;
  await page.evaluate(() => (window.fetch = () => new Promise(() => {})));
  await say(page, "second");
  await page.waitForSelector(".pending");
  const kept = await page.evaluate(() => Object.entries(localStorage).filter(([key]) => key.includes("outbox")));
  assert.equal(kept.length, 1);
  await page.reload();
  await page.waitForFunction(() => [...document.querySelectorAll(".bubble")].some((node) => node.textContent === "second"));
  server.mishaps.lostReceipt = 0;
  await idle(page);
  assert.deepEqual(await mine(page), ["first", "second"]);
  assert.equal(server.inputs.size, 2);
});

test("while the server is away messages wait in order, and go out when it is back", async () => {
  const page = await open();
  await say(page, "hello");
  await idle(page);
  await server.vanish();
  await say(page, "one");
  await say(page, "two");
  await page.waitForSelector("#lost:not([hidden])");
  assert.match(await page.textContent("#lost"), /No contact with the server.*kept here/);
  await page.waitForFunction(() => document.querySelectorAll(".pending[data-variant=waiting]").length >= 1);
  await server.listen(server.port);
  await page.evaluate(() => document.querySelector("#lost-now").click());
  await idle(page);
  assert.deepEqual(await mine(page), ["hello", "one", "two"]);
  assert.equal(await page.isHidden("#lost"), true);
  assert.equal(server.inputs.size, 3);
});

// Counterpart of `test_messages_js_names_browser_sse_disconnect_separately` of seed 000.
test("a server that goes away and comes back is told apart from a turn that broke off", async () => {
  const page = await open();
  await say(page, "a slow one");
  await streaming(page, 100);
  // The connection is gone: that is what the page says, and nothing of the turn.
  await server.vanish();
  await page.waitForSelector("#lost:not([hidden])");
  assert.match(await page.textContent("#lost"), /No contact with the server/);
  assert.equal((await page.$$("[data-variant=interruption]")).length, 0);
  assert.equal((await page.$$(".card.interrupted")).length, 0);
  server.paceMs = 0;
  await server.listen(server.port);
  await page.evaluate(() => document.querySelector("#lost-now").click());
  await page.waitForFunction(() => document.querySelector("#lost").hidden);
  await saidAll(page);
  await idle(page);
  assert.equal(spaceless(await answers(page)), spaceless([WORDS]));
  assert.equal((await page.$$("[data-variant=interruption]")).length, 0, "nothing broke off");
  // And the other way round: a turn that broke off is no lost connection.
  server.paceMs = 5;
  await say(page, "a slow one");
  await streaming(page, 100);
  server.interrupt(theSession(page), { continues: false });
  await page.waitForSelector("[data-variant=interruption]");
  assert.equal(await page.isHidden("#lost"), true);
});

test("a conversation can be begun while the server is away", async () => {
  const page = await open();
  await page.waitForSelector("#server-about:not(:empty)");
  await server.vanish();
  await say(page, "is anybody there");
  await page.waitForSelector(".pending[data-variant=waiting]");
  assert.equal(await page.textContent("#title"), "is anybody there");
  await server.listen(server.port);
  await idle(page);
  assert.deepEqual(await answers(page), ["You said: is anybody there"]);
  assert.equal(server.sessions.size, 1);
});

test("a message that the server refuses says why and can be edited", async () => {
  const page = await open();
  await say(page, "hello");
  await idle(page);
  server.mishaps.refuseSubmit = 1;
  await say(page, "too much");
  await page.waitForSelector(".pending[data-variant=refused]");
  assert.match(await page.textContent(".pending"), /larger than 1 MiB/);
  await page.click("text=Edit");
  assert.equal(await page.inputValue("#composer-field"), "too much");
  await page.waitForSelector(".pending", { state: "detached" });
  await say(page, "less");
  await idle(page);
  assert.deepEqual(await mine(page), ["hello", "less"]);
});

test("hostile text stays text: no script, no foreign element, no foreign request, no violation", async () => {
  const page = await open();
  await page.evaluate(() => document.addEventListener("securitypolicyviolation", (event) => (window.violated = event.violatedDirective)));
  await say(page, "hostile <b>me</b>");
  await idle(page);
  const found = await page.evaluate(() => ({
    pwned: window.pwned,
    violated: window.violated,
    elements: document.querySelectorAll("#transcript :is(script, img, style, iframe, b, i, object, embed, form, base, meta, link)").length,
    links: [...document.querySelectorAll("#transcript a")].map((link) => [link.protocol, link.rel, link.target]),
    styles: document.querySelectorAll("#transcript [style], #transcript [onerror], #transcript [onclick]").length,
  }));
  assert.deepEqual(found, {
    pwned: undefined,
    violated: undefined,
    elements: 0,
    links: Array.from({ length: 4 }, () => ["https:", "noopener noreferrer nofollow", "_blank"]),
    styles: 0,
  });
  const text = (await answers(page))[0];
  for (const part of ["<script>window.pwned = 1</script>", "javascript:window.pwned=3", "<b>code</b>", "user:pw@evil.example"]) {
    assert.ok(text.includes(part), part);
  }
});

test("formatting becomes elements", async () => {
  const page = await open();
  await say(page, "markdown");
  await idle(page);
  const counts = await page.evaluate(() => Object.fromEntries(["h4", "ol", "ul", "blockquote", "pre code", "table", "td", "strong", "em", "a"].map((name) => [name, document.querySelectorAll(`.prose ${name}`).length])));
  assert.deepEqual(counts, { h4: 1, ol: 1, ul: 1, blockquote: 1, "pre code": 1, table: 1, td: 6, strong: 1, em: 1, a: 1 });
  assert.equal(await page.isVisible(".reasoning-text"), false);
  await page.click(".reasoning summary");
  assert.match(await page.textContent(".reasoning-text"), /show formatting|see formatting/);
});

test("tool calls are cards with name, arguments, state and result, and open by hand", async () => {
  const page = await open();
  await say(page, "which files are there");
  await idle(page);
  const cards = await page.$$eval(".tool", (nodes) => nodes.map((node) => [node.querySelector(".tool-name").textContent, node.dataset.state, node.open, node.querySelector(".tool-line").textContent]));
  assert.deepEqual(cards, [["list_files", "succeeded", false, "src"], ["read_file", "failed", false, "src/lib.rs"]]);
  await page.click(".tool summary");
  assert.equal(await page.textContent(".tool[open] .output"), "lib.rs\nmain.rs");
  assert.match(await page.textContent(".tool[open] .arguments"), /path.*src/);
  await page.reload();
  await idle(page);
  assert.equal((await page.$$(".tool")).length, 2);
});

test("an approval asks, shows the whole call, and the call then streams its output", async () => {
  const page = await open();
  const other = await open({ context: page.context() });
  await say(page, "approve something");
  await page.waitForSelector(".prompt");
  await other.goto(page.url());
  await other.waitForSelector(".prompt");
  assert.match(await page.textContent(".prompt"), /Allow shell\?.*cargo test -p everturn-core\n# a second line/s);
  assert.equal(await page.textContent("#state"), "Needs you");
  assert.equal(await page.getAttribute(".tool", "data-state"), "asked");
  await page.reload();
  await page.waitForSelector(".prompt");
  server.paceMs = 40;
  await page.click("text=Allow once");
  await page.waitForFunction(() => document.querySelector(".tool")?.open && document.querySelector(".tool .output").textContent.includes("test digest::canonical"));
  await page.waitForSelector(".prompt", { state: "detached" });
  server.paceMs = 1;
  await idle(page);
  assert.equal(await page.getAttribute(".tool", "data-state"), "succeeded");
  await idle(other);
  assert.equal((await other.$$(".prompt")).length, 0);
  assert.equal([...server.prompts.values()][0].choice, "once");
});

test("a denied call says so", async () => {
  const page = await open();
  await say(page, "approve something");
  await page.click(".prompt >> text=Deny");
  await idle(page);
  assert.equal(await page.getAttribute(".tool", "data-state"), "denied");
});

test("a question of the model takes a proposed answer with one press, or any other in the field", async () => {
  const page = await open();
  await say(page, "ask me");
  await page.waitForSelector(".prompt");
  assert.match(await page.textContent(".prompt h2"), /^Which colour <b>exactly<\/b>\?$/);
  assert.equal((await page.$$(".prompt .arguments")).length, 0, "the question is not shown a second time");
  assert.equal(await page.textContent("#state"), "Needs you");
  const other = await open({ context: page.context() });
  await other.goto(page.url());
  await other.waitForSelector(".prompt");
  await page.click(".prompt >> text=dark blue");
  await page.waitForSelector(".prompt", { state: "detached" });
  await idle(page);
  await other.waitForSelector(".prompt", { state: "detached" });
  assert.deepEqual([...server.prompts.values()].map((prompt) => [prompt.text, prompt.choice]), [["dark blue", undefined]]);
  assert.equal(await page.getAttribute(".tool", "data-state"), "succeeded");

  await say(page, "ask me again");
  const field = page.locator(".prompt input");
  await field.fill("  ");
  await field.press("Enter");
  await field.fill("green, please");
  await page.click(".prompt >> text=Answer");
  await idle(page);
  assert.deepEqual([...server.prompts.values()].map((prompt) => prompt.text), ["dark blue", "green, please"]);
});

test("an answer that comes too late is told so, and the question goes", async () => {
  const page = await open();
  await say(page, "approve something");
  await page.waitForSelector(".prompt");
  [...server.prompts.values()][0].state = "expired";
  await page.click("text=Allow once");
  await page.waitForSelector(".toast");
  assert.match(await page.textContent(".toast"), /settled already/);
  await page.waitForSelector(".prompt", { state: "detached" });
});

test("messages queue while a turn runs, can be cancelled and run in order", async () => {
  const page = await open();
  await say(page, "a slow one");
  await streaming(page);
  for (const text of ["second", "third", "fourth"]) await say(page, text);
  await page.waitForFunction(() => document.querySelectorAll(".pending[data-variant=queued]").length === 3);
  await page.click(".pending:has-text('third') >> text=Cancel");
  await page.waitForSelector(".pending[data-variant=cancelled]");
  await page.click("text=Dismiss");
  await page.click("text=Run it now");
  await idle(page);
  assert.deepEqual(await mine(page), ["a slow one", "second", "fourth"]);
  assert.deepEqual((await answers(page)).slice(-2), ["You said: second", "You said: fourth"]);
});

test("stopping cancels what is queued, visibly, ready to be sent again", async () => {
  const page = await open();
  await say(page, "a slow one");
  await streaming(page);
  await say(page, "do this after");
  await page.waitForSelector(".pending[data-variant=queued]");
  await page.focus("#composer-field");
  await page.keyboard.press("Escape");
  assert.match(await page.textContent("#hint"), /Esc again/);
  await page.keyboard.press("Escape");
  await page.waitForSelector(".pending[data-variant=cancelled]");
  assert.match(await page.textContent(".pending"), /Not run: the turn was stopped/);
  await page.click("text=Send again");
  assert.equal(await page.inputValue("#composer-field"), "do this after");
  await page.press("#composer-field", "Enter");
  await idle(page);
  assert.equal((await answers(page)).at(-1), "You said: do this after");
});

test("an interruption is shown with its evidence, the text is kept, and the turn is continued once", async () => {
  const page = await open();
  await say(page, "a slow one");
  await streaming(page, 100);
  server.paceMs = 0;
  server.interrupt(theSession(page));
  await page.waitForSelector("[data-variant=interruption]");
  assert.match(await page.textContent("[data-variant=interruption]"), /Interrupted.*the process that ran it is gone/s);
  await page.waitForSelector("[data-variant=continuation]");
  await idle(page);
  assert.equal(spaceless(await answers(page)), spaceless([WORDS]));
  assert.equal((await page.$$(".badge:text('recovered')")).length >= 1, true);
  assert.equal((await page.$$("[data-variant=interruption]")).length, 1);
  assert.equal((await page.$$("[data-variant=continuation]")).length, 1);
  assert.deepEqual(await mine(page), ["a slow one"], "a continuation is not something that the person said");
  await page.reload();
  await idle(page);
  assert.equal(spaceless(await answers(page)), spaceless([WORDS]));
});

test("an interrupted turn that waits for a person can be continued or left", async () => {
  const page = await open();
  await say(page, "a slow one");
  await streaming(page, 100);
  server.interrupt(theSession(page), { continues: false });
  await page.waitForSelector(".card.interrupted");
  assert.equal(await page.textContent("#state"), "Interrupted");
  server.paceMs = 0;
  await page.click("text=Continue it");
  await page.waitForSelector(".card.interrupted", { state: "detached" });
  await saidAll(page);
  await idle(page);
  assert.equal(spaceless(await answers(page)), spaceless([WORDS]));
});

test("what an interrupted turn was asked can be edited and sent again", async () => {
  const page = await open();
  await say(page, "a slow one");
  await streaming(page, 100);
  server.interrupt(theSession(page), { continues: false });
  await page.waitForSelector(".card.interrupted");
  await page.click("text=Edit and send again");
  assert.equal(await page.inputValue("#composer-field"), "a slow one");
  assert.equal(await page.evaluate(() => document.activeElement.id), "composer-field");
  // Nothing is decided yet: the card stays, and the draft outlives a reload.
  assert.equal((await page.$$(".card.interrupted")).length, 1);
  await page.reload();
  await page.waitForSelector(".card.interrupted");
  assert.equal(await page.inputValue("#composer-field"), "a slow one");
  await page.fill("#composer-field", "show the files");
  await page.press("#composer-field", "Enter");
  await page.waitForSelector(".card.interrupted", { state: "detached" });
  await page.waitForFunction(() => [...document.querySelectorAll(".text, .prose")].length > 0);
  assert.deepEqual(await mine(page), ["a slow one", "show the files"]);
});

test("a failed turn shows its error and what to do, also after a reload", async () => {
  const page = await open();
  await say(page, "fail");
  await idle(page);
  for (const _ of [0, 1]) {
    const text = await page.textContent(".failure");
    assert.match(text, /This turn failed.*model_unauthorized.*refused the key.*everturn doctor/s);
    assert.deepEqual(await answers(page), ["This will not go"]);
    await page.reload();
    await idle(page);
  }
});

test("a log-in box appears, refuses a wrong token, and everything goes on after the right one", async () => {
  const page = await open();
  await say(page, "hello");
  await idle(page);
  server.token = "evt_right";
  server.dropFeeds();
  await say(page, "second");
  await page.waitForSelector("#login[open]");
  await page.fill("#login-token", "evt_wrong");
  await page.press("#login-token", "Enter");
  await page.waitForFunction(() => document.querySelector("#login .problem").textContent !== "");
  await page.keyboard.press("Escape");
  await page.keyboard.press("Escape");
  // The browser may close it at the second one; then it opens again.
  await page.waitForSelector("#login[open]");
  await page.fill("#login-token", "evt_right");
  await page.press("#login-token", "Enter");
  await page.waitForSelector("#login[open]", { state: "detached" });
  // The message goes out after the log-in, and the page may be idle before it does.
  while ((await mine(page)).length < 2) await page.evaluate(() => new Promise(requestAnimationFrame));
  await idle(page);
  assert.deepEqual(await mine(page), ["hello", "second"]);
  assert.equal(await page.evaluate(() => JSON.stringify({ ...localStorage }).includes("evt_")), false, "the token is kept nowhere");
  await page.click("#logout");
  await page.waitForSelector("#login[open]");
  assert.equal(await page.evaluate(() => document.querySelectorAll(".bubble, .entry").length), 0);
});

test("drafts are kept, one for each conversation", async () => {
  const page = await open();
  await page.fill("#composer-field", "a new idea");
  await page.reload();
  assert.equal(await page.inputValue("#composer-field"), "a new idea");
  await page.press("#composer-field", "Enter");
  await idle(page);
  await page.fill("#composer-field", "half a thou");
  await page.click("#new");
  assert.equal(await page.inputValue("#composer-field"), "");
  await page.goBack();
  await page.waitForFunction(() => document.querySelector("#composer-field").value === "half a thou");
  await page.reload();
  assert.equal(await page.inputValue("#composer-field"), "half a thou");
});

test("Shift+Enter makes a new line, Enter sends, white space is not sent", async () => {
  const page = await open();
  await page.fill("#composer-field", "  \n ");
  await page.press("#composer-field", "Enter");
  assert.equal(server.log.filter((line) => line.startsWith("POST")).length, 0);
  await page.fill("#composer-field", "one");
  await page.press("#composer-field", "Shift+Enter");
  await page.keyboard.type("two");
  await page.press("#composer-field", "Enter");
  await idle(page);
  assert.deepEqual(await mine(page), ["one\ntwo"]);
});

test("a long conversation opens at its end; older messages come as one scrolls, without a jump", async () => {
  const session = server.create("ses_long", "Long");
  for (let n = 1; n <= 300; n += 1) server.add(session, { role: n % 2 ? "user" : "assistant", text: `message number ${n}` });
  const page = await open({}, "/#/s/ses_long");
  await page.waitForFunction(() => document.querySelector("#transcript").lastChild?.textContent.includes("number 300"));
  assert.ok(await page.evaluate(() => {
    const box = document.querySelector("#scroller");
    return box.scrollHeight - box.scrollTop - box.clientHeight < 5;
  }));
  const rows = () => page.$$eval(".row", (nodes) => nodes.map((node) => Number(node.textContent.match(/number (\d+)/)[1])));
  const first = await rows();
  assert.ok(first.length < 150, "not everything is read at once");
  // Watch one row while the reader scrolls up: it may move only as far as they scrolled.
  for (let round = 0; round < 40; round += 1) {
    const known = (await rows()).length;
    if (known === 300) break;
    const moved = await page.evaluate(async () => {
      const box = document.querySelector("#scroller");
      box.scrollTop = 300;
      await new Promise((resolve) => requestAnimationFrame(resolve));
      const row = [...document.querySelectorAll(".row")].find((node) => node.getBoundingClientRect().bottom > box.getBoundingClientRect().top);
      const at = row.getBoundingClientRect().top;
      const count = document.querySelectorAll(".row").length;
      await new Promise((resolve) => {
        const look = () => (document.querySelectorAll(".row").length > count || document.querySelector("#older").hidden ? resolve() : requestAnimationFrame(look));
        look();
      });
      return Math.abs(row.getBoundingClientRect().top - at);
    });
    assert.ok(moved < 3, `a row jumped by ${moved}px`);
  }
  assert.deepEqual(await rows(), Array.from({ length: 300 }, (_, n) => n + 1));
  assert.equal(await page.isHidden("#older"), true);
});

test("who scrolls up is left there while the answer grows, and can come back", async () => {
  const page = await open({ viewport: { width: 800, height: 500 } });
  await say(page, "markdown");
  await idle(page);
  await say(page, "a slow one");
  await streaming(page, 30);
  await page.evaluate(() => (document.querySelector("#scroller").scrollTop = 100));
  await page.waitForSelector("#jump:not([hidden])");
  const length = (await answers(page)).at(-1).length;
  await streaming(page, length + 200);
  assert.equal(await page.evaluate(() => Math.round(document.querySelector("#scroller").scrollTop)), 100);
  await page.click("#jump");
  await page.waitForSelector("#jump", { state: "hidden" });
  await streaming(page, length + 600);
  assert.ok(await page.evaluate(() => {
    const box = document.querySelector("#scroller");
    return box.scrollHeight - box.scrollTop - box.clientHeight < 30;
  }));
});

test("conversations can be found, renamed and deleted", async () => {
  const page = await open();
  for (const text of ["apples", "pears"]) {
    await page.click("#new");
    await say(page, text);
    await idle(page);
    await page.waitForSelector(`.entry:has-text("${text}")`);
  }
  await page.fill("#search", "apple");
  await page.waitForFunction(() => document.querySelectorAll(".entry").length === 1);
  await page.click(".entry summary");
  await page.click(".entry >> text=Rename");
  await page.fill("#dialog-field", "oranges");
  await page.press("#dialog-field", "Enter");
  await page.waitForSelector('.entry:has-text("oranges")');
  await page.fill("#search", "");
  await page.waitForFunction(() => document.querySelectorAll(".entry").length === 2);
  await page.click('.entry:has-text("pears") summary');
  await page.click('.entry:has-text("pears") >> text=Delete');
  await page.click("dialog[open] button:text-is('Delete')");
  await page.waitForFunction(() => document.querySelectorAll(".entry").length === 1);
  await page.waitForFunction(() => location.hash === "#/");
  assert.equal(server.sessions.size, 1);
});

test("an address that names nothing says so", async () => {
  const page = await open({}, "/#/s/ses_nothing");
  await page.waitForSelector("#absent:not([hidden])");
  assert.match(await page.textContent("#absent"), /no such conversation/);
  await page.click("#absent a");
  await page.waitForSelector("#welcome:not([hidden])");
});

test("at 360 pixels everything fits and the list is a drawer", async () => {
  const page = await open({ viewport: { width: 360, height: 640 }, isMobile: true, hasTouch: true });
  await namesEverything(page);
  await fitsSideways(page);
  await say(page, "markdown");
  await idle(page);
  await fitsSideways(page);
  await say(page, `files ${"x".repeat(300)}`);
  await idle(page);
  await say(page, "fail");
  await idle(page);
  await say(page, "approve something");
  await page.waitForSelector(".prompt");
  await say(page, "queued");
  await page.waitForSelector(".pending");
  await fitsSideways(page);
  await namesEverything(page);
  const buttons = await page.$$eval(".prompt button, #send, #stop, #menu", (nodes) => nodes.map((node) => Math.min(node.getBoundingClientRect().height, node.getBoundingClientRect().width)));
  assert.ok(buttons.every((size) => size >= 36), `too small for a finger: ${buttons}`);
  assert.equal(await page.isVisible("#sidebar"), false);
  await page.click("#menu");
  await page.waitForSelector("#sidebar", { state: "visible" });
  await fitsSideways(page);
  await page.click(".entry-link");
  await page.waitForSelector("#sidebar", { state: "hidden" });
});

test("a notice of the server is shown, dismissed, and stays dismissed", async () => {
  server.notice = "The demo script answers.";
  const page = await open();
  await page.waitForSelector("#notice:not([hidden])");
  assert.match(await page.textContent("#notice"), /demo script/);
  await page.click("#notice-close");
  await page.reload();
  await page.waitForSelector("#server-about:not(:empty)");
  assert.equal(await page.isHidden("#notice"), true);
  assert.match(await page.textContent("#hint"), /script\/demo/);
});

test("two tabs show the same, and what one sends the other sees", async () => {
  const page = await open();
  await say(page, "hello");
  await idle(page);
  const other = await open({ context: page.context() }, `/${new URL(page.url()).hash}`);
  await idle(other);
  await say(other, "from the other tab");
  await page.waitForFunction(() => [...document.querySelectorAll(".assistant")].at(-1)?.textContent.includes("You said: from the other tab"));
  await idle(page);
  assert.deepEqual(await mine(page), await mine(other));
  assert.deepEqual(await answers(page), await answers(other));
});
