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
    /// Repeats the work.
    pub run: fn(u32),
}

pub const WORKLOADS: [Workload; 3] = [
    Workload {
        name: "http1",
        each: "request in HTTP/1.1 through one proxy",
        run: |times| requests(&[ChainPosition::Only], times),
    },
    Workload {
        name: "http1-carried",
        each: "request in HTTP/1.1 through two proxies, carried as HTTP/2 between them",
        run: |times| requests(&[ChainPosition::First, ChainPosition::Second], times),
    },
    Workload {
        name: "balancer",
        each: "choice among ten endpoints, with its measurement",
        run: choices,
    },
];

/// A request of curl with the fields that tracing adds.
const REQUEST: &[u8] = b"GET /cart/items?page=2 HTTP/1.1\r\nhost: web.shop.svc.cluster.local:8080\r\nuser-agent: curl/7.88.1\r\naccept: */*\r\n\
    accept-encoding: gzip\r\ntraceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\r\n\r\n";
const RESPONSE: &[u8] = b"HTTP/1.1 200 OK\r\nserver: shop\r\ncontent-type: application/json\r\ncontent-length: 27\r\n\r\n{\"items\":[1,2,3],\"next\":3}\n";
const END_OF_HEAD: &[u8] = b"\r\n\r\n";
const END_OF_RESPONSE: &[u8] = b"3}\n";

/// Sends requests on one connection, each after the previous response.
fn requests(positions: &[ChainPosition], times: u32) {
    test_env::run(async {
        let mut client =
            proxy_chain::chain(positions, |tcp| drop(spawn_local(application(tcp)))).connect();
        let mut response = Vec::new();
        for _ in 0..times {
            client.write_all(REQUEST).await.expect("an open connection");
            response.clear();
            read_until(&mut client, END_OF_RESPONSE, &mut response).await;
            assert!(response.starts_with(b"HTTP/1.1 200 OK\r\n"));
        }
    });
}

/// Responds to requests until the connection closes.
async fn application(mut tcp: TcpStream) {
    let mut request = Vec::new();
    while read_until(&mut tcp, END_OF_HEAD, &mut request).await {
        request.clear();
        if tcp.write_all(RESPONSE).await.is_err() {
            return;
        }
    }
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
