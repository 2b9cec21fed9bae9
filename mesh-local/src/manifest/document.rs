//! Documents of a YAML file with their first lines.

use std::fmt;
use std::path::Path;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::SourceLocation;

pub(super) struct Document<'a> {
    /// The first line of the document in the file, starting with 1.
    pub(super) line: usize,
    text: &'a str,
}

/// The fields that all objects have.
#[derive(Debug, Default, Deserialize)]
pub(super) struct TypeMeta {
    #[serde(default)]
    pub(super) kind: String,
    #[serde(default)]
    metadata: ObjectMetadata,
}

#[derive(Debug, Default, Deserialize)]
struct ObjectMetadata {
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    namespace: Option<String>,
}

/// Splits a stream at lines that are `---`.
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

/// Returns the message of an error without its location, which is relative to the document.
pub(super) fn message(error: &serde_norway::Error) -> String {
    let text = error.to_string();
    let cut = error.location().and_then(|location| {
        let (line, column) = (location.line(), location.column());
        let location = format!(" at line {line} column {column}");
        Some(text.strip_suffix(&location)?.to_owned())
    });
    cut.unwrap_or(text)
}

impl Document<'_> {
    /// Returns kind and name, or `None` for an empty document.
    pub(super) fn type_meta(&self) -> Result<Option<TypeMeta>, serde_norway::Error> {
        if self.text.trim().is_empty() {
            return Ok(None);
        }
        serde_norway::from_str::<Option<TypeMeta>>(self.text)
    }

    pub(super) fn parse<T: DeserializeOwned>(&self) -> Result<T, serde_norway::Error> {
        serde_norway::from_str(self.text)
    }

    /// Returns the line of an error in the file, or the first line of the document.
    pub(super) fn location_of(&self, file: &Path, error: &serde_norway::Error) -> SourceLocation {
        let within = error.location().map_or(1, |location| location.line());
        SourceLocation {
            file: file.to_owned(),
            line: self.line + within.saturating_sub(1),
        }
    }

    /// Skips blank and comment lines before the object.
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

impl fmt::Display for TypeMeta {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.kind)?;
        if let Some(name) = &self.metadata.name {
            let namespace = self.metadata.namespace.as_deref().unwrap_or("default");
            write!(f, " {namespace}/{name}")?;
        }
        Ok(())
    }
}
