//! Conversion of ServiceProfiles to what clients apply.
//!
//! The controllers convert each object that they read; [`validate`](crate::validate) and `meshctl
//! profile` accept what this converts. The conversion finds all problems of an object.
//!
//! Linkerd has no limits except etcd's limit on an object. Here each list and each expression has a
//! limit, because the owner of a profile does not own the proxies that apply it, nor the
//! controller.

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use mesh_core::ports::{MAX_RANGES, PortSet};
use mesh_core::profile::{ProfileRoute, WeightedAuthority};
use mesh_core::resilience::RetryBudget;

use self::condition::Conditions;
pub use self::condition::{MAX_CONDITIONS, MAX_DEPTH, MAX_EXPRESSION};
use crate::crd::ServiceProfileSpec;
use crate::crd::service_profile::{self as written, Weight};
use crate::inject::units::parse_duration;
use crate::invalid::{Invalid, MAX_PROBLEMS, shown};

mod condition;

/// What a ServiceProfile says about requests to its destination.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ProfileRules {
    /// The routes, in order of precedence.
    pub routes: Arc<[ProfileRoute]>,
    /// The retry budget of the routes, if the profile has its own.
    pub retry_budget: Option<RetryBudget>,
    /// The parts of the traffic split.
    pub overrides: Arc<[Override]>,
    /// The opaque ports, which only apply to a destination outside the cluster.
    pub opaque_ports: PortSet,
}

/// A part of a traffic split.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Override {
    authority: Arc<str>,
    has_port: bool,
    weight: u32,
}

/// A converted profile.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Converted {
    /// What the profile says.
    pub rules: ProfileRules,
    /// The fields that have no effect, which Linkerd ignores as well.
    pub ignored: Vec<Invalid>,
}

/// The number of routes of a profile. Proxies try them one by one for each request.
pub const MAX_ROUTES: usize = 1_000;
/// The number of response classes of a route.
pub const MAX_RESPONSE_CLASSES: usize = 100;
/// The number of parts of a traffic split. Each is a balancer in each client's proxy.
pub const MAX_OVERRIDES: usize = 100;
/// The length of a route's name, which is a label of metrics.
pub const MAX_NAME: usize = 256;
/// The length of a host name with a port.
pub const MAX_AUTHORITY: usize = 259;

/// The range of the `ttl` of a retry budget: how long proxies count a request.
const BUDGET_TTL: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(60);
/// The highest ratio of a retry budget that proxies accept.
const MAX_BUDGET_RATIO: f32 = 1000.0;
/// Durations of Go are 64-bit numbers of nanoseconds.
const MAX_DURATION: Duration = Duration::from_nanos(i64::MAX as u64);

/// Converts the spec of the ServiceProfile `name`.
///
/// # Errors
///
/// The fields without which the profile has another meaning. The object must not be applied.
pub fn convert(name: &str, spec: &ServiceProfileSpec) -> Result<Converted, Vec<Invalid>> {
    let mut reader = Reader::default();
    let rules = ProfileRules {
        routes: reader.routes(spec.routes.as_deref().unwrap_or_default()),
        retry_budget: spec
            .retry_budget
            .as_ref()
            .and_then(|budget| reader.retry_budget(budget)),
        overrides: reader.overrides(spec.dst_overrides.as_deref().unwrap_or_default()),
        opaque_ports: reader.opaque_ports(name, spec.opaque_ports.as_deref().unwrap_or_default()),
    };
    if reader.problems.is_empty() {
        let ignored = reader.ignored;
        return Ok(Converted { rules, ignored });
    }
    Err(reader.problems)
}

/// Returns the text of a profile with examples, which a user begins with. The names must be valid
/// in Kubernetes.
pub fn template(service: &str, namespace: &str, cluster_domain: &str) -> String {
    include_str!("profile/template.yaml")
        .replace("SERVICE", service)
        .replace("NAMESPACE", namespace)
        .replace("DOMAIN", cluster_domain)
}

/// Returns whether a profile has the name of a Service of some cluster:
/// `web.shop.svc.cluster.local`.
pub fn is_name_of_service(name: &str) -> bool {
    let mut labels = name.split('.');
    labels.nth(2) == Some("svc") && labels.next().is_some()
}

impl Override {
    /// Returns the part for clients of a port. An authority without port gets this port.
    pub fn at(&self, port: u16) -> WeightedAuthority {
        WeightedAuthority {
            authority: if self.has_port {
                self.authority.clone()
            } else {
                format!("{}:{port}", self.authority).into()
            },
            weight: self.weight,
        }
    }
}

/// The problems of a profile so far, and its conditions.
#[derive(Default)]
struct Reader {
    problems: Vec<Invalid>,
    ignored: Vec<Invalid>,
    conditions: Conditions,
}

impl Reader {
    fn problem(&mut self, field: impl Into<String>, problem: impl fmt::Display) {
        if self.problems.len() < MAX_PROBLEMS {
            self.problems.push(Invalid::new(field, problem));
        }
    }

    fn ignore(&mut self, field: impl Into<String>, problem: impl fmt::Display) {
        if self.ignored.len() < MAX_PROBLEMS {
            self.ignored.push(Invalid::new(field, problem));
        }
    }

    /// Checks the length of a list.
    fn fits(&mut self, field: &str, length: usize, limit: usize) -> bool {
        if length > limit {
            self.problem(
                field,
                format!("has {length} items; at most {limit} are possible"),
            );
        }
        length <= limit
    }

    fn routes(&mut self, routes: &[written::Route]) -> Arc<[ProfileRoute]> {
        let field = "spec.routes";
        if !self.fits(field, routes.len(), MAX_ROUTES) {
            return Arc::default();
        }
        let numbered = routes.iter().enumerate();
        numbered
            .filter_map(|(at, route)| self.route(&format!("{field}[{at}]"), route))
            .collect()
    }

    fn route(&mut self, field: &str, route: &written::Route) -> Option<ProfileRoute> {
        let name = &route.name;
        if name.is_empty() {
            self.problem(
                format!("{field}.name"),
                "is empty; write the name that the route has in metrics",
            );
        } else if name.len() > MAX_NAME {
            let shown = shown(name);
            self.problem(
                format!("{field}.name"),
                format!(
                    "{shown} has {} bytes; at most {MAX_NAME} are possible",
                    name.len()
                ),
            );
        }
        let condition = self.request_condition(&format!("{field}.condition"), &route.condition);
        let classes = route.response_classes.as_deref().unwrap_or_default();
        let response_classes =
            self.response_classes(&format!("{field}.responseClasses"), classes)?;
        Some(ProfileRoute {
            condition: condition?,
            response_classes,
            labels: [("route".to_owned(), name.clone())].into(),
            retryable: route.is_retryable.unwrap_or_default(),
            timeout: self.timeout(&format!("{field}.timeout"), route.timeout.as_deref()),
        })
    }

    /// Zero means no timeout, and so does an invalid one.
    fn timeout(&mut self, field: &str, text: Option<&str>) -> Option<Duration> {
        let text = text.filter(|text| !text.is_empty())?;
        match duration(text) {
            Ok(duration) => Some(duration).filter(|duration| !duration.is_zero()),
            Err(problem) => {
                self.ignore(field, problem);
                None
            }
        }
    }

    fn retry_budget(&mut self, budget: &written::RetryBudget) -> Option<RetryBudget> {
        let ratio = budget.retry_ratio;
        if ratio.is_nan() || ratio < 0.0 {
            self.problem(
                "spec.retryBudget.retryRatio",
                format!("{ratio} is negative; write for example 0.2"),
            );
        } else if ratio > MAX_BUDGET_RATIO {
            self.ignore(
                "spec.retryBudget.retryRatio",
                format!("proxies do not retry with {ratio}; the highest ratio is 1000"),
            );
        }
        let ttl = match duration(&budget.ttl) {
            Ok(ttl) => ttl,
            Err(problem) => {
                self.problem("spec.retryBudget.ttl", problem);
                return None;
            }
        };
        if !BUDGET_TTL.contains(&ttl) {
            self.ignore(
                "spec.retryBudget.ttl",
                format!(
                    "proxies do not retry with {:?}; write a duration from 1s to 60s",
                    budget.ttl
                ),
            );
        }
        Some(RetryBudget {
            ttl,
            min_per_second: budget.min_retries_per_second,
            ratio,
        })
    }

    fn overrides(&mut self, overrides: &[written::WeightedDestination]) -> Arc<[Override]> {
        let field = "spec.dstOverrides";
        if !self.fits(field, overrides.len(), MAX_OVERRIDES) {
            return Arc::default();
        }
        let numbered = overrides.iter().enumerate();
        numbered
            .filter_map(|(at, part)| self.override_(&format!("{field}[{at}]"), part))
            .collect()
    }

    fn override_(&mut self, field: &str, part: &written::WeightedDestination) -> Option<Override> {
        let has_port = match authority_port(&part.authority) {
            Ok(port) => Some(port.is_some()),
            Err(problem) => {
                self.problem(format!("{field}.authority"), problem);
                None
            }
        };
        let weight = weight(&part.weight);
        if let Err(problem) = &weight {
            self.problem(format!("{field}.weight"), problem);
        }
        Some(Override {
            authority: part.authority.as_str().into(),
            has_port: has_port?,
            weight: weight.ok()?,
        })
    }

    fn opaque_ports(&mut self, name: &str, ports: &[String]) -> PortSet {
        let field = "spec.opaquePorts";
        if ports.is_empty() || !self.fits(field, ports.len(), MAX_RANGES) {
            return PortSet::default();
        }
        if is_name_of_service(name) {
            self.ignore(
                field,
                "has no effect for a Service, whose annotation config.linkerd.io/opaque-ports decides; \
                 set the annotation instead",
            );
        }
        let mut set = PortSet::default();
        for (at, port) in ports.iter().enumerate() {
            match PortSet::parse_item(port.trim()) {
                Ok(range) => set.insert(range),
                Err(error) => self.problem(format!("{field}[{at}]"), error),
            }
        }
        set
    }
}

/// Parses a duration of Go.
fn duration(text: &str) -> Result<Duration, String> {
    parse_duration(text)
        .ok()
        .filter(|duration| *duration <= MAX_DURATION)
        .ok_or_else(|| {
            format!(
                "{} is not a duration; write for example 500ms, 10s or 1m30s",
                shown(text)
            )
        })
}

/// Parses a host name with an optional port, and returns the port.
fn authority_port(text: &str) -> Result<Option<u16>, String> {
    let invalid = || {
        let shown = shown(text);
        format!(
            "{shown} is not a host name with an optional port; write for example web.shop.svc.cluster.local:80"
        )
    };
    if text.len() > MAX_AUTHORITY {
        return Err(invalid());
    }
    let parsed: http::uri::Authority = text.parse().map_err(|_error| invalid())?;
    if text.contains('@') || parsed.host().is_empty() {
        return Err(invalid());
    }
    match text.rsplit_once(':') {
        Some((host, port)) if !text.ends_with(']') && !host.is_empty() => match port.parse() {
            Ok(port) if port > 0 => Ok(Some(port)),
            _ => Err(invalid()),
        },
        _ => Ok(None),
    }
}

/// Returns ten times the thousandths of a quantity, as Linkerd's controller sends them.
fn weight(weight: &Weight) -> Result<u32, String> {
    let text = match weight {
        Weight::Number(number) => &number.to_string(),
        Weight::Quantity(text) => text,
    };
    thousandths(text)
        .and_then(|thousandths| thousandths.checked_mul(10))
        .and_then(|weight| u32::try_from(weight).ok())
        .ok_or_else(|| {
            let shown = shown(text);
            format!("{shown} is not a weight up to 429496; write for example 1, 0.5 or 500m")
        })
}

/// Parses a quantity with at most one of the suffixes m, k, M and G, and rounds it up to
/// thousandths.
fn thousandths(text: &str) -> Option<u64> {
    let number = text.trim_end_matches(['m', 'k', 'M', 'G']);
    let scale = match &text[number.len()..] {
        "m" => 1,
        "" => 1_000,
        "k" => 1_000_000,
        "M" => 1_000_000_000,
        "G" => 1_000_000_000_000,
        _ => return None,
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let is_number = |digits: &str| {
        let digits = digits.as_bytes();
        matches!(digits.len(), 1..=12) && digits.iter().all(u8::is_ascii_digit)
    };
    if !is_number(whole) || !is_number(fraction) {
        return None;
    }
    let unit = 10_u128.pow(fraction.len().try_into().ok()?);
    let parts = whole.parse::<u128>().ok()? * unit + fraction.parse::<u128>().ok()?;
    u64::try_from((parts * scale).div_ceil(unit)).ok()
}

#[cfg(test)]
mod tests;
