// Panels about processes: every program of the mesh exports `process_*`.

import * as cog from "@grafana/grafana-foundation-sdk/cog";
import * as dashboard from "@grafana/grafana-foundation-sdk/dashboard";

import { course, UNITS } from "./panels.js";
import { type Matchers, rate, sum, top } from "./promql.js";
import { MOST_SERIES } from "./traffic.js";

// Shows the processes that export `info`: one scrape job may have several programs.
export function processes(
    info: string,
    matchers: Matchers,
    by: string[],
    legend: string,
): cog.Builder<dashboard.Panel>[] {
    const these = (expression: string): string => `(${expression} and on (job, instance) ${info}{${matchers}})`;
    const gauge = (metric: string): string => top(MOST_SERIES, sum(these(`${metric}{${matchers}}`), by));
    const restarts = these(`changes(process_start_time_seconds{${matchers}}[$__rate_interval])`);
    const descriptors = these(`process_open_fds{${matchers}} / process_max_fds{${matchers}}`);
    return [
        course(
            { title: "CPU", description: "Seconds of CPU time per second.", unit: UNITS.count, width: 6 },
            [top(MOST_SERIES, sum(these(rate("process_cpu_seconds_total", matchers)), by)), legend],
        ),
        course(
            { title: "Memory", description: "Resident memory of the process.", unit: UNITS.bytes, width: 6 },
            [gauge("process_resident_memory_bytes"), legend],
        ),
        course(
            {
                title: "File descriptors",
                description: "The share of the process's limit of file descriptors that is in use.",
                unit: UNITS.share,
                width: 6,
            },
            [top(MOST_SERIES, `max by (${by.join(", ")}) (${descriptors})`), legend],
        ),
        course(
            {
                title: "Restarts",
                description: "Restarts of the process between two points of the graph.",
                unit: UNITS.count,
                width: 6,
            },
            [sum(restarts, by), legend],
        ),
    ];
}
