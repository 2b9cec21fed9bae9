//! The contents of each image: programs, paths, users and entry points. Charts and pods refer to
//! these paths.

use std::fmt;

use clap::ValueEnum;

use super::tree::Mode;

/// The name of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ImageName {
    Proxy,
    Controller,
    Viz,
    Agent,
    Debug,
    Prometheus,
}

/// An image: its contents and its configuration.
#[derive(Debug)]
pub(crate) struct Contents {
    pub(crate) name: ImageName,
    pub(crate) title: &'static str,
    pub(crate) description: &'static str,
    /// User and group by number: there is no /etc/passwd in the image, and a pod that must not run
    /// as root can be checked by number only.
    pub(crate) user: &'static str,
    pub(crate) entrypoint: &'static [&'static str],
    /// The licence of the whole image, as an SPDX expression.
    pub(crate) licence: &'static str,
    pub(crate) programs: &'static [Placed],
    /// Other names of programs: path and target.
    pub(super) links: &'static [(&'static str, &'static str)],
    pub(super) tools: Tools,
    /// Whether the kernel programs are embedded in one of its programs.
    pub(crate) kernel_programs: bool,
}

/// Files that an image takes from the machine's packages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tools {
    None,
    /// The iptables programs.
    PacketFilters,
    /// The CA certificates of public servers.
    Authorities,
    /// Debugging tools: tcpdump, and a shell with the usual commands.
    Debugging,
    /// Prometheus, built from its sources, and the CA certificates of the public servers that it
    /// may write to.
    Prometheus,
}

/// A program of this workspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Program {
    pub(crate) package: &'static str,
    pub(crate) binary: &'static str,
}

/// A program and its path in the image.
#[derive(Debug)]
pub(crate) struct Placed {
    pub(crate) program: Program,
    pub(crate) path: &'static str,
    pub(super) mode: Mode,
}

/// The programs of the pods that Linkerd's own images carry are found by these names.
const INIT: &str = "usr/lib/linkerd/mesh-init";

/// Numbers of linux/capability.h.
const NET_ADMIN: u32 = 12;
const NET_RAW: u32 = 13;

const PROXY: Contents = Contents {
    name: ImageName::Proxy,
    title: "mesh proxy",
    description: "The proxy that runs in every pod of the mesh, and the programs that pods without a node agent start first",
    user: "2102:2102",
    entrypoint: &["/mesh-proxy"],
    licence: "Apache-2.0 AND LGPL-2.1-or-later",
    programs: &[
        placed("mesh-proxy", "mesh-proxy", "mesh-proxy"),
        Placed {
            // The init container runs as the proxy's user, with these two added: a user other than
            // root gets only the capabilities that the file permits.
            mode: Mode::Privileged(1 << NET_ADMIN | 1 << NET_RAW),
            ..placed("mesh-agent", "mesh-init", INIT)
        },
    ],
    links: &[
        ("usr/lib/linkerd/linkerd-await", "mesh-init"),
        ("usr/lib/linkerd/linkerd2-network-validator", "mesh-init"),
        ("usr/lib/linkerd/linkerd2-proxy-init", "mesh-init"),
    ],
    tools: Tools::None,
    kernel_programs: false,
};

const CONTROLLER: Contents = Contents {
    name: ImageName::Controller,
    title: "mesh controller",
    description: "The control plane: identity, destination, policy and the webhooks; and the service mirror of other clusters",
    user: "2103:2103",
    entrypoint: &["/mesh-controller"],
    licence: "Apache-2.0 AND LGPL-2.1-or-later AND MPL-2.0",
    programs: &[placed(
        "mesh-control-plane",
        "mesh-controller",
        "mesh-controller",
    )],
    links: &[],
    // The receiver of the heartbeat's reports may be a public server.
    tools: Tools::Authorities,
    kernel_programs: false,
};

const VIZ: Contents = Contents {
    name: ImageName::Viz,
    title: "mesh viz",
    description: "The viz extension: metrics API, tap, tap injector and dashboard",
    user: "2103:2103",
    entrypoint: &["/mesh-viz"],
    licence: "Apache-2.0 AND LGPL-2.1-or-later",
    programs: &[placed("mesh-viz", "mesh-viz", "mesh-viz")],
    links: &[],
    tools: Tools::None,
    kernel_programs: false,
};

const AGENT: Contents = Contents {
    name: ImageName::Agent,
    title: "mesh agent",
    description: "The node agent, its CNI plugin, and iptables for nodes whose kernel can do nothing better",
    user: "0:0",
    entrypoint: &["/mesh-agent"],
    licence: "Apache-2.0 AND (MIT OR GPL-2.0-only) AND LGPL-2.1-or-later AND GPL-2.0-or-later",
    programs: &[
        placed("mesh-agent", "mesh-agent", "mesh-agent"),
        placed("mesh-agent", "mesh-cni", "mesh-cni"),
    ],
    links: &[],
    tools: Tools::PacketFilters,
    kernel_programs: true,
};

/// In no image. The controllers and the agent share most of its code, so building it with the
/// images costs little more.
pub(crate) const COMMAND_LINE: Program = Program {
    package: "meshctl",
    binary: "meshctl",
};

const DEBUG: Contents = Contents {
    name: ImageName::Debug,
    title: "mesh debug",
    description: "The debugging container of pods that ask for one: tcpdump, and a shell with the usual commands",
    // Only root gets the capabilities that its container is given.
    user: "0:0",
    // Every packet of the pod, a line each, without asking for names, which would make more
    // packets. Root stays root: the image has no other user.
    entrypoint: &["/usr/bin/tcpdump", "-i", "any", "-n", "-l", "-Z", "root"],
    licence: "BSD-3-Clause AND GPL-2.0-only AND LGPL-2.1-or-later AND Apache-2.0 AND (AFL-2.1 OR GPL-2.0-or-later)",
    programs: &[],
    links: &[],
    tools: Tools::Debugging,
    kernel_programs: false,
};

const PROMETHEUS: Contents = Contents {
    name: ImageName::Prometheus,
    title: "mesh Prometheus",
    description: "The Prometheus of the viz extension",
    // The user of Prometheus' own image.
    user: "65534:65534",
    entrypoint: &["/prometheus"],
    licence: "Apache-2.0 AND BSD-2-Clause AND BSD-3-Clause AND ISC AND MIT AND MPL-2.0",
    programs: &[],
    links: &[],
    tools: Tools::Prometheus,
    kernel_programs: false,
};

const fn placed(package: &'static str, binary: &'static str, path: &'static str) -> Placed {
    Placed {
        program: Program { package, binary },
        path,
        mode: Mode::Execute,
    }
}

impl ImageName {
    /// The mesh's images, which are made if none is named. The image of Prometheus needs another
    /// compiler and several minutes.
    pub(crate) const OF_MESH: [Self; 5] = [
        Self::Proxy,
        Self::Controller,
        Self::Viz,
        Self::Agent,
        Self::Debug,
    ];

    /// The name in a registry and in manifests, without registry and tag.
    pub(crate) fn repository(self) -> String {
        format!("mesh/{self}")
    }
}

impl fmt::Display for ImageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Proxy => "proxy",
            Self::Controller => "controller",
            Self::Viz => "viz",
            Self::Agent => "agent",
            Self::Debug => "debug",
            Self::Prometheus => "prometheus",
        })
    }
}

impl Contents {
    pub(crate) const fn of(name: ImageName) -> &'static Self {
        match name {
            ImageName::Proxy => &PROXY,
            ImageName::Controller => &CONTROLLER,
            ImageName::Viz => &VIZ,
            ImageName::Agent => &AGENT,
            ImageName::Debug => &DEBUG,
            ImageName::Prometheus => &PROMETHEUS,
        }
    }

    /// The packages of the workspace whose programs are in the image.
    pub(crate) fn packages(&self) -> Vec<&'static str> {
        let programs = self.programs.iter();
        let mut packages: Vec<&str> = programs.map(|placed| placed.program.package).collect();
        packages.sort_unstable();
        packages.dedup();
        packages
    }
}

/// Returns the programs of a release build: the programs of all images, once each, and the command
/// line.
pub(crate) fn programs() -> Vec<&'static Program> {
    let images = ImageName::OF_MESH.iter();
    let mut programs: Vec<&Program> = images
        .flat_map(|name| Contents::of(*name).programs)
        .map(|placed| &placed.program)
        .chain([&COMMAND_LINE])
        .collect();
    programs.sort_unstable();
    programs.dedup();
    programs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn image_programs_are_statically_linked() {
        let wrapper = include_str!("../../wrapper/link-static");
        let line = wrapper
            .lines()
            .find_map(|line| line.strip_prefix("for program in "))
            .expect("the wrapper lists the programs");
        let listed: Vec<&str> = line.trim_end_matches("; do").split(' ').collect();
        let of_images = programs().into_iter();
        for program in of_images.filter(|program| *program != &COMMAND_LINE) {
            let name = program.binary.replace('-', "_");
            assert!(listed.contains(&name.as_str()), "{name}: {listed:?}");
        }
    }

    #[test]
    fn image_has_linkerd_program_names() {
        let names: Vec<&str> = PROXY.links.iter().map(|(path, _)| *path).collect();
        assert_eq!(
            names,
            [
                "usr/lib/linkerd/linkerd-await",
                "usr/lib/linkerd/linkerd2-network-validator",
                "usr/lib/linkerd/linkerd2-proxy-init",
            ]
        );
    }

    #[test]
    fn only_agent_and_debug_images_run_as_root() {
        let roots: Vec<ImageName> = ImageName::OF_MESH
            .into_iter()
            .filter(|name| Contents::of(*name).user.starts_with("0:"))
            .collect();
        assert_eq!(roots, [ImageName::Agent, ImageName::Debug]);
    }
}
