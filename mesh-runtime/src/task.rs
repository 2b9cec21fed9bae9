//! Tasks that somebody owns. A task a daemon cannot live without is *essential*: when it ends, by
//! returning or by a panic, the daemon's `main` learns its name and stops the process, so that
//! Kubernetes restarts it. The alternative, a daemon that looks alive with a dead part inside, is
//! the worst failure an operator can meet.
//!
//! The supervisor works across runtimes: a [`Vigil`] may be held by a task or a thread of any of
//! them.

use std::fmt;
use std::future::Future;

use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// Starts essential tasks. Cheap to clone; hand it to whatever starts more of them.
#[derive(Clone, Debug)]
pub struct Supervisor {
    ended: mpsc::UnboundedSender<Ended>,
}

/// The end of `main`'s side: yields the first essential task that ended.
#[derive(Debug)]
pub struct Ends {
    ended: mpsc::UnboundedReceiver<Ended>,
}

/// Which essential task ended, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    pub name: &'static str,
    pub panicked: bool,
}

/// Reports the end of its holder when dropped. For threads and for tasks not started by
/// [`Supervisor::spawn`].
#[derive(Debug)]
pub struct Vigil {
    name: &'static str,
    ended: mpsc::UnboundedSender<Ended>,
}

/// A supervisor for this process. The channel is unbounded because each essential task sends once
/// in its life.
pub fn supervisor() -> (Supervisor, Ends) {
    let (tx, rx) = mpsc::unbounded_channel();
    (Supervisor { ended: tx }, Ends { ended: rx })
}

impl Supervisor {
    /// Spawns an essential task on the current runtime.
    pub fn spawn<F>(&self, name: &'static str, future: F) -> JoinHandle<()>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let vigil = self.watch(name);
        tokio::spawn(async move {
            future.await;
            drop(vigil);
        })
    }

    /// A guard that makes its holder essential.
    pub fn watch(&self, name: &'static str) -> Vigil {
        Vigil {
            name,
            ended: self.ended.clone(),
        }
    }
}

impl Ends {
    /// Waits for the first essential task to end. Pending forever while all of them live.
    pub async fn first(&mut self) -> Ended {
        match self.ended.recv().await {
            Some(ended) => ended,
            // Every supervisor and vigil is gone without a report: nothing is left that could end.
            None => std::future::pending().await,
        }
    }
}

impl Drop for Vigil {
    fn drop(&mut self) {
        // Nobody listens any more when `main` is already stopping; the end of a task is no news
        // then.
        let _ = self.ended.send(Ended {
            name: self.name,
            panicked: std::thread::panicking(),
        });
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = if self.panicked { "panicked" } else { "ended" };
        write!(f, "essential task {:?} {how}", self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_returning_task_is_reported_by_name() {
        let (supervisor, mut ends) = supervisor();
        supervisor.spawn("lives", std::future::pending());
        supervisor.spawn("returns", async {});
        let ended = ends.first().await;
        assert_eq!(ended.to_string(), "essential task \"returns\" ended");
    }

    #[tokio::test]
    async fn a_panicking_task_is_reported_as_such() {
        let (supervisor, mut ends) = supervisor();
        supervisor.spawn("breaks", async { panic!("on purpose") });
        assert_eq!(
            ends.first().await,
            Ended {
                name: "breaks",
                panicked: true
            }
        );
    }

    #[tokio::test]
    async fn a_thread_can_be_essential_too() {
        let (supervisor, mut ends) = supervisor();
        let vigil = supervisor.watch("data-0");
        std::thread::spawn(move || drop(vigil));
        assert_eq!(ends.first().await.name, "data-0");
    }
}
