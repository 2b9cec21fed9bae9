//! The extensions of profiles and of requests for endpoints (docs/adr/0176).

use mesh_core::endpoint::AddressFamily;
use mesh_core::profile::Profile;
use prost::Message as _;

use super::{profile, profile_to_proto};
use crate::mesh::destination as extension;
use crate::proto::destination::{DestinationProfile, GetDestination};
use crate::{Extended, InvalidField};

/// A profile with the extension of this project.
pub type ExtendedProfile = Extended<DestinationProfile>;

/// A request for endpoints with the extension of this project.
pub type ExtendedRequest = Extended<GetDestination>;

/// Most bytes of a UID. Kubernetes' UIDs have 36.
pub const MAX_UID_BYTES: usize = 128;

/// Converts a received profile with its extension. A UID that cannot be read counts as unknown: the
/// object is then only told apart by its name.
///
/// # Errors
///
/// A field outside of the extension is invalid.
pub fn extended_profile(message: ExtendedProfile) -> Result<Profile, InvalidField> {
    let mut received = profile(message.standard)?;
    received.uid = extension::ProfileExtension::decode(&*message.extension)
        .ok()
        .filter(|it| !it.uid.is_empty() && it.uid.len() <= MAX_UID_BYTES)
        .map(|it| it.uid.into());
    Ok(received)
}

/// Converts a profile to a message with the extension, if it needs one.
pub fn extended_profile_to_proto(profile: &Profile) -> ExtendedProfile {
    let uid = profile.uid.as_deref().unwrap_or_default().to_owned();
    Extended {
        standard: profile_to_proto(profile),
        extension: extension::ProfileExtension { uid }.encode_to_vec(),
    }
}

/// Returns a request for the endpoints of an authority, for a client that connects to an address of
/// this family.
pub fn endpoints_request(
    standard: GetDestination,
    family: Option<AddressFamily>,
) -> ExtendedRequest {
    let family = match family {
        None => extension::AddressFamily::Unknown,
        Some(AddressFamily::V4) => extension::AddressFamily::Ipv4,
        Some(AddressFamily::V6) => extension::AddressFamily::Ipv6,
    };
    let family = family.into();
    Extended {
        standard,
        extension: extension::EndpointsExtension { family }.encode_to_vec(),
    }
}

/// Returns the family of the address that the client of a request connects to. An extension that
/// cannot be read counts as none: the client gets what it would get without one.
pub fn requested_family(request: &ExtendedRequest) -> Option<AddressFamily> {
    let decoded = extension::EndpointsExtension::decode(&*request.extension).ok()?;
    match decoded.family() {
        extension::AddressFamily::Unknown => None,
        extension::AddressFamily::Ipv4 => Some(AddressFamily::V4),
        extension::AddressFamily::Ipv6 => Some(AddressFamily::V6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_uid(uid: Option<&str>) -> Profile {
        Profile {
            uid: uid.map(Into::into),
            ..Profile::default()
        }
    }

    #[test]
    fn profile_without_uid_is_the_message_of_the_api() {
        let message = extended_profile_to_proto(&with_uid(None));
        assert_eq!(
            message.encode_to_vec(),
            message.standard.encode_to_vec(),
            "Linkerd's own message"
        );
        assert_eq!(extended_profile(message), Ok(with_uid(None)));
    }

    #[test]
    fn uid_is_received_and_skipped_by_other_proxies() {
        let profile = with_uid(Some("b2a9"));
        let bytes = extended_profile_to_proto(&profile).encode_to_vec();
        let received = ExtendedProfile::decode(&*bytes).unwrap();
        assert_eq!(extended_profile(received), Ok(profile));
        let standard = DestinationProfile::decode(&*bytes).unwrap();
        assert_eq!(standard, profile_to_proto(&with_uid(None)));
    }

    #[test]
    fn uid_that_is_too_long_or_unreadable_is_unknown() {
        let sized = |length| extended_profile_to_proto(&with_uid(Some(&"a".repeat(length))));
        let received = |message| extended_profile(message).unwrap().uid;
        assert!(received(sized(MAX_UID_BYTES)).is_some());
        assert_eq!(received(sized(MAX_UID_BYTES + 1)), None);
        let mut broken = sized(36);
        broken.extension.truncate(20);
        assert_eq!(received(broken), None);
    }

    #[test]
    fn family_of_client_is_received() {
        for family in [None, Some(AddressFamily::V4), Some(AddressFamily::V6)] {
            let request = endpoints_request(GetDestination::default(), family);
            let bytes = request.encode_to_vec();
            let received = ExtendedRequest::decode(&*bytes).unwrap();
            assert_eq!(requested_family(&received), family);
            assert!(GetDestination::decode(&*bytes).is_ok());
        }
        let unreadable = ExtendedRequest {
            extension: vec![0xff],
            ..ExtendedRequest::default()
        };
        assert_eq!(requested_family(&unreadable), None);
        let unknown = ExtendedRequest {
            extension: vec![0x08, 7],
            ..ExtendedRequest::default()
        };
        assert_eq!(requested_family(&unknown), None);
    }
}
