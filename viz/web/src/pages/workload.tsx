// One workload: its requests, who calls it and whom it calls, its pods or endpoints, proxies, policies,
// routes and live requests.

import {
  type Edge, type EdgesResponse, type Pod, type PodsResponse, type Resource, type RouteRow, type RoutesResponse,
  type Row, type StatResponse, key, newProfile, path, rows,
} from "../api";
import { connections, requests } from "../columns";
import { useFeed } from "../feed";
import { useHistory } from "../history";
import { Figure, GrafanaLink, Heading, Link, Meshed, Problem, Section, Secured, Success } from "../parts";
import { useSettings } from "../settings";
import { age, bytes, millis, numbers, ofRow, rate, seconds } from "../stats";
import { type Column, Table } from "../table";
import { LiveTap } from "../tap/live";
import { hasPods } from "../workload/api";
import { Endpoints } from "../workload/endpoints";
import { Policies } from "../workload/policies";
import { Proxies } from "../workload/proxies";

const ofPeer = (resource: Resource, direction: "to" | "from") =>
  path("tps-reports", {
    resource_type: "all",
    all_namespaces: "true",
    [`${direction}_type`]: resource.type,
    [`${direction}_name`]: resource.name,
    [`${direction}_namespace`]: resource.namespace,
  });

export function Workload({ resource }: { resource: Resource }) {
  const { namespace, type, name } = resource;
  const settings = useSettings();
  const own = useFeed<StatResponse>(
    path("tps-reports", { resource_type: type, resource_name: name, namespace, tcp_stats: "true" }),
  );
  const row = rows(own.data)[0];
  const trail: [string, string][] = [
    ["/namespaces", "Namespaces"],
    [`/namespaces/${encodeURIComponent(namespace)}`, namespace],
    [`/namespaces/${encodeURIComponent(namespace)}/${type}s`, `${type}s`],
  ];
  const yaml = path("resource-definition", { namespace, resource_type: type, resource_name: name });
  return (
    <>
      <Heading trail={trail}>{name}</Heading>
      <p class="actions">
        {type !== "service" && settings?.definitions && <a href={`/api/${yaml}`} target="_blank" rel="noopener">YAML</a>}
        {type === "service" && <a href={newProfile(resource)} download>New ServiceProfile</a>}
        <GrafanaLink to={resource} />
      </p>
      <Problem feed={own} what={name} />
      {row && <Summary row={row} tick={own.data} />}
      <Peers resource={resource} />
      {type === "service" ? <Endpoints resource={resource} /> : <Pods resource={resource} />}
      {hasPods(type) && <Proxies resource={resource} />}
      {hasPods(type) && <Policies resource={resource} />}
      <Routes resource={resource} />
      <Section title="Live requests">
        <LiveTap resource={resource} />
      </Section>
    </>
  );
}

function Summary({ row, tick }: { row: Row; tick: unknown }) {
  const current = ofRow(row);
  const rates = useHistory(current?.rps, tick);
  const slow = useHistory(current?.p99, tick);
  const tcp = row.tcpStats;
  return (
    <dl class="figures">
      <Figure name="Success"><Success ratio={current?.success} /></Figure>
      <Figure name="Requests per second" values={rates}>{rate(current?.rps)}</Figure>
      <Figure name="P99 latency" values={slow}>{millis(current?.p99)}</Figure>
      <Figure name="P50 / P95">{millis(current?.p50)} / {millis(current?.p95)}</Figure>
      {row.resource.type !== "service" && <Figure name="Meshed pods"><Meshed row={row} /></Figure>}
      {tcp && (
        <Figure name="TCP">
          {tcp.openConnections} open
          <small>
            {bytes(Number(tcp.readBytesTotal) / seconds(row.timeWindow))}/s in,{" "}
            {bytes(Number(tcp.writeBytesTotal) / seconds(row.timeWindow))}/s out
          </small>
        </Figure>
      )}
    </dl>
  );
}

interface Peer {
  resource: Resource;
  row?: Row;
  edge?: Edge;
}

/** Both ends of connections and of requests. */
function Peers({ resource }: { resource: Resource }) {
  const callers = useFeed<StatResponse>(ofPeer(resource, "to"));
  const called = useFeed<StatResponse>(ofPeer(resource, "from"));
  const edges = useFeed<EdgesResponse>(
    resource.type === "service" ? undefined : path("edges", { resource_type: resource.type, namespace: resource.namespace }),
  );
  const known = edges.data?.ok?.edges ?? [];
  const same = (end: Resource) => end.name === resource.name && end.namespace === resource.namespace;
  const inbound = join(rows(callers.data), known.filter((edge) => same(edge.dst)), (edge) => edge.src);
  const outbound = join(rows(called.data), known.filter((edge) => same(edge.src)), (edge) => edge.dst);
  return (
    <>
      <Section title="Inbound">
        <Problem feed={callers} what="clients" />
        <PeerTable label="Clients" waits={!callers.data} peers={inbound} identity={(edge) => edge.clientId}
          empty="No client has called it within the last minute." />
      </Section>
      {resource.type !== "service" && (
        <Section title="Outbound">
          <Problem feed={called} what="servers" />
          <PeerTable label="Servers" waits={!called.data} peers={outbound} identity={(edge) => edge.serverId}
            empty="It has called no server within the last minute." />
        </Section>
      )}
    </>
  );
}

/** Rows of the same pods as other rows. */
const REPEATED = ["pod", "replicaset", "service"];

function join(found: Row[], edges: Edge[], end: (edge: Edge) => Resource): Peer[] {
  const peers = new Map<string, Peer>();
  for (const row of found) {
    if (!REPEATED.includes(row.resource.type)) peers.set(key(row.resource), { resource: row.resource, row });
  }
  for (const edge of edges) {
    const resource = end(edge);
    peers.set(key(resource), { ...peers.get(key(resource)), resource, edge });
  }
  return [...peers.values()];
}

function PeerTable({ label, waits, peers, identity, empty }: {
  label: string;
  /** Whether there is no answer yet, so that an empty table would be wrong. */
  waits: boolean;
  peers: Peer[];
  identity: (edge: Edge) => string;
  empty: string;
}) {
  const columns: Column<Peer>[] = [
    { name: "Name", cell: (peer) => <Link to={peer.resource} />, value: (peer) => key(peer.resource) },
    { name: "Kind", cell: (peer) => peer.resource.type, value: (peer) => peer.resource.type, optional: true },
    {
      name: "Security",
      cell: ({ edge }) => (edge ? <Secured identity={edge.serverId} reason={edge.noIdentityMsg} /> : "–"),
      value: ({ edge }) => edge && (edge.serverId ? "mTLS" : "plaintext"),
    },
    {
      name: "Identity",
      cell: ({ edge }) => (edge && identity(edge)) || "–",
      value: ({ edge }) => edge && identity(edge),
      optional: true,
    },
    ...requests.map((column): Column<Peer> => ({
      ...column,
      cell: ({ row }) => (row ? column.cell(row) : "–"),
      value: ({ row }) => row && column.value?.(row),
    })),
  ];
  if (waits && peers.length === 0) return null;
  return (
    <Table label={label} columns={columns} rows={peers} id={(peer) => key(peer.resource)}
      text={(peer) => key(peer.resource)} sorted={["RPS", true]} empty={empty} />
  );
}

const OWNERS: Record<string, keyof Pod> = {
  deployment: "deployment",
  replicaset: "replicaSet",
  replicationcontroller: "replicationController",
  statefulset: "statefulSet",
  daemonset: "daemonSet",
  job: "job",
};

function Pods({ resource: { namespace, type, name } }: { resource: Resource }) {
  const listed = useFeed<PodsResponse>(path("pods", { namespace }));
  const stats = useFeed<StatResponse>(path("tps-reports", { resource_type: "pod", namespace, tcp_stats: "true" }));
  const owner = OWNERS[type];
  const full = `${namespace}/${name}`;
  const pods = listed.data?.pods.filter((pod) => (owner ? pod[owner] === full : pod.name === full)) ?? [];
  const byName = new Map(rows(stats.data).map((row) => [`${namespace}/${row.resource.name}`, row]));
  const withRow = (column: Column<Row>): Column<Pod> => ({
    ...column,
    cell: (pod) => {
      const row = byName.get(pod.name);
      return row ? column.cell(row) : "–";
    },
    value: (pod) => {
      const row = byName.get(pod.name);
      return row && column.value?.(row);
    },
  });
  const columns: Column<Pod>[] = [
    {
      name: "Pod",
      cell: (pod) => <Link to={{ namespace, type: "pod", name: pod.name.split("/")[1] ?? pod.name }} short />,
      value: (pod) => pod.name,
    },
    { name: "Status", cell: (pod) => byName.get(pod.name)?.status || pod.status, value: (pod) => pod.status },
    {
      name: "Proxy",
      cell: (pod) => (pod.controllerNamespace ? (pod.proxyReady ? "ready" : "not ready") : "none"),
      value: (pod) => (pod.controllerNamespace ? Number(pod.proxyReady) : undefined),
    },
    { name: "IP", cell: (pod) => pod.podIP, value: (pod) => pod.podIP, optional: true },
    { name: "Age", cell: (pod) => age(pod.uptime), optional: true },
    ...requests.map(withRow),
    ...connections.slice(0, 1).map(withRow),
  ];
  return (
    <Section title="Pods">
      <Problem feed={listed} what="pods" />
      {listed.data && (
        <Table label="Pods" columns={columns} rows={pods} id={(pod) => pod.name} text={(pod) => pod.name}
          empty="It has no pods." />
      )}
    </Section>
  );
}

/** Only where a ServiceProfile names routes; without one the metrics API responds with an error. */
function Routes({ resource: { namespace, type, name } }: { resource: Resource }) {
  const feed = useFeed<RoutesResponse>(path("routes", { resource_type: type, resource_name: name, namespace }));
  const found = feed.data?.ok?.routes.flatMap((table) => table.rows) ?? [];
  if (found.length === 0) return null;
  return (
    <Section title="Routes">
      <RouteTable rows={found} />
    </Section>
  );
}

export function RouteTable({ rows: found }: { rows: RouteRow[] }) {
  const of = (row: RouteRow) => numbers(row.stats, row.timeWindow);
  const columns: Column<RouteRow>[] = [
    { name: "Route", cell: (row) => row.route, value: (row) => row.route },
    { name: "Authority", cell: (row) => row.authority, value: (row) => row.authority, optional: true },
    { name: "Success", cell: (row) => <Success ratio={of(row)?.success} />, value: (row) => of(row)?.success, numeric: true },
    { name: "RPS", cell: (row) => rate(of(row)?.rps), value: (row) => of(row)?.rps, numeric: true },
    { name: "P50", cell: (row) => millis(of(row)?.p50), value: (row) => of(row)?.p50, numeric: true, optional: true },
    { name: "P95", cell: (row) => millis(of(row)?.p95), value: (row) => of(row)?.p95, numeric: true, optional: true },
    { name: "P99", cell: (row) => millis(of(row)?.p99), value: (row) => of(row)?.p99, numeric: true },
  ];
  return (
    <Table label="Routes" columns={columns} rows={found} id={(row) => `${row.authority} ${row.route}`}
      text={(row) => `${row.route} ${row.authority}`} sorted={["RPS", true]} empty="There are no routes." />
  );
}
