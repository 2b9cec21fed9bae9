//! The machine as a member of a mesh: its key, how it joins, and the certificate that it signs
//! tokens with (docs/adr/0229, docs/adr/0230).
//!
//! The agent in its mode `machine` has one [`Membership`]. Its thread "node" reads it for the
//! environment and the tokens of units. Tasks of the runtime join, renew the certificate and follow
//! the trust anchors ([`joining`], [`renewal`], [`anchors`]), which are the only parts that use the
//! network.
//!
//! ```text
//! <units dir>/identity/key.pem           the key, made once
//! <units dir>/identity/membership.json   the mesh, and the certificate; no token
//! ```

pub(crate) mod anchors;
mod dns;
mod error;
mod identity_service;
pub(crate) mod joining;
mod key;
mod member;
pub(crate) mod renewal;
pub(crate) mod time;
mod tls;
mod token;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use mesh_core::machine::MembershipStatus;
use mesh_runtime::file;
use mesh_runtime::log::chain;
use parking_lot::Mutex;
use tokio::sync::watch;

use self::key::MachineKey;
use self::member::MemberRecord;
use crate::registry::{create_directory, read_json, remove, write_json};

pub use self::error::MembershipError;
pub use self::identity_service::ServiceError;
pub(crate) use self::member::Member;
pub use self::member::TokenError;
pub(crate) use self::token::Token;

/// The key and the membership of this machine, which the agent's threads share.
#[derive(Debug)]
pub struct Membership {
    dir: PathBuf,
    /// Held while the files change.
    troubles: Mutex<Troubles>,
    member: watch::Sender<Option<Arc<Member>>>,
    /// Held while the machine joins.
    joining: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct Troubles {
    /// Why the last renewal failed.
    renewal: Option<String>,
    /// Why the files of an earlier agent cannot be used.
    files: Option<String>,
}

impl Membership {
    /// Reads what earlier agents wrote. Damage does not end the agent, which has units to redirect.
    pub(crate) fn open(units_dir: &Path) -> Self {
        let dir = directory(units_dir);
        let (member, files) = match read(&dir) {
            Ok(member) => (member.map(Arc::new), None),
            Err(error) => (None, Some(chain(&error))),
        };
        Self {
            dir,
            troubles: Mutex::new(Troubles {
                renewal: None,
                files,
            }),
            member: watch::Sender::new(member),
            joining: tokio::sync::Mutex::new(()),
        }
    }

    /// Returns the member, if the machine has joined.
    pub(crate) fn member(&self) -> Option<Arc<Member>> {
        self.member.borrow().clone()
    }

    /// Why the files cannot be used.
    pub(crate) fn problem(&self) -> Option<String> {
        self.troubles.lock().files.clone()
    }

    /// Returns the fingerprint of the key, which is made if there is none.
    pub(crate) fn key(&self) -> Result<String, MembershipError> {
        let _serial = self.troubles.lock();
        create_directory(&self.dir)?;
        Ok(MachineKey::read_or_make(&self.key_path())?.fingerprint())
    }

    pub(crate) fn status(&self) -> Option<MembershipStatus> {
        Some(self.member()?.status(self.failure()))
    }

    /// Why the last renewal failed.
    pub(crate) fn failure(&self) -> Option<String> {
        self.troubles.lock().renewal.clone()
    }

    /// Deletes key and certificate. Returns the machine, if it had joined.
    pub(crate) fn leave(&self) -> Result<Option<String>, MembershipError> {
        let mut troubles = self.troubles.lock();
        let machine = self.member().map(|member| member.machine().to_owned());
        self.member.send_replace(None);
        erase(&self.dir)?;
        *troubles = Troubles::default();
        Ok(machine)
    }

    fn subscribe(&self) -> watch::Receiver<Option<Arc<Member>>> {
        self.member.subscribe()
    }

    fn read_key(&self) -> Result<Option<MachineKey>, MembershipError> {
        Ok(MachineKey::read(&self.key_path())?)
    }

    /// Stores a record in place of the one of `previous`, if that is still the current one.
    fn replace(
        &self,
        previous: Option<&Arc<Member>>,
        key: Arc<MachineKey>,
        record: MemberRecord,
    ) -> Result<Arc<Member>, MembershipError> {
        let mut troubles = self.troubles.lock();
        let current = self.member();
        if current.as_ref().map(Arc::as_ptr) != previous.map(Arc::as_ptr) {
            return Err(MembershipError::Changed);
        }
        create_directory(&self.dir)?;
        write_json(&record_path(&self.dir), &record)?;
        let member = Member::new(record, key).ok_or(MembershipError::Changed)?;
        let member = Arc::new(member);
        self.member.send_replace(Some(member.clone()));
        *troubles = Troubles::default();
        Ok(member)
    }

    fn set_failure(&self, reason: String) {
        self.troubles.lock().renewal = Some(reason);
    }

    fn key_path(&self) -> PathBuf {
        self.dir.join("key.pem")
    }
}

/// Deletes key and certificate of a machine without a running agent.
pub(crate) fn remove_all(units_dir: &Path) -> Result<(), MembershipError> {
    erase(&directory(units_dir))
}

fn directory(units_dir: &Path) -> PathBuf {
    units_dir.join("identity")
}

fn record_path(dir: &Path) -> PathBuf {
    dir.join("membership.json")
}

fn read(dir: &Path) -> Result<Option<Member>, MembershipError> {
    let record = read_json(&record_path(dir)).map_err(MembershipError::Record)?;
    let Some(record) = record else {
        return Ok(None);
    };
    let key = MachineKey::read(&dir.join("key.pem"))?.ok_or(MembershipError::NoKey)?;
    Ok(Member::new(record, Arc::new(key)))
}

fn erase(dir: &Path) -> Result<(), MembershipError> {
    // First: a record without its key would be damage.
    remove(&record_path(dir))?;
    file::remove_tree(dir).map_err(file::failed("cannot remove", dir))?;
    Ok(())
}

#[cfg(test)]
mod tests;
