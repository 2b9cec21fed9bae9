// The form of taps: the resource to watch, and the requests to show.

import { useState } from "preact/hooks";

import { path, rows, type StatResponse } from "../api";
import { useFeed } from "../feed";
import { NAMESPACES } from "../pages/namespaces";
import { setParams, usePlace } from "../router";
import { command, type TapQuery } from "./client";

const METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "CONNECT", "TRACE"];

/** Kinds that can be tapped. */
const KINDS = ["deployment", "statefulset", "daemonset", "job", "cronjob", "replicaset", "replicationcontroller", "pod", "service"];

interface Props {
  verb: "tap" | "top";
  running: boolean;
  onStart: (query: TapQuery) => void;
  onStop: () => void;
}

export function TapForm({ verb, running, onStart, onStop }: Props) {
  const { params } = usePlace();
  const [query, setQuery] = useState<TapQuery>(() => ({
    namespace: params.get("namespace") ?? namespaceOf(params.get("resource")) ?? "default",
    resource: params.get("resource") ?? "",
    toResource: params.get("toResource") ?? "",
    method: params.get("method") ?? "",
    authority: params.get("authority") ?? "",
    path: params.get("path") ?? "",
    maxRps: Number(params.get("maxRps")) || undefined,
    extract: params.get("extract") === "true",
  }));
  const change = (changed: Partial<TapQuery>) => {
    const next = { ...query, ...changed };
    setQuery(next);
    const { maxRps, extract, ...texts } = next;
    setParams({ ...(texts as Record<string, string>), maxRps: maxRps ? String(maxRps) : "", extract: extract ? "true" : "" });
  };
  const submit = (event: Event) => {
    event.preventDefault();
    if (running) onStop();
    else onStart(query);
  };
  const text = (field: "authority" | "path" | "toResource", label: string, placeholder: string) => (
    <label>
      {label}
      <input value={query[field]} placeholder={placeholder} autocomplete="off" spellcheck={false} disabled={running}
        onInput={(event) => change({ [field]: event.currentTarget.value.trim() })} />
    </label>
  );
  return (
    <form class="tap" onSubmit={submit}>
      <div class="fields">
        <Target query={query} disabled={running} onChange={change} />
        <label>
          Method
          <select value={query.method} disabled={running} onChange={(event) => change({ method: event.currentTarget.value })}>
            <option value="">any</option>
            {METHODS.map((method) => <option key={method}>{method}</option>)}
          </select>
        </label>
        {text("path", "Path begins with", "/api")}
        {text("authority", "Authority", "web.shop:8080")}
        {text("toResource", "To resource", "deploy/db")}
        <label>
          Requests per second
          <input type="number" min={1} max={10000} value={query.maxRps ?? ""} placeholder="100" disabled={running}
            onInput={(event) => change({ maxRps: event.currentTarget.valueAsNumber || undefined })} />
        </label>
        <label class="choice">
          <input type="checkbox" checked={query.extract} disabled={running}
            onChange={(event) => change({ extract: event.currentTarget.checked })} />
          Header fields
        </label>
      </div>
      <p class="actions">
        <button class={running ? "" : "primary"} disabled={!query.resource}>{running ? "Stop" : "Start"}</button>
        {query.resource && <code>{command(verb, query)}</code>}
      </p>
    </form>
  );
}

function namespaceOf(resource: string | null): string | undefined {
  return resource?.startsWith("ns/") ? resource.slice(3) : undefined;
}

function Target({ query, disabled, onChange }: {
  query: TapQuery;
  disabled: boolean;
  onChange: (changed: Partial<TapQuery>) => void;
}) {
  const namespaces = useFeed<StatResponse>(NAMESPACES);
  const workloads = useFeed<StatResponse>(
    query.namespace
      ? path("tps-reports", { resource_type: "all", namespace: query.namespace, skip_stats: "true" })
      : undefined,
  );
  const names = new Set(rows(namespaces.data).map((row) => row.resource.name)).add(query.namespace);
  const found = rows(workloads.data).map(({ resource }) => resource);
  const whole = `ns/${query.namespace}`;
  const options = new Set([
    ...KINDS.flatMap((kind) => found.filter((it) => it.type === kind).map((it) => `${kind}/${it.name}`)),
    ...(query.resource && query.resource !== whole ? [query.resource] : []),
  ]);
  return (
    <>
      <label>
        Namespace
        <select value={query.namespace} disabled={disabled}
          onChange={(event) => onChange({ namespace: event.currentTarget.value, resource: "" })}>
          {[...names].sort().map((name) => <option key={name}>{name}</option>)}
        </select>
      </label>
      <label>
        Resource
        <select value={query.resource} disabled={disabled}
          onChange={(event) => onChange({ resource: event.currentTarget.value })}>
          <option value="">choose…</option>
          <option value={whole}>all of {query.namespace}</option>
          {[...options].map((option) => <option key={option}>{option}</option>)}
        </select>
      </label>
    </>
  );
}
