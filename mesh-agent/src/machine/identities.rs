//! The identities of units on a machine that has joined a mesh: the environment of their proxies,
//! and the tokens that their proxies get certificates with.
//!
//! ```text
//! <state dir>/tokens/<name>   the token of a unit, which only the user of the proxies reads
//! ```

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs::{self, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{PermissionsExt as _, fchown};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use mesh_core::identity::is_dns_label;
use mesh_core::machine::{UnitEnrolment, UnitIdentity, instance};
use mesh_k8s::machine::AccountName;
use mesh_runtime::file::{self, FileError};
use serde::{Deserialize, Serialize};

use crate::membership::time::seconds;
use crate::membership::{Member, Membership, Token, TokenError};
use crate::registry::create_directory;

/// What the identities of units need from the agent.
#[derive(Debug)]
pub struct Identities {
    membership: Arc<Membership>,
    tokens_dir: PathBuf,
    /// The user that proxies run as.
    proxy_user: String,
    /// The last token of each unit that this agent has written, by unit.
    written: HashMap<String, Written>,
}

/// The ServiceAccount of a unit, in its record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct UnitAccount {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) external_workload: String,
}

/// Why a unit has no identity.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    #[error(
        "{unit} cannot have the ServiceAccount {account}, because this machine has not joined a mesh; run `meshctl machine join` first"
    )]
    NotJoined { unit: String, account: String },
    #[error("--service-account {0:?} is not NAMESPACE/NAME, both DNS labels")]
    Account(String),
    #[error("--external-workload needs --service-account, whose namespace it is in")]
    NoAccount,
    #[error(
        "{0:?} is not the name of an ExternalWorkload (a DNS label); choose one with --external-workload"
    )]
    ExternalWorkload(String),
    #[error(
        "the user {0} of the proxies does not exist; create it with `useradd --system --no-create-home {0}`, or start the agent with --proxy-user"
    )]
    NoUser(String),
    #[error("cannot look up the user {user} of the proxies")]
    User { user: String, source: FileError },
    #[error(transparent)]
    Token(#[from] TokenError),
    #[error("cannot write the token of {unit}")]
    Write { unit: String, source: FileError },
}

struct User {
    uid: u32,
    gid: u32,
}

#[derive(Debug)]
struct Written {
    account: AccountName,
    expires: SystemTime,
}

/// A static program must not ask the C library, which would load modules for other sources.
const USERS: &str = "/etc/passwd";

/// A token is replaced when it is valid for less than this, well before a proxy needs it for longer
/// than a request takes.
const REPLACE_WITHIN: Duration = Duration::from_secs(20 * 60);

impl UnitAccount {
    fn account(&self) -> AccountName {
        AccountName {
            namespace: self.namespace.clone(),
            name: self.name.clone(),
        }
    }
}

impl Identities {
    pub(crate) fn new(membership: Arc<Membership>, state_dir: &Path, proxy_user: String) -> Self {
        Self {
            membership,
            tokens_dir: state_dir.join("tokens"),
            proxy_user,
            written: HashMap::new(),
        }
    }

    pub(crate) fn membership(&self) -> &Membership {
        &self.membership
    }

    /// Returns the ServiceAccount that an enrolment requests.
    pub(super) fn account(
        &self,
        enrolment: &UnitEnrolment,
    ) -> Result<Option<UnitAccount>, IdentityError> {
        let Some(text) = &enrolment.service_account else {
            return match enrolment.external_workload {
                Some(_) => Err(IdentityError::NoAccount),
                None => Ok(None),
            };
        };
        let account = AccountName::parse(text);
        let account = account.ok_or_else(|| IdentityError::Account(text.clone()))?;
        let member = self.membership.member();
        let member = member.ok_or_else(|| IdentityError::NotJoined {
            unit: enrolment.unit.clone(),
            account: text.clone(),
        })?;
        self.user()?;
        let external_workload = enrolment.external_workload.clone().unwrap_or_else(|| {
            let name = instance(&enrolment.unit);
            format!("{}-{}", member.machine(), name.trim_end_matches(".slice"))
        });
        if !is_dns_label(&external_workload) {
            return Err(IdentityError::ExternalWorkload(external_workload));
        }
        Ok(Some(UnitAccount {
            namespace: account.namespace,
            name: account.name,
            external_workload,
        }))
    }

    /// Returns the lines of the environment of a unit's proxy; `None` while the machine is not a
    /// member: the proxy keeps its environment.
    pub(super) fn environment(&self, unit: &str, account: &UnitAccount) -> Option<String> {
        let member = self.membership.member()?;
        Some(environment(&member, account, &self.token_path(unit)))
    }

    /// Writes a token if there is none for long enough.
    pub(super) fn refresh(
        &mut self,
        unit: &str,
        account: &UnitAccount,
        now: SystemTime,
    ) -> Result<(), IdentityError> {
        let path = self.token_path(unit);
        let account = account.account();
        let is_fresh = |written: &Written| {
            let left = written.expires.duration_since(now).unwrap_or_default();
            written.account == account && left >= REPLACE_WITHIN
        };
        if self.written.get(unit).is_some_and(is_fresh) && path.exists() {
            return Ok(());
        }
        let Some(member) = self.membership.member() else {
            return Ok(());
        };
        let token = member.unit_token(&account, now)?;
        let expires = token.expires;
        self.write(unit, &path, &token)?;
        let unit = unit.to_owned();
        self.written.insert(unit, Written { account, expires });
        Ok(())
    }

    /// Removes the tokens of all units but these.
    pub(super) fn retain(&mut self, units: &[&str]) -> Result<(), FileError> {
        self.written.retain(|unit, _| units.contains(&&**unit));
        let kept: Vec<PathBuf> = units.iter().map(|unit| self.token_path(unit)).collect();
        let failed = file::failed("cannot remove the tokens in", &self.tokens_dir);
        let entries = match fs::read_dir(&self.tokens_dir) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(failed(error)),
        };
        for entry in entries {
            let path = entry.map_err(&failed)?.path();
            if !kept.contains(&path) {
                file::remove(&path).map_err(&failed)?;
            }
        }
        if units.is_empty() {
            fs::remove_dir(&self.tokens_dir).map_err(failed)?;
        }
        Ok(())
    }

    pub(super) fn status(&self, unit: &str, account: UnitAccount) -> UnitIdentity {
        let member = self.membership.member();
        let name = member.map(|member| member.identity_of(&account.account()));
        let written = self.written.get(unit);
        UnitIdentity {
            service_account: account.account().to_string(),
            external_workload: account.external_workload,
            name,
            token_expires: written.map(|written| seconds(written.expires)),
            token_file: Some(self.token_path(unit)),
        }
    }

    fn write(&self, unit: &str, path: &Path, token: &Token) -> Result<(), IdentityError> {
        let user = self.user()?;
        let write = || {
            create_directory(&self.tokens_dir)?;
            // Of the directories the user of the proxies needs to enter both, and to list none.
            for dir in self.tokens_dir.ancestors().take(2) {
                enterable(dir).map_err(file::failed("cannot change the mode of", dir))?;
            }
            let draft = path.with_file_name(format!(".{unit}"));
            // The remains of an agent that was killed may belong to another user.
            file::remove(&draft).map_err(file::failed("cannot remove", &draft))?;
            let written = file::replace(path, &draft, 0o400, |file| {
                fchown(&*file, Some(user.uid), Some(user.gid))?;
                file.write_all(token.text.as_bytes())
            });
            written.map_err(file::failed("cannot write", path))
        };
        write().map_err(|source| IdentityError::Write {
            unit: unit.to_owned(),
            source,
        })
    }

    fn user(&self) -> Result<User, IdentityError> {
        let user = &self.proxy_user;
        let path = Path::new(USERS);
        let users = fs::read_to_string(path).map_err(file::failed("cannot read", path));
        let users = users.map_err(|source| IdentityError::User {
            user: user.clone(),
            source,
        })?;
        let mut users = users.lines().map(|line| line.split(':'));
        let found = users.find(|fields| fields.clone().next() == Some(user));
        let found = found.and_then(|mut fields| {
            let uid = fields.nth(2)?.parse().ok()?;
            let gid = fields.next()?.parse().ok()?;
            Some(User { uid, gid })
        });
        found.ok_or_else(|| IdentityError::NoUser(user.clone()))
    }

    fn token_path(&self, unit: &str) -> PathBuf {
        self.tokens_dir.join(instance(unit))
    }
}

fn enterable(dir: &Path) -> io::Result<()> {
    let mode = fs::metadata(dir)?.permissions().mode();
    if mode & 0o011 == 0o011 {
        return Ok(());
    }
    fs::set_permissions(dir, Permissions::from_mode((mode | 0o011) & 0o777))
}

fn environment(member: &Member, account: &UnitAccount, token: &Path) -> String {
    let mesh = member.mesh();
    let workload = serde_json::json!({
        "ns": account.namespace, "external_workload": account.external_workload,
    });
    let context = serde_json::json!({ "ns": account.namespace });
    let own = [
        ("DESTINATION_CONTEXT", context.to_string()),
        ("DESTINATION_SVC_ADDR", mesh.destination.address.clone()),
        ("DESTINATION_SVC_NAME", mesh.destination.name.clone()),
        (
            "IDENTITY_LOCAL_NAME",
            member.identity_of(&account.account()),
        ),
        ("IDENTITY_SVC_ADDR", mesh.identity.address.clone()),
        ("IDENTITY_SVC_NAME", mesh.identity.name.clone()),
        ("IDENTITY_TOKEN_FILE", token.display().to_string()),
        ("IDENTITY_TRUST_ANCHORS", mesh.trust_anchors.clone()),
        ("POLICY_SVC_ADDR", mesh.policy.address.clone()),
        ("POLICY_SVC_NAME", mesh.policy.name.clone()),
        ("POLICY_WORKLOAD", workload.to_string()),
    ];
    let mut text = String::new();
    for (name, value) in &mesh.proxy_environment {
        // Writing to a String does not fail, here and below.
        let _ = writeln!(text, "{name}={}", quoted(value));
    }
    for (name, value) in own {
        let _ = writeln!(text, "LINKERD2_PROXY_{name}={}", quoted(&value));
    }
    text
}

/// Quotes a value as systemd reads it in an environment file, and a shell.
fn quoted(value: &str) -> String {
    let mut quoted = String::from("\"");
    for c in value.trim_end().chars() {
        if matches!(c, '"' | '\\' | '$' | '`') {
            quoted.push('\\');
        }
        quoted.push(c);
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_value_is_read_by_a_shell_as_it_is() {
        for value in [
            "plain",
            "{\"ns\":\"shop\"}",
            "-----BEGIN-----\na+b/c=\n-----END-----",
            "$HOME `id` \\ \"",
        ] {
            let script = format!("VALUE={}; printf %s \"$VALUE\"", quoted(value));
            let output = std::process::Command::new("sh")
                .args(["-c", &script])
                .output();
            assert_eq!(String::from_utf8(output.unwrap().stdout).unwrap(), value);
        }
    }
}
