// Executes one lease in a Web Worker (or a worker thread of Node), which is ended after a timeout.
// It announces each step in advance. Code from the service is WebAssembly without imports.

import {measureBatch} from "./batch.mjs";
import {referenceSeconds} from "./code.mjs";
import {RequestKind, RunStatus} from "./messages.mjs";
import {doRun} from "./programs.mjs";

const port = globalThis.postMessage ? globalThis : (await import("node:worker_threads")).parentPort;
const emit = (event) => port.postMessage(event);

async function work(asked) {
  const speed = () => emit({event: "speed", seconds: referenceSeconds()});
  const {request} = asked;
  if (request.kind === RequestKind.RUN) {
    emit({event: "result", ...(await doRun(asked, emit))});
  } else {
    speed();
    await measureBatch(asked, emit);
    speed();
  }
  emit({event: "done"});
}

const listen = (handle) =>
  port.addEventListener
    ? port.addEventListener("message", ({data}) => handle(data))
    : port.on("message", handle);

listen((asked) =>
  work(asked).catch((error) => {
    const status = error instanceof WebAssembly.RuntimeError ? RunStatus.CRASHED : error instanceof RangeError ? RunStatus.OUT_OF_MEMORY : RunStatus.FAILED;
    emit({event: "failed", status, error: `${error}`});
  }),
);
emit({event: "ready"});
