//! The text of a policy message. It contains every field, except fields that have the same value in
//! all messages. Those values are checked instead.

use std::fmt::Write as _;

use mesh_api::proto::outbound::proxy_protocol::Kind;
use mesh_api::proto::outbound::{
    self as wire, Backend, FailureAccrual, OutboundPolicy, grpc_route, http_route, opaque_route,
    tls_route,
};
use mesh_api::proto::{http_route as http_types, meta};
use mesh_core::meta::{Meta, Resource};
use mesh_core::policy::outbound::{
    BackendTarget, Distribution, OutboundPolicy as OutboundPolicyRead, OutboundProtocol,
    OutboundRule,
};
use mesh_core::route::Route;
use mesh_core::route::filter::{Filter, PathModifier, Ratio, RequestKind};

/// Returns a duration as milliseconds; a macro, because the type of messages has no name here.
macro_rules! millis {
    ($duration:expr) => {{
        let duration = $duration;
        duration.seconds * 1000 + i64::from(duration.nanos) / 1_000_000
    }};
}

/// Returns the text of a distribution. Each kind of route has its own message.
macro_rules! distribution {
    ($module:ident, $distribution:expr, $filter:expr) => {{
        use $module::distribution::Kind;
        let backend = |backend: &$module::RouteBackend| {
            let filters: String = backend.filters.iter().map($filter).collect();
            backend_text(backend.backend.as_ref().unwrap()) + &filters
        };
        match $distribution.as_ref().unwrap().kind.as_ref().unwrap() {
            Kind::Empty(_) => "nowhere".to_owned(),
            Kind::FirstAvailable(list) => {
                let backends: Vec<_> = list.backends.iter().map(backend).collect();
                backends.join(" else ")
            }
            Kind::RandomAvailable(list) => {
                let weighted = |entry: &$module::WeightedRouteBackend| {
                    let text = backend(entry.backend.as_ref().unwrap());
                    format!("{}x {text}", entry.weight)
                };
                list.backends
                    .iter()
                    .map(weighted)
                    .collect::<Vec<_>>()
                    .join(" + ")
            }
        }
    }};
}

/// Writes the routes of HTTP or gRPC.
macro_rules! request_routes {
    ($text:expr, $module:ident, $list:expr, $name:literal, $match:expr, $filter:expr, $conditions:expr) => {{
        if let Some(accrual) = &$list.failure_accrual {
            writeln!($text, "{} accrual {}", $name, accrual_text(accrual)).unwrap();
        }
        for route in &$list.routes {
            let hosts: String = route.hosts.iter().map(host).collect();
            writeln!($text, "{} {}{hosts}", $name, meta_text(&route.metadata)).unwrap();
            for rule in &route.rules {
                let matches: Vec<String> = rule.matches.iter().map($match).collect();
                let filters: String = rule.filters.iter().map($filter).collect();
                let timeouts = rule.timeouts.as_ref().unwrap();
                let mut settings = String::new();
                for (name, timeout) in [
                    ("request", &timeouts.request),
                    ("response", &timeouts.response),
                    ("idle", &timeouts.idle),
                ] {
                    if let Some(timeout) = timeout {
                        write!(settings, " {name}={}ms", millis!(timeout)).unwrap();
                    }
                }
                #[expect(deprecated, reason = "older proxies read only this field")]
                let deprecated = &rule.request_timeout;
                assert_eq!(*deprecated, timeouts.request);
                if let Some(retry) = &rule.retry {
                    assert_eq!(retry.max_request_bytes, 65_536);
                    assert_eq!(backoff(&retry.backoff), "25ms..250ms*1");
                    write!(settings, " retry={}", retry.max_retries).unwrap();
                    settings += &$conditions(retry.conditions.as_ref().unwrap());
                    if let Some(timeout) = &retry.timeout {
                        write!(settings, " try={}ms", millis!(timeout)).unwrap();
                    }
                }
                if rule.allow_l5d_request_headers {
                    settings += " l5d";
                }
                let to = distribution!($module, rule.backends, $filter);
                let matches = matches.join(" | ");
                writeln!($text, "  [{matches}]{filters}{settings} -> {to}").unwrap();
            }
        }
    }};
}

/// Writes the routes of connections.
macro_rules! connection_routes {
    ($text:expr, $module:ident, $list:expr, $name:literal, $snis:expr) => {{
        for route in &$list.routes {
            let [rule] = &*route.rules else {
                panic!("a proxy rejects {route:?}");
            };
            let filter = |filter: &$module::Filter| match filter.kind.as_ref().unwrap() {
                $module::filter::Kind::Invalid(invalid) => format!(" invalid({})", invalid.message),
                $module::filter::Kind::Forbidden(_) => " forbidden".to_owned(),
            };
            let filters: String = rule.filters.iter().map(filter).collect();
            let snis: String = $snis(route);
            let to = distribution!($module, rule.backends, filter);
            let meta = meta_text(&route.metadata);
            writeln!($text, "{} {meta}{snis}{filters} -> {to}", $name).unwrap();
        }
    }};
}

pub(super) fn text(policy: &OutboundPolicy) -> String {
    let mut text = meta_text(&policy.metadata);
    let no_snis = |_: &wire::OpaqueRoute| String::new();
    match policy.protocol.as_ref().unwrap().kind.as_ref().unwrap() {
        Kind::Detect(detect) => {
            let timeout = millis!(detect.timeout.as_ref().unwrap());
            writeln!(text, " detect {timeout}ms").unwrap();
            connection_routes!(
                text,
                opaque_route,
                detect.opaque.as_ref().unwrap(),
                "opaque",
                no_snis
            );
            let (http1, http2) = (
                detect.http1.as_ref().unwrap(),
                detect.http2.as_ref().unwrap(),
            );
            assert_eq!(http1.routes, http2.routes);
            assert_eq!(http1.failure_accrual, http2.failure_accrual);
            request_routes!(
                text,
                http_route,
                http1,
                "http",
                http_match,
                http_filter,
                statuses
            );
        }
        Kind::Http1(http) => {
            text += " http1\n";
            request_routes!(
                text,
                http_route,
                http,
                "http",
                http_match,
                http_filter,
                statuses
            );
        }
        Kind::Http2(http) => {
            text += " http2\n";
            request_routes!(
                text,
                http_route,
                http,
                "http",
                http_match,
                http_filter,
                statuses
            );
        }
        Kind::Grpc(grpc) => {
            text += " grpc\n";
            request_routes!(
                text,
                grpc_route,
                grpc,
                "grpc",
                grpc_match,
                grpc_filter,
                codes
            );
        }
        Kind::Opaque(opaque) => {
            text += " opaque\n";
            connection_routes!(text, opaque_route, opaque, "opaque", no_snis);
        }
        Kind::Tls(tls) => {
            text += " tls\n";
            connection_routes!(text, tls_route, tls, "tls", |route: &wire::TlsRoute| {
                route.snis.iter().map(sni).collect::<String>()
            });
        }
    }
    text
}

/// Returns a line for each rule and each backend whose filters are in the extension of the message
/// that was decoded to `policy`.
pub(super) fn extension_text(policy: &OutboundPolicyRead) -> String {
    fn lines<M, T>(routes: &[Route<M, OutboundRule<T>>], requests: RequestKind) -> String {
        let mut text = String::new();
        let mut line = |place: String, filters: &[Filter]| {
            let is_extended = |filter: &Filter| filter.type_beyond_linkerd(requests).is_some();
            if filters.iter().any(is_extended) {
                let filters: Vec<String> = filters.iter().map(extended_filter).collect();
                writeln!(text, "  extended {place} {}", filters.join(" ")).unwrap();
            }
        };
        for (route_at, route) in routes.iter().enumerate() {
            for (rule_at, rule) in route.rules.iter().enumerate() {
                line(format!("{route_at}.{rule_at}"), &rule.action.filters);
                let backends: Vec<_> = match &rule.action.backends {
                    Distribution::Empty => Vec::new(),
                    Distribution::FirstAvailable(backends) => backends.iter().collect(),
                    Distribution::RandomAvailable(backends) => {
                        backends.iter().map(|(backend, _)| backend).collect()
                    }
                };
                for (at, backend) in backends.iter().enumerate() {
                    line(format!("{route_at}.{rule_at}.{at}"), &backend.filters);
                }
            }
        }
        text
    }
    match &policy.protocol {
        OutboundProtocol::Detect { http1, http2, .. } => {
            assert_eq!(http1.routes, http2.routes);
            lines(&http1.routes, RequestKind::Http)
        }
        OutboundProtocol::Http1(routes) | OutboundProtocol::Http2(routes) => {
            lines(&routes.routes, RequestKind::Http)
        }
        OutboundProtocol::Grpc(routes) => lines(&routes.routes, RequestKind::Grpc),
        OutboundProtocol::Opaque(_) | OutboundProtocol::Tls(_) => String::new(),
    }
}

fn extended_filter(filter: &Filter) -> String {
    match filter {
        Filter::UrlRewrite(rewrite) => {
            let host = rewrite.host.as_deref().unwrap_or_default();
            let path = match &rewrite.path {
                Some(PathModifier::Full(path)) => format!(" ={path}"),
                Some(PathModifier::Prefix(path)) => format!(" *{path}"),
                None => String::new(),
            };
            format!("rewrite({host}{path})")
        }
        Filter::RequestMirror(mirror) => {
            let BackendTarget::Balance { authority, .. } = &mirror.backend.target else {
                panic!("{mirror:?}");
            };
            let Meta::Resource(meta) = &mirror.backend.meta else {
                panic!("{mirror:?}");
            };
            let Resource {
                name, namespace, ..
            } = meta;
            let port = meta.port.unwrap();
            assert_eq!(
                **authority,
                format!("{name}.{namespace}.svc.cluster.local:{port}")
            );
            let Ratio {
                numerator,
                denominator,
            } = mirror.ratio;
            format!("mirror({authority} {numerator}/{denominator})")
        }
        Filter::Cors(cors) => {
            let settings = cors.settings();
            let lists = [
                &settings.allow_origins,
                &settings.allow_methods,
                &settings.allow_headers,
                &settings.expose_headers,
            ];
            let lists = lists.map(|list| list.join(","));
            let credentials = if settings.allow_credentials {
                " credentials"
            } else {
                ""
            };
            format!(
                "cors({} {}s{credentials})",
                lists.join(" "),
                settings.max_age
            )
        }
        Filter::Delay { duration, ratio } => {
            let (numerator, denominator) = (ratio.numerator, ratio.denominator);
            format!("delay({duration:?} {numerator}/{denominator})")
        }
        Filter::RequestHeaders(_) => "request".to_owned(),
        Filter::ResponseHeaders(_) => "response".to_owned(),
        other => panic!("{other:?}"),
    }
}

fn meta_text(meta: &Option<meta::Metadata>) -> String {
    match meta.as_ref().unwrap().kind.as_ref().unwrap() {
        meta::metadata::Kind::Default(name) => format!("default/{name}"),
        meta::metadata::Kind::Resource(resource) => {
            assert_eq!(resource.section, "");
            let group = match &*resource.group {
                "gateway.networking.k8s.io" => "gateway",
                "policy.linkerd.io" => "policy",
                other => other,
            };
            let port = match resource.port {
                0 => String::new(),
                port => format!(":{port}"),
            };
            let meta::Resource {
                kind,
                namespace,
                name,
                ..
            } = resource;
            format!("{group}/{kind} {namespace}/{name}{port}")
        }
    }
}

/// The text of a balancer for the Service of its metadata is only the metadata.
fn backend_text(backend: &Backend) -> String {
    use wire::backend::{Kind, balance_p2c::Load, endpoint_discovery};
    let queue = backend.queue.as_ref().unwrap();
    assert_eq!(queue.capacity, 100);
    assert_eq!(millis!(queue.failfast_timeout.as_ref().unwrap()), 3000);
    let meta = meta_text(&backend.metadata);
    match &backend.kind {
        None => format!("{meta} none"),
        Some(Kind::Forward(addr)) => {
            assert_eq!(addr.weight, 1);
            assert!(addr.tls_identity.is_none() && addr.protocol_hint.is_none());
            let addr = addr.addr.unwrap();
            let addr = std::net::SocketAddr::try_from(addr).unwrap();
            format!("{meta} forward {addr}")
        }
        Some(Kind::Balancer(balancer)) => {
            let discovery = balancer.discovery.as_ref().unwrap();
            let endpoint_discovery::Kind::Dst(get) = discovery.kind.as_ref().unwrap();
            let (service, port) = meta.rsplit_once(':').unwrap();
            let (namespace, name) = service
                .strip_prefix("core/Service ")
                .and_then(|service| service.split_once('/'))
                .unwrap();
            assert_eq!(
                get.path,
                format!("{name}.{namespace}.svc.cluster.local:{port}")
            );
            match balancer.load.as_ref().unwrap() {
                Load::PeakEwma(ewma) => {
                    assert_eq!(millis!(ewma.default_rtt.as_ref().unwrap()), 30);
                    assert_eq!(millis!(ewma.decay.as_ref().unwrap()), 10_000);
                    meta
                }
                Load::PenaltyPeakEwma(ewma) => {
                    assert_eq!(millis!(ewma.default_rtt.as_ref().unwrap()), 30);
                    assert_eq!(millis!(ewma.decay.as_ref().unwrap()), 10_000);
                    assert_eq!(millis!(ewma.penalty_decay.as_ref().unwrap()), 10_000);
                    format!(
                        "{meta} penalty={}ms max={}ms",
                        millis!(ewma.penalty.as_ref().unwrap()),
                        millis!(ewma.max_retry_after.as_ref().unwrap())
                    )
                }
            }
        }
    }
}

fn accrual_text(accrual: &FailureAccrual) -> String {
    use wire::failure_accrual::Kind;
    assert_eq!(accrual.ejection, None);
    match accrual.kind.as_ref().unwrap() {
        Kind::ConsecutiveFailures(policy) => format!(
            "consecutive {} backoff {}",
            policy.max_failures,
            backoff(&policy.backoff)
        ),
        Kind::Unified(policy) => format!(
            "unified {} in {}ms of {} or consecutive {} backoff {}",
            policy.success_rate_threshold,
            millis!(policy.decay.as_ref().unwrap()),
            policy.min_requests,
            policy.max_consecutive_failures,
            backoff(&policy.backoff)
        ),
    }
}

fn backoff(backoff: &Option<wire::ExponentialBackoff>) -> String {
    let backoff = backoff.as_ref().unwrap();
    let hint = if backoff.respect_retry_after_hint {
        " retry-after"
    } else {
        ""
    };
    format!(
        "{}ms..{}ms*{}{hint}",
        millis!(backoff.min_backoff.as_ref().unwrap()),
        millis!(backoff.max_backoff.as_ref().unwrap()),
        backoff.jitter_ratio
    )
}

fn host(host: &http_types::HostMatch) -> String {
    match host.r#match.as_ref().unwrap() {
        http_types::host_match::Match::Exact(name) => format!(" {name}"),
        http_types::host_match::Match::Suffix(suffix) => {
            format!(" ^{}", suffix.reverse_labels.join("."))
        }
    }
}

fn sni(sni: &mesh_api::proto::tls_route::SniMatch) -> String {
    use mesh_api::proto::tls_route::sni_match::Match;
    match sni.r#match.as_ref().unwrap() {
        Match::Exact(name) => format!(" {name}"),
        Match::Suffix(suffix) => format!(" ^{}", suffix.reverse_labels.join(".")),
    }
}

fn http_match(entry: &http_types::HttpRouteMatch) -> String {
    use http_types::{path_match, query_param_match};
    let path = match entry.path.as_ref().and_then(|path| path.kind.as_ref()) {
        None => String::new(),
        Some(path_match::Kind::Exact(path)) => path.clone(),
        Some(path_match::Kind::Prefix(path)) => format!("{path}*"),
        Some(path_match::Kind::Regex(path)) => format!("~{path}"),
    };
    let query = entry.query_params.iter().map(|query| {
        let value = match query.value.as_ref().unwrap() {
            query_param_match::Value::Exact(value) => format!("={value}"),
            query_param_match::Value::Regex(value) => format!("~{value}"),
        };
        format!(" ?{}{value}", query.name)
    });
    let method = entry.method.as_ref().map(|method| {
        use mesh_api::proto::http_types::http_method::{Registered, Type};
        match method.r#type.as_ref().unwrap() {
            Type::Registered(method) => {
                let method = Registered::try_from(*method).unwrap();
                format!(" {}", method.as_str_name())
            }
            Type::Unregistered(method) => format!(" {method}"),
        }
    });
    path + &headers(&entry.headers) + &query.collect::<String>() + &method.unwrap_or_default()
}

fn headers(headers: &[http_types::HeaderMatch]) -> String {
    use http_types::header_match::Value;
    let header = |header: &http_types::HeaderMatch| {
        let value = match header.value.as_ref().unwrap() {
            Value::Exact(value) => format!("={}", String::from_utf8_lossy(value)),
            Value::Regex(value) => format!("~{value}"),
        };
        format!(" {}{value}", header.name)
    };
    headers.iter().map(header).collect()
}

fn grpc_match(entry: &mesh_api::proto::grpc_route::GrpcRouteMatch) -> String {
    let rpc = entry
        .rpc
        .as_ref()
        .map(|rpc| format!("{}/{}", rpc.service, rpc.method));
    rpc.unwrap_or_default() + &headers(&entry.headers)
}

fn http_filter(filter: &http_route::Filter) -> String {
    use http_route::filter::Kind;
    match filter.kind.as_ref().unwrap() {
        Kind::FailureInjector(failure) => {
            let share = share_of_requests(&failure.ratio);
            format!(" fail({} {}{share})", failure.status, failure.message)
        }
        Kind::RequestHeaderModifier(modifier) => {
            let (add, set) = (&modifier.add, &modifier.set);
            format!(" request({})", modifier_text(add, set, &modifier.remove))
        }
        Kind::ResponseHeaderModifier(modifier) => {
            let (add, set) = (&modifier.add, &modifier.set);
            format!(" response({})", modifier_text(add, set, &modifier.remove))
        }
        Kind::Redirect(redirect) => {
            use http_types::path_modifier::Replace;
            use mesh_api::proto::http_types::scheme::{Registered, Type};
            let scheme =
                redirect
                    .scheme
                    .as_ref()
                    .map(|scheme| match scheme.r#type.as_ref().unwrap() {
                        Type::Registered(scheme) => Registered::try_from(*scheme)
                            .unwrap()
                            .as_str_name()
                            .to_owned(),
                        Type::Unregistered(scheme) => scheme.clone(),
                    });
            let path = redirect
                .path
                .as_ref()
                .map(|path| match path.replace.as_ref().unwrap() {
                    Replace::Full(path) => format!("={path}"),
                    Replace::Prefix(path) => format!("*{path}"),
                });
            format!(
                " redirect({} {}//{}:{} {})",
                redirect.status,
                scheme.unwrap_or_default(),
                redirect.host,
                redirect.port,
                path.unwrap_or_default()
            )
        }
    }
}

fn grpc_filter(filter: &grpc_route::Filter) -> String {
    use grpc_route::filter::Kind;
    match filter.kind.as_ref().unwrap() {
        Kind::FailureInjector(failure) => {
            let share = share_of_requests(&failure.ratio);
            format!(" fail({} {}{share})", failure.code, failure.message)
        }
        Kind::RequestHeaderModifier(modifier) => {
            let (add, set) = (&modifier.add, &modifier.set);
            format!(" request({})", modifier_text(add, set, &modifier.remove))
        }
    }
}

/// Every request needs no text.
fn share_of_requests(ratio: &Option<http_types::Ratio>) -> String {
    let ratio = ratio.as_ref().unwrap();
    match (ratio.numerator, ratio.denominator) {
        (1, 1) => String::new(),
        (numerator, denominator) => format!(" {numerator}/{denominator}"),
    }
}

fn modifier_text(
    add: &Option<mesh_api::proto::http_types::Headers>,
    set: &Option<mesh_api::proto::http_types::Headers>,
    remove: &[String],
) -> String {
    let pairs = |sign: &'static str, headers: &Option<mesh_api::proto::http_types::Headers>| {
        let headers = headers.as_ref().unwrap().headers.iter();
        headers
            .map(|header| {
                let value = String::from_utf8_lossy(&header.value);
                format!("{sign}{}:{value}", header.name)
            })
            .collect::<Vec<_>>()
    };
    let mut parts = pairs("+", add);
    parts.extend(pairs("=", set));
    parts.extend(remove.iter().map(|name| format!("-{name}")));
    parts.join(" ")
}

fn statuses(conditions: &http_route::retry::Conditions) -> String {
    let ranges = conditions.status_ranges.iter();
    ranges
        .map(|range| format!(" {}-{}", range.start, range.end))
        .collect()
}

fn codes(conditions: &grpc_route::retry::Conditions) -> String {
    let codes = [
        (conditions.cancelled, "cancelled"),
        (conditions.deadine_exceeded, "deadline-exceeded"),
        (conditions.resource_exhausted, "resource-exhausted"),
        (conditions.internal, "internal"),
        (conditions.unavailable, "unavailable"),
    ];
    let set = codes.into_iter().filter(|(set, _)| *set);
    set.map(|(_, name)| format!(" {name}")).collect()
}
