//! What an inbound proxy says of a request that got no response from the application, so that the
//! client's proxy can judge whether to send it elsewhere.
//!
//! Written to and read from authenticated peers of the mesh only; see docs/adr/0030.

use http::{HeaderMap, HeaderName, HeaderValue};

use super::client::SendError;

/// How far a request came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Undelivered {
    /// No byte of it has reached the application, or the application has said that it has not begun
    /// with it, or it is idempotent and was being sent once more.
    Unsent,
    /// The application's connection ended before a response; what the application has done is not
    /// known.
    Lost,
}

pub const UNDELIVERED: HeaderName = HeaderName::from_static("l5d-proxy-undelivered");
const UNSENT: HeaderValue = HeaderValue::from_static("unsent");
const LOST: HeaderValue = HeaderValue::from_static("lost");

impl Undelivered {
    /// A stream that the application has reset is neither: that was its answer.
    pub fn of(error: &SendError) -> Option<Self> {
        match error {
            SendError::Dial(_) => Some(Self::Unsent),
            SendError::Http2(_) if error.is_server_gone() => Some(Self::Unsent),
            SendError::Http1(_) | SendError::Http2(_) => {
                error.reset().is_none().then_some(Self::Lost)
            }
        }
    }

    pub fn tell(self, headers: &mut HeaderMap) {
        let value = match self {
            Self::Unsent => UNSENT,
            Self::Lost => LOST,
        };
        headers.insert(UNDELIVERED, value);
    }

    /// Takes it out of a response.
    pub fn take(headers: &mut HeaderMap) -> Option<Self> {
        match headers.remove(UNDELIVERED)? {
            value if value == UNSENT => Some(Self::Unsent),
            value if value == LOST => Some(Self::Lost),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_is_taken_once() {
        let mut headers = HeaderMap::new();
        for told in [Undelivered::Unsent, Undelivered::Lost] {
            told.tell(&mut headers);
            assert_eq!(Undelivered::take(&mut headers), Some(told));
            assert_eq!(Undelivered::take(&mut headers), None);
        }
        headers.insert(UNDELIVERED, HeaderValue::from_static("perhaps"));
        assert_eq!(Undelivered::take(&mut headers), None);
        assert!(headers.is_empty());
    }
}
