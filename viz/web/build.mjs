// Builds the page into the directory of its first argument, `dist` by default. The result depends on
// the sources and the lock file only.

import { copyFileSync, mkdirSync } from "node:fs";
import { build } from "esbuild";

const out = process.argv[2] ?? "dist";
mkdirSync(out, { recursive: true });
for (const file of ["index.html", "icon.svg"]) {
  copyFileSync(`static/${file}`, `${out}/${file}`);
}
await build({
  entryPoints: { app: "src/main.tsx" },
  bundle: true,
  minify: true,
  // Not the names of classes and functions of one machine's paths.
  sourcemap: false,
  legalComments: "none",
  format: "esm",
  target: ["es2022"],
  jsx: "automatic",
  jsxImportSource: "preact",
  charset: "utf8",
  banner: { js: "/* SPDX-License-Identifier: Apache-2.0. Contains Preact, MIT, (c) Jason Miller. */" },
  outdir: out,
});
await build({ entryPoints: ["src/app.css"], bundle: true, minify: true, outdir: out });
