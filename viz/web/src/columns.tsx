// The columns of tables of statistics.

import { Link, Meshed, Success } from "./parts";
import type { Row } from "./api";
import { bytes, millis, ofRow, rate, seconds } from "./stats";
import type { Column } from "./table";

export const name = (title: string, short: boolean): Column<Row> => ({
  name: title,
  cell: ({ resource }) => <Link to={resource} short={short} />,
  value: ({ resource }) => `${short ? "" : resource.namespace}/${resource.name}`,
});

export const kind: Column<Row> = {
  name: "Kind",
  cell: ({ resource }) => resource.type,
  value: ({ resource }) => resource.type,
  optional: true,
};

export const meshed: Column<Row> = {
  name: "Meshed",
  cell: (row) => <Meshed row={row} />,
  value: (row) => Number(row.meshedPodCount) / Math.max(Number(row.runningPodCount), 1),
  numeric: true,
};

export const requests: Column<Row>[] = [
  {
    name: "Success",
    cell: (row) => <Success ratio={ofRow(row)?.success} />,
    value: (row) => ofRow(row)?.success,
    numeric: true,
  },
  { name: "RPS", cell: (row) => rate(ofRow(row)?.rps), value: (row) => ofRow(row)?.rps, numeric: true },
  { name: "P50", cell: (row) => millis(ofRow(row)?.p50), value: (row) => ofRow(row)?.p50, numeric: true, optional: true },
  { name: "P95", cell: (row) => millis(ofRow(row)?.p95), value: (row) => ofRow(row)?.p95, numeric: true, optional: true },
  { name: "P99", cell: (row) => millis(ofRow(row)?.p99), value: (row) => ofRow(row)?.p99, numeric: true },
];

const tcp = (row: Row, field: "readBytesTotal" | "writeBytesTotal"): number | undefined =>
  row.tcpStats ? Number(row.tcpStats[field]) / seconds(row.timeWindow) : undefined;

const perSecond = (value: number | undefined) => (value === undefined ? "–" : `${bytes(value)}/s`);

export const connections: Column<Row>[] = [
  {
    name: "Conns",
    cell: (row) => row.tcpStats?.openConnections ?? "–",
    value: (row) => (row.tcpStats ? Number(row.tcpStats.openConnections) : undefined),
    numeric: true,
    optional: true,
  },
  {
    name: "Read",
    cell: (row) => perSecond(tcp(row, "readBytesTotal")),
    value: (row) => tcp(row, "readBytesTotal"),
    numeric: true,
    optional: true,
  },
  {
    name: "Write",
    cell: (row) => perSecond(tcp(row, "writeBytesTotal")),
    value: (row) => tcp(row, "writeBytesTotal"),
    numeric: true,
    optional: true,
  },
];
