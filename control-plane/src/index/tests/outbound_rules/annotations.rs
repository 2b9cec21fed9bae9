//! Timeouts, retries and balancing by annotations of Services, EgressNetworks and routes.

use super::*;

/// Returns everything of the last rule but its matches and backends.
fn settings(objects: &str) -> String {
    last_rule(&Cluster::new(objects).watch("10.96.0.1:80", "shop"))
}

fn last_rule(watched: &Watched) -> String {
    let policy = policy(watched);
    let rules = routes(&policy).next_back().unwrap()["rules"].as_array();
    let mut rule = rules.unwrap().last().unwrap().as_object().unwrap().clone();
    rule.remove("matches");
    rule.remove("backends");
    compact::text(&rule.into())
}

/// Returns an HTTPRoute of `web` with annotations and timeouts of its rule.
fn annotated_route(annotations: &str, timeouts: &str) -> String {
    route(
        "HTTPRoute",
        "one",
        WEB,
        &format!("[{{timeouts: {{{timeouts}}}}}]"),
    )
    .replace(
        "namespace: shop}\nspec",
        &format!("namespace: shop, annotations: {{{annotations}}}}}\nspec"),
    )
}

#[test]
fn timeouts_of_service_are_defaults_of_its_rules() {
    let web = annotated_web(
        "timeout.linkerd.io/request: 1s, timeout.linkerd.io/response: 2s, timeout.linkerd.io/idle: 3m",
    );
    let expected = "timeouts=(idle=180s request=1s response=2s)";
    assert_eq!(settings(&web), expected, "of the default route");
    let objects = web + &annotated_route("", "");
    assert_eq!(settings(&objects), format!("headersOverride {expected}"));
}

#[test]
fn timeouts_of_route_replace_all_of_service() {
    let web = annotated_web("timeout.linkerd.io/request: 1s, timeout.linkerd.io/idle: 3s");
    let objects = web + &annotated_route("timeout.linkerd.io/response: 9s", "");
    assert_eq!(settings(&objects), "headersOverride timeouts=(response=9s)");
}

#[test]
fn timeout_of_rule_applies_without_request_annotation_of_route() {
    let web = annotated_web("timeout.linkerd.io/request: 1s");
    let objects = web.clone() + &annotated_route("", "request: 2s");
    assert_eq!(settings(&objects), "headersOverride timeouts=(request=2s)");
    let objects = web.clone() + &annotated_route("timeout.linkerd.io/idle: 5s", "request: 2s");
    assert_eq!(
        settings(&objects),
        "headersOverride timeouts=(idle=5s request=2s)"
    );
    let objects = web + &annotated_route("timeout.linkerd.io/request: 9s", "request: 2s");
    assert_eq!(settings(&objects), "headersOverride timeouts=(request=9s)");
}

#[test]
fn zero_timeout_means_none() {
    let web = annotated_web("timeout.linkerd.io/request: 1s, timeout.linkerd.io/idle: 0");
    assert_eq!(settings(&web), "timeouts=(request=1s)");
    let objects = web.clone() + &annotated_route("", "request: 0s");
    assert_eq!(settings(&objects), "headersOverride timeouts=(request=1s)");
    // It replaces the timeouts of the Service and of the rule.
    let objects = web + &annotated_route("timeout.linkerd.io/request: 0s", "request: 2s");
    assert_eq!(settings(&objects), "headersOverride");
}

#[test]
fn backend_request_limits_attempts() {
    let only = web() + &annotated_route("", "backendRequest: 1s");
    assert_eq!(settings(&only), "headersOverride timeouts=(request=1s)");
    let shorter = web() + &annotated_route("", "request: 5s, backendRequest: 1s");
    assert_eq!(settings(&shorter), "headersOverride timeouts=(request=1s)");
    let retried = web()
        + &annotated_route(
            "retry.linkerd.io/limit: '2'",
            "request: 5s, backendRequest: 1s",
        );
    let expected = |retry: &str| {
        format!(
            "headersOverride {} timeouts=(request=5s)",
            retrying(2, retry)
        )
    };
    assert_eq!(settings(&retried), expected("timeout=1s"));
    let annotated = "retry.linkerd.io/limit: '2', retry.linkerd.io/timeout: 3s";
    let objects = web() + &annotated_route(annotated, "request: 5s, backendRequest: 1s");
    assert_eq!(settings(&objects), expected("timeout=3s"));
}

/// Returns the retries of a rule with this limit; `more` are the other settings.
fn retrying(limit: u32, more: &str) -> String {
    let more = if more.is_empty() {
        String::new()
    } else {
        format!(" {more}")
    };
    format!("retry=(backoff limit={limit} maxRequestBytes{more})")
}

#[test]
fn any_retry_annotation_enables_retries() {
    for (annotation, limit, more) in [
        ("retry.linkerd.io/limit: '3'", 3, ""),
        ("retry.linkerd.io/limit: '0'", 1, ""),
        ("retry.linkerd.io/timeout: 400ms", 1, "timeout=400ms"),
        (
            "retry.linkerd.io/http: '5xx, gateway-error, 429, 100-101'",
            1,
            "statuses=[500-599, 502-504, 429, 100-101]",
        ),
        ("retry.linkerd.io/grpc: internal", 1, ""),
    ] {
        assert_eq!(
            settings(&annotated_web(annotation)),
            retrying(limit, more),
            "{annotation}"
        );
    }
}

#[test]
fn grpc_conditions_are_those_of_grpc_routes() {
    let all = "cancelled,deadline-exceeded,internal,resource-exhausted,unavailable";
    let web = annotated_web(&format!(
        "retry.linkerd.io/http: 5xx, retry.linkerd.io/grpc: '{all}'"
    ));
    let objects = web + &route("GRPCRoute", "one", WEB, "[{}]");
    assert_eq!(
        settings(&objects),
        "headersOverride retry=(backoff codes=[1, 4, 8, 13, 14] limit=1 maxRequestBytes)"
    );
}

#[test]
fn retries_of_route_replace_all_of_service() {
    let web = annotated_web("retry.linkerd.io/limit: '5', retry.linkerd.io/http: 5xx");
    let inherited = web.clone() + &annotated_route("timeout.linkerd.io/idle: 1s", "");
    let retry = retrying(5, "statuses=[500-599]");
    assert_eq!(
        settings(&inherited),
        format!("headersOverride {retry} timeouts=(idle=1s)")
    );
    let replaced = web + &annotated_route("retry.linkerd.io/http: '404'", "");
    let retry = retrying(1, "statuses=[404]");
    assert_eq!(settings(&replaced), format!("headersOverride {retry}"));
}

/// Returns the failure accrual.
fn accrual(annotations: &str) -> Option<String> {
    let objects = annotated_web(annotations);
    let policy = policy(&Cluster::new(&objects).watch("10.96.0.1:80", "shop"));
    policy.get("failureAccrual").map(compact::text)
}

const BACKOFF: &str = "backoff=(jitter=0.5 max=60s min=1s)";

#[test]
fn consecutive_failure_accrual_has_defaults() {
    let expected = format!("{BACKOFF} maxConsecutiveFailures=7 mode=consecutive");
    let annotations = "balancer.linkerd.io/failure-accrual: consecutive";
    assert_eq!(accrual(annotations), Some(expected));
    assert_eq!(
        accrual("balancer.linkerd.io/failure-accrual-consecutive-max-failures: '3'"),
        None
    );
}

#[test]
fn consecutive_failure_accrual_has_parameters() {
    let key = "balancer.linkerd.io/failure-accrual";
    let annotations = format!(
        "{key}: consecutive, {key}-consecutive-max-failures: '3', {key}-consecutive-min-penalty: 2s, \
         {key}-consecutive-max-penalty: 1m, {key}-consecutive-jitter-ratio: '1.5'"
    );
    let expected = "backoff=(jitter=1.5 max=60s min=2s) maxConsecutiveFailures=3 mode=consecutive";
    assert_eq!(accrual(&annotations).as_deref(), Some(expected));
}

#[test]
fn unified_failure_accrual_has_parameters() {
    let annotations = "balancer.linkerd.io/failure-accrual: unified";
    let expected = format!(
        "{BACKOFF} maxConsecutiveFailures=7 minRequests=5 mode=unified successRateThreshold=0.8 window=10s"
    );
    assert_eq!(accrual(annotations), Some(expected));
    let alpha = "balancer.alpha.linkerd.io/failure-accrual";
    let annotations = format!(
        "balancer.linkerd.io/failure-accrual: unified, {alpha}-success-rate-threshold: '0.5', \
         {alpha}-success-rate-window: 1m, {alpha}-success-rate-min-requests: '9', {alpha}-honor-retry-after: 'T'"
    );
    let expected = format!(
        "{BACKOFF} honorsRetryAfter maxConsecutiveFailures=7 minRequests=9 mode=unified \
         successRateThreshold=0.5 window=60s"
    );
    assert_eq!(accrual(&annotations), Some(expected));
}

#[test]
fn retry_after_is_only_of_unified_failure_accrual() {
    let annotations = "balancer.linkerd.io/failure-accrual: consecutive, \
                       balancer.alpha.linkerd.io/failure-accrual-honor-retry-after: 'true'";
    let expected = format!("{BACKOFF} maxConsecutiveFailures=7 mode=consecutive");
    assert_eq!(accrual(annotations), Some(expected));
}

#[test]
fn invalid_annotation_of_service_is_ignored_with_its_group() {
    let web = annotated_web(
        "timeout.linkerd.io/request: 1.5s, timeout.linkerd.io/idle: 2s, retry.linkerd.io/limit: '2', \
         balancer.linkerd.io/failure-accrual: sometimes",
    );
    assert_eq!(settings(&web), retrying(2, ""));
    assert_eq!(
        accrual("balancer.linkerd.io/failure-accrual: sometimes"),
        None
    );
}

#[test]
fn penalty_of_parent_is_for_all_backends_of_its_requests() {
    let key = "balancer.alpha.linkerd.io";
    let web = annotated_web(&format!(
        "{key}/penalize-failures: 'true', {key}/load-biaser-penalty: 2s, {key}/load-biaser-max-retry-after: 1m"
    ));
    let penalized = |service: &str| {
        format!(
            "backends=[core/Service shop/{service}:80 balances=(authority={service}.shop.svc.cluster.local:80 decay=10s \
             defaultRtt=30ms failurePenalty=(latency=2s maxRetryAfter=60s) queue=(capacity=100 failFastTimeout=3s))"
        )
    };
    check(
        &web,
        "10.96.0.1:80",
        &format!(
            "core/Service shop/web:80 detectTimeout=10s protocol=detect
             tcpRoute default/opaq {TO_WEB}
             httpRoutes default/http
             rule {}] matches=[/*]",
            penalized("web")
        ),
    );
    // The annotations of a backend itself have no effect.
    let canary = annotated_web("balancer.alpha.linkerd.io/penalize-failures: 'true'")
        .replace("name: web", "name: canary")
        .replace("10.96.0.1", "10.96.0.2");
    let rules = "[{backendRefs: [{name: canary, port: 80}]}]";
    let usual = "backends=[core/Service shop/canary:80 balances".to_owned();
    for (parent, expected) in [(web, penalized("canary")), (super::web(), usual)] {
        for kind in ["HTTPRoute", "GRPCRoute"] {
            let objects = parent.clone() + &canary + &route(kind, "one", WEB, rules);
            let text = rule_lines(&Cluster::new(&objects).watch("10.96.0.1:80", "shop"));
            assert_eq!(text, format!("rule {expected} weight=1] headersOverride"));
        }
    }
}

#[test]
fn connections_have_no_penalty() {
    let web = annotated_web("balancer.alpha.linkerd.io/penalize-failures: 'true'");
    for kind in ["TLSRoute", "TCPRoute"] {
        let objects = web.clone() + &route(kind, "one", WEB, "[{}]");
        let text = message(&Cluster::new(&objects).watch("10.96.0.1:80", "shop"));
        assert!(text.ends_with(TO_WEB), "{text}");
    }
    let opaque = web.replace("{port: 80}", "{port: 80, appProtocol: linkerd.io/opaque}");
    let text = message(&Cluster::new(&opaque).watch("10.96.0.1:80", "shop"));
    assert!(text.ends_with(TO_WEB), "{text}");
}

#[test]
fn annotations_of_network_are_defaults_of_its_rules() {
    let annotations = ", annotations: {timeout.linkerd.io/request: 1s, retry.linkerd.io/http: 5xx, \
                       balancer.linkerd.io/failure-accrual: consecutive, \
                       balancer.alpha.linkerd.io/penalize-failures: 'true'}";
    let rules = "[{backendRefs: [{name: web, port: 80}]}]";
    let objects = web()
        + &network("shop", "outside", "Allow", "203.0.113.0/24", annotations)
        + &route("HTTPRoute", "one", OUTSIDE, rules);
    let outside = "policy/EgressNetwork shop/outside:443";
    let to = format!("{outside} endpoint forwardsTo=203.0.113.1:443");
    let retry = retrying(1, "statuses=[500-599]");
    check(
        &objects,
        "203.0.113.1:443",
        &format!(
            "{outside} detectTimeout=10s failureAccrual=({BACKOFF} maxConsecutiveFailures=7 mode=consecutive) \
             protocol=detect
             tcpRoute default/tcp-egress-allow backends=[{to}]
             httpRoutes gateway/HTTPRoute shop/one
             rule backends=[core/Service shop/web:80 balances weight=1] headersOverride {retry} timeouts=(request=1s)
             httpRoutes default/http-egress-allow
             rule backends=[{to}] matches=[/*] {retry} timeouts=(request=1s)"
        ),
    );
}

#[test]
fn changed_annotations_reach_streams() {
    let mut cluster = Cluster::new(&web());
    let watched = cluster.watch("10.96.0.1:80", "other");
    assert_eq!(last_rule(&watched), "");
    cluster.apply(&annotated_web("timeout.linkerd.io/request: 1s"));
    assert_eq!(last_rule(&watched), "timeouts=(request=1s)");
    cluster.apply(&annotated_route("timeout.linkerd.io/request: 2s", ""));
    assert_eq!(last_rule(&watched), "headersOverride timeouts=(request=2s)");
    cluster.delete(Kind::GatewayHttpRoute, "shop", "one");
    assert_eq!(last_rule(&watched), "timeouts=(request=1s)");
}

#[test]
fn request_headers_override_only_attached_rules() {
    let objects = web() + &annotated_route("", "");
    assert_eq!(settings(&objects), "headersOverride");
    assert_eq!(settings(&web()), "");
}
