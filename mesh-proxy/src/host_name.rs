//! Host names that peers choose: TLS server names and authorities.

/// The longest DNS name in text form (RFC 1035, section 2.3.4).
pub(crate) const MAX_NAME: usize = 253;

/// Whether `name` is a valid host name: labels of 1 to 63 letters, digits, hyphens and underscores,
/// at most 253 bytes, optionally with a final dot.
pub(crate) fn is_host_name(name: &str) -> bool {
    let labels = name.strip_suffix('.').unwrap_or(name);
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
    };
    name.len() <= MAX_NAME && labels.split('.').all(is_label)
}
