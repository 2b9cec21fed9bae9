//! Removes the mesh from a node, in an order that permits interruption after every step: first the
//! plugin's entry, so that no new pod depends on the following steps; then the redirection of every
//! pod, programs, pins and records; the plugin's file last, since a runtime may be running it for a
//! pod that started before.
//!
//! Meshed pods that still run are then in clear text: their proxies receive no connections.

use mesh_runtime::log::chain;

use crate::config::Config;
use crate::install::Installer;
use crate::node::NodeError;
use crate::{ebpf, machine, tier};

/// Continues after an error and reports all errors at the end.
#[derive(Debug, Default)]
pub(super) struct Removal {
    failures: Vec<String>,
}

impl Removal {
    pub(super) fn remove_chain_entries(&mut self, installer: Option<&Installer>) {
        let Some(installer) = installer else { return };
        let errors = installer.remove_entries();
        self.failures
            .extend(errors.iter().map(|error| chain(error)));
    }

    pub(super) fn add_release_result(&mut self, released: Result<Vec<String>, NodeError>) {
        match released {
            Ok(failures) => self.failures.extend(failures),
            Err(error) => self.failures.push(chain(&error)),
        }
    }

    /// Removes what does not belong to a single pod.
    pub(super) fn remove_files(
        &mut self,
        config: &Config,
        installer: Option<&Installer>,
        keep_plugin: bool,
    ) {
        if let Err(error) = ebpf::unload(&config.pin_dir) {
            self.failures.push(chain(&error));
        }
        if let Err(error) = machine::remove_all(&config.units_dir, &config.pin_dir) {
            self.failures.push(chain(&error));
        }
        if let Err(error) = tier::clear_self_test(&config.pin_dir, config.cgroup_root.as_deref()) {
            self.failures.push(chain(&error));
        }
        // Only the directory itself is left; it stays when other programs have files there.
        let _ = std::fs::remove_dir(&config.pin_dir);
        match installer {
            Some(_) if keep_plugin => tracing::warn!(
                directory = %config.cni_bin_dir.display(),
                "Kept the plugin's file: this container runtime tears pods down with the plugins that they were started with. Remove mesh-cni when no meshed pod is left"
            ),
            Some(installer) => {
                let error = installer.remove_plugin().err();
                self.failures.extend(error.iter().map(|error| chain(error)));
            }
            None => {}
        }
    }

    pub(super) fn finish(self) -> anyhow::Result<()> {
        for failure in &self.failures {
            tracing::error!("{failure}");
        }
        anyhow::ensure!(
            self.failures.is_empty(),
            "{} parts of the mesh could not be removed from this node; run mesh-agent uninstall on it",
            self.failures.len()
        );
        tracing::info!("The mesh is removed from this node; no pod or unit is redirected");
        Ok(())
    }
}
