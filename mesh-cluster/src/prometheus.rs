//! Queries of a Prometheus, by the viz extension and the report of an installation.

mod client;
mod vector;

pub use self::{
    client::{CredentialFiles, PrometheusClient, QueryError, UrlError},
    vector::{MAX_LABEL_VALUE, MAX_SAMPLES, Sample},
};
