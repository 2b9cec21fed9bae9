//! `meshctl identity deny`, `allow` and `denied`: the list of identities that no proxy of the mesh
//! has connections with, in a ConfigMap of the control plane's namespace.

use anyhow::bail;
use kube::Api;
use kube::api::PostParams;
use mesh_core::deny_list::{DenyList, check_entry, parse_entry};
use mesh_core::identity::Identity;
use mesh_core::policy::inbound::IdentityMatch;
use mesh_k8s::denied_identities::{self, CONFIG_MAP};
use mesh_k8s::invalid::summary;
use mesh_k8s::kinds::ConfigMap;
use serde::Serialize;

use crate::cluster::{Cluster, error};
use crate::exit::Failure;
use crate::global::Global;
use crate::output::{self, Format, count};

const EXAMPLES: &str = "\
Examples:
  meshctl identity deny web.shop.serviceaccount.identity.linkerd.cluster.local
  meshctl identity deny '*.shop.serviceaccount.identity.linkerd.cluster.local' spiffe://example.org/db
  meshctl identity allow web.shop.serviceaccount.identity.linkerd.cluster.local
  meshctl identity denied";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Change {
    /// A DNS identity, a spiffe:// identity, or '*.' with the end of DNS identities
    #[arg(required = true, value_name = "IDENTITY", value_parser = parse)]
    entries: Vec<IdentityMatch>,
}

#[derive(Debug, clap::Args)]
pub(super) struct List {
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    output: Format,
}

#[derive(Serialize)]
struct Denied {
    identities: Vec<String>,
}

/// A change of entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verb {
    Deny,
    Allow,
}

/// How often the list is written again that someone else has changed meanwhile.
const ATTEMPTS: usize = 5;

pub(super) async fn deny(args: &Change, global: &Global) -> anyhow::Result<()> {
    change(args, Verb::Deny, global).await
}

pub(super) async fn allow(args: &Change, global: &Global) -> anyhow::Result<()> {
    change(args, Verb::Allow, global).await
}

pub(super) async fn denied(args: &List, global: &Global) -> anyhow::Result<()> {
    let cluster = Cluster::connect(global).await?;
    let trust_domain = trust_domain(&cluster).await?;
    let (_, list) = read(&cluster, &trust_domain).await?;
    let identities: Vec<String> = list.texts().collect();
    match args.output {
        Format::Json => output::json("DeniedIdentities", &Denied { identities }),
        Format::Table if identities.is_empty() => {
            output::note("no identity is denied");
            Ok(())
        }
        Format::Table => output::text(&denied_identities::to_text(&list)),
    }
}

async fn change(args: &Change, verb: Verb, global: &Global) -> anyhow::Result<()> {
    let cluster = Cluster::connect(global).await?;
    let changed = change_in(&cluster, &args.entries, verb).await?;
    for note in &changed.notes {
        output::note(note);
    }
    let entries = count(changed.list.len(), "entry", "entries");
    let done = match verb {
        Verb::Deny => "connections of these identities end within seconds",
        Verb::Allow => "proxies accept these identities within seconds",
    };
    output::line(&format!("{done}; the list has {entries}"))
}

/// The list after a change.
#[derive(Debug)]
struct Changed {
    list: DenyList,
    notes: Vec<String>,
}

async fn change_in(
    cluster: &Cluster,
    entries: &[IdentityMatch],
    verb: Verb,
) -> anyhow::Result<Changed> {
    let trust_domain = trust_domain(cluster).await?;
    if verb == Verb::Deny {
        for entry in entries {
            check_entry(entry, &cluster.control_namespace, &trust_domain)
                .map_err(|refused| Failure::Input(refused.to_string()))?;
        }
    }
    for _ in 0..ATTEMPTS {
        let (object, list) = read(cluster, &trust_domain).await?;
        let changed = apply(list.clone(), entries, verb)?;
        if changed.list == list || write(cluster, object, &changed.list).await? {
            return Ok(changed);
        }
    }
    bail!(Failure::TimedOut(format!(
        "ConfigMap {CONFIG_MAP} was changed by others {ATTEMPTS} times meanwhile"
    )))
}

fn apply(mut list: DenyList, entries: &[IdentityMatch], verb: Verb) -> anyhow::Result<Changed> {
    let mut notes = Vec::new();
    for entry in entries {
        let is_new = match verb {
            Verb::Deny => list.insert(entry.clone()),
            Verb::Allow => list.remove(entry),
        };
        match verb {
            _ if is_new => {}
            Verb::Deny => notes.push(format!("{entry} is in the list already")),
            Verb::Allow => notes.push(format!("{entry} is not in the list")),
        }
    }
    if verb == Verb::Allow {
        let exact = entries.iter().filter_map(|entry| match entry {
            IdentityMatch::Exact(id) => Some(id),
            IdentityMatch::Suffix(_) => None,
        });
        notes.extend(exact.filter_map(|id| still_denied(&list, id)));
    }
    let texts: Vec<String> = list.texts().collect();
    let list = DenyList::parse(texts.iter().map(String::as_str))
        .map_err(|refused| Failure::Input(refused.to_string()))?;
    Ok(Changed { list, notes })
}

fn still_denied(list: &DenyList, id: &Identity) -> Option<String> {
    let denies = |text: &String| {
        let own = DenyList::parse([text.as_str()]);
        own.is_ok_and(|own| own.denies(id))
    };
    let entry = list.texts().find(denies)?;
    Some(format!("{id} is still denied by {entry}"))
}

async fn trust_domain(cluster: &Cluster) -> anyhow::Result<String> {
    Ok(cluster.values().await?.trust_domain().to_owned())
}

/// Returns the object, if there is one, and its list.
async fn read(
    cluster: &Cluster,
    trust_domain: &str,
) -> anyhow::Result<(Option<ConfigMap>, DenyList)> {
    let namespace = &cluster.control_namespace;
    let what = format!("read ConfigMap {CONFIG_MAP}");
    let found = cluster.control_object::<ConfigMap>(CONFIG_MAP).await;
    let Some(object) = found.map_err(|failed| error::failed(&what, failed))? else {
        return Ok((None, DenyList::default()));
    };
    match denied_identities::read(&object, namespace, trust_domain) {
        Ok(list) => Ok((Some(object), list)),
        Err(problems) => bail!(Failure::Input(format!(
            "ConfigMap {CONFIG_MAP} is invalid, and the list before it is in effect: {}; correct it with `kubectl -n {namespace} edit configmap {CONFIG_MAP}`",
            summary(&problems)
        ))),
    }
}

/// Returns false if someone else has written the object meanwhile.
async fn write(
    cluster: &Cluster,
    object: Option<ConfigMap>,
    list: &DenyList,
) -> anyhow::Result<bool> {
    let namespace = &cluster.control_namespace;
    let api: Api<ConfigMap> = Api::namespaced(cluster.client.clone(), namespace);
    let new = denied_identities::config_map(list, namespace);
    let params = PostParams::default();
    let written = match object {
        None => api.create(&params, &new).await,
        Some(object) => {
            // With the version that was read, and the metadata of others.
            let object = ConfigMap {
                data: new.data,
                ..object
            };
            api.replace(CONFIG_MAP, &params, &object).await
        }
    };
    match written {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
        Err(failed) => Err(error::failed(
            &format!("write ConfigMap {CONFIG_MAP}"),
            failed,
        )),
    }
}

fn parse(text: &str) -> Result<IdentityMatch, String> {
    parse_entry(text).map_err(|refused| refused.to_string())
}

#[cfg(test)]
mod tests;
