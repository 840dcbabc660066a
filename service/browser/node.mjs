#!/usr/bin/env node
// The worker of the page, in Node: node node.mjs --server URL --token-file FILE [--name NAME]

import {readFile} from "node:fs/promises";
import {availableParallelism, cpus, hostname, totalmem} from "node:os";
import {parseArgs} from "node:util";
import {Worker} from "node:worker_threads";

import {Api} from "./api.mjs";
import {MeasurementWorker, runnableTargets} from "./worker.mjs";

const {values} = parseArgs({
  options: {
    server: {type: "string", default: "http://127.0.0.1:8080"},
    "token-file": {type: "string"},
    name: {type: "string", default: `${hostname()}-node`},
  },
});

function spawn() {
  const worker = new Worker(new URL("./sandbox.mjs", import.meta.url), {env: {}, stdin: false});
  return {
    post: (message) => worker.postMessage(message),
    terminate: () => worker.terminate(),
    listen(handle) {
      worker.on("message", handle);
      worker.on("error", (error) => handle({event: "failed", status: "crashed", error: `${error}`}));
    },
  };
}

const log = (text) => console.error(`${new Date().toISOString().slice(11, 19)} ${text}`);
const token = values["token-file"] ? (await readFile(values["token-file"], "utf-8")).trim() : (process.env.TILEWRIGHT_TOKEN ?? "");
const targets = runnableTargets();
const device = {
  model: `Node ${process.versions.node}, ${cpus()[0]?.model ?? process.arch}`.slice(0, 500),
  architecture: "wasm32",
  system: "Node",
  cores: availableParallelism(),
  physical_cores: availableParallelism(),
  memory_bytes: Math.min(totalmem(), 4 * 2 ** 30),
  governor: "",
  caches: [],
  features: targets.includes("wasm32-relaxed") ? ["relaxed-simd", "simd128"] : ["simd128"],
};

let said = "";
const worker = new MeasurementWorker({
  api: new Api(values.server, token),
  name: values.name,
  device,
  targets,
  spawn,
  tell({state, task, text}) {
    const line = [state, task, text].filter(Boolean).join(": ");
    if (line !== said) log(line);
    said = line;
  },
});
for (const signal of ["SIGTERM", "SIGINT"]) process.on(signal, () => worker.stop());
try {
  if (!targets.length) throw new Error("this Node runs no vectors of WebAssembly");
  await worker.run();
  process.exit(0);
} catch (error) {
  log(`the service refuses this worker: ${error.message}`);
  process.exit(1);
}
