//! Logs: one subscriber for each process, installed by `main`, written to standard output.
//!
//! The plain format is the format of Linkerd's proxy (uptime, level, thread, spans, target,
//! message), so that people and tools that read one can read the other. The filter can be changed
//! through the admin server.

use std::fmt;
use std::io::IsTerminal as _;
use std::str::FromStr;
use std::sync::Arc;

use parking_lot::Mutex;
use tracing_subscriber::filter::{EnvFilter, ParseError};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::FormatTime;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::{SubscriberInitExt as _, TryInitError};
use tracing_subscriber::{Layer as _, Registry, reload};

/// The format of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    #[default]
    Plain,
    Json,
}

/// The settings of the subscriber.
#[derive(Clone, Debug)]
pub struct Settings<'a> {
    /// Directives as in `warn,mesh=debug`.
    pub filter: &'a str,
    pub format: Format,
    /// Targets that stand for another one: `("linkerd", "mesh")` makes a filter for Linkerd's
    /// proxy, as its injector sets it, select this project's targets as well.
    pub aliases: &'static [(&'static str, &'static str)],
}

/// Changes the filter of the running process.
#[derive(Clone, Debug)]
pub struct FilterHandle {
    reload: reload::Handle<EnvFilter, Registry>,
    // The original text, because EnvFilter prints its directives in another order.
    text: Arc<Mutex<String>>,
    aliases: &'static [(&'static str, &'static str)],
}

/// Why logging could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum InitError {
    #[error(transparent)]
    Filter(#[from] FilterError),
    #[error("another log subscriber is already installed")]
    AlreadyInstalled(#[source] TryInitError),
}

/// Why a filter was rejected.
#[derive(Debug, thiserror::Error)]
pub enum FilterError {
    #[error("invalid log filter {filter:?} (expected directives like \"warn,mesh=debug\")")]
    Invalid { filter: String, source: ParseError },
    #[error("log subscriber no longer exists")]
    Gone(#[source] reload::Error),
}

#[derive(Debug, thiserror::Error)]
#[error("unknown log format {0:?} (expected \"plain\" or \"json\")")]
pub struct UnknownFormat(String);

struct Uptime {
    start: std::time::Instant,
}

/// Installs the process's subscriber.
pub fn init(settings: Settings<'_>) -> Result<FilterHandle, InitError> {
    let (filter, handle) = reloadable(settings.filter, settings.aliases)?;
    let lines = tracing_subscriber::fmt::layer().with_thread_ids(true);
    let lines = match settings.format {
        Format::Plain => lines
            .with_ansi(std::io::stdout().is_terminal())
            .with_timer(Uptime::starting_now())
            .boxed(),
        Format::Json => lines
            .json()
            .with_span_list(true)
            .with_current_span(false)
            .boxed(),
    };
    tracing_subscriber::registry()
        .with(filter)
        .with(lines)
        .try_init()
        .map_err(InitError::AlreadyInstalled)?;
    Ok(handle)
}

/// Returns an error and all its causes in one line. Each error type prints only its own context; a
/// cause that a library's error type prints itself is not repeated.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if !text.ends_with(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        next = cause.source();
    }
    text
}

impl FilterHandle {
    /// Returns the text of the active filter.
    pub fn current(&self) -> String {
        self.text.lock().clone()
    }

    /// Replaces the filter. An invalid one leaves the current one active.
    pub fn set(&self, filter: &str) -> Result<(), FilterError> {
        let parsed = parse_filter(filter, self.aliases)?;
        let mut text = self.text.lock();
        self.reload.reload(parsed).map_err(FilterError::Gone)?;
        filter.clone_into(&mut text);
        Ok(())
    }
}

impl FromStr for Format {
    type Err = UnknownFormat;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.trim().to_ascii_lowercase().as_str() {
            "plain" => Ok(Self::Plain),
            "json" => Ok(Self::Json),
            _ => Err(UnknownFormat(text.to_owned())),
        }
    }
}

impl Uptime {
    fn starting_now() -> Self {
        Self {
            start: std::time::Instant::now(),
        }
    }
}

impl FormatTime for Uptime {
    fn format_time(&self, writer: &mut Writer<'_>) -> fmt::Result {
        let up = self.start.elapsed();
        write!(writer, "[{:>6}.{:06}s]", up.as_secs(), up.subsec_micros())
    }
}

/// Returns a filter layer and the handle that changes it during the layer's lifetime.
pub(crate) fn reloadable(
    filter: &str,
    aliases: &'static [(&'static str, &'static str)],
) -> Result<(reload::Layer<EnvFilter, Registry>, FilterHandle), FilterError> {
    let (layer, reload) = reload::Layer::new(parse_filter(filter, aliases)?);
    let handle = FilterHandle {
        reload,
        text: Arc::new(Mutex::new(filter.to_owned())),
        aliases,
    };
    Ok((layer, handle))
}

fn parse_filter(text: &str, aliases: &[(&str, &str)]) -> Result<EnvFilter, FilterError> {
    EnvFilter::builder()
        .parse(with_aliases(text, aliases))
        .map_err(|source| FilterError::Invalid {
            filter: text.to_owned(),
            source,
        })
}

/// Repeats each directive for an alias with the target that it stands for.
fn with_aliases(text: &str, aliases: &[(&str, &str)]) -> String {
    let mut all = text.to_owned();
    for directive in split_directives(text) {
        for (alias, target) in aliases {
            let rest = directive.strip_prefix(alias);
            if let Some(rest) = rest.filter(|rest| rest.is_empty() || rest.starts_with(['=', '[']))
            {
                all.push(',');
                all.push_str(target);
                all.push_str(rest);
            }
        }
    }
    all
}

/// Splits at commas, except those between the brackets of a span's fields.
fn split_directives(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0_i32;
    text.split(move |c| {
        match c {
            '[' | '{' => depth += 1,
            ']' | '}' => depth -= 1,
            _ => {}
        }
        c == ',' && depth == 0
    })
    .map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINKERD: &[(&str, &str)] = &[("linkerd", "mesh"), ("linkerd2_proxy", "mesh")];

    #[test]
    fn aliases_also_select_their_targets() {
        for (given, expect) in [
            ("warn,linkerd=info", "warn,linkerd=info,mesh=info"),
            ("linkerd2_proxy=debug", "linkerd2_proxy=debug,mesh=debug"),
            ("linkerd", "linkerd,mesh"),
            ("linkerd_app=debug", "linkerd_app=debug"),
            (
                "warn,[{headers, request}]=off,linkerd[{a,b}]=trace",
                "warn,[{headers, request}]=off,linkerd[{a,b}]=trace,mesh[{a,b}]=trace",
            ),
        ] {
            assert_eq!(with_aliases(given, LINKERD), expect);
        }
    }

    #[test]
    fn filter_of_linkerds_injector_is_accepted() {
        let injected = "warn,linkerd=info,hickory=error,[{headers}]=off,[{request}]=off";
        let filter = parse_filter(injected, LINKERD).unwrap().to_string();
        assert!(filter.contains("mesh=info"), "{filter}");
    }

    #[test]
    fn invalid_filter_is_named_in_error() {
        let error = parse_filter("mesh=loud", LINKERD).unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("invalid log filter \"mesh=loud\"")
        );
    }

    #[test]
    fn chain_prints_every_cause_once() {
        #[derive(Debug, thiserror::Error)]
        #[error("cannot start")]
        struct Outer(#[source] Middle);
        /// Prints its cause, as error types of some libraries do.
        #[derive(Debug)]
        struct Middle(std::io::Error);
        impl fmt::Display for Middle {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "cannot listen: {}", self.0)
            }
        }
        impl std::error::Error for Middle {
            fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
                Some(&self.0)
            }
        }
        let error = Outer(Middle(std::io::Error::other("in use")));
        assert_eq!(chain(&error), "cannot start: cannot listen: in use");
    }

    #[test]
    fn formats_are_parsed() {
        assert_eq!("plain".parse::<Format>().unwrap(), Format::Plain);
        assert_eq!("JSON".parse::<Format>().unwrap(), Format::Json);
        assert!("xml".parse::<Format>().is_err());
    }

    #[test]
    fn plain_time_is_uptime() {
        let mut line = String::new();
        Uptime::starting_now()
            .format_time(&mut Writer::new(&mut line))
            .unwrap();
        assert!(
            line.starts_with("[     0.0") && line.ends_with("s]"),
            "{line}"
        );
    }
}
