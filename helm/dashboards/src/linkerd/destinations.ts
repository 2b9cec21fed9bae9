// Linkerd's dashboards of what clients call: a Service, an authority, a route.

import { type Board, one, scrapeJob } from "../board.js";
import { course, type Query, UNITS } from "../panels.js";
import { all, JOB, type Matchers, rate, sum, top } from "../promql.js";
import { golden, goldenBy, headline, MOST_SERIES } from "../traffic.js";

const OUTBOUND = all(JOB, 'direction="outbound"');

export function service(): Board {
    const selected = all(OUTBOUND, 'dst_namespace="$namespace"', 'dst_service="$service"');
    return {
        uid: "linkerd-service",
        title: "Linkerd Service",
        description: "Requests to one Service, as its meshed clients see them, and the balancers of these clients.",
        normal:
            "**Normal:** every client sees the same success rate and latency. One client that differs points at the " +
            "client; one endpoint that differs, at a pod. A balancer without ready endpoints fails requests at once.",
        variables: [
            scrapeJob("request_total"),
            one("namespace", "Namespace", `label_values(request_total{${all(OUTBOUND, 'dst_service!=""')}}, dst_namespace)`),
            one(
                "service",
                "Service",
                `label_values(request_total{${all(OUTBOUND, 'dst_namespace="$namespace"')}}, dst_service)`,
            ),
        ],
        sections: [
            ["All clients", [...headline(selected), ...golden(selected)]],
            ["By client", goldenBy(selected, ["namespace", "pod"], "{{namespace}}/{{pod}}")],
            ["By endpoint", goldenBy(selected, ["dst_pod"], "{{dst_pod}}")],
            ["Balancers of the clients", balancers(all(JOB, 'parent_namespace="$namespace"', 'parent_name="$service"'))],
        ],
    };
}

export function authority(): Board {
    const selected = all(OUTBOUND, 'namespace="$namespace"', 'authority="$authority"');
    return {
        uid: "linkerd-authority",
        title: "Linkerd Authority",
        description: "Requests of one namespace to one authority, the name and port that clients call.",
        normal:
            "**Normal:** all clients see the same success rate and latency. The namespace is that of the clients; the " +
            "authority has the namespace of the Service.",
        variables: [
            scrapeJob("request_total"),
            one("namespace", "Namespace", `label_values(request_total{${all(OUTBOUND, 'authority!=""')}}, namespace)`),
            one(
                "authority",
                "Authority",
                `label_values(request_total{${all(OUTBOUND, 'namespace="$namespace"')}}, authority)`,
            ),
        ],
        sections: [
            ["All clients", [...headline(selected), ...golden(selected)]],
            ["By client", goldenBy(selected, ["pod"], "{{pod}}")],
            ["By endpoint", goldenBy(selected, ["dst_namespace", "dst_pod"], "{{dst_namespace}}/{{dst_pod}}")],
        ],
    };
}

export function route(): Board {
    const inbound = all(JOB, 'direction="inbound"', 'namespace="$namespace"', 'route_name="$route"');
    const outbound = all(JOB, 'parent_namespace="$namespace"', 'route_name="$route"');
    return {
        uid: "linkerd-route",
        title: "Linkerd Route",
        description: "Requests of one HTTPRoute or GRPCRoute: of a Server as the server sees them, of a Service as its clients do.",
        normal:
            "**Normal:** failures of a route without failures of its backends come from the route itself: a filter, a " +
            "timeout, or no backend. The route `default` has the requests that no route of a policy matches.",
        variables: [
            scrapeJob("request_total"),
            one("namespace", "Namespace", `label_values(request_total{${all(JOB, 'route_name!=""')}}, namespace)`),
            one(
                "route",
                "Route",
                `label_values({__name__=~"request_total|outbound_(http|grpc)_route_request_statuses_total", ${JOB}}, route_name)`,
            ),
        ],
        sections: [
            ["As the servers of the namespace see it", [...headline(inbound), ...golden(inbound)]],
            ["By Server", goldenBy(inbound, ["srv_name", "target_port"], "{{srv_name}} {{target_port}}")],
            ["As the clients of Services of the namespace see it", routes(outbound)],
        ],
    };
}

function balancers(selected: Matchers) {
    const both = (suffix: string, of: (metric: string) => string, legend: string): Query[] =>
        ["http", "tcp"].map((protocol) => [of(`outbound_${protocol}_balancer_${suffix}`), `${protocol} ${legend}`]);
    return [
        course(
            {
                title: "Endpoints",
                description: "Endpoints in the balancers of all clients, by state. Each client has a balancer of its own.",
                unit: UNITS.count,
                width: 8,
            },
            ...both("endpoints", (metric) => sum(`${metric}{${selected}}`, ["endpoint_state"]), "{{endpoint_state}}"),
        ),
        course(
            {
                title: "Waiting requests",
                description: "Requests and connections that wait for an endpoint.",
                unit: UNITS.count,
                width: 8,
            },
            ...both("queue_length", (metric) => sum(`${metric}{${selected}}`), "waiting"),
        ),
        course(
            {
                title: "Fail-fast",
                description: "Changes per second to the state in which requests fail at once, because no endpoint is available.",
                unit: UNITS.perSecond,
                width: 8,
            },
            ...both("queue_gate_shut_total", (metric) => sum(rate(metric, selected)), "shut"),
        ),
    ];
}

// The families of outbound routes have neither a classification nor the labels of endpoints.
function routes(selected: Matchers) {
    const statuses = (protocol: string, of: string, label: string): Query => [
        top(MOST_SERIES, sum(rate(`outbound_${protocol}_route_${of}_statuses_total`, selected), [label, "error"])),
        `{{${label}}} {{error}}`,
    ];
    const quantile = (protocol: string, family: string): string => {
        const buckets = sum(rate(`outbound_${protocol}_route_${family}_bucket`, selected), ["le"]);
        return `histogram_quantile(0.95, ${buckets})`;
    };
    return [
        course(
            {
                title: "Responses to clients",
                description: "Responses per second by status; error is set if the proxy responded instead of a backend.",
                unit: UNITS.rate,
                width: 8,
            },
            statuses("http", "request", "http_status"),
            statuses("grpc", "request", "grpc_status"),
        ),
        course(
            {
                title: "Responses of backends",
                description: "Responses per second by status; each attempt of a retried request counts.",
                unit: UNITS.rate,
                width: 8,
            },
            statuses("http", "backend_response", "http_status"),
            statuses("grpc", "backend_response", "grpc_status"),
        ),
        course(
            {
                title: "Latency (p95)",
                description: "To clients from a request's headers to the end of its response, and of backends from the end of the request.",
                unit: UNITS.seconds,
                width: 8,
            },
            [quantile("http", "request_duration_seconds"), "HTTP, to clients"],
            [quantile("grpc", "request_duration_seconds"), "gRPC, to clients"],
            [quantile("http", "backend_response_duration_seconds"), "HTTP, of backends"],
            [quantile("grpc", "backend_response_duration_seconds"), "gRPC, of backends"],
        ),
    ];
}
