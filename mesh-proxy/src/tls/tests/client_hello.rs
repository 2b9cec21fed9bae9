//! The offers of the proxy in its ClientHello, and the ones that it accepts.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::ops::Range;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::{TestCa, peer};
use crate::tls::{Purpose, client, server};
use crate::transport::Io;
use crate::transport::header::ALPN;

const SERVER_NAME: u16 = 0;
const ALPN_PROTOCOLS: u16 = 16;
const SUPPORTED_VERSIONS: u16 = 43;

const PURPOSES: [Purpose; 2] = [Purpose::Control, Purpose::Traffic];

/// Returns the record with the ClientHello that the proxy sends to `server.test`.
async fn client_hello(ca: &TestCa, purpose: Purpose) -> Vec<u8> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let addr = listener.local_addr().unwrap();
    let own = ca.credentials("client.test");
    let peer = peer("server.test");
    let dial = async {
        let tcp = TcpStream::connect(addr).await.unwrap();
        let dialled = client::connect(Io::plain(tcp), &own, &peer, true, purpose).await;
        assert!(dialled.is_err(), "the server closes the connection");
    };
    let accept = async {
        let (mut tcp, _) = listener.accept().await.unwrap();
        let mut record = vec![0; 5];
        tcp.read_exact(&mut record).await.unwrap();
        record.resize(5 + number(&record, 3), 0);
        tcp.read_exact(&mut record[5..]).await.unwrap();
        record
    };
    tokio::join!(dial, accept).1
}

fn number(bytes: &[u8], at: usize) -> usize {
    u16::from_be_bytes([bytes[at], bytes[at + 1]]).into()
}

/// Returns where the content of each extension is in a record with a ClientHello, by type.
fn extensions(record: &[u8]) -> HashMap<u16, Range<usize>> {
    // The headers of the record and of the message, the version and the random number.
    let mut at = 5 + 4 + 2 + 32;
    // The session, the suites, the methods of compression, and the length of all extensions.
    at += 1 + usize::from(record[at]);
    at += 2 + number(record, at);
    at += 1 + usize::from(record[at]);
    at += 2;
    let mut extensions = HashMap::new();
    while at < record.len() {
        let content = at + 4..at + 4 + number(record, at + 2);
        at = content.end;
        extensions.insert(number(record, content.start - 4) as u16, content);
    }
    extensions
}

#[tokio::test]
async fn client_offers_tls_1_3_and_the_transport_header_only_and_names_the_server() {
    let ca = TestCa::new();
    for purpose in PURPOSES {
        let record = client_hello(&ca, purpose).await;
        let extensions = extensions(&record);
        let content = |extension: u16| &record[extensions[&extension].clone()];
        assert_eq!(content(SUPPORTED_VERSIONS), [2, 3, 4]);
        let length = ALPN.len() as u8;
        assert_eq!(
            content(ALPN_PROTOCOLS),
            [&[0, length + 1, length][..], ALPN].concat()
        );
        // A list of one name of type `host_name`.
        let name = b"server.test";
        let length = name.len() as u8;
        assert_eq!(
            content(SERVER_NAME),
            [&[0, length + 3, 0, 0, length][..], name].concat()
        );
    }
}

#[tokio::test]
async fn client_that_does_not_offer_tls_1_3_is_refused() {
    let ca = TestCa::new();
    let own = ca.credentials("server.test");
    for purpose in PURPOSES {
        let mut record = client_hello(&ca, purpose).await;
        let versions = extensions(&record)[&SUPPORTED_VERSIONS].clone();
        record[versions].copy_from_slice(&[2, 3, 3]);
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let mut tcp = TcpStream::connect(listener.local_addr().unwrap())
            .await
            .unwrap();
        tcp.write_all(&record).await.unwrap();
        let (accepted, _) = listener.accept().await.unwrap();
        let terminated = server::terminate(Io::plain(accepted), &own, true, purpose).await;
        assert!(terminated.is_err());
        let mut answer = Vec::new();
        tcp.read_to_end(&mut answer).await.unwrap();
        // A fatal alert: protocol_version.
        assert_eq!(answer, [21, 3, 3, 0, 2, 2, 70]);
    }
}
