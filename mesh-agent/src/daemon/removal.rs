//! Taking the mesh from a node, in an order in which every step can be interrupted: first the
//! plugin's entry, so that no new pod depends on what goes next; then the redirection of every pod,
//! programs, pins and records; the plugin's file last, since a runtime may be running it for a pod
//! that began before.
//!
//! Meshed pods that still run are then in the clear: their proxies see nothing more.

use crate::{config::Config, ebpf, install::Installer, node::NodeError, tier};
use mesh_runtime::log::chain;

/// Goes on after an error and tells all of them at the end: what is left is less.
#[derive(Debug, Default)]
pub(super) struct Removal {
    failures: Vec<String>,
}

impl Removal {
    pub(super) fn leave_chain(&mut self, installer: Option<&Installer>) {
        let Some(installer) = installer else { return };
        let errors = installer.remove_entries();
        self.failures
            .extend(errors.iter().map(|error| chain(error)));
    }

    pub(super) fn released(&mut self, released: Result<Vec<String>, NodeError>) {
        match released {
            Ok(failures) => self.failures.extend(failures),
            Err(error) => self.failures.push(chain(&error)),
        }
    }

    /// What belongs to no single pod.
    pub(super) fn remove_files(
        &mut self,
        config: &Config,
        installer: Option<&Installer>,
        keeps_plugin: bool,
    ) {
        if let Err(error) = ebpf::unload(&config.pin_dir) {
            self.failures.push(chain(&error));
        }
        if let Err(error) = tier::clear_self_test(&config.pin_dir, config.cgroup_root.as_deref()) {
            self.failures.push(chain(&error));
        }
        // Only the directory itself is left; what somebody else put there keeps it.
        let _ = std::fs::remove_dir(&config.pin_dir);
        match installer {
            Some(_) if keeps_plugin => tracing::warn!(
                directory = %config.cni_bin_dir.display(),
                "The plugin's file stays: this container runtime ends pods with the plugins that they began with. Remove mesh-cni when no pod is left that was \
                 meshed"
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
            "{} things could not be removed from this node; run mesh-agent uninstall on it",
            self.failures.len()
        );
        tracing::info!("The mesh is removed from this node; no pod is redirected any more");
        Ok(())
    }
}
