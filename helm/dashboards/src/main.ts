// All dashboards of the chart helm/linkerd-viz.

import * as dashboard from "@grafana/grafana-foundation-sdk/dashboard";

import { build } from "./board.js";
import { authority, route, service } from "./linkerd/destinations.js";
import { health } from "./linkerd/health.js";
import { multicluster } from "./linkerd/multicluster.js";
import { namespace, topLine } from "./linkerd/overview.js";
import { pod, workloads } from "./linkerd/workload.js";
import { certificates } from "./mesh/certificates.js";
import { controlPlane } from "./mesh/controlPlane.js";
import { nodeAgent } from "./mesh/nodeAgent.js";
import { policy } from "./mesh/policy.js";

export function dashboards(): dashboard.Dashboard[] {
    const boards = [
        topLine(),
        health(),
        namespace(),
        ...workloads(),
        pod(),
        service(),
        route(),
        authority(),
        multicluster(),
        nodeAgent(),
        controlPlane(),
        policy(),
        certificates(),
    ];
    return boards.map(build);
}
