//! The task of a kind: finds its API, watches it, and reports changes.

use std::time::Duration;

use futures_util::stream::BoxStream;
use futures_util::{FutureExt as _, StreamExt as _, TryStreamExt as _};
use kube::core::{ApiResource, DynamicObject, PartialObjectMeta, TypeMeta};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client};
use mesh_objects::model::Kind;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::kinds::WatchedKind;
use super::metrics::KindMetrics;
use super::notices::Notices;
use super::received::{RawObject, Received};
use super::seen::SeenVersions;
use super::table::{InvalidObject, Table};
use super::{definitions, served};
use crate::api_server::{Backoff, explain, requires_new_watch, watch_error};
use crate::source::Change;

/// A report of a watch.
#[derive(Debug)]
pub(super) struct WatchMessage {
    pub(super) kind: Kind,
    pub(super) changes: Vec<Change>,
    /// Whether all objects of this kind have been reported.
    pub(super) complete: bool,
}

/// The watch of a kind.
pub(super) struct KindWatch {
    client: Client,
    watched: &'static WatchedKind,
    table: Table,
    /// The second records of the objects.
    second: Option<Table>,
    metrics: KindMetrics,
    messages: mpsc::Sender<WatchMessage>,
    seen: SeenVersions,
    /// Notifies of changes of APIs.
    definitions: Notices,
    /// Notifies when the API server's state is older than before.
    restorations: Notices,
    backoff: Backoff,
    /// The last request failed, and this was logged.
    is_failing: bool,
    has_listed: bool,
}

/// The receiver of messages has been dropped.
struct ReceiverClosed;

/// The maximum interval between polls for an API that is not served. Definitions are watched too,
/// so this only matters without permission for that.
const MAX_RETRY_INTERVAL: Duration = Duration::from_secs(30);

/// The first interval. After a definition changed, it takes the API server a moment to serve it.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// A watch is silent without changes. After a failure, a watch that is silent for this long has
/// recovered: connecting takes at most [5 s](crate::api_server).
const IDLE_INTERVAL: Duration = Duration::from_secs(10);

/// How long a request for the definition of a kind may take.
const DEFINITION_TIMEOUT: Duration = Duration::from_secs(5);

/// The most deletions that wait for the answer to one request.
const MAX_DELETIONS: usize = 1024;

impl KindWatch {
    pub(super) fn new(
        client: Client,
        watched: &'static WatchedKind,
        metrics: KindMetrics,
        messages: mpsc::Sender<WatchMessage>,
        seen: SeenVersions,
        definitions: Notices,
        restorations: Notices,
    ) -> Self {
        Self {
            client,
            watched,
            table: Table::new(watched.kind),
            second: watched.second.map(Table::new),
            metrics,
            messages,
            seen,
            definitions,
            restorations,
            backoff: Backoff::for_api_server(),
            is_failing: false,
            has_listed: false,
        }
    }

    /// Runs until the receiver of messages is dropped.
    pub(super) async fn run(mut self) {
        while let Ok(resource) = self.wait_until_served().await {
            if self.watch_objects(&resource).await.is_err() {
                return;
            }
            // While a definition is being established, its API is listed but not found.
            tokio::time::sleep(RETRY_INTERVAL).await;
        }
    }

    /// Waits until the API is served.
    async fn wait_until_served(&mut self) -> Result<ApiResource, ReceiverClosed> {
        let mut is_missing = false;
        let mut interval = RETRY_INTERVAL;
        loop {
            match served::find_version(&self.client, self.watched).await {
                Ok(Some(resource)) => {
                    self.metrics.served.set(1);
                    if is_missing {
                        tracing::info!(api = self.name(), "API is served now");
                    }
                    return Ok(resource);
                }
                Ok(None) => {
                    self.record_success();
                    if !std::mem::replace(&mut is_missing, true) {
                        self.report_not_served().await?;
                    }
                    interval = self.wait_for_definition(interval).await;
                }
                Err(error) => self.record_failure(&explain(&error)).await,
            }
        }
    }

    /// Logs that the API is not served. Reports an empty list of a kind that is not required, so
    /// that the first batch does not wait for it.
    ///
    /// Objects that were listed stay in effect until the API is served again: to lose them would
    /// allow what they deny. The watch reports their deletion with their definition before, which
    /// has no effect either.
    async fn report_not_served(&mut self) -> Result<(), ReceiverClosed> {
        self.metrics.served.set(0);
        self.metrics.synced.set(0);
        let api = self.name();
        let objects = self.table.len();
        if objects > 0 {
            tracing::warn!(
                api,
                objects,
                "The API server does not serve an API any longer; its known objects stay in effect until it does or this process ends"
            );
        } else if self.watched.required && !self.has_listed {
            tracing::warn!(
                api,
                "The API server does not serve a required API; the controller is not ready until it does: install the chart linkerd-crds"
            );
            return Ok(());
        } else {
            tracing::warn!(
                api,
                "The API server does not serve an API; objects have no effect until it does"
            );
        }
        self.report(Vec::new(), true).await
    }

    /// Waits for a changed definition or the interval, and returns the next interval.
    async fn wait_for_definition(&mut self, interval: Duration) -> Duration {
        match timeout(interval, self.definitions.next()).await {
            Ok(Ok(())) => RETRY_INTERVAL,
            // The watch of definitions has exited.
            Ok(Err(_closed)) => {
                tokio::time::sleep(interval).await;
                MAX_RETRY_INTERVAL
            }
            Err(_elapsed) => (interval * 2).min(MAX_RETRY_INTERVAL),
        }
    }

    /// Watches the objects while the API is served, until they must be listed anew.
    async fn watch_objects(&mut self, resource: &ApiResource) -> Result<(), ReceiverClosed> {
        let mut events = self.events(resource);
        let types = TypeMeta {
            api_version: resource.api_version.clone(),
            kind: resource.kind.clone(),
        };
        // An event that arrived after deletions.
        let mut following = None;
        loop {
            let event = if let Some(event) = following.take() {
                event
            } else {
                let event = tokio::select! {
                    biased;
                    Ok(()) = self.restorations.next() => return Ok(()),
                    event = timeout(IDLE_INTERVAL, events.next()) => event,
                };
                let Ok(event) = event else {
                    self.record_success();
                    continue;
                };
                event
            };
            let event = match event {
                None => return Ok(()),
                Some(Ok(event)) => event,
                Some(Err(error)) if is_not_served(&error) => return Ok(()),
                Some(Err(error)) => {
                    self.record_failure(&watch_error(&error)).await;
                    if requires_new_watch(&error) {
                        return Ok(());
                    }
                    continue;
                }
            };
            if let Event::InitApply(object) | Event::Apply(object) | Event::Delete(object) = &event
            {
                let kind = self.watched.kind;
                self.seen.record(kind, resource, &object.metadata);
            }
            match event {
                Event::Init => {
                    if self.has_listed {
                        self.metrics.restarts.inc();
                    }
                    self.tables().for_each(Table::begin);
                    // Not a response of the API server.
                    continue;
                }
                Event::InitApply(object) => {
                    if let Some(second) = &mut self.second {
                        // The first record of an invalid object is logged.
                        let _invalid = second.list(with_types(&object, &types));
                    }
                    let listed = self.table.list(object);
                    self.log_invalid(listed.err());
                }
                Event::InitDone => {
                    let lacks = self.tables().any(|table| table.lacks_objects());
                    let keep = lacks && !self.is_defined().await;
                    let tables = self.tables();
                    let changes = tables.flat_map(|table| table.finish(keep)).collect();
                    self.report(changes, true).await?;
                    self.metrics.synced.set(1);
                }
                Event::Apply(object) => {
                    let second = self.second.as_mut();
                    let second = second.map(|table| table.apply(with_types(&object, &types)));
                    let second = second.and_then(Result::ok).flatten();
                    let mut changes: Vec<Change> = second.into_iter().collect();
                    match self.table.apply(object) {
                        Ok(change) => changes.extend(change),
                        Err(invalid) => self.log_invalid(Some(invalid)),
                    }
                    self.report(changes, false).await?;
                }
                Event::Delete(object) => {
                    let mut deleted = vec![object.metadata];
                    // Deletions that have arrived share a request for the definition.
                    while let Some(event) = events.next().now_or_never() {
                        match event {
                            Some(Ok(Event::Delete(object))) => deleted.push(object.metadata),
                            other => {
                                following = Some(other);
                                break;
                            }
                        }
                        if deleted.len() >= MAX_DELETIONS {
                            break;
                        }
                    }
                    if self.is_defined().await {
                        let tables = self.tables();
                        let changes = tables.flat_map(|table| {
                            let deleted = deleted.iter();
                            deleted.filter_map(move |metadata| table.delete(metadata))
                        });
                        let changes = changes.collect();
                        self.report(changes, false).await?;
                    }
                }
            }
            self.record_success();
        }
    }

    /// Returns whether the kind has a definition that is not being deleted, so that the deletion of
    /// its objects takes effect. Waits until the API server says so.
    async fn is_defined(&mut self) -> bool {
        if self.watched.api().built_in {
            return true;
        }
        loop {
            let asked = definitions::is_defined(&self.client, self.watched);
            let problem = match timeout(DEFINITION_TIMEOUT, asked).await {
                Ok(Ok(true)) => return true,
                Ok(Ok(false)) => {
                    let (api, objects) = (self.name(), self.table.len());
                    tracing::warn!(
                        api,
                        objects,
                        "The definition of an API is being deleted; its known objects stay in effect until it is served again or this process ends"
                    );
                    return false;
                }
                Ok(Err(error)) if is_forbidden(&error) => {
                    let (api, error) = (self.name(), explain(&error));
                    tracing::warn!(
                        api,
                        error,
                        "Objects were deleted, and it is unknown whether with their definition; they have no effect any longer"
                    );
                    return true;
                }
                Ok(Err(error)) => explain(&error),
                Err(_elapsed) => format!(
                    "no response about its definition within {} s",
                    DEFINITION_TIMEOUT.as_secs()
                ),
            };
            self.record_failure(&problem).await;
        }
    }

    fn tables(&mut self) -> impl Iterator<Item = &mut Table> {
        std::iter::once(&mut self.table).chain(&mut self.second)
    }

    fn events(
        &self,
        resource: &ApiResource,
    ) -> BoxStream<'static, watcher::Result<Event<Received>>> {
        let (client, config) = (self.client.clone(), self.watched.config());
        if self.watched.api().metadata_only {
            let api: Api<PartialObjectMeta<DynamicObject>> = Api::all_with(client, resource);
            watcher(api, config)
                .map_ok(|event| map_event(event, with_metadata))
                .boxed()
        } else {
            let api: Api<RawObject> = Api::all_with(client, resource);
            watcher(api, config)
                .map_ok(|event| map_event(event, Received::from))
                .boxed()
        }
    }

    async fn report(&mut self, changes: Vec<Change>, complete: bool) -> Result<(), ReceiverClosed> {
        self.has_listed |= complete;
        let number = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        self.metrics.objects.set(number(self.table.len()));
        self.metrics.invalid.set(number(self.table.invalid()));
        if changes.is_empty() && !complete {
            return Ok(());
        }
        let message = WatchMessage {
            kind: self.watched.kind,
            changes,
            complete,
        };
        self.messages
            .send(message)
            .await
            .map_err(|_closed| ReceiverClosed)
    }

    fn log_invalid(&self, invalid: Option<InvalidObject>) {
        let Some(InvalidObject { key, problem, kept }) = invalid else {
            return;
        };
        if kept {
            tracing::error!(object = %key, "Invalid object; its last valid version stays in effect: {problem}");
        } else {
            tracing::error!(object = %key, "Invalid object; it has no effect: {problem}");
        }
    }

    fn record_success(&mut self) {
        self.backoff.reset();
        if std::mem::take(&mut self.is_failing) {
            self.metrics.synced.set(i64::from(self.has_listed));
            tracing::info!(api = self.name(), "Resumed watching the API server");
        }
    }

    /// Logs the first of successive failures, and waits.
    async fn record_failure(&mut self, error: &str) {
        self.metrics.errors.inc();
        self.metrics.synced.set(0);
        let api = self.name();
        if std::mem::replace(&mut self.is_failing, true) {
            tracing::debug!(api, error, "Still cannot watch the API server");
        } else if self.has_listed {
            tracing::warn!(
                api,
                error,
                "Cannot watch the API server; known objects stay in effect"
            );
        } else {
            tracing::warn!(
                api,
                error,
                "Cannot list objects of the API server; the controller is not ready"
            );
        }
        self.backoff.wait().await;
    }

    fn name(&self) -> String {
        self.watched.api().name(self.watched.kind)
    }
}

/// Returns the object with its version, which the items of a list may lack.
fn with_types(received: &Received, types: &TypeMeta) -> Received {
    let typed = |object: DynamicObject| DynamicObject {
        types: Some(types.clone()),
        ..object
    };
    Received {
        metadata: received.metadata.clone(),
        object: received.object.clone().map(typed),
    }
}

/// Converts an object of a metadata watch to one without other fields.
fn with_metadata(partial: PartialObjectMeta<DynamicObject>) -> Received {
    Received::from(DynamicObject {
        types: partial.types,
        metadata: partial.metadata,
        data: serde_json::Value::Object(serde_json::Map::new()),
    })
}

fn map_event<K>(event: Event<K>, received: impl Fn(K) -> Received) -> Event<Received> {
    match event {
        Event::Init => Event::Init,
        Event::InitDone => Event::InitDone,
        Event::InitApply(object) => Event::InitApply(received(object)),
        Event::Apply(object) => Event::Apply(received(object)),
        Event::Delete(object) => Event::Delete(received(object)),
    }
}

/// Returns whether the controller may not read definitions.
fn is_forbidden(error: &kube::Error) -> bool {
    const FORBIDDEN: u16 = 403;
    matches!(error, kube::Error::Api(status) if status.code == FORBIDDEN)
}

/// Returns whether the path is no longer served.
fn is_not_served(error: &watcher::Error) -> bool {
    match error {
        watcher::Error::InitialListFailed(error)
        | watcher::Error::WatchStartFailed(error)
        | watcher::Error::WatchFailed(error) => served::is_not_found(error),
        _ => false,
    }
}

#[cfg(test)]
mod tests;
