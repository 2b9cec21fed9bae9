//! StatSummary: tables of objects with their pods, requests and connections.
//!
//! ```text
//!   request ─▶ StatRequest ─▶ one Plan for each kind: queries ─▶ source
//!                                    objects and pods ─▶ rows ◀─┘
//! ```

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use mesh_api::linkerd2::viz::pod_errors::PodError;
use mesh_api::linkerd2::viz::pod_errors::pod_error::{ContainerError, Error};
use mesh_api::linkerd2::viz::stat_summary_request::Outbound;
use mesh_api::linkerd2::viz::stat_table::pod_group::Row;
use mesh_api::linkerd2::viz::stat_table::{PodGroup, Table};
use mesh_api::linkerd2::viz::{
    BasicStats, PodErrors, StatSummaryRequest, StatTable, TrafficSplitStats,
};
use mesh_objects::inventory::PodCounts;
use mesh_objects::model::{ListedKind, ListedObject, Name, ProfileDetail, Selector};

use super::resource::{ALL, ALL_KINDS, Target, TargetKind, parse_selector};
use super::samples::{
    Measure, Measurement, Stats, authorization_queries, by_name, request_queries, tcp_queries,
};
use crate::metrics::{Grouping, Matchers, TimeWindow, quote_regex};

/// A valid request.
#[derive(Clone, Debug)]
pub(super) struct StatRequest {
    /// One target for each table.
    pub(super) targets: Vec<Target>,
    pub(super) selector: Selector,
    pub(super) window: TimeWindow,
    peer: Option<Peer>,
    pub(super) skip_stats: bool,
    tcp: bool,
}

/// The peer of the counted requests.
#[derive(Clone, Debug)]
enum Peer {
    To(Target),
    From(Target),
}

/// The queries of a table, and the labels that assign their results to rows.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) queries: Vec<Measure>,
    pub(super) key: Grouping,
}

impl StatRequest {
    pub(super) fn parse(request: &StatSummaryRequest) -> Result<Self, String> {
        let selector = request.selector.as_ref();
        let Some(resource) = selector.and_then(|selector| selector.resource.as_ref()) else {
            return Err("StatSummary request missing Selector Resource".to_owned());
        };
        let peer = match &request.outbound {
            Some(Outbound::ToResource(to)) => Some((true, to)),
            Some(Outbound::FromResource(from)) => Some((false, from)),
            Some(Outbound::None(_)) | None => None,
        };
        let policy = |kind: &str| TargetKind::parse(kind).is_ok_and(TargetKind::is_policy);
        if let Some((to, peer)) = peer {
            if !to && peer.r#type == ListedKind::Service.resource_type() {
                return Err("service is not supported as a target on 'from' queries, or as a target with 'to' queries".to_owned());
            }
            if policy(&resource.r#type) || policy(&peer.r#type) {
                let flag = if to { "to" } else { "from" };
                return Err(format!(
                    "'{flag}' queries are not supported with policy resources, as they have inbound metrics only"
                ));
            }
            if peer.r#type == ALL {
                return Err("resource type 'all' is not supported as a filter".to_owned());
            }
        }
        let kinds = if resource.r#type == ALL {
            ALL_KINDS.map(TargetKind::Object).to_vec()
        } else {
            vec![TargetKind::parse(&resource.r#type)?]
        };
        let targets = kinds.into_iter().map(|kind| Target {
            kind,
            namespace: resource.namespace.clone(),
            name: resource.name.clone(),
        });
        let targets: Vec<Target> = targets.collect();
        if let Some(target) = targets.first() {
            target.check_length()?;
        }
        let peer = match peer {
            Some((true, to)) => Some(Peer::To(Target::parse(to)?)),
            Some((false, from)) => Some(Peer::From(Target::parse(from)?)),
            None => None,
        };
        Ok(Self {
            targets,
            selector: parse_selector(
                selector.map_or("", |selector| selector.label_selector.as_str()),
            )?,
            window: TimeWindow::parse(&request.time_window).map_err(|error| error.to_string())?,
            peer,
            skip_stats: request.skip_stats,
            tcp: request.tcp_stats,
        })
    }

    /// Returns whether the table has a row for each object, also without requests.
    pub(super) fn has_all_objects(&self) -> bool {
        self.peer.is_none()
    }

    /// Returns the queries for a table.
    pub(super) fn plan(&self, target: &Target, cluster_domain: &str) -> Plan {
        match target.kind {
            TargetKind::Object(ListedKind::Service) => self.service_plan(target, cluster_domain),
            kind if kind.is_policy() => self.policy_plan(target),
            _ => self.workload_plan(target),
        }
    }

    /// Without a peer, inbound series of the target's proxies; with one, outbound series of the
    /// clients' proxies.
    fn workload_plan(&self, target: &Target) -> Plan {
        let (matchers, direction, key, peer_label) = match &self.peer {
            None => (target.matchers(), "inbound", target.kind.grouping(), "src"),
            Some(Peer::To(to)) => (
                to.dst_matchers().merge(target.matchers()),
                "outbound",
                target.kind.grouping(),
                "dst",
            ),
            Some(Peer::From(from)) => (
                from.matchers().merge(target.dst_matchers()),
                "outbound",
                target.kind.dst_grouping(),
                "dst",
            ),
        };
        let matchers = matchers.equal("direction", direction);
        let mut queries = request_queries(&matchers, &self.window, &key);
        if self.tcp {
            let transferred = matchers.clone().equal("peer", peer_label);
            queries.extend(tcp_queries(&matchers, &transferred, &self.window, &key));
        }
        Plan { queries, key }
    }

    /// Services have no proxies: their requests are the requests to their authority.
    fn service_plan(&self, target: &Target, cluster_domain: &str) -> Plan {
        let peer = match &self.peer {
            None => Matchers::new(),
            Some(Peer::To(to)) => to.dst_matchers(),
            Some(Peer::From(from)) => from.matchers(),
        };
        let any_or = |name: &str| match name {
            "" => ".+".to_owned(),
            name => quote_regex(name),
        };
        let authority = format!(
            r"^{}\.{}\.svc\.{}.*",
            any_or(&target.name),
            any_or(&target.namespace),
            quote_regex(cluster_domain),
        );
        let matchers = peer
            .equal("direction", "outbound")
            .regex("authority", authority);
        let key = Grouping::of(&["dst_namespace", "dst_service"]);
        let mut queries = request_queries(&matchers, &self.window, &key);
        if self.tcp {
            // Accepted connections have no authority.
            let dialed = matchers.clone().equal("peer", "dst");
            queries.extend(tcp_queries(&dialed, &dialed, &self.window, &key));
        }
        Plan { queries, key }
    }

    fn policy_plan(&self, target: &Target) -> Plan {
        let (of_all, by, name): (_, &[&str], _) = match target.kind {
            TargetKind::Object(ListedKind::Server) => (
                Matchers::new().equal("srv_kind", "server"),
                &["srv_kind", "namespace", "srv_name"],
                "srv_name",
            ),
            TargetKind::Object(ListedKind::HttpRoute) => (
                Matchers::new(),
                &[
                    "srv_name",
                    "srv_kind",
                    "route_name",
                    "route_kind",
                    "authz_name",
                    "authz_kind",
                    "namespace",
                ],
                "route_name",
            ),
            kind => (
                Matchers::new().equal("authz_kind", kind.resource_type()),
                &[
                    "srv_name",
                    "srv_kind",
                    "route_name",
                    "route_kind",
                    "authz_kind",
                    "namespace",
                    "authz_name",
                ],
                "authz_name",
            ),
        };
        let matchers = of_all.merge(target.matchers());
        let inbound = matchers.clone().equal("direction", "inbound");
        let by = Grouping::of(by);
        let mut queries = request_queries(&inbound, &self.window, &by);
        // Only Servers accept connections.
        if self.tcp && target.kind == TargetKind::Object(ListedKind::Server) {
            let accepted = inbound.clone().equal("peer", "src");
            queries.extend(tcp_queries(&accepted, &accepted, &self.window, &by));
        }
        // These series have no direction.
        queries.extend(authorization_queries(&matchers, &self.window, &by));
        Plan {
            queries,
            key: Grouping::of(&["namespace", name]),
        }
    }

    /// Returns the rows of workloads, pods, namespaces and policies.
    pub(super) fn object_rows(
        &self,
        target: &Target,
        objects: &[Arc<ListedObject>],
        pods: &HashMap<Name, PodCounts>,
        results: Vec<Measurement>,
        key: &Grouping,
    ) -> Vec<Row> {
        let mut stats = by_name(results, key);
        let mut rows = Vec::new();
        for object in objects {
            let Stats { basic, tcp, server } = match stats.remove(&object.name) {
                Some(stats) => stats,
                None if self.has_all_objects() => Stats::default(),
                None => continue,
            };
            if !self.has_all_objects() && basic.is_none() {
                continue;
            }
            let mut row = self.row(target, &object.name);
            row.stats = basic.filter(|basic| *basic != BasicStats::default());
            row.tcp_stats = tcp;
            if target.kind.is_policy() {
                row.srv_stats = server;
            }
            if let Some(counts) = pods.get(&object.name) {
                row.meshed_pod_count = counts.meshed;
                row.running_pod_count = counts.running;
                row.failed_pod_count = counts.failed;
                row.errors_by_pod = errors_by_pod(&counts.with_errors);
            }
            if let Some(pod) = object.pod() {
                row.status = pod.status.to_string();
            }
            rows.push(row);
        }
        rows
    }

    /// Returns the rows of authorities, which are not objects.
    pub(super) fn authority_rows(
        &self,
        target: &Target,
        results: Vec<Measurement>,
        key: &Grouping,
    ) -> Vec<Row> {
        let stats = by_name(results, key);
        let rows = stats.into_iter().filter_map(|(name, stats)| {
            let mut row = self.row(target, &name);
            row.stats = Some(stats.basic?);
            Some(row)
        });
        rows.collect()
    }

    /// Returns the rows of Services that have requests or connections. A Service whose
    /// ServiceProfile distributes its requests has a row for each destination.
    pub(super) fn service_rows(
        &self,
        target: &Target,
        profile: Option<&ProfileDetail>,
        results: Vec<Measurement>,
        key: &Grouping,
    ) -> Vec<Row> {
        let stats = by_name(results, key);
        let weights: BTreeMap<&str, &str> = profile
            .into_iter()
            .flat_map(|profile| &profile.overrides)
            .map(|(authority, weight)| (destination(authority), weight.as_str()))
            .collect();
        let weighted = weights
            .keys()
            .map(|destination| Name::new(&target.namespace, destination));
        let names: BTreeSet<Name> = stats.keys().cloned().chain(weighted).collect();
        let rows = names.into_iter().map(|destination| {
            let service = match &*target.name {
                "" => destination.name.clone(),
                name => name.into(),
            };
            let name = Name {
                namespace: destination.namespace.clone(),
                name: service,
            };
            let mut row = self.row(target, &name);
            if let Some(stats) = stats.get(&destination) {
                row.stats = stats.basic;
                row.tcp_stats = stats.tcp;
            }
            if *destination.namespace == *target.namespace
                && let Some(weight) = weights.get(&*destination.name)
            {
                row.ts_stats = Some(TrafficSplitStats {
                    apex: target.name.clone(),
                    leaf: destination.name.to_string(),
                    weight: (*weight).to_owned(),
                });
            }
            row
        });
        rows.collect()
    }

    fn row(&self, target: &Target, name: &Name) -> Row {
        Row {
            resource: Some(target.resource(&name.namespace, &name.name)),
            time_window: self.window.to_string(),
            ..Row::default()
        }
    }
}

pub(super) fn table(rows: Vec<Row>) -> StatTable {
    StatTable {
        table: Some(Table::PodGroup(PodGroup { rows })),
    }
}

/// Returns the name of the Service of an authority, or the authority if it has none.
fn destination(authority: &str) -> &str {
    let mut labels = authority.split('.');
    match (labels.next(), labels.next(), labels.next()) {
        (Some(service), Some(_namespace), Some("svc")) => service,
        _ => authority,
    }
}

fn errors_by_pod(pods: &[Arc<ListedObject>]) -> BTreeMap<String, PodErrors> {
    let errors = |object: &ListedObject| PodErrors {
        errors: object
            .pod()
            .into_iter()
            .flat_map(|pod| &pod.errors)
            .map(|error| PodError {
                error: Some(Error::Container(ContainerError {
                    message: error.message.clone(),
                    container: error.container.clone(),
                    image: error.image.clone(),
                    reason: error.reason.clone(),
                })),
            })
            .collect(),
    };
    pods.iter()
        .map(|pod| (pod.name.name.to_string(), errors(pod)))
        .collect()
}

#[cfg(test)]
mod tests;
