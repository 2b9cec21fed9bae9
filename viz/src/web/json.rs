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

impl<T: ToJson> ToJson for BTreeMap<String, T> {
    fn to_json(&self) -> Value {
        let entries = self.iter();
        entries
            .map(|(name, it)| (name.as_str(), it.to_json()))
            .collect()
    }
}

/// Implements [`ToJson`] for values that JSON has.
macro_rules! values {
    ($($value:ty)+) => {
        $(impl ToJson for $value {
            fn to_json(&self) -> Value {
                json!(self)
            }
        })+
    };
}

values! { bool u32 String }

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

/// Implements [`ToJson`] for messages, by the names of their fields in JSON.
macro_rules! messages {
    ($($message:ty { $($name:literal: $field:ident,)+ })+) => {
        $(impl ToJson for $message {
            fn to_json(&self) -> Value {
                Value::from_iter([$(($name, self.$field.to_json())),+])
            }
        })+
    };
}

/// Implements [`ToJson`] for responses of one field, or an error.
macro_rules! responses {
    ($($response:ty: $module:ident { $name:literal: $field:ident })+) => {
        $(impl ToJson for $response {
            fn to_json(&self) -> Value {
                use $module::Response::{Error, Ok};
                one_of(self.response.as_ref().map(|response| match response {
                    Ok(ok) => ("ok", Value::from_iter([($name, ok.$field.to_json())])),
                    Error(error) => ("error", error.to_json()),
                }))
            }
        })+
    };
}

mod tap;

messages! {
    Resource { "namespace": namespace, "type": r#type, "name": name, }
    ResourceError { "resource": resource, "error": error, }
    BasicStats {
        "successCount": success_count,
        "failureCount": failure_count,
        "latencyMsP50": latency_ms_p50,
        "latencyMsP95": latency_ms_p95,
        "latencyMsP99": latency_ms_p99,
        "actualSuccessCount": actual_success_count,
        "actualFailureCount": actual_failure_count,
    }
    TcpStats {
        "openConnections": open_connections,
        "readBytesTotal": read_bytes_total,
        "writeBytesTotal": write_bytes_total,
    }
    TrafficSplitStats { "apex": apex, "leaf": leaf, "weight": weight, }
    ServerStats {
        "allowedCount": allowed_count,
        "deniedCount": denied_count,
        "srv": srv,
        "route": route,
        "authz": authz,
    }
    ContainerError {
        "message": message,
        "container": container,
        "image": image,
        "reason": reason,
    }
    PodErrors { "errors": errors, }
    Row {
        "resource": resource,
        "timeWindow": time_window,
        "status": status,
        "meshedPodCount": meshed_pod_count,
        "runningPodCount": running_pod_count,
        "failedPodCount": failed_pod_count,
        "stats": stats,
        "tcpStats": tcp_stats,
        "tsStats": ts_stats,
        "srvStats": srv_stats,
        "errorsByPod": errors_by_pod,
    }
    PodGroup { "rows": rows, }
    Edge {
        "src": src,
        "dst": dst,
        "clientId": client_id,
        "serverId": server_id,
        "noIdentityMsg": no_identity_msg,
    }
    route_table::Row {
        "route": route,
        "timeWindow": time_window,
        "authority": authority,
        "stats": stats,
    }
    RouteTable { "rows": rows, "resource": resource, }
    gateways_table::Row {
        "namespace": namespace,
        "name": name,
        "clusterName": cluster_name,
        "pairedServices": paired_services,
        "alive": alive,
        "latencyMsP50": latency_ms_p50,
        "latencyMsP95": latency_ms_p95,
        "latencyMsP99": latency_ms_p99,
    }
    GatewaysTable { "rows": rows, }
    ListPodsResponse { "pods": pods, }
    Service { "name": name, "namespace": namespace, }
    ListServicesResponse { "services": services, }
    SelfCheckResponse { "results": results, }
}

responses! {
    StatSummaryResponse: stat_summary_response { "statTables": stat_tables }
    AuthzResponse: authz_response { "statTable": stat_table }
    EdgesResponse: edges_response { "edges": edges }
    TopRoutesResponse: top_routes_response { "routes": routes }
    GatewaysResponse: gateways_response { "gatewaysTable": gateways_table }
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

/// Returns the name of a value of an enumeration, or the number of one that this version does not
/// know.
fn enumerated<E: TryFrom<i32>>(number: i32, name: fn(&E) -> &'static str) -> Value {
    E::try_from(number).map_or(json!(number), |known| json!(name(&known)))
}

/// A message with nothing but a oneof.
fn one_of(field: Option<(&str, Value)>) -> Value {
    with_field(Value::Object(Map::new()), field)
}

impl ToJson for PodError {
    fn to_json(&self) -> Value {
        one_of(self.error.as_ref().map(|error| match error {
            Error::Container(container) => ("container", container.to_json()),
        }))
    }
}

impl ToJson for StatTable {
    fn to_json(&self) -> Value {
        one_of(self.table.as_ref().map(|table| match table {
            Table::PodGroup(group) => ("podGroup", group.to_json()),
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

impl ToJson for CheckResult {
    fn to_json(&self) -> Value {
        json!({
            "SubsystemName": self.subsystem_name,
            "CheckDescription": self.check_description,
            "Status": enumerated(self.status, CheckStatus::as_str_name),
            "FriendlyMessageToUser": self.friendly_message_to_user,
        })
    }
}

#[cfg(test)]
mod tests;
