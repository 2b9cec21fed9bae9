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
        match self.find_end()? {
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

    /// Continues the search for the end of the header section. Searches leniently only once a
    /// response turns out to need it.
    fn find_end(&mut self) -> Result<HeaderEnd, MessageError> {
        if self.scanned == 0 {
            self.has_bare_line_feed = false;
        }
        if !self.has_bare_line_feed {
            match parse::find_end(&self.input, self.scanned, self.limits.head) {
                Err(MessageError::BareLineFeed) if self.limits.is_lenient => {
                    self.has_bare_line_feed = true;
                }
                found => return found,
            }
        }
        parse::find_lenient_end(&self.input, self.scanned, self.limits.head)
    }
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use tokio::net::{TcpListener, TcpStream};

    use crate::config::HttpLimits;
    use crate::http::http1::Connection;
    use crate::transport::Io;

    #[tokio::test]
    async fn bare_line_feed_is_known_however_the_response_is_split() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let tcp = TcpStream::connect(listener.local_addr().unwrap()).await;
        let limits = HttpLimits::DEFAULT.for_application().http1;
        let connection = Connection::new(Io::plain(tcp.unwrap()), limits);
        let rows = [
            ("HTTP/1.1 200 OK\r\nx: 1\r\n\r\n", false),
            ("HTTP/1.1 200 OK\nx: 1\r\n\r\n", true),
            ("HTTP/1.1 200 OK\r\nx: 1\n\r\n", true),
            ("HTTP/1.1 200 OK\r\nx: 1\r\n\n", true),
        ];
        // One after the other on the same connection, so that nothing of one affects the next.
        for (section, is_bare) in rows.into_iter().chain(rows) {
            for split in 1..section.len() {
                let mut taken = None;
                for end in [split, section.len()] {
                    assert_eq!(taken, None, "{split} of {section:?}");
                    let mut inner = connection.inner();
                    let _before = inner.input.take_all();
                    inner.input.put_back(BytesMut::from(&section[..end]));
                    taken = inner.take_headers().unwrap();
                }
                let taken = taken.unwrap();
                assert_eq!(taken, section);
                let parsed = connection.parse_response(&taken).unwrap();
                assert_eq!(parsed.must_close, is_bare, "{split} of {section:?}");
            }
        }
    }
}
