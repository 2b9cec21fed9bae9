//! `NetworkAuthentication`: a set of client addresses.

use std::net::IpAddr;

use ipnet::IpNet;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The spec of a `NetworkAuthentication`: clients with an address in one of the networks satisfy
/// it.
#[derive(CustomResource, Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[kube(
    group = "policy.linkerd.io",
    version = "v1alpha1",
    kind = "NetworkAuthentication",
    shortname = "netauthn",
    shortname = "networkauthn",
    namespaced,
    derive = "PartialEq"
)]
pub struct NetworkAuthenticationSpec {
    /// The networks of the clients.
    pub networks: Vec<Network>,
}

/// A CIDR block, minus the blocks excepted from it. An address without a prefix length is a block
/// of one address.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
pub struct Network {
    /// The included block.
    #[serde(deserialize_with = "cidr::one")]
    #[schemars(with = "String")]
    pub cidr: IpNet,
    /// The excluded blocks.
    #[serde(
        default,
        deserialize_with = "cidr::optional_list",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(with = "Option<Vec<String>>")]
    pub except: Option<Vec<IpNet>>,
}

/// Parses a CIDR block, or an address as a block of one address. The error is the problem with the
/// text.
pub(crate) fn parse_cidr(text: &str) -> Result<IpNet, String> {
    text.parse::<IpNet>()
        .ok()
        .or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from))
        .ok_or_else(|| {
            format!(
                "{text:?} is neither an IP address nor a CIDR block such as 10.0.0.0/8 or fd00::/8"
            )
        })
}

mod cidr {
    use ipnet::IpNet;
    use serde::de::Error as _;
    use serde::{Deserialize, Deserializer};

    use super::parse_cidr;

    pub(super) fn one<'de, D: Deserializer<'de>>(deserializer: D) -> Result<IpNet, D::Error> {
        parse_cidr(&String::deserialize(deserializer)?).map_err(D::Error::custom)
    }

    pub(super) fn optional_list<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Vec<IpNet>>, D::Error> {
        Option::<Vec<String>>::deserialize(deserializer)?
            .map(|list| list.iter().map(|text| parse_cidr(text)).collect())
            .transpose()
            .map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_without_prefix_is_single_address_block() {
        let network: Network =
            serde_norway::from_str("{cidr: 10.1.0.0/16, except: [10.1.2.3, 'fd00::1']}").unwrap();
        assert_eq!(network.cidr, "10.1.0.0/16".parse().unwrap());
        assert_eq!(
            network.except,
            Some(vec![
                "10.1.2.3/32".parse().unwrap(),
                "fd00::1/128".parse().unwrap()
            ])
        );
        let error = serde_norway::from_str::<Network>("cidr: ten").unwrap_err();
        assert!(error.to_string().contains("\"ten\""), "{error}");
    }
}
