//! SIGTERM: nothing new, everything begun is finished.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use mesh_core::policy::inbound::ServerProtocol;

use crate::harness::{HttpApp, Mesh, echo, policies, within};

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";

#[tokio::test]
async fn idle_http_connections_are_closed_and_the_proxy_ends() {
    let Some(mesh) = Mesh::new() else { return };
    let mut pod = mesh.pod("pod").meshed().await;
    let outsider = mesh.pod("outsider");
    let _app = HttpApp::start(&pod, 8080, OK).await;
    let mut tcp = outsider.connect(pod.addr(8080)).await.unwrap();
    tcp.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
        .await
        .unwrap();
    let mut answer = vec![0; OK.len()];
    within("the answer", tcp.read_exact(&mut answer))
        .await
        .unwrap();

    pod.proxy().terminate();
    let end = within("the connection is closed", tcp.read(&mut answer)).await;
    assert_eq!(end.unwrap(), 0);
    assert!(pod.proxy_mut().exited().await.success());
}

#[tokio::test]
async fn open_connections_are_waited_for_and_admin_answers_meanwhile() {
    let Some(mesh) = Mesh::new() else { return };
    let mut pod = mesh
        .pod("pod")
        .meshed_with(&[("INBOUND_PORTS", "7000")])
        .await;
    let outsider = mesh.pod("outsider");
    let open = policies::server(ServerProtocol::Opaque, vec![policies::every_client()]);
    mesh.control.server("pod", 7000, open);
    pod.listen(7000, echo).await;
    let mut tcp = outsider.connect(pod.addr(7000)).await.unwrap();
    let mut echo = [0; 4];
    tcp.write_all(b"ping").await.unwrap();
    within("the echo", tcp.read_exact(&mut echo)).await.unwrap();

    pod.proxy().terminate();
    pod.proxy().logged("draining").await;
    tcp.write_all(b"pong").await.unwrap();
    within("the echo", tcp.read_exact(&mut echo)).await.unwrap();
    assert_eq!(&echo, b"pong");
    assert!(pod.metrics().await.contains("tcp_open_connections"));
    tcp.shutdown().await.unwrap();
    assert_eq!(within("the end", tcp.read(&mut echo)).await.unwrap(), 0);
    assert!(pod.proxy_mut().exited().await.success());
}

/// An application that terminates together with its proxy completes a request, and sends requests
/// to other services for it.
#[tokio::test]
async fn connections_are_accepted_as_long_as_others_are_open() {
    let Some(mesh) = Mesh::new() else { return };
    let mut pod = mesh.pod("pod").meshed().await;
    let outsider = mesh.pod("outsider");
    let mut app = HttpApp::start(&pod, 8080, OK).await;
    let mut elsewhere = HttpApp::start(&outsider, 9090, OK).await;
    let opening = b"POST /begun HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\n\r\n";
    let mut begun = outsider.connect(pod.addr(8080)).await.unwrap();
    begun.write_all(opening).await.unwrap();
    // The body is missing: the request is open while the proxy drains.
    pod.metric(&["request_total", "direction=\"inbound\"", "8080"])
        .await;
    pod.proxy().terminate();
    pod.proxy().logged("draining").await;

    let answer = pod.get(outsider.addr(9090), "b", "/asked").await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert_eq!(
        elsewhere.received().await.request_line(),
        "GET /asked HTTP/1.1"
    );
    // A client that would keep its connection is told not to.
    let mut late = outsider.connect(pod.addr(8080)).await.unwrap();
    late.write_all(b"GET /late HTTP/1.1\r\nhost: a\r\n\r\n")
        .await
        .unwrap();
    let mut answer = String::new();
    within("the late answer", late.read_to_string(&mut answer))
        .await
        .unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(answer.contains("connection: close"), "{answer}");

    begun.write_all(b"x").await.unwrap();
    let mut answer = String::new();
    within("the answer", begun.read_to_string(&mut answer))
        .await
        .unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let mut lines = [app.received().await, app.received().await];
    lines.sort_by_key(|request| request.request_line().to_owned());
    assert_eq!(lines[0].request_line(), "GET /late HTTP/1.1");
    assert_eq!(lines[1].body, "x");
    assert!(pod.proxy_mut().exited().await.success());
}
