// The state of the mesh itself: checks, pods of the control plane, proxies.

import { useEffect, useState } from "preact/hooks";

import { type CheckResponse, type CheckRow, type Pod, type PodsResponse, get, path } from "../api";
import { useFeed } from "../feed";
import { Heading, Problem, Section } from "../parts";
import { useSettings } from "../settings";
import { age } from "../stats";
import { type Column, Table } from "../table";

/** Checks are cached by the server for 5 seconds. */
const INTERVAL = 15_000;

const PODS: Column<Pod>[] = [
  { name: "Pod", cell: (pod) => pod.name, value: (pod) => pod.name },
  { name: "Status", cell: (pod) => pod.status, value: (pod) => pod.status },
  {
    name: "Proxy",
    cell: (pod) => (pod.controllerNamespace ? (pod.proxyReady ? "ready" : "not ready") : "none"),
    value: (pod) => Number(pod.proxyReady),
  },
  { name: "Version", cell: (pod) => pod.proxyVersion || "–", value: (pod) => pod.proxyVersion, optional: true },
  { name: "Scraped", cell: (pod) => (pod.added ? "yes" : "no"), value: (pod) => Number(pod.added) },
  { name: "Uptime", cell: (pod) => age(pod.uptime), optional: true },
];

export function ControlPlane() {
  const settings = useSettings();
  const feed = useFeed<PodsResponse>(path("pods"));
  const pods = feed.data?.pods ?? [];
  const own = pods.filter(
    (pod) => pod.controlPlane || pod.name.startsWith(`${settings?.vizNamespace ?? "linkerd-viz"}/`),
  );
  const meshed = pods.filter((pod) => pod.controllerNamespace && pod.status === "Running");
  const versions = new Map<string, number>();
  for (const { proxyVersion } of meshed) {
    const version = proxyVersion || "unknown";
    versions.set(version, (versions.get(version) ?? 0) + 1);
  }
  return (
    <>
      <Heading>Control plane</Heading>
      <Checks />
      <Section title="Components">
        <Problem feed={feed} what="pods" />
        {feed.data && (
          <Table label="Components" columns={PODS} rows={own} id={(pod) => pod.name} empty="No pod of the control plane is known." />
        )}
      </Section>
      <Section title="Proxies">
        <ul>
          {[...versions].sort().map(([version, count]) => (
            <li key={version}>{count} proxies of version {version}</li>
          ))}
          <li>{meshed.filter((pod) => pod.proxyReady).length} of {meshed.length} proxies are ready</li>
          {settings && <li>Dashboard of version {settings.version}</li>}
        </ul>
      </Section>
    </>
  );
}

function Checks() {
  const [result, set] = useState<CheckResponse>();
  const [error, fail] = useState<string>();
  useEffect(() => {
    let timer = 0;
    let left = false;
    const run = async () => {
      try {
        set(await get<CheckResponse>("check"));
        fail(undefined);
      } catch (problem) {
        fail(String(problem));
      }
      if (!left) timer = window.setTimeout(run, INTERVAL);
    };
    void run();
    return () => {
      left = true;
      clearTimeout(timer);
    };
  }, []);
  return (
    <Section title="Checks">
      <Problem feed={{ data: result, error }} what="checks" />
      {result && (
        <>
          <p class={`verdict ${result.success ? "good" : "bad"}`} role="status">
            {result.success ? "√ The checks pass." : "× At least one check fails."}
          </p>
          {Object.entries(result.results).map(([category, rows]) => (
            <div key={category}>
              <h3>{category}</h3>
              <ul class="checks">
                {rows.map((row) => <Check key={row.Description} row={row} />)}
              </ul>
            </div>
          ))}
        </>
      )}
    </Section>
  );
}

function Check({ row }: { row: CheckRow }) {
  const state = row.ErrMsg === undefined ? "good" : row.Warning ? "warn" : "bad";
  return (
    <li class={state}>
      <span class="mark" aria-hidden="true">{{ good: "√", warn: "‼", bad: "×" }[state]}</span>
      <span class="hidden">{{ good: "passed: ", warn: "warning: ", bad: "failed: " }[state]}</span>
      {row.Description}
      {row.ErrMsg !== undefined && (
        <p>
          {row.ErrMsg}{" "}
          {row.HintURL && <a href={row.HintURL} target="_blank" rel="noopener noreferrer">explanation</a>}
        </p>
      )}
    </li>
  );
}
