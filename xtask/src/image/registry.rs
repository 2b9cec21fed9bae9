//! Pushes images to a registry by the OCI distribution protocol: blobs that are not there yet, then
//! the manifest under `VERSION-ARCHITECTURE`, then an index under `VERSION` that lists the
//! manifests of this commit for every architecture the registry has. So each architecture is built
//! on a machine of its own, in any order, one after the other.

mod http;

use std::path::Path;

use anyhow::{Context, bail};
use serde_json::Value;

use super::{
    layout,
    oci::{self, Blob, Image},
    origin::Origin,
};
use http::{Answer, Client, Method};

/// Those that images are built for.
const ARCHITECTURES: [&str; 2] = ["amd64", "arm64"];

const REVISION: &str = "org.opencontainers.image.revision";

/// Pushes images that `layout::write` left below `out`.
pub(crate) fn push(
    registry: &str,
    out: &Path,
    images: &[Image],
    origin: &Origin,
) -> anyhow::Result<()> {
    for image in images {
        let name = image.contents.name;
        let repository = Repository::of(registry, &name.repository());
        let pushed = repository
            .push(&out.join(name.to_string()), image, origin)
            .with_context(|| format!("push the {name} image to {registry}"))?;
        println!("{pushed}");
    }
    Ok(())
}

struct Repository {
    client: Client,
    /// With registry, as pods name it.
    name: String,
    /// `https://registry/v2/path`.
    url: String,
}

impl Repository {
    fn of(registry: &str, name: &str) -> Self {
        let name = format!("{}/{name}", registry.trim_end_matches('/'));
        let (host, path) = name.split_once('/').unwrap_or((&name, ""));
        let url = format!("{}://{host}/v2/{path}", scheme(host));
        Self {
            client: Client::new(host),
            url,
            name,
        }
    }

    fn push(&self, folder: &Path, image: &Image, origin: &Origin) -> anyhow::Result<String> {
        for blob in [&image.config, &image.layer] {
            self.put_blob(&folder.join(layout::path(&blob.digest)), blob)?;
        }
        let tag = |architecture: &str| format!("{}-{architecture}", image.version);
        self.put_manifest(&tag(oci::architecture()), &image.manifest)?;
        let mut manifests = vec![image.descriptor()];
        for other in ARCHITECTURES {
            if other != oci::architecture() {
                manifests.extend(self.manifest_of(&tag(other), other, origin)?);
            }
        }
        manifests.sort_by_key(|manifest| manifest["platform"]["architecture"].to_string());
        let index = oci::index(&manifests)?;
        self.put_manifest(&image.version, &index)?;
        Ok(format!("{}:{}@{}", self.name, image.version, index.digest))
    }

    /// A layer that the registry has from an earlier version is not sent again.
    fn put_blob(&self, file: &Path, blob: &Blob) -> anyhow::Result<()> {
        let there = format!("{}/blobs/{}", self.url, blob.digest);
        if self.client.send(Method::Head, &there, None)?.is_success() {
            return Ok(());
        }
        let start = format!("{}/blobs/uploads/", self.url);
        let started = self.client.send(Method::Post, &start, None)?;
        let location = started
            .expect_success("begin an upload")?
            .header("location");
        let location = location.context("the registry does not say where to upload")?;
        let location = upload_address(&start, &location, &blob.digest)?;
        let body = (file, "application/octet-stream");
        let stored = self.client.send(Method::Put, &location, Some(body))?;
        stored.expect_success("upload a layer")?;
        Ok(())
    }

    fn put_manifest(&self, tag: &str, manifest: &Blob) -> anyhow::Result<()> {
        let file = http::Scratch::with(&manifest.content)?;
        let address = format!("{}/manifests/{tag}", self.url);
        let body = (file.path(), manifest.media_type);
        let stored = self.client.send(Method::Put, &address, Some(body))?;
        stored.expect_success("store the manifest")?;
        Ok(())
    }

    /// The descriptor of another architecture's manifest, when it is of the same commit.
    fn manifest_of(
        &self,
        tag: &str,
        architecture: &str,
        origin: &Origin,
    ) -> anyhow::Result<Option<Value>> {
        let address = format!("{}/manifests/{tag}", self.url);
        let answer = self.client.send(Method::Get, &address, None)?;
        if answer.status == 404 {
            return Ok(None);
        }
        let content = answer.expect_success("read a manifest")?.body.clone();
        let manifest: Value =
            serde_json::from_slice(&content).with_context(|| format!("read the manifest {tag}"))?;
        let revision = manifest["annotations"][REVISION].as_str();
        if revision.is_none() || revision != origin.revision.as_deref() {
            eprintln!("    {}:{tag} is of another commit and left out", self.name);
            return Ok(None);
        }
        let mut descriptor = Blob::new(oci::MANIFEST, content).descriptor();
        descriptor["platform"] = serde_json::json!({ "architecture": architecture, "os": "linux" });
        Ok(Some(descriptor))
    }
}

impl Answer {
    /// The answer, or the registry's words when it refused.
    fn expect_success(&self, what: &str) -> anyhow::Result<&Self> {
        if self.is_success() {
            return Ok(self);
        }
        let said = String::from_utf8_lossy(&self.body);
        let hint = match self.status {
            401 | 403 => {
                "; set MESH_REGISTRY_USER and MESH_REGISTRY_PASSWORD, or log in with docker or podman, as somebody who may push there"
            }
            _ => "",
        };
        bail!(
            "{what}: the registry answered {}{hint}: {}",
            self.status,
            said.trim()
        )
    }
}

/// A registry on this machine speaks HTTP, as Docker has it too; any other must speak TLS.
fn scheme(host: &str) -> &'static str {
    let name = host.split(':').next().unwrap_or(host);
    if name == "localhost" || name.starts_with("127.") {
        "http"
    } else {
        "https"
    }
}

/// Where to send the bytes: the registry's answer may be a path, and may have a query already.
fn upload_address(asked: &str, location: &str, digest: &str) -> anyhow::Result<String> {
    let absolute = if location.starts_with('/') {
        let authority_end = asked
            .match_indices('/')
            .nth(2)
            .context("an address has a scheme and a host")?
            .0;
        format!("{}{location}", &asked[..authority_end])
    } else {
        location.to_owned()
    };
    let join = if absolute.contains('?') { '&' } else { '?' };
    Ok(format!("{absolute}{join}digest={digest}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_registries_of_this_machine_speak_in_the_clear() {
        assert_eq!(scheme("localhost:5000"), "http");
        assert_eq!(scheme("127.0.0.1:5000"), "http");
        assert_eq!(scheme("ghcr.io"), "https");
        assert_eq!(scheme("localhost.example.com"), "https");
    }

    #[test]
    fn the_upload_goes_where_the_registry_says() {
        let asked = "https://ghcr.io/v2/org/mesh/proxy/blobs/uploads/";
        for (location, expected) in [
            (
                "/v2/x/blobs/uploads/1",
                "https://ghcr.io/v2/x/blobs/uploads/1?digest=sha256:0",
            ),
            (
                "https://other/1?_state=a",
                "https://other/1?_state=a&digest=sha256:0",
            ),
        ] {
            assert_eq!(
                upload_address(asked, location, "sha256:0").expect("an address"),
                expected
            );
        }
    }

    #[test]
    fn a_repository_is_below_the_registry() {
        let repository = Repository::of("ghcr.io/org/", "mesh/proxy");
        assert_eq!(repository.name, "ghcr.io/org/mesh/proxy");
        assert_eq!(repository.url, "https://ghcr.io/v2/org/mesh/proxy");
    }
}
