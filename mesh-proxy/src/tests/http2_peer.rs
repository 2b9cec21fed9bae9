//! An HTTP/2 client or server that sends and receives messages which other libraries refuse.

use std::io::IoSlice;
use std::task::{Poll, Waker};

use bytes::Bytes;
use http::{Request, Response};
use mesh_http2::{AcceptedStream, Config, Connection, Error, Limits, Role, StreamId};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

const LIMITS: Limits = Limits {
    max_concurrent_streams: 100,
    max_header_list_size: 16 * 1024,
    max_fields: 100,
    idle_frames: 1000,
    resets: 1000,
    stream_errors: 1000,
    field_lines: 1000,
    pending_accept_resets: 100,
};

pub(super) struct Http2Peer {
    tcp: TcpStream,
    connection: Connection,
}

impl Http2Peer {
    pub(super) fn new(tcp: TcpStream, role: Role) -> Self {
        let connection = Connection::new(&Config::new(role, LIMITS));
        Self { tcp, connection }
    }

    /// Does the I/O of the connection until `poll` has a value, and writes all output before that.
    async fn until<T>(&mut self, mut poll: impl FnMut(&mut Connection) -> Poll<T>) -> T {
        let mut buffer = [0; 4096];
        loop {
            while !self.connection.output().is_empty() {
                let mut slices = [IoSlice::new(&[]); 8];
                let count = self.connection.output().slices(&mut slices);
                let written = self.tcp.write_vectored(&slices[..count]).await.unwrap();
                self.connection.advance_output(written);
            }
            if let Poll::Ready(value) = poll(&mut self.connection) {
                return value;
            }
            let length = self.tcp.read(&mut buffer).await.unwrap();
            assert_ne!(length, 0, "the connection has ended");
            self.connection.receive(&buffer[..length]).unwrap();
        }
    }

    /// Sends `GET` with this `:path`, which may be invalid.
    pub(super) async fn get(&mut self, path: &[u8]) -> StreamId {
        let request = Request::get("http://web/").body(()).unwrap();
        let path = Bytes::copy_from_slice(path);
        let id = self.connection.open(&request, Some(&path), true);
        self.until(|_| Poll::Ready(())).await;
        id
    }

    /// The response, or why there is none.
    pub(super) async fn response(&mut self, id: StreamId) -> Result<Response<()>, Error> {
        let waker = Waker::noop();
        self.until(|connection| connection.poll_response(id, waker))
            .await
    }

    /// Accepts the next request, and responds with 200 and no body. Returns its `:path`.
    pub(super) async fn serve(&mut self) -> Vec<u8> {
        let accepted = self.until(|connection| match connection.next_request() {
            Some(accepted) => Poll::Ready(accepted),
            None => Poll::Pending,
        });
        let AcceptedStream {
            id,
            request,
            raw_target,
            ..
        } = accepted.await;
        self.connection.respond(id, &Response::new(()), true);
        self.until(|_| Poll::Ready(())).await;
        match raw_target {
            Some(raw_target) => raw_target.of_uri(request.uri()).unwrap().to_vec(),
            None => request.uri().path_and_query().unwrap().as_str().into(),
        }
    }
}
