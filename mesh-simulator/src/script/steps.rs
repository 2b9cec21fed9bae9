//! The words of each step.

use super::error::{Problem, ScriptError};
use super::line::Tokens;
use super::{
    Bytes, Field, FieldBlock, GrpcStep, Http2Step, MAX_BYTES, MAX_PAUSE, Reading, Step, Wait,
    WebSocketStep,
};

/// The lines that begin with `|` below a step.
#[derive(Debug, Default)]
pub(super) struct Block {
    pub(super) lines: Vec<Line>,
}

/// A line without its `|`.
#[derive(Debug)]
pub(super) struct Line {
    /// The number of the line in the script.
    pub(super) number: usize,
    pub(super) column: usize,
    pub(super) text: Vec<u8>,
}

/// The steps and what follows each, as an error shows them.
pub(super) const STEPS: &str = "send, pause, signal, wait, read, finish, reset, close, manual, \
     settings, headers, continuation, data, rst, goaway, ping, window, frame, call, reply, \
     message, status, websocket";

/// The frames of WebSocket by name.
pub(super) const OPCODES: [(&str, u8); 6] = [
    ("continuation", 0),
    ("text", 1),
    ("binary", 2),
    ("close", 8),
    ("ping", 9),
    ("pong", 10),
];

/// The error codes of RFC 9113, section 7, by number.
pub(super) const CODES: [&str; 14] = [
    "NO_ERROR",
    "PROTOCOL_ERROR",
    "INTERNAL_ERROR",
    "FLOW_CONTROL_ERROR",
    "SETTINGS_TIMEOUT",
    "STREAM_CLOSED",
    "FRAME_SIZE_ERROR",
    "REFUSED_STREAM",
    "CANCEL",
    "COMPRESSION_ERROR",
    "CONNECT_ERROR",
    "ENHANCE_YOUR_CALM",
    "INADEQUATE_SECURITY",
    "HTTP_1_1_REQUIRED",
];

/// The settings of RFC 9113, section 6.5.2, from number 1.
pub(super) const SETTINGS: [&str; 6] = [
    "header-table-size",
    "enable-push",
    "max-concurrent-streams",
    "initial-window-size",
    "max-frame-size",
    "max-header-list-size",
];

/// Reads the step that begins with `word`; and whether lines may follow.
pub(super) fn read(
    word: &str,
    column: usize,
    tokens: &mut Tokens,
) -> Result<(Step, Option<Block>), Problem> {
    let block = || Some(Block::default());
    let step = match word {
        "send" => {
            let piece = tokens.take_option("pieces", 1..=1 << 20)?;
            let bytes = tokens.bytes()?;
            let takes_lines = bytes.0.is_empty();
            let step = Step::Send { bytes, piece };
            return Ok((step, takes_lines.then(Block::default)));
        }
        "headers" => {
            return Ok((
                Step::Http2(Http2Step::Headers(field_block(tokens)?)),
                block(),
            ));
        }
        "continuation" => {
            let read = field_block(tokens)?;
            return Ok((Step::Http2(Http2Step::Continuation(read)), block()));
        }
        "pause" => Step::Pause(tokens.number("the time in milliseconds", 0..=MAX_PAUSE)?),
        "signal" => Step::Signal(tokens.word("the name of the signal")?),
        "wait" => Step::Wait(wait(tokens)?),
        "read" => Step::Read(reading(tokens)?),
        "finish" => Step::Finish,
        "reset" => Step::Reset,
        "close" => Step::Close,
        "call" => Step::Grpc(GrpcStep::Call {
            stream: tokens.stream()?,
            path: tokens.word("the path of the method")?,
        }),
        "reply" => Step::Grpc(GrpcStep::Reply {
            stream: tokens.stream()?,
        }),
        "message" => Step::Grpc(GrpcStep::Message {
            stream: tokens.stream()?,
            end: tokens.take("end"),
            compressed: tokens.take("compressed"),
            bytes: tokens.bytes()?,
        }),
        "status" => Step::Grpc(GrpcStep::Status {
            stream: tokens.stream()?,
            code: tokens.number("the status", 0..=u32::MAX)?,
            message: tokens.optional_text()?,
        }),
        "websocket" => Step::WebSocket(websocket(tokens)?),
        _ => match http2(word, tokens)? {
            Some(step) => Step::Http2(step),
            None => {
                let problem = format!("unknown step `{word}`");
                return Err(Problem::new(
                    column,
                    problem,
                    format!("the steps are {STEPS}"),
                ));
            }
        },
    };
    Ok((step, None))
}

/// Adds lines to the step of a line. Returns the bytes that it sends more than before.
pub(super) fn add_block(step: &mut Step, number: usize, block: Block) -> Result<u64, ScriptError> {
    match step {
        Step::Send { bytes, .. } => {
            if block.lines.is_empty() {
                let remedy = "write bytes in quotes, or lines that begin with `|` below";
                return Err(Problem::new(1, "`send` sends nothing", remedy).at_line(number));
            }
            let mut text = Vec::new();
            for line in block.lines {
                text.extend(line.text);
                text.extend(b"\r\n");
            }
            let added = text.len() as u64;
            *bytes = Bytes::literal(text);
            Ok(added)
        }
        Step::Http2(Http2Step::Headers(to) | Http2Step::Continuation(to)) => {
            for line in block.lines {
                let field = field(&line.text).ok_or_else(|| {
                    let remedy = "write `name: value`";
                    let problem = Problem::new(line.column, "this is not a field line", remedy);
                    problem.at_line(line.number)
                })?;
                to.fields.push(field);
            }
            Ok(0)
        }
        _ => Ok(0),
    }
}

/// `name: value`. The name of a pseudo-header field begins with a colon.
fn field(line: &[u8]) -> Option<Field> {
    let from = usize::from(line.first() == Some(&b':'));
    let colon = from + line[from..].iter().position(|byte| *byte == b':')?;
    let value = &line[colon + 1..];
    let value = value.strip_prefix(b" ").unwrap_or(value);
    Some((line[..colon].to_vec(), value.to_vec()))
}

fn field_block(tokens: &mut Tokens) -> Result<FieldBlock, Problem> {
    Ok(FieldBlock {
        stream: tokens.stream()?,
        end: tokens.take("end"),
        more: tokens.take("more"),
        fields: Vec::new(),
    })
}

fn wait(tokens: &mut Tokens) -> Result<Wait, Problem> {
    let column = tokens.column();
    let Some(word) = tokens.peek_word().map(str::to_owned) else {
        return Ok(Wait::Text(tokens.some_bytes()?));
    };
    tokens.take(&word);
    Ok(match word.as_str() {
        "bytes" => Wait::Bytes(tokens.number("the number of bytes", 0..=MAX_BYTES)?),
        "end" => Wait::End,
        "signal" => Wait::Signal(tokens.word("the name of the signal")?),
        "head" => Wait::Head(tokens.optional_stream()?),
        "message" => Wait::Message(tokens.optional_stream()?),
        "data" => Wait::Data(
            tokens.stream()?,
            tokens.number("the number of bytes", 0..=MAX_BYTES)?,
        ),
        "content" => Wait::Content(tokens.some_bytes()?),
        "tunnel" => Wait::Tunnel(tokens.number("the number of bytes", 0..=MAX_BYTES)?),
        "goaway" => Wait::GoAway,
        "settings-ack" => Wait::SettingsAck,
        "ping-ack" => Wait::PingAck,
        _ => {
            return Err(Problem::new(
                column,
                format!("unknown event `{word}`"),
                "wait for bytes in quotes, bytes N, end, signal NAME, head, message, data, \
                 content BYTES, tunnel N, goaway, settings-ack or ping-ack",
            ));
        }
    })
}

fn reading(tokens: &mut Tokens) -> Result<Reading, Problem> {
    let column = tokens.column();
    match tokens.word("stop, go or slow")?.as_str() {
        "stop" => Ok(Reading::Stop),
        "go" => Ok(Reading::Go),
        "slow" => Ok(Reading::Slow {
            bytes: tokens.number("the number of bytes", 1..=1 << 20)?,
            every: tokens.number("the time in milliseconds", 1..=MAX_PAUSE)?,
        }),
        other => Err(Problem::new(
            column,
            format!("unknown speed `{other}`"),
            "use `read stop`, `read go` or `read slow BYTES MILLISECONDS`",
        )),
    }
}

fn http2(word: &str, tokens: &mut Tokens) -> Result<Option<Http2Step>, Problem> {
    Ok(Some(match word {
        "manual" => Http2Step::Manual,
        "settings" if tokens.take("ack") => Http2Step::SettingsAck,
        "settings" => Http2Step::Settings(settings(tokens)?),
        "data" => Http2Step::Data {
            stream: tokens.stream()?,
            end: tokens.take("end"),
            padding: tokens.take_option("padding", 0..=u8::MAX)?,
            bytes: tokens.bytes()?,
        },
        "rst" => Http2Step::ResetStream {
            stream: tokens.stream()?,
            code: code(tokens)?,
        },
        "goaway" => Http2Step::GoAway {
            last: tokens.stream()?,
            code: code(tokens)?,
        },
        "ping" => Http2Step::Ping {
            ack: tokens.take("ack"),
            opaque: tokens.number("the opaque data, as a number,", 0..=u64::MAX)?,
        },
        "window" => Http2Step::Window {
            stream: tokens.stream()?,
            increment: tokens.number("the increment", 0..=u32::MAX >> 1)?,
        },
        "frame" => Http2Step::Raw {
            kind: tokens.number("the type of the frame", 0..=u8::MAX)?,
            flags: tokens.number("the flags", 0..=u8::MAX)?,
            stream: tokens.stream()?,
            bytes: tokens.bytes()?,
        },
        _ => return Ok(None),
    }))
}

fn settings(tokens: &mut Tokens) -> Result<Vec<(u16, u32)>, Problem> {
    let mut settings = Vec::new();
    while !tokens.is_empty() {
        let column = tokens.column();
        let mut read = None;
        for (index, name) in SETTINGS.iter().enumerate() {
            let number = index as u16 + 1;
            if let Some(value) = tokens.take_option(name, 0..=u32::MAX)? {
                read = Some((number, value));
            }
        }
        if read.is_none() {
            let name = tokens.peek_word().and_then(|word| word.split('=').next());
            if let Some((name, number)) =
                name.and_then(|name| Some((name.to_owned(), name.parse().ok()?)))
                && let Some(value) = tokens.take_option(&name, 0..=u32::MAX)?
            {
                read = Some((number, value));
            }
        }
        settings.push(read.ok_or_else(|| {
            let remedy = format!(
                "use {} or a number, then `=` and the value",
                SETTINGS.join(", ")
            );
            Problem::new(column, "this is not a setting", remedy)
        })?);
    }
    Ok(settings)
}

/// An error code by name or number.
fn code(tokens: &mut Tokens) -> Result<u32, Problem> {
    let named = tokens.peek_word().map(str::to_owned).and_then(|word| {
        let number = CODES.iter().position(|name| *name == word)?;
        tokens.take(&word);
        Some(number as u32)
    });
    named.map_or_else(
        || tokens.number("an error code, as CANCEL or 8,", 0..=u32::MAX),
        Ok,
    )
}

fn websocket(tokens: &mut Tokens) -> Result<WebSocketStep, Problem> {
    let column = tokens.column();
    let word = tokens.word("the type of the frame")?;
    let named = OPCODES.iter().find(|(name, _)| *name == word);
    let opcode = named.map(|(_, opcode)| *opcode);
    let opcode = opcode.or_else(|| word.parse().ok().filter(|opcode| *opcode <= 15));
    let Some(opcode) = opcode else {
        let problem = format!("unknown frame `{word}`");
        let remedy = "use text, binary, continuation, close, ping, pong or a number up to 15";
        return Err(Problem::new(column, problem, remedy));
    };
    Ok(WebSocketStep {
        opcode,
        more: tokens.take("more"),
        bytes: tokens.bytes()?,
    })
}
