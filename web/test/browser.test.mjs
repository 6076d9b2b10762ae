// The page in a real browser against the real binary: what a person sees when things go well, when
// the page is reloaded, and when the server is killed in the middle (promises P2, P5, P6, P7).

import { strict as assert } from "node:assert";
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { after, afterEach, before, beforeEach, test } from "node:test";
import { answers, cachePage, crash, idle, keptTail, launch, mine, openPage, say, sessionIdOf, storedTails, streaming, tryNow, WAIT_MS } from "./harness.mjs";
import { RealServer, WORDS } from "./real-server.mjs";

let browser;
let server;
let pages;

before(async () => (browser = await launch()));
after(() => browser.close());
beforeEach(async () => {
  pages = [];
  server = new RealServer();
  await server.setUp();
});
afterEach(async () => {
  const complaints = pages.flatMap((page) => page.complaints);
  for (const context of new Set(pages.map((page) => page.context()))) await context.close();
  await server.tearDown();
  assert.deepEqual(complaints, []);
});

async function open(options = {}, path = "/") {
  const page = await openPage(browser, options);
  pages.push(page);
  await page.goto(server.url + path);
  return page;
}

/** Rows are set as paragraphs of their own, without the space that a row may begin with. */
const spaceless = (...texts) => texts.flat().join("").replace(/\s/g, "");

test("say something, see it stream, and see it complete", async () => {
  const page = await open();
  await page.evaluate(() => {
    window.lengths = new Set();
    new MutationObserver(() => window.lengths.add(document.querySelector(".assistant .prose")?.textContent.length ?? 0)).observe(document.body, { subtree: true, childList: true, characterData: true });
  });
  await say(page, "count slowly");
  await streaming(page);
  assert.equal(await page.textContent("#state"), "Answering");
  await idle(page);
  assert.ok((await page.evaluate(() => window.lengths.size)) > 20, "it came in pieces");
  assert.equal(spaceless(await answers(page)), spaceless(WORDS));
  assert.deepEqual(await mine(page), ["count slowly"]);
  assert.match(await page.textContent(".usage"), /1\.2k tokens in · 400 out/);
  assert.match(await page.textContent("#hint"), /script\//);
  await page.waitForSelector('.entry [aria-current=page]:has-text("count slowly")');
});

test("P5, P6: killed in mid-answer and started again, the text is kept, the interruption is shown with its evidence, and the turn is continued once", async () => {
  const page = await open();
  await say(page, "count slowly");
  await streaming(page, 300);
  await server.kill();
  const [seen] = await answers(page);
  assert.ok(seen.length >= 300);
  await page.waitForSelector("#lost:not([hidden])");
  assert.deepEqual(await answers(page), [seen], "it stays on the screen while the server is away");
  await server.start();
  await page.waitForSelector("[data-variant=interruption]");
  const shown = await answers(page);
  assert.ok(shown[0].startsWith(seen.trimEnd()), `what was visible is still there: ${seen} / ${shown[0]}`);
  assert.match(await page.textContent("[data-variant=interruption]"), /Interrupted.*the process that ran it is gone and a newer process of the same home is running.*Its last recorded event is/s);
  await idle(page);

  const check = async () => {
    assert.equal(spaceless(await answers(page)), spaceless(WORDS), "the answer is whole, nothing twice");
    assert.equal((await page.$$("[data-variant=interruption]")).length, 1);
    assert.equal((await page.$$("[data-variant=continuation]")).length, 1);
    assert.equal((await page.$$(".assistant > .badge:not([hidden])")).length, 1, "what was read back is marked");
    assert.deepEqual(await mine(page), ["count slowly"]);
  };
  await check();
  await page.reload();
  await idle(page);
  await check();

  const session = sessionIdOf(page);
  const { data: turns } = await server.get(`/v1/sessions/${session}/turns`);
  assert.deepEqual(turns.map((turn) => turn.terminal_state).sort(), ["completed", "interrupted"]);
  assert.equal(await server.journal(session), WORDS);
  assert.equal(spaceless(await answers(page)), spaceless(await server.journal(session)));
});

test("P7: a reload in mid-answer finds its place; the text is the journal's, nothing is doubled", async () => {
  const page = await open();
  await say(page, "count slowly");
  await streaming(page, 60);
  const session = sessionIdOf(page);
  for (let round = 0; round < 4; round += 1) {
    const had = await server.journal(session);
    await page.reload();
    await page.waitForFunction((text) => (document.querySelector(".assistant .prose")?.textContent ?? "").startsWith(text), had.trimEnd(), { timeout: WAIT_MS });
    const texts = await answers(page);
    assert.equal(texts.length, 1);
    assert.ok(WORDS.startsWith(texts[0]), texts[0]);
    assert.deepEqual(await mine(page), ["count slowly"]);
  }
  await idle(page);
  assert.equal(spaceless(await answers(page)), spaceless(WORDS));
  assert.equal(await server.journal(session), WORDS);
});

test("P7: a page that is opened after the kill, before anything else happened, shows the same", async () => {
  const first = await open();
  await say(first, "count slowly");
  await streaming(first, 200);
  await server.kill();
  const [seen] = await answers(first);
  await server.start();
  const late = await open({}, `/${new URL(first.url()).hash}`);
  await late.waitForFunction((text) => (document.querySelector(".assistant .prose")?.textContent ?? "").startsWith(text), seen.trimEnd(), { timeout: WAIT_MS });
  await idle(late);
  await idle(first);
  assert.deepEqual(await answers(late), await answers(first));
  assert.equal(spaceless(await answers(late)), spaceless(WORDS));
});

test("P6, P7: tab and server die in mid-answer; the tab that is opened again shows what was seen, and after the server's return the whole answer, nothing twice", async () => {
  const page = await open();
  await say(page, "count slowly");
  await streaming(page, 300);
  await keptTail(page, 300);
  const address = page.url();
  await server.kill();
  const [seen] = await answers(page);
  await crash(page);
  const context = page.context();
  await cachePage(context);
  const again = await openPage(browser, { context });
  pages.push(again);
  await again.goto(address);
  await again.waitForSelector("#kept:not([hidden])");
  const [kept, ...more] = await answers(again);
  assert.deepEqual(more, []);
  assert.ok(kept.length >= 300 && seen.startsWith(kept.trimEnd()), `${kept} / ${seen}`);
  assert.deepEqual(await mine(again), ["count slowly"]);
  await server.start();
  await tryNow(again);
  await again.waitForSelector("[data-variant=continuation]");
  assert.ok((await answers(again))[0].startsWith(seen.trimEnd()), "the server had all that was seen");
  await again.waitForFunction(() => [...document.querySelectorAll(".assistant")].at(-1).textContent.includes("word400"));
  await idle(again);
  assert.equal(spaceless(await answers(again)), spaceless(WORDS));
  assert.deepEqual(await mine(again), ["count slowly"]);
  assert.equal((await again.$$(".badge.kept:not([hidden])")).length, 0, "nothing was lost, so nothing is kept");
  assert.deepEqual(await storedTails(again), []);
});

test("P2: a message whose answer is lost is sent again and taken once", async () => {
  const page = await open();
  let lost = 0;
  await page.route("**/v1/sessions/*/inputs", async (route) => {
    if (route.request().method() !== "POST" || lost >= 2) return route.continue();
    lost += 1;
    await route.fetch();
    return route.abort("connectionreset");
  });
  await say(page, "only once");
  await idle(page);
  assert.equal(lost >= 1, true);
  const { data } = await server.get(`/v1/sessions/${sessionIdOf(page)}/inputs`);
  assert.equal(data.length, 1);
  assert.deepEqual(await mine(page), ["only once"]);
  assert.deepEqual(await answers(page), ["You said only once."]);
});

test("P2: messages written while the server is dead arrive once, in order, when it is back", async () => {
  const page = await open();
  await say(page, "hello");
  await idle(page);
  await server.kill();
  await say(page, "one");
  await say(page, "two");
  await page.waitForSelector(".pending[data-variant=waiting]");
  await page.waitForSelector("#lost:not([hidden])");
  await server.start();
  await page.evaluate(() => document.querySelector("#lost-now").click());
  await idle(page);
  assert.deepEqual(await mine(page), ["hello", "one", "two"]);
  assert.deepEqual(await answers(page), ["You said hello.", "You said one.", "You said two."]);
});

test("a tool call is a card with its arguments, its state and its result", async () => {
  const page = await open();
  await say(page, "list the files");
  await idle(page);
  assert.equal(await page.textContent(".tool-name"), "list_files");
  assert.equal(await page.getAttribute(".tool", "data-state"), "succeeded");
  await page.click(".tool summary");
  assert.match(await page.textContent(".tool .output"), /a-file\.txt/);
  assert.deepEqual((await answers(page)).map((text) => text.trim()), ["I will look.", "That is all."]);
  await page.reload();
  await idle(page);
  await page.click(".tool summary");
  assert.match(await page.textContent(".tool .output"), /a-file\.txt/);
});

test("P9: an approval asks with the whole command; the question outlives a reload; the command runs once", async () => {
  const page = await open();
  await say(page, "run the command");
  await page.waitForSelector(".prompt");
  await page.reload();
  await page.waitForSelector(".prompt");
  assert.match(await page.textContent(".prompt"), /Allow shell\?.*echo once >> ran\.txt; echo said-by-the-tool/s);
  assert.equal(await page.textContent("#state"), "Needs you");
  await page.click(".prompt >> text=Allow once");
  await idle(page);
  assert.equal(await page.getAttribute(".tool", "data-state"), "succeeded");
  await page.click(".tool summary");
  assert.match(await page.textContent(".tool .output"), /said-by-the-tool/);
  assert.equal(await readFile(join(server.workspace, "ran.txt"), "utf8"), "once\n");
});

test("a denied command does not run, and the page says so", async () => {
  const page = await open();
  await say(page, "run the command");
  await page.click(".prompt >> text=Deny");
  await idle(page);
  assert.equal(await page.getAttribute(".tool", "data-state"), "denied");
  await assert.rejects(readFile(join(server.workspace, "ran.txt")));
});

test("stop ends the turn, keeps its text, and gives back what was queued", async () => {
  const page = await open();
  await say(page, "count forever");
  await streaming(page, 60);
  await say(page, "afterwards");
  await page.waitForSelector(".pending[data-variant=queued]");
  await page.click("#stop");
  await page.waitForSelector(".end[data-variant=cancelled]");
  await page.waitForSelector(".pending[data-variant=cancelled]");
  const [text] = await answers(page);
  assert.ok(text.length >= 60);
  await page.click("text=Send again");
  await page.press("#composer-field", "Enter");
  await idle(page);
  assert.equal((await answers(page)).at(-1), "You said afterwards.");
  await page.reload();
  await idle(page);
  assert.equal((await answers(page))[0], text);
});

test("a queued message can be cancelled, and another run at once", async () => {
  const page = await open();
  await say(page, "count forever");
  await streaming(page, 20);
  await say(page, "second");
  await say(page, "third");
  await page.waitForFunction(() => document.querySelectorAll(".pending[data-variant=queued]").length === 2);
  await page.reload();
  await page.waitForFunction(() => document.querySelectorAll(".pending[data-variant=queued]").length === 2);
  await page.click(".pending:has-text('second') >> text=Cancel");
  await page.click(".pending[data-variant=cancelled] >> text=Dismiss");
  await page.click("text=Run it now");
  await idle(page);
  assert.deepEqual(await mine(page), ["count forever", "third"]);
  assert.equal((await answers(page)).at(-1), "You said third.");
});

test("a failed turn shows its code and what to do, also after a reload", async () => {
  const page = await open();
  await say(page, "use a bad key");
  await idle(page);
  for (const _ of [0, 1]) {
    assert.match(await page.textContent(".failure"), /This turn failed.*model_unauthorized.*this key is not known.*API key/s);
    await page.reload();
    await idle(page);
  }
});

test("reasoning is folded, formatting is shown", async () => {
  const page = await open();
  await say(page, "think first");
  await idle(page);
  assert.equal(await page.isVisible(".reasoning-text"), false);
  await page.click(".reasoning summary");
  assert.match(await page.textContent(".reasoning-text"), /Let me see/);
  assert.equal(await page.textContent(".prose strong"), "Seen.");
});

/**
 * Waits until the server asks for tokens: another process made the first one, and the running server
 * knows of it within a second. (A predicate of `waitForFunction` may not be asynchronous: its promise
 * counts as true.)
 */
async function closed(page) {
  await page.evaluate(async () => {
    while ((await fetch("/v1/sessions")).status !== 401) await new Promise(requestAnimationFrame);
  });
}

test("P14: once a token exists the page asks for one, keeps it nowhere, and goes on", async () => {
  const page = await open();
  await say(page, "hello");
  await idle(page);
  const token = (await server.command("token", "create", "--principal", "local")).trim();
  await closed(page);
  await page.reload();
  await page.waitForSelector("#login[open]");
  assert.deepEqual(await mine(page), []);
  await page.fill("#login-token", `${token}x`);
  await page.press("#login-token", "Enter");
  await page.waitForFunction(() => document.querySelector("#login .problem").textContent !== "");
  await page.fill("#login-token", token);
  await page.press("#login-token", "Enter");
  await idle(page);
  assert.deepEqual(await mine(page), ["hello"]);
  await say(page, "still here");
  await idle(page);
  await page.reload();
  await idle(page);
  assert.deepEqual(await mine(page), ["hello", "still here"]);
  const kept = await page.evaluate(() => JSON.stringify({ ...localStorage, ...sessionStorage, cookie: document.cookie }));
  assert.equal(kept.includes(token), false);
  await page.click("#logout");
  await page.waitForSelector("#login[open]");
});

test("P14: another principal's conversation is not there", async () => {
  const page = await open();
  await say(page, "my secret");
  await idle(page);
  const token = (await server.command("token", "create", "--principal", "somebody")).trim();
  await closed(page);
  const other = await open({}, `/${new URL(page.url()).hash}`);
  await other.fill("#login-token", token);
  await other.press("#login-token", "Enter");
  await other.waitForSelector("#absent:not([hidden])");
  assert.equal((await other.textContent("body")).includes("my secret"), false);
});

test("P14: the page is served under a policy that allows nothing from elsewhere and nothing inline", async () => {
  const response = await fetch(`${server.url}/`);
  assert.equal(response.status, 200);
  assert.match(response.headers.get("content-type"), /^text\/html/);
  const policy = Object.fromEntries(response.headers.get("content-security-policy").split(";").map((part) => {
    const [name, ...values] = part.trim().split(/\s+/);
    return [name, values.join(" ")];
  }));
  assert.deepEqual(policy, {
    "default-src": "'none'", "script-src": "'self'", "style-src": "'self'", "connect-src": "'self'", "img-src": "'self' data:",
    "base-uri": "'none'", "form-action": "'self'", "frame-ancestors": "'none'",
  });
  assert.equal(response.headers.get("x-content-type-options"), "nosniff");
  for (const [name, type] of [["app.js", "javascript"], ["app.css", "text/css"], ["icon.svg", "image/svg"]]) {
    const asset = await fetch(`${server.url}/assets/${name}`);
    assert.equal(asset.status, 200, name);
    assert.ok(asset.headers.get("content-type").includes(type), `${name}: ${asset.headers.get("content-type")}`);
    assert.equal(await asset.text(), await readFile(new URL(`../page/${name}`, import.meta.url), "utf8"));
  }
  const page = await open();
  await page.evaluate(() => {
    document.addEventListener("securitypolicyviolation", (event) => (window.violated = event.violatedDirective));
    const script = document.createElement("script");
    script.textContent = "window.inline = true";
    document.body.append(script);
  });
  await page.waitForFunction(() => window.violated);
  assert.equal(await page.evaluate(() => window.inline), undefined);
  page.complaints = page.complaints.filter((text) => !text.includes("Content Security Policy"));
});

test("a conversation can be renamed, found and deleted", async () => {
  const page = await open();
  await say(page, "apples");
  await idle(page);
  await page.click(".entry summary");
  await page.click(".entry >> text=Rename");
  await page.fill("#dialog-field", "oranges");
  await page.press("#dialog-field", "Enter");
  await page.waitForFunction(() => document.querySelector("#title").textContent === "oranges");
  await page.fill("#search", "orang");
  await page.waitForSelector('.entry:has-text("oranges")');
  await page.fill("#search", "nowhere to be found");
  await page.waitForSelector("#entries-empty:not([hidden])");
  await page.fill("#search", "");
  await page.click(".entry summary");
  await page.click(".entry >> text=Delete");
  await page.click("dialog[open] button:text-is('Delete')");
  await page.waitForFunction(() => location.hash === "#/" && document.querySelectorAll(".entry").length === 0);
  const { data } = await server.get("/v1/sessions");
  assert.equal(data.length, 0);
});
