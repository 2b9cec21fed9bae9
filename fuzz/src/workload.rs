//! Deterministic workloads of the proxy, whose instructions are counted.

use std::net::SocketAddr;
use std::sync::Arc;

use mesh_core::endpoint::Endpoint;
use mesh_proxy::fuzzing::Endpoints;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::spawn_local;

use crate::proxy_chain::{self, ChainPosition};
use crate::test_env;

/// A workload.
#[derive(Debug)]
pub struct Workload {
    pub name: &'static str,
    /// Describes one repetition.
    pub each: &'static str,
    /// Whether the ordinary tests compare its figures.
    pub is_on_record: bool,
    /// Repeats the work.
    pub run: fn(u32),
}

pub const WORKLOADS: [Workload; 7] = [
    Workload {
        name: "http1",
        each: "request in HTTP/1.1 through one proxy",
        is_on_record: true,
        run: |times| requests(&ONE, SMALL, times),
    },
    Workload {
        name: "http1-carried",
        each: "request in HTTP/1.1 through two proxies, carried as HTTP/2 between them",
        is_on_record: true,
        run: |times| requests(&TWO, SMALL, times),
    },
    Workload {
        name: "http1-60k",
        each: "request in HTTP/1.1 through one proxy, with a response of 60 KiB",
        is_on_record: false,
        run: |times| requests(&ONE, 60 << 10, times),
    },
    Workload {
        name: "http1-carried-60k",
        each: "request in HTTP/1.1 through two proxies, with a response of 60 KiB",
        is_on_record: false,
        run: |times| requests(&TWO, 60 << 10, times),
    },
    Workload {
        name: "http1-download",
        each: "64 KiB of one response in HTTP/1.1 through one proxy",
        is_on_record: false,
        run: |times| requests(&ONE, PART * times as usize, 1),
    },
    Workload {
        name: "http1-carried-download",
        each: "64 KiB of one response in HTTP/1.1 through two proxies",
        is_on_record: false,
        run: |times| requests(&TWO, PART * times as usize, 1),
    },
    Workload {
        name: "balancer",
        each: "choice among ten endpoints, with its measurement",
        is_on_record: true,
        run: choices,
    },
];

/// A request of curl with the fields that tracing adds.
const REQUEST: &[u8] = b"GET /cart/items?page=2 HTTP/1.1\r\nhost: web.shop.svc.cluster.local:8080\r\nuser-agent: curl/7.88.1\r\naccept: */*\r\n\
    accept-encoding: gzip\r\ntraceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\r\n\r\n";
const END_OF_HEAD: &[u8] = b"\r\n\r\n";

/// The length of a small response's body.
const SMALL: usize = 27;
/// A part of a download.
const PART: usize = 64 << 10;

const ONE: [ChainPosition; 1] = [ChainPosition::Only];
const TWO: [ChainPosition; 2] = [ChainPosition::First, ChainPosition::Second];

/// Sends requests on one connection, each after the previous response, whose body has `length`
/// bytes.
fn requests(positions: &'static [ChainPosition], length: usize, times: u32) {
    test_env::run(async move {
        let app = move |tcp| drop(spawn_local(application(tcp, length)));
        let mut client = proxy_chain::chain(positions, app).connect();
        let mut received = Vec::with_capacity(PART);
        let total = response_head(length).len() + length;
        for _ in 0..times {
            client.write_all(REQUEST).await.expect("an open connection");
            let mut missing = total;
            while missing > 0 {
                received.clear();
                missing -= client.read_buf(&mut received).await.expect("a response");
            }
            assert!(received.ends_with(b"x"));
        }
    });
}

/// Responds to requests until the connection closes.
async fn application(mut tcp: TcpStream, length: usize) {
    let part = vec![b'x'; PART];
    let (first, rest) = (length.min(PART), length.saturating_sub(PART));
    let mut response = response_head(length);
    response.extend_from_slice(&part[..first]);
    let mut request = Vec::new();
    while read_until(&mut tcp, END_OF_HEAD, &mut request).await {
        request.clear();
        if tcp.write_all(&response).await.is_err() {
            return;
        }
        for sent in (0..rest).step_by(PART) {
            let next = &part[..PART.min(rest - sent)];
            if tcp.write_all(next).await.is_err() {
                return;
            }
        }
    }
}

fn response_head(length: usize) -> Vec<u8> {
    let head =
        "HTTP/1.1 200 OK\r\nserver: shop\r\ncontent-type: application/json\r\ncontent-length: ";
    format!("{head}{length}\r\n\r\n").into_bytes()
}

/// Reads until `bytes` ends with `end`. Returns false when the connection closes before.
async fn read_until(tcp: &mut TcpStream, end: &[u8], bytes: &mut Vec<u8>) -> bool {
    while !bytes.ends_with(end) {
        if !matches!(tcp.read_buf(bytes).await, Ok(1..)) {
            return false;
        }
    }
    true
}

fn choices(times: u32) {
    test_env::run(async {
        let endpoints: Vec<Arc<Endpoint>> = (1..=10)
            .map(|last| SocketAddr::from(([10, 0, 0, last], 80)))
            .map(|addr| Arc::new(Endpoint::plain(addr)))
            .collect();
        let endpoints = Endpoints::new(&endpoints);
        for _ in 0..times {
            assert!(endpoints.choose());
        }
    });
}
