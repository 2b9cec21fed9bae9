//! Cross-origin resource sharing: <https://fetch.spec.whatwg.org/#http-cors-protocol>, as the
//! filter `CORS` of the Gateway API defines it.

use http::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE,
    ACCESS_CONTROL_REQUEST_HEADERS, ACCESS_CONTROL_REQUEST_METHOD, ORIGIN, VARY,
};
use http::uri::Authority;
use http::{HeaderMap, HeaderName, HeaderValue, Method};

/// Which origins may use a resource, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cors {
    settings: CorsSettings,
    origins: Origins,
    methods: Names,
    headers: Names,
    exposed: Names,
}

/// The settings of the filter, as users write them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CorsSettings {
    /// Origins such as `https://shop.example:8443` or `https://*.example`, or only `*`.
    pub allow_origins: Vec<String>,
    /// Whether requests may have credentials.
    pub allow_credentials: bool,
    /// Methods besides GET, HEAD and POST, or only `*`.
    pub allow_methods: Vec<String>,
    /// Names of request headers, or only `*`.
    pub allow_headers: Vec<String>,
    /// Names of response headers that scripts may read, or only `*`.
    pub expose_headers: Vec<String>,
    /// A client may keep the response to a preflight request for this number of seconds.
    pub max_age: u32,
}

/// What the filter does with a request of another origin.
#[derive(Clone, Debug, PartialEq)]
pub enum CorsAction {
    /// Responds to a preflight request with these headers.
    Respond(HeaderMap),
    /// Forwards the request, and sets these headers of the response.
    Forward(HeaderMap),
}

/// Why settings are invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{value:?} {problem}")]
pub struct CorsError {
    /// The field of the Gateway API.
    pub field: &'static str,
    value: String,
    problem: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Origins {
    Any,
    Listed(Vec<OriginPattern>),
}

/// An origin whose host may begin with a wildcard. Texts are in lower case.
#[derive(Clone, Debug, PartialEq, Eq)]
struct OriginPattern {
    scheme: Scheme,
    /// Whether `host` is only the end of the hosts that match.
    has_wildcard: bool,
    host: String,
    port: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scheme {
    Http,
    Https,
}

/// A list of names in a header.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Names {
    Any,
    /// `None` if there are none.
    Listed(Option<HeaderValue>),
}

/// The wildcard for all origins, methods or headers.
const ANY: &str = "*";

impl Cors {
    /// Compiles settings.
    ///
    /// # Errors
    ///
    /// An origin has another form, a wildcard that is not at the beginning of its host, or a port
    /// that does not exist; a method or header has an invalid name; or `*` is not alone.
    pub fn new(settings: CorsSettings) -> Result<Self, CorsError> {
        let is_method = |text: &str| text.parse::<Method>().is_ok();
        let is_header = |text: &str| text.parse::<HeaderName>().is_ok();
        let header = "is not the name of a header";
        Ok(Self {
            origins: origins(&settings.allow_origins)?,
            methods: names(
                "allowMethods",
                &settings.allow_methods,
                is_method,
                "is not a method",
            )?,
            headers: names("allowHeaders", &settings.allow_headers, is_header, header)?,
            exposed: names("exposeHeaders", &settings.expose_headers, is_header, header)?,
            settings,
        })
    }

    /// Returns the settings.
    pub fn settings(&self) -> &CorsSettings {
        &self.settings
    }

    /// Returns what to do with a request, or `None` if it is not one of another origin.
    pub fn action(&self, method: &Method, request: &HeaderMap) -> Option<CorsAction> {
        let origin = request.get(ORIGIN)?;
        let requested = request.get(ACCESS_CONTROL_REQUEST_METHOD);
        let mut response = HeaderMap::new();
        let is_allowed = self.allow_origin(origin, &mut response);
        let preflight = requested.filter(|_| *method == Method::OPTIONS);
        let Some(requested) = preflight else {
            if is_allowed {
                self.expose_headers(&mut response);
            }
            return Some(CorsAction::Forward(response));
        };
        if is_allowed {
            self.allow_request(requested, request, &mut response);
        }
        Some(CorsAction::Respond(response))
    }

    /// Returns whether the origin is allowed, and writes the headers that say so.
    fn allow_origin(&self, origin: &HeaderValue, response: &mut HeaderMap) -> bool {
        let allowed = match &self.origins {
            Origins::Any if !self.settings.allow_credentials => {
                response.insert(ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static(ANY));
                return true;
            }
            Origins::Any => true,
            Origins::Listed(patterns) => {
                let origin = origin.to_str().ok().and_then(|text| {
                    let origin = OriginPattern::parse(text)?;
                    (!origin.has_wildcard).then_some(origin)
                });
                origin.is_some_and(|origin| patterns.iter().any(|it| it.is_match(&origin)))
            }
        };
        // A cache must not give the response to another origin.
        response.insert(VARY, HeaderValue::from_name(ORIGIN));
        if allowed {
            response.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
            if self.settings.allow_credentials {
                let value = HeaderValue::from_static("true");
                response.insert(ACCESS_CONTROL_ALLOW_CREDENTIALS, value);
            }
        }
        allowed
    }

    fn allow_request(&self, method: &HeaderValue, request: &HeaderMap, response: &mut HeaderMap) {
        let headers = request.get(ACCESS_CONTROL_REQUEST_HEADERS);
        for (name, names, requested) in [
            (ACCESS_CONTROL_ALLOW_METHODS, &self.methods, Some(method)),
            (ACCESS_CONTROL_ALLOW_HEADERS, &self.headers, headers),
        ] {
            let value = match names {
                Names::Any if self.settings.allow_credentials => requested.cloned(),
                Names::Any => Some(HeaderValue::from_static(ANY)),
                Names::Listed(listed) => listed.clone(),
            };
            response.extend(value.map(|value| (name, value)));
        }
        response.insert(ACCESS_CONTROL_MAX_AGE, self.settings.max_age.into());
    }

    fn expose_headers(&self, response: &mut HeaderMap) {
        let value = match &self.exposed {
            // With credentials, `*` is the name of a header.
            Names::Any if self.settings.allow_credentials => None,
            Names::Any => Some(HeaderValue::from_static(ANY)),
            Names::Listed(listed) => listed.clone(),
        };
        response.extend(value.map(|value| (ACCESS_CONTROL_EXPOSE_HEADERS, value)));
    }
}

/// Sets the headers of a [`CorsAction`] in a response. They replace the application's, except for
/// `vary`, which is added.
pub fn set_headers(headers: &HeaderMap, response: &mut HeaderMap) {
    for (name, value) in headers {
        if name == VARY {
            response.append(name, value.clone());
        } else {
            response.insert(name, value.clone());
        }
    }
}

impl OriginPattern {
    /// Parses an origin. Its host may begin with a wildcard.
    fn parse(text: &str) -> Option<Self> {
        let (scheme, authority) = text.split_once("://")?;
        let scheme = match scheme.to_ascii_lowercase().as_str() {
            "http" => Scheme::Http,
            "https" => Scheme::Https,
            _ => return None,
        };
        let (has_wildcard, authority) = match authority.strip_prefix('*') {
            // Alone it matches every host.
            Some(rest) if rest.is_empty() || rest.starts_with(':') => (true, format!(".{rest}")),
            Some(rest) => (true, rest.to_owned()),
            None => (false, authority.to_owned()),
        };
        if authority.contains(['*', '@']) {
            return None;
        }
        let parsed: Authority = authority.parse().ok()?;
        let has_port = parsed.as_str().len() > parsed.host().len();
        let port = match parsed.port_u16() {
            Some(0) => return None,
            Some(port) => port,
            None if has_port => return None,
            None => scheme.default_port(),
        };
        let host = parsed.host().to_ascii_lowercase();
        Some(Self {
            scheme,
            has_wildcard,
            host: if has_wildcard && host == "." {
                String::new()
            } else {
                host
            },
            port,
        })
    }

    /// Whether an origin without a wildcard matches.
    fn is_match(&self, origin: &Self) -> bool {
        let is_host = if self.has_wildcard {
            // The wildcard stands for at least one character.
            origin.host.len() > self.host.len() && origin.host.ends_with(&self.host)
        } else {
            origin.host == self.host
        };
        is_host && self.scheme == origin.scheme && self.port == origin.port
    }
}

impl Scheme {
    fn default_port(self) -> u16 {
        match self {
            Self::Http => 80,
            Self::Https => 443,
        }
    }
}

fn origins(texts: &[String]) -> Result<Origins, CorsError> {
    const FIELD: &str = "allowOrigins";
    if is_any(FIELD, texts)? {
        return Ok(Origins::Any);
    }
    let pattern = |text: &String| {
        OriginPattern::parse(text).ok_or_else(|| CorsError {
            field: FIELD,
            value: text.clone(),
            problem: "is not an origin such as https://shop.example:8443 or https://*.example",
        })
    };
    let patterns = texts.iter().map(pattern);
    Ok(Origins::Listed(patterns.collect::<Result<_, _>>()?))
}

fn names(
    field: &'static str,
    texts: &[String],
    is_name: impl Fn(&str) -> bool,
    problem: &'static str,
) -> Result<Names, CorsError> {
    if is_any(field, texts)? {
        return Ok(Names::Any);
    }
    let invalid = |value: String| CorsError {
        field,
        value,
        problem,
    };
    if let Some(text) = texts.iter().find(|text| !is_name(text)) {
        return Err(invalid(text.clone()));
    }
    let listed = texts.join(", ");
    let value = (!texts.is_empty()).then(|| listed.parse::<HeaderValue>());
    let value = value.transpose().map_err(|_not_a_value| invalid(listed))?;
    Ok(Names::Listed(value))
}

/// Whether a list has only the wildcard.
fn is_any(field: &'static str, texts: &[String]) -> Result<bool, CorsError> {
    match texts {
        [text] if text == ANY => Ok(true),
        texts if texts.iter().any(|text| text == ANY) => Err(CorsError {
            field,
            value: ANY.to_owned(),
            problem: "must be the only entry",
        }),
        _ => Ok(false),
    }
}

#[cfg(test)]
mod tests;
