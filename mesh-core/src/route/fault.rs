//! Faults that users inject into the requests of a rule or a backend (docs/adr/0204).
//!
//! An annotation of the route describes a fault: `fault.linkerd.io/broken: abort=503, percent=0.5`,
//! or `fault.linkerd.io/slow: delay=2s`.
//! A filter of the type `ExtensionRef` injects it where it stands, and names it. The validating
//! webhook and the controllers read both here, so that accepted faults are injected.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;

use super::filter::{Filter, Ratio, RequestKind};
use crate::annotation::FAULT_PREFIX;
use crate::units::{list_items, parse_duration};

/// The group of an `ExtensionRef` to a fault.
pub const GROUP: &str = "fault.linkerd.io";
/// The kind of an `ExtensionRef` to a fault. There are no objects of it: the name is the rest of an
/// annotation's key.
pub const KIND: &str = "Fault";

/// Why an annotation describes no fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{problem}; {fix}")]
pub struct FaultError {
    /// A clause without subject: `has abort twice`.
    pub problem: String,
    /// What to write, in the imperative.
    pub fix: &'static str,
}

/// The settings of an annotation, as texts.
#[derive(Default)]
struct Settings<'a> {
    abort: Option<&'a str>,
    delay: Option<&'a str>,
    percent: Option<&'a str>,
}

/// The statuses of gRPC from 1 on; 0 is not a failure.
const GRPC_STATUSES: [&str; 16] = [
    "cancelled",
    "unknown",
    "invalid-argument",
    "deadline-exceeded",
    "not-found",
    "already-exists",
    "permission-denied",
    "resource-exhausted",
    "failed-precondition",
    "aborted",
    "out-of-range",
    "unimplemented",
    "internal",
    "unavailable",
    "data-loss",
    "unauthenticated",
];

/// The digits of a percentage behind the point. One in a million is the finest share of Envoy's
/// faults, too.
const DECIMALS: usize = 4;
/// The denominator of shares: 100 with [`DECIMALS`].
const MILLION: u32 = 1_000_000;

/// The longest delay. Clients and servers give up far earlier, and each delayed request takes a
/// place among those in flight.
pub const MAX_DELAY: Duration = Duration::from_secs(300);

/// Whether an `ExtensionRef` of this group and kind names a fault.
pub fn is_reference(group: &str, kind: &str) -> bool {
    group == GROUP && kind == KIND
}

/// Returns the key of the annotation that describes a fault.
pub fn annotation(name: &str) -> String {
    format!("{FAULT_PREFIX}{name}")
}

/// Returns the filter that injects the fault `name`, which `text` describes.
///
/// # Errors
///
/// The text describes no fault for these requests.
pub fn parse(name: &str, text: &str, requests: RequestKind) -> Result<Filter, FaultError> {
    let settings = Settings::read(text)?;
    let ratio = settings.percent.map_or(Ok(Ratio::ALL), percentage)?;
    match (settings.abort, settings.delay) {
        (Some(abort), None) => abort_filter(name, abort, ratio, requests),
        (None, Some(delay)) => delay_filter(delay, ratio),
        (abort, _) => {
            let problem = match abort {
                Some(_) => "has both abort and delay",
                None => "has neither abort nor delay",
            };
            Err(FaultError::new(problem.to_owned(), Settings::FIX))
        }
    }
}

fn delay_filter(delay: &str, ratio: Ratio) -> Result<Filter, FaultError> {
    let duration = parse_duration(delay).ok();
    let duration = duration.filter(|it| !it.is_zero() && *it <= MAX_DELAY);
    duration
        .map(|duration| Filter::Delay { duration, ratio })
        .ok_or_else(|| {
            let problem = format!("has the delay {delay:?}, which is not a delay");
            FaultError::new(
                problem,
                "write a duration from 1ms to 5m, as in delay=500ms",
            )
        })
}

fn abort_filter(
    name: &str,
    abort: &str,
    ratio: Ratio,
    requests: RequestKind,
) -> Result<Filter, FaultError> {
    let message: Arc<str> = format!("fault {name}").into();
    match requests {
        RequestKind::Http => Ok(Filter::InjectHttpFailure {
            status: http_status(abort)?,
            message,
            ratio,
        }),
        RequestKind::Grpc => Ok(Filter::InjectGrpcFailure {
            code: grpc_status(abort)?,
            message,
            ratio,
        }),
    }
}

/// Returns a final status.
fn http_status(text: &str) -> Result<StatusCode, FaultError> {
    let status = text.parse::<u16>().ok();
    let status = status.filter(|status| (200..=599).contains(status) && !text.starts_with('+'));
    let status = status.and_then(|status| StatusCode::from_u16(status).ok());
    status.ok_or_else(|| {
        let problem = format!("has the abort {text:?}, which is not an HTTP status");
        FaultError::new(problem, "write a status from 200 to 599, as in abort=503")
    })
}

fn grpc_status(text: &str) -> Result<u16, FaultError> {
    let named = (1..).zip(GRPC_STATUSES);
    let mut known = named.filter(|(code, name)| *name == text || code.to_string() == text);
    known.next().map(|(code, _)| code).ok_or_else(|| {
        let problem = format!("has the abort {text:?}, which is not a gRPC status");
        let fix = "write a status from 1 to 16 or its name, as in abort=unavailable";
        FaultError::new(problem, fix)
    })
}

fn percentage(text: &str) -> Result<Ratio, FaultError> {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, "0"));
    let is_number = |digits: &str, most: usize| {
        (1..=most).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit())
    };
    let is_read = is_number(whole, 3) && is_number(decimals, DECIMALS);
    let numerator = format!("{whole}{decimals:0<DECIMALS$}").parse::<u32>().ok();
    let numerator = numerator.filter(|numerator| is_read && *numerator <= MILLION);
    numerator
        .map(|numerator| Ratio {
            numerator,
            denominator: MILLION,
        })
        .ok_or_else(|| {
            let problem = format!("has the percent {text:?}, which is not a percentage");
            let fix = "write a number from 0 to 100 with up to four decimals, as in percent=0.5";
            FaultError::new(problem, fix)
        })
}

impl<'a> Settings<'a> {
    const FIX: &'static str = "write abort or delay and, if not all requests are meant, percent, \
                               as in abort=503, percent=0.5";

    fn read(text: &'a str) -> Result<Self, FaultError> {
        let mut settings = Self::default();
        for item in list_items(text) {
            let setting = item.split_once('=');
            let (name, value) = setting.map_or((item, ""), |(name, value)| (name.trim(), value));
            let place = match name {
                "abort" => &mut settings.abort,
                "delay" => &mut settings.delay,
                "percent" => &mut settings.percent,
                _ => {
                    let problem = format!("has {name:?}, which is not a setting of faults");
                    return Err(FaultError::new(problem, Self::FIX));
                }
            };
            if place.replace(value.trim()).is_some() {
                let problem = format!("has {name} twice");
                return Err(FaultError::new(problem, "remove one of them"));
            }
        }
        Ok(settings)
    }
}

impl FaultError {
    fn new(problem: String, fix: &'static str) -> Self {
        Self { problem, fix }
    }
}

#[cfg(test)]
mod tests;
