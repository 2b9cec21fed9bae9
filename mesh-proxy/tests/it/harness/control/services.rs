//! The responses to each call, from the state that the test has set.

use std::sync::atomic::Ordering;

use mesh_api::mesh::identity::TrustBundle;
use mesh_api::outbound::ExtendedPolicy;
use mesh_api::proto::identity::{CertifyRequest, CertifyResponse};
use mesh_api::proto::{destination as dst, inbound as inb, outbound as out};
use mesh_core::profile::Profile;
use mesh_test_support::control_plane::{Messages, Script};
use time::OffsetDateTime;
use tonic::Status;

use super::{ControlPlane, Issuing, Target, endpoint_updates, messages, policies};

#[tonic::async_trait]
impl Script for ControlPlane {
    async fn endpoints(
        &self,
        request: dst::GetDestination,
    ) -> Result<Messages<dst::Update>, Status> {
        let values = self.state.endpoints.follow(request.path);
        let encode = |before: Option<&Vec<_>>, now: &Vec<_>| {
            endpoint_updates(before.map_or(&[], Vec::as_slice), now)
        };
        Ok(messages(values, encode))
    }

    async fn profile(
        &self,
        request: dst::GetDestination,
    ) -> Result<Messages<dst::DestinationProfile>, Status> {
        let profiles = &self.state.profiles;
        if profiles.follow(request.path.clone()).borrow().is_none() {
            profiles.set(request.path.clone(), Profile::default());
        }
        let encode = |_: Option<&Profile>, profile: &Profile| {
            vec![mesh_api::destination::profile_to_proto(profile)]
        };
        Ok(messages(profiles.follow(request.path), encode))
    }

    async fn outbound(
        &self,
        request: out::TrafficSpec,
    ) -> Result<Messages<ExtendedPolicy>, Status> {
        let target = mesh_api::outbound::target(request.target)
            .map_err(|error| Status::invalid_argument(error.to_string()))?;
        let Target::Addr(addr) = target else {
            return Err(Status::not_found("only addresses are known"));
        };
        let values = self.state.outbound.follow(addr);
        if values.borrow().is_none() {
            return Err(Status::not_found("no such service"));
        }
        let encode =
            |_: Option<&_>, policy: &_| vec![mesh_api::outbound::extended_to_proto(policy)];
        Ok(messages(values, encode))
    }

    async fn inbound(&self, request: inb::PortSpec) -> Result<Messages<inb::Server>, Status> {
        let inbound = &self.state.inbound;
        let key = (request.workload, request.port.try_into().unwrap());
        if inbound.follow(key.clone()).borrow().is_none() {
            inbound.set(key.clone(), policies::open_server());
        }
        let encode = |_: Option<&_>, policy: &_| vec![mesh_api::inbound::to_proto(policy)];
        Ok(messages(inbound.follow(key), encode))
    }

    async fn trust_bundles(&self) -> Result<Messages<TrustBundle>, Status> {
        self.state.bundle_streams.fetch_add(1, Ordering::Relaxed);
        let encode =
            |_: Option<&_>, bundle: &_| vec![mesh_api::identity::trust_bundle_to_proto(bundle)];
        Ok(messages(self.state.bundles.follow(()), encode))
    }

    async fn certify(&self, request: CertifyRequest) -> Result<CertifyResponse, Status> {
        if request.token != b"the-token" {
            return Err(Status::unauthenticated("unknown token"));
        }
        let (from, to) = match *self.state.issuing.lock() {
            Issuing::Valid(from, to) => (from, to),
            Issuing::Refused => return Err(Status::unavailable("no certificates for now")),
            Issuing::Denied => {
                let problem =
                    "a is denied (ConfigMap linkerd-denied-identities of the control plane)";
                return Err(Status::permission_denied(problem));
            }
        };
        let now = OffsetDateTime::now_utc();
        let authority = self.state.authority.lock();
        let issued = authority.sign_with(&request.certificate_signing_request, |params| {
            params.not_before = now + time::Duration::seconds(from);
            params.not_after = now + time::Duration::seconds(to);
        });
        Ok(CertifyResponse {
            leaf_certificate: issued.leaf,
            intermediate_certificates: issued.intermediates,
            valid_until: Some(issued.valid_until.into()),
        })
    }
}
