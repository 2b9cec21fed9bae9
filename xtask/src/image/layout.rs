//! Writes an image to disk: as a directory in the OCI image layout, as one tar of the same files
//! with Docker's list beside them, and its inventory. containerd reads the layout in the tar,
//! Docker its list, so one file serves `ctr images import`, `kind load image-archive`,
//! `docker load` and `podman load`.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde_json::json;
use tar::{EntryType, Header};

use super::empty_directory;
use super::oci::{self, Image};

/// Docker's registry, the default for names without a registry, which containerd requires to be
/// explicit.
const DEFAULT_REGISTRY: &str = "docker.io";

/// Writes an image below `out` and returns the path of the tar.
pub(crate) fn write(out: &Path, image: &Image) -> anyhow::Result<PathBuf> {
    let name = image.contents.name.to_string();
    let files = files(image)?;
    let directory = out.join(&name);
    empty_directory(&directory)?;
    for (path, content) in &files {
        let file = directory.join(path);
        if let Some(parent) = file.parent() {
            fs::create_dir_all(parent).with_context(|| format!("create {}", parent.display()))?;
        }
        fs::write(&file, content).with_context(|| format!("write {}", file.display()))?;
    }
    let inventory = out.join(format!("{name}.cdx.json"));
    fs::write(&inventory, &image.sbom).with_context(|| format!("write {}", inventory.display()))?;
    let tar = out.join(format!("{name}.tar"));
    archive(&tar, &files).with_context(|| format!("write {}", tar.display()))?;
    Ok(tar)
}

/// The files of the layout by path, and Docker's `manifest.json`.
fn files(image: &Image) -> anyhow::Result<BTreeMap<String, Vec<u8>>> {
    let reference = image.reference();
    let mut descriptor = image.descriptor();
    descriptor["annotations"] = json!({
        "org.opencontainers.image.ref.name": image.version,
        "io.containerd.image.name": format!("{DEFAULT_REGISTRY}/{reference}"),
    });
    let docker = json!([{
        "Config": path(&image.config.digest),
        "RepoTags": [reference],
        "Layers": [path(&image.layer.digest)],
    }]);
    let mut files = BTreeMap::from([
        (
            "oci-layout".to_owned(),
            serde_json::to_vec(&json!({ "imageLayoutVersion": "1.0.0" }))?,
        ),
        ("index.json".to_owned(), oci::index(&[descriptor])?.content),
        ("manifest.json".to_owned(), serde_json::to_vec(&docker)?),
    ]);
    for blob in image.blobs() {
        files.insert(path(&blob.digest), blob.content.clone());
    }
    Ok(files)
}

/// Returns the path of a blob in a layout.
pub(crate) fn path(digest: &str) -> String {
    format!("blobs/{}", digest.replace(':', "/"))
}

fn archive(tar: &Path, files: &BTreeMap<String, Vec<u8>>) -> std::io::Result<()> {
    let mut archive = tar::Builder::new(BufWriter::new(fs::File::create(tar)?));
    for (path, content) in files {
        let mut header = Header::new_ustar();
        header.set_entry_type(EntryType::Regular);
        header.set_mode(0o644);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_size(content.len() as u64);
        archive.append_data(&mut header, path, content.as_slice())?;
    }
    archive.into_inner()?.flush()
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::image::{
        ImageName, contents::Contents, layer::Compression, origin::Origin, sbom, tree::Tree,
    };

    fn image() -> Image {
        let mut tree = Tree::default();
        tree.add_program("mesh-agent", b"program".to_vec());
        tree.add_file(sbom::PATH, b"{}".to_vec());
        let origin = Origin {
            version: "0.1.0".to_owned(),
            time: 7,
            revision: None,
        };
        let contents = Contents::of(ImageName::Agent);
        oci::image(contents, &tree, &origin, Compression::None).expect("an image")
    }

    #[test]
    fn two_writes_give_the_same_tar() {
        let (one, other) = (tempfile::tempdir(), tempfile::tempdir());
        let tars = [one.expect("a directory"), other.expect("a directory")].map(|directory| {
            let tar = write(directory.path(), &image()).expect("an image is written");
            assert!(directory.path().join("agent.cdx.json").is_file());
            assert!(directory.path().join("agent/oci-layout").is_file());
            fs::read(tar).expect("a tar")
        });
        assert_eq!(tars[0], tars[1]);
    }

    #[test]
    fn docker_and_oci_indexes_reference_blobs() {
        let files = files(&image()).expect("files");
        let read = |path: &str| -> Value { serde_json::from_slice(&files[path]).expect("JSON") };
        let manifest = read("index.json")["manifests"][0].clone();
        assert_eq!(
            manifest["annotations"]["io.containerd.image.name"],
            "docker.io/mesh/agent:0.1.0"
        );
        let manifest = path(manifest["digest"].as_str().expect("a digest"));
        let layer = read(&manifest)["layers"][0]["digest"].clone();
        let docker = read("manifest.json")[0].clone();
        assert_eq!(docker["RepoTags"], json!(["mesh/agent:0.1.0"]));
        assert_eq!(
            docker["Layers"][0].as_str().map(str::to_owned),
            layer.as_str().map(path)
        );
        assert!(files.contains_key(docker["Config"].as_str().expect("a path")));
    }
}
