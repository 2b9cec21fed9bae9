//! Queries agents, controllers, proxies and injectors concurrently.

use mesh_core::exposition;
use mesh_k8s::kinds::Pod;
use mesh_k8s::pod::{self, PROXY_CONTAINER};
use mesh_k8s::values::Values;

use crate::clients::{self, http, tls};
use crate::facts::containers::can_respond;
use crate::facts::names::{COMPONENTS, INJECTOR_SERVICE};
use crate::facts::{Agent, Controller, Environment, Fact, Facts, Mode, Proxy};
use crate::mesh::Mesh;
use crate::mesh::controllers::ADMIN_PORTS;
use crate::resource::MeshPod;

/// The injector's port, which the API server calls.
const WEBHOOK_PORT: u16 = 8443;

pub(super) async fn query(mesh: &Mesh, facts: &mut Facts) {
    let control = facts.control_namespace.clone();
    // If the pods cannot be listed, their own check reports it.
    let pods = facts.live_pods().map(Iterator::collect);
    let pods = with_records(pods.unwrap_or_default());
    let injectors = own(facts, &pods)
        .filter(|(_, pod)| pod.component.as_deref() == Some(COMPONENTS[2]) && pod.ready);
    let injectors = injectors.map(|(_, pod)| presented_chain(mesh, pod, &control));
    let (proxies, controllers, injectors, agents) = tokio::join!(
        proxies(mesh, facts, &pods),
        controllers(mesh, facts, &pods),
        clients::concurrently(injectors),
        mesh.agents()
    );
    facts.proxies = proxies;
    facts.controllers = controllers;
    facts.webhook.presented = injectors.into_iter().collect();
    facts.agents = agents
        .unwrap_or_default()
        .into_iter()
        .map(|agent| Agent {
            node: agent.node,
            status: text(agent.status),
            pods: text(agent.pods),
        })
        .collect();
}

/// Queries what follows a rotation of the trust anchor, also in pods that are being deleted.
pub(super) async fn query_rotation(mesh: &Mesh, facts: &mut Facts) {
    let pods = facts.objects.pods.as_deref().unwrap_or_default().iter();
    let pods = with_records(pods.filter(|pod| !pod::is_terminal(pod)).collect());
    // In this order: a certificate that a proxy presents then is not from before the issuer that a
    // replica reports.
    let controllers = controllers(mesh, facts, &pods).await;
    let proxies = proxies(mesh, facts, &pods).await;
    (facts.controllers, facts.proxies) = (controllers, proxies);
}

/// Adds the properties of each pod. The owners are not used here.
fn with_records(pods: Vec<&Pod>) -> Vec<(&Pod, MeshPod)> {
    let pods = pods.into_iter();
    pods.map(|pod| (pod, MeshPod::new(pod, &[]))).collect()
}

/// Returns the pods of the control plane that can be queried.
fn own<'a>(
    facts: &'a Facts,
    pods: &'a [(&'a Pod, MeshPod)],
) -> impl Iterator<Item = &'a (&'a Pod, MeshPod)> {
    pods.iter().filter(|(object, pod)| {
        pod.namespace == facts.control_namespace
            && pod.component.is_some()
            && !facts.is_on_unready_node(object)
    })
}

async fn proxies(mesh: &Mesh, facts: &Facts, pods: &[(&Pod, MeshPod)]) -> Vec<Proxy> {
    let control = &facts.control_namespace;
    let all_proxies = facts.environment == Environment::LocalNode
        || matches!(
            facts.mode,
            Mode::Installed { proxies: true } | Mode::Rotation
        );
    // Chains are of interest only while they change.
    let has_rotation = facts.objects.rotation.as_ref().is_ok_and(Option::is_some);
    let chains = has_rotation || facts.mode == Mode::Rotation;
    let trust_domain = facts.values().ok().map(Values::trust_domain);
    let trust_domain = trust_domain.filter(|_| chains);
    let queried = pods.iter().filter(|(object, pod)| {
        let wanted =
            pod.namespace == *control || all_proxies && facts.scope.contains(&pod.namespace);
        let runs = pod.ip.is_some()
            && can_respond(object, PROXY_CONTAINER)
            && !facts.is_on_unready_node(object);
        pod.is_meshed() && runs && wanted
    });
    let queried = queried.map(|(object, pod)| {
        // Pods of the control plane are checked whatever their age, because nothing works without
        // them.
        let new = pod.namespace != *control && facts.is_new(object);
        proxy(mesh, pod, new, trust_domain)
    });
    clients::concurrently(queried).await
}

async fn controllers(mesh: &Mesh, facts: &Facts, pods: &[(&Pod, MeshPod)]) -> Vec<Controller> {
    let controllers = own(facts, pods).flat_map(|(object, pod)| {
        let of_pod = ADMIN_PORTS.iter().filter(|(component, name, _)| {
            pod.component.as_deref() == Some(component)
                && pod.containers.iter().any(|container| container == name)
                // `control-plane-containers` reports why a container does not run.
                && can_respond(object, name)
        });
        of_pod.map(|(_, name, port)| controller(mesh, pod, name, *port))
    });
    clients::concurrently(controllers).await
}

fn text<T>(result: anyhow::Result<T>) -> Fact<T> {
    result.map_err(|error| format!("{error:#}"))
}

async fn proxy(mesh: &Mesh, pod: &MeshPod, new: bool, trust_domain: Option<&str>) -> Proxy {
    let get = async |path: &str| {
        let connection = mesh.connect(pod, pod.admin_port()?).await?;
        http::get(connection, "the admin port", path).await
    };
    let chain = async {
        match trust_domain {
            Some(domain) => Some(text(mesh.presented_chain(pod, domain).await)),
            None => None,
        }
    };
    let (ready, scrape, chain) = tokio::join!(get("/ready"), get("/metrics"), chain);
    Proxy {
        namespace: pod.namespace.clone(),
        pod: pod.name.clone(),
        is_new: new,
        ready: text(ready.map(|_body| ())),
        metrics: text(scrape.map(|body| exposition::parse(&body))),
        chain,
    }
}

async fn controller(mesh: &Mesh, pod: &MeshPod, name: &'static str, port: u16) -> Controller {
    let get = async |path: &str| {
        let connection = mesh.connect(pod, port).await?;
        http::get(connection, &format!("port {port}"), path).await
    };
    let (ready, scrape) = tokio::join!(get("/ready"), get("/metrics"));
    Controller {
        pod: pod.to_string(),
        name,
        ready: text(ready.map(|_body| ())),
        metrics: text(scrape.map(|body| exposition::parse(&body))),
    }
}

async fn presented_chain(
    mesh: &Mesh,
    pod: &MeshPod,
    namespace: &str,
) -> (String, Fact<Vec<Vec<u8>>>) {
    let name = format!("{}.{namespace}.svc", INJECTOR_SERVICE);
    let chain = async {
        let connection = mesh.connect(pod, WEBHOOK_PORT).await?;
        tls::fetch_chain(connection, &name).await
    };
    (pod.to_string(), text(chain.await))
}
