//! Questions that are asked once for all viewers.
//!
//! A feed asks one question in an interval and publishes the response. It begins with its first
//! subscriber and ends one interval after the last has left, so that requests for the same question
//! in quick succession share one response.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use hyper::body::Bytes;
use mesh_api::linkerd2::viz::StatSummaryRequest;
use mesh_runtime::metrics::{Counter, Labels, Registry};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::{Semaphore, watch};
use tokio::time::sleep;

use super::ask::ask;
use super::client::Failure;
use super::query::{MetricsQuery, Query};
use super::sources::Sources;

/// A response to a question: a status and JSON in one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) body: Bytes,
}

/// The last response; `None` until there is one.
pub(crate) type AnswerRx = watch::Receiver<Option<Arc<Answer>>>;

/// All feeds. Clones share them.
#[derive(Clone)]
pub(crate) struct Feeds {
    shared: Arc<Shared>,
}

struct Shared {
    sources: Sources,
    // Locked while a feed is looked up, added or removed.
    feeds: Mutex<HashMap<Query, watch::Sender<Option<Arc<Answer>>>>>,
    /// Limits the questions that are asked at the same time; the metrics API has a limit of 32.
    asking: Semaphore,
    asked: Counter,
    failed: Counter,
}

/// The most questions that are asked regularly.
pub(crate) const MAX_FEEDS: usize = 256;

const MAX_ASKING: usize = 8;

/// How often most questions are asked. Linkerd's page polls in this interval.
const INTERVAL: Duration = Duration::from_secs(2);

/// The interval of questions that take tens of queries. Proxies are scraped once in 10 s by
/// Prometheus, and once in 5 s by a metrics API with `--scrape-proxies`.
const LONG_INTERVAL: Duration = Duration::from_secs(5);

/// Too many different questions are asked.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{MAX_FEEDS} different questions are being asked, which is the limit; try again later")]
pub(crate) struct TooManyFeeds;

impl Answer {
    pub(crate) fn ok(value: &Value) -> Self {
        Self {
            status: StatusCode::OK,
            body: value.to_string().into(),
        }
    }

    pub(crate) fn error(status: StatusCode, error: &str) -> Self {
        Self {
            status,
            body: json!({ "error": error }).to_string().into(),
        }
    }
}

impl Feeds {
    pub(crate) fn new(sources: Sources, registry: &Registry) -> Self {
        let asked = registry.counter_family(
            "mesh_web_questions_total",
            "Questions of pages to other servers, by whether they have a response",
        );
        let with = |result| asked.with(&Labels::new().with("result", result));
        let feeds = Self {
            shared: Arc::new(Shared {
                sources,
                feeds: Mutex::default(),
                asking: Semaphore::new(MAX_ASKING),
                asked: with("success"),
                failed: with("failure"),
            }),
        };
        let exported = feeds.clone();
        registry.on_scrape(move |scrape| {
            scrape.gauge(
                "mesh_web_feeds",
                "Different questions that are asked regularly",
                &Labels::new(),
                exported.len() as f64,
            );
        });
        feeds
    }

    /// Returns the responses to a question from now on.
    pub(crate) fn subscribe(&self, query: Query) -> Result<AnswerRx, TooManyFeeds> {
        let mut feeds = self.shared.feeds.lock();
        let is_full = feeds.len() >= MAX_FEEDS;
        match feeds.entry(query) {
            Entry::Occupied(feed) => Ok(feed.get().subscribe()),
            Entry::Vacant(_) if is_full => Err(TooManyFeeds),
            Entry::Vacant(free) => {
                let query = free.key().clone();
                let sender = free.insert(watch::Sender::new(None));
                tokio::spawn(self.shared.clone().run(query, sender.clone()));
                Ok(sender.subscribe())
            }
        }
    }

    /// Returns one response to a question, which is at most an interval old.
    pub(crate) async fn get(&self, query: Query) -> Result<Arc<Answer>, TooManyFeeds> {
        let mut answers = self.subscribe(query)?;
        // The feed lives as long as its subscriber.
        let answer = answers.wait_for(Option::is_some).await;
        let answer = answer.ok().and_then(|answer| answer.clone());
        Ok(answer.unwrap_or_else(|| {
            let error = "the question was not asked";
            Arc::new(Answer::error(StatusCode::INTERNAL_SERVER_ERROR, error))
        }))
    }

    pub(crate) fn len(&self) -> usize {
        self.shared.feeds.lock().len()
    }
}

impl Shared {
    /// Asks until there is no subscriber.
    async fn run(self: Arc<Self>, query: Query, answers: watch::Sender<Option<Arc<Answer>>>) {
        loop {
            let answer = self.ask(&query).await;
            // Viewers are woken by different responses only.
            answers.send_if_modified(|last| {
                let differs = last.as_deref() != Some(&answer);
                if differs {
                    *last = Some(Arc::new(answer));
                }
                differs
            });
            sleep(interval(&query)).await;
            let mut feeds = self.feeds.lock();
            if answers.receiver_count() == 0 {
                feeds.remove(&query);
                return;
            }
        }
    }

    async fn ask(&self, query: &Query) -> Answer {
        let Ok(_permit) = self.asking.acquire().await else {
            return Answer::error(StatusCode::SERVICE_UNAVAILABLE, "the process is stopping");
        };
        match ask(&self.sources, query).await {
            Ok(value) => {
                self.asked.inc();
                Answer::ok(&value)
            }
            Err(Failure { status, error }) => {
                self.failed.inc();
                tracing::debug!(error, "No response to a question");
                Answer::error(status, &error)
            }
        }
    }
}

fn interval(query: &Query) -> Duration {
    match query {
        Query::Metrics(MetricsQuery::Stat(request)) if is_about_all_kinds(request) => LONG_INTERVAL,
        Query::Metrics(
            MetricsQuery::Topology(_) | MetricsQuery::Routes(_) | MetricsQuery::Gateways(_),
        )
        | Query::Workload(_) => LONG_INTERVAL,
        Query::Metrics(_) => INTERVAL,
    }
}

fn is_about_all_kinds(request: &StatSummaryRequest) -> bool {
    let selector = request.selector.as_ref();
    let resource = selector.and_then(|selector| selector.resource.as_ref());
    resource.is_some_and(|resource| resource.r#type == "all")
}

#[cfg(test)]
mod tests {
    use super::super::client::MetricsClient;
    use super::super::policy_client::PolicyClient;
    use super::*;

    fn query(number: usize) -> Query {
        Query::parse_path(&format!("pods?namespace=n{number}")).unwrap()
    }

    /// A metrics API that cannot be reached.
    fn feeds() -> Feeds {
        let config = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
        let sources = Sources {
            metrics: MetricsClient::new("127.0.0.1:1").unwrap(),
            cluster: kube::Client::try_from(config).unwrap(),
            policies: PolicyClient::new("127.0.0.1:1").unwrap(),
            place: super::super::sources::Place::Cluster,
            queried: None,
        };
        Feeds::new(sources, &Registry::new())
    }

    #[tokio::test(start_paused = true)]
    async fn questions_are_bounded() {
        let feeds = feeds();
        let subscribed = (0..MAX_FEEDS).map(|number| feeds.subscribe(query(number)).unwrap());
        let subscribed: Vec<_> = subscribed.collect();
        assert_eq!(feeds.subscribe(query(MAX_FEEDS)).err(), Some(TooManyFeeds));
        assert_eq!(feeds.get(query(MAX_FEEDS)).await, Err(TooManyFeeds));
        // A known question costs nothing.
        assert!(feeds.subscribe(query(0)).is_ok());
        drop(subscribed);
        while feeds.len() > 0 {
            sleep(INTERVAL).await;
        }
        assert!(feeds.subscribe(query(MAX_FEEDS)).is_ok());
    }

    #[tokio::test]
    async fn outage_of_the_metrics_api_is_a_response() {
        let answer = feeds().get(query(0)).await.unwrap();
        assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
        let text = str::from_utf8(&answer.body).unwrap();
        assert!(text.contains("metrics API at 127.0.0.1:1"), "{text}");
    }

    #[test]
    fn questions_with_many_queries_are_asked_less_often() {
        let table = [
            ("tps-reports?resource_type=all", LONG_INTERVAL),
            ("tps-reports?resource_type=pod", INTERVAL),
            ("topology?resource_type=pod", LONG_INTERVAL),
            ("policies?resource_name=web", LONG_INTERVAL),
            ("edges", INTERVAL),
        ];
        for (path, expected) in table {
            let query = Query::parse_path(path).unwrap();
            assert_eq!(interval(&query), expected, "{path}");
        }
    }
}
