// SPDX-License-Identifier: Apache-2.0
// Axes: from values to places and to round numbers. Pure functions.

// From [low, high] to [from, to]; `log` by powers of ten. Values outside are not clipped.
export function scale({low, high, from, to, log}) {
  const f = log ? Math.log10 : (value) => value;
  const span = f(high) - f(low) || 1;
  return (value) => from + ((f(value) - f(low)) / span) * (to - from);
}

function linearTicks(low, high, count) {
  const rough = (high - low) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough * 0.999);
  const ticks = [];
  for (let index = Math.ceil(low / step - 1e-9) + 0; index * step <= high + step * 1e-9;
       index += 1) {
    ticks.push(index * step);
  }
  return ticks;
}

function logTicks(low, high) {
  const ticks = [];
  const decades = Math.log10(high / low);
  const factors = decades > 3 ? [1] : [1, 2, 5];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) {
    for (const factor of factors) {
      const value = factor * 10 ** power;
      if (value >= low * 0.999 && value <= high * 1.001) ticks.push(value);
    }
  }
  return ticks;
}

// Round numbers within [low, high], at most about `count`.
export function ticks({low, high, count, log}) {
  if (!(high > low)) return [low];
  const found = log ? logTicks(low, high) : linearTicks(low, high, count);
  return found.length > 0 ? found : [low, high];
}

// The range that an axis shows for these values: with room around, zero included unless `log` or
// `tight`.
export function range(values, {log, tight}) {
  let low = Infinity;
  let high = -Infinity;
  for (const value of values) {
    if (!Number.isFinite(value) || (log && value <= 0)) continue;
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  if (low > high) return log ? {low: 0.1, high: 1} : {low: 0, high: 1};
  if (log) return {low: low / 1.2, high: high * 1.2};
  if (!tight) low = Math.min(0, low);
  const room = (high - low || Math.abs(high) || 1) * 0.06;
  return {low: tight ? low - room : low, high: high + room};
}
