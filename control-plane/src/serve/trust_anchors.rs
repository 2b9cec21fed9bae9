//! `TrustAnchors`: the trust anchors of the mesh for running proxies.

use std::pin::Pin;
use std::sync::Arc;

use futures_util::{Stream, stream};
use mesh_api::identity::trust_bundle_to_proto;
use mesh_api::mesh::identity::trust_anchors_server::TrustAnchors;
use mesh_api::mesh::identity::{self as wire, WatchRequest};
use mesh_core::trust_bundle::TrustBundle;
use mesh_runtime::drain;
use tokio::sync::watch;
use tonic::{Request, Response, Status, async_trait};

use mesh_cluster::calls::{Calls, Method, OpenStream};

#[derive(Debug)]
pub struct TrustAnchorsService {
    /// `None` before the first anchors are numbered.
    bundles: watch::Receiver<Option<Arc<TrustBundle>>>,
    drain: drain::Watch,
    watch: Method,
}

/// The state of a stream.
struct Watching {
    bundles: watch::Receiver<Option<Arc<TrustBundle>>>,
    drain: drain::Watch,
    stream: OpenStream,
    is_first: bool,
}

impl TrustAnchorsService {
    pub fn new(
        bundles: watch::Receiver<Option<Arc<TrustBundle>>>,
        drain: drain::Watch,
        calls: &Calls,
    ) -> Self {
        Self {
            bundles,
            drain,
            watch: calls.method("mesh.identity.TrustAnchors", "Watch"),
        }
    }
}

impl Watching {
    /// Returns the current bundle first, then each later one, until the process drains or another
    /// client takes the place of the stream.
    async fn next(&mut self) -> Option<Arc<TrustBundle>> {
        loop {
            if !std::mem::take(&mut self.is_first) {
                tokio::select! {
                    biased;
                    () = self.drain.draining() => return None,
                    () = self.stream.taken() => return None,
                    changed = self.bundles.changed() => changed.ok()?,
                }
            }
            if let Some(bundle) = self.bundles.borrow_and_update().clone() {
                self.stream.sent();
                return Some(bundle);
            }
        }
    }
}

#[async_trait]
impl TrustAnchors for TrustAnchorsService {
    type WatchStream = Pin<Box<dyn Stream<Item = Result<wire::TrustBundle, Status>> + Send>>;

    async fn watch(
        &self,
        request: Request<WatchRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        // The request does not name the pod: all pods of an identity share its streams.
        let stream = self.watch.count(self.watch.open(&request, ""))?;
        let watching = Watching {
            bundles: self.bundles.clone(),
            drain: self.drain.clone(),
            stream,
            is_first: true,
        };
        let messages = stream::unfold(watching, async |mut watching| {
            let bundle = watching.next().await?;
            Some((Ok(trust_bundle_to_proto(&bundle)), watching))
        });
        Ok(Response::new(Box::pin(messages)))
    }
}
