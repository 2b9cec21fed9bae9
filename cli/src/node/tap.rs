//! Taps of a local node. The command observes the proxies itself, as the tap API does on a cluster,
//! with a certificate of the node's observer.

mod observe;
mod observer;
mod pods;

use std::sync::Arc;
use std::time::Duration;

use mesh_core::tap::{AddressTable, TapEvent, TapRequest};
use mesh_objects::inventory::tap::addresses;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::clients::tap::TapQuery;

pub(crate) use self::observer::Observer;

/// The events of one tap.
pub(crate) struct LocalEvents {
    observer: Arc<Observer>,
    /// The events of all pods, and why a pod could not be observed.
    events: mpsc::Receiver<anyhow::Result<TapEvent>>,
    addresses: AddressTable,
    /// When the addresses are read again.
    refresh: Instant,
    /// Why the last of the pods could not be observed.
    failure: Option<anyhow::Error>,
    /// The subscriptions end with the tap.
    _observers: JoinSet<()>,
}

/// Events of all pods that the command has not printed. Further ones wait in the proxies, which
/// drop the excess.
const MAX_QUEUED: usize = 1_000;

/// New pods are described within this time.
const REFRESH_INTERVAL: Duration = Duration::from_secs(5);

impl LocalEvents {
    pub(crate) async fn start(observer: &Arc<Observer>, query: &TapQuery) -> anyhow::Result<Self> {
        let inventory = pods::read(&observer.node)?;
        let pods = pods::select(&inventory, query)?;
        let request = TapRequest {
            limit: query.rps_per_pod(pods.len()),
            filter: query.filter()?,
            with_headers: query.with_headers,
        };
        // The reason why there is no certificate is the same for all pods.
        observer.client().await?;
        let (sender, events) = mpsc::channel(MAX_QUEUED);
        let mut observers = JoinSet::new();
        for pod in pods {
            let (observer, request, sender) = (observer.clone(), request.clone(), sender.clone());
            observers.spawn(async move {
                if let Err(error) = observe::observe(&pod, &observer, &request, &sender).await {
                    // The send fails if the tap has ended.
                    let _ended = sender.send(Err(error)).await;
                }
            });
        }
        Ok(Self {
            observer: observer.clone(),
            events,
            addresses: addresses(&inventory),
            refresh: Instant::now() + REFRESH_INTERVAL,
            failure: None,
            _observers: observers,
        })
    }

    /// Returns the next event. When no pod is observed any longer, it is `None`, or the reason why
    /// a pod could not be observed.
    pub(crate) async fn next(&mut self) -> anyhow::Result<Option<TapEvent>> {
        loop {
            match self.events.recv().await {
                Some(Ok(event)) => return Ok(Some(self.described(event))),
                Some(Err(error)) => self.failure = Some(error),
                None => return self.failure.take().map_or(Ok(None), Err),
            }
        }
    }

    fn described(&mut self, event: TapEvent) -> TapEvent {
        if Instant::now() >= self.refresh {
            self.refresh = Instant::now() + REFRESH_INTERVAL;
            // An object that cannot be read leaves the known addresses.
            if let Ok(inventory) = pods::read(&self.observer.node) {
                self.addresses = addresses(&inventory);
            }
        }
        event.described(&self.addresses)
    }
}
