// The stream of updates: all questions of the components that are on the screen, in one connection.

import { useEffect, useState } from "preact/hooks";

export interface Feed<T> {
  /** The last response without an error. */
  data?: T;
  /** Why there is no newer response. */
  error?: string;
}

export type Connection = "connecting" | "open" | "lost";

type Listener = () => void;

const listeners = new Map<string, Set<Listener>>();
const last = new Map<string, Feed<unknown>>();
const watchers = new Set<(state: Connection) => void>();

let state: Connection = "connecting";
let source: EventSource | undefined;
let opened: string[] = [];
let scheduled = false;
let retry = 1000;

/** Returns the responses to a question, such as `pods?namespace=shop`; nothing without a question. */
export function useFeed<T>(question: string | undefined): Feed<T> {
  const [, redraw] = useState(0);
  useEffect(() => {
    if (!question) return;
    const listener = () => redraw((count) => count + 1);
    const known = listeners.get(question) ?? new Set();
    listeners.set(question, known.add(listener));
    schedule();
    return () => {
      known.delete(listener);
      if (known.size === 0) listeners.delete(question);
      schedule();
    };
  }, [question]);
  return ((question && last.get(question)) ?? {}) as Feed<T>;
}

export function useConnection(): Connection {
  const [current, set] = useState(state);
  useEffect(() => {
    watchers.add(set);
    return () => void watchers.delete(set);
  }, []);
  return current;
}

function enter(next: Connection): void {
  state = next;
  for (const watcher of watchers) watcher(next);
}

/** Opens the stream again when the questions have changed; a change of pages changes several. */
function schedule(): void {
  if (scheduled) return;
  scheduled = true;
  setTimeout(() => {
    scheduled = false;
    const wanted = [...listeners.keys()].sort();
    if (wanted.join("\n") !== opened.join("\n")) open(wanted);
  }, 0);
}

function open(questions: string[]): void {
  source?.close();
  source = undefined;
  opened = questions;
  for (const question of last.keys()) {
    // Old numbers would look current.
    if (!listeners.has(question)) last.delete(question);
  }
  if (questions.length === 0) return;
  const query = questions.map((question) => `q=${encodeURIComponent(question)}`).join("&");
  const stream = new EventSource(`/api/stream?${query}`);
  source = stream;
  stream.onopen = () => {
    retry = 1000;
    enter("open");
  };
  stream.addEventListener("update", (event) => receive(questions, (event as MessageEvent).data));
  stream.onerror = () => {
    enter("lost");
    // A browser does not try again after a response such as 503.
    if (stream.readyState !== EventSource.CLOSED) return;
    retry = Math.min(retry * 2, 30_000);
    setTimeout(() => {
      if (source === stream) open(questions);
    }, retry);
  };
}

function receive(questions: string[], data: string): void {
  const { query, status, body } = JSON.parse(data);
  const question = questions[query];
  if (question === undefined) return;
  const problem = status === 200 ? body.error?.error : (body.error ?? `status ${status}`);
  const known = last.get(question) ?? {};
  last.set(question, problem ? { ...known, error: problem } : { data: body });
  for (const listener of listeners.get(question) ?? []) listener();
}
