//! Queries agents, controllers, proxies and injectors concurrently.

use mesh_core::exposition;
use mesh_k8s::kinds::Pod;
use mesh_k8s::pod::PROXY_CONTAINER;

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
    let all_proxies = facts.environment == Environment::LocalNode
        || facts.mode == Mode::Installed { proxies: true };
    // If the pods cannot be listed, their own check reports it. The owners are not used here.
    let live: Vec<&Pod> = facts.live_pods().map(Iterator::collect).unwrap_or_default();
    let pods: Vec<MeshPod> = live.iter().map(|pod| MeshPod::new(pod, &[])).collect();
    let own: Vec<(&Pod, &MeshPod)> = live
        .iter()
        .copied()
        .zip(&pods)
        .filter(|(object, pod)| {
            pod.namespace == control && pod.component.is_some() && !facts.is_on_unready_node(object)
        })
        .collect();
    let queried = live.iter().zip(&pods).filter(|(object, pod)| {
        let wanted =
            pod.namespace == control || all_proxies && facts.scope.contains(&pod.namespace);
        let runs = pod.ip.is_some()
            && can_respond(object, PROXY_CONTAINER)
            && !facts.is_on_unready_node(object);
        pod.is_meshed() && runs && wanted
    });
    let queried = queried.map(|(object, pod)| {
        // Pods of the control plane are checked whatever their age, because nothing works without
        // them.
        let new = pod.namespace != control && facts.is_new(object);
        proxy(mesh, pod, new)
    });
    let controllers = own.iter().flat_map(|(object, pod)| {
        let of_pod = ADMIN_PORTS.iter().filter(|(component, name, _)| {
            pod.component.as_deref() == Some(component)
                && pod.containers.iter().any(|container| container == name)
                // `control-plane-containers` reports why a container does not run.
                && can_respond(object, name)
        });
        of_pod.map(|(_, name, port)| controller(mesh, pod, name, *port))
    });
    let injectors = own
        .iter()
        .filter(|(_, pod)| pod.component.as_deref() == Some(COMPONENTS[2]) && pod.ready);
    let injectors = injectors.map(|(_, pod)| presented_chain(mesh, pod, &control));
    let (proxies, controllers, injectors, agents) = tokio::join!(
        clients::concurrently(queried),
        clients::concurrently(controllers),
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

fn text<T>(result: anyhow::Result<T>) -> Fact<T> {
    result.map_err(|error| format!("{error:#}"))
}

async fn proxy(mesh: &Mesh, pod: &MeshPod, new: bool) -> Proxy {
    let get = async |path: &str| {
        let connection = mesh.connect(pod, pod.admin_port()?).await?;
        http::get(connection, "the admin port", path).await
    };
    let (ready, scrape) = tokio::join!(get("/ready"), get("/metrics"));
    Proxy {
        namespace: pod.namespace.clone(),
        pod: pod.name.clone(),
        is_new: new,
        ready: text(ready.map(|_body| ())),
        metrics: text(scrape.map(|body| exposition::parse(&body))),
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
