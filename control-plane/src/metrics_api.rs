//! The interface between the metrics API and its source of metrics: queries, and two sources that
//! answer them, Prometheus and scrapes of the proxies.
//!
//! ```text
//!   Query ─▶ MetricsSource ─▶ PrometheusClient ── text in PromQL ─▶ Prometheus
//!                         └─▶ ProxyMetrics ── GET /metrics, every 5 s ─▶ proxies
//! ```
//!
//! The gRPC service is in [`serve`](crate::serve), the objects are in the
//! [`Inventory`](crate::index::Inventory).

mod client;
mod promql;
mod proxies;
mod query;
mod source;
mod vector;

pub use self::{
    client::{CredentialFiles, PrometheusClient, QueryError, UrlError},
    proxies::ProxyMetrics,
    query::{
        Family, Function, Grouping, Matchers, QUANTILES, Quantile, Query, TimeWindow, WindowError,
        quote_regex,
    },
    source::{MetricsSource, SourceError},
    vector::{MAX_LABEL_VALUE, MAX_SAMPLES, Sample},
};
