//! The dashboards and rules of helm/linkerd-viz: Prometheus' own programs test the rules and parse
//! each query, and a mesh with traffic fills the panels.

mod dashboards;
mod figures;
mod native;
mod panels;
mod rules;
