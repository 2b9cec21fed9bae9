//! Properties of bodies that are read by several attempts.

use http_body_util::BodyExt as _;
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

fn memory(limit: usize) -> Arc<ReplayMemory> {
    Arc::new(ReplayMemory::new(limit))
}

async fn read(body: Body) -> Bytes {
    body.collect().await.unwrap().to_bytes()
}

#[tokio::test]
async fn body_without_content_stays_empty() {
    let body = ReplayBody::new(Body::empty(), 10, &memory(0));
    for _ in 0..3 {
        assert!(body.repeat() == Repeat::Possible && body.is_complete());
        assert!(body.next_attempt().unwrap().is_empty());
    }
}

#[tokio::test]
async fn every_attempt_reads_the_same_bytes() {
    let memory = memory(100);
    let body = ReplayBody::new(Body::full("hello"), 5, &memory);
    for _ in 0..3 {
        let attempt = body.next_attempt().unwrap();
        assert_eq!(attempt.size_hint().exact(), Some(5));
        assert_eq!(read(attempt).await, "hello");
        assert_eq!(memory.used(), 5);
    }
    drop(body);
    assert_eq!(memory.used(), 0);
}

#[tokio::test]
async fn body_that_is_not_kept_is_delivered() {
    for (limit, process_limit) in [(4, 100), (100, 4)] {
        let memory = memory(process_limit);
        let body = ReplayBody::new(Body::full("hello"), limit, &memory);
        assert_eq!(read(body.next_attempt().unwrap()).await, "hello");
        assert!(body.repeat() == Repeat::NotKept);
        // What follows the bytes that were read would look like the whole body.
        assert!(body.next_attempt().is_none());
        assert_eq!(memory.used(), 0);
    }
}

#[tokio::test]
async fn previous_attempt_fails_once_the_next_one_has_begun() {
    let body = ReplayBody::new(Body::full("hello"), 10, &memory(100));
    let mut first = body.next_attempt().unwrap();
    let second = body.next_attempt().unwrap();
    let error = first.frame().await.unwrap().unwrap_err();
    assert!(matches!(error, BodyError::Superseded), "{error}");
    assert_eq!(read(second).await, "hello");
}

proptest! {
    /// Attempts stop after any number of frames. The last one reads everything, and the memory is
    /// never exceeded.
    #[test]
    fn last_attempt_reads_the_whole_body(
        length in 0_usize..100_000,
        stops in vec(0_usize..8, 0..4),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let content: Vec<u8> = (0..length).map(|n| n as u8).collect();
            let memory = memory(64 * 1024);
            let body = ReplayBody::new(Body::full(content.clone()), 64 * 1024, &memory);
            for frames in stops {
                if body.repeat() == Repeat::NotKept {
                    break;
                }
                let mut attempt = body.next_attempt().unwrap();
                for _ in 0..frames {
                    if attempt.frame().await.is_none() || body.repeat() == Repeat::NotKept {
                        break;
                    }
                    assert!(memory.used() <= 64 * 1024);
                }
                if body.repeat() == Repeat::NotKept {
                    // This attempt is the last one.
                    return;
                }
            }
            assert!(read(body.next_attempt().unwrap()).await == content);
        });
    }
}
