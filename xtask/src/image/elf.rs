//! Reads a program's ELF header to detect whether it needs a dynamic loader, which no image has.
//! `programs` rejects such programs.

use anyhow::{Context, bail};

/// `PT_INTERP`: the program header that names the dynamic loader.
const INTERPRETER: u32 = 3;

/// Returns whether a program is statically linked.
pub(crate) fn is_static(program: &[u8]) -> anyhow::Result<bool> {
    if program.get(..6) != Some(b"\x7fELF\x02\x01") {
        bail!("not a 64-bit little-endian ELF program");
    }
    let table = usize::try_from(u64::from_le_bytes(field(program, 0x20)?))?;
    let size = usize::from(u16::from_le_bytes(field(program, 0x36)?));
    let count = usize::from(u16::from_le_bytes(field(program, 0x38)?));
    for header in 0..count {
        if u32::from_le_bytes(field(program, table + header * size)?) == INTERPRETER {
            return Ok(false);
        }
    }
    Ok(true)
}

fn field<const LENGTH: usize>(program: &[u8], at: usize) -> anyhow::Result<[u8; LENGTH]> {
    program
        .get(at..at + LENGTH)
        .and_then(|bytes| bytes.try_into().ok())
        .context("the program ends within its headers")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(header_type: u32) -> Vec<u8> {
        let mut program = vec![0; 0x40 + 0x38];
        program[..6].copy_from_slice(b"\x7fELF\x02\x01");
        program[0x20] = 0x40;
        program[0x36] = 0x38;
        program[0x38] = 1;
        program[0x40..0x44].copy_from_slice(&header_type.to_le_bytes());
        program
    }

    #[test]
    fn elf_with_interpreter_is_not_static() {
        assert!(is_static(&program(1)).expect("headers"));
        assert!(!is_static(&program(INTERPRETER)).expect("headers"));
    }

    #[test]
    fn invalid_elf_header_is_an_error() {
        assert!(is_static(b"#!/bin/sh\n").is_err());
        assert!(is_static(&program(1)[..0x40]).is_err());
    }

    #[test]
    fn system_shell_is_not_static() {
        let own = std::fs::read("/proc/self/exe").expect("this program");
        assert!(!is_static(&own).expect("an ELF program"));
    }
}
