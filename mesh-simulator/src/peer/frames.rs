//! The steps that send frames of HTTP/2.

use super::link::Link;
use crate::http2::{self, frame};
use crate::script::{Field, FieldBlock, GrpcStep, Http2Step, Side, Stream, field};

/// What a client or a server sends first, without or with SETTINGS.
pub(super) fn preface(side: Side, with_settings: bool) -> Vec<u8> {
    let mut bytes = Vec::new();
    if side == Side::Client {
        bytes.extend_from_slice(frame::PREFACE);
    }
    if with_settings {
        frame::write(&mut bytes, frame::SETTINGS, 0, 0, &[]);
    }
    bytes
}

/// Returns whether the step has succeeded.
pub(super) async fn play(link: &Link, step: &Http2Step) -> bool {
    let mut bytes = Vec::new();
    match step {
        Http2Step::Manual => link.set_manual(),
        Http2Step::Settings(settings) => {
            let settings = settings
                .iter()
                .map(|(number, value)| [&number.to_be_bytes()[..], &value.to_be_bytes()].concat());
            let payload: Vec<u8> = settings.flatten().collect();
            frame::write(&mut bytes, frame::SETTINGS, 0, 0, &payload);
        }
        Http2Step::SettingsAck => frame::write(&mut bytes, frame::SETTINGS, frame::ACK, 0, &[]),
        Http2Step::Headers(block) => return headers(link, block).await,
        Http2Step::Continuation(block) => {
            let id = id(link, block.stream).await;
            let flags = if block.more { 0 } else { frame::END_HEADERS };
            let payload = http2::encode(&block.fields);
            frame::write(&mut bytes, frame::CONTINUATION, flags, id, &payload);
        }
        Http2Step::Data {
            stream,
            end,
            padding,
            bytes,
        } => {
            let id = id(link, *stream).await;
            return data(link, id, &bytes.to_vec(), *end, *padding).await;
        }
        Http2Step::ResetStream { stream, code } => {
            let id = id(link, *stream).await;
            frame::write(&mut bytes, frame::RST_STREAM, 0, id, &code.to_be_bytes());
            link.leave(id);
        }
        Http2Step::GoAway { last, code } => {
            let id = id(link, *last).await;
            let payload = [id.to_be_bytes(), code.to_be_bytes()].concat();
            frame::write(&mut bytes, frame::GOAWAY, 0, 0, &payload);
        }
        Http2Step::Ping { ack, opaque } => {
            let flags = if *ack { frame::ACK } else { 0 };
            frame::write(&mut bytes, frame::PING, flags, 0, &opaque.to_be_bytes());
        }
        Http2Step::Window { stream, increment } => {
            let id = id(link, *stream).await;
            let payload = increment.to_be_bytes();
            frame::write(&mut bytes, frame::WINDOW_UPDATE, 0, id, &payload);
        }
        Http2Step::Raw {
            kind,
            flags,
            stream,
            bytes: payload,
        } => {
            let id = id(link, *stream).await;
            frame::write(&mut bytes, *kind, *flags, id, &payload.to_vec());
        }
    }
    link.send(bytes);
    link.flushed().await;
    true
}

/// Returns whether the step has succeeded.
pub(super) async fn play_grpc(link: &Link, step: &GrpcStep) -> bool {
    match step {
        GrpcStep::Call { stream, path } => {
            let fields = fields(&[
                (":method", "POST"),
                (":scheme", "http"),
                (":path", path),
                (":authority", "web.test"),
                ("content-type", "application/grpc"),
                ("te", "trailers"),
            ]);
            headers(link, &block(*stream, false, fields)).await
        }
        GrpcStep::Reply { stream } => {
            let fields = fields(&[(":status", "200"), ("content-type", "application/grpc")]);
            headers(link, &block(*stream, false, fields)).await
        }
        GrpcStep::Message {
            stream,
            end,
            compressed,
            bytes,
        } => {
            let message = bytes.to_vec();
            let mut framed = vec![u8::from(*compressed)];
            framed.extend_from_slice(&(message.len() as u32).to_be_bytes());
            framed.extend(message);
            let id = id(link, *stream).await;
            data(link, id, &framed, *end, None).await
        }
        GrpcStep::Status {
            stream,
            code,
            message,
        } => {
            let code = code.to_string();
            let mut trailers = vec![("grpc-status", code.as_str())];
            trailers.extend(message.as_deref().map(|message| ("grpc-message", message)));
            headers(link, &block(*stream, true, fields(&trailers))).await
        }
    }
}

fn fields(pairs: &[(&str, &str)]) -> Vec<Field> {
    let pairs = pairs.iter();
    pairs.map(|(name, value)| field(name, value)).collect()
}

fn block(stream: Stream, end: bool, fields: Vec<Field>) -> FieldBlock {
    FieldBlock {
        stream,
        end,
        more: false,
        fields,
    }
}

/// The number of a stream. A server waits until it has received the request; 0 if it cannot any
/// more.
async fn id(link: &Link, stream: Stream) -> u32 {
    link.until(|state| {
        let is_over = state.ending != crate::observation::Ending::Open;
        state.stream_id(stream).or(is_over.then_some(0))
    })
    .await
}

/// Sends a field block, in several frames if it is long.
async fn headers(link: &Link, block: &FieldBlock) -> bool {
    let id = id(link, block.stream).await;
    let payload = http2::encode(&block.fields);
    let mut pieces: Vec<&[u8]> = payload.chunks(frame::MAX_FRAME).collect();
    if pieces.is_empty() {
        pieces.push(&[]);
    }
    let mut bytes = Vec::new();
    for (index, piece) in pieces.iter().enumerate() {
        let is_last = index + 1 == pieces.len() && !block.more;
        let mut flags = if is_last { frame::END_HEADERS } else { 0 };
        let kind = if index == 0 {
            flags |= if block.end { frame::END_STREAM } else { 0 };
            frame::HEADERS
        } else {
            frame::CONTINUATION
        };
        frame::write(&mut bytes, kind, flags, id, piece);
    }
    link.send(bytes);
    link.flushed().await;
    true
}

/// Sends content as the windows permit.
async fn data(link: &Link, id: u32, content: &[u8], end: bool, padding: Option<u8>) -> bool {
    let end_stream = if end { frame::END_STREAM } else { 0 };
    if let Some(padding) = padding {
        let mut payload = vec![padding];
        payload.extend_from_slice(content);
        payload.extend(std::iter::repeat_n(0, usize::from(padding)));
        let mut bytes = Vec::new();
        frame::write(
            &mut bytes,
            frame::DATA,
            end_stream | frame::PADDED,
            id,
            &payload,
        );
        link.send(bytes);
        link.flushed().await;
        return true;
    }
    let mut rest = content;
    loop {
        let mut taken = 0;
        if !rest.is_empty() {
            let wanted = rest.len();
            taken = link.until(|state| state.take_window(id, wanted)).await;
            if taken == 0 {
                // The stream or the connection has ended, as a later step will find.
                return true;
            }
        }
        let (piece, following) = rest.split_at(taken);
        let flags = if following.is_empty() { end_stream } else { 0 };
        let mut bytes = Vec::new();
        frame::write(&mut bytes, frame::DATA, flags, id, piece);
        link.send(bytes);
        link.flushed().await;
        rest = following;
        if rest.is_empty() {
            return true;
        }
    }
}
