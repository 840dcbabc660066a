// HTTP client of a worker: JSON requests to one service, and blobs by digest.

const PROBLEM = "urn:tilewright:problem:";
const TIMEOUT_SECONDS = 30;
const MOST_SECONDS = 3600;

/** The service did not answer, or its answer asks for a retry. */
export class Unreachable extends Error {}

/** A blob arrived completely, but its bytes do not match its digest. */
export class Damaged extends Error {}

/** The service answered with a problem that a retry would not change. */
export class Refused extends Error {
  constructor(status, {type, detail, what = ""}) {
    super(`${detail} (${status})`);
    this.slug = type.slice(PROBLEM.length);
    this.workerUnknown = this.slug === "not-found" && what === "worker";
    this.endsWorker = ["unauthorized", "forbidden", "protocol-version"].includes(this.slug);
  }
}

export class Api {
  #token;

  constructor(server, token) {
    this.server = server.replace(/\/+$/, "");
    this.#token = token;
  }

  /** Send a request, and return the JSON of its answer. */
  async call(method, path, body, {seconds = 0, keepalive = false, signal} = {}) {
    const answer = await this.#fetch(path, {
      method,
      keepalive,
      body: body === undefined ? undefined : JSON.stringify(body),
      headers: body === undefined ? {} : {"Content-Type": "application/json"},
      signal: AbortSignal.any([AbortSignal.timeout(1000 * (TIMEOUT_SECONDS + seconds)), ...(signal ? [signal] : [])]),
    });
    try {
      const text = await answer.text();
      const found = text ? JSON.parse(text) : {};
      if (found === null || typeof found !== "object" || Array.isArray(found)) throw new TypeError("no object");
      return found;
    } catch (error) {
      throw new Unreachable(`${this.server} does not answer in JSON: ${error.message}`);
    }
  }

  /** Return the bytes of a blob, after checking their digest. */
  async blob(digest, signal) {
    if (!/^[0-9a-f]{64}$/.test(digest)) throw new Unreachable("a lease names no digest of a blob");
    const answer = await this.#fetch(`/v1/blobs/${digest}`, {signal, cache: "no-store"});
    let bytes;
    try {
      bytes = await answer.arrayBuffer();
    } catch (error) {
      throw new Unreachable(`blob ${digest} broke off: ${error.message}`);
    }
    const found = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
    if (Array.from(found, (byte) => byte.toString(16).padStart(2, "0")).join("") !== digest) {
      throw new Damaged(`blob ${digest} arrived damaged`);
    }
    return bytes;
  }

  async #fetch(path, options) {
    let answer;
    try {
      answer = await fetch(this.server + path, {
        ...options,
        headers: {...options.headers, Authorization: `Bearer ${this.#token}`},
        redirect: "error",
        credentials: "omit",
        referrerPolicy: "no-referrer",
      });
    } catch (error) {
      throw new Unreachable(`${this.server} does not answer: ${error.cause?.message ?? error.message}`);
    }
    if (answer.ok) return answer;
    let problem;
    try {
      problem = await answer.json();
    } catch {
      problem = {};
    }
    const known = typeof problem?.type === "string" && problem.type.startsWith(PROBLEM);
    const later = answer.status >= 500 || [408, 429].includes(answer.status);
    if (!known || later) throw new Unreachable(`the service failed: ${problem?.detail ?? answer.status}`);
    throw new Refused(answer.status, problem);
  }
}

/** Return an interval from an answer, limited to reasonable values. */
export function secondsOf(answer, name) {
  const found = answer[name];
  if (typeof found !== "number") throw new Unreachable(`the answer is not the service's: it has no '${name}'`);
  return Math.min(Math.max(found, 0.05), MOST_SECONDS);
}
