//! Requests of Jobs, which may start before the API server is reachable.

use super::{Backoff, explain};

/// Attempts before the Job fails. Kubernetes starts it again after that.
const ATTEMPTS: usize = 12;

/// Repeats a request while the API server is unreachable or overloaded, with a bound. Any other
/// error that the API server responds with is returned at once, since it would be the same the next
/// time.
pub async fn retry_while_unreachable<T>(
    request: impl AsyncFn() -> Result<T, kube::Error>,
) -> Result<T, kube::Error> {
    let mut backoff = Backoff::for_api_server();
    for _ in 1..ATTEMPTS {
        match request().await {
            Err(error) if is_transient(&error) => {
                let error = explain(&error);
                tracing::warn!(error, "Cannot reach the API server; retrying");
                backoff.wait().await;
            }
            result => return result,
        }
    }
    request().await
}

/// Returns whether the same request may succeed soon.
pub fn is_transient(error: &kube::Error) -> bool {
    match error {
        kube::Error::Api(status) => matches!(status.code, 429 | 503 | 504),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::io;

    use kube::core::Status;

    use super::*;

    fn unreachable() -> kube::Error {
        kube::Error::Service(io::Error::from(io::ErrorKind::ConnectionRefused).into())
    }

    #[tokio::test(start_paused = true)]
    async fn unreachable_server_is_tried_until_it_responds() {
        let attempts = Cell::new(0);
        let result = retry_while_unreachable(async || {
            attempts.set(attempts.get() + 1);
            if attempts.get() < 3 {
                return Err(unreachable());
            }
            Ok(())
        })
        .await;
        assert!(result.is_ok(), "{result:?}");
        assert_eq!(attempts.get(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn overloaded_server_is_tried_until_it_responds() {
        let attempts = Cell::new(0);
        let result = retry_while_unreachable(async || {
            attempts.set(attempts.get() + 1);
            let code = [429, 503, 504].get(attempts.get() - 1);
            code.map_or(Ok(()), |code| {
                let status = Status::failure("busy", "Busy").with_code(*code);
                Err(kube::Error::Api(Box::new(status)))
            })
        })
        .await;
        assert!(result.is_ok(), "{result:?}");
        assert_eq!(attempts.get(), 4);
    }

    #[tokio::test(start_paused = true)]
    async fn attempts_are_bounded() {
        let attempts = Cell::new(0);
        let result: Result<(), _> = retry_while_unreachable(async || {
            attempts.set(attempts.get() + 1);
            Err(unreachable())
        })
        .await;
        assert!(matches!(result, Err(kube::Error::Service(_))), "{result:?}");
        assert_eq!(attempts.get(), ATTEMPTS);
    }

    #[tokio::test(start_paused = true)]
    async fn response_of_server_is_final() {
        let attempts = Cell::new(0);
        let result: Result<(), _> = retry_while_unreachable(async || {
            attempts.set(attempts.get() + 1);
            Err(kube::Error::Api(Box::new(Status::failure(
                "refused",
                "Forbidden",
            ))))
        })
        .await;
        assert!(matches!(result, Err(kube::Error::Api(_))), "{result:?}");
        assert_eq!(attempts.get(), 1);
    }
}
