// Linked clusters: whether their gateways respond, what goes to them, and their mirrors.

import { type Board, scrapeJob, several } from "../board.js";
import { course, list, number, UNITS } from "../panels.js";
import { all, increase, JOB, latency, type Matchers, rate, requestRate, successRate, sum, top } from "../promql.js";
import { MOST_SERIES, SUCCESS_LIMITS } from "../traffic.js";

const CLUSTER = "target_cluster_name";
const LEGEND = `{{${CLUSTER}}}`;

export function multicluster(): Board {
    const selected = all(JOB, `${CLUSTER}=~"$cluster"`);
    const outbound = all(JOB, 'direction="outbound"', 'dst_target_cluster=~"$cluster"');
    return {
        uid: "linkerd-multicluster",
        title: "Linkerd Multicluster",
        description: "The gateways of linked clusters, requests to these clusters, and the mirrors of their Services.",
        normal:
            "**Normal:** every gateway is alive and no probe fails. A gateway that is dead is out of rotation: the " +
            "endpoints of its mirrors are not ready. Requests without failed probes that fail come from the other cluster.",
        variables: [
            scrapeJob("gateway_enabled", "mesh_service_mirror_services", "request_total"),
            several("cluster", "Cluster", `label_values(gateway_enabled{${JOB}}, ${CLUSTER})`),
        ],
        sections: [
            ["Gateways", [...headline(selected), ...probes(selected)]],
            ["Requests to other clusters", requests(outbound)],
            ["Service mirrors", mirrors()],
        ],
    };
}

// All replicas of a service mirror probe. A gateway that is not probed is neither alive nor dead.
function alive(selected: Matchers): string {
    const by = `by (${CLUSTER})`;
    return `min ${by} (gateway_alive{${selected}}) and max ${by} (gateway_enabled{${selected}}) == 1`;
}

function failures(selected: Matchers): Matchers {
    return all(selected, 'probe_successful="false"');
}

function headline(selected: Matchers) {
    const dead = `count((${alive(selected)}) == 0) or vector(0)`;
    return [
        number(
            { title: "Probed gateways", description: "Gateways of linked clusters that are probed.", unit: UNITS.count, width: 6 },
            `count(max by (${CLUSTER}) (gateway_enabled{${selected}}) == 1) or vector(0)`,
        ),
        number(
            {
                title: "Dead gateways",
                description: "Gateways that at least one replica of the service mirror takes for dead.",
                unit: UNITS.count,
                width: 6,
            },
            dead,
            { warning: 1, critical: 1, bad: "high" },
        ),
        number(
            { title: "Failed probes", description: "Probes per second that failed.", unit: UNITS.perSecond, width: 6 },
            `${sum(rate("gateway_probes", failures(selected)))} or vector(0)`,
            { warning: 0.001, critical: 1, bad: "high" },
        ),
        number(
            {
                title: "Latency of probes (p95)",
                description: "95 of 100 successful probes took no longer.",
                unit: UNITS.milliseconds,
                width: 6,
            },
            probeLatency(selected, []),
        ),
    ];
}

function probeLatency(selected: Matchers, by: string[]): string {
    return `histogram_quantile(0.95, ${sum(rate("gateway_probe_latency_ms_bucket", selected), ["le", ...by])})`;
}

function probes(selected: Matchers) {
    return [
        list(
            { title: "Gateways", description: "The gateway of each linked cluster, as the probes found it.", width: 12 },
            { [CLUSTER]: "Cluster" },
            [],
            [
                {
                    title: "Alive",
                    expression: alive(selected),
                    unit: UNITS.boolean,
                    limits: { warning: 1, critical: 1, bad: "low" },
                },
                {
                    title: "Last probe",
                    expression: `max by (${CLUSTER}) (gateway_latency{${selected}})`,
                    unit: UNITS.milliseconds,
                },
            ],
        ),
        course(
            {
                title: "Latency of probes (p95)",
                description: "95 of 100 successful probes took no longer, by cluster.",
                unit: UNITS.milliseconds,
                width: 12,
            },
            [top(MOST_SERIES, probeLatency(selected, [CLUSTER])), LEGEND],
        ),
        course(
            { title: "Probes", description: "Probes per second, by cluster and success.", unit: UNITS.perSecond, width: 12 },
            [
                top(MOST_SERIES, sum(rate("gateway_probes", selected), [CLUSTER, "probe_successful"])),
                `${LEGEND} successful: {{probe_successful}}`,
            ],
        ),
        course(
            {
                title: "Resolved addresses",
                description: "How often the addresses of a gateway were resolved, between two points of the graph.",
                unit: UNITS.count,
                width: 12,
            },
            [top(MOST_SERIES, sum(increase("service_mirror_endpoint_repairs", selected), [CLUSTER])), LEGEND],
        ),
    ];
}

function requests(outbound: Matchers) {
    const cluster = "dst_target_cluster";
    const legend = `{{${cluster}}}`;
    const target = [cluster, "dst_target_service_namespace", "dst_target_service"];
    const clients = [...target, "namespace", "pod"];
    return [
        course(
            {
                title: "Success rate",
                description: "The share of responses without a failure, by target cluster.",
                unit: UNITS.share,
                width: 8,
            },
            [`bottomk(${MOST_SERIES}, ${successRate(outbound, [cluster])})`, legend],
        ).max(1),
        course(
            { title: "Requests", description: "Requests per second, by target cluster.", unit: UNITS.rate, width: 8 },
            [top(MOST_SERIES, requestRate(outbound, [cluster])), legend],
        ),
        course(
            {
                title: "Latency (p95)",
                description: "95 of 100 requests took no longer, by target cluster.",
                unit: UNITS.milliseconds,
                width: 8,
            },
            [top(MOST_SERIES, latency(0.95, outbound, [cluster])), legend],
        ),
        list(
            {
                title: "Services of other clusters",
                description: "What each client calls in other clusters, as its proxy sees it.",
                width: 24,
            },
            {
                [cluster]: "Cluster",
                dst_target_service_namespace: "Service namespace",
                dst_target_service: "Service",
                namespace: "Client namespace",
                pod: "Client",
            },
            [],
            [
                { title: "Requests", expression: top(50, requestRate(outbound, clients)), unit: UNITS.rate },
                {
                    title: "Success rate",
                    expression: successRate(outbound, clients),
                    unit: UNITS.share,
                    limits: SUCCESS_LIMITS,
                },
                { title: "Latency (p95)", expression: latency(0.95, outbound, clients), unit: UNITS.milliseconds },
            ],
        ),
    ];
}

// A service mirror exports these without the name of its cluster.
function mirrors() {
    const by = ["namespace", "pod"];
    const legend = "{{namespace}}/{{pod}}";
    const shown = (metric: string, what: string): [string, string] => [
        top(MOST_SERIES, sum(rate(metric, JOB), by)),
        `${what} ${legend}`,
    ];
    return [
        course(
            {
                title: "Selected Services",
                description: "Services that are mirrored or members of federated Services, by whether they could be.",
                unit: UNITS.count,
                width: 8,
            },
            [
                top(MOST_SERIES, sum(`mesh_service_mirror_services{${JOB}}`, [...by, "result"])),
                `{{result}} ${legend}`,
            ],
        ),
        course(
            {
                title: "Written objects",
                description: "Mirrors, Endpoints, namespaces and statuses of Links that were written, per second.",
                unit: UNITS.perSecond,
                width: 8,
            },
            shown("mesh_service_mirror_writes_total", "written"),
        ),
        course(
            {
                title: "Failed writes",
                description: "Writes per second that the API server refused or did not answer, and objects that the full queue refused.",
                unit: UNITS.perSecond,
                width: 8,
            },
            shown("mesh_service_mirror_write_api_errors_total", "refused"),
            shown("mesh_service_mirror_write_timeouts_total", "timed out"),
            shown("mesh_service_mirror_write_enqueue_overflows_total", "queue full"),
        ),
    ];
}
