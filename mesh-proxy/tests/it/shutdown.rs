//! SIGTERM: nothing new, everything begun is finished.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use mesh_core::policy::inbound::ServerProtocol;

use crate::harness::{HttpApp, Mesh, policies, within};

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
    assert!(pod.proxy_mut().ended().await.success());
}

#[tokio::test]
async fn open_connections_are_waited_for_and_admin_answers_meanwhile() {
    let Some(mesh) = Mesh::new() else { return };
    let mut pod = mesh
        .pod("pod")
        .meshed_with(&[("INBOUND_PORTS", "7000")])
        .await;
    let outsider = mesh.pod("outsider");
    let open = policies::server(ServerProtocol::Opaque, vec![policies::everybody()]);
    mesh.control.server("pod", 7000, open);
    let listener = pod
        .spawn(TcpListener::bind(("0.0.0.0", 7000)))
        .await
        .unwrap();
    pod.start(async move {
        let (mut tcp, _) = listener.accept().await.unwrap();
        let (mut from, mut to) = tcp.split();
        let _ = tokio::io::copy(&mut from, &mut to).await;
    });
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
    assert!(pod.proxy_mut().ended().await.success());
}
