// A request that taps see: the events of one stream of one connection, put together.

import { duration } from "../stats";

interface Address {
  ip: { ipv4?: number; ipv6?: { first: string; last: string } } | null;
  port: number;
}

interface Meta {
  labels: Record<string, string>;
}

interface Named {
  registered?: string;
  unregistered?: string;
}

export interface Header {
  name: string;
  valueStr?: string;
  valueBin?: string;
}

interface StreamId {
  base: number;
  stream: string;
}

export interface TapEvent {
  source: Address | null;
  sourceMeta: Meta | null;
  destination: Address | null;
  destinationMeta: Meta | null;
  routeMeta: Meta | null;
  proxyDirection: "UNKNOWN" | "INBOUND" | "OUTBOUND";
  http?: {
    requestInit?: {
      id: StreamId | null;
      method: Named | null;
      scheme: Named | null;
      authority: string;
      path: string;
      headers: { headers: Header[] } | null;
    };
    responseInit?: {
      id: StreamId | null;
      sinceRequestInit: string | null;
      httpStatus: number;
      headers: { headers: Header[] } | null;
    };
    responseEnd?: {
      id: StreamId | null;
      sinceRequestInit: string | null;
      sinceResponseInit: string | null;
      responseBytes: string;
      eos: { grpcStatusCode?: number; resetErrorCode?: number } | null;
      trailers: { headers: Header[] } | null;
    };
  };
}

export interface Request {
  id: string;
  /** When its first event was received, in milliseconds. */
  seen: number;
  direction: TapEvent["proxyDirection"];
  from: Peer;
  to: Peer;
  tls: string;
  route: string;
  method: string;
  scheme: string;
  authority: string;
  path: string;
  status?: number;
  grpcStatus?: number;
  reset?: number;
  /** Until the response began, in milliseconds. */
  latency?: number;
  /** Until the response ended. */
  total?: number;
  bytes?: number;
  requestHeaders: Header[];
  responseHeaders: Header[];
}

export interface Peer {
  /** The workload if it is known, otherwise the address. */
  name: string;
  namespace: string;
  type: string;
  address: string;
}

/** Workloads before what they own. */
const TYPES = ["deployment", "statefulset", "daemonset", "k8s_job", "job", "cronjob", "replicationcontroller", "replicaset", "pod"];

export function eventId(event: TapEvent): string | undefined {
  const http = event.http;
  const id = (http?.requestInit ?? http?.responseInit ?? http?.responseEnd)?.id;
  if (!id) return undefined;
  // Proxies number the streams of taps on their own.
  const ends = `${event.source?.port}-${event.destination?.port}-${event.destination?.ip?.ipv4}`;
  return `${event.proxyDirection} ${ends} ${id.base}.${id.stream}`;
}

/** Returns the request with what an event adds; nothing if the event is not about one. */
export function merge(known: Request | undefined, event: TapEvent, now: number): Request | undefined {
  const id = eventId(event);
  if (!id || !event.http) return undefined;
  const request = known ?? begin(id, event, now);
  const { requestInit, responseInit, responseEnd } = event.http;
  if (requestInit) {
    request.method = name(requestInit.method);
    request.scheme = name(requestInit.scheme).toLowerCase();
    request.authority = requestInit.authority;
    request.path = requestInit.path;
    request.requestHeaders = requestInit.headers?.headers ?? [];
  }
  if (responseInit) {
    request.status = responseInit.httpStatus;
    request.latency = duration(responseInit.sinceRequestInit);
    request.responseHeaders = responseInit.headers?.headers ?? [];
  }
  if (responseEnd) {
    request.total = duration(responseEnd.sinceRequestInit);
    request.bytes = Number(responseEnd.responseBytes);
    request.grpcStatus = responseEnd.eos?.grpcStatusCode;
    request.reset = responseEnd.eos?.resetErrorCode;
  }
  return request;
}

function begin(id: string, event: TapEvent, now: number): Request {
  const target = event.destinationMeta?.labels ?? {};
  const source = event.sourceMeta?.labels ?? {};
  return {
    id,
    seen: now,
    direction: event.proxyDirection,
    from: peer(event.source, source),
    to: peer(event.destination, target),
    tls: (event.proxyDirection === "INBOUND" ? source.tls : target.tls) ?? "",
    route: event.routeMeta?.labels.route ?? "",
    method: "",
    scheme: "",
    authority: "",
    path: "",
    requestHeaders: [],
    responseHeaders: [],
  };
}

function peer(address: Address | null, labels: Record<string, string>): Peer {
  const text = address ? `${ip(address)}:${address.port}` : "unknown";
  const type = TYPES.find((type) => labels[type]);
  const namespace = labels.namespace ?? "";
  if (!type) return { name: text, namespace: "", type: "", address: text };
  return { name: labels[type] ?? text, namespace, type: type === "k8s_job" ? "job" : type, address: text };
}

function ip({ ip }: Address): string {
  if (ip?.ipv4 !== undefined) {
    const bits = ip.ipv4;
    return [24, 16, 8, 0].map((shift) => (bits >>> shift) & 255).join(".");
  }
  if (!ip?.ipv6) return "unknown";
  const hex = [ip.ipv6.first, ip.ipv6.last].map((half) => BigInt(half).toString(16).padStart(16, "0")).join("");
  const groups = hex.match(/.{4}/g) ?? [];
  // URL writes the shortest form.
  return new URL(`http://[${groups.join(":")}]`).hostname;
}

const name = (named: Named | null): string => named?.registered ?? named?.unregistered ?? "";

/** Whether the client was served; undefined while the response has not ended. */
export function succeeded(request: Request): boolean | undefined {
  if (request.reset !== undefined) return false;
  if (request.total === undefined) return undefined;
  if (request.grpcStatus) return false;
  return (request.status ?? 0) < 500;
}

export function outcome(request: Request): string {
  if (request.reset !== undefined) return `reset ${request.reset}`;
  if (request.grpcStatus) return `gRPC ${request.grpcStatus}`;
  return request.status === undefined ? "…" : String(request.status);
}
