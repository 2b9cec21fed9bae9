//! [`Message`]: a request or response of either version of HTTP, as a peer has received it.

use crate::script::Field;

/// A message, or the part of it that has arrived.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    /// The number of the message among all that the peers of a run have received.
    pub order: u64,
    /// Field sections of interim (1xx) responses.
    pub interim: Vec<Vec<Field>>,
    /// The start line as pseudo-header fields, then the fields. HTTP/1 has `:version` and `:reason`
    /// in addition, and the target as it was sent in `:path`. Empty before the section has arrived.
    pub fields: Vec<Field>,
    pub body: Vec<u8>,
    pub trailers: Vec<Field>,
    pub end: End,
    /// Why a strict reader refuses the message, which was read leniently.
    pub irregular: Option<&'static str>,
    /// The code of RST_STREAM.
    pub reset: Option<u32>,
}

/// How a message ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum End {
    #[default]
    Open,
    Complete,
    /// The connection has ended within the message.
    Cut,
    /// The stream was reset within the message.
    Reset,
    /// The observer has reset the stream within the message, and ignores the rest.
    Left,
}

impl Message {
    /// Adds a field section: an interim response, the header section, or trailers.
    pub(crate) fn add_section(&mut self, fields: Vec<Field>) {
        if !self.fields.is_empty() {
            self.trailers.extend(fields);
            return;
        }
        let status = value(&fields, ":status");
        let is_interim = status.is_some_and(|status| status.starts_with(b"1") && status != b"101");
        if is_interim {
            self.interim.push(fields);
        } else {
            self.fields = fields;
        }
    }

    /// The number of header sections that have arrived.
    pub(crate) fn heads(&self) -> usize {
        self.interim.len() + usize::from(!self.fields.is_empty())
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.end != End::Open
    }
}

/// The value of the first field of a name, which is in lower case.
pub(crate) fn value<'a>(fields: &'a [Field], name: &str) -> Option<&'a [u8]> {
    let mut fields = fields.iter();
    fields
        .find(|(it, _)| it.eq_ignore_ascii_case(name.as_bytes()))
        .map(|(_, value)| value.as_slice())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::script::field;

    fn section(fields: &[(&str, &str)]) -> Vec<Field> {
        let fields = fields.iter();
        fields.map(|(name, value)| field(name, value)).collect()
    }

    #[test]
    fn sections_are_interim_then_head_then_trailers() {
        let mut message = Message::default();
        message.add_section(section(&[(":status", "103"), ("link", "a")]));
        assert_eq!((message.interim.len(), message.heads()), (1, 1));
        message.add_section(section(&[(":status", "200")]));
        assert_eq!((message.fields.len(), message.heads()), (1, 2));
        message.add_section(section(&[("x", "1")]));
        assert_eq!((message.trailers.len(), message.heads()), (1, 2));
    }

    #[test]
    fn switching_protocols_is_final() {
        let mut message = Message::default();
        message.add_section(section(&[(":status", "101")]));
        assert_eq!(message.interim, Vec::<Vec<Field>>::new());
        assert_eq!(value(&message.fields, ":status"), Some(&b"101"[..]));
    }
}
