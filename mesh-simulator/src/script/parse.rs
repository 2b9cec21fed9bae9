//! The lines of a script: its protocol, its sections, and the steps in them.

use super::error::{Problem, ScriptError};
use super::line::{Tokens, unescape};
use super::steps::{self, Block, Line};
use super::{
    MAX_BYTES, MAX_CONNECTIONS, MAX_FIELDS, MAX_STEPS, MAX_TEXT, Protocol, Script, Server, Step,
};

/// The script so far.
#[derive(Default)]
struct Draft {
    protocol: Option<Protocol>,
    clients: Vec<Vec<Step>>,
    servers: Vec<Vec<Step>>,
    server: Option<ServerKind>,
    section: Section,
    steps: usize,
    sent: u64,
    /// The `|` lines below the last step, and the line of that step.
    block: Option<(usize, Block)>,
}

/// What a section of the server says.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ServerKind {
    Refuses,
    Accepts,
    Responds,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Section {
    #[default]
    None,
    Client,
    Server,
}

pub(super) fn parse(text: &str) -> Result<Script, ScriptError> {
    if text.len() > MAX_TEXT {
        let problem = format!(
            "a script has at most {MAX_TEXT} bytes, and this {}",
            text.len()
        );
        let remedy = "repeat bytes with `\"x\" * 100`, or divide the script";
        return Err(Problem::new(1, problem, remedy).at_line(1));
    }
    let mut draft = Draft::default();
    let mut last = 1;
    for (index, line) in text.lines().enumerate() {
        last = index + 1;
        let line = line.trim_end();
        let result = match line.trim_start().strip_prefix('|') {
            Some(rest) => draft.continue_block(rest, last, column_after_bar(line)),
            None if Tokens::read(line).is_ok_and(|tokens| tokens.is_empty()) => Ok(()),
            None => {
                draft.end_block()?;
                draft.line(line, last)
            }
        };
        result.map_err(|problem| problem.at_line(last))?;
    }
    draft.end_block()?;
    draft.finish().map_err(|problem| problem.at_line(last))
}

fn column_after_bar(line: &str) -> usize {
    let before = line.chars().take_while(|it| *it != '|').count();
    before + 2
}

impl Draft {
    fn line(&mut self, line: &str, number: usize) -> Result<(), Problem> {
        let mut tokens = Tokens::read(line)?;
        let column = tokens.column();
        let word = tokens.word("a step")?;
        if let Some(section) = word.strip_suffix(':') {
            return self.section(section, tokens, column);
        }
        if word == "protocol" {
            self.protocol = Some(protocol(&mut tokens)?);
            return tokens.finish();
        }
        if word.ends_with(':') || tokens.peek_word().is_some_and(|word| word.ends_with(':')) {
            return self.named_section(&word, tokens, column);
        }
        let part = match self.section {
            Section::None => {
                return Err(Problem::new(
                    column,
                    format!("`{word}` stands before a section"),
                    "begin with `protocol tcp`, `http1` or `http2`, then `client:` or `server:`",
                ));
            }
            Section::Client => self.clients.last_mut(),
            Section::Server => self.servers.last_mut(),
        };
        let refuses = self.server == Some(ServerKind::Refuses);
        let Some(part) = part.filter(|_| !(refuses && self.section == Section::Server)) else {
            return Err(Problem::new(
                column,
                "a server that refuses connections has no steps",
                "remove the step, or replace `server refuses:` by `server:`",
            ));
        };
        let (step, block) = steps::read(&word, column, &mut tokens)?;
        tokens.finish()?;
        self.steps += 1;
        if self.steps > MAX_STEPS {
            return Err(Problem::new(
                column,
                format!("a script has at most {MAX_STEPS} steps"),
                "divide the script",
            ));
        }
        self.sent = self.sent.saturating_add(step.sent());
        check_sent(self.sent, column)?;
        part.push(step);
        self.block = block.map(|block| (number, block));
        Ok(())
    }

    fn section(&mut self, name: &str, tokens: Tokens, column: usize) -> Result<(), Problem> {
        tokens.finish()?;
        match name {
            "client" => self.open(Section::Client, column),
            "server" => self.open_server(ServerKind::Accepts, column),
            "response" => self.open_server(ServerKind::Responds, column),
            _ => Err(unknown_section(column)),
        }
    }

    /// `server refuses:`.
    fn named_section(
        &mut self,
        name: &str,
        mut tokens: Tokens,
        column: usize,
    ) -> Result<(), Problem> {
        if name != "server" || !tokens.take("refuses:") || self.server.is_some() {
            return Err(unknown_section(column));
        }
        self.server = Some(ServerKind::Refuses);
        self.section = Section::Server;
        tokens.finish()
    }

    /// Opens a section of a server, which are all of one kind.
    fn open_server(&mut self, kind: ServerKind, column: usize) -> Result<(), Problem> {
        if *self.server.get_or_insert(kind) != kind {
            return Err(unknown_section(column));
        }
        self.open(Section::Server, column)
    }

    fn open(&mut self, section: Section, column: usize) -> Result<(), Problem> {
        let parts = if section == Section::Server {
            &mut self.servers
        } else {
            &mut self.clients
        };
        if parts.len() == MAX_CONNECTIONS {
            return Err(Problem::new(
                column,
                format!("a script has at most {MAX_CONNECTIONS} sections of each peer"),
                "the last `server:` or `response:` is also for what follows",
            ));
        }
        parts.push(Vec::new());
        self.section = section;
        Ok(())
    }

    /// Adds a `|` line to the step above it.
    fn continue_block(&mut self, rest: &str, number: usize, column: usize) -> Result<(), Problem> {
        let (rest, column) = match rest.strip_prefix(' ') {
            Some(rest) => (rest, column + 1),
            None => (rest, column),
        };
        let characters: Vec<char> = rest.chars().collect();
        let text = unescape(&characters, column)?;
        let Some((_, block)) = &mut self.block else {
            return Err(Problem::new(
                column,
                "no step above takes lines",
                "lines belong below `send` without bytes, `headers` or `continuation`",
            ));
        };
        if block.lines.len() == MAX_FIELDS {
            return Err(Problem::new(
                column,
                format!("a step has at most {MAX_FIELDS} lines"),
                "divide it into several steps",
            ));
        }
        block.lines.push(Line {
            number,
            column,
            text,
        });
        Ok(())
    }

    /// Adds the lines below a step to it.
    fn end_block(&mut self) -> Result<(), ScriptError> {
        let Some((number, block)) = self.block.take() else {
            return Ok(());
        };
        let part = match self.section {
            Section::Server => self.servers.last_mut(),
            _ => self.clients.last_mut(),
        };
        let Some(step) = part.and_then(|part| part.last_mut()) else {
            return Ok(());
        };
        let added = steps::add_block(step, number, block)?;
        self.sent = self.sent.saturating_add(added);
        check_sent(self.sent, 1).map_err(|problem| problem.at_line(number))
    }

    fn finish(self) -> Result<Script, Problem> {
        let missing = |what: &str| {
            Problem::new(
                1,
                format!("the script has no {what}"),
                "a script has `protocol …`, then `client:` and `server:` with steps below them",
            )
        };
        let protocol = self.protocol.ok_or_else(|| missing("`protocol`"))?;
        if self.clients.is_empty() {
            return Err(missing("`client:`"));
        }
        let server = match self.server.ok_or_else(|| missing("`server:`"))? {
            ServerKind::Refuses => Server::Refuses,
            ServerKind::Accepts => Server::Accepts(self.servers),
            ServerKind::Responds if protocol == Protocol::Http1 => Server::Responds(self.servers),
            ServerKind::Responds => {
                return Err(Problem::new(
                    1,
                    "`response:` is for HTTP/1",
                    "write `server:`, or `protocol http1`",
                ));
            }
        };
        Ok(Script {
            protocol,
            clients: self.clients,
            server,
        })
    }
}

fn check_sent(sent: u64, column: usize) -> Result<(), Problem> {
    if sent <= MAX_BYTES {
        return Ok(());
    }
    Err(Problem::new(
        column,
        format!("the steps send more than {MAX_BYTES} bytes together"),
        "send fewer",
    ))
}

fn unknown_section(column: usize) -> Problem {
    Problem::new(
        column,
        "this section is not known here",
        "sections are `client:` and, for the server, either `server:`, `response:` or one \
         `server refuses:`",
    )
}

fn protocol(tokens: &mut Tokens) -> Result<Protocol, Problem> {
    let column = tokens.column();
    match tokens.word("the protocol")?.as_str() {
        "tcp" => Ok(Protocol::Tcp),
        "http1" => Ok(Protocol::Http1),
        "http2" => Ok(Protocol::Http2),
        other => Err(Problem::new(
            column,
            format!("unknown protocol `{other}`"),
            "use tcp, http1 (also for WebSocket) or http2 (also for gRPC)",
        )),
    }
}
