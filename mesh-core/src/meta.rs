//! The origin of a policy, route or backend, for metrics and logs.

use std::fmt;
use std::sync::Arc;

/// The object that a policy element was created from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Meta {
    /// Created by the mesh itself; the name states the reason (`default`, `probe`,
    /// `egress-fallback`, `all-unauthenticated`).
    Default(Arc<str>),
    /// Created from an object of the cluster.
    Resource(Resource),
}

/// A reference to a cluster object.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Resource {
    /// The API group, empty for the core group.
    pub group: Arc<str>,
    /// The kind, `Server` for example.
    pub kind: Arc<str>,
    /// The namespace; empty for cluster-wide objects.
    pub namespace: Arc<str>,
    /// The name of the object.
    pub name: Arc<str>,
    /// The listener or rule inside the object; empty for the whole object.
    pub section: Arc<str>,
    /// The port, if the reference is to one.
    pub port: Option<u16>,
}

impl Meta {
    /// Returns the origin of an element that the mesh creates itself.
    pub fn new_default(name: &str) -> Self {
        Self::Default(name.into())
    }

    /// The API group; empty for the core group and for defaults.
    pub fn group(&self) -> &str {
        self.resource().map_or("", |resource| &resource.group)
    }

    /// The kind; `default` for defaults.
    pub fn kind(&self) -> &str {
        self.resource().map_or("default", |resource| &resource.kind)
    }

    /// The name of the object or of the default.
    pub fn name(&self) -> &str {
        match self {
            Self::Default(name) | Self::Resource(Resource { name, .. }) => name,
        }
    }

    /// The namespace; empty for defaults.
    pub fn namespace(&self) -> &str {
        self.resource().map_or("", |resource| &resource.namespace)
    }

    /// The listener or rule inside the object; empty for the whole object and for defaults.
    pub fn section(&self) -> &str {
        self.resource().map_or("", |resource| &resource.section)
    }

    /// The port, if the reference is to one.
    pub fn port(&self) -> Option<u16> {
        self.resource()?.port
    }

    fn resource(&self) -> Option<&Resource> {
        match self {
            Self::Default(_) => None,
            Self::Resource(resource) => Some(resource),
        }
    }
}

impl Resource {
    /// Returns a reference to a whole object.
    pub fn new(
        group: &str,
        kind: &str,
        namespace: impl Into<Arc<str>>,
        name: impl Into<Arc<str>>,
    ) -> Self {
        Self {
            group: group.into(),
            kind: kind.into(),
            namespace: namespace.into(),
            name: name.into(),
            section: "".into(),
            port: None,
        }
    }
}

impl fmt::Display for Meta {
    /// Writes `Kind.namespace.name:port`, or `default.name`, as error messages show it.
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
