// What the JSON API says about one workload: policies, proxies and endpoints.

import type { BasicStats, Resource } from "../api";
import { path } from "../api";

/** An object of the cluster; defaults of the mesh have the kind `default` and no namespace. */
export interface ObjectRef {
  group: string;
  kind: string;
  namespace: string;
  name: string;
}

export interface Authorization {
  policy: ObjectRef;
  networks: { net: string; except: string[] }[];
  authentication: "none" | "tls" | "identity";
  identities: string[];
}

export interface PolicyRoute {
  route: ObjectRef;
  hosts: string[];
  matches: string[];
  authorizations: Authorization[];
}

export interface RateLimit {
  policy: ObjectRef;
  total: number | null;
  identity: number | null;
  overrides: { identities: string[]; requestsPerSecond: number }[];
}

export interface PortPolicy {
  server: ObjectRef;
  protocol: string;
  authorizations: Authorization[];
  routes: PolicyRoute[];
  rateLimit: RateLimit | null;
}

export interface PolicyPort {
  port: number;
  name: string;
  skipped: boolean;
  policy: PortPolicy | null;
  pods: string[];
}

export interface PoliciesResponse {
  ports: PolicyPort[];
  podsWithoutProxy: string[];
  podsOmitted: number;
  portsOmitted: number;
}

export interface Proxy {
  name: string;
  node: string;
  meshed: boolean;
  identity: string | null;
  /** Seconds since 1970. */
  certificateExpires: number | null;
  redirection: { tier: string; reason: string } | null;
}

export interface ProxiesResponse {
  pods: Proxy[];
  podsOmitted: number;
  metricsProblem: string | null;
}

export interface Endpoint {
  address: string;
  ports: number[];
  pod: string | null;
  node: string | null;
  zone: string | null;
  ready: boolean;
  terminating: boolean;
  stats: BasicStats | null;
  openConnections: string | null;
}

export interface EndpointsResponse {
  endpoints: Endpoint[];
  endpointsOmitted: number;
  slicesOmitted: boolean;
  timeWindow: string;
  metricsProblem: string | null;
}

/** Returns a question about one workload. */
export const about = (endpoint: string, { namespace, type, name }: Resource): string =>
  path(endpoint, { resource_type: type, resource_name: name, namespace });

/** Whether the pods of objects of a kind are known. */
export const hasPods = (type: string): boolean => !["cronjob", "namespace"].includes(type);
