// Statistics of times, the same as in tuner/measure/statistics.py and speed.py.

import {
  ARITHMETIC_LIMIT,
  BEST_SHARE,
  CONFIDENCE,
  LEAST_RACED,
  MEMORY_LIMIT,
  MOST_READINGS,
  Outcome,
  PRIOR_EXCESS,
  PRIOR_SAMPLES,
  THROTTLED_SECONDS,
  TIE_MARGIN,
} from "./messages.mjs";

const REACH = Math.log(1 / (1 - CONFIDENCE));

/** Return, per kernel, whether its samples allow it to be within `margin` of the fastest. */
export function racing(samples, margin, leader = null) {
  const fastest = samples.map((each) => Math.min(...each));
  const best = Math.min(...fastest, leader ?? Infinity);
  let excess = PRIOR_SAMPLES * PRIOR_EXCESS;
  let freedom = PRIOR_SAMPLES;
  samples.forEach((each, i) => {
    freedom += each.length - 1;
    if (fastest[i] > 0) for (const sample of each) excess += sample / fastest[i] - 1;
  });
  const reach = (excess / freedom) * REACH;
  return samples.map(
    (each, i) => each.length < LEAST_RACED || fastest[i] <= best * (1 + margin) * (1 + reach / each.length),
  );
}

/** Return the median of a challenger's ratios of pairs, with an interval of order statistics. */
export function comparison(against, ratios) {
  const ordered = [...ratios].sort((a, b) => a - b);
  const count = ordered.length;
  const middle = count >> 1;
  const ratio = count % 2 ? ordered[middle] : (ordered[middle - 1] + ordered[middle]) / 2;
  let rank = 1;
  let ways = 1; // count over rank
  let outside = 0.5 ** count;
  for (; rank < (count + 1) >> 1; rank++) {
    ways = (ways * (count - rank + 1)) / rank;
    const more = outside + ways * 0.5 ** count;
    if (1 - 2 * more < CONFIDENCE) break;
    outside = more;
  }
  const [low, high] = [ordered[rank - 1], ordered[count - rank]];
  const coverage = Math.max(0, 1 - 2 * outside);
  let outcome = Outcome.TIE;
  if (high < 1 && ratio < 1 - TIE_MARGIN && coverage >= CONFIDENCE) outcome = Outcome.FASTER;
  else if (low > 1 && ratio > 1 + TIE_MARGIN) outcome = Outcome.SLOWER;
  return {against, ratios, ratio, low, high, coverage, outcome};
}

/** Shuffle a list. */
export function shuffle(list) {
  for (let i = list.length - 1; i > 0; i--) {
    const other = Math.floor(Math.random() * (i + 1));
    [list[i], list[other]] = [list[other], list[i]];
  }
}

/** Return the disturbance of a reading; at most 1 for an undisturbed device. */
export const excess = (speed) => Math.max(speed.arithmetic_ratio / ARITHMETIC_LIMIT, speed.memory_ratio / MEMORY_LIMIT);

/** Readings of the reference work, each relative to the best so far. */
export class SpeedWatch {
  #parts = [[], []];
  #since = null; // start of the current uninterrupted disturbance
  #last = null;

  /** Whether the device has long been disturbed, so that repeating a measurement is useless. */
  get throttled() {
    return this.#since !== null && Date.now() / 1000 - this.#since >= THROTTLED_SECONDS;
  }

  /** The last reading, in the form of a heartbeat; null before the first. */
  get status() {
    return this.#last && {...this.#last, throttled: this.throttled};
  }

  /** Return the device's speed, in the form that a measurement reports. */
  take(seconds) {
    const ratios = this.#parts.map((part, i) => {
      part.push(seconds[i]);
      if (part.length > MOST_READINGS) part.shift();
      const best = [...part].sort((a, b) => a - b)[Math.floor(BEST_SHARE * part.length)];
      return best > 0 ? seconds[i] / best : 1;
    });
    const speed = {
      arithmetic_seconds: seconds[0],
      memory_seconds: seconds[1],
      arithmetic_ratio: ratios[0],
      memory_ratio: ratios[1],
      disturbed: ratios[0] > ARITHMETIC_LIMIT || ratios[1] > MEMORY_LIMIT,
    };
    this.#since = speed.disturbed ? (this.#since ?? Date.now() / 1000) : null;
    return (this.#last = speed);
  }
}
