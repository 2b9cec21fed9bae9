//! rustls' parser of a ClientHello as the oracle for protocol detection.

use mesh_proxy::fuzzing::detect::TlsDetected;
use rustls::server::Acceptor;

/// The longest ClientHello that detection waits for (`transport::detect::tls`).
const MAX_HELLO: usize = 64 * 1024;

/// Checks that detection recognises a ClientHello that rustls accepts, with the same server name.
/// The reverse need not hold, because detection parses the framing only. Nor need detection accept
/// a first record with the version of SSL 2 ([0, 2]), which rustls does: that is how it
/// distinguishes other protocols.
pub(crate) fn check(bytes: &[u8], detected: &TlsDetected) {
    let mut acceptor = Acceptor::default();
    let mut rest = bytes;
    let accepted = loop {
        match acceptor.accept() {
            Ok(Some(accepted)) => break accepted,
            Ok(None) => {}
            Err(_refused) => return,
        }
        // rustls reads a part at a time, up to its limit of a ClientHello.
        match acceptor.read_tls(&mut rest) {
            Ok(1..) => {}
            Ok(0) | Err(_) => return,
        }
    };
    let hello = accepted.client_hello();
    match detected {
        TlsDetected::ClientHello { sni } => {
            let Some(name) = hello.server_name() else {
                return;
            };
            let name = Some(name.to_ascii_lowercase());
            assert_eq!(sni.as_deref(), name.as_deref(), "rustls reads another name");
        }
        other => assert!(
            bytes.len() > MAX_HELLO || bytes[1] != 3,
            "rustls accepts a ClientHello, detection returns {other:?}"
        ),
    }
}
