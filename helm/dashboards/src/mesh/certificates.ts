// Certificates of the mesh, and how many requests they secure.

import { type Board, instance, scrapeJob } from "../board.js";
import { course, number, UNITS } from "../panels.js";
import { all, increase, JOB, rate, securedShare, sum, top } from "../promql.js";
import { MOST_SERIES } from "../traffic.js";

const DAY = 24 * 3600;

export function certificates(): Board {
    const selected = all(JOB, 'instance=~"$instance"');
    return {
        uid: "mesh-certificates",
        title: "Mesh Certificates",
        description: "When the certificates of the mesh expire, whether they are renewed, and how much traffic they secure.",
        normal:
            "**Normal:** proxies renew at about 70 % of a certificate's life, a day by default. Issuer and trust anchors " +
            "need an operator (`meshctl check` has the steps); webhooks renew their own.",
        variables: [
            scrapeJob("controller_build_info", "proxy_build_info"),
            instance("controller_build_info", "proxy_build_info"),
        ],
        sections: [
            ["Expiry", expiry(selected)],
            ["Renewal", renewal(selected)],
            ["Mutual TLS", secured(selected)],
        ],
    };
}

function expiry(selected: string) {
    const left = (title: string, description: string, expression: string, warning: number, critical: number) =>
        number({ title, description, unit: UNITS.seconds, width: 6 }, expression, { warning, critical, bad: "low" });
    const expires = `control_identity_cert_expiration_timestamp_seconds{${selected}}`;
    return [
        left(
            "Trust anchors",
            "Time until the first trust anchor expires.",
            `min(mesh_trust_anchors_ttl_seconds{${selected}})`,
            60 * DAY,
            14 * DAY,
        ),
        left(
            "Issuer",
            "Time until the first certificate of the issuer's chain expires.",
            `min(issuer_cert_ttl_seconds{${selected}})`,
            30 * DAY,
            7 * DAY,
        ),
        left(
            "Webhooks and tap",
            "Time until the first serving certificate of a webhook or of the tap API expires.",
            `min(webhook_cert_ttl_seconds{${selected}})`,
            14 * DAY,
            3 * DAY,
        ),
        left("Proxies", "Time until the first certificate of a proxy expires.", `min(${expires}) - time()`, 7200, 1800),
        course(
            {
                title: "Serving certificates",
                description: "Time until the certificates of webhooks and of the tap API expire.",
                unit: UNITS.seconds,
                width: 12,
            },
            [`min by (component, instance) (webhook_cert_ttl_seconds{${selected}})`, "{{component}} {{instance}}"],
        ),
        course(
            {
                title: "Proxies that expire first",
                description: "Time until the certificates of the proxies expire that expire first.",
                unit: UNITS.seconds,
                width: 12,
            },
            [`bottomk(${MOST_SERIES}, min by (namespace, pod) (${expires}) - time())`, "{{namespace}}/{{pod}}"],
        ),
    ];
}

function renewal(selected: string) {
    const changes = (metric: string): string => sum(increase(metric, selected), ["result"]);
    const failures = all(selected, 'result="error"');
    return [
        course(
            {
                title: "Renewals of proxies",
                description: "Certificates per second that proxies requested, by result.",
                unit: UNITS.perSecond,
                width: 8,
            },
            [sum(rate("control_identity_cert_refreshes_total", selected), ["result"]), "{{result}}"],
        ),
        course(
            {
                title: "Proxies whose renewal fails",
                description: "Failed requests for a certificate per second, by pod.",
                unit: UNITS.perSecond,
                width: 8,
            },
            [
                top(MOST_SERIES, `${sum(rate("control_identity_cert_refreshes_total", failures), ["namespace", "pod"])} > 0`),
                "{{namespace}}/{{pod}}",
            ],
        ),
        course(
            {
                title: "Changes of issuer and anchors",
                description: "Changed files that were loaded or refused, and changed trust anchors that could not be sent to proxies, between two points.",
                unit: UNITS.count,
                width: 8,
            },
            [changes("identity_issuer_reloads_total"), "issuer {{result}}"],
            [changes("mesh_trust_bundle_failures_total"), "anchors not sent"],
        ),
    ];
}

function secured(selected: string) {
    const inbound = all(selected, 'direction="inbound"');
    const open = `tcp_open_connections{${all(inbound, 'peer="src"', 'tls!="true"')}}`;
    return [
        course(
            {
                title: "Requests over mutual TLS",
                description: `The share of requests over mutual TLS, of the ${MOST_SERIES} namespaces with the lowest.`,
                unit: UNITS.share,
                width: 12,
            },
            [`bottomk(${MOST_SERIES}, ${securedShare(inbound, ["namespace"])})`, "{{namespace}}"],
        ).max(1),
        course(
            {
                title: "Connections without mutual TLS",
                description: "Open connections of clients without mutual TLS, by reason.",
                unit: UNITS.count,
                width: 12,
            },
            [
                top(MOST_SERIES, sum(open, ["namespace", "no_tls_reason"])),
                "{{namespace}} {{no_tls_reason}}",
            ],
        ),
    ];
}
