//! A named part of a long task: prints its start, its duration and its result. `test` and
//! `binaries` use it.

use std::time::{Duration, Instant};

/// Runs one stage and prints its name, its duration and its result.
pub fn run<T>(
    name: &str,
    what: &str,
    stage: impl FnOnce() -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    eprintln!("==> {name}: {what}");
    let started = Instant::now();
    let result = stage();
    let end = if result.is_ok() { "ok" } else { "FAILED" };
    eprintln!("    {name} {end}, {}", duration(started.elapsed()));
    result
}

fn duration(time: Duration) -> String {
    let seconds = time.as_secs();
    if seconds < 60 {
        format!("{:.1} s", time.as_secs_f64())
    } else {
        format!("{} min {:02} s", seconds / 60, seconds % 60)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stage_durations_are_formatted() {
        for (time, expected) in [
            (Duration::from_millis(1234), "1.2 s"),
            (Duration::from_secs(60), "1 min 00 s"),
            (Duration::from_secs(725), "12 min 05 s"),
        ] {
            assert_eq!(duration(time), expected);
        }
    }

    #[test]
    fn stage_returns_result_of_work() {
        assert_eq!(run("stage", "a test", || Ok(7)).ok(), Some(7));
        assert!(
            run("stage", "a test", || anyhow::bail!("no")
                as anyhow::Result<()>)
            .is_err()
        );
    }
}
