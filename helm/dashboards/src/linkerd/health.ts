// Linkerd's dashboard of the health of the control plane's processes.

import { type Board, instance, scrapeJob, several } from "../board.js";
import { course, number, UNITS } from "../panels.js";
import { processes } from "../processes.js";
import { all, JOB, rate, sum } from "../promql.js";

export function health(): Board {
    const selected = all(JOB, 'instance=~"$instance"', 'component=~"$component"');
    // The chart's Prometheus scrapes the agents with the same job, also where they listen on loopback.
    const controllers = all(selected, 'component!="mesh-agent"');
    return {
        uid: "linkerd-health",
        title: "Linkerd Health",
        description: "The processes of the control plane and of the extension viz: whether they run, and what they cost.",
        normal:
            "**Normal:** every component is up, does not restart, and ends no call with an error. What the controllers " +
            "do is on the dashboard *Mesh Control Plane*.",
        variables: [
            scrapeJob("controller_build_info"),
            instance("controller_build_info"),
            several("component", "Component", `label_values(controller_build_info{${JOB}}, component)`),
        ],
        sections: [
            [
                "Components",
                [
                    number(
                        {
                            title: "Processes that respond",
                            description: "Processes whose metrics could be read at the last scrape.",
                            unit: UNITS.count,
                            width: 8,
                        },
                        `sum(up{${controllers}})`,
                    ),
                    number(
                        {
                            title: "Processes that do not respond",
                            description: "Processes whose metrics could not be read at the last scrape.",
                            unit: UNITS.count,
                            width: 8,
                        },
                        `sum(up{${controllers}} == bool 0)`,
                        { warning: 1, critical: 1, bad: "high" },
                    ),
                    number(
                        {
                            title: "Versions",
                            description: "Versions that run. There are two during an upgrade.",
                            unit: UNITS.count,
                            width: 8,
                        },
                        `count(count by (version) (controller_build_info{${selected}}))`,
                        { warning: 2, critical: 3, bad: "high" },
                    ),
                    ...processes("controller_build_info", selected, ["component", "instance"], "{{component}} {{instance}}"),
                ],
            ],
            [
                "Calls",
                [
                    course(
                        {
                            title: "Calls",
                            description: "gRPC calls per second that were received, by component and method.",
                            unit: UNITS.perSecond,
                            width: 8,
                        },
                        [
                            sum(rate("grpc_server_started_total", selected), ["component", "grpc_method"]),
                            "{{component}} {{grpc_method}}",
                        ],
                    ),
                    course(
                        {
                            title: "Calls that failed",
                            description: "gRPC calls per second that ended with an error, or whose stream was not opened.",
                            unit: UNITS.perSecond,
                            width: 8,
                        },
                        [
                            sum(rate("grpc_server_handled_total", all(selected, 'grpc_code!="Ok"')), [
                                "component",
                                "grpc_method",
                                "grpc_code",
                            ]),
                            "{{component}} {{grpc_method}} {{grpc_code}}",
                        ],
                    ),
                    course(
                        {
                            title: "Open streams",
                            description: "Streams that proxies hold open, by component and method.",
                            unit: UNITS.count,
                            width: 8,
                        },
                        [
                            sum(`grpc_server_open_streams{${selected}}`, ["component", "grpc_method"]),
                            "{{component}} {{grpc_method}}",
                        ],
                    ),
                ],
            ],
        ],
    };
}
