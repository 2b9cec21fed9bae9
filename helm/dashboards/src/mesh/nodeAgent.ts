// The node agents, and how pods are redirected.

import { type Board, instance, scrapeJob } from "../board.js";
import { course, number, UNITS } from "../panels.js";
import { processes } from "../processes.js";
import { all, increase, JOB, rate, sum, top } from "../promql.js";
import { MOST_SERIES } from "../traffic.js";

// One of them names the node: the label `node` of the scrape configuration, or else the address.
const NODE = ["node", "instance"];
const NODE_LEGEND = "{{node}} {{instance}}";

export function nodeAgent(): Board {
    const selected = all(JOB, 'instance=~"$instance"');
    return {
        uid: "mesh-node-agent",
        title: "Mesh Node Agent and Redirection",
        description: "How connections of pods reach their proxies on each node, and what the agents had to repair.",
        normal:
            "**Normal:** every node has the tier `full`, no pod waits, and nothing is repaired. Metrics of the agents " +
            "need `meshAgent.adminAddr` on an address that Prometheus reaches.",
        variables: [scrapeJob("mesh_agent_tier_info"), instance("mesh_agent_tier_info")],
        sections: [
            ["The nodes", nodes(selected)],
            ["Pods", pods(selected)],
            ["Connections", connections(selected)],
            ["The agents' processes", processes("mesh_agent_build_info", selected, NODE, NODE_LEGEND)],
        ],
    };
}

function nodes(selected: string) {
    return [
        number(
            { title: "Agents", description: "Agents that report a tier.", unit: UNITS.count, width: 6 },
            `count(mesh_agent_tier_info{${selected}})`,
        ),
        number(
            {
                title: "Nodes below the best tier",
                description: "Nodes whose pods are not redirected by eBPF in both directions.",
                unit: UNITS.count,
                width: 6,
            },
            `sum(mesh_agent_tier_info{${all(selected, 'tier!="full"')}}) or vector(0)`,
            { warning: 1, critical: 1, bad: "high" },
        ),
        number(
            {
                title: "Failed self-tests",
                description: "Checks of the self-test that failed when the agents started.",
                unit: UNITS.count,
                width: 6,
            },
            `count(mesh_agent_self_test{${selected}} == 0) or vector(0)`,
            { warning: 1, critical: 1, bad: "high" },
        ),
        number(
            {
                title: "Nodes without the plugin",
                description: "Nodes whose container runtime does not run mesh-cni.",
                unit: UNITS.count,
                width: 6,
            },
            `count(mesh_agent_cni_chained{${selected}} == 0) or vector(0)`,
            { warning: 1, critical: 1, bad: "high" },
        ),
        course(
            { title: "Nodes by tier", description: "Nodes that enrol pods in each tier.", unit: UNITS.count, width: 12 },
            [sum(`mesh_agent_tier_info{${selected}}`, ["tier"]), "{{tier}}"],
        ),
        course(
            {
                title: "Repairs",
                description: "What the agents found damaged and repaired, between two points of the graph.",
                unit: UNITS.count,
                width: 12,
            },
            [
                `${sum(increase("mesh_agent_repairs_total", selected), [...NODE, "found"])} > 0`,
                `{{found}} ${NODE_LEGEND}`,
            ],
        ),
    ];
}

function pods(selected: string) {
    return [
        course(
            { title: "Enrolled pods", description: "Pods by the tier that they were enrolled with.", unit: UNITS.count, width: 8 },
            [sum(`mesh_agent_pods{${selected}}`, ["tier"]), "{{tier}}"],
        ),
        course(
            {
                title: "Enrolments",
                description: "Enrolments per second that the plugin requested, by result.",
                unit: UNITS.perSecond,
                width: 8,
            },
            [sum(rate("mesh_agent_enrolments_total", selected), ["result", "reason"]), "{{result}} {{reason}}"],
        ),
        course(
            {
                title: "Waiting pods and failures",
                description: "Pods that have a proxy and are not redirected to it, and failures of the last reconciliation.",
                unit: UNITS.count,
                width: 8,
            },
            [sum(`mesh_agent_waiting_pods{${selected}}`, NODE), `waiting ${NODE_LEGEND}`],
            [sum(`mesh_agent_sweep_failures{${selected}}`, NODE), `failures ${NODE_LEGEND}`],
        ),
    ];
}

function connections(selected: string) {
    const bypasses = sum(rate("mesh_agent_guard_bypasses_total", selected), ["namespace", "pod", "action"]);
    return [
        course(
            {
                title: "Decisions of the kernel programs",
                description: "Connections per second of enrolled pods, by direction and verdict.",
                unit: UNITS.perSecond,
                width: 12,
            },
            [
                sum(rate("mesh_agent_connections_total", selected), ["direction", "verdict"]),
                "{{direction}} {{verdict}}",
            ],
        ),
        course(
            {
                title: "Connection requests around a proxy",
                description: "TCP connection requests per second that left a pod around its proxy, if the guard is on.",
                unit: UNITS.perSecond,
                width: 12,
            },
            [top(MOST_SERIES, bypasses), "{{namespace}}/{{pod}} {{action}}"],
        ),
    ];
}
