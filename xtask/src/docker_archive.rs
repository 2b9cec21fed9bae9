//! Images in Docker's archive form, which every loader of a cluster reads. For the applications of
//! tests: unlike the images of the mesh (`image`), they have one layer and no SBOM.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tar::{Builder, EntryType, Header};

/// The layer of an image that is being written. Everything in it belongs to root and has the same
/// time. Paths are relative to the root directory.
pub struct Layer {
    path: PathBuf,
    tar: Builder<BufWriter<File>>,
}

impl Layer {
    /// Starts the layer of an image, in a file next to the image's.
    pub fn create(image: &Path) -> anyhow::Result<Self> {
        let path = image.with_extension("layer");
        let file = File::create(&path).with_context(|| format!("create {}", path.display()))?;
        let tar = Builder::new(BufWriter::new(file));
        Ok(Self { path, tar })
    }

    pub fn directory(&mut self, path: &str, mode: u32) -> io::Result<()> {
        let mut header = header(EntryType::Directory, mode, 0);
        self.tar
            .append_data(&mut header, format!("{path}/"), io::empty())
    }

    pub fn file(&mut self, path: &str, mode: u32, content: &[u8]) -> io::Result<()> {
        append(&mut self.tar, path, mode, content)
    }

    pub fn link(&mut self, path: &str, target: &str) -> io::Result<()> {
        let mut header = header(EntryType::Symlink, 0o777, 0);
        self.tar.append_link(&mut header, path, target)
    }

    /// Writes the image with this layer, this reference (`NAME:TAG`), and `config`, the object of
    /// that name in the OCI image configuration.
    pub fn write_image(self, image: &Path, reference: &str, config: &Value) -> anyhow::Result<()> {
        self.tar.into_inner()?.flush()?;
        write(image, &self.path, reference, config)
            .with_context(|| format!("write {}", image.display()))?;
        fs::remove_file(&self.path).context("remove the layer")
    }
}

fn write(image: &Path, layer: &Path, reference: &str, config: &Value) -> anyhow::Result<()> {
    let mut digest = Sha256::new();
    io::copy(&mut File::open(layer)?, &mut digest)?;
    let config = json!({
        "architecture": if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" },
        "os": "linux",
        "config": config,
        "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{:x}", digest.finalize())] },
    });
    let config = serde_json::to_vec(&config)?;
    let name = format!("{:x}.json", Sha256::digest(&config));
    let manifest = json!([{ "Config": name, "RepoTags": [reference], "Layers": ["layer.tar"] }]);
    let manifest = serde_json::to_vec(&manifest)?;
    let mut archive = Builder::new(BufWriter::new(File::create(image)?));
    append(&mut archive, &name, 0o644, &config)?;
    append(&mut archive, "manifest.json", 0o644, &manifest)?;
    archive.append_path_with_name(layer, "layer.tar")?;
    archive.into_inner()?.flush()?;
    Ok(())
}

fn append(tar: &mut Builder<impl Write>, path: &str, mode: u32, content: &[u8]) -> io::Result<()> {
    let mut header = header(EntryType::Regular, mode, content.len());
    tar.append_data(&mut header, path, content)
}

fn header(kind: EntryType, mode: u32, size: usize) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_size(size as u64);
    header
}
