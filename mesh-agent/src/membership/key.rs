//! The key of the machine. It is made once, is never replaced, and leaves neither this program nor
//! its file.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair};
use mesh_k8s::trust::fingerprint;
use mesh_runtime::file::{self, FileError};
use rcgen::{
    CertificateParams, DistinguishedName, KeyPair, PKCS_ECDSA_P256_SHA256, PublicKeyData as _,
};

/// An ECDSA key on the curve P-256.
pub(super) struct MachineKey {
    pair: KeyPair,
    signer: EcdsaKeyPair,
}

/// Why there is no key.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error(
        "{0} is not an ECDSA key on the curve P-256 in PEM; restore it, or remove it and admit the machine again"
    )]
    Damaged(PathBuf),
    #[error("{path} can be read by other users (mode {mode:o}); run chmod 600 {path}")]
    Exposed { path: PathBuf, mode: u32 },
    #[error("cannot make a key")]
    Generate(#[source] rcgen::Error),
    #[error("cannot sign with the key of the machine: {0}")]
    Sign(String),
}

impl MachineKey {
    /// Reads the key, if there is one.
    pub(super) fn read(path: &Path) -> Result<Option<Self>, KeyError> {
        let pem = match fs::read_to_string(path) {
            Ok(pem) => pem,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(file::failed("cannot read", path)(error).into()),
        };
        let metadata = fs::metadata(path).map_err(file::failed("cannot read", path))?;
        let mode = metadata.mode() & 0o777;
        if mode & 0o077 != 0 {
            let path = path.to_owned();
            return Err(KeyError::Exposed { path, mode });
        }
        let damaged = || KeyError::Damaged(path.to_owned());
        let pair = KeyPair::from_pem(&pem).map_err(|_error| damaged())?;
        let signer =
            EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, pair.serialized_der());
        let signer = signer.map_err(|_error| damaged())?;
        Ok(Some(Self { pair, signer }))
    }

    /// Reads the key, or makes one. An existing file is never replaced, whatever it contains.
    pub(super) fn read_or_make(path: &Path) -> Result<Self, KeyError> {
        if let Some(key) = Self::read(path)? {
            return Ok(key);
        }
        let pair = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(KeyError::Generate)?;
        let failed = file::failed("cannot write", path);
        let draft = path.with_extension("new");
        file::remove(&draft).map_err(&failed)?;
        let create = || {
            let mut options = OpenOptions::new();
            let mut file = options
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(&draft)?;
            file.write_all(pair.serialize_pem().as_bytes())?;
            file.sync_all()?;
            // Fails if the file exists, which renaming would not.
            fs::hard_link(&draft, path)
        };
        let created = create().map_err(&failed);
        file::remove(&draft).map_err(failed)?;
        created?;
        Self::read(path)?.ok_or_else(|| KeyError::Damaged(path.to_owned()))
    }

    /// Returns the public key (SubjectPublicKeyInfo) in DER.
    pub(super) fn public(&self) -> Vec<u8> {
        self.pair.subject_public_key_info()
    }

    /// Returns the SHA-256 of the public key.
    pub(super) fn fingerprint(&self) -> String {
        fingerprint(&self.public())
    }

    /// Returns a request for a certificate of `identity`, in DER.
    pub(super) fn certificate_request(&self, identity: &str) -> Result<Vec<u8>, KeyError> {
        let failed = |error: rcgen::Error| KeyError::Sign(error.to_string());
        let mut params = CertificateParams::new(vec![identity.to_owned()]).map_err(failed)?;
        params.distinguished_name = DistinguishedName::new();
        let request = params.serialize_request(&self.pair).map_err(failed)?;
        Ok(request.der().to_vec())
    }

    /// Signs as ES256 does (RFC 7518): the two numbers of the signature, 32 bytes each.
    pub(super) fn sign(&self, message: &[u8]) -> Result<Vec<u8>, KeyError> {
        let signature = self.signer.sign(&SystemRandom::new(), message);
        let signature = signature.map_err(|error| KeyError::Sign(error.to_string()))?;
        Ok(signature.as_ref().to_vec())
    }
}

impl std::fmt::Debug for MachineKey {
    /// Without the private key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("MachineKey")
            .field(&self.fingerprint())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn key_is_made_once_for_root_only_and_never_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key.pem");
        assert!(MachineKey::read(&path).unwrap().is_none());
        let made = MachineKey::read_or_make(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        let again = MachineKey::read_or_make(&path).unwrap();
        assert_eq!(made.fingerprint(), again.fingerprint());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);

        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let error = MachineKey::read_or_make(&path).unwrap_err().to_string();
        assert!(error.contains("mode 640"), "{error}");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(&path, "").unwrap();
        let error = MachineKey::read_or_make(&path).unwrap_err();
        assert!(matches!(error, KeyError::Damaged(_)), "{error}");
        assert_eq!(fs::read(&path).unwrap(), b"");
    }
}
