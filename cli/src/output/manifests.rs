//! Manifests in and out: files, folders and standard input to documents, and documents to YAML or
//! JSON.

use std::{
    fs,
    io::Read as _,
    path::{Path, PathBuf},
};

use clap::ValueEnum;
use serde::Deserialize as _;
use serde_json::Value;

use crate::exit::Failure;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Form {
    Yaml,
    Json,
}

/// The documents of all files, folders in the order of their names. Empty documents are left out.
pub(crate) fn read(paths: &[PathBuf]) -> Result<Vec<Value>, Failure> {
    let mut documents = Vec::new();
    for path in paths {
        if path.as_os_str() == "-" {
            let mut text = String::new();
            std::io::stdin()
                .read_to_string(&mut text)
                .map_err(|error| Failure::Input(format!("read standard input: {error}")))?;
            parse(&text, "standard input", &mut documents)?;
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
    parse(&text, &name, documents)
}

fn manifests_in(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let entries = fs::read_dir(folder)
        .map_err(|error| Failure::Input(format!("read {}: {error}", folder.display())))?;
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

/// The documents of a text that was not read from a file.
pub(crate) fn parsed(text: &str, name: &str) -> Result<Vec<Value>, Failure> {
    let mut documents = Vec::new();
    parse(text, name, &mut documents)?;
    Ok(documents)
}

fn parse(text: &str, name: &str, documents: &mut Vec<Value>) -> Result<(), Failure> {
    for document in serde_norway::Deserializer::from_str(text) {
        let value = Value::deserialize(document)
            .map_err(|error| Failure::Input(format!("{name} is no YAML: {error}")))?;
        if !value.is_null() {
            documents.push(value);
        }
    }
    Ok(())
}

pub(crate) fn write(documents: &[Value], form: Form) -> anyhow::Result<String> {
    let mut text = String::new();
    for document in documents {
        match form {
            Form::Yaml => {
                text += "---\n";
                text += &serde_norway::to_string(document)?;
            }
            Form::Json => {
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
    fn documents_come_out_as_they_went_in() {
        let mut documents = Vec::new();
        parse(
            "kind: A\n---\n# nothing\n---\nkind: B\nspec: {ports: [1, '2']}\n",
            "x",
            &mut documents,
        )
        .unwrap();
        assert_eq!(
            write(&documents, Form::Yaml).unwrap(),
            "---\nkind: A\n---\nkind: B\nspec:\n  ports:\n  - 1\n  - '2'\n"
        );
        let text = write(&documents, Form::Json).unwrap();
        assert!(text.starts_with("{\n  \"kind\": \"A\"\n}\n{"), "{text}");
    }

    #[test]
    fn broken_input_is_named() {
        let error = parse("a: [", "shop.yaml", &mut Vec::new()).unwrap_err();
        assert!(
            error.to_string().starts_with("shop.yaml is no YAML"),
            "{error}"
        );
    }
}
