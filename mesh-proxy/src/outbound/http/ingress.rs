//! Ingress mode: requests select their destination by name, with the header `l5d-dst-override`.
//!
//! A request without the header goes to the original destination of its connection.
//! [`ClientConnection`](super::ClientConnection) holds an [`IngressConnection`] if the proxy is in
//! this mode.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;

use http::HeaderMap;
use mesh_http2::ErrorCode;
use mesh_runtime::drain::Part;

use super::{Http, HttpTarget, Routes};
use crate::discovery::{Destination, DiscoveryError, InvalidNameAddr, NameAddr, TargetObject};
use crate::error::{Error, Kind};
use crate::http::headers::DST_OVERRIDE;
use crate::http::synthetic_response::RequestContext;
use crate::http::{Request, Reset, Response};

/// A connection whose requests select their targets.
pub(super) struct IngressConnection {
    http: Rc<Http>,
    original_dst: SocketAddr,
    /// The targets of recent requests, the last used one first. Holding them keeps their
    /// connections while the client is idle.
    recent: RefCell<Vec<Rc<HttpTarget>>>,
    /// The object that the original destination belonged to when a request first went there; `None`
    /// before that.
    accepted_for: RefCell<Option<Option<TargetObject>>>,
}

/// Maximum number of targets that one connection holds. Others stay for the idle time of discovery.
const MAX_RECENT: usize = 8;

impl IngressConnection {
    pub(super) fn new(http: Rc<Http>, original_dst: SocketAddr) -> Self {
        Self {
            http,
            original_dst,
            recent: RefCell::default(),
            accepted_for: RefCell::default(),
        }
    }

    pub(super) async fn handle(
        &self,
        client: SocketAddr,
        drain: &Part,
        request: &mut Request,
    ) -> Result<Response, Reset> {
        let target = self.target(request.headers_mut()).await;
        let target = target.map(|target| (target.routes(), target));
        if let Ok((_, target)) = &target
            && self.is_replaced(target)
        {
            drain.drain();
            return Err(Reset(ErrorCode::REFUSED_STREAM));
        }
        let dst = self.original_dst;
        respond(&self.http, target, &dst.into(), client, dst, request).await
    }

    /// Whether the target is the original destination and belongs to another object than before.
    fn is_replaced(&self, target: &HttpTarget) -> bool {
        if target.destination.is_name() {
            return false;
        }
        let now = target.owner.object();
        let mut accepted_for = self.accepted_for.borrow_mut();
        let is_other = match &*accepted_for {
            Some(Some(before)) => before.is_replaced_by(now.as_ref()),
            Some(None) | None => false,
        };
        if !is_other {
            *accepted_for = Some(now);
        }
        is_other
    }

    /// Returns the target of a request, and removes the header that selects it.
    async fn target(&self, headers: &mut HeaderMap) -> Result<Rc<HttpTarget>, Error> {
        let destination = match take_override(headers) {
            Ok(None) => self.original_dst.into(),
            Ok(Some(name)) => Destination::Name(name),
            Err(invalid) => {
                let message = format!("invalid {DST_OVERRIDE}: {invalid}");
                return Err(Error::new(Kind::InvalidOverride, message));
            }
        };
        if let Some(target) = self.recent(&destination) {
            return Ok(target);
        }
        let target = self
            .http
            .target_of(destination)
            .await
            .map_err(discovery_error)?;
        let mut recent = self.recent.borrow_mut();
        recent.truncate(MAX_RECENT - 1);
        recent.insert(0, target.clone());
        Ok(target)
    }

    /// Returns a target that this connection has used recently.
    fn recent(&self, destination: &Destination) -> Option<Rc<HttpTarget>> {
        let mut recent = self.recent.borrow_mut();
        recent.retain(|target| target.is_followed());
        let at = recent
            .iter()
            .position(|target| target.destination == *destination)?;
        recent[..=at].rotate_right(1);
        recent.first().cloned()
    }
}

/// Sends a request to its target, or responds with the error of the lookup of `destination`.
async fn respond(
    http: &Http,
    target: Result<(Rc<Routes>, Rc<HttpTarget>), Error>,
    destination: &Destination,
    client: SocketAddr,
    original_dst: SocketAddr,
    request: &mut Request,
) -> Result<Response, Reset> {
    match target {
        Ok((routes, target)) => target.handle(client, original_dst, routes, request).await,
        Err(error) => {
            let request_context = RequestContext::new(request, None);
            super::error_response(&http.context, destination, request_context, error)
        }
    }
}

impl Http {
    /// Sends a request of `client` to a destination that another proxy has chosen. `dialled` is the
    /// address of the client's connection.
    pub(in crate::outbound) async fn send_to(
        &self,
        destination: Destination,
        client: SocketAddr,
        dialled: SocketAddr,
        request: &mut Request,
    ) -> Result<Response, Reset> {
        let target = self.target_of(destination.clone()).await;
        let target = target.map(|target| (target.routes(), target));
        let target = target.map_err(discovery_error);
        respond(self, target, &destination, client, dialled, request).await
    }
}

/// Removes `l5d-dst-override` and returns its value. Several values are ambiguous.
fn take_override(headers: &mut HeaderMap) -> Result<Option<NameAddr>, InvalidNameAddr> {
    let mut values = headers.get_all(DST_OVERRIDE).iter();
    let name = match (values.next(), values.next()) {
        (None, _) => return Ok(None),
        (Some(value), None) => value
            .to_str()
            .map_err(|_not_ascii| InvalidNameAddr)
            .and_then(str::parse),
        (Some(_), Some(_)) => Err(InvalidNameAddr),
    };
    headers.remove(DST_OVERRIDE);
    name.map(Some)
}

fn discovery_error(error: DiscoveryError) -> Error {
    let kind = match &error {
        DiscoveryError::Refused { .. }
        | DiscoveryError::NoProfile { .. }
        | DiscoveryError::UnknownName { .. } => Kind::NoDispatcher,
        DiscoveryError::TimedOut { .. } => Kind::FailFast,
        DiscoveryError::TooManyNames | DiscoveryError::Stopped => Kind::LoadShed,
    };
    Error::new(kind, error.to_string())
}
