//! Volumes: directories below the directory of the pod, which are filled before its containers
//! start.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

use k8s_openapi::api::core::v1::{DownwardAPIVolumeFile, KeyToPath, Pod, Volume};
use mesh_k8s::inject::TOKEN_AUDIENCE;
use nix::mount::{MsFlags, mount};

use super::data_sources::DataSources;
use super::env;
use crate::file::{self, FileError};
use crate::token;

/// A volume on the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreparedVolume {
    pub path: PathBuf,
    /// Tokens to write to the volume and to renew.
    pub tokens: Vec<TokenFile>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenFile {
    pub path: PathBuf,
    pub audience: String,
    pub lifetime: Duration,
}

#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    #[error("volume {volume}")]
    Write { volume: String, source: FileError },
    #[error("volume {volume}: mount a tmpfs")]
    Mount { volume: String, source: nix::Error },
    #[error("volume {volume}: {path:?} is outside the volume")]
    PathOutside { volume: String, path: String },
}

/// All users may write to an emptyDir, as in Kubernetes.
const EMPTY_DIR_MODE: u32 = 0o777;

/// Creates a volume below `directory`. The status of the pod must have its addresses.
pub fn prepare(
    sources: &DataSources<'_>,
    pod: &Pod,
    volume: &Volume,
    directory: &Path,
) -> Result<PreparedVolume, VolumeError> {
    let name = &volume.name;
    let path = directory.join(name);
    if let Some(source) = &volume.host_path {
        let path = PathBuf::from(&source.path);
        check_host_path(&path, source.type_.as_deref()).map_err(write_error(name, &path))?;
        return Ok(PreparedVolume {
            path,
            tokens: Vec::new(),
        });
    }
    fs::create_dir_all(&path).map_err(write_error(name, &path))?;
    if let Some(source) = &volume.empty_dir {
        if source.medium.as_deref() == Some("Memory") {
            mount_memory(&path).map_err(|source| VolumeError::Mount {
                volume: name.clone(),
                source,
            })?;
        }
        let open = fs::Permissions::from_mode(EMPTY_DIR_MODE);
        fs::set_permissions(&path, open).map_err(write_error(name, &path))?;
    }
    let mut writer = VolumeWriter {
        volume: name,
        path: &path,
        tokens: Vec::new(),
    };
    writer.fill(sources, pod, volume)?;
    let tokens = writer.tokens;
    Ok(PreparedVolume { path, tokens })
}

/// Writes the files of a volume.
struct VolumeWriter<'a> {
    volume: &'a str,
    path: &'a Path,
    tokens: Vec<TokenFile>,
}

impl VolumeWriter<'_> {
    fn fill(
        &mut self,
        sources: &DataSources<'_>,
        pod: &Pod,
        volume: &Volume,
    ) -> Result<(), VolumeError> {
        if let Some(source) = &volume.config_map {
            let data = sources.config_map(&source.name).unwrap_or_default();
            self.write_keys(&data, source.items.as_deref(), source.default_mode)?;
        }
        if let Some(source) = &volume.secret {
            let name = source.secret_name.as_deref().unwrap_or_default();
            let data = sources.secret(name).unwrap_or_default();
            self.write_keys(&data, source.items.as_deref(), source.default_mode)?;
        }
        if let Some(source) = &volume.downward_api {
            self.write_fields(pod, source.items.as_deref().unwrap_or_default())?;
        }
        let projected = volume.projected.as_ref();
        let mode = projected.and_then(|source| source.default_mode);
        for source in projected
            .iter()
            .flat_map(|source| source.sources.iter().flatten())
        {
            if let Some(map) = &source.config_map {
                let data = sources.config_map(&map.name).unwrap_or_default();
                self.write_keys(&data, map.items.as_deref(), mode)?;
            }
            if let Some(secret) = &source.secret {
                let data = sources.secret(&secret.name).unwrap_or_default();
                self.write_keys(&data, secret.items.as_deref(), mode)?;
            }
            if let Some(fields) = &source.downward_api {
                self.write_fields(pod, fields.items.as_deref().unwrap_or_default())?;
            }
            if let Some(token) = &source.service_account_token {
                let audience = token.audience.clone();
                self.tokens.push(TokenFile {
                    path: self.resolve(&token.path)?,
                    audience: audience.unwrap_or_else(|| TOKEN_AUDIENCE.to_owned()),
                    lifetime: token::lifetime(token.expiration_seconds),
                });
            }
        }
        Ok(())
    }

    /// Writes all keys, or the listed items under their paths.
    fn write_keys(
        &self,
        data: &BTreeMap<String, Vec<u8>>,
        items: Option<&[KeyToPath]>,
        default_mode: Option<i32>,
    ) -> Result<(), VolumeError> {
        match items {
            None => {
                for (key, value) in data {
                    self.write(key, value, default_mode)?;
                }
            }
            Some(items) => {
                for item in items {
                    if let Some(value) = data.get(&item.key) {
                        self.write(&item.path, value, item.mode.or(default_mode))?;
                    }
                }
            }
        }
        Ok(())
    }

    fn write_fields(&self, pod: &Pod, items: &[DownwardAPIVolumeFile]) -> Result<(), VolumeError> {
        for item in items {
            let Some(reference) = &item.field_ref else {
                continue;
            };
            let map = match reference.field_path.as_str() {
                "metadata.labels" => pod.metadata.labels.as_ref(),
                "metadata.annotations" => pod.metadata.annotations.as_ref(),
                _ => None,
            };
            let text = match map {
                Some(map) => {
                    let lines = map.iter().map(|(key, value)| format!("{key}={value:?}"));
                    lines.collect::<Vec<_>>().join("\n")
                }
                None => env::field(pod, &reference.field_path).unwrap_or_default(),
            };
            self.write(&item.path, text.as_bytes(), item.mode)?;
        }
        Ok(())
    }

    fn write(&self, path: &str, contents: &[u8], mode: Option<i32>) -> Result<(), VolumeError> {
        let target = self.resolve(path)?;
        let mode = mode
            .and_then(|mode| u32::try_from(mode).ok())
            .unwrap_or(0o644);
        file::write(&target, contents, mode).map_err(write_error(self.volume, &target))
    }

    /// Returns the path of a file in the volume.
    fn resolve(&self, path: &str) -> Result<PathBuf, VolumeError> {
        let plain = Path::new(path)
            .components()
            .all(|part| matches!(part, std::path::Component::Normal(_)));
        if plain && !path.is_empty() {
            Ok(self.path.join(path))
        } else {
            Err(VolumeError::PathOutside {
                volume: self.volume.to_owned(),
                path: path.to_owned(),
            })
        }
    }
}

fn check_host_path(path: &Path, kind: Option<&str>) -> io::Result<()> {
    match kind {
        Some("DirectoryOrCreate") => fs::create_dir_all(path),
        Some("FileOrCreate") if !path.exists() => fs::File::create(path).map(drop),
        _ => fs::metadata(path).map(drop),
    }
}

fn mount_memory(path: &Path) -> nix::Result<()> {
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    mount(
        Some("mesh-local"),
        path,
        Some("tmpfs"),
        flags,
        Some("mode=0777"),
    )
}

fn write_error(volume: &str, path: &Path) -> impl Fn(io::Error) -> VolumeError {
    move |error| VolumeError::Write {
        volume: volume.to_owned(),
        source: file::failed("write", path)(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::Manifests;

    fn prepare_volume(volume: &str, directory: &Path) -> Result<PreparedVolume, VolumeError> {
        let mut manifests = Manifests::default();
        manifests.add_text(
            Path::new("a"),
            "kind: ConfigMap\nmetadata: {name: m, namespace: n}\ndata: {a: '1', b: '2'}\n",
        );
        let pod: Pod =
            serde_norway::from_str("metadata: {name: p, namespace: n, labels: {x: y}}").unwrap();
        let volume: Volume = serde_norway::from_str(volume).unwrap();
        prepare(&DataSources::new(&manifests, "n"), &pod, &volume, directory)
    }

    #[test]
    fn volumes_have_keys_items_fields_and_tokens() {
        let directory = tempfile::tempdir().unwrap();
        let text = |path: PathBuf| fs::read_to_string(path).unwrap();
        let all = prepare_volume("{name: v, configMap: {name: m}}", directory.path()).unwrap();
        let read = ["a", "b"].map(|name| text(all.path.join(name)));
        assert_eq!(read, ["1", "2"]);
        let some = "{name: w, configMap: {name: m, items: [{key: a, path: sub/file, mode: 0600}]}}";
        let some = prepare_volume(&some.replace("0600", "384"), directory.path()).unwrap();
        let file = some.path.join("sub/file");
        let mode = fs::metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(!some.path.join("b").exists());
        let projected = prepare_volume(
            "{name: t, projected: {sources: [{serviceAccountToken: {path: token, audience: x, expirationSeconds: 7200}}, \
             {downwardAPI: {items: [{path: labels, fieldRef: {fieldPath: metadata.labels}}]}}]}}",
            directory.path(),
        )
        .unwrap();
        assert_eq!(text(projected.path.join("labels")), "x=\"y\"");
        let token = &projected.tokens[0];
        assert_eq!(token.audience, "x");
        assert_eq!(token.lifetime.as_secs(), 7200);
    }

    #[test]
    fn paths_outside_the_volume_are_rejected() {
        let directory = tempfile::tempdir().unwrap();
        for path in ["../x", "/x", "a/../../x"] {
            let volume =
                format!("{{name: v, configMap: {{name: m, items: [{{key: a, path: {path}}}]}}}}");
            let error = prepare_volume(&volume, directory.path()).unwrap_err();
            assert!(matches!(error, VolumeError::PathOutside { .. }), "{error}");
        }
    }
}
