//! What the TLS library makes of the first bytes of a connection, against what detection made of
//! them.

use mesh_proxy::transport::detect::TlsDetected;
use rustls::server::Acceptor;

/// Detection waits for no longer hello than this (`transport::detect::tls`).
const MAX_HELLO: usize = 64 * 1024;

/// A hello that the library accepts is one to detection too, and asks for the same name. The other
/// way round is no fault: detection judges framing only, and what it takes for a hello is the
/// library's to refuse. That no first record has the version of SSL 2 ([0, 2], which the library
/// takes) is how detection knows other protocols by their first bytes.
pub(crate) fn check(bytes: &[u8], detected: &TlsDetected) {
    let mut acceptor = Acceptor::default();
    let mut rest = bytes;
    let accepted = loop {
        match acceptor.accept() {
            Ok(Some(accepted)) => break accepted,
            Ok(None) => {}
            Err(_refused) => return,
        }
        // The library takes some at a time, and no more than a hello may be long.
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
            let name = name.to_ascii_lowercase();
            assert_eq!(
                sni.as_deref(),
                Some(name.as_str()),
                "the library sees another name"
            );
        }
        other => assert!(
            bytes.len() > MAX_HELLO || bytes[1] != 3,
            "the library sees a hello, detection {other:?}"
        ),
    }
}
