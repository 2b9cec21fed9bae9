//! Bodies and their observers.

use std::cell::RefCell;
use std::rc::Rc;

use http_body_util::BodyExt as _;

use super::*;

/// Notes what it is told.
#[derive(Clone, Default)]
struct Notes(Rc<RefCell<Vec<String>>>);

impl Notes {
    fn observer(&self) -> Box<dyn Observe> {
        Box::new(self.clone())
    }

    fn read(&self) -> Vec<String> {
        self.0.borrow().clone()
    }
}

impl Observe for Notes {
    fn data(&mut self, bytes: usize) {
        self.0.borrow_mut().push(format!("{bytes} bytes"));
    }

    fn end(&mut self, end: End<'_>) {
        let end = match end {
            End::Complete(trailers) => format!("complete, trailers: {}", trailers.is_some()),
            End::Failed(error) => format!("failed: {error}"),
            End::Dropped => "dropped".to_owned(),
        };
        self.0.borrow_mut().push(end);
    }
}

#[tokio::test]
async fn an_observer_sees_data_and_one_end() {
    let notes = Notes::default();
    let body = Body::full("hello").observed(notes.observer());
    assert_eq!(body.collect().await.unwrap().to_bytes(), "hello");
    assert_eq!(notes.read(), ["5 bytes", "complete, trailers: false"]);
}

#[test]
fn an_empty_body_ends_when_it_is_observed() {
    let notes = Notes::default();
    let body = Body::empty().observed(notes.observer());
    assert_eq!(notes.read(), ["complete, trailers: false"]);
    drop(body);
    assert_eq!(notes.read().len(), 1);
}

#[test]
fn a_body_that_nobody_reads_is_dropped() {
    let notes = Notes::default();
    drop(Body::full("hello").observed(notes.observer()));
    assert_eq!(notes.read(), ["dropped"]);
}

#[tokio::test]
async fn a_second_observer_joins_the_first() {
    let (first, second) = (Notes::default(), Notes::default());
    let body = Body::full("hi")
        .observed(first.observer())
        .observed(second.observer());
    body.collect().await.unwrap();
    assert_eq!(first.read(), ["2 bytes", "complete, trailers: false"]);
    assert_eq!(first.read(), second.read());
}

#[tokio::test(start_paused = true)]
async fn an_overrun_limit_fails_the_body_or_becomes_trailers() {
    let timeouts = mesh_core::resilience::Timeouts {
        request: Some(std::time::Duration::from_secs(1)),
        ..Default::default()
    };
    let limits = || Limits::new(timeouts, tokio::time::Instant::now()).unwrap();

    let notes = Notes::default();
    let body = Body::full("late")
        .observed(notes.observer())
        .limited(limits());
    tokio::time::advance(std::time::Duration::from_secs(2)).await;
    let error = body.collect().await.unwrap_err();
    assert!(matches!(error, BodyError::TimedOut(TimedOut::Request(_))));
    assert_eq!(error.reset(), None);
    assert!(
        notes.read()[0].starts_with("failed: timed out"),
        "{:?}",
        notes.read()
    );

    let errors = GrpcErrors { with_message: true };
    let body = Body::full("late")
        .limited(limits())
        .with_grpc_errors(errors);
    tokio::time::advance(std::time::Duration::from_secs(2)).await;
    let collected = body.collect().await.unwrap();
    let trailers = collected.trailers().unwrap();
    assert_eq!(trailers["grpc-status"], "4");
    assert!(trailers.contains_key("grpc-message"));
}
