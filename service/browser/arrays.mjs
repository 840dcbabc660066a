// Arrays of an expanded request (tuner/measure/plain_form.py): writing them to a kernel's buffers,
// reading them from buffers, and comparing them with expected arrays.

/** For each element type: its typed array, and the conversion of its elements to numbers. */
export const ARRAYS = {
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

const RAW = {1: Uint8Array, 2: Uint16Array, 4: Uint32Array, 8: BigUint64Array};
const FILES = {
  "<f4": "float32",
  "<f8": "float64",
  "<f2": "float16",
  "|i1": "int8",
  "<i2": "int16",
  "<i4": "int32",
  "<i8": "int64",
  "|u1": "uint8",
  "<u2": "uint16",
  "<u4": "uint32",
  "<u8": "uint64",
  "|b1": "bool",
};

/** Return the elements of an .npy file as numbers. */
export function readNpy(bytes) {
  const view = new DataView(bytes);
  const [length, start] = view.getUint8(6) === 1 ? [view.getUint16(8, true), 10] : [view.getUint32(8, true), 12];
  const header = new TextDecoder().decode(new Uint8Array(bytes, start, length));
  const type = FILES[/'descr': '([^']+)'/.exec(header)?.[1]];
  if (type === undefined) throw new Error(`an array of another type than is known: ${header.slice(0, 100)}`);
  return numbers(type, new ARRAYS[type](bytes.slice(start + length)));
}

/** Return the bytes of an .npy file. bfloat16 is written as its bits. */
export function writeNpy(type, shape, data) {
  const stored = type === "bfloat16" ? "uint16" : type;
  const descr = Object.keys(FILES).find((name) => FILES[name] === stored);
  const extents = shape.length === 1 ? `${shape[0]},` : shape.join(", ");
  let header = `{'descr': '${descr}', 'fortran_order': False, 'shape': (${extents}), }`;
  header = `${header.padEnd(64 * Math.ceil((header.length + 11) / 64) - 11)}\n`;
  const made = new Uint8Array(10 + header.length + data.byteLength);
  made.set([0x93, 0x4e, 0x55, 0x4d, 0x50, 0x59, 1, 0, header.length & 255, header.length >> 8]);
  made.set(new TextEncoder().encode(header), 10);
  made.set(new Uint8Array(data.buffer, data.byteOffset, data.byteLength), 10 + header.length);
  return made;
}

/** Return elements as float64. */
export function numbers(type, data) {
  if (type === "float16") return Float64Array.from(data, half);
  if (type === "bfloat16") {
    const bits = Uint32Array.from(data, (value) => value << 16);
    return Float64Array.from(new Float32Array(bits.buffer));
  }
  return Float64Array.from(data, Number);
}

function half(bits) {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 31;
  const fraction = bits & 1023;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : (2 ** -14 * fraction) / 1024);
}

/** Return the largest error relative to the largest expected value, or Infinity for a mismatch. */
export function compare(actual, expected) {
  if (actual.length !== expected.length) return Infinity;
  let largest = 0;
  let error = 0;
  for (let i = 0; i < expected.length; i++) {
    if (!Number.isFinite(expected[i])) {
      if (!Object.is(actual[i], expected[i])) return Infinity;
      continue;
    }
    if (!Number.isFinite(actual[i])) return Infinity;
    largest = Math.max(largest, Math.abs(expected[i]));
    error = Math.max(error, Math.abs(actual[i] - expected[i]));
  }
  return largest > 0 ? error / largest : error;
}

// Return, per dimension, the offset that each index adds to an element's position. `low` is the
// width of the halo before the interior.
function tables({shape, halo, factors}, {padded = false} = {}) {
  return shape.map((extent, dim) => {
    const [low, high] = halo[dim] ?? [0, 0];
    const first = padded ? 0 : low;
    const table = new Float64Array(padded ? extent + low + high : extent);
    for (let i = 0; i < table.length; i++) {
      for (const [of, divisor, modulus, step] of factors) {
        if (of !== dim) continue;
        const digit = Math.floor((i + first) / divisor);
        table[i] += step * (modulus ? digit % modulus : digit);
      }
    }
    return table;
  });
}

// Calls visit(position of the row's first element, table of its last dimension) in row-major order.
function eachRow(places, visit) {
  if (places.some((table) => table.length === 0)) return;
  const last = places.length ? places[places.length - 1] : new Float64Array(1);
  const walk = (dim, base) => {
    if (dim >= places.length - 1) return visit(base, last);
    for (const step of places[dim]) walk(dim + 1, base + step);
  };
  walk(0, 0);
}

const raw = (type, memory, start, count) => new RAW[ARRAYS[type].BYTES_PER_ELEMENT](memory, start, count);

/** Write a row-major array to a buffer. The halo and the padding of the layout become zero. */
export function pack(buffer, source, memory, start) {
  const elements = raw(buffer.dtype, memory, start, buffer.elements);
  const values = raw(buffer.dtype, source, 0, source.byteLength / elements.BYTES_PER_ELEMENT);
  const places = tables(buffer);
  if (values.length !== places.reduce((all, table) => all * table.length, 1)) {
    throw new RangeError("an array is not as large as its buffer");
  }
  elements.fill(elements instanceof BigUint64Array ? 0n : 0);
  let next = 0;
  eachRow(places, (base, last) => {
    for (let i = 0; i < last.length; i++) elements[base + last[i]] = values[next++];
  });
}

/** Return the row-major array in a buffer, as numbers. */
export function unpack(buffer, memory, start) {
  const elements = new ARRAYS[buffer.dtype](memory, start, buffer.elements);
  const places = tables(buffer);
  const found = new ARRAYS[buffer.dtype](places.reduce((all, table) => all * table.length, 1));
  let next = 0;
  eachRow(places, (base, last) => {
    for (let i = 0; i < last.length; i++) found[next++] = elements[base + last[i]];
  });
  return numbers(buffer.dtype, found);
}

/** Whether a buffer contains only zeros outside of its interior. */
export function haloIsZero(buffer, memory, start) {
  if (!buffer.halo.length) return true;
  const elements = raw(buffer.dtype, memory, start, buffer.elements);
  const count = (places) => {
    let found = 0;
    eachRow(places, (base, last) => {
      for (const step of last) if (Number(elements[base + step]) !== 0) found++;
    });
    return found;
  };
  return count(tables(buffer, {padded: true})) === count(tables(buffer));
}
