//! A connection with watches, as a proxy has it.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Instant;

use anyhow::{Context as _, bail};
use bytes::Bytes;
use h2::client::SendRequest;
use tokio::sync::mpsc::UnboundedSender;
use tokio::task::JoinSet;

use super::api::Api;
use super::scan::Scanner;
use crate::load::grpc;

/// The progress of a watch: it has all endpoints for the first time, or a change.
pub(super) struct Received {
    pub(super) watch: usize,
    pub(super) at: Instant,
}

/// A connection of a client.
pub(super) struct Connection {
    pub(super) api: Api,
    pub(super) address: SocketAddr,
    pub(super) number: usize,
    /// Names and numbers of the watches.
    pub(super) watches: Vec<(String, usize)>,
    /// Endpoints of each.
    pub(super) endpoints: u64,
    pub(super) received: UnboundedSender<Received>,
}

/// A stream of a connection.
struct Stream {
    api: Api,
    /// The endpoints that each watch still lacks, by name.
    missing: HashMap<Vec<u8>, (usize, u64)>,
    received: UnboundedSender<Received>,
}

impl Connection {
    /// Watches until the server ends a stream.
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let (sender, connection) = grpc::connect(self.address).await?;
        let mut streams = JoinSet::new();
        for watches in self.watches.chunks(self.api.paths_per_stream()) {
            streams.spawn(self.stream(watches).run(
                sender.clone(),
                self.address,
                self.api.request(self.number, &names(watches)),
            ));
        }
        tokio::select! {
            Some(ended) = streams.join_next() => ended.context("a watch panicked")?,
            ended = connection => Ok(ended.context("a connection panicked")??),
        }
    }

    fn stream(&self, watches: &[(String, usize)]) -> Stream {
        let missing = watches
            .iter()
            .map(|(name, watch)| (name.as_bytes().to_vec(), (*watch, self.endpoints)));
        Stream {
            api: self.api,
            missing: missing.collect(),
            received: self.received.clone(),
        }
    }
}

fn names(watches: &[(String, usize)]) -> Vec<&str> {
    watches.iter().map(|(name, _)| name.as_str()).collect()
}

impl Stream {
    async fn run(
        mut self,
        sender: SendRequest<Bytes>,
        address: SocketAddr,
        first: Vec<u8>,
    ) -> anyhow::Result<()> {
        let request = grpc::request(address, self.api.method()).body(())?;
        let (response, mut requests) = sender.ready().await?.send_request(request, false)?;
        let is_last = self.api.acknowledgement(b"").is_none();
        requests.send_data(first.into(), is_last)?;
        let response = response.await?;
        if let Some(status) = response.headers().get("grpc-status") {
            bail!(
                "grpc-status {status:?}: {:?}",
                response.headers().get("grpc-message")
            );
        }
        let mut body = response.into_body();
        let mut scanner = Scanner::new(self.api.layout());
        while let Some(data) = body.data().await {
            let data = data?;
            body.flow_control().release_capacity(data.len())?;
            for message in scanner.feed(&data)? {
                if let Some(acknowledgement) = self.api.acknowledgement(&message.nonce) {
                    requests.send_data(acknowledgement.into(), false)?;
                }
                for (name, endpoints) in &message.resources {
                    if let Some((watch, missing)) = self.missing.get_mut(name) {
                        note(&self.received, *watch, missing, *endpoints);
                    }
                }
                if message.resources.is_empty() && self.api != Api::Endpoints {
                    for (watch, missing) in self.missing.values_mut() {
                        note(&self.received, *watch, missing, message.endpoints);
                    }
                }
            }
        }
        match body.trailers().await? {
            Some(trailers) => bail!("the server ended a watch: {trailers:?}"),
            None => bail!("the server ended a watch"),
        }
    }
}

/// Reports the progress of a watch, unless endpoints are still missing.
fn note(received: &UnboundedSender<Received>, watch: usize, missing: &mut u64, endpoints: u64) {
    *missing = missing.saturating_sub(endpoints);
    if *missing == 0 {
        let at = Instant::now();
        // The receiver is dropped only with this task.
        let _sent = received.send(Received { watch, at });
    }
}
