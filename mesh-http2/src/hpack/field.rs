//! A decoded field.

use std::sync::LazyLock;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, StatusCode};

/// A decoded field, validated as far as that is possible without the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Field {
    PseudoHeader(PseudoHeader),
    Regular(HeaderName, HeaderValue),
    /// A field that makes its message malformed. It is still added to the dynamic table.
    Malformed(&'static str),
}

/// A pseudo-header field (RFC 9113, section 8.3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PseudoHeader {
    Method(Method),
    Scheme(Bytes),
    Authority(Bytes),
    Path(Bytes),
    Status(StatusCode),
}

impl Field {
    pub(super) fn new(name: Name, value: Bytes) -> Self {
        match name {
            Name::Regular(name) => match HeaderValue::from_maybe_shared(value) {
                Ok(value) => Self::Regular(name, value),
                Err(_) => Self::Malformed("invalid byte in a field value"),
            },
            Name::Method => match Method::from_bytes(&value) {
                Ok(method) => Self::PseudoHeader(PseudoHeader::Method(method)),
                Err(_) => Self::Malformed("invalid :method"),
            },
            Name::Status => match StatusCode::from_bytes(&value) {
                Ok(status) => Self::PseudoHeader(PseudoHeader::Status(status)),
                Err(_) => Self::Malformed("invalid :status"),
            },
            Name::Scheme => Self::PseudoHeader(PseudoHeader::Scheme(value)),
            Name::Authority => Self::PseudoHeader(PseudoHeader::Authority(value)),
            Name::Path => Self::PseudoHeader(PseudoHeader::Path(value)),
            Name::Malformed(reason) => Self::Malformed(reason),
        }
    }

    pub(super) fn name(&self) -> Name {
        match self {
            Self::Regular(name, _) => Name::Regular(name.clone()),
            Self::PseudoHeader(PseudoHeader::Method(_)) => Name::Method,
            Self::PseudoHeader(PseudoHeader::Scheme(_)) => Name::Scheme,
            Self::PseudoHeader(PseudoHeader::Authority(_)) => Name::Authority,
            Self::PseudoHeader(PseudoHeader::Path(_)) => Name::Path,
            Self::PseudoHeader(PseudoHeader::Status(_)) => Name::Status,
            Self::Malformed(reason) => Name::Malformed(reason),
        }
    }
}

/// The name of a field.
#[derive(Clone, Debug)]
pub(super) enum Name {
    Method,
    Scheme,
    Authority,
    Path,
    Status,
    Regular(HeaderName),
    Malformed(&'static str),
}

impl Name {
    pub(super) fn parse(bytes: &[u8]) -> Self {
        if bytes.first() == Some(&b':') {
            return match bytes {
                b":method" => Self::Method,
                b":scheme" => Self::Scheme,
                b":authority" => Self::Authority,
                b":path" => Self::Path,
                b":status" => Self::Status,
                _ => Self::Malformed("unknown pseudo-header field"),
            };
        }
        match HeaderName::from_lowercase(bytes) {
            Ok(name) => Self::Regular(name),
            Err(_) => Self::Malformed("invalid byte in a field name"),
        }
    }
}

/// The static table (RFC 7541, appendix A); its first index is 1.
pub(super) const STATIC_TABLE: [(&str, &str); 61] = [
    (":authority", ""),
    (":method", "GET"),
    (":method", "POST"),
    (":path", "/"),
    (":path", "/index.html"),
    (":scheme", "http"),
    (":scheme", "https"),
    (":status", "200"),
    (":status", "204"),
    (":status", "206"),
    (":status", "304"),
    (":status", "400"),
    (":status", "404"),
    (":status", "500"),
    ("accept-charset", ""),
    ("accept-encoding", "gzip, deflate"),
    ("accept-language", ""),
    ("accept-ranges", ""),
    ("accept", ""),
    ("access-control-allow-origin", ""),
    ("age", ""),
    ("allow", ""),
    ("authorization", ""),
    ("cache-control", ""),
    ("content-disposition", ""),
    ("content-encoding", ""),
    ("content-language", ""),
    ("content-length", ""),
    ("content-location", ""),
    ("content-range", ""),
    ("content-type", ""),
    ("cookie", ""),
    ("date", ""),
    ("etag", ""),
    ("expect", ""),
    ("expires", ""),
    ("from", ""),
    ("host", ""),
    ("if-match", ""),
    ("if-modified-since", ""),
    ("if-none-match", ""),
    ("if-range", ""),
    ("if-unmodified-since", ""),
    ("last-modified", ""),
    ("link", ""),
    ("location", ""),
    ("max-forwards", ""),
    ("proxy-authenticate", ""),
    ("proxy-authorization", ""),
    ("range", ""),
    ("referer", ""),
    ("refresh", ""),
    ("retry-after", ""),
    ("server", ""),
    ("set-cookie", ""),
    ("strict-transport-security", ""),
    ("transfer-encoding", ""),
    ("user-agent", ""),
    ("vary", ""),
    ("via", ""),
    ("www-authenticate", ""),
];

/// The fields of [`STATIC_TABLE`].
pub(super) static STATIC_FIELDS: LazyLock<[Field; 61]> = LazyLock::new(|| {
    STATIC_TABLE.map(|(name, value)| {
        // The entry of `:authority` has no value; it is only used for its name.
        match Name::parse(name.as_bytes()) {
            Name::Authority => Field::PseudoHeader(PseudoHeader::Authority(Bytes::new())),
            name => Field::new(name, Bytes::from_static(value.as_bytes())),
        }
    })
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn static_table_has_no_malformed_field() {
        for field in STATIC_FIELDS.iter() {
            assert!(!matches!(field, Field::Malformed(_)), "{field:?}");
        }
    }
}
