//! Settings of distributed tracing.

use std::path::PathBuf;
use std::time::Duration;

use super::ControlAddr;
use super::env::Env;

/// The collector of spans, and the labels of exported spans.
#[derive(Clone, Debug)]
pub(crate) struct TraceConfig {
    pub(crate) collector: ControlAddr,
    /// The name of the service that the spans are reported for.
    pub(crate) service_name: Option<String>,
    /// A file of the downward API with the labels of the pod.
    pub(crate) labels_file: Option<PathBuf>,
    /// Attributes by name. Later ones replace earlier ones.
    pub(crate) attributes: Vec<(String, String)>,
    pub(crate) host_name: Option<String>,
    /// How long a span waits for others to be exported with.
    pub(crate) delay: Duration,
}

/// As in Linkerd's proxy, and the default of OpenTelemetry's SDKs.
const DELAY: Duration = Duration::from_secs(5);

/// The only protocol, and its name in the variable that Linkerd's injector sets.
const PROTOCOL: &str = "opentelemetry";

impl TraceConfig {
    /// Returns `None` if there is no collector.
    pub(super) fn read(env: &Env<'_>) -> Option<Self> {
        if !env.is_set("TRACE_COLLECTOR_SVC_ADDR") {
            return None;
        }
        let collector =
            ControlAddr::read(env, "TRACE_COLLECTOR_SVC_ADDR", "TRACE_COLLECTOR_SVC_NAME");
        let _only = env.optional("TRACE_PROTOCOL", protocol);
        let extra = env.text("TRACE_EXTRA_ATTRIBUTES").unwrap_or_default();
        let mut attributes: Vec<_> = extra.lines().filter_map(attribute).collect();
        let standard = env.own("OTEL_RESOURCE_ATTRIBUTES", standard_attributes);
        attributes.extend(standard.into_iter().flatten());
        Some(Self {
            collector: collector?,
            service_name: env
                .text("TRACE_SERVICE_NAME")
                .filter(|name| !name.is_empty()),
            labels_file: env.text("TRACE_ATTRIBUTES_PATH").map(PathBuf::from),
            attributes,
            host_name: env.get("HOSTNAME").filter(|name| !name.is_empty()),
            delay: DELAY,
        })
    }
}

fn protocol(text: &str) -> Result<(), String> {
    if text == PROTOCOL {
        return Ok(());
    }
    Err(format!(
        "{text:?} is not {PROTOCOL:?}, the only supported protocol"
    ))
}

/// Parses `key=value`, with optional quotes, as Linkerd's proxy. Lines without `=` are ignored.
fn attribute(line: &str) -> Option<(String, String)> {
    let (name, value) = line.split_once('=')?;
    Some((name.trim().to_owned(), value.trim_matches('"').to_owned()))
}

/// Parses `key=value` separated by commas, percent-encoded, as OpenTelemetry specifies
/// `OTEL_RESOURCE_ATTRIBUTES`.
fn standard_attributes(text: &str) -> Result<Vec<(String, String)>, String> {
    let items = text
        .split(',')
        .map(str::trim)
        .filter(|item| !item.is_empty());
    let parse = |item: &str| {
        let (name, value) = item.split_once('=')?;
        Some((
            percent_decoded(name.trim())?,
            percent_decoded(value.trim())?,
        ))
    };
    items
        .map(|item| {
            let invalid = || format!("{item:?} is not a percent-encoded \"key=value\"");
            parse(item).ok_or_else(invalid)
        })
        .collect()
}

fn percent_decoded(text: &str) -> Option<String> {
    let mut parts = text.split('%');
    let mut bytes = parts.next()?.as_bytes().to_vec();
    for part in parts {
        let (digits, rest) = part.split_at_checked(2)?;
        // The parser of numbers accepts a sign too.
        if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return None;
        }
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        bytes.extend(rest.as_bytes());
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_lines_or_percent_encoded_lists() {
        let pair = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        assert_eq!(attribute("a=\"b=c\""), Some(pair(("a", "b=c"))));
        assert_eq!(attribute("a="), Some(pair(("a", ""))));
        assert_eq!(attribute("a"), None);
        let list = standard_attributes("a=1, b=x%2Cy%20z,,c=").unwrap();
        assert_eq!(list, [("a", "1"), ("b", "x,y z"), ("c", "")].map(pair));
        for invalid in ["a", "a=%", "a=%+f", "a=%zz", "a=%ff"] {
            assert!(standard_attributes(invalid).is_err(), "{invalid}");
        }
    }
}
