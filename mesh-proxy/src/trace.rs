//! Distributed tracing: the trace contexts of requests.

mod propagation;
