//! Values that occur in many messages: durations, addresses, networks, ports, back-offs.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use ipnet::IpNet;
use mesh_core::identity::Identity;
use mesh_core::resilience::Backoff;
use prost_types::Duration as WireDuration;

use crate::field::{InvalidField, required};
use crate::proto::net;
use crate::proto::outbound::ExponentialBackoff;

/// The longest duration, 100 years. A message may contain one of 292 billion years, which added to
/// the time of a clock overflows; a limit that no process reaches has the same effect.
const MAX_DURATION: Duration = Duration::from_secs(100 * 365 * 86_400);

/// Durations beyond [`MAX_DURATION`] become that.
pub(crate) fn duration(wire: WireDuration) -> Result<Duration, InvalidField> {
    Duration::try_from(wire)
        .map(|duration| duration.min(MAX_DURATION))
        .map_err(|_negative| InvalidField::not_a("duration of zero or more", "", wire.to_string()))
}

/// Durations beyond the API's maximum become the maximum.
pub(crate) fn duration_to_proto(duration: Duration) -> WireDuration {
    WireDuration::try_from(duration).unwrap_or(WireDuration {
        seconds: i64::MAX,
        nanos: 0,
    })
}

pub(crate) fn ip(wire: net::IpAddress) -> Result<IpAddr, InvalidField> {
    wire.ip.ok_or_else(|| InvalidField::missing("ip"))?;
    IpAddr::try_from(wire).map_err(|_error| InvalidField::missing("ip"))
}

pub(crate) fn network(wire: net::IpNetwork) -> Result<IpNet, InvalidField> {
    let ip = required("ip", wire.ip, ip)?;
    u8::try_from(wire.prefix_len)
        .ok()
        .and_then(|length| IpNet::new(ip, length).ok())
        .ok_or_else(|| {
            InvalidField::not_a(
                "prefix length of this address",
                "prefix_len",
                wire.prefix_len,
            )
        })
}

pub(crate) fn socket_addr(wire: net::TcpAddress) -> Result<SocketAddr, InvalidField> {
    let ip = required("ip", wire.ip, ip)?;
    Ok(SocketAddr::new(ip, port("port", wire.port)?))
}

/// Accepts 1 to 65535.
pub(crate) fn port(field: &str, wire: u32) -> Result<u16, InvalidField> {
    match u16::try_from(wire) {
        Ok(port) if port > 0 => Ok(port),
        _ => Err(InvalidField::not_a("port", field, wire)),
    }
}

/// 0 means that the port is absent.
pub(crate) fn optional_port(field: &str, wire: u32) -> Result<Option<u16>, InvalidField> {
    if wire == 0 {
        Ok(None)
    } else {
        port(field, wire).map(Some)
    }
}

pub(crate) fn number_u16(field: &str, wire: u32) -> Result<u16, InvalidField> {
    u16::try_from(wire).map_err(|_too_large| InvalidField::not_a("number below 65536", field, wire))
}

pub(crate) fn identity(field: &str, wire: &str) -> Result<Identity, InvalidField> {
    Identity::parse(wire)
        .map_err(|_error| InvalidField::not_a("DNS name or SPIFFE identity", field, wire))
}

pub(crate) fn labels(wire: HashMap<String, String>) -> BTreeMap<String, String> {
    wire.into_iter().collect()
}

pub(crate) fn labels_to_proto(labels: &BTreeMap<String, String>) -> HashMap<String, String> {
    labels.clone().into_iter().collect()
}

/// Maximum random share of a step.
const MAX_JITTER: f64 = 100.0;

pub(crate) fn backoff(wire: ExponentialBackoff) -> Result<Backoff, InvalidField> {
    let min = required("min_backoff", wire.min_backoff, duration)?;
    let max = required("max_backoff", wire.max_backoff, duration)?;
    let jitter = f64::from(wire.jitter_ratio);
    if max.is_zero() || min > max {
        return Err(InvalidField::not_a(
            "duration of at least min_backoff and more than zero",
            "max_backoff",
            max,
        ));
    }
    if !(0.0..=MAX_JITTER).contains(&jitter) {
        return Err(InvalidField::not_a(
            "ratio from 0 to 100",
            "jitter_ratio",
            jitter,
        ));
    }
    Ok(Backoff { min, max, jitter })
}

/// Corrects contradictory bounds.
pub(crate) fn backoff_to_proto(backoff: Backoff) -> ExponentialBackoff {
    let max = backoff.max.max(Duration::from_millis(1));
    let jitter = if backoff.jitter.is_nan() {
        0.0
    } else {
        backoff.jitter.clamp(0.0, MAX_JITTER)
    };
    ExponentialBackoff {
        min_backoff: Some(duration_to_proto(backoff.min.min(max))),
        max_backoff: Some(duration_to_proto(max)),
        jitter_ratio: jitter as f32,
        respect_retry_after_hint: false,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn duration_that_no_clock_reaches_is_shortened() {
        let longest = WireDuration {
            seconds: i64::MAX,
            nanos: 999_999_999,
        };
        let limit = duration(longest).unwrap();
        assert_eq!(limit, MAX_DURATION);
        assert!(Instant::now().checked_add(limit).is_some());
        let hour = duration_to_proto(Duration::from_secs(3600));
        assert_eq!(duration(hour).unwrap(), Duration::from_secs(3600));
        let negative = WireDuration {
            seconds: -1,
            nanos: 0,
        };
        assert!(duration(negative).is_err());
    }
}
