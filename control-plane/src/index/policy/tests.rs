//! Inbound and outbound policies before and after changes of objects.

mod access;
mod terminating;

use mesh_core::identity::Identity;
use mesh_core::policy::inbound::{Client, ClientTls, HttpServer, ServerProtocol, authorize};
use mesh_core::policy::outbound::{
    BackendTarget, Distribution, HttpRoutes, OutboundProtocol, TcpVerdict,
};
use mesh_core::resilience::Queue;
use mesh_core::route::filter::Filter;
use mesh_core::route::http::{PathMatch, RequestHead};
use mesh_objects::model::{Kind, Name};

use super::*;
use crate::index::tests::fixture::{SERVICE, apply, delete, pod, policy_settings};

fn index(text: &str) -> PolicyIndex {
    let mut index = PolicyIndex::new(policy_settings());
    index.apply(apply(text));
    index
}

fn inbound(
    index: &mut PolicyIndex,
    port: u16,
) -> watch::Receiver<Arc<Version<Option<ServerPolicy>>>> {
    let workload = WorkloadRef::Pod(Name::new("shop", "web-1"));
    index.inbound(InboundKey { workload, port }).unwrap()
}

fn current(rx: &watch::Receiver<Arc<Version<Option<ServerPolicy>>>>) -> ServerPolicy {
    rx.borrow().value().as_ref().clone().unwrap()
}

/// Returns the name of the authorization of a client with this identity; empty if it is denied.
fn authorization_of(policy: &ServerPolicy, id: Option<&str>) -> String {
    let id = id.map(|id| Identity::parse(id).unwrap());
    let client = Client {
        ip: "10.1.0.9".parse().unwrap(),
        tls: id.as_ref().map_or(ClientTls::None, ClientTls::Identified),
    };
    let found = authorize(&policy.authorizations, &client);
    found.map_or("", |found| found.meta.name()).to_owned()
}

fn http(policy: &ServerPolicy) -> &HttpServer {
    match &policy.protocol {
        ServerProtocol::Detect { http, .. } | ServerProtocol::Http1(http) => http,
        other => panic!("{other:?}"),
    }
}

fn web(more: &str) -> String {
    pod("web-1", "10.1.0.1", true, more)
}

const CLIENT: &str = "client.shop.serviceaccount.identity.linkerd.cluster.local";
const OTHER: &str = "client.other.serviceaccount.identity.linkerd.cluster.local";

#[test]
fn ports_without_server_have_default_policy() {
    let mut index = index(&web(""));
    let rx = inbound(&mut index, 8080);
    let policy = current(&rx);
    assert_eq!(policy.meta.name(), "all-unauthenticated");
    assert_eq!(authorization_of(&policy, None), "all-unauthenticated");
    let names: Vec<&str> = http(&policy)
        .routes
        .iter()
        .map(|route| route.meta.name())
        .collect();
    assert_eq!(names, ["default", "probe"]);
    let paths: Vec<_> = http(&policy).routes[1].rules[0]
        .matches
        .iter()
        .map(|entry| entry.path.clone().unwrap())
        .collect();
    assert_eq!(
        paths,
        ["/live", "/ready"].map(|path| PathMatch::Exact(path.to_owned()))
    );

    let annotations = "annotations: {config.linkerd.io/default-inbound-policy: deny, config.linkerd.io/opaque-ports: '8080'}";
    index.apply(apply(&web(annotations)));
    let policy = current(&rx);
    assert_eq!(policy.meta.name(), "deny");
    assert_eq!(policy.protocol, ServerProtocol::Opaque);
    assert_eq!(authorization_of(&policy, Some(CLIENT)), "");

    let annotations =
        "annotations: {config.linkerd.io/proxy-require-identity-inbound-ports: '8000-9000'}";
    index.apply(apply(&web(annotations)));
    let policy = current(&rx);
    assert_eq!(policy.meta.name(), "all-authenticated");
    assert_eq!(authorization_of(&policy, None), "");
    assert_eq!(authorization_of(&policy, Some(CLIENT)), "all-authenticated");
}

/// Pods with such annotations have bypassed the webhook.
#[test]
fn invalid_annotations_do_not_authorize_clients() {
    let annotated = |key: &str, value: &str| {
        web(&format!(
            "annotations: {{config.linkerd.io/{key}: '{value}'}}"
        ))
    };
    for typo in ["all-authenticate", "Deny", "", "all-unauthenticated "] {
        let mut index = index(&annotated("default-inbound-policy", typo));
        let policy = current(&inbound(&mut index, 8080));
        assert_eq!(policy.meta.name(), "deny", "{typo:?}");
        assert_eq!(authorization_of(&policy, Some(CLIENT)), "", "{typo:?}");
    }

    let key = "proxy-require-identity-inbound-ports";
    for list in ["8080,nonsense", "0,8080", "8080-8090,70000", "9-1, http"] {
        let mut index = index(&annotated(key, list));
        let policy = current(&inbound(&mut index, 8080));
        assert_eq!(policy.meta.name(), "all-authenticated", "{list}");
        assert_eq!(authorization_of(&policy, None), "", "{list}");
        let other = current(&inbound(&mut index, 3306));
        assert_eq!(other.meta.name(), "all-unauthenticated", "{list}");
    }
}

const SERVER: &str = "---
apiVersion: policy.linkerd.io/v1beta3
kind: Server
metadata: {name: web-http, namespace: shop}
spec: {podSelector: {matchLabels: {app: web}}, port: http, proxyProtocol: HTTP/1}
";

const POLICY: &str = "---
apiVersion: policy.linkerd.io/v1alpha1
kind: AuthorizationPolicy
metadata: {name: allow, namespace: shop}
spec:
  targetRef: {group: policy.linkerd.io, kind: Server, name: web-http}
  requiredAuthenticationRefs: [{group: policy.linkerd.io, kind: MeshTLSAuthentication, name: clients}]
";

const CLIENTS: &str = "---
apiVersion: policy.linkerd.io/v1alpha1
kind: MeshTLSAuthentication
metadata: {name: clients, namespace: shop}
spec: {identityRefs: [{kind: ServiceAccount, name: client}]}
";

#[test]
fn server_denies_until_policy_authorizes() {
    let mut index = index(&web(""));
    let mut rx = inbound(&mut index, 8080);
    let other_port = inbound(&mut index, 9999);
    rx.borrow_and_update();
    index.apply(apply(SERVER));
    assert!(rx.has_changed().unwrap());
    assert!(!other_port.has_changed().unwrap());
    let policy = current(&rx);
    assert_eq!(
        (policy.meta.kind(), policy.meta.name()),
        ("server", "web-http")
    );
    assert!(matches!(policy.protocol, ServerProtocol::Http1(_)));
    assert_eq!(authorization_of(&policy, Some(CLIENT)), "");

    // The authentication is missing, so the policy authorizes no client.
    index.apply(apply(POLICY));
    assert_eq!(authorization_of(&current(&rx), Some(CLIENT)), "");
    index.apply(apply(CLIENTS));
    assert_eq!(authorization_of(&current(&rx), Some(CLIENT)), "allow");
    assert_eq!(authorization_of(&current(&rx), Some(OTHER)), "");
    assert_eq!(authorization_of(&current(&rx), None), "");
    index.apply(apply(
        &CLIENTS.replace("ServiceAccount, name: client", "Namespace, name: other"),
    ));
    assert_eq!(authorization_of(&current(&rx), Some(CLIENT)), "");
    assert_eq!(authorization_of(&current(&rx), Some(OTHER)), "allow");

    index.apply(delete(Kind::AuthorizationPolicy, "shop", "allow"));
    assert_eq!(authorization_of(&current(&rx), Some(OTHER)), "");
    index.apply(delete(Kind::Server, "shop", "web-http"));
    assert_eq!(current(&rx).meta.name(), "all-unauthenticated");
    index.apply(delete(Kind::Pod, "shop", "web-1"));
    assert!(rx.borrow().is_none());
}

#[test]
fn namespace_policies_networks_and_access_policies_apply() {
    let namespace = POLICY
        .replace(
            "group: policy.linkerd.io, kind: Server, name: web-http",
            "kind: Namespace, name: shop",
        )
        .replace(
            "kind: MeshTLSAuthentication, name: clients",
            "kind: NetworkAuthentication, name: near, namespace: nets",
        );
    let networks = "---
apiVersion: policy.linkerd.io/v1alpha1
kind: NetworkAuthentication
metadata: {name: near, namespace: nets}
spec: {networks: [{cidr: 10.1.0.0/16, except: [10.1.0.8/32]}]}
";
    let mut index = index(&(web("") + SERVER + &namespace + networks));
    let rx = inbound(&mut index, 8080);
    assert_eq!(authorization_of(&current(&rx), None), "allow");
    index.apply(apply(&networks.replace("10.1.0.8/32", "10.1.0.9/32")));
    assert_eq!(authorization_of(&current(&rx), None), "");
    index.apply(apply(&SERVER.replace(
        "proxyProtocol: HTTP/1",
        "accessPolicy: cluster-authenticated",
    )));
    assert_eq!(authorization_of(&current(&rx), None), "");
    assert_eq!(
        authorization_of(&current(&rx), Some(CLIENT)),
        "cluster-authenticated"
    );
}

#[test]
fn oldest_server_takes_precedence() {
    let at = |name: &str, created: &str| {
        SERVER.replace(
            "name: web-http,",
            &format!("name: {name}, creationTimestamp: '{created}',"),
        )
    };
    let mut index = index(&(web("") + SERVER));
    let rx = inbound(&mut index, 8080);
    index.apply(apply(&at("young", "2026-02-01T00:00:00Z")));
    assert_eq!(current(&rx).meta.name(), "young");
    index.apply(apply(&at("old", "2026-01-01T00:00:00Z")));
    assert_eq!(current(&rx).meta.name(), "old");
    index.apply(apply(&at("equal", "2026-01-01T00:00:00Z")));
    assert_eq!(current(&rx).meta.name(), "equal");
}

const ROUTE: &str = "---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: get, namespace: shop}
spec:
  parentRefs: [{group: policy.linkerd.io, kind: Server, name: web-http}]
  rules: [{matches: [{method: GET, path: {value: /public}}]}]
";

#[test]
fn attached_routes_replace_default_and_have_own_authorizations() {
    let of_route = POLICY
        .replace("name: allow", "name: readers")
        .replace(
            "group: policy.linkerd.io, kind: Server, name: web-http",
            "group: gateway.networking.k8s.io, kind: HTTPRoute, name: get",
        )
        .replace(
            "[{group: policy.linkerd.io, kind: MeshTLSAuthentication, name: clients}]",
            "[]",
        );
    let mut index = index(&(web("") + SERVER + ROUTE + &of_route));
    let rx = inbound(&mut index, 8080);
    let policy = current(&rx);
    let routes = &http(&policy).routes;
    assert_eq!(routes.len(), 1);
    assert_eq!(
        (routes[0].meta.kind(), routes[0].meta.name()),
        ("HTTPRoute", "get")
    );
    let request = |method: &str, path: &str| {
        let request = http_crate_request(method, path);
        let found = mesh_core::policy::inbound::http_rule(routes, &RequestHead::from(&request))?;
        let rule = &routes[found.route].rules[found.rule];
        Some(rule.action.authorizations[0].meta.name().to_owned())
    };
    assert_eq!(request("GET", "/public/a").as_deref(), Some("readers"));
    assert_eq!(request("PUT", "/public/a"), None);
    assert_eq!(
        request("GET", "/ready"),
        None,
        "attached routes replace the probe route"
    );
    assert_eq!(
        authorization_of(&policy, None),
        "",
        "the authorization only applies to the route"
    );

    // A route with an unsupported reference is not accepted.
    for change in [
        ", port: 8080}]",
        ", sectionName: x}]",
        ", namespace: other}]",
    ] {
        index.apply(apply(
            &ROUTE.replace("name: web-http}]", &format!("name: web-http{change}")),
        ));
        assert_eq!(
            http(&current(&rx)).routes[0].meta.name(),
            "default",
            "{change}"
        );
    }
    index.apply(apply(ROUTE));
    assert_eq!(http(&current(&rx)).routes[0].meta.name(), "get");
    index.apply(delete(Kind::GatewayHttpRoute, "shop", "get"));
    assert_eq!(http(&current(&rx)).routes[0].meta.name(), "default");
}

fn http_crate_request(method: &str, path: &str) -> ::http::Request<()> {
    ::http::Request::builder()
        .method(method)
        .uri(path)
        .body(())
        .unwrap()
}

fn outbound(
    index: &mut PolicyIndex,
    addr: &str,
    client: &str,
) -> watch::Receiver<Arc<Version<Option<OutboundPolicy>>>> {
    let target = Target::Addr(addr.parse().unwrap());
    index.outbound(&target, &client.into()).unwrap()
}

fn detected(policy: &Option<OutboundPolicy>) -> &HttpRoutes {
    match &policy.as_ref().unwrap().protocol {
        OutboundProtocol::Detect { http1, http2, .. } => {
            assert_eq!(http1, http2);
            http1
        }
        other => panic!("{other:?}"),
    }
}

/// Returns the authority of the only backend of the first rule.
fn authority(routes: &HttpRoutes) -> String {
    match &routes.routes[0].rules[0].action.backends {
        Distribution::FirstAvailable(backends) => match &backends[0].backend.target {
            BackendTarget::Balance { authority, .. } => authority.to_string(),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

#[test]
fn service_without_routes_has_default_route() {
    let mut index = index(SERVICE);
    let rx = outbound(&mut index, "10.96.0.1:80", "shop");
    let watched = rx.borrow().clone();
    let policy = watched.as_ref().as_ref().unwrap();
    assert_eq!(
        (
            policy.parent.group(),
            policy.parent.kind(),
            policy.parent.port()
        ),
        ("core", "Service", Some(80))
    );
    let http = detected(&watched);
    assert_eq!(http.routes[0].meta.name(), "http");
    assert_eq!(authority(http), "web.shop.svc.cluster.local:80");
    assert!(!http.routes[0].rules[0].action.allow_request_headers);
}

#[test]
fn targets_are_resolved_to_policies() {
    let mut index = index(SERVICE);
    let mut kind = |target: Target| {
        index.outbound(&target, &"shop".into()).map(|rx| {
            let policy = rx.borrow().value().as_ref().clone().unwrap();
            match &policy.protocol {
                OutboundProtocol::Detect { .. } => format!("detect {}", policy.parent.name()),
                OutboundProtocol::Http1(_) => format!("http1 {}", policy.parent.name()),
                OutboundProtocol::Opaque(Some(route)) => {
                    let forbidden = route.verdict == TcpVerdict::Forbidden;
                    format!("opaque {} {forbidden}", route.meta.name())
                }
                other => panic!("{other:?}"),
            }
        })
    };
    let mut addr = |addr: &str| kind(Target::Addr(addr.parse().unwrap()));
    assert_eq!(addr("10.96.0.1:80").unwrap(), "detect web");
    assert_eq!(addr("10.96.0.1:81").unwrap(), "http1 web");
    assert_eq!(addr("10.96.0.1:3306").unwrap(), "opaque opaq false");
    assert_eq!(addr("10.96.0.1:99").unwrap(), "opaque undefined-port true");
    assert_eq!(addr("[::ffff:10.96.0.1]:80").unwrap(), "detect web");
    assert_eq!(addr("192.0.2.1:80").unwrap(), "detect egress-fallback");
    assert_eq!(addr("10.99.0.1:80"), Err(OutboundError::NoSuchService));

    let mut authority = |authority: &str| kind(Target::Authority(authority.into()));
    for name in [
        "web.shop.svc.cluster.local:80",
        "web.shop.svc.cluster.local.",
        "web.shop.svc",
    ] {
        assert_eq!(authority(name).unwrap(), "detect web", "{name}");
    }
    assert_eq!(
        authority("web.shop.svc.cluster.local:3306").unwrap(),
        "opaque opaq false"
    );
    for name in [
        "web.shop",
        "example.com:80",
        "a.web.shop.svc.cluster.local",
        "10.96.0.1:80",
    ] {
        assert_eq!(authority(name), Err(OutboundError::NoSuchService), "{name}");
    }
    for name in ["", ":80", "web.shop.svc:0", "a b", "web.shop.svc:"] {
        assert_eq!(
            authority(name),
            Err(OutboundError::InvalidAuthority(name.into())),
            "{name}"
        );
    }
}

const SPLIT: &str = "---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: split, namespace: shop, annotations: {retry.linkerd.io/limit: '3'}}
spec:
  parentRefs: [{group: core, kind: Service, name: web, port: 80}]
  rules:
  - backendRefs: [{name: web, port: 80, weight: 9}, {name: canary, port: 80}, {name: off, port: 80, weight: 0}]
    timeouts: {request: 2s}
";

#[test]
fn missing_backend_fails_requests_until_it_exists() {
    let mut index = index(&(SERVICE.to_owned() + SPLIT));
    let rx = outbound(&mut index, "10.96.0.1:80", "anyone");
    let backends =
        |rx: &watch::Receiver<Arc<Version<Option<OutboundPolicy>>>>| match &detected(&rx.borrow())
            .routes[0]
            .rules[0]
            .action
            .backends
        {
            Distribution::RandomAvailable(backends) => backends.clone(),
            other => panic!("{other:?}"),
        };
    let seen = backends(&rx);
    assert_eq!((seen.len(), seen[0].1, seen[1].1), (2, 9, 1));
    assert_eq!(seen[1].0.backend.target, BackendTarget::None);
    assert!(matches!(
        &seen[1].0.filters[0],
        Filter::InjectHttpFailure { message, .. } if **message == *"Service not found canary"
    ));
    let rule = detected(&rx.borrow()).routes[0].rules[0].action.clone();
    assert_eq!(
        rule.timeouts.request,
        Some(std::time::Duration::from_secs(2))
    );
    assert_eq!(rule.retry.unwrap().max_retries, 3);
    assert!(rule.allow_request_headers);

    let canary = SERVICE
        .replace("name: web,", "name: canary,")
        .replace("10.96.0.1", "10.96.0.2");
    index.apply(apply(&canary));
    assert!(matches!(
        backends(&rx)[1].0.backend.target,
        BackendTarget::Balance { .. }
    ));
    assert!(backends(&rx)[1].0.filters.is_empty());
    // The route is not attached to another port.
    let plain = outbound(&mut index, "10.96.0.1:81", "anyone");
    assert!(
        matches!(&plain.borrow().as_ref().as_ref().unwrap().protocol, OutboundProtocol::Http1(http) if http.routes[0].meta.name() == "http")
    );
}

#[test]
fn routes_of_client_namespace_only_apply_to_its_clients() {
    let consumer = SPLIT
        .replace(
            "name: split, namespace: shop",
            "name: mine, namespace: client",
        )
        .replace("name: web, port: 80}]", "name: web, namespace: shop}]");
    let mut index = index(&(SERVICE.to_owned() + &consumer));
    let names = |rx: &watch::Receiver<Arc<Version<Option<OutboundPolicy>>>>| -> Vec<String> {
        detected(&rx.borrow())
            .routes
            .iter()
            .map(|route| route.meta.name().to_owned())
            .collect()
    };
    let client = outbound(&mut index, "10.96.0.1:80", "client");
    let other = outbound(&mut index, "10.96.0.1:80", "other");
    assert_eq!(names(&client), ["mine"]);
    assert_eq!(names(&other), ["http"]);
    index.apply(apply(SPLIT));
    assert_eq!(names(&other), ["split"]);
    assert_eq!(names(&client), ["mine", "split"]);
    // A headless Service has no routes.
    let headless = SERVICE
        .replace("clusterIPs: [10.96.0.1]", "clusterIPs: [None]")
        .replace("clusterIP: 10.96.0.1", "clusterIP: None");
    let by_name = Target::Authority("web.shop.svc:80".into());
    let by_name = index.outbound(&by_name, &"client".into()).unwrap();
    assert_eq!(names(&by_name), ["mine", "split"]);
    index.apply(apply(&headless));
    assert_eq!(names(&by_name), ["http"]);
    assert!(client.borrow().is_none(), "it does not have the address");
}

#[test]
fn grpc_routes_set_protocol() {
    let grpc = SPLIT
        .replace("kind: HTTPRoute", "kind: GRPCRoute")
        .replace("\n    timeouts: {request: 2s}", "");
    let mut index = index(&(SERVICE.to_owned() + SPLIT + &grpc));
    let rx = outbound(&mut index, "10.96.0.1:80", "shop");
    let policy = rx.borrow().value().as_ref().clone().unwrap();
    let OutboundProtocol::Grpc(routes) = &policy.protocol else {
        panic!("{policy:?}");
    };
    assert_eq!(routes.routes[0].meta.kind(), "GRPCRoute");
    index.apply(delete(Kind::GatewayGrpcRoute, "shop", "split"));
    assert_eq!(detected(&rx.borrow()).routes[0].meta.name(), "split");
}

#[test]
fn service_annotations_are_defaults_of_its_routes() {
    let annotated = SERVICE.replace(
        "{name: web, namespace: shop}",
        "{name: web, namespace: shop, annotations: {timeout.linkerd.io/request: 1s, timeout.linkerd.io/idle: 5s, \
         retry.linkerd.io/http: 5xx, balancer.linkerd.io/failure-accrual: consecutive, balancer.alpha.linkerd.io/penalize-failures: 'true'}}",
    );
    let mut index = index(&annotated);
    let rx = outbound(&mut index, "10.96.0.1:80", "shop");
    let rule = |rx: &watch::Receiver<Arc<Version<Option<OutboundPolicy>>>>| {
        detected(&rx.borrow()).routes[0].rules[0].action.clone()
    };
    let seconds = |s| Some(std::time::Duration::from_secs(s));
    assert_eq!(
        (rule(&rx).timeouts.request, rule(&rx).timeouts.idle),
        (seconds(1), seconds(5))
    );
    assert_eq!(rule(&rx).retry.unwrap().conditions, [500..=599]);
    assert!(detected(&rx.borrow()).failure_accrual.is_some());
    let Distribution::FirstAvailable(own) = rule(&rx).backends else {
        panic!("{:?}", rule(&rx));
    };
    assert!(
        matches!(&own[0].backend.target, BackendTarget::Balance { load, queue, .. } if load.penalty.is_some() && *queue == Queue::LINKERD)
    );

    // The timeout of the rule applies, and the route's retries replace the Service's.
    index.apply(apply(SPLIT));
    assert_eq!(
        (rule(&rx).timeouts.request, rule(&rx).timeouts.idle),
        (seconds(2), seconds(5))
    );
    assert_eq!(rule(&rx).retry.unwrap().max_retries, 3);
    // A timeout annotation of the route replaces the timeouts of the Service and the rule.
    let limited = SPLIT.replace(
        "retry.linkerd.io/limit: '3'",
        "timeout.linkerd.io/request: 9s",
    );
    index.apply(apply(&limited));
    assert_eq!(
        (rule(&rx).timeouts.request, rule(&rx).timeouts.idle),
        (seconds(9), None)
    );
}

#[test]
fn policies_can_be_encoded_and_decoded() {
    let mut index =
        index(&(SERVICE.to_owned() + SPLIT + &web("") + SERVER + ROUTE + POLICY + CLIENTS));
    for addr in [
        "10.96.0.1:80",
        "10.96.0.1:81",
        "10.96.0.1:3306",
        "10.96.0.1:99",
        "192.0.2.1:80",
    ] {
        let rx = outbound(&mut index, addr, "shop");
        let policy = rx.borrow().value().as_ref().clone().unwrap();
        let sent = mesh_api::outbound::to_proto(&policy);
        let read = mesh_api::outbound::outbound_policy(sent);
        assert_eq!(read, Ok(policy), "{addr}");
    }
    for port in [8080, 3306, 4191] {
        let rx = inbound(&mut index, port);
        let sent = mesh_api::inbound::to_proto(&current(&rx));
        assert!(mesh_api::inbound::server_policy(sent).is_ok(), "{port}");
    }
}
