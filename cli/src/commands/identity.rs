//! `meshctl identity`.

mod deny;
mod rotate;

use std::fmt::Write;

use anyhow::Context;
use serde::Serialize;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::exit::Failure;
use crate::global::Global;
use crate::mesh::Mesh;
use crate::output::{self, Format, count};
use crate::resource::MeshPod;

const EXAMPLES: &str = "\
Examples:
  meshctl identity demo/web-0 -o json
  meshctl identity -n shop -l app=web
  meshctl identity rotate --help
  meshctl identity deny --help";

#[derive(Debug, clap::Args)]
#[command(
    after_help = EXAMPLES,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true
)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    /// NAME or NAMESPACE/NAME
    #[arg(required_unless_present = "selector")]
    pods: Vec<String>,
    /// Select pods by labels, KEY=VALUE[,KEY=VALUE]
    #[arg(short = 'l', long, value_name = "SELECTOR", conflicts_with = "pods")]
    selector: Option<String>,
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    output: Format,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Replace the trust anchor of running proxies, step by step
    Rotate(Box<rotate::Args>),
    /// End the connections of identities, and refuse them until they are allowed
    Deny(deny::Change),
    /// Remove entries from the list of denied identities
    Allow(deny::Change),
    /// List the denied identities
    Denied(deny::List),
}

#[derive(Serialize)]
struct Output {
    pods: Vec<PresentedChain>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PresentedChain {
    pod: String,
    chain: Vec<Certificate>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Certificate {
    subject: String,
    issuer: String,
    serial: String,
    names: Vec<String>,
    not_before: String,
    not_after: String,
    signature_algorithm: String,
}

pub(crate) async fn run(args: &Args, global: &Global) -> anyhow::Result<()> {
    match &args.command {
        Some(Command::Rotate(args)) => return Box::pin(rotate::run(args, global)).await,
        Some(Command::Deny(args)) => return deny::deny(args, global).await,
        Some(Command::Allow(args)) => return deny::allow(args, global).await,
        Some(Command::Denied(args)) => return deny::denied(args, global).await,
        None => {}
    }
    let mesh = Mesh::find(global).await?;
    let mut pods = Vec::new();
    for pod in select_pods(args, global, &mesh).await? {
        pods.push(fetch_chain(&mesh, &pod).await?);
    }
    match args.output {
        Format::Json => output::json("Identity", &Output { pods }),
        Format::Table => output::text(&pods.iter().map(render).collect::<String>()),
    }
}

async fn select_pods(args: &Args, global: &Global, mesh: &Mesh) -> anyhow::Result<Vec<MeshPod>> {
    let Some(selector) = &args.selector else {
        let mut pods = Vec::new();
        for name in &args.pods {
            pods.push(mesh.pod(name, global).await?);
        }
        return Ok(pods);
    };
    let wanted: Option<Vec<(String, String)>> = selector
        .split(',')
        .map(|pair| {
            let (key, value) = pair.split_once('=')?;
            Some((key.trim().to_owned(), value.trim().to_owned()))
        })
        .collect();
    let wanted = wanted.ok_or_else(|| {
        Failure::Input(format!(
            "invalid selector {selector:?}: expected KEY=VALUE[,KEY=VALUE]"
        ))
    })?;
    let mut pods = mesh.pods(&mesh.scope(global)).await?;
    pods.retain(|pod| pod.is_meshed() && wanted.iter().all(|label| pod.labels.contains(label)));
    if pods.is_empty() {
        output::note(&format!("no meshed pod has the labels {selector}"));
    }
    Ok(pods)
}

async fn fetch_chain(mesh: &Mesh, pod: &MeshPod) -> anyhow::Result<PresentedChain> {
    let chain = mesh
        .presented_chain(pod, &mesh.trust_domain().await)
        .await?;
    Ok(PresentedChain {
        pod: pod.to_string(),
        chain: chain
            .iter()
            .map(|der| certificate(der))
            .collect::<anyhow::Result<_>>()?,
    })
}

fn certificate(der: &[u8]) -> anyhow::Result<Certificate> {
    let (_, certificate) =
        X509Certificate::from_der(der).context("the proxy presented an invalid certificate")?;
    let names = certificate
        .subject_alternative_name()?
        .map(|extension| extension.value.general_names.iter().map(name).collect());
    Ok(Certificate {
        subject: certificate.subject().to_string(),
        issuer: certificate.issuer().to_string(),
        serial: certificate.raw_serial_as_string(),
        names: names.unwrap_or_default(),
        not_before: certificate.validity().not_before.to_string(),
        not_after: certificate.validity().not_after.to_string(),
        signature_algorithm: algorithm(&certificate.signature_algorithm.algorithm.to_id_string()),
    })
}

fn name(name: &GeneralName<'_>) -> String {
    match name {
        GeneralName::DNSName(dns) => format!("DNS:{dns}"),
        GeneralName::URI(uri) => format!("URI:{uri}"),
        other => other.to_string(),
    }
}

/// Returns the name of an algorithm that the mesh uses, or the OID of any other.
fn algorithm(oid: &str) -> String {
    match oid {
        "1.2.840.10045.4.3.2" => "ECDSA-SHA256".to_owned(),
        "1.2.840.10045.4.3.3" => "ECDSA-SHA384".to_owned(),
        "1.2.840.113549.1.1.11" => "SHA256-RSA".to_owned(),
        other => other.to_owned(),
    }
}

fn render(pod: &PresentedChain) -> String {
    let mut text = format!(
        "POD {} ({})\n\n",
        pod.pod,
        count(pod.chain.len(), "certificate", "certificates")
    );
    for certificate in &pod.chain {
        let lines = [
            ("Subject", &certificate.subject),
            ("Issuer", &certificate.issuer),
            ("Serial", &certificate.serial),
            ("Names", &certificate.names.join(", ")),
            ("Not before", &certificate.not_before),
            ("Not after", &certificate.not_after),
            ("Signature", &certificate.signature_algorithm),
        ];
        for (key, value) in lines {
            let value = if value.is_empty() { "-" } else { value };
            // Writing to a string cannot fail.
            let _written = writeln!(text, "{key:<11} {value}");
        }
        text.push('\n');
    }
    text
}
