//! Follows objects of one kind, for those who need them beside the [source](crate::source):
//! failures are said once and retried here.

use futures_util::{Stream, StreamExt as _, stream::BoxStream};
use kube::{
    Api,
    core::Resource,
    runtime::watcher::{self, Config, Event, watcher},
};
use serde::de::DeserializeOwned;

use super::{Backoff, explain};

struct State<K> {
    api: Api<K>,
    config: Config,
    events: BoxStream<'static, watcher::Result<Event<K>>>,
    what: &'static str,
    backoff: Backoff,
    failing: bool,
}

/// The events of a watch that never ends. `what` is followed, for the log.
pub(crate) fn follow<K>(
    api: Api<K>,
    config: Config,
    what: &'static str,
    backoff: Backoff,
) -> impl Stream<Item = Event<K>> + Send
where
    K: Resource + Clone + DeserializeOwned + std::fmt::Debug + Send + 'static,
{
    let state = State {
        events: watcher(api.clone(), config.clone()).boxed(),
        api,
        config,
        what,
        backoff,
        failing: false,
    };
    futures_util::stream::unfold(state, |mut state| async {
        let event = state.next().await?;
        Some((event, state))
    })
}

impl<K> State<K>
where
    K: Resource + Clone + DeserializeOwned + std::fmt::Debug + Send + 'static,
{
    async fn next(&mut self) -> Option<Event<K>> {
        loop {
            let what = self.what;
            match self.events.next().await? {
                Ok(event) => {
                    // The beginning of a list is no answer yet.
                    if !matches!(event, Event::Init) {
                        self.backoff.reset();
                        if std::mem::take(&mut self.failing) {
                            tracing::info!(what, "Following the API server again");
                        }
                    }
                    return Some(event);
                }
                Err(error) => {
                    if !std::mem::replace(&mut self.failing, true) {
                        let error = watch_error(&error);
                        tracing::warn!(what, error, "Cannot follow the API server; trying again");
                    }
                    self.backoff.wait().await;
                    if is_beyond_resuming(&error) {
                        self.events = watcher(self.api.clone(), self.config.clone()).boxed();
                    }
                }
            }
        }
    }
}

/// An error of a watch in one line.
pub(crate) fn watch_error(error: &watcher::Error) -> String {
    match error {
        watcher::Error::WatchFailed(kube::Error::SerdeError(error)) => {
            format!("the answer is no watch (is the API gone?): {error}")
        }
        watcher::Error::InitialListFailed(error)
        | watcher::Error::WatchStartFailed(error)
        | watcher::Error::WatchFailed(error) => explain(error),
        watcher::Error::WatchError(status) => status.message.clone(),
        watcher::Error::NoResourceVersion => error.to_string(),
    }
}

/// The library would ask for the same again and get the same answer. It notices a version that is
/// too old as an event of a watch, but not as the answer to one; and what is no watch at all is
/// what an API server answers that has forgotten the path.
pub(crate) fn is_beyond_resuming(error: &watcher::Error) -> bool {
    const GONE: u16 = 410;
    match error {
        watcher::Error::WatchStartFailed(error) | watcher::Error::WatchFailed(error) => match error
        {
            kube::Error::Api(status) => status.code == GONE,
            kube::Error::SerdeError(_) => true,
            _ => false,
        },
        _ => false,
    }
}
