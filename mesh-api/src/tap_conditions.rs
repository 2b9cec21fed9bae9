//! The conditions of a tap that the viz extension's clients ask for, as a filter of proxies.

use http::Method;
use mesh_core::labels::workload_label;
use mesh_core::tap::{TapFilter, TextFilter};

use crate::linkerd2::tap::tap_by_resource_request::Match;
use crate::linkerd2::tap::tap_by_resource_request::r#match::{
    Match as MatchKind, http as http_match,
};
use crate::linkerd2::viz::ResourceSelection;

/// The most conditions of a tap. Each is evaluated for each request of each tapped proxy.
pub const MAX_CONDITIONS: usize = 100;

/// Why conditions are not a filter.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConditionError {
    /// Linkerd has no such conditions, either.
    #[error("unsupported conditions: {0}")]
    Unsupported(&'static str),
    /// There are more than [`MAX_CONDITIONS`].
    #[error("the request has {0} conditions; expected at most {MAX_CONDITIONS}")]
    TooMany(usize),
    /// The text is not a method of HTTP.
    #[error("{0:?} is not a method")]
    Method(String),
}

/// Converts conditions, which are a flat list in Linkerd. Without any, the filter always holds.
///
/// # Errors
///
/// The conditions are nested, too many, or name an invalid method.
pub fn filter(conditions: Option<&Match>) -> Result<TapFilter, ConditionError> {
    let Some(kind) = conditions.and_then(|conditions| conditions.r#match.as_ref()) else {
        return Ok(TapFilter::All(Vec::new()));
    };
    let MatchKind::All(all) = kind else {
        let problem = "the outermost condition is not `all`";
        return Err(ConditionError::Unsupported(problem));
    };
    if all.matches.len() > MAX_CONDITIONS {
        return Err(ConditionError::TooMany(all.matches.len()));
    }
    let mut filters = Vec::new();
    for condition in &all.matches {
        match &condition.r#match {
            Some(MatchKind::Destinations(selection)) => destination(selection, &mut filters),
            Some(MatchKind::Http(http)) => {
                filters.extend(http.r#match.as_ref().map(http_filter).transpose()?);
            }
            Some(MatchKind::All(_) | MatchKind::Any(_) | MatchKind::Not(_)) => {
                let problem = "a condition contains conditions";
                return Err(ConditionError::Unsupported(problem));
            }
            None => {}
        }
    }
    Ok(TapFilter::All(filters))
}

/// The labels of a request's destination name the workload and its namespace.
fn destination(selection: &ResourceSelection, filters: &mut Vec<TapFilter>) {
    let Some(resource) = &selection.resource else {
        return;
    };
    let mut require = |name: &str, value: &str| {
        if !value.is_empty() {
            filters.push(TapFilter::DestinationLabel {
                name: name.to_owned(),
                value: value.to_owned(),
            });
        }
    };
    require(workload_label(&resource.r#type), &resource.name);
    if resource.r#type != "namespace" {
        require("namespace", &resource.namespace);
    }
}

fn http_filter(condition: &http_match::Match) -> Result<TapFilter, ConditionError> {
    Ok(match condition {
        http_match::Match::Scheme(scheme) => TapFilter::Scheme(scheme.to_ascii_lowercase()),
        http_match::Match::Method(method) => {
            let name = method.to_ascii_uppercase();
            let method = Method::from_bytes(name.as_bytes())
                .map_err(|_error| ConditionError::Method(method.clone()))?;
            TapFilter::Method(method)
        }
        http_match::Match::Authority(authority) => {
            TapFilter::Authority(TextFilter::Exact(authority.clone()))
        }
        http_match::Match::Path(path) => TapFilter::Path(TextFilter::Prefix(path.clone())),
    })
}
