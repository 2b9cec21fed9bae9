//! The images a node knows: those of the mesh, which are programs beside `meshctl`.
//!
//! There is no registry and nothing is pulled. A container of any other image runs a program of the
//! machine, which its `command` must name.

use std::path::PathBuf;

use crate::settings::{Program, Settings};

/// The image of the proxy, as the injector writes it.
pub const PROXY: &str = "mesh/proxy";
/// The image of the controllers.
pub const CONTROLLER: &str = "mesh/controller";

/// A program that a container finds at a place of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    pub program: PathBuf,
    /// Where the container sees it, and what it runs when it names no command.
    pub inside: PathBuf,
}

/// Looks an image up by its name, whatever its tag.
pub fn find(settings: &Settings, image: &str) -> Option<Image> {
    let program = match name_of(image) {
        PROXY => Program::Proxy,
        CONTROLLER => Program::Controller,
        _ => return None,
    };
    Some(Image {
        program: settings.program(program),
        inside: PathBuf::from("/usr/local/bin").join(program.file_name()),
    })
}

/// The name without tag and digest.
fn name_of(image: &str) -> &str {
    let image = image.split('@').next().unwrap_or(image);
    match image.rsplit_once(':') {
        // A colon before a slash is the port of a registry.
        Some((name, tag)) if !tag.contains('/') => name,
        _ => image,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_and_digests_do_not_matter() {
        assert_eq!(name_of("mesh/proxy:0.1.0"), PROXY);
        assert_eq!(name_of("mesh/proxy"), PROXY);
        assert_eq!(name_of("mesh/proxy@sha256:00"), PROXY);
        assert_eq!(name_of("host:5000/mesh/proxy"), "host:5000/mesh/proxy");
    }
}
