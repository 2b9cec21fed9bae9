//! Label sets in the format of Linkerd's proxy.

use mesh_core::endpoint::TlsPeer;
use mesh_core::meta::Resource;

use super::*;

fn printed(labels: &Labels) -> String {
    let pairs: Vec<_> = labels
        .iter()
        .map(|(name, value)| format!("{name}={value:?}"))
        .collect();
    pairs.join(",")
}

fn service() -> Meta {
    Meta::Resource(Resource {
        group: "core".into(),
        kind: "Service".into(),
        namespace: "shop".into(),
        name: "web".into(),
        section: "".into(),
        port: Some(80),
    })
}

#[test]
fn accepted_connection_has_labels_of_linkerd() {
    let addr: SocketAddr = "127.0.0.1:4191".parse().unwrap();
    let server = Meta::new_default("all-unauthenticated");
    let plain = ServerTls::None(NoServerTls::NoTlsFromRemote);
    // Copied from the metrics of Linkerd's proxy.
    assert_eq!(
        printed(&inbound_accept(addr.into(), &plain, &server)),
        "direction=\"inbound\",peer=\"src\",target_addr=\"127.0.0.1:4191\",target_ip=\"127.0.0.1\",target_port=\"4191\",\
         tls=\"no_identity\",no_tls_reason=\"no_tls_from_remote\",srv_group=\"\",srv_kind=\"default\",\
         srv_name=\"all-unauthenticated\",srv_port=\"4191\""
    );
    assert_eq!(
        printed(&outbound_accept(addr)),
        "direction=\"outbound\",peer=\"src\",target_addr=\"127.0.0.1:4191\",target_ip=\"127.0.0.1\",target_port=\"4191\",\
         tls=\"no_identity\",no_tls_reason=\"loopback\""
    );
    assert_eq!(
        printed(&inbound_connect()),
        "direction=\"inbound\",peer=\"dst\",tls=\"no_identity\",no_tls_reason=\"loopback\""
    );
}

#[test]
fn endpoint_labels_from_discovery_are_sorted() {
    let id = Identity::parse("web.shop.example").unwrap();
    let endpoint = Endpoint {
        labels: [("zone", ""), ("namespace", "shop"), ("pod", "web-0")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into(),
        tls: Some(TlsPeer {
            server_name: id.as_str().into(),
            id: id.clone(),
        }),
        ..Endpoint::plain("10.0.0.1:80".parse().unwrap())
    };
    let tls = ClientTls::Established { server: id };
    assert_eq!(
        printed(&outbound_endpoint(
            &endpoint,
            Some("web.shop.svc.cluster.local"),
            &tls
        )),
        "direction=\"outbound\",authority=\"web.shop.svc.cluster.local\",target_addr=\"10.0.0.1:80\",target_ip=\"10.0.0.1\",\
         target_port=\"80\",tls=\"true\",server_id=\"web.shop.example\",dst_namespace=\"shop\",dst_pod=\"web-0\",dst_zone=\"\""
    );
}

#[test]
fn inbound_request_has_labels_of_linkerd() {
    let target = TargetAddr::from(SocketAddr::from(([10, 0, 0, 1], 80)));
    let tls = ServerTls::Established { client: None };
    let (server, route) = (service(), Meta::new_default("probe"));
    let authz = Meta::new_default("localhost");
    let permit = PermitLabels {
        server: &server,
        route: &route,
        authz: &authz,
    };
    assert_eq!(
        printed(&inbound_endpoint(target, None, &tls, permit)),
        "direction=\"inbound\",target_addr=\"10.0.0.1:80\",target_ip=\"10.0.0.1\",target_port=\"80\",tls=\"true\",client_id=\"\",\
         srv_group=\"core\",srv_kind=\"Service\",srv_name=\"web\",srv_port=\"80\",\
         route_group=\"\",route_kind=\"default\",route_name=\"probe\",authz_group=\"\",authz_kind=\"default\",authz_name=\"localhost\""
    );
    assert_eq!(
        printed(&inbound_authz(target, &tls, &server, None, None)),
        "target_addr=\"10.0.0.1:80\",target_ip=\"10.0.0.1\",target_port=\"80\",\
         srv_group=\"core\",srv_kind=\"Service\",srv_name=\"web\",srv_port=\"80\",tls=\"true\",client_id=\"\""
    );
}

#[test]
fn outbound_route_has_labels_of_linkerd() {
    let route = Meta::new_default("http");
    assert_eq!(
        printed(&outbound_route(&service(), &route, None)),
        "parent_group=\"core\",parent_kind=\"Service\",parent_namespace=\"shop\",parent_name=\"web\",parent_port=\"80\",\
         parent_section_name=\"\",route_group=\"\",route_kind=\"default\",route_namespace=\"\",route_name=\"http\",hostname=\"\""
    );
    let backend = printed(&outbound_backend(&service(), &route, &service()));
    assert!(
        backend.ends_with("backend_name=\"web\",backend_port=\"80\",backend_section_name=\"\"")
    );
    assert!(
        printed(&tcp_route(&service(), &route, None)).ends_with("target_ip=\"\",target_port=\"\"")
    );
}

#[test]
fn invalid_authorities_share_one_label_value() {
    let longest = format!("{}.test:65535", ["a"; 124].join("."));
    for authority in [
        "web",
        "web.shop:80",
        "10.0.0.1:8080",
        "[::1]:80",
        "[fd00::1]",
        &longest,
    ] {
        assert_eq!(authority_value(authority), authority);
    }
    let long = format!("{}.test", "a.".repeat(130));
    for authority in [
        "", ":80", "a b", "a/b", "web:http", "[x]:80", "::1", "*.test", &long,
    ] {
        assert_eq!(authority_value(authority), OTHER, "{authority}");
    }
}
