//! The flags that choose the controller and the client of a query.

use crate::mesh::Mesh;
use crate::mesh::controllers::{QueryContext, Source};

/// The controller pod to query, and the client on whose behalf the query is sent.
#[derive(Debug, clap::Args)]
pub(crate) struct QuerySource {
    /// Pod of the destination controller to query; default: any ready one
    #[arg(long, value_name = "POD")]
    destination_pod: Option<String>,
    /// Context token, as proxies send it to identify themselves: {"ns":"shop","nodeName":"a"}
    #[arg(long, value_name = "TOKEN")]
    token: Option<String>,
}

impl QuerySource {
    pub(super) fn query<'a>(&'a self, mesh: &'a Mesh, default_token: &'a str) -> QueryContext<'a> {
        QueryContext {
            source: Source::Mesh {
                mesh,
                pod: self.destination_pod.as_deref(),
            },
            token: self.token.as_deref().unwrap_or(default_token),
        }
    }
}
