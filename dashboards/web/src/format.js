// SPDX-License-Identifier: Apache-2.0
// Numbers for people: SI prefixes, two to three significant digits, never a number without its
// unit.

export function seconds(value) {
  if (!Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size === 0) return "0 s";
  if (size < 1e-3) return `${significant(value * 1e6)} µs`;
  if (size < 1) return `${significant(value * 1e3)} ms`;
  if (size < 120) return `${significant(value)} s`;
  if (size < 7200) return `${significant(value / 60)} min`;
  return `${significant(value / 3600)} h`;
}

export const percent = (share) =>
    (Number.isFinite(share) ? `${significant(share * 100, 3)} %` : "–");

export function bitsPerSecond(bytesPerSecond) {
  if (!Number.isFinite(bytesPerSecond) || bytesPerSecond <= 0) return "–";
  const bits = bytesPerSecond * 8;
  if (bits >= 1e9) return `${significant(bits / 1e9)} Gb/s`;
  if (bits >= 1e6) return `${significant(bits / 1e6)} Mb/s`;
  return `${significant(bits / 1e3)} kb/s`;
}

export function bytes(value) {
  if (!Number.isFinite(value)) return "–";
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  while (value >= 1000 && unit < units.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${significant(value)} ${units[unit]}`;
}

export function age(value) {
  if (!Number.isFinite(value)) return "never";
  if (value < 1) return "now";
  if (value < 90) return `${Math.round(value)} s ago`;
  if (value < 5400) return `${Math.round(value / 60)} min ago`;
  return `${Math.round(value / 3600)} h ago`;
}

export function significant(value, digits = 3) {
  if (!Number.isFinite(value)) return "–";
  if (value !== 0 && (Math.abs(value) >= 1e5 || Math.abs(value) < 1e-4))
    return value.toExponential(1);
  return String(Number(value.toPrecision(digits)));
}

// proto3 JSON leaves out zeros and writes 64-bit integers as strings.
export function number(value) {
  return value === undefined || value === null ? 0 : Number(value);
}

export function choiceLabel(choice) {
  if (!choice || !choice.codec) return "dense (no plan yet)";
  const ratio = number(choice.ratio);
  const bits = number(choice.bits) ? ` ${number(choice.bits)}-bit` : "";
  return `${choice.codec}${bits}${ratio > 0 && ratio < 1 ? ` ${significant(ratio)}` : ""} over ${
      choice.collective}`;
}

// An Estimate of the API: what, how old, by what.
export function estimate(value, format) {
  if (!value || !number(value.value)) return "–";
  return `${format(number(value.value))} (${value.method || "?"}, ${age(number(value.age_s))})`;
}

// Time of day, for people; with the date where it is another day.
export function clock(unixSeconds) {
  if (!unixSeconds) return "never";
  const when = new Date(unixSeconds * 1000);
  const today = when.toDateString() === new Date().toDateString();
  return today ? when.toLocaleTimeString() : when.toLocaleString();
}
