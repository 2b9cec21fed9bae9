//! Tables of body lengths and of persistence.

use http::HeaderValue;

use super::*;

/// `name: value` lines.
fn headers(lines: &[&'static str]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for line in lines {
        let (name, value) = line.split_once(": ").unwrap();
        headers.append(
            HeaderName::from_static(name),
            HeaderValue::from_static(value),
        );
    }
    headers
}

#[test]
fn request_body_lengths() {
    use BodyLength::{Bytes, Chunked};
    use MessageError::{
        ChunkedNotFinal, ConnectWithBody, InvalidContentLength, LengthAndTransferEncoding,
        MultipleContentLengths, TransferEncodingInHttp10, UnsupportedTransferCoding,
    };
    let (old, new) = (Version::HTTP_10, Version::HTTP_11);
    let rows: &[(Version, &[&'static str], Result<BodyLength, MessageError>)] = &[
        (new, &[], Ok(Bytes(0))),
        (old, &[], Ok(Bytes(0))),
        (new, &["content-length: 0"], Ok(Bytes(0))),
        (old, &["content-length: 17"], Ok(Bytes(17))),
        (
            new,
            &["content-length: 18446744073709551615"],
            Ok(Bytes(u64::MAX)),
        ),
        (
            new,
            &["content-length: 18446744073709551616"],
            Err(InvalidContentLength),
        ),
        (new, &["content-length: +1"], Err(InvalidContentLength)),
        (new, &["content-length: -1"], Err(InvalidContentLength)),
        (new, &["content-length: 0x1"], Err(InvalidContentLength)),
        (new, &["content-length: 1 2"], Err(InvalidContentLength)),
        (new, &["content-length: 1;2"], Err(InvalidContentLength)),
        (new, &["content-length: "], Err(InvalidContentLength)),
        (new, &["content-length: 1,"], Err(InvalidContentLength)),
        (
            new,
            &["content-length: 1", "content-length: 2"],
            Err(MultipleContentLengths),
        ),
        (
            new,
            &["content-length: 1", "content-length: 1"],
            Err(MultipleContentLengths),
        ),
        (new, &["content-length: 1, 1"], Err(MultipleContentLengths)),
        (new, &["transfer-encoding: chunked"], Ok(Chunked)),
        (new, &["transfer-encoding: ChunkeD"], Ok(Chunked)),
        (
            new,
            &["transfer-encoding: chunked", "content-length: 3"],
            Err(LengthAndTransferEncoding),
        ),
        (
            new,
            &["transfer-encoding: identity", "content-length: 3"],
            Err(LengthAndTransferEncoding),
        ),
        (
            old,
            &["transfer-encoding: chunked"],
            Err(TransferEncodingInHttp10),
        ),
        (new, &["transfer-encoding: identity"], Err(ChunkedNotFinal)),
        (new, &["transfer-encoding: gzip"], Err(ChunkedNotFinal)),
        (new, &["transfer-encoding: "], Err(ChunkedNotFinal)),
        (new, &["transfer-encoding: xchunked"], Err(ChunkedNotFinal)),
        (
            new,
            &["transfer-encoding: chunked;q=1"],
            Err(ChunkedNotFinal),
        ),
        (new, &["transfer-encoding: chunked x"], Err(ChunkedNotFinal)),
        (
            new,
            &["transfer-encoding: \"chunked\""],
            Err(ChunkedNotFinal),
        ),
        (
            new,
            &["transfer-encoding: chunked, gzip"],
            Err(ChunkedNotFinal),
        ),
        (
            new,
            &["transfer-encoding: chunked, chunked"],
            Err(ChunkedNotFinal),
        ),
        (new, &["transfer-encoding: chunked,"], Err(ChunkedNotFinal)),
        (
            new,
            &["transfer-encoding: chunked", "transfer-encoding: chunked"],
            Err(ChunkedNotFinal),
        ),
        (
            new,
            &["transfer-encoding: gzip, chunked"],
            Err(UnsupportedTransferCoding),
        ),
        (
            new,
            &["transfer-encoding: gzip", "transfer-encoding: chunked"],
            Err(UnsupportedTransferCoding),
        ),
        (
            new,
            &["transfer-encoding: , chunked"],
            Err(UnsupportedTransferCoding),
        ),
    ];
    for (version, lines, expected) in rows {
        let found = request_body_length(&Method::POST, *version, &headers(lines));
        assert_eq!(found, *expected, "{version:?} {lines:?}");
    }
    let connect =
        |lines: &[&'static str]| request_body_length(&Method::CONNECT, new, &headers(lines));
    assert_eq!(connect(&["content-length: 0"]), Ok(Bytes(0)));
    assert_eq!(connect(&["content-length: 1"]), Err(ConnectWithBody));
    assert_eq!(
        connect(&["transfer-encoding: chunked"]),
        Err(ConnectWithBody)
    );
}

/// Request method, status, version and headers of the response, and the expected length.
type Row = (
    RequestMethod,
    u16,
    Version,
    &'static [&'static str],
    Result<BodyLength, MessageError>,
);

#[test]
fn response_body_lengths() {
    use BodyLength::{Bytes, Chunked, UntilClose};
    use MessageError::{
        ChunkedNotFinal, InvalidContentLength, LengthAndTransferEncoding, MultipleContentLengths,
        TransferEncodingInHttp10, UnsupportedTransferCoding,
    };
    let (old, new) = (Version::HTTP_10, Version::HTTP_11);
    let other = RequestMethod::Other;
    let rows: &[Row] = &[
        (other, 200, new, &[], Ok(UntilClose)),
        (other, 200, old, &[], Ok(UntilClose)),
        (other, 200, new, &["content-length: 5"], Ok(Bytes(5))),
        (
            other,
            200,
            new,
            &["content-length: 5", "content-length: 5"],
            Ok(Bytes(5)),
        ),
        (other, 200, new, &["content-length: 5, 5"], Ok(Bytes(5))),
        (
            other,
            200,
            new,
            &["content-length: 5", "content-length: 6"],
            Err(MultipleContentLengths),
        ),
        (
            other,
            200,
            new,
            &["content-length: 5, x"],
            Err(InvalidContentLength),
        ),
        (
            other,
            200,
            new,
            &["transfer-encoding: chunked"],
            Ok(Chunked),
        ),
        (
            other,
            200,
            old,
            &["transfer-encoding: chunked"],
            Err(TransferEncodingInHttp10),
        ),
        (
            other,
            200,
            new,
            &["transfer-encoding: identity"],
            Err(ChunkedNotFinal),
        ),
        (
            other,
            200,
            new,
            &["transfer-encoding: gzip, chunked"],
            Err(UnsupportedTransferCoding),
        ),
        (
            other,
            200,
            new,
            &["transfer-encoding: chunked", "content-length: 5"],
            Err(LengthAndTransferEncoding),
        ),
        (other, 204, new, &["content-length: 5"], Ok(Bytes(0))),
        (other, 204, new, &[], Ok(Bytes(0))),
        (other, 304, new, &["content-length: 5"], Ok(Bytes(0))),
        (
            other,
            304,
            new,
            &["content-length: 5", "transfer-encoding: chunked"],
            Err(LengthAndTransferEncoding),
        ),
        (other, 101, new, &[], Ok(Bytes(0))),
        (
            RequestMethod::Head,
            200,
            new,
            &["content-length: 5"],
            Ok(Bytes(0)),
        ),
        (
            RequestMethod::Head,
            200,
            new,
            &["transfer-encoding: chunked"],
            Ok(Bytes(0)),
        ),
        (
            RequestMethod::Head,
            200,
            new,
            &["content-length: x"],
            Err(InvalidContentLength),
        ),
        (
            RequestMethod::Connect,
            200,
            new,
            &["content-length: 5"],
            Ok(Bytes(0)),
        ),
        (
            RequestMethod::Connect,
            407,
            new,
            &["content-length: 5"],
            Ok(Bytes(5)),
        ),
    ];
    for (method, status, version, lines, expected) in rows {
        let status = StatusCode::from_u16(*status).unwrap();
        let found = response_body_length(*method, status, *version, &headers(lines));
        assert_eq!(
            found, *expected,
            "{method:?} {status} {version:?} {lines:?}"
        );
    }
}

#[test]
fn persistence_follows_version_and_connection_header() {
    let (old, new) = (Version::HTTP_10, Version::HTTP_11);
    let rows: &[(Version, &[&'static str], bool)] = &[
        (new, &[], true),
        (old, &[], false),
        (new, &["connection: close"], false),
        (new, &["connection: x, Close"], false),
        (new, &["connection: x", "connection: close"], false),
        (new, &["connection: keep-alive"], true),
        (new, &["connection: keep-alive, close"], false),
        (old, &["connection: Keep-Alive"], true),
        (old, &["connection: keep-alive, close"], false),
        (old, &["connection: x"], false),
    ];
    for (version, lines, expected) in rows {
        let found = keeps_alive(*version, &headers(lines));
        assert_eq!(found, *expected, "{version:?} {lines:?}");
    }
}

#[test]
fn fields_contradict_a_status_without_a_body() {
    let (length, zero) = (&["content-length: 5"][..], &["content-length: 0"][..]);
    let chunked = &["transfer-encoding: chunked"][..];
    for (status, fields, contradicts) in [
        (200, length, false),
        (200, chunked, false),
        (204, &[], false),
        (204, zero, false),
        (204, length, true),
        (204, chunked, true),
        // The length of the response to another request.
        (304, length, false),
        (304, chunked, true),
        (101, length, false),
        (101, chunked, false),
        (103, length, true),
    ] {
        let status = StatusCode::from_u16(status).unwrap();
        let found = contradicts_status(status, &headers(fields));
        assert_eq!(found, contradicts, "{status} {fields:?}");
    }
}

#[test]
fn lenient_length_is_the_one_that_clients_agree_on() {
    let get = RequestMethod::Other;
    let until_close = Some(BodyLength::UntilClose);
    for (method, status, fields, expected) in [
        (get, 200, &["transfer-encoding: identity"][..], until_close),
        (get, 200, &["transfer-encoding: Identity"], until_close),
        (get, 200, &["transfer-encoding: identity, gzip"], None),
        (get, 200, &["transfer-encoding: gzip"], None),
        (
            get,
            200,
            &["transfer-encoding: chunked", "content-length: 5"],
            Some(BodyLength::Chunked),
        ),
        (
            get,
            200,
            &["transfer-encoding: chunked", "content-length: x"],
            None,
        ),
        (get, 200, &["content-length: 5, 6"], None),
        (get, 204, &["content-length: x"], Some(BodyLength::Bytes(0))),
        (
            RequestMethod::Head,
            200,
            &["content-length: x"],
            Some(BodyLength::Bytes(0)),
        ),
    ] {
        let status = StatusCode::from_u16(status).unwrap();
        let found = lenient_body_length(method, status, Version::HTTP_11, &headers(fields));
        assert_eq!(found, expected, "{status} {fields:?}");
    }
}

#[test]
fn overruled_framing_fields_are_removed() {
    let both = ["content-length: 5", "transfer-encoding: chunked", "a: b"];
    for (length, kept) in [
        (BodyLength::Chunked, &both[1..]),
        (BodyLength::UntilClose, &both[2..]),
        (BodyLength::Bytes(0), &both[2..]),
    ] {
        let mut fields = headers(&both);
        retain_effective(length, &mut fields);
        assert_eq!(fields, headers(kept), "{length:?}");
    }
}
