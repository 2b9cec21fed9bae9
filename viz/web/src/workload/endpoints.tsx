// The endpoints of a Service, and what the clients in the mesh send to each.

import type { Resource } from "../api";
import { useFeed } from "../feed";
import { Link, Problem, Section, Success } from "../parts";
import { millis, numbers, rate } from "../stats";
import { type Column, Table } from "../table";
import { type Endpoint, type EndpointsResponse, about } from "./api";

export function Endpoints({ resource }: { resource: Resource }) {
  const feed = useFeed<EndpointsResponse>(about("endpoints", resource));
  const data = feed.data;
  return (
    <Section title="Endpoints">
      <Problem feed={feed} what="endpoints" />
      {data?.metricsProblem && <p class="problem" role="alert">Cannot show the load: {data.metricsProblem}</p>}
      {data && (
        <Table label="Endpoints" columns={columns(resource.namespace, data.timeWindow)} rows={data.endpoints} id={address}
          text={(row) => `${row.pod ?? ""} ${address(row)}`} sorted={["RPS", true]} empty="It has no endpoints." />
      )}
      {data && <LeftOut data={data} />}
    </Section>
  );
}

function LeftOut({ data: { endpointsOmitted, slicesOmitted } }: { data: EndpointsResponse }) {
  if (slicesOmitted) return <p class="note">More than {endpointsOmitted} further endpoints are not shown.</p>;
  return endpointsOmitted > 0 ? <p class="note">{endpointsOmitted} further endpoints are not shown.</p> : null;
}

const address = ({ address, ports }: Endpoint): string =>
  ports.map((port) => (address.includes(":") ? `[${address}]:${port}` : `${address}:${port}`)).join(", ") || address;

const state = ({ ready, terminating }: Endpoint): string => (terminating ? "terminating" : ready ? "ready" : "not ready");

function columns(namespace: string, window: string): Column<Endpoint>[] {
  const of = (row: Endpoint) => numbers(row.stats, window);
  return [
    {
      name: "Endpoint",
      cell: ({ pod, address }) => (pod ? <Link to={{ namespace, type: "pod", name: pod }} short /> : address),
      value: ({ pod, address }) => pod ?? address,
    },
    { name: "Address", cell: address, value: address, optional: true },
    { name: "State", cell: state, value: state },
    { name: "Node", cell: ({ node }) => node ?? "–", value: ({ node }) => node ?? undefined, optional: true },
    { name: "Zone", cell: ({ zone }) => zone ?? "–", value: ({ zone }) => zone ?? undefined, optional: true },
    { name: "Success", cell: (row) => <Success ratio={of(row)?.success} />, value: (row) => of(row)?.success, numeric: true },
    { name: "RPS", cell: (row) => rate(of(row)?.rps), value: (row) => of(row)?.rps, numeric: true },
    { name: "P99", cell: (row) => millis(of(row)?.p99), value: (row) => of(row)?.p99, numeric: true },
    {
      name: "Conns",
      cell: ({ openConnections }) => openConnections ?? "–",
      value: ({ openConnections }) => (openConnections === null ? undefined : Number(openConnections)),
      numeric: true,
    },
  ];
}
