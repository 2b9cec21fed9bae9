//! Lets hyper spawn its HTTP/2 tasks on the thread of the connection.

use std::future::Future;

/// Runs futures as local tasks of the current data thread.
#[derive(Clone, Copy, Debug)]
pub(super) struct LocalExecutor;

impl<F> hyper::rt::Executor<F> for LocalExecutor
where
    F: Future + 'static,
    F::Output: 'static,
{
    fn execute(&self, future: F) {
        tokio::task::spawn_local(future);
    }
}
