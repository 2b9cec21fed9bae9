//! The kinds of Kubernetes and of the Gateway API that the mesh reads.
//!
//! Each kind in use is re-exported here, so that this list is complete.

pub use gateway_api::{
    grpcroutes::{self, GrpcRoute},
    httproutes::{self, HttpRoute},
    tlsroutes::TlsRouteRulesBackendRefs,
};
pub use k8s_openapi::{
    ByteString,
    api::{
        admissionregistration::v1::{
            MutatingWebhook, MutatingWebhookConfiguration, ValidatingWebhook,
            ValidatingWebhookConfiguration,
        },
        apps::v1::{DaemonSet, Deployment, ReplicaSet},
        authorization::v1 as authorization,
        batch::v1::{CronJob, Job},
        coordination::v1::Lease,
        core::v1 as core,
        core::v1::{ConfigMap, Namespace, Node, Pod, Secret, Service, ServiceAccount},
        discovery::v1 as discovery,
        discovery::v1::EndpointSlice,
        networking::v1 as networking,
        networking::v1::NetworkPolicy,
        rbac::v1::{ClusterRole, ClusterRoleBinding},
    },
    apimachinery::pkg::{
        api::resource::Quantity,
        apis::meta::v1::{
            LabelSelector, LabelSelectorRequirement, ObjectMeta, OwnerReference, Time,
        },
        util::intstr::IntOrString,
    },
};
pub use kube::{Resource, ResourceExt};

pub use crate::connection_routes::{ConnectionRule, TcpRoute, TlsRoute};
