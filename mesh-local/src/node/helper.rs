//! Programs that run beside the node: started again when they end, gone when the node is.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use tokio::{
    process::{Child, Command},
    sync::{mpsc, watch},
    task::JoinHandle,
};

/// A helper; dropping it ends the program.
pub(super) struct Helper {
    task: JoinHandle<()>,
    orders: mpsc::Sender<Order>,
    ended: watch::Receiver<Option<String>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    Reload,
    Restart,
}

#[derive(Clone, Debug)]
pub(super) struct Spec {
    pub(super) program: PathBuf,
    pub(super) args: Vec<String>,
    pub(super) log: PathBuf,
}

const BACK_OFF: Duration = Duration::from_secs(1);
/// Orders come from one loop that sends them one after the other; a second one can wait.
const ORDERS: usize = 2;

impl Helper {
    pub(super) fn start(spec: Spec) -> Self {
        let (orders, received) = mpsc::channel(ORDERS);
        let (ended_sender, ended) = watch::channel(None);
        Self {
            task: tokio::spawn(keep(spec, received, ended_sender)),
            orders,
            ended,
        }
    }

    pub(super) async fn order(&self, order: Order) {
        // The task lives as long as this.
        let _ = self.orders.send(order).await;
    }

    /// Waits until the program has ended once, and tells how.
    pub(super) async fn ended(&self) -> String {
        let mut ended = self.ended.clone();
        match ended.wait_for(Option::is_some).await {
            Ok(how) => how.clone().unwrap_or_default(),
            Err(_) => "its keeper ended".to_owned(),
        }
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        // The child dies with its task.
        self.task.abort();
    }
}

async fn keep(spec: Spec, mut orders: mpsc::Receiver<Order>, ended: watch::Sender<Option<String>>) {
    let name = spec.program.display().to_string();
    loop {
        let how = match spawn(&spec) {
            Err(error) => error.to_string(),
            Ok(mut child) => match attend(&mut child, &mut orders).await {
                Some(how) => how,
                None => continue,
            },
        };
        tracing::error!(
            "{name} ended and is started again: {how}; its log is {}",
            spec.log.display()
        );
        ended.send_replace(Some(how));
        tokio::time::sleep(BACK_OFF).await;
    }
}

/// Waits for the program's end, or for the order to start it anew.
async fn attend(child: &mut Child, orders: &mut mpsc::Receiver<Order>) -> Option<String> {
    loop {
        tokio::select! {
            status = child.wait() => return Some(match status {
                Ok(status) => status.to_string(),
                Err(error) => error.to_string(),
            }),
            Some(order) = orders.recv() => match order {
                Order::Reload => hang_up(child),
                Order::Restart => {
                    if let Err(error) = child.kill().await {
                        return Some(error.to_string());
                    }
                    return None;
                }
            }
        }
    }
}

fn hang_up(child: &Child) {
    use nix::{
        sys::signal::{Signal, kill},
        unistd::Pid,
    };
    if let Some(pid) = child.id().and_then(|pid| i32::try_from(pid).ok()) {
        // It may have ended by itself; then it reads everything when it starts again.
        let _ = kill(Pid::from_raw(pid), Signal::SIGHUP);
    }
}

fn spawn(spec: &Spec) -> io::Result<Child> {
    let log = append(&spec.log)?;
    let second = log.try_clone()?;
    Command::new(&spec.program)
        .args(&spec.args)
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(second)
        .kill_on_drop(true)
        .spawn()
}

fn append(path: &Path) -> io::Result<fs::File> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    fs::File::options().append(true).create(true).open(path)
}
