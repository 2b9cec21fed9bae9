// The proxies of a workload: how their node redirects connections, and their certificates.

import { useEffect, useState } from "preact/hooks";

import type { Resource } from "../api";
import { useFeed } from "../feed";
import { Link, Problem, Section } from "../parts";
import { until } from "../stats";
import { type Column, Table } from "../table";
import { type ProxiesResponse, type Proxy, about } from "./api";

/** A certificate is renewed long before: one that is not has a problem. */
const SOON = 3600;

export function Proxies({ resource }: { resource: Resource }) {
  const feed = useFeed<ProxiesResponse>(about("proxies", resource));
  const now = useNow();
  const { namespace } = resource;
  const columns: Column<Proxy>[] = [
    { name: "Pod", cell: ({ name }) => <Link to={{ namespace, type: "pod", name }} short />, value: ({ name }) => name },
    { name: "Node", cell: ({ node }) => node || "–", value: ({ node }) => node, optional: true },
    {
      name: "Redirection",
      cell: ({ meshed, redirection }) => (
        <span title={redirection?.reason}>{redirection?.tier ?? (meshed ? "unknown" : "none")}</span>
      ),
      value: ({ redirection }) => redirection?.tier,
    },
    {
      name: "Identity",
      cell: ({ identity }) => identity ?? "–",
      value: ({ identity }) => identity ?? undefined,
      optional: true,
    },
    {
      name: "Certificate",
      cell: ({ certificateExpires }) => <Expiry at={certificateExpires} now={now} />,
      value: ({ certificateExpires }) => certificateExpires ?? undefined,
      numeric: true,
    },
  ];
  const data = feed.data;
  return (
    <Section title="Proxies">
      <Problem feed={feed} what="proxies" />
      {data?.metricsProblem && (
        <p class="problem" role="alert">Cannot show certificates and redirection: {data.metricsProblem}</p>
      )}
      {data && (
        <Table label="Proxies" columns={columns} rows={data.pods} id={({ name }) => name} text={({ name, node }) => `${name} ${node}`}
          empty="It has no running pods." />
      )}
      {data && !data.metricsProblem && data.pods.some(({ meshed, redirection }) => meshed && !redirection) && (
        <p class="note">The redirection is unknown where Prometheus does not scrape the agent of the node (meshAgent.adminAddr), and on a local node; meshctl check and meshctl local status show it.</p>
      )}
      {data && data.podsOmitted > 0 && <p class="note">{data.podsOmitted} further pods are not shown.</p>}
    </Section>
  );
}

function Expiry({ at, now }: { at: number | null; now: number }) {
  if (at === null) return <>–</>;
  const rest = at - now;
  const state = rest <= 0 ? "bad" : rest < SOON ? "warn" : "good";
  return (
    <span class={`success ${state}`} title={new Date(at * 1000).toISOString()}>
      <span class="dot" aria-hidden="true" />
      {rest <= 0 ? "expired" : `${until(rest)} left`}
    </span>
  );
}

/** Returns the current time in seconds, of the last minute. */
function useNow(): number {
  const now = () => Date.now() / 1000;
  const [current, set] = useState(now);
  useEffect(() => {
    const timer = setInterval(() => set(now()), 60_000);
    return () => clearInterval(timer);
  }, []);
  return current;
}
