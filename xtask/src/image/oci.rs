//! The documents of an OCI image: configuration, manifest and index, and the blobs they name by
//! digest.

use anyhow::Context;
use serde_json::{Map, Value, json};

use super::blob::Blob;
use super::contents::Contents;
use super::layer::{self, Compression};
use super::origin::Origin;
use super::sbom;
use super::tree::Tree;

pub(crate) const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub(crate) const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";

/// An image, ready to be written or pushed.
pub(crate) struct Image {
    pub(crate) contents: &'static Contents,
    pub(crate) version: String,
    pub(crate) config: Blob,
    pub(crate) layer: Blob,
    pub(crate) manifest: Blob,
    /// The inventory, which is in the image too.
    pub(crate) sbom: Vec<u8>,
}

/// Assembles an image.
pub(crate) fn image(
    contents: &'static Contents,
    tree: &Tree,
    origin: &Origin,
    compression: Compression,
) -> anyhow::Result<Image> {
    let layer = layer::layer(tree, origin.time, compression)?;
    let labels = labels(contents, origin);
    let config = json!({
        "architecture": architecture(),
        "os": "linux",
        "created": origin.created(),
        "config": {
            "User": contents.user,
            "Entrypoint": contents.entrypoint,
            "WorkingDir": "/",
            "Labels": labels,
        },
        "rootfs": { "type": "layers", "diff_ids": [layer.diff_id] },
        "history": [{ "created": origin.created(), "created_by": "cargo xtask image" }],
    });
    let config = Blob::json(CONFIG, &config)?;
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": config.descriptor(),
        "layers": [layer.blob.descriptor()],
        "annotations": labels,
    });
    Ok(Image {
        contents,
        version: origin.version.clone(),
        config,
        layer: layer.blob,
        manifest: Blob::json(MANIFEST, &manifest)?,
        sbom: tree
            .content(sbom::PATH)
            .context("the image has no inventory")?
            .to_vec(),
    })
}

/// An index of manifests: one for each architecture, or the only one of a layout.
pub(crate) fn index(manifests: &[Value]) -> anyhow::Result<Blob> {
    Blob::json(
        INDEX,
        &json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": manifests }),
    )
}

/// Returns the architecture in OCI notation.
pub(crate) fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// Keys of the OCI image specification; tools show them and scanners read them.
fn labels(contents: &Contents, origin: &Origin) -> Map<String, Value> {
    let mut labels = Map::new();
    let mut label = |name: &str, value: &str| {
        labels.insert(format!("org.opencontainers.image.{name}"), value.into());
    };
    label("title", contents.title);
    label("description", contents.description);
    label("version", &origin.version);
    label("created", &origin.created());
    label("licenses", contents.licence);
    if let Some(revision) = &origin.revision {
        label("revision", revision);
    }
    labels
}

impl Image {
    /// `mesh/proxy:0.1.0`, as pods name it.
    pub(crate) fn reference(&self) -> String {
        format!("{}:{}", self.contents.name.repository(), self.version)
    }

    /// The manifest with the platform it is for, as an index lists it.
    pub(crate) fn descriptor(&self) -> Value {
        let mut descriptor = self.manifest.descriptor();
        descriptor["platform"] = json!({ "architecture": architecture(), "os": "linux" });
        descriptor
    }

    pub(crate) fn blobs(&self) -> [&Blob; 3] {
        [&self.config, &self.layer, &self.manifest]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::ImageName;

    fn made() -> Image {
        let mut tree = Tree::default();
        tree.add_program("mesh-proxy", b"program".to_vec());
        tree.add_file(sbom::PATH, b"{}".to_vec());
        let origin = Origin {
            version: "0.1.0".to_owned(),
            time: 7,
            revision: Some("abc".to_owned()),
        };
        image(
            Contents::of(ImageName::Proxy),
            &tree,
            &origin,
            Compression::Gzip,
        )
        .expect("an image")
    }

    #[test]
    fn the_same_input_gives_the_same_image() {
        assert_eq!(made().manifest, made().manifest);
        assert_eq!(made().reference(), "mesh/proxy:0.1.0");
    }

    #[test]
    fn manifest_references_config_and_layer_by_digest_and_size() {
        let image = made();
        let manifest: Value = serde_json::from_slice(&image.manifest.content).expect("JSON");
        assert_eq!(manifest["config"], image.config.descriptor());
        assert_eq!(manifest["layers"], json!([image.layer.descriptor()]));
        assert_eq!(
            manifest["annotations"]["org.opencontainers.image.revision"],
            "abc"
        );
        let config: Value = serde_json::from_slice(&image.config.content).expect("JSON");
        assert_eq!(config["config"]["User"], "2102:2102");
        assert_eq!(config["config"]["Entrypoint"], json!(["/mesh-proxy"]));
        assert_eq!(config["created"], "1970-01-01T00:00:07Z");
    }
}
