// Every HTTP request that the page makes goes through here, and every failure is one of two things:
// the server refused (`ApiError`, from its problem+json), or it could not be reached (`Unreachable`).

/** The server answered, and the answer is no. */
export class ApiError extends Error {
  constructor(status, problem, retryAfterMs) {
    super(problem.detail || problem.title || `the server answered ${status}`);
    this.name = "ApiError";
    this.status = status;
    this.code = problem.code ?? `http_${status}`;
    this.hint = problem.hint ?? null;
    // A server that does not say is believed by its status: what is its own fault may pass.
    this.permanent = problem.permanent ?? !(status >= 500 || status === 408 || status === 429);
    this.retryAfterMs = retryAfterMs;
  }
}

/** No answer: offline, refused, timed out. */
export class Unreachable extends Error {
  constructor(cause) {
    super("the server cannot be reached");
    this.name = "Unreachable";
    this.cause = cause;
  }
}

const TIMEOUT_MS = 20_000;

/** Milliseconds that a `Retry-After` header asks for (seconds or a date), or null. */
export function retryAfterMs(header, now = Date.now()) {
  if (!header) return null;
  const text = header.trim();
  if (/^\d{1,9}$/.test(text)) return Number(text) * 1000;
  const at = Date.parse(text);
  return Number.isNaN(at) ? null : Math.max(0, at - now);
}

/** Reads a refusal; a body that is no problem+json still gives an `ApiError`. */
export async function refusal(response) {
  let problem = {};
  try {
    const body = JSON.parse(await response.text());
    if (body && typeof body === "object") problem = body;
  } catch {
    problem = { title: response.statusText || `the server answered ${response.status}` };
  }
  return new ApiError(response.status, problem, retryAfterMs(response.headers.get("retry-after")));
}

/** Sends one request and returns its JSON, or null where the reply has no body. */
export async function request(method, path, { body, signal, timeoutMs = TIMEOUT_MS } = {}) {
  const signals = [AbortSignal.timeout(timeoutMs)];
  if (signal) signals.push(signal);
  const headers = { accept: "application/json" };
  if (body !== undefined) headers["content-type"] = "application/json";
  let response;
  let text;
  try {
    response = await fetch(path, {
      method,
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      signal: AbortSignal.any(signals),
      credentials: "same-origin",
      cache: "no-store",
    });
    if (response.ok) text = await response.text();
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Unreachable(error);
  }
  if (!response.ok) throw await refusal(response);
  if (!text) return null;
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Unreachable(error);
  }
}

/** Opens a feed. The caller reads the body and aborts through `signal`. */
export async function openStream(path, { signal, timeoutMs = TIMEOUT_MS }) {
  // The limit is for the headers only: a feed stays open for hours.
  const opening = new AbortController();
  const timer = setTimeout(() => opening.abort(), timeoutMs);
  let response;
  try {
    response = await fetch(path, {
      headers: { accept: "text/event-stream" },
      signal: AbortSignal.any([signal, opening.signal]),
      credentials: "same-origin",
      cache: "no-store",
    });
  } catch (error) {
    if (signal.aborted) throw error;
    throw new Unreachable(error);
  } finally {
    clearTimeout(timer);
  }
  if (!response.ok) throw await refusal(response);
  return response;
}

const id = encodeURIComponent;

/** All rows of a list that is walked with `after`, an id of a row. Such lists are bounded. */
async function allOf(path, options) {
  const data = [];
  for (;;) {
    const last = data.at(-1);
    const page = await request("GET", last ? `${path}&after=${id(last.input_id ?? last.id)}` : path, options);
    data.push(...page.data);
    if (!page.has_more || page.data.length === 0) return { data };
  }
}

/** The routes that the page uses, by what they do. */
export const api = {
  info: (options) => request("GET", "/v1/info", options),
  login: (token) => request("POST", "/v1/login", { body: { token } }),
  logout: () => request("POST", "/v1/logout", { body: {} }),

  sessions({ limit = 40, cursor, q } = {}, options) {
    const query = new URLSearchParams({ limit: String(limit) });
    if (cursor) query.set("cursor", cursor);
    if (q) query.set("q", q);
    return request("GET", `/v1/sessions?${query}`, options);
  },
  createSession: (body) => request("POST", "/v1/sessions", { body }),
  session: (session, options) => request("GET", `/v1/sessions/${id(session)}`, options),
  patchSession: (session, body) => request("PATCH", `/v1/sessions/${id(session)}`, { body }),
  deleteSession(session, { generation, force }) {
    const query = new URLSearchParams({ expected_generation: String(generation) });
    if (force) query.set("force", "true");
    return request("DELETE", `/v1/sessions/${id(session)}?${query}`);
  },
  messages(session, { before, limit = 60 } = {}, options) {
    const query = new URLSearchParams({ limit: String(limit) });
    if (before !== undefined) query.set("before", String(before));
    return request("GET", `/v1/sessions/${id(session)}/messages?${query}`, options);
  },
  queuedInputs: (session, options) =>
    allOf(`/v1/sessions/${id(session)}/inputs?status=queued&limit=500`, options),
  openPrompts: (session, options) =>
    allOf(`/v1/sessions/${id(session)}/prompts?limit=500`, options),
  turns: (session, options) => request("GET", `/v1/sessions/${id(session)}/turns`, options),
  run: (run, options) => request("GET", `/v1/runs/${id(run)}`, options),
  runHead: (run, options) => request("GET", `/v1/runs/${id(run)}/events?max=1`, options),
  feed: (session, after, options) =>
    openStream(`/v1/sessions/${id(session)}/events?after=${after}`, options),

  submit: (session, body) => request("POST", `/v1/sessions/${id(session)}/inputs`, { body }),
  cancelInput: (input) => request("DELETE", `/v1/inputs/${id(input)}`),
  stop: (session, body) => request("POST", `/v1/sessions/${id(session)}/stop`, { body }),
  resolve: (session, body) => request("POST", `/v1/sessions/${id(session)}/resolve`, { body }),
  answer: (prompt, body) => request("POST", `/v1/prompts/${id(prompt)}/answer`, { body }),
};
