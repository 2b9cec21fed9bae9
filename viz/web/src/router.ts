// Routes by the path, so that addresses are the same as in Linkerd's dashboard.

import { useEffect, useState } from "preact/hooks";

export interface Place {
  /** The parts of the path. */
  parts: string[];
  params: URLSearchParams;
}

const watchers = new Set<() => void>();

function current(): Place {
  const { pathname, search } = window.location;
  const parts = pathname.split("/").filter(Boolean).map(decode);
  return { parts, params: new URLSearchParams(search) };
}

function decode(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

export function usePlace(): Place {
  const [place, set] = useState(current);
  useEffect(() => {
    const update = () => set(current());
    watchers.add(update);
    window.addEventListener("popstate", update);
    return () => {
      watchers.delete(update);
      window.removeEventListener("popstate", update);
    };
  }, []);
  return place;
}

export function navigate(to: string): void {
  if (to !== window.location.pathname + window.location.search) history.pushState(null, "", to);
  for (const watcher of watchers) watcher();
  window.scrollTo(0, 0);
  // A screen reader announces the new page.
  requestAnimationFrame(() => document.querySelector<HTMLElement>("main h1")?.focus());
}

/** Changes a parameter of the page without a new entry in the history. */
export function setParams(params: Record<string, string>): void {
  const query = new URLSearchParams(Object.entries(params).filter(([, value]) => value));
  const text = query.toString();
  history.replaceState(null, "", text ? `?${text}` : window.location.pathname);
}

/** Follows links within the dashboard without loading it again. */
export function followLinks(): void {
  document.addEventListener("click", (event) => {
    const link = (event.target as Element).closest?.("a");
    const modified = event.ctrlKey || event.metaKey || event.shiftKey || event.altKey;
    if (!link || link.hasAttribute("download") || modified || event.button !== 0 || link.target || event.defaultPrevented) return;
    const url = new URL(link.href, window.location.href);
    if (url.origin !== window.location.origin || url.pathname.startsWith("/api/")) return;
    event.preventDefault();
    navigate(url.pathname + url.search);
  });
}
