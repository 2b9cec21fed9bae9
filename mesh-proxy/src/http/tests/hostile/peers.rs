//! The honest client and the server next to an attacker.

use bytes::Bytes;

use super::*;

/// A client that sends only valid requests.
pub(super) struct HonestClient(h2::client::SendRequest<Bytes>);

impl HonestClient {
    pub(super) async fn new(proxy: SocketAddr) -> Self {
        let tcp = TcpStream::connect(proxy).await.unwrap();
        // h2 counts small frames as an attack if the connection's window is small.
        let (client, connection) = h2::client::Builder::new()
            .initial_connection_window_size(16 << 20)
            .handshake(tcp)
            .await
            .unwrap();
        tokio::task::spawn_local(connection);
        Self(client)
    }

    /// Sends a request and reads the response completely.
    pub(super) async fn request_once(&self) {
        let mut client = self.0.clone().ready().await.unwrap();
        let request = http::Request::get("http://web/").body(()).unwrap();
        let (response_future, _) = client.send_request(request, true).unwrap();
        let response = response_future.await.unwrap();
        assert_eq!(response.status(), 200);
        let mut body = response.into_body();
        let mut length = 0;
        while let Some(data) = body.data().await {
            let data = data.unwrap();
            body.flow_control().release_capacity(data.len()).unwrap();
            length += data.len();
        }
        assert_eq!(length, RESPONSE_SIZE);
    }

    /// Cancels a request that has been sent.
    pub(super) async fn cancel_request(&self) {
        let mut client = self.0.clone().ready().await.unwrap();
        let request = http::Request::post("http://web/").body(()).unwrap();
        let (response_future, _upload) = client.send_request(request, true).unwrap();
        tokio::task::yield_now().await;
        drop(response_future);
    }

    /// Sends `messages` small messages on one stream, each after the previous one has been echoed.
    pub(super) async fn exchange_messages(&self, messages: usize) {
        let mut client = self.0.clone().ready().await.unwrap();
        let request = http::Request::put("http://web/").body(()).unwrap();
        let (response_future, mut upload) = client.send_request(request, false).unwrap();
        let mut body = response_future.await.unwrap().into_body();
        for _ in 0..messages {
            upload.send_data("hello".into(), false).unwrap();
            let data = body.data().await.unwrap().unwrap();
            body.flow_control().release_capacity(data.len()).unwrap();
        }
        upload.send_data(Bytes::new(), true).unwrap();
        while body.data().await.is_some() {}
    }
}

/// Larger than the initial window of a stream.
pub(super) const RESPONSE_SIZE: usize = 200_000;

/// Starts a server: GET gets a large response immediately, PUT an echo, POST none.
pub(super) async fn start_server() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::task::spawn_local(async move {
        while let Ok((tcp, _)) = listener.accept().await {
            tokio::task::spawn_local(async move {
                let mut builder = h2::server::Builder::new();
                // Rapid resets by a client also reach the server.
                builder
                    .max_concurrent_streams(1000)
                    .max_pending_accept_reset_streams(10_000);
                let Ok(mut connection) = builder.handshake::<_, Bytes>(tcp).await else {
                    return;
                };
                while let Some(Ok((request, mut respond))) = connection.accept().await {
                    if request.method() == http::Method::POST {
                        // Not answered until the client resets the stream.
                        tokio::task::spawn_local(async move {
                            let _reset = std::future::poll_fn(|cx| respond.poll_reset(cx)).await;
                        });
                        continue;
                    }
                    let response = http::Response::new(());
                    if request.method() == http::Method::PUT {
                        tokio::task::spawn_local(echo(request.into_body(), respond));
                        continue;
                    }
                    if let Ok(mut body) = respond.send_response(response, false) {
                        let _gone = body.send_data(vec![b'a'; RESPONSE_SIZE].into(), true);
                    }
                }
            });
        }
    });
    addr
}

/// Sends the request's body back.
async fn echo(mut from: h2::RecvStream, mut respond: h2::server::SendResponse<Bytes>) {
    let mut to = respond
        .send_response(http::Response::new(()), false)
        .unwrap();
    while let Some(data) = from.data().await {
        let data = data.unwrap();
        from.flow_control().release_capacity(data.len()).unwrap();
        to.send_data(data, false).unwrap();
    }
    to.send_data(Bytes::new(), true).unwrap();
}
