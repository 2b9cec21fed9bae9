//! Where a policy, route or backend comes from, as metrics and logs name it.

use std::{fmt, sync::Arc};

/// The object that a policy element was made from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Meta {
    /// Made by the mesh itself; the name says why (`default`, `probe`, `egress-fallback`,
    /// `all-unauthenticated`).
    Default(Arc<str>),
    /// Made from an object of the cluster.
    Resource(Resource),
}

/// A reference to a cluster object. `group` is empty for the core group, as Kubernetes writes it in
/// metric labels.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Resource {
    pub group: Arc<str>,
    pub kind: Arc<str>,
    pub namespace: Arc<str>,
    pub name: Arc<str>,
    /// The listener or rule inside the object, empty when the whole object is meant.
    pub section: Arc<str>,
    pub port: Option<u16>,
}

impl Meta {
    pub fn new_default(name: &str) -> Self {
        Self::Default(name.into())
    }

    pub fn group(&self) -> &str {
        match self {
            Self::Default(_) => "",
            Self::Resource(r) => &r.group,
        }
    }

    pub fn kind(&self) -> &str {
        match self {
            Self::Default(_) => "default",
            Self::Resource(r) => &r.kind,
        }
    }

    pub fn name(&self) -> &str {
        match self {
            Self::Default(name) => name,
            Self::Resource(r) => &r.name,
        }
    }

    pub fn namespace(&self) -> &str {
        match self {
            Self::Default(_) => "",
            Self::Resource(r) => &r.namespace,
        }
    }

    pub fn section(&self) -> &str {
        match self {
            Self::Default(_) => "",
            Self::Resource(r) => &r.section,
        }
    }

    pub fn port(&self) -> Option<u16> {
        match self {
            Self::Default(_) => None,
            Self::Resource(r) => r.port,
        }
    }
}

impl fmt::Display for Meta {
    /// `Kind.namespace.name:port`, or `default.name`; the form used in error messages.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default(name) => write!(f, "default.{name}"),
            Self::Resource(r) => {
                write!(f, "{}.{}.{}", r.kind, r.namespace, r.name)?;
                match r.port {
                    Some(port) => write!(f, ":{port}"),
                    None => Ok(()),
                }
            }
        }
    }
}
