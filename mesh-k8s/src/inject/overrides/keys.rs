//! The table of configuration annotations: what each accepts, and which value it overrides.
//!
//! `docs/reference/annotations.md` documents them; a test checks that it lists each.

use std::net::IpAddr;

use ipnet::IpNet;
use mesh_core::annotation;
use mesh_core::policy::inbound::DefaultPolicy;
use mesh_core::ports::PortSet;
use mesh_core::units::list_items;

use crate::inject::units::{parse_bool, parse_duration, whole_units};
use crate::values::{Redirection, Values};

/// A configuration annotation.
pub(in crate::inject) struct ConfigKey {
    pub(in crate::inject) name: &'static str,
    pub(super) inherited: bool,
    /// Changes nothing if it fails.
    pub(super) apply: Apply,
}

/// Why an annotation overrides nothing.
pub(in crate::inject) enum OverrideError {
    /// The value is invalid; the text says what the key accepts.
    Invalid(String),
    /// The value is valid and has no effect in this mesh; the text says why.
    NotApplicable(&'static str),
}

impl From<String> for OverrideError {
    fn from(expected: String) -> Self {
        Self::Invalid(expected)
    }
}

/// Sets a value.
type Apply = fn(&mut Values, &str) -> Result<(), OverrideError>;

const fn inherited(name: &'static str, apply: Apply) -> ConfigKey {
    ConfigKey {
        name,
        inherited: true,
        apply,
    }
}

const fn workload_only(name: &'static str, apply: Apply) -> ConfigKey {
    ConfigKey {
        inherited: false,
        ..inherited(name, apply)
    }
}

/// An annotation that sets one value to the result of a parser, which may have accepted texts.
macro_rules! key {
    ($constructor:ident $name:expr => $($field:ident).+: $parse:ident $($accepted:expr)?) => {
        $constructor($name, |values, text| {
            values.$($field).+ = $parse(text $(, &$accepted)?)?;
            Ok(())
        })
    };
}

/// The ports of the proxy's listeners, which must differ from each other.
pub(super) const PORTS: [&str; 4] = [
    annotation::INBOUND_PORT,
    annotation::OUTBOUND_PORT,
    annotation::ADMIN_PORT,
    annotation::CONTROL_PORT,
];

/// Annotations that restrict which clients may connect. A pod with an invalid one is rejected, even
/// if the annotation is its namespace's: the restriction would be missing.
pub(super) const SECURITY: [&str; 2] = [
    annotation::DEFAULT_INBOUND_POLICY,
    annotation::REQUIRE_IDENTITY_PORTS,
];

const PULL_POLICIES: [&str; 3] = ["Always", "IfNotPresent", "Never"];

/// The keys, in the order of their application.
pub(in crate::inject) const CONFIG_KEYS: &[ConfigKey] = &[
    key!(inherited "config.linkerd.io/proxy-image" => proxy.image.name: required),
    key!(inherited "config.linkerd.io/proxy-version" => proxy.image.version: any),
    inherited("config.linkerd.io/image-pull-policy", image_pull_policy),
    key!(inherited annotation::CONTROL_PORT => proxy.ports.control: port),
    key!(inherited annotation::INBOUND_PORT => proxy.ports.inbound: port),
    key!(inherited annotation::ADMIN_PORT => proxy.ports.admin: port),
    key!(inherited annotation::OUTBOUND_PORT => proxy.ports.outbound: port),
    key!(inherited "config.linkerd.io/proxy-admin-shutdown"
        => proxy.enable_shutdown_endpoint: enabled),
    key!(inherited "config.linkerd.io/proxy-log-level" => proxy.log_level: required),
    key!(inherited "config.linkerd.io/proxy-log-http-headers"
        => proxy.log_http_headers: one_of ["off", "insecure", ""]),
    key!(inherited "config.linkerd.io/proxy-log-format"
        => proxy.log_format: one_of ["plain", "json"]),
    key!(inherited annotation::REQUIRE_IDENTITY_PORTS
        => proxy.require_identity_on_inbound_ports: ports),
    key!(inherited "config.linkerd.io/proxy-metrics-hostname-labels"
        => proxy.metrics.hostname_labels: parse_bool),
    key!(inherited "config.linkerd.io/proxy-outbound-connect-timeout"
        => proxy.outbound_connect_timeout: go_millis),
    key!(inherited "config.linkerd.io/proxy-inbound-connect-timeout"
        => proxy.inbound_connect_timeout: go_millis),
    key!(inherited "config.linkerd.io/proxy-outbound-discovery-cache-unused-timeout"
        => proxy.outbound_discovery_cache_unused_timeout: go_seconds),
    key!(inherited "config.linkerd.io/proxy-inbound-discovery-cache-unused-timeout"
        => proxy.inbound_discovery_cache_unused_timeout: go_seconds),
    key!(inherited "config.linkerd.io/proxy-disable-outbound-protocol-detect-timeout"
        => proxy.disable_outbound_protocol_detect_timeout: parse_bool),
    key!(inherited "config.linkerd.io/proxy-disable-inbound-protocol-detect-timeout"
        => proxy.disable_inbound_protocol_detect_timeout: parse_bool),
    key!(inherited "config.linkerd.io/shutdown-grace-period"
        => proxy.shutdown_grace_period: go_millis),
    key!(workload_only "config.linkerd.io/enable-gateway" => proxy.is_gateway: parse_bool),
    inherited("config.linkerd.io/proxy-cpu-request", cpu_request),
    inherited("config.linkerd.io/proxy-cpu-limit", cpu_limit),
    key!(workload_only "config.linkerd.io/proxy-cpu-ratio-limit"
        => proxy.runtime.workers.maximum_cpu_ratio: ratio),
    key!(inherited "config.linkerd.io/proxy-memory-request"
        => proxy.resources.memory.request: quantity),
    key!(inherited "config.linkerd.io/proxy-memory-limit"
        => proxy.resources.memory.limit: quantity),
    key!(inherited "config.linkerd.io/proxy-ephemeral-storage-request"
        => proxy.resources.ephemeral_storage.request: quantity),
    key!(inherited "config.linkerd.io/proxy-ephemeral-storage-limit"
        => proxy.resources.ephemeral_storage.limit: quantity),
    key!(inherited annotation::PROXY_UID => proxy.uid: id),
    key!(inherited "config.linkerd.io/proxy-gid" => proxy.gid: id),
    key!(inherited "config.linkerd.io/enable-external-profiles"
        => proxy.enable_external_profiles: parse_bool),
    key!(inherited annotation::SKIP_INBOUND_PORTS => proxy_init.ignore_inbound_ports: ports),
    key!(inherited annotation::SKIP_OUTBOUND_PORTS => proxy_init.ignore_outbound_ports: ports),
    key!(inherited annotation::SKIP_SUBNETS => proxy_init.skip_subnets: subnets),
    key!(workload_only "config.linkerd.io/debug-image" => debug_container.image.name: required),
    key!(workload_only "config.linkerd.io/debug-image-version"
        => debug_container.image.version: required),
    key!(workload_only "config.linkerd.io/debug-image-pull-policy"
        => debug_container.image.pull_policy: one_of PULL_POLICIES),
    key!(inherited "config.linkerd.io/proxy-await" => proxy.r#await: enabled),
    key!(inherited annotation::DEFAULT_INBOUND_POLICY
        => proxy.default_inbound_policy: default_policy),
    key!(inherited "config.linkerd.io/access-log" => proxy.access_log: one_of ["apache", "json"]),
    workload_only("config.linkerd.io/close-wait-timeout", close_wait_timeout),
    key!(inherited "config.alpha.linkerd.io/proxy-wait-before-exit-seconds"
        => proxy.wait_before_exit_seconds: seconds),
];

fn image_pull_policy(values: &mut Values, text: &str) -> Result<(), OverrideError> {
    let policy = one_of(text, &PULL_POLICIES)?;
    values.image_pull_policy.clone_from(&policy);
    values.proxy.image.pull_policy = policy;
    Ok(())
}

fn cpu_request(values: &mut Values, text: &str) -> Result<(), OverrideError> {
    values.proxy.runtime.workers.minimum = whole_units(text)?;
    values.proxy.resources.cpu.request = text.to_owned();
    Ok(())
}

fn cpu_limit(values: &mut Values, text: &str) -> Result<(), OverrideError> {
    values.proxy.runtime.workers.maximum = Some(whole_units(text)?);
    values.proxy.resources.cpu.limit = text.to_owned();
    Ok(())
}

fn close_wait_timeout(values: &mut Values, text: &str) -> Result<(), OverrideError> {
    let timeout = parse_duration(text)?;
    if values.redirection() != Redirection::InitContainer {
        return Err(OverrideError::NotApplicable(
            "the init container sets it, and this mesh adds none",
        ));
    }
    if !values.proxy_init.run_as_root {
        return Err(OverrideError::NotApplicable(
            "it requires an init container that runs as root (proxyInit.runAsRoot)",
        ));
    }
    values.proxy_init.close_wait_timeout_secs = timeout.as_secs();
    Ok(())
}

fn any(text: &str) -> Result<String, String> {
    Ok(text.to_owned())
}

fn ratio(text: &str) -> Result<Option<f64>, String> {
    match text.parse::<f64>() {
        Ok(ratio) if 0.0 < ratio && ratio < 1.0 => Ok(Some(ratio)),
        _ => Err("expected a number between 0 and 1, both excluded".into()),
    }
}

fn default_policy(text: &str) -> Result<String, String> {
    let policy: DefaultPolicy = text.parse().map_err(|error| format!("{error}"))?;
    Ok(policy.as_str().to_owned())
}

fn seconds(text: &str) -> Result<u32, String> {
    text.parse()
        .map_err(|error| format!("expected a number of seconds: {error}"))
}

fn required(text: &str) -> Result<String, String> {
    if text.is_empty() {
        return Err("expected a non-empty text".into());
    }
    Ok(text.to_owned())
}

fn one_of(text: &str, allowed: &[&str]) -> Result<String, String> {
    if allowed.contains(&text) {
        return Ok(text.to_owned());
    }
    let named: Vec<&str> = allowed
        .iter()
        .copied()
        .filter(|value| !value.is_empty())
        .collect();
    Err(format!("expected one of {}", named.join(", ")))
}

fn enabled(text: &str) -> Result<bool, String> {
    one_of(text, &["enabled", "disabled"]).map(|value| value == "enabled")
}

fn port(text: &str) -> Result<u16, String> {
    match text.trim().parse() {
        Ok(port) if port > 0 => Ok(port),
        _ => Err("expected a port number (1-65535)".into()),
    }
}

fn ports(text: &str) -> Result<String, String> {
    let parsed = text
        .parse::<PortSet>()
        .and_then(|ports| ports.check_limit());
    match parsed {
        Ok(()) => Ok(text.split_whitespace().collect()),
        Err(error) => Err(error.to_string()),
    }
}

/// An address without a prefix length is a block of one address.
fn subnets(text: &str) -> Result<String, String> {
    let mut list = Vec::new();
    for block in list_items(text) {
        let address = || block.parse::<IpAddr>().map(IpNet::from);
        match block.parse::<IpNet>().or_else(|_| address()) {
            Ok(block) => list.push(block.to_string()),
            Err(_) => {
                return Err(format!("{block:?} is not a CIDR block such as 10.0.0.0/8"));
            }
        }
    }
    let most = annotation::MAX_SKIP_SUBNETS;
    if list.len() > most {
        return Err(format!(
            "the list has {} blocks, and at most {most} are allowed; join them into larger ones",
            list.len()
        ));
    }
    Ok(list.join(","))
}

/// A user or group ID. Redirection exempts the proxy by it, so 0 would exempt every process of
/// root; to the kernel, the highest ID means "unchanged".
fn id(text: &str) -> Result<i64, String> {
    match text.trim().parse::<u32>() {
        Ok(id) if id > 0 && id < u32::MAX => Ok(i64::from(id)),
        _ => Err("expected a numeric id from 1 to 4294967294".into()),
    }
}

fn quantity(text: &str) -> Result<String, String> {
    whole_units(text)?;
    Ok(text.to_owned())
}

fn go_millis(text: &str) -> Result<String, String> {
    Ok(format!("{}ms", parse_duration(text)?.as_millis()))
}

fn go_seconds(text: &str) -> Result<String, String> {
    Ok(format!("{}s", parse_duration(text)?.as_secs()))
}
