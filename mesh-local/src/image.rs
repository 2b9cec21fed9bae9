//! The images of a node: the mesh's images, which are programs in the directory of `meshctl`. No
//! images are pulled. A container with any other image runs a program of the machine, which its
//! `command` must name.

use std::path::PathBuf;

use crate::settings::{Program, Settings};

/// The name of the proxy image, as in the injector.
pub const PROXY: &str = "mesh/proxy";
/// The name of the controller image.
pub const CONTROLLER: &str = "mesh/controller";
/// The name of the viz extension's image.
pub const VIZ: &str = "mesh/viz";

/// An image: a program that is mounted into the container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    pub program: PathBuf,
    /// The path in the container, which is executed if the container has no command.
    pub container_path: PathBuf,
}

/// Returns an image by its name, ignoring tag and digest.
pub fn find(settings: &Settings, image: &str) -> Option<Image> {
    let program = match name_of(image) {
        PROXY => Program::Proxy,
        CONTROLLER => Program::Controller,
        VIZ => Program::Viz,
        _ => return None,
    };
    Some(Image {
        program: settings.program(program),
        container_path: PathBuf::from("/usr/local/bin").join(program.as_str()),
    })
}

/// Removes tag and digest.
fn name_of(image: &str) -> &str {
    let image = image.split('@').next().unwrap_or(image);
    match image.rsplit_once(':') {
        // A colon before a slash precedes the port of a registry.
        Some((name, tag)) if !tag.contains('/') => name,
        _ => image,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_and_digests_are_ignored() {
        assert_eq!(name_of("mesh/proxy:0.1.0"), PROXY);
        assert_eq!(name_of("mesh/proxy"), PROXY);
        assert_eq!(name_of("mesh/proxy@sha256:00"), PROXY);
        assert_eq!(name_of("host:5000/mesh/proxy"), "host:5000/mesh/proxy");
    }
}
