//! Names of the kinds of policies.

/// The kinds of inbound policies; Linkerd's API has them in lower case.
const KINDS: [&str; 7] = [
    "AuthorizationPolicy",
    "GRPCRoute",
    "HTTPLocalRateLimitPolicy",
    "HTTPRoute",
    "Server",
    "ServerAuthorization",
    "Service",
];

/// Returns the name of a kind in manifests.
pub(super) fn kind(name: &str) -> &str {
    let mut known = KINDS.iter();
    known
        .find(|known| known.eq_ignore_ascii_case(name))
        .map_or(name, |known| *known)
}
