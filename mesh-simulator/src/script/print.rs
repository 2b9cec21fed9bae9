//! Writes scripts in the text format that `parse` reads.

use std::fmt::{self, Display, Formatter, Write as _};

use super::line::escape;
use super::steps::{CODES, OPCODES, SETTINGS};
use super::{
    Bytes, FieldBlock, GrpcStep, Http2Step, Protocol, Reading, Script, Server, Step, Stream, Wait,
    WebSocketStep,
};

impl Display for Script {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "protocol {}", self.protocol)?;
        for steps in &self.clients {
            write_part(f, "client:", steps)?;
        }
        match &self.server {
            Server::Refuses => write_part(f, "server refuses:", &[]),
            Server::Accepts(servers) => servers
                .iter()
                .try_for_each(|steps| write_part(f, "server:", steps)),
            Server::Responds(responses) => responses
                .iter()
                .try_for_each(|steps| write_part(f, "response:", steps)),
        }
    }
}

fn write_part(f: &mut Formatter<'_>, head: &str, steps: &[Step]) -> fmt::Result {
    writeln!(f, "\n{head}")?;
    for step in steps {
        for line in step.to_string().lines() {
            writeln!(f, "  {line}")?;
        }
    }
    Ok(())
}

impl Display for Protocol {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Http1 => "http1",
            Self::Http2 => "http2",
        })
    }
}

impl Display for Step {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Send { bytes, piece } => {
                f.write_str("send")?;
                if let Some(piece) = piece {
                    write!(f, " pieces={piece}")?;
                }
                match lines(bytes) {
                    Some(lines) => lines.iter().try_for_each(|line| write_line(f, line)),
                    None => write!(f, "{bytes}"),
                }
            }
            Self::Pause(milliseconds) => write!(f, "pause {milliseconds}"),
            Self::Signal(name) => write!(f, "signal {name}"),
            Self::Wait(wait) => write!(f, "wait{wait}"),
            Self::Read(Reading::Stop) => f.write_str("read stop"),
            Self::Read(Reading::Go) => f.write_str("read go"),
            Self::Read(Reading::Slow { bytes, every }) => write!(f, "read slow {bytes} {every}"),
            Self::Finish => f.write_str("finish"),
            Self::Reset => f.write_str("reset"),
            Self::Close => f.write_str("close"),
            Self::Http2(step) => step.fmt(f),
            Self::Grpc(step) => step.fmt(f),
            Self::WebSocket(step) => step.fmt(f),
        }
    }
}

/// The lines of bytes that consist of lines, without their ends.
fn lines(bytes: &Bytes) -> Option<Vec<&[u8]>> {
    let [part] = bytes.0.as_slice() else {
        return None;
    };
    let is_text = part.times == 1 && !part.text.ends_with(b"\r\r\n");
    let mut rest = part.text.strip_suffix(b"\r\n").filter(|_| is_text)?;
    let mut lines = Vec::new();
    while let Some(end) = rest.windows(2).position(|pair| pair == b"\r\n") {
        lines.push(&rest[..end]);
        rest = &rest[end + 2..];
    }
    lines.push(rest);
    Some(lines)
}

fn write_line(f: &mut Formatter<'_>, line: &[u8]) -> fmt::Result {
    // A blank at the end of a line is not read.
    let (line, blank) = match line.strip_suffix(b" ") {
        Some(line) => (line, "\\x20"),
        None => (line, ""),
    };
    let text = escape(line, false);
    if text.is_empty() && blank.is_empty() {
        return f.write_str("\n  |");
    }
    write!(f, "\n  | {text}{blank}")
}

impl Display for Bytes {
    /// Each part with a blank before it.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for part in &self.0 {
            write!(f, " \"{}\"", escape(&part.text, true))?;
            if part.times != 1 {
                write!(f, " * {}", part.times)?;
            }
        }
        Ok(())
    }
}

impl Display for Stream {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nth(nth) => write!(f, "#{nth}"),
            Self::Id(id) => write!(f, "{id}"),
        }
    }
}

impl Display for Wait {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(count) => write!(f, " bytes {count}"),
            Self::Text(bytes) => bytes.fmt(f),
            Self::End => f.write_str(" end"),
            Self::Signal(name) => write!(f, " signal {name}"),
            Self::Head(stream) => write!(f, " head{}", Optional(*stream)),
            Self::Message(stream) => write!(f, " message{}", Optional(*stream)),
            Self::Data(stream, count) => write!(f, " data {stream} {count}"),
            Self::Content(bytes) => write!(f, " content{bytes}"),
            Self::Tunnel(count) => write!(f, " tunnel {count}"),
            Self::GoAway => f.write_str(" goaway"),
            Self::SettingsAck => f.write_str(" settings-ack"),
            Self::PingAck => f.write_str(" ping-ack"),
        }
    }
}

/// A stream after a blank, if there is one.
struct Optional(Option<Stream>);

impl Display for Optional {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |stream| write!(f, " {stream}"))
    }
}

impl Display for Http2Step {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Manual => f.write_str("manual"),
            Self::Settings(settings) => {
                f.write_str("settings")?;
                for (number, value) in settings {
                    match SETTINGS.get(usize::from(*number).wrapping_sub(1)) {
                        Some(name) => write!(f, " {name}={value}")?,
                        None => write!(f, " {number}={value}")?,
                    }
                }
                Ok(())
            }
            Self::SettingsAck => f.write_str("settings ack"),
            Self::Headers(block) => write!(f, "headers {block}"),
            Self::Continuation(block) => write!(f, "continuation {block}"),
            Self::Data {
                stream,
                end,
                padding,
                bytes,
            } => {
                write!(f, "data {stream}{}", flag(*end, "end"))?;
                if let Some(padding) = padding {
                    write!(f, " padding={padding}")?;
                }
                bytes.fmt(f)
            }
            Self::ResetStream { stream, code } => write!(f, "rst {stream} {}", Code(*code)),
            Self::GoAway { last, code } => write!(f, "goaway {last} {}", Code(*code)),
            Self::Ping { ack, opaque } => write!(f, "ping{} {opaque}", flag(*ack, "ack")),
            Self::Window { stream, increment } => write!(f, "window {stream} {increment}"),
            Self::Raw {
                kind,
                flags,
                stream,
                bytes,
            } => write!(f, "frame {kind} {flags} {stream}{bytes}"),
        }
    }
}

impl Display for FieldBlock {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (end, more) = (flag(self.end, "end"), flag(self.more, "more"));
        write!(f, "{}{end}{more}", self.stream)?;
        for (name, value) in &self.fields {
            write_line(f, &[name, &b": "[..], value].concat())?;
        }
        Ok(())
    }
}

impl Display for GrpcStep {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Call { stream, path } => write!(f, "call {stream} {path}"),
            Self::Reply { stream } => write!(f, "reply {stream}"),
            Self::Message {
                stream,
                end,
                compressed,
                bytes,
            } => {
                let (end, compressed) = (flag(*end, "end"), flag(*compressed, "compressed"));
                write!(f, "message {stream}{end}{compressed}{bytes}")
            }
            Self::Status {
                stream,
                code,
                message,
            } => {
                write!(f, "status {stream} {code}")?;
                match message {
                    Some(message) => Bytes::literal(message.as_bytes()).fmt(f),
                    None => Ok(()),
                }
            }
        }
    }
}

impl Display for WebSocketStep {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("websocket ")?;
        match OPCODES.iter().find(|(_, opcode)| *opcode == self.opcode) {
            Some((name, _)) => f.write_str(name)?,
            None => write!(f, "{}", self.opcode)?,
        }
        write!(f, "{}{}", flag(self.more, "more"), self.bytes)
    }
}

struct Code(u32);

impl Display for Code {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match CODES.get(self.0 as usize) {
            Some(name) => f.write_str(name),
            None => self.0.fmt(f),
        }
    }
}

/// The name of an error code, or its number.
pub(crate) fn code_name(code: u32) -> String {
    let mut name = String::new();
    let _infallible = write!(name, "{}", Code(code));
    name
}

/// The word with a blank before it, if it applies.
fn flag(applies: bool, word: &str) -> String {
    if applies {
        format!(" {word}")
    } else {
        String::new()
    }
}
