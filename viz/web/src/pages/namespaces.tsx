// The namespaces with their pods and requests.

import { key, path, rows, type Row, type StatResponse } from "../api";
import { meshed, name, requests } from "../columns";
import { useFeed } from "../feed";
import { useHistory } from "../history";
import { Figure, Heading, Problem, Success } from "../parts";
import { rate, seconds } from "../stats";
import { Table } from "../table";

export const NAMESPACES = path("tps-reports", { resource_type: "namespace", all_namespaces: "true" });

export function Namespaces() {
  const feed = useFeed<StatResponse>(NAMESPACES);
  const all = rows(feed.data);
  return (
    <>
      <Heading>Namespaces</Heading>
      <Problem feed={feed} what="namespaces" />
      {feed.data && (
        <>
          <Totals rows={all} tick={feed.data} />
          <Table label="Namespaces" columns={[name("Namespace", true), meshed, ...requests]} rows={all}
            id={(row) => key(row.resource)} text={(row) => row.resource.name} sorted={["RPS", true]}
            empty="There are no namespaces." />
        </>
      )}
    </>
  );
}

/** All requests together, which shows at a glance whether something changes. */
export function Totals({ rows, tick }: { rows: Row[]; tick: unknown }) {
  let good = 0;
  let bad = 0;
  let rps = 0;
  let running = 0;
  let withProxy = 0;
  for (const row of rows) {
    const success = Number(row.stats?.successCount ?? 0);
    const failure = Number(row.stats?.failureCount ?? 0);
    good += success;
    bad += failure;
    rps += (success + failure) / seconds(row.timeWindow);
    running += Number(row.runningPodCount);
    withProxy += Number(row.meshedPodCount);
  }
  const ratio = good + bad > 0 ? good / (good + bad) : undefined;
  const rates = useHistory(rps, tick);
  const failures = useHistory(ratio === undefined ? undefined : 1 - ratio, tick);
  return (
    <dl class="figures">
      <Figure name="Requests per second" values={rates}>{rate(rps)}</Figure>
      <Figure name="Success"><Success ratio={ratio} /></Figure>
      <Figure name="Failures" values={failures}>{failed(ratio)}</Figure>
      <Figure name="Meshed pods">{withProxy} of {running}</Figure>
    </dl>
  );
}

/** What `percent` of the successes leaves, so that both add up to all. */
function failed(ratio: number | undefined): string {
  return ratio === undefined ? "–" : `${(Math.ceil((1 - ratio) * 10000 - 1e-6) / 100).toFixed(2)}%`;
}
