//! The gRPC services of the control plane.

use std::{convert::Infallible, pin::Pin};

use http::{Request, Response};
use hyper::body::Incoming;
use mesh_api::proto::{
    destination::{
        self as dst,
        destination_server::{Destination, DestinationServer},
    },
    identity::{
        CertifyRequest, CertifyResponse,
        identity_server::{Identity, IdentityServer},
    },
    inbound::{
        self as inb,
        inbound_server_policies_server::{InboundServerPolicies, InboundServerPoliciesServer},
    },
    outbound::{
        self as out,
        outbound_policies_server::{OutboundPolicies, OutboundPoliciesServer},
    },
};
use mesh_core::{
    endpoint::{Endpoint, EndpointUpdate},
    policy::outbound::Target,
    profile::Profile,
};
use tokio::sync::mpsc;
use tokio_stream::{Stream, StreamExt as _, wrappers::UnboundedReceiverStream};
use tonic::{Status, body::Body};

use super::{ControlPlane, responses::Responses};

/// All services of one connection.
#[derive(Clone)]
pub(super) struct Services(pub(super) ControlPlane);

/// A response stream.
pub(super) type ResponseStream<M> = Pin<Box<dyn Stream<Item = Result<M, Status>> + Send>>;

/// Returns a stream of one message that stays open, as a control plane's watch does.
fn single_message<M: Send + 'static>(message: M) -> tonic::Response<ResponseStream<M>> {
    let stream = tokio_stream::once(Ok(message)).chain(tokio_stream::pending());
    tonic::Response::new(Box::pin(stream))
}

impl Services {
    pub(super) async fn route(
        self,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, Infallible> {
        use tower::Service as _;
        let path = request.uri().path();
        if path.starts_with("/io.linkerd.proxy.destination.") {
            DestinationServer::new(self).call(request).await
        } else if path.starts_with("/io.linkerd.proxy.outbound.") {
            OutboundPoliciesServer::new(self).call(request).await
        } else if path.starts_with("/io.linkerd.proxy.inbound.") {
            InboundServerPoliciesServer::new(self).call(request).await
        } else {
            IdentityServer::new(self).call(request).await
        }
    }

    /// Streams the endpoints of a moving service, one message per change.
    fn moving(&self, authority: String) -> ResponseStream<dst::Update> {
        // Bounded by the rate of changes. Back pressure would hide a proxy that falls behind.
        let (tx, messages) = mpsc::unbounded_channel();
        let responses = self.0.responses.clone();
        let mut turn = self.0.turn.clone();
        tokio::spawn(async move {
            let mut before = Vec::new();
            loop {
                let now = *turn.borrow_and_update();
                let now = responses.endpoints(&authority, now).unwrap_or_default();
                for update in updates(&before, &now) {
                    if tx.send(Ok(update)).is_err() {
                        return;
                    }
                }
                before = now;
                if turn.changed().await.is_err() {
                    return;
                }
            }
        });
        Box::pin(UnboundedReceiverStream::new(messages))
    }
}

#[tonic::async_trait]
impl Destination for Services {
    type GetStream = ResponseStream<dst::Update>;
    type GetProfileStream = ResponseStream<dst::DestinationProfile>;

    async fn get(
        &self,
        request: tonic::Request<dst::GetDestination>,
    ) -> Result<tonic::Response<Self::GetStream>, Status> {
        let authority = request.into_inner().path;
        if Responses::moves(&authority) {
            return Ok(tonic::Response::new(self.moving(authority)));
        }
        let endpoints = self.0.responses.endpoints(&authority, 0);
        let endpoints = endpoints.ok_or_else(|| Status::not_found("no such service"))?;
        let update = EndpointUpdate::Add {
            endpoints,
            set_labels: Default::default(),
        };
        let update = mesh_api::destination::update_to_proto(&update);
        Ok(single_message(update))
    }

    async fn get_profile(
        &self,
        _request: tonic::Request<dst::GetDestination>,
    ) -> Result<tonic::Response<Self::GetProfileStream>, Status> {
        let profile = mesh_api::destination::profile_to_proto(&Profile::default());
        Ok(single_message(profile))
    }
}

#[tonic::async_trait]
impl OutboundPolicies for Services {
    type WatchStream = ResponseStream<out::OutboundPolicy>;

    async fn get(
        &self,
        _request: tonic::Request<out::TrafficSpec>,
    ) -> Result<tonic::Response<out::OutboundPolicy>, Status> {
        Err(Status::unimplemented("proxies use the watch method"))
    }

    async fn watch(
        &self,
        request: tonic::Request<out::TrafficSpec>,
    ) -> Result<tonic::Response<Self::WatchStream>, Status> {
        let target = mesh_api::outbound::target(request.into_inner().target)
            .map_err(|error| Status::invalid_argument(error.to_string()))?;
        let policy = match target {
            Target::Addr(addr) => self.0.responses.outbound(addr),
            Target::Authority(_) => None,
        };
        let policy = policy.ok_or_else(|| Status::not_found("no such service"))?;
        let policy = mesh_api::outbound::to_proto(&policy);
        Ok(single_message(policy))
    }
}

#[tonic::async_trait]
impl InboundServerPolicies for Services {
    type WatchPortStream = ResponseStream<inb::Server>;

    async fn get_port(
        &self,
        _request: tonic::Request<inb::PortSpec>,
    ) -> Result<tonic::Response<inb::Server>, Status> {
        Err(Status::unimplemented("proxies use the watch method"))
    }

    async fn watch_port(
        &self,
        request: tonic::Request<inb::PortSpec>,
    ) -> Result<tonic::Response<Self::WatchPortStream>, Status> {
        let port = u16::try_from(request.into_inner().port)
            .map_err(|_out_of_range| Status::invalid_argument("no such port"))?;
        let policy = mesh_api::inbound::to_proto(&self.0.responses.inbound(port));
        Ok(single_message(policy))
    }
}

#[tonic::async_trait]
impl Identity for Services {
    async fn certify(
        &self,
        request: tonic::Request<CertifyRequest>,
    ) -> Result<tonic::Response<CertifyResponse>, Status> {
        let request = request.into_inner();
        let authority = self.0.authority.borrow().clone();
        let issued = authority.sign(&request.certificate_signing_request);
        let issued = issued.map_err(|error| Status::invalid_argument(format!("{error:#}")))?;
        Ok(tonic::Response::new(mesh_api::identity::to_proto(&issued)))
    }
}

/// Returns the updates from `before` to `now`.
fn updates(before: &[Endpoint], now: &[Endpoint]) -> Vec<dst::Update> {
    let missing = |from: &[Endpoint], in_: &[Endpoint]| -> Vec<Endpoint> {
        let absent = |endpoint: &&Endpoint| in_.iter().all(|other| other.addr != endpoint.addr);
        from.iter().filter(absent).cloned().collect()
    };
    let gone = missing(before, now);
    let new = missing(now, before);
    let mut updates = Vec::new();
    if !gone.is_empty() {
        let addresses = gone.iter().map(|endpoint| endpoint.addr).collect();
        updates.push(EndpointUpdate::Remove(addresses));
    }
    if !new.is_empty() {
        updates.push(EndpointUpdate::Add {
            endpoints: new,
            set_labels: Default::default(),
        });
    }
    let updates = updates.iter();
    updates
        .map(mesh_api::destination::update_to_proto)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn updates_contain_only_changed_endpoints() {
        let endpoint = |last: u8| Endpoint::plain(([10, 0, 0, last], 80).into());
        let both = [endpoint(1), endpoint(2)];
        assert_eq!(updates(&[], &both).len(), 1);
        assert_eq!(updates(&both, &both).len(), 0);
        assert_eq!(updates(&both, &both[..1]).len(), 1);
    }
}
