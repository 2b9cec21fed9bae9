//! The namespaces that a command operates on.

/// One namespace or all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    All,
    Namespace(String),
}

impl Scope {
    pub(crate) fn contains(&self, namespace: &str) -> bool {
        match self {
            Self::All => true,
            Self::Namespace(only) => only == namespace,
        }
    }

    pub(crate) fn namespace(&self) -> Option<&str> {
        match self {
            Self::All => None,
            Self::Namespace(only) => Some(only),
        }
    }
}
