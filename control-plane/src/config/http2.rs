//! The flag of HTTP/2 settings: the message of the API as JSON, which Linkerd's chart writes.

use std::str::FromStr;
use std::time::Duration;

use mesh_core::endpoint::{Http2Params, KeepAlive};
use serde::Deserialize;

use super::values::go_duration;

#[derive(Clone, Copy, Debug, Default)]
pub struct Http2Flag(pub Http2Params);

#[derive(Default, Deserialize)]
#[serde(default)]
struct Params {
    flow_control: Option<FlowControl>,
    keep_alive: Option<KeepAliveJson>,
    internals: Option<Internals>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct FlowControl {
    initial_connection_window_size: Option<u32>,
    initial_stream_window_size: Option<u32>,
    adaptive_flow_control: bool,
}

#[derive(Deserialize)]
struct KeepAliveJson {
    interval: DurationJson,
    timeout: DurationJson,
    #[serde(default)]
    while_idle: bool,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Internals {
    max_concurrent_reset_streams: Option<u32>,
    max_frame_size: Option<u32>,
    max_send_buf_size: Option<u32>,
}

/// `"10s"` in Protobuf's JSON, or `{"seconds": 10}` in Go's; charts write both.
#[derive(Deserialize)]
#[serde(untagged)]
enum DurationJson {
    Text(String),
    Parts {
        #[serde(default)]
        seconds: u64,
        #[serde(default)]
        nanos: u32,
    },
}

impl DurationJson {
    fn read(self) -> Result<Duration, String> {
        match self {
            Self::Text(text) => go_duration(&text),
            Self::Parts { seconds, nanos } => Ok(Duration::new(seconds, nanos)),
        }
    }
}

impl FromStr for Http2Flag {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = text.trim();
        if text.is_empty() {
            return Ok(Self::default());
        }
        let params: Params = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let flow = params.flow_control.unwrap_or_default();
        let internals = params.internals.unwrap_or_default();
        let keep_alive = params.keep_alive.map(|keep_alive| {
            Ok::<_, String>(KeepAlive {
                interval: keep_alive.interval.read()?,
                timeout: keep_alive.timeout.read()?,
                while_idle: keep_alive.while_idle,
            })
        });
        Ok(Self(Http2Params {
            connection_window: flow.initial_connection_window_size,
            stream_window: flow.initial_stream_window_size,
            adaptive_window: flow.adaptive_flow_control,
            keep_alive: keep_alive.transpose()?,
            max_frame_size: internals.max_frame_size,
            max_send_buf_size: internals.max_send_buf_size,
            max_concurrent_reset_streams: internals.max_concurrent_reset_streams,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_notations_of_durations_are_parsed() {
        for text in [
            r#"{"keep_alive":{"interval":"10s","timeout":"3s","while_idle":true}}"#,
            r#"{"keep_alive":{"interval":{"seconds":10},"timeout":{"seconds":3},"while_idle":true}}"#,
        ] {
            let keep_alive = text.parse::<Http2Flag>().unwrap().0.keep_alive.unwrap();
            assert_eq!(keep_alive.interval, Duration::from_secs(10));
            assert!(keep_alive.while_idle);
        }
        assert_eq!("".parse::<Http2Flag>().unwrap().0, Http2Params::default());
        let flow = r#"{"flow_control":{"initial_stream_window_size":65535}}"#;
        assert_eq!(
            flow.parse::<Http2Flag>().unwrap().0.stream_window,
            Some(65_535)
        );
        assert!("{".parse::<Http2Flag>().is_err());
    }
}
