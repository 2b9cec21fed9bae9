//! How proxies name themselves: who asks for a policy, and who asks for a destination.

use serde::Deserialize;

use crate::model::Name;

/// Who asks for a policy.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Workload {
    Pod(Name),
    /// A machine outside the cluster. There are no records of these.
    External(Name),
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} names no workload: expected {{\"ns\":\"…\",\"pod\":\"…\"}} or namespace:pod")]
pub(super) struct WorkloadError(String);

#[derive(Deserialize)]
struct Json {
    ns: String,
    pod: Option<String>,
    external_workload: Option<String>,
}

impl Workload {
    pub(super) fn parse(text: &str) -> Result<Self, WorkloadError> {
        let error = || WorkloadError(text.to_owned());
        let workload = if text.starts_with('{') {
            let json: Json = serde_json::from_str(text).map_err(|_error| error())?;
            match (json.pod, json.external_workload) {
                (Some(pod), None) => Self::Pod(Name::new(&json.ns, &pod)),
                (None, Some(name)) => Self::External(Name::new(&json.ns, &name)),
                _ => return Err(error()),
            }
        } else {
            let (namespace, pod) = text.split_once(':').ok_or_else(error)?;
            Self::Pod(Name::new(namespace, pod))
        };
        let Name { namespace, name } = workload.name();
        if namespace.is_empty() || name.is_empty() {
            return Err(error());
        }
        Ok(workload)
    }

    pub(super) fn name(&self) -> &Name {
        match self {
            Self::Pod(name) | Self::External(name) => name,
        }
    }
}

/// What a client says of itself when it asks for a destination. All of it is optional.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
pub(super) struct Context {
    #[serde(default)]
    pub(super) ns: String,
    #[serde(default, rename = "nodeName")]
    pub(super) node: String,
    #[serde(default)]
    pub(super) pod: String,
}

impl Context {
    /// A token that cannot be read says nothing; it is never an error.
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
            tracing::debug!(%error, "Ignored an unreadable context token");
            Self::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workloads() {
        let pod = Workload::Pod(Name::new("shop", "web-1"));
        assert_eq!(
            Workload::parse("{\"ns\":\"shop\", \"pod\":\"web-1\"}\n").as_ref(),
            Ok(&pod)
        );
        assert_eq!(Workload::parse("shop:web-1"), Ok(pod));
        assert_eq!(
            Workload::parse("{\"ns\":\"shop\",\"external_workload\":\"vm\"}"),
            Ok(Workload::External(Name::new("shop", "vm")))
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
            assert!(Workload::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn context_tokens() {
        let parsed = Context::parse("{\"ns\":\"shop\",\"nodeName\":\"a\",\"pod\":\"web-1\"}\n");
        assert_eq!(
            (&*parsed.ns, &*parsed.node, &*parsed.pod),
            ("shop", "a", "web-1")
        );
        assert_eq!(Context::parse("ns:shop").ns, "shop");
        for nothing in ["", "{", "web", "{\"ns\":1}"] {
            assert_eq!(Context::parse(nothing), Context::default(), "{nothing}");
        }
    }
}
