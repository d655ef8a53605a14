// SPDX-License-Identifier: Apache-2.0
// Makes dist/ of src/ and uPlot, which draws the charts: one script, one style sheet, the page and its icon, and
// uPlot's licence. `node build.mjs [DIRECTORY]`. The output depends on src/ and on the versions of esbuild and uPlot
// that package.json names, on nothing else.

import { copyFile, mkdir } from "node:fs/promises";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const root = dirname(fileURLToPath(import.meta.url));
const output = process.argv[2] || join(root, "dist");

await mkdir(output, { recursive: true });
await build({
  entryPoints: { app: join(root, "src/main.js"), style: join(root, "src/style.css") },
  outdir: output, bundle: true, minify: true, format: "esm", target: "es2022", charset: "utf8",
  legalComments: "none", logLevel: "warning", preserveSymlinks: true, nodePaths: [join(root, "node_modules")],
});
await copyFile(join(root, "node_modules/uplot/LICENSE"), join(output, "uplot-license.txt"));
for (const name of ["index.html", "favicon.svg"]) {
  await copyFile(join(root, "src", name), join(output, name));
}
