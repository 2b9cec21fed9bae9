//! `meshctl profile`: prints a ServiceProfile.

mod open_api;
mod proto;
mod route;

use std::fs::File;
use std::io::Read;

use mesh_core::identity::is_dns_label;
use mesh_k8s::crd::{ServiceProfile, ServiceProfileSpec};
use mesh_k8s::profile::template;
use mesh_k8s::validate;
use serde_json::Value;

use crate::exit::Failure;
use crate::global::Global;
use crate::mesh::Mesh;
use crate::output;
use crate::output::manifests::{self, ManifestFormat};

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The Service that the profile is for
    #[arg(value_name = "SERVICE")]
    service: String,
    #[command(flatten)]
    input: Input,
    /// Do not ask the cluster for its DNS domain and the namespace of the context
    #[arg(long)]
    ignore_cluster: bool,
    #[arg(short, long, value_enum, default_value_t = ManifestFormat::Yaml)]
    output: ManifestFormat,
}

#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
struct Input {
    /// An example with an explanation of each field
    #[arg(long)]
    template: bool,
    /// The operations of an OpenAPI document (2 or 3, YAML or JSON); - for standard input
    #[arg(long, value_name = "FILE")]
    open_api: Option<String>,
    /// The methods of the gRPC services of a protobuf file; - for standard input
    #[arg(long, value_name = "FILE")]
    proto: Option<String>,
}

const EXAMPLES: &str = "\
An operation of an OpenAPI document may have x-linkerd-retryable: true and x-linkerd-timeout: 10s.

Examples:
  meshctl profile -n shop --template web
  meshctl profile -n shop --open-api web.yaml web | kubectl apply -f -
  meshctl profile -n shop --proto web.proto web";

/// The size of a document. The largest ones that are published have 10 MB.
const MAX_FILE: u64 = 16 << 20;

pub(crate) async fn run(args: &Args, global: &Global) -> anyhow::Result<()> {
    let (namespace, domain) = place(args, global).await?;
    for (what, name) in [("Service", &args.service), ("namespace", &namespace)] {
        if !is_dns_label(name) {
            return Err(Failure::Input(format!(
                "{name:?} is not the name of a {what}: it has letters in lower case, digits and hyphens"
            ))
            .into());
        }
    }
    let spec = match &args.input {
        Input {
            open_api: Some(file),
            ..
        } => open_api::spec(&read(file)?, file)?,
        Input {
            proto: Some(file), ..
        } => proto::spec(&read(file)?, file)?,
        Input { .. } => {
            let text = template(&args.service, &namespace, &domain);
            return match args.output {
                ManifestFormat::Yaml => output::text(&text),
                ManifestFormat::Json => output::text(&manifests::render(
                    &manifests::parse(&text, "the template")?,
                    args.output,
                )?),
            };
        }
    };
    let name = format!("{}.{namespace}.svc.{domain}", args.service);
    let object = object(&name, &namespace, spec)?;
    output::text(&manifests::render(&[object], args.output)?)
}

/// Returns the namespace and the cluster domain of the profile.
async fn place(args: &Args, global: &Global) -> anyhow::Result<(String, String)> {
    if args.ignore_cluster {
        let namespace = global.namespace.as_deref().unwrap_or("default");
        return Ok((namespace.to_owned(), "cluster.local".to_owned()));
    }
    let mesh = Mesh::find(global).await?;
    let scope = mesh.scope(global);
    let namespace = scope.namespace().unwrap_or(mesh.default_namespace());
    Ok((namespace.to_owned(), mesh.cluster_domain().await))
}

fn read(file: &str) -> Result<String, Failure> {
    let failed = |error: &dyn std::fmt::Display| Failure::Input(format!("read {file}: {error}"));
    let mut text = String::new();
    let read = if file == "-" {
        std::io::stdin()
            .take(MAX_FILE + 1)
            .read_to_string(&mut text)
    } else {
        let opened = File::open(file).map_err(|error| failed(&error))?;
        opened.take(MAX_FILE + 1).read_to_string(&mut text)
    };
    match read {
        Err(error) => Err(failed(&error)),
        Ok(length) if length as u64 > MAX_FILE => {
            let limit = MAX_FILE >> 20;
            Err(failed(&format!(
                "the document is larger than {limit} MiB, which is the limit"
            )))
        }
        Ok(_) => Ok(text),
    }
}

/// Returns the object, if the admission webhook would accept it.
fn object(name: &str, namespace: &str, spec: ServiceProfileSpec) -> anyhow::Result<Value> {
    let mut profile = ServiceProfile::new(name, spec);
    profile.metadata.namespace = Some(namespace.to_owned());
    let object = serde_json::to_value(&profile)?;
    validate::service_profile(&object).map_err(|problems| {
        let problems = validate::summary(&problems);
        Failure::Input(format!("the profile would be invalid: {problems}"))
    })?;
    Ok(object)
}

#[cfg(test)]
mod tests;
