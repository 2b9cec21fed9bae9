//! Settings of HTTP/2 connections to an endpoint. Zero means that a number is absent.

use mesh_core::endpoint::{Http2Params, KeepAlive};

use crate::field::{optional, required};
use crate::proto::destination as wire;
use crate::proto::destination::http2_client_params::{
    FlowControl, Internals, KeepAlive as WireKeepAlive,
};
use crate::{InvalidField, value};

/// Converts received settings.
///
/// # Errors
///
/// A field is invalid.
pub fn http2_params(params: wire::Http2ClientParams) -> Result<Http2Params, InvalidField> {
    let set = |number: u32| (number != 0).then_some(number);
    let flow = params.flow_control.unwrap_or_default();
    let internals = params.internals.unwrap_or_default();
    Ok(Http2Params {
        connection_window: set(flow.initial_connection_window_size),
        stream_window: set(flow.initial_stream_window_size),
        adaptive_window: flow.adaptive_flow_control,
        keep_alive: optional("keep_alive", params.keep_alive, |keep_alive| {
            Ok(KeepAlive {
                interval: required("interval", keep_alive.interval, value::duration)?,
                timeout: required("timeout", keep_alive.timeout, value::duration)?,
                while_idle: keep_alive.while_idle,
            })
        })?,
        max_frame_size: set(internals.max_frame_size),
        max_send_buf_size: set(internals.max_send_buf_size),
        max_concurrent_reset_streams: set(internals.max_concurrent_reset_streams),
    })
}

/// Converts settings to a message.
pub fn http2_params_to_proto(params: Http2Params) -> wire::Http2ClientParams {
    let flow = FlowControl {
        initial_connection_window_size: params.connection_window.unwrap_or_default(),
        initial_stream_window_size: params.stream_window.unwrap_or_default(),
        adaptive_flow_control: params.adaptive_window,
    };
    let internals = Internals {
        max_concurrent_reset_streams: params.max_concurrent_reset_streams.unwrap_or_default(),
        max_frame_size: params.max_frame_size.unwrap_or_default(),
        max_send_buf_size: params.max_send_buf_size.unwrap_or_default(),
    };
    wire::Http2ClientParams {
        flow_control: (flow != FlowControl::default()).then_some(flow),
        keep_alive: params.keep_alive.map(|keep_alive| WireKeepAlive {
            interval: Some(value::duration_to_proto(keep_alive.interval)),
            timeout: Some(value::duration_to_proto(keep_alive.timeout)),
            while_idle: keep_alive.while_idle,
        }),
        internals: (internals != Internals::default()).then_some(internals),
    }
}
