// Starts the dashboard with a scripted mesh, and a browser.

import { spawn } from "node:child_process";
import { existsSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { setTimeout as wait } from "node:timers/promises";
import { fileURLToPath } from "node:url";

import { chromium } from "playwright-core";

const root = join(dirname(fileURLToPath(import.meta.url)), "../../..");
const target = join(process.env.CARGO_TARGET_DIR ?? join(root, "target"), "debug");

const CONTROLLER = process.env.MESH_CONTROLLER ?? join(target, "mesh-controller");
const SCRIPTED = process.env.MESH_SCRIPTED ?? join(target, "examples/scripted_mesh");
const BROWSER = process.env.CHROMIUM ?? "/usr/bin/chromium";

/** Returns why the tests cannot run here, if so. */
export function missing() {
  const absent = [CONTROLLER, SCRIPTED, BROWSER].filter((file) => !existsSync(file));
  return absent.length ? `${absent.join(", ")} not found` : undefined;
}

async function eventually(what, condition) {
  for (let attempt = 0; attempt < 300; attempt += 1) {
    const found = await condition();
    if (found) return found;
    await wait(100);
  }
  throw new Error(`timed out waiting for ${what}`);
}

function freePort() {
  return new Promise((resolve) => {
    const server = createServer().listen(0, "127.0.0.1", () => {
      const { port } = server.address();
      server.close(() => resolve(port));
    });
  });
}

export async function startMesh() {
  const directory = mkdtempSync(join(tmpdir(), "dashboard-"));
  const [kubeconfig, address] = [join(directory, "config"), join(directory, "address")];
  const processes = [spawn(SCRIPTED, [kubeconfig, address], { stdio: "inherit" })];
  await eventually("the scripted mesh", () => existsSync(address));
  const [port, admin] = [await freePort(), await freePort()];
  const flags = [
    `--addr=127.0.0.1:${port}`,
    `--metrics-addr=127.0.0.1:${admin}`,
    `--linkerd-metrics-api-addr=${readFileSync(address, "utf8")}`,
    `--kubeconfig=${kubeconfig}`,
    "--grafana-external-addr=https://grafana.example.com",
  ];
  processes.push(spawn(CONTROLLER, ["web", ...flags, "--log-level=warn"], { stdio: "inherit" }));
  const url = `http://127.0.0.1:${port}`;
  await eventually("the dashboard", () => fetch(`${url}/api/version`).then(({ ok }) => ok, () => false));
  return {
    url,
    admin: `http://127.0.0.1:${admin}`,
    stop() {
      for (const process of processes) process.kill();
      rmSync(directory, { recursive: true });
    },
  };
}

export function startBrowser() {
  // The sandbox of Chromium does not run as root; the pages are our own.
  return chromium.launch({ executablePath: BROWSER, args: ["--no-sandbox"] });
}
