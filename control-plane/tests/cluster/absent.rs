//! An API server that is unreachable for some time: known objects stay in effect, and changes are
//! found afterwards.

use std::sync::Arc;

use kube::config::Kubeconfig;
use mesh_test_support::controller::Controller;
use mesh_test_support::eventually::eventually_async as eventually;
use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::manifests::{pod, slice};
use crate::messages::update;
use crate::{Cluster, cluster, metric, web};

/// A relay between a controller and the API server that can be interrupted.
struct Relay {
    dir: tempfile::TempDir,
    open: Arc<Mutex<Option<JoinSet<()>>>>,
}

impl Relay {
    async fn to(cluster: &Cluster) -> Self {
        let mut file = Kubeconfig::read_from(&cluster.kubeconfig).unwrap();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let here = format!("https://{}", listener.local_addr().unwrap());
        let mut there = String::new();
        for entry in &mut file.clusters {
            let target = entry.cluster.as_mut().unwrap();
            let uri: http::Uri = target.server.as_deref().unwrap().parse().unwrap();
            there = uri.authority().unwrap().to_string();
            target.tls_server_name = uri.host().map(str::to_owned);
            target.server = Some(here.clone());
        }
        let dir = tempfile::tempdir().unwrap();
        let text = serde_norway::to_string(&file).unwrap();
        std::fs::write(dir.path().join("kubeconfig"), text).unwrap();
        let open = Arc::new(Mutex::new(Some(JoinSet::new())));
        let connections = open.clone();
        tokio::spawn(async move {
            loop {
                let (near, _) = listener.accept().await.unwrap();
                let there = there.clone();
                // Accepted and closed immediately while it is interrupted.
                if let Some(connections) = &mut *connections.lock() {
                    connections.spawn(async move {
                        let mut near = near;
                        let mut far = TcpStream::connect(there).await.unwrap();
                        let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
                    });
                }
            }
        });
        Self { dir, open }
    }

    fn cut(&self) {
        *self.open.lock() = None;
    }

    fn mend(&self) {
        *self.open.lock() = Some(JoinSet::new());
    }
}

#[tokio::test]
async fn known_objects_stay_in_effect_without_api_server() {
    let Some(cluster) = cluster("absent").await else {
        return;
    };
    cluster.apply(&web(&[("web-1", "10.1.0.1")])).await;
    cluster.apply(&pod("web-2", "10.1.0.2")).await;
    let relay = Relay::to(&cluster).await;
    let kubeconfig = relay.dir.path().join("kubeconfig");
    let flags = [
        format!("--kubeconfig={}", kubeconfig.display()),
        format!("--kube-context={}", cluster.context),
    ];
    let controller = Controller::start("destination", "--addr", "--metrics-addr", &flags)
        .ready()
        .await;
    let mut stream = cluster.endpoints_of_web(&controller).await;
    assert_eq!(update(&mut stream).await, "+10.1.0.1:8080");

    relay.cut();
    let line = controller.logged("known objects stay in effect").await;
    assert!(line.contains("WARN"), "{line}");
    let synced = "source_kind_synced{group=\"\",kind=\"Pod\"}";
    eventually("the metric to change", async || {
        metric(&controller, synced).await == Some(0.0)
    })
    .await;
    // Only the slice changes: kinds are watched separately, so the order of two changes would be
    // random.
    cluster.apply(&slice(&[("web-2", "10.1.0.2")])).await;
    let mut again = cluster.endpoints_of_web(&controller).await;
    assert_eq!(update(&mut again).await, "+10.1.0.1:8080");

    relay.mend();
    assert_eq!(update(&mut stream).await, "+10.1.0.2:8080");
    assert_eq!(update(&mut stream).await, "-10.1.0.1:8080");
    eventually("the metric to change", async || {
        metric(&controller, synced).await == Some(1.0)
    })
    .await;
}
