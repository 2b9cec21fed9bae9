//! The six policies that apply where no Server selects a port.
//!
//! The controller builds them for every port of a known workload, the proxy from its environment
//! until the controller has responded.

use std::str::FromStr;
use std::time::Duration;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::{
    Authentication, Authorization, HttpServer, Network, ServerPolicy, ServerProtocol, Suffix,
    default_http_route,
};
use crate::meta::Meta;

crate::names! {
    /// The policy of a port that no Server selects. Flags, annotations and metric labels have the
    /// names.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum DefaultPolicy, ALL {
        /// All clients.
        AllUnauthenticated = "all-unauthenticated",
        /// Clients with a mesh identity.
        AllAuthenticated = "all-authenticated",
        /// Clients from the networks of the cluster.
        ClusterUnauthenticated = "cluster-unauthenticated",
        /// Clients from the networks of the cluster with a mesh identity.
        ClusterAuthenticated = "cluster-authenticated",
        /// No client.
        Deny = "deny",
        /// All clients, under its own name, so that metrics show what `Deny` would reject.
        Audit = "audit",
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown default policy {0:?}: expected all-unauthenticated, all-authenticated, cluster-unauthenticated, cluster-authenticated, deny or audit"
)]
/// The name of a default policy that does not exist.
pub struct UnknownDefaultPolicy(pub String);

impl DefaultPolicy {
    /// Returns the variant for a port that requires a client identity. `Audit` becomes the strict
    /// form of what it allows.
    pub fn requiring_identity(self) -> Self {
        match self {
            Self::AllUnauthenticated | Self::AllAuthenticated | Self::Audit => {
                Self::AllAuthenticated
            }
            Self::ClusterUnauthenticated | Self::ClusterAuthenticated => Self::ClusterAuthenticated,
            Self::Deny => Self::Deny,
        }
    }

    /// Returns its authorizations: none for `Deny`, otherwise one that is named after the policy.
    pub fn authorizations(self, cluster_networks: &[IpNet]) -> Vec<Authorization> {
        let networks = match self {
            Self::Deny => return Vec::new(),
            Self::AllUnauthenticated | Self::AllAuthenticated | Self::Audit => all_networks(),
            Self::ClusterUnauthenticated | Self::ClusterAuthenticated => cluster_networks
                .iter()
                .copied()
                .map(Network::from)
                .collect(),
        };
        let authentication = match self {
            Self::AllAuthenticated | Self::ClusterAuthenticated => {
                Authentication::TlsAuthenticated {
                    identities: Vec::new(),
                    suffixes: vec![Suffix(Vec::new())],
                }
            }
            _ => Authentication::Unauthenticated,
        };
        vec![Authorization {
            meta: self.meta(),
            networks,
            authentication,
        }]
    }

    /// Returns the whole policy of a port, `opaque` or with protocol detection.
    pub fn server_policy(
        self,
        cluster_networks: &[IpNet],
        detect_timeout: Duration,
        opaque: bool,
    ) -> ServerPolicy {
        let protocol = if opaque {
            ServerProtocol::Opaque
        } else {
            ServerProtocol::Detect {
                timeout: detect_timeout,
                http: HttpServer {
                    routes: vec![default_http_route()],
                    rate_limit: None,
                },
            }
        };
        ServerPolicy {
            meta: self.meta(),
            protocol,
            authorizations: self.authorizations(cluster_networks).into(),
            is_terminating: false,
        }
    }

    /// The origin of the policy's elements.
    pub fn meta(self) -> Meta {
        Meta::new_default(self.as_str())
    }
}

/// Returns all networks of both address families.
pub fn all_networks() -> Vec<Network> {
    vec![
        Network::from(IpNet::from(Ipv4Net::default())),
        Network::from(IpNet::from(Ipv6Net::default())),
    ]
}

impl FromStr for DefaultPolicy {
    type Err = UnknownDefaultPolicy;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|policy| policy.as_str() == text)
            .ok_or_else(|| UnknownDefaultPolicy(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        identity::Identity,
        policy::inbound::{Client, ClientTls, authorize},
    };

    #[test]
    fn names_round_trip_and_others_are_rejected() {
        for policy in DefaultPolicy::ALL {
            assert_eq!(policy.as_str().parse(), Ok(policy));
        }
        for bad in [
            "",
            "Deny",
            "allow",
            "all-authenticated ",
            "all_authenticated",
        ] {
            assert_eq!(
                bad.parse::<DefaultPolicy>(),
                Err(UnknownDefaultPolicy(bad.to_owned()))
            );
        }
    }

    /// Clients inside and outside the cluster, each without TLS, with anonymous TLS and with an
    /// identity.
    #[test]
    fn default_policies_authorize_expected_clients() {
        let cluster: Vec<IpNet> = vec!["10.0.0.0/8".parse().unwrap()];
        let id = Identity::parse("web.ns.example").unwrap();
        let check = |policy: DefaultPolicy, expect: [[bool; 3]; 2]| {
            let server = policy.server_policy(&cluster, Duration::from_secs(10), false);
            let seen = ["10.1.2.3", "192.0.2.1"].map(|ip| {
                [
                    ClientTls::None,
                    ClientTls::Anonymous,
                    ClientTls::Identified(&id),
                ]
                .map(|tls| {
                    let client = Client {
                        ip: ip.parse().unwrap(),
                        tls,
                    };
                    authorize(&server.authorizations, &client).is_some()
                })
            });
            assert_eq!(seen, expect, "{policy}");
        };
        let (all, none, identified) = ([true; 3], [false; 3], [false, false, true]);
        check(DefaultPolicy::AllUnauthenticated, [all, all]);
        check(DefaultPolicy::AllAuthenticated, [identified, identified]);
        check(DefaultPolicy::ClusterUnauthenticated, [all, none]);
        check(DefaultPolicy::ClusterAuthenticated, [identified, none]);
        check(DefaultPolicy::Deny, [none, none]);
        check(DefaultPolicy::Audit, [all, all]);
    }

    #[test]
    fn requiring_identity_never_allows_unauthenticated_clients() {
        for policy in DefaultPolicy::ALL {
            let strict = policy.requiring_identity();
            assert!(
                strict
                    .authorizations(&[])
                    .iter()
                    .all(|entry| entry.authentication != Authentication::Unauthenticated),
                "{policy} became {strict}"
            );
        }
    }

    #[test]
    fn completed_deny_policy_authorizes_localhost() {
        let policy = DefaultPolicy::Deny
            .server_policy(&[], Duration::from_secs(10), true)
            .completed();
        let authorized_by = |ip: &str| {
            let client = Client {
                ip: ip.parse().unwrap(),
                tls: ClientTls::None,
            };
            authorize(&policy.authorizations, &client).map(|found| found.meta.name())
        };
        assert_eq!(authorized_by("127.0.0.1"), Some("localhost"));
        assert_eq!(authorized_by("::1"), Some("localhost"));
        assert_eq!(authorized_by("10.0.0.1"), None);
    }
}
