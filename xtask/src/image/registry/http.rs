//! HTTP requests through `curl`, with a registry's authentication. xtask is compiled before
//! anything else can be installed, and a TLS stack of its own would cost every first build a minute
//! for the sake of one command; curl also knows the machine's proxies and certificates.

use std::{
    cell::RefCell,
    env, fs,
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
};

use anyhow::{Context, bail};
use serde_json::Value;

pub(super) struct Client {
    credentials: Option<Credentials>,
    /// What the registry asked for, learnt from its first refusal.
    authorization: RefCell<Option<String>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Method {
    Get,
    Head,
    Post,
    Put,
}

pub(super) struct Answer {
    pub(super) status: u16,
    headers: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
}

enum Credentials {
    UserAndPassword(String, String),
    /// As Docker's configuration keeps them, which is as HTTP sends them.
    Encoded(String),
}

/// A file that lives as long as it is needed.
pub(super) struct Scratch(PathBuf);

impl Client {
    pub(super) fn new(host: &str) -> Self {
        Self {
            credentials: Credentials::find(host),
            authorization: RefCell::new(None),
        }
    }

    /// Sends a request, and once more with what the registry asks for when it refuses.
    pub(super) fn send(
        &self,
        method: Method,
        url: &str,
        body: Option<(&Path, &str)>,
    ) -> anyhow::Result<Answer> {
        let known = self.authorization.borrow().clone();
        let answer = request(method, url, body, known.as_deref())?;
        if answer.status != 401 {
            return Ok(answer);
        }
        let Some(challenge) = answer.header("www-authenticate") else {
            return Ok(answer);
        };
        let Some(line) = self.authorize(&challenge)? else {
            return Ok(answer);
        };
        self.authorization.replace(Some(line.clone()));
        request(method, url, body, Some(&line))
    }

    /// The line of curl's configuration that answers a challenge. None when we have nothing to
    /// answer with.
    fn authorize(&self, challenge: &str) -> anyhow::Result<Option<String>> {
        let own = self.credentials.as_ref().map(Credentials::line);
        if !challenge.to_ascii_lowercase().starts_with("bearer ") {
            return Ok(own);
        }
        let realm = parameter(challenge, "realm").context("the registry names no token server")?;
        let mut address = realm;
        for name in ["service", "scope"] {
            if let Some(value) = parameter(challenge, name) {
                let join = if address.contains('?') { '&' } else { '?' };
                address.push_str(&format!("{join}{name}={value}"));
            }
        }
        let answer = request(Method::Get, &address, None, own.as_deref())?;
        if !answer.is_success() {
            return Ok(None);
        }
        let said: Value =
            serde_json::from_slice(&answer.body).context("read the token server's answer")?;
        let token = ["token", "access_token"]
            .iter()
            .find_map(|key| said[key].as_str())
            .context("the token server sent no token")?;
        Ok(Some(header_line(&format!("Authorization: Bearer {token}"))))
    }
}

impl Answer {
    pub(super) fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    pub(super) fn header(&self, name: &str) -> Option<String> {
        let found = self.headers.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| value.clone())
    }
}

impl Credentials {
    fn find(host: &str) -> Option<Self> {
        if let (Ok(user), Ok(password)) = (
            env::var("MESH_REGISTRY_USER"),
            env::var("MESH_REGISTRY_PASSWORD"),
        ) {
            return Some(Self::UserAndPassword(user, password));
        }
        let folder = env::var_os("DOCKER_CONFIG").map_or_else(
            || Some(PathBuf::from(env::var_os("HOME")?).join(".docker")),
            |folder| Some(PathBuf::from(folder)),
        )?;
        let text = fs::read(folder.join("config.json")).ok()?;
        let config: Value = serde_json::from_slice(&text).ok()?;
        let encoded = config["auths"][host]["auth"].as_str()?;
        Some(Self::Encoded(encoded.to_owned()))
    }

    fn line(&self) -> String {
        match self {
            Self::UserAndPassword(user, password) => {
                format!("user = {}\n", quoted(&format!("{user}:{password}")))
            }
            Self::Encoded(encoded) => header_line(&format!("Authorization: Basic {encoded}")),
        }
    }
}

/// One request. What is secret goes through curl's standard input: its arguments can be read by
/// everybody on the machine.
fn request(
    method: Method,
    url: &str,
    body: Option<(&Path, &str)>,
    authorization: Option<&str>,
) -> anyhow::Result<Answer> {
    let (headers, answered) = (Scratch::with(&[])?, Scratch::with(&[])?);
    let mut command = Command::new("curl");
    command
        .args(["--silent", "--show-error", "--config", "-"])
        .args(["--write-out", "%{http_code}"])
        .arg("--dump-header")
        .arg(headers.path())
        .arg("--output")
        .arg(answered.path());
    match method {
        Method::Get => {
            // A registry serves what is asked for, and an index or a manifest only when it is.
            command.args(["--header", &format!("Accept: {}", super::oci::MANIFEST)]);
        }
        Method::Head => {
            command.arg("--head");
        }
        Method::Post => {
            command.args(["--request", "POST", "--data", ""]);
        }
        Method::Put => (),
    }
    if let Some((file, media_type)) = body {
        command
            .args(["--header", &format!("Content-Type: {media_type}")])
            .arg("--upload-file")
            .arg(file);
    }
    let mut curl = command
        .arg(url)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("start curl; `cargo xtask setup` installs it")?;
    let mut input = curl.stdin.take().context("curl's input is a pipe")?;
    input.write_all(authorization.unwrap_or_default().as_bytes())?;
    drop(input);
    let output = curl.wait_with_output().context("wait for curl")?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{url}: {}", said.trim());
    }
    let status = String::from_utf8_lossy(&output.stdout);
    Ok(Answer {
        status: status
            .parse()
            .with_context(|| format!("curl says `{status}`"))?,
        headers: last_headers(&headers.read()?),
        body: answered.read()?,
    })
}

/// The headers of the last answer: before it there may be those of a proxy or of `100 Continue`.
fn last_headers(dump: &[u8]) -> Vec<(String, String)> {
    let text = String::from_utf8_lossy(dump);
    let mut headers = Vec::new();
    for line in text.lines() {
        if line.starts_with("HTTP/") {
            headers.clear();
        } else if let Some((name, value)) = line.split_once(':') {
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
    }
    headers
}

/// A parameter of `Bearer realm="…",service="…",scope="repository:x:pull,push"`.
fn parameter(challenge: &str, name: &str) -> Option<String> {
    let start = format!("{name}=\"");
    let at = challenge.find(&start)? + start.len();
    let value = &challenge[at..];
    Some(value[..value.find('"')?].to_owned())
}

fn header_line(header: &str) -> String {
    format!("header = {}\n", quoted(header))
}

/// A value of curl's configuration.
fn quoted(value: &str) -> String {
    format!("\"{}\"", value.replace('\\', "\\\\").replace('"', "\\\""))
}

impl Scratch {
    pub(super) fn with(content: &[u8]) -> anyhow::Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("xtask-image-{}-{number}", std::process::id());
        let path = env::temp_dir().join(name);
        // Nobody else's file: what is there already is not ours to write to.
        let mut file =
            fs::File::create_new(&path).with_context(|| format!("create {}", path.display()))?;
        file.write_all(content)
            .with_context(|| format!("write {}", path.display()))?;
        Ok(Self(path))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    fn read(&self) -> anyhow::Result<Vec<u8>> {
        fs::read(&self.0).with_context(|| format!("read {}", self.0.display()))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A file that cannot be removed is left to whoever cleans the folder.
        fs::remove_file(&self.0).ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_challenge_has_parameters() {
        let challenge = "Bearer realm=\"https://ghcr.io/token\",service=\"ghcr.io\",scope=\"repository:org/mesh/proxy:pull,push\"";
        assert_eq!(
            parameter(challenge, "realm").as_deref(),
            Some("https://ghcr.io/token")
        );
        assert_eq!(
            parameter(challenge, "scope").as_deref(),
            Some("repository:org/mesh/proxy:pull,push")
        );
        assert_eq!(parameter(challenge, "error"), None);
    }

    #[test]
    fn the_last_answer_counts() {
        let dump = b"HTTP/1.1 100 Continue\r\nX: 1\r\n\r\nHTTP/2 202\r\nLocation: /v2/a\r\n\r\n";
        assert_eq!(
            last_headers(dump),
            [("location".to_owned(), "/v2/a".to_owned())]
        );
    }

    #[test]
    fn secrets_are_quoted_for_curl() {
        let own = Credentials::UserAndPassword("me".to_owned(), "a\"b\\".to_owned());
        assert_eq!(own.line(), "user = \"me:a\\\"b\\\\\"\n");
    }

    #[test]
    fn scratch_files_are_removed() {
        let scratch = Scratch::with(b"x").expect("a scratch file");
        let path = scratch.path().to_owned();
        assert_eq!(scratch.read().expect("readable"), b"x");
        drop(scratch);
        assert!(!path.exists());
    }
}
