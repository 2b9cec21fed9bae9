//! Tokens of machines outside Kubernetes (docs/adr/0229).
//!
//! A machine joins with a token of its ConfigMap, and gets a certificate for its key. The key signs
//! the tokens of its units, with a ServiceAccount as the subject and the certificate in the header,
//! and the tokens that renew the certificate. The ConfigMap decides at every request: nothing is
//! issued without it or to another key.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::jiff::Timestamp;
use mesh_core::identity::is_dns_label;
use mesh_core::machine::{JOIN_TOKEN, MACHINE_SUBJECT, MAX_MACHINE_CERTIFICATES};
use mesh_k8s::machine::{AccountName, Machine};
use mesh_k8s::trust::fingerprint;
use rustls_pki_types::CertificateDer;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::signed::TokenKey;
use super::{Account, Subject, TokenError, UnverifiedToken};
use crate::identity::issuer::{Issuer, is_for_tokens};

/// The machines that are admitted, by name.
pub type Machines = BTreeMap<String, Machine>;

/// The token that a machine joins with: `mesh-join.NAME.SECRET`.
pub(in crate::identity) struct JoinRequest<'a> {
    text: &'a str,
    machine: &'a str,
}

/// The longest time until a machine's token expires. It makes one for each request.
const MAX_LIFETIME: Duration = Duration::from_secs(3600);

impl<'a> JoinRequest<'a> {
    /// Returns `None` of other tokens.
    pub(in crate::identity) fn read(token: &'a [u8]) -> Option<Self> {
        let text = std::str::from_utf8(token).ok()?.trim();
        let (machine, _secret) = text.strip_prefix(JOIN_TOKEN)?.split_once('.')?;
        is_dns_label(machine).then_some(Self { text, machine })
    }

    pub(in crate::identity) fn machine(&self) -> &'a str {
        self.machine
    }

    /// Verifies that the ConfigMap has this token and this key, in DER, and that it has not
    /// expired.
    pub(in crate::identity) fn verify(
        &self,
        machines: &Machines,
        key: &[u8],
        now: SystemTime,
    ) -> Result<(), TokenError> {
        let machine = find(machines, self.machine)?;
        let token = machine.token.as_ref().ok_or(TokenError::JoinToken)?;
        // What is compared are hashes, so that the time of the comparison tells nothing.
        if fingerprint(self.text.as_bytes()) != token.sha256 {
            return Err(TokenError::JoinToken);
        }
        if Timestamp::try_from(now).is_ok_and(|now| now < token.expires) {
            check_key(machine, key)
        } else {
            Err(TokenError::Expired)
        }
    }
}

impl UnverifiedToken<'_> {
    /// Returns whether a machine has signed the token. Tokens of Kubernetes have no certificates.
    pub(in crate::identity) fn is_of_machine(&self) -> bool {
        !self.certificates.is_empty()
    }

    /// Returns whose identity the token of a machine is for, by its claim.
    pub(in crate::identity) fn claimed_subject(&self) -> Result<Subject, TokenError> {
        match self.claims.sub.strip_prefix(MACHINE_SUBJECT) {
            Some(name) if is_dns_label(name) => Ok(Subject::Machine(name.to_owned())),
            Some(_) => Err(TokenError::Subject(self.claims.sub.clone())),
            None => self.claimed_account().map(Subject::Account),
        }
    }

    /// Verifies the signature by the key of the certificate, whose chain the issuer verifies, and
    /// that the ConfigMap of the machine has this key and the account. `identity_of` returns the
    /// identity of a machine, and `requested` is the key, in DER, of the requested certificate.
    pub(in crate::identity) fn verify_machine(
        &self,
        machines: &Machines,
        issuer: &Issuer,
        identity_of: impl Fn(&str) -> String,
        requested: &[u8],
        now: SystemTime,
    ) -> Result<(), TokenError> {
        let chain = self.chain()?;
        let [leaf, intermediates @ ..] = &*chain else {
            return Err(TokenError::MachineCertificate("it is missing"));
        };
        let invalid = TokenError::MachineCertificate;
        issuer
            .verify_machine(leaf, intermediates, now)
            .map_err(|_error| invalid("no trust anchor verifies it, or it has expired"))?;
        let (_, certificate) =
            X509Certificate::from_der(leaf).map_err(|_error| invalid("it is unreadable"))?;
        if !is_for_tokens(&certificate) {
            return Err(invalid("it is not for tokens"));
        }
        let name = dns_name(&certificate).ok_or(invalid("it has not one DNS name"))?;
        let label = name.split_once('.').map_or(name, |(label, _)| label);
        if identity_of(label) != name {
            return Err(TokenError::UnknownMachine(name.to_owned()));
        }
        let machine = find(machines, label)?;
        let key = certificate.public_key();
        check_key(machine, key.raw)?;
        TokenKey::new(key)
            .map_err(|_error| TokenError::Algorithm)?
            .verify(self, now)?;
        self.claims.check_lifetime(MAX_LIFETIME, now)?;
        match self.claimed_subject()? {
            Subject::Machine(claimed) if claimed == machine.name => check_key(machine, requested),
            Subject::Machine(claimed) => Err(TokenError::OtherMachine {
                signer: machine.name.clone(),
                claimed,
            }),
            Subject::Account(account) => check_account(machine, account),
        }
    }

    fn chain(&self) -> Result<Vec<CertificateDer<'static>>, TokenError> {
        if self.certificates.len() > MAX_MACHINE_CERTIFICATES {
            return Err(TokenError::MachineCertificate("there are more than 8"));
        }
        let decode = |text: &String| STANDARD.decode(text).map(CertificateDer::from);
        let chain: Result<_, _> = self.certificates.iter().map(decode).collect();
        chain.map_err(|_error| TokenError::Unreadable)
    }
}

fn find<'a>(machines: &'a Machines, name: &str) -> Result<&'a Machine, TokenError> {
    let machine = machines.get(name);
    machine.ok_or_else(|| TokenError::UnknownMachine(name.to_owned()))
}

fn check_key(machine: &Machine, key: &[u8]) -> Result<(), TokenError> {
    if fingerprint(key) == machine.key {
        Ok(())
    } else {
        Err(TokenError::MachineKey(machine.name.clone()))
    }
}

fn check_account(machine: &Machine, account: Account) -> Result<(), TokenError> {
    let account = AccountName {
        namespace: account.namespace,
        name: account.name,
    };
    if machine.accounts.contains(&account) {
        return Ok(());
    }
    Err(TokenError::MachineAccount {
        machine: machine.name.clone(),
        account: account.to_string(),
    })
}

/// Returns the only subject alternative name of a certificate, if that is a DNS name.
fn dns_name<'a>(certificate: &'a X509Certificate<'_>) -> Option<&'a str> {
    let names = certificate.subject_alternative_name().ok()??;
    match &*names.value.general_names {
        [GeneralName::DNSName(name)] => Some(name),
        _ => None,
    }
}
