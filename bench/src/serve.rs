//! `mesh-bench serve`: applications behind the proxies that no distribution packages: a TCP echo, a
//! gRPC method that echoes a stream of messages, an HTTP/2 server with a fixed response, and a sink
//! that never responds.

use std::net::SocketAddr;

use anyhow::{Context as _, bail};
use bytes::Bytes;
use clap::Args;
use h2::server::SendResponse;
use h2::{RecvStream, SendStream};
use http::{HeaderMap, HeaderValue, Request, Response};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::load::wait_for_capacity;
use crate::print_event;

/// The response body. It is not empty, since h2spec tests that a small window blocks it.
const RESPONSE_BODY: Bytes = Bytes::from_static(b"the response\n");
/// Larger than any message of the byte echo.
const ECHO_BUFFER: usize = 4096;
/// Read size of the sink.
const SINK_BUFFER: usize = 64 * 1024;
/// Concurrent streams of a client of [`serve_http2`]. The value is arbitrary; h2spec tests that the
/// limit is enforced.
const STREAMS: u32 = 100;
/// Larger than the windows of the proxies, so that streams never wait for the server's window.
const WINDOW: u32 = 16 * 1024 * 1024;

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Address of the TCP echo
    #[arg(long, value_name = "ADDR")]
    echo: Vec<SocketAddr>,
    /// Address of the gRPC echo
    #[arg(long, value_name = "ADDR")]
    grpc: Vec<SocketAddr>,
    /// Address of the HTTP/2 server with a fixed response
    #[arg(long, value_name = "ADDR")]
    http2: Vec<SocketAddr>,
    /// Address of the sink, which reads and never responds
    #[arg(long, value_name = "ADDR")]
    sink: Vec<SocketAddr>,
}

#[derive(Clone, Copy, Debug)]
enum Protocol {
    Echo,
    Grpc,
    Http2,
    Sink,
}

/// Serves until the process exits.
pub(crate) async fn run(options: Options) -> anyhow::Result<()> {
    let mut listeners = Vec::new();
    for addr in options.echo {
        listeners.push((listen(addr).await?, Protocol::Echo));
    }
    for addr in options.grpc {
        listeners.push((listen(addr).await?, Protocol::Grpc));
    }
    for addr in options.http2 {
        listeners.push((listen(addr).await?, Protocol::Http2));
    }
    for addr in options.sink {
        listeners.push((listen(addr).await?, Protocol::Sink));
    }
    let mut accepting = JoinSet::new();
    for (listener, protocol) in listeners {
        accepting.spawn(accept(listener, protocol));
    }
    print_event(&serde_json::json!({ "listening": true }))?;
    match accepting.join_next().await {
        Some(ended) => ended.context("accepting panicked")?,
        None => bail!("no address to serve on"),
    }
}

async fn accept(listener: TcpListener, protocol: Protocol) -> anyhow::Result<()> {
    loop {
        let (tcp, _) = listener.accept().await.context("accept a connection")?;
        // An error of the connection is the client's to report.
        match protocol {
            Protocol::Echo => tokio::spawn(async move { drop(echo_bytes(tcp).await) }),
            Protocol::Grpc => tokio::spawn(async move { drop(serve_grpc(tcp).await) }),
            Protocol::Http2 => tokio::spawn(async move { drop(serve_http2(tcp).await) }),
            Protocol::Sink => tokio::spawn(async move { drop(discard_bytes(tcp).await) }),
        };
    }
}

async fn listen(addr: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(addr)
        .await
        .with_context(|| format!("listen on {addr}"))
}

async fn echo_bytes(mut tcp: TcpStream) -> std::io::Result<()> {
    tcp.set_nodelay(true)?;
    let mut buffer = [0; ECHO_BUFFER];
    loop {
        let length = tcp.read(&mut buffer).await?;
        if length == 0 {
            return Ok(());
        }
        tcp.write_all(&buffer[..length]).await?;
    }
}

async fn discard_bytes(mut tcp: TcpStream) -> std::io::Result<()> {
    let mut buffer = vec![0; SINK_BUFFER];
    while tcp.read(&mut buffer).await? > 0 {}
    Ok(())
}

async fn serve_grpc(tcp: TcpStream) -> anyhow::Result<()> {
    tcp.set_nodelay(true)?;
    let mut connection = h2::server::Builder::new()
        .initial_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .handshake::<_, Bytes>(tcp)
        .await?;
    while let Some(stream) = connection.accept().await {
        let (request, respond) = stream?;
        tokio::spawn(async move { drop(echo_messages(request, respond).await) });
    }
    Ok(())
}

/// Echoes every DATA frame of the request, and ends the response after the request.
async fn echo_messages(
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
) -> anyhow::Result<()> {
    let response = Response::builder()
        .header("content-type", "application/grpc")
        .body(())?;
    let mut response = respond.send_response(response, false)?;
    let mut messages = request.into_body();
    while let Some(piece) = messages.data().await {
        let piece = piece?;
        messages.flow_control().release_capacity(piece.len())?;
        send(&mut response, piece).await?;
    }
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    response.send_trailers(trailers)?;
    Ok(())
}

async fn send(stream: &mut SendStream<Bytes>, piece: Bytes) -> anyhow::Result<()> {
    wait_for_capacity(stream, piece.len()).await?;
    stream.send_data(piece, false)?;
    Ok(())
}

async fn serve_http2(tcp: TcpStream) -> anyhow::Result<()> {
    tcp.set_nodelay(true)?;
    // Reads ahead, because close(2) with unread bytes resets the connection.
    let tcp = BufReader::new(tcp);
    let mut connection = h2::server::Builder::new()
        .max_concurrent_streams(STREAMS)
        .handshake(tcp)
        .await?;
    while let Some(stream) = connection.accept().await {
        let (request, respond) = stream?;
        tokio::spawn(async move { drop(response(request, respond).await) });
    }
    Ok(())
}

/// Responds once the request is complete, so that a protocol error in its body is reported first.
async fn response(
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
) -> anyhow::Result<()> {
    let is_head = request.method() == http::Method::HEAD;
    let mut body = request.into_body();
    while let Some(piece) = body.data().await {
        let length = piece?.len();
        body.flow_control().release_capacity(length)?;
    }
    body.trailers().await?;
    let mut response = respond.send_response(Response::new(()), is_head)?;
    if !is_head {
        response.send_data(RESPONSE_BODY, true)?;
    }
    Ok(())
}
