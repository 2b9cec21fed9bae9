//! Opens a dashboard in the browser of the user.

use std::net::SocketAddr;
use std::process::Stdio;

use clap::ValueEnum;

/// What a command that serves a dashboard opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Show {
    /// The dashboard, in the browser
    #[value(alias = "linkerd")]
    Dashboard,
    /// Nothing: only print the URL
    Url,
}

/// The port of dashboards on this machine, as in Linkerd.
pub(crate) const PORT: u16 = 50750;

/// The programs that open a URL, on Linux and on macOS.
const OPENERS: [&str; 2] = ["xdg-open", "open"];

/// Prints the URL of a dashboard, and opens it if the user wants that.
pub(crate) fn present(show: Show, url: &str) -> anyhow::Result<()> {
    super::line(&format!("The dashboard is at {url}\nCtrl-C ends it."))?;
    if show == Show::Dashboard && !open(url) {
        super::note("no browser could be opened; open the URL yourself");
    }
    Ok(())
}

/// Returns a URL with a host name that the dashboard accepts.
pub(crate) fn url(addr: SocketAddr) -> String {
    let host = if addr.ip().is_unspecified() || addr.ip().is_loopback() {
        "localhost".to_owned()
    } else {
        addr.ip().to_string()
    };
    format!("http://{host}:{}", addr.port())
}

/// Opens a browser. Its output does not belong to the terminal.
fn open(url: &str) -> bool {
    OPENERS.iter().any(|program| {
        let child = std::process::Command::new(program)
            .arg(url)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        child.is_ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_has_a_host_that_the_dashboard_accepts() {
        let url = |addr: &str| url(addr.parse().unwrap());
        assert_eq!(url("127.0.0.1:50750"), "http://localhost:50750");
        assert_eq!(url("0.0.0.0:80"), "http://localhost:80");
        assert_eq!(url("192.0.2.7:50750"), "http://192.0.2.7:50750");
    }
}
