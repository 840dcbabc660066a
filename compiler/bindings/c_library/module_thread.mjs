// A thread of a model in WebAssembly: an instance of its module over the memory that all of them share.

const port = globalThis.postMessage ? globalThis : (await import("node:worker_threads")).parentPort;

async function begin({module, memory, work, lost, stack, thread}) {
  let exports;
  try {
    ({exports} = await WebAssembly.instantiate(module, {env: {memory}}));
  } catch (error) {
    port.postMessage({error: error.message}); // no page hears of a promise that fails in a worker
    return;
  }
  exports.__stack_pointer.value = stack;
  port.postMessage({});
  try {
    exports[work](thread); // until it is ended
  } catch (error) {
    exports[lost](); // or the caller would wait without end
    throw error;
  }
}

if (port.on) port.once("message", begin);
else port.onmessage = ({data}) => begin(data);
