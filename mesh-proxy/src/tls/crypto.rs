//! The cipher suites and key exchange groups that the proxy offers and accepts, in order of
//! preference.

use std::sync::Arc;

use mesh_runtime::metrics::{Labels, Registry};
use rustls::SupportedProtocolVersion;
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::{self, cipher_suite, kx_group};

/// All proxies and control planes of the mesh support TLS 1.3.
pub(super) static VERSIONS: &[&SupportedProtocolVersion] = &[&rustls::version::TLS13];

/// Returns a provider with Linkerd's suites and groups in Linkerd's order. AES-128 comes first
/// because it is several times faster than ChaCha20 on processors with AES instructions. The
/// post-quantum hybrid is the first group.
pub(super) fn provider() -> Arc<CryptoProvider> {
    Arc::new(CryptoProvider {
        cipher_suites: vec![
            cipher_suite::TLS13_AES_128_GCM_SHA256,
            cipher_suite::TLS13_AES_256_GCM_SHA384,
            cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
        ],
        kx_groups: vec![
            kx_group::X25519MLKEM768,
            kx_group::X25519,
            kx_group::SECP256R1,
            kx_group::SECP384R1,
        ],
        ..aws_lc_rs::default_provider()
    })
}

/// Exports the suites and groups of [`provider`] as `rustls_info`, with Linkerd's labels. Their
/// lists end with a comma.
pub(crate) fn export_rustls_info(registry: &Registry) {
    let provider = provider();
    let suites: String = provider
        .cipher_suites
        .iter()
        .map(|suite| format!("{:?},", suite.suite()))
        .collect();
    let groups: String = provider
        .kx_groups
        .iter()
        .map(|group| format!("{:?},", group.name()))
        .collect();
    let labels = Labels::new()
        .with("tls_suites", suites)
        .with("tls_kx_groups", groups)
        .with("tls_rand", "AwsLcRs")
        .with("tls_key_provider", "AwsLcRs")
        .with("tls_fips", provider.fips().to_string());
    registry.constant_gauge(
        "rustls_info",
        "The TLS configuration of the proxy; the value is always 1",
        labels,
        1,
    );
}
