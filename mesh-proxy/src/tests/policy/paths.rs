//! Rules for paths, and targets that servers interpret differently.

use mesh_core::policy::inbound::{HttpServer, InboundRule, ServerProtocol, default_http_route};
use mesh_core::route::Rule;
use mesh_core::route::http::{HttpMatch, PathMatch};
use mesh_http2::Role;

use super::*;
use crate::tests::app::{expect, send};
use crate::tests::http2_peer::Http2Peer;

fn by_path(path: &str) -> Server {
    let rule = Rule {
        matches: vec![HttpMatch {
            path: Some(PathMatch::Prefix(path.to_owned())),
            ..HttpMatch::default()
        }],
        action: InboundRule::default(),
    };
    let mut route = default_http_route();
    route.rules = vec![rule];
    let policy = DefaultPolicy::AllUnauthenticated;
    let mut policy = policy.server_policy(&[], Duration::from_secs(10), false);
    policy.protocol = ServerProtocol::Detect {
        timeout: Duration::from_secs(10),
        http: HttpServer {
            routes: vec![route],
            rate_limit: None,
        },
    };
    mesh_api::inbound::to_proto(&policy)
}

/// The proxy escapes such a byte for itself, and the application reads it as it is.
#[test]
fn target_beyond_the_syntax_of_uris_matches_no_rule_for_paths_in_either_protocol() {
    run(async || {
        for (path, status) in [("/open/a", 200), ("/open/a<b>", 404), ("/open/`", 404)] {
            let (app, scene, _policy) = under(by_path("/open")).await;
            app.named("web");
            let mut client = scene.proxy.inbound(scene.app).await;
            send(
                &mut client,
                &format!("GET {path} HTTP/1.1\r\nhost: web\r\n\r\n"),
            )
            .await;
            expect(&mut client, status).await;
            let client = scene.proxy.inbound(scene.app).await;
            let mut client = Http2Peer::new(client, Role::Client);
            let id = client.get(path.as_bytes()).await;
            let response = client.response(id).await.unwrap();
            assert_eq!(response.status(), status, "{path}");
        }
    });
}
