// Verification, comparison and profiling of whole programs. Programs are interpreted here, kernel
// by kernel, as in compiler/runtime/native/program.c.

import {ARRAYS, compare, numbers, readNpy, writeNpy} from "./arrays.mjs";
import {Code, clockTick, now, sleep, timed} from "./code.mjs";
import {
  CHAINS,
  DOTS,
  LEAST_SECONDS,
  MEMORY_BYTES,
  PEAK_ROUNDS,
  PEAK_SAMPLES,
  RACE_LEAST_PAIRS,
  RACE_PAIRS,
  RACE_RUNS,
  RACE_SAMPLE_SECONDS,
  RACE_SECONDS,
  READ_BYTES,
  READ_SAMPLES,
  WorkKind,
} from "./messages.mjs";

const [KERNEL, COPY, NATIVE, LOOP, BRANCH, REFUSAL] = [0, 1, 2, 3, 4, 5];
const WARM_SECONDS = 1;
const FINE_TICK = 1e-6;
const PROFILE_SECONDS = 1;
const COARSE_SAMPLES = 20000; // the most samples of a profile by a coarse clock

/** Execute a run request. Announces each step with `emit`. Returns the result without the worker. */
export async function doRun({request, plan, blobs}, emit) {
  const begin = () => emit({event: "begin"});
  const load = (number) => {
    begin();
    return Program.load(request, plan, blobs, number);
  };
  const {work} = request;
  switch (work.do) {
    case WorkKind.CHECK: {
      const program = await load(work.program);
      begin();
      program.run();
      const errors = {};
      for (const [name, digest] of Object.entries(work.expected)) {
        begin();
        const found = program.output(name);
        const error = compare(numbers(found.dtype, found.data), readNpy(blobs.get(digest)));
        errors[name] = Number.isFinite(error) ? error : null;
      }
      const fetched = {};
      for (const name of work.fetch) {
        const {dtype, shape, data} = program.output(name);
        fetched[name] = base64(writeNpy(dtype, shape, data));
      }
      return {errors, fetched};
    }
    case WorkKind.RACE: {
      const [incumbent, ...others] = work.variants.map((numbers) => async () => {
        const programs = [];
        for (const number of numbers) programs.push(await load(number));
        return () => programs.forEach((program) => program.run());
      });
      const first = await incumbent();
      const comparisons = [];
      for (const other of others) comparisons.push(["untuned", await ratios(await other(), first, begin)]);
      begin();
      if (!others.length) await warmed(first, begin);
      const seconds = Array.from({length: RACE_RUNS}, () => timed(first, 1));
      return {race: {incumbent_seconds: Math.max(LEAST_SECONDS, Math.min(...seconds)), comparisons}};
    }
    case WorkKind.PROFILE: {
      const program = await load(work.program);
      await warmed(() => program.run(), begin);
      return {seconds: profiled(program, work.samples, begin)};
    }
    case WorkKind.SPEEDS:
      begin();
      return {speeds: await speeds(work, blobs.get(work.library))};
  }
  throw new Error(`there is no work '${work.do}'`);
}

// The fastest sample of each instruction. If the clock is too coarse for an instruction, the mean of
// its samples: the number of ticks that fall into it is proportional to its duration.
function profiled(program, samples, begin) {
  const rows = [];
  const coarse = clockTick() > FINE_TICK;
  const ends = now() + (coarse ? PROFILE_SECONDS : 0);
  while (rows.length < samples || (now() < ends && rows.length < COARSE_SAMPLES)) {
    begin();
    rows.push(program.profile());
  }
  const of = (each) => (coarse ? each.reduce((all, one) => all + one, 0) / each.length : Math.min(...each));
  return program.plan.starts.map((_, i) => Math.max(1e-9, of(rows.map((row) => row[i]))));
}

async function ratios(challenger, incumbent, begin) {
  await warmed(incumbent, begin);
  await warmed(challenger, begin);
  const count = Math.max(1, Math.round(RACE_SAMPLE_SECONDS / Math.max(1e-9, timed(incumbent, 1))));
  const found = [];
  for (const ends = now() + RACE_SECONDS; found.length < RACE_PAIRS && !(found.length >= RACE_LEAST_PAIRS && now() >= ends); ) {
    begin();
    const [before, first] = [timed(incumbent, count), timed(challenger, count)];
    const [second, after] = [timed(challenger, count), timed(incumbent, count)];
    for (const [ours, theirs] of [[first, before], [second, after]]) found.push(theirs > 0 && ours > 0 ? ours / theirs : 1);
  }
  return found;
}

// Warm-up, until engines have optimised frequently executed code.
async function warmed(run, begin) {
  const ends = now() + WARM_SECONDS;
  for (let i = 0; i < 3 || (i < 30 && now() < ends); i++) {
    begin();
    run();
    await sleep(0);
  }
}

class Program {
  static async load(request, plan, blobs, number) {
    const {library, block, parts} = request.programs[number];
    const program = new Program();
    program.plan = plan.programs[number];
    program.code = await Code.load(library ? blobs.get(library) : null);
    if (program.plan.natives.length) throw new Error(`'${program.plan.natives[0]}' does not run on this device`);
    const {code} = program;
    const weights = code.allocate(Math.max(request.block_bytes[block], program.plan.weights));
    for (const [digest, start, offset, bytes] of parts) {
      code.bytes(weights + offset, bytes).set(new Uint8Array(blobs.get(digest), start, bytes));
    }
    program.#place(weights, blobs);
    return program;
  }

  #place(weights, blobs) {
    const {code, plan} = this;
    const given = (ports) => ports.map(({bytes}) => code.allocate(bytes));
    const arena = code.allocate(plan.arena);
    const inputs = given(plan.inputs);
    this.outputs = given(plan.outputs);
    this.counts = code.allocate(8 * plan.outputs.length);
    this.scratch = code.allocate(plan.scratch);
    plan.inputs.forEach(({array}, i) => {
      const data = blobs.get(array);
      code.bytes(inputs[i], data.byteLength).set(new Uint8Array(data));
    });
    this.pointers = plan.references.map(([space, offset]) => {
      switch (space) {
        case "arena": return arena + offset;
        case "weights": return weights + offset;
        case "input": return inputs[offset];
        case "output": return this.outputs[offset];
        case "count": return this.counts + 8 * offset;
      }
      throw new Error(`there is no space '${space}'`);
    });
    this.table = code.pointers(this.pointers);
    this.words = code.words(plan.code);
    this.functions = plan.symbols.map((symbol) => code.function(symbol));
    this.extents = plan.code.map((word) => (word >= 0 ? BigInt(word) : 0n));
  }

  run() {
    this.#run(0, this.plan.code.length, null);
  }

  /** Return the seconds that each instruction takes. */
  profile() {
    const {code, starts} = this.plan;
    const seconds = new Float64Array(code.length);
    const profile = {seconds, before: now()};
    this.#run(0, code.length, profile);
    return starts.map((start) => seconds[start]);
  }

  output(name) {
    const index = this.plan.outputs.findIndex((port) => port.name === name);
    if (index < 0) throw new Error(`there is no output '${name}'`);
    const {dtype, counted} = this.plan.outputs[index];
    const shape = [...this.plan.outputs[index].shape];
    if (counted >= 0) shape[counted] = Number(new BigInt64Array(this.code.memory, this.counts, index + 1)[index]);
    const elements = shape.reduce((all, extent) => all * extent, 1);
    return {dtype, shape, data: new ARRAYS[dtype](this.code.memory, this.outputs[index], elements).slice()};
  }

  #run(at, end, profile) {
    const {code} = this.plan;
    const {pointers, functions, extents} = this;
    for (let next; at < end; at = next) {
      next = at + code[at + 1];
      switch (code[at]) {
        case KERNEL: {
          const buffers = this.table + 4 * code[at + 2];
          const sizes = this.words + 8 * (at + 4 + 2 * code[at + 3]);
          for (let stage = at + 4, last = stage + 2 * code[at + 3]; stage < last; stage += 2) {
            functions[code[stage]](buffers, this.scratch, sizes, 0n, extents[stage + 1]);
          }
          break;
        }
        case COPY: {
          const [to, from, bytes] = [pointers[code[at + 2]], pointers[code[at + 3]], code[at + 4]];
          this.code.bytes(0, this.code.memory.byteLength).copyWithin(to, from, from + bytes);
          break;
        }
        case LOOP: {
          const [counter, trips, going] = pointers.slice(code[at + 2], code[at + 2] + 3);
          const view = new DataView(this.code.memory);
          const wanted = view.getBigInt64(trips, true);
          const steps = wanted < BigInt(code[at + 3]) ? wanted : BigInt(code[at + 3]);
          for (let step = 0n; ; step++) {
            view.setBigInt64(counter, step, true);
            if (step >= steps || !view.getUint8(going)) break;
            this.#run(at + 4, next, profile);
          }
          break;
        }
        case BRANCH: {
          const other = at + 4 + code[at + 3];
          const taken = new DataView(this.code.memory).getUint8(pointers[code[at + 2]]);
          this.#run(taken ? at + 4 : other, taken ? other : next, profile);
          break;
        }
        case REFUSAL:
          throw new Error(this.plan.refusals[code[at + 2]]);
        case NATIVE:
        default:
          throw new Error(`instruction ${code[at]} does not run on this device`);
      }
      if (profile) {
        const after = now();
        profile.seconds[at] += after - profile.before;
        profile.before = after;
      }
    }
  }
}

async function speeds({vector_bytes, cache_bytes, memory_bytes, dots}, library) {
  const code = await Code.load(library);
  const fastest = (run, samples) => {
    run();
    return Math.max(1e-9, Math.min(...Array.from({length: samples}, () => timed(run, 1))));
  };
  const lanes = vector_bytes / 4;
  const memory = code.allocate(3 * vector_bytes);
  const operations = (name, group) => {
    new Float32Array(code.memory, memory, 3 * lanes).fill(1).fill(0.5, 0, lanes);
    const peak = code.function(name);
    const rounds = BigInt(PEAK_ROUNDS);
    return (2 * lanes * group * CHAINS * PEAK_ROUNDS) / fastest(() => peak(rounds, memory), PEAK_SAMPLES);
  };
  const rate = (wanted) => {
    const step = CHAINS * vector_bytes;
    const size = Math.max(step, Math.floor(wanted / step) * step);
    const mark = code.mark;
    const start = code.allocate(size);
    const rounds = Math.max(1, Math.floor(READ_BYTES / size));
    const read = code.function("read");
    const seconds = fastest(() => read(BigInt(rounds), start, BigInt(size)), READ_SAMPLES);
    code.release(mark);
    return (rounds * size) / seconds;
  };
  const levels = [];
  let smaller = 1 << 12;
  cache_bytes.forEach((size, number) => {
    if (!size) return;
    levels.push([`L${number + 1}`, size, rate(Math.sqrt(smaller * size))]);
    smaller = size;
  });
  const most = Math.min(MEMORY_BYTES, 4 * Math.max(0, ...cache_bytes), memory_bytes / 8);
  levels.push(["memory", 0, rate(Math.max(READ_BYTES, most))]);
  const peaks = Object.fromEntries(dots.map((name) => [name, operations(`peak_${name}`, DOTS[name])]));
  return {flops_per_second: operations("peak", 1), levels, dots: peaks};
}

function base64(bytes) {
  let text = "";
  for (let i = 0; i < bytes.length; i += 8192) text += String.fromCharCode(...bytes.subarray(i, i + 8192));
  return btoa(text);
}
