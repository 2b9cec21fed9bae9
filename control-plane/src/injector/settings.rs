//! The values and trust anchors for injection, from two files of mounted ConfigMaps, which are
//! reloaded when they change.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use mesh_core::annotation;
use mesh_k8s::inject::{self, InjectError};
use mesh_k8s::kinds::Pod;
use mesh_k8s::pod::owner::Owner;
use mesh_k8s::values::Values;
use mesh_k8s::values::reading::ValuesError;
use mesh_runtime::file::{self, FileError};
use mesh_runtime::metrics::{Labels, Registry};
use tokio::time::MissedTickBehavior;

/// The current values.
#[derive(Debug)]
pub(crate) struct Settings {
    // Read by each review, written when a file changes.
    current: ArcSwap<Values>,
}

/// The files of the settings.
#[derive(Clone, Debug)]
pub(crate) struct SettingsFiles {
    pub(crate) values: PathBuf,
    pub(crate) trust_anchors: PathBuf,
    /// The namespace of the control plane, which is not in the values.
    pub(crate) namespace: String,
}

/// Why the files cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    #[error(transparent)]
    Read(#[from] FileError),
    #[error("{path} is not YAML")]
    Yaml {
        path: PathBuf,
        source: serde_norway::Error,
    },
    #[error("{path} does not contain valid values of the chart")]
    Values { path: PathBuf, source: ValuesError },
    #[error("the trust anchors in {path} are not PEM certificates")]
    Anchors { path: PathBuf },
    #[error("pods cannot be injected with the values in {path}")]
    Unusable { path: PathBuf, source: InjectError },
}

/// How often the files are compared with their last contents. The kubelet takes up to a minute to
/// change them.
const INTERVAL: Duration = Duration::from_secs(2);

/// The contents of the files.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Contents {
    values: String,
    trust_anchors: String,
}

impl Settings {
    /// Returns the current values. A review uses the same values throughout.
    pub(crate) fn current(&self) -> Arc<Values> {
        self.current.load_full()
    }
}

impl SettingsFiles {
    pub(crate) fn load(&self) -> Result<(Arc<Settings>, Contents), SettingsError> {
        let contents = self.read()?;
        let settings = Settings {
            current: ArcSwap::from_pointee(self.parse(&contents)?),
        };
        Ok((Arc::new(settings), contents))
    }

    /// Polls the files and reloads changed ones. Invalid contents are logged and not loaded.
    pub(crate) async fn watch(
        self,
        mut current: Contents,
        settings: Arc<Settings>,
        registry: Registry,
    ) {
        let family = registry.counter_family(
            "proxy_injector_settings_reloads_total",
            "Changes of values and trust anchors, by whether they were loaded",
        );
        let result = |result: &'static str| family.with(&Labels::new().with("result", result));
        let (loaded, refused) = (result("loaded"), result("refused"));
        let mut ticks = tokio::time::interval(INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            // Probably a change in progress; the next poll reads again.
            let Ok(now) = self.read() else {
                continue;
            };
            if now == current {
                continue;
            }
            current = now;
            match self.parse(&current) {
                Ok(values) => {
                    settings.current.store(Arc::new(values));
                    loaded.inc();
                    tracing::info!("Reloaded settings");
                }
                Err(error) => {
                    refused.inc();
                    let reason = std::error::Error::source(&error).map(ToString::to_string);
                    tracing::error!(%error, reason, "Cannot reload settings; keeping the previous ones");
                }
            }
        }
    }

    /// Returns the settings that files with these contents would have.
    #[cfg(feature = "simulation")]
    pub(crate) fn simulated(
        &self,
        values: &str,
        trust_anchors: &str,
    ) -> Result<Arc<Settings>, SettingsError> {
        let contents = Contents {
            values: values.to_owned(),
            trust_anchors: trust_anchors.to_owned(),
        };
        let current = ArcSwap::from_pointee(self.parse(&contents)?);
        Ok(Arc::new(Settings { current }))
    }

    fn read(&self) -> Result<Contents, FileError> {
        Ok(Contents {
            values: read(&self.values)?,
            trust_anchors: read(&self.trust_anchors)?,
        })
    }

    /// Parses the values and checks that a pod can be injected with them.
    fn parse(&self, contents: &Contents) -> Result<Values, SettingsError> {
        let given =
            serde_norway::from_str(&contents.values).map_err(|source| SettingsError::Yaml {
                path: self.values.clone(),
                source,
            })?;
        let mut values = Values::read(given).map_err(|source| SettingsError::Values {
            path: self.values.clone(),
            source,
        })?;
        if !contents
            .trust_anchors
            .contains("-----BEGIN CERTIFICATE-----")
        {
            return Err(SettingsError::Anchors {
                path: self.trust_anchors.clone(),
            });
        }
        values.namespace.clone_from(&self.namespace);
        values
            .identity_trust_anchors_pem
            .clone_from(&contents.trust_anchors);
        let enabled = ObjectMeta {
            annotations: Some([(annotation::INJECT.to_owned(), "enabled".to_owned())].into()),
            ..ObjectMeta::default()
        };
        let owner = Owner {
            kind: "pod".into(),
            name: "probe".into(),
        };
        inject::patch(&values, &enabled, &Pod::default(), &owner).map_err(|source| {
            SettingsError::Unusable {
                path: self.values.clone(),
                source,
            }
        })?;
        Ok(values)
    }
}

fn read(path: &Path) -> Result<String, FileError> {
    fs::read_to_string(path).map_err(file::failed("cannot read", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEM: &str = "-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n";

    fn files() -> (tempfile::TempDir, SettingsFiles) {
        let directory = tempfile::tempdir().unwrap();
        let files = SettingsFiles {
            values: directory.path().join("values"),
            trust_anchors: directory.path().join("ca-bundle.crt"),
            namespace: "mesh-system".into(),
        };
        (directory, files)
    }

    #[test]
    fn settings_are_loaded_and_errors_name_cause() {
        let (_directory, files) = files();
        let load = |values: &str, anchors: &str| {
            fs::write(&files.values, values).unwrap();
            fs::write(&files.trust_anchors, anchors).unwrap();
            files.load()
        };
        assert!(matches!(files.load(), Err(SettingsError::Read(_))));
        assert!(matches!(
            load("proxy: 5", PEM),
            Err(SettingsError::Values { .. })
        ));
        assert!(matches!(
            load("{}", "nothing"),
            Err(SettingsError::Anchors { .. })
        ));
        assert!(matches!(
            load("proxy: [", PEM),
            Err(SettingsError::Yaml { .. })
        ));
        let bad_networks = load("clusterNetworks: here", PEM);
        assert!(matches!(bad_networks, Err(SettingsError::Unusable { .. })));
        let (settings, _) = load("linkerdVersion: v9\nunknown: {}", PEM).unwrap();
        let values = settings.current();
        assert_eq!(
            (&*values.namespace, &*values.linkerd_version),
            ("mesh-system", "v9")
        );
        assert_eq!(values.identity_trust_anchors_pem, PEM);
        // Helm replaces `null` by the default.
        let nulls = "{configReaders: null, proxy: {image: null, inbound: {server: null}}}";
        let (settings, _) = load(nulls, PEM).unwrap();
        assert_eq!(settings.current().proxy.image.name, "mesh/proxy");
    }

    #[tokio::test(start_paused = true)]
    async fn invalid_change_keeps_previous_settings() {
        let (_directory, files) = files();
        fs::write(&files.values, "linkerdVersion: v1").unwrap();
        fs::write(&files.trust_anchors, PEM).unwrap();
        let (settings, contents) = files.load().unwrap();
        let registry = Registry::new();
        tokio::spawn(
            files
                .clone()
                .watch(contents, settings.clone(), registry.clone()),
        );
        let metric = async |line: &str| {
            while !String::from_utf8(registry.encode()).unwrap().contains(line) {
                tokio::time::sleep(INTERVAL).await;
            }
        };
        let version = || settings.current().linkerd_version.clone();
        fs::write(&files.values, "linkerdVersion: [").unwrap();
        metric("reloads_total{result=\"refused\"} 1").await;
        assert_eq!(version(), "v1");
        fs::write(&files.values, "linkerdVersion: v2").unwrap();
        metric("reloads_total{result=\"loaded\"} 1").await;
        assert_eq!(version(), "v2");
    }
}
