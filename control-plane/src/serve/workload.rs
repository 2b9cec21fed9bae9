//! How proxies identify themselves in requests for policies and destinations.

use mesh_objects::model::{Name, WorkloadRef};
use serde::Deserialize;

use mesh_core::identity::is_dns_label;

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a workload: expected {{\"ns\":\"…\",\"pod\":\"…\"}} or namespace:pod")]
pub(super) struct WorkloadError(String);

#[derive(Deserialize)]
struct Json {
    ns: String,
    pod: Option<String>,
    external_workload: Option<String>,
}

/// Parses the workload in a request for a policy.
pub(super) fn parse(text: &str) -> Result<WorkloadRef, WorkloadError> {
    let error = || WorkloadError(text.to_owned());
    let workload = if text.starts_with('{') {
        let json: Json = serde_json::from_str(text).map_err(|_error| error())?;
        match (json.pod, json.external_workload) {
            (Some(pod), None) => WorkloadRef::Pod(Name::new(&json.ns, &pod)),
            (None, Some(name)) => WorkloadRef::External(Name::new(&json.ns, &name)),
            _ => return Err(error()),
        }
    } else {
        let (namespace, pod) = text.split_once(':').ok_or_else(error)?;
        WorkloadRef::Pod(Name::new(namespace, pod))
    };
    let Name { namespace, name } = workload.name();
    if namespace.is_empty() || name.is_empty() {
        return Err(error());
    }
    Ok(workload)
}

/// Returns the name of the workload in a request for a policy, empty if it is invalid.
pub(super) fn pod_name(text: &str) -> String {
    parse(text).map_or_else(|_error| String::new(), |it| it.name().name.to_string())
}

/// The client in a request for a destination. All fields are optional.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
pub(super) struct ClientContext {
    #[serde(default)]
    pub(super) ns: String,
    #[serde(default, rename = "nodeName")]
    pub(super) node: String,
    #[serde(default)]
    pub(super) pod: String,
}

impl ClientContext {
    /// Parses a context token. An invalid one is treated as empty.
    pub(super) fn parse(token: &str) -> Self {
        let token = token.trim();
        if token.is_empty() {
            return Self::default();
        }
        if let Some(namespace) = token.strip_prefix("ns:") {
            return Self {
                ns: namespace.to_owned(),
                ..Self::default()
            };
        }
        serde_json::from_str(token).unwrap_or_else(|error| {
            tracing::debug!(%error, "Ignored invalid context token");
            Self::default()
        })
    }

    /// Returns the namespace, or an empty one if it cannot be a namespace of Kubernetes.
    pub(super) fn namespace(&self) -> &str {
        if is_dns_label(&self.ns) { &self.ns } else { "" }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workloads_are_parsed() {
        let pod = WorkloadRef::Pod(Name::new("shop", "web-1"));
        assert_eq!(
            parse("{\"ns\":\"shop\", \"pod\":\"web-1\"}\n").as_ref(),
            Ok(&pod)
        );
        assert_eq!(parse("shop:web-1"), Ok(pod));
        assert_eq!(
            parse("{\"ns\":\"shop\",\"external_workload\":\"vm\"}"),
            Ok(WorkloadRef::External(Name::new("shop", "vm")))
        );
        for bad in [
            "",
            "shop",
            ":web",
            "shop:",
            "{}",
            "{\"ns\":\"a\"}",
            "{\"ns\":\"\",\"pod\":\"b\"}",
            "{",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn context_tokens_are_parsed_and_invalid_ones_ignored() {
        let parsed =
            ClientContext::parse("{\"ns\":\"shop\",\"nodeName\":\"a\",\"pod\":\"web-1\"}\n");
        assert_eq!(
            (&*parsed.ns, &*parsed.node, &*parsed.pod),
            ("shop", "a", "web-1")
        );
        assert_eq!(ClientContext::parse("ns:shop").namespace(), "shop");
        let long = "x".repeat(64);
        for bad in ["", "a/b", "Shop", &long] {
            let parsed = ClientContext::parse(&format!("ns:{bad}"));
            assert_eq!(parsed.namespace(), "", "{bad}");
        }
        for nothing in ["", "{", "web", "{\"ns\":1}"] {
            assert_eq!(
                ClientContext::parse(nothing),
                ClientContext::default(),
                "{nothing}"
            );
        }
    }
}
