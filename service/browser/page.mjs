// The page shows the activity of its worker. The token is in the fragment of the page's address,
// which browsers do not send. The page removes it from the address and does not store it. It stores
// the worker's id for this service's next page in this browser.

import {Api} from "./api.mjs";
import {clockTick} from "./code.mjs";
import {identity} from "./identity.mjs";
import {RunStatus} from "./messages.mjs";
import {MeasurementWorker, runnableTargets} from "./worker.mjs";

const STATES = {
  starting: "Starting.",
  waiting: "Waiting for work.",
  fetching: "Fetching work.",
  measuring: "Measuring. Other work on this device disturbs it.",
  stopped: "Stopped. Nothing runs here any more.",
};
const place = (id) => document.getElementById(id);
const show = (id, text) => {
  if (place(id).textContent !== text) place(id).textContent = text;
};

const given = new URLSearchParams(location.hash.slice(1));
history.replaceState(null, "", location.pathname + location.search);

function spawn() {
  const worker = new Worker(new URL("./sandbox.mjs", import.meta.url), {type: "module"});
  return {
    post: (message) => worker.postMessage(message),
    terminate: () => worker.terminate(),
    listen(handle) {
      worker.addEventListener("message", ({data}) => handle(data));
      worker.addEventListener("error", (event) => {
        event.preventDefault();
        handle({event: "failed", status: RunStatus.CRASHED, error: event.message ?? "the sandbox ended"});
      });
    },
  };
}

function device(targets) {
  const cores = navigator.hardwareConcurrency ?? 1;
  return {
    model: navigator.userAgent.slice(0, 500),
    architecture: "wasm32",
    system: "browser",
    cores,
    physical_cores: cores,
    memory_bytes: Math.min(navigator.deviceMemory ?? 0, 4) * 2 ** 30,
    governor: "",
    caches: [],
    features: targets.includes("wasm32-relaxed") ? ["relaxed-simd", "simd128"] : ["simd128"],
  };
}

async function work() {
  const token = given.get("token");
  if (!isSecureContext) throw new Error("A browser lets a page measure only over https, or on this machine itself.");
  if (!token) throw new Error("This address has no token: ask for a link (tilewright device link).");
  const targets = runnableTargets();
  if (!targets.length) throw new Error("This browser runs no vectors of WebAssembly.");
  const name = given.get("name") || `page-${Math.random().toString(36).slice(2, 8)}`;
  const tick = clockTick();
  show("name", name);
  show("targets", targets.join(", "));
  show("clock", `tells ${(1e6 * tick).toPrecision(2)} microseconds apart`);
  const worker = new MeasurementWorker({
    api: new Api(location.origin, token),
    name,
    device: device(targets),
    targets,
    spawn,
    ...(await identity(navigator.locks, () => localStorage)),
    tell({state, task, trials, results, text}) {
      show("state", STATES[state]);
      show("task", task || "-");
      show("trials", `${trials}`);
      show("results", `${results}`);
      show("text", text);
    },
  });
  place("stop").disabled = false;
  place("stop").addEventListener("click", () => worker.stop());
  // a browser may resume a hidden page later: its worker has returned its leases and has ended
  addEventListener("pagehide", () => worker.leaveNow());
  await worker.run();
}

try {
  await work();
} catch (error) {
  show("state", "Not a worker.");
  show("text", error.message);
} finally {
  place("stop").disabled = true;
}
