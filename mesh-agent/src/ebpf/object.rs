//! The object file of the kernel programs: embedded, or read from a file for development.

use std::borrow::Cow;
use std::fs;
use std::path::Path;

use super::error::Error;

/// Written by the build script; empty when the programs had not been built.
static EMBEDDED: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/mesh-ebpf.o"));

/// The compiled kernel programs (an ELF object).
#[derive(Clone)]
pub struct Object {
    bytes: Cow<'static, [u8]>,
}

impl Object {
    /// Opens the object at `path`, or the embedded one.
    pub fn open(path: Option<&Path>) -> Result<Object, Error> {
        let bytes = match path {
            None if EMBEDDED.is_empty() => return Err(Error::NoObject),
            None => Cow::Borrowed(EMBEDDED),
            Some(path) => fs::read(path)
                .map(Cow::Owned)
                .map_err(|source| Error::ReadObject {
                    path: path.to_owned(),
                    source,
                })?,
        };
        Ok(Object { bytes })
    }

    pub(super) fn from_bytes(bytes: Vec<u8>) -> Object {
        Object {
            bytes: Cow::Owned(bytes),
        }
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}
