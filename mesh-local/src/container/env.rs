//! Computes the environment of a container from values, references and `$(NAME)`.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, EnvVarSource, Pod};
use mesh_k8s::pod;

use super::data_sources::DataSources;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EnvError {
    #[error("env {var}: fieldRef {path:?} is not supported")]
    Field { var: String, path: String },
    #[error("env {var}: {what} does not exist")]
    Missing { var: String, what: String },
    #[error("env {var}: only fieldRef, configMapKeyRef and secretKeyRef are supported")]
    Unsupported { var: String },
}

/// The default variables of a container.
const DEFAULTS: [(&str, &str); 2] = [
    (
        "PATH",
        "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    ),
    ("HOME", "/root"),
];

/// Returns the variables of a container in order, without duplicates. The status of the pod must
/// have its addresses.
pub fn of_container(
    sources: &DataSources<'_>,
    pod: &Pod,
    container: &Container,
) -> Result<Vec<(String, String)>, EnvError> {
    let mut vars = EnvVars::default();
    for (name, value) in DEFAULTS {
        vars.set(name, value.to_owned());
    }
    let hostname = pod.metadata.name.clone().unwrap_or_default();
    vars.set("HOSTNAME", hostname);
    for from in container.env_from.iter().flatten() {
        let prefix = from.prefix.as_deref().unwrap_or_default();
        let map = from
            .config_map_ref
            .as_ref()
            .map(|map| sources.config_map(&map.name));
        let secret = from
            .secret_ref
            .as_ref()
            .map(|secret| sources.secret(&secret.name));
        for (name, value) in map.or(secret).flatten().unwrap_or_default() {
            vars.set(
                &format!("{prefix}{name}"),
                String::from_utf8_lossy(&value).into_owned(),
            );
        }
    }
    for var in container.env.iter().flatten() {
        let value = match (&var.value, &var.value_from) {
            (Some(value), _) => Some(vars.expand(value)),
            (None, None) => Some(String::new()),
            (None, Some(source)) => resolve(sources, pod, &var.name, source)?,
        };
        if let Some(value) = value {
            vars.set(&var.name, value);
        }
    }
    Ok(vars.list)
}

/// Replaces `$(NAME)` by the value of the variable. Unknown names are unchanged, and `$$(NAME)`
/// becomes `$(NAME)`.
pub fn expand(text: &str, lookup: impl Fn(&str) -> Option<String>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        let tail = &rest[at + 1..];
        if let Some(after) = tail.strip_prefix('$') {
            out.push('$');
            rest = after;
        } else if let Some((name, after)) = tail.strip_prefix('(').and_then(|t| t.split_once(')')) {
            match lookup(name) {
                Some(value) => out.push_str(&value),
                None => {
                    out.push_str("$(");
                    out.push_str(name);
                    out.push(')');
                }
            }
            rest = after;
        } else {
            out.push('$');
            rest = tail;
        }
    }
    out.push_str(rest);
    out
}

/// Returns the value of a field of the pod, or `None` if the path is not supported.
pub fn field(pod: &Pod, path: &str) -> Option<String> {
    let meta = &pod.metadata;
    let entry = |map: &Option<BTreeMap<String, String>>, key: &str| {
        let found = map.as_ref().and_then(|map| map.get(key).cloned());
        Some(found.unwrap_or_default())
    };
    let key_in = |prefix: &str| {
        path.strip_prefix(prefix)?
            .strip_prefix("['")?
            .strip_suffix("']")
    };
    if let Some(key) = key_in("metadata.labels") {
        return entry(&meta.labels, key);
    }
    if let Some(key) = key_in("metadata.annotations") {
        return entry(&meta.annotations, key);
    }
    let spec = pod.spec.as_ref();
    let status = pod.status.as_ref();
    let value = match path {
        "metadata.name" => meta.name.clone(),
        "metadata.namespace" => meta.namespace.clone(),
        "metadata.uid" => meta.uid.clone(),
        "spec.nodeName" => spec.and_then(|spec| spec.node_name.clone()),
        "spec.serviceAccountName" => Some(pod::service_account(pod).to_owned()),
        "status.podIP" => status.and_then(|status| status.pod_ip.clone()),
        "status.hostIP" => status.and_then(|status| status.host_ip.clone()),
        "status.podIPs" => {
            let ips: Vec<String> = pod::ips(pod).iter().map(ToString::to_string).collect();
            Some(ips.join(","))
        }
        "status.hostIPs" => {
            let ips = status.and_then(|status| status.host_ips.as_ref());
            let ips: Vec<&str> = ips.into_iter().flatten().map(|ip| ip.ip.as_str()).collect();
            Some(ips.join(","))
        }
        _ => return None,
    };
    Some(value.unwrap_or_default())
}

#[derive(Default)]
struct EnvVars {
    list: Vec<(String, String)>,
}

impl EnvVars {
    /// Sets a variable. An existing one keeps its position.
    fn set(&mut self, name: &str, value: String) {
        match self.list.iter_mut().find(|(existing, _)| existing == name) {
            Some((_, old)) => *old = value,
            None => self.list.push((name.to_owned(), value)),
        }
    }

    fn expand(&self, text: &str) -> String {
        expand(text, |name| lookup(&self.list, name))
    }
}

/// Returns the value of a variable.
pub fn lookup(vars: &[(String, String)], name: &str) -> Option<String> {
    let found = vars.iter().find(|(existing, _)| existing == name);
    found.map(|(_, value)| value.clone())
}

/// Resolves a reference. Returns `None` for an optional reference to a missing key.
fn resolve(
    sources: &DataSources<'_>,
    pod: &Pod,
    var: &str,
    source: &EnvVarSource,
) -> Result<Option<String>, EnvError> {
    let missing = |what: String| EnvError::Missing {
        var: var.to_owned(),
        what,
    };
    let keyed = |data: Option<BTreeMap<String, Vec<u8>>>,
                 key: &str,
                 optional: Option<bool>,
                 what: String| {
        let value = data.and_then(|data| data.get(key).cloned());
        match value {
            Some(value) => Ok(Some(String::from_utf8_lossy(&value).into_owned())),
            None if optional == Some(true) => Ok(None),
            None => Err(missing(what)),
        }
    };
    if let Some(reference) = &source.field_ref {
        return match field(pod, &reference.field_path) {
            Some(value) => Ok(Some(value)),
            None => Err(EnvError::Field {
                var: var.to_owned(),
                path: reference.field_path.clone(),
            }),
        };
    }
    if let Some(reference) = &source.config_map_key_ref {
        let what = format!("key {:?} of ConfigMap {:?}", reference.key, reference.name);
        let data = sources.config_map(&reference.name);
        return keyed(data, &reference.key, reference.optional, what);
    }
    if let Some(reference) = &source.secret_key_ref {
        let what = format!("key {:?} of Secret {:?}", reference.key, reference.name);
        let data = sources.secret(&reference.name);
        return keyed(data, &reference.key, reference.optional, what);
    }
    Err(EnvError::Unsupported {
        var: var.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::manifest::Manifests;

    #[test]
    fn expansion_follows_kubernetes() {
        let known = |name: &str| (name == "A").then(|| "1".to_owned());
        let check = |text: &str, expect: &str| assert_eq!(expand(text, known), expect, "{text}");
        check("x$(A)y", "x1y");
        check("$(B)", "$(B)");
        check("$$(A)", "$(A)");
        check("$$$(A)", "$1");
        check("$A $ $( $(A", "$A $ $( $(A");
        check("100%$", "100%$");
    }

    #[test]
    fn values_are_resolved_from_fields_maps_and_variables() {
        let mut manifests = Manifests::default();
        manifests.add_text(
            Path::new("a"),
            "kind: ConfigMap\nmetadata: {name: m, namespace: n}\ndata: {k: v, other: o}\n---\n\
             kind: Secret\nmetadata: {name: s, namespace: n}\ndata: {k: c2VjcmV0}\nstringData: {plain: text}\n---\n\
             kind: Pod\nmetadata: {name: p, namespace: n, uid: u, labels: {app: web}}\n\
             spec:\n  nodeName: here\n  containers:\n  - name: c\n    envFrom: [{prefix: M_, configMapRef: {name: m}}]\n    env:\n\
             \x20   - {name: IPS, valueFrom: {fieldRef: {fieldPath: status.podIPs}}}\n\
             \x20   - {name: APP, valueFrom: {fieldRef: {fieldPath: \"metadata.labels['app']\"}}}\n\
             \x20   - {name: SA, valueFrom: {fieldRef: {fieldPath: spec.serviceAccountName}}}\n\
             \x20   - {name: K, valueFrom: {configMapKeyRef: {name: m, key: k}}}\n\
             \x20   - {name: S, valueFrom: {secretKeyRef: {name: s, key: k}}}\n\
             \x20   - {name: P, valueFrom: {secretKeyRef: {name: s, key: plain}}}\n\
             \x20   - {name: NONE, valueFrom: {secretKeyRef: {name: s, key: gone, optional: true}}}\n\
             \x20   - {name: ALL, value: '$(APP)-$(LATER)-$(K)'}\n\
             \x20   - {name: LATER, value: x}\n\
             status: {podIP: 10.0.0.1, podIPs: [{ip: 10.0.0.1}, {ip: 'fd00::1'}]}\n",
        );
        assert_eq!(manifests.problems, []);
        let pod = manifests.pods.values().next().unwrap();
        let container = &pod.spec.as_ref().unwrap().containers[0];
        let sources = DataSources::new(&manifests, "n");
        let vars = of_container(&sources, pod, container).unwrap();
        let get = |name: &str| lookup(&vars, name);
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(get("IPS"), some("10.0.0.1,fd00::1"));
        assert_eq!(get("SA"), some("default"));
        assert_eq!(["K", "S", "P"].map(get), ["v", "secret", "text"].map(some));
        assert_eq!(get("M_other"), some("o"));
        assert_eq!(get("NONE"), None);
        assert_eq!(get("ALL"), some("web-$(LATER)-v"));
        assert_eq!(get("HOSTNAME"), some("p"));
        assert!(get("PATH").is_some());
    }
}
