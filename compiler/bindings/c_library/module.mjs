// Runs a model that was compiled to WebAssembly, in Node or a browser.
//
//   import {load} from "./NAME.mjs";
//   const model = await load();
//   const {y} = model.run({x: new Float32Array(3 * 224 * 224)});
//
// `description` is written before this text when a model is compiled.

const arrays = {
  float32: Float32Array,
  float64: Float64Array,
  float16: Uint16Array, // the bits
  bfloat16: Uint16Array,
  int8: Int8Array,
  int16: Int16Array,
  int32: Int32Array,
  int64: BigInt64Array,
  uint8: Uint8Array,
  uint16: Uint16Array,
  uint32: Uint32Array,
  uint64: BigUint64Array,
  bool: Uint8Array,
};
const ALIGNMENT = 64;
const PAGE = 65536;
const MOST_PAGES = 65536;
const LEAST_MOST_PAGES = 4096; // where a device reserves no more addresses for memory that is shared

const aligned = (bytes) => Math.ceil(bytes / ALIGNMENT) * ALIGNMENT;

/** The inputs, outputs and ranges of sizes of the model. */
export const {inputs, outputs, dimensions} = description;

/**
 * Compile the module, and make a model of it.
 * @param source a URL, a Response or bytes
 * @param threads how many threads a run uses, at most as many as it was compiled for; one where
 *   memory cannot be shared, as in a page that is not isolated from others
 */
export async function load(source = new URL(`./${description.name}.wasm`, import.meta.url), {threads} = {}) {
  const bytes = await read(source);
  const most = description.threads;
  if (threads !== undefined && !(Number.isSafeInteger(threads) && threads >= 1)) {
    throw new RangeError(`threads is ${threads}, expected 1 to ${most}`);
  }
  if (most === 1) return new Model((await WebAssembly.instantiate(bytes, {})).instance.exports);
  const memory = sharedMemory();
  const {module, instance} = await WebAssembly.instantiate(bytes, {env: {memory}});
  const shared = globalThis.crossOriginIsolated ?? true; // engines beside browsers have no pages
  const count = shared ? Math.min(threads ?? (await cores()) ?? most, most) : 1;
  const stacks = aligned(instance.exports.__heap_base.value);
  const base = stacks + (count - 1) * description.stackBytes;
  grow(memory, base);
  const workers = [];
  try {
    for (let thread = 1; thread < count; thread++) {
      const stack = stacks + thread * description.stackBytes; // it grows down
      const names = {work: `${description.name}_work`, lost: `${description.name}_lost`};
      workers.push(await startThread({module, memory, ...names, stack, thread}));
    }
  } catch (error) {
    workers.forEach((worker) => worker.terminate());
    throw error;
  }
  return new Model({...instance.exports, memory}, {base, workers});
}

/** How many threads run at the same time here, if that is known. */
async function cores() {
  if (globalThis.navigator) return navigator.hardwareConcurrency;
  return (await import("node:os")).availableParallelism(); // Node 20 has no navigator
}

function sharedMemory() {
  for (let maximum = MOST_PAGES; ; maximum /= 2) {
    try {
      return new WebAssembly.Memory({initial: description.pages, maximum, shared: true});
    } catch (error) {
      if (maximum <= Math.max(LEAST_MOST_PAGES, 2 * description.pages)) throw error;
    }
  }
}

/** A worker that is ready to take part. */
async function startThread(given) {
  const Thread = globalThis.Worker ?? (await import("node:worker_threads")).Worker;
  const worker = new Thread(new URL(`./${description.name}-thread.mjs`, import.meta.url), {type: "module"});
  const problem = await new Promise((resolve) => {
    if (worker.on) {
      worker.once("message", ({error}) => resolve(error));
      worker.once("error", (error) => resolve(error.message));
    } else {
      worker.onmessage = ({data}) => resolve(data.error);
      worker.onerror = ({message}) => resolve(message ?? "its script cannot be fetched");
    }
    worker.postMessage(given);
  });
  if (problem !== undefined) {
    worker.terminate();
    throw new Error(`a thread does not start: ${problem}`);
  }
  worker.unref?.(); // Node ends without waiting for it
  return worker;
}

async function read(source) {
  if (source instanceof URL || typeof source === "string") {
    const url = new URL(source, import.meta.url);
    if (url.protocol === "file:") {
      const {readFile} = await import("node:fs/promises");
      source = await readFile(url);
    } else {
      source = await fetch(url);
      if (!source.ok) throw new Error(`'${url}' cannot be fetched: ${source.status}`);
    }
  }
  if (typeof Response !== "undefined" && source instanceof Response) {
    source = await source.arrayBuffer(); // whatever type the server says that it has
  }
  return source;
}

function grow(memory, end) {
  const missing = Math.ceil((end - memory.buffer.byteLength) / PAGE);
  if (missing <= 0) return;
  try {
    memory.grow(missing);
  } catch {
    throw new RangeError(`there is no memory for ${end} bytes`);
  }
}

/** One model. It runs one call at a time; several can be loaded. */
export class Model {
  #call;
  #memory;
  #base;
  #workers;
  #room = 0; // bytes of the model's own memory
  #model = 0;
  #sizes = null;
  #places = null;

  constructor(exports, {base = aligned(exports.__heap_base.value), workers = []} = {}) {
    this.#call = (name, ...values) => exports[`${description.name}_${name}`](...values);
    this.#memory = exports.memory;
    this.#base = base;
    this.#workers = workers;
    // of a model that draws random numbers without a seed
    exports[`${description.name}_seed`]?.(...crypto.getRandomValues(new Uint32Array(2)));
  }

  /** How many threads a run uses. */
  get threads() {
    return this.#workers.length + 1;
  }

  /** End its threads: the model cannot be used any more. */
  close() {
    this.#call = () => {
      throw new Error("the model is closed");
    };
    this.#workers.forEach((worker) => worker.terminate());
  }

  /**
   * Run it once.
   * @param given a typed array for each input, by name, in row-major order
   * @param sizes a number for each open dimension, by name
   * @returns a new typed array for each output, by name
   */
  run(given, sizes = {}) {
    this.#place(sizes);
    for (const [index, {name, type}] of inputs.entries()) {
      const {start, elements} = this.#places.inputs[index];
      const values = given[name];
      if (!(values instanceof arrays[type]) || values.length !== elements) {
        const shape = this.#places.inputs[index].shape.join(", ");
        const got = values?.length === undefined ? `${values}` : `${values.constructor.name} of ${values.length}`;
        throw new TypeError(`input '${name}' takes a ${arrays[type].name} of ${elements} (${shape}), got ${got}`);
      }
      new arrays[type](this.#memory.buffer, start, elements).set(values);
    }
    const {sizesAt, inputsAt, outputsAt} = this.#places;
    const open = dimensions.length ? [sizesAt] : [];
    this.#check(this.#call("run", this.#model, ...open, inputsAt, outputsAt));
    const results = {};
    for (const [index, {name, type, counted}] of outputs.entries()) {
      const {start, elements, shape, countAt} = this.#places.outputs[index];
      let length = elements;
      if (counted !== undefined) {
        const count = Number(new DataView(this.#memory.buffer).getBigInt64(countAt, true));
        length = shape.reduce((all, extent, axis) => all * (axis === counted ? count : extent), 1);
      }
      results[name] = new arrays[type](this.#memory.buffer, start, length).slice();
    }
    return results;
  }

  #check(status) {
    if (status === 0) return;
    const bytes = new Uint8Array(this.#memory.buffer, this.#call("status_text", status));
    throw new Error(new TextDecoder().decode(bytes.slice(0, bytes.indexOf(0))));
  }

  // Memory: numbers and pointers, the model, then the arrays. All of it moves when sizes change.
  #place(sizes) {
    const values = dimensions.map(({name}) => sizes[name]);
    if (this.#sizes !== null && values.every((value, i) => value === this.#sizes[i])) return;
    for (const [i, {name, least, most, multiple}] of dimensions.entries()) {
      const value = values[i];
      if (!Number.isSafeInteger(value) || value < least || value > most || value % multiple) {
        const range = `${least} to ${most === Infinity ? "what memory allows" : most}`;
        throw new RangeError(`dimension '${name}' is ${value}, expected ${range}${multiple > 1 ? ` in steps of ${multiple}` : ""}`);
      }
    }
    this.#sizes = null;
    const sizesAt = this.#base;
    const shapeAt = sizesAt + aligned(8 * values.length);
    const inputsAt = shapeAt + 8 * 64;
    const outputsAt = inputsAt + aligned(16 * inputs.length);
    const modelAt = outputsAt + aligned(16 * outputs.length);
    grow(this.#memory, modelAt);
    const view = () => new DataView(this.#memory.buffer);
    values.forEach((value, i) => view().setBigInt64(sizesAt + 8 * i, BigInt(value), true));
    const open = dimensions.length ? [sizesAt] : [];
    const bytes = this.#call("memory_bytes", ...open, this.threads) >>> 0;
    if (bytes === 0) throw new RangeError("no memory is large enough for these sizes");
    const room = Math.max(bytes, this.#room);
    let end = modelAt + aligned(room);
    const shaped = (kind, ports) =>
      ports.map(({type}, index) => {
        const rank = this.#call(`${kind}_shape`, ...open, index, shapeAt);
        const shape = Array.from({length: rank}, (_, i) => Number(view().getBigInt64(shapeAt + 8 * i, true)));
        const elements = shape.reduce((all, extent) => all * extent, 1);
        const start = end;
        end += aligned(elements * arrays[type].BYTES_PER_ELEMENT);
        return {start, elements, shape};
      });
    const places = {sizesAt, inputsAt, outputsAt, inputs: shaped("input", inputs), outputs: shaped("output", outputs)};
    grow(this.#memory, end);
    places.inputs.forEach(({start}, i) => view().setUint32(inputsAt + 4 * i, start, true));
    let place = outputsAt; // as C lays the structure out
    places.outputs.forEach((output, i) => {
      view().setUint32(place, output.start, true);
      place += 4;
      if (outputs[i].counted !== undefined) {
        output.countAt = place = Math.ceil(place / 8) * 8;
        place += 8;
      }
    });
    if (this.#model === 0 || room > this.#room) {
      const weights = this.#call("weights", 0);
      this.#check(this.#call("init", modelAt, room, weights, description.weightBytes, this.#pool(), shapeAt));
      this.#model = view().getUint32(shapeAt, true);
      this.#room = room;
    }
    this.#places = places;
    this.#sizes = values;
  }

  // What shares tiles out to the threads; none for one. The thread of a page must not sleep.
  #pool() {
    return this.threads > 1 ? this.#call("pool", this.threads, globalThis.document === undefined ? 1 : 0) : 0;
  }
}
