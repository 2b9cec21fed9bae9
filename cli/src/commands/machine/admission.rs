//! Machines in a cluster: `meshctl machine admit` writes the ConfigMap that admits one, and prints
//! the file that it joins with; `admissions` and `dismiss` list and delete the ConfigMaps.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, bail};
use jiff::{Timestamp, Unit};
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use mesh_core::annotation::MACHINE;
use mesh_core::identity::is_dns_label;
use mesh_core::machine::{
    JOIN_API_VERSION, JOIN_KIND, JoinFile, MeshSettings, Secret, is_host_and_port, is_sha256,
    join_token,
};
use mesh_k8s::inject::machine_settings;
use mesh_k8s::invalid::summary;
use mesh_k8s::kinds::ConfigMap;
use mesh_k8s::machine::{AccountName, JoinToken, MAX_ACCOUNTS, Machine, config_map_name};
use mesh_k8s::trust::fingerprint;
use serde::Serialize;

use crate::cluster::{Cluster, error};
use crate::exit::Failure;
use crate::global::Global;
use crate::output::table::Table;
use crate::output::{self, Format};

#[derive(Debug, clap::Args)]
pub(super) struct Admit {
    /// Name of the machine, a DNS label
    #[arg(value_parser = parse_name)]
    name: String,
    /// The fingerprint of its key, which `meshctl machine key` prints there
    #[arg(long, value_name = "SHA256", value_parser = parse_key)]
    key_sha256: String,
    /// A ServiceAccount whose identity its units may have; may be repeated
    #[arg(long = "service-account", value_name = "NAMESPACE/NAME", required = true, value_parser = parse_account)]
    service_accounts: Vec<AccountName>,
    /// How long the machine may take to join, 1m to 24h
    #[arg(long, value_name = "DURATION", default_value = "15m", value_parser = parse_ttl)]
    token_ttl: Duration,
    #[command(flatten)]
    addresses: Addresses,
}

#[derive(Debug, Default, clap::Args)]
struct Addresses {
    /// Where the machine reaches the identity service; the name that pods use if not set
    #[arg(long, value_name = "HOST:PORT", value_parser = parse_address)]
    identity_addr: Option<String>,
    /// Where the machine reaches the destination service
    #[arg(long, value_name = "HOST:PORT", value_parser = parse_address)]
    destination_addr: Option<String>,
    /// Where the machine reaches the policy service
    #[arg(long, value_name = "HOST:PORT", value_parser = parse_address)]
    policy_addr: Option<String>,
}

#[derive(Debug, clap::Args)]
pub(super) struct Admissions {
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    output: Format,
}

#[derive(Debug, clap::Args)]
pub(super) struct Dismiss {
    /// Name of the machine
    #[arg(value_parser = parse_name)]
    name: String,
}

/// An admitted machine, or the problems of its ConfigMap.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Admission {
    machine: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    key_sha256: Option<String>,
    service_accounts: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_expires: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    invalid: Option<String>,
}

#[derive(Serialize)]
struct AdmissionList {
    admissions: Vec<Admission>,
}

const FIELD_MANAGER: &str = "meshctl";
const SHORTEST_TTL: Duration = Duration::from_secs(60);
const LONGEST_TTL: Duration = Duration::from_secs(24 * 3600);

pub(super) async fn admit(args: Admit, global: &Global) -> anyhow::Result<()> {
    let cluster = Cluster::connect(global).await?;
    let secret = format!(
        "{:032x}{:032x}",
        rand::random::<u128>(),
        rand::random::<u128>()
    );
    let file = admit_in(&cluster, args, &secret, Timestamp::now()).await?;
    let text = serde_norway::to_string(&file).context("print the join file")?;
    output::note(&format!(
        "machine {} is admitted; copy the file to it, and run `meshctl machine join FILE` there before {}",
        file.machine, file.token_expires
    ));
    output::text(&text)
}

pub(super) async fn admissions(args: &Admissions, global: &Global) -> anyhow::Result<()> {
    let cluster = Cluster::connect(global).await?;
    let admissions = list(&cluster).await?;
    match args.output {
        Format::Json => output::json("MachineAdmissionList", &AdmissionList { admissions }),
        Format::Table if admissions.is_empty() => {
            output::note(&format!(
                "no machine is admitted by namespace {}",
                cluster.control_namespace
            ));
            Ok(())
        }
        Format::Table => output::text(&table(&admissions)),
    }
}

pub(super) async fn dismiss(args: &Dismiss, global: &Global) -> anyhow::Result<()> {
    let cluster = Cluster::connect(global).await?;
    dismiss_from(&cluster, &args.name).await?;
    output::line(&format!(
        "machine {} gets no more certificates; its units' certificates end within a day",
        args.name
    ))
}

/// Writes the ConfigMap, and returns the join file with the token that it has the hash of.
async fn admit_in(
    cluster: &Cluster,
    args: Admit,
    secret: &str,
    now: Timestamp,
) -> anyhow::Result<JoinFile> {
    let Admit {
        name,
        key_sha256,
        service_accounts,
        token_ttl,
        addresses,
    } = args;
    let accounts: BTreeSet<AccountName> = service_accounts.into_iter().collect();
    if accounts.len() > MAX_ACCOUNTS {
        bail!(Failure::Input(format!(
            "--service-account: machine {name} can have {MAX_ACCOUNTS} ServiceAccounts, not {}",
            accounts.len()
        )));
    }
    let mut mesh = Box::pin(settings(cluster)).await?;
    addresses.apply(&mut mesh);
    let api = config_maps(cluster);
    let config_map = config_map_name(&name);
    let what = format!("read ConfigMap {config_map}");
    let existing = api.get_opt(&config_map).await;
    if let Some(existing) = existing.map_err(|error| error::failed(&what, error))? {
        check_existing(&name, &key_sha256, &existing)?;
    }
    let expires = (now + token_ttl).round(Unit::Second)?;
    let token = join_token(&name, secret);
    let machine = Machine {
        name: name.clone(),
        accounts,
        key: key_sha256.clone(),
        token: Some(JoinToken {
            sha256: fingerprint(token.as_bytes()),
            expires: expires.to_string().parse()?,
        }),
    };
    let object = machine.config_map(&cluster.control_namespace);
    let params = PatchParams::apply(FIELD_MANAGER);
    let applied = api
        .patch(&config_map, &params, &Patch::Apply(&object))
        .await;
    let what = format!("write ConfigMap {config_map}");
    applied.map_err(|error| error::failed(&what, error))?;
    let file = JoinFile {
        api_version: JOIN_API_VERSION.to_owned(),
        kind: JOIN_KIND.to_owned(),
        machine: name,
        key_sha256,
        token: Secret(token),
        token_expires: expires.to_string(),
        mesh,
    };
    // It has values of the mesh, which may be anything.
    file.validate()
        .context("the values of the mesh do not make a join file")?;
    Ok(file)
}

async fn settings(cluster: &Cluster) -> anyhow::Result<MeshSettings> {
    let values = cluster.values().await?;
    let anchors = cluster.trust_anchors().await?;
    machine_settings(&values, &anchors).context("read the values of ConfigMap linkerd-config")
}

/// A name that another machine has would end that one's admission.
fn check_existing(name: &str, key: &str, existing: &ConfigMap) -> Result<(), Failure> {
    match Machine::read(existing) {
        Ok(machine) if machine.key != key => Err(Failure::Input(format!(
            "machine {name} is admitted with another key, {}; choose another name, or run `meshctl machine dismiss {name}` first if it is gone",
            machine.key
        ))),
        _ => Ok(()),
    }
}

async fn list(cluster: &Cluster) -> anyhow::Result<Vec<Admission>> {
    let scope = crate::resource::Scope::Namespace(cluster.control_namespace.clone());
    let params = ListParams::default().labels(MACHINE);
    let found = cluster.list::<ConfigMap>(&scope, params).await;
    let found = found.map_err(|error| error::failed("list the ConfigMaps of machines", error))?;
    Ok(found.iter().map(Admission::of).collect())
}

async fn dismiss_from(cluster: &Cluster, name: &str) -> anyhow::Result<()> {
    let config_map = config_map_name(name);
    let api = config_maps(cluster);
    match api.delete(&config_map, &DeleteParams::default()).await {
        Ok(_) => Ok(()),
        Err(failure) if error::is_missing(&failure) => bail!(Failure::Input(format!(
            "machine {name} is not admitted: namespace {} has no ConfigMap {config_map}; `meshctl machine admissions` lists the machines",
            cluster.control_namespace
        ))),
        Err(failure) => Err(error::failed(
            &format!("delete ConfigMap {config_map}"),
            failure,
        )),
    }
}

fn config_maps(cluster: &Cluster) -> Api<ConfigMap> {
    Api::namespaced(cluster.client.clone(), &cluster.control_namespace)
}

fn table(admissions: &[Admission]) -> String {
    let mut table = Table::default().left("MACHINE KEY SERVICE-ACCOUNTS TOKEN-UNTIL PROBLEM");
    for admission in admissions {
        table.row(vec![
            admission.machine.clone(),
            admission.key_sha256.clone().unwrap_or_default(),
            admission.service_accounts.join(","),
            admission.token_expires.clone().unwrap_or_default(),
            output::printable(admission.invalid.as_deref().unwrap_or_default()),
        ]);
    }
    table.render()
}

impl Admission {
    fn of(object: &ConfigMap) -> Self {
        let label = object.metadata.labels.as_ref();
        let label = label.and_then(|labels| labels.get(MACHINE)).cloned();
        match Machine::read(object) {
            Ok(machine) => Self {
                machine: machine.name,
                key_sha256: Some(machine.key),
                service_accounts: machine.accounts.iter().map(ToString::to_string).collect(),
                token_expires: machine.token.map(|token| token.expires.to_string()),
                invalid: None,
            },
            Err(problems) => Self {
                machine: label.unwrap_or_default(),
                key_sha256: None,
                service_accounts: Vec::new(),
                token_expires: None,
                invalid: Some(summary(&problems)),
            },
        }
    }
}

impl Addresses {
    fn apply(self, mesh: &mut MeshSettings) {
        for (flag, service) in [
            (self.identity_addr, &mut mesh.identity),
            (self.destination_addr, &mut mesh.destination),
            (self.policy_addr, &mut mesh.policy),
        ] {
            if let Some(address) = flag {
                service.address = address;
            }
        }
    }
}

fn parse_name(text: &str) -> Result<String, String> {
    let problem = "write a DNS label: lower-case letters, digits and '-', at most 63";
    parse(is_dns_label(text), text, problem)
}

fn parse_key(text: &str) -> Result<String, String> {
    let problem = "write 64 hexadecimal digits in lower case, as `meshctl machine key` prints them";
    parse(is_sha256(text), text, problem)
}

fn parse_address(text: &str) -> Result<String, String> {
    parse(is_host_and_port(text), text, "write HOST:PORT")
}

fn parse(is_valid: bool, text: &str, problem: &str) -> Result<String, String> {
    is_valid
        .then(|| text.to_owned())
        .ok_or_else(|| problem.to_owned())
}

fn parse_account(text: &str) -> Result<AccountName, String> {
    AccountName::parse(text).ok_or_else(|| "write NAMESPACE/NAME, both DNS labels".to_owned())
}

fn parse_ttl(text: &str) -> Result<Duration, String> {
    let ttl = mesh_core::units::parse_duration(text).map_err(|error| error.to_string())?;
    if (SHORTEST_TTL..=LONGEST_TTL).contains(&ttl) {
        Ok(ttl)
    } else {
        Err("write a duration from 1m to 24h".to_owned())
    }
}

#[cfg(test)]
mod tests;
