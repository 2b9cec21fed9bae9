// Small pages: routes of a workload, gateways to other clusters, extensions.

import { useEffect, useState } from "preact/hooks";

import {
  type GatewayRow, type GatewaysResponse, type RoutesResponse, type ServicesResponse,
  type StatResponse, get, newProfile, path, rows,
} from "../api";
import { useFeed } from "../feed";
import { Heading, Problem } from "../parts";
import { navigate, usePlace } from "../router";
import { millis } from "../stats";
import { type Column, Table } from "../table";
import { NAMESPACES } from "./namespaces";
import { RouteTable } from "./workload";

const KINDS = ["deployment", "statefulset", "daemonset", "pod", "service", "namespace"];

export function Routes() {
  const { params } = usePlace();
  const namespace = params.get("namespace") ?? "default";
  const kind = params.get("kind") ?? "deployment";
  const feed = useFeed<RoutesResponse>(path("routes", { resource_type: kind, namespace }));
  const namespaces = useFeed<StatResponse>(NAMESPACES);
  const names = new Set(rows(namespaces.data).map(({ resource }) => resource.name)).add(namespace);
  const go = (namespace: string, kind: string) => navigate(`/routes?${new URLSearchParams({ namespace, kind })}`);
  return (
    <>
      <Heading>Routes</Heading>
      <div class="fields">
        <label>
          Namespace
          <select value={namespace} onChange={(event) => go(event.currentTarget.value, kind)}>
            {[...names].sort().map((name) => <option key={name}>{name}</option>)}
          </select>
        </label>
        <label>
          Kind
          <select value={kind} onChange={(event) => go(namespace, event.currentTarget.value)}>
            {KINDS.map((kind) => <option key={kind}>{kind}</option>)}
          </select>
        </label>
      </div>
      <Profiles namespace={namespace} />
      <Problem feed={feed} what="routes" />
      {feed.data?.ok?.routes.map((table) => (
        <section key={table.resource} aria-label={table.resource}>
          <h2>{table.resource}</h2>
          <RouteTable rows={table.rows} />
        </section>
      ))}
    </>
  );
}

/** The Services that routes can be described for. */
function Profiles({ namespace }: { namespace: string }) {
  const services = useFeed<ServicesResponse>(path("services", { namespace }));
  const names = services.data?.services.map(({ name }) => name).sort() ?? [];
  if (names.length === 0) return null;
  return (
    <details>
      <summary>Describe the routes of a Service</summary>
      <p>A ServiceProfile names routes. These files are examples to edit and apply:</p>
      <ul>{names.map((name) => <li key={name}><a href={newProfile({ namespace, name })} download>{name}-profile.yml</a></li>)}</ul>
    </details>
  );
}

const GATEWAYS: Column<GatewayRow>[] = [
  { name: "Cluster", cell: (row) => row.clusterName, value: (row) => row.clusterName },
  { name: "Alive", cell: (row) => (row.alive ? "yes" : "no"), value: (row) => Number(row.alive) },
  { name: "Services", cell: (row) => row.pairedServices, value: (row) => Number(row.pairedServices), numeric: true },
  { name: "P50", cell: (row) => millis(Number(row.latencyMsP50)), value: (row) => Number(row.latencyMsP50), numeric: true },
  { name: "P95", cell: (row) => millis(Number(row.latencyMsP95)), value: (row) => Number(row.latencyMsP95), numeric: true },
  { name: "P99", cell: (row) => millis(Number(row.latencyMsP99)), value: (row) => Number(row.latencyMsP99), numeric: true },
];

export function Gateways() {
  const feed = useFeed<GatewaysResponse>(path("gateways"));
  return (
    <>
      <Heading>Gateways</Heading>
      <Problem feed={feed} what="gateways" />
      {feed.data && (
        <Table label="Gateways" columns={GATEWAYS} rows={feed.data.ok?.gatewaysTable?.rows ?? []}
          id={(row) => `${row.clusterName}/${row.namespace}/${row.name}`} empty="No cluster is linked." />
      )}
    </>
  );
}

export function Extensions() {
  const [names, set] = useState<string[]>();
  const [error, fail] = useState<string>();
  useEffect(() => {
    get<{ extensions: string }>("extensions")
      .then(({ extensions }) => set((JSON.parse(extensions) as { name: string }[]).map(({ name }) => name)))
      .catch((problem) => fail(String(problem)));
  }, []);
  return (
    <>
      <Heading>Extensions</Heading>
      <Problem feed={{ data: names, error }} what="extensions" />
      <ul>{names?.map((name) => <li key={name}><a href={`/namespaces/${name}`}>{name}</a></li>)}</ul>
      {names?.length === 0 && <p class="empty">No namespace has the label linkerd.io/extension.</p>}
    </>
  );
}
