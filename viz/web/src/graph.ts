// The layout of a graph in columns: clients left of their servers, as far as cycles permit.

import { type Edge, type Resource, key } from "./api";

export interface Node {
  id: string;
  resource: Resource;
  x: number;
  y: number;
}

export interface Line {
  edge: Edge;
  from: Node;
  to: Node;
}

export interface Layout {
  nodes: Node[];
  lines: Line[];
  width: number;
  height: number;
  /** Nodes that are left out. */
  omitted: number;
}

export const NODE_WIDTH = 176;
export const NODE_HEIGHT = 40;

const COLUMN = NODE_WIDTH + 150;
const ROW = NODE_HEIGHT + 34;
const MARGIN = 12;

/** A larger graph cannot be read; the nodes with most edges are kept. */
const MAX_NODES = 80;

/** How often neighbouring columns are sorted by each other. */
const SWEEPS = 4;

export function layout(edges: Edge[]): Layout {
  const degrees = new Map<string, number>();
  const resources = new Map<string, Resource>();
  for (const { src, dst } of edges) {
    for (const end of [src, dst]) {
      const id = key(end);
      resources.set(id, end);
      degrees.set(id, (degrees.get(id) ?? 0) + 1);
    }
  }
  const ranked = [...resources.keys()].sort(
    (a, b) => (degrees.get(b) ?? 0) - (degrees.get(a) ?? 0) || a.localeCompare(b),
  );
  const kept = new Set(ranked.slice(0, MAX_NODES));
  const used = edges.filter(({ src, dst }) => kept.has(key(src)) && kept.has(key(dst)));
  const columns = order(columnsOf([...kept].sort(), used), used);
  const tallest = Math.max(...columns.map((column) => column.length), 1);
  const nodes = new Map<string, Node>();
  columns.forEach((column, index) => {
    const top = ((tallest - column.length) * ROW) / 2;
    column.forEach((id, row) => {
      const resource = resources.get(id);
      if (resource) nodes.set(id, { id, resource, x: MARGIN + index * COLUMN, y: MARGIN + top + row * ROW });
    });
  });
  const lines = used.flatMap((edge) => {
    const [from, to] = [nodes.get(key(edge.src)), nodes.get(key(edge.dst))];
    return from && to ? [{ edge, from, to }] : [];
  });
  return {
    nodes: [...nodes.values()],
    lines,
    width: (columns.length - 1) * COLUMN + NODE_WIDTH + 2 * MARGIN,
    height: (tallest - 1) * ROW + NODE_HEIGHT + 2 * MARGIN,
    omitted: resources.size - nodes.size,
  };
}

/** Assigns each node the column after its last client; edges that close a cycle do not count. */
function columnsOf(ids: string[], edges: Edge[]): string[][] {
  const servers = new Map<string, string[]>(ids.map((id) => [id, []]));
  for (const { src, dst } of edges) {
    if (key(src) !== key(dst)) servers.get(key(src))?.push(key(dst));
  }
  const called = new Set(edges.filter(({ src, dst }) => key(src) !== key(dst)).map(({ dst }) => key(dst)));
  const forward = new Map<string, string[]>();
  const finished: string[] = [];
  const open = new Set<string>();
  const visit = (id: string) => {
    if (forward.has(id)) return;
    const kept: string[] = [];
    forward.set(id, kept);
    open.add(id);
    for (const server of servers.get(id) ?? []) {
      if (open.has(server)) continue;
      kept.push(server);
      visit(server);
    }
    open.delete(id);
    finished.push(id);
  };
  // Nodes without clients first, so that cycles are cut behind them.
  for (const id of [...ids.filter((id) => !called.has(id)), ...ids]) visit(id);
  const depth = new Map<string, number>(ids.map((id) => [id, 0]));
  for (const id of finished.reverse()) {
    for (const server of forward.get(id) ?? []) {
      depth.set(server, Math.max(depth.get(server) ?? 0, (depth.get(id) ?? 0) + 1));
    }
  }
  const columns: string[][] = [];
  for (const id of ids) {
    const at = depth.get(id) ?? 0;
    while (columns.length <= at) columns.push([]);
    columns[at]?.push(id);
  }
  return columns;
}

/** Sorts each column by the mean position of its neighbours, which avoids most crossings. */
function order(columns: string[][], edges: Edge[]): string[][] {
  const neighbours = new Map<string, string[]>();
  const add = (a: string, b: string) => neighbours.set(a, [...(neighbours.get(a) ?? []), b]);
  for (const { src, dst } of edges) {
    add(key(src), key(dst));
    add(key(dst), key(src));
  }
  let sorted = columns;
  for (let sweep = 0; sweep < SWEEPS; sweep += 1) {
    const position = new Map<string, number>();
    for (const column of sorted) {
      column.forEach((id, index) => position.set(id, (index + 0.5) / column.length));
    }
    const mean = (id: string) => {
      const near = neighbours.get(id) ?? [];
      return near.reduce((sum, other) => sum + (position.get(other) ?? 0), 0) / Math.max(near.length, 1);
    };
    sorted = sorted.map((column) => [...column].sort((a, b) => mean(a) - mean(b) || a.localeCompare(b)));
  }
  return sorted;
}
