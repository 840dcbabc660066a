// The measurement worker in JavaScript, for a page and for Node. It leases requests over HTTP,
// executes them in a sandbox, and reports results. The sandbox is a Web Worker that runs WebAssembly
// without imports, and is ended if a step takes too long.

import {Damaged, Refused, Unreachable, secondsOf} from "./api.mjs";
import {MOST_ERROR, PROTOCOL, RequestKind, RunStatus, Status, WorkKind} from "./messages.mjs";
import {SpeedWatch, comparison, excess} from "./statistics.mjs";

const START_SECONDS = 20; // limit to start a sandbox and to read the blobs of a lease
const LAST_PAUSE_SECONDS = 5;
const KEPT_BYTES = 256 << 20;
/** The status of a candidate after which its sandbox ended. */
const FAULTS = {[RunStatus.TIMED_OUT]: Status.RUN_TIMEOUT, [RunStatus.CRASHED]: Status.CRASH};
const MOST_DAMAGED = 4; // damaged arrivals of a blob before its lease is given up

const hex = (bytes) => Array.from(crypto.getRandomValues(new Uint8Array(bytes)), (b) => b.toString(16).padStart(2, "0")).join("");

/** Return the targets whose code this engine runs, the best first. */
export function runnableTargets() {
  const module = (...body) =>
    new Uint8Array([0, 97, 115, 109, 1, 0, 0, 0, 1, 5, 1, 96, 0, 1, 123, 3, 2, 1, 0, 10, body.length + 4, 1, body.length + 2, 0, ...body, 11]);
  const zero = [65, 0, 253, 15]; // i32.const 0, i8x16.splat
  const simd = WebAssembly.validate(module(...zero));
  const relaxed = WebAssembly.validate(module(...zero, ...zero, ...zero, 253, 133, 2)); // f32x4.relaxed_madd
  return [...(relaxed ? ["wasm32-relaxed"] : []), ...(simd ? ["wasm32"] : [])];
}

/** One worker.
 *
 * `api` is the client of the service, `name` the worker's name, and `device` the device's facts.
 * `spawn` starts a sandbox: {post(message), listen(handle), terminate()}. `tell` receives the state
 * for the user: {state, worker, trials, results, task, text}. `kept` is the id of an earlier page or
 * process; an invalid one is ignored. `keep` stores the id that the service knows, so that a job for
 * this worker finds it again. `condition` returns the device's condition, if the engine knows it.
 */
export class MeasurementWorker {
  #stopping = new AbortController();
  #lease = null; // {id, lost: AbortController}
  #blobs = new Map();
  #speed = new SpeedWatch();
  #finished = false;
  #kept;

  constructor({api, name, device, targets, spawn, tell, kept = "", keep = () => {}, condition = () => null}) {
    Object.assign(this, {api, name, device, targets, spawn, keep, condition});
    this.shown = {state: "starting", worker: "", trials: 0, results: 0, task: "", text: ""};
    this.tell = (news) => tell(Object.assign(this.shown, news));
    this.#kept = /^[0-9a-f]{32}$/.test(kept) ? kept : null;
    this.id = this.#kept ?? hex(16);
  }

  /** Stop soon, and return all leases. */
  stop() {
    this.#stopping.abort();
  }

  /** Return all leases immediately, in requests that outlive the page. */
  leaveNow() {
    this.stop();
    this.#farewell({keepalive: true});
  }

  /** Work until `stop`. Throws Refused if the service does not want this worker. */
  async run() {
    const {signal} = this.#stopping;
    let heart;
    try {
      await this.#patiently(() => this.#register());
      heart = this.#beat();
      let claim = hex(16);
      while (!signal.aborted) {
        this.tell({state: "waiting", task: ""});
        const answer = await this.#patiently(() => this.#claim(claim));
        claim = hex(16);
        for (const lease of answer?.leases ?? []) {
          if (!signal.aborted) await this.#work(lease);
        }
      }
    } finally {
      this.stop();
      await this.#farewell({});
      await heart;
      this.tell({state: "stopped", task: ""});
    }
  }

  /** Repeat an action, with pauses, until it gets an answer. Returns undefined once the worker stops
   * or `signal` aborts. */
  async #patiently(ask, signal = this.#stopping.signal) {
    for (let pause = 0.1; !signal.aborted; pause = Math.min(2 * pause, LAST_PAUSE_SECONDS)) {
      try {
        return await ask();
      } catch (error) {
        if (signal.aborted) return undefined;
        if (error instanceof Refused && error.workerUnknown) {
          await this.#patiently(() => this.#register());
          continue;
        }
        if (!(error instanceof Unreachable)) throw error;
        this.tell({text: error.message});
        await this.#pause(pause * (0.5 + Math.random() / 2));
      }
    }
    return undefined;
  }

  async #register() {
    const facts = {name: this.name, device: this.device, targets: this.targets, protocol: PROTOCOL};
    const ask = () => this.api.call("POST", "/v1/workers", {...facts, worker_id: this.id});
    let answer;
    try {
      answer = await ask();
    } catch (error) {
      if (error.slug !== "forbidden" || this.id !== this.#kept) throw error;
      this.id = hex(16); // the stored id belongs to another token
      answer = await ask();
    }
    this.heartbeat = secondsOf(answer, "heartbeat_seconds");
    this.longPoll = secondsOf(answer, "long_poll_seconds");
    if (this.id !== this.#kept) this.keep((this.#kept = this.id));
    this.tell({worker: this.id, text: ""});
  }

  #claim(claim_id) {
    const body = {worker_id: this.id, claim_id, limit: 1, wait_seconds: this.longPoll};
    return this.api.call("POST", "/v1/leases/claim", body, {seconds: this.longPoll, signal: this.#stopping.signal});
  }

  async #beat() {
    while (!this.#stopping.signal.aborted) {
      await this.#pause(this.heartbeat);
      if (this.#stopping.signal.aborted) return;
      const lease = this.#lease;
      try {
        const body = {leases: lease ? [lease.id] : [], speed: this.#speed.status, condition: this.condition()};
        const answer = await this.api.call("POST", `/v1/workers/${this.id}/heartbeat`, body);
        this.heartbeat = secondsOf(answer, "heartbeat_seconds");
        if (lease && !Object.hasOwn(answer.renewed ?? {}, lease.id)) lease.lost.abort();
        this.tell({text: answer.health === "healthy" ? "" : `the service says: ${answer.health}`});
      } catch (error) {
        this.tell({text: error.message});
        if (error instanceof Refused && error.endsWorker) this.stop();
      }
    }
  }

  async #farewell(options) {
    if (this.#finished || !this.shown.worker) return;
    this.#finished = true;
    const body = {worker_id: this.id, leases: this.#lease ? [this.#lease.id] : []};
    const quietly = (asked) => asked.catch((error) => this.tell({text: error.message}));
    const release = body.leases.length ? [quietly(this.api.call("POST", "/v1/leases/release", body, options))] : [];
    await Promise.all([...release, quietly(this.api.call("DELETE", `/v1/workers/${this.id}`, undefined, options))]);
  }

  /** Wait; the worker's stop ends the pause. */
  #pause(seconds) {
    return new Promise((resolve) => {
      const {signal} = this.#stopping;
      const done = () => {
        clearTimeout(timer);
        signal.removeEventListener("abort", done);
        resolve();
      };
      const timer = setTimeout(done, 1000 * seconds);
      signal.addEventListener("abort", done);
    });
  }

  async #work({lease_id: id, payload: request}) {
    const lost = new AbortController();
    this.#lease = {id, lost};
    const signal = AbortSignal.any([lost.signal, this.#stopping.signal]);
    try {
      if (!request.plain?.length && request.work?.do !== WorkKind.SPEEDS) {
        throw new TypeError("the request is not spelled out: it needs a worker in Python");
      }
      if (!Object.hasOwn(KINDS, request.kind)) throw new TypeError(`there is no request of kind '${request.kind}'`);
      const {threads, task, digests} = KINDS[request.kind](request);
      if (threads > 1) throw new TypeError(`the request is for ${threads} threads, this worker has one`);
      this.tell({state: "fetching", task});
      const blobs = await this.#fetched(digests, signal);
      this.tell({state: "measuring"});
      const execute = request.kind === RequestKind.RUN ? this.#run : this.#measure;
      const fields = await execute.call(this, request, blobs, signal);
      const result = {kind: request.kind, protocol: PROTOCOL, request_id: request.request_id, worker: this.id, ...fields};
      if (signal.aborted) return; // the lease was released or lost
      const body = {worker_id: this.id, result_key: hex(16), result};
      await this.#patiently(() => this.api.call("POST", `/v1/leases/${id}/result`, body));
      this.tell({results: this.shown.results + 1, trials: this.shown.trials + (result.measurements?.length ?? 0)});
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof Refused && error.endsWorker) throw error;
      this.tell({text: error.message});
      if (!(error instanceof Refused)) await this.#fail(id, error);
    } finally {
      if (!this.#stopping.signal.aborted) this.#lease = null;
    }
  }

  async #fail(id, error) {
    const cause = error instanceof Damaged ? "service" : "worker";
    const body = {worker_id: this.id, cause, error: `${error.message}`.slice(0, MOST_ERROR)};
    try {
      await this.api.call("POST", `/v1/leases/${id}/failure`, body);
    } catch (problem) {
      if (problem instanceof Refused && problem.endsWorker) throw problem;
      this.tell({text: problem.message}); // the lease expires
    }
  }

  /** Return a blob. Retries a damaged transfer, unless the service's own copy is damaged. */
  #blob(digest, signal) {
    let damaged = 0;
    const ask = async () => {
      try {
        return await this.api.blob(digest, signal);
      } catch (error) {
        if (!(error instanceof Damaged)) throw error;
        if (++damaged < MOST_DAMAGED) throw new Unreachable(error.message);
        throw new Damaged(`${error.message} ${damaged} times`);
      }
    };
    return this.#patiently(ask, signal);
  }

  /** Return the bytes of blobs by digest. Caches the most recently used blobs. */
  async #fetched(digests, signal) {
    const found = new Map();
    for (const digest of digests) {
      const bytes = this.#blobs.get(digest) ?? (await this.#blob(digest, signal));
      if (signal.aborted || bytes === undefined) throw new Unreachable("the lease is over");
      this.#blobs.delete(digest);
      this.#blobs.set(digest, bytes);
      found.set(digest, bytes);
    }
    let held = [...this.#blobs.values()].reduce((all, bytes) => all + bytes.byteLength, 0);
    for (const [digest, bytes] of this.#blobs) {
      if (held <= KEPT_BYTES) break;
      this.#blobs.delete(digest);
      held -= bytes.byteLength;
    }
    return found;
  }

  /** Run a message in a sandbox. Passes each event to `take`. Returns {status, error}. */
  #sandboxed(asked, limit, signal, take) {
    return new Promise((resolve) => {
      const sandbox = this.spawn();
      let timer;
      let over = false; // events after the sandbox's end are ignored
      const end = (status, error = "") => {
        over = true;
        clearTimeout(timer);
        signal.removeEventListener("abort", stop);
        sandbox.terminate();
        resolve({status, error});
      };
      const stop = () => end(RunStatus.CANCELLED, "the lease is over");
      const wait = (seconds) => {
        clearTimeout(timer);
        timer = setTimeout(() => end(RunStatus.TIMED_OUT, `no answer within ${seconds} seconds`), 1000 * seconds);
      };
      signal.addEventListener("abort", stop);
      wait(START_SECONDS + limit);
      sandbox.listen((event) => {
        if (over) return;
        if (event.event === "ready") sandbox.post(asked);
        else if (event.event === "failed") end(event.status, event.error);
        else if (event.event === "done") end(RunStatus.OK);
        else {
          if (event.event === "begin") wait(limit);
          take(event);
        }
      });
      if (signal.aborted) stop();
    });
  }

  async #run(request, blobs, signal) {
    const plan = request.plain?.length ? readJson(blobs.get(request.plain[0])) : null;
    let found = {};
    const {status, error} = await this.#sandboxed({request, plan, blobs}, request.limit_seconds, signal, (event) => {
      if (event.event === "result") found = event;
    });
    const ok = status === RunStatus.OK;
    return {
      status,
      error,
      errors: (ok && found.errors) || {},
      fetched: (ok && found.fetched) || {},
      race: (ok && found.race) || null,
      seconds: (ok && found.seconds) || [],
      speeds: (ok && found.speeds) || null,
    };
  }

  /** Measure a batch. If the device was disturbed, measure it again and return the less disturbed
   * result. */
  async #measure(request, blobs, signal) {
    let {observed, worst} = await this.#attempt(request, blobs, signal);
    if (worst?.disturbed && !this.#speed.throttled && !signal.aborted) {
      const again = await this.#attempt(request, blobs, signal);
      if (again.worst && excess(again.worst) < excess(worst) && !signal.aborted) ({observed, worst} = again);
    }
    const measurements = request.candidates.map((candidate) => ({
      trial_id: candidate.trial_id,
      measurement: this.#measurement(request, candidate, observed.get(candidate.trial_id), worst),
    }));
    return {measurements};
  }

  /** Return the outcome of each candidate, and the most disturbed reading of the speed.
   *
   * Memory damage may crash a later candidate. A crash is therefore confirmed by running the suspect
   * alone. If the suspect survives, each remaining candidate also runs alone. */
  async #attempt(request, blobs, signal) {
    const plan = readJson(blobs.get(request.plain[0]));
    const names = request.candidates.map(({trial_id}) => trial_id);
    const observed = new Map(names.map((name) => [name, unseen()]));
    let worst = null;
    let groups = [names];
    let suspect = null;
    while (groups.length && !signal.aborted) {
      const [group, ...rest] = groups;
      let current = group[0];
      const asked = {request, plan, blobs, only: new Set(group)};
      const {status, error} = await this.#sandboxed(asked, request.repeat.limit_seconds, signal, (event) => {
        if (event.event === "speed") {
          const speed = this.#speed.take(event.seconds);
          if (!worst || excess(speed) > excess(worst)) worst = speed;
        }
        current = event.trial ?? current;
        this.#note(observed.get(event.trial), event);
      });
      if (signal.aborted) break;
      groups = rest;
      if (status === RunStatus.OK) {
        // the suspect does no harm alone: an earlier candidate did
        if (suspect !== null) groups = rest.flat().map((name) => [name]);
        suspect = null;
        continue;
      }
      const others = group.filter((name) => name !== current);
      for (const name of group) observed.set(name, unseen());
      if (status === RunStatus.CRASHED && others.length) {
        suspect = current;
        groups = [[current], others, ...rest];
        continue;
      }
      suspect = null;
      const kind = FAULTS[status] ?? Status.RUN_ERROR;
      observed.set(current, {...unseen(), status: kind, error});
      if (others.length) groups = [others, ...rest];
    }
    return {observed, worst};
  }

  #note(seen, event) {
    if (!seen) return;
    seen.ended = Date.now() / 1000;
    seen.started ??= seen.ended;
    if (event.event === "checked") {
      seen.status = event.status;
      seen.error = event.error;
      seen.maxError = event.maxError === null ? seen.maxError : Math.max(seen.maxError ?? 0, event.maxError);
      seen.checks += event.status === Status.OK;
    } else if (event.event === "sample") {
      seen.samples.push(event.seconds);
    } else if (event.event === "pair") {
      seen.against = event.against;
      seen.ratios.push(event.ratio);
    }
  }

  #measurement(request, candidate, seen, speed) {
    const {cases, repeat} = request;
    const ok = seen.status === Status.OK && seen.samples.length > 0;
    const weighted = cases.filter(({weight}) => weight);
    const open = Object.keys(cases[0].sizes).length > 0;
    const timed = weighted.length ? weighted : cases.slice(0, 1);
    const sum = (seconds) => seconds.reduce((all, each, i) => all + (open ? timed[i].weight : 1) * each, 0);
    return {
      status: ok || (seen.status !== null && seen.status !== Status.OK) ? seen.status : Status.RUN_ERROR,
      error: ok ? "" : (seen.error || `it was not timed within ${repeat.limit_seconds} seconds`).slice(0, MOST_ERROR),
      samples_seconds: ok ? seen.samples.map(sum) : [],
      max_error: seen.maxError,
      tolerance: request.tolerance,
      seeds: cases.flatMap(({inputs}) => inputs.map(({seed}) => seed)),
      reference_digest: cases[0].reference_digest,
      object_digest: candidate.object_digest,
      build_seconds: candidate.build_seconds,
      measure_seconds: Math.max(0, (seen.ended ?? 0) - (seen.started ?? 0)),
      worker: this.id,
      device: this.device,
      measured_at: Date.now() / 1000,
      checks: seen.checks,
      comparison: seen.ratios.length ? comparison(seen.against, seen.ratios) : null,
      speed,
      at_sizes: ok && open ? timed.map(({sizes, weight}, i) => ({sizes, weight, samples_seconds: seen.samples.map((each) => each[i])})) : [],
    };
  }
}

const unseen = () => ({status: null, error: "", checks: 0, maxError: null, samples: [], ratios: []});

const readJson = (bytes) => JSON.parse(new TextDecoder().decode(bytes));

const RUNS = {
  [WorkKind.CHECK]: "a whole model, checked",
  [WorkKind.RACE]: "whole models, raced",
  [WorkKind.PROFILE]: "a model, kernel by kernel",
  [WorkKind.SPEEDS]: "the device itself",
};

/** What a request needs, and a short description of it, by kind. */
const KINDS = {
  [RequestKind.MEASURE]: ({key, candidates, phase, library_digest, cases, plain}) => ({
    threads: key.threads,
    task: `${candidates.length} candidates of one kernel (${phase})`,
    digests: [...new Set([library_digest, ...cases.map((each) => each.reference_digest), ...plain])],
  }),
  [RequestKind.RUN]: ({threads, work, blobs}) => ({threads, task: RUNS[work.do] ?? "a run", digests: Object.keys(blobs)}),
};
