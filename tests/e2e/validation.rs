//! Validation of policies and routes by the API server with the installed webhook, for the same
//! objects as in process.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use mesh_test_support::cluster::Cluster;
use mesh_test_support::cluster::installation::Installation;
use mesh_test_support::command::{Words as _, feed, output_text};
use mesh_test_support::eventually::eventually;
use serde::Deserialize;
use serde_json::{Value, json};

/// A file of `mesh-k8s/testdata/validate`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Corpus {
    api_version: String,
    kind: String,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
    spec: Option<Value>,
    /// A part of the webhook's message; absent if the object is admitted.
    because: Option<String>,
}

/// The end of the names of the chart's webhooks, whose verdicts are compared.
const WEBHOOK: &str = "-validator.linkerd.io";

/// The namespace of the corpus.
const NAMESPACE: &str = "default";

#[test]
fn api_server_gives_verdicts_of_validators() {
    let Some(cluster) = Cluster::acquire("objects that the validating webhooks review") else {
        return;
    };
    let mesh = Installation::by_helm(&cluster, &["webhookFailurePolicy=Fail"]);
    mesh.wait_until_ready();
    // Until the caBundle is published, every object is refused.
    let valid = object(
        "policy.linkerd.io/v1beta3",
        "Server",
        "probe",
        &BTreeMap::new(),
        &json!({"podSelector": {}, "port": 80}),
    );
    eventually("the webhook admits a valid object", || {
        let (admitted, output) = submit(&cluster, &valid.to_string());
        if admitted { Ok(()) } else { Err(output) }
    });

    let served = served_kinds(&cluster);
    let (mut compared, mut skipped, mut wrong) = (0, BTreeSet::new(), Vec::new());
    for file in files() {
        let text = fs::read_to_string(&file).expect("read a file of the corpus");
        let corpus: Corpus = serde_norway::from_str(&text).expect("a corpus");
        if !served.contains(&(corpus.api_version.clone(), corpus.kind.clone())) {
            skipped.insert(format!("{} {}", corpus.api_version, corpus.kind));
            continue;
        }
        for case in corpus.cases {
            compared += 1;
            let spec = case.spec.unwrap_or_default();
            let object = object(
                &corpus.api_version,
                &corpus.kind,
                &case.name,
                &case.annotations,
                &spec,
            );
            let (admitted, output) = submit(&cluster, &object.to_string());
            if let Some(problem) = problem(&case.because, admitted, &output) {
                wrong.push(format!("{} {}: {problem}", corpus.kind, case.name));
            }
        }
    }
    if !skipped.is_empty() {
        println!("kinds that the cluster does not serve: {skipped:?}");
    }
    mesh.remove();
    assert!(
        wrong.is_empty(),
        "{} wrong verdicts:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    assert!(compared >= 100, "{compared} objects compared");
}

/// Returns the errors in a verdict. The schema of a definition refuses some objects before the
/// webhook sees them, with messages of the API server.
fn problem(because: &Option<String>, admitted: bool, output: &str) -> Option<String> {
    match because {
        None if admitted => None,
        None => Some(format!("must be admitted, but was denied: {output}")),
        Some(_) if admitted => Some("must be denied, but was admitted".to_owned()),
        Some(part) if output.contains(WEBHOOK) && !output.contains(part) => {
            Some(format!("the message must contain {part:?}: {output}"))
        }
        Some(_) if output.contains("failed calling webhook") => {
            Some(format!("the webhook did not respond: {output}"))
        }
        Some(_) => None,
    }
}

fn object(
    api_version: &str,
    kind: &str,
    name: &str,
    annotations: &BTreeMap<String, String>,
    spec: &Value,
) -> Value {
    let mut object = json!({
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {"name": name, "namespace": NAMESPACE, "annotations": annotations},
    });
    if !spec.is_null() {
        object["spec"] = spec.clone();
    }
    object
}

/// Returns whether the API server would store the object of a manifest, and its message.
pub(crate) fn submit(cluster: &Cluster, manifest: &str) -> (bool, String) {
    let args = "apply --dry-run=server --validate=strict -f -";
    let output = feed(cluster.program("kubectl").args(args.words()), manifest);
    (output.status.success(), output_text(&output))
}

/// Returns the API versions and kinds that the API server serves.
fn served_kinds(cluster: &Cluster) -> BTreeSet<(String, String)> {
    let text = cluster.kubectl("api-resources --no-headers");
    let kinds = text.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        // Name, short names if there are any, version, whether it is namespaced, kind.
        let [.., version, _namespaced, kind] = words.as_slice() else {
            return None;
        };
        let (group, _) = version.split_once('/')?;
        Some((group.to_owned(), (*kind).to_owned()))
    });
    let kinds: BTreeSet<(String, String)> = kinds.collect();
    let text = cluster.kubectl("api-versions");
    let versions = text
        .lines()
        .filter_map(|version| Some((version, version.split_once('/')?.0)));
    versions
        .flat_map(|(version, group)| {
            let of_group = kinds.iter().filter(move |(of, _)| of == group);
            of_group.map(move |(_, kind)| (version.to_owned(), kind.clone()))
        })
        .collect()
}

fn files() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the root of the repository");
    let directory = fs::read_dir(root.join("mesh-k8s/testdata/validate")).expect("the corpus");
    let mut files: Vec<PathBuf> = directory
        .map(|entry| entry.expect("a file").path())
        .collect();
    files.sort();
    files
}
