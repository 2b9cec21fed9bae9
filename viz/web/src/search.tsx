// The search for namespaces, workloads and pages, by the key `/`.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";

import { href, path, rows, type Resource, type StatResponse } from "./api";
import { useFeed } from "./feed";
import { navigate } from "./router";

interface Target {
  text: string;
  kind: string;
  to: string;
}

const PAGES: [string, string][] = [
  ["Namespaces", "/namespaces"],
  ["Topology", "/topology"],
  ["Tap", "/tap"],
  ["Top", "/top"],
  ["Routes", "/routes"],
  ["Control plane", "/controlplane"],
  ["Gateways", "/gateways"],
  ["Extensions", "/extensions"],
];

const MAX_SHOWN = 12;
const LEFT_OUT = ["pod", "replicaset"];

export function Search({ onClose }: { onClose: () => void }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const [text, setText] = useState("");
  const [chosen, choose] = useState(0);
  const found = useTargets(text);
  useEffect(() => dialog.current?.showModal(), []);
  const open = (target: Target | undefined) => {
    if (!target) return;
    onClose();
    navigate(target.to);
  };
  const onKey = (event: KeyboardEvent) => {
    const steps: Record<string, number> = { ArrowDown: 1, ArrowUp: -1 };
    const step = steps[event.key];
    if (step) {
      event.preventDefault();
      choose((found.length + chosen + step) % Math.max(found.length, 1));
    } else if (event.key === "Enter") {
      event.preventDefault();
      open(found[chosen]);
    }
  };
  return (
    <dialog ref={dialog} class="search" aria-label="Search" onClose={onClose}
      onClick={(event) => event.target === dialog.current && dialog.current?.close()}>
      <input type="text" role="combobox" aria-label="Search for a namespace, workload or page" aria-expanded={true}
        aria-controls="found" aria-activedescendant={found[chosen] && `found-${chosen}`} aria-autocomplete="list"
        placeholder="Search" autocomplete="off" spellcheck={false} value={text} onKeyDown={onKey}
        onInput={(event) => {
          setText(event.currentTarget.value);
          choose(0);
        }} />
      <ul id="found" role="listbox" aria-label="Results">
        {found.map((target, index) => (
          <li key={target.to} id={`found-${index}`} role="option" aria-selected={index === chosen} onClick={() => open(target)}>
            {target.text} <span>{target.kind}</span>
          </li>
        ))}
      </ul>
      {found.length === 0 && <p class="empty">Nothing has this name.</p>}
    </dialog>
  );
}

function useTargets(text: string): Target[] {
  const feed = useFeed<StatResponse>(
    path("tps-reports", { resource_type: "all", all_namespaces: "true", skip_stats: "true" }),
  );
  const namespaces = useFeed<StatResponse>(
    path("tps-reports", { resource_type: "namespace", all_namespaces: "true", skip_stats: "true" }),
  );
  const all = useMemo(() => {
    const resources = [...rows(namespaces.data), ...rows(feed.data)].map(({ resource }) => resource);
    return [
      ...PAGES.map(([text, to]): Target => ({ text, kind: "page", to })),
      ...resources.filter(({ type }) => !LEFT_OUT.includes(type)).map(target),
    ];
  }, [feed.data, namespaces.data]);
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  return all
    .filter((it) => words.every((word) => `${it.text} ${it.kind}`.toLowerCase().includes(word)))
    .slice(0, MAX_SHOWN);
}

function target(resource: Resource): Target {
  const { namespace, type, name } = resource;
  return { text: namespace ? `${namespace}/${name}` : name, kind: type, to: href(resource) };
}
