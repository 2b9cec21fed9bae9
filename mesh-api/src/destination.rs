//! Messages of the `Destination` service: endpoints and profiles.

use std::net::SocketAddr;

use mesh_core::endpoint::EndpointUpdate;

use crate::field::{FieldContext, each};
use crate::proto::destination::{self as wire, update};
use crate::{InvalidField, value};

mod endpoint;
mod extension;
mod http2;
mod profile;

pub use self::{
    endpoint::{endpoint, endpoint_to_proto},
    extension::{
        ExtendedProfile, ExtendedRequest, MAX_UID_BYTES, endpoints_request, extended_profile,
        extended_profile_to_proto, requested_family,
    },
    http2::{http2_params, http2_params_to_proto},
    profile::{profile, profile_to_proto},
};

/// The header of a response to `Get` with the level of locality that the endpoints share with the
/// client when the stream begins, or `all`. `meshctl` shows it; proxies have no use for it.
pub const LEVEL_HEADER: &str = "mesh-locality-level";

/// A received change of endpoints.
#[derive(Clone, Debug, PartialEq)]
pub struct Update {
    /// The change.
    pub update: EndpointUpdate,
    /// The invalid fields of addresses that were skipped. An invalid address does not affect the
    /// others, and is not used with its valid fields alone: without the identity, the proxy would
    /// connect to it in clear text.
    pub skipped: Vec<InvalidField>,
}

/// Converts a received change.
///
/// # Errors
///
/// The change as a whole is invalid.
pub fn endpoint_update(update: wire::Update) -> Result<Update, InvalidField> {
    match update.update {
        Some(update::Update::Add(set)) => {
            let mut skipped = Vec::new();
            let mut endpoints = Vec::with_capacity(set.addrs.len());
            for (at, addr) in set.addrs.into_iter().enumerate() {
                match endpoint(addr).inside(&format!("add.addrs[{at}]")) {
                    Ok(endpoint) => endpoints.push(endpoint),
                    Err(error) => skipped.push(error),
                }
            }
            let update = EndpointUpdate::Add {
                endpoints,
                set_labels: value::labels(set.metric_labels),
            };
            Ok(Update { update, skipped })
        }
        Some(update::Update::Remove(set)) => {
            let addrs = each("remove.addrs", set.addrs, value::socket_addr)?;
            Ok(Update {
                update: EndpointUpdate::Remove(addrs),
                skipped: Vec::new(),
            })
        }
        Some(update::Update::NoEndpoints(none)) => Ok(Update {
            update: EndpointUpdate::Empty {
                exists: none.exists,
            },
            skipped: Vec::new(),
        }),
        None => Err(InvalidField::unknown_kind("update")),
    }
}

/// Converts a change to a message.
pub fn update_to_proto(update: &EndpointUpdate) -> wire::Update {
    let update = match update {
        EndpointUpdate::Add {
            endpoints,
            set_labels,
        } => update::Update::Add(wire::WeightedAddrSet {
            addrs: endpoints.iter().map(endpoint_to_proto).collect(),
            metric_labels: value::labels_to_proto(set_labels),
        }),
        EndpointUpdate::Remove(addrs) => update::Update::Remove(wire::AddrSet {
            addrs: addrs.iter().copied().map(SocketAddr::into).collect(),
        }),
        EndpointUpdate::Empty { exists } => {
            update::Update::NoEndpoints(wire::NoEndpoints { exists: *exists })
        }
    };
    wire::Update {
        update: Some(update),
    }
}

#[cfg(test)]
mod tests;
