//! An HTTP/1 application that shows the test the bytes it was sent and answers with the bytes it
//! was given.

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use super::pod::Pod;
use super::within;

/// A listening application.
pub(crate) struct HttpApp {
    received: mpsc::UnboundedReceiver<Received>,
}

/// One request, as it arrived.
#[derive(Debug)]
pub(crate) struct Received {
    /// Request line and headers, without the empty line.
    pub(crate) head: String,
    /// As it was framed.
    pub(crate) body: String,
}

impl HttpApp {
    /// Answers every request on `port` with these bytes.
    pub(crate) async fn start(pod: &Pod, port: u16, answer: &str) -> Self {
        let (tx, received) = mpsc::unbounded_channel();
        let answer = answer.to_owned();
        pod.listen(port, move |tcp| serve(tcp, answer.clone(), tx.clone()))
            .await;
        Self { received }
    }

    /// The next request.
    pub(crate) async fn received(&mut self) -> Received {
        within("a request reaches the application", self.received.recv())
            .await
            .unwrap()
    }

    /// Whether no request is waiting to be looked at.
    pub(crate) fn is_untouched(&mut self) -> bool {
        self.received.try_recv().is_err()
    }
}

impl Received {
    /// The values of a header, in order.
    pub(crate) fn header(&self, name: &str) -> Vec<&str> {
        let fields = self
            .head
            .lines()
            .skip(1)
            .filter_map(|line| line.split_once(':'));
        fields
            .filter(|(field, _)| field.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.trim())
            .collect()
    }

    pub(crate) fn request_line(&self) -> &str {
        self.head.lines().next().unwrap_or("")
    }
}

/// Sends back what it receives.
pub(crate) async fn echo(mut tcp: TcpStream) {
    let (mut from, mut to) = tcp.split();
    // The client may go away.
    let _ = tokio::io::copy(&mut from, &mut to).await;
}

async fn serve(tcp: TcpStream, answer: String, tx: mpsc::UnboundedSender<Received>) {
    let mut tcp = BufReader::new(tcp);
    while let Some(request) = read_request(&mut tcp).await {
        // The test may have seen enough.
        let _ = tx.send(request);
        if tcp.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
        if answer.to_ascii_lowercase().contains("connection: close") {
            return;
        }
    }
}

async fn read_request(tcp: &mut BufReader<TcpStream>) -> Option<Received> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if tcp.read_line(&mut head).await.ok()? == 0 {
            return None;
        }
    }
    let mut received = Received {
        head: head.trim_end().to_owned(),
        body: String::new(),
    };
    if let [length] = received.header("content-length")[..] {
        let mut body = vec![0; length.parse().ok()?];
        tcp.read_exact(&mut body).await.ok()?;
        received.body = String::from_utf8(body).ok()?;
    } else if received.header("transfer-encoding") == ["chunked"] {
        let mut body = String::new();
        while !body.ends_with("0\r\n\r\n") {
            tcp.read_line(&mut body).await.ok()?;
        }
        received.body = body;
    }
    Some(received)
}
