// What lies between a client and the server, and does to connections what networks do.

import { strict as assert } from "node:assert";
import { spawn } from "node:child_process";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { createServer, connect } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { WAIT_MS } from "../harness.mjs";

/** Passes bytes on to a port until the test does something to the connections. */
export class Gate {
  #server;
  #pairs = new Set();

  async open(port) {
    this.target = port;
    this.passed = 0;
    this.#server = createServer({ allowHalfOpen: true }, (near) => this.#join(near));
    await new Promise((resolve) => this.#server.listen(0, "127.0.0.1", resolve));
    this.port = this.#server.address().port;
    return this;
  }

  #join(near) {
    this.passed += 1;
    const far = connect({ port: this.target, host: "127.0.0.1", allowHalfOpen: true });
    const pair = { near, far };
    this.#pairs.add(pair);
    for (const [from, to] of [[near, far], [far, near]]) {
      from.setNoDelay(true);
      from.on("data", (bytes) => to.writable && to.write(bytes));
      from.on("end", () => to.end());
      // What is cut on one side is cut on the other: so does a kernel that has no such connection.
      from.on("error", () => to.resetAndDestroy());
      from.on("close", () => near.destroyed && far.destroyed && this.#pairs.delete(pair));
    }
  }

  /** RST to both ends. */
  reset() {
    for (const { near, far } of this.#pairs) {
      near.resetAndDestroy();
      far.resetAndDestroy();
    }
  }

  /** FIN to both ends. */
  fin() {
    for (const { near, far } of this.#pairs) {
      for (const socket of [near, far]) {
        socket.removeAllListeners("data");
        socket.end(() => socket.destroySoon());
        socket.resume();
      }
    }
  }

  /** Nothing passes any more on what is open, and neither end is told. New connections pass. */
  hush() {
    for (const { near, far } of this.#pairs) {
      for (const socket of [near, far]) {
        for (const event of ["data", "end", "error"]) socket.removeAllListeners(event);
        socket.on("error", () => {});
        // It is taken from the ends, and goes nowhere.
        socket.resume();
      }
    }
    const hushed = [...this.#pairs];
    /** The client's kernel finds out. */
    return () => hushed.forEach(({ near, far }) => [near, far].forEach((socket) => socket.resetAndDestroy()));
  }

  async close() {
    this.reset();
    if (this.#server) await new Promise((resolve) => this.#server.close(resolve));
  }
}

/** A port that is free at the moment. */
async function freePort() {
  const server = createServer();
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address();
  await new Promise((resolve) => server.close(resolve));
  return port;
}

// One process, in the foreground, with everything that it writes in a folder of its own. Buffering of
// answers is on, as it is by default.
const config = (folder, port, target, more) => `
daemon off;
master_process off;
worker_rlimit_nofile 1024;
pid ${folder}/pid;
error_log stderr warn;
events { worker_connections 256; }
http {
  access_log off;
  client_body_temp_path ${folder}/body;
  proxy_temp_path ${folder}/proxy;
  fastcgi_temp_path ${folder}/fastcgi;
  uwsgi_temp_path ${folder}/uwsgi;
  scgi_temp_path ${folder}/scgi;
  server {
    listen 127.0.0.1:${port};
    location / {
      proxy_pass http://127.0.0.1:${target};
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_set_header Host $http_host;
      proxy_buffering on;
      ${more}
    }
  }
}
`;

/** nginx in front of a port. */
export class Nginx {
  async start(target, more = "") {
    const nginx = process.env.EVERTURN_NGINX ?? "nginx";
    this.folder = await mkdtemp(join(tmpdir(), "everturn-nginx-"));
    this.port = await freePort();
    await writeFile(join(this.folder, "nginx.conf"), config(this.folder, this.port, target, more));
    const args = ["-e", "stderr", "-p", this.folder, "-c", join(this.folder, "nginx.conf")];
    this.child = spawn(nginx, args, { stdio: ["ignore", "ignore", "pipe"] });
    let talk = "";
    this.child.stderr.on("data", (bytes) => (talk = (talk + bytes).slice(-4_000)));
    let ended = false;
    this.ended = new Promise((resolve) => {
      this.child.on("error", (error) => ((ended = true), (talk += error.message), resolve()));
      this.child.on("close", () => ((ended = true), resolve()));
    });
    const deadline = Date.now() + WAIT_MS;
    while (!(await answers(this.port))) {
      assert.ok(!ended && Date.now() < deadline, `nginx (${nginx}) does not run; cargo xtask test sets it up: ${talk}`);
    }
    return this;
  }

  async stop() {
    if (!this.folder) return;
    this.child.kill("SIGTERM");
    await this.ended;
    await rm(this.folder, { recursive: true, force: true });
  }
}

/** Whether somebody listens. */
function answers(port) {
  return new Promise((resolve) => {
    const socket = connect(port, "127.0.0.1");
    socket.on("connect", () => (socket.destroy(), resolve(true)));
    socket.on("error", () => setTimeout(() => resolve(false), 10));
  });
}
