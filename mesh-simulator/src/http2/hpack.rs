//! HPACK (RFC 7541): literals without compression are written, everything is read.

use std::collections::VecDeque;

use super::huffman;
use crate::script::{Field, field};

/// The initial value of SETTINGS_HEADER_TABLE_SIZE, which no peer of a script changes by itself.
const TABLE_SIZE: usize = 4096;

/// The octets of an entry beside name and value (RFC 7541, section 4.1).
const OVERHEAD: usize = 32;

/// Appendix A.
const STATIC: [(&str, &str); 61] = [
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

/// Writes fields as literals without indexing and without Huffman coding.
pub(crate) fn encode(fields: &[Field]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        block.push(0);
        for text in [name, value] {
            write_integer(&mut block, text.len());
            block.extend_from_slice(text);
        }
    }
    block
}

/// An integer with a prefix of seven bits.
fn write_integer(to: &mut Vec<u8>, value: usize) {
    if value < 127 {
        return to.push(value as u8);
    }
    to.push(127);
    let mut rest = value - 127;
    while rest >= 128 {
        to.push(rest as u8 | 128);
        rest >>= 7;
    }
    to.push(rest as u8);
}

/// The dynamic table of one direction of a connection.
#[derive(Debug)]
pub(super) struct Decoder {
    /// The newest entry first.
    entries: VecDeque<Field>,
    size: usize,
    max_size: usize,
}

impl Default for Decoder {
    fn default() -> Self {
        Self {
            entries: VecDeque::new(),
            size: 0,
            max_size: TABLE_SIZE,
        }
    }
}

impl Decoder {
    /// Reads a whole field block; `None` if it is invalid.
    pub(super) fn decode(&mut self, mut block: &[u8]) -> Option<Vec<Field>> {
        let mut fields = Vec::new();
        while let Some(&first) = block.first() {
            if first & 0x80 != 0 {
                let index = read_integer(&mut block, 7)?;
                fields.push(self.entry(index)?);
            } else if first & 0x40 != 0 {
                let field = self.literal(&mut block, 6)?;
                self.insert(field.clone());
                fields.push(field);
            } else if first & 0x20 != 0 {
                let size = read_integer(&mut block, 5)?;
                if size > TABLE_SIZE || !fields.is_empty() {
                    return None;
                }
                self.max_size = size;
                self.evict(0);
            } else {
                fields.push(self.literal(&mut block, 4)?);
            }
        }
        Some(fields)
    }

    fn entry(&self, index: usize) -> Option<Field> {
        let index = index.checked_sub(1)?;
        if let Some((name, value)) = STATIC.get(index) {
            return Some(field(name, value));
        }
        self.entries.get(index - STATIC.len()).cloned()
    }

    fn literal(&self, block: &mut &[u8], prefix: u32) -> Option<Field> {
        let name = match read_integer(block, prefix)? {
            0 => read_string(block)?,
            index => self.entry(index)?.0,
        };
        Some((name, read_string(block)?))
    }

    fn insert(&mut self, field: Field) {
        let size = size(&field);
        self.evict(size);
        if size <= self.max_size {
            self.size += size;
            self.entries.push_front(field);
        }
    }

    /// Removes the oldest entries until `more` octets fit.
    fn evict(&mut self, more: usize) {
        while self.size + more > self.max_size {
            let Some(oldest) = self.entries.pop_back() else {
                return;
            };
            self.size -= size(&oldest);
        }
    }
}

fn size((name, value): &Field) -> usize {
    name.len() + value.len() + OVERHEAD
}

fn read_integer(bytes: &mut &[u8], prefix: u32) -> Option<usize> {
    let (&first, rest) = bytes.split_first()?;
    *bytes = rest;
    let largest = (1_usize << prefix) - 1;
    let mut value = usize::from(first) & largest;
    if value < largest {
        return Some(value);
    }
    for shift in [0, 7, 14, 21] {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value += (usize::from(byte) & 127) << shift;
        if byte & 128 == 0 {
            return Some(value);
        }
    }
    None
}

fn read_string(bytes: &mut &[u8]) -> Option<Vec<u8>> {
    let is_compressed = bytes.first()? & 128 != 0;
    let length = read_integer(bytes, 7)?;
    let (text, rest) = bytes.split_at_checked(length)?;
    *bytes = rest;
    if is_compressed {
        huffman::decode(text)
    } else {
        Some(text.to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(text: &str) -> Vec<u8> {
        let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
        let pairs = digits.chunks(2);
        pairs
            .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
            .collect()
    }

    fn fields(pairs: &[(&str, &str)]) -> Vec<Field> {
        let pairs = pairs.iter();
        pairs.map(|(name, value)| field(name, value)).collect()
    }

    /// RFC 7541, appendix C.4: requests with Huffman coding and the dynamic table.
    #[test]
    fn examples_of_the_rfc_are_read() {
        let mut decoder = Decoder::default();
        let request = |more: &[(&str, &str)]| {
            let mut all = vec![
                (":method", "GET"),
                (":scheme", "http"),
                (":path", "/"),
                (":authority", "www.example.com"),
            ];
            all.extend(more);
            fields(&all)
        };
        let first = hex("8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff");
        assert_eq!(decoder.decode(&first), Some(request(&[])));
        let second = hex("8286 84be 5886 a8eb 1064 9cbf");
        let cached = request(&[("cache-control", "no-cache")]);
        assert_eq!(decoder.decode(&second), Some(cached));
        let third = hex("8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf");
        let custom = fields(&[
            (":method", "GET"),
            (":scheme", "https"),
            (":path", "/index.html"),
            (":authority", "www.example.com"),
            ("custom-key", "custom-value"),
        ]);
        assert_eq!(decoder.decode(&third), Some(custom));
    }

    #[test]
    fn written_fields_are_read() {
        let long = "v".repeat(40_000);
        let all = fields(&[(":path", "/a"), ("x", ""), ("y", &long)]);
        assert_eq!(Decoder::default().decode(&encode(&all)), Some(all));
    }

    #[test]
    fn invalid_blocks_are_refused() {
        for block in ["80", "ff", "be", "0001", "3fe2ff7f", "00 01 61 81 00"] {
            assert_eq!(Decoder::default().decode(&hex(block)), None, "{block}");
        }
    }

    #[test]
    fn entries_beyond_the_table_are_evicted() {
        let mut decoder = Decoder::default();
        let mut block = vec![0x40, 1, b'a'];
        write_integer(&mut block, 3000);
        block.extend(vec![b'v'; 3000]);
        assert!(decoder.decode(&block).is_some());
        assert!(decoder.decode(&[0xbe]).is_some());
        assert!(decoder.decode(&block).is_some());
        assert!(decoder.decode(&[0xbf]).is_none(), "the older one is gone");
    }
}
