// The real binary for the browser tests: a home of its own, a scripted model, started, killed with
// SIGKILL and started again on the same port.

import { strict as assert } from "node:assert";
import { execFile, spawn } from "node:child_process";
import { existsSync } from "node:fs";
import { mkdtemp, mkdir, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";

const START_MS = 20_000;
const binary = process.env.EVERTURN_BIN ?? fileURLToPath(new URL("../../target/debug/everturn", import.meta.url));

export const WORDS = Array.from({ length: 400 }, (_, n) => `word${n + 1} `).join("");

const SCRIPT = `
[[rule]]
contains = "count slowly"
reply = [{ pieces = ["word{{n}} "], repeat = 400, delay_ms = 12 }]
usage = { input_tokens = 1200, output_tokens = 400 }

[[rule]]
contains = "count forever"
reply = [{ pieces = ["word{{n}} "], repeat = 20000, delay_ms = 20 }]

[[rule]]
contains = "think first"
reply = [{ reasoning = "Let me see. " }, { text = "**Seen.**" }]

[[rule]]
contains = "list the files"
round = 0
reply = [{ text = "I will look. " }, { call = "list_files", arguments = { path = "." } }]
[[rule]]
contains = "list the files"
round = 1
reply = [{ text = "That is all." }]

[[rule]]
contains = "run the command"
round = 0
reply = [{ text = "May I? " }, { call = "shell", arguments = { command = "echo once >> ran.txt; echo said-by-the-tool" } }]
[[rule]]
contains = "run the command"
round = 1
reply = [{ text = "It said: {{last_tool_result}}" }]

[[rule]]
contains = "use a bad key"
reply = [{ fail = 401, message = "this key is not known" }]

[[rule]]
reply = [{ text = "You said {{input}}." }]
`;

/** Model keys and settings of whoever runs the tests stay out of them. */
function cleanEnvironment(extra) {
  const env = Object.entries(process.env).filter(([name]) => !/^(EVERTURN_|OPENAI_|ANTHROPIC_|OLLAMA_)/.test(name));
  return { ...Object.fromEntries(env), ...extra };
}

export class RealServer {
  async setUp(script = SCRIPT) {
    assert.ok(existsSync(binary), `no binary at ${binary}: build it with cargo build -p everturn, or set EVERTURN_BIN`);
    this.root = await mkdtemp(join(tmpdir(), "everturn-page-"));
    this.home = join(this.root, "home");
    this.workspace = join(this.root, "work");
    await mkdir(this.workspace);
    this.script = join(this.root, "script.toml");
    await writeFile(this.script, script);
    await writeFile(join(this.workspace, "a-file.txt"), "hello\n");
    await this.start("127.0.0.1:0");
    return this;
  }

  #environment() {
    return cleanEnvironment({ HOME: this.root, NO_COLOR: "1" });
  }

  async start(listen = `127.0.0.1:${this.port}`) {
    const args = ["serve", "--listen", listen, "--home", this.home, "--model", `script/${this.script}`, "--workspace", this.workspace];
    const child = spawn(binary, args, { env: this.#environment(), stdio: ["ignore", "pipe", "pipe"] });
    this.child = child;
    this.ended = new Promise((resolve) => child.on("close", resolve));
    let talk = "";
    child.stderr.on("data", (chunk) => (talk = (talk + chunk).slice(-20_000)));
    let out = "";
    const address = await new Promise((resolve, reject) => {
      const timer = setTimeout(() => give("the server does not say where it listens"), START_MS);
      const give = (error) => {
        clearTimeout(timer);
        reject(new Error(`${error}; it said: ${out}${talk}`));
      };
      child.on("error", (error) => give(error.message));
      this.ended.then((code) => give(`the server ended with ${code}`));
      child.stdout.on("data", (chunk) => {
        out += chunk;
        const found = /listening on (http:\/\/\S+)/.exec(out);
        if (!found) return;
        clearTimeout(timer);
        resolve(found[1]);
      });
    });
    this.url = address.replace(/\/$/, "");
    this.port = Number(new URL(this.url).port);
    this.talk = () => talk;
  }

  /** As hard as it gets: no signal that it could handle. */
  async kill() {
    this.child.kill("SIGKILL");
    await this.ended;
  }

  async tearDown() {
    if (this.child && this.child.exitCode === null && this.child.signalCode === null) await this.kill();
    if (this.root) await rm(this.root, { recursive: true, force: true });
  }

  async command(...args) {
    const { stdout } = await promisify(execFile)(binary, [...args, "--home", this.home], { env: this.#environment(), timeout: START_MS });
    return stdout;
  }

  async get(path, token) {
    const response = await fetch(this.url + path, { headers: token ? { authorization: `Bearer ${token}` } : {} });
    const text = await response.text();
    assert.equal(response.status, 200, `${path}: ${response.status} ${text}`);
    return JSON.parse(text);
  }

  async messages(session) {
    return (await this.get(`/v1/sessions/${session}/messages?limit=500`)).data;
  }

  /** All that the runs of a session have said, by their journals, oldest first. */
  async journal(session) {
    const { data } = await this.get(`/v1/sessions/${session}/turns`);
    let said = "";
    for (const run of [...data].sort((a, b) => a.generation - b.generation)) {
      const { events } = await this.get(`/v1/runs/${run.run_id}/events`);
      said += events.filter((event) => event.event === "text.delta").map((event) => event.text).join("");
    }
    return said;
  }
}
