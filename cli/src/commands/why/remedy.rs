//! What would change the outcome: commands and objects, for a cluster or the directory of a local
//! node.

use mesh_core::annotation;
use mesh_core::meta::Meta;
use mesh_core::policy::inbound::DefaultPolicy;

use super::facts::{Facts, Place, Server, Workload};
use super::kind::kind;

/// How to add a pod to the mesh.
pub(super) fn inject(place: &Place, pod: &Workload) -> String {
    let namespace = &pod.namespace;
    match place {
        Place::Cluster => format!(
            "kubectl annotate namespace {namespace} {}=enabled, then restart the pod's workload",
            annotation::INJECT
        ),
        Place::Local { manifests } => format!(
            "annotate namespace {namespace} with {}: enabled in {}, then `meshctl local apply {1}`",
            annotation::INJECT,
            manifests.display()
        ),
    }
}

/// How to see why a Service, `NAMESPACE/NAME`, has no endpoints.
pub(super) fn endpoints(place: &Place, service: &str) -> String {
    let (namespace, name) = service.split_once('/').unwrap_or(("default", service));
    match place {
        Place::Cluster => format!(
            "kubectl -n {namespace} get pods,endpointslices -l kubernetes.io/service-name={name}"
        ),
        Place::Local { .. } => "meshctl local status".to_owned(),
    }
}

/// How to authorize the client: an object for the target of the policy, and where it goes.
pub(super) fn authorize(
    facts: &Facts,
    server: &Server,
    policy: &Meta,
    route: Option<&Meta>,
) -> Vec<String> {
    let client = &facts.client;
    // `deny` refuses clients with an identity as well.
    if !client.is_meshed() && *policy != DefaultPolicy::Deny.meta() {
        return vec![inject(&facts.place, client)];
    }
    let target = route
        .filter(|route| matches!(route, Meta::Resource(_)))
        .unwrap_or(policy);
    match target {
        Meta::Resource(_) => apply(facts, server, target),
        Meta::Default(_) => vec![default_policy(server)],
    }
}

fn default_policy(server: &Server) -> String {
    format!(
        "create a Server for port {} of pod {} and an AuthorizationPolicy for the client (meshctl check explain policy-default-deny has both), or set {} of its workload to another policy",
        server.address.port(),
        server.pod,
        annotation::DEFAULT_INBOUND_POLICY
    )
}

fn apply(facts: &Facts, server: &Server, target: &Meta) -> Vec<String> {
    let Facts { place, client, .. } = facts;
    let name = format!("{}-from-{}", target.name(), client.service_account);
    let Workload {
        namespace,
        service_account,
        ..
    } = client;
    let object = format!(
        "apiVersion: policy.linkerd.io/v1alpha1\n\
         kind: AuthorizationPolicy\n\
         metadata: {{name: {name}, namespace: {}}}\n\
         spec:\n\
         \x20 targetRef: {{group: {}, kind: {}, name: {}}}\n\
         \x20 requiredAuthenticationRefs:\n\
         \x20 - {{kind: ServiceAccount, name: {service_account}, namespace: {namespace}}}",
        server.pod.namespace,
        target.group(),
        kind(target.kind()),
        target.name(),
    );
    let text = match place {
        Place::Cluster => format!("kubectl apply -f - <<EOF\n{object}\nEOF"),
        Place::Local { manifests } => {
            let file = manifests.join(format!("{name}.yaml"));
            format!("cat > {} <<EOF\n{object}\nEOF", file.display())
        }
    };
    vec![text]
}
