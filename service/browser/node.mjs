#!/usr/bin/env node
// The page's worker in Node: node node.mjs --server URL --token-file FILE [--name NAME]
//
// It stores its id in SPOOL/SERVER-DIGEST/node-0/id, next to the files of Python workers. A second
// worker that runs at the same time uses node-1.

import {createHash} from "node:crypto";
import {mkdirSync, readFileSync, realpathSync, renameSync, rmSync, writeFileSync} from "node:fs";
import {readFile} from "node:fs/promises";
import {connect, createServer} from "node:net";
import {availableParallelism, cpus, homedir, hostname, loadavg, tmpdir, totalmem} from "node:os";
import {join} from "node:path";
import {parseArgs} from "node:util";
import {Worker} from "node:worker_threads";

import {Api} from "./api.mjs";
import {RunStatus} from "./messages.mjs";
import {MeasurementWorker, runnableTargets} from "./worker.mjs";

const MOST_WORKERS = 256; // of one user for one service on one machine

const {values} = parseArgs({
  options: {
    server: {type: "string", default: "http://127.0.0.1:8080"},
    "token-file": {type: "string"},
    name: {type: "string", default: `${hostname()}-node`},
    spool: {type: "string", default: process.env.TILEWRIGHT_SPOOL ?? ""},
  },
});
const digest = (text) => createHash("sha256").update(text).digest("hex");

/** Listen at an address. Returns false if it is in use. The system frees it with the process. */
const listens = (path) =>
  new Promise((resolve, reject) => {
    const server = createServer((socket) => socket.destroy());
    server.on("error", (error) => (error.code === "EADDRINUSE" ? resolve(false) : reject(error)));
    server.listen(path, () => resolve(true));
    server.unref();
  });

/** Whether a process listens at a socket in the file system. */
const answers = (path) =>
  new Promise((resolve) => {
    const socket = connect(path, () => resolve(true)).on("error", (error) => resolve(error.code !== "ECONNREFUSED"));
    socket.on("close", () => socket.destroy());
  });

/** Lock a folder until this process ends, in whatever way. Returns false if it is locked. */
async function takes(folder) {
  const name = `tilewright-${digest(realpathSync(folder)).slice(0, 32)}`;
  if (process.platform === "linux") return listens(`\0${name}`);
  if (process.platform === "win32") return listens(`\\\\.\\pipe\\${name}`);
  const path = join(tmpdir(), name);
  if (await listens(path)) return true;
  if (await answers(path)) return false;
  rmSync(path, {force: true}); // left by a killed process
  return listens(path);
}

/** Lock the first free folder, and return it. Throws if all are locked. */
async function ownFolder() {
  const state = () => process.env.XDG_STATE_HOME || join(homedir(), ".local/state");
  const base = join(values.spool || join(state(), "tilewright"), digest(values.server).slice(0, 16));
  for (let number = 0; number < MOST_WORKERS; number++) {
    const folder = join(base, `node-${number}`);
    mkdirSync(folder, {recursive: true, mode: 0o700});
    if (await takes(folder)) return folder;
  }
  throw new Error(`${MOST_WORKERS} workers use '${base}' already`);
}

/** Return the id of an earlier process, and a function that stores one: {kept, keep}. */
async function identity() {
  const cannot = (error) => log(`the worker's id cannot be kept: ${error.message}`);
  let file;
  try {
    file = join(await ownFolder(), "id");
  } catch (error) {
    cannot(error);
    return {};
  }
  const keep = (id) => {
    try {
      writeFileSync(`${file}.new`, id);
      renameSync(`${file}.new`, file);
    } catch (error) {
      cannot(error);
    }
  };
  try {
    return {kept: readFileSync(file, "utf-8").trim(), keep};
  } catch {
    return {keep}; // the worker's first start
  }
}

function spawn() {
  const worker = new Worker(new URL("./sandbox.mjs", import.meta.url), {env: {}, stdin: false});
  return {
    post: (message) => worker.postMessage(message),
    terminate: () => worker.terminate(),
    listen(handle) {
      worker.on("message", handle);
      worker.on("error", (error) => handle({event: "failed", status: RunStatus.CRASHED, error: `${error}`}));
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
let known = "";
const worker = new MeasurementWorker({
  api: new Api(values.server, token),
  name: values.name,
  device,
  targets,
  spawn,
  ...(await identity()),
  condition: () => ({temperature_celsius: null, load: process.platform === "win32" ? null : loadavg()[0], clock_ratio: null, governor: ""}),
  tell({state, worker, task, text}) {
    if (worker !== known) log(`registered as ${(known = worker)}`);
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
