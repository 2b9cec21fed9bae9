// Linkerd's dashboards of workloads: one for each kind of owner of pods, and one for pods.

import { type Board, instance, one, scrapeJob, several } from "../board.js";
import { course, number, UNITS } from "../panels.js";
import { processes } from "../processes.js";
import { all, JOB, type Matchers, requestRate, top } from "../promql.js";
import { connections, golden, goldenBy, headline, MOST_SERIES } from "../traffic.js";

interface Kind {
    // In titles.
    title: string;
    // The variable's name, which links of Linkerd's dashboard set.
    variable: string;
    // Prometheus' label.
    label: string;
}

const KINDS: Kind[] = [
    { title: "Deployment", variable: "deployment", label: "deployment" },
    { title: "StatefulSet", variable: "statefulset", label: "statefulset" },
    { title: "DaemonSet", variable: "daemonset", label: "daemonset" },
    { title: "ReplicaSet", variable: "replicaset", label: "replicaset" },
    { title: "ReplicationController", variable: "replicationcontroller", label: "replicationcontroller" },
    { title: "CronJob", variable: "cronjob", label: "cronjob" },
    { title: "Job", variable: "job", label: "k8s_job" },
];

const NORMAL =
    "**Normal:** a success rate of 1, latencies without steps, and mutual TLS for every client that has a proxy. " +
    "Failures by client show whether one caller or the workload itself is at fault.";

export function workloads(): Board[] {
    return KINDS.map(workload);
}

function workload(kind: Kind): Board {
    // In links to the dashboard of Jobs, `job` is the Job.
    const isJob = kind.variable === "job";
    const job = isJob ? 'job=~"$scrape_job"' : JOB;
    const selected = all(job, 'namespace="$namespace"', `${kind.label}="$${kind.variable}"`);
    const meshed = (matchers: Matchers): string => `process_start_time_seconds{${all(job, matchers)}}`;
    const name = kind.title.toLowerCase();
    return {
        uid: `linkerd-${kind.variable}`,
        title: `Linkerd ${kind.title}`,
        description: `Requests and connections of one ${kind.title}: what it serves, and what it calls.`,
        normal: NORMAL,
        variables: [
            isJob
                ? several("scrape_job", "job", "label_values(request_total, job)")
                : scrapeJob("request_total"),
            one("namespace", "Namespace", `label_values(${meshed(`${kind.label}!=""`)}, namespace)`),
            one(kind.variable, kind.title, `label_values(${meshed('namespace="$namespace"')}, ${kind.label})`),
        ],
        sections: [
            ["What it serves", [...headline(inbound(selected)), ...golden(inbound(selected))]],
            ["What it serves, by pod", goldenBy(inbound(selected), ["pod"], "{{pod}}")],
            ["What it serves, by client identity", byClient(inbound(selected))],
            ["What it calls", [...headline(outbound(selected)), ...golden(outbound(selected))]],
            ["What it calls, by Service", byService(outbound(selected))],
            [`TCP connections of the ${name}`, connections(selected, [], "")],
        ],
    };
}

export function pod(): Board {
    const selected = all(JOB, 'instance=~"$instance"', 'namespace="$namespace"', 'pod="$pod"');
    return {
        uid: "linkerd-pod",
        title: "Linkerd Pod",
        description: "Requests, connections and the proxy of one pod.",
        normal: NORMAL,
        variables: [
            scrapeJob("request_total"),
            one("namespace", "Namespace", `label_values(process_start_time_seconds{${JOB}, pod!=""}, namespace)`),
            one("pod", "Pod", `label_values(process_start_time_seconds{${JOB}, namespace="$namespace"}, pod)`),
            instance("process_start_time_seconds"),
        ],
        sections: [
            ["What it serves", [...headline(inbound(selected)), ...golden(inbound(selected))]],
            ["What it serves, by client identity", byClient(inbound(selected))],
            ["What it calls", [...headline(outbound(selected)), ...golden(outbound(selected))]],
            ["What it calls, by Service", byService(outbound(selected))],
            ["TCP connections", connections(selected, [], "")],
            ["Its proxy", [...state(selected), ...processes("proxy_build_info", selected, ["pod"], "{{pod}}")]],
        ],
    };
}

function inbound(matchers: Matchers): Matchers {
    return all(matchers, 'direction="inbound"');
}

function outbound(matchers: Matchers): Matchers {
    return all(matchers, 'direction="outbound"');
}

// Clients without a proxy, and probes, have no identity.
function byClient(matchers: Matchers) {
    return goldenBy(matchers, ["client_id"], "{{client_id}}");
}

function byService(matchers: Matchers) {
    return goldenBy(matchers, ["dst_namespace", "dst_service"], "{{dst_namespace}}/{{dst_service}}");
}

// What a proxy reports of itself.
function state(selected: Matchers) {
    const refused = `sum by (protocol, reason) (rate(mesh_proxy_refused_total{${selected}}[$__rate_interval]))`;
    return [
        number(
            {
                title: "Certificate expires in",
                description: "Time until the proxy's certificate expires. It is renewed at about 70 % of its life.",
                unit: UNITS.seconds,
                width: 6,
            },
            `min(control_identity_cert_expiration_timestamp_seconds{${selected}}) - time()`,
            { warning: 7200, critical: 1800, bad: "low" },
        ),
        number(
            {
                title: "Redirection verified",
                description: "Whether a connection of the pod has been seen to be redirected to the proxy.",
                unit: UNITS.boolean,
                width: 6,
            },
            `min(mesh_proxy_redirection_verified{${selected}})`,
            { warning: 1, critical: 1, bad: "low" },
        ),
        number(
            {
                title: "Unreachable control plane",
                description: "Services of the control plane that the proxy cannot reach; their last responses stay in effect.",
                unit: UNITS.count,
                width: 6,
            },
            `sum(mesh_proxy_control_unreachable{${selected}})`,
            { warning: 1, critical: 1, bad: "high" },
        ),
        number(
            {
                title: "Requests",
                description: "Requests per second in both directions.",
                unit: UNITS.rate,
                width: 6,
            },
            requestRate(selected),
        ),
        course(
            {
                title: "Refused by the proxy",
                description: "Requests and connections per second that violate HTTP or exceed a limit of the proxy.",
                unit: UNITS.perSecond,
                width: 24,
            },
            [top(MOST_SERIES, refused), "{{protocol}} {{reason}}"],
        ),
    ];
}
