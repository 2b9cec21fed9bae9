//! Supervised tasks. A task that a daemon cannot work without is *essential*: when it ends, by
//! returning or by a panic, the daemon's `main` receives its name and stops the process, so that
//! Kubernetes restarts it. A daemon that appears alive while an essential part is dead would be
//! much harder to diagnose.
//!
//! The supervisor works across runtimes: a task or a thread of any of them may hold a
//! [`TaskGuard`].

use std::fmt;
use std::future::Future;
#[cfg(feature = "simulation")]
use std::sync::Arc;

#[cfg(feature = "simulation")]
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// Starts essential tasks. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Supervisor {
    exits: mpsc::UnboundedSender<TaskExit>,
    // Locked while a task is added, and when the process is killed.
    #[cfg(feature = "simulation")]
    tasks: Arc<Mutex<Vec<tokio::task::AbortHandle>>>,
}

/// The receiver of task exits, for `main`.
#[derive(Debug)]
pub struct TaskMonitor {
    exits: mpsc::UnboundedReceiver<TaskExit>,
}

/// The exit of an essential task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskExit {
    pub name: &'static str,
    pub panicked: bool,
}

/// Reports the exit of its holder when dropped. For threads, and for tasks not started by
/// [`Supervisor::spawn`].
#[derive(Debug)]
pub struct TaskGuard {
    name: &'static str,
    exits: mpsc::UnboundedSender<TaskExit>,
}

/// Returns a supervisor and its monitor. The channel is unbounded because each essential task sends
/// once in its life.
pub fn supervisor() -> (Supervisor, TaskMonitor) {
    let (tx, rx) = mpsc::unbounded_channel();
    let supervisor = Supervisor {
        exits: tx,
        #[cfg(feature = "simulation")]
        tasks: Arc::default(),
    };
    (supervisor, TaskMonitor { exits: rx })
}

impl Supervisor {
    /// Spawns an essential task on the current runtime.
    pub fn spawn<F>(&self, name: &'static str, future: F) -> JoinHandle<()>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let guard = self.watch(name);
        let task = tokio::spawn(async move {
            future.await;
            drop(guard);
        });
        #[cfg(feature = "simulation")]
        self.tasks.lock().push(task.abort_handle());
        task
    }

    /// Aborts all tasks, as SIGKILL ends the threads of a process.
    #[cfg(feature = "simulation")]
    pub fn kill(&self) {
        self.tasks.lock().drain(..).for_each(|task| task.abort());
    }

    /// Returns a guard that makes its holder essential.
    pub fn watch(&self, name: &'static str) -> TaskGuard {
        TaskGuard {
            name,
            exits: self.exits.clone(),
        }
    }
}

impl TaskMonitor {
    /// Waits for the next exit of an essential task. Pending while all of them run.
    pub async fn first(&mut self) -> TaskExit {
        match self.exits.recv().await {
            Some(exit) => exit,
            // All supervisors and guards were dropped without a report: no task is left that could
            // end.
            None => std::future::pending().await,
        }
    }
}

impl Drop for TaskGuard {
    fn drop(&mut self) {
        // `main` may be stopping and not receive the exit any more.
        let _ = self.exits.send(TaskExit {
            name: self.name,
            panicked: std::thread::panicking(),
        });
    }
}

impl fmt::Display for TaskExit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = if self.panicked { "panicked" } else { "ended" };
        write!(f, "essential task {:?} {how}", self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn returning_task_is_reported_by_name() {
        let (supervisor, mut monitor) = supervisor();
        supervisor.spawn("lives", std::future::pending());
        supervisor.spawn("returns", async {});
        let exit = monitor.first().await;
        assert_eq!(exit.to_string(), "essential task \"returns\" ended");
    }

    #[tokio::test]
    async fn panicking_task_is_reported_as_panicked() {
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
    async fn thread_with_a_guard_is_essential() {
        let (supervisor, mut monitor) = supervisor();
        let guard = supervisor.watch("data-0");
        std::thread::spawn(move || drop(guard));
        assert_eq!(monitor.first().await.name, "data-0");
    }
}
