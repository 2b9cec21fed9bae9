//! The files of the page, which are part of the program. They are compressed once, at the start.

use std::collections::BTreeMap;
use std::io::{self, Write as _};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::header::{
    ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE, ETAG, IF_NONE_MATCH, VARY,
};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use hyper::body::Bytes;
use sha2::{Digest as _, Sha256};

use super::Body;

/// The files by path.
pub(crate) struct Assets(BTreeMap<&'static str, Asset>);

struct Asset {
    content_type: HeaderValue,
    etag: HeaderValue,
    plain: Bytes,
    gzip: Bytes,
}

/// The files that `npm run build` in `viz/web` writes.
const FILES: [(&str, &str, &[u8]); 4] = [
    (
        INDEX,
        "text/html; charset=utf-8",
        include_bytes!("../../web/dist/index.html"),
    ),
    (
        "/dist/app.js",
        "text/javascript; charset=utf-8",
        include_bytes!("../../web/dist/app.js"),
    ),
    (
        "/dist/app.css",
        "text/css; charset=utf-8",
        include_bytes!("../../web/dist/app.css"),
    ),
    (
        "/dist/icon.svg",
        "image/svg+xml",
        include_bytes!("../../web/dist/icon.svg"),
    ),
];

const INDEX: &str = "/index.html";

/// Paths of the page and prefixes of further paths, as in Linkerd's dashboard. The page shows the
/// object that the path names.
const PAGES: [&str; 8] = [
    "/controlplane",
    "/extensions",
    "/gateways",
    "/namespaces",
    "/routes",
    "/tap",
    "/top",
    "/topology",
];

impl Assets {
    pub(crate) fn new() -> io::Result<Self> {
        let files = FILES.into_iter();
        let assets = files.map(|(path, content_type, content)| {
            let mut gzip = GzEncoder::new(Vec::new(), Compression::best());
            gzip.write_all(content)?;
            let digest = URL_SAFE_NO_PAD.encode(&Sha256::digest(content)[..12]);
            let etag = format!("\"{digest}\"");
            let asset = Asset {
                content_type: HeaderValue::from_static(content_type),
                etag: HeaderValue::try_from(etag).map_err(io::Error::other)?,
                plain: Bytes::from_static(content),
                gzip: gzip.finish()?.into(),
            };
            Ok((path, asset))
        });
        Ok(Self(assets.collect::<io::Result<_>>()?))
    }

    /// Returns the file of a path, if there is one. Browsers keep files, and ask whether they have
    /// changed.
    pub(crate) fn respond(&self, path: &str, headers: &HeaderMap) -> Option<Response<Body>> {
        let path = if is_page(path) { INDEX } else { path };
        let asset = self.0.get(path)?;
        let is_known = headers
            .get_all(IF_NONE_MATCH)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(','))
            .any(|tag| tag.trim().trim_start_matches("W/").as_bytes() == asset.etag.as_bytes());
        let mut response = if is_known {
            let mut response = Response::new(super::empty());
            *response.status_mut() = StatusCode::NOT_MODIFIED;
            response
        } else if accepts_gzip(headers) {
            let mut response = Response::new(super::full(asset.gzip.clone()));
            let encoding = HeaderValue::from_static("gzip");
            response.headers_mut().insert(CONTENT_ENCODING, encoding);
            response
        } else {
            Response::new(super::full(asset.plain.clone()))
        };
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, asset.content_type.clone());
        headers.insert(ETAG, asset.etag.clone());
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        headers.insert(VARY, HeaderValue::from_static("accept-encoding"));
        Some(response)
    }
}

fn is_page(path: &str) -> bool {
    let is_below = |page: &&str| {
        path.strip_prefix(*page)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    path == "/" || PAGES.iter().any(is_below)
}

/// Whether a client accepts gzip; `gzip;q=0` does not.
pub(crate) fn accepts_gzip(headers: &HeaderMap) -> bool {
    let values = headers.get_all(ACCEPT_ENCODING).iter();
    let mut codings = values
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','));
    codings.any(|coding| {
        let (name, parameters) = coding.split_once(';').unwrap_or((coding, ""));
        let weight = parameters.trim().strip_prefix("q=").unwrap_or("1");
        name.trim().eq_ignore_ascii_case("gzip")
            && weight.parse::<f32>().is_ok_and(|weight| weight > 0.0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The compressed size of the files that a browser loads before the page shows something.
    const MAX_START: usize = 120 << 10;

    fn headers(name: http::header::HeaderName, value: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(name, value.parse().unwrap());
        headers
    }

    #[test]
    fn compressed_start_has_at_most_120_kib() {
        let assets = Assets::new().unwrap();
        let size: usize = assets.0.values().map(|asset| asset.gzip.len()).sum();
        assert!(size <= MAX_START, "{size} bytes");
    }

    #[test]
    fn pages_have_no_inline_code_and_load_nothing_from_elsewhere() {
        let [(_, _, index), ..] = FILES;
        let index = str::from_utf8(index).unwrap();
        assert!(!index.contains("<style") && !index.contains(" style="));
        for script in index.split("<script").skip(1) {
            assert!(script.contains("src=\"/dist/"), "{script}");
        }
        assert!(!index.contains("://"));
    }

    #[test]
    fn paths_of_pages_have_the_index() {
        let assets = Assets::new().unwrap();
        let table = [
            ("/", true),
            ("/namespaces", true),
            ("/namespaces/shop/deployments/web", true),
            ("/tap", true),
            ("/dist/app.js", true),
            ("/tapas", false),
            ("/dist/", false),
            ("/dist/../index.html", false),
            ("/favicon.ico", false),
        ];
        for (path, exists) in table {
            let found = assets.respond(path, &HeaderMap::new());
            assert_eq!(found.is_some(), exists, "{path}");
        }
    }

    #[test]
    fn files_are_compressed_and_revalidated() {
        let assets = Assets::new().unwrap();
        let gzip = headers(ACCEPT_ENCODING, "br, gzip");
        let response = assets.respond("/dist/app.js", &gzip).unwrap();
        assert_eq!(response.headers()[CONTENT_ENCODING], "gzip");
        let etag = response.headers()[ETAG].to_str().unwrap().to_owned();

        let known = headers(IF_NONE_MATCH, &format!("\"other\", W/{etag}"));
        let response = assets.respond("/dist/app.js", &known).unwrap();
        assert_eq!(response.status(), StatusCode::NOT_MODIFIED);
        let other = headers(IF_NONE_MATCH, "\"other\"");
        let response = assets.respond("/dist/app.js", &other).unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        assert!(!response.headers().contains_key(CONTENT_ENCODING));

        for refused in ["gzip;q=0", "identity", "x-gzip"] {
            assert!(
                !accepts_gzip(&headers(ACCEPT_ENCODING, refused)),
                "{refused}"
            );
        }
    }
}
