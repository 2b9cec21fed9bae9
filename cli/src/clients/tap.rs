//! Taps: requests as proxies report them. On a cluster they come from the tap API of the viz
//! extension, on a local node from the proxies themselves.

mod api;
mod local;
mod request;
mod state;

use mesh_core::tap::TapEvent;

use self::api::ApiEvents;
use crate::mesh::Mesh;

pub(crate) use self::local::LocalEvents;
pub(crate) use self::request::{DEFAULT_MAX_RPS, LARGEST_MAX_RPS, TapQuery};
pub(crate) use self::state::TapState;

/// The events of one tap. Dropping it ends the tap.
pub(crate) struct TapStream(Source);

enum Source {
    Api(Box<ApiEvents>),
    Local(Box<LocalEvents>),
}

impl TapStream {
    /// Starts a tap of the pods that the query selects.
    pub(crate) async fn start(mesh: &Mesh, query: &TapQuery) -> anyhow::Result<Self> {
        let source = match mesh {
            Mesh::Cluster(cluster) => {
                Source::Api(Box::new(ApiEvents::start(cluster, query).await?))
            }
            Mesh::Local(node) => Source::Local(Box::new(LocalEvents::start(node, query).await?)),
        };
        Ok(Self(source))
    }

    /// Returns the next event, or `None` when the tap has ended because none of its pods is left.
    pub(crate) async fn next(&mut self) -> anyhow::Result<Option<TapEvent>> {
        match &mut self.0 {
            Source::Api(events) => events.next().await,
            Source::Local(events) => events.next().await,
        }
    }
}
