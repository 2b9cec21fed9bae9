// Live requests, counted by client, server, method and path.

import { useRef } from "preact/hooks";

import { Heading, Success } from "../parts";
import { millis } from "../stats";
import { type Column, Table } from "../table";
import { useFrame, useTap } from "../tap/client";
import { TapForm } from "../tap/form";
import { TapStatus } from "../tap/live";
import { eventId, merge, succeeded, type Request, type TapEvent } from "../tap/request";

interface Group {
  id: string;
  first: Request;
  count: number;
  successes: number;
  best: number;
  worst: number;
  last: number;
}

/** A path with an identifier in it has a group for each. */
const MAX_GROUPS = 500;
const MAX_PENDING = 5000;

const COLUMNS: Column<Group>[] = [
  {
    name: "Path",
    cell: ({ first }) => <><span class="way">{first.direction === "INBOUND" ? "in" : "out"}</span> <b>{first.method}</b> {first.path}</>,
    value: ({ first }) => first.path,
  },
  { name: "From", cell: ({ first }) => first.from.name, value: ({ first }) => first.from.name },
  { name: "To", cell: ({ first }) => first.to.name, value: ({ first }) => first.to.name },
  { name: "Count", cell: ({ count }) => count, value: ({ count }) => count, numeric: true },
  { name: "Best", cell: ({ best }) => millis(best), value: ({ best }) => best, numeric: true, optional: true },
  { name: "Worst", cell: ({ worst }) => millis(worst), value: ({ worst }) => worst, numeric: true, optional: true },
  { name: "Last", cell: ({ last }) => millis(last), value: ({ last }) => last, numeric: true },
  {
    name: "Success",
    cell: ({ successes, count }) => <Success ratio={successes / count} />,
    value: ({ successes, count }) => successes / count,
    numeric: true,
  },
];

export function Top() {
  const pending = useRef(new Map<string, Request>());
  const groups = useRef(new Map<string, Group>());
  const redraw = useFrame();
  const add = (event: TapEvent) => {
    const id = eventId(event);
    if (id === undefined) return;
    const request = merge(pending.current.get(id), event, Date.now());
    if (!request) return;
    if (!event.http?.responseEnd) {
      keep(pending.current, id, request, MAX_PENDING);
      return;
    }
    pending.current.delete(id);
    if (request.method) {
      count(groups.current, request);
      redraw();
    }
  };
  const { state, start, stop } = useTap(add);
  return (
    <>
      <Heading>Top</Heading>
      <TapForm verb="top" running={state.running} onStop={stop}
        onStart={(query) => {
          groups.current = new Map();
          pending.current = new Map();
          start(query);
        }} />
      <TapStatus state={state} count={groups.current.size} />
      <Table label="Requests by path" columns={COLUMNS} rows={[...groups.current.values()]} id={(group) => group.id}
        text={({ first }) => `${first.method} ${first.path} ${first.from.name} ${first.to.name}`}
        sorted={["Count", true]} empty="No request has been counted." />
    </>
  );
}

function count(groups: Map<string, Group>, request: Request): void {
  const id = [request.direction, request.from.name, request.to.name, request.method, request.path].join(" ");
  const time = request.total ?? 0;
  const group = groups.get(id) ?? { id, first: request, count: 0, successes: 0, best: time, worst: time, last: time };
  group.count += 1;
  group.successes += succeeded(request) ? 1 : 0;
  group.best = Math.min(group.best, time);
  group.worst = Math.max(group.worst, time);
  group.last = time;
  keep(groups, id, group, MAX_GROUPS);
}

/** Adds a value; the oldest one leaves when there are too many. */
function keep<T>(map: Map<string, T>, id: string, value: T, max: number): void {
  map.set(id, value);
  if (map.size <= max) return;
  const oldest = map.keys().next().value;
  if (oldest !== undefined) map.delete(oldest);
}
