//! The SPIFFE Workload API, which gives a proxy outside Kubernetes its certificate, and the parts
//! of a response that the proxy uses.
//!
//! Everything that comes from the API has a bound. A fault of another identity of the process, or
//! of the bundle of a foreign trust domain, does not keep the proxy from its own identity.

use std::collections::BTreeSet;
use std::{fmt, mem};

use mesh_core::identity::{Identity, is_spiffe_trust_domain};
use zeroize::Zeroizing;

use self::wire::{X509svid, X509svidResponse};
use crate::field::InvalidField;
use crate::identity::MAX_TRUST_BUNDLE;

/// The messages and the service, which `tests/generated.rs` generates from
/// `proto/spiffe/workload.proto`.
#[expect(
    missing_docs,
    unused_qualifications,
    clippy::allow_attributes_without_reason,
    reason = "generated code; the .proto file has comments"
)]
pub mod wire {
    include!("generated/_.rs");
}

/// An identity with its certificate and the trust anchors of its peers. Certificates are in DER,
/// one after the other, and not parsed here.
#[derive(Clone, PartialEq, Eq)]
pub struct Svid {
    /// The certificate, and the intermediate ones from its issuer upwards.
    pub chain: Vec<u8>,
    /// The private key: PKCS #8, in DER. Wiped when it is dropped.
    pub key: Zeroizing<Vec<u8>>,
    /// The trust anchors of the identity's own trust domain.
    pub bundle: Vec<u8>,
    /// The trust anchors of foreign trust domains, by their names, which are in order.
    pub federated: Vec<(String, Vec<u8>)>,
    /// The parts of the response that have no use, each with the reason.
    pub unused: Vec<String>,
}

/// Why a response gives the proxy no certificate.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SvidError {
    /// The response has no identity at all.
    #[error("the Workload API sent no identity")]
    Empty,
    /// The response has more than [`MAX_SVIDS`].
    #[error("the Workload API sent {0} identities, expected at most {MAX_SVIDS}")]
    TooMany(usize),
    /// The response has other identities only.
    #[error(
        "the Workload API sent {found}, but not {expected} (is it registered for the process of the proxy?)"
    )]
    OtherIdentity {
        /// The identity of the proxy.
        expected: Identity,
        /// The identities of the response.
        found: String,
    },
    /// The identity of the proxy is incomplete, or a part of it exceeds its bound.
    #[error("the Workload API sent an invalid identity")]
    Field(#[source] InvalidField),
}

/// The longest response: the limit of gRPC's own clients, so that servers keep to it.
pub const MAX_RESPONSE: usize = 4 << 20;

/// The most identities of one process.
pub const MAX_SVIDS: usize = 256;

/// The longest chain of certificates, in bytes. Peers of this project and of Linkerd read at most
/// 64 KiB of a handshake at a time.
pub const MAX_CHAIN: usize = 32 << 10;

/// The longest private key, in bytes. One of RSA with 16,384 bits has 9 KiB.
pub const MAX_KEY: usize = 16 << 10;

/// The most foreign trust domains whose bundles are used.
pub const MAX_FEDERATED: usize = 128;

/// Texts of a response are cut after this number of characters in messages to users.
const MAX_SHOWN: usize = 128;

/// Identities of a response that are named in a message.
const MAX_NAMED: usize = 5;

/// Converts a received response to what the proxy with this identity uses of it: the first entry
/// for the identity, without entries whose hint an earlier one has.
///
/// # Errors
///
/// The response has no such entry, or it is invalid.
pub fn svid(response: X509svidResponse, id: &Identity) -> Result<Svid, SvidError> {
    let X509svidResponse {
        svids,
        crl,
        federated_bundles,
    } = response;
    let svids = keep_secret(svids);
    match svids.len() {
        0 => return Err(SvidError::Empty),
        count if count > MAX_SVIDS => return Err(SvidError::TooMany(count)),
        _ => {}
    }
    let Some(index) = position(svids.iter().map(|(svid, _)| svid), id) else {
        return Err(SvidError::OtherIdentity {
            expected: id.clone(),
            found: names(svids.iter().map(|(svid, _)| svid.spiffe_id.as_str())),
        });
    };
    let mut svids = svids;
    let (svid, key) = svids.swap_remove(index);
    let bounded = |field: &str, bytes: &[u8], most: usize| {
        check_length(&format!("svids[{index}].{field}"), bytes, most).map_err(SvidError::Field)
    };
    bounded("x509_svid", &svid.x509_svid, MAX_CHAIN)?;
    bounded("x509_svid_key", &key, MAX_KEY)?;
    bounded("bundle", &svid.bundle, MAX_TRUST_BUNDLE)?;
    let (federated, mut unused) = federated(federated_bundles, id);
    if !crl.is_empty() {
        unused.push("revocation lists are not applied".to_owned());
    }
    Ok(Svid {
        chain: svid.x509_svid,
        key,
        bundle: svid.bundle,
        federated,
        unused,
    })
}

/// Takes the private keys out of the messages, so that all of them are wiped.
fn keep_secret(svids: Vec<X509svid>) -> Vec<(X509svid, Zeroizing<Vec<u8>>)> {
    let take = |mut svid: X509svid| {
        let key = Zeroizing::new(mem::take(&mut svid.x509_svid_key));
        (svid, key)
    };
    svids.into_iter().map(take).collect()
}

fn position<'a>(svids: impl Iterator<Item = &'a X509svid>, id: &Identity) -> Option<usize> {
    let mut hints = BTreeSet::new();
    let mut counted = svids.map(|svid| {
        (
            svid,
            svid.hint.is_empty() || hints.insert(svid.hint.as_str()),
        )
    });
    counted.position(|(svid, counts)| counts && svid.spiffe_id == id.as_str())
}

fn check_length(field: &str, bytes: &[u8], most: usize) -> Result<(), InvalidField> {
    match bytes.len() {
        0 => Err(InvalidField::missing(field)),
        length if length > most => {
            let found = format!("{length} bytes");
            Err(InvalidField::not_a("length", field, found))
        }
        _ => Ok(()),
    }
}

/// Returns the usable bundles of foreign trust domains, and why others are not used.
fn federated(
    bundles: impl IntoIterator<Item = (String, Vec<u8>)>,
    id: &Identity,
) -> (Vec<(String, Vec<u8>)>, Vec<String>) {
    let (mut used, mut unused) = (Vec::new(), Vec::new());
    let mut beyond = 0_usize;
    for (name, bundle) in bundles {
        if used.len() + unused.len() == MAX_FEDERATED {
            beyond += 1;
            continue;
        }
        match foreign_domain(&name, &bundle, id) {
            Ok(domain) => used.push((domain.to_owned(), bundle)),
            Err(reason) => unused.push(format!("bundle of {:?}: {reason}", shown(&name))),
        }
    }
    if beyond > 0 {
        unused.push(format!(
            "{beyond} bundles of trust domains beyond the first {MAX_FEDERATED}"
        ));
    }
    (used, unused)
}

/// Returns the trust domain of a usable bundle, or the reason why it is not used.
fn foreign_domain<'a>(name: &'a str, bundle: &[u8], id: &Identity) -> Result<&'a str, String> {
    let domain = name
        .strip_prefix("spiffe://")
        .filter(|domain| is_spiffe_trust_domain(domain))
        .ok_or("its name is not spiffe:// with a trust domain")?;
    if id.spiffe_trust_domain() == Some(domain) {
        return Err("it is the proxy's own trust domain, whose bundle is in its identity".into());
    }
    match bundle.len() {
        0 => Err("it is empty".into()),
        length if length > MAX_TRUST_BUNDLE => Err(format!(
            "it has {length} bytes, more than {MAX_TRUST_BUNDLE}"
        )),
        _ => Ok(domain),
    }
}

fn names<'a>(ids: impl ExactSizeIterator<Item = &'a str>) -> String {
    let count = ids.len();
    let named: Vec<_> = ids.take(MAX_NAMED).map(shown).collect();
    let more = match count.saturating_sub(MAX_NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("{}{more}", named.join(", "))
}

fn shown(text: &str) -> String {
    text.chars().take(MAX_SHOWN).collect()
}

/// Shows no key.
impl fmt::Debug for Svid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Svid")
            .field("chain", &self.chain.len())
            .field("bundle", &self.bundle.len())
            .field("federated", &self.federated.len())
            .field("unused", &self.unused)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
