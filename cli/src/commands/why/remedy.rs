//! What would change the outcome: commands and objects, for a cluster or the directory of a local
//! node.

use mesh_core::annotation;
use mesh_core::meta::Meta;
use mesh_core::policy::inbound::DefaultPolicy;

use super::facts::{Facts, Place, Server, Workload, WorkloadKind};
use super::kind::kind;

/// How to add a workload to the mesh.
pub(super) fn inject(place: &Place, workload: &Workload) -> String {
    let namespace = &workload.namespace;
    match place {
        _ if workload.kind == WorkloadKind::Unit => format!(
            "meshctl machine check {} shows what its proxy lacks",
            workload.name
        ),
        _ if workload.kind == WorkloadKind::External => format!(
            "the ExternalWorkload {} needs meshTLS, and a proxy",
            workload.name()
        ),
        Place::Cluster | Place::Machine => format!(
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

/// How to redirect connections to a port again that the client's settings exclude.
pub(super) fn unskip(client: &Workload, port: u16) -> String {
    match client.kind {
        WorkloadKind::Unit => format!(
            "meshctl machine enrol {} with --annotation {}=PORTS without {port}, besides the settings to keep",
            client.name,
            annotation::SKIP_OUTBOUND_PORTS
        ),
        WorkloadKind::Pod | WorkloadKind::External => format!(
            "remove {port} from the annotation of the workload, or from proxyInit.ignoreOutboundPorts of the installation"
        ),
    }
}

/// How to see what the client's proxy logs.
pub(super) fn log(client: &Workload) -> String {
    match client.kind {
        WorkloadKind::Unit => format!("meshctl machine check {}", client.name),
        WorkloadKind::Pod | WorkloadKind::External => format!(
            "kubectl -n {} logs {} -c linkerd-proxy",
            client.namespace, client.name
        ),
    }
}

/// How to see why a Service, `NAMESPACE/NAME`, has no endpoints.
pub(super) fn endpoints(place: &Place, service: &str) -> String {
    let (namespace, name) = service.split_once('/').unwrap_or(("default", service));
    match place {
        Place::Cluster | Place::Machine => format!(
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
        "create a Server for port {} of {} and an AuthorizationPolicy for the client (meshctl check explain policy-default-deny has both), or set {} of its workload to another policy",
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
        Place::Cluster | Place::Machine => format!("kubectl apply -f - <<EOF\n{object}\nEOF"),
        Place::Local { manifests } => {
            let file = manifests.join(format!("{name}.yaml"));
            format!("cat > {} <<EOF\n{object}\nEOF", file.display())
        }
    };
    vec![text]
}
