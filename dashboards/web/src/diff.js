// SPDX-License-Identifier: Apache-2.0
// Lines that one text has and another has not, in order: the longest common subsequence, by the
// usual table. Texts of policies are small; longer ones are compared as a whole.

const cellsMax = 4_000_000;

// [{kind: "same" | "removed" | "added", text}]
export function diffLines(before, after) {
  const a = before === "" ? [] : before.replace(/\n$/, "").split("\n");
  const b = after === "" ? [] : after.replace(/\n$/, "").split("\n");
  if ((a.length + 1) * (b.length + 1) > cellsMax) {
    return [
      ...a.map((text) => ({kind: "removed", text})), ...b.map((text) => ({kind: "added", text}))
    ];
  }
  const width = b.length + 1;
  const common = new Uint32Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; i -= 1) {
    for (let j = b.length - 1; j >= 0; j -= 1) {
      common[i * width + j] = a[i] === b[j] ?
          common[(i + 1) * width + j + 1] + 1 :
          Math.max(common[(i + 1) * width + j], common[i * width + j + 1]);
    }
  }
  return walk(a, b, (i, j) => common[i * width + j]);
}

function walk(a, b, common) {
  const lines = [];
  let i = 0;
  let j = 0;
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) {
      lines.push({kind: "same", text: a[i]});
      i += 1;
      j += 1;
    } else if (j >= b.length || (i < a.length && common(i + 1, j) >= common(i, j + 1))) {
      lines.push({kind: "removed", text: a[i]});
      i += 1;
    } else {
      lines.push({kind: "added", text: b[j]});
      j += 1;
    }
  }
  return lines;
}
