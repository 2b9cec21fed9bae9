//! Configurations of environments.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::time::Duration;

use mesh_core::policy::inbound::DefaultPolicy;
use mesh_core::resilience;

use super::env::VariableError;
use super::*;

mod workload_api;

/// The required variables, as the injector sets them.
fn minimal() -> HashMap<String, String> {
    let anchors = crate::tls::tests::TestCa::new().pem;
    [
        ("IDENTITY_TRUST_ANCHORS", anchors.as_str()),
        (
            "IDENTITY_LOCAL_NAME",
            "web.shop.serviceaccount.identity.linkerd.cluster.local",
        ),
        (
            "IDENTITY_SVC_ADDR",
            "linkerd-identity-headless.linkerd.svc.cluster.local.:8080",
        ),
        (
            "IDENTITY_SVC_NAME",
            "linkerd-identity.linkerd.serviceaccount.identity.linkerd.cluster.local",
        ),
        (
            "IDENTITY_TOKEN_FILE",
            "/var/run/secrets/tokens/linkerd-identity-token",
        ),
        ("DESTINATION_SVC_ADDR", "localhost.:8086"),
        ("POLICY_SVC_ADDR", "127.0.0.1:8090"),
        ("POLICY_WORKLOAD", "{\"ns\":\"shop\",\"pod\":\"web\"}\n"),
    ]
    .map(|(name, value)| (format!("LINKERD2_PROXY_{name}"), value.to_owned()))
    .into()
}

fn read(changes: &[(&str, Option<&str>)]) -> Result<Config, Errors> {
    let mut variables = minimal();
    for (name, value) in changes {
        let is_full =
            name.starts_with("MESH_") || ["OTEL_RESOURCE_ATTRIBUTES", "HOSTNAME"].contains(name);
        let name = if is_full {
            (*name).to_owned()
        } else {
            format!("LINKERD2_PROXY_{name}")
        };
        match value {
            Some(value) => variables.insert(name, (*value).to_owned()),
            None => variables.remove(&name),
        };
    }
    Config::from_env(|name| variables.get(name).cloned())
}

/// A configuration whose control plane is at `addr`, in plaintext.
pub(crate) fn with_control_plane(addr: SocketAddr, changes: &[(&str, Option<&str>)]) -> Config {
    let addr = addr.to_string();
    let mut all = vec![
        ("IDENTITY_SVC_ADDR", Some(addr.as_str())),
        ("DESTINATION_SVC_ADDR", Some(&addr)),
        ("POLICY_SVC_ADDR", Some(&addr)),
        ("POLICY_WORKLOAD", Some("workload")),
        ("DESTINATION_CONTEXT", Some("context")),
        ("DESTINATION_PROFILE_NETWORKS", Some("10.0.0.0/8")),
        ("INBOUND_CONNECT_EXP_BACKOFF_MIN", Some("1ms")),
        ("INBOUND_CONNECT_EXP_BACKOFF_MAX", Some("10ms")),
    ];
    all.extend(changes);
    read(&all).unwrap()
}

/// The settings of tracing with a collector and these variables.
pub(crate) fn trace_config(changes: &[(&str, &str)]) -> TraceConfig {
    let mut all = vec![("TRACE_COLLECTOR_SVC_ADDR", Some("127.0.0.1:4317"))];
    all.extend(changes.iter().map(|(name, value)| (*name, Some(*value))));
    read(&all).unwrap().trace.unwrap()
}

/// The variables that are reported as invalid, without prefix.
fn invalid(changes: &[(&str, Option<&str>)]) -> Vec<String> {
    let errors = read(changes).unwrap_err();
    let short = |error: &VariableError| error.variable.replace("LINKERD2_PROXY_", "");
    errors.0.iter().map(short).collect()
}

#[test]
fn defaults_are_linkerds() {
    let config = read(&[]).unwrap();
    assert_eq!(
        config.outbound.listen,
        [parse::constant_addr("127.0.0.1:4140")]
    );
    assert_eq!(config.inbound.listen, parse::constant_addr("0.0.0.0:4143"));
    assert_eq!(config.admin.listen, parse::constant_addr("127.0.0.1:4191"));
    assert_eq!(
        config.inbound.default_policy,
        DefaultPolicy::AllUnauthenticated
    );
    assert_eq!(config.outbound.connect_timeout, Duration::from_secs(1));
    assert_eq!(config.inbound.connect_timeout, Duration::from_millis(300));
    assert_eq!(config.outbound.http_queue.failfast, Duration::from_secs(3));
    assert_eq!(config.discovery.outbound_idle, Duration::from_secs(5));
    assert_eq!(config.discovery.inbound_idle, Duration::from_secs(90));
    assert_eq!(config.shutdown_grace, Duration::from_secs(120));
    // Except for this one, which is 65,535.
    assert_eq!(config.inbound.http2_server.stream_window, 72 * 1024);
    assert_eq!(config.inbound.http2_server.connection_window, 1024 * 1024);
    assert!(config.outbound.informational_headers);
    assert!(!config.outbound.ingress);
    assert!(
        config
            .discovery
            .has_profile_suffix("web.shop.svc.cluster.local")
    );
    assert!(!config.discovery.has_profile_suffix("web.shop"));
    assert!(!config.admin.shutdown_endpoint);
    assert!(config.identity.trust_anchors_file.is_none());
    assert!(config.trace.is_none());
}

#[test]
fn queue_of_policy_raises_capacity_and_replaces_timeout() {
    let queue = read(&[
        ("OUTBOUND_HTTP_QUEUE_CAPACITY", Some("7")),
        ("OUTBOUND_HTTP_FAILFAST_TIMEOUT", Some("5s")),
    ])
    .unwrap()
    .outbound
    .http_queue;
    let read = |capacity, failfast_timeout| {
        let policy = resilience::Queue {
            capacity: NonZeroU32::new(capacity),
            failfast_timeout,
        };
        let queue = queue.for_policy(policy);
        (queue.capacity, queue.failfast.as_secs())
    };
    assert_eq!(read(0, None), (7, 5));
    assert_eq!(read(100, None), (100, 5));
    assert_eq!(read(0, Some(Duration::from_secs(3))), (7, 3));
    assert_eq!(read(1, Some(Duration::MAX)), (7, 3600));
}

#[test]
fn variables_of_injector_are_accepted() {
    let config = read(&[
        ("OUTBOUND_LISTEN_ADDR", Some("127.0.0.1:4140")),
        ("OUTBOUND_LISTEN_ADDRS", Some("127.0.0.1:4140,[::1]:4140")),
        ("INBOUND_LISTEN_ADDR", Some("[::]:4143")),
        ("ADMIN_LISTEN_ADDR", Some("[::]:4191")),
        ("INBOUND_ACCEPT_KEEPALIVE", Some("10000ms")),
        ("OUTBOUND_CONNECT_USER_TIMEOUT", Some("30s")),
        ("OUTBOUND_DETECT_TIMEOUT", Some("365d")),
        (
            "INBOUND_PORTS_DISABLE_PROTOCOL_DETECTION",
            Some("25,587,3306,4444,5432,6379,9300,11211"),
        ),
        ("INBOUND_SERVER_HTTP2_KEEP_ALIVE_INTERVAL", Some("10s")),
        ("INBOUND_SERVER_HTTP2_KEEP_ALIVE_TIMEOUT", Some("3s")),
        ("INBOUND_METRICS_AUTHORITY_LABELS", Some("")),
        ("DESTINATION_PROFILE_SUFFIXES", Some("svc.cluster.local.")),
        ("DESTINATION_PROFILE_NETWORKS", Some("10.0.0.0/8,fd00::/8")),
        (
            "POLICY_CLUSTER_NETWORKS",
            Some("10.0.0.0/8,100.64.0.0/10,fd00::/8"),
        ),
        ("INBOUND_DEFAULT_POLICY", Some("cluster-authenticated")),
        ("INBOUND_PORTS", Some("8080,9990-9992")),
        ("INBOUND_IPS", Some("10.0.0.7,fd00::7")),
        ("CONTROL_STREAM_INITIAL_TIMEOUT", Some("3s")),
        ("CONTROL_STREAM_IDLE_TIMEOUT", Some("5m")),
        ("CONTROL_STREAM_LIFETIME", Some("1h")),
        ("IDENTITY_DIR", Some("/var/run/linkerd/identity/end-entity")),
        ("CORES", Some("1")),
        ("SHUTDOWN_ENDPOINT_ENABLED", Some("false")),
        ("FROM_ANOTHER_VERSION", Some("whatever")),
    ])
    .unwrap();
    assert_eq!(config.outbound.listen.len(), 2);
    assert_eq!(
        config.inbound.accept.keepalive,
        Some(Duration::from_secs(10))
    );
    assert_eq!(
        config.outbound.connect.user_timeout,
        Some(Duration::from_secs(30))
    );
    assert!(config.inbound.opaque_ports.contains(3306));
    assert!(config.inbound.http2_server.keep_alive.is_some());
    assert!(config.outbound.http2_server.keep_alive.is_none());
    assert_eq!(config.inbound.ips.len(), 2);
    assert!(config.inbound.ports.contains(9991));
    assert_eq!(config.discovery.limits.idle, Some(Duration::from_secs(300)));
}

#[test]
fn all_invalid_variables_are_reported_together() {
    let changes = [
        ("ADMIN_LISTEN_ADDR", Some("4191")),
        ("OUTBOUND_CONNECT_TIMEOUT", Some("1")),
        ("POLICY_WORKLOAD", None),
        ("IDENTITY_TRUST_ANCHORS", Some("")),
        ("INBOUND_IPS", Some("10.0.0.0/8")),
    ];
    let mut names = invalid(&changes);
    names.sort();
    let mut expect: Vec<_> = changes.iter().map(|(name, _)| (*name).to_owned()).collect();
    expect.sort();
    assert_eq!(names, expect);
    let text = read(&changes).unwrap_err().to_string();
    assert!(
        text.contains("\n  LINKERD2_PROXY_POLICY_WORKLOAD: is required but not set"),
        "{text}"
    );
}

#[test]
fn invalid_values_are_rejected() {
    for (name, value) in [
        ("OUTBOUND_LISTEN_ADDRS", ""),
        ("OUTBOUND_LISTEN_ADDRS", "127.0.0.1:4140,127.0.0.2:4140"),
        ("OUTBOUND_LISTEN_ADDRS", "127.0.0.1:1,[::1]:1,[::1]:2"),
        ("INBOUND_CONNECT_TIMEOUT", "1.5s"),
        ("INBOUND_PORTS", "80-"),
        ("INBOUND_DEFAULT_POLICY", "allow"),
        ("SHUTDOWN_ENDPOINT_ENABLED", "yes"),
        ("INBOUND_MAX_IN_FLIGHT", "-1"),
        ("INBOUND_METRICS_AUTHORITY_LABELS", "safe"),
        ("DESTINATION_PROFILE_NETWORKS", "10.0.0.1"),
        ("DESTINATION_SVC_ADDR", "8086"),
        ("DESTINATION_SVC_ADDR", "name:0"),
        ("IDENTITY_SVC_NAME", "not a name"),
        ("IDENTITY_LOCAL_NAME", "spiffe://td/a"),
        ("IDENTITY_DISABLED", "1"),
        ("IDENTITY_MIN_REFRESH", "2d"),
        ("OUTBOUND_CONNECT_EXP_BACKOFF_MIN", "1s"),
        ("INBOUND_DEFAULT_POLICY", "cluster-unauthenticated"),
        ("INBOUND_SERVER_HTTP2_MAX_FRAME_SIZE", "1000"),
        ("OUTBOUND_SERVER_HTTP2_MAX_CONCURRENT_STREAMS", "0"),
        ("INBOUND_SERVER_HTTP2_MAX_HEADER_LIST_SIZE", "100"),
        ("CONTROL_STREAM_LIFETIME", "x"),
    ] {
        let names = invalid(&[(name, Some(value))]);
        assert_eq!(names, [name], "{name}={value}");
    }
}

#[test]
fn mesh_proxy_variables_have_no_linkerd_prefix() {
    let read = |value: &str| {
        let mut variables = minimal();
        variables.insert("MESH_PROXY_REDIRECT_CHECK".to_owned(), value.to_owned());
        Config::from_env(|name| variables.get(name).cloned())
    };
    let check_addr = read("192.0.2.1:20001").unwrap().outbound.redirect_check;
    assert_eq!(check_addr, Some(parse::constant_addr("192.0.2.1:20001")));
    let error = read("192.0.2.1").unwrap_err().to_string();
    assert!(error.contains("\n  MESH_PROXY_REDIRECT_CHECK: "), "{error}");
}

/// The resolver would panic.
#[test]
fn maximum_ttl_below_the_minimum_is_rejected() {
    let ttl = |max| [("DNS_MIN_TTL", Some("10s")), ("DNS_MAX_TTL", Some(max))];
    assert_eq!(invalid(&ttl("9s")), ["DNS_MAX_TTL"]);
    read(&ttl("10s")).unwrap();
}

#[test]
fn response_durations_are_off_unless_enabled() {
    let read = |value: Option<&str>| {
        let mut variables = minimal();
        let variable = value.map(|value| ("MESH_PROXY_RESPONSE_DURATIONS".into(), value.into()));
        variables.extend(variable);
        let config = Config::from_env(|name| variables.get(name).cloned());
        config.map(|config| config.admin.response_durations)
    };
    assert_eq!(read(None), Ok(false));
    assert_eq!(read(Some("true")), Ok(true));
    let error = read(Some("1")).unwrap_err().to_string();
    assert!(
        error.contains("\n  MESH_PROXY_RESPONSE_DURATIONS: "),
        "{error}"
    );
}

#[test]
fn http_limits_are_checked_against_ranges() {
    let read = |name: &str, value: &str| {
        let mut variables = minimal();
        variables.insert(name.to_owned(), value.to_owned());
        Config::from_env(|name| variables.get(name).cloned())
    };
    let unset = read("MESH_PROXY_UNKNOWN", "").unwrap();
    assert_eq!(unset.http, HttpLimits::DEFAULT);
    for (name, valid, invalid) in [
        ("MESH_PROXY_HTTP_MAX_FIELDS", "200", "19"),
        ("MESH_PROXY_HTTP_HEAD_TIMEOUT", "1s", "999ms"),
        ("MESH_PROXY_HTTP_BODY_TIMEOUT", "0", "999ms"),
        ("MESH_PROXY_HTTP_IDLE_TIMEOUT", "0", "1"),
        ("MESH_PROXY_HTTP1_MAX_HEAD_BYTES", "8192", "8191"),
        ("MESH_PROXY_HTTP1_MAX_CHUNK_EXTENSION_BYTES", "0", "-1"),
        ("MESH_PROXY_HTTP1_MAX_TRAILER_BYTES", "1024", "99999999"),
        ("MESH_PROXY_HTTP1_MAX_DRAINED_BYTES", "0", "1k"),
        ("MESH_PROXY_HTTP2_MAX_IDLE_FRAMES", "100", "99"),
        ("MESH_PROXY_HTTP2_MAX_RESETS", "1000000", "1000001"),
        ("MESH_PROXY_HTTP2_MAX_MISTAKES", "100", "0"),
        ("MESH_PROXY_HALF_CLOSED_IDLE_TIMEOUT", "1m", "999ms"),
        ("MESH_PROXY_HALF_CLOSED_IDLE_TIMEOUT", "8760h", "8761h"),
        ("MESH_PROXY_MAX_MEMORY", "0", "8388607"),
        ("MESH_PROXY_MAX_REPLAY_BYTES", "0", "1073741825"),
        ("MESH_PROXY_MAX_MIRRORS", "0", "16385"),
        ("MESH_PROXY_INBOUND_MAX_CONNECTIONS", "1", "0"),
        ("MESH_PROXY_OUTBOUND_MAX_CONNECTIONS", "1000", "many"),
    ] {
        let config = read(name, valid).unwrap();
        let is_default = config.http == HttpLimits::DEFAULT
            && config.half_closed_idle == Duration::from_secs(3600)
            && config.memory == MemoryLimit::Container
            && config.outbound.max_replay_bytes == 32 << 20
            && config.outbound.max_mirrors == 512
            && config.inbound.max_connections.is_none()
            && config.outbound.max_connections.is_none();
        assert!(!is_default, "{name} is read");
        let error = read(name, invalid).unwrap_err().to_string();
        assert!(error.contains(&format!("\n  {name}: ")), "{error}");
    }
}

#[test]
fn related_variables_are_checked_together() {
    let backoff = |min, max| {
        read(&[
            ("INBOUND_CONNECT_EXP_BACKOFF_MIN", Some(min)),
            ("INBOUND_CONNECT_EXP_BACKOFF_MAX", Some(max)),
        ])
        .map(|config| config.inbound.connect_backoff.jitter)
    };
    assert_eq!(backoff("1s", "2s").unwrap(), 0.0, "jitter is not inherited");
    assert!(backoff("2s", "1s").is_err());

    let limits = invalid(&[
        ("CONTROL_STREAM_INITIAL_TIMEOUT", Some("10m")),
        ("CONTROL_STREAM_IDLE_TIMEOUT", Some("5m")),
    ]);
    assert_eq!(limits, ["CONTROL_STREAM_INITIAL_TIMEOUT"]);

    let windows = read(&[(
        "INBOUND_SERVER_HTTP2_INITIAL_STREAM_WINDOW_SIZE",
        Some("1048576"),
    )]);
    let windows = windows.unwrap().inbound.http2_server;
    assert_eq!(
        windows.stream_window, DEFAULT_STREAM_WINDOW,
        "both variables are required"
    );
}

#[test]
fn control_plane_services_in_pod_need_no_identity() {
    let config = read(&[
        (
            "DESTINATION_SVC_NAME",
            Some("linkerd-destination.linkerd.example"),
        ),
        ("POLICY_SVC_ADDR", Some("[::1]:8090")),
    ])
    .unwrap();
    assert_eq!(config.discovery.destination.identity, None);
    assert!(config.discovery.policy.is_local());
    assert_eq!(config.discovery.policy.authority(), "[::1]:8090");
    assert_eq!(
        config.identity.source.service().unwrap().authority(),
        "linkerd-identity-headless.linkerd.svc.cluster.local.:8080"
    );
    let missing = invalid(&[(
        "DESTINATION_SVC_ADDR",
        Some("linkerd-dst.linkerd.svc.:8086"),
    )]);
    assert_eq!(missing, ["DESTINATION_SVC_NAME"]);
}

#[test]
fn collector_outside_the_pod_needs_an_identity() {
    let addr = ("TRACE_COLLECTOR_SVC_ADDR", Some("collector.tracing:4317"));
    let name = (
        "TRACE_COLLECTOR_SVC_NAME",
        Some("collector.tracing.serviceaccount.identity.linkerd.cluster.local"),
    );
    assert_eq!(invalid(&[addr]), ["TRACE_COLLECTOR_SVC_NAME"]);
    let config = read(&[addr, name, ("TRACE_PROTOCOL", Some("opentelemetry"))]).unwrap();
    let collector = config.trace.unwrap().collector;
    assert_eq!(collector.authority(), "collector.tracing:4317");
    let id = collector.identity.unwrap();
    assert_eq!(Some(id.as_str()), name.1);
    for (name, value) in [
        ("TRACE_COLLECTOR_SVC_ADDR", ""),
        ("TRACE_COLLECTOR_SVC_NAME", "not a name"),
        ("TRACE_PROTOCOL", "opencensus"),
        ("OTEL_RESOURCE_ATTRIBUTES", "service.name"),
    ] {
        let with = [addr, (name, Some(value))];
        assert!(invalid(&with).contains(&name.to_owned()), "{name}={value}");
    }
    // Without a collector they have no effect.
    assert!(read(&[("TRACE_PROTOCOL", Some("opencensus"))]).is_ok());
}

#[test]
fn data_threads_follow_core_settings() {
    let check = |changes: &[(&str, Option<&str>)], available: usize, expect: usize| {
        let workers = read(changes).unwrap().workers;
        assert_eq!(
            workers.count(available),
            expect,
            "{changes:?} of {available}"
        );
    };
    check(&[], 8, 1);
    check(&[("CORES", Some("2"))], 8, 2);
    check(&[("CORES", Some("2")), ("CORES_MIN", Some("3"))], 8, 3);
    check(&[("CORES_MAX", Some("4"))], 8, 4);
    check(&[("CORES_MAX", Some("4"))], 2, 2);
    check(&[("CORES_MAX_RATIO", Some("0.3"))], 8, 2);
    check(
        &[("CORES_MAX_RATIO", Some("0.1")), ("CORES_MIN", Some("2"))],
        8,
        2,
    );
    // Invalid core settings are only logged.
    check(&[("CORES", Some("0")), ("CORES_MAX", Some("many"))], 8, 1);
}

#[test]
fn ingress_mode_sends_no_informational_headers_unless_configured() {
    let outbound = |disabled: Option<&str>| {
        let changes = [
            ("INGRESS_MODE", Some("true")),
            ("OUTBOUND_DISABLE_INFORMATIONAL_HEADERS", disabled),
        ];
        let config = with_control_plane(([127, 0, 0, 1], 1).into(), &changes);
        assert!(config.outbound.ingress);
        config.outbound.informational_headers
    };
    assert!(!outbound(None));
    assert!(outbound(Some("false")));
}

#[test]
fn profile_suffixes_match_whole_labels() {
    let has = |suffixes: &str, host: &str| {
        let changes = [("DESTINATION_PROFILE_SUFFIXES", Some(suffixes))];
        let config = with_control_plane(([127, 0, 0, 1], 1).into(), &changes);
        config.discovery.has_profile_suffix(host)
    };
    assert!(has("a.test., Svc.Local", "web.svc.local"));
    assert!(has("svc.local.", "svc.local"));
    assert!(!has("svc.local.", "othersvc.local"));
    assert!(!has("", "svc.local"));
    assert!(has(".", "anything.test"));
}

#[test]
fn reference_documents_exactly_the_variables_read() {
    let read = std::cell::RefCell::new(std::collections::BTreeSet::new());
    let full = minimal();
    let record = |name: &str| {
        read.borrow_mut()
            .insert(name.replace("LINKERD2_PROXY_", ""));
        full.get(name).cloned()
    };
    Config::from_env(record).unwrap();
    // Read only if other variables are set, or by `main`.
    let more = [
        "HOSTNAME",
        "IDENTITY_SERVER_ID",
        "LINKERD2_PROXY_IDENTITY_SPIRE_EXP_BACKOFF_JITTER",
        "LINKERD2_PROXY_IDENTITY_SPIRE_EXP_BACKOFF_MAX",
        "LINKERD2_PROXY_IDENTITY_SPIRE_EXP_BACKOFF_MIN",
        "LOG",
        "LOG_FORMAT",
        "OTEL_RESOURCE_ATTRIBUTES",
        "TRACE_ATTRIBUTES_PATH",
        "TRACE_COLLECTOR_SVC_NAME",
        "TRACE_EXTRA_ATTRIBUTES",
        "TRACE_PROTOCOL",
        "TRACE_SERVICE_NAME",
    ]
    .map(str::to_owned);
    let mut read = read.into_inner();
    read.extend(more);

    let reference = include_str!("../../../docs/reference/proxy-environment.md");
    let listed: std::collections::BTreeSet<_> = reference
        .lines()
        .filter_map(|line| line.strip_prefix("| `"))
        .filter_map(|row| row.split('|').next())
        .flat_map(|cell| cell.split('`'))
        .filter(|name| name.starts_with(|c: char| c.is_ascii_uppercase()))
        .map(str::to_owned)
        .collect();
    let unlisted: Vec<_> = read.difference(&listed).collect();
    let unread: Vec<_> = listed.difference(&read).collect();
    assert!(
        unlisted.is_empty() && unread.is_empty(),
        "not listed: {unlisted:?}, not read: {unread:?}"
    );
}
