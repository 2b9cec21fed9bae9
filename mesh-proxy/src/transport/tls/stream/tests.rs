//! Steps of a stream over loopback sockets whose buffers the test has filled, or keeps full.

use std::future::poll_fn;
use std::net::Ipv4Addr;
use std::task::Waker;

use rustls::crypto::aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256;
use socket2::SockRef;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::tls::handshake::tests::establish;
use crate::tls::tests::TestCa;

/// What a stream reads or writes in its first step.
const BATCH: usize = BulkSize::MIN.0 * MAX_CONTENT;

/// More than a test sends at a time.
const LARGE: usize = 1 << 20;

const SMALL: usize = 4 * 1024;

/// A TLS connection whose sockets have buffers of this size, in bytes.
async fn pair(buffer: usize) -> (RecordStream, RecordStream) {
    let ca = TestCa::new();
    let credentials = ca.credentials("server.test");
    let (client, server) = establish(&ca, &credentials, TLS13_AES_128_GCM_SHA256, 4096);
    let (dialled, accepted) = plain_pair(buffer).await;
    (
        RecordStream::new(dialled.into(), client.session, client.received, false),
        RecordStream::new(accepted.into(), server.session, server.received, false),
    )
}

async fn plain_pair(buffer: usize) -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    SockRef::from(&listener)
        .set_recv_buffer_size(buffer)
        .unwrap();
    let dial = TcpStream::connect(listener.local_addr().unwrap());
    let (dialled, accepted) = tokio::join!(dial, listener.accept());
    let (dialled, accepted) = (dialled.unwrap(), accepted.unwrap().0);
    for tcp in [&dialled, &accepted] {
        SockRef::from(tcp).set_send_buffer_size(buffer).unwrap();
    }
    (dialled, accepted)
}

/// Waits until this many bytes can be read at once.
async fn has_received(tcp: &TcpStream, length: usize) {
    let mut bytes = vec![0; length];
    while tcp.peek(&mut bytes).await.unwrap() < length {
        tokio::task::yield_now().await;
    }
}

/// Fills the buffers of a connection whose peer does not read.
fn fill(tcp: &TcpStream) {
    let bytes = vec![0; LARGE];
    let mut rest = 0;
    // The kernel moves bytes to the peer in between.
    while rest < 1000 {
        rest = match tcp.try_write(&bytes) {
            Ok(_) => 0,
            Err(_full) => rest + 1,
        };
    }
}

fn context() -> Context<'static> {
    Context::from_waker(Waker::noop())
}

fn written(polled: Poll<io::Result<usize>>) -> Option<usize> {
    match polled {
        Poll::Ready(written) => Some(written.unwrap()),
        Poll::Pending => None,
    }
}

#[test]
fn batches_double_when_they_are_full_and_halve_when_the_sink_is() {
    let mut size = BulkSize::MIN;
    let mut sizes = |was_full, was_written| {
        size.adjust(was_full, was_written);
        size.slots()
    };
    assert_eq!(sizes(false, true), 4);
    assert_eq!(sizes(true, true), 8);
    assert_eq!(sizes(false, true), 8);
    assert_eq!(sizes(true, true), SLOT_COUNT);
    assert_eq!(sizes(true, true), SLOT_COUNT);
    assert_eq!(sizes(true, false), 8);
    assert_eq!(sizes(false, false), 4);
    assert_eq!(sizes(true, false), 4);
}

#[tokio::test]
async fn slices_are_sealed_together() {
    let (mut client, mut server) = pair(LARGE).await;
    assert!(client.is_write_vectored());
    let slices = [b"one".as_slice(), b"", b"two"].map(IoSlice::new);
    let polled = Pin::new(&mut client).poll_write_vectored(&mut context(), &slices);
    assert_eq!(written(polled), Some(6));
    assert_eq!(client.session.records_sent(), 1);
    let mut bytes = [0; 6];
    server.read_exact(&mut bytes).await.unwrap();
    assert_eq!(&bytes, b"onetwo");
}

#[tokio::test]
async fn content_is_passed_on_whatever_the_limit() {
    let (mut client, mut server) = pair(LARGE).await;
    for limit in [0, 1, usize::MAX] {
        client.write_all(b"hello").await.unwrap();
        let mut content = Vec::new();
        let read = poll_fn(|cx| {
            server.poll_read_with(cx, limit, |piece| content.extend_from_slice(piece))
        });
        assert_eq!(read.await.unwrap(), 5);
        assert_eq!(content, b"hello");
    }
}

#[tokio::test]
async fn full_writes_enlarge_the_batch() {
    let (mut client, _server) = pair(LARGE).await;
    let bytes = vec![0; 2 * BATCH];
    let mut write = |length: usize| {
        let polled = Pin::new(&mut client).poll_write(&mut context(), &bytes[..length]);
        (written(polled), client.write_size.slots())
    };
    assert_eq!(write(1), (Some(1), 4));
    assert_eq!(write(BATCH - 1), (Some(BATCH - 1), 4));
    assert_eq!(write(2 * BATCH), (Some(BATCH), 8));
}

#[tokio::test]
async fn records_that_the_socket_does_not_take_are_kept_and_enlarge_no_batch() {
    let (mut client, mut server) = pair(SMALL).await;
    let bytes = vec![7; BATCH];
    let polled = Pin::new(&mut client).poll_write(&mut context(), &bytes);
    assert_eq!(written(polled), Some(BATCH));
    assert!(!client.ciphertext.is_empty());
    assert_eq!(client.write_size.slots(), 4);
    let polled = Pin::new(&mut client).poll_write(&mut context(), &bytes);
    assert_eq!(written(polled), None, "the rest comes first");
    let mut received = vec![0; BATCH];
    let (flushed, read) = tokio::join!(client.flush(), server.read_exact(&mut received));
    flushed.unwrap();
    assert_eq!(read.unwrap(), BATCH);
    assert!(received == bytes && client.ciphertext.is_empty());
}

#[tokio::test]
async fn key_is_updated_before_the_write_that_could_exceed_its_limit() {
    let (mut client, mut server) = pair(LARGE).await;
    client.set_record_limit(SLOT_COUNT as u64 + 2);
    let mut sent = Vec::new();
    for _ in 0..4 {
        client.write_all(b"x").await.unwrap();
        sent.push(client.session.records_sent());
    }
    // Two records and the KeyUpdate use up a key.
    assert_eq!(sent, [1, 2, 1, 2]);
    server.read_exact(&mut [0; 4]).await.unwrap();
}

#[tokio::test]
async fn full_batch_of_a_plain_socket_is_sealed_and_enlarges_the_next_one() {
    let (mut client, mut server) = pair(LARGE).await;
    let (mut application, source) = plain_pair(LARGE).await;
    let bytes = vec![7; BATCH];
    application.write_all(&bytes).await.unwrap();
    has_received(&source, BATCH).await;
    let source = Socket::from(source);
    let sealed = poll_fn(|cx| client.poll_seal_from(&source, cx)).await;
    let sealed = sealed.unwrap();
    assert_eq!((sealed.read, sealed.unsent), (BATCH, Vec::new()));
    assert_eq!(client.write_size.slots(), 8);
    let mut received = vec![0; BATCH];
    server.read_exact(&mut received).await.unwrap();
    assert!(received == bytes);
}

/// The records of a server's stream that is to be opened, which its client has sent.
async fn received(content: &[u8]) -> RecordStream {
    let (mut client, server) = pair(LARGE).await;
    let mut records = Vec::new();
    for part in content.chunks(MAX_CONTENT) {
        let sealed = client
            .session
            .append(&mut records, part, crate::transport::tls::DATA);
        sealed.unwrap();
    }
    RecordStream {
        received: ReceivedBytes::new(records),
        ..server
    }
}

#[tokio::test]
async fn opened_records_are_written_to_a_plain_socket_and_full_ones_enlarge_the_batch() {
    for (length, slots) in [(1, 4), (BATCH / 2, 4), (BATCH, 8)] {
        let content = vec![7; length];
        let mut server = received(&content).await;
        let (sink, mut application) = plain_pair(LARGE).await;
        let sink = Socket::from(sink);
        let opened = poll_fn(|cx| server.poll_open_to(&sink, cx)).await.unwrap();
        assert_eq!((opened.read, opened.unsent), (length, Vec::new()));
        assert_eq!(server.read_size.slots(), slots, "{length}");
        let mut received = vec![0; length];
        application.read_exact(&mut received).await.unwrap();
        assert!(received == content);
    }
}

#[tokio::test]
async fn opened_content_that_the_sink_does_not_take_is_returned() {
    let mut server = received(b"hello").await;
    let (sink, _application) = plain_pair(SMALL).await;
    fill(&sink);
    let sink = Socket::from(sink);
    let opened = poll_fn(|cx| server.poll_open_to(&sink, cx)).await.unwrap();
    assert_eq!((opened.read, &opened.unsent[..]), (5, &b"hello"[..]));
}
