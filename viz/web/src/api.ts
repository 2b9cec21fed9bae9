// The JSON API. Shapes are protobuf's JSON mapping, where 64-bit integers are strings.

export interface Resource {
  namespace: string;
  type: string;
  name: string;
}

export interface BasicStats {
  successCount: string;
  failureCount: string;
  latencyMsP50: string;
  latencyMsP95: string;
  latencyMsP99: string;
}

export interface TcpStats {
  openConnections: string;
  readBytesTotal: string;
  writeBytesTotal: string;
}

export interface ContainerError {
  message: string;
  container: string;
  reason: string;
}

export interface Row {
  resource: Resource;
  timeWindow: string;
  status: string;
  meshedPodCount: string;
  runningPodCount: string;
  failedPodCount: string;
  stats: BasicStats | null;
  tcpStats: TcpStats | null;
  errorsByPod: Record<string, { errors: { container?: ContainerError }[] }>;
}

interface Failed {
  error?: { error: string };
}

export interface StatResponse extends Failed {
  ok?: { statTables: { podGroup?: { rows: Row[] } }[] };
}

export interface Edge {
  src: Resource;
  dst: Resource;
  clientId: string;
  serverId: string;
  noIdentityMsg: string;
  /** Only in the topology. */
  stats?: BasicStats | null;
  tcpStats?: TcpStats | null;
}

export interface EdgesResponse extends Failed {
  ok?: { edges: Edge[]; sourcesWithoutStats?: number };
}

export interface Pod {
  name: string;
  podIP: string;
  status: string;
  added: boolean;
  uptime: string | null;
  controllerNamespace: string;
  controlPlane: boolean;
  proxyReady: boolean;
  proxyVersion: string;
  deployment?: string;
  replicaSet?: string;
  replicationController?: string;
  statefulSet?: string;
  daemonSet?: string;
  job?: string;
}

export interface PodsResponse {
  pods: Pod[];
}

export interface ServicesResponse {
  services: { namespace: string; name: string }[];
}

export interface RoutesResponse extends Failed {
  ok?: { routes: { resource: string; rows: RouteRow[] }[] };
}

export interface RouteRow {
  route: string;
  timeWindow: string;
  authority: string;
  stats: BasicStats | null;
}

export interface GatewaysResponse extends Failed {
  ok?: { gatewaysTable: { rows: GatewayRow[] } | null };
}

export interface GatewayRow {
  namespace: string;
  name: string;
  clusterName: string;
  pairedServices: string;
  alive: boolean;
  latencyMsP50: string;
  latencyMsP95: string;
  latencyMsP99: string;
}

export interface CheckRow {
  Category: string;
  Description: string;
  Warning: boolean;
  ErrMsg?: string;
  HintURL?: string;
}

export interface CheckResponse {
  success: boolean;
  results: Record<string, CheckRow[]>;
}

export interface Settings {
  version: string;
  controllerNamespace: string;
  vizNamespace: string;
  grafanaUrl: string | null;
  grafanaPrefix: string;
  /** Whether definitions of workloads are shown. */
  definitions: boolean;
}

/** Returns the path of an endpoint with parameters; empty ones are left out. */
export function path(endpoint: string, params: Record<string, string | undefined> = {}): string {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(params)) {
    if (value) query.set(name, value);
  }
  const text = query.toString();
  return text ? `${endpoint}?${text}` : endpoint;
}

export async function get<T>(endpoint: string): Promise<T> {
  const response = await fetch(`/api/${endpoint}`);
  const body = await response.json();
  if (!response.ok) throw new Error(body.error ?? response.statusText);
  return body as T;
}

export function rows(response: StatResponse | undefined): Row[] {
  return response?.ok?.statTables.flatMap((table) => table.podGroup?.rows ?? []) ?? [];
}

/** The URLs of kinds, as in Linkerd's dashboard, with the singular in messages. */
const PLURALS: Record<string, string> = {
  deployments: "deployment",
  daemonsets: "daemonset",
  statefulsets: "statefulset",
  replicasets: "replicaset",
  replicationcontrollers: "replicationcontroller",
  jobs: "job",
  cronjobs: "cronjob",
  pods: "pod",
  services: "service",
};

export const singular = (plural: string): string | undefined => PLURALS[plural];

export function href(resource: Resource): string {
  const { namespace, type, name } = resource;
  if (type === "namespace") return `/namespaces/${encodeURIComponent(name)}`;
  return `/namespaces/${encodeURIComponent(namespace)}/${type}s/${encodeURIComponent(name)}`;
}

/** Returns the file of a ServiceProfile to begin with. */
export const newProfile = ({ namespace, name }: { namespace: string; name: string }): string =>
  `/profiles/new?${new URLSearchParams({ service: name, namespace })}`;

export const key = ({ namespace, type, name }: Resource): string => `${namespace}/${type}/${name}`;
