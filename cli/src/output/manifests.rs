//! Reads manifests from files, directories and standard input, and renders them as YAML or JSON.

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use serde::Deserialize as _;
use serde_json::Value;

use crate::exit::Failure;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ManifestFormat {
    Yaml,
    Json,
}

/// Reads the documents of all files. The files of a directory are read in the order of their names;
/// empty documents are skipped.
pub(crate) fn read(paths: &[PathBuf]) -> Result<Vec<Value>, Failure> {
    let mut documents = Vec::new();
    for path in paths {
        if path.as_os_str() == "-" {
            let mut text = String::new();
            std::io::stdin()
                .read_to_string(&mut text)
                .map_err(|error| Failure::Input(format!("read standard input: {error}")))?;
            parse_into(&text, "standard input", &mut documents)?;
        } else if path.is_dir() {
            for file in manifests_in(path)? {
                read_file(&file, &mut documents)?;
            }
        } else {
            read_file(path, &mut documents)?;
        }
    }
    Ok(documents)
}

fn read_file(path: &Path, documents: &mut Vec<Value>) -> Result<(), Failure> {
    let name = path.display().to_string();
    let text = fs::read_to_string(path)
        .map_err(|error| Failure::Input(format!("read {name}: {error}")))?;
    parse_into(&text, &name, documents)
}

fn manifests_in(directory: &Path) -> Result<Vec<PathBuf>, Failure> {
    let entries = fs::read_dir(directory)
        .map_err(|error| Failure::Input(format!("read {}: {error}", directory.display())))?;
    let mut files: Vec<PathBuf> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| {
            let extension = path.extension().and_then(|extension| extension.to_str());
            path.is_file() && matches!(extension, Some("yaml" | "yml" | "json"))
        })
        .collect();
    files.sort();
    Ok(files)
}

/// Parses the documents of a text; `name` is its source, for error messages.
pub(crate) fn parse(text: &str, name: &str) -> Result<Vec<Value>, Failure> {
    let mut documents = Vec::new();
    parse_into(text, name, &mut documents)?;
    Ok(documents)
}

fn parse_into(text: &str, name: &str, documents: &mut Vec<Value>) -> Result<(), Failure> {
    for document in serde_norway::Deserializer::from_str(text) {
        let value = Value::deserialize(document)
            .map_err(|error| Failure::Input(format!("{name} is not valid YAML: {error}")))?;
        if !value.is_null() {
            documents.push(value);
        }
    }
    Ok(())
}

pub(crate) fn render(documents: &[Value], format: ManifestFormat) -> anyhow::Result<String> {
    let mut text = String::new();
    for document in documents {
        match format {
            ManifestFormat::Yaml => {
                text += "---\n";
                text += &serde_norway::to_string(document)?;
            }
            ManifestFormat::Json => {
                text += &serde_json::to_string_pretty(document)?;
                text.push('\n');
            }
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_survive_parsing_and_rendering() {
        let mut documents = Vec::new();
        parse_into(
            "kind: A\n---\n# nothing\n---\nkind: B\nspec: {ports: [1, '2']}\n",
            "x",
            &mut documents,
        )
        .unwrap();
        assert_eq!(
            render(&documents, ManifestFormat::Yaml).unwrap(),
            "---\nkind: A\n---\nkind: B\nspec:\n  ports:\n  - 1\n  - '2'\n"
        );
        let text = render(&documents, ManifestFormat::Json).unwrap();
        assert!(text.starts_with("{\n  \"kind\": \"A\"\n}\n{"), "{text}");
    }

    #[test]
    fn parse_error_names_the_input() {
        let error = parse_into("a: [", "shop.yaml", &mut Vec::new()).unwrap_err();
        assert!(
            error.to_string().starts_with("shop.yaml is not valid YAML"),
            "{error}"
        );
    }
}
