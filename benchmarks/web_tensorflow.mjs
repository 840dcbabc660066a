// A model of images in TensorFlow.js, by the calls that web_tensorflow.py wrote: on its XNNPACK back end, which
// is WebAssembly with 128-bit SIMD, one thread.

const floats = (bytes) => new Float32Array(bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length));

/** What runs the model once and gives {output: its elements}. tf: TensorFlow.js; setWasmPaths: of its back end, whose
 * binaries are in the folder `paths`. */
export async function tensorflow({tf, setWasmPaths, paths}, read) {
  tf.env().set("WASM_HAS_MULTITHREAD_SUPPORT", false);
  setWasmPaths(paths);
  if (!(await tf.setBackend("wasm"))) throw new Error("TensorFlow.js does not start its back end");
  const plan = JSON.parse(new TextDecoder().decode(await read("tensorflow.json")));
  const all = floats(await read("tensorflow.bin"));
  let start = 0;
  const weights = plan.weights.map((shape) => {
    const size = shape.reduce((product, each) => product * each, 1);
    return tf.tensor(all.slice(start, (start += size)), shape);
  });
  const image = floats(await read("tensorflow-input.bin"));
  const calls = {
    convolution: ([x], {filter, bias, activation, strides, pads}) =>
      tf.fused.conv2d({x, filter: weights[filter], bias: weights[bias], activation, strides, pad: pads}),
    depthwise: ([x], {filter, bias, activation, strides, pads}) =>
      tf.fused.depthwiseConv2d({x, filter: weights[filter], bias: weights[bias], activation, strides, pad: pads}),
    product: ([x], {matrix, bias}) =>
      tf.fused.matMul({a: tf.reshape(x, [1, -1]), b: weights[matrix], bias: weights[bias]}),
    maximum: ([x], {size, strides, pads}) => tf.maxPool(x, size, strides, pads),
    mean: ([x]) => tf.mean(x, [1, 2], true),
    softmax: ([x]) => tf.softmax(tf.reshape(x, [1, -1])),
    concat: (values) => tf.concat(values, 3),
    add: ([x, y]) => tf.add(x, y),
    multiply: ([x, y]) => tf.mul(x, y),
    sigmoid: ([x]) => tf.sigmoid(x),
    relu: ([x]) => tf.relu(x),
    relu6: ([x]) => tf.relu6(x),
    same: ([x]) => x,
  };
  const last = new Map();
  plan.calls.forEach(({inputs}, number) => inputs.forEach((name) => last.set(name, number)));
  last.delete(plan.input.name);
  return () => {
    const values = new Map([[plan.input.name, tf.tensor(image, plan.input.shape)]]);
    for (const [number, call] of plan.calls.entries()) {
      const inputs = call.inputs.map((name) => values.get(name));
      values.set(call.output, tf.tidy(() => calls[call.call](inputs, call)));
      for (const name of new Set(call.inputs)) if (last.get(name) === number) free(values, name);
    }
    const found = values.get(plan.output).dataSync();
    for (const name of [...values.keys()]) free(values, name);
    return {[plan.output]: found};
  };
}

/** So that a value's memory serves the next ones. What is `same` as another is a tensor of its own. */
function free(values, name) {
  const tensor = values.get(name);
  values.delete(name);
  if (![...values.values()].includes(tensor)) tensor.dispose();
}
