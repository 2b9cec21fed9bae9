// Writes the dashboards as JSON into the chart, or with `--check` compares them with what is there.

import { readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

import { dashboards } from "./target/main.js";

const directory = fileURLToPath(new URL("../linkerd-viz/dashboards/", import.meta.url));
const generated = new Map(
    dashboards().map((dashboard) => [`${dashboard.uid}.json`, `${JSON.stringify(dashboard, null, 2)}\n`]),
);
const present = readdirSync(directory);
const superfluous = present.filter((name) => !generated.has(name));
const isCurrent = ([name, text]) => present.includes(name) && readFileSync(join(directory, name), "utf8") === text;
const outdated = [...generated].filter((entry) => !isCurrent(entry));

if (process.argv.includes("--check")) {
    for (const name of [...superfluous, ...outdated.map(([name]) => name)]) {
        console.error(`${name} is not what the sources generate: npm run generate`);
        process.exitCode = 1;
    }
} else {
    superfluous.forEach((name) => rmSync(join(directory, name)));
    outdated.forEach(([name, text]) => writeFileSync(join(directory, name), text));
    console.log(`${generated.size} dashboards, ${outdated.length} written, ${superfluous.length} removed`);
}
