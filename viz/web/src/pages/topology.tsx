// Who calls whom, with the rate, success and security of each edge.

import { useMemo } from "preact/hooks";

import { type Edge, type EdgesResponse, type Resource, type StatResponse, href, key, path, rows } from "../api";
import { useFeed } from "../feed";
import { layout, NODE_HEIGHT, NODE_WIDTH, type Line, type Node } from "../graph";
import { Heading, Link, LOCK, Problem, Section, Secured, Success } from "../parts";
import { navigate, usePlace } from "../router";
import { health, millis, numbers, percent, rate } from "../stats";
import { type Column, Table } from "../table";
import { NAMESPACES } from "./namespaces";

/** The window of the statistics of a topology. */
const WINDOW = "1m";

const KINDS = ["deployment", "statefulset", "daemonset", "job", "pod"];

const of = (edge: Edge) => numbers(edge.stats, WINDOW);

export function Topology() {
  const { params } = usePlace();
  const namespace = params.get("namespace") ?? "";
  const kind = params.get("kind") ?? "deployment";
  const question = namespace
    ? path("topology", { resource_type: kind, namespace })
    : path("topology", { resource_type: "namespace", all_namespaces: "true" });
  const feed = useFeed<EdgesResponse>(question);
  const edges = feed.data?.ok?.edges ?? [];
  const omitted = feed.data?.ok?.sourcesWithoutStats ?? 0;
  return (
    <>
      <Heading>Topology</Heading>
      <Choice namespace={namespace} kind={kind} />
      <Problem feed={feed} what="the topology" />
      {feed.data && edges.length === 0 && <p class="empty">There are no connections between meshed pods.</p>}
      {edges.length > 0 && (
        <>
          <Graph edges={edges} name={namespace ? `Topology of ${namespace}` : "Topology of all namespaces"} />
          {omitted > 0 && <p class="empty">{omitted} clients have no statistics here, because there are too many.</p>}
          <Section title="Edges"><Edges edges={edges} /></Section>
        </>
      )}
    </>
  );
}

function Choice({ namespace, kind }: { namespace: string; kind: string }) {
  const all = useFeed<StatResponse>(NAMESPACES);
  const names = new Set(rows(all.data).map(({ resource }) => resource.name));
  if (namespace) names.add(namespace);
  const go = (namespace: string, kind: string) => {
    const query = new URLSearchParams(namespace ? { namespace, kind } : {});
    navigate(`/topology${namespace ? `?${query}` : ""}`);
  };
  return (
    <div class="fields">
      <label>
        Show
        <select value={namespace} onChange={(event) => go(event.currentTarget.value, kind)}>
          <option value="">all namespaces</option>
          {[...names].sort().map((name) => <option key={name} value={name}>{name}</option>)}
        </select>
      </label>
      {namespace && (
        <label>
          Kind
          <select value={kind} onChange={(event) => go(namespace, event.currentTarget.value)}>
            {KINDS.map((kind) => <option key={kind}>{kind}</option>)}
          </select>
        </label>
      )}
    </div>
  );
}

function Graph({ edges, name }: { edges: Edge[]; name: string }) {
  // Nodes stay where they are while only numbers change.
  const shape = edges.map(pair).sort().join();
  const placed = useMemo(() => layout(edges), [shape]);
  const spots = useMemo(() => labelSpots(placed.lines, placed.nodes), [placed]);
  const current = new Map(edges.map((edge) => [pair(edge), edge]));
  const lines = placed.lines.map((line) => ({
    ...line,
    edge: current.get(ends(line)) ?? line.edge,
  }));
  return (
    <>
      <div class="graph" tabIndex={0} role="group" aria-label={name}>
        <svg width={placed.width} height={placed.height} viewBox={`0 0 ${placed.width} ${placed.height}`} role="group" aria-label={name}>
          <defs>
            {["good", "warn", "bad", "none"].map((state) => (
              <marker key={state} id={`arrow-${state}`} class={`arrow ${state}`} viewBox="0 0 8 8" refX="7" refY="4"
                markerUnits="userSpaceOnUse" markerWidth="10" markerHeight="10" orient="auto">
                <path d="M0 0L8 4L0 8z" />
              </marker>
            ))}
          </defs>
          {lines.map((line) => <Curve key={ends(line)} line={line} busiest={busiest(edges)} />)}
          {lines.map((line) => <Label key={ends(line)} line={line} at={spots.get(ends(line)) ?? route(line).at(0.5)} />)}
          {placed.nodes.map((node) => <Box key={node.id} node={node} edges={edges} />)}
        </svg>
      </div>
      {placed.omitted > 0 && <p class="empty">{placed.omitted} nodes with few edges are left out of the picture.</p>}
    </>
  );
}

const busiest = (edges: Edge[]) => Math.max(...edges.map((edge) => of(edge)?.rps ?? 0), 1);

interface Point {
  x: number;
  y: number;
}

/** A line, and its points: from 0 at the client to 1 at the server. */
interface Route {
  d: string;
  at: (part: number) => Point;
}

/** From the right side to the left side; in an arc above the nodes if the server is not to the right. */
function route({ from, to }: Line): Route {
  const middle = NODE_HEIGHT / 2;
  if (to.x > from.x) {
    const [x1, y1, x2, y2] = [from.x + NODE_WIDTH, from.y + middle, to.x - 1, to.y + middle];
    const bend = (x2 - x1) / 2;
    return curve({ x: x1, y: y1 }, { x: x1 + bend, y: y1 }, { x: x2 - bend, y: y2 }, { x: x2, y: y2 });
  }
  const [x1, x2] = [from.x + NODE_WIDTH * 0.6, to.x + NODE_WIDTH * 0.4];
  const top = Math.min(from.y, to.y) - ROOM;
  return curve({ x: x1, y: from.y }, { x: x1, y: top }, { x: x2, y: top }, { x: x2, y: to.y - 1 });
}

/** A cubic Bézier curve. */
function curve(a: Point, b: Point, c: Point, d: Point): Route {
  const mixed = (t: number, of: (point: Point) => number) =>
    (1 - t) ** 3 * of(a) + 3 * (1 - t) ** 2 * t * of(b) + 3 * (1 - t) * t ** 2 * of(c) + t ** 3 * of(d);
  return {
    d: `M${a.x} ${a.y}C${b.x} ${b.y} ${c.x} ${c.y} ${d.x} ${d.y}`,
    at: (part) => ({ x: mixed(part, ({ x }) => x), y: mixed(part, ({ y }) => y) }),
  };
}

/** The space of a label, and how far above its line its centre is. */
const LABEL = { width: 84, height: 20, above: 9 };

/** Where labels are tried. In the middle, where the curve is steepest, lines of one client have parted. */
const PARTS = [0.5, 0.4, 0.6, 0.3, 0.7, 0.2, 0.8];

/** Finds a place on each line where its label covers no node and no other label, if there is one. */
function labelSpots(lines: Line[], nodes: Node[]): Map<string, Point> {
  const spots = new Map<string, Point>();
  const isFree = ({ x, y }: Point) => {
    const isNear = (at: Point, width: number, height: number) =>
      Math.abs(x - at.x) < (LABEL.width + width) / 2 && Math.abs(y - LABEL.above - at.y) < (LABEL.height + height) / 2;
    const covers = (node: Node) =>
      isNear({ x: node.x + NODE_WIDTH / 2, y: node.y + NODE_HEIGHT / 2 }, NODE_WIDTH, NODE_HEIGHT);
    const meets = (other: Point) => isNear({ x: other.x, y: other.y - LABEL.above }, LABEL.width, LABEL.height);
    return !nodes.some(covers) && ![...spots.values()].some(meets);
  };
  // Short lines have the fewest places.
  const length = ({ from, to }: Line) => Math.hypot(to.x - from.x, to.y - from.y);
  for (const line of [...lines].sort((a, b) => length(a) - length(b))) {
    const { at } = route(line);
    const free = PARTS.map(at).find(isFree);
    spots.set(ends(line), free ?? at(0.5));
  }
  return spots;
}

/** The height of arcs above nodes. */
const ROOM = 44;

function Curve({ line, busiest }: { line: Line; busiest: number }) {
  const stats = of(line.edge);
  const state = health(stats?.success);
  const width = 1.2 + 3 * Math.sqrt((stats?.rps ?? 0) / busiest);
  return (
    <path class={`edge ${state} ${line.edge.serverId ? "" : "plain"}`} d={route(line).d}
      stroke-width={width.toFixed(2)} marker-end={`url(#arrow-${state})`} />
  );
}

/** A warning sign of 12 by 12: the connection is not encrypted by the mesh. */
const OPEN = "M6 1l5.5 10H.5zM5.4 4.5v3h1.2v-3zm0 4v1.2h1.2V8.5z";

function Label({ line, at: { x, y } }: { line: Line; at: Point }) {
  const stats = of(line.edge);
  const secured = Boolean(line.edge.serverId);
  const numbers = stats ? `${rate(stats.rps)}/s` : "TCP";
  const success = stats?.success !== undefined && stats.success < 1 ? ` ${percent(stats.success)}` : "";
  const text = `${line.from.resource.name} to ${line.to.resource.name}: ${numbers}${success}, ${secured ? "mutual TLS" : "plaintext"}`;
  return (
    <g class="label">
      <title>{text}</title>
      <text x={x + 7} y={y - 5} text-anchor="middle">
        {numbers}
        {success}
      </text>
      <path class={secured ? "lock" : "open"} d={secured ? LOCK : OPEN}
        transform={`translate(${x - 8 - (numbers.length + success.length) * 3.4} ${y - 15})`} />
    </g>
  );
}

function Box({ node, edges }: { node: Node; edges: Edge[] }) {
  const inbound = edges.filter((edge) => key(edge.dst) === node.id);
  const rps = inbound.reduce((sum, edge) => sum + (of(edge)?.rps ?? 0), 0);
  const { name, namespace, type } = node.resource;
  const short = name.length > 20 ? `${name.slice(0, 19)}…` : name;
  return (
    <a href={href(node.resource)} class="node">
      <title>{namespace ? `${namespace}/${name}` : name}</title>
      <rect x={node.x} y={node.y} width={NODE_WIDTH} height={NODE_HEIGHT} rx="8" />
      <text x={node.x + 10} y={node.y + 17} class="name">{short}</text>
      <text x={node.x + 10} y={node.y + 32} class="detail">
        {type === "namespace" ? "" : `${namespace} · `}
        {inbound.length ? `${rate(rps)} rps in` : "client"}
      </text>
    </a>
  );
}

const COLUMNS: Column<Edge>[] = [
  { name: "Client", cell: ({ src }) => <Link to={src} />, value: ({ src }) => key(src) },
  { name: "Server", cell: ({ dst }) => <Link to={dst} />, value: ({ dst }) => key(dst) },
  {
    name: "Security",
    cell: (edge) => <Secured identity={edge.serverId} reason={edge.noIdentityMsg} />,
    value: (edge) => (edge.serverId ? "mTLS" : "plaintext"),
  },
  { name: "Success", cell: (edge) => <Success ratio={of(edge)?.success} />, value: (edge) => of(edge)?.success, numeric: true },
  { name: "RPS", cell: (edge) => rate(of(edge)?.rps), value: (edge) => of(edge)?.rps, numeric: true },
  { name: "P50", cell: (edge) => millis(of(edge)?.p50), value: (edge) => of(edge)?.p50, numeric: true, optional: true },
  { name: "P99", cell: (edge) => millis(of(edge)?.p99), value: (edge) => of(edge)?.p99, numeric: true },
  { name: "Identity of the server", cell: ({ serverId }) => serverId || "–", value: ({ serverId }) => serverId, optional: true },
];

/** The same text for an edge and its line. */
const pair = ({ src, dst }: { src: Resource; dst: Resource }) => `${key(src)}>${key(dst)}`;
const ends = ({ from, to }: Line) => pair({ src: from.resource, dst: to.resource });

/** The same as the picture, for those who cannot see it. */
function Edges({ edges }: { edges: Edge[] }) {
  return (
    <Table label="Edges" columns={COLUMNS} rows={edges} id={pair} text={pair} sorted={["RPS", true]} empty="There are no edges." />
  );
}
