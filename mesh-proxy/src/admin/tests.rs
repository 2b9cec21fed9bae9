//! The routes without sockets.

use std::sync::OnceLock;

use bytes::Bytes;
use http::Request;
use http::header::ACCEPT;
use http_body_util::{BodyExt as _, Full};
use mesh_runtime::log::{Format, Settings};

use super::*;

const LOCAL: &str = "127.0.0.1:9";
const REMOTE: &str = "192.0.2.1:9";

fn admin(shutdown: Option<CancellationToken>) -> Admin {
    routes(Registry::new(), Readiness::new(), log(), shutdown)
}

/// The process has one subscriber, shared by all tests.
fn log() -> FilterHandle {
    static LOG: OnceLock<FilterHandle> = OnceLock::new();
    let settings = Settings {
        filter: "off",
        format: Format::Plain,
        aliases: &[],
    };
    LOG.get_or_init(|| mesh_runtime::log::init(settings).unwrap())
        .clone()
}

async fn request(
    admin: &Admin,
    builder: http::request::Builder,
    peer: &str,
) -> (StatusCode, String) {
    let request = builder.body(Full::<Bytes>::default()).unwrap();
    let response = admin.respond(request, peer.parse().unwrap()).await;
    let (head, body) = response.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    (head.status, String::from_utf8(body.to_vec()).unwrap())
}

#[tokio::test]
async fn shutdown_must_be_enabled_and_posted_from_the_pod() {
    let disabled = admin(None);
    let token = CancellationToken::new();
    let enabled = admin(Some(token.clone()));
    let post = || Request::post("/shutdown");
    assert_eq!(
        request(&disabled, post(), LOCAL).await,
        (
            StatusCode::NOT_FOUND,
            "shutdown endpoint is not enabled\n".to_owned()
        )
    );
    assert_eq!(
        request(&enabled, post(), REMOTE).await.0,
        StatusCode::FORBIDDEN
    );
    let get = Request::get("/shutdown");
    assert_eq!(
        request(&enabled, get, LOCAL).await.0,
        StatusCode::METHOD_NOT_ALLOWED
    );
    assert!(!token.is_cancelled());
    assert_eq!(
        request(&enabled, post(), LOCAL).await,
        (StatusCode::OK, "shutdown\n".to_owned())
    );
    assert!(token.is_cancelled());
}

#[tokio::test]
async fn refusal_of_a_method_names_the_allowed_one() {
    let admin = admin(None);
    let get = Request::get("/shutdown").body(Full::<Bytes>::default());
    let response = admin.respond(get.unwrap(), LOCAL.parse().unwrap()).await;
    assert_eq!(response.status(), StatusCode::METHOD_NOT_ALLOWED);
    assert_eq!(response.headers()["allow"], "POST");
}

#[tokio::test]
async fn environment_is_returned_to_clients_in_the_pod_only() {
    let admin = admin(None);
    let get = |query: &str| Request::get(format!("/env.json{query}"));
    assert_eq!(
        request(&admin, get(""), REMOTE).await.0,
        StatusCode::FORBIDDEN
    );

    let (status, all) = request(&admin, get(""), LOCAL).await;
    assert_eq!(status, StatusCode::OK);
    assert!(all.starts_with('{') && all.contains("\"CARGO_PKG_NAME\":\"mesh-proxy\""));
    let (_, two) = request(&admin, get("?CARGO_PKG_NAME&NO_SUCH_VARIABLE"), LOCAL).await;
    assert_eq!(
        two,
        r#"{"CARGO_PKG_NAME":"mesh-proxy","NO_SUCH_VARIABLE":null}"#
    );

    assert_eq!(
        request(&admin, get("?A=b"), LOCAL).await.0,
        StatusCode::BAD_REQUEST
    );
    let html = get("").header(ACCEPT, "text/html");
    assert_eq!(
        request(&admin, html, LOCAL).await.0,
        StatusCode::NOT_ACCEPTABLE
    );
    let json = get("").header(ACCEPT, "text/html, application/json;q=0.5");
    assert_eq!(request(&admin, json, LOCAL).await.0, StatusCode::OK);
}
