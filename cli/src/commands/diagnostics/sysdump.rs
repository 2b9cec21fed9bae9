//! `meshctl diagnostics sysdump`: writes an archive for a bug report. Secrets are not read, and
//! private keys and the like are redacted from the values. The archive lists what could not be
//! collected, with the reasons.

mod cluster;
mod node;
mod redact;

use std::fs::File;
use std::path::PathBuf;

use anyhow::Context as _;
use flate2::Compression;
use flate2::write::GzEncoder;
use serde::Serialize;

use crate::facts::Mode;
use crate::global::Global;
use crate::mesh::Mesh;
use crate::resource::Scope;
use crate::{check, gather, output};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Archive to write; default: meshctl-sysdump-TIME.tar.gz in the current directory
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Maximum number of log lines of each container
    #[arg(long, value_name = "LINES", default_value_t = 2000)]
    log_lines: i64,
}

/// The collected files in order, and the failures.
#[derive(Default)]
pub(super) struct Dump {
    files: Vec<(String, Vec<u8>)>,
    failures: Vec<String>,
}

pub(super) async fn run(mesh: &Mesh, args: &Args, global: &Global) -> anyhow::Result<()> {
    let mut dump = Dump::default();
    let scope = global
        .namespace
        .clone()
        .map_or(Scope::All, Scope::Namespace);
    let mode = Mode::Installed { proxies: true };
    let facts = Box::pin(gather::facts(Some(mesh), mode, scope)).await;
    let reports = check::evaluate(&facts);
    dump.json("check.json", &reports);
    for agent in mesh.agents().await.unwrap_or_default() {
        let base = format!("agents/{}", agent.node);
        match (agent.status, agent.pods) {
            (Ok(status), Ok(pods)) => {
                dump.json(&format!("{base}-status.json"), &status);
                dump.json(&format!("{base}-pods.json"), &pods);
            }
            (Err(error), _) | (_, Err(error)) => dump.failed(&base, &error),
        }
    }
    let versions = serde_json::json!({
        "client": env!("CARGO_PKG_VERSION"),
        "server": facts.api_server.as_ref().map(|server| server.version.clone()).ok(),
        "mesh": facts.values().map(|values| &values.linkerd_version).ok(),
    });
    dump.json("versions.json", &versions);
    match mesh {
        Mesh::Local(node) => node::collect(node, &mut dump),
        Mesh::Cluster(cluster) => {
            if let Ok(values) = facts.values_text() {
                dump.add("values.yaml", redact::values(&values));
            }
            cluster::collect(mesh, cluster, args.log_lines, &mut dump).await;
        }
    }
    let path = args.file.clone().unwrap_or_else(default_name);
    dump.write(&path)?;
    output::note(&format!(
        "{} files, {} could not be collected",
        dump.files.len(),
        dump.failures.len()
    ));
    output::line(&path.display().to_string())
}

fn default_name() -> PathBuf {
    let now = jiff::Zoned::now().strftime("%Y%m%d-%H%M%S").to_string();
    PathBuf::from(format!("meshctl-sysdump-{now}.tar.gz"))
}

impl Dump {
    pub(super) fn add(&mut self, name: &str, content: impl Into<Vec<u8>>) {
        self.files.push((name.to_owned(), content.into()));
    }

    pub(super) fn json<T: Serialize>(&mut self, name: &str, value: &T) {
        match serde_json::to_vec_pretty(value) {
            Ok(text) => self.add(name, text),
            Err(error) => self.failed(name, &error),
        }
    }

    pub(super) fn failed(&mut self, what: &str, error: &impl std::fmt::Display) {
        self.failures.push(format!("{what}: {error:#}"));
    }

    fn write(&mut self, path: &PathBuf) -> anyhow::Result<()> {
        if !self.failures.is_empty() {
            self.add("failures.txt", self.failures.join("\n"));
        }
        let file = File::create(path).with_context(|| format!("create {}", path.display()))?;
        let mut archive = tar::Builder::new(GzEncoder::new(file, Compression::default()));
        for (name, content) in &self.files {
            let mut header = tar::Header::new_gnu();
            header.set_size(content.len() as u64);
            header.set_mode(0o644);
            archive
                .append_data(&mut header, format!("sysdump/{name}"), content.as_slice())
                .with_context(|| format!("write {name} to {}", path.display()))?;
        }
        let written = archive.into_inner().and_then(GzEncoder::finish);
        written.with_context(|| format!("write {}", path.display()))?;
        Ok(())
    }
}
