//! HTTP/1 requests and responses, compared byte by byte where the proxy must not change them.

use tokio::io::AsyncWriteExt as _;

use super::super::app::{message, rest, send};
use super::{OK, check, each_way, open};

/// One request and its response as sent, and what must and must not arrive.
struct Exchange {
    name: &'static str,
    request: &'static str,
    arrives: &'static [&'static str],
    not: &'static [&'static str],
    response: &'static str,
    returns: &'static [&'static str],
    not_back: &'static [&'static str],
}

const PLAIN: Exchange = Exchange {
    name: "plain",
    request: "GET /a?b HTTP/1.1\r\nhost: web\r\n\r\n",
    arrives: &["GET /a?b HTTP/1.1\r\n", "\r\nhost: web\r\n"],
    not: &["transfer-encoding", "content-length", "l5d-orig-proto"],
    response: OK,
    returns: &[" 200 OK\r\n", "\r\ncontent-length: 0\r\n"],
    not_back: &["transfer-encoding", "l5d-orig-proto"],
};

#[rustfmt::skip]
const EXCHANGES: [Exchange; 24] = [
    PLAIN,
    Exchange {
        name: "headers of a connection",
        request: "GET / HTTP/1.1\r\nhost: web\r\nx-hop: by\r\nx-end: to\r\nconnection: x-hop\r\n\r\n",
        arrives: &["\r\nx-end: to\r\n"],
        not: &["x-hop", "connection"],
        response: "HTTP/1.1 200 OK\r\nx-hop: by\r\nx-end: to\r\nconnection: x-hop\r\ncontent-length: 0\r\n\r\n",
        returns: &["\r\nx-end: to\r\n"],
        not_back: &["x-hop", "connection:"],
    },
    Exchange {
        name: "HTTP/1.0 with a host",
        request: "GET / HTTP/1.0\r\nhost: web\r\n\r\n",
        arrives: &["GET / HTTP/1.0\r\n", "\r\nhost: web\r\n"],
        ..PLAIN
    },
    Exchange {
        name: "an absolute form that differs from the host",
        request: "GET http://web.shop/ HTTP/1.1\r\nhost: other\r\n\r\n",
        arrives: &["GET http://web.shop/ HTTP/1.1\r\n", "\r\nhost: web.shop\r\n"],
        ..PLAIN
    },
    Exchange {
        name: "an upgrade to HTTP/2",
        request: "GET / HTTP/1.1\r\nhost: web\r\nconnection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk\r\n\r\n",
        not: &["upgrade", "http2-settings"],
        arrives: &[],
        ..PLAIN
    },
    Exchange {
        name: "a body with a length",
        request: "POST / HTTP/1.1\r\nhost: web\r\ncontent-length: 5\r\n\r\nhello",
        arrives: &["\r\ncontent-length: 5\r\n", "\r\n\r\nhello"],
        not: &["transfer-encoding"],
        response: "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nworld",
        returns: &["\r\ncontent-length: 5\r\n", "\r\n\r\nworld"],
        ..PLAIN
    },
    Exchange {
        name: "a body in chunks",
        request: "POST / HTTP/1.1\r\nhost: web\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        arrives: &["\r\ntransfer-encoding: chunked\r\n", "\r\n\r\n5\r\nhello\r\n0\r\n\r\n"],
        not: &["content-length"],
        response: "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nworld\r\n0\r\n\r\n",
        returns: &["\r\ntransfer-encoding: chunked\r\n", "\r\n\r\n5\r\nworld\r\n0\r\n\r\n"],
        not_back: &["content-length"],
    },
    Exchange {
        name: "an empty body with a length",
        request: "POST / HTTP/1.1\r\nhost: web\r\ncontent-length: 0\r\n\r\n",
        arrives: &["\r\ncontent-length: 0\r\n"],
        not: &["transfer-encoding"],
        ..PLAIN
    },
    Exchange {
        name: "no content",
        response: "HTTP/1.1 204 No Content\r\nx-end: to\r\n\r\n",
        returns: &["HTTP/1.1 204 No Content\r\n", "\r\nx-end: to\r\n"],
        not_back: &["content-length", "transfer-encoding"],
        ..PLAIN
    },
    Exchange {
        name: "not modified",
        response: "HTTP/1.1 304 Not Modified\r\netag: \"a\"\r\n\r\n",
        returns: &["HTTP/1.1 304 Not Modified\r\n", "\r\netag: \"a\"\r\n"],
        not_back: &["content-length", "transfer-encoding"],
        ..PLAIN
    },
    Exchange {
        name: "a body that ends with the connection",
        request: "GET / HTTP/1.0\r\nhost: web\r\n\r\n",
        arrives: &[],
        response: "HTTP/1.1 200 OK\r\n\r\nall of it",
        returns: &["\r\n\r\nall of it"],
        not_back: &["transfer-encoding"],
        ..PLAIN
    },
    Exchange {
        name: "a proxy's word from outside",
        request: "GET / HTTP/1.1\r\nhost: web\r\nl5d-orig-proto: HTTP/1.0\r\n\r\n",
        arrives: &["GET / HTTP/1.1\r\n"],
        response: "HTTP/1.1 200 OK\r\nl5d-orig-proto: HTTP/1.0\r\ncontent-length: 0\r\n\r\n",
        ..PLAIN
    },
    Exchange {
        name: "HTTP/1.0 without a host",
        request: "GET /a HTTP/1.0\r\n\r\n",
        arrives: &["GET /a HTTP/1.0\r\n"],
        not: &["host:"],
        ..PLAIN
    },
    Exchange {
        name: "the protocols that a server requires",
        response: "HTTP/1.1 426 Upgrade Required\r\nconnection: Upgrade\r\nupgrade: websocket, TLS/1.3\r\ncontent-length: 0\r\n\r\n",
        returns: &["HTTP/1.1 426 ", "\r\nupgrade: websocket, TLS/1.3\r\n", "\r\nconnection: upgrade\r\n"],
        ..PLAIN
    },
    Exchange {
        name: "the protocols that a server requires of a client that closes",
        request: "GET /a?b HTTP/1.1\r\nhost: web\r\nconnection: close\r\n\r\n",
        response: "HTTP/1.1 426 Upgrade Required\r\nconnection: Upgrade\r\nupgrade: websocket\r\ncontent-length: 0\r\n\r\n",
        returns: &["\r\nupgrade: websocket\r\n", "\r\nconnection: close, upgrade\r\n"],
        ..PLAIN
    },
    Exchange {
        name: "the versions of WebSocket that a server speaks",
        request: "GET / HTTP/1.1\r\nhost: web\r\nconnection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 25\r\n\r\n",
        arrives: &["\r\nupgrade: websocket\r\n", "\r\nsec-websocket-version: 25\r\n"],
        response: "HTTP/1.1 400 Bad Request\r\nsec-websocket-version: 13\r\nsec-websocket-version: 8, 7\r\ncontent-length: 0\r\n\r\n",
        returns: &["HTTP/1.1 400 ", "\r\nsec-websocket-version: 13\r\n", "\r\nsec-websocket-version: 8, 7\r\n"],
        ..PLAIN
    },
    Exchange {
        name: "quotes in the target",
        request: "GET /a`\"?q={\"b\":`1`} HTTP/1.1\r\nhost: web\r\n\r\n",
        arrives: &["GET /a`\"?q={\"b\":`1`} HTTP/1.1\r\n"],
        ..PLAIN
    },
    Exchange {
        name: "a client that accepts trailers, as RFC 9110 asks for it",
        request: "GET / HTTP/1.1\r\nhost: web\r\nte: trailers, deflate\r\nconnection: te\r\n\r\n",
        arrives: &["\r\nte: trailers\r\n"],
        not: &["connection"],
        ..PLAIN
    },
    Exchange {
        name: "a length twice in one field",
        response: "HTTP/1.1 200 OK\r\ncontent-length: 5, 5\r\n\r\nworld",
        returns: &["\r\ncontent-length: 5\r\n", "\r\n\r\nworld"],
        ..PLAIN
    },
    Exchange {
        name: "a length twice, in response to HEAD",
        request: "HEAD / HTTP/1.1\r\nhost: web\r\n\r\n",
        arrives: &["HEAD / HTTP/1.1\r\n"],
        response: "HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 5\r\n\r\n",
        returns: &["\r\ncontent-length: 5\r\n"],
        ..PLAIN
    },
    Exchange {
        name: "a length twice in a 304",
        response: "HTTP/1.1 304 Not Modified\r\ncontent-length: 5, 5\r\n\r\n",
        returns: &["\r\ncontent-length: 5\r\n"],
        ..PLAIN
    },
    Exchange {
        name: "fields for the application and its client",
        request: "OPTIONS /a HTTP/1.1\r\nhost: web\r\nmax-forwards: 0\r\nvia: 1.0 a, 1.1 b\r\nreferer: http://web/b\r\nuser-agent: test (x)\r\nauthorization: Basic eDp5\r\nrange: lines=1-2\r\nif-match: \"a\"\r\nif-none-match: *\r\nif-range: \"a\"\r\nif-unmodified-since: Sun, 06 Nov 1994 08:49:37 GMT\r\ntrailer: x-sum\r\nx-two: b\r\nx-unknown: 1\r\nx-two: a,, c\r\n\r\n",
        arrives: &[
            "OPTIONS /a HTTP/1.1\r\n", "\r\nmax-forwards: 0\r\n", "\r\nvia: 1.0 a, 1.1 b\r\n", "\r\nreferer: http://web/b\r\n",
            "\r\nuser-agent: test (x)\r\n", "\r\nauthorization: Basic eDp5\r\n", "\r\nrange: lines=1-2\r\n", "\r\nif-match: \"a\"\r\n",
            "\r\nif-none-match: *\r\n", "\r\nif-range: \"a\"\r\n", "\r\nif-unmodified-since: Sun, 06 Nov 1994 08:49:37 GMT\r\n",
            "\r\ntrailer: x-sum\r\n", "\r\nx-two: b\r\nx-two: a,, c\r\n", "\r\nx-unknown: 1\r\n",
        ],
        response: "HTTP/1.1 206 Partial Content\r\nserver: app (x)\r\ndate: Sun, 06 Nov 1994 08:49:37 GMT\r\nvia: 1.1 c\r\nallow: GET, PURGE\r\nwww-authenticate: Basic realm=\"a, b\"\r\nauthentication-info: a=1\r\ncontent-range: lines 1-2/9\r\ncontent-encoding: gzip\r\netag: \"a\"\r\ncache-control: no-transform\r\nset-cookie: b=1\r\nx-unknown: 1\r\nset-cookie: a=2\r\ncontent-length: 5\r\n\r\nworld",
        returns: &[
            "HTTP/1.1 206 Partial Content\r\n", "\r\nserver: app (x)\r\n", "\r\ndate: Sun, 06 Nov 1994 08:49:37 GMT\r\n", "\r\nvia: 1.1 c\r\n",
            "\r\nallow: GET, PURGE\r\n", "\r\nwww-authenticate: Basic realm=\"a, b\"\r\n", "\r\nauthentication-info: a=1\r\n",
            "\r\ncontent-range: lines 1-2/9\r\n", "\r\ncontent-encoding: gzip\r\n", "\r\netag: \"a\"\r\n", "\r\ncache-control: no-transform\r\n",
            "\r\nset-cookie: b=1\r\nset-cookie: a=2\r\n", "\r\nx-unknown: 1\r\n", "\r\n\r\nworld",
        ],
        ..PLAIN
    },
    Exchange {
        name: "a status that no RFC permits",
        response: "HTTP/1.1 799 Odd\r\ncontent-length: 0\r\n\r\n",
        returns: &["HTTP/1.1 799 "],
        ..PLAIN
    },
    Exchange {
        name: "an unknown method and status",
        request: "PURGE /a HTTP/1.1\r\nhost: web\r\n\r\n",
        arrives: &["PURGE /a HTTP/1.1\r\n"],
        response: "HTTP/1.1 299 Odd\r\ncontent-length: 0\r\n\r\n",
        returns: &["HTTP/1.1 299 "],
        ..PLAIN
    },
];

#[test]
fn http1_messages_are_forwarded_unchanged() {
    for exchange in &EXCHANGES {
        each_way(async |way| {
            let (mut client, app, _between) = open(way).await;
            send(&mut client, exchange.request).await;
            let mut app = app.accept().await;
            let arrived = message(&mut app).await;
            let name = exchange.name;
            check(name, way, &arrived, exchange.arrives, exchange.not);
            send(&mut app, exchange.response).await;
            app.shutdown().await.unwrap();
            client.shutdown().await.unwrap();
            let returned = rest(&mut client).await;
            let (has, has_not) = (exchange.returns, exchange.not_back);
            check(name, way, &returned, has, has_not);
        });
    }
}
