//! All workloads with their systems and goals.

use super::Kind::{
    AccessLog, Changes, FirstRequest, Idle, MetricsApi, Redirection, Retries, Scrape, Start, Tap,
    Targets, Telemetry, Tracing, Traffic, TwoWorkers,
};
use super::{BODIES, Goal, IdleConnection, Limit, Load, Service, Workload};
use crate::benchmark::metric::Metric::{
    self, AddedCpu, AddedCpuManyPods, AddedP50, Anonymous, ApiCpu, ApiResponse, Conntrack, CpuBoth,
    CpuIn, CpuOut, Logged, MemoryEndpoint, MemoryIn, MemoryOut, P50, P99, P999, Rate, Resident,
    ScrapeControl, ScrapeData, Series, Spans, Stalled, Tapped, TelemetryIn, TelemetryOut,
};
use crate::benchmark::metric::SystemUnderTest::{self, Direct, Envoy, Haproxy, Iptables, Plain};
use crate::benchmark::metric::Unit;

const ALL: &[SystemUnderTest] = &[Direct, Envoy, Haproxy];
const CPU_AND_RATE: &[Metric] = &[CpuOut, CpuIn, Rate];
const KIB: f64 = 1024.0;
const MIB: f64 = 1024.0 * KIB;

const fn at_most(limit: f64, sut: SystemUnderTest, metric: Metric) -> Goal {
    Goal {
        metric,
        limit: Limit::AtMost(limit, sut),
    }
}

const fn value(limit: f64, metric: Metric) -> Goal {
    Goal {
        metric,
        limit: Limit::Value(limit),
    }
}

/// Where client connections share one connection between the proxies, the server's proxy has almost
/// no state.
const SHARED: &[Goal] = &[at_most(0.4, Envoy, MemoryOut)];
const OWN: &[Goal] = &[
    at_most(0.4, Envoy, MemoryOut),
    at_most(0.4, Envoy, MemoryIn),
];

const fn idle(
    name: &'static str,
    title: &'static str,
    service: Service,
    held: IdleConnection,
    count: u32,
) -> Workload {
    Workload {
        name,
        title,
        kind: Idle(service, held, count),
        unit: Unit::Connection,
        suts: &[Envoy, Haproxy],
        shown: &[MemoryOut, MemoryIn],
        goals: match held {
            IdleConnection::Http1 | IdleConnection::Http2 => SHARED,
            IdleConnection::Tcp => OWN,
        },
    }
}

const BODIES_GOALS: &[Goal] = &[at_most(0.6, Envoy, CpuOut), at_most(0.6, Envoy, CpuIn)];

const fn bodies(name: &'static str, title: &'static str, size: usize) -> Workload {
    let load = Load::Bodies {
        connections: 64,
        size,
    };
    Workload {
        name,
        title,
        kind: Traffic(Service::Http1, load),
        unit: Unit::Request,
        suts: ALL,
        shown: CPU_AND_RATE,
        goals: BODIES_GOALS,
    }
}

pub(crate) const WORKLOADS: &[Workload] = &[
    Workload {
        name: "http1-64",
        title: "HTTP/1, 64 connections",
        kind: Traffic(Service::Http1, Load::Wrk { connections: 64 }),
        unit: Unit::Request,
        suts: ALL,
        shown: &[CpuOut, CpuIn, Rate, P50, P99],
        goals: &[
            at_most(0.55, Envoy, CpuOut),
            at_most(0.55, Envoy, CpuIn),
            at_most(1.1, Haproxy, CpuOut),
            at_most(1.1, Haproxy, CpuIn),
            Goal {
                metric: Rate,
                limit: Limit::AtLeast(1.5, Envoy),
            },
        ],
    },
    Workload {
        name: "http1-1",
        title: "HTTP/1, 1 connection",
        kind: Traffic(Service::Http1, Load::Wrk { connections: 1 }),
        unit: Unit::Request,
        suts: ALL,
        shown: &[CpuOut, CpuIn, P50, AddedP50, P99],
        goals: &[
            at_most(0.4, Envoy, CpuOut),
            at_most(0.4, Envoy, CpuIn),
            at_most(0.4, Envoy, AddedP50),
        ],
    },
    Workload {
        name: "http1-rate",
        title: "HTTP/1, 5,000 requests a second on 64 connections",
        kind: Traffic(Service::Http1, Load::FixedRate { rate: 5000 }),
        unit: Unit::Request,
        suts: ALL,
        shown: &[P50, P99, P999, CpuOut, CpuIn, Stalled],
        goals: &[at_most(0.6, Envoy, P99), at_most(0.6, Envoy, P999)],
    },
    bodies(
        "http1-4k",
        "HTTP/1, 64 connections, bodies of 4 KiB in both directions",
        BODIES[0],
    ),
    bodies(
        "http1-64k",
        "HTTP/1, 64 connections, bodies of 64 KiB in both directions",
        BODIES[1],
    ),
    Workload {
        name: "http2",
        title: "HTTP/2, 8 connections × 16 streams",
        kind: Traffic(Service::Http2, Load::H2load { grpc: false }),
        unit: Unit::Request,
        suts: ALL,
        shown: CPU_AND_RATE,
        goals: &[at_most(0.5, Envoy, CpuOut), at_most(0.5, Envoy, CpuIn)],
    },
    Workload {
        name: "grpc-unary",
        title: "gRPC unary, 8 connections × 16 streams",
        kind: Traffic(Service::Http2, Load::H2load { grpc: true }),
        unit: Unit::Request,
        suts: ALL,
        shown: CPU_AND_RATE,
        goals: &[at_most(0.5, Envoy, CpuOut), at_most(0.5, Envoy, CpuIn)],
    },
    Workload {
        name: "grpc-stream-64",
        title: "gRPC, 100 streams, messages of 64 B",
        kind: Traffic(Service::Grpc, Load::Streams { size: 64 }),
        unit: Unit::Message,
        suts: ALL,
        shown: CPU_AND_RATE,
        goals: &[at_most(0.6, Envoy, CpuOut), at_most(0.6, Envoy, CpuIn)],
    },
    Workload {
        name: "grpc-stream-16k",
        title: "gRPC, 100 streams, messages of 16 KiB",
        kind: Traffic(Service::Grpc, Load::Streams { size: 16 * 1024 }),
        unit: Unit::Message,
        suts: ALL,
        shown: CPU_AND_RATE,
        goals: &[at_most(0.6, Envoy, CpuOut), at_most(0.6, Envoy, CpuIn)],
    },
    Workload {
        name: "opaque-1",
        title: "Opaque TCP with mutual TLS, 1 connection",
        kind: Traffic(Service::Bulk, Load::Iperf3 { connections: 1 }),
        unit: Unit::Gigabyte,
        suts: ALL,
        shown: CPU_AND_RATE,
        goals: &[at_most(0.65, Envoy, CpuOut), at_most(0.65, Envoy, CpuIn)],
    },
    Workload {
        name: "opaque-4",
        title: "Opaque TCP with mutual TLS, 4 connections",
        kind: Traffic(Service::Bulk, Load::Iperf3 { connections: 4 }),
        unit: Unit::Gigabyte,
        suts: ALL,
        shown: CPU_AND_RATE,
        goals: &[at_most(0.65, Envoy, CpuOut), at_most(0.65, Envoy, CpuIn)],
    },
    Workload {
        name: "tcp",
        title: "TCP without TLS, 1 connection",
        kind: Traffic(Service::Plain, Load::Iperf3 { connections: 1 }),
        unit: Unit::Gigabyte,
        suts: ALL,
        shown: CPU_AND_RATE,
        goals: &[at_most(0.6, Haproxy, CpuOut), at_most(0.6, Haproxy, CpuIn)],
    },
    Workload {
        name: "connect",
        title: "A new connection with mutual TLS for each request, resumed",
        kind: Traffic(Service::Echo, Load::Connect { parallel: 1 }),
        unit: Unit::Connection,
        suts: ALL,
        shown: &[CpuOut, CpuIn, Rate, P50, P99],
        goals: &[at_most(0.6, Envoy, CpuOut), at_most(0.6, Envoy, CpuIn)],
    },
    Workload {
        name: "connect-full",
        title: "The same with a full handshake each",
        kind: Traffic(Service::EchoFullHandshake, Load::Connect { parallel: 1 }),
        unit: Unit::Connection,
        suts: ALL,
        shown: &[CpuOut, CpuIn, Rate, P50, P99],
        goals: &[],
    },
    Workload {
        name: "http1-64-two",
        title: "HTTP/1, 64 connections, proxies with two workers",
        kind: TwoWorkers(Service::Http1, Load::Wrk { connections: 64 }),
        unit: Unit::Request,
        suts: ALL,
        shown: &[CpuOut, CpuIn, Rate, P50, P99],
        goals: &[
            at_most(0.55, Envoy, CpuOut),
            at_most(0.55, Envoy, CpuIn),
            at_most(1.1, Haproxy, CpuOut),
            at_most(1.1, Haproxy, CpuIn),
        ],
    },
    idle(
        "idle-http1-1k",
        "1,000 idle connections, HTTP/1",
        Service::Http1,
        IdleConnection::Http1,
        1000,
    ),
    idle(
        "idle-http1-10k",
        "10,000 idle connections, HTTP/1",
        Service::Http1,
        IdleConnection::Http1,
        10_000,
    ),
    idle(
        "idle-http2-1k",
        "1,000 idle connections, HTTP/2",
        Service::Http2,
        IdleConnection::Http2,
        1000,
    ),
    idle(
        "idle-http2-10k",
        "10,000 idle connections, HTTP/2",
        Service::Http2,
        IdleConnection::Http2,
        10_000,
    ),
    idle(
        "idle-opaque-1k",
        "1,000 idle connections, opaque with mutual TLS",
        Service::Echo,
        IdleConnection::Tcp,
        1000,
    ),
    idle(
        "idle-opaque-10k",
        "10,000 idle connections, opaque with mutual TLS",
        Service::Echo,
        IdleConnection::Tcp,
        10_000,
    ),
    Workload {
        name: "targets",
        title: "1,000 targets of 1 and of 10 endpoints",
        kind: Targets,
        unit: Unit::Target,
        suts: &[],
        shown: &[MemoryOut, MemoryEndpoint, Resident, Anonymous],
        goals: &[
            value(50.0 * KIB, MemoryOut),
            value(KIB, MemoryEndpoint),
            value(12.0 * MIB, Resident),
            value(4.0 * MIB, Anonymous),
        ],
    },
    Workload {
        name: "changes",
        title: "1,000 endpoint changes a second during HTTP/1 at 5,000 requests a second",
        kind: Changes,
        unit: Unit::Request,
        suts: &[Plain],
        shown: &[P50, P99, Metric::Changes, Stalled],
        goals: &[at_most(1.05, Plain, P99)],
    },
    Workload {
        name: "start",
        title: "From exec to ready",
        kind: Start,
        unit: Unit::Request,
        suts: &[Envoy, Haproxy],
        shown: &[Metric::Start, Resident, Anonymous],
        goals: &[at_most(0.5, Envoy, Metric::Start)],
    },
    Workload {
        name: "first-request",
        title: "First request to a new target",
        kind: FirstRequest,
        unit: Unit::Request,
        suts: &[],
        shown: &[Metric::FirstRequest],
        goals: &[value(3e-3, Metric::FirstRequest)],
    },
    Workload {
        name: "redirection",
        title: "Redirection of a new connection",
        kind: Redirection,
        unit: Unit::Connection,
        suts: &[Direct, Iptables],
        shown: &[CpuBoth, AddedCpu, AddedCpuManyPods, Conntrack],
        goals: &[
            at_most(0.2, Iptables, AddedCpu),
            at_most(0.2, Iptables, AddedCpuManyPods),
            value(0.0, Conntrack),
        ],
    },
    Workload {
        name: "telemetry",
        title: "Telemetry at the defaults, HTTP/1, 64 connections",
        kind: Telemetry,
        unit: Unit::Request,
        suts: &[],
        shown: &[TelemetryOut, TelemetryIn, CpuOut, CpuIn],
        goals: &[value(0.05, TelemetryOut), value(0.05, TelemetryIn)],
    },
    Workload {
        name: "tracing",
        title: "Tracing of 1 % of the requests, HTTP/1, 64 connections",
        kind: Tracing,
        unit: Unit::Request,
        suts: &[Plain],
        shown: &[CpuOut, CpuIn, Rate, Spans],
        goals: &[at_most(1.02, Plain, CpuOut), at_most(1.02, Plain, CpuIn)],
    },
    Workload {
        name: "access-log",
        title: "Access log in JSON, HTTP/1, 64 connections",
        kind: AccessLog,
        unit: Unit::Request,
        suts: &[Plain],
        shown: &[CpuOut, CpuIn, Rate, Logged],
        // Only received requests are logged.
        goals: &[at_most(1.15, Plain, CpuIn)],
    },
    Workload {
        name: "retries",
        title: "A retry policy without failures, HTTP/1, 64 connections",
        kind: Retries,
        unit: Unit::Request,
        suts: &[Plain],
        shown: &[CpuOut, CpuIn, Rate],
        // The client's proxy has the policy.
        goals: &[at_most(1.05, Plain, CpuOut)],
    },
    Workload {
        name: "tap",
        title: "A tap of 100 events a second during HTTP/1 at 5,000 requests a second",
        kind: Tap,
        unit: Unit::Request,
        suts: &[Plain],
        shown: &[P50, P99, Tapped, Stalled],
        goals: &[at_most(1.05, Plain, P99)],
    },
    Workload {
        name: "scrape",
        title: "A scrape of 10,000 series",
        kind: Scrape,
        unit: Unit::Request,
        suts: &[],
        shown: &[Series, ScrapeControl, ScrapeData],
        goals: &[value(20e-3, ScrapeControl), value(10e-6, ScrapeData)],
    },
    Workload {
        name: "metrics-api",
        title: "A stat of 200 workloads from the series of 1,000 pods",
        kind: MetricsApi,
        unit: Unit::Request,
        suts: &[],
        shown: &[ApiCpu, ApiResponse],
        goals: &[value(0.2, ApiCpu)],
    },
];
