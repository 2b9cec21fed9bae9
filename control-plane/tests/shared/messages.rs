//! Requests to the controllers, and their responses as text.

use mesh_api::destination::endpoint_update;
use mesh_api::proto::destination::{GetDestination, Update};
use mesh_core::endpoint::EndpointUpdate;
use mesh_test_support::controller::next;
use rcgen::{CertificateParams, KeyPair};
use tonic::Streaming;

pub(crate) fn request(path: &str) -> GetDestination {
    GetDestination {
        scheme: "k8s".to_owned(),
        path: path.to_owned(),
        context_token: "{\"ns\":\"shop\",\"nodeName\":\"a\",\"pod\":\"client\"}\n".to_owned(),
    }
}

/// Returns the next update: the addresses after `+` or `-`.
pub(crate) async fn update(stream: &mut Streaming<Update>) -> String {
    let message = next(stream).await.expect("the stream ended");
    let update = endpoint_update(message).unwrap();
    assert_eq!(update.skipped, []);
    match update.update {
        EndpointUpdate::Add { endpoints, .. } => {
            let addrs: Vec<String> = endpoints.iter().map(|e| e.addr.to_string()).collect();
            format!("+{}", addrs.join(" "))
        }
        EndpointUpdate::Remove(addrs) => {
            let addrs: Vec<String> = addrs.iter().map(ToString::to_string).collect();
            format!("-{}", addrs.join(" "))
        }
        EndpointUpdate::Empty { .. } => panic!("never sent"),
    }
}

/// Returns a certificate signing request for an identity.
pub(crate) fn csr(name: &str) -> Vec<u8> {
    let mut params = CertificateParams::new([name.to_owned()]).unwrap();
    params.distinguished_name = rcgen::DistinguishedName::new();
    let key = KeyPair::generate().unwrap();
    params.serialize_request(&key).unwrap().der().to_vec()
}
