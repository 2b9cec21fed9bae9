//! [`Tokens`]: the words and quoted bytes of one line.

use std::ops::RangeInclusive;
use std::str::FromStr;

use super::error::Problem;
use super::{Bytes, Part, Stream};

/// A token and the column where it begins.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Token {
    column: usize,
    kind: Kind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    Word(String),
    Quoted(Vec<u8>),
    Star,
}

/// The tokens of a line that are not read yet.
#[derive(Debug)]
pub(super) struct Tokens {
    tokens: std::vec::IntoIter<Token>,
    /// The column after the last one.
    end: usize,
}

impl Tokens {
    /// Divides a line into tokens. A `#` that begins a token, other than `#` and a digit, begins a
    /// comment.
    pub(super) fn read(line: &str) -> Result<Self, Problem> {
        let characters: Vec<char> = line.chars().collect();
        let mut tokens = Vec::new();
        let mut at = 0;
        while let Some(&character) = characters.get(at) {
            let column = at + 1;
            match character {
                ' ' | '\t' => at += 1,
                '#' if !characters.get(at + 1).is_some_and(char::is_ascii_digit) => break,
                '*' => {
                    at += 1;
                    let kind = Kind::Star;
                    tokens.push(Token { column, kind });
                }
                '"' => {
                    let closing = closing_quote(&characters, at + 1).ok_or_else(|| {
                        Problem::new(column, "the text has no end", "close it with `\"`")
                    })?;
                    let kind = Kind::Quoted(unescape(&characters[at + 1..closing], column + 1)?);
                    tokens.push(Token { column, kind });
                    at = closing + 1;
                }
                _ => {
                    let length = characters[at..]
                        .iter()
                        .take_while(|it| !matches!(it, ' ' | '\t' | '"' | '*'))
                        .count();
                    let kind = Kind::Word(characters[at..at + length].iter().collect());
                    tokens.push(Token { column, kind });
                    at += length;
                }
            }
        }
        Ok(Self {
            tokens: tokens.into_iter(),
            end: characters.len() + 1,
        })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.tokens.as_slice().is_empty()
    }

    /// The column of the next token, or of the end of the line.
    pub(super) fn column(&self) -> usize {
        let next = self.tokens.as_slice().first();
        next.map_or(self.end, |token| token.column)
    }

    pub(super) fn peek_word(&self) -> Option<&str> {
        match &self.tokens.as_slice().first()?.kind {
            Kind::Word(word) => Some(word),
            _ => None,
        }
    }

    /// Takes the next token if it is this word.
    pub(super) fn take(&mut self, word: &str) -> bool {
        let is_there = self.peek_word() == Some(word);
        if is_there {
            self.tokens.next();
        }
        is_there
    }

    /// Takes the value of `name=value`, if that is the next token.
    pub(super) fn take_option<T: FromStr + PartialOrd + ToString>(
        &mut self,
        name: &str,
        range: RangeInclusive<T>,
    ) -> Result<Option<T>, Problem> {
        let column = self.column();
        let value = self.peek_word().and_then(|word| {
            let rest = word.strip_prefix(name)?;
            rest.strip_prefix('=').map(str::to_owned)
        });
        let Some(value) = value else { return Ok(None) };
        self.tokens.next();
        number(&value, column + name.len() + 1, range).map(Some)
    }

    /// Takes a word that `expected` describes.
    pub(super) fn word(&mut self, expected: &str) -> Result<String, Problem> {
        let column = self.column();
        match self.tokens.next().map(|token| token.kind) {
            Some(Kind::Word(word)) => Ok(word),
            _ => Err(Problem::new(
                column,
                format!("{expected} is missing"),
                "write it here, without quotes",
            )),
        }
    }

    pub(super) fn number<T: FromStr + PartialOrd + ToString>(
        &mut self,
        expected: &str,
        range: RangeInclusive<T>,
    ) -> Result<T, Problem> {
        let column = self.column();
        let word = self.word(expected)?;
        number(&word, column, range)
    }

    /// Takes `#n` or the number of a stream.
    pub(super) fn stream(&mut self) -> Result<Stream, Problem> {
        let column = self.column();
        let word = self.word("a stream, such as `#1` for the stream of the first request,")?;
        match word.strip_prefix('#') {
            Some(nth) => number(nth, column + 1, 1..=MAX_NTH).map(Stream::Nth),
            None => number(&word, column, 0..=MAX_STREAM).map(Stream::Id),
        }
    }

    pub(super) fn optional_stream(&mut self) -> Result<Option<Stream>, Problem> {
        if self.is_empty() {
            return Ok(None);
        }
        self.stream().map(Some)
    }

    /// Takes `"text"` and `"text" * times`, once or several times.
    pub(super) fn bytes(&mut self) -> Result<Bytes, Problem> {
        let mut parts = Vec::new();
        while let Some(Kind::Quoted(_)) = self.tokens.as_slice().first().map(|token| &token.kind) {
            let Some(Kind::Quoted(text)) = self.tokens.next().map(|token| token.kind) else {
                break;
            };
            let is_repeated =
                matches!(self.tokens.as_slice().first(), Some(token) if token.kind == Kind::Star);
            let times = if is_repeated {
                self.tokens.next();
                self.number("the number of repetitions", 0..=MAX_TIMES)?
            } else {
                1
            };
            parts.push(Part { text, times });
        }
        Ok(Bytes(parts))
    }

    /// The same, at least one.
    pub(super) fn some_bytes(&mut self) -> Result<Bytes, Problem> {
        let column = self.column();
        let bytes = self.bytes()?;
        if bytes.0.is_empty() {
            return Err(Problem::new(
                column,
                "bytes are missing",
                "write them in quotes, as in `\"abc\\r\\n\"` or `\"x\" * 100`",
            ));
        }
        Ok(bytes)
    }

    /// Takes the bytes of a text that a field or a frame has as text.
    pub(super) fn optional_text(&mut self) -> Result<Option<String>, Problem> {
        let column = self.column();
        let bytes = self.bytes()?;
        if bytes.0.is_empty() {
            return Ok(None);
        }
        let text = String::from_utf8(bytes.to_vec());
        text.map(Some)
            .map_err(|_invalid| Problem::new(column, "the text is not UTF-8", "use ASCII"))
    }

    /// Reports whatever is left.
    pub(super) fn finish(&self) -> Result<(), Problem> {
        if self.is_empty() {
            return Ok(());
        }
        Err(Problem::new(
            self.column(),
            "the step ends before this",
            "remove the rest of the line, or begin it with `# ` if it is a comment",
        ))
    }
}

/// The largest stream identifier (RFC 9113, section 5.1.1).
const MAX_STREAM: u32 = (1 << 31) - 1;
const MAX_NTH: u32 = 1 << 20;
const MAX_TIMES: u32 = 64 << 20;

fn number<T: FromStr + PartialOrd + ToString>(
    word: &str,
    column: usize,
    range: RangeInclusive<T>,
) -> Result<T, Problem> {
    let value = word.parse().ok().filter(|value| range.contains(value));
    value.ok_or_else(|| {
        let (first, last) = (range.start().to_string(), range.end().to_string());
        Problem::new(
            column,
            format!("`{word}` is not a number that fits here"),
            format!("use a decimal number from {first} to {last}"),
        )
    })
}

fn closing_quote(characters: &[char], mut at: usize) -> Option<usize> {
    loop {
        match characters.get(at)? {
            '"' => return Some(at),
            '\\' => at += 2,
            _ => at += 1,
        }
    }
}

/// Replaces escape sequences. `column` is the column of the first character.
pub(super) fn unescape(characters: &[char], column: usize) -> Result<Vec<u8>, Problem> {
    let mut bytes = Vec::new();
    let mut at = 0;
    while let Some(&character) = characters.get(at) {
        if character != '\\' {
            bytes.extend(character.encode_utf8(&mut [0; 4]).as_bytes());
            at += 1;
            continue;
        }
        let (byte, length) = match characters.get(at + 1) {
            Some('r') => (b'\r', 2),
            Some('n') => (b'\n', 2),
            Some('t') => (b'\t', 2),
            Some('0') => (0, 2),
            Some('"') => (b'"', 2),
            Some('\\') => (b'\\', 2),
            Some('x') => match hex_byte(characters.get(at + 2..at + 4)) {
                Some(byte) => (byte, 4),
                None => return Err(unknown_escape(column + at)),
            },
            _ => return Err(unknown_escape(column + at)),
        };
        bytes.push(byte);
        at += length;
    }
    Ok(bytes)
}

fn unknown_escape(column: usize) -> Problem {
    Problem::new(
        column,
        "unknown escape sequence",
        r#"use \r, \n, \t, \0, \", \\ or \x and two hexadecimal digits"#,
    )
}

fn hex_byte(digits: Option<&[char]>) -> Option<u8> {
    let [high, low] = digits? else { return None };
    let value = high.to_digit(16)? * 16 + low.to_digit(16)?;
    u8::try_from(value).ok()
}

/// Writes bytes so that `unescape` reads them. Quotes are escaped only if `quoted`.
pub(super) fn escape(bytes: &[u8], quoted: bool) -> String {
    let mut text = String::with_capacity(bytes.len());
    for &byte in bytes {
        match byte {
            b'\r' => text.push_str("\\r"),
            b'\n' => text.push_str("\\n"),
            b'\t' => text.push_str("\\t"),
            0 => text.push_str("\\0"),
            b'\\' => text.push_str("\\\\"),
            b'"' if quoted => text.push_str("\\\""),
            b' '..=b'~' => text.push(char::from(byte)),
            _ => text.push_str(&format!("\\x{byte:02x}")),
        }
    }
    text
}
