//! This machine as a member of a mesh: its key, joining and leaving. The agent keeps the key and
//! talks to the identity service; the commands ask it on its socket.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use mesh_core::machine::{JoinFile, Left, MAX_JOIN_FILE, MachineKey, MembershipStatus};
use mesh_core::node::{Request, Response};

use super::{Agent, time, unexpected};
use crate::exit::Failure;
use crate::output::table::Table;
use crate::output::{self, Format};

#[derive(Debug, clap::Args)]
pub(super) struct Key {
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    output: Format,
}

#[derive(Debug, clap::Args)]
pub(super) struct Join {
    /// The file that `meshctl machine admit` has printed; - for standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    output: Format,
}

#[derive(Debug, clap::Args)]
pub(super) struct Leave {
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    output: Format,
}

pub(super) async fn key(args: &Key, agent: &Agent) -> anyhow::Result<()> {
    let key: MachineKey = match agent.call(Request::MachineKey).await? {
        Response::MachineKey(key) => key,
        other => return Err(unexpected(&other)),
    };
    match args.output {
        Format::Json => output::json("MachineKey", &key),
        Format::Table => output::line(&key.sha256),
    }
}

pub(super) async fn join(args: &Join, agent: &Agent) -> anyhow::Result<()> {
    let file = read(&args.file)?;
    match agent.call(Request::Join(Box::new(file))).await? {
        Response::Joined(status) => show(args.output, &status),
        other => Err(unexpected(&other)),
    }
}

pub(super) async fn leave(args: &Leave, agent: &Agent) -> anyhow::Result<()> {
    let left: Left = match agent.call(Request::Leave).await? {
        Response::Left(left) => left,
        other => return Err(unexpected(&other)),
    };
    if args.output == Format::Json {
        return output::json("MachineLeft", &left);
    }
    for unit in &left.units {
        output::line(&format!(
            "{unit} is not redirected any more; its proxy can be stopped"
        ))?;
    }
    match &left.machine {
        Some(machine) => output::line(&format!(
            "machine {machine} has left its mesh, and its key is deleted; `meshctl machine dismiss {machine}` ends its admission"
        )),
        None => output::line("this machine had not joined a mesh; its key is deleted"),
    }
}

/// Shows the membership, whose absence is a negative result.
pub(super) async fn status(format: Format, agent: &Agent) -> anyhow::Result<()> {
    match agent.call(Request::Membership).await? {
        Response::Membership(Some(status)) => show(format, &status),
        Response::Membership(None) => {
            output::note("this machine has not joined a mesh");
            Err(Failure::NegativeResult.into())
        }
        other => Err(unexpected(&other)),
    }
}

fn show(format: Format, status: &MembershipStatus) -> anyhow::Result<()> {
    match format {
        Format::Json => output::json("MachineMembership", status)?,
        Format::Table => output::text(&details(status))?,
    }
    if let Some(failure) = &status.renewal_failure {
        output::note(&format!(
            "the certificate of the machine is not renewed: {}",
            output::printable(failure)
        ));
    }
    Ok(())
}

fn details(status: &MembershipStatus) -> String {
    let mut table = Table::default().left("FIELD VALUE");
    for (field, value) in [
        ("machine", status.machine.clone()),
        ("name", status.name.clone()),
        ("trust domain", status.trust_domain.clone()),
        ("control plane", status.control_plane_namespace.clone()),
        ("identity service", status.identity_address.clone()),
        ("key", status.key_sha256.clone()),
        ("certificate until", time(status.certificate_expires)),
        ("renewal at", time(status.renews_at)),
    ] {
        table.row(vec![field.to_owned(), value]);
    }
    table.render()
}

fn read(path: &Path) -> Result<JoinFile, Failure> {
    let is_stdin = path.as_os_str() == "-";
    let name = if is_stdin {
        "standard input".to_owned()
    } else {
        path.display().to_string()
    };
    let input = |problem: String| Failure::Input(problem);
    let mut text = String::new();
    let most = MAX_JOIN_FILE as u64 + 1;
    let result = if is_stdin {
        std::io::stdin().lock().take(most).read_to_string(&mut text)
    } else {
        let opened = std::fs::File::open(path);
        opened.and_then(|file| file.take(most).read_to_string(&mut text))
    };
    result.map_err(|error| input(format!("read {name}: {error}")))?;
    if text.len() > MAX_JOIN_FILE {
        return Err(input(format!(
            "{name} is not a join file: it has more than {} KiB",
            MAX_JOIN_FILE / 1024
        )));
    }
    let file: JoinFile = serde_norway::from_str(&text).map_err(|error| {
        input(format!(
            "{name} is not a join file, as `meshctl machine admit` prints it: {error}"
        ))
    })?;
    file.validate()
        .map_err(|error| input(format!("{name}: {error}")))?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unusable_file_is_named_with_its_problem() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("join.yaml");
        let problem = |text: &str| {
            std::fs::write(&path, text).unwrap();
            read(&path).unwrap_err().to_string()
        };
        let name = path.display().to_string();
        for (text, expected) in [
            ("kind: MachineJoin".to_owned(), "missing field"),
            ("a".repeat(MAX_JOIN_FILE + 1), "more than 512 KiB"),
            ("[".to_owned(), "is not a join file"),
        ] {
            let problem = problem(&text);
            assert!(
                problem.contains(expected) && problem.contains(&name),
                "{problem}"
            );
        }
        let error = read(&dir.path().join("none")).unwrap_err().to_string();
        assert!(error.contains("none: "), "{error}");
    }

    #[test]
    fn membership_is_shown_with_its_times() {
        let status = MembershipStatus {
            machine: "db-1".to_owned(),
            name: "db-1.machine.identity.linkerd.cluster.local".to_owned(),
            trust_domain: "cluster.local".to_owned(),
            control_plane_namespace: "linkerd".to_owned(),
            key_sha256: "00ff".to_owned(),
            identity_address: "10.0.0.7:8080".to_owned(),
            certificate_expires: 1_767_323_045,
            renews_at: 1_767_323_000,
            renewal_failure: None,
            services: Vec::new(),
            trust_anchors: String::new(),
        };
        let text = details(&status);
        assert!(
            text.contains("certificate until  2026-01-02T03:04:05Z"),
            "{text}"
        );
    }
}
