//! The one layer of an image: its files as a tar, and the digests that name it. The same files at
//! the same commit give the same bytes.

use std::io::Write;

use anyhow::Context;
use flate2::{Compression as Level, GzBuilder};
use tar::{EntryType, Header};

use super::blob::{Blob, digest};
use super::tree::{Entry, Mode, Tree};

/// Whether the layer is packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Compression {
    /// For a cluster on this machine: packing takes longer than loading.
    None,
    Gzip,
}

/// A layer: its stored bytes, and the digest of the unpacked ones.
pub(crate) struct Layer {
    pub(crate) blob: Blob,
    pub(crate) diff_id: String,
}

pub(crate) fn layer(tree: &Tree, time: u64, compression: Compression) -> anyhow::Result<Layer> {
    let tar = archive(tree, time).context("write the layer")?;
    let diff_id = digest(&tar);
    let blob = match compression {
        Compression::None => Blob::new("application/vnd.oci.image.layer.v1.tar", tar),
        Compression::Gzip => Blob::new(
            "application/vnd.oci.image.layer.v1.tar+gzip",
            gzip(&tar).context("pack the layer")?,
        ),
    };
    Ok(Layer { blob, diff_id })
}

fn archive(tree: &Tree, time: u64) -> std::io::Result<Vec<u8>> {
    let mut tar = tar::Builder::new(Vec::new());
    for (path, entry) in tree.entries() {
        let mut header = Header::new_ustar();
        header.set_mtime(time);
        header.set_uid(0);
        header.set_gid(0);
        match entry {
            Entry::Directory => {
                header.set_entry_type(EntryType::Directory);
                header.set_mode(0o755);
                header.set_size(0);
                tar.append_data(&mut header, format!("{path}/"), std::io::empty())?;
            }
            Entry::File { content, mode } => {
                if let Mode::Privileged(capabilities) = mode {
                    let attribute = file_capabilities(*capabilities);
                    tar.append_pax_extensions([(CAPABILITY_RECORD, &attribute[..])])?;
                }
                header.set_entry_type(EntryType::Regular);
                header.set_mode(match mode {
                    Mode::Read => 0o644,
                    Mode::Execute | Mode::Privileged(_) => 0o755,
                });
                header.set_size(content.len() as u64);
                tar.append_data(&mut header, path, content.as_slice())?;
            }
            Entry::Link(target) => {
                header.set_entry_type(EntryType::Symlink);
                header.set_mode(0o777);
                header.set_size(0);
                tar.append_link(&mut header, path, target)?;
            }
        }
    }
    tar.into_inner()
}

/// How tars carry the extended attribute `security.capability`; container runtimes read this
/// spelling.
const CAPABILITY_RECORD: &str = "SCHILY.xattr.security.capability";

/// The attribute's value: `struct vfs_cap_data` of linux/capability.h, revision 2, little-endian.
/// Five words: revision and flags (none: not effective by itself), then permitted and inheritable
/// of the lower 32 capabilities, then both of the upper.
fn file_capabilities(permitted: u32) -> [u8; 20] {
    const REVISION_2: u32 = 0x0200_0000;
    let mut value = [0; 20];
    value[..4].copy_from_slice(&REVISION_2.to_le_bytes());
    value[4..8].copy_from_slice(&permitted.to_le_bytes());
    value
}

/// Without a name and a time in its header, which would differ between two runs.
fn gzip(content: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut packer = GzBuilder::new().write(Vec::new(), Level::default());
    packer.write_all(content)?;
    packer.finish()
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    fn tree() -> Tree {
        let mut tree = Tree::default();
        tree.add_program("usr/lib/linkerd/mesh-init", b"program".to_vec());
        tree.add_link("usr/lib/linkerd/linkerd-await", "mesh-init");
        tree.add_file("usr/share/doc/mesh/LICENSE", b"text".to_vec());
        tree
    }

    #[test]
    fn layer_bytes_do_not_depend_on_file_order() {
        let mut other = Tree::default();
        other.add_file("usr/share/doc/mesh/LICENSE", b"text".to_vec());
        other.add_link("usr/lib/linkerd/linkerd-await", "mesh-init");
        other.add_program("usr/lib/linkerd/mesh-init", b"program".to_vec());
        for compression in [Compression::None, Compression::Gzip] {
            let first = layer(&tree(), 7, compression).expect("a layer");
            let second = layer(&other, 7, compression).expect("a layer");
            assert_eq!(first.blob.content, second.blob.content);
            let later = layer(&tree(), 8, compression).expect("a layer");
            assert_ne!(first.blob.digest, later.blob.digest);
        }
    }

    /// The bytes are those that `setcap cap_net_admin,cap_net_raw+p` writes.
    #[test]
    fn file_capabilities_are_stored_as_xattr() {
        let mut tree = Tree::default();
        tree.add_with_mode("init", b"program".to_vec(), Mode::Privileged(0x3000));
        tree.add_program("proxy", b"program".to_vec());
        let tar = archive(&tree, 7).expect("a tar");
        let mut archive = tar::Archive::new(tar.as_slice());
        let mut seen = Vec::new();
        for entry in archive.entries().expect("a tar") {
            let mut entry = entry.expect("an entry");
            let path = entry.path().expect("path").display().to_string();
            let attribute = entry
                .pax_extensions()
                .expect("records")
                .and_then(|mut records| records.next())
                .map(|record| record.expect("a record").value_bytes().to_vec());
            seen.push((path, attribute));
        }
        let expected = b"\x00\x00\x00\x02\x00\x30\x00\x00\0\0\0\0\0\0\0\0\0\0\0\0";
        let init = ("init".to_owned(), Some(expected.to_vec()));
        assert_eq!(seen, [init, ("proxy".to_owned(), None)]);
    }

    #[test]
    fn layer_entries_have_numeric_owners_and_commit_time() {
        let layer = layer(&tree(), 7, Compression::Gzip).expect("a layer");
        let mut tar = Vec::new();
        flate2::read::GzDecoder::new(layer.blob.content.as_slice())
            .read_to_end(&mut tar)
            .expect("gzip");
        assert_eq!(digest(&tar), layer.diff_id);
        let mut archive = tar::Archive::new(tar.as_slice());
        let mut seen = Vec::new();
        for entry in archive.entries().expect("a tar") {
            let entry = entry.expect("an entry");
            let header = entry.header();
            assert_eq!(header.uid().expect("uid"), 0);
            assert_eq!(header.username().ok().flatten(), Some(""));
            assert_eq!(header.mtime().expect("time"), 7);
            let path = entry.path().expect("path").display().to_string();
            seen.push(format!("{:o} {path}", header.mode().expect("mode")));
        }
        assert_eq!(
            seen,
            [
                "755 usr/",
                "755 usr/lib/",
                "755 usr/lib/linkerd/",
                "777 usr/lib/linkerd/linkerd-await",
                "755 usr/lib/linkerd/mesh-init",
                "755 usr/share/",
                "755 usr/share/doc/",
                "755 usr/share/doc/mesh/",
                "644 usr/share/doc/mesh/LICENSE",
            ]
        );
    }
}
