//! Credentials whose certificate and key the SPIFFE Workload API has sent. Called by the identity
//! source for each of them.
//!
//! Certificates of the identity service belong to keys of this process ([`super::csr`]); those of
//! the Workload API come with their keys, which the agent on the machine has generated.

use std::sync::Arc;

use mesh_core::identity::Identity;
use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls_pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

use super::certificate;
use super::credentials::Credentials;
use super::error::CredentialsError;
use super::trust::TrustAnchors;

/// The most certificates of a chain: the workload's, six intermediate ones, which is where the
/// verification of peers ends, and the trust anchor, which issuers may add.
const MAX_CHAIN: usize = 8;

impl Credentials {
    /// As [`Credentials::new`], of a chain in DER, one certificate after the other, and its key
    /// (PKCS #8 in DER).
    pub(crate) fn from_svid(
        id: &Identity,
        server_name: &Arc<str>,
        chain: &[u8],
        key: &[u8],
        anchors: &TrustAnchors,
        generation: u64,
    ) -> Result<Self, CredentialsError> {
        let chain = certificate::split_der(chain).map_err(CredentialsError::InvalidCertificate)?;
        if chain.len() > MAX_CHAIN {
            return Err(CredentialsError::ChainLength {
                found: chain.len(),
                most: MAX_CHAIN,
            });
        }
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key));
        let key = any_supported_type(&key).map_err(CredentialsError::InvalidKey)?;
        Self::from_chain(id, server_name, chain, key, anchors, generation)
    }
}
