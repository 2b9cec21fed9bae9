//! The values and trust anchors that pods are injected with: two files, which the chart's
//! ConfigMaps are mounted as, read again when they change.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use arc_swap::ArcSwap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use mesh_core::annotation;
use mesh_k8s::{
    inject::{self, InjectError},
    kinds::Pod,
    pod::owner::Owner,
    values::{Values, reading::ValuesError},
};
use mesh_runtime::metrics::{Labels, Registry};
use tokio::time::MissedTickBehavior;

/// The values in force.
#[derive(Debug)]
pub(crate) struct Settings {
    // Read by each review, written when a file changes.
    current: ArcSwap<Values>,
}

/// Where the settings are.
#[derive(Clone, Debug)]
pub(crate) struct SettingsFiles {
    pub(crate) values: PathBuf,
    pub(crate) trust_anchors: PathBuf,
    /// Of the control plane; values files do not say it.
    pub(crate) namespace: String,
}

/// Why the files cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    #[error("cannot read {path}")]
    Read { path: PathBuf, source: io::Error },
    #[error("{path} is not YAML")]
    Yaml {
        path: PathBuf,
        source: serde_norway::Error,
    },
    #[error("{path} holds no values of the chart")]
    Values { path: PathBuf, source: ValuesError },
    #[error("the trust anchors in {path} are no PEM certificates")]
    Anchors { path: PathBuf },
    #[error("no pod could be injected with the values in {path}")]
    Unusable { path: PathBuf, source: InjectError },
}

/// How often the files are compared with what was read. The kubelet itself takes up to a minute to
/// change them.
const INTERVAL: Duration = Duration::from_secs(2);

/// What the files held.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Contents {
    values: String,
    trust_anchors: String,
}

impl Settings {
    /// The values of this moment; a review uses one set from its beginning to its end.
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

    /// Follows the files until the process ends. What cannot be used is said and not taken over.
    pub(crate) async fn follow(
        self,
        mut current: Contents,
        settings: Arc<Settings>,
        registry: Registry,
    ) {
        let family = registry.counter_family(
            "proxy_injector_settings_reloads_total",
            "Values and trust anchors that changed, by whether the new ones could be used",
        );
        let result = |result: &'static str| family.with(&Labels::new().with("result", result));
        let (loaded, refused) = (result("loaded"), result("refused"));
        let mut ticks = tokio::time::interval(INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            // Not being able to read is most likely a change half way; the next look decides.
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
                    tracing::info!("Took over changed settings");
                }
                Err(error) => {
                    refused.inc();
                    let reason = std::error::Error::source(&error).map(ToString::to_string);
                    tracing::error!(%error, reason, "The settings changed and cannot be used; the old ones stay in force");
                }
            }
        }
    }

    fn read(&self) -> Result<Contents, SettingsError> {
        Ok(Contents {
            values: read(&self.values)?,
            trust_anchors: read(&self.trust_anchors)?,
        })
    }

    /// Reads the values and proves that a pod can be injected with them.
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

fn read(path: &Path) -> Result<String, SettingsError> {
    fs::read_to_string(path).map_err(|source| SettingsError::Read {
        path: path.to_owned(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEM: &str = "-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n";

    fn files() -> (tempfile::TempDir, SettingsFiles) {
        let folder = tempfile::tempdir().unwrap();
        let files = SettingsFiles {
            values: folder.path().join("values"),
            trust_anchors: folder.path().join("ca-bundle.crt"),
            namespace: "mesh-system".into(),
        };
        (folder, files)
    }

    #[test]
    fn files_are_read_and_what_they_lack_is_said() {
        let (_folder, files) = files();
        let load = |values: &str, anchors: &str| {
            fs::write(&files.values, values).unwrap();
            fs::write(&files.trust_anchors, anchors).unwrap();
            files.load()
        };
        assert!(matches!(files.load(), Err(SettingsError::Read { .. })));
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
        // Helm's way to ask for the default.
        let nulls = "{configReaders: null, proxy: {image: null, inbound: {server: null}}}";
        let (settings, _) = load(nulls, PEM).unwrap();
        assert_eq!(settings.current().proxy.image.name, "mesh/proxy");
    }

    #[tokio::test(start_paused = true)]
    async fn a_broken_change_keeps_the_last_good_one() {
        let (_folder, files) = files();
        fs::write(&files.values, "linkerdVersion: v1").unwrap();
        fs::write(&files.trust_anchors, PEM).unwrap();
        let (settings, contents) = files.load().unwrap();
        let registry = Registry::new();
        tokio::spawn(
            files
                .clone()
                .follow(contents, settings.clone(), registry.clone()),
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
