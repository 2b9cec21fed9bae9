//! Watches of the objects of one kind, for users other than the [source](crate::source). Failures
//! are logged once, and followed by a new list: a watch that resumes would get no events of an API
//! server whose state has become older (`source::kube::restored`).

use futures_util::stream::BoxStream;
use futures_util::{Stream, StreamExt as _};
use kube::Api;
use kube::core::Resource;
use kube::runtime::watcher::{self, Config, Event, watcher};
use serde::de::DeserializeOwned;

use super::{Backoff, explain};

/// The duration of a watch request. A connection that was lost without a reset (a load balancer
/// dropped it, or the server's host failed) is detected after this time, at the cost of a dozen
/// small requests per minute.
pub const WATCH_SECONDS: u32 = 60;

/// The code of the `Status` that kube reads in an event that cannot be read.
const UNREADABLE: u16 = 0;

struct ObjectWatch<K> {
    api: Api<K>,
    config: Config,
    events: BoxStream<'static, watcher::Result<Event<K>>>,
    what: &'static str,
    backoff: Backoff,
    failing: bool,
}

/// Returns the events of a watch that is restarted after failures. `what` describes the objects in
/// the log.
pub fn watch_objects<K>(
    api: Api<K>,
    config: Config,
    what: &'static str,
    backoff: Backoff,
) -> impl Stream<Item = Event<K>> + Send
where
    K: Resource + Clone + DeserializeOwned + std::fmt::Debug + Send + 'static,
{
    let state = ObjectWatch {
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

impl<K> ObjectWatch<K>
where
    K: Resource + Clone + DeserializeOwned + std::fmt::Debug + Send + 'static,
{
    async fn next(&mut self) -> Option<Event<K>> {
        loop {
            let what = self.what;
            match self.events.next().await? {
                Ok(event) => {
                    // The start of a list is not a response of the API server.
                    if !matches!(event, Event::Init) {
                        self.backoff.reset();
                        if std::mem::take(&mut self.failing) {
                            tracing::info!(what, "Resumed watching the API server");
                        }
                    }
                    return Some(event);
                }
                Err(error) => {
                    if !std::mem::replace(&mut self.failing, true) {
                        let error = watch_error(&error);
                        tracing::warn!(what, error, "Cannot watch the API server; retrying");
                    }
                    self.backoff.wait().await;
                    self.events = watcher(self.api.clone(), self.config.clone()).boxed();
                }
            }
        }
    }
}

/// Formats an error of a watch in one line.
pub fn watch_error(error: &watcher::Error) -> String {
    match error {
        watcher::Error::WatchFailed(kube::Error::SerdeError(error)) => {
            format!("the response is not a watch, the API may be removed: {error}")
        }
        watcher::Error::WatchFailed(kube::Error::Api(status)) if status.code == UNREADABLE => {
            "an event cannot be read".to_owned()
        }
        watcher::Error::InitialListFailed(error)
        | watcher::Error::WatchStartFailed(error)
        | watcher::Error::WatchFailed(error) => explain(error),
        watcher::Error::WatchError(status) => status.message.clone(),
        watcher::Error::NoResourceVersion => error.to_string(),
    }
}

/// Returns whether kube's watcher would repeat a request that fails in the same way. It handles an
/// expired resource version in an event of a watch, but not in the response to a watch request. A
/// response that is not a watch comes from an API server that no longer serves the path. After an
/// event that cannot be read, which kube takes for an empty `Status`, it would go on with the next
/// one.
pub fn requires_new_watch(error: &watcher::Error) -> bool {
    const GONE: u16 = 410;
    match error {
        watcher::Error::WatchStartFailed(error) | watcher::Error::WatchFailed(error) => match error
        {
            kube::Error::Api(status) => matches!(status.code, GONE | UNREADABLE),
            kube::Error::SerdeError(_) => true,
            _ => false,
        },
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    #[test]
    fn event_that_is_lost_requires_a_new_watch() {
        let api = |code| kube::Error::Api(Box::new(Status::failure("", "").with_code(code)));
        let unreadable = watcher::Error::WatchFailed(api(0));
        assert_eq!(watch_error(&unreadable), "an event cannot be read");
        for (code, expect) in [(0, true), (410, true), (429, false), (500, false)] {
            let start = watcher::Error::WatchStartFailed(api(code));
            let failed = watcher::Error::WatchFailed(api(code));
            assert_eq!(
                [start, failed].map(|it| requires_new_watch(&it)),
                [expect; 2]
            );
        }
        // Resumes where it has ended.
        let broken = kube::Error::ReadEvents(std::io::ErrorKind::ConnectionReset.into());
        assert!(!requires_new_watch(&watcher::Error::WatchFailed(broken)));
    }
}
