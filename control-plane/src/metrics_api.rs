//! What the metrics API needs of Prometheus: queries, their text, and a client for its HTTP API.
//!
//! The gRPC service is in [`serve`](crate::serve), the objects are in the
//! [`Inventory`](crate::index::Inventory).

mod client;
mod promql;
mod query;
mod vector;

pub use self::{
    client::{CredentialFiles, PrometheusClient, QueryError, UrlError},
    query::{
        Family, Function, Grouping, Matchers, QUANTILES, Quantile, Query, TimeWindow, WindowError,
        quote_regex,
    },
    vector::{MAX_LABEL_VALUE, MAX_SAMPLES, Sample},
};
