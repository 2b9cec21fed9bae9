// Live requests: a tap and the table of what it has seen.

import { useRef, useState } from "preact/hooks";

import type { Resource } from "../api";
import { bytes, millis } from "../stats";
import { useFrame, useTap, type TapQuery, type TapState } from "./client";
import { eventId, merge, outcome, succeeded, type Header, type Peer, type Request, type TapEvent } from "./request";

/** The last requests are kept. */
const MAX_REQUESTS = 1000;
const MAX_SHOWN = 100;

/** The requests that a tap has seen, newest first. */
export function useRequests() {
  const known = useRef(new Map<string, Request>());
  const redraw = useFrame();
  const add = (event: TapEvent) => {
    const requests = known.current;
    const id = eventId(event);
    const request = merge(id === undefined ? undefined : requests.get(id), event, Date.now());
    if (!request) return;
    requests.set(request.id, request);
    if (requests.size > MAX_REQUESTS) {
      const oldest = requests.keys().next().value;
      if (oldest !== undefined) requests.delete(oldest);
    }
    redraw();
  };
  const clear = () => {
    known.current = new Map();
    redraw();
  };
  return { requests: known.current, add, clear };
}

/** A tap of one workload, started by the user, because it costs the proxies work. */
export function LiveTap({ resource }: { resource: Resource }) {
  const { requests, add, clear } = useRequests();
  const { state, start, stop } = useTap(add);
  const query: TapQuery = { resource: `${resource.type}/${resource.name}`, namespace: resource.namespace };
  const begin = () => {
    clear();
    start(query);
  };
  return (
    <>
      <p class="actions">
        {state.running ? (
          <button type="button" onClick={stop}>Stop</button>
        ) : (
          <button type="button" class="primary" onClick={begin}>Start tap</button>
        )}
      </p>
      <TapStatus state={state} count={requests.size} />
      <Requests requests={requests} running={state.running} />
    </>
  );
}

export function TapStatus({ state, count }: { state: TapState; count: number }) {
  return (
    <>
      {state.error && <p class="problem" role="alert">The tap ended: {state.error}</p>}
      {state.dropped > 0 && (
        <p class="problem" role="status">{state.dropped} events were dropped, because this page did not read them in time.</p>
      )}
      {state.running && count === 0 && <p class="wait" role="status">Waiting for requests…</p>}
    </>
  );
}

export function Requests({ requests, running }: { requests: Map<string, Request>; running: boolean }) {
  const [open, setOpen] = useState<string>();
  const newest = [...requests.values()].slice(-MAX_SHOWN).reverse();
  if (newest.length === 0) return running ? null : <p class="empty">No request has been seen.</p>;
  return (
    <div class="scroll" tabIndex={0} role="group" aria-label="Requests">
      <table class="requests">
        <caption class="hidden">Requests, newest first</caption>
        <thead>
          <tr>
            <th scope="col">Request</th>
            <th scope="col">Status</th>
            <th scope="col">From</th>
            <th scope="col">To</th>
            <th scope="col" class="number">Latency</th>
            <th scope="col" class="number optional">Size</th>
            <th scope="col" class="optional">TLS</th>
          </tr>
        </thead>
        {newest.map((request) => (
          <RequestRow key={request.id} request={request} open={open === request.id}
            onToggle={() => setOpen(open === request.id ? undefined : request.id)} />
        ))}
      </table>
    </div>
  );
}

function RequestRow({ request, open, onToggle }: { request: Request; open: boolean; onToggle: () => void }) {
  const good = succeeded(request);
  const state = good === undefined ? "none" : good ? "good" : "bad";
  return (
    <tbody>
      <tr>
        <th scope="row">
          <button type="button" class="request" aria-expanded={open} onClick={onToggle}>
            <span class="way" title={request.direction.toLowerCase()}>{request.direction === "INBOUND" ? "in" : "out"}</span>
            <b>{request.method || "?"}</b> {request.path || "(began before the tap)"}
          </button>
        </th>
        <td><span class={`success ${state}`}><span class="dot" aria-hidden="true" />{outcome(request)}</span></td>
        <td><PeerName peer={request.from} /></td>
        <td><PeerName peer={request.to} /></td>
        <td class="number">{millis(request.latency)}</td>
        <td class="number optional">{request.bytes === undefined ? "–" : bytes(request.bytes)}</td>
        <td class="optional">{request.tls === "true" ? "mTLS" : request.tls.replaceAll("_", " ") || "–"}</td>
      </tr>
      {open && (
        <tr class="detail">
          <td colSpan={7}><Detail request={request} /></td>
        </tr>
      )}
    </tbody>
  );
}

function PeerName({ peer }: { peer: Peer }) {
  return <span title={`${peer.namespace && `${peer.namespace}/`}${peer.name} ${peer.address}`}>{peer.name}</span>;
}

function Detail({ request }: { request: Request }) {
  const facts: [string, string][] = [
    ["Authority", request.authority],
    ["Scheme", request.scheme],
    ["From", `${request.from.namespace} ${request.from.type} ${request.from.name} (${request.from.address})`],
    ["To", `${request.to.namespace} ${request.to.type} ${request.to.name} (${request.to.address})`],
    ["Route", request.route],
    ["Duration", millis(request.total)],
  ];
  return (
    <>
      <dl class="facts">
        {facts.filter(([, value]) => value.trim()).map(([name, value]) => (
          <div key={name}><dt>{name}</dt><dd>{value}</dd></div>
        ))}
      </dl>
      <Headers title="Request headers" headers={request.requestHeaders} />
      <Headers title="Response headers" headers={request.responseHeaders} />
    </>
  );
}

function Headers({ title, headers }: { title: string; headers: Header[] }) {
  if (headers.length === 0) return null;
  return (
    <>
      <p class="caption">{title}</p>
      <dl class="facts">
        {headers.map(({ name, valueStr, valueBin }, index) => (
          <div key={index}><dt>{name}</dt><dd>{valueStr ?? `${valueBin} (base64)`}</dd></div>
        ))}
      </dl>
    </>
  );
}
