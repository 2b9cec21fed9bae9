// All workloads of a namespace in one table.

import { useState } from "preact/hooks";

import { key, path, rows, singular, type Row, type StatResponse } from "../api";
import { connections, kind, meshed, name, requests } from "../columns";
import { useFeed } from "../feed";
import { GrafanaLink, Heading, Problem } from "../parts";
import { Table } from "../table";
import { Totals } from "./namespaces";

/** Kinds that repeat what their owners show. */
const DETAILS = ["pod", "replicaset", "service"];

export function Namespace({ namespace, plural }: { namespace: string; plural?: string }) {
  const only = plural && singular(plural);
  const feed = useFeed<StatResponse>(
    path("tps-reports", { resource_type: only ?? "all", namespace, tcp_stats: "true" }),
  );
  const [details, setDetails] = useState(false);
  const all = rows(feed.data);
  const workloads = all.filter(({ resource }) => !DETAILS.includes(resource.type));
  const shown = only || details ? all : workloads;
  const broken = all.flatMap(errors);
  return (
    <>
      <Heading trail={[["/namespaces", "Namespaces"]]}>{namespace}</Heading>
      <p class="actions">
        <a href={`/topology?namespace=${encodeURIComponent(namespace)}`}>Topology</a>
        <a href={`/tap?resource=${encodeURIComponent(`ns/${namespace}`)}`}>Tap</a>
        <a href={`/top?resource=${encodeURIComponent(`ns/${namespace}`)}`}>Top</a>
        <GrafanaLink to={{ namespace: "", type: "namespace", name: namespace }} />
      </p>
      <Problem feed={feed} what={`workloads of ${namespace}`} />
      {feed.data && (
        <>
          <Totals rows={only ? all : workloads} tick={feed.data} />
          {broken.length > 0 && (
            <ul class="problem">
              {broken.map((problem) => <li key={problem}>{problem}</li>)}
            </ul>
          )}
          {!only && (
            <label class="choice">
              <input type="checkbox" checked={details} onChange={(event) => setDetails(event.currentTarget.checked)} />
              Pods, ReplicaSets and Services too
            </label>
          )}
          <Table label={`Workloads of ${namespace}`} rows={shown} id={(row) => key(row.resource)}
            columns={[name("Name", true), kind, meshed, ...requests, ...connections]}
            text={(row) => `${row.resource.type} ${row.resource.name}`} sorted={["RPS", true]}
            empty="The namespace has no workloads." />
        </>
      )}
    </>
  );
}

/** Why containers do not run; of each pod the first. */
function errors(row: Row): string[] {
  if (row.resource.type !== "pod") return [];
  return Object.entries(row.errorsByPod).flatMap(([pod, { errors }]) => {
    const first = errors.find((error) => error.container)?.container;
    return first ? [`${pod}: container ${first.container} ${first.reason}: ${first.message}`] : [];
  });
}
