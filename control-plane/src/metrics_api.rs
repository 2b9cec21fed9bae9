//! What the metrics API needs of Prometheus: a client for its HTTP API, and the text of queries.
//!
//! The gRPC service is in [`serve`](crate::serve), the objects are in the
//! [`Inventory`](crate::index::Inventory).

mod client;
mod promql;
mod vector;

pub use self::{
    client::{CredentialFiles, PrometheusClient, QueryError, UrlError},
    promql::{Grouping, Matchers, QUANTILES, TimeWindow, WindowError, quote_regex},
    vector::{MAX_LABEL_VALUE, MAX_SAMPLES, Sample},
};
