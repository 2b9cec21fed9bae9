//! Who is there beside an attacker: an honest client and a server.

use bytes::Bytes;

use super::*;

/// Somebody who only wants to be served.
pub(super) struct Honest(h2::client::SendRequest<Bytes>);

impl Honest {
    pub(super) async fn new(proxy: SocketAddr) -> Self {
        let tcp = TcpStream::connect(proxy).await.unwrap();
        // Its library takes small frames for an attack when the connection's window is small.
        let (client, connection) = h2::client::Builder::new()
            .initial_connection_window_size(16 << 20)
            .handshake(tcp)
            .await
            .unwrap();
        tokio::task::spawn_local(connection);
        Self(client)
    }

    /// Reads an answer to its end.
    pub(super) async fn ask(&self) {
        let mut client = self.0.clone().ready().await.unwrap();
        let request = http::Request::get("http://web/").body(()).unwrap();
        let (answer, _) = client.send_request(request, true).unwrap();
        let answer = answer.await.unwrap();
        assert_eq!(answer.status(), 200);
        let mut body = answer.into_body();
        let mut length = 0;
        while let Some(data) = body.data().await {
            let data = data.unwrap();
            body.flow_control().release_capacity(data.len()).unwrap();
            length += data.len();
        }
        assert_eq!(length, ANSWER);
    }

    /// Gives up a request that has been sent.
    pub(super) async fn change_mind(&self) {
        let mut client = self.0.clone().ready().await.unwrap();
        let request = http::Request::post("http://web/").body(()).unwrap();
        let (answer, _upload) = client.send_request(request, true).unwrap();
        tokio::task::yield_now().await;
        drop(answer);
    }

    /// Sends so many small messages on one stream, each when the one before it has come back.
    pub(super) async fn chat(&self, messages: usize) {
        let mut client = self.0.clone().ready().await.unwrap();
        let request = http::Request::put("http://web/").body(()).unwrap();
        let (answer, mut upload) = client.send_request(request, false).unwrap();
        let mut body = answer.await.unwrap().into_body();
        for _ in 0..messages {
            upload.send_data("hello".into(), false).unwrap();
            let data = body.data().await.unwrap().unwrap();
            body.flow_control().release_capacity(data.len()).unwrap();
        }
        upload.send_data(Bytes::new(), true).unwrap();
        while body.data().await.is_some() {}
    }
}

/// Larger than the window of a stream.
const ANSWER: usize = 100_000;

/// A server that answers at once with more than a client has to take.
pub(super) async fn answering() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::task::spawn_local(async move {
        while let Ok((tcp, _)) = listener.accept().await {
            tokio::task::spawn_local(async move {
                let mut builder = h2::server::Builder::new();
                // Rapid resets of one client reach it, too.
                builder
                    .max_concurrent_streams(1000)
                    .max_pending_accept_reset_streams(10_000);
                let Ok(mut connection) = builder.handshake::<_, Bytes>(tcp).await else {
                    return;
                };
                while let Some(Ok((request, mut respond))) = connection.accept().await {
                    if request.method() == http::Method::POST {
                        // Left unanswered until the client gives up.
                        tokio::task::spawn_local(async move {
                            let _given_up = std::future::poll_fn(|cx| respond.poll_reset(cx)).await;
                        });
                        continue;
                    }
                    let response = http::Response::new(());
                    if request.method() == http::Method::PUT {
                        tokio::task::spawn_local(echo(request.into_body(), respond));
                        continue;
                    }
                    if let Ok(mut body) = respond.send_response(response, false) {
                        let _gone = body.send_data(vec![b'a'; ANSWER].into(), true);
                    }
                }
            });
        }
    });
    addr
}

/// Sends everything back as it comes.
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
