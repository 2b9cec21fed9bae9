//! [`walk`]: shows the lines of a trace one by one.

use std::io::{self, BufRead, Write};

use xtask::print_lines;

const PROMPT: &str = "Enter or a number of lines, q to stop > ";

/// What the reader of a trace wants next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Command {
    Show(usize),
    Quit,
}

/// Prints the lines as standard input asks for them. The end of the input asks for nothing.
pub(crate) fn walk(lines: &[String]) -> anyhow::Result<()> {
    let mut rest = lines;
    let mut input = io::stdin().lock();
    while !rest.is_empty() {
        io::stdout().write_all(PROMPT.as_bytes())?;
        io::stdout().flush()?;
        let mut line = String::new();
        if input.read_line(&mut line)? == 0 {
            return Ok(());
        }
        match command(&line) {
            Ok(Command::Show(count)) => {
                let (shown, others) = rest.split_at(count.min(rest.len()));
                print_lines(shown)?;
                rest = others;
            }
            Ok(Command::Quit) => return Ok(()),
            Err(problem) => print_lines(&[problem])?,
        }
    }
    Ok(())
}

fn command(line: &str) -> Result<Command, String> {
    match line.trim() {
        "" => Ok(Command::Show(1)),
        "q" => Ok(Command::Quit),
        number => match number.parse() {
            Ok(count) => Ok(Command::Show(count)),
            Err(_) => Err(format!("{number:?} is not a number of lines, and not q")),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_read() {
        assert_eq!(command("\n"), Ok(Command::Show(1)));
        assert_eq!(command("20\n"), Ok(Command::Show(20)));
        assert_eq!(command("q\n"), Ok(Command::Quit));
        let problem = command("x\n").expect_err("not a number");
        assert!(problem.contains("\"x\""), "{problem}");
    }
}
