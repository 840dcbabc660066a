// Races one model in one engine of JavaScript: every module of ours, onnxruntime-web with one thread, and
// TensorFlow.js where the model is written for it.
// Engines take turns within each round, in an order that rotates.
//
// asked: {modules: {engine: path of NAME.mjs}, inputs: {name: {type, dims, file}}, tensorflow, rounds, seconds}
// ort: onnxruntime-web; tensorflow(): what web_tensorflow.mjs takes, and its version; read(file): its bytes; load(path): what a module exports; save(file, bytes).
// Gives {versions: {engine: version}, engines: {engine: {rounds: [[milliseconds]], outputs: {name: file}}}}.

import {tensorflow as tensorflowModel} from "./web_tensorflow.mjs";

const kinds = {float32: Float32Array, int64: BigInt64Array};

export async function race(asked, {ort, tensorflow, read, load, save}) {
  ort.env.wasm.numThreads = 1;
  ort.env.logLevel = "error";
  const arrays = {};
  for (const [name, {type, file}] of Object.entries(asked.inputs)) {
    const bytes = await read(file);
    arrays[name] = new kinds[type](bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length));
  }

  const engines = {};
  const session = await ort.InferenceSession.create(await read("model.onnx"), {executionProviders: ["wasm"]});
  const tensors = () =>
    Object.fromEntries(
      Object.entries(asked.inputs).map(([name, {type, dims}]) => [name, new ort.Tensor(type, arrays[name], dims)]),
    );
  engines["onnxruntime-web"] = async () => {
    const found = await session.run(tensors());
    return Object.fromEntries(Object.entries(found).map(([name, {data}]) => [name, data]));
  };
  const versions = {"onnxruntime-web": ort.env.versions.web};
  if (asked.tensorflow) {
    const found = await tensorflow();
    const run = await tensorflowModel(found, read);
    engines["TensorFlow.js"] = async () => run();
    versions["TensorFlow.js"] = found.tf.version_core;
  }
  for (const [name, path] of Object.entries(asked.modules)) {
    const model = await (await load(path)).load();
    engines[name] = async () => model.run(arrays);
  }

  const results = {};
  for (const [name, run] of Object.entries(engines)) {
    const outputs = {};
    for (const [output, data] of Object.entries(await run())) {
      outputs[output] = `${name}-${Object.keys(outputs).length}.bin`;
      await save(outputs[output], new Uint8Array(data.buffer, data.byteOffset, data.byteLength));
    }
    for (let i = 0; i < 20; i++) await run(); // engines compile what runs often once more
    results[name] = {rounds: [], outputs};
  }
  const names = Object.keys(engines);
  for (let round = 0; round < asked.rounds; round++) {
    for (let turn = 0; turn < names.length; turn++) {
      const name = names[(round + turn) % names.length];
      const times = [];
      for (const start = performance.now(); times.length < 3 || performance.now() - start < 1000 * asked.seconds; ) {
        const before = performance.now();
        await engines[name]();
        times.push(performance.now() - before);
      }
      results[name].rounds.push(times);
    }
  }
  return {versions, engines: results};
}
