//! The question on the command line: `CLIENT [->|to] TARGET[:PORT] [-- METHOD PATH]`.

use std::net::{IpAddr, SocketAddr};

use http::Method;
use http::uri::PathAndQuery;

use crate::exit::Failure;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Question {
    pub(super) client: String,
    pub(super) target: TargetName,
    /// The method and path of the request; `None` if only a connection is opened.
    pub(super) request: Option<(Method, String)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TargetName {
    pub(super) host: Host,
    pub(super) port: Option<PortName>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Host {
    Ip(IpAddr),
    /// A Service.
    Name(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PortName {
    Number(u16),
    /// The name of a Service's port.
    Name(String),
}

/// Methods that change nothing (RFC 9110, section 9.2.1).
const SAFE: [Method; 3] = [Method::GET, Method::HEAD, Method::OPTIONS];

/// The path of a request is sent as it is; proxies accept longer ones.
const MAX_PATH: usize = 4 << 10;

impl Question {
    /// `words` are the arguments before `--`, `request` those after it.
    pub(super) fn parse(
        words: &[String],
        request: &[String],
        allows_unsafe: bool,
    ) -> Result<Self, Failure> {
        let words: Vec<&str> = words
            .iter()
            .flat_map(|word| word.split_whitespace())
            .collect();
        let (client, target) = match words.as_slice() {
            [_, "-"] => {
                let problem = "the shell took the arrow's `>` as a redirection of the output: quote it ('->') or leave the arrow out";
                return Err(Failure::Input(problem.to_owned()));
            }
            [client, "->" | "to", target] | [client, target] => (*client, *target),
            _ => {
                let problem = format!(
                    "expected a client and a target, as in `meshctl why client web:80`, got {:?}",
                    words.join(" ")
                );
                return Err(Failure::Input(problem));
            }
        };
        Ok(Self {
            client: client.to_owned(),
            target: TargetName::parse(target)?,
            request: parse_request(request, allows_unsafe)?,
        })
    }
}

impl TargetName {
    pub(super) fn parse(text: &str) -> Result<Self, Failure> {
        let text = ["svc/", "service/", "services/"]
            .iter()
            .find_map(|kind| text.strip_prefix(kind))
            .unwrap_or(text);
        let invalid = |problem: &str| Failure::Input(format!("invalid target {text:?}: {problem}"));
        if let Ok(address) = text.parse::<SocketAddr>() {
            return Ok(Self {
                host: Host::Ip(address.ip()),
                port: Some(PortName::Number(address.port())),
            });
        }
        let bare = text.trim_start_matches('[').trim_end_matches(']');
        if let Ok(ip) = bare.parse::<IpAddr>() {
            return Ok(Self {
                host: Host::Ip(ip),
                port: None,
            });
        }
        let (host, port) = match text.split_once(':') {
            Some((host, port)) => (host, Some(parse_port(port).map_err(|it| invalid(&it))?)),
            None => (text, None),
        };
        let host = host.trim_end_matches('.');
        let is_name = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
        if host.is_empty() || host.len() > 253 || !host.chars().all(is_name) {
            return Err(invalid(
                "expected a Service, NAME.NAMESPACE or an IP address",
            ));
        }
        Ok(Self {
            host: Host::Name(host.to_ascii_lowercase()),
            port,
        })
    }
}

fn parse_port(text: &str) -> Result<PortName, String> {
    if text.starts_with(|c: char| c.is_ascii_digit()) {
        return match text.parse::<u16>() {
            Ok(port) if port > 0 => Ok(PortName::Number(port)),
            _ => Err(format!("port {text:?} is not in the range 1 to 65535")),
        };
    }
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '-';
    if !text.is_empty() && text.chars().all(is_name) {
        Ok(PortName::Name(text.to_owned()))
    } else {
        Err(format!("{text:?} is neither a port nor the name of one"))
    }
}

fn parse_request(
    words: &[String],
    allows_unsafe: bool,
) -> Result<Option<(Method, String)>, Failure> {
    let (method, path) = match words {
        [] => return Ok(None),
        [path] if path.starts_with('/') => ("GET", path.as_str()),
        [method, path] => (method.as_str(), path.as_str()),
        _ => {
            let problem = "expected METHOD PATH after --, as in `-- GET /`";
            return Err(Failure::Input(problem.to_owned()));
        }
    };
    let method: Method = method
        .parse()
        .map_err(|_error| Failure::Input(format!("{method:?} is not a method of HTTP")))?;
    if !allows_unsafe && !SAFE.contains(&method) {
        return Err(Failure::Input(format!(
            "{method} may change something, and why sends a real request: --allow-unsafe permits it"
        )));
    }
    let is_path = path.starts_with('/') && path.len() <= MAX_PATH;
    if !is_path || path.parse::<PathAndQuery>().is_err() {
        return Err(Failure::Input(format!(
            "invalid path {path:?}: expected one that begins with /, of at most {MAX_PATH} bytes"
        )));
    }
    Ok(Some((method, path.to_owned())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split(' ')
            .filter(|word| !word.is_empty())
            .map(str::to_owned)
            .collect()
    }

    fn parse(line: &str, allows_unsafe: bool) -> Result<Question, Failure> {
        let (words_of, request) = line.split_once("--").unwrap_or((line, ""));
        Question::parse(&words(words_of), &words(request), allows_unsafe)
    }

    #[test]
    fn client_target_and_request_are_parsed() {
        let name = |host: &str, port| TargetName {
            host: Host::Name(host.to_owned()),
            port,
        };
        let ip = |host: &str, port| TargetName {
            host: Host::Ip(host.parse().unwrap()),
            port,
        };
        let number = |port| Some(PortName::Number(port));
        for (line, client, target, request) in [
            ("client web", "client", name("web", None), None),
            ("client -> web:80", "client", name("web", number(80)), None),
            (
                "shop/client to svc/web.shop:http -- GET /a?b=c",
                "shop/client",
                name("web.shop", Some(PortName::Name("http".to_owned()))),
                Some((Method::GET, "/a?b=c")),
            ),
            (
                "deploy/a web.shop.svc.cluster.local. -- /",
                "deploy/a",
                name("web.shop.svc.cluster.local", None),
                Some((Method::GET, "/")),
            ),
            ("a 10.0.0.1:8080", "a", ip("10.0.0.1", number(8080)), None),
            ("a [fd00::1]:80", "a", ip("fd00::1", number(80)), None),
            ("a fd00::1", "a", ip("fd00::1", None), None),
        ] {
            let expect = Question {
                client: client.to_owned(),
                target,
                request: request.map(|(method, path)| (method, path.to_owned())),
            };
            assert_eq!(parse(line, false).unwrap(), expect, "{line}");
        }
        let quoted = ["client -> web".to_owned()];
        assert!(Question::parse(&quoted, &[], false).is_ok());
        assert!(parse("a web -- POST /", true).is_ok());
    }

    #[test]
    fn invalid_questions_are_refused() {
        let long = format!("a b -- GET /{}", "x".repeat(MAX_PATH));
        for (line, problem) in [
            ("client -", "quote it ('->')"),
            ("client", "expected a client and a target"),
            ("a -> b c", "expected a client and a target"),
            ("a web:0", "not in the range"),
            ("a web:65536", "not in the range"),
            ("a web:a_b", "neither a port nor"),
            ("a we/b", "expected a Service"),
            ("a b -- POST /", "--allow-unsafe"),
            ("a b -- G(T /", "not a method"),
            ("a b -- GET x", "begins with /"),
            ("a b -- GET / x", "METHOD PATH"),
            (&long, "of at most 4096 bytes"),
        ] {
            let error = parse(line, false).unwrap_err().to_string();
            assert!(error.contains(problem), "{line}: {error}");
        }
    }
}
