//! The responses to each call, from `responses`.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use mesh_api::proto::identity::{CertifyRequest, CertifyResponse};
use mesh_api::proto::{destination as dst, inbound as inb, outbound as out};
use mesh_core::endpoint::{Endpoint, EndpointUpdate};
use mesh_core::policy::outbound::Target;
use mesh_core::profile::Profile;
use mesh_test_support::control_plane::{Messages, Script, channel, one_message};
use tokio_stream::StreamExt as _;
use tonic::Status;

use super::ControlPlane;
use super::responses::Responses;

impl ControlPlane {
    /// Streams the endpoints of a moving service, one message per change.
    fn moving(&self, authority: String) -> Messages<dst::Update> {
        let (sender, messages) = channel();
        let responses = self.responses.clone();
        let mut change = self.change.clone();
        tokio::spawn(async move {
            let mut before = Vec::new();
            loop {
                let now = *change.borrow_and_update();
                let now = responses.endpoints(&authority, now).unwrap_or_default();
                for update in updates(&before, &now) {
                    if sender.send(Ok(update)).is_err() {
                        return;
                    }
                }
                before = now;
                if change.changed().await.is_err() {
                    return;
                }
            }
        });
        let sent = Arc::clone(&self.sent);
        Box::pin(messages.map(move |message| {
            sent.fetch_add(1, Ordering::Relaxed);
            message
        }))
    }
}

#[tonic::async_trait]
impl Script for ControlPlane {
    async fn endpoints(
        &self,
        request: dst::GetDestination,
    ) -> Result<Messages<dst::Update>, Status> {
        let authority = request.path;
        if Responses::moves(&authority) {
            return Ok(self.moving(authority));
        }
        let endpoints = self.responses.endpoints(&authority, 0);
        let endpoints = endpoints.ok_or_else(|| Status::not_found("no such service"))?;
        let update = EndpointUpdate::Add {
            endpoints,
            set_labels: Default::default(),
        };
        Ok(one_message(mesh_api::destination::update_to_proto(&update)))
    }

    async fn profile(
        &self,
        _request: dst::GetDestination,
    ) -> Result<Messages<dst::DestinationProfile>, Status> {
        let profile = mesh_api::destination::profile_to_proto(&Profile::default());
        Ok(one_message(profile))
    }

    async fn outbound(
        &self,
        request: out::TrafficSpec,
    ) -> Result<Messages<mesh_api::outbound::ExtendedPolicy>, Status> {
        let target = mesh_api::outbound::target(request.target)
            .map_err(|error| Status::invalid_argument(error.to_string()))?;
        let policy = match target {
            Target::Addr(addr) => self.responses.outbound(addr),
            Target::Authority(_) => None,
        };
        let policy = policy.ok_or_else(|| Status::not_found("no such service"))?;
        Ok(one_message(mesh_api::outbound::extended_to_proto(&policy)))
    }

    async fn inbound(&self, request: inb::PortSpec) -> Result<Messages<inb::Server>, Status> {
        let port = u16::try_from(request.port)
            .map_err(|_out_of_range| Status::invalid_argument("no such port"))?;
        let policy = self.responses.inbound(port);
        Ok(one_message(mesh_api::inbound::to_proto(&policy)))
    }

    async fn certify(&self, request: CertifyRequest) -> Result<CertifyResponse, Status> {
        let authority = self.authority.borrow().clone();
        let issued = authority.sign(&request.certificate_signing_request);
        let issued = issued.map_err(|error| Status::invalid_argument(format!("{error:#}")))?;
        Ok(mesh_api::identity::to_proto(&issued))
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
