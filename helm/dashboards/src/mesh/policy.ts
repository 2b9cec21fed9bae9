// What inbound policies admitted and refused.

import { type Board, one, scrapeJob } from "../board.js";
import { course, list, number, type Query, UNITS } from "../panels.js";
import { all, JOB, type Matchers, rate, sum, top } from "../promql.js";
import { MOST_SERIES } from "../traffic.js";

export function policy(): Board {
    const selected = all(JOB, 'namespace="$namespace"');
    return {
        uid: "mesh-policy",
        title: "Mesh Policy Decisions",
        description: "Requests and connections that policies of one namespace admitted and refused, and what proxies refused themselves.",
        normal:
            "**Normal:** no denials. Denials right after a change of a policy name the identities that it forgot: " +
            "compare with `meshctl authz`. Denials of one identity at any other time are what the policy is for.",
        variables: [
            scrapeJob("request_total"),
            one("namespace", "Namespace", `label_values(process_start_time_seconds{${JOB}, pod!=""}, namespace)`),
        ],
        sections: [
            ["Decisions", [...headline(selected), ...decisions(selected)]],
            ["Denials", denials(selected)],
            ["Revocations, limits and protocol", others(selected)],
        ],
    };
}

function headline(selected: Matchers) {
    const denied = sum(rate("inbound_http_authz_deny_total", selected));
    const allowed = sum(rate("inbound_http_authz_allow_total", selected));
    return [
        number(
            { title: "Admitted requests", description: "Requests per second that a policy admitted.", unit: UNITS.rate, width: 6 },
            allowed,
        ),
        number(
            {
                title: "Denied requests",
                description: "Requests per second that no policy admits.",
                unit: UNITS.rate,
                width: 6,
            },
            `${denied} or vector(0)`,
            { warning: 0.01, critical: 1, bad: "high" },
        ),
        number(
            {
                title: "Denied connections",
                description: "Connections per second that no policy admits.",
                unit: UNITS.perSecond,
                width: 6,
            },
            `${sum(rate("inbound_tcp_authz_deny_total", selected))} or vector(0)`,
            { warning: 0.01, critical: 1, bad: "high" },
        ),
        number(
            {
                title: "Connections without a policy",
                description: "Connections per second to ports for which the policy service has not responded.",
                unit: UNITS.perSecond,
                width: 6,
            },
            `${sum(rate("mesh_proxy_inbound_unanswered_total", selected))} or vector(0)`,
            { warning: 0.01, critical: 1, bad: "high" },
        ),
    ];
}

function decisions(selected: Matchers) {
    const by = ["srv_name", "authz_name"];
    const shown = (metric: string, legend: string, labels: string[]): Query => [
        top(MOST_SERIES, sum(rate(metric, selected), labels)),
        legend,
    ];
    return [
        course(
            {
                title: "Admitted requests",
                description: "Requests per second, by Server and the authorization that admitted them.",
                unit: UNITS.rate,
                width: 12,
            },
            shown("inbound_http_authz_allow_total", "{{srv_name}}: {{authz_name}}", by),
        ),
        course(
            {
                title: "Admitted connections",
                description: "Connections per second, by Server and the authorization that admitted them.",
                unit: UNITS.perSecond,
                width: 12,
            },
            shown("inbound_tcp_authz_allow_total", "{{srv_name}}: {{authz_name}}", by),
        ),
    ];
}

function denials(selected: Matchers) {
    const by = ["pod", "srv_kind", "srv_name", "route_name", "client_id", "no_tls_reason"];
    const of = (protocol: string): string => {
        const denied = sum(rate(`inbound_${protocol}_authz_deny_total`, selected), by);
        return `label_replace(${denied}, "protocol", "${protocol}", "", "")`;
    };
    const denied = `(${of("http")} or ${of("tcp")}) > 0`;
    return [
        course(
            {
                title: "Denied requests",
                description: "Requests per second that no authorization admits, by Server and route.",
                unit: UNITS.rate,
                width: 12,
            },
            [
                top(MOST_SERIES, sum(rate("inbound_http_authz_deny_total", selected), ["srv_name", "route_name"])),
                "{{srv_name}} {{route_name}}",
            ],
        ),
        course(
            {
                title: "Denied connections",
                description: "Connections per second that no authorization admits, by Server.",
                unit: UNITS.perSecond,
                width: 12,
            },
            [top(MOST_SERIES, sum(rate("inbound_tcp_authz_deny_total", selected), ["srv_name"])), "{{srv_name}}"],
        ),
        list(
            {
                title: "Denied clients",
                description: "Who is denied, where. A client without an identity has none because of the reason shown.",
                width: 24,
            },
            {
                pod: "Pod",
                protocol: "Protocol",
                srv_kind: "Kind",
                srv_name: "Server",
                route_name: "Route",
                client_id: "Client identity",
                no_tls_reason: "Why no identity",
            },
            [],
            [{ title: "Denied per second", expression: top(50, denied), unit: UNITS.perSecond }],
        ),
    ];
}

function others(selected: Matchers) {
    const shown = (metric: string, labels: string[], legend: string): Query => [
        top(MOST_SERIES, sum(rate(metric, selected), labels)),
        legend,
    ];
    return [
        course(
            {
                title: "Revoked",
                description: "Connections and requests per second that were ended because a change of policy denies them.",
                unit: UNITS.perSecond,
                width: 8,
            },
            shown("inbound_tcp_authz_terminate_total", ["srv_name"], "connections {{srv_name}}"),
            shown("mesh_proxy_inbound_terminated_total", ["srv_name"], "requests {{srv_name}}"),
        ),
        course(
            {
                title: "No route, or rate-limited",
                description: "Requests per second that match no route of their Server, or exceed a rate limit.",
                unit: UNITS.rate,
                width: 8,
            },
            shown("inbound_http_route_not_found_total", ["srv_name"], "no route {{srv_name}}"),
            shown("inbound_http_local_ratelimit_total", ["srv_name", "ratelimit_name"], "limited {{srv_name}} {{ratelimit_name}}"),
        ),
        course(
            {
                title: "Refused by proxies",
                description: "Requests and connections per second that violate HTTP or exceed a limit of the proxy.",
                unit: UNITS.perSecond,
                width: 8,
            },
            shown("mesh_proxy_refused_total", ["direction", "protocol", "reason"], "{{direction}} {{protocol}} {{reason}}"),
        ),
    ];
}
