// The WebSocket of a tap.

import { useEffect, useRef, useState } from "preact/hooks";

import type { TapEvent } from "./request";

/** What a tap asks for, with the names of Linkerd's dashboard. */
export interface TapQuery {
  resource: string;
  namespace: string;
  toResource?: string;
  toNamespace?: string;
  method?: string;
  path?: string;
  authority?: string;
  scheme?: string;
  maxRps?: number;
  extract?: boolean;
}

export interface TapState {
  running: boolean;
  /** Why it ended. */
  error?: string;
  /** How many events the server has dropped, because this page was too slow. */
  dropped: number;
}

const STOPPED: TapState = { running: false, dropped: 0 };

/** Returns the state of a tap and functions to start and stop it. It stops with the component. */
export function useTap(onEvent: (event: TapEvent) => void) {
  const [state, set] = useState(STOPPED);
  const socket = useRef<WebSocket>();
  const handler = useRef(onEvent);
  handler.current = onEvent;

  const stop = () => {
    socket.current?.close(1000);
    socket.current = undefined;
    set((state) => ({ ...state, running: false }));
  };
  const start = (query: TapQuery) => {
    socket.current?.close(1000);
    const scheme = window.location.protocol === "https:" ? "wss:" : "ws:";
    const opened = new WebSocket(`${scheme}//${window.location.host}/api/tap`);
    socket.current = opened;
    set({ running: true, dropped: 0 });
    opened.onopen = () => opened.send(JSON.stringify({ ...query, reportDrops: true }));
    opened.onmessage = ({ data }) => {
      const message = JSON.parse(data);
      if (typeof message.dropped === "number") set((state) => ({ ...state, dropped: message.dropped }));
      else handler.current(message);
    };
    opened.onclose = ({ code, reason }) => {
      if (socket.current !== opened) return;
      socket.current = undefined;
      const error = code === 1000 ? reason : reason || "the connection to the dashboard was lost";
      set((state) => ({ ...state, running: false, error: error || undefined }));
    };
  };
  useEffect(() => () => socket.current?.close(1000), []);
  return { state, start, stop };
}

/** Returns a function that draws the component again, at most once in a frame. */
export function useFrame(): () => void {
  const [, redraw] = useState(0);
  const frame = useRef(0);
  useEffect(() => () => cancelAnimationFrame(frame.current), []);
  return () => {
    if (frame.current) return;
    frame.current = requestAnimationFrame(() => {
      frame.current = 0;
      redraw((count) => count + 1);
    });
  };
}

/** The command that shows the same requests. */
export function command(verb: "tap" | "top", query: TapQuery): string {
  const parts = ["meshctl", "viz", verb, query.resource];
  if (!query.resource.startsWith("ns/")) parts.push("--namespace", query.namespace);
  const flags: [string, string | undefined][] = [
    ["--to", query.toResource],
    ["--to-namespace", query.toNamespace],
    ["--method", query.method],
    ["--authority", query.authority],
    ["--path", query.path],
    ["--scheme", query.scheme],
    ["--max-rps", query.maxRps ? String(query.maxRps) : undefined],
  ];
  for (const [flag, value] of flags) if (value) parts.push(flag, value);
  return parts.map((part) => (/^[\w./:@-]+$/.test(part) ? part : `'${part.replaceAll("'", "'\\''")}'`)).join(" ");
}
