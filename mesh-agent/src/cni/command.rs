//! Dispatches the runtime's command, if the configuration's version has it.

use serde_json::{Value, json};

use super::plugin::Plugin;
use super::{CniError, Code, Config, Environment, Version, config};

/// Returns the result to print, if the command has one; an error with the version to print it in.
pub(super) fn execute(
    variable: &dyn Fn(&str) -> Option<String>,
    input: &[u8],
) -> Result<Option<Value>, (Version, CniError)> {
    let command = variable("CNI_COMMAND").unwrap_or_default();
    if command == "VERSION" {
        return Ok(Some(versions(input)));
    }
    let version = config::version(input).map_err(|error| (Version::LATEST, error))?;
    dispatch(&command, version, variable, input).map_err(|error| (version, error))
}

fn dispatch(
    command: &str,
    version: Version,
    variable: &dyn Fn(&str) -> Option<String>,
    input: &[u8],
) -> Result<Option<Value>, CniError> {
    let is_in_version = match command {
        "ADD" | "DEL" => true,
        "CHECK" => version.has_check(),
        "STATUS" | "GC" => version.has_status_and_gc(),
        "" => {
            return Err(CniError::new(
                Code::InvalidEnvironment,
                "CNI_COMMAND is missing",
                "mesh-cni is a CNI plugin: a container runtime starts it",
            ));
        }
        _ => {
            return Err(CniError::new(
                Code::InvalidEnvironment,
                format!("CNI_COMMAND {command:?} is unknown"),
                "known are ADD, DEL, CHECK, GC, STATUS and VERSION",
            ));
        }
    };
    if !is_in_version {
        return Err(CniError::new(
            Code::IncompatibleVersion,
            format!("CNI version {version} has no command {command}"),
            "CHECK came with 0.4.0, STATUS and GC came with 1.1.0",
        ));
    }
    let plugin = Plugin::new(Config::parse(input)?, version);
    match command {
        "ADD" => plugin.add(&Environment::read(variable)?).map(Some),
        "DEL" => plugin.del(&Environment::read(variable)?).map(|()| None),
        "CHECK" => plugin.check(&Environment::read(variable)?).map(|()| None),
        "STATUS" => plugin.status().map(|()| None),
        _ => plugin.collect().map(|()| None),
    }
}

/// Responds in the version of the request, so that runtimes of any age can read it.
fn versions(input: &[u8]) -> Value {
    let version = serde_json::from_slice::<Value>(input)
        .ok()
        .and_then(|config| config.get("cniVersion")?.as_str().map(str::to_owned))
        .unwrap_or_else(|| Version::LATEST.to_string());
    json!({
        "cniVersion": version,
        "supportedVersions": Version::ALL.map(Version::as_str),
    })
}
