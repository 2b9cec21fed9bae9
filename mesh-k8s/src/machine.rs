//! The ConfigMap that admits a machine outside Kubernetes to the mesh: the ServiceAccounts whose
//! identities it may have, its key, and the token that it joins with (docs/adr/0229).
//!
//! It is in the namespace of the control plane, where only those may write who may change the
//! anchors of the mesh. `meshctl machine admit` writes it, and the identity service follows it.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use mesh_core::annotation::MACHINE;
use mesh_core::identity::is_dns_label;
use mesh_core::machine::is_sha256;

use crate::invalid::{Invalid, MAX_PROBLEMS, shown};

/// A machine that may have identities of the mesh.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Its name, a DNS label.
    pub name: String,
    /// The ServiceAccounts whose identities its units may have.
    pub accounts: BTreeSet<AccountName>,
    /// The SHA-256 of its public key (SubjectPublicKeyInfo in DER), in hexadecimal.
    pub key: String,
    /// The token that it joins with; without one it cannot join, and a joined one goes on.
    pub token: Option<JoinToken>,
}

/// A ServiceAccount, written NAMESPACE/NAME.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AccountName {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// What the cluster knows of the token that a machine joins with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinToken {
    /// The SHA-256 of the token, in hexadecimal.
    pub sha256: String,
    /// When it expires.
    pub expires: Timestamp,
}

/// The most ServiceAccounts of a machine, one for each unit that it can have.
pub const MAX_ACCOUNTS: usize = 64;

const ACCOUNTS: &str = "service-accounts";
const KEY: &str = "key-sha256";
const TOKEN: &str = "token-sha256";
const EXPIRES: &str = "token-expires";

/// Returns the name of the ConfigMap of a machine.
pub fn config_map_name(machine: &str) -> String {
    format!("linkerd-machine-{machine}")
}

impl AccountName {
    /// Parses NAMESPACE/NAME. Both are DNS labels: a dot in a name would shift the parts of the
    /// identity.
    pub fn parse(text: &str) -> Option<Self> {
        let (namespace, name) = text.split_once('/')?;
        (is_dns_label(namespace) && is_dns_label(name)).then(|| Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        })
    }
}

impl std::fmt::Display for AccountName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl Machine {
    /// Reads a ConfigMap.
    ///
    /// # Errors
    ///
    /// All problems of its fields, at most [`MAX_PROBLEMS`]. Unknown keys are among them.
    pub fn read(object: &ConfigMap) -> Result<Self, Vec<Invalid>> {
        let mut fields = Fields {
            data: object.data.clone().unwrap_or_default(),
            problems: Vec::new(),
        };
        let name = object.labels().get(MACHINE).cloned().unwrap_or_default();
        if !is_dns_label(&name) || object.name_any() != config_map_name(&name) {
            let problem = "expected the name of the machine, which the ConfigMap's name ends with";
            let field = format!("metadata.labels[{MACHINE}]");
            fields.problems.push(Invalid::new(field, problem));
        }
        let machine = Self {
            name,
            accounts: fields.accounts(),
            key: fields.sha256(KEY).unwrap_or_else(|| {
                fields.fail(KEY, "is missing");
                String::new()
            }),
            token: fields.token(),
        };
        let unknown: Vec<String> = fields.data.keys().cloned().collect();
        for key in unknown {
            fields.fail(&key, "is not known");
        }
        if fields.problems.is_empty() {
            return Ok(machine);
        }
        fields.problems.truncate(MAX_PROBLEMS);
        Err(fields.problems)
    }

    /// Returns the ConfigMap, in the namespace of the control plane.
    pub fn config_map(&self, namespace: &str) -> ConfigMap {
        let accounts: Vec<String> = self.accounts.iter().map(AccountName::to_string).collect();
        let mut data = BTreeMap::from([
            (ACCOUNTS.to_owned(), accounts.join("\n")),
            (KEY.to_owned(), self.key.clone()),
        ]);
        if let Some(JoinToken { sha256, expires }) = &self.token {
            data.insert(TOKEN.to_owned(), sha256.clone());
            data.insert(EXPIRES.to_owned(), expires.to_string());
        }
        let mut object = ConfigMap::default();
        object.metadata.name = Some(config_map_name(&self.name));
        object.metadata.namespace = Some(namespace.to_owned());
        object.metadata.labels = Some([(MACHINE.to_owned(), self.name.clone())].into());
        object.data = Some(data);
        object
    }
}

/// The keys that were not read yet, and the problems of the others.
struct Fields {
    data: BTreeMap<String, String>,
    problems: Vec<Invalid>,
}

impl Fields {
    fn fail(&mut self, key: &str, problem: impl std::fmt::Display) {
        self.problems
            .push(Invalid::new(format!("data.{key}"), problem));
    }

    fn sha256(&mut self, key: &str) -> Option<String> {
        let value = self.data.remove(key)?;
        if !is_sha256(&value) {
            let shown = shown(&value);
            self.fail(key, format!("{shown} is not a SHA-256 in hexadecimal"));
        }
        Some(value)
    }

    fn accounts(&mut self) -> BTreeSet<AccountName> {
        let text = self.data.remove(ACCOUNTS).unwrap_or_default();
        let mut accounts = BTreeSet::new();
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
            if accounts.len() == MAX_ACCOUNTS {
                self.fail(
                    ACCOUNTS,
                    format!("has more than {MAX_ACCOUNTS} ServiceAccounts"),
                );
                break;
            }
            match AccountName::parse(line) {
                Some(account) => {
                    accounts.insert(account);
                }
                None => {
                    let shown = shown(line);
                    self.fail(
                        ACCOUNTS,
                        format!("{shown} is not a ServiceAccount, as NAMESPACE/NAME"),
                    );
                }
            }
        }
        if accounts.is_empty() {
            self.fail(ACCOUNTS, "has no ServiceAccount, as NAMESPACE/NAME");
        }
        accounts
    }

    fn token(&mut self) -> Option<JoinToken> {
        let (sha256, expires) = (self.sha256(TOKEN), self.data.remove(EXPIRES));
        match (sha256, expires) {
            (Some(sha256), Some(text)) => match text.parse() {
                Ok(expires) => return Some(JoinToken { sha256, expires }),
                Err(_invalid) => {
                    let shown = shown(&text);
                    self.fail(
                        EXPIRES,
                        format!("{shown} is not a time, as 2026-01-02T03:04:05Z"),
                    );
                }
            },
            (None, None) => {}
            (None, Some(_)) => self.fail(TOKEN, format!("is missing, but {EXPIRES} is there")),
            (Some(_), None) => self.fail(EXPIRES, format!("is missing, but {TOKEN} is there")),
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHA256: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    fn machine() -> Machine {
        let account = |text| AccountName::parse(text).unwrap();
        Machine {
            name: "db-1".to_owned(),
            accounts: [account("shop/db"), account("shop/web")].into(),
            key: SHA256.to_owned(),
            token: Some(JoinToken {
                sha256: SHA256.to_owned(),
                expires: "2026-01-02T03:04:05Z".parse().unwrap(),
            }),
        }
    }

    #[test]
    fn machine_is_read_as_it_is_written() {
        let machine = machine();
        assert_eq!(Machine::read(&machine.config_map("linkerd")), Ok(machine));
        let joined = Machine {
            token: None,
            ..self::machine()
        };
        assert_eq!(Machine::read(&joined.config_map("linkerd")), Ok(joined));
    }

    #[test]
    fn every_invalid_field_is_named() {
        let long: Vec<String> = (0..=MAX_ACCOUNTS).map(|at| format!("shop/a{at}")).collect();
        let long = long.join("\n");
        for (key, value, field) in [
            (KEY, None, "data.key-sha256: is missing"),
            (KEY, Some("e3b0"), "data.key-sha256: \"e3b0\" is not"),
            (KEY, Some(&*SHA256.to_uppercase()), "data.key-sha256: "),
            (ACCOUNTS, None, "data.service-accounts: has no"),
            (
                ACCOUNTS,
                Some("shop"),
                "data.service-accounts: \"shop\" is not",
            ),
            (
                ACCOUNTS,
                Some("shop/a.b"),
                "data.service-accounts: \"shop/a.b\" is not",
            ),
            (
                ACCOUNTS,
                Some(&*long),
                "data.service-accounts: has more than 64",
            ),
            (TOKEN, None, "data.token-sha256: is missing"),
            (TOKEN, Some("x"), "data.token-sha256: \"x\" is not"),
            (EXPIRES, None, "data.token-expires: is missing"),
            (
                EXPIRES,
                Some("tomorrow"),
                "data.token-expires: \"tomorrow\" is not",
            ),
            ("other", Some("x"), "data.other: is not known"),
        ] {
            let mut object = machine().config_map("linkerd");
            let data = object.data.get_or_insert_default();
            match value {
                Some(value) => data.insert(key.to_owned(), value.to_owned()),
                None => data.remove(key),
            };
            let problems = Machine::read(&object).unwrap_err();
            assert!(problems[0].to_string().starts_with(field), "{problems:?}");
        }
        let mut renamed = machine().config_map("linkerd");
        renamed.metadata.name = Some("linkerd-machine-db-2".to_owned());
        Machine::read(&renamed).unwrap_err();
    }
}
