//! `meshctl status`: shows the state of the mesh and its problems on one screen.

use std::collections::BTreeMap;

use mesh_core::annotation;
use mesh_core::node::Tier;
use mesh_k8s::kinds::{Pod, ResourceExt};
use mesh_k8s::pod;
use serde::Serialize;

use super::version::format_counts;
use crate::check::{self, CategoryReport};
use crate::exit::Failure;
use crate::facts::{Facts, Mode, proxy_container};
use crate::global::Global;
use crate::mesh::Mesh;
use crate::output::progress::Progress;
use crate::output::style::Mark;
use crate::output::table::Table;
use crate::output::{self, Format};
use crate::resource::Scope;
use crate::{certificate, gather};

const EXAMPLES: &str = "\
Examples:
  meshctl status
  meshctl status -o json";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    output: Format,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    /// Context of a cluster, or name of a local node.
    place: String,
    namespace: String,
    version: String,
    components: Vec<Component>,
    agents: Agents,
    proxies: Proxies,
    trust: Trust,
    problems: Vec<Problem>,
}

#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Component {
    name: String,
    ready: usize,
    pods: usize,
    restarts: i32,
    images: Vec<String>,
}

#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Agents {
    answering: usize,
    nodes: usize,
    tiers: BTreeMap<Tier, usize>,
    versions: BTreeMap<String, usize>,
    kernels: BTreeMap<String, usize>,
    enrolled_pods: usize,
}

#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Proxies {
    pods: usize,
    ready: usize,
    namespaces: usize,
    versions: BTreeMap<String, usize>,
}

#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Trust {
    /// The time until the first anchor expires.
    anchors: Option<String>,
    issuer: Option<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Problem {
    check: &'static str,
    result: &'static str,
    detail: Vec<String>,
    #[serde(skip)]
    mark: Mark,
}

pub(crate) async fn run(args: &Args, global: &Global) -> anyhow::Result<()> {
    let mesh = Mesh::find(global).await?;
    let mut progress = Progress::new("querying the mesh");
    let mode = Mode::Installed { proxies: false };
    let gathered = progress.run(gather::facts(Some(&mesh), mode, Scope::All));
    let facts = Box::pin(gathered).await;
    progress.clear();
    if let (Mesh::Cluster(_), Err(reason)) = (&mesh, &facts.api_server) {
        return Err(Failure::Unreachable(reason.clone()).into());
    }
    if let Ok(namespaces) = &facts.objects.namespaces
        && facts.namespace(&facts.control_namespace).is_none()
    {
        return Err(Failure::Unreachable(format!(
            "no mesh is installed in namespace {}; -L selects another of the {} namespaces, `meshctl check --pre` shows whether the mesh can be installed",
            facts.control_namespace,
            namespaces.len()
        ))
        .into());
    }
    let status = Status::new(&mesh, &facts, &check::evaluate(&facts));
    match args.output {
        Format::Json => output::json("Status", &status),
        Format::Table => output::text(&render(&status)),
    }
}

impl Status {
    fn new(mesh: &Mesh, facts: &Facts, reports: &[CategoryReport]) -> Self {
        let place = match mesh {
            Mesh::Local(node) => format!("local node {}", node.paths.name()),
            Mesh::Cluster(cluster) => format!("context {}", cluster.context),
        };
        let expiry = |chain: &Result<Vec<Vec<u8>>, String>| {
            certificate::expiry(chain.as_ref().ok()?, facts.now)
        };
        Self {
            place,
            namespace: facts.control_namespace.clone(),
            version: facts
                .values()
                .map(|values| values.linkerd_version.clone())
                .unwrap_or_default(),
            components: components(facts),
            agents: agents(facts),
            proxies: proxies(facts),
            trust: Trust {
                anchors: expiry(&facts.trust.anchors),
                issuer: expiry(&facts.trust.issuer),
            },
            problems: problems(reports),
        }
    }
}

fn components(facts: &Facts) -> Vec<Component> {
    let mut components: BTreeMap<String, Component> = BTreeMap::new();
    for pod in facts.control_pods().into_iter().flatten() {
        let name = pod::label(pod, annotation::CONTROL_PLANE_COMPONENT).unwrap_or_default();
        let component = components.entry(name.to_owned()).or_default();
        component.name = name.to_owned();
        component.pods += 1;
        component.ready += usize::from(pod::is_ready(pod));
        component.restarts += restarts(pod);
        let images = pod
            .spec
            .iter()
            .flat_map(|spec| &spec.containers)
            .filter(|container| container.name != pod::PROXY_CONTAINER)
            .filter_map(|container| container.image.clone());
        for image in images {
            if !component.images.contains(&image) {
                component.images.push(image);
            }
        }
    }
    components.into_values().collect()
}

fn restarts(pod: &Pod) -> i32 {
    let Some(status) = &pod.status else { return 0 };
    let sum = |containers: &Option<Vec<mesh_k8s::kinds::core::ContainerStatus>>| -> i32 {
        containers
            .iter()
            .flatten()
            .map(|container| container.restart_count)
            .sum()
    };
    sum(&status.container_statuses) + sum(&status.init_container_statuses)
}

fn agents(facts: &Facts) -> Agents {
    let mut agents = Agents {
        nodes: facts.objects.nodes.as_ref().map_or(1, Vec::len),
        ..Default::default()
    };
    for agent in &facts.agents {
        if let Ok(status) = &agent.status {
            agents.answering += 1;
            *agents.tiers.entry(status.tier).or_default() += 1;
            let version = status.agent_version.clone();
            *agents.versions.entry(version).or_default() += 1;
            *agents.kernels.entry(status.kernel.clone()).or_default() += 1;
            agents.enrolled_pods += status.pods.values().sum::<usize>();
        }
    }
    agents
}

fn proxies(facts: &Facts) -> Proxies {
    let mut proxies = Proxies::default();
    let mut namespaces = Vec::new();
    for pod in facts.meshed_pods().into_iter().flatten() {
        proxies.pods += 1;
        proxies.ready += usize::from(is_proxy_ready(pod));
        let version = pod::annotation(pod, annotation::PROXY_VERSION).unwrap_or("unknown");
        *proxies.versions.entry(version.to_owned()).or_default() += 1;
        namespaces.push(pod.namespace());
    }
    namespaces.sort_unstable();
    namespaces.dedup();
    proxies.namespaces = namespaces.len();
    proxies
}

fn is_proxy_ready(pod: &Pod) -> bool {
    let (Some(status), Some(_)) = (&pod.status, proxy_container(pod)) else {
        return false;
    };
    let init = status.init_container_statuses.iter().flatten();
    let of_proxy = init
        .chain(status.container_statuses.iter().flatten())
        .find(|container| container.name == pod::PROXY_CONTAINER);
    // A local node reports no container states.
    of_proxy.map_or_else(|| pod::is_ready(pod), |container| container.ready)
}

fn problems(reports: &[CategoryReport]) -> Vec<Problem> {
    // A root cause stands for its consequences.
    check::rows(reports)
        .filter(|report| report.mark.is_problem() && report.cause.is_none())
        .map(|report| Problem {
            check: report.name,
            result: report.result,
            detail: report.detail.clone(),
            mark: report.mark,
        })
        .collect()
}

fn render(status: &Status) -> String {
    let mut text = format!("Mesh of {}", status.place);
    if !status.version.is_empty() {
        text += &format!(", version {}", status.version);
    }
    text += &format!(", namespace {}\n\n", status.namespace);
    let mut table = Table::default()
        .left("COMPONENT")
        .right("READY RESTARTS")
        .left("IMAGES");
    for component in &status.components {
        table.row(vec![
            component.name.clone(),
            format!("{}/{}", component.ready, component.pods),
            component.restarts.to_string(),
            component.images.join(", "),
        ]);
    }
    text += &table.render();
    let agents = &status.agents;
    let tiers: Vec<String> = agents
        .tiers
        .iter()
        .map(|(tier, nodes)| format!("{tier} ({nodes})"))
        .collect();
    let unknown = |text: String| {
        if text.is_empty() {
            "-".to_owned()
        } else {
            text
        }
    };
    let or_unknown = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
    let proxies = &status.proxies;
    let of_agents = format!(
        "{} of {} nodes respond, {} pods enrolled",
        agents.answering, agents.nodes, agents.enrolled_pods
    );
    let of_proxies = format!(
        "{} of {} ready, in {} namespaces",
        proxies.ready, proxies.pods, proxies.namespaces
    );
    let trust = format!(
        "anchors: {} left, issuer: {} left",
        or_unknown(&status.trust.anchors),
        or_unknown(&status.trust.issuer)
    );
    let lines = [
        ("Agents", of_agents),
        ("  tier", unknown(tiers.join(", "))),
        ("  version", unknown(format_counts(&agents.versions))),
        ("  kernel", unknown(format_counts(&agents.kernels))),
        ("Proxies", of_proxies),
        ("  version", unknown(format_counts(&proxies.versions))),
        ("Trust", trust),
    ];
    text.push('\n');
    for (key, value) in lines {
        text += &format!("{key:<10} {value}\n");
    }
    if status.problems.is_empty() {
        return text + &format!("\n{} no problems\n", Mark::Ok.show());
    }
    text.push('\n');
    for problem in &status.problems {
        text += &format!("{} {}", problem.mark.show(), problem.check);
        match problem.detail.as_slice() {
            [] => text.push('\n'),
            [one] => text += &format!(": {one}\n"),
            [first, rest @ ..] => text += &format!(": {first} (and {} more)\n", rest.len()),
        }
    }
    text + "\n`meshctl check` shows how to repair each.\n"
}
