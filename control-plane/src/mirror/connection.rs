//! Follows the objects of the target cluster, with the credentials of its Link.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures_util::StreamExt as _;
use futures_util::stream::{self, BoxStream};
use kube::{Api, Client};
use mesh_cluster::api_server::{Backoff, LinkedKubeconfig};
use mesh_core::rights::Right;
use mesh_k8s::kinds::core::Service;
use mesh_k8s::kinds::{EndpointSlice, Secret};
use mesh_objects::model::Name;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use super::follow::{Step, config, steps};
use super::objects::RemoteObjects;
use super::publisher::Publisher;
use super::records::{RemoteService, RemoteSlice};
use super::target::Target;

/// Connects to the target cluster.
#[derive(Clone)]
pub(crate) struct Connections {
    publisher: Publisher,
    has_hosts: bool,
    /// The rights in the target cluster.
    rights: Vec<Right>,
    client: TargetClient,
}

/// The client of the target cluster, once it is known. Clones share it.
pub(super) type TargetClient = Arc<Mutex<Option<Client>>>;

/// A connection, and its reason.
struct Connected {
    target: Arc<Target>,
    kubeconfig: LinkedKubeconfig,
    task: AbortOnDropHandle<()>,
}

/// Reads the objects of a target.
struct Reader {
    target: Arc<Target>,
    publisher: Publisher,
    has_hosts: bool,
    /// The objects until they are complete.
    draft: Option<RemoteObjects>,
    services_listed: bool,
    slices_listed: bool,
    /// Reads the objects by another version of the Link or with other credentials, until this one
    /// has read all.
    old: Option<AbortOnDropHandle<()>>,
}

enum Change {
    // Boxed, because the steps at the end of a list are much smaller.
    Service(Box<Step<Service>>),
    Slice(Box<Step<EndpointSlice>>),
}

const PROGRAM: &str = "mesh-controller service-mirror";

impl Connections {
    /// Hosts of headless Services are read if they have mirrors. `rights` apply in the target
    /// cluster.
    pub(crate) fn new(publisher: Publisher, has_hosts: bool, rights: Vec<Right>) -> Self {
        Self {
            publisher,
            has_hosts,
            rights,
            client: TargetClient::default(),
        }
    }

    pub(super) fn client(&self) -> TargetClient {
        self.client.clone()
    }

    /// Reads the objects of this cluster. Runs until it is dropped.
    pub(crate) async fn run_local(self, client: Client, target: Target) {
        *self.client.lock() = Some(client.clone());
        let target = Arc::new(target);
        let mut backoff = Backoff::for_api_server();
        loop {
            let reader = self.reader(target.clone(), None);
            reader.read(&client).await;
            backoff.wait().await;
        }
    }

    /// Follows the credentials that the Link names, and the objects of its target. Runs until the
    /// sender of targets is dropped.
    pub(crate) async fn run(
        self,
        client: Client,
        namespace: String,
        targets: watch::Receiver<Option<Arc<Target>>>,
    ) {
        let (credentials, kubeconfigs) = watch::channel(None);
        let secrets = Api::namespaced(client, &namespace);
        tokio::select! {
            () = follow_credentials(secrets, targets.clone(), credentials) => {}
            () = self.connect(targets, kubeconfigs) => {}
        }
    }

    async fn connect(
        self,
        mut targets: watch::Receiver<Option<Arc<Target>>>,
        mut kubeconfigs: watch::Receiver<Option<LinkedKubeconfig>>,
    ) {
        let mut current: Option<Connected> = None;
        loop {
            let target = targets.borrow_and_update().clone();
            let kubeconfig = kubeconfigs.borrow_and_update().clone();
            match (target, kubeconfig) {
                (Some(target), Some(kubeconfig)) => {
                    let same = current.as_ref().is_some_and(|current| {
                        current.target.reads_as(&target) && current.kubeconfig == kubeconfig
                    });
                    if !same {
                        // The objects that were read before stay until all have been read again.
                        let old = current.take().map(|current| current.task);
                        let follow = self.clone().follow(target.clone(), kubeconfig.clone(), old);
                        current = Some(Connected {
                            target,
                            kubeconfig,
                            task: AbortOnDropHandle::new(tokio::spawn(follow)),
                        });
                    }
                }
                // The objects stay, with nothing that follows them.
                (Some(_), None) => current = None,
                (None, _) => {
                    current = None;
                    self.publisher.change(|mirrors| {
                        mirrors.forget_plan();
                        mirrors.remote.take().is_some()
                    });
                }
            }
            tokio::select! {
                Ok(()) = targets.changed() => {}
                Ok(()) = kubeconfigs.changed() => {}
                else => return,
            }
        }
    }

    async fn follow(
        self,
        target: Arc<Target>,
        kubeconfig: LinkedKubeconfig,
        mut old: Option<AbortOnDropHandle<()>>,
    ) {
        let cluster = target.cluster.as_deref();
        let mut backoff = Backoff::for_api_server();
        loop {
            match kubeconfig.connect(PROGRAM, self.rights.clone()).await {
                Ok(client) => {
                    *self.client.lock() = Some(client.clone());
                    let reader = self.reader(target.clone(), old.take());
                    old = reader.read(&client).await;
                }
                Err(error) => {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(
                        cluster,
                        error,
                        "Cannot use the credentials of the target cluster; retrying"
                    );
                }
            }
            backoff.wait().await;
        }
    }

    fn reader(&self, target: Arc<Target>, old: Option<AbortOnDropHandle<()>>) -> Reader {
        Reader {
            draft: Some(RemoteObjects::new(target.cluster.clone())),
            services_listed: false,
            slices_listed: !target.reads_endpoints(),
            target,
            publisher: self.publisher.clone(),
            has_hosts: self.has_hosts,
            old,
        }
    }
}

impl Reader {
    /// Reads the objects, until there is room for objects that were left out, which only a new list
    /// brings. Returns the reader before it if it has not read all.
    async fn read(mut self, client: &Client) -> Option<AbortOnDropHandle<()>> {
        let mut changes = self.changes(client);
        while let Some(change) = changes.next().await {
            let removes = match change {
                Change::Service(step) => self.apply_service(*step),
                Change::Slice(step) => self.apply_slice(*step),
            };
            self.publish();
            if removes && self.is_full() {
                break;
            }
        }
        self.old
    }

    fn changes(&self, client: &Client) -> BoxStream<'static, Change> {
        let mut watched = config();
        if let Some(labels) = self.target.watched_labels() {
            watched = watched.labels(&labels);
        }
        let what = "Services of the target cluster";
        let services = steps(Api::<Service>::all(client.clone()), watched, what);
        let services = services.map(|step| Change::Service(Box::new(step)));
        if !self.target.reads_endpoints() {
            return services.boxed();
        }
        let what = "EndpointSlices of the target cluster";
        let slices = steps(Api::<EndpointSlice>::all(client.clone()), config(), what);
        stream::select(services, slices.map(|step| Change::Slice(Box::new(step)))).boxed()
    }

    /// Returns whether an object was removed.
    fn apply_service(&mut self, step: Step<Service>) -> bool {
        let target = self.target.clone();
        match step {
            Step::Set(name, service) => {
                let labels = service.metadata.labels.as_ref();
                let is_selected = labels.is_some_and(|labels| target.selects(labels));
                let service = is_selected.then(|| RemoteService::new(service));
                let removes = service.is_none();
                self.change(|objects| objects.set_service(&name, service));
                removes
            }
            Step::Delete(name) => {
                self.change(|objects| objects.set_service(&name, None));
                true
            }
            Step::Listed(listed) => {
                self.services_listed = true;
                self.change(|objects| {
                    let gone = unlisted(objects.services.keys(), &listed);
                    for name in &gone {
                        objects.set_service(name, None);
                    }
                    !gone.is_empty()
                });
                true
            }
        }
    }

    /// Returns whether an object was removed.
    fn apply_slice(&mut self, step: Step<EndpointSlice>) -> bool {
        match step {
            Step::Set(name, slice) => {
                let slice = RemoteSlice::new(slice, self.has_hosts);
                self.change(|objects| objects.set_slice(&name, slice));
                false
            }
            Step::Delete(name) => {
                self.change(|objects| objects.set_slice(&name, None));
                true
            }
            Step::Listed(listed) => {
                self.slices_listed = true;
                self.change(|objects| {
                    let gone = unlisted(objects.slices.keys(), &listed);
                    for name in &gone {
                        objects.set_slice(name, None);
                    }
                    !gone.is_empty()
                });
                true
            }
        }
    }

    /// Applies a change, which returns whether it has an effect.
    fn change(&mut self, change: impl FnOnce(&mut RemoteObjects) -> bool) {
        if let Some(draft) = &mut self.draft {
            change(draft);
            return;
        }
        let cluster = self.target.cluster.clone();
        self.publisher.change(|mirrors| {
            let remote = mirrors.remote.as_mut();
            let Some(remote) = remote.filter(|remote| remote.cluster == cluster) else {
                return false;
            };
            let changed = change(remote);
            if changed {
                mirrors.forget_plan();
            }
            changed
        });
    }

    /// Publishes the objects when all have been read.
    fn publish(&mut self) {
        if !self.services_listed || !self.slices_listed {
            return;
        }
        let Some(draft) = self.draft.take() else {
            return;
        };
        let (cluster, services) = (self.target.cluster.as_deref(), draft.services.len());
        self.publisher.change(|mirrors| {
            mirrors.remote = Some(draft);
            mirrors.forget_plan();
            true
        });
        tracing::info!(
            cluster,
            services,
            "Read the selected Services of the target cluster"
        );
        self.old = None;
    }

    fn is_full(&self) -> bool {
        match &self.draft {
            Some(draft) => draft.is_full,
            None => self
                .publisher
                .read(|mirrors| mirrors.remote.as_ref().is_some_and(|it| it.is_full)),
        }
    }
}

fn unlisted<'a>(known: impl Iterator<Item = &'a Name>, listed: &BTreeSet<Name>) -> Vec<Name> {
    known
        .filter(|name| !listed.contains(name))
        .cloned()
        .collect()
}

/// Sends the kubeconfigs of the Secret that the target names.
async fn follow_credentials(
    secrets: Api<Secret>,
    mut targets: watch::Receiver<Option<Arc<Target>>>,
    kubeconfigs: watch::Sender<Option<LinkedKubeconfig>>,
) {
    loop {
        let target = targets.borrow_and_update().clone();
        let name = target.and_then(|target| target.credentials.clone());
        let follow = follow_secret(secrets.clone(), name.clone(), &kubeconfigs);
        let other = async {
            loop {
                if targets.changed().await.is_err() {
                    return false;
                }
                let target = targets.borrow_and_update().clone();
                if target.and_then(|target| target.credentials.clone()) != name {
                    return true;
                }
            }
        };
        let goes_on = tokio::select! {
            biased;
            goes_on = other => goes_on,
            () = follow => true,
        };
        if !goes_on {
            return;
        }
    }
}

/// Follows a Secret. One that is invalid changes nothing; without it nothing connects.
async fn follow_secret(
    secrets: Api<Secret>,
    name: Option<Arc<str>>,
    kubeconfigs: &watch::Sender<Option<LinkedKubeconfig>>,
) {
    let Some(name) = name else {
        std::future::pending::<()>().await;
        return;
    };
    let of_secret = config().fields(&format!("metadata.name={name}"));
    let secrets = steps(secrets, of_secret, "the Secret of the Link");
    let mut secrets = std::pin::pin!(secrets);
    while let Some(step) = secrets.next().await {
        match step {
            Step::Set(secret, object) => match LinkedKubeconfig::of_secret(&object) {
                Ok(kubeconfig) => send(kubeconfigs, Some(kubeconfig)),
                Err(error) => {
                    let error = &error as &dyn std::error::Error;
                    tracing::error!(%secret, error, "Ignored the Secret of the Link");
                }
            },
            Step::Delete(secret) => {
                tracing::error!(%secret, "The Secret of the Link was deleted; mirrors stay as they are");
                send(kubeconfigs, None);
            }
            Step::Listed(listed) => {
                if !listed.iter().any(|listed| listed.name == name) {
                    tracing::error!(secret = %name, "The Link names a Secret that does not exist; set spec.clusterCredentialsSecret");
                    send(kubeconfigs, None);
                }
            }
        }
    }
}

fn send(
    kubeconfigs: &watch::Sender<Option<LinkedKubeconfig>>,
    kubeconfig: Option<LinkedKubeconfig>,
) {
    kubeconfigs.send_if_modified(|current| {
        let differs = *current != kubeconfig;
        *current = kubeconfig;
        differs
    });
}
