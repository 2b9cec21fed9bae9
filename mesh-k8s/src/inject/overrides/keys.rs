//! The table of configuration annotations: what each accepts, and which value it overrides.
//!
//! `docs/reference/annotations.md` documents them; a test checks that it lists each.

use std::net::IpAddr;

use ipnet::IpNet;
use mesh_core::annotation;
use mesh_core::policy::inbound::DefaultPolicy;
use mesh_core::ports::PortSet;

use crate::inject::units::{parse_bool, parse_duration, whole_units};
use crate::values::{Redirection, Values};

/// A configuration annotation.
pub(in crate::inject) struct ConfigKey {
    pub(in crate::inject) name: &'static str,
    pub(super) inherited: bool,
    /// Changes nothing if it fails.
    pub(super) apply: fn(&mut Values, &str) -> Result<(), OverrideError>,
}

/// Why an annotation overrides nothing.
pub(in crate::inject) enum OverrideError {
    /// The value is invalid; the text says what is expected.
    Invalid(String),
    /// The value is valid and has no effect in this mesh; the text says why.
    NotApplicable(&'static str),
}

impl From<String> for OverrideError {
    fn from(expected: String) -> Self {
        Self::Invalid(expected)
    }
}

const fn inherited(
    name: &'static str,
    apply: fn(&mut Values, &str) -> Result<(), OverrideError>,
) -> ConfigKey {
    ConfigKey {
        name,
        inherited: true,
        apply,
    }
}

const fn workload_only(
    name: &'static str,
    apply: fn(&mut Values, &str) -> Result<(), OverrideError>,
) -> ConfigKey {
    ConfigKey {
        name,
        inherited: false,
        apply,
    }
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

/// In the order in which they are applied.
pub(in crate::inject) const CONFIG_KEYS: &[ConfigKey] = &[
    inherited("config.linkerd.io/proxy-image", |v, text| {
        set(&mut v.proxy.image.name, required(text))
    }),
    inherited("config.linkerd.io/proxy-version", |v, text| {
        set(&mut v.proxy.image.version, Ok(text.to_owned()))
    }),
    inherited("config.linkerd.io/image-pull-policy", |v, text| {
        let policy = one_of(text, &["Always", "IfNotPresent", "Never"])?;
        v.image_pull_policy.clone_from(&policy);
        v.proxy.image.pull_policy = policy;
        Ok(())
    }),
    inherited(annotation::CONTROL_PORT, |v, text| {
        set(&mut v.proxy.ports.control, port(text))
    }),
    inherited(annotation::INBOUND_PORT, |v, text| {
        set(&mut v.proxy.ports.inbound, port(text))
    }),
    inherited(annotation::ADMIN_PORT, |v, text| {
        set(&mut v.proxy.ports.admin, port(text))
    }),
    inherited(annotation::OUTBOUND_PORT, |v, text| {
        set(&mut v.proxy.ports.outbound, port(text))
    }),
    inherited("config.linkerd.io/proxy-admin-shutdown", |v, text| {
        set(&mut v.proxy.enable_shutdown_endpoint, enabled(text))
    }),
    inherited("config.linkerd.io/proxy-log-level", |v, text| {
        set(&mut v.proxy.log_level, required(text))
    }),
    inherited("config.linkerd.io/proxy-log-http-headers", |v, text| {
        set(
            &mut v.proxy.log_http_headers,
            one_of(text, &["off", "insecure", ""]),
        )
    }),
    inherited("config.linkerd.io/proxy-log-format", |v, text| {
        set(&mut v.proxy.log_format, one_of(text, &["plain", "json"]))
    }),
    inherited(annotation::REQUIRE_IDENTITY_PORTS, |v, text| {
        set(&mut v.proxy.require_identity_on_inbound_ports, ports(text))
    }),
    inherited(
        "config.linkerd.io/proxy-metrics-hostname-labels",
        |v, text| set(&mut v.proxy.metrics.hostname_labels, parse_bool(text)),
    ),
    inherited(
        "config.linkerd.io/proxy-outbound-connect-timeout",
        |v, text| set(&mut v.proxy.outbound_connect_timeout, go_millis(text)),
    ),
    inherited(
        "config.linkerd.io/proxy-inbound-connect-timeout",
        |v, text| set(&mut v.proxy.inbound_connect_timeout, go_millis(text)),
    ),
    inherited(
        "config.linkerd.io/proxy-outbound-discovery-cache-unused-timeout",
        |v, text| {
            set(
                &mut v.proxy.outbound_discovery_cache_unused_timeout,
                go_seconds(text),
            )
        },
    ),
    inherited(
        "config.linkerd.io/proxy-inbound-discovery-cache-unused-timeout",
        |v, text| {
            set(
                &mut v.proxy.inbound_discovery_cache_unused_timeout,
                go_seconds(text),
            )
        },
    ),
    inherited(
        "config.linkerd.io/proxy-disable-outbound-protocol-detect-timeout",
        |v, text| {
            set(
                &mut v.proxy.disable_outbound_protocol_detect_timeout,
                parse_bool(text),
            )
        },
    ),
    inherited(
        "config.linkerd.io/proxy-disable-inbound-protocol-detect-timeout",
        |v, text| {
            set(
                &mut v.proxy.disable_inbound_protocol_detect_timeout,
                parse_bool(text),
            )
        },
    ),
    inherited("config.linkerd.io/shutdown-grace-period", |v, text| {
        set(&mut v.proxy.shutdown_grace_period, go_millis(text))
    }),
    workload_only("config.linkerd.io/enable-gateway", |v, text| {
        set(&mut v.proxy.is_gateway, parse_bool(text))
    }),
    inherited("config.linkerd.io/proxy-cpu-request", |v, text| {
        v.proxy.runtime.workers.minimum = whole_units(text)?;
        v.proxy.resources.cpu.request = text.to_owned();
        Ok(())
    }),
    inherited("config.linkerd.io/proxy-cpu-limit", |v, text| {
        v.proxy.runtime.workers.maximum = Some(whole_units(text)?);
        v.proxy.resources.cpu.limit = text.to_owned();
        Ok(())
    }),
    workload_only(
        "config.linkerd.io/proxy-cpu-ratio-limit",
        |v, text| match text.parse::<f64>() {
            Ok(ratio) if 0.0 < ratio && ratio < 1.0 => {
                v.proxy.runtime.workers.maximum_cpu_ratio = Some(ratio);
                Ok(())
            }
            _ => Err("expected a number between 0 and 1, both excluded"
                .to_owned()
                .into()),
        },
    ),
    inherited("config.linkerd.io/proxy-memory-request", |v, text| {
        set(&mut v.proxy.resources.memory.request, quantity(text))
    }),
    inherited("config.linkerd.io/proxy-memory-limit", |v, text| {
        set(&mut v.proxy.resources.memory.limit, quantity(text))
    }),
    inherited(
        "config.linkerd.io/proxy-ephemeral-storage-request",
        |v, text| {
            set(
                &mut v.proxy.resources.ephemeral_storage.request,
                quantity(text),
            )
        },
    ),
    inherited(
        "config.linkerd.io/proxy-ephemeral-storage-limit",
        |v, text| {
            set(
                &mut v.proxy.resources.ephemeral_storage.limit,
                quantity(text),
            )
        },
    ),
    inherited(annotation::PROXY_UID, |v, text| {
        set(&mut v.proxy.uid, id(text))
    }),
    inherited("config.linkerd.io/proxy-gid", |v, text| {
        set(&mut v.proxy.gid, id(text))
    }),
    inherited("config.linkerd.io/enable-external-profiles", |v, text| {
        set(&mut v.proxy.enable_external_profiles, parse_bool(text))
    }),
    inherited(annotation::SKIP_INBOUND_PORTS, |v, text| {
        set(&mut v.proxy_init.ignore_inbound_ports, ports(text))
    }),
    inherited(annotation::SKIP_OUTBOUND_PORTS, |v, text| {
        set(&mut v.proxy_init.ignore_outbound_ports, ports(text))
    }),
    inherited(annotation::SKIP_SUBNETS, |v, text| {
        set(&mut v.proxy_init.skip_subnets, subnets(text))
    }),
    workload_only("config.linkerd.io/debug-image", |v, text| {
        set(&mut v.debug_container.image.name, required(text))
    }),
    workload_only("config.linkerd.io/debug-image-version", |v, text| {
        set(&mut v.debug_container.image.version, required(text))
    }),
    workload_only("config.linkerd.io/debug-image-pull-policy", |v, text| {
        let policy = one_of(text, &["Always", "IfNotPresent", "Never"]);
        set(&mut v.debug_container.image.pull_policy, policy)
    }),
    inherited("config.linkerd.io/proxy-await", |v, text| {
        set(&mut v.proxy.r#await, enabled(text))
    }),
    inherited(annotation::DEFAULT_INBOUND_POLICY, |v, text| {
        let policy = text
            .parse::<DefaultPolicy>()
            .map_err(|error| error.to_string());
        set(
            &mut v.proxy.default_inbound_policy,
            policy.map(|policy| policy.as_str().to_owned()),
        )
    }),
    inherited("config.linkerd.io/access-log", |v, text| {
        set(&mut v.proxy.access_log, one_of(text, &["apache", "json"]))
    }),
    workload_only("config.linkerd.io/close-wait-timeout", |v, text| {
        let timeout = parse_duration(text)?;
        if v.redirection() != Redirection::InitContainer {
            return Err(OverrideError::NotApplicable(
                "the init container sets it, and this mesh adds none",
            ));
        }
        if !v.proxy_init.run_as_root {
            return Err(OverrideError::NotApplicable(
                "it requires an init container that runs as root (proxyInit.runAsRoot)",
            ));
        }
        set(
            &mut v.proxy_init.close_wait_timeout_secs,
            Ok(timeout.as_secs()),
        )
    }),
    inherited(
        "config.alpha.linkerd.io/proxy-wait-before-exit-seconds",
        |v, text| {
            let seconds = text
                .parse()
                .map_err(|error| format!("expected a number of seconds: {error}"));
            set(&mut v.proxy.wait_before_exit_seconds, seconds)
        },
    ),
];

fn set<T>(target: &mut T, value: Result<T, String>) -> Result<(), OverrideError> {
    *target = value?;
    Ok(())
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
    let blocks = text
        .split(',')
        .map(str::trim)
        .filter(|block| !block.is_empty());
    let mut list = Vec::new();
    for block in blocks {
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
