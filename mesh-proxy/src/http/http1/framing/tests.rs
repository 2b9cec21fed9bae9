//! The table of body lengths.

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
fn requests() {
    use BodyLength::{Bytes, Chunked};
    use Refused::{
        ConnectBody, EncodingInHttp10, Length, LengthAndEncoding, NotChunked, SeveralLengths,
        UnknownCoding,
    };
    let (old, new) = (Version::HTTP_10, Version::HTTP_11);
    let rows: &[(Version, &[&'static str], Result<BodyLength, Refused>)] = &[
        (new, &[], Ok(Bytes(0))),
        (old, &[], Ok(Bytes(0))),
        (new, &["content-length: 0"], Ok(Bytes(0))),
        (old, &["content-length: 17"], Ok(Bytes(17))),
        (
            new,
            &["content-length: 18446744073709551615"],
            Ok(Bytes(u64::MAX)),
        ),
        (new, &["content-length: 18446744073709551616"], Err(Length)),
        (new, &["content-length: +1"], Err(Length)),
        (new, &["content-length: -1"], Err(Length)),
        (new, &["content-length: 0x1"], Err(Length)),
        (new, &["content-length: 1 2"], Err(Length)),
        (new, &["content-length: 1;2"], Err(Length)),
        (new, &["content-length: "], Err(Length)),
        (new, &["content-length: 1,"], Err(Length)),
        (
            new,
            &["content-length: 1", "content-length: 2"],
            Err(SeveralLengths),
        ),
        (
            new,
            &["content-length: 1", "content-length: 1"],
            Err(SeveralLengths),
        ),
        (new, &["content-length: 1, 1"], Err(SeveralLengths)),
        (new, &["transfer-encoding: chunked"], Ok(Chunked)),
        (new, &["transfer-encoding: ChunkeD"], Ok(Chunked)),
        (
            new,
            &["transfer-encoding: chunked", "content-length: 3"],
            Err(LengthAndEncoding),
        ),
        (
            new,
            &["transfer-encoding: identity", "content-length: 3"],
            Err(LengthAndEncoding),
        ),
        (old, &["transfer-encoding: chunked"], Err(EncodingInHttp10)),
        (new, &["transfer-encoding: identity"], Err(NotChunked)),
        (new, &["transfer-encoding: gzip"], Err(NotChunked)),
        (new, &["transfer-encoding: "], Err(NotChunked)),
        (new, &["transfer-encoding: xchunked"], Err(NotChunked)),
        (new, &["transfer-encoding: chunked;q=1"], Err(NotChunked)),
        (new, &["transfer-encoding: chunked x"], Err(NotChunked)),
        (new, &["transfer-encoding: \"chunked\""], Err(NotChunked)),
        (new, &["transfer-encoding: chunked, gzip"], Err(NotChunked)),
        (
            new,
            &["transfer-encoding: chunked, chunked"],
            Err(NotChunked),
        ),
        (new, &["transfer-encoding: chunked,"], Err(NotChunked)),
        (
            new,
            &["transfer-encoding: chunked", "transfer-encoding: chunked"],
            Err(NotChunked),
        ),
        (
            new,
            &["transfer-encoding: gzip, chunked"],
            Err(UnknownCoding),
        ),
        (
            new,
            &["transfer-encoding: gzip", "transfer-encoding: chunked"],
            Err(UnknownCoding),
        ),
        (new, &["transfer-encoding: , chunked"], Err(UnknownCoding)),
    ];
    for (version, lines, expected) in rows {
        let found = of_request(&Method::POST, *version, &headers(lines));
        assert_eq!(found, *expected, "{version:?} {lines:?}");
    }
    let connect = |lines: &[&'static str]| of_request(&Method::CONNECT, new, &headers(lines));
    assert_eq!(connect(&["content-length: 0"]), Ok(Bytes(0)));
    assert_eq!(connect(&["content-length: 1"]), Err(ConnectBody));
    assert_eq!(connect(&["transfer-encoding: chunked"]), Err(ConnectBody));
}

/// What was asked and answered, in which version and with which headers; what follows.
type Row = (
    Asked,
    u16,
    Version,
    &'static [&'static str],
    Result<BodyLength, Refused>,
);

#[test]
fn responses() {
    use BodyLength::{Bytes, Chunked, UntilClose};
    use Refused::{
        EncodingInHttp10, Length, LengthAndEncoding, NotChunked, SeveralLengths, UnknownCoding,
    };
    let (old, new) = (Version::HTTP_10, Version::HTTP_11);
    let ask = Asked::Other;
    let rows: &[Row] = &[
        (ask, 200, new, &[], Ok(UntilClose)),
        (ask, 200, old, &[], Ok(UntilClose)),
        (ask, 200, new, &["content-length: 5"], Ok(Bytes(5))),
        (
            ask,
            200,
            new,
            &["content-length: 5", "content-length: 5"],
            Ok(Bytes(5)),
        ),
        (ask, 200, new, &["content-length: 5, 5"], Ok(Bytes(5))),
        (
            ask,
            200,
            new,
            &["content-length: 5", "content-length: 6"],
            Err(SeveralLengths),
        ),
        (ask, 200, new, &["content-length: 5, x"], Err(Length)),
        (ask, 200, new, &["transfer-encoding: chunked"], Ok(Chunked)),
        (
            ask,
            200,
            old,
            &["transfer-encoding: chunked"],
            Err(EncodingInHttp10),
        ),
        (
            ask,
            200,
            new,
            &["transfer-encoding: identity"],
            Err(NotChunked),
        ),
        (
            ask,
            200,
            new,
            &["transfer-encoding: gzip, chunked"],
            Err(UnknownCoding),
        ),
        (
            ask,
            200,
            new,
            &["transfer-encoding: chunked", "content-length: 5"],
            Err(LengthAndEncoding),
        ),
        (ask, 204, new, &["content-length: 5"], Ok(Bytes(0))),
        (ask, 204, new, &[], Ok(Bytes(0))),
        (ask, 304, new, &["content-length: 5"], Ok(Bytes(0))),
        (
            ask,
            304,
            new,
            &["content-length: 5", "transfer-encoding: chunked"],
            Err(LengthAndEncoding),
        ),
        (ask, 101, new, &[], Ok(Bytes(0))),
        (Asked::Head, 200, new, &["content-length: 5"], Ok(Bytes(0))),
        (
            Asked::Head,
            200,
            new,
            &["transfer-encoding: chunked"],
            Ok(Bytes(0)),
        ),
        (Asked::Head, 200, new, &["content-length: x"], Err(Length)),
        (
            Asked::Connect,
            200,
            new,
            &["content-length: 5"],
            Ok(Bytes(0)),
        ),
        (
            Asked::Connect,
            407,
            new,
            &["content-length: 5"],
            Ok(Bytes(5)),
        ),
    ];
    for (asked, status, version, lines, expected) in rows {
        let status = StatusCode::from_u16(*status).unwrap();
        let found = of_response(*asked, status, *version, &headers(lines));
        assert_eq!(found, *expected, "{asked:?} {status} {version:?} {lines:?}");
    }
}

#[test]
fn who_keeps_the_connection() {
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
