// Starts the dashboard with a scripted mesh, and a browser.

import { spawn } from "node:child_process";
import { existsSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { dirname, join, resolve } from "node:path";
import { setTimeout as wait } from "node:timers/promises";
import { fileURLToPath } from "node:url";

import { chromium } from "playwright-core";

const root = join(dirname(fileURLToPath(import.meta.url)), "../../..");
const target = resolve(root, process.env.CARGO_TARGET_DIR ?? "target", "debug");

const CONTROLLER = process.env.MESH_CONTROLLER ?? join(target, "mesh-controller");
const VIZ = process.env.MESH_VIZ ?? join(target, "mesh-viz");
const SCRIPTED = process.env.MESH_SCRIPTED ?? join(target, "examples/scripted_mesh");
const BROWSER = process.env.CHROMIUM ?? "/usr/bin/chromium";

/** Returns why the tests cannot run here, if so. */
export function missing() {
  const absent = [CONTROLLER, VIZ, SCRIPTED, BROWSER].filter((file) => !existsSync(file));
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

// Not the ports from 32768 that the kernel gives to clients: a request to a program that does not
// listen yet could get the same port itself, and would be connected to itself.
let nextPort = 20_000 + ((process.pid * 997) % 10_000);

function freePort() {
  return new Promise((resolve) => {
    const port = nextPort++;
    const server = createServer();
    server.once("error", () => resolve(freePort()));
    server.listen(port, "127.0.0.1", () => server.close(() => resolve(port)));
  });
}

/** Starts it, without the policy controller or without Prometheus if asked for. */
export async function startMesh({ policy: hasPolicy = true, prometheus: hasPrometheus = true } = {}) {
  const directory = mkdtempSync(join(tmpdir(), "dashboard-"));
  const addresses = join(directory, "addresses");
  const processes = [spawn(SCRIPTED, [directory], { stdio: "inherit" })];
  const start = (program, ...args) => processes.push(spawn(program, [...args, "--log-level=warn"], { stdio: "inherit" }));
  await eventually("the scripted mesh", () => existsSync(addresses));
  const [metricsApi, prometheus] = readFileSync(addresses, "utf8").split("\n");
  const [port, admin] = [await freePort(), await freePort()];
  const [policy, policyAdmin] = [await freePort(), await freePort()];
  const manifests = join(directory, "manifests");
  if (hasPolicy) start(CONTROLLER, "policy", `--grpc-addr=127.0.0.1:${policy}`, `--admin-addr=127.0.0.1:${policyAdmin}`, `--source-dir=${manifests}`);
  const flags = [
    `--addr=127.0.0.1:${port}`,
    `--metrics-addr=127.0.0.1:${admin}`,
    `--linkerd-metrics-api-addr=${metricsApi}`,
    `--policy-addr=127.0.0.1:${policy}`,
    `--prometheus-url=http://${hasPrometheus ? prometheus : "127.0.0.1:1"}`,
    `--kubeconfig=${join(directory, "kubeconfig")}`,
    "--grafana-external-addr=https://grafana.example.com",
  ];
  start(VIZ, "web", ...flags);
  const url = `http://127.0.0.1:${port}`;
  const answers = (address) => fetch(address).then(({ ok }) => ok, () => false);
  if (hasPolicy) await eventually("the policy controller", () => answers(`http://127.0.0.1:${policyAdmin}/ready`));
  await eventually("the dashboard", () => answers(`${url}/api/version`));
  return {
    url,
    manifests,
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
