//! Models of the rate limits: no order of the threads' steps admits more requests than the rate,
//! and threads with the same policy have the same buckets.

use mesh_models::{check, join};

use super::*;

fn policy(rate: u32) -> Arc<ServerPolicy> {
    let rate_limit = RateLimit {
        meta: Meta::new_default("limit"),
        total: Some(rate),
        identity: None,
        overrides: Vec::new(),
    };
    Arc::new(ServerPolicy {
        meta: Meta::new_default("policy"),
        protocol: ServerProtocol::Http1(HttpServer {
            rate_limit: Some(rate_limit),
            ..HttpServer::default()
        }),
        authorizations: Arc::new([]),
        is_terminating: false,
    })
}

#[test]
fn last_request_of_a_bucket_is_admitted_once() {
    check(|| {
        let bucket = Arc::new(Bucket::new(2));
        assert!(bucket.take(Duration::ZERO));
        let other = bucket.clone();
        let (one, two) = join(
            move || other.take(Duration::ZERO),
            || bucket.take(Duration::ZERO),
        );
        assert!(one != two);
    });
}

/// One thread was interrupted after it had read the time.
#[test]
fn thread_with_an_earlier_time_takes_nothing_twice() {
    check(|| {
        let bucket = Arc::new(Bucket::new(1));
        let second = Duration::from_secs(1);
        let other = bucket.clone();
        let (later, earlier) = join(move || other.take(second), || bucket.take(Duration::ZERO));
        assert!(later);
        // Each second has one request; the bucket is empty in both.
        assert!(!bucket.take(second));
        let _order = earlier;
    });
}

/// A thread that has not read the newest policy yet compiles the one before.
#[test]
fn threads_with_the_same_policy_share_its_limiter() {
    check(|| {
        let limits = Arc::new(RateLimits::default());
        let (old, new) = (policy(1), policy(2));
        let (other, late) = (limits.clone(), old.clone());
        let (_late, first) = join(
            move || other.limiter(80, &late),
            || limits.limiter(80, &new),
        );
        let second = limits.limiter(80, &new);
        let (Some(first), Some(second)) = (first, second) else {
            panic!("the policy has a limit");
        };
        assert!(Arc::ptr_eq(&first, &second));
    });
}
