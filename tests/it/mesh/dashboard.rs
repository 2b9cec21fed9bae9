//! `meshctl local dashboard` shows a local node: statistics, objects, checks and live requests.

use std::net::TcpListener;

use mesh_test_support::command::{command, succeed};
use mesh_test_support::eventually::eventually;
use mesh_test_support::network::free_address;
use mesh_test_support::require_root;
use serde_json::Value;

use super::{manifests, send_requests};
use crate::harness::mesh::Mesh;

/// Prints the first three events of a tap of the dashboard at a port. The library is a package of
/// Debian, whose Python need not be the first on `PATH`.
const TAP: &str = "\
import asyncio, json, sys, websockets
async def main():
    url = f'ws://localhost:{sys.argv[1]}/api/tap'
    async with websockets.connect(url, origin=f'http://localhost:{sys.argv[1]}') as socket:
        await socket.send(json.dumps({'resource': 'pod/web', 'namespace': 'app', 'path': '/teapot'}))
        for _ in range(3):
            print(await socket.recv())
asyncio.run(main())
";

#[test]
fn dashboard_shows_statistics_and_live_requests_of_a_local_node() {
    require_root!();
    let mesh = Mesh::up(&[("app.yaml", &manifests::app())]);
    let _requests = send_requests(
        &mesh,
        "app/client",
        "http://web.app.svc.cluster.local/teapot",
        20,
    );
    let port = free_address().port().to_string();
    let dashboard = mesh.start_meshctl(format!("local dashboard --show url --port {port}"));
    let line = dashboard.next_line().expect("the URL");
    assert_eq!(line, format!("The dashboard is at http://localhost:{port}"));

    let get = |path: &str| {
        let url = format!("http://localhost:{port}{path}");
        succeed(&mut command(["curl", "-sS", &url]))
    };
    let get_json = |path: &str| -> Value {
        let body = get(path);
        serde_json::from_str(&body).unwrap_or_else(|error| panic!("{path}: {error}: {body}"))
    };
    assert!(get("/namespaces").contains("<html"));
    eventually("the requests of the server", || {
        let path = "/api/tps-reports?resource_type=pod&resource_name=web&namespace=app&window=15s";
        let report = get_json(path);
        let row = &report["ok"]["statTables"][0]["podGroup"]["rows"][0];
        let count = row["stats"]["successCount"].as_str();
        let count: Option<u64> = count.and_then(|count| count.parse().ok());
        count
            .is_some_and(|count| count > 200)
            .then_some(())
            .ok_or(report)
    });
    // All proxies have been scraped by now.
    let check = get_json("/api/check");
    assert_eq!(check["success"], true, "{check}");
    let path = "/api/resource-definition?namespace=app&resource_type=pod&resource_name=web";
    assert!(get(path).contains("image: web:test"));
    let path = "/api/policies?resource_type=pod&resource_name=web&namespace=app";
    let policies = get_json(path);
    assert_eq!(policies["ports"][0]["pods"][0], "web", "{policies}");
    assert!(policies["ports"][0]["policy"].is_object(), "{policies}");
    let path = "/api/endpoints?resource_type=service&resource_name=web&namespace=app";
    eventually("the load of the server's endpoint", || {
        let endpoints = get_json(path);
        let row = &endpoints["endpoints"][0];
        let count = row["stats"]["successCount"].as_str();
        let count: Option<u64> = count.and_then(|count| count.parse().ok());
        let has_load = row["pod"] == "web" && count.is_some_and(|count| count > 0);
        has_load.then_some(()).ok_or(endpoints)
    });
    let path = "/api/proxies?resource_type=pod&resource_name=web&namespace=app";
    let proxies = get_json(path);
    let row = &proxies["pods"][0];
    let expires = row["certificateExpires"].as_i64();
    assert!(expires.is_some_and(|at| at > 1_700_000_000), "{proxies}");
    assert!(proxies["metricsProblem"].is_null(), "{proxies}");
    let tier = row["redirection"]["tier"].as_str().unwrap_or_default();
    let tiers = ["full", "split", "nft", "iptables"];
    assert!(tiers.contains(&tier), "{proxies}");

    let extension = get_json("/api/extensions?extension_name=viz");
    assert_eq!(extension["namespace"], "linkerd-viz", "{extension}");

    let events = succeed(&mut command(["/usr/bin/python3", "-c", TAP, &port]));
    assert_eq!(events.lines().count(), 3, "{events}");
    for event in events.lines() {
        let event: Value = serde_json::from_str(event).expect("an event is JSON");
        assert_eq!(event["proxyDirection"], "INBOUND", "{event}");
        assert_eq!(event["sourceMeta"]["labels"]["pod"], "client", "{event}");
    }

    // The controller ends with the command.
    drop(dashboard);
    eventually("the port is free", || {
        TcpListener::bind(format!("127.0.0.1:{port}"))
    });
}
