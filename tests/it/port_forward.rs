//! Port-forwards of a played API server, as `meshctl` opens them to pods.

use std::net::SocketAddr;

use futures_util::{SinkExt as _, StreamExt as _};
use http::header::{CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_PROTOCOL, UPGRADE};
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::{Message, Role};

/// Accepts the WebSocket of a port-forward. `target` returns where a port of a pod,
/// `NAMESPACE/POD`, is.
pub(crate) fn accept(
    mut request: Request<Incoming>,
    target: impl FnOnce(&str, u16) -> Option<SocketAddr>,
) -> Response<Full<Bytes>> {
    let parts: Vec<&str> = request.uri().path().split('/').collect();
    let pod = format!("{}/{}", parts[4], parts[6]);
    let query = request.uri().query().unwrap_or_default();
    let port = query.split('&').find_map(|it| it.strip_prefix("ports="));
    let port: u16 = port.and_then(|it| it.parse().ok()).expect("a port");
    let target = target(&pod, port);
    let key = request.headers()["sec-websocket-key"].as_bytes().to_vec();
    let upgrade = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        let upgraded = upgrade.await.expect("an upgrade");
        let io = TokioIo::new(upgraded);
        let socket = WebSocketStream::from_raw_socket(io, Role::Server, None).await;
        // Clients close connections whenever they want.
        let _closed = carry(socket, port, target).await;
    });
    let builder = Response::builder()
        .status(StatusCode::SWITCHING_PROTOCOLS)
        .header(CONNECTION, "Upgrade")
        .header(UPGRADE, "websocket")
        .header(SEC_WEBSOCKET_ACCEPT, derive_accept_key(&key))
        .header(SEC_WEBSOCKET_PROTOCOL, "v4.channel.k8s.io");
    builder.body(Full::default()).expect("a response")
}

/// Carries the bytes of a port. The first byte of a message is its channel: 0 has the bytes, and 1
/// an error. Each begins with the port.
async fn carry<S>(
    mut socket: WebSocketStream<S>,
    port: u16,
    target: Option<SocketAddr>,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let [low, high] = port.to_le_bytes();
    for channel in [0, 1] {
        socket
            .send(Message::binary(vec![channel, low, high]))
            .await?;
    }
    let tcp = match target {
        Some(target) => TcpStream::connect(target)
            .await
            .map_err(|error| error.to_string()),
        None => Err("the pod has no such port".to_owned()),
    };
    let mut tcp = match tcp {
        Ok(tcp) => tcp,
        Err(reason) => {
            let message = [&[1], reason.as_bytes()].concat();
            socket.send(Message::binary(message)).await?;
            return Ok(socket.close(None).await?);
        }
    };
    let mut buffer = vec![0; 16 * 1024];
    loop {
        tokio::select! {
            message = socket.next() => match message.transpose()? {
                Some(Message::Binary(bytes)) => tcp.write_all(bytes.get(1..).unwrap_or_default()).await?,
                Some(Message::Close(_)) | None => return Ok(()),
                Some(_) => {}
            },
            read = tcp.read(&mut buffer) => match read? {
                0 => return Ok(socket.close(None).await?),
                length => {
                    let message = [&[0], &buffer[..length]].concat();
                    socket.send(Message::binary(message)).await?;
                }
            },
        }
    }
}
