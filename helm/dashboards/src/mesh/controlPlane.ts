// What the controllers do, and how proxies see them.

import { type Board, instance, scrapeJob } from "../board.js";
import { course, number, type Query, UNITS } from "../panels.js";
import { all, JOB, rate, sum, top } from "../promql.js";
import { MOST_SERIES } from "../traffic.js";

const COMPONENT = ["component", "instance"];

export function controlPlane(): Board {
    const selected = all(JOB, 'instance=~"$instance"');
    return {
        uid: "mesh-control-plane",
        title: "Mesh Control Plane",
        description: "What the controllers read, serve, inject and sign, and whether proxies reach them.",
        normal:
            "**Normal:** all watched kinds are in step, no object is invalid, and no proxy reports an unreachable " +
            "service. Proxies continue with the last responses while a controller is away. The job must include the " +
            "proxies' for the first row.",
        variables: [
            scrapeJob("controller_build_info", "proxy_build_info"),
            instance("controller_build_info", "proxy_build_info"),
        ],
        sections: [
            ["As proxies see it", proxies(selected)],
            ["Objects of the API server", objects(selected)],
            ["Responses to proxies", responses(selected)],
            ["Injection and extension", extension(selected)],
        ],
    };
}

function proxies(selected: string) {
    return [
        course(
            {
                title: "Proxies without contact",
                description: "Proxies that cannot reach a service of the control plane, by service.",
                unit: UNITS.count,
                width: 8,
            },
            [sum(`mesh_proxy_control_unreachable{${selected}}`, ["client"]), "{{client}}"],
        ),
        course(
            {
                title: "Calls of proxies that failed",
                description: "Calls per second that ended with an error, by the service's address. Most calls are streams.",
                unit: UNITS.perSecond,
                width: 8,
            },
            [
                sum(rate("control_response_total", all(selected, 'classification="failure"')), ["addr", "grpc_status"]),
                "{{addr}} {{grpc_status}}",
            ],
        ),
        course(
            {
                title: "Failed look-ups of names",
                description: "DNS look-ups per second of the control plane's names that found no record.",
                unit: UNITS.perSecond,
                width: 8,
            },
            [
                sum(rate("control_dns_resolutions_total", all(selected, 'result="not_found"')), ["client", "record_type"]),
                "{{client}} {{record_type}}",
            ],
        ),
    ];
}

function objects(selected: string) {
    const behind = `count by (component, group, kind) (source_kind_synced{${selected}} == 0)`;
    return [
        number(
            {
                title: "Kinds out of step",
                description: "Watches that are interrupted, so that the last known objects stay in effect.",
                unit: UNITS.count,
                width: 12,
            },
            `count(${behind}) or vector(0)`,
            { warning: 1, critical: 1, bad: "high" },
        ),
        number(
            {
                title: "Invalid objects",
                description: "Objects that a controller cannot read; the last valid version stays in effect.",
                unit: UNITS.count,
                width: 12,
            },
            `sum(source_broken_objects{${selected}}) or vector(0)`,
            { warning: 1, critical: 10, bad: "high" },
        ),
        course(
            {
                title: "Known objects",
                description: "Objects of each kind; replicas know the same.",
                unit: UNITS.count,
                width: 8,
            },
            [`max by (component, kind) (source_kind_objects{${selected}})`, "{{component}} {{kind}}"],
        ),
        course(
            {
                title: "Interrupted watches",
                description: "Failed or interrupted requests to the API server per second.",
                unit: UNITS.perSecond,
                width: 8,
            },
            [sum(rate("source_kind_errors_total", selected), ["component", "kind"]), "{{component}} {{kind}}"],
        ),
        course(
            {
                title: "Repeated lists",
                description: "Lists of all objects per second that were read again after an interruption.",
                unit: UNITS.perSecond,
                width: 8,
            },
            [sum(rate("source_kind_restarts_total", selected), ["component", "kind"]), "{{component}} {{kind}}"],
        ),
    ];
}

function responses(selected: string) {
    const watched = (name: string, legend: string): Query => [sum(`${name}{${selected}}`), legend];
    return [
        course(
            {
                title: "Messages",
                description: "Messages per second on the streams of proxies. Each is a change that proxies follow.",
                unit: UNITS.perSecond,
                width: 8,
            },
            [
                sum(rate("grpc_server_msg_sent_total", selected), [...COMPONENT, "grpc_method"]),
                "{{component}} {{grpc_method}} {{instance}}",
            ],
        ),
        course(
            {
                title: "Open streams",
                description: "Streams of proxies by replica. They should be spread evenly.",
                unit: UNITS.count,
                width: 8,
            },
            [sum(`grpc_server_open_streams{${selected}}`, COMPONENT), "{{component}} {{instance}}"],
        ),
        course(
            {
                title: "Watched values",
                description: "Distinct values that proxies watch: endpoints, profiles and policies.",
                unit: UNITS.count,
                width: 8,
            },
            watched("endpoints_watched", "endpoints"),
            watched("profiles_watched", "profiles"),
            watched("inbound_index_watched", "inbound policies"),
            watched("outbound_index_watched", "outbound policies"),
        ),
    ];
}

function extension(selected: string) {
    const responses = sum(rate("proxy_inject_admission_responses_total", selected), ["skip", "skip_reason"]);
    return [
        course(
            {
                title: "Reviews of the injector",
                description: "Reviewed objects per second, by whether they were skipped and why.",
                unit: UNITS.perSecond,
                width: 8,
            },
            [top(MOST_SERIES, responses), "skipped {{skip}} {{skip_reason}}"],
        ),
        course(
            {
                title: "Repairs of webhooks",
                description: "Damage of webhook configurations and certificates that was repaired, between two points.",
                unit: UNITS.count,
                width: 8,
            },
            [`sum by (component, found) (increase(mesh_injector_repairs_total{${selected}}[$__rate_interval]))`, "{{component}} {{found}}"],
        ),
        course(
            {
                title: "Queries and taps",
                description: "Queries of Prometheus per second by the metrics API, and pods per second that the tap injector reviewed.",
                unit: UNITS.perSecond,
                width: 8,
            },
            [sum(rate("mesh_prometheus_queries_total", selected), ["result"]), "queries {{result}}"],
            [sum(rate("mesh_tap_injector_reviews_total", selected), ["result"]), "reviews {{result}}"],
        ),
    ];
}
