//! The paths and queries of requests.

use http::Method;

use crate::resources::Resource;
use crate::script::Requests;
use crate::store::Id;

/// What a path names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Path {
    Groups,
    Group { group: String, version: String },
    Objects { resource: Resource },
    Object { id: Id, is_status: bool },
}

/// The parameters that the server knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Query {
    pub(super) is_watch: bool,
    pub(super) limit: Option<usize>,
    pub(super) continue_: Option<String>,
    pub(super) version: Option<u64>,
    pub(super) seconds: Option<u64>,
    pub(super) bookmarks: bool,
    /// The key of a label that must exist.
    pub(super) label: Option<String>,
    pub(super) fields: Option<String>,
}

/// The purpose of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    List,
    Watch,
    Get,
    Write,
    Lease,
    Discovery,
}

impl Path {
    pub(super) fn parse(path: &str) -> Option<Self> {
        let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
        let (group, rest) = match &parts[..] {
            ["apis"] => return Some(Self::Groups),
            ["apis", group, version] => {
                return Some(Self::Group {
                    group: (*group).to_owned(),
                    version: (*version).to_owned(),
                });
            }
            ["api", "v1", rest @ ..] => ("", rest),
            ["apis", group, _version, rest @ ..] => (*group, rest),
            _ => return None,
        };
        let object = |namespace: &str, plural: &str, name: &str, is_status| {
            let id = Id {
                resource: Resource::find(group, plural)?,
                namespace: namespace.to_owned(),
                name: name.to_owned(),
            };
            Some(Self::Object { id, is_status })
        };
        match rest {
            [plural] | ["namespaces", _, plural] => Some(Self::Objects {
                resource: Resource::find(group, plural)?,
            }),
            [plural, name] => object("", plural, name, false),
            ["namespaces", namespace, plural, name] => object(namespace, plural, name, false),
            ["namespaces", namespace, plural, name, "status"] => {
                object(namespace, plural, name, true)
            }
            _ => None,
        }
    }

    pub(super) fn resource(&self) -> Option<Resource> {
        match self {
            Self::Groups | Self::Group { .. } => None,
            Self::Objects { resource } => Some(*resource),
            Self::Object { id, .. } => Some(id.resource),
        }
    }
}

impl Query {
    pub(super) fn parse(query: &str) -> Self {
        let mut parsed = Self::default();
        for (key, value) in form_urlencoded::parse(query.as_bytes()) {
            match &*key {
                "watch" => parsed.is_watch = value != "false",
                "limit" => parsed.limit = value.parse().ok(),
                "continue" => parsed.continue_ = Some(value.into_owned()),
                "resourceVersion" => parsed.version = value.parse().ok(),
                "timeoutSeconds" => parsed.seconds = value.parse().ok(),
                "allowWatchBookmarks" => parsed.bookmarks = value == "true",
                "labelSelector" => parsed.label = Some(value.into_owned()),
                "fieldSelector" => parsed.fields = Some(value.into_owned()),
                _ => {}
            }
        }
        parsed
    }
}

impl Class {
    pub(super) fn of(method: &Method, path: &str, query: &Query) -> Self {
        if path.contains("/leases") {
            Self::Lease
        } else if method != Method::GET {
            Self::Write
        } else if query.is_watch {
            Self::Watch
        } else {
            match Path::parse(path) {
                Some(Path::Groups | Path::Group { .. }) | None => Self::Discovery,
                Some(Path::Objects { .. }) => Self::List,
                Some(Path::Object { .. }) => Self::Get,
            }
        }
    }

    pub(super) fn is_one_of(self, requests: Requests) -> bool {
        match requests {
            Requests::All => true,
            Requests::Lists => self == Self::List,
            Requests::Watches => self == Self::Watch,
            Requests::Writes => matches!(self, Self::Write | Self::Lease),
            Requests::Lease => self == Self::Lease,
            Requests::Discovery => self == Self::Discovery,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_name_objects_and_lists() {
        let server = Resource::find("policy.linkerd.io", "servers").unwrap();
        let id = |namespace: &str, name: &str, resource| Id {
            resource,
            namespace: namespace.into(),
            name: name.into(),
        };
        let namespaces = Resource::find("", "namespaces").unwrap();
        for (path, expect) in [
            ("/apis", Some(Path::Groups)),
            (
                "/apis/policy.linkerd.io/v1beta3/servers",
                Some(Path::Objects { resource: server }),
            ),
            (
                "/apis/policy.linkerd.io/v1beta3/namespaces/shop/servers/web/status",
                Some(Path::Object {
                    id: id("shop", "web", server),
                    is_status: true,
                }),
            ),
            (
                "/api/v1/namespaces/shop",
                Some(Path::Object {
                    id: id("", "shop", namespaces),
                    is_status: false,
                }),
            ),
            ("/api/v1/gadgets", None),
            ("/version", None),
        ] {
            assert_eq!(Path::parse(path), expect, "{path}");
        }
    }
}
