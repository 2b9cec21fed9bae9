//! Pushes images to a registry with skopeo: the image under `VERSION-ARCHITECTURE`, then an index
//! under `VERSION` that lists the images of this commit for every architecture the registry has. So
//! each architecture can be built on a machine of its own, in any order, one after the other.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{env, fs};

use anyhow::{Context, bail};
use serde_json::{Value, json};

use super::blob::Blob;
use super::layout;
use super::oci::{self, Image};
use super::origin::Origin;
use crate::command::{self, captured_stdout};
use crate::setup;
use crate::workspace::find_program;

/// The architectures that images are built for.
const ARCHITECTURES: [&str; 2] = ["amd64", "arm64"];

const REVISION: &str = "org.opencontainers.image.revision";
/// The name of an image within a layout.
const NAME: &str = "org.opencontainers.image.ref.name";

/// Pushes the images that `layout::write` wrote below `out`.
pub(crate) fn push(
    registry: &str,
    out: &Path,
    images: &[Image],
    origin: &Origin,
) -> anyhow::Result<()> {
    if find_program("skopeo").is_none() {
        setup::install(&["skopeo"]).context("install skopeo, which pushes images")?;
    }
    for image in images {
        let name = image.contents.name;
        let repository = Repository::new(registry, &name.repository())?;
        let pushed = repository
            .push(&out.join(name.to_string()), image, origin)
            .with_context(|| format!("push the {name} image to {registry}"))?;
        println!("{pushed}");
    }
    Ok(())
}

struct Repository {
    /// With the registry, as pods name it.
    name: String,
    is_on_this_machine: bool,
    login: Option<Login>,
}

/// skopeo's file of credentials. Removed with this value.
struct Login(PathBuf);

impl Repository {
    fn new(registry: &str, name: &str) -> anyhow::Result<Self> {
        let name = format!("{}/{name}", registry.trim_end_matches('/'));
        let host = name.split(['/', ':']).next().unwrap_or_default();
        Ok(Self {
            is_on_this_machine: host == "localhost" || host.starts_with("127."),
            login: Login::from_env(&name)?,
            name,
        })
    }

    /// Pushes the image and the index; returns the index with its digest.
    fn push(&self, layout: &Path, image: &Image, origin: &Origin) -> anyhow::Result<String> {
        let tag = |architecture: &str| format!("{}-{architecture}", image.version);
        let own = format!("oci:{}:{}", layout.display(), image.version);
        self.copy(&own, &self.remote(&tag(oci::architecture())), &[])?;

        let all = layout.with_extension("index");
        super::empty_directory(&all)?;
        let part = |architecture: &str| format!("oci:{}:{architecture}", all.display());
        self.copy(&own, &part(oci::architecture()), &[])?;
        for other in ARCHITECTURES {
            if other != oci::architecture() && self.has_same_commit(&tag(other), origin)? {
                self.copy(&self.remote(&tag(other)), &part(other), &[])?;
            }
        }
        let index = index_of(&all, &image.version)?;
        let local = format!("oci:{}:{}", all.display(), image.version);
        self.copy(&local, &self.remote(&image.version), &["--all"])?;
        fs::remove_dir_all(&all).with_context(|| format!("remove {}", all.display()))?;
        Ok(format!("{}:{}@{}", self.name, image.version, index.digest))
    }

    fn remote(&self, tag: &str) -> String {
        format!("docker://{}:{tag}", self.name)
    }

    /// Whether the registry has this tag with an image of the same commit.
    fn has_same_commit(&self, tag: &str, origin: &Origin) -> anyhow::Result<bool> {
        let mut inspect = self.skopeo("inspect", "");
        // skopeo reports a missing tag and a registry error in the same way. The registry has just
        // accepted this image, so that the tag is missing.
        let Some(manifest) = captured_stdout(inspect.args(["--raw", &self.remote(tag)])) else {
            return Ok(false);
        };
        let manifest: Value = serde_json::from_str(&manifest)
            .with_context(|| format!("read the manifest of {}:{tag}", self.name))?;
        let revision = manifest["annotations"][REVISION].as_str();
        let same = revision.is_some() && revision == origin.revision.as_deref();
        if !same {
            eprintln!("    {}:{tag} is of another commit and left out", self.name);
        }
        Ok(same)
    }

    fn copy(&self, from: &str, to: &str, options: &[&str]) -> anyhow::Result<()> {
        let side = if to.starts_with("docker:") {
            "dest-"
        } else {
            "src-"
        };
        let mut copy = self.skopeo("copy", side);
        copy.args(["--preserve-digests"])
            .args(options)
            .args([from, to]);
        command::run("skopeo copy", &mut copy).context(
            "where the registry refuses: log in with `skopeo login`, `docker login` or `podman login`, as a user who may push there",
        )
    }

    /// skopeo with this command, and the options of the side that is the registry.
    fn skopeo(&self, command: &str, side: &str) -> Command {
        let mut skopeo = Command::new("skopeo");
        skopeo.arg(command);
        // As in Docker, a registry on this machine may use HTTP.
        if self.is_on_this_machine {
            skopeo.arg(format!("--{side}tls-verify=false"));
        }
        if let Some(login) = &self.login {
            skopeo.env("REGISTRY_AUTH_FILE", &login.0);
        }
        skopeo
    }
}

impl Login {
    /// Logs in as the user that the environment names. Without one, skopeo uses the credentials
    /// that `skopeo login`, `podman login` or `docker login` has stored.
    fn from_env(name: &str) -> anyhow::Result<Option<Self>> {
        let [user, password] =
            ["USER", "PASSWORD"].map(|name| env::var(format!("MESH_REGISTRY_{name}")));
        let (Ok(user), Ok(password)) = (user, password) else {
            return Ok(None);
        };
        let host = name.split('/').next().unwrap_or_default();
        let file = env::temp_dir().join(format!("mesh-registry-{}.json", std::process::id()));
        let login = Self(file);
        let mut skopeo = Command::new("skopeo")
            .args([
                "login",
                "--username",
                &user,
                "--password-stdin",
                "--authfile",
            ])
            .arg(&login.0)
            .arg(host)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .context("run skopeo login")?;
        if let Some(mut stdin) = skopeo.stdin.take() {
            stdin
                .write_all(password.as_bytes())
                .context("write to skopeo login")?;
        }
        if !skopeo.wait().context("wait for skopeo login")?.success() {
            bail!("skopeo login to {host} as MESH_REGISTRY_USER failed; the reason is above");
        }
        Ok(Some(login))
    }
}

impl Drop for Login {
    fn drop(&mut self) {
        let _removed = fs::remove_file(&self.0);
    }
}

/// Makes an index of all images in a layout, each named after its architecture, and gives the
/// layout this index alone.
fn index_of(layout: &Path, version: &str) -> anyhow::Result<Blob> {
    let file = layout.join("index.json");
    let content = fs::read(&file).with_context(|| format!("read {}", file.display()))?;
    let listed: Value = serde_json::from_slice(&content).context("read the layout's index")?;
    let manifests = listed["manifests"]
        .as_array()
        .context("the layout lists no images")?;
    let mut manifests: Vec<Value> = manifests
        .iter()
        .map(|manifest| {
            json!({
                "mediaType": manifest["mediaType"],
                "digest": manifest["digest"],
                "size": manifest["size"],
                "platform": { "architecture": manifest["annotations"][NAME], "os": "linux" },
            })
        })
        .collect();
    manifests.sort_by_key(|manifest| manifest["platform"]["architecture"].to_string());
    let index = oci::index(&manifests)?;
    let mut descriptor = index.descriptor();
    descriptor["annotations"] = json!({ NAME: version });
    let named = oci::index(&[descriptor])?;
    fs::write(layout.join(layout::path(&index.digest)), &index.content)
        .and_then(|()| fs::write(&file, &named.content))
        .with_context(|| format!("write the index of {}", layout.display()))?;
    Ok(index)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repository_is_below_the_registry() {
        for (registry, name, local) in [
            ("ghcr.io/org/", "ghcr.io/org/mesh/proxy", false),
            ("localhost:5000", "localhost:5000/mesh/proxy", true),
            (
                "localhost.example.com",
                "localhost.example.com/mesh/proxy",
                false,
            ),
        ] {
            let repository = Repository::new(registry, "mesh/proxy").expect("a repository");
            assert_eq!(repository.name, name);
            assert_eq!(repository.is_on_this_machine, local, "{registry}");
        }
    }

    #[test]
    fn index_lists_one_image_per_architecture() {
        let directory = tempfile::tempdir().expect("a directory");
        let image = |architecture: &str| json!({ "mediaType": oci::MANIFEST, "digest": format!("sha256:{architecture}"), "size": 1, "annotations": { NAME: architecture } });
        let listed = json!({ "manifests": [image("arm64"), image("amd64")] });
        fs::write(directory.path().join("index.json"), listed.to_string()).expect("index.json");
        fs::create_dir_all(directory.path().join("blobs/sha256")).expect("a directory");
        let index = index_of(directory.path(), "1.0.0").expect("an index");
        let content: Value = serde_json::from_slice(&index.content).expect("JSON");
        assert_eq!(content["manifests"][0]["platform"]["architecture"], "amd64");
        assert_eq!(content["manifests"][1]["digest"], "sha256:arm64");
        let named = fs::read_to_string(directory.path().join("index.json")).expect("index.json");
        assert!(
            named.contains(&index.digest) && named.contains("1.0.0"),
            "{named}"
        );
    }
}
