//! Starts the agent of the node and waits until it is ready.

use std::io;
use std::path::Path;
use std::time::Duration;

use mesh_core::node::{NodeStatus, Request, Response};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixStream;

use super::helper::{Helper, HelperSpec};
use crate::node_paths::NodePaths;
use crate::settings::{Program, Settings};

#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    #[error("the agent failed to start ({reason}); its log is {log}: {tail}")]
    Exited {
        reason: String,
        log: String,
        tail: String,
    },
    #[error("the agent was not ready within {0:?}; its log is {1}")]
    TimedOut(Duration, String),
}

/// Trying the tiers takes one or two seconds, and several on a loaded machine.
const START_TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(100);

pub(super) fn start(paths: &NodePaths, settings: &Settings, cgroup_root: &Path) -> Helper {
    let tier = settings.tier.map_or("auto", |tier| tier.as_str());
    // The address of the node, so that the agents of several nodes do not conflict.
    let admin = format!("{}:9993", settings.network.node_v4());
    let pairs = [
        ("--cgroup-root", cgroup_root.display().to_string()),
        ("--pin-dir", paths.pin_dir().display().to_string()),
        ("--socket", paths.agent_socket().display().to_string()),
        ("--state-dir", paths.agent_state().display().to_string()),
        ("--admin-addr", admin),
        ("--tier", tier.to_owned()),
    ];
    Helper::start(HelperSpec {
        program: settings.program(Program::Agent),
        args: pairs
            .into_iter()
            .flat_map(|(flag, value)| [flag.to_owned(), value])
            .collect(),
        log: paths.agent_log(),
    })
}

/// Waits for the first status response of the agent.
pub(super) async fn wait_until_ready(
    paths: &NodePaths,
    agent: &Helper,
) -> Result<NodeStatus, AgentError> {
    let log = paths.agent_log();
    let status = async {
        loop {
            if let Ok(Response::Status(status)) = request_status(&paths.agent_socket()).await {
                return *status;
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    };
    tokio::select! {
        status = status => Ok(status),
        reason = agent.wait_for_exit() => Err(AgentError::Exited {
            reason,
            tail: last_line(&log),
            log: log.display().to_string(),
        }),
        () = tokio::time::sleep(START_TIMEOUT) => {
            Err(AgentError::TimedOut(START_TIMEOUT, log.display().to_string()))
        }
    }
}

async fn request_status(socket: &Path) -> io::Result<Response> {
    let mut stream = BufReader::new(UnixStream::connect(socket).await?);
    let request = serde_json::to_string(&Request::Status)?;
    stream.write_all(format!("{request}\n").as_bytes()).await?;
    let mut line = String::new();
    stream.read_line(&mut line).await?;
    Ok(serde_json::from_str(&line)?)
}

fn last_line(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    text.lines().last().unwrap_or("the log is empty").to_owned()
}
