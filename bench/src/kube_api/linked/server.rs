//! The API server of a linked cluster, with TLS as its clients have it.

use std::sync::Arc;

use mesh_test_support::kube_api;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::super::{Front, respond};
use crate::tls::Acceptor;

/// Serves a cluster until accepting fails. The first of all clusters, by their `number`, may be
/// away.
pub(super) async fn run(
    front: Arc<Front>,
    listener: TcpListener,
    acceptor: Acceptor,
    number: u32,
    mut away: watch::Receiver<u32>,
) {
    loop {
        // Dropping the connections closes them.
        let mut connections = JoinSet::new();
        let is_away = *away.borrow_and_update() > number;
        loop {
            tokio::select! {
                accepted = listener.accept() => {
                    let Ok((tcp, _)) = accepted else {
                        return;
                    };
                    if !is_away {
                        connections.spawn(serve(front.clone(), acceptor.clone(), tcp));
                    }
                }
                Some(_ended) = connections.join_next() => {}
                changed = away.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    if (*away.borrow_and_update() > number) != is_away {
                        break;
                    }
                }
            }
        }
    }
}

async fn serve(front: Arc<Front>, acceptor: Acceptor, tcp: TcpStream) {
    // Nagle's algorithm would delay an event until the previous one is acknowledged.
    let _closed = tcp.set_nodelay(true);
    if let Ok(tls) = acceptor.accept(tcp).await {
        let respond = move |request| respond::respond(front.clone(), request);
        kube_api::serve_connection(tls, respond).await;
    }
}
