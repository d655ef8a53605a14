// SPDX-License-Identifier: Apache-2.0
// Numbers for people: the same texts as controller/model/format.h gives in a terminal, tested against
// the same cases (tests/data/units.json). Rates of links are in bits a second, sizes in bytes.

const halfUp = 1 + 1e-12;
const nearlyOne = 0.9995;

const decimals = (value, count) => String(Number(value.toFixed(count)) || 0);

// At most `digits` significant digits, without trailing zeros.
export function significant(value, digits = 3) {
  if (!Number.isFinite(value)) return "-";
  if (value === 0) return "0";
  const [mantissa, power] = (value * halfUp).toExponential(digits - 1).split("e");
  const exponent = Number(power);
  if (exponent >= 6 || exponent < -3) return `${Number(mantissa)}e${exponent}`;
  return decimals(Number(`${mantissa}e${power}`), Math.max(0, digits - 1 - exponent));
}

function scaled(value, units) {
  const [size, name] =
      units.find(([least]) => Math.abs(value) >= least * nearlyOne) || units.at(-1);
  return `${significant(value / size)} ${name}`;
}

export function seconds(value) {
  if (!Number.isFinite(value)) return "-";
  const size = Math.abs(value);
  if (size === 0) return "0 s";
  if (size >= 7200) return `${significant(value / 3600)} h`;
  if (size >= 120) return `${significant(value / 60)} min`;
  if (size >= 0.1 * nearlyOne) return `${significant(value)} s`;
  return scaled(value, [[1e-3, "ms"], [1e-6, "us"]]);
}

export function bitsPerSecond(bytesPerSecond) {
  if (!Number.isFinite(bytesPerSecond) || bytesPerSecond <= 0) return "-";
  return scaled(bytesPerSecond * 8,
      [[1e12, "Tb/s"], [1e9, "Gb/s"], [1e6, "Mb/s"], [1e3, "kb/s"], [1, "b/s"]]);
}

export const bytes = (value) => (Number.isFinite(value) ?
        scaled(value, [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"], [1, "B"]]) :
        "-");

export function percent(share) {
  if (!Number.isFinite(share)) return "-";
  const value = 100 * share * halfUp;
  const size = Math.abs(value);
  if (size > 99 && size < 100) return `${decimals(value, 1)} %`;
  if (size >= 9.95) return `${decimals(value, 0)} %`;
  return `${significant(100 * share, 2)} %`;
}

// How long something is ago or has been: "12 s", "20 d".
export function duration(value) {
  if (!Number.isFinite(value) || value < 0) return "-";
  if (value < 120) return `${decimals(value * halfUp, 0)} s`;
  if (value < 7200) return `${decimals((value / 60) * halfUp, 0)} min`;
  if (value < 48 * 3600) return `${decimals((value / 3600) * halfUp, 0)} h`;
  return `${decimals((value / 86400) * halfUp, 0)} d`;
}

// `text` of `value` with its relative deviation: "33 Mb/s +/- 5 %".
export function withDeviation(text, value, deviation) {
  if (!(value > 0) || !(deviation > 0) || !Number.isFinite(value)) return text;
  return deviation < value ? `${text} +/- ${percent(deviation / value)}` : `${text}, hardly known`;
}

export function age(value) {
  if (!Number.isFinite(value)) return "never";
  return value < 1 ? "now" : `${duration(value)} ago`;
}

// proto3 JSON leaves out zeros and writes 64-bit integers as strings.
export function number(value) {
  return value === undefined || value === null ? 0 : Number(value);
}

// The name that operators know, as weirctl writes it: inside, the codec of dense is "identity".
export const codecName = (codec) => (codec === "identity" ? "dense" : codec);

export function choiceLabel(choice) {
  if (!choice || !choice.codec) return "dense (no plan yet)";
  const ratio = number(choice.ratio);
  const bits = number(choice.bits) ? ` ${number(choice.bits)}-bit` : "";
  return `${codecName(choice.codec)}${bits}${
      ratio > 0 && ratio < 1 ? ` ${significant(ratio)}` : ""} over ${choice.collective}`;
}

// A plan's Sync of the API, as weirctl writes it; "" where ranks synchronise in every step.
export function syncText(sync) {
  const every = number((sync || {}).every);
  if (!(every > 1)) return "";
  const overlap = number(sync.overlap_steps);
  const outer = sync.outer === "OUTER_STEP_SGD_NESTEROV" ?
      `, outer Nesterov ${significant(number(sync.outer_rate))}` :
      "";
  return `every ${every} steps${overlap > 0 ? `, ${overlap} of them overlapped` : ""}${outer}`;
}

// An Estimate of the API: what, how old, by what.
export function estimate(value, format) {
  if (!value || !number(value.value)) return "-";
  return `${format(number(value.value))} (${value.method || "?"}, ${age(number(value.age_s))})`;
}

// Time of day, for people; with the date where it is another day.
export function clock(unixSeconds) {
  if (!unixSeconds) return "never";
  const when = new Date(unixSeconds * 1000);
  const today = when.toDateString() === new Date().toDateString();
  return today ? when.toLocaleTimeString() : when.toLocaleString();
}
