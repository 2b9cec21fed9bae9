//! The description of the build: shown by `--version`, logged in a daemon's first line and exported
//! as a metric, so that these three always agree.
//!
//! The commit and date come from the environment of the build (`cargo xtask` sets them). A plain
//! `cargo build` has neither and uses `unknown`, because a build script should not run git.

use crate::metrics::{Labels, Registry};

/// The description of this build.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BuildInfo {
    pub version: &'static str,
    pub git_sha: &'static str,
    pub date: &'static str,
    pub profile: &'static str,
    pub vendor: &'static str,
}

impl BuildInfo {
    pub const CURRENT: BuildInfo = BuildInfo {
        version: env!("CARGO_PKG_VERSION"),
        git_sha: or_unknown(option_env!("MESH_BUILD_GIT_SHA")),
        date: or_unknown(option_env!("MESH_BUILD_DATE")),
        profile: if cfg!(debug_assertions) {
            "debug"
        } else {
            "release"
        },
        vendor: "mesh",
    };

    /// Exports the build as `name{…} 1`, with Linkerd's label names.
    pub fn export(&self, registry: &Registry, name: &'static str) {
        let labels = Labels::new()
            .with("date", self.date)
            .with("git_sha", self.git_sha)
            .with("profile", self.profile)
            .with("vendor", self.vendor)
            .with("version", self.version);
        registry.constant_gauge(name, "The running build; the value is always 1", labels, 1);
    }
}

impl std::fmt::Display for BuildInfo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} {} ({}) by {} on {}",
            self.profile, self.version, self.git_sha, self.vendor, self.date
        )
    }
}

const fn or_unknown(value: Option<&'static str>) -> &'static str {
    match value {
        Some(value) => value,
        None => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn build_info_has_linkerds_label_names() {
        let registry = Registry::new();
        BuildInfo::CURRENT.export(&registry, "proxy_build_info");
        let text = String::from_utf8(registry.encode()).unwrap();
        let expected = format!(
            "proxy_build_info{{date=\"{}\",git_sha=\"{}\",profile=\"debug\",vendor=\"mesh\",version=\"{}\"}} 1\n",
            BuildInfo::CURRENT.date,
            BuildInfo::CURRENT.git_sha,
            env!("CARGO_PKG_VERSION")
        );
        assert!(text.contains(&expected), "{text}");
    }
}
