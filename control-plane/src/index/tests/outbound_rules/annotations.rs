//! Timeouts, retries and balancing by annotations of Services, EgressNetworks and routes.

use super::*;

/// Returns the settings of the last rule that is not a default one, or else of the last.
fn settings(objects: &str) -> String {
    let text = message(&Cluster::new(objects).watch("10.96.0.1:80", "shop"));
    last_rule(&text)
}

fn last_rule(text: &str) -> String {
    let rule = text
        .lines()
        .rev()
        .find(|line| line.starts_with("  "))
        .unwrap();
    let (_, rest) = rule.split_once(']').unwrap();
    let (settings, _) = rest.split_once(" -> ").unwrap();
    settings.trim().to_owned()
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
    let expected = "request=1000ms response=2000ms idle=180000ms";
    assert_eq!(settings(&web), expected, "of the default route");
    let objects = web + &annotated_route("", "");
    assert_eq!(settings(&objects), format!("{expected} l5d"));
}

#[test]
fn timeouts_of_route_replace_all_of_service() {
    let web = annotated_web("timeout.linkerd.io/request: 1s, timeout.linkerd.io/idle: 3s");
    let objects = web + &annotated_route("timeout.linkerd.io/response: 9s", "");
    assert_eq!(settings(&objects), "response=9000ms l5d");
}

#[test]
fn timeout_of_rule_applies_without_request_annotation_of_route() {
    let web = annotated_web("timeout.linkerd.io/request: 1s");
    let objects = web.clone() + &annotated_route("", "request: 2s");
    assert_eq!(settings(&objects), "request=2000ms l5d");
    let objects = web.clone() + &annotated_route("timeout.linkerd.io/idle: 5s", "request: 2s");
    assert_eq!(settings(&objects), "request=2000ms idle=5000ms l5d");
    let objects = web + &annotated_route("timeout.linkerd.io/request: 9s", "request: 2s");
    assert_eq!(settings(&objects), "request=9000ms l5d");
}

#[test]
fn zero_timeout_means_none() {
    let web = annotated_web("timeout.linkerd.io/request: 1s, timeout.linkerd.io/idle: 0");
    assert_eq!(settings(&web), "request=1000ms");
    let objects = web.clone() + &annotated_route("", "request: 0s");
    assert_eq!(settings(&objects), "request=1000ms l5d");
    // It replaces the timeouts of the Service and of the rule.
    let objects = web + &annotated_route("timeout.linkerd.io/request: 0s", "request: 2s");
    assert_eq!(settings(&objects), "l5d");
}

#[test]
fn backend_request_limits_attempts() {
    let only = web() + &annotated_route("", "backendRequest: 1s");
    assert_eq!(settings(&only), "request=1000ms l5d");
    let shorter = web() + &annotated_route("", "request: 5s, backendRequest: 1s");
    assert_eq!(settings(&shorter), "request=1000ms l5d");
    let retried = web()
        + &annotated_route(
            "retry.linkerd.io/limit: '2'",
            "request: 5s, backendRequest: 1s",
        );
    assert_eq!(settings(&retried), "request=5000ms retry=2 try=1000ms l5d");
    let annotated = "retry.linkerd.io/limit: '2', retry.linkerd.io/timeout: 3s";
    let objects = web() + &annotated_route(annotated, "request: 5s, backendRequest: 1s");
    assert_eq!(settings(&objects), "request=5000ms retry=2 try=3000ms l5d");
}

#[test]
fn any_retry_annotation_enables_retries() {
    for (annotation, expected) in [
        ("retry.linkerd.io/limit: '3'", "retry=3"),
        ("retry.linkerd.io/limit: '0'", "retry=1"),
        ("retry.linkerd.io/timeout: 400ms", "retry=1 try=400ms"),
        (
            "retry.linkerd.io/http: '5xx, gateway-error, 429, 100-101'",
            "retry=1 500-599 502-504 429-429 100-101",
        ),
        ("retry.linkerd.io/grpc: internal", "retry=1"),
    ] {
        assert_eq!(
            settings(&annotated_web(annotation)),
            expected,
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
        "retry=1 cancelled deadline-exceeded resource-exhausted internal unavailable l5d"
    );
}

#[test]
fn retries_of_route_replace_all_of_service() {
    let web = annotated_web("retry.linkerd.io/limit: '5', retry.linkerd.io/http: 5xx");
    let inherited = web.clone() + &annotated_route("timeout.linkerd.io/idle: 1s", "");
    assert_eq!(settings(&inherited), "idle=1000ms retry=5 500-599 l5d");
    let replaced = web + &annotated_route("retry.linkerd.io/http: '404'", "");
    assert_eq!(settings(&replaced), "retry=1 404-404 l5d");
}

/// Returns the line with the failure accrual.
fn accrual(annotations: &str) -> Option<String> {
    let objects = annotated_web(annotations);
    let text = message(&Cluster::new(&objects).watch("10.96.0.1:80", "shop"));
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("http accrual "))?;
    Some(line.to_owned())
}

#[test]
fn consecutive_failure_accrual_has_defaults() {
    let expected = "consecutive 7 backoff 1000ms..60000ms*0.5";
    let annotations = "balancer.linkerd.io/failure-accrual: consecutive";
    assert_eq!(accrual(annotations).as_deref(), Some(expected));
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
    let expected = "consecutive 3 backoff 2000ms..60000ms*1.5";
    assert_eq!(accrual(&annotations).as_deref(), Some(expected));
}

#[test]
fn unified_failure_accrual_has_parameters() {
    let annotations = "balancer.linkerd.io/failure-accrual: unified";
    let expected = "unified 0.8 in 10000ms of 5 or consecutive 7 backoff 1000ms..60000ms*0.5";
    assert_eq!(accrual(annotations).as_deref(), Some(expected));
    let alpha = "balancer.alpha.linkerd.io/failure-accrual";
    let annotations = format!(
        "balancer.linkerd.io/failure-accrual: unified, {alpha}-success-rate-threshold: '0.5', \
         {alpha}-success-rate-window: 1m, {alpha}-success-rate-min-requests: '9', {alpha}-honor-retry-after: 'T'"
    );
    let expected =
        "unified 0.5 in 60000ms of 9 or consecutive 7 backoff 1000ms..60000ms*0.5 retry-after";
    assert_eq!(accrual(&annotations).as_deref(), Some(expected));
}

#[test]
fn retry_after_is_only_of_unified_failure_accrual() {
    let annotations = "balancer.linkerd.io/failure-accrual: consecutive, \
                       balancer.alpha.linkerd.io/failure-accrual-honor-retry-after: 'true'";
    let expected = "consecutive 7 backoff 1000ms..60000ms*0.5";
    assert_eq!(accrual(annotations).as_deref(), Some(expected));
}

#[test]
fn invalid_annotation_of_service_is_ignored_with_its_group() {
    let web = annotated_web(
        "timeout.linkerd.io/request: 1.5s, timeout.linkerd.io/idle: 2s, retry.linkerd.io/limit: '2', \
         balancer.linkerd.io/failure-accrual: sometimes",
    );
    assert_eq!(settings(&web), "retry=2");
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
    let penalty = "penalty=2000ms max=60000ms";
    check(
        &web,
        "10.96.0.1:80",
        &format!(
            "core/Service shop/web:80 detect 10000ms
             opaque default/opaq -> core/Service shop/web:80
             http default/http
               [/*] -> core/Service shop/web:80 {penalty}"
        ),
    );
    // The annotations of a backend itself have no effect.
    let canary = annotated_web("balancer.alpha.linkerd.io/penalize-failures: 'true'")
        .replace("name: web", "name: canary")
        .replace("10.96.0.1", "10.96.0.2");
    let rules = "[{backendRefs: [{name: canary, port: 80}]}]";
    for (parent, expected) in [(web, format!(" {penalty}")), (super::web(), String::new())] {
        for kind in ["HTTPRoute", "GRPCRoute"] {
            let objects = parent.clone() + &canary + &route(kind, "one", WEB, rules);
            let text = message(&Cluster::new(&objects).watch("10.96.0.1:80", "shop"));
            let to = format!("-> 1x core/Service shop/canary:80{expected}\n");
            assert!(text.ends_with(&to), "{text}");
        }
    }
}

#[test]
fn connections_have_no_penalty() {
    let web = annotated_web("balancer.alpha.linkerd.io/penalize-failures: 'true'");
    for kind in ["TLSRoute", "TCPRoute"] {
        let objects = web.clone() + &route(kind, "one", WEB, "[{}]");
        let text = message(&Cluster::new(&objects).watch("10.96.0.1:80", "shop"));
        assert!(text.ends_with("-> core/Service shop/web:80\n"), "{text}");
    }
    let opaque = web.replace("{port: 80}", "{port: 80, appProtocol: linkerd.io/opaque}");
    let text = message(&Cluster::new(&opaque).watch("10.96.0.1:80", "shop"));
    assert!(text.ends_with("-> core/Service shop/web:80\n"), "{text}");
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
    check(
        &objects,
        "203.0.113.1:443",
        &format!(
            "{outside} detect 10000ms
             opaque default/tcp-egress-allow -> {outside} forward 203.0.113.1:443
             http accrual consecutive 7 backoff 1000ms..60000ms*0.5
             http gateway/HTTPRoute shop/one
               [] request=1000ms retry=1 500-599 l5d -> 1x core/Service shop/web:80
             http default/http-egress-allow
               [/*] request=1000ms retry=1 500-599 -> {outside} forward 203.0.113.1:443"
        ),
    );
}

#[test]
fn changed_annotations_reach_streams() {
    let mut cluster = Cluster::new(&web());
    let watched = cluster.watch("10.96.0.1:80", "other");
    assert_eq!(last_rule(&message(&watched)), "");
    cluster.apply(&annotated_web("timeout.linkerd.io/request: 1s"));
    assert_eq!(last_rule(&message(&watched)), "request=1000ms");
    cluster.apply(&annotated_route("timeout.linkerd.io/request: 2s", ""));
    assert_eq!(last_rule(&message(&watched)), "request=2000ms l5d");
    cluster.delete(Kind::GatewayHttpRoute, "shop", "one");
    assert_eq!(last_rule(&message(&watched)), "request=1000ms");
}

#[test]
fn request_headers_override_only_attached_rules() {
    let objects = web() + &annotated_route("", "");
    assert_eq!(settings(&objects), "l5d");
    assert_eq!(settings(&web()), "");
}
