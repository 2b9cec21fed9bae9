//! A mirror's reads of a body, the bound of the kept part, and its end.

use std::sync::Arc;

use futures_util::FutureExt as _;
use http_body_util::BodyExt as _;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::*;

const LIMIT: Duration = Duration::from_secs(15);

/// The bodies of mirrors.
type Copies = Vec<(Body, Rc<MirrorBody>)>;

/// Returns a body with `copies` mirrors, and the permits that are left.
fn shared(body: Body, copies: usize) -> (Body, Copies, Arc<Semaphore>) {
    let permits = Arc::new(Semaphore::new(copies));
    let mut body = body;
    let permitted = (0..copies).map(|_| permits.clone().try_acquire_owned().unwrap());
    let shared = body.share(permitted.collect());
    (body, shared, permits)
}

/// A body with these frames, and trailers.
fn frames(sizes: &[usize]) -> Body {
    let mut body = Body::full(Bytes::new());
    let mut trailers = HeaderMap::new();
    trailers.insert("x-sum", "1".parse().unwrap());
    let data = sizes
        .iter()
        .map(|size| Ok(Frame::data(vec![b'x'; *size].into())));
    let frames = data.chain([Ok(Frame::trailers(trailers))]).collect();
    body.content = Content::Peeked(Box::new(super::super::peek::PeekedBody::of(frames)));
    body
}

async fn length(body: &mut Body) -> Result<usize, BodyError> {
    let mut length = 0;
    while let Some(frame) = body.frame().await {
        length += frame?.data_ref().map_or(0, Bytes::len);
    }
    Ok(length)
}

#[tokio::test]
async fn mirrors_read_the_same_body_and_trailers() {
    let (mut body, copies, permits) = shared(frames(&[10_000, 1, 20_000]), 2);
    assert_eq!(length(&mut body).await.unwrap(), 30_001);
    for (copy, _) in copies {
        let copy = copy.collect().await.unwrap();
        assert_eq!(copy.trailers().unwrap()["x-sum"], "1");
        assert_eq!(copy.to_bytes().len(), 30_001);
    }
    assert_eq!(permits.available_permits(), 2);
}

#[tokio::test]
async fn empty_body_is_complete_at_once() {
    let (body, copies, _permits) = shared(Body::empty(), 1);
    assert!(body.is_empty() && copies[0].0.is_empty());
}

/// Also many small frames stay within the bound.
#[tokio::test]
async fn mirror_that_falls_back_is_given_up_and_the_request_is_not() {
    for sizes in [vec![16_000; 5], vec![1; 600], vec![MAX_MIRRORED_BYTES]] {
        let sum: usize = sizes.iter().sum();
        let (mut body, mut copies, _permits) = shared(frames(&sizes), 2);
        let (fast, _) = copies.pop().unwrap();
        let reading = tokio::task::LocalSet::new();
        let (read, kept) = reading
            .run_until(async {
                let reading = tokio::task::spawn_local(async move {
                    let mut fast = fast;
                    length(&mut fast).await
                });
                let mut kept = 0;
                while let Some(frame) = body.frame().await {
                    frame.unwrap();
                    kept = kept.max(copies[0].1.state.borrow().kept);
                    tokio::task::yield_now().await;
                }
                (reading.await.unwrap(), kept)
            })
            .await;
        assert!(kept <= MAX_MIRRORED_BYTES, "{kept}");
        let (mut slow, state) = copies.pop().unwrap();
        assert_eq!(state.given_up(LIMIT).await, GivenUp::TooSlow);
        assert_eq!(state.state.borrow().kept, 0);
        let error = length(&mut slow).await.unwrap_err();
        assert!(matches!(error, BodyError::MirrorGivenUp), "{error}");
        if sizes[0] < MAX_MIRRORED_BYTES {
            assert_eq!(read.unwrap(), sum);
        }
    }
}

/// A reader that is never pending would keep the thread from the mirrors.
#[tokio::test]
async fn request_yields_one_turn_to_mirrors_that_are_behind() {
    let (mut body, copies, _permits) = shared(frames(&[20_000, 20_000, 100]), 1);
    assert!(body.frame().now_or_never().is_some());
    assert!(body.frame().now_or_never().is_some());
    assert!(body.frame().now_or_never().is_none(), "it yields");
    assert!(body.frame().now_or_never().is_some(), "it does not wait");
    drop(copies);
    assert_eq!(length(&mut body).await.unwrap(), 0);
}

#[tokio::test]
async fn mirror_of_an_incomplete_request_never_looks_complete() {
    let (mut body, mut copies, _permits) = shared(frames(&[10, 10]), 1);
    body.frame().await.unwrap().unwrap();
    drop(body);
    let (mut copy, state) = copies.pop().unwrap();
    assert_eq!(state.given_up(LIMIT).await, GivenUp::Cancelled);
    assert!(!copy.is_end_stream());
    assert!(length(&mut copy).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn mirror_is_given_up_a_while_after_the_request_is_complete() {
    let (mut body, copies, _permits) = shared(frames(&[10]), 1);
    let started = Instant::now();
    let (_copy, state) = &copies[0];
    assert!(state.given_up(LIMIT).now_or_never().is_none());
    length(&mut body).await.unwrap();
    assert_eq!(state.given_up(LIMIT).await, GivenUp::TimedOut);
    assert_eq!(started.elapsed(), LIMIT);
}

#[tokio::test]
async fn nothing_is_kept_for_a_mirror_that_has_ended() {
    let (mut body, copies, permits) = shared(frames(&[10, 10]), 1);
    let (copy, state) = copies.into_iter().next().unwrap();
    body.frame().await.unwrap().unwrap();
    drop(copy);
    body.frame().await.unwrap().unwrap();
    assert_eq!(state.state.borrow().kept, 0);
    assert_eq!(permits.available_permits(), 0);
    drop(state);
    // The body of the request still goes on.
    assert_eq!(permits.available_permits(), 1);
    assert_eq!(length(&mut body).await.unwrap(), 0);
}
