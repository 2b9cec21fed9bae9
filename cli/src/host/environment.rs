//! Environment files as systemd reads them (`EnvironmentFile=` of systemd.exec(5)), and the
//! variables that proxies know.

use std::collections::BTreeMap;

/// The values by name.
pub(crate) type Variables = BTreeMap<String, String>;

/// The content of an environment file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Content {
    pub(crate) variables: Variables,
    /// The numbers of the lines that systemd ignores, because they set nothing.
    pub(crate) ignored: Vec<usize>,
}

/// docs/reference/proxy-environment.md at build time. A test of the proxy compares it with what the
/// program reads.
const REFERENCE: &str = include_str!("../../../docs/reference/proxy-environment.md");
/// How the names of variables of proxies begin.
const LINKERD: &str = "LINKERD2_PROXY_";
const OWN: &str = "MESH_PROXY_";

/// Returns whether a name is one of a proxy's variables by its beginning, and no proxy reads it.
pub(crate) fn is_unknown(name: &str) -> bool {
    match name.strip_prefix(LINKERD) {
        Some(rest) => !is_listed(rest),
        None => name.starts_with(OWN) && !is_listed(name),
    }
}

/// Returns whether the first cell of a row of the reference has this name.
fn is_listed(name: &str) -> bool {
    let rows = REFERENCE
        .lines()
        .filter_map(|line| line.strip_prefix("| `"));
    let cells = rows.filter_map(|row| row.split('|').next());
    cells
        .flat_map(|cell| cell.split('`'))
        .any(|listed| listed == name)
}

/// Returns the name of a variable of proxies in full.
pub(crate) fn proxy_variable(name: &str) -> String {
    format!("{LINKERD}{name}")
}

/// Returns whether proxies read variables that begin as this one.
pub(crate) fn is_of_proxies(name: &str) -> bool {
    name.starts_with(LINKERD) || name.starts_with(OWN)
}

/// Reads an environment file.
pub(crate) fn parse(text: &str) -> Content {
    let mut reader = Reader {
        rest: text,
        line: 1,
    };
    let mut content = Content::default();
    while !reader.rest.is_empty() {
        reader.assignment(&mut content);
    }
    content
}

/// The unread part of a file.
struct Reader<'a> {
    rest: &'a str,
    /// The number of its first line.
    line: usize,
}

impl Reader<'_> {
    fn next(&mut self) -> Option<char> {
        let c = self.rest.chars().next()?;
        self.rest = &self.rest[c.len_utf8()..];
        self.line += usize::from(c == '\n');
        Some(c)
    }

    /// Reads the rest of the line.
    fn skip_line(&mut self) {
        while self.next().is_some_and(|c| c != '\n') {}
    }

    /// Reads a line, or more if its value goes on.
    fn assignment(&mut self, content: &mut Content) {
        let trimmed = self.rest.trim_start_matches([' ', '\t']);
        self.rest = trimmed;
        if trimmed.starts_with(['#', ';', '\n', '\r']) {
            return self.skip_line();
        }
        let line = self.line;
        let end = trimmed.find('\n').unwrap_or(trimmed.len());
        let Some((name, _)) = trimmed[..end].split_once('=') else {
            if !trimmed[..end].trim().is_empty() {
                content.ignored.push(line);
            }
            return self.skip_line();
        };
        let name = name.to_owned();
        self.rest = &trimmed[name.len() + 1..];
        let value = self.value();
        let name = name.trim_end();
        if is_name(name) {
            content.variables.insert(name.to_owned(), value);
        } else {
            content.ignored.push(line);
        }
    }

    /// Reads a value to the end of its line: quoted parts, or text up to the end.
    fn value(&mut self) -> String {
        let mut value = String::new();
        loop {
            self.rest = self.rest.trim_start_matches([' ', '\t', '\r']);
            match self.rest.chars().next() {
                Some(quote @ ('"' | '\'')) => {
                    self.next();
                    self.quoted(quote, &mut value);
                }
                Some('\n') | None => {
                    self.next();
                    return value;
                }
                Some(_) => {
                    self.bare(&mut value);
                    return value;
                }
            }
        }
    }

    /// Reads text without quotes. Quotes within have no meaning.
    fn bare(&mut self, value: &mut String) {
        // No space before this place is cut from the end.
        let mut kept = value.len();
        while let Some(c) = self.next().filter(|c| *c != '\n') {
            if c == '\\' {
                // A line break after a backslash continues the line.
                value.extend(self.next().filter(|c| *c != '\n'));
                kept = value.len();
            } else {
                value.push(c);
            }
        }
        let end = value.trim_end_matches([' ', '\t', '\r']).len();
        value.truncate(end.max(kept));
    }

    /// Reads to the closing quote. Between double quotes a backslash escapes some characters.
    fn quoted(&mut self, quote: char, value: &mut String) {
        while let Some(c) = self.next() {
            match c {
                c if c == quote => return,
                '\\' if quote == '"' => match self.next() {
                    Some(escaped @ ('"' | '\\' | '$' | '`')) => value.push(escaped),
                    Some('\n') | None => {}
                    Some(other) => value.extend(['\\', other]),
                },
                c => value.push(c),
            }
        }
    }
}

fn is_name(name: &str) -> bool {
    let mut bytes = name.bytes();
    !name.is_empty()
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_as_systemd_reads_them() {
        let text = r#"# comment
; comment too
  A=plain text  
B="two
lines" 
C='single "quotes" \'
D=a\ b\
c
E="{\"ns\":\"shop\"} \$ \n"
F=
 G = spaced
H="a" 'b' c
I=it's "so"
"#;
        let content = parse(text);
        let expected = [
            ("A", "plain text"),
            ("B", "two\nlines"),
            ("C", "single \"quotes\" \\"),
            ("D", "a bc"),
            ("E", "{\"ns\":\"shop\"} $ \\n"),
            ("F", ""),
            ("G", "spaced"),
            ("H", "abc"),
            ("I", "it's \"so\""),
        ];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(content.variables, Variables::from(expected));
        assert!(content.ignored.is_empty());
    }

    #[test]
    fn lines_that_set_nothing_are_numbered() {
        let content = parse("A=\"1\n2\"\nexport B=1\nC\n\n1D=2\nE=3");
        assert_eq!(content.ignored, [3, 4, 6]);
        assert_eq!(content.variables.keys().collect::<Vec<_>>(), ["A", "E"]);
        assert_eq!(parse("A=\"open").variables["A"], "open");
    }

    #[test]
    fn unknown_variables_are_those_that_no_proxy_reads() {
        for known in [
            "LINKERD2_PROXY_LOG",
            "LINKERD2_PROXY_INBOUND_LISTEN_ADDR",
            "LINKERD2_PROXY_IDENTITY_SPIRE_WORKLOAD_API_ADDRESS",
            "MESH_PROXY_REDIRECT_CHECK",
            "MALLOC_ARENA_MAX",
        ] {
            assert!(!is_unknown(known), "{known}");
        }
        for unknown in ["LINKERD2_PROXY_LOGS", "MESH_PROXY_LOG", "LINKERD2_PROXY_"] {
            assert!(is_unknown(unknown), "{unknown}");
        }
    }
}
