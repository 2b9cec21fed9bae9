//! Taps: requests as proxies report them. On a cluster they come from the tap API of the viz
//! extension, on a local node from the proxies themselves.

use std::sync::Arc;

use mesh_core::tap::TapEvent;

use super::Mesh;
use crate::clients::tap::TapQuery;
use crate::cluster::Cluster;
use crate::cluster::tap::ApiEvents;
use crate::node::tap::{LocalEvents, Observer};

/// The events of one tap. Dropping it ends the tap.
pub(crate) struct TapStream(Source);

enum Source {
    Api(Box<ApiEvents>),
    Local(Box<LocalEvents>),
}

/// Starts taps. All taps of a local node have one certificate.
pub(crate) enum Taps<'a> {
    Api(&'a Cluster),
    Local(Arc<Observer>),
}

impl<'a> Taps<'a> {
    pub(crate) fn new(mesh: &'a Mesh) -> Self {
        match mesh {
            Mesh::Cluster(cluster) => Self::Api(cluster),
            Mesh::Local(node) => Self::Local(Arc::new(Observer::new(node.clone()))),
        }
    }

    /// Starts a tap of the pods that the query selects.
    pub(crate) async fn start(&self, query: &TapQuery) -> anyhow::Result<TapStream> {
        let source = match self {
            Self::Api(cluster) => Source::Api(Box::new(ApiEvents::start(cluster, query).await?)),
            Self::Local(observer) => {
                Source::Local(Box::new(LocalEvents::start(observer, query).await?))
            }
        };
        Ok(TapStream(source))
    }
}

impl TapStream {
    /// Starts the only tap of a command.
    pub(crate) async fn start(mesh: &Mesh, query: &TapQuery) -> anyhow::Result<Self> {
        Taps::new(mesh).start(query).await
    }

    /// Returns the next event, or `None` when the tap has ended because none of its pods is left.
    pub(crate) async fn next(&mut self) -> anyhow::Result<Option<TapEvent>> {
        match &mut self.0 {
            Source::Api(events) => events.next().await,
            Source::Local(events) => events.next().await,
        }
    }
}
