//! Messages of the viz extension in protobuf's JSON mapping, with fields that have no value, as
//! Linkerd's dashboard writes them: 64-bit integers are strings, a message that is not set is
//! `null`, and of a oneof only the field that is set is written.

use std::collections::BTreeMap;

use mesh_api::linkerd2::Duration;
use mesh_api::linkerd2::viz::pod::Owner;
use mesh_api::linkerd2::viz::pod_errors::PodError;
use mesh_api::linkerd2::viz::pod_errors::pod_error::{ContainerError, Error};
use mesh_api::linkerd2::viz::stat_table::pod_group::Row;
use mesh_api::linkerd2::viz::stat_table::{PodGroup, Table};
use mesh_api::linkerd2::viz::{
    AuthzResponse, BasicStats, CheckResult, CheckStatus, Edge, EdgesResponse, GatewaysResponse,
    GatewaysTable, ListPodsResponse, ListServicesResponse, Pod, PodErrors, Resource, ResourceError,
    RouteTable, SelfCheckResponse, ServerStats, Service, StatSummaryResponse, StatTable, TcpStats,
    TopRoutesResponse, TrafficSplitStats, authz_response, edges_response, gateways_response,
    gateways_table, route_table, stat_summary_response, top_routes_response,
};
use serde_json::{Map, Value, json};

mod tap;

/// A message in the JSON mapping.
pub(crate) trait ToJson {
    fn to_json(&self) -> Value;
}

impl<T: ToJson> ToJson for Option<T> {
    fn to_json(&self) -> Value {
        self.as_ref().map_or(Value::Null, ToJson::to_json)
    }
}

impl<T: ToJson> ToJson for Vec<T> {
    fn to_json(&self) -> Value {
        self.iter().map(ToJson::to_json).collect()
    }
}

/// 64-bit integers are strings, because JavaScript's numbers are not exact.
impl ToJson for u64 {
    fn to_json(&self) -> Value {
        Value::String(self.to_string())
    }
}

impl ToJson for Duration {
    fn to_json(&self) -> Value {
        // Both have the same sign.
        let sign = if self.seconds < 0 || self.nanos < 0 {
            "-"
        } else {
            ""
        };
        let (seconds, nanos) = (self.seconds.unsigned_abs(), self.nanos.unsigned_abs());
        Value::String(match nanos {
            0 => format!("{sign}{seconds}s"),
            _ if nanos % 1_000_000 == 0 => format!("{sign}{seconds}.{:03}s", nanos / 1_000_000),
            _ if nanos % 1_000 == 0 => format!("{sign}{seconds}.{:06}s", nanos / 1_000),
            _ => format!("{sign}{seconds}.{nanos:09}s"),
        })
    }
}

/// Returns the field of a pod that has its owner, and the owner's namespace and name.
pub(super) fn owner_field(owner: &Owner) -> (&'static str, &str) {
    match owner {
        Owner::Deployment(name) => ("deployment", name),
        Owner::ReplicaSet(name) => ("replicaSet", name),
        Owner::ReplicationController(name) => ("replicationController", name),
        Owner::StatefulSet(name) => ("statefulSet", name),
        Owner::DaemonSet(name) => ("daemonSet", name),
        Owner::Job(name) => ("job", name),
    }
}

/// Adds the field of a oneof that is set.
fn with_field(mut object: Value, field: Option<(&str, Value)>) -> Value {
    if let (Some(fields), Some((name, value))) = (object.as_object_mut(), field) {
        let _previous = fields.insert(name.to_owned(), value);
    }
    object
}

/// A message with nothing but a oneof.
fn one_of(field: Option<(&str, Value)>) -> Value {
    with_field(Value::Object(Map::new()), field)
}

impl ToJson for Resource {
    fn to_json(&self) -> Value {
        json!({ "namespace": self.namespace, "type": self.r#type, "name": self.name })
    }
}

impl ToJson for ResourceError {
    fn to_json(&self) -> Value {
        json!({ "resource": self.resource.to_json(), "error": self.error })
    }
}

impl ToJson for BasicStats {
    fn to_json(&self) -> Value {
        json!({
            "successCount": self.success_count.to_json(),
            "failureCount": self.failure_count.to_json(),
            "latencyMsP50": self.latency_ms_p50.to_json(),
            "latencyMsP95": self.latency_ms_p95.to_json(),
            "latencyMsP99": self.latency_ms_p99.to_json(),
            "actualSuccessCount": self.actual_success_count.to_json(),
            "actualFailureCount": self.actual_failure_count.to_json(),
        })
    }
}

impl ToJson for TcpStats {
    fn to_json(&self) -> Value {
        json!({
            "openConnections": self.open_connections.to_json(),
            "readBytesTotal": self.read_bytes_total.to_json(),
            "writeBytesTotal": self.write_bytes_total.to_json(),
        })
    }
}

impl ToJson for TrafficSplitStats {
    fn to_json(&self) -> Value {
        json!({ "apex": self.apex, "leaf": self.leaf, "weight": self.weight })
    }
}

impl ToJson for ServerStats {
    fn to_json(&self) -> Value {
        json!({
            "allowedCount": self.allowed_count.to_json(),
            "deniedCount": self.denied_count.to_json(),
            "srv": self.srv.to_json(),
            "route": self.route.to_json(),
            "authz": self.authz.to_json(),
        })
    }
}

impl ToJson for ContainerError {
    fn to_json(&self) -> Value {
        json!({
            "message": self.message,
            "container": self.container,
            "image": self.image,
            "reason": self.reason,
        })
    }
}

impl ToJson for PodError {
    fn to_json(&self) -> Value {
        one_of(self.error.as_ref().map(|error| match error {
            Error::Container(container) => ("container", container.to_json()),
        }))
    }
}

impl ToJson for PodErrors {
    fn to_json(&self) -> Value {
        json!({ "errors": self.errors.to_json() })
    }
}

impl ToJson for BTreeMap<String, PodErrors> {
    fn to_json(&self) -> Value {
        let entries = self.iter();
        entries
            .map(|(pod, errors)| (pod.clone(), errors.to_json()))
            .collect::<Map<_, _>>()
            .into()
    }
}

impl ToJson for Row {
    fn to_json(&self) -> Value {
        json!({
            "resource": self.resource.to_json(),
            "timeWindow": self.time_window,
            "status": self.status,
            "meshedPodCount": self.meshed_pod_count.to_json(),
            "runningPodCount": self.running_pod_count.to_json(),
            "failedPodCount": self.failed_pod_count.to_json(),
            "stats": self.stats.to_json(),
            "tcpStats": self.tcp_stats.to_json(),
            "tsStats": self.ts_stats.to_json(),
            "srvStats": self.srv_stats.to_json(),
            "errorsByPod": self.errors_by_pod.to_json(),
        })
    }
}

impl ToJson for PodGroup {
    fn to_json(&self) -> Value {
        json!({ "rows": self.rows.to_json() })
    }
}

impl ToJson for StatTable {
    fn to_json(&self) -> Value {
        one_of(self.table.as_ref().map(|table| match table {
            Table::PodGroup(group) => ("podGroup", group.to_json()),
        }))
    }
}

impl ToJson for StatSummaryResponse {
    fn to_json(&self) -> Value {
        use stat_summary_response::Response::{Error, Ok};
        one_of(self.response.as_ref().map(|response| match response {
            Ok(ok) => ("ok", json!({ "statTables": ok.stat_tables.to_json() })),
            Error(error) => ("error", error.to_json()),
        }))
    }
}

impl ToJson for AuthzResponse {
    fn to_json(&self) -> Value {
        use authz_response::Response::{Error, Ok};
        one_of(self.response.as_ref().map(|response| match response {
            Ok(ok) => ("ok", json!({ "statTable": ok.stat_table.to_json() })),
            Error(error) => ("error", error.to_json()),
        }))
    }
}

impl ToJson for Edge {
    fn to_json(&self) -> Value {
        json!({
            "src": self.src.to_json(),
            "dst": self.dst.to_json(),
            "clientId": self.client_id,
            "serverId": self.server_id,
            "noIdentityMsg": self.no_identity_msg,
        })
    }
}

impl ToJson for EdgesResponse {
    fn to_json(&self) -> Value {
        use edges_response::Response::{Error, Ok};
        one_of(self.response.as_ref().map(|response| match response {
            Ok(ok) => ("ok", json!({ "edges": ok.edges.to_json() })),
            Error(error) => ("error", error.to_json()),
        }))
    }
}

impl ToJson for route_table::Row {
    fn to_json(&self) -> Value {
        json!({
            "route": self.route,
            "timeWindow": self.time_window,
            "authority": self.authority,
            "stats": self.stats.to_json(),
        })
    }
}

impl ToJson for RouteTable {
    fn to_json(&self) -> Value {
        json!({ "rows": self.rows.to_json(), "resource": self.resource })
    }
}

impl ToJson for TopRoutesResponse {
    fn to_json(&self) -> Value {
        use top_routes_response::Response::{Error, Ok};
        one_of(self.response.as_ref().map(|response| match response {
            Ok(ok) => ("ok", json!({ "routes": ok.routes.to_json() })),
            Error(error) => ("error", error.to_json()),
        }))
    }
}

impl ToJson for gateways_table::Row {
    fn to_json(&self) -> Value {
        json!({
            "namespace": self.namespace,
            "name": self.name,
            "clusterName": self.cluster_name,
            "pairedServices": self.paired_services.to_json(),
            "alive": self.alive,
            "latencyMsP50": self.latency_ms_p50.to_json(),
            "latencyMsP95": self.latency_ms_p95.to_json(),
            "latencyMsP99": self.latency_ms_p99.to_json(),
        })
    }
}

impl ToJson for GatewaysTable {
    fn to_json(&self) -> Value {
        json!({ "rows": self.rows.to_json() })
    }
}

impl ToJson for GatewaysResponse {
    fn to_json(&self) -> Value {
        use gateways_response::Response::{Error, Ok};
        one_of(self.response.as_ref().map(|response| match response {
            Ok(ok) => (
                "ok",
                json!({ "gatewaysTable": ok.gateways_table.to_json() }),
            ),
            Error(error) => ("error", error.to_json()),
        }))
    }
}

impl ToJson for Pod {
    fn to_json(&self) -> Value {
        let object = json!({
            "name": self.name,
            "podIP": self.pod_ip,
            "status": self.status,
            "added": self.added,
            "sinceLastReport": self.since_last_report.to_json(),
            "controllerNamespace": self.controller_namespace,
            "controlPlane": self.control_plane,
            "uptime": self.uptime.to_json(),
            "proxyReady": self.proxy_ready,
            "proxyVersion": self.proxy_version,
            "resourceVersion": self.resource_version,
        });
        let owner = self.owner.as_ref().map(owner_field);
        let owner = owner.map(|(field, name)| (field, Value::from(name)));
        with_field(object, owner)
    }
}

impl ToJson for ListPodsResponse {
    fn to_json(&self) -> Value {
        json!({ "pods": self.pods.to_json() })
    }
}

impl ToJson for Service {
    fn to_json(&self) -> Value {
        json!({ "name": self.name, "namespace": self.namespace })
    }
}

impl ToJson for ListServicesResponse {
    fn to_json(&self) -> Value {
        json!({ "services": self.services.to_json() })
    }
}

impl ToJson for CheckResult {
    fn to_json(&self) -> Value {
        // A status that this version does not know is written as its number.
        let status = CheckStatus::try_from(self.status)
            .map_or(json!(self.status), |status| json!(status.as_str_name()));
        json!({
            "SubsystemName": self.subsystem_name,
            "CheckDescription": self.check_description,
            "Status": status,
            "FriendlyMessageToUser": self.friendly_message_to_user,
        })
    }
}

impl ToJson for SelfCheckResponse {
    fn to_json(&self) -> Value {
        json!({ "results": self.results.to_json() })
    }
}

#[cfg(test)]
mod tests;
