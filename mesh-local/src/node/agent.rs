//! The node's own agent: started with the node's places, and asked whether it works.

use std::{io, path::Path, time::Duration};

use mesh_core::node::{Answer, NodeStatus, Request};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    net::UnixStream,
};

use super::helper::{Helper, Spec};
use crate::{
    instance::Instance,
    settings::{Program, Settings},
};

#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    #[error("the agent did not start ({how}); its log is {log}: {tail}")]
    Ended {
        how: String,
        log: String,
        tail: String,
    },
    #[error("the agent did not answer within {0:?}; its log is {1}")]
    Silent(Duration, String),
}

/// The trial of the tiers takes a second or two, on a loaded machine several.
const PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(100);

pub(super) fn start(instance: &Instance, settings: &Settings, cgroup_root: &Path) -> Helper {
    let tier = settings.tier.map_or("auto", |tier| tier.as_str());
    // On the node's own address, so that two nodes do not meet.
    let admin = format!("{}:9993", settings.network.node_v4());
    let pairs = [
        ("--cgroup-root", cgroup_root.display().to_string()),
        ("--pin-dir", instance.pin_dir().display().to_string()),
        ("--socket", instance.agent_socket().display().to_string()),
        ("--state-dir", instance.agent_state().display().to_string()),
        ("--admin-addr", admin),
        ("--tier", tier.to_owned()),
    ];
    Helper::start(Spec {
        program: settings.program(Program::Agent),
        args: pairs
            .into_iter()
            .flat_map(|(flag, value)| [flag.to_owned(), value])
            .collect(),
        log: instance.agent_log(),
    })
}

/// Waits for the agent's first answer.
pub(super) async fn answered(
    instance: &Instance,
    agent: &Helper,
) -> Result<NodeStatus, AgentError> {
    let log = instance.agent_log();
    let asked = async {
        loop {
            if let Ok(Answer::Status(status)) = ask(&instance.agent_socket()).await {
                return *status;
            }
            tokio::time::sleep(POLL).await;
        }
    };
    tokio::select! {
        status = asked => Ok(status),
        how = agent.ended() => Err(AgentError::Ended {
            how,
            tail: last_line(&log),
            log: log.display().to_string(),
        }),
        () = tokio::time::sleep(PATIENCE) => {
            Err(AgentError::Silent(PATIENCE, log.display().to_string()))
        }
    }
}

async fn ask(socket: &Path) -> io::Result<Answer> {
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
