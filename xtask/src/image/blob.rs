//! Blobs, which a registry and a layout store by digest: layers and the documents of an image.

use anyhow::Context;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// Bytes with their digest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Blob {
    pub(crate) media_type: &'static str,
    pub(crate) digest: String,
    pub(crate) content: Vec<u8>,
}

impl Blob {
    pub(crate) fn new(media_type: &'static str, content: Vec<u8>) -> Self {
        Self {
            media_type,
            digest: digest(&content),
            content,
        }
    }

    pub(crate) fn json(media_type: &'static str, document: &Value) -> anyhow::Result<Self> {
        let content = serde_json::to_vec(document).context("write a document of the image")?;
        Ok(Self::new(media_type, content))
    }

    pub(crate) fn descriptor(&self) -> Value {
        json!({ "mediaType": self.media_type, "digest": self.digest, "size": self.content.len() })
    }
}

pub(crate) fn digest(content: &[u8]) -> String {
    format!("sha256:{:x}", Sha256::digest(content))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digest_is_sha256() {
        assert_eq!(
            digest(b"abc"),
            "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
    }
}
