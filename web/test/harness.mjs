// What the browser tests share: a browser, pages that report everything that goes wrong in them, and
// the few things that a person does.

import { strict as assert } from "node:assert";
import { existsSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { chromium } from "playwright-core";

const FLAGS = [
  "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
  "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
];

/** Limit for everything that a test waits for. */
export const WAIT_MS = 20_000;

function browserPath() {
  const found = [process.env.EVERTURN_CHROMIUM, "/usr/bin/chromium", "/usr/bin/chromium-browser"].find((path) => path && existsSync(path));
  assert.ok(found, "no browser: set EVERTURN_CHROMIUM or install Debian's chromium");
  return found;
}

export function launch() {
  return chromium.launch({ executablePath: browserPath(), args: FLAGS });
}

// Errors of the console that a test provokes: the browser reports each failed request there.
const EXPECTED = /Failed to load resource|net::ERR_/;

/**
 * A page in a context of its own. `page.complaints` collects errors of the page, violations of the
 * content security policy and requests to any other address.
 */
export async function openPage(browser, options = {}) {
  const context = options.context ?? (await browser.newContext({ viewport: { width: 1100, height: 800 }, ...options }));
  const page = await context.newPage();
  page.setDefaultTimeout(WAIT_MS);
  page.complaints = [];
  page.on("pageerror", (error) => page.complaints.push(String(error.stack ?? error)));
  page.on("console", (message) => {
    if (message.type() === "error" && !EXPECTED.test(message.text())) page.complaints.push(message.text());
  });
  page.on("request", (request) => {
    const { hostname, protocol } = new URL(request.url());
    if (protocol !== "data:" && hostname !== "127.0.0.1") page.complaints.push(`asked for ${request.url()}`);
  });
  return page;
}

/** Types a message and presses Enter. */
export async function say(page, text) {
  await page.fill("#composer-field", text);
  await page.press("#composer-field", "Enter");
}

/** Text of the answers on the screen, from top to bottom. */
export function answers(page) {
  return page.$$eval(".assistant .prose:not([hidden])", (nodes) => nodes.map((node) => node.textContent));
}

/** Texts of the person on the screen, sent or not. */
export function mine(page) {
  return page.$$eval(".user .bubble", (nodes) => nodes.map((node) => node.textContent));
}

/** Waits until the page shows that nothing runs and nothing waits to be sent. */
export function idle(page) {
  return page.waitForFunction(
    () =>
      location.hash.startsWith("#/s/") &&
      document.querySelector("#stop").hidden &&
      document.querySelector("#loading").hidden &&
      document.querySelector("#transcript").children.length > 0 &&
      !document.querySelector(".pending, .live"),
    null,
    { timeout: WAIT_MS },
  );
}

/** Waits until the answer that is being written has at least `chars` characters. */
export function streaming(page, chars = 20) {
  return page.waitForFunction(
    (least) => (document.querySelector(".live .prose")?.textContent.length ?? 0) >= least,
    chars,
    { timeout: WAIT_MS },
  );
}

export function sessionIdOf(page) {
  return decodeURIComponent(new URL(page.url()).hash.replace("#/s/", ""));
}

/** Nothing sticks out to the side. */
export async function fitsSideways(page) {
  const [wide, view] = await page.evaluate(() => [document.documentElement.scrollWidth, window.innerWidth]);
  assert.ok(wide <= view, `the page is ${wide} wide in a window of ${view}`);
}

/** Everything that can be used has a name for those who do not see it. */
export async function namesEverything(page) {
  const nameless = await page.$$eval("button, a[href], input, textarea, summary, img, dialog, [role=region]", (nodes) =>
    nodes
      .filter((node) => {
        if (node.tagName === "IMG") return !node.hasAttribute("alt");
        const labelled = node.getAttribute("aria-labelledby");
        const name =
          node.getAttribute("aria-label") ||
          (labelled && document.getElementById(labelled)?.textContent) ||
          (node.labels?.length > 0 && node.labels[0].textContent) ||
          (!/^(INPUT|TEXTAREA|DIALOG)$/.test(node.tagName) && node.textContent.trim());
        return !name;
      })
      .map((node) => node.outerHTML.slice(0, 120)),
  );
  assert.deepEqual(nameless, []);
}

/** The page's own files from the disk, as a browser's cache has them, for when no server is there. */
export async function cachePage(context) {
  const folder = fileURLToPath(new URL("../page/", import.meta.url));
  await context.route(/^[^#?]*:\d+\/(assets\/[a-z.-]+)?(#.*)?$/, (route) => {
    const name = new URL(route.request().url()).pathname.replace("/assets/", "").replace(/^\/$/, "index.html");
    return route.fulfill({ path: folder + name });
  });
}

/** The renderer of a tab dies as in a crash: the page gets no word of it. */
export async function crash(page) {
  const died = page.waitForEvent("crash");
  const session = await page.context().newCDPSession(page);
  session.send("Page.crash").catch(() => {});
  await died;
  await page.close();
}

/** Presses the button whether or not the page was faster: it comes back by itself as well. */
export const tryNow = (page) => page.evaluate(() => document.querySelector("#lost-now").click());

/** What the browser keeps of turns under way: keys and texts. */
export const storedTails = (page) => page.evaluate(() => Object.entries(localStorage).filter(([key]) => key.startsWith("everturn.tail/")));
/** Waits until the browser has kept an answer of at least `chars` characters. */
export const keptTail = (page, chars) => page.waitForFunction((least) => Object.entries(localStorage).some(([key, text]) =>
  key.startsWith("everturn.tail/") && JSON.parse(text).turns.at(-1).rows.at(-1).text.length >= least), chars);
