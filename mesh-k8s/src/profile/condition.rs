//! Conditions of routes and of response classes.

use std::ops::RangeInclusive;

use mesh_core::profile::{RequestMatch, ResponseClass, ResponseMatch};
use mesh_core::route::AnchoredRegex;

use super::Reader;
use crate::crd::service_profile::{self as written, RequestCondition, ResponseCondition};
use crate::invalid::shown;

/// The number of conditions of a profile, including nested ones.
pub const MAX_CONDITIONS: usize = 5_000;
/// The number of conditions inside each other. prost limits nesting to 100, and a condition in a
/// list takes two levels.
pub const MAX_DEPTH: usize = 16;
/// The length of a regular expression.
pub const MAX_EXPRESSION: usize = 4_096;

/// An expression counts as this size when compiled; ordinary ones are smaller.
const SMALL_EXPRESSION: usize = 64 << 10;
/// The largest size of a compiled expression. An expression that is not small counts as this size.
const LARGE_EXPRESSION: usize = 1 << 20;
/// The size of the compiled expressions of a profile in each proxy.
const MAX_EXPRESSIONS: usize = 64 << 20;

/// The statuses of responses.
const STATUSES: RangeInclusive<u32> = 100..=599;

/// What the conditions of a profile need so far.
#[derive(Default)]
pub(super) struct Conditions {
    count: usize,
    /// The size of compiled expressions.
    expressions: usize,
}

/// A condition of either kind, for what both share.
trait Condition: Sized {
    type Match;

    fn convert(&self, reader: &mut Reader, field: &str, depth: usize) -> Option<Self::Match>;
}

impl Condition for RequestCondition {
    type Match = RequestMatch;

    fn convert(&self, reader: &mut Reader, field: &str, depth: usize) -> Option<RequestMatch> {
        if !reader.enter(field, depth) {
            return None;
        }
        let mut parts = Vec::new();
        if let Some(all) = &self.all {
            parts.push(RequestMatch::All(reader.list(field, "all", all, depth)?));
        }
        if let Some(any) = &self.any {
            parts.push(RequestMatch::Any(reader.list(field, "any", any, depth)?));
        }
        if let Some(method) = self.method.as_deref().filter(|text| !text.is_empty()) {
            parts.push(reader.method(field, method)?);
        }
        if let Some(not) = &self.not {
            let part = not.convert(reader, &format!("{field}.not"), depth + 1)?;
            parts.push(RequestMatch::Not(Box::new(part)));
        }
        if let Some(path) = self.path_regex.as_deref().filter(|text| !text.is_empty()) {
            parts.push(reader.path(field, path)?);
        }
        if parts.len() > 1 {
            return Some(RequestMatch::All(parts));
        }
        let only = parts.pop();
        if only.is_none() {
            reader.problem(
                field,
                "is empty; write one of all, any, not, method and pathRegex",
            );
        }
        only
    }
}

impl Condition for ResponseCondition {
    type Match = ResponseMatch;

    fn convert(&self, reader: &mut Reader, field: &str, depth: usize) -> Option<ResponseMatch> {
        if !reader.enter(field, depth) {
            return None;
        }
        let mut parts = Vec::new();
        if let Some(all) = &self.all {
            parts.push(ResponseMatch::All(reader.list(field, "all", all, depth)?));
        }
        if let Some(any) = &self.any {
            parts.push(ResponseMatch::Any(reader.list(field, "any", any, depth)?));
        }
        if let Some(range) = &self.status {
            parts.push(reader.status(&format!("{field}.status"), *range)?);
        }
        if let Some(not) = &self.not {
            let part = not.convert(reader, &format!("{field}.not"), depth + 1)?;
            parts.push(ResponseMatch::Not(Box::new(part)));
        }
        if parts.len() > 1 {
            return Some(ResponseMatch::All(parts));
        }
        let only = parts.pop();
        if only.is_none() {
            reader.problem(field, "is empty; write one of all, any, not and status");
        }
        only
    }
}

impl Reader {
    pub(super) fn request_condition(
        &mut self,
        field: &str,
        condition: &RequestCondition,
    ) -> Option<RequestMatch> {
        condition.convert(self, field, 1)
    }

    pub(super) fn response_classes(
        &mut self,
        field: &str,
        classes: &[written::ResponseClass],
    ) -> Option<Vec<ResponseClass>> {
        if !self.fits(field, classes.len(), super::MAX_RESPONSE_CLASSES) {
            return None;
        }
        let mut converted = Vec::new();
        for (at, class) in classes.iter().enumerate() {
            let field = format!("{field}[{at}].condition");
            converted.push(ResponseClass {
                condition: class.condition.convert(self, &field, 1)?,
                is_failure: class.is_failure.unwrap_or_default(),
            });
        }
        Some(converted)
    }

    /// Counts a condition and checks the limits.
    fn enter(&mut self, field: &str, depth: usize) -> bool {
        if depth > MAX_DEPTH {
            self.problem(
                field,
                format!("is inside {MAX_DEPTH} other conditions, which is the limit"),
            );
            return false;
        }
        self.conditions.count += 1;
        if self.conditions.count == MAX_CONDITIONS + 1 {
            self.problem(
                field,
                format!("is one of more than {MAX_CONDITIONS} conditions, which is the limit of a profile"),
            );
        }
        self.conditions.count <= MAX_CONDITIONS
    }

    fn list<C: Condition>(
        &mut self,
        field: &str,
        name: &str,
        conditions: &[C],
        depth: usize,
    ) -> Option<Vec<C::Match>> {
        let mut converted = Vec::new();
        for (at, condition) in conditions.iter().enumerate() {
            let field = format!("{field}.{name}[{at}]");
            converted.push(condition.convert(self, &field, depth + 1)?);
        }
        Some(converted)
    }

    /// The registered methods are read in any case, others as they are written.
    fn method(&mut self, field: &str, text: &str) -> Option<RequestMatch> {
        const REGISTERED: [&str; 9] = [
            "GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "CONNECT", "HEAD", "TRACE",
        ];
        let upper = text.to_ascii_uppercase();
        let name = if REGISTERED.contains(&&*upper) {
            &upper
        } else {
            text
        };
        let method = name.parse().ok().map(RequestMatch::Method);
        if method.is_none() {
            let shown = shown(text);
            self.problem(
                format!("{field}.method"),
                format!("{shown} is not a method; write for example GET"),
            );
        }
        method
    }

    fn path(&mut self, field: &str, source: &str) -> Option<RequestMatch> {
        let problem = match self.expression(source) {
            Ok(expression) => return Some(RequestMatch::Path(expression)),
            Err(problem) => problem,
        };
        self.problem(format!("{field}.pathRegex"), problem);
        None
    }

    fn expression(&mut self, source: &str) -> Result<AnchoredRegex, String> {
        if source.len() > MAX_EXPRESSION {
            return Err(format!(
                "{} has {} bytes; at most {MAX_EXPRESSION} are possible",
                shown(source),
                source.len()
            ));
        }
        let (expression, size) = match AnchoredRegex::checked(source, SMALL_EXPRESSION) {
            Ok(expression) => (expression, SMALL_EXPRESSION),
            Err(_) => {
                let expression = AnchoredRegex::checked(source, LARGE_EXPRESSION)
                    .map_err(|error| unusable(source, &error.to_string()))?;
                (expression, LARGE_EXPRESSION)
            }
        };
        self.conditions.expressions += size;
        if self.conditions.expressions > MAX_EXPRESSIONS {
            return Err(format!(
                "the regular expressions up to {} need more than {} MiB in each proxy; \
                 write fewer, or without large repetitions",
                shown(source),
                MAX_EXPRESSIONS >> 20
            ));
        }
        Ok(expression)
    }

    fn status(&mut self, field: &str, range: written::StatusRange) -> Option<ResponseMatch> {
        let bound = |bound: Option<u32>| bound.filter(|status| *status != 0);
        let (min, max) = (bound(range.min), bound(range.max));
        for (name, status) in [("min", min), ("max", max)] {
            if let Some(status) = status.filter(|status| !STATUSES.contains(status)) {
                self.problem(
                    format!("{field}.{name}"),
                    format!("{status} is not a status from 100 to 599"),
                );
                return None;
            }
        }
        let (Some(low), Some(high)) = (min.or(max), max.or(min)) else {
            self.problem(
                field,
                "is empty; write min, max or both, for example {min: 500, max: 599}",
            );
            return None;
        };
        if low > high {
            self.problem(
                field,
                format!("min {low} is greater than max {high}; swap them"),
            );
            return None;
        }
        Some(ResponseMatch::Status {
            min: low.try_into().ok()?,
            max: high.try_into().ok()?,
        })
    }
}

/// Returns a message with the last line of an error of the regex crate. The other lines draw the
/// expression.
fn unusable(source: &str, error: &str) -> String {
    let last = error.lines().last().unwrap_or_default();
    let shown = shown(source);
    match last.strip_prefix("error: ") {
        Some(reason) => format!(
            "{shown} is not a regular expression: {reason}; a backslash before a special character \
             makes it an ordinary one"
        ),
        None => format!("{shown} is too large when compiled; write it without large repetitions"),
    }
}
