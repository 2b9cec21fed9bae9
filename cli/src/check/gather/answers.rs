//! What the daemons themselves say: agents, controllers, proxies and injectors, all asked at the
//! same time.

use futures_util::{StreamExt as _, stream};
use mesh_k8s::{kinds::Pod, pod::PROXY_CONTAINER};

use super::super::{
    control_plane::{self, COMPONENTS},
    facts::{Agent, Controller, Facts, Mode, Place, Proxy, Seen},
    webhook,
};
use crate::{
    clients::{self, controllers::ADMIN_PORTS, http, metrics, tls},
    mesh::{Mesh, MeshPod},
};

/// Where the injector answers the API server.
const WEBHOOK_PORT: u16 = 8443;

pub(super) async fn ask(mesh: &Mesh, facts: &mut Facts) {
    let control = facts.control_namespace.clone();
    let proxies_too = facts.place == Place::Node || facts.mode == Mode::Installed { proxies: true };
    // Where the pods cannot be listed, their own check says why. Whose they are does not matter
    // here.
    let live: Vec<&Pod> = facts.live_pods().map(Iterator::collect).unwrap_or_default();
    let pods: Vec<MeshPod> = live.iter().map(|pod| MeshPod::new(pod, &[])).collect();
    let own: Vec<(&Pod, &MeshPod)> = live
        .iter()
        .copied()
        .zip(&pods)
        .filter(|(object, pod)| {
            pod.namespace == control && pod.component.is_some() && !facts.is_on_lost_node(object)
        })
        .collect();
    let asked = live.iter().zip(&pods).filter(|(object, pod)| {
        let wanted =
            pod.namespace == control || proxies_too && facts.scope.contains(&pod.namespace);
        let runs = pod.ip.is_some()
            && control_plane::may_answer(object, PROXY_CONTAINER)
            && !facts.is_on_lost_node(object);
        pod.is_meshed() && runs && wanted
    });
    let asked = asked.map(|(object, pod)| {
        // Nothing works before the control plane does, however young it is.
        let new = pod.namespace != control && facts.is_new(object);
        proxy(mesh, pod, new)
    });
    let proxies = stream::iter(asked).buffered(clients::MAX_CONCURRENT);
    let controllers = own.iter().flat_map(|(object, pod)| {
        let of_pod = ADMIN_PORTS.iter().filter(|(component, name, _)| {
            pod.component.as_deref() == Some(component)
                && pod.containers.iter().any(|container| container == name)
                // A check of its own says why a container does not run.
                && control_plane::may_answer(object, name)
        });
        of_pod.map(|(_, name, port)| controller(mesh, pod, name, *port))
    });
    let controllers = stream::iter(controllers).buffered(clients::MAX_CONCURRENT);
    let injectors = own
        .iter()
        .filter(|(_, pod)| pod.component.as_deref() == Some(COMPONENTS[2]) && pod.ready);
    let injectors = injectors.map(|(_, pod)| presented(mesh, pod, &control));
    let injectors = stream::iter(injectors).buffered(clients::MAX_CONCURRENT);
    let (proxies, controllers, injectors, agents) = tokio::join!(
        proxies.collect::<Vec<_>>(),
        controllers.collect::<Vec<_>>(),
        injectors.collect::<Vec<_>>(),
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

fn text<T>(result: anyhow::Result<T>) -> Seen<T> {
    result.map_err(|error| format!("{error:#}"))
}

async fn proxy(mesh: &Mesh, pod: &MeshPod, new: bool) -> Proxy {
    let ask = async |path: &str| {
        let connection = mesh.connect(pod, pod.admin_port()?).await?;
        http::get(connection, "its admin port", path).await
    };
    let (ready, scrape) = tokio::join!(ask("/ready"), ask("/metrics"));
    Proxy {
        namespace: pod.namespace.clone(),
        pod: pod.name.clone(),
        new,
        ready: text(ready.map(|_body| ())),
        metrics: text(scrape.map(|body| metrics::parse(&body))),
    }
}

async fn controller(mesh: &Mesh, pod: &MeshPod, name: &'static str, port: u16) -> Controller {
    let ask = async |path: &str| {
        let connection = mesh.connect(pod, port).await?;
        http::get(connection, &format!("its port {port}"), path).await
    };
    let (ready, scrape) = tokio::join!(ask("/ready"), ask("/metrics"));
    Controller {
        pod: pod.to_string(),
        name,
        ready: text(ready.map(|_body| ())),
        metrics: text(scrape.map(|body| metrics::parse(&body))),
    }
}

async fn presented(mesh: &Mesh, pod: &MeshPod, namespace: &str) -> (String, Seen<Vec<Vec<u8>>>) {
    let name = format!("{}.{namespace}.svc", webhook::SERVICE);
    let look = async {
        let connection = mesh.connect(pod, WEBHOOK_PORT).await?;
        tls::fetch_chain(connection, &name).await
    };
    (pod.to_string(), text(look.await))
}
