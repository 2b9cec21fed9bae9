// Panels about requests and connections, which most dashboards have.

import * as cog from "@grafana/grafana-foundation-sdk/cog";
import * as dashboard from "@grafana/grafana-foundation-sdk/dashboard";

import { course, type Limits, number, type Query, share, UNITS } from "./panels.js";
import { all, latency, type Matchers, rate, requestRate, securedShare, successRate, sum, top } from "./promql.js";

type Panels = cog.Builder<dashboard.Panel>[];

export const SUCCESS_LIMITS: Limits = { warning: 0.99, critical: 0.95, bad: "low" };
const SECURED_LIMITS: Limits = { warning: 1, critical: 0.9, bad: "low" };

// The number of series of a panel that has one for each of any number of objects.
export const MOST_SERIES = 15;

// The four numbers at the beginning of a dashboard about requests.
export function headline(matchers: Matchers): Panels {
    return [
        share(
            {
                title: "Success rate",
                description: "The share of responses without a failure: no 5xx, no failing gRPC status, no broken stream.",
                width: 6,
            },
            successRate(matchers),
            SUCCESS_LIMITS,
        ),
        number(
            { title: "Requests", description: "Requests per second.", unit: UNITS.rate, width: 6 },
            requestRate(matchers),
        ),
        number(
            {
                title: "Latency (p95)",
                description: "95 of 100 requests took no longer, from their headers to the first data of the response.",
                unit: UNITS.milliseconds,
                width: 6,
            },
            latency(0.95, matchers),
        ),
        share(
            {
                title: "Mutual TLS",
                description: "The share of requests over mutual TLS. Requests of clients without a proxy have none.",
                width: 6,
            },
            securedShare(matchers),
            SECURED_LIMITS,
        ),
    ];
}

// Success, requests and latency over time, of all requests together.
export function golden(matchers: Matchers): Panels {
    return [
        course(
            {
                title: "Success rate",
                description: "The share of responses without a failure.",
                unit: UNITS.share,
                width: 8,
            },
            [successRate(matchers), "success"],
        ).max(1),
        course(
            {
                title: "Requests",
                description: "Requests per second, by whether they came over mutual TLS.",
                unit: UNITS.rate,
                width: 8,
            },
            [requestRate(all(matchers, 'tls="true"')), "mutual TLS"],
            [requestRate(all(matchers, 'tls!="true"')), "no mutual TLS"],
        ),
        course(
            {
                title: "Latency",
                description: "Quantiles of the time from a request's headers to the first data of its response.",
                unit: UNITS.milliseconds,
                width: 8,
            },
            [latency(0.5, matchers), "p50"],
            [latency(0.95, matchers), "p95"],
            [latency(0.99, matchers), "p99"],
        ),
    ];
}

// Success, requests and latency over time for each value of `by`; `wrap` completes the labels.
export function goldenBy(
    matchers: Matchers,
    by: string[],
    legend: string,
    wrap: (expression: string) => string = (expression) => expression,
): Panels {
    const shown = (expression: string): Query => [top(MOST_SERIES, wrap(expression)), legend];
    const most = `The ${MOST_SERIES} highest are shown.`;
    return [
        course(
            {
                title: "Failures",
                description: `The share of responses with a failure. ${most}`,
                unit: UNITS.share,
                width: 8,
            },
            shown(`1 - ${successRate(matchers, by)}`),
        ),
        course(
            { title: "Requests", description: `Requests per second. ${most}`, unit: UNITS.rate, width: 8 },
            shown(requestRate(matchers, by)),
        ),
        course(
            {
                title: "Latency (p95)",
                description: `95 of 100 requests took no longer. ${most}`,
                unit: UNITS.milliseconds,
                width: 8,
            },
            shown(latency(0.95, matchers, by)),
        ),
    ];
}

// Connections of proxies, to and from applications and other proxies.
export function connections(matchers: Matchers, by: string[], legend: string): Panels {
    const bytes = (metric: string): string => sum(rate(metric, matchers), by);
    return [
        course(
            {
                title: "Open connections",
                description: "Open TCP connections, by direction and peer: src are accepted, dst are opened by the proxy.",
                unit: UNITS.count,
                width: 8,
            },
            [sum(`tcp_open_connections{${matchers}}`, ["direction", "peer", ...by]), `{{direction}} {{peer}} ${legend}`],
        ),
        course(
            {
                title: "Connections that failed",
                description: "Connections per second that ended with an error of the kernel, by error.",
                unit: UNITS.perSecond,
                width: 8,
            },
            [
                sum(rate("tcp_close_total", all(matchers, 'errno!=""')), ["direction", "peer", "errno", ...by]),
                `{{direction}} {{peer}} {{errno}} ${legend}`,
            ],
        ),
        course(
            {
                title: "Bytes",
                description: "Bytes per second that proxies read from peers and wrote to them.",
                unit: UNITS.bytesPerSecond,
                width: 8,
            },
            [bytes("tcp_read_bytes_total"), `read ${legend}`],
            [bytes("tcp_write_bytes_total"), `written ${legend}`],
        ),
    ];
}
