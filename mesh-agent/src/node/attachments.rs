//! A pod's attachments to networks, and the order of its addresses.

use std::net::IpAddr;

use mesh_core::node::Attachment;
use mesh_ebpf_common::quota::ADDRESSES_PER_POD;

use crate::registry::{PodRecord, RecordedAttachment};

pub(super) fn with_attachment(
    previous: Option<&PodRecord>,
    attachment: &Attachment,
) -> Vec<RecordedAttachment> {
    let new = RecordedAttachment {
        network: attachment.id.network.clone(),
        interface: attachment.id.interface.clone(),
        addresses: attachment.addresses.clone(),
    };
    let mut attachments: Vec<RecordedAttachment> = previous
        .map(|record| record.attachments.clone())
        .unwrap_or_default();
    let same = attachments
        .iter_mut()
        .find(|known| known.network == new.network && known.interface == new.interface);
    match same {
        Some(known) => *known = new,
        None => attachments.push(new),
    }
    attachments
}

pub(super) fn assigned_addresses(
    attachments: &[RecordedAttachment],
) -> impl Iterator<Item = IpAddr> {
    attachments
        .iter()
        .flat_map(|attachment| attachment.addresses.iter().copied())
}

/// Returns a pod's addresses, first those that the network plugins assigned, in their order:
/// connections are redirected to the first address of a family, which the application sees as its
/// own. Truncated to the limit of a pod, because one with NET_ADMIN can assign itself any number.
pub(super) fn ordered_addresses(
    attachments: &[RecordedAttachment],
    found: &[IpAddr],
) -> Vec<IpAddr> {
    let mut addresses = Vec::new();
    for address in assigned_addresses(attachments).chain(found.iter().copied()) {
        if addresses.len() == ADDRESSES_PER_POD {
            break;
        }
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    addresses
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_network_plugins_come_first() {
        let addresses = |texts: &[&str]| -> Vec<IpAddr> {
            texts.iter().map(|text| text.parse().unwrap()).collect()
        };
        let attachment = RecordedAttachment {
            network: "pods".into(),
            interface: "eth0".into(),
            addresses: addresses(&["192.168.7.9", "fd00::9"]),
        };
        let found = addresses(&["10.0.0.1", "192.168.7.9", "fd00::9"]);
        let ordered = addresses(&["192.168.7.9", "fd00::9", "10.0.0.1"]);
        assert_eq!(ordered_addresses(&[attachment], &found), ordered);
        assert_eq!(ordered_addresses(&[], &found), found);
    }

    #[test]
    fn excess_interface_addresses_do_not_displace_assigned_address() {
        let own: IpAddr = "192.168.7.9".parse().unwrap();
        let attachment = RecordedAttachment {
            network: "pods".into(),
            interface: "eth0".into(),
            addresses: vec![own],
        };
        let found: Vec<IpAddr> = (0..200_u8).map(|last| [10, 0, 0, last].into()).collect();
        let addresses = ordered_addresses(&[attachment], &found);
        assert_eq!(addresses.len(), ADDRESSES_PER_POD);
        assert_eq!(addresses[0], own);
    }
}
