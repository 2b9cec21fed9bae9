//! Turns the arguments and flags about resources into targets of the metrics API.

use crate::clients::metrics_api::{Target, TimeWindow};
use crate::exit::Failure;
use crate::global::Global;
use crate::resource::{Resource, ResourceKind, Scope};

/// The flags of commands about a time window.
#[derive(Debug, clap::Args)]
pub(super) struct Window {
    /// Time that the numbers are about, at least 15s, for example 30s, 10m or 1h
    #[arg(short = 't', long, value_name = "DURATION", default_value = "1m", value_parser = TimeWindow::parse)]
    pub(super) time_window: TimeWindow,
}

/// The flag of commands that select objects by their labels.
#[derive(Debug, clap::Args)]
pub(super) struct Labels {
    /// Select objects by their labels, in the notation of kubectl
    #[arg(
        short = 'l',
        long,
        value_name = "SELECTOR",
        default_value = "",
        hide_default_value = true
    )]
    pub(super) selector: String,
}

/// Returns the target for a resource, and refuses combinations whose result would mislead.
pub(super) fn target(
    resource: &Resource,
    scope: &Scope,
    global: &Global,
) -> Result<Target, Failure> {
    if resource.kind == ResourceKind::Namespace && global.namespace.is_some() {
        return Err(Failure::Input(
            "-n does not select namespaces: leave it out, and name one as ns/NAME".to_owned(),
        ));
    }
    let is_named_everywhere =
        resource.name.is_some() && resource.kind != ResourceKind::Namespace && *scope == Scope::All;
    if is_named_everywhere {
        return Err(Failure::Input(format!(
            "{resource} names one object, which -A would look for in all namespaces: select one with -n"
        )));
    }
    Ok(Target {
        resource: resource.clone(),
        namespace: scope.namespace().map(str::to_owned),
    })
}

/// Returns the target of `--to` or `--from`. It is in the command's namespace unless a flag names
/// another.
pub(super) fn peer(
    resource: Option<&str>,
    namespace: Option<&str>,
    scope: &Scope,
) -> Result<Option<Target>, Failure> {
    let Some(resource) = resource else {
        return Ok(None);
    };
    Ok(Some(Target {
        resource: Resource::parse(resource)?,
        namespace: namespace.or(scope.namespace()).map(str::to_owned),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespace_of_a_peer_is_that_of_the_command_without_a_flag() {
        let shop = Scope::Namespace("shop".to_owned());
        for (namespace, scope, expect) in [
            (None, &shop, Some("shop")),
            (Some("bank"), &shop, Some("bank")),
            (None, &Scope::All, None),
        ] {
            let target = peer(Some("svc/web"), namespace, scope).unwrap().unwrap();
            assert_eq!(target.namespace.as_deref(), expect);
        }
        assert_eq!(peer(None, None, &shop).unwrap(), None);
        assert!(peer(Some("gadget/web"), None, &shop).is_err());
    }
}
