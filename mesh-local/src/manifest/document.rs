//! One document of a YAML file, with the line where it begins.

use std::{fmt, path::Path};

use serde::{Deserialize, de::DeserializeOwned};

use super::Place;

pub(super) struct Document<'a> {
    /// Of the document's first line in the file, counted from 1.
    pub(super) line: usize,
    text: &'a str,
}

/// The part that every object has.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Head {
    #[serde(default)]
    pub(super) kind: String,
    #[serde(default)]
    metadata: HeadMeta,
}

#[derive(Debug, Default, Deserialize)]
struct HeadMeta {
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    namespace: Option<String>,
}

/// Splits at lines that are `---`.
pub(super) fn split(text: &str) -> Vec<Document<'_>> {
    let mut documents = Vec::new();
    let (mut begin, mut begin_line) = (0, 1);
    let mut offset = 0;
    for (index, line) in text.split_inclusive('\n').enumerate() {
        let marker = line.trim_end();
        if marker == "---" || marker.starts_with("--- ") {
            documents.push(Document {
                line: begin_line,
                text: &text[begin..offset],
            });
            begin = offset + line.len();
            begin_line = index + 2;
        }
        offset += line.len();
    }
    documents.push(Document {
        line: begin_line,
        text: &text[begin..],
    });
    for document in &mut documents {
        document.skip_to_content();
    }
    documents
}

/// What is wrong, without the line: that is counted from the document's beginning, and the file's
/// is told already.
pub(super) fn message(error: &serde_norway::Error) -> String {
    let text = error.to_string();
    let cut = error.location().and_then(|location| {
        let (line, column) = (location.line(), location.column());
        let place = format!(" at line {line} column {column}");
        Some(text.strip_suffix(&place)?.to_owned())
    });
    cut.unwrap_or(text)
}

impl Document<'_> {
    /// Nothing for a document of blanks and comments.
    pub(super) fn head(&self) -> Result<Option<Head>, serde_norway::Error> {
        if self.text.trim().is_empty() {
            return Ok(None);
        }
        serde_norway::from_str::<Option<Head>>(self.text)
    }

    pub(super) fn parse<T: DeserializeOwned>(&self) -> Result<T, serde_norway::Error> {
        serde_norway::from_str(self.text)
    }

    /// The line of the file that an error is about, or the document's first.
    pub(super) fn place_of(&self, file: &Path, error: &serde_norway::Error) -> Place {
        let within = error.location().map_or(1, |location| location.line());
        Place {
            file: file.to_owned(),
            line: self.line + within.saturating_sub(1),
        }
    }

    /// Leaves out blank and comment lines before the object, so that its line is where the reader
    /// sees it begin.
    fn skip_to_content(&mut self) {
        while let Some((line, rest)) = self.text.split_once('\n') {
            let line = line.trim();
            if !line.is_empty() && !line.starts_with('#') {
                break;
            }
            self.text = rest;
            self.line += 1;
        }
    }
}

impl fmt::Display for Head {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.kind)?;
        if let Some(name) = &self.metadata.name {
            let namespace = self.metadata.namespace.as_deref().unwrap_or("default");
            write!(f, " {namespace}/{name}")?;
        }
        Ok(())
    }
}
