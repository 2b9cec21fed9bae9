//! The API server's validation of the mesh's resources by their definitions, without webhooks.

use std::fs;
use std::path::Path;

use mesh_test_support::cluster::Cluster;
use serde_json::Value;

use crate::validation::submit;

/// The definitions on the cluster. Dropping it deletes them.
struct Definitions<'a> {
    cluster: &'a Cluster,
    manifests: String,
}

impl<'a> Definitions<'a> {
    fn install(cluster: &'a Cluster) -> Self {
        let mut manifests = cluster.meshctl("install --crds");
        // The definition of Links is a part of the multicluster extension.
        let extension = cluster.meshctl("multicluster install --ignore-cluster");
        let mut documents = extension.split("\n---\n");
        let definition = documents.find(|it| it.contains("\nkind: CustomResourceDefinition\n"));
        manifests += &format!("---\n{}\n", definition.expect("the definition of Links"));
        cluster.apply(&manifests);
        let installed = Self { cluster, manifests };
        cluster.kubectl("wait --for=condition=Established --timeout=60s crd --all");
        installed
    }
}

impl Drop for Definitions<'_> {
    fn drop(&mut self) {
        self.cluster.delete(&self.manifests);
    }
}

#[test]
fn api_server_validates_resources() {
    let Some(cluster) = Cluster::acquire("resources that the definitions accept and refuse") else {
        return;
    };
    let _installed = Definitions::install(&cluster);
    for document in documents("accepted.yaml") {
        let (is_accepted, message) = submit(&cluster, &document);
        assert!(is_accepted, "rejected: {message}\n{document}");
    }
    for document in documents("refused.yaml") {
        let object: Value = serde_norway::from_str(&document).expect("YAML");
        let expected = object["metadata"]["annotations"]["refused"].as_str();
        let expected = expected.expect("the annotation `refused`");
        let (is_accepted, message) = submit(&cluster, &document);
        assert!(!is_accepted, "accepted:\n{document}");
        assert!(
            message.contains(expected),
            "expected {expected:?}: {message}"
        );
    }
}

fn documents(file: &str) -> Vec<String> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../mesh-k8s/testdata/crds");
    let text = fs::read_to_string(corpus.join(file)).expect("the corpus");
    text.split("\n---\n").map(str::to_owned).collect()
}
