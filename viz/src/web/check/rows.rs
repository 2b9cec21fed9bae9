//! The rows of a check, computed from the values that were read.

use serde_json::{Value, json};

/// A check and its result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) category: &'static str,
    pub(super) description: String,
    /// The anchor in Linkerd's documentation of checks.
    hint: &'static str,
    /// Whether an error is only a warning.
    pub(super) is_warning: bool,
    pub(super) error: Option<String>,
}

/// A value that was read, or why it could not be read.
type Read = Result<Value, String>;

/// The components of the control plane. Each has a pod.
pub(super) const COMPONENTS: [&str; 3] = ["destination", "identity", "proxy-injector"];

/// The components of a local node, which injects proxies itself.
pub(super) const COMPONENTS_OF_NODE: [&str; 2] = ["destination", "identity"];

const COMPONENT: &str = "linkerd.io/control-plane-component";

const HINTS: &str = "https://linkerd.io/2/checks/#";

/// Names in one message.
const MAX_NAMES: usize = 5;

impl Row {
    fn new(
        category: &'static str,
        hint: &'static str,
        description: impl Into<String>,
        result: Result<(), String>,
    ) -> Self {
        Self {
            category,
            hint,
            description: description.into(),
            is_warning: false,
            error: result.err(),
        }
    }

    fn warning(self) -> Self {
        Self {
            is_warning: true,
            ..self
        }
    }

    /// Returns the fields of a result in Go.
    pub(super) fn to_json(&self) -> Value {
        let mut json = json!({
            "Category": self.category,
            "Description": self.description,
            "Retry": false,
            "Warning": self.is_warning,
            "Err": Value::Null,
        });
        if let Some(error) = &self.error {
            json["Err"] = json!({});
            json["ErrMsg"] = json!(error);
            json["HintURL"] = json!(format!("{HINTS}{}", self.hint));
        }
        json
    }
}

pub(super) fn api_server(version: &Read) -> Row {
    let result = version.as_ref().map(drop).map_err(Clone::clone);
    let description = "can query the Kubernetes API";
    Row::new("kubernetes-api", "k8s-api", description, result)
}

pub(super) fn control_plane(pods: &Read, components: &[&str]) -> Row {
    let result = read(pods).and_then(|pods| {
        let pods = items(pods);
        for component in components {
            let has_pod = pods
                .iter()
                .any(|pod| pod["metadata"]["labels"][COMPONENT] == *component && is_ready(pod));
            if !has_pod {
                return Err(format!("no pod of {component} is ready"));
            }
        }
        all_ready(pods)
    });
    Row::new(
        "linkerd-existence",
        "l5d-api-control-ready",
        "control plane pods are ready",
        result,
    )
}

pub(super) fn webhook(name: &str, configuration: &Read) -> Row {
    let result = read(configuration).and_then(|configuration| {
        let hooks = configuration["webhooks"].as_array();
        let hooks = hooks.map_or(&[][..], Vec::as_slice);
        let has_bundle = |hook: &Value| {
            let bundle = hook["clientConfig"]["caBundle"].as_str();
            bundle.is_some_and(|bundle| !bundle.is_empty())
        };
        if !hooks.is_empty() && hooks.iter().all(has_bundle) {
            return Ok(());
        }
        Err(format!(
            "the configuration of {name} has no caBundle, so that API servers cannot call it"
        ))
    });
    Row::new(
        "linkerd-webhooks-and-apisvc-tls",
        "l5d-proxy-injector-webhook-cert-valid",
        format!("{name} webhook has a CA bundle"),
        result,
    )
}

pub(super) fn tap_api(service: &Read) -> Row {
    let result = read(service).and_then(|service| {
        let conditions = service["status"]["conditions"].as_array();
        let available = conditions
            .into_iter()
            .flatten()
            .find(|condition| condition["type"] == "Available");
        let available = available.ok_or("the API server has not tried it yet")?;
        if available["status"] == "True" {
            return Ok(());
        }
        let message = available["message"].as_str().unwrap_or_default();
        Err(format!("the APIService is not available: {message}"))
    });
    Row::new(
        "linkerd-viz",
        "l5d-tap-api",
        "tap API service is running",
        result,
    )
}

pub(super) fn viz_pods(namespace: &str, pods: &Read) -> Row {
    let result = read(pods).and_then(|pods| match items(pods) {
        [] => Err(format!("the namespace {namespace} has no pods")),
        pods => all_ready(pods),
    });
    Row::new(
        "linkerd-viz",
        "l5d-viz-pods-running",
        "viz extension pods are running",
        result,
    )
}

/// Returns the results of the metrics API's self-check.
pub(super) fn self_checks(checks: &Read) -> Vec<Row> {
    let row = |description: &str, result| {
        Row::new("linkerd-viz", "l5d-viz-metrics-api", description, result)
    };
    let checks = match checks {
        Ok(checks) => checks,
        Err(error) => {
            return vec![row(
                "viz extension self-check",
                Err(format!("the metrics API did not respond: {error}")),
            )];
        }
    };
    let results = checks["results"].as_array().into_iter().flatten();
    let rows = results.map(|result| {
        let text = |name: &str| result[name].as_str().unwrap_or_default();
        let outcome = match text("Status") {
            "OK" => Ok(()),
            _ => Err(text("FriendlyMessageToUser").to_owned()),
        };
        row(text("CheckDescription"), outcome)
    });
    rows.collect()
}

/// Returns the checks of meshed pods, as the metrics API lists them. `scraper` has their metrics.
pub(super) fn data_plane(pods: &Read, scraper: &str) -> Vec<Row> {
    let Ok(pods) = pods else {
        // The self-check has failed too.
        return Vec::new();
    };
    let is_meshed = |pod: &&Value| {
        pod["controllerNamespace"]
            .as_str()
            .is_some_and(|it| !it.is_empty())
            && pod["status"] == "Running"
            // Agents belong to the mesh and have no proxy.
            && pod["controlPlane"] != true
    };
    let pods = pods["pods"].as_array().into_iter().flatten();
    let meshed: Vec<&Value> = pods.filter(is_meshed).collect();
    let without = |field: &str, problem: &str| {
        let without = meshed.iter().filter(|pod| pod[field] != true);
        let names: Vec<&str> = without.filter_map(|pod| pod["name"].as_str()).collect();
        none(&names, problem)
    };
    vec![
        Row::new(
            "linkerd-viz-data-plane",
            "l5d-data-plane-ready",
            "data plane proxies are ready",
            without("proxyReady", "the proxy is not ready"),
        )
        .warning(),
        Row::new(
            "linkerd-viz-data-plane",
            "l5d-data-plane-prom",
            format!("data plane proxy metrics are present in {scraper}"),
            without("added", &format!("{scraper} has no metrics of the proxy")),
        )
        .warning(),
    ]
}

fn read(read: &Read) -> Result<&Value, String> {
    read.as_ref().map_err(Clone::clone)
}

fn items(list: &Value) -> &[Value] {
    list["items"].as_array().map_or(&[], Vec::as_slice)
}

/// Pods of completed Jobs are not ready any more.
fn all_ready(pods: &[Value]) -> Result<(), String> {
    let not_ready = pods
        .iter()
        .filter(|pod| pod["status"]["phase"] != "Succeeded" && !is_ready(pod));
    let names: Vec<&str> = not_ready
        .filter_map(|pod| pod["metadata"]["name"].as_str())
        .collect();
    none(&names, "not ready")
}

fn is_ready(pod: &Value) -> bool {
    let mut conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
    conditions.any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

/// An error that names pods, if there are any.
fn none(pods: &[&str], problem: &str) -> Result<(), String> {
    if pods.is_empty() {
        return Ok(());
    }
    let shown = pods.iter().take(MAX_NAMES).copied().collect::<Vec<_>>();
    let further = match pods.len().saturating_sub(MAX_NAMES) {
        0 => String::new(),
        further => format!(" and {further} more"),
    };
    Err(format!("{problem}: {}{further}", shown.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str, component: &str, ready: &str) -> Value {
        json!({
            "metadata": { "name": name, "labels": { COMPONENT: component } },
            "status": { "phase": "Running", "conditions": [{ "type": "Ready", "status": ready }] },
        })
    }

    fn error(row: Row) -> String {
        row.error.unwrap_or_default()
    }

    #[test]
    fn control_plane_needs_a_ready_pod_of_each_component() {
        let mut pods: Vec<Value> = COMPONENTS
            .iter()
            .map(|component| pod(component, component, "True"))
            .collect();
        pods.push(json!({ "metadata": { "name": "job" }, "status": { "phase": "Succeeded" } }));
        let list = |pods: &[Value]| Ok(json!({ "items": pods }));
        assert_eq!(error(control_plane(&list(&pods), &COMPONENTS)), "");
        assert_eq!(
            error(control_plane(&list(&pods[..2]), &COMPONENTS_OF_NODE)),
            ""
        );
        let mut more = pods.clone();
        more.push(pod("identity-2", "identity", "False"));
        assert_eq!(
            error(control_plane(&list(&more), &COMPONENTS)),
            "not ready: identity-2"
        );
        assert_eq!(
            error(control_plane(&list(&pods[1..]), &COMPONENTS)),
            "no pod of destination is ready"
        );
        assert_eq!(
            error(control_plane(&Err("forbidden".to_owned()), &COMPONENTS)),
            "forbidden"
        );
    }

    #[test]
    fn webhooks_and_api_services_are_checked() {
        let hook =
            |bundle: &str| json!({ "webhooks": [{ "clientConfig": { "caBundle": bundle } }] });
        assert_eq!(error(webhook("x", &Ok(hook("QQ==")))), "");
        for bad in [hook(""), json!({ "webhooks": [] }), json!({})] {
            assert!(error(webhook("x", &Ok(bad))).contains("no caBundle"));
        }
        let service = |status: &str| {
            let condition = json!({ "type": "Available", "status": status, "message": "refused" });
            Ok(json!({ "status": { "conditions": [condition] } }))
        };
        assert_eq!(error(tap_api(&service("True"))), "");
        assert!(error(tap_api(&service("False"))).ends_with("refused"));
        assert!(error(tap_api(&Ok(json!({})))).contains("not tried"));
    }

    #[test]
    fn pods_without_ready_proxies_or_metrics_are_named() {
        let pod = |name: &str, ready: bool, added: bool| {
            json!({
                "name": name, "controllerNamespace": "linkerd", "status": "Running",
                "proxyReady": ready, "added": added,
            })
        };
        let mut pods = vec![
            pod("shop/a", true, true),
            pod("shop/b", false, true),
            json!({ "name": "shop/unmeshed", "controllerNamespace": "", "status": "Running" }),
            json!({
                "name": "linkerd/mesh-agent", "controllerNamespace": "linkerd", "status": "Running",
                "controlPlane": true,
            }),
        ];
        pods.extend((0..7).map(|at| pod(&format!("shop/c{at}"), true, false)));
        let rows = data_plane(&Ok(json!({ "pods": pods })), "Prometheus");
        assert!(rows.iter().all(|row| row.is_warning));
        assert_eq!(error(rows[0].clone()), "the proxy is not ready: shop/b");
        assert!(error(rows[1].clone()).ends_with("shop/c4 and 2 more"));
    }

    #[test]
    fn rows_have_the_fields_of_linkerd() {
        let failed = api_server(&Err("refused".to_owned())).to_json();
        let expected = json!({
            "Category": "kubernetes-api", "Description": "can query the Kubernetes API",
            "Retry": false, "Warning": false, "Err": {}, "ErrMsg": "refused",
            "HintURL": "https://linkerd.io/2/checks/#k8s-api",
        });
        assert_eq!(failed, expected);
        let passed = api_server(&Ok(Value::Null)).to_json();
        assert!(passed["Err"].is_null() && passed.get("ErrMsg").is_none());
    }
}
