//! The table of configuration annotations: what each accepts, and which value it changes.
//!
//! `docs/reference/annotations.md` is its description for users; a test compares the two.

use std::net::IpAddr;

use ipnet::IpNet;
use mesh_core::{annotation, policy::inbound::DefaultPolicy, ports::PortSet};

use crate::{
    inject::units::{parse_bool, parse_duration, whole_units},
    values::{Redirection, Values},
};

pub(in crate::inject) struct Key {
    pub(in crate::inject) name: &'static str,
    pub(super) inherited: bool,
    /// Changes nothing when it fails; the text says what was expected.
    pub(super) apply: fn(&mut Values, &str) -> Result<(), Unusable>,
}

/// Why a value changes nothing.
pub(in crate::inject) enum Unusable {
    /// It cannot be read; the text says what was expected.
    Unreadable(String),
    /// It can be read and means nothing here; the text says why.
    NotApplicable(&'static str),
}

impl From<String> for Unusable {
    fn from(expected: String) -> Self {
        Self::Unreadable(expected)
    }
}

const fn key(name: &'static str, apply: fn(&mut Values, &str) -> Result<(), Unusable>) -> Key {
    Key {
        name,
        inherited: true,
        apply,
    }
}

const fn own(name: &'static str, apply: fn(&mut Values, &str) -> Result<(), Unusable>) -> Key {
    Key {
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

/// Annotations that say who may connect. An unreadable one may have been meant to keep clients out,
/// so no pod is admitted with it, whether it is the pod's own or its namespace's.
pub(super) const SECURITY: [&str; 2] = [
    annotation::DEFAULT_INBOUND_POLICY,
    annotation::REQUIRE_IDENTITY_PORTS,
];

/// In the order in which they are applied and warned about.
pub(in crate::inject) const KEYS: &[Key] = &[
    key("config.linkerd.io/proxy-image", |v, text| {
        set(&mut v.proxy.image.name, required(text))
    }),
    key("config.linkerd.io/proxy-version", |v, text| {
        set(&mut v.proxy.image.version, Ok(text.to_owned()))
    }),
    key("config.linkerd.io/image-pull-policy", |v, text| {
        let policy = one_of(text, &["Always", "IfNotPresent", "Never"])?;
        v.image_pull_policy.clone_from(&policy);
        v.proxy.image.pull_policy = policy;
        Ok(())
    }),
    key(annotation::CONTROL_PORT, |v, text| {
        set(&mut v.proxy.ports.control, port(text))
    }),
    key(annotation::INBOUND_PORT, |v, text| {
        set(&mut v.proxy.ports.inbound, port(text))
    }),
    key(annotation::ADMIN_PORT, |v, text| {
        set(&mut v.proxy.ports.admin, port(text))
    }),
    key(annotation::OUTBOUND_PORT, |v, text| {
        set(&mut v.proxy.ports.outbound, port(text))
    }),
    key("config.linkerd.io/proxy-admin-shutdown", |v, text| {
        set(&mut v.proxy.enable_shutdown_endpoint, enabled(text))
    }),
    key("config.linkerd.io/proxy-log-level", |v, text| {
        set(&mut v.proxy.log_level, required(text))
    }),
    key("config.linkerd.io/proxy-log-http-headers", |v, text| {
        set(
            &mut v.proxy.log_http_headers,
            one_of(text, &["off", "insecure", ""]),
        )
    }),
    key("config.linkerd.io/proxy-log-format", |v, text| {
        set(&mut v.proxy.log_format, one_of(text, &["plain", "json"]))
    }),
    key(annotation::REQUIRE_IDENTITY_PORTS, |v, text| {
        set(&mut v.proxy.require_identity_on_inbound_ports, ports(text))
    }),
    key(
        "config.linkerd.io/proxy-metrics-hostname-labels",
        |v, text| set(&mut v.proxy.metrics.hostname_labels, parse_bool(text)),
    ),
    key(
        "config.linkerd.io/proxy-outbound-connect-timeout",
        |v, text| set(&mut v.proxy.outbound_connect_timeout, millis(text)),
    ),
    key(
        "config.linkerd.io/proxy-inbound-connect-timeout",
        |v, text| set(&mut v.proxy.inbound_connect_timeout, millis(text)),
    ),
    key(
        "config.linkerd.io/proxy-outbound-discovery-cache-unused-timeout",
        |v, text| {
            set(
                &mut v.proxy.outbound_discovery_cache_unused_timeout,
                seconds(text),
            )
        },
    ),
    key(
        "config.linkerd.io/proxy-inbound-discovery-cache-unused-timeout",
        |v, text| {
            set(
                &mut v.proxy.inbound_discovery_cache_unused_timeout,
                seconds(text),
            )
        },
    ),
    key(
        "config.linkerd.io/proxy-disable-outbound-protocol-detect-timeout",
        |v, text| {
            set(
                &mut v.proxy.disable_outbound_protocol_detect_timeout,
                parse_bool(text),
            )
        },
    ),
    key(
        "config.linkerd.io/proxy-disable-inbound-protocol-detect-timeout",
        |v, text| {
            set(
                &mut v.proxy.disable_inbound_protocol_detect_timeout,
                parse_bool(text),
            )
        },
    ),
    key("config.linkerd.io/shutdown-grace-period", |v, text| {
        set(&mut v.proxy.shutdown_grace_period, millis(text))
    }),
    own("config.linkerd.io/enable-gateway", |v, text| {
        set(&mut v.proxy.is_gateway, parse_bool(text))
    }),
    key("config.linkerd.io/proxy-cpu-request", |v, text| {
        v.proxy.runtime.workers.minimum = whole_units(text)?;
        v.proxy.resources.cpu.request = text.to_owned();
        Ok(())
    }),
    key("config.linkerd.io/proxy-cpu-limit", |v, text| {
        v.proxy.runtime.workers.maximum = Some(whole_units(text)?);
        v.proxy.resources.cpu.limit = text.to_owned();
        Ok(())
    }),
    own(
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
    key("config.linkerd.io/proxy-memory-request", |v, text| {
        set(&mut v.proxy.resources.memory.request, quantity(text))
    }),
    key("config.linkerd.io/proxy-memory-limit", |v, text| {
        set(&mut v.proxy.resources.memory.limit, quantity(text))
    }),
    key(
        "config.linkerd.io/proxy-ephemeral-storage-request",
        |v, text| {
            set(
                &mut v.proxy.resources.ephemeral_storage.request,
                quantity(text),
            )
        },
    ),
    key(
        "config.linkerd.io/proxy-ephemeral-storage-limit",
        |v, text| {
            set(
                &mut v.proxy.resources.ephemeral_storage.limit,
                quantity(text),
            )
        },
    ),
    key(annotation::PROXY_UID, |v, text| {
        set(&mut v.proxy.uid, id(text))
    }),
    key("config.linkerd.io/proxy-gid", |v, text| {
        set(&mut v.proxy.gid, id(text))
    }),
    key("config.linkerd.io/enable-external-profiles", |v, text| {
        set(&mut v.proxy.enable_external_profiles, parse_bool(text))
    }),
    key(annotation::SKIP_INBOUND_PORTS, |v, text| {
        set(&mut v.proxy_init.ignore_inbound_ports, ports(text))
    }),
    key(annotation::SKIP_OUTBOUND_PORTS, |v, text| {
        set(&mut v.proxy_init.ignore_outbound_ports, ports(text))
    }),
    key(annotation::SKIP_SUBNETS, |v, text| {
        set(&mut v.proxy_init.skip_subnets, subnets(text))
    }),
    own("config.linkerd.io/debug-image", |v, text| {
        set(&mut v.debug_container.image.name, required(text))
    }),
    own("config.linkerd.io/debug-image-version", |v, text| {
        set(&mut v.debug_container.image.version, required(text))
    }),
    own("config.linkerd.io/debug-image-pull-policy", |v, text| {
        let policy = one_of(text, &["Always", "IfNotPresent", "Never"]);
        set(&mut v.debug_container.image.pull_policy, policy)
    }),
    key("config.linkerd.io/proxy-await", |v, text| {
        set(&mut v.proxy.r#await, enabled(text))
    }),
    key(annotation::DEFAULT_INBOUND_POLICY, |v, text| {
        let policy = text
            .parse::<DefaultPolicy>()
            .map_err(|error| error.to_string());
        set(
            &mut v.proxy.default_inbound_policy,
            policy.map(|policy| policy.as_str().to_owned()),
        )
    }),
    key("config.linkerd.io/access-log", |v, text| {
        set(&mut v.proxy.access_log, one_of(text, &["apache", "json"]))
    }),
    own("config.linkerd.io/close-wait-timeout", |v, text| {
        let timeout = parse_duration(text)?;
        if v.redirection() != Redirection::InitContainer {
            return Err(Unusable::NotApplicable(
                "it is set by the init container, and this mesh adds none",
            ));
        }
        if !v.proxy_init.run_as_root {
            return Err(Unusable::NotApplicable(
                "it needs an init container that runs as root (proxyInit.runAsRoot)",
            ));
        }
        set(
            &mut v.proxy_init.close_wait_timeout_secs,
            Ok(timeout.as_secs()),
        )
    }),
    key(
        "config.alpha.linkerd.io/proxy-wait-before-exit-seconds",
        |v, text| {
            let seconds = text
                .parse()
                .map_err(|error| format!("expected a number of seconds: {error}"));
            set(&mut v.proxy.wait_before_exit_seconds, seconds)
        },
    ),
];

fn set<T>(target: &mut T, value: Result<T, String>) -> Result<(), Unusable> {
    *target = value?;
    Ok(())
}

fn required(text: &str) -> Result<String, String> {
    if text.is_empty() {
        return Err("expected a text that is not empty".into());
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

/// An address alone is a block of one.
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
                return Err(format!(
                    "{block:?} is no block of addresses such as 10.0.0.0/8"
                ));
            }
        }
    }
    let most = annotation::MAX_SKIP_SUBNETS;
    if list.len() > most {
        return Err(format!(
            "it lists {} blocks, and a list may have {most}; join them into larger ones",
            list.len()
        ));
    }
    Ok(list.join(","))
}

/// A user or group. Root's would exempt every process that runs as root from redirection; the
/// highest means "unchanged" to the kernel.
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

fn millis(text: &str) -> Result<String, String> {
    Ok(format!("{}ms", parse_duration(text)?.as_millis()))
}

fn seconds(text: &str) -> Result<String, String> {
    Ok(format!("{}s", parse_duration(text)?.as_secs()))
}
