// Who may connect to the ports of a workload, and by which objects.

import type { Resource } from "../api";
import { useFeed } from "../feed";
import { Problem, Section } from "../parts";
import { type Column, Table } from "../table";
import {
  type Authorization, type ObjectRef, type PoliciesResponse, type PolicyPort, type PortPolicy, type RateLimit, about,
} from "./api";

/** An authorization, and the requests that it is for. */
interface Rule {
  id: string;
  scope: string;
  matches: string[];
  /** Undefined for a route that has only the authorizations of its port. */
  authorization?: Authorization;
}

export function Policies({ resource }: { resource: Resource }) {
  const feed = useFeed<PoliciesResponse>(about("policies", resource));
  const data = feed.data;
  return (
    <Section title="Policies">
      <Problem feed={feed} what="policies" />
      {data?.ports.map((port) => <Port key={`${port.port} ${port.pods[0]}`} port={port} all={data.ports} />)}
      {data && data.ports.length === 0 && (
        <p class="empty">
          {data.podsWithoutProxy.length ? "Its pods have no proxy, so that no policy is enforced."
            : "It has no running pods that declare ports."}
        </p>
      )}
      {data && <LeftOut data={data} />}
    </Section>
  );
}

function LeftOut({ data }: { data: PoliciesResponse }) {
  const { ports, podsWithoutProxy, podsOmitted, portsOmitted } = data;
  return (
    <>
      {ports.length > 0 && podsWithoutProxy.length > 0 && (
        <p class="note">No policy is enforced by pods without a proxy: {podsWithoutProxy.join(", ")}.</p>
      )}
      {podsOmitted + portsOmitted > 0 && (
        <p class="note">{podsOmitted} further pods and {portsOmitted} further ports are not shown.</p>
      )}
    </>
  );
}

/** Names an object as commands do; a default has only a name. */
const named = ({ kind, namespace, name }: ObjectRef): string =>
  kind === "default" ? `default (${name})` : `${namespace}/${name}`;

function Port({ port, all }: { port: PolicyPort; all: PolicyPort[] }) {
  const { policy } = port;
  // Only during a rollout, pods of one workload have different policies.
  const differs = all.filter((other) => other.port === port.port).length > 1;
  const title = `Port ${port.port}${port.name && ` (${port.name})`}`;
  return (
    <div class="port">
      <h3>
        {title}
        {differs && <small> of {port.pods.join(", ")}</small>}
      </h3>
      {policy ? <Enforced policy={policy} label={`${title}${differs ? ` of ${port.pods[0]}` : ""}`} />
        : <p class="empty">{port.skipped ? "Connections bypass the proxy (config.linkerd.io/skip-inbound-ports): no policy is enforced."
          : "The policy controller does not know the pod yet."}</p>}
    </div>
  );
}

function Enforced({ policy, label }: { policy: PortPolicy; label: string }) {
  const { server, rateLimit } = policy;
  return (
    <>
      <p>
        {server.kind === "default" ? "No Server selects it; the default policy is " : "Server "}
        <strong>{server.kind === "default" ? server.name : named(server)}</strong>, protocol {policy.protocol}
        {rateLimit && `, ${limits(rateLimit)} by ${named(rateLimit.policy)}`}
      </p>
      <Table label={label} columns={COLUMNS} rows={rules(policy)} id={(rule) => rule.id}
        empty="No client is authorized: connections and requests are refused." />
    </>
  );
}

function limits({ total, identity, overrides }: RateLimit): string {
  const parts = [
    total !== null && `at most ${total} requests per second`,
    identity !== null && `${identity} of each client`,
    ...overrides.map((it) => `${it.requestsPerSecond} of ${it.identities.join(", ")}`),
  ];
  return parts.filter(Boolean).join(", ");
}

/** The authorizations of a port apply to every route after the route's own. */
function rules({ routes, authorizations }: PortPolicy): Rule[] {
  const ofRoutes = routes.flatMap(({ route, hosts, matches, authorizations: own }): Rule[] => {
    const isDefault = route.kind === "default";
    const scope = isDefault ? named(route) : `${route.kind} ${named(route)}`;
    const texts = hosts.length ? [...matches, `for ${hosts.join(", ")}`] : matches;
    if (own.length === 0) return isDefault ? [] : [{ id: scope, scope, matches: texts }];
    return own.map((authorization, index) => ({ id: `${scope} ${index}`, scope, matches: texts, authorization }));
  });
  const ofPort = authorizations.map((authorization, index): Rule => (
    { id: `port ${index}`, scope: "all of the port", matches: [], authorization }
  ));
  return [...ofPort, ...ofRoutes];
}

const COLUMNS: Column<Rule>[] = [
  {
    name: "Requests",
    cell: ({ scope, matches }) => (
      <>
        {scope}
        {matches.map((text, index) => <code key={index}>{text}</code>)}
      </>
    ),
  },
  {
    name: "Authorization",
    cell: ({ authorization }) => (authorization ? named(authorization.policy) : "–"),
    optional: true,
  },
  {
    name: "Clients",
    cell: ({ authorization }) => (authorization ? clients(authorization) : "those of the port"),
  },
];

function clients({ authentication, identities, networks }: Authorization): string {
  const who = {
    none: "all, also without mTLS",
    tls: "all with TLS of the mesh",
    identity: identities.includes("*") ? "every identity of the mesh" : identities.join(", "),
  }[authentication];
  const whole = networks.filter(({ except }) => except.length === 0).map(({ net }) => net);
  if (["0.0.0.0/0", "::/0"].every((net) => whole.includes(net))) return who;
  const from = networks.map(({ net, except }) => (except.length ? `${net} except ${except.join(", ")}` : net));
  return `${who}, from ${from.join(", ") || "no network"}`;
}
