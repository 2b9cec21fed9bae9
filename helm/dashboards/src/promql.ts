// Queries of the metrics that the proxies export. docs/reference/proxy-metrics.md describes them.

// Conditions of a selector, without braces.
export type Matchers = string;

// Prometheus' scrape jobs that the dashboard is about.
export const JOB: Matchers = 'job=~"$job"';

export function all(...matchers: Matchers[]): Matchers {
    return matchers.filter((matcher) => matcher !== "").join(", ");
}

export function rate(metric: string, matchers: Matchers): string {
    return `rate(${metric}{${matchers}}[$__rate_interval])`;
}

export function increase(metric: string, matchers: Matchers): string {
    return `increase(${metric}{${matchers}}[$__rate_interval])`;
}

export function sum(expression: string, by: string[] = []): string {
    const grouping = by.length > 0 ? ` by (${by.join(", ")})` : "";
    return `sum${grouping} (${expression})`;
}

// Leaves out requests of the mesh itself: probes of the kubelet, and requests to the admin port of
// proxies, such as Prometheus' own. `meshctl stat` does not count them either.
const APPLICATION: Matchers = 'target_port!="4191", route_name!="probe"';

export function requestRate(matchers: Matchers, by: string[] = []): string {
    return sum(rate("request_total", all(matchers, APPLICATION)), by);
}

// The share of responses without a failure, from 0 to 1.
export function successRate(matchers: Matchers, by: string[] = []): string {
    const responses = (of: Matchers): string => sum(rate("response_total", all(of, APPLICATION)), by);
    return share(responses(all(matchers, 'classification="success"')), responses(matchers));
}

// The share of requests over mutual TLS, from 0 to 1.
export function securedShare(matchers: Matchers, by: string[] = []): string {
    return share(requestRate(all(matchers, 'tls="true"'), by), requestRate(matchers, by));
}

// A part that was never counted has no series: its share is 0, not unknown.
function share(part: string, whole: string): string {
    return `(${part} or ${whole} * 0) / ${whole}`;
}

export function latency(quantile: number, matchers: Matchers, by: string[] = []): string {
    const buckets = sum(rate("response_latency_ms_bucket", all(matchers, APPLICATION)), ["le", ...by]);
    return `histogram_quantile(${quantile}, ${buckets})`;
}

// The kinds of owners of pods, as Prometheus' labels name them: `job` is Prometheus' own.
export const OWNERS = [
    "deployment",
    "statefulset",
    "daemonset",
    "replicaset",
    "replicationcontroller",
    "k8s_job",
    "cronjob",
];

// Adds the label `workload`, the name of the owner: a pod has one of them.
export function named(expression: string): string {
    const labels = OWNERS.map((label) => `"${label}"`).join(", ");
    return `label_join(${expression}, "workload", "", ${labels})`;
}

export function top(count: number, expression: string): string {
    return `topk(${count}, ${expression})`;
}
