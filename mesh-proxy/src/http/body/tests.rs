//! Bodies and their observers.

use std::cell::RefCell;
use std::rc::Rc;

use http_body_util::BodyExt as _;

use super::*;

/// Records the calls of an observer.
#[derive(Clone, Default)]
struct RecordingObserver(Rc<RefCell<Vec<String>>>);

impl RecordingObserver {
    fn observer(&self) -> Box<dyn BodyObserver> {
        Box::new(self.clone())
    }

    fn read(&self) -> Vec<String> {
        self.0.borrow().clone()
    }
}

impl BodyObserver for RecordingObserver {
    fn data(&mut self, bytes: usize) {
        self.0.borrow_mut().push(format!("{bytes} bytes"));
    }

    fn end(&mut self, end: BodyEnd<'_>) {
        let end = match end {
            BodyEnd::Complete(trailers) => format!("complete, trailers: {}", trailers.is_some()),
            BodyEnd::Failed(error) => format!("failed: {error}"),
            BodyEnd::Dropped => "dropped".to_owned(),
        };
        self.0.borrow_mut().push(end);
    }
}

#[tokio::test]
async fn observer_receives_data_and_one_end() {
    let recorded = RecordingObserver::default();
    let body = Body::full("hello").observed(recorded.observer());
    assert_eq!(body.collect().await.unwrap().to_bytes(), "hello");
    assert_eq!(recorded.read(), ["5 bytes", "complete, trailers: false"]);
}

#[test]
fn empty_body_ends_when_observer_is_added() {
    let recorded = RecordingObserver::default();
    let body = Body::empty().observed(recorded.observer());
    assert_eq!(recorded.read(), ["complete, trailers: false"]);
    drop(body);
    assert_eq!(recorded.read().len(), 1);
}

#[test]
fn unread_body_ends_as_dropped() {
    let recorded = RecordingObserver::default();
    drop(Body::full("hello").observed(recorded.observer()));
    assert_eq!(recorded.read(), ["dropped"]);
}

#[tokio::test]
async fn second_observer_receives_the_same_calls() {
    let (first, second) = (RecordingObserver::default(), RecordingObserver::default());
    let body = Body::full("hi")
        .observed(first.observer())
        .observed(second.observer());
    body.collect().await.unwrap();
    assert_eq!(first.read(), ["2 bytes", "complete, trailers: false"]);
    assert_eq!(first.read(), second.read());
}

#[tokio::test(start_paused = true)]
async fn expired_timeout_fails_body_or_becomes_grpc_trailers() {
    let timeouts = mesh_core::resilience::Timeouts {
        request: Some(std::time::Duration::from_secs(1)),
        ..Default::default()
    };
    let timeouts = || ExchangeTimeouts::new(timeouts, tokio::time::Instant::now()).unwrap();

    let recorded = RecordingObserver::default();
    let body = Body::full("late")
        .observed(recorded.observer())
        .with_timeouts(timeouts());
    tokio::time::advance(std::time::Duration::from_secs(2)).await;
    let error = body.collect().await.unwrap_err();
    assert!(matches!(
        error,
        BodyError::TimedOut(TimeoutError::Request(_))
    ));
    assert_eq!(error.reset(), None);
    assert!(
        recorded.read()[0].starts_with("failed: timed out"),
        "{:?}",
        recorded.read()
    );

    let errors = GrpcErrorTrailers { with_message: true };
    let body = Body::full("late")
        .with_timeouts(timeouts())
        .with_grpc_error_trailers(errors);
    tokio::time::advance(std::time::Duration::from_secs(2)).await;
    let collected = body.collect().await.unwrap();
    let trailers = collected.trailers().unwrap();
    assert_eq!(trailers["grpc-status"], "4");
    assert!(trailers.contains_key("grpc-message"));
}
