//! Watches: the events of a resource from a version on.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use http::Response;
use http_body_util::StreamBody;
use hyper::body::Frame;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until};

use super::path::{Path, Query};
use super::reads::{is_selected, shown};
use super::{ApiBody, ApiServer, failure, refusal};
use crate::resources::Resource;
use crate::script::{Answer, Cut};
use crate::store::Commit;

/// A watch request that was accepted.
struct Watch {
    api: ApiServer,
    number: u64,
    resource: Resource,
    query: Query,
    only_metadata: bool,
    /// The events up to this version have been sent.
    sent: u64,
    ends_at: Instant,
    bookmark_at: Option<Instant>,
    lines: VecDeque<Bytes>,
    last: Option<Bytes>,
    /// What follows the remaining lines.
    then: Option<Then>,
}

enum Then {
    End,
    Break,
}

/// How long a watch lasts whose request has no limit. The API server's own minimum is 30 min.
const DEFAULT_SECONDS: u64 = 1800;

/// An API server sends one a minute, and more often before a watch ends.
const BOOKMARK_INTERVAL: Duration = Duration::from_secs(25);

impl ApiServer {
    pub(super) fn watch(
        &self,
        path: &Path,
        query: &Query,
        only_metadata: bool,
        answer: Option<Answer>,
    ) -> Response<ApiBody> {
        let Path::Objects { resource } = path else {
            return refusal(404, None);
        };
        let mut state = self.0.state.borrow_mut();
        let from = query.version.unwrap_or_else(|| state.visible());
        let mut lines = VecDeque::new();
        let mut then = None;
        match answer {
            Some(Answer::Empty) => then = Some(Then::End),
            Some(Answer::Expired) => {
                lines.push_back(line("ERROR", &failure(410)));
                then = Some(Then::End);
            }
            // Either form occurs: before the response, and in it.
            _ if from < state.store.compacted() && from.is_multiple_of(2) => {
                return refusal(410, None);
            }
            _ if from < state.store.compacted() => {
                lines.push_back(line("ERROR", &failure(410)));
                then = Some(Then::End);
            }
            _ => {}
        }
        let number = state.next_watch;
        state.next_watch += 1;
        state.watches.insert(number, None);
        drop(state);
        let now = Instant::now();
        let seconds = query.seconds.unwrap_or(DEFAULT_SECONDS);
        let watch = Watch {
            api: self.clone(),
            number,
            resource: *resource,
            query: query.clone(),
            only_metadata,
            sent: from,
            ends_at: now + Duration::from_secs(seconds),
            bookmark_at: query.bookmarks.then(|| now + BOOKMARK_INTERVAL),
            lines,
            last: None,
            then,
        };
        let body = stream::unfold(watch, |mut watch| async {
            let frame = watch.next().await?;
            Some((frame, watch))
        });
        let mut response = Response::new(StreamBody::new(body.boxed_local()));
        let json = http::HeaderValue::from_static("application/json");
        response.headers_mut().insert("content-type", json);
        response
    }
}

impl Watch {
    async fn next(&mut self) -> Option<Result<Frame<Bytes>, io::Error>> {
        loop {
            // Registered before the state is read.
            let api = self.api.clone();
            let changed = api.0.changed.notified();
            if let Some(line) = self.lines.pop_front() {
                return Some(Ok(Frame::data(line)));
            }
            match self.then {
                Some(Then::End) => return None,
                Some(Then::Break) => {
                    return Some(Err(io::Error::other("the script breaks the watch off")));
                }
                None => {}
            }
            if self.step() {
                continue;
            }
            let bookmark_at = self.bookmark_at.unwrap_or(self.ends_at);
            tokio::select! {
                biased;
                () = changed => {}
                () = sleep_until(bookmark_at.min(self.ends_at)) => {}
            }
        }
    }

    /// Returns whether there is something to send now.
    fn step(&mut self) -> bool {
        let api = self.api.clone();
        let mut state = api.0.state.borrow_mut();
        let now = Instant::now();
        let cut = state.watches.get(&self.number).copied().flatten();
        match cut {
            Some(Cut::Silent) => {
                if now >= self.ends_at {
                    // Nor does it end.
                    self.ends_at = now + Duration::from_secs(DEFAULT_SECONDS);
                }
                self.bookmark_at = None;
                return false;
            }
            Some(Cut::Repeat) => {
                state.watches.insert(self.number, None);
                self.lines.extend(self.last.clone());
                return true;
            }
            // Waits for the next event.
            Some(Cut::Garbled) => {}
            Some(Cut::Regularly) => self.then = Some(Then::End),
            Some(Cut::Error(code)) => {
                self.lines.push_back(line("ERROR", &failure(code)));
                self.then = Some(Then::End);
            }
            Some(how @ (Cut::WithinLine | Cut::AfterPartOfLine)) => {
                self.lines.push_back(Bytes::from_static(
                    b"{\"type\":\"MODIFIED\",\"object\":{\"me",
                ));
                self.then = Some(if how == Cut::WithinLine {
                    Then::Break
                } else {
                    Then::End
                });
            }
            None if state.unserved.contains(&self.resource) => self.then = Some(Then::End),
            None => {}
        }
        if self.then.is_some() {
            return true;
        }
        let visible = state.visible();
        let commits = state.store.since(self.sent).iter();
        let due = commits.take_while(|commit| commit.version <= visible);
        let mut events: Vec<Bytes> = due.filter_map(|commit| self.event(commit)).collect();
        if let Some(first) = events.first_mut().filter(|_| cut == Some(Cut::Garbled)) {
            *first = Bytes::from_static(b"{\"type\":\"MODIFIED\",\"object\":{\"metadata\":7}}\n");
            state.watches.insert(self.number, None);
        }
        self.sent = self.sent.max(visible);
        if let Some(last) = events.last() {
            self.last = Some(last.clone());
            self.lines.extend(events);
            return true;
        }
        if now >= self.ends_at {
            self.then = Some(Then::End);
            return true;
        }
        if self.bookmark_at.is_some_and(|at| now >= at) {
            self.bookmark_at = Some(now + BOOKMARK_INTERVAL);
            // A state that is older than the client's has no bookmark for it.
            if self.sent == visible {
                self.lines.push_back(self.bookmark());
                return true;
            }
        }
        false
    }

    fn event(&self, commit: &Commit) -> Option<Bytes> {
        if commit.id.resource != self.resource {
            return None;
        }
        let selected = |object: &Option<Value>| {
            let object = object.clone();
            object.filter(|object| is_selected(object, &self.query))
        };
        let (kind, mut object) = match (selected(&commit.before), selected(&commit.after)) {
            (None, None) => return None,
            (None, Some(after)) => ("ADDED", after),
            (Some(_), Some(after)) => ("MODIFIED", after),
            (Some(before), None) => ("DELETED", before),
        };
        object["metadata"]["resourceVersion"] = commit.version.to_string().into();
        Some(line(kind, &shown(&object, self.only_metadata)))
    }

    fn bookmark(&self) -> Bytes {
        let version = self.sent.to_string();
        let object = json!({
            "kind": self.resource.api().kind, "apiVersion": self.resource.api_version(),
            "metadata": { "resourceVersion": version, "creationTimestamp": null },
        });
        line("BOOKMARK", &object)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.api.0.state.borrow_mut().watches.remove(&self.number);
    }
}

/// Returns an event with its type first, as API servers write it.
fn line(kind: &str, object: &Value) -> Bytes {
    format!("{{\"type\":\"{kind}\",\"object\":{object}}}\n").into()
}
