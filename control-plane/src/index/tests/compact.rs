//! Short lines of the values that `meshctl diagnostics policy` prints, for comparisons in tests.

use std::slice;

use serde_json::{Value, json};

/// Returns a line for the policy, each of its routes and authorizations, and each rule of a route.
pub(in crate::index) fn lines(policy: &Value) -> Vec<String> {
    let mut head = policy.as_object().unwrap().clone();
    let mut lines = Vec::new();
    for (name, member) in policy.as_object().unwrap().iter().rev() {
        let elements = match member {
            Value::Array(elements) => elements.as_slice(),
            Value::Object(fields) if fields.contains_key("object") => slice::from_ref(member),
            _ => continue,
        };
        head.remove(name);
        for element in elements {
            let mut element = element.as_object().unwrap().clone();
            let rules = element.remove("rules");
            lines.push(format!("{name} {}", text(&element.into())));
            for rule in rules.iter().flat_map(|rules| rules.as_array().unwrap()) {
                lines.push(format!("rule {}", text(rule)).trim_end().to_owned());
            }
        }
    }
    lines.insert(0, text(&head.into()));
    lines
}

/// Returns the reference of an object, and then its other fields in alphabetical order. A field
/// without `=` is true or has its usual value, and false is left out.
pub(in crate::index) fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(text).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Object(fields) => {
            let object = fields.get("object");
            let mut parts: Vec<String> = object.map(reference).into_iter().collect();
            for (name, field) in fields.iter().filter(|(name, _)| *name != "object") {
                parts.push(match field {
                    Value::Bool(false) => continue,
                    Value::Bool(true) => name.clone(),
                    field if *field == usual(name, object) => name.clone(),
                    Value::Object(_) => format!("{name}=({})", text(field)),
                    _ => format!("{name}={}", text(field)),
                });
            }
            parts.join(" ")
        }
        other => other.to_string(),
    }
}

/// `gateway/HTTPRoute shop/web`, `core/Service shop/web:80` or `default/http`.
pub(in crate::index) fn reference(object: &Value) -> String {
    let part = |name: &str| object[name].as_str().unwrap_or_default();
    if object.get("default").is_some() {
        return format!("default/{}", part("default"));
    }
    let group = match part("group") {
        "gateway.networking.k8s.io" => "gateway",
        "policy.linkerd.io" => "policy",
        other => other,
    };
    let number = |port: &Value| format!(":{port}");
    let port = object.get("port").map(number).unwrap_or_default();
    let section = object.get("section").map(|it| format!("#{}", text(it)));
    let name = format!("{}/{}{port}", part("namespace"), part("name"));
    format!(
        "{group}/{} {name}{}",
        part("kind"),
        section.unwrap_or_default()
    )
}

/// Returns the value that nearly every policy has in a field; `object` is its backend.
fn usual(name: &str, object: Option<&Value>) -> Value {
    match (name, object) {
        ("backoff", _) => json!({ "jitter": 1.0, "max": "250ms", "min": "25ms" }),
        ("endpoint", _) => json!({ "weight": 1 }),
        ("maxRequestBytes", _) => json!(65_536),
        ("balances", Some(object)) => {
            let part = |name: &str| object[name].as_str().unwrap_or_default();
            let (name, namespace, port) = (part("name"), part("namespace"), &object["port"]);
            json!({
                "authority": format!("{name}.{namespace}.svc.cluster.local:{port}"),
                "decay": "10s",
                "defaultRtt": "30ms",
                "queue": { "capacity": 100, "failFastTimeout": "3s" },
            })
        }
        _ => Value::Null,
    }
}
