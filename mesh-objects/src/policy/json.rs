//! Policies as JSON values, which `meshctl diagnostics policy` prints and the tests of the index
//! compare. Each element names the object that it was created from, or the default.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use mesh_core::endpoint::ProtocolHint;
use mesh_core::meta::Meta;
use mesh_core::policy::inbound::{
    Authentication, Authorization, HttpServer, InboundRule, RateLimit, ServerPolicy, ServerProtocol,
};
use mesh_core::policy::outbound::{
    BackendTarget, Distribution, HttpRoutes, OutboundPolicy, OutboundProtocol, OutboundRule,
    RouteBackend, TcpRoute, TcpVerdict, TlsRoute,
};
use mesh_core::resilience::{Backoff, FailureAccrual, GrpcRetry, HttpRetry, Retry, Timeouts};
use mesh_core::route::cors::CorsSettings;
use mesh_core::route::filter::{
    Filter, HeaderModifier, PathModifier, Redirect, RequestMirror, UrlRewrite,
};
use mesh_core::route::grpc::GrpcMatch;
use mesh_core::route::http::{
    HeaderMatch, HeaderValueMatch, HttpMatch, PathMatch, QueryValueMatch,
};
use mesh_core::route::{HostMatch, Route};
use serde_json::{Map, Value, json};

/// Returns the policy of a destination.
pub fn outbound(policy: &OutboundPolicy) -> Value {
    let mut value = Map::new();
    let mut set = |name: &str, entry: Value| {
        value.insert(name.to_owned(), entry);
    };
    set("object", object(&policy.parent));
    match &policy.protocol {
        OutboundProtocol::Detect {
            timeout,
            opaque,
            http1,
            http2,
        } => {
            set("protocol", json!("detect"));
            set("detectTimeout", duration(*timeout));
            set("tcpRoute", opaque.as_ref().map(tcp_route).into());
            if http1 == http2 {
                set("httpRoutes", http_routes(http1));
            } else {
                set("http1Routes", http_routes(http1));
                set("http2Routes", http_routes(http2));
            }
            set("failureAccrual", http1.failure_accrual.map(accrual).into());
        }
        OutboundProtocol::Http1(http) | OutboundProtocol::Http2(http) => {
            let version = match &policy.protocol {
                OutboundProtocol::Http1(_) => "HTTP/1",
                _ => "HTTP/2",
            };
            set("protocol", json!(version));
            set("httpRoutes", http_routes(http));
            set("failureAccrual", http.failure_accrual.map(accrual).into());
        }
        OutboundProtocol::Grpc(grpc) => {
            let route = |route| outbound_route(route, grpc_match, grpc_retry);
            set("protocol", json!("gRPC"));
            set("grpcRoutes", grpc.routes.iter().map(route).collect());
            set("failureAccrual", grpc.failure_accrual.map(accrual).into());
        }
        OutboundProtocol::Opaque(route) => {
            set("protocol", json!("opaque"));
            set("tcpRoute", route.as_ref().map(tcp_route).into());
        }
        OutboundProtocol::Tls(routes) => {
            set("protocol", json!("TLS"));
            set("tlsRoutes", routes.iter().map(tls_route).collect());
        }
    }
    without_empty(Value::Object(value))
}

/// Returns the policy of a port.
pub fn inbound(policy: &ServerPolicy) -> Value {
    let http = |http: &HttpServer| {
        let route = |route| inbound_route(route, http_match);
        let routes: Value = http.routes.iter().map(route).collect();
        (routes, http.rate_limit.as_ref().map(rate_limit))
    };
    let (protocol, timeout, (routes, limit)) = match &policy.protocol {
        ServerProtocol::Detect { timeout, http: it } => ("detect", Some(*timeout), http(it)),
        ServerProtocol::Http1(it) => ("HTTP/1", None, http(it)),
        ServerProtocol::Http2(it) => ("HTTP/2", None, http(it)),
        ServerProtocol::Grpc(routes) => {
            let route = |route| inbound_route(route, grpc_match);
            ("gRPC", None, (routes.iter().map(route).collect(), None))
        }
        ServerProtocol::Opaque => ("opaque", None, (Value::Null, None)),
        ServerProtocol::Tls => ("TLS", None, (Value::Null, None)),
    };
    without_empty(json!({
        "object": object(&policy.meta),
        "protocol": protocol,
        "detectTimeout": timeout.map(duration),
        "authorizations": policy.authorizations.iter().map(authorization).collect::<Value>(),
        "routes": routes,
        "rateLimit": limit,
        "terminating": policy.is_terminating.then_some(true),
    }))
}

/// Removes fields without content. The only field of an object states its kind, so it stays.
fn without_empty(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let is_kind = fields.len() == 1;
            let fields = fields
                .into_iter()
                .map(|(name, field)| (name, without_empty(field)));
            let is_empty = |value: &Value| match value {
                Value::Null => true,
                Value::Array(items) => items.is_empty(),
                Value::Object(fields) => fields.is_empty() && !is_kind,
                _ => false,
            };
            Value::Object(fields.filter(|(_, field)| !is_empty(field)).collect())
        }
        Value::Array(items) => items.into_iter().map(without_empty).collect(),
        other => other,
    }
}

fn object(meta: &Meta) -> Value {
    match meta {
        Meta::Default(name) => json!({ "default": &**name }),
        Meta::Resource(resource) => json!({
            "group": &*resource.group,
            "kind": &*resource.kind,
            "namespace": &*resource.namespace,
            "name": &*resource.name,
            "section": (!resource.section.is_empty()).then_some(&*resource.section),
            "port": resource.port,
        }),
    }
}

fn duration(duration: Duration) -> Value {
    json!(format!("{duration:?}"))
}

fn texts<T: Display>(items: impl IntoIterator<Item = T>) -> Value {
    items.into_iter().map(|item| item.to_string()).collect()
}

fn http_routes(http: &HttpRoutes) -> Value {
    let route = |route| outbound_route(route, http_match, http_retry);
    http.routes.iter().map(route).collect()
}

fn outbound_route<M, T>(
    route: &Route<M, OutboundRule<T>>,
    text: fn(&M) -> String,
    retry: fn(&T) -> Value,
) -> Value {
    let rules = route.rules.iter().map(|rule| {
        let action = &rule.action;
        json!({
            "matches": rule.matches.iter().map(text).collect::<Vec<_>>(),
            "filters": action.filters.iter().map(filter).collect::<Value>(),
            "backends": distribution(&action.backends),
            "timeouts": timeouts(action.timeouts),
            "retry": action.retry.as_ref().map(retry),
            "headersOverride": action.allow_request_headers,
        })
    });
    json!({
        "object": object(&route.meta),
        "hosts": route.hosts.iter().map(host).collect::<Vec<_>>(),
        "rules": rules.collect::<Value>(),
    })
}

fn inbound_route<M>(route: &Route<M, InboundRule>, text: fn(&M) -> String) -> Value {
    let rules = route.rules.iter().map(|rule| {
        let authorizations = rule.action.authorizations.iter();
        json!({
            "matches": rule.matches.iter().map(text).collect::<Vec<_>>(),
            "filters": rule.action.filters.iter().map(filter).collect::<Value>(),
            "authorizations": authorizations.map(authorization).collect::<Value>(),
        })
    });
    json!({
        "object": object(&route.meta),
        "hosts": route.hosts.iter().map(host).collect::<Vec<_>>(),
        "rules": rules.collect::<Value>(),
    })
}

fn tcp_route(route: &TcpRoute) -> Value {
    json!({
        "object": object(&route.meta),
        "rejects": rejection(&route.verdict),
        "backends": distribution(&route.backends),
    })
}

fn tls_route(route: &TlsRoute) -> Value {
    json!({
        "object": object(&route.meta),
        "serverNames": route.snis.iter().map(host).collect::<Vec<_>>(),
        "rejects": rejection(&route.verdict),
        "backends": distribution(&route.backends),
    })
}

/// Returns why connections are rejected, if they are.
fn rejection(verdict: &TcpVerdict) -> Option<String> {
    match verdict {
        TcpVerdict::Forward => None,
        TcpVerdict::Forbidden => Some("forbidden by policy".to_owned()),
        TcpVerdict::Invalid(problem) => Some(problem.to_string()),
    }
}

fn distribution(distribution: &Distribution) -> Value {
    match distribution {
        Distribution::Empty => Value::Null,
        Distribution::FirstAvailable(backends) => {
            backends.iter().map(|it| backend(it, None)).collect()
        }
        Distribution::RandomAvailable(backends) => {
            let weighted = backends.iter();
            weighted
                .map(|(it, weight)| backend(it, Some(*weight)))
                .collect()
        }
    }
}

fn backend(backend: &RouteBackend, weight: Option<u32>) -> Value {
    let (forward, endpoint, balance) = target(&backend.backend.target);
    json!({
        "object": object(&backend.backend.meta),
        "weight": weight,
        "forwardsTo": forward,
        "endpoint": endpoint,
        "balances": balance,
        "rejects": rejection(&backend.verdict),
        "filters": backend.filters.iter().map(filter).collect::<Value>(),
    })
}

/// Returns the only address of a backend and its properties, and how others are balanced.
fn target(target: &BackendTarget) -> (Option<String>, Value, Value) {
    match target {
        BackendTarget::Forward(endpoint) => {
            let properties = json!({
                "weight": endpoint.weight,
                "identity": endpoint.tls.as_ref().map(|tls| tls.id.to_string()),
                "protocol": match endpoint.hint {
                    ProtocolHint::Unknown => None,
                    ProtocolHint::Http2 => Some("HTTP/2"),
                    ProtocolHint::Opaque => Some("opaque"),
                },
            });
            (Some(endpoint.addr.to_string()), properties, Value::Null)
        }
        BackendTarget::Balance {
            authority,
            load,
            queue,
        } => {
            let penalty = load.penalty.map(|it| {
                json!({
                    "latency": duration(it.penalty),
                    "maxRetryAfter": duration(it.max_retry_after),
                })
            });
            let balance = json!({
                "authority": &**authority,
                "defaultRtt": duration(load.default_rtt),
                "decay": duration(load.decay),
                "failurePenalty": penalty,
                "queue": {
                    "capacity": queue.capacity,
                    "failFastTimeout": queue.failfast_timeout.map(duration),
                },
            });
            (None, Value::Null, balance)
        }
        BackendTarget::None => (None, Value::Null, Value::Null),
    }
}

fn timeouts(timeouts: Timeouts) -> Value {
    json!({
        "request": timeouts.request.map(duration),
        "response": timeouts.response.map(duration),
        "idle": timeouts.idle.map(duration),
    })
}

fn http_retry(retry: &HttpRetry) -> Value {
    let statuses = retry.conditions.iter().map(|range| {
        if range.start() == range.end() {
            return range.start().to_string();
        }
        format!("{}-{}", range.start(), range.end())
    });
    retry_value(retry, "statuses", texts(statuses))
}

fn grpc_retry(retry: &GrpcRetry) -> Value {
    retry_value(retry, "codes", retry.conditions.iter().copied().collect())
}

fn retry_value<C>(retry: &Retry<C>, name: &str, conditions: Value) -> Value {
    json!({
        "limit": retry.max_retries,
        "timeout": retry.timeout.map(duration),
        "maxRequestBytes": retry.max_request_bytes,
        "backoff": retry.backoff.map(backoff),
        name: conditions,
    })
}

fn backoff(backoff: Backoff) -> Value {
    json!({
        "min": duration(backoff.min),
        "max": duration(backoff.max),
        "jitter": backoff.jitter,
    })
}

fn accrual(accrual: FailureAccrual) -> Value {
    match accrual {
        FailureAccrual::ConsecutiveFailures {
            max_failures,
            backoff: it,
        } => json!({
            "mode": "consecutive",
            "maxConsecutiveFailures": max_failures,
            "backoff": backoff(it),
        }),
        FailureAccrual::Unified {
            success_rate_threshold,
            window,
            min_requests,
            max_consecutive_failures,
            backoff: it,
            honor_retry_after,
        } => json!({
            "mode": "unified",
            "successRateThreshold": success_rate_threshold,
            "window": duration(window),
            "minRequests": min_requests,
            "maxConsecutiveFailures": max_consecutive_failures,
            "backoff": backoff(it),
            "honorsRetryAfter": honor_retry_after,
        }),
    }
}

fn filter(filter: &Filter) -> Value {
    match filter {
        Filter::RequestHeaders(it) => json!({ "requestHeaders": modifier(it) }),
        Filter::ResponseHeaders(it) => json!({ "responseHeaders": modifier(it) }),
        Filter::Redirect(it) => json!({ "redirect": redirect(it) }),
        Filter::UrlRewrite(it) => json!({ "urlRewrite": url_rewrite(it) }),
        Filter::RequestMirror(it) => json!({ "requestMirror": request_mirror(it) }),
        Filter::Cors(it) => json!({ "cors": cors(it.settings()) }),
        Filter::InjectHttpFailure {
            status,
            message,
            ratio,
        } => json!({ "failure": {
            "status": status.as_u16(),
            "message": &**message,
            "ratio": format!("{}/{}", ratio.numerator, ratio.denominator),
        } }),
        Filter::InjectGrpcFailure {
            code,
            message,
            ratio,
        } => json!({ "failure": {
            "code": code,
            "message": &**message,
            "ratio": format!("{}/{}", ratio.numerator, ratio.denominator),
        } }),
        Filter::Delay {
            duration: it,
            ratio,
        } => json!({ "delay": {
            "duration": duration(*it),
            "ratio": format!("{}/{}", ratio.numerator, ratio.denominator),
        } }),
        Filter::InternalError(message) => json!({ "failure": { "message": &**message } }),
    }
}

fn modifier(modifier: &HeaderModifier) -> Value {
    let pairs = |pairs: &[(http::HeaderName, http::HeaderValue)]| -> Value {
        let pair = |(name, value): &(http::HeaderName, http::HeaderValue)| {
            format!("{name}: {}", String::from_utf8_lossy(value.as_bytes()))
        };
        pairs.iter().map(pair).collect()
    };
    json!({
        "add": pairs(&modifier.add),
        "set": pairs(&modifier.set),
        "remove": texts(&modifier.remove),
    })
}

fn url_rewrite(rewrite: &UrlRewrite) -> Value {
    let (full, prefix) = path_parts(rewrite.path.as_ref());
    json!({ "host": rewrite.host.as_deref(), "path": full, "prefix": prefix })
}

fn request_mirror(mirror: &RequestMirror) -> Value {
    let (forward, endpoint, balance) = target(&mirror.backend.target);
    json!({
        "object": object(&mirror.backend.meta),
        "ratio": format!("{}/{}", mirror.ratio.numerator, mirror.ratio.denominator),
        "forwardsTo": forward,
        "endpoint": endpoint,
        "balances": balance,
    })
}

fn cors(settings: &CorsSettings) -> Value {
    json!({
        "allowOrigins": settings.allow_origins,
        "allowCredentials": settings.allow_credentials,
        "allowMethods": settings.allow_methods,
        "allowHeaders": settings.allow_headers,
        "exposeHeaders": settings.expose_headers,
        "maxAge": settings.max_age,
    })
}

/// Returns the replacement of the whole path, and the replacement of the matched prefix.
fn path_parts(path: Option<&PathModifier>) -> (Option<&str>, Option<&str>) {
    match path {
        Some(PathModifier::Full(path)) => (Some(&**path), None),
        Some(PathModifier::Prefix(path)) => (None, Some(&**path)),
        None => (None, None),
    }
}

fn redirect(redirect: &Redirect) -> Value {
    let (full, prefix) = path_parts(redirect.path.as_ref());
    json!({
        "status": redirect.status.map(|status| status.as_u16()),
        "scheme": redirect.scheme.as_ref().map(ToString::to_string),
        "host": redirect.host.as_deref(),
        "port": redirect.port,
        "path": full,
        "prefix": prefix,
    })
}

fn authorization(authorization: &Authorization) -> Value {
    let networks = authorization.networks.iter().map(
        |network| json!({ "cidr": network.net.to_string(), "except": texts(&network.except) }),
    );
    let authentication = match &authorization.authentication {
        Authentication::Unauthenticated => "none",
        Authentication::TlsUnauthenticated => "TLS",
        Authentication::TlsAuthenticated { .. } => "mutual TLS",
    };
    json!({
        "object": object(&authorization.meta),
        "networks": networks.collect::<Value>(),
        "authentication": authentication,
        "identities": identities(&authorization.authentication),
    })
}

/// `*` is every identity, and `*.a` every identity that ends with `.a`.
pub fn identities(authentication: &Authentication) -> Vec<String> {
    let Authentication::TlsAuthenticated {
        identities,
        suffixes,
    } = authentication
    else {
        return Vec::new();
    };
    let suffixes = suffixes.iter().map(|suffix| any_of(&suffix.0));
    let names = identities.iter().map(ToString::to_string);
    names.chain(suffixes).collect()
}

/// Returns the text of all names that end with these labels.
fn any_of<'a>(labels: impl IntoIterator<Item = &'a Arc<str>>) -> String {
    let labels = labels.into_iter().map(|label| format!(".{label}"));
    std::iter::once("*".to_owned()).chain(labels).collect()
}

fn rate_limit(limit: &RateLimit) -> Value {
    let overrides = limit.overrides.iter().map(
        |(identities, rate)| json!({ "identities": texts(identities), "requestsPerSecond": rate }),
    );
    json!({
        "object": object(&limit.meta),
        "total": limit.total,
        "identity": limit.identity,
        "overrides": overrides.collect::<Value>(),
    })
}

pub fn host(host: &HostMatch) -> String {
    match host {
        HostMatch::Exact(name) => name.to_string(),
        HostMatch::Suffix(labels) => any_of(labels.iter().rev()),
    }
}

/// `GET /products/* x-user=a ?page~[0-9]+`: a prefix ends with `/*`, `~` precedes a regular
/// expression, and `*` is a match without a path.
pub fn http_match(entry: &HttpMatch) -> String {
    let mut parts: Vec<String> = entry.method.iter().map(ToString::to_string).collect();
    parts.push(match &entry.path {
        None => "*".to_owned(),
        Some(PathMatch::Exact(path)) => path.clone(),
        Some(PathMatch::Prefix(path)) => format!("{}/*", path.trim_end_matches('/')),
        Some(PathMatch::Regex(regex)) => format!("~{}", regex.as_str()),
    });
    parts.extend(entry.headers.iter().map(header_match));
    parts.extend(entry.query.iter().map(|query| match &query.value {
        QueryValueMatch::Exact(value) => format!("?{}={value}", query.name),
        QueryValueMatch::Regex(regex) => format!("?{}~{}", query.name, regex.as_str()),
    }));
    parts.join(" ")
}

/// `shop.Cart/Add x-user=a`; `*` is any service or method.
pub fn grpc_match(entry: &GrpcMatch) -> String {
    let name = |name: &Option<Arc<str>>| name.as_deref().unwrap_or("*").to_owned();
    let mut parts = vec![format!("{}/{}", name(&entry.service), name(&entry.method))];
    parts.extend(entry.headers.iter().map(header_match));
    parts.join(" ")
}

fn header_match(header: &HeaderMatch) -> String {
    match &header.value {
        HeaderValueMatch::Exact(value) => {
            format!(
                "{}={}",
                header.name,
                String::from_utf8_lossy(value.as_bytes())
            )
        }
        HeaderValueMatch::Regex(regex) => format!("{}~{}", header.name, regex.as_str()),
    }
}

#[cfg(test)]
mod tests;
