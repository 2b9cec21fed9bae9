//! Applies the filters of a route rule to requests and responses, inbound and outbound.

use http::header::HOST;
use http::{HeaderMap, HeaderValue, Version};
use mesh_core::route::filter::{Filter, HeaderModifier, Redirect, UrlRewrite};
use mesh_core::route::http::RequestHead;

use super::{Request, uri};
use crate::error::{Error, Kind};

/// Applies `filters` in order. `prefix` is the length of the path prefix that the rule matched, and
/// absent once the path is another one. An error means that the filter responds instead of the
/// application.
pub(crate) fn apply(
    filters: &[Filter],
    request: &mut Request,
    prefix: &mut Option<usize>,
) -> Result<(), Error> {
    for filter in filters {
        match filter {
            Filter::RequestHeaders(modifier) => modify_headers(modifier, request)?,
            // Applied by `apply_to_response`, and by `outbound::http::mirror`.
            Filter::ResponseHeaders(_) | Filter::RequestMirror(_) => {}
            Filter::Redirect(redirect) => apply_redirect(redirect, request, *prefix)?,
            Filter::UrlRewrite(rewrite) => rewrite_url(rewrite, request, prefix)?,
            Filter::InjectHttpFailure {
                status,
                message,
                ratio,
            } if ratio.includes(rand::random()) => {
                return Err(Error::new(Kind::InjectedHttp(*status), &**message));
            }
            Filter::InjectGrpcFailure {
                code,
                message,
                ratio,
            } if ratio.includes(rand::random()) => {
                return Err(Error::new(Kind::InjectedGrpc(*code), &**message));
            }
            Filter::InjectHttpFailure { .. } | Filter::InjectGrpcFailure { .. } => {}
            Filter::InternalError(message) => {
                return Err(Error::new(Kind::InvalidPolicy, &**message));
            }
        }
    }
    Ok(())
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

/// Applies the response filters among `filters`.
pub(crate) fn apply_to_response(filters: &[Filter], headers: &mut HeaderMap) {
    for filter in filters {
        if let Filter::ResponseHeaders(modifier) = filter {
            modifier.apply(headers);
        }
    }
}

fn apply_redirect(
    redirect: &Redirect,
    request: &Request,
    prefix: Option<usize>,
) -> Result<(), Error> {
    let invalid = |error: &dyn std::fmt::Display| {
        Error::new(Kind::InvalidRedirect, format!("invalid redirect: {error}"))
    };
    let target = redirect
        .target(&RequestHead::from(request), prefix)
        .map_err(|error| invalid(&error))?;
    let Some((status, target)) = target else {
        return Ok(());
    };
    let location = HeaderValue::try_from(target.to_string()).map_err(|error| invalid(&error))?;
    Err(Error::new(
        Kind::Redirect { status, location },
        format!("redirected to {target}"),
    ))
}
