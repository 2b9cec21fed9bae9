//! Validation of ServiceProfiles: Linkerd's verdicts, and what the controllers cannot apply.

use serde::Deserialize;
use serde_json::Value;

use super::Invalid;
use crate::crd::ServiceProfileSpec;
use crate::profile;

/// Checks an object of the kind ServiceProfile.
///
/// It is valid if the controllers and proxies apply each of its fields. Linkerd's validation also
/// accepts regular expressions, methods, authorities and retry budgets that its proxies ignore.
///
/// # Errors
///
/// The problems of the object.
pub fn service_profile(object: &Value) -> Result<(), Vec<Invalid>> {
    let mut problems = Vec::new();
    for field in object.as_object().into_iter().flat_map(|map| map.keys()) {
        if !["apiVersion", "kind", "metadata", "spec"].contains(&field.as_str()) {
            problems.push(Invalid::new(
                field,
                "is not a field of a ServiceProfile; remove it",
            ));
        }
    }
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    if !is_dns_subdomain(name) {
        problems.push(Invalid::new(
            "metadata.name",
            format!(
                "{} is not a DNS name in lower case; write the full name of the Service, \
                 for example web.shop.svc.cluster.local",
                crate::invalid::shown(name)
            ),
        ));
    }
    match spec(&object["spec"]).map(|spec| profile::convert(name, &spec)) {
        Ok(Ok(converted)) => problems.extend(converted.ignored),
        Ok(Err(found)) => problems.extend(found),
        Err(problem) => problems.push(problem),
    }
    if problems.is_empty() {
        return Ok(());
    }
    Err(problems)
}

fn spec(value: &Value) -> Result<ServiceProfileSpec, Invalid> {
    if !value.is_object() {
        return Err(Invalid::new(
            "spec",
            "is missing; write the routes of the destination",
        ));
    }
    ServiceProfileSpec::deserialize(value).map_err(|error| {
        // Errors of serde_json name no field. Errors of serde_norway do, and JSON is YAML.
        let text = match serde_norway::from_str::<ServiceProfileSpec>(&value.to_string()) {
            Err(error) => error.to_string(),
            Ok(_) => error.to_string(),
        };
        let text = text.rfind(" at line ").map_or(&*text, |end| &text[..end]);
        match text.split_once(": ") {
            Some((field, problem)) if !field.contains(' ') => {
                Invalid::new(format!("spec.{field}"), problem)
            }
            _ => Invalid::new("spec", text),
        }
    })
}

/// Returns whether Kubernetes accepts the name of an object: a DNS name of RFC 1123.
fn is_dns_subdomain(name: &str) -> bool {
    let is_inner = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_label = |label: &str| {
        let bytes = label.as_bytes();
        matches!((bytes.first(), bytes.last()), (Some(first), Some(last)) if is_inner(first) && is_inner(last))
            && bytes.iter().all(|byte| is_inner(byte) || *byte == b'-')
    };
    name.len() <= 253 && name.split('.').all(is_label)
}

#[cfg(test)]
mod tests;
