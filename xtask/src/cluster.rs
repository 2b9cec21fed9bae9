//! The Kubernetes cluster of the end-to-end tests: any cluster, selected by the name of its context
//! and created by the user. Images are loaded from files by a configurable command. `test` calls it
//! before the integration tests.

mod kind;

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

use crate::workspace::find_program;
use crate::{command, image, setup, test_apps};

pub(crate) use kind::Kind;

/// Names the context of the cluster to test on.
pub const CONTEXT_VARIABLE: &str = "MESH_TEST_CLUSTER";
/// Names the program that gives images to that cluster: it is called with the paths of the
/// archives.
const LOADER_VARIABLE: &str = "MESH_TEST_LOAD_IMAGE";

/// The programs that the tests use on a cluster, and their origin.
const PROGRAMS: [(&str, &str); 2] = [
    ("kubectl", "https://kubernetes.io/docs/tasks/tools"),
    ("helm", "https://helm.sh/docs/intro/install"),
];

/// The context of the cluster that the tests are given, if any.
pub fn given() -> Option<String> {
    env::var(CONTEXT_VARIABLE)
        .ok()
        .filter(|context| !context.is_empty())
}

/// Makes the images of the programs as the tests were built with them, and of the applications, and
/// gives them to the cluster.
pub fn load_images(root: &Path, context: &str) -> anyhow::Result<()> {
    let mut archives = image::from_tests(root)?;
    let directory = archives
        .first()
        .and_then(|archive| archive.parent())
        .context("no image was made")?
        .to_owned();
    archives.push(test_apps::image(&directory)?);
    load(context, &archives)?;
    // After the loader, which may bring the cluster and its programs.
    check_programs(root)
}

/// Gives images to the cluster.
pub fn load(context: &str, archives: &[PathBuf]) -> anyhow::Result<()> {
    for mut command in loaders(env::var(LOADER_VARIABLE).ok(), context, archives)? {
        command::run("load the images", &mut command).with_context(|| {
            format!(
                "give the images to the cluster; {LOADER_VARIABLE} may name another program for it"
            )
        })?;
    }
    Ok(())
}

/// Describes where to get a missing program.
fn check_programs(root: &Path) -> anyhow::Result<()> {
    for (program, source) in PROGRAMS {
        let is_built = program == "helm" && setup::helm_directory(root).is_some();
        if find_program(program).is_none() && !is_built {
            bail!(
                "there is no {program} on PATH, which the tests on a cluster use; get it from {source}"
            );
        }
    }
    Ok(())
}

/// The commands that load the archives: the user's program, or kind's when the context is one of
/// kind's.
fn loaders(
    program: Option<String>,
    context: &str,
    archives: &[PathBuf],
) -> anyhow::Result<Vec<Command>> {
    if let Some(program) = program {
        let mut command = Command::new(program);
        command.args(archives);
        return Ok(vec![command]);
    }
    let Some(cluster) = context.strip_prefix("kind-") else {
        bail!(
            "how does the cluster {context} get images? Set {LOADER_VARIABLE} to a program that loads the archives it is called with \
             (only for a context of kind's, kind-NAME, one is known)"
        );
    };
    let load = |archive: &PathBuf| {
        let mut command = Command::new("kind");
        command.args(["load", "image-archive", "--name", cluster]);
        command.arg(archive);
        command
    };
    Ok(archives.iter().map(load).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::shown;

    fn shown_loaders(program: Option<&str>, context: &str) -> anyhow::Result<Vec<String>> {
        let archives = [PathBuf::from("a.tar"), PathBuf::from("b.tar")];
        let loaders = loaders(program.map(str::to_owned), context, &archives)?;
        Ok(loaders.iter().map(shown).collect())
    }

    #[test]
    fn load_command_receives_all_archives() {
        assert_eq!(
            shown_loaders(Some("./load"), "any").expect("a loader"),
            ["./load a.tar b.tar"]
        );
    }

    #[test]
    fn kind_cluster_is_recognised_by_context() {
        assert_eq!(
            shown_loaders(None, "kind-mesh").expect("a loader"),
            [
                "kind load image-archive --name mesh a.tar",
                "kind load image-archive --name mesh b.tar"
            ]
        );
        let error = shown_loaders(None, "gke_x").expect_err("nothing is known of it");
        assert!(error.to_string().contains(LOADER_VARIABLE), "{error}");
    }
}
