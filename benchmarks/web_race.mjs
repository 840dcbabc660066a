// Races one model in this process: every module of ours, and onnxruntime-web with one thread.
// Arguments: a JSON file with {onnx, modules: {engine: path of NAME.mjs}, inputs: {name: {type, dims,
// file}}, rounds, seconds}. Prints JSON: {version, engines: {engine: {rounds: [[milliseconds]], outputs:
// {name: file}}}}. Engines take turns within each round, in an order that rotates.

import {readFile, writeFile} from "node:fs/promises";
import {pathToFileURL} from "node:url";
import {createRequire} from "node:module";

const asked = JSON.parse(await readFile(process.argv[2], "utf-8"));
const require = createRequire(pathToFileURL(`${process.cwd()}/`));
const ort = require("onnxruntime-web");
ort.env.wasm.numThreads = 1;
ort.env.logLevel = "error";

const kinds = {float32: Float32Array, int64: BigInt64Array};
const arrays = {};
for (const [name, {type, file}] of Object.entries(asked.inputs)) {
  const bytes = await readFile(file);
  arrays[name] = new kinds[type](bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length));
}

const engines = {};
const session = await ort.InferenceSession.create(await readFile(asked.onnx), {executionProviders: ["wasm"]});
const tensors = () =>
  Object.fromEntries(
    Object.entries(asked.inputs).map(([name, {type, dims}]) => [name, new ort.Tensor(type, arrays[name], dims)]),
  );
engines["onnxruntime-web"] = async () => {
  const found = await session.run(tensors());
  return Object.fromEntries(Object.entries(found).map(([name, {data}]) => [name, data]));
};
for (const [name, path] of Object.entries(asked.modules)) {
  const model = await (await import(pathToFileURL(path))).load();
  engines[name] = async () => model.run(arrays);
}

const results = {};
for (const [name, run] of Object.entries(engines)) {
  const outputs = {};
  for (const [output, data] of Object.entries(await run())) {
    outputs[output] = `${asked.folder}/${name}-${Object.keys(outputs).length}.bin`;
    await writeFile(outputs[output], new Uint8Array(data.buffer, data.byteOffset, data.byteLength));
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
console.log(JSON.stringify({version: ort.env.versions.web, node: process.version, engines: results}));
process.exit(0);
