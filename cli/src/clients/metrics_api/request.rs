//! Requests to the metrics API.

use std::fmt;
use std::time::Duration;

use mesh_api::linkerd2::viz::{
    AuthzRequest, EdgesRequest, Empty, Resource as Message, ResourceSelection, StatSummaryRequest,
    TopRoutesRequest, stat_summary_request, top_routes_request,
};
use mesh_core::units::parse_prometheus_duration;

use crate::resource::{Resource, ResourceKind};

/// The objects that a request is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) resource: Resource,
    /// `None` for all namespaces.
    pub(crate) namespace: Option<String>,
}

/// The peer of the counted requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    To(Target),
    From(Target),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StatQuery {
    pub(crate) target: Target,
    /// A label selector in the notation of kubectl; empty for all objects.
    pub(crate) selector: String,
    pub(crate) window: TimeWindow,
    pub(crate) peer: Option<Peer>,
}

/// The time that statistics are about, in the notation of Prometheus.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TimeWindow {
    text: String,
    duration: Duration,
}

/// Linkerd's minimum, which has at least one scrape at the default interval of 10 s.
const MIN_WINDOW: Duration = Duration::from_secs(15);

impl TimeWindow {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let duration = parse_prometheus_duration(text).ok_or_else(|| {
            format!("invalid time window {text:?}: expected a duration such as 30s, 1m or 1h30m")
        })?;
        if duration < MIN_WINDOW {
            return Err(format!(
                "the time window {text} is too short: expected at least {} s",
                MIN_WINDOW.as_secs()
            ));
        }
        Ok(Self {
            text: text.to_owned(),
            duration,
        })
    }

    /// Returns the rate of a number within the window.
    pub(crate) fn per_second(&self, count: u64) -> f64 {
        self.rate(count as f64)
    }

    /// Returns the rate of an increase that Prometheus has extrapolated to the window.
    pub(crate) fn rate(&self, increase: f64) -> f64 {
        increase / self.duration.as_secs_f64()
    }
}

impl fmt::Display for TimeWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Target {
    fn to_message(&self) -> Message {
        let is_namespace = self.resource.kind == ResourceKind::Namespace;
        let namespace = self.namespace.clone().filter(|_| !is_namespace);
        Message {
            namespace: namespace.unwrap_or_default(),
            r#type: self.resource.kind.as_str().to_owned(),
            name: self.resource.name.clone().unwrap_or_default(),
        }
    }

    pub(super) fn to_edges_message(&self) -> EdgesRequest {
        EdgesRequest {
            selector: Some(selection(self, "")),
        }
    }

    pub(super) fn to_authz_message(&self, window: &TimeWindow) -> AuthzRequest {
        AuthzRequest {
            resource: Some(self.to_message()),
            time_window: window.text.clone(),
        }
    }
}

impl StatQuery {
    pub(super) fn to_message(&self) -> StatSummaryRequest {
        use stat_summary_request::Outbound;
        let outbound = match &self.peer {
            Some(Peer::To(to)) => Outbound::ToResource(to.to_message()),
            Some(Peer::From(from)) => Outbound::FromResource(from.to_message()),
            None => Outbound::None(Empty {}),
        };
        StatSummaryRequest {
            selector: Some(selection(&self.target, &self.selector)),
            time_window: self.window.text.clone(),
            skip_stats: false,
            tcp_stats: true,
            outbound: Some(outbound),
        }
    }

    /// Routes have no `--from`: a query about them has no such peer.
    pub(super) fn to_routes_message(&self) -> TopRoutesRequest {
        use top_routes_request::Outbound;
        let outbound = match &self.peer {
            Some(Peer::To(to)) => Outbound::ToResource(to.to_message()),
            Some(Peer::From(_)) | None => Outbound::None(Empty {}),
        };
        TopRoutesRequest {
            selector: Some(selection(&self.target, &self.selector)),
            time_window: self.window.text.clone(),
            outbound: Some(outbound),
        }
    }
}

fn selection(target: &Target, label_selector: &str) -> ResourceSelection {
    ResourceSelection {
        resource: Some(target.to_message()),
        label_selector: label_selector.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_have_a_minimum() {
        let window = TimeWindow::parse("1m30s").unwrap();
        assert_eq!(window.per_second(180), 2.0);
        assert_eq!(window.to_string(), "1m30s");
        assert!(TimeWindow::parse("15s").is_ok());
        for (bad, problem) in [
            ("14s", "at least 15 s"),
            ("0s", "at least 15 s"),
            ("1.5m", "expected a duration"),
            ("", "expected a duration"),
        ] {
            let error = TimeWindow::parse(bad).unwrap_err();
            assert!(error.contains(problem), "{error}");
        }
    }

    #[test]
    fn namespaces_are_in_no_namespace() {
        let target = |text: &str| Target {
            resource: Resource::parse(text).unwrap(),
            namespace: Some("shop".to_owned()),
        };
        let message = target("ns/shop").to_message();
        let parts = [message.namespace, message.r#type, message.name];
        assert_eq!(parts, ["", "namespace", "shop"]);
        let message = target("deploy").to_message();
        let parts = [message.namespace, message.r#type, message.name];
        assert_eq!(parts, ["shop", "deployment", ""]);
    }
}
