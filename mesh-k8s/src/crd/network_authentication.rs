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

/// Why an exception does not have the effect that its author intended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ExceptionError {
    #[error(
        "excludes the whole cidr {0}, so that it contains no client; except a part of it, or remove the network"
    )]
    WholeBlock(IpNet),
    #[error("is not inside the cidr {0}; except a part of it, or remove the exception")]
    Outside(IpNet),
}

/// Checks that an exception excludes a part of the block.
pub(crate) fn check_exception(cidr: IpNet, except: IpNet) -> Result<(), ExceptionError> {
    if except.contains(&cidr) {
        return Err(ExceptionError::WholeBlock(cidr.trunc()));
    }
    if !cidr.contains(&except) {
        return Err(ExceptionError::Outside(cidr.trunc()));
    }
    Ok(())
}

/// An exception without the effect that its author intended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("except[{at}]: {except} {problem}")]
pub struct NetworkError {
    /// The position of the exception.
    pub at: usize,
    /// The exception.
    pub except: IpNet,
    /// The problem with it, and what to write instead.
    pub problem: String,
}

impl Network {
    /// Checks that each exception excludes a part of the block, as Linkerd's webhook does.
    ///
    /// # Errors
    ///
    /// An exception is outside of the block, or leaves nothing of it.
    pub fn check(&self) -> Result<(), NetworkError> {
        for (at, except) in self.except.iter().flatten().enumerate() {
            if let Err(error) = check_exception(self.cidr, *except) {
                return Err(NetworkError {
                    at,
                    except: *except,
                    problem: error.to_string(),
                });
            }
        }
        Ok(())
    }
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

    #[test]
    fn exceptions_must_exclude_a_part_of_the_block() {
        let check = |text: &str| {
            let network: Network = serde_norway::from_str(text).unwrap();
            network.check().map_err(|error| error.to_string())
        };
        for good in [
            "{cidr: 10.0.0.0/8}",
            "{cidr: 10.0.0.0/8, except: [10.1.0.0/16, 10.2.3.4]}",
            "{cidr: 10.1.2.3/8, except: [10.9.0.0/16]}",
            "{cidr: 'fd00::/8', except: ['fd00:1::/32']}",
        ] {
            assert_eq!(check(good), Ok(()), "{good}");
        }
        for (bad, expect) in [
            (
                "{cidr: 10.0.0.0/8, except: [10.1.0.0/16, 11.0.0.0/16]}",
                "except[1]: 11.0.0.0/16 is not inside the cidr 10.0.0.0/8",
            ),
            (
                "{cidr: 10.0.0.0/8, except: [10.0.0.0/8]}",
                "except[0]: 10.0.0.0/8 excludes the whole cidr 10.0.0.0/8",
            ),
            (
                "{cidr: 10.1.0.0/16, except: [0.0.0.0/0]}",
                "except[0]: 0.0.0.0/0 excludes the whole cidr 10.1.0.0/16",
            ),
            (
                "{cidr: 10.0.0.0/8, except: ['::/0']}",
                "except[0]: ::/0 is not inside the cidr 10.0.0.0/8",
            ),
        ] {
            let error = check(bad).unwrap_err();
            assert!(error.starts_with(expect), "{bad}: {error}");
        }
    }
}
