// What the page knows of the server's flags.

import { useEffect, useState } from "preact/hooks";

import { get, type Resource, type Settings } from "./api";

let loaded: Promise<Settings> | undefined;

export function useSettings(): Settings | undefined {
  const [settings, set] = useState<Settings>();
  useEffect(() => {
    loaded ??= get<Settings>("settings");
    loaded.then(set, () => {
      loaded = undefined;
    });
  }, []);
  return settings;
}

/** Kinds with a dashboard of their own in Grafana. */
const KINDS = ["namespace", "deployment", "daemonset", "statefulset", "replicaset", "replicationcontroller", "job", "cronjob", "pod", "service"];

/** Returns the address of Grafana's dashboard of an object, or of the mesh. */
export function grafana(settings: Settings | undefined, resource?: Resource): string | undefined {
  if (!settings?.grafanaUrl) return undefined;
  const base = `${settings.grafanaUrl}/d/${settings.grafanaPrefix}linkerd-`;
  if (!resource) return `${base}top-line`;
  if (!KINDS.includes(resource.type)) return undefined;
  const query = new URLSearchParams();
  if (resource.namespace) query.set("var-namespace", resource.namespace);
  query.set(`var-${resource.type}`, resource.name);
  return `${base}${resource.type}?${query}`;
}
