//! The notation of identities.

use mesh_core::identity::is_spiffe_trust_domain;

use super::Node;

const FIX: &str = "write an identity such as web.shop.serviceaccount.identity.linkerd.cluster.local or spiffe://example.org/web, \
                   \"*.\" with a suffix, or \"*\" for all";

/// Checks a list of identities.
pub(super) fn identities(list: &Node<'_>) {
    for item in list.items() {
        if let Some(text) = item.text()
            && !is_identity(text)
        {
            item.invalid("is not an identity", FIX);
        }
    }
}

/// Whether the text is `*`, a DNS name in lower case whose first label may be `*`, or a SPIFFE ID.
/// Linkerd's definitions have the same pattern.
fn is_identity(text: &str) -> bool {
    match text.strip_prefix("spiffe://") {
        Some(id) => is_spiffe_id(id),
        None => text == "*" || is_dns_name(text.strip_prefix("*.").unwrap_or(text)),
    }
}

/// The length of a DNS name, without a final dot.
const MAX_NAME: usize = 253;

fn is_dns_name(name: &str) -> bool {
    let alphanumeric = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let label = |label: &str| {
        let bytes = label.as_bytes();
        (1..=63).contains(&bytes.len())
            && bytes.iter().all(|b| alphanumeric(*b) || *b == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    name.len() <= MAX_NAME && name.split('.').all(label)
}

/// Checks the part after `spiffe://`. Linkerd also admits an ID without path. Such an ID names a
/// trust domain and no workload, so it would match no client.
fn is_spiffe_id(id: &str) -> bool {
    let plain = |b: u8| b"-_.".contains(&b);
    let Some((domain, path)) = id.split_once('/') else {
        return false;
    };
    let segment = |segment: &str| {
        !matches!(segment, "" | "." | "..")
            && segment
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || plain(b))
    };
    is_spiffe_trust_domain(domain) && path.split('/').all(segment)
}
