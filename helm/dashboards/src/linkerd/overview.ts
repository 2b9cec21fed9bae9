// Linkerd's dashboards of the whole mesh and of a namespace.

import { type Board, one, scrapeJob } from "../board.js";
import { type Column, list, number, UNITS } from "../panels.js";
import { all, JOB, latency, type Matchers, named, OWNERS, requestRate, securedShare, successRate } from "../promql.js";
import { connections, golden, goldenBy, headline, SUCCESS_LIMITS } from "../traffic.js";

const INBOUND = all(JOB, 'direction="inbound"');

export function topLine(): Board {
    return {
        uid: "linkerd-top-line",
        title: "Linkerd Top Line",
        description: "Success, requests, latency and mutual TLS of the whole mesh, by namespace.",
        normal:
            "**Normal:** a success rate above 0.99, and mutual TLS everywhere but at the edges: ingresses and clients " +
            "without a proxy. Follow the name of a namespace to its workloads.",
        variables: [scrapeJob("request_total")],
        sections: [
            ["The mesh", [...headline(INBOUND), ...counts(), ...golden(INBOUND)]],
            [
                "Namespaces",
                [
                    list(
                        {
                            title: "Namespaces",
                            description: "What the meshed workloads of each namespace serve.",
                            width: 24,
                        },
                        { namespace: "Namespace" },
                        [],
                        columns(INBOUND, ["namespace"]),
                        "/d/linkerd-namespace?var-namespace=${__value.text}&${datasource:queryparam}&${__url_time_range}",
                    ),
                    ...goldenBy(INBOUND, ["namespace"], "{{namespace}}"),
                ],
            ],
        ],
    };
}

export function namespace(): Board {
    const selected = all(JOB, 'namespace="$namespace"');
    const inbound = all(selected, 'direction="inbound"');
    return {
        uid: "linkerd-namespace",
        title: "Linkerd Namespace",
        description: "Success, requests, latency and mutual TLS of the workloads of one namespace.",
        normal:
            "**Normal:** no workload stands out. One workload with failures is usually the cause of failures of those " +
            "that call it: look at its own dashboard.",
        variables: [
            scrapeJob("request_total"),
            one("namespace", "Namespace", `label_values(process_start_time_seconds{${JOB}, pod!=""}, namespace)`),
        ],
        sections: [
            ["The namespace", [...headline(inbound), ...golden(inbound)]],
            [
                "Workloads",
                [
                    list(
                        {
                            title: "Workloads",
                            description: "What each meshed workload serves. A pod without an owner is in the row without a name.",
                            width: 24,
                        },
                        { workload: "Workload" },
                        OWNERS,
                        columns(inbound, OWNERS, named),
                    ),
                    ...goldenBy(inbound, OWNERS, "{{workload}}", named),
                ],
            ],
            ["TCP connections", connections(selected, [], "")],
        ],
    };
}

function counts() {
    const pods = `process_start_time_seconds{${JOB}, pod!=""}`;
    return [
        number(
            {
                title: "Namespaces",
                description: "Namespaces with a meshed pod.",
                unit: UNITS.count,
                width: 8,
            },
            `count(count by (namespace) (${pods}))`,
        ),
        number(
            {
                title: "Workloads",
                description: "Owners of meshed pods: Deployments, StatefulSets, DaemonSets and others.",
                unit: UNITS.count,
                width: 8,
            },
            `count(count by (namespace, ${OWNERS.join(", ")}) (${pods}))`,
        ),
        number(
            { title: "Pods", description: "Pods with a proxy.", unit: UNITS.count, width: 8 },
            `count(count by (namespace, pod) (${pods}))`,
        ),
    ];
}

function columns(
    matchers: Matchers,
    by: string[],
    wrap: (expression: string) => string = (expression) => expression,
): Column[] {
    return [
        { title: "Success", expression: wrap(successRate(matchers, by)), unit: UNITS.share, limits: SUCCESS_LIMITS },
        { title: "Requests", expression: wrap(requestRate(matchers, by)), unit: UNITS.rate },
        { title: "p50", expression: wrap(latency(0.5, matchers, by)), unit: UNITS.milliseconds },
        { title: "p95", expression: wrap(latency(0.95, matchers, by)), unit: UNITS.milliseconds },
        { title: "p99", expression: wrap(latency(0.99, matchers, by)), unit: UNITS.milliseconds },
        { title: "Mutual TLS", expression: wrap(securedShare(matchers, by)), unit: UNITS.share },
    ];
}
