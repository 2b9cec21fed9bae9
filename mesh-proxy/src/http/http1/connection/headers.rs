//! Finds start lines and header sections in the input of a connection.

use bytes::Bytes;

use super::Inner;
use crate::http::http1::MessageError;
use crate::http::http1::parse::{self, HeaderEnd};
use crate::transport::detect::MAX_EMPTY_LINES;

impl Inner {
    /// Skips empty lines. Returns whether a request line follows, or more empty lines than allowed,
    /// for which [`Inner::take_headers`] fails.
    pub(super) fn skip_empty_lines(&mut self) -> bool {
        while self.input.starts_with(b"\r\n") && self.empty_lines <= MAX_EMPTY_LINES {
            self.input.consume(2);
            self.empty_lines += 1;
        }
        !matches!(*self.input, [] | [b'\r']) || self.empty_lines > MAX_EMPTY_LINES
    }

    /// Takes the start line and header section off the input, if they are complete.
    pub(super) fn take_headers(&mut self) -> Result<Option<Bytes>, MessageError> {
        if self.empty_lines > MAX_EMPTY_LINES {
            return Err(MessageError::InvalidStartLine);
        }
        if self.input.is_empty() {
            return Ok(None);
        }
        let find_end = if self.limits.is_lenient {
            parse::find_lenient_end
        } else {
            parse::find_end
        };
        match find_end(&self.input, self.scanned, self.limits.head)? {
            HeaderEnd::At(length) => {
                self.scanned = 0;
                self.empty_lines = 0;
                Ok(Some(self.input.take(length)))
            }
            HeaderEnd::Incomplete(scanned) => {
                self.scanned = scanned;
                Ok(None)
            }
        }
    }
}
