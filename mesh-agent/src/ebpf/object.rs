//! The object file of the kernel programs: embedded, or read from a file for development.

use std::borrow::Cow;
use std::path::Path;
use std::{fmt, fs};

use super::error::Error;

/// Written by the build script; empty when the programs had not been built.
static EMBEDDED: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/mesh-ebpf.o"));
/// The same with the programs for systemd units: each enrolment of a pod reads its object, which
/// would take twice as long with them.
static EMBEDDED_FOR_UNITS: &[u8] =
    aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/mesh-ebpf-machine.o"));

/// The compiled kernel programs (an ELF object).
#[derive(Clone)]
pub struct Object {
    bytes: Cow<'static, [u8]>,
}

/// Omits the bytes.
impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let length = self.bytes.len();
        f.debug_struct("Object")
            .field("length", &length)
            .finish_non_exhaustive()
    }
}

impl Object {
    /// Opens the object at `path`, or the embedded one for pods.
    pub fn open(path: Option<&Path>) -> Result<Object, Error> {
        Self::open_or(path, EMBEDDED)
    }

    /// Opens the object at `path`, or the embedded one for systemd units.
    pub fn open_for_units(path: Option<&Path>) -> Result<Object, Error> {
        Self::open_or(path, EMBEDDED_FOR_UNITS)
    }

    fn open_or(path: Option<&Path>, embedded: &'static [u8]) -> Result<Object, Error> {
        let bytes = match path {
            None if embedded.is_empty() => return Err(Error::NoObject),
            None => Cow::Borrowed(embedded),
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
