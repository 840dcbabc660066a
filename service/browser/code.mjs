// A WebAssembly module of kernels: its memory, and calls and timing of its functions.

const ALIGNMENT = 64;
const PAGE = 65536;
const EVICTED_BYTES = 32 << 20;
const LONGEST_SAMPLE = 0.2;
const TICKS = 200;

/** Seconds. */
export const now = () => performance.now() / 1000;

export const sleep = (seconds) => new Promise((resolve) => setTimeout(resolve, 1000 * seconds));

let tick;

/** Return the resolution of the clock in seconds. Pages get a coarse clock. */
export function clockTick() {
  if (tick === undefined) {
    tick = 0.01;
    for (let i = 0; i < 10; i++) {
      const before = now();
      let after = before;
      while (after === before) after = now();
      tick = Math.min(tick, after - before);
    }
  }
  return tick;
}

/** Return the shortest sample, in seconds, that the clock measures to half a percent. */
export const sampleSeconds = (wanted) => Math.min(LONGEST_SAMPLE, Math.max(wanted, TICKS * clockTick()));

export const aligned = (bytes) => Math.ceil(bytes / ALIGNMENT) * ALIGNMENT;

export class Code {
  #exports;
  #end;

  static async load(bytes) {
    const code = new Code();
    code.#exports = bytes
      ? (await WebAssembly.instantiate(bytes, {})).instance.exports
      : {memory: new WebAssembly.Memory({initial: 1}), __heap_base: {value: ALIGNMENT}};
    code.#end = aligned(code.#exports.__heap_base.value);
    return code;
  }

  get memory() {
    return this.#exports.memory.buffer;
  }

  /** Mark a position: `release` frees all later allocations. */
  get mark() {
    return this.#end;
  }

  release(mark) {
    this.#end = mark;
  }

  /** Allocate `bytes`, and return their address. */
  allocate(bytes) {
    const start = this.#end;
    const end = start + aligned(bytes);
    const missing = Math.ceil((end - this.memory.byteLength) / PAGE);
    if (missing > 0) this.#exports.memory.grow(missing); // RangeError if memory is exhausted
    this.#end = end;
    return start;
  }

  bytes(start, count) {
    return new Uint8Array(this.memory, start, count);
  }

  /** Allocate a copy of 32-bit pointers, or of 64-bit numbers. */
  pointers(list) {
    const start = this.allocate(4 * list.length);
    new Uint32Array(this.memory, start, list.length).set(list);
    return start;
  }

  words(list) {
    const start = this.allocate(8 * list.length);
    new BigInt64Array(this.memory, start, list.length).set(list.map(BigInt));
    return start;
  }

  function(symbol) {
    const found = Object.hasOwn(this.#exports, symbol) ? this.#exports[symbol] : undefined;
    if (typeof found !== "function") throw new Error(`the module has no function '${symbol}'`);
    return found;
  }
}

/** A kernel with its buffers, which `run` calls. */
export class Kernel {
  constructor(code, {stages, sizes}, buffers, scratch) {
    const table = code.pointers(buffers);
    const numbers = code.words(sizes);
    this.stages = stages.map(([symbol, extent]) => [code.function(symbol), BigInt(extent)]);
    this.call = (stage, extent) => stage(table, scratch, numbers, 0n, extent);
  }

  run() {
    for (const [stage, extent] of this.stages) this.call(stage, extent);
  }
}

/** Return the seconds per run, averaged over `count` runs. */
export function timed(run, count) {
  const before = now();
  for (let i = 0; i < count; i++) run();
  return (now() - before) / count;
}

/** Return how many runs take the given seconds. Runs for at least that time. */
export function runsFor(run, seconds) {
  for (let count = 1; ; ) {
    const taken = timed(run, count) * count;
    if (taken >= seconds / 2 || count >= 1 << 20) return count;
    count *= Math.max(2, Math.min(10, Math.floor(seconds / Math.max(taken, 1e-9))));
  }
}

/** Warm a kernel up until the engine has optimised its code, within a time limit. */
export async function warm(run, seconds = 0.06) {
  let best = Infinity;
  for (let stale = 0, ends = now() + 10 * seconds; stale < 3 && now() < ends; ) {
    const found = timed(run, runsFor(run, seconds / 4));
    stale = found > 0.98 * best ? stale + 1 : 0;
    best = Math.min(best, found);
    await sleep(0); // lets the engine install new code
  }
}

let walked;

/** Read enough other memory to evict everything from the caches. */
export function evict() {
  walked ??= new Int32Array(EVICTED_BYTES / 4).fill(1);
  let sum = 0;
  for (let i = 0; i < walked.length; i += 16) sum += walked[i];
  return sum;
}

/** Time the reference work, which never changes: [arithmetic, memory] in seconds, fastest of three. */
export function referenceSeconds() {
  walked ??= new Int32Array(EVICTED_BYTES / 4).fill(1);
  const best = [Infinity, Infinity];
  for (let round = 0; round < 4; round++) {
    const before = now();
    let [a, b, c, d] = [1, 2, 3, 4];
    for (let i = 0; i < 1 << 21; i++) {
      a = Math.imul(a, 5) + i;
      b = Math.imul(b, 7) + i;
      c = Math.imul(c, 9) + i;
      d = Math.imul(d, 11) + i;
    }
    const between = now();
    let at = (a ^ b ^ c ^ d) & 7;
    for (let i = 0; i < 1 << 16; i++) at = (at + 4099 * 16 * walked[at]) & (walked.length - 1);
    const after = now() + at * 0;
    if (round === 0) continue; // the engine compiles during this round
    best[0] = Math.min(best[0], between - before);
    best[1] = Math.min(best[1], after - between);
  }
  return best.map((seconds) => Math.max(seconds, 1e-9));
}
