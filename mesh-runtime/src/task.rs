//! Tasks that somebody owns. A task a daemon cannot live without is *essential*: when it monitor, by
//! returning or by a panic, the daemon's `main` learns its name and stops the process, so that
//! Kubernetes restarts it. The alternative, a daemon that looks alive with a dead part inside, is
//! the worst failure an operator can meet.
//!
//! The supervisor works across runtimes: a [`TaskGuard`] may be held by a task or a thread of any of
//! them.

use std::fmt;
use std::future::Future;

use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// Starts essential tasks. Cheap to clone; hand it to whatever starts more of them.
#[derive(Clone, Debug)]
pub struct Supervisor {
    exits: mpsc::UnboundedSender<TaskExit>,
}

/// The end of `main`'s side: yields the first essential task that exits.
#[derive(Debug)]
pub struct TaskMonitor {
    exits: mpsc::UnboundedReceiver<TaskExit>,
}

/// Which essential task exits, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskExit {
    pub name: &'static str,
    pub panicked: bool,
}

/// Reports the end of its holder when dropped. For threads and for tasks not started by
/// [`Supervisor::spawn`].
#[derive(Debug)]
pub struct TaskGuard {
    name: &'static str,
    exits: mpsc::UnboundedSender<TaskExit>,
}

/// A supervisor for this process. The channel is unbounded because each essential task sends once
/// in its life.
pub fn supervisor() -> (Supervisor, TaskMonitor) {
    let (tx, rx) = mpsc::unbounded_channel();
    (Supervisor { exits: tx }, TaskMonitor { exits: rx })
}

impl Supervisor {
    /// Spawns an essential task on the current runtime.
    pub fn spawn<F>(&self, name: &'static str, future: F) -> JoinHandle<()>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let guard = self.watch(name);
        tokio::spawn(async move {
            future.await;
            drop(guard);
        })
    }

    /// A guard that makes its holder essential.
    pub fn watch(&self, name: &'static str) -> TaskGuard {
        TaskGuard {
            name,
            exits: self.exits.clone(),
        }
    }
}

impl TaskMonitor {
    /// Waits for the first essential task to end. Pending forever while all of them live.
    pub async fn first(&mut self) -> TaskExit {
        match self.exits.recv().await {
            Some(exits) => exits,
            // Every supervisor and guard is gone without a report: nothing is left that could end.
            None => std::future::pending().await,
        }
    }
}

impl Drop for TaskGuard {
    fn drop(&mut self) {
        // Nobody listens any more when `main` is already stopping; the end of a task is no news
        // then.
        let _ = self.exits.send(TaskExit {
            name: self.name,
            panicked: std::thread::panicking(),
        });
    }
}

impl fmt::Display for TaskExit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = if self.panicked { "panicked" } else { "exits" };
        write!(f, "essential task {:?} {how}", self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_returning_task_is_reported_by_name() {
        let (supervisor, mut monitor) = supervisor();
        supervisor.spawn("lives", std::future::pending());
        supervisor.spawn("returns", async {});
        let exits = monitor.first().await;
        assert_eq!(exits.to_string(), "essential task \"returns\" exits");
    }

    #[tokio::test]
    async fn a_panicking_task_is_reported_as_such() {
        let (supervisor, mut monitor) = supervisor();
        supervisor.spawn("breaks", async { panic!("on purpose") });
        assert_eq!(
            monitor.first().await,
            TaskExit {
                name: "breaks",
                panicked: true
            }
        );
    }

    #[tokio::test]
    async fn a_thread_can_be_essential_too() {
        let (supervisor, mut monitor) = supervisor();
        let guard = supervisor.watch("data-0");
        std::thread::spawn(move || drop(guard));
        assert_eq!(monitor.first().await.name, "data-0");
    }
}
