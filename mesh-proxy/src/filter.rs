//! Applies the filters of a route rule to requests and responses, inbound and outbound.

use std::mem;
use std::ops::ControlFlow;
use std::pin::Pin;
use std::time::Duration;

use http::header::HOST;
use http::{HeaderMap, HeaderValue, Version};
use mesh_core::route::cors::{self, Cors, CorsAction};
use mesh_core::route::filter::{Filter, HeaderModifier, Redirect, UrlRewrite};
use mesh_core::route::http::RequestHead;
use tokio::time::{Sleep, sleep};

use crate::error::{Error, Kind};
use crate::http::{Request, uri};
use crate::local_reply::LocalReply;

/// What the filters of a request have to know of each other.
pub(crate) struct FilterState {
    /// The length of the path prefix that the rule matched; absent once the path is another one.
    pub(crate) prefix: Option<usize>,
    /// The headers of the response that a CORS filter demands.
    cors: Option<Box<HeaderMap>>,
    /// How long the request has to be held back.
    delay: Duration,
}

impl FilterState {
    pub(crate) fn new(prefix: Option<usize>) -> Self {
        Self {
            prefix,
            cors: None,
            delay: Duration::ZERO,
        }
    }

    /// Returns the state for the filters of a backend, which change only the attempt that they are
    /// applied to. Backends have no CORS filters.
    pub(crate) fn for_attempt(&self) -> Self {
        Self::new(self.prefix)
    }

    /// Returns the end of the delays that the filters have added, if there are any. They are not
    /// waited for in [`apply`], because time limits and cancellation apply to the wait.
    pub(crate) fn take_delay(&mut self) -> Option<Pin<Box<Sleep>>> {
        let delay = mem::take(&mut self.delay);
        (!delay.is_zero()).then(|| Box::pin(sleep(delay)))
    }

    /// Sets the headers of the response that depend on the request.
    pub(crate) fn apply_to_response(self, headers: &mut HeaderMap) {
        if let Some(cors) = self.cors {
            cors::set_headers(&cors, headers);
        }
    }
}

/// What follows a filter: the request goes on, or the reply ends it. An error is a policy that
/// cannot be applied to the request.
pub(crate) type Applied = Result<ControlFlow<Box<LocalReply>>, Error>;

/// Applies `filters` in order, until one of them replies. `draw` returns random numbers, which only
/// filters of a share of the requests need.
pub(crate) fn apply(
    filters: &[Filter],
    request: &mut Request,
    state: &mut FilterState,
    mut draw: impl FnMut() -> u32,
) -> Applied {
    for filter in filters {
        match filter {
            Filter::RequestHeaders(modifier) => modify_headers(modifier, request)?,
            // Applied by `apply_to_response`, and by `outbound::http::mirror`.
            Filter::ResponseHeaders(_) | Filter::RequestMirror(_) => {}
            Filter::Redirect(redirect) => {
                if let Some(reply) = apply_redirect(redirect, request, state.prefix)? {
                    return Ok(ControlFlow::Break(Box::new(reply)));
                }
            }
            Filter::UrlRewrite(rewrite) => rewrite_url(rewrite, request, &mut state.prefix)?,
            Filter::Cors(cors) => {
                if let Some(reply) = share_with_origin(cors, request, state) {
                    return Ok(ControlFlow::Break(Box::new(reply)));
                }
            }
            Filter::InjectHttpFailure {
                status,
                message,
                ratio,
            } if ratio.includes(draw()) => {
                let reply = LocalReply::http_failure(*status, message);
                return Ok(ControlFlow::Break(Box::new(reply)));
            }
            Filter::InjectGrpcFailure {
                code,
                message,
                ratio,
            } if ratio.includes(draw()) => {
                let reply = LocalReply::grpc_failure(*code, message);
                return Ok(ControlFlow::Break(Box::new(reply)));
            }
            Filter::Delay { duration, ratio } if ratio.includes(draw()) => {
                state.delay += *duration;
            }
            Filter::InjectHttpFailure { .. }
            | Filter::InjectGrpcFailure { .. }
            | Filter::Delay { .. } => {}
            Filter::InternalError(message) => {
                return Err(Error::new(Kind::InvalidPolicy, &**message));
            }
        }
    }
    Ok(ControlFlow::Continue(()))
}

/// Changes the headers of a request. A changed `host` also changes the URI, which HTTP/2 and later
/// filters read.
fn modify_headers(modifier: &HeaderModifier, request: &mut Request) -> Result<(), Error> {
    modifier.apply(request.headers_mut());
    let names = modifier.add.iter().chain(&modifier.set);
    let changes_host = names
        .map(|(name, _)| name)
        .chain(&modifier.remove)
        .any(|name| *name == HOST);
    if changes_host && !uri::follow_host(request) {
        let message = "a request header modifier does not leave exactly one valid host";
        return Err(Error::new(Kind::InvalidPolicy, message));
    }
    Ok(())
}

/// Changes the URI of a request, and `host`, which says the same to HTTP/1 applications.
fn rewrite_url(
    rewrite: &UrlRewrite,
    request: &mut Request,
    prefix: &mut Option<usize>,
) -> Result<(), Error> {
    let invalid = |error: &dyn std::fmt::Display| {
        Error::new(
            Kind::InvalidPolicy,
            format!("the URL cannot be rewritten: {error}"),
        )
    };
    let rewritten = rewrite.apply(request.uri(), *prefix);
    *request.uri_mut() = rewritten.map_err(|error| invalid(&error))?;
    if rewrite.path.is_some() {
        *prefix = None;
    }
    if let Some(host) = &rewrite.host
        && (request.version() != Version::HTTP_2 || request.headers().contains_key(HOST))
    {
        let host = HeaderValue::from_str(host).map_err(|error| invalid(&error))?;
        request.headers_mut().insert(HOST, host);
    }
    Ok(())
}

/// Returns the reply to a preflight request, and keeps the headers for the response to others.
fn share_with_origin(
    cors: &Cors,
    request: &Request,
    state: &mut FilterState,
) -> Option<LocalReply> {
    match cors.action(request.method(), request.headers())? {
        CorsAction::Respond(headers) => Some(LocalReply::cors_preflight(headers)),
        CorsAction::Forward(headers) => {
            state.cors = Some(Box::new(headers));
            None
        }
    }
}

/// Applies the response filters among `filters`.
pub(crate) fn apply_to_response(filters: &[Filter], headers: &mut HeaderMap) {
    for filter in filters {
        if let Filter::ResponseHeaders(modifier) = filter {
            modifier.apply(headers);
        }
    }
}

/// Returns the redirect; `None` for a request that is at its target already.
fn apply_redirect(
    redirect: &Redirect,
    request: &Request,
    prefix: Option<usize>,
) -> Result<Option<LocalReply>, Error> {
    let invalid = |error: &dyn std::fmt::Display| {
        Error::new(Kind::InvalidRedirect, format!("invalid redirect: {error}"))
    };
    let target = redirect
        .target(&RequestHead::from(request), prefix)
        .map_err(|error| invalid(&error))?;
    let Some((status, target)) = target else {
        return Ok(None);
    };
    let location = HeaderValue::try_from(target.to_string()).map_err(|error| invalid(&error))?;
    let message = format!("redirected to {target}");
    Ok(Some(LocalReply::redirect(status, location, message)))
}

#[cfg(test)]
mod tests;
