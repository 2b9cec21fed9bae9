//! The task of one kind: finds its API, follows it, and reports what changed.

use std::time::Duration;

use futures_util::{StreamExt as _, TryStreamExt as _, stream::BoxStream};
use kube::{
    Api, Client,
    core::{ApiResource, DynamicObject, PartialObjectMeta},
    runtime::watcher::{self, Event, watcher},
};
use tokio::{
    sync::{mpsc, watch as latest},
    time::Instant,
};

use super::{
    kinds::Watched,
    metrics::KindMetrics,
    served,
    table::{Broken, Table},
};
use crate::{
    cluster::{Backoff, explain, is_beyond_resuming, watch_error},
    model::Kind,
    source::Change,
};

/// What a watch reports.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) kind: Kind,
    pub(super) changes: Vec<Change>,
    /// Everything of this kind that there is has been reported with this.
    pub(super) complete: bool,
}

/// The watch of one kind.
pub(super) struct Watch {
    client: Client,
    watched: &'static Watched,
    table: Table,
    metrics: KindMetrics,
    messages: mpsc::Sender<Message>,
    /// Somebody defined or removed an API.
    definitions: latest::Receiver<()>,
    backoff: Backoff,
    /// It failed and this was said.
    failing: bool,
    listed: bool,
}

/// Nobody listens any more.
struct Closed;

/// How often to look for an API that is not served. Definitions are watched too, so this only
/// matters where that is forbidden.
const LOOK_AGAIN: Duration = Duration::from_secs(30);

/// After a definition changed it takes the API server a moment to serve it.
const LOOK_SOON: Duration = Duration::from_secs(1);

/// A watch says nothing while nothing happens. When it failed before, an error would have come by
/// now if it failed again: connecting may take [5 s](crate::cluster).
const QUIET: Duration = Duration::from_secs(10);

/// An API that was served is believed to be gone after this long. Deleting a definition deletes its
/// objects one by one, which the watch reports; so this is for what was missed, and an API server
/// that starts and does not know all of its APIs yet must not empty the index.
const GONE_AFTER: Duration = Duration::from_secs(60);

impl Watch {
    pub(super) fn new(
        client: Client,
        watched: &'static Watched,
        metrics: KindMetrics,
        messages: mpsc::Sender<Message>,
        definitions: latest::Receiver<()>,
    ) -> Self {
        Self {
            client,
            watched,
            table: Table::new(watched.kind),
            metrics,
            messages,
            definitions,
            backoff: Backoff::for_api_server(),
            failing: false,
            listed: false,
        }
    }

    /// Until nobody listens any more.
    pub(super) async fn run(mut self) {
        while let Ok(resource) = self.find().await {
            if self.follow(&resource).await.is_err() {
                return;
            }
            // Between its definition and its serving there are moments in which an API is listed
            // and not found.
            tokio::time::sleep(LOOK_SOON).await;
        }
    }

    /// Waits until the API is served.
    async fn find(&mut self) -> Result<ApiResource, Closed> {
        let mut missing_since: Option<Instant> = None;
        let mut look_again = LOOK_SOON;
        loop {
            match served::find(&self.client, self.watched).await {
                Ok(Some(resource)) => {
                    self.metrics.served.set(1);
                    if missing_since.is_some() {
                        tracing::info!(api = self.name(), "The API server serves an API now");
                    }
                    return Ok(resource);
                }
                Ok(None) => {
                    self.works();
                    match missing_since {
                        None => {
                            missing_since = Some(Instant::now());
                            self.missing().await?;
                        }
                        Some(since) if since.elapsed() >= GONE_AFTER => {
                            let changes = self.table.clear();
                            self.report(changes, false).await?;
                        }
                        Some(_) => {}
                    }
                    look_again = self.wait_for_definition(look_again).await;
                }
                Err(error) => self.failed(&explain(&error)).await,
            }
        }
    }

    /// Says so once, and lets nobody wait for it.
    async fn missing(&mut self) -> Result<(), Closed> {
        self.metrics.served.set(0);
        self.metrics.synced.set(0);
        if self.table.len() > 0 {
            tracing::warn!(
                api = self.name(),
                "The API server does not serve an API any more; what is known stays in force for {} s",
                GONE_AFTER.as_secs()
            );
        } else {
            tracing::warn!(
                api = self.name(),
                "The API server does not serve an API; its objects have no effect until it does"
            );
        }
        self.report(Vec::new(), true).await
    }

    /// How long to wait the next time.
    async fn wait_for_definition(&mut self, look_again: Duration) -> Duration {
        match tokio::time::timeout(look_again, self.definitions.changed()).await {
            Ok(Ok(())) => LOOK_SOON,
            // Without definitions there is still the time.
            Ok(Err(_closed)) => {
                tokio::time::sleep(look_again).await;
                LOOK_AGAIN
            }
            Err(_elapsed) => (look_again * 2).min(LOOK_AGAIN),
        }
    }

    /// Follows the objects for as long as the API is served.
    async fn follow(&mut self, resource: &ApiResource) -> Result<(), Closed> {
        let mut events = self.events(resource);
        loop {
            let Ok(event) = tokio::time::timeout(QUIET, events.next()).await else {
                self.works();
                continue;
            };
            let event = match event {
                None => return Ok(()),
                Some(Ok(event)) => event,
                Some(Err(error)) if is_gone(&error) => return Ok(()),
                Some(Err(error)) => {
                    self.failed(&watch_error(&error)).await;
                    if is_beyond_resuming(&error) {
                        return Ok(());
                    }
                    continue;
                }
            };
            match event {
                Event::Init => {
                    if self.listed {
                        self.metrics.restarts.inc();
                    }
                    self.table.begin();
                    // It is not known to work before an answer came.
                    continue;
                }
                Event::InitApply(object) => {
                    let listed = self.table.list(object);
                    self.complain(listed.err());
                }
                Event::InitDone => {
                    let changes = self.table.finish();
                    self.report(changes, true).await?;
                    self.metrics.synced.set(1);
                }
                Event::Apply(object) => {
                    let applied = self.table.apply(object);
                    let (change, broken) = match applied {
                        Ok(change) => (change, None),
                        Err(broken) => (None, Some(broken)),
                    };
                    self.complain(broken);
                    self.report(change.into_iter().collect(), false).await?;
                }
                Event::Delete(object) => {
                    let change = self.table.delete(&object.metadata);
                    self.report(change.into_iter().collect(), false).await?;
                }
            }
            self.works();
        }
    }

    fn events(
        &self,
        resource: &ApiResource,
    ) -> BoxStream<'static, watcher::Result<Event<DynamicObject>>> {
        let (client, config) = (self.client.clone(), self.watched.config());
        if self.watched.api().metadata_only {
            let api: Api<PartialObjectMeta<DynamicObject>> = Api::all_with(client, resource);
            watcher(api, config).map_ok(with_metadata).boxed()
        } else {
            let api: Api<DynamicObject> = Api::all_with(client, resource);
            watcher(api, config).boxed()
        }
    }

    async fn report(&mut self, changes: Vec<Change>, complete: bool) -> Result<(), Closed> {
        self.listed |= complete;
        let number = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        self.metrics.objects.set(number(self.table.len()));
        self.metrics.broken.set(number(self.table.broken()));
        if changes.is_empty() && !complete {
            return Ok(());
        }
        let message = Message {
            kind: self.watched.kind,
            changes,
            complete,
        };
        self.messages.send(message).await.map_err(|_closed| Closed)
    }

    fn complain(&self, broken: Option<Broken>) {
        let Some(Broken { key, problem, kept }) = broken else {
            return;
        };
        if kept {
            tracing::error!(object = %key, "Cannot use an object; its last good version stays in force: {problem}");
        } else {
            tracing::error!(object = %key, "Cannot use an object; it has no effect: {problem}");
        }
    }

    fn works(&mut self) {
        self.backoff.reset();
        if std::mem::take(&mut self.failing) {
            self.metrics.synced.set(i64::from(self.listed));
            tracing::info!(api = self.name(), "Following the API server again");
        }
    }

    /// Says the first failure of a row, and waits.
    async fn failed(&mut self, error: &str) {
        self.metrics.errors.inc();
        self.metrics.synced.set(0);
        let api = self.name();
        if std::mem::replace(&mut self.failing, true) {
            tracing::debug!(api, error, "The API server still does not answer");
        } else if self.listed {
            tracing::warn!(
                api,
                error,
                "Cannot follow the API server; what is known stays in force"
            );
        } else {
            tracing::warn!(
                api,
                error,
                "Cannot read from the API server; not ready before that works"
            );
        }
        self.backoff.wait().await;
    }

    fn name(&self) -> String {
        self.watched.api().name(self.watched.kind)
    }
}

/// A watch that brings metadata alone, as if the objects had nothing else.
fn with_metadata(event: Event<PartialObjectMeta<DynamicObject>>) -> Event<DynamicObject> {
    let object = |partial: PartialObjectMeta<DynamicObject>| DynamicObject {
        types: partial.types,
        metadata: partial.metadata,
        data: serde_json::Value::Object(serde_json::Map::new()),
    };
    match event {
        Event::Init => Event::Init,
        Event::InitDone => Event::InitDone,
        Event::InitApply(partial) => Event::InitApply(object(partial)),
        Event::Apply(partial) => Event::Apply(object(partial)),
        Event::Delete(partial) => Event::Delete(object(partial)),
    }
}

/// Nothing is served under this path any more.
fn is_gone(error: &watcher::Error) -> bool {
    match error {
        watcher::Error::InitialListFailed(error)
        | watcher::Error::WatchStartFailed(error)
        | watcher::Error::WatchFailed(error) => served::is_not_found(error),
        _ => false,
    }
}
