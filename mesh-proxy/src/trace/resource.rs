//! The attributes of the process that reports the spans.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use mesh_core::trace::{AttributeValue, Resource};

use crate::config::TraceConfig;

/// What both injectors name the proxy, unless they are configured otherwise.
const DEFAULT_SERVICE: &str = "linkerd-proxy";

/// The labels of a pod take less: the API server limits them with its other metadata to 256 KiB.
const MAX_LABELS_FILE: u64 = 256 << 10;

/// Reads the file of the pod's labels, and adds the other attributes: the environment's replace
/// labels, and labels replace the name of the service, as in Linkerd's proxy.
pub(super) fn read(config: &TraceConfig) -> Resource {
    let text = |value: &str| AttributeValue::Text(value.to_owned());
    let service = config.service_name.as_deref().unwrap_or(DEFAULT_SERVICE);
    let mut all = BTreeMap::from([
        ("service.name".to_owned(), text(service)),
        (
            "process.pid".to_owned(),
            AttributeValue::Integer(std::process::id().into()),
        ),
        (
            "process.start_timestamp".to_owned(),
            AttributeValue::Integer(now()),
        ),
    ]);
    if let Some(name) = &config.host_name {
        let _none = all.insert("host.name".to_owned(), text(name));
    }
    let labels = config.labels_file.as_deref().map(read_labels);
    for (name, value) in labels
        .into_iter()
        .flatten()
        .chain(config.attributes.clone())
    {
        let _replaced = all.insert(name, AttributeValue::Text(value));
    }
    Resource {
        attributes: all.into_iter().collect(),
    }
}

/// Reads the file, or reports that it cannot be read: spans without labels are better than none.
fn read_labels(path: &Path) -> Vec<(String, String)> {
    let read = std::fs::File::open(path).and_then(|file| {
        let mut text = String::new();
        file.take(MAX_LABELS_FILE).read_to_string(&mut text)?;
        Ok(text)
    });
    match read {
        Ok(text) => text.lines().filter_map(parse_label).collect(),
        Err(error) => {
            tracing::warn!(?path, %error, "Cannot read the labels of the pod; spans are exported without them");
            Vec::new()
        }
    }
}

/// Parses a line of a downward API volume: `key="value"`.
fn parse_label(line: &str) -> Option<(String, String)> {
    let (name, value) = line.split_once('=')?;
    Some((name.to_owned(), value.trim_matches('"').to_owned()))
}

/// Seconds since 1970. The proxy reads its environment when it starts.
fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| {
        i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;
    use crate::config::tests::trace_config;

    fn attributes(config: &TraceConfig) -> BTreeMap<String, AttributeValue> {
        let all = read(config).attributes;
        let count = all.len();
        let all: BTreeMap<_, _> = all.into_iter().collect();
        assert_eq!(all.len(), count, "each name once");
        all
    }

    fn text(value: &str) -> AttributeValue {
        AttributeValue::Text(value.to_owned())
    }

    #[test]
    fn environment_replaces_labels_and_labels_the_name() {
        let mut labels = tempfile::NamedTempFile::new().unwrap();
        labels
            .write_all(
                b"app=\"web\"\nservice.name=\"of-label\"\nzone=\"a\"\nempty=\"\"\nno value\n",
            )
            .unwrap();
        let path = labels.path().to_str().unwrap();
        let config = trace_config(&[
            ("TRACE_SERVICE_NAME", "of-variable"),
            ("TRACE_ATTRIBUTES_PATH", path),
            ("TRACE_EXTRA_ATTRIBUTES", "zone=b\nk8s.pod.ip=10.0.0.1\n"),
            ("OTEL_RESOURCE_ATTRIBUTES", "zone=c,team=a%2Cb"),
            ("HOSTNAME", "web-1"),
        ]);
        let all = attributes(&config);
        for (name, value) in [
            ("app", "web"),
            ("empty", ""),
            ("host.name", "web-1"),
            ("k8s.pod.ip", "10.0.0.1"),
            ("service.name", "of-label"),
            ("team", "a,b"),
            ("zone", "c"),
        ] {
            assert_eq!(all.get(name), Some(&text(value)), "{name}");
        }
        let pid = AttributeValue::Integer(std::process::id().into());
        assert_eq!(all["process.pid"], pid);
        assert!(matches!(all["process.start_timestamp"], AttributeValue::Integer(at) if at > 0));
        assert_eq!(all.len(), 9);
    }

    #[test]
    fn missing_labels_leave_the_other_attributes() {
        let config = trace_config(&[("TRACE_ATTRIBUTES_PATH", "/nonexistent")]);
        let all = attributes(&config);
        assert_eq!(all["service.name"], text("linkerd-proxy"));
        assert_eq!(all.len(), 3);
    }

    #[test]
    fn labels_are_read_up_to_the_limit() {
        let mut labels = tempfile::NamedTempFile::new().unwrap();
        let limit = usize::try_from(MAX_LABELS_FILE).unwrap();
        let text = format!("a=\"1\"\n{}b=\"2\"\n", "\n".repeat(limit));
        labels.write_all(text.as_bytes()).unwrap();
        let path = labels.path().to_str().unwrap();
        let all = attributes(&trace_config(&[("TRACE_ATTRIBUTES_PATH", path)]));
        assert!(all.contains_key("a") && !all.contains_key("b"));
    }
}
