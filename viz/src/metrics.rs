//! The interface between the metrics API and its source of metrics: queries, and two sources that
//! answer them, Prometheus and scrapes of the proxies.
//!
//! ```text
//!   Query ─▶ MetricsSource ─▶ PrometheusClient ── text in PromQL ─▶ Prometheus
//!                         └─▶ ProxyMetrics ── GET /metrics, every 5 s ─▶ proxies
//! ```
//!
//! The gRPC service is [`metrics_api`](crate::metrics_api), the objects are in the
//! [`Inventory`](mesh_objects::inventory::Inventory).

mod promql;
mod proxies;
mod query;
mod source;

pub use self::{
    proxies::ProxyMetrics,
    query::{
        Family, Function, Grouping, Matchers, QUANTILES, Quantile, Query, TimeWindow, WindowError,
        quote_regex,
    },
    source::{MetricsSource, SourceError},
};
