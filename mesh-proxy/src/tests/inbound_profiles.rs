//! Inbound requests that have a route of a ServiceProfile: its metrics, and the classification of
//! their responses.

use std::collections::BTreeMap;

use mesh_core::profile::{Profile, ProfileRoute, RequestMatch, ResponseClass, ResponseMatch};
use mesh_core::route::AnchoredRegex;
use tokio::net::TcpStream;

use super::app::{App, expect, send};
use super::world::{POD, Proxy, WEB, World, run, settle};

const NAME: &str = "web.shop.svc.cluster.local:8080";

/// A route of the paths that match an expression.
fn route(name: &str, path: &str, response_classes: Vec<ResponseClass>) -> ProfileRoute {
    ProfileRoute {
        condition: RequestMatch::Path(AnchoredRegex::new(path).unwrap()),
        response_classes,
        labels: BTreeMap::from([("route".to_owned(), name.to_owned())]),
        retryable: false,
        timeout: None,
    }
}

/// The profile of the Service web: responses 404 of its route `items` are failures.
fn profile() -> Profile {
    let not_found = ResponseClass {
        condition: ResponseMatch::Status { min: 404, max: 404 },
        is_failure: true,
    };
    let routes = vec![
        route("items", "/items/.*", vec![not_found]),
        route("unused", "/unused", Vec::new()),
    ];
    Profile {
        fqn: Some("web.shop.svc.cluster.local".into()),
        routes: routes.into(),
        ..Profile::default()
    }
}

/// Sends a request with these fields and answers it.
async fn exchange(client: &mut TcpStream, app: &mut TcpStream, path: &str, fields: &str) {
    send(client, &format!("GET {path} HTTP/1.1\r\n{fields}\r\n")).await;
    super::app::head(app).await;
    send(app, "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n").await;
    expect(client, 404).await;
}

/// A client's connection through the proxy, and the application's.
async fn connected(proxy: &Proxy, app: &App, fields: &str) -> (TcpStream, TcpStream) {
    let mut client = proxy.inbound(app.addr).await;
    send(&mut client, &format!("GET / HTTP/1.1\r\n{fields}\r\n")).await;
    let (mut server, _request) = app.receive().await;
    send(&mut server, "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
    expect(&mut client, 200).await;
    // No request waits for the profile, which the first one has looked up.
    settle().await;
    (client, server)
}

#[test]
fn requests_are_counted_and_classified_by_route() {
    let by_authority = format!("host: {NAME}\r\n");
    let by_header = format!("host: {POD}\r\nl5d-dst-canonical: {NAME}\r\n");
    let invalid_header = format!("host: {NAME}\r\nl5d-dst-canonical: ?\r\n");
    for fields in [by_authority, by_header, invalid_header] {
        run(async || {
            let world = World::new().await;
            world.knows(NAME, profile());
            let proxy = world.proxy(WEB);
            let app = App::start().await;
            let (mut client, mut server) = connected(&proxy, &app, &fields).await;
            assert_eq!(proxy.metric("route_"), 0);
            exchange(&mut client, &mut server, "/items/1", &fields).await;
            exchange(&mut client, &mut server, "/items/2", &fields).await;
            // As in Linkerd, a request without a route is in no series of these families.
            exchange(&mut client, &mut server, "/other", &fields).await;
            let labels = format!("{{direction=\"inbound\",dst=\"{NAME}\",rt_route=\"items\"");
            let count = |family: &str, rest: &str| proxy.metric(&format!("{family}{labels}{rest}"));
            assert_eq!(count("route_request_total", "}"), 2);
            let response =
                ",status_code=\"404\",classification=\"failure\",grpc_status=\"\",error=\"\"}";
            assert_eq!(count("route_response_total", response), 2);
            let latency = ",status_code=\"404\"}";
            assert_eq!(count("route_response_latency_ms_count", latency), 2);
            for family in ["route_request_total{", "route_response_total{"] {
                assert_eq!(proxy.metric(family), 2);
            }
            for family in ["route_actual", "route_retryable"] {
                assert_eq!(proxy.metric(family), 0);
            }
            let text = String::from_utf8(proxy.registry.encode()).unwrap();
            let classified = |class: &str| {
                let class = format!("classification=\"{class}\"");
                let lines = text
                    .lines()
                    .filter(|line| line.starts_with("response_total{"));
                let lines = lines.filter(|line| line.contains(&class));
                let values = lines.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok());
                values.sum::<u64>()
            };
            assert_eq!((classified("failure"), classified("success")), (2, 2));
        });
    }
}

#[test]
fn names_without_routes_are_counted_in_no_route() {
    for (host, profile) in [
        // Not within the suffixes, not a name, and a Service without routes.
        ("web.shop.example:8080", profile()),
        ("10.77.0.1:8080", profile()),
        (
            NAME,
            Profile {
                routes: Vec::new().into(),
                ..profile()
            },
        ),
        // A pod's profile has no name.
        (
            NAME,
            Profile {
                fqn: None,
                ..profile()
            },
        ),
    ] {
        run(async || {
            let world = World::new().await;
            world.knows(host, profile.clone());
            let proxy = world.proxy(WEB);
            let app = App::start().await;
            let fields = format!("host: {host}\r\n");
            let (mut client, mut server) = connected(&proxy, &app, &fields).await;
            exchange(&mut client, &mut server, "/items/1", &fields).await;
            assert_eq!(proxy.metric("route_"), 0, "{host}");
        });
    }
}

#[test]
fn requests_of_one_connection_have_routes_of_their_own_names() {
    run(async || {
        let world = World::new().await;
        world.knows(NAME, profile());
        let other = "api.shop.svc.cluster.local:80";
        let fqn = Some("api.shop.svc.cluster.local".into());
        world.knows(other, Profile { fqn, ..profile() });
        let proxy = world.proxy(WEB);
        let app = App::start().await;
        let fields = [NAME, "api.shop.svc.cluster.local"].map(|host| format!("host: {host}\r\n"));
        let (mut client, mut server) = connected(&proxy, &app, &fields[0]).await;
        exchange(&mut client, &mut server, "/", &fields[1]).await;
        settle().await;
        for n in 0..6 {
            exchange(&mut client, &mut server, "/items/1", &fields[n % 2]).await;
        }
        for name in [NAME, other] {
            let series = format!("route_request_total{{direction=\"inbound\",dst=\"{name}\"");
            assert_eq!(proxy.metric(&series), 3, "{name}");
        }
    });
}

/// Clients choose the names. Further ones have no routes, and are forwarded.
#[test]
fn requests_with_too_many_names_are_forwarded() {
    run(async || {
        let world = World::new().await;
        world.knows(NAME, profile());
        let proxy = world.proxy(WEB);
        let app = App::start().await;
        let first = format!("host: {NAME}\r\n");
        let (mut client, mut server) = connected(&proxy, &app, &first).await;
        for n in 0..crate::discovery::MAX_PROFILES + 20 {
            let fields = format!("host: {n}.shop.svc.cluster.local\r\n");
            exchange(&mut client, &mut server, "/items/1", &fields).await;
        }
        exchange(&mut client, &mut server, "/items/1", &first).await;
        let series = format!("route_request_total{{direction=\"inbound\",dst=\"{NAME}\"");
        assert_eq!(proxy.metric(&series), 1);
        assert_eq!(proxy.profiles(), crate::discovery::MAX_PROFILES);
    });
}
