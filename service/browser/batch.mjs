// Measurement of a batch of candidates. Each is checked on every case; correct candidates are timed
// in turns. The statistics are the same as in tuner/measure/harness/race.c.

import {compare, haloIsZero, pack, readNpy, unpack} from "./arrays.mjs";
import {Code, Kernel, clockTick, evict, now, runsFor, sampleSeconds, sleep, timed, warm} from "./code.mjs";
import {COLD_BYTES, LEAST_SECONDS, Status} from "./messages.mjs";
import {racing, shuffle} from "./statistics.mjs";

const POISON = 0xff;
const SINGLE_SECONDS = 2e-5;
const FINE_TICK = 2e-5;

/** Measure a batch. Announces each step with `emit` in advance. `only`: the trials to measure. */
export async function measureBatch({request, plan, blobs, only}, emit) {
  const code = await Code.load(blobs.get(request.library_digest));
  const wanted = request.candidates.map((candidate, number) => ({candidate, number})).filter(({candidate}) => only.has(candidate.trial_id));
  await new Batch(code, request, plan, blobs, emit).run(wanted);
}

class Batch {
  constructor(code, request, plan, blobs, emit) {
    Object.assign(this, {code, request, plan, blobs, emit});
    this.known = new Map(); // addresses of buffers that candidates share
    this.expected = new Map();
  }

  async run(wanted) {
    const {cases} = this.request;
    const weighted = cases.filter((each) => each.weight);
    const points = cases.map((each, index) => [each, index]).filter(([each]) => (weighted.length ? each.weight : each === cases[0]));
    const isPoint = new Set(points.map(([, index]) => index));
    for (const index of cases.keys()) {
      if (isPoint.has(index)) continue;
      const mark = this.code.mark;
      wanted = wanted.filter((each) => this.check(each, index) !== null);
      this.code.release(mark);
      this.known.clear();
    }
    const ready = [];
    for (const each of wanted) {
      const kernels = [];
      for (const [, index] of points) {
        const kernel = this.check(each, index);
        if (kernel === null) break;
        kernels.push(kernel);
      }
      if (kernels.length === points.length) ready.push(this.entry(each, kernels, points));
    }
    if (this.request.incumbent) await this.compare(ready);
    else await this.screen(ready);
  }

  entry({candidate, number}, kernels, points) {
    const {buffers} = this.plan.cases[points[0][1]][number];
    const weights = buffers.filter(({role}) => role === "weight").reduce((all, {bytes}) => all + bytes, 0);
    // a coarse clock cannot time a single run
    const cold = weights >= COLD_BYTES && clockTick() <= FINE_TICK;
    const open = Object.keys(this.request.cases[0].sizes).length > 0;
    const weight = points.map(([each]) => (open ? each.weight : 1));
    return {candidate, kernels, weight, cold, runs: kernels.map(() => 1), samples: []};
  }

  /** Run a candidate once on poisoned memory. Returns its kernel, or null for wrong results. */
  check({candidate, number}, index) {
    const trial = candidate.trial_id;
    this.emit({event: "begin", trial});
    const say = (status, error, maxError = null) => this.emit({event: "checked", trial, status, error, maxError});
    const plan = this.plan.cases[index][number];
    let kernel, places;
    try {
      if (plan.error) throw new Error(plan.error);
      places = plan.buffers.map((buffer) => this.place(buffer));
      kernel = new Kernel(this.code, plan, places, this.scratch(plan.scratch));
    } catch (error) {
      say(Status.RUN_ERROR, `${error}`);
      return null;
    }
    kernel.run(); // a trap ends the sandbox
    const output = plan.buffers.findIndex(({role}) => role === "output");
    const {memory} = this.code;
    if (!haloIsZero(plan.buffers[output], memory, places[output])) {
      say(Status.WRONG_ANSWER, "the halo of the output is not zero");
      return null;
    }
    const distance = compare(unpack(plan.buffers[output], memory, places[output]), this.reference(index));
    if (!(distance <= this.request.tolerance)) {
      const error = `relative error ${distance.toPrecision(3)} over the tolerance ${this.request.tolerance}`;
      say(Status.WRONG_ANSWER, error, Number.isFinite(distance) ? distance : null);
      return null;
    }
    say(Status.OK, "", distance);
    return kernel;
  }

  reference(index) {
    const digest = this.request.cases[index].reference_digest;
    if (!this.expected.has(digest)) this.expected.set(digest, readNpy(this.blobs.get(digest)));
    return this.expected.get(digest);
  }

  /** Return the address of a buffer, which is filled with its array or poisoned. */
  place(buffer) {
    const key = JSON.stringify(buffer);
    let start = this.known.get(key);
    if (start === undefined) {
      start = this.code.allocate(buffer.bytes);
      if (buffer.array) pack(buffer, this.blobs.get(buffer.array), this.code.memory, start);
      this.known.set(key, start);
    }
    if (!buffer.array) this.code.bytes(start, buffer.bytes).fill(POISON);
    return start;
  }

  scratch(bytes) {
    let [start, room] = this.known.get("scratch") ?? [0, -1];
    if (room < bytes) {
      start = this.code.allocate(bytes);
      this.known.set("scratch", [start, bytes]);
    }
    this.code.bytes(start, bytes).fill(POISON);
    return start;
  }

  async screen(left) {
    const {repeat} = this.request;
    let best = repeat.incumbent_seconds ?? Infinity;
    let began = -Infinity;
    for (let round = 0; round < repeat.samples && left.length; round++) {
      began = await nextRound(began, repeat.round_seconds);
      shuffle(left);
      for (const entry of left) {
        if (round === 0 && !(await this.calibrated(entry, best))) continue;
        best = Math.min(best, this.sample(entry));
      }
      left = stillRacing(left, repeat);
    }
  }

  async compare(ready) {
    const {repeat, incumbent} = this.request;
    if (!ready.length) return;
    const first = ready.find(({candidate}) => candidate.trial_id === incumbent) ?? ready[0];
    await this.calibrated(first, Infinity);
    const best = this.sample(first);
    let left = [];
    for (const entry of ready) {
      if (entry !== first && (await this.calibrated(entry, best))) left.push(entry);
    }
    let began = -Infinity;
    for (let round = 0; round < Math.ceil(repeat.samples / 2); round++) {
      began = await nextRound(began, repeat.round_seconds);
      shuffle(left);
      for (const entry of left) {
        const [before, one] = [this.sample(first), this.sample(entry)];
        const [two, after] = [this.sample(entry), this.sample(first)];
        for (const [mine, other] of [[one, before], [two, after]]) {
          const against = first.candidate.schedule_digest;
          this.emit({event: "pair", trial: entry.candidate.trial_id, against, ratio: mine / other});
        }
      }
      if (!left.length) this.sample(first);
      const racers = stillRacing([first, ...left], repeat);
      left = left.filter((entry) => racers.includes(entry));
    }
  }

  /** Find the number of runs per sample. Returns false for a candidate far slower than the best. */
  async calibrated(entry, best) {
    const {repeat} = this.request;
    this.emit({event: "begin", trial: entry.candidate.trial_id});
    if (entry.cold) return true;
    const seconds = sampleSeconds(repeat.sample_seconds) / entry.kernels.length;
    for (const kernel of entry.kernels) {
      await warm(() => kernel.run());
      this.emit({event: "begin", trial: entry.candidate.trial_id});
    }
    entry.runs = entry.kernels.map((kernel) => runsFor(() => kernel.run(), seconds));
    const single = entry.kernels.map((kernel, i) => timed(() => kernel.run(), entry.runs[i]));
    if (total(entry, single) > Math.max(repeat.abandon_ratio * best, SINGLE_SECONDS)) {
      this.sampled(entry, single);
      return false;
    }
    return true;
  }

  sample(entry) {
    this.emit({event: "begin", trial: entry.candidate.trial_id});
    const seconds = entry.kernels.map((kernel, i) => {
      kernel.run(); // not timed: it loads its buffers into the caches
      if (entry.cold) evict();
      return timed(() => kernel.run(), entry.runs[i]);
    });
    return this.sampled(entry, seconds);
  }

  sampled(entry, seconds) {
    seconds = seconds.map((each) => Math.max(each, LEAST_SECONDS)); // the clock may show zero
    entry.samples.push(total(entry, seconds));
    this.emit({event: "sample", trial: entry.candidate.trial_id, seconds});
    return entry.samples.at(-1);
  }
}

const total = ({weight}, seconds) => seconds.reduce((all, each, i) => all + weight[i] * each, 0);

async function nextRound(began, seconds) {
  await sleep(Math.max(0, began + seconds - now()));
  return now();
}

function stillRacing(left, repeat) {
  left = left.filter(({samples}) => samples.length);
  if (!left.length) return [];
  const fastest = left.map(({samples}) => Math.min(...samples));
  const leader = repeat.incumbent_seconds;
  const stays = racing(left.map(({samples}) => samples), repeat.margin, leader);
  const best = Math.min(...fastest, leader ?? Infinity);
  return left.filter((_, i) => stays[i] && fastest[i] <= repeat.abandon_ratio * best);
}

