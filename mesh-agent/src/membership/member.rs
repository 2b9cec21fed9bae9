//! A machine that has joined: its record, and the tokens that it signs.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use mesh_core::identity;
use mesh_core::machine::{
    MACHINE_SUBJECT, MembershipStatus, MeshService, MeshSettings, ServiceAddress,
};
use mesh_core::trust_bundle::{BundleRefusal, TrustBundle};
use mesh_k8s::machine::AccountName;
use serde::{Deserialize, Serialize};

use super::identity_service::Certified;
use super::key::{KeyError, MachineKey};
use super::time::{of_seconds, seconds};
use super::tls;
use super::token::{self, Token};

/// What the machine keeps of the join file, without the token, and its certificate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct MemberRecord {
    pub(super) machine: String,
    pub(super) mesh: MeshSettings,
    /// In DER and base64, leaf first.
    pub(super) chain: Vec<String>,
    /// When the certificate was issued, in seconds since the Unix epoch.
    pub(super) issued: u64,
    pub(super) expires: u64,
    /// The number of the trust anchors; absent of the join file's.
    pub(super) anchors_number: Option<u64>,
}

/// A machine that has joined. A renewal and other trust anchors make another value.
#[derive(Debug)]
pub(crate) struct Member {
    pub(super) record: MemberRecord,
    pub(super) key: Arc<MachineKey>,
    /// In DER, leaf first.
    chain: Vec<Vec<u8>>,
}

/// Why there is no token.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    #[error(
        "the certificate of machine {machine} has expired at {expired}, so that it cannot sign tokens; admit it again and join with the new file"
    )]
    Expired { machine: String, expired: String },
    #[error(transparent)]
    Key(#[from] KeyError),
}

/// The part of a certificate's life after which it is renewed, so that most of the life is left for
/// attempts.
const RENEW_AFTER: u32 = 3;

/// The pause between renewals while the mesh has several trust anchors: its issuer may be replaced
/// at any time, and the anchor of the certificate removed soon after every pod has followed.
const DURING_ROTATION: Duration = Duration::from_secs(60);

impl MemberRecord {
    pub(super) fn new(
        machine: &str,
        mesh: MeshSettings,
        certified: &Certified,
        now: SystemTime,
    ) -> Self {
        Self {
            machine: machine.to_owned(),
            mesh,
            chain: encoded(&certified.chain),
            issued: seconds(now),
            expires: seconds(certified.expires),
            anchors_number: None,
        }
    }
}

impl Member {
    /// Returns `None` of a record whose certificates are damaged.
    pub(super) fn new(record: MemberRecord, key: Arc<MachineKey>) -> Option<Self> {
        let chain = record.chain.iter().map(|text| STANDARD.decode(text));
        let chain: Vec<Vec<u8>> = chain.collect::<Result<_, _>>().ok()?;
        (!chain.is_empty()).then_some(Self { record, key, chain })
    }

    /// Returns the record with another certificate.
    pub(super) fn renewed(&self, certified: &Certified, now: SystemTime) -> MemberRecord {
        MemberRecord {
            chain: encoded(&certified.chain),
            issued: seconds(now),
            expires: seconds(certified.expires),
            ..self.record.clone()
        }
    }

    /// Returns the record with the anchors of a bundle; `None` if it has them already.
    pub(super) fn with_anchors(
        &self,
        received: &TrustBundle,
    ) -> Result<Option<MemberRecord>, BundleRefusal> {
        let mesh = &self.record.mesh;
        let current = self.record.anchors_number.map(|number| TrustBundle {
            number,
            anchors: mesh.trust_anchors.clone(),
            // Machines have no peers, and keep nothing else.
            ..received.clone()
        });
        if !received.replaces(current.as_ref())? {
            return Ok(None);
        }
        let mut record = self.record.clone();
        record.anchors_number = Some(received.number);
        record.mesh.trust_anchors = received.anchors.clone();
        Ok(Some(record))
    }

    pub(crate) fn machine(&self) -> &str {
        &self.record.machine
    }

    pub(crate) fn mesh(&self) -> &MeshSettings {
        &self.record.mesh
    }

    /// Returns the name of the machine in its certificate.
    pub(super) fn name(&self) -> String {
        name(&self.record.machine, &self.record.mesh)
    }

    /// Returns the identity of a ServiceAccount.
    pub(crate) fn identity_of(&self, account: &AccountName) -> String {
        let mesh = &self.record.mesh;
        identity::service_account(
            &account.name,
            &account.namespace,
            &mesh.control_plane_namespace,
            &mesh.trust_domain,
        )
    }

    pub(crate) fn expires(&self) -> SystemTime {
        of_seconds(self.record.expires)
    }

    /// Returns when the certificate is renewed.
    pub(super) fn renews_at(&self) -> SystemTime {
        let issued = of_seconds(self.record.issued);
        let life = self.expires().duration_since(issued).unwrap_or_default();
        let pause = life / RENEW_AFTER;
        match tls::count_anchors(&self.record.mesh.trust_anchors) {
            Ok(2..) => issued + pause.min(DURING_ROTATION),
            _ => issued + pause,
        }
    }

    /// Returns a number from 0 to 1 by which machines differ, so that they do not all ask at once.
    pub(super) fn share(&self) -> f64 {
        let digits = self.key.fingerprint();
        let number = u32::from_str_radix(&digits[..4], 16).unwrap_or_default();
        f64::from(number) / f64::from(u16::MAX)
    }

    /// Signs a token for the proxy of a unit.
    pub(crate) fn unit_token(
        &self,
        account: &AccountName,
        now: SystemTime,
    ) -> Result<Token, TokenError> {
        let subject = identity::account_subject(&account.namespace, &account.name);
        self.sign(&subject, now)
    }

    /// Signs a token for the machine's own certificate.
    pub(super) fn own_token(&self, now: SystemTime) -> Result<Token, TokenError> {
        self.sign(&format!("{MACHINE_SUBJECT}{}", self.machine()), now)
    }

    fn sign(&self, subject: &str, now: SystemTime) -> Result<Token, TokenError> {
        if now >= self.expires() {
            return Err(TokenError::Expired {
                machine: self.machine().to_owned(),
                expired: super::time::text(self.expires()),
            });
        }
        Ok(token::sign(&self.key, &self.chain, subject, now)?)
    }

    pub(super) fn status(&self, failure: Option<String>) -> MembershipStatus {
        let mesh = &self.record.mesh;
        MembershipStatus {
            machine: self.record.machine.clone(),
            name: self.name(),
            trust_domain: mesh.trust_domain.clone(),
            control_plane_namespace: mesh.control_plane_namespace.clone(),
            key_sha256: self.key.fingerprint(),
            identity_address: mesh.identity.address.clone(),
            certificate_expires: self.record.expires,
            renews_at: seconds(self.renews_at()),
            renewal_failure: failure,
            services: services(mesh),
            trust_anchors: mesh.trust_anchors.clone(),
        }
    }
}

fn services(mesh: &MeshSettings) -> Vec<MeshService> {
    let service = |(service, address): (&str, &ServiceAddress)| MeshService {
        service: service.to_owned(),
        address: address.address.clone(),
        name: address.name.clone(),
    };
    let all = [
        ("identity", &mesh.identity),
        ("destination", &mesh.destination),
        ("policy", &mesh.policy),
    ];
    all.map(service).into()
}

/// Returns the name of a machine in its certificate.
pub(super) fn name(machine: &str, mesh: &MeshSettings) -> String {
    identity::machine(machine, &mesh.control_plane_namespace, &mesh.trust_domain)
}

/// Returns the pause after this many failed renewals.
pub(super) fn pause_after(failures: u32, share: f64) -> Duration {
    const BACKOFF: mesh_core::resilience::Backoff = mesh_core::resilience::Backoff {
        min: Duration::from_secs(10),
        max: Duration::from_secs(3600),
        jitter: 0.5,
    };
    BACKOFF.pause(failures.saturating_sub(1), share)
}

fn encoded(chain: &[Vec<u8>]) -> Vec<String> {
    chain.iter().map(|der| STANDARD.encode(der)).collect()
}
