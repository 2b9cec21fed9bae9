//! Delta debugging: removes steps of a script as long as it still fails.

use crate::script::{Script, Step};

/// The most runs for one failure.
const MAX_RUNS: usize = 400;

/// Returns a script with few steps that still `fails`, as the given one does.
pub fn shrink(script: &Script, mut fails: impl FnMut(&Script) -> bool) -> Script {
    let mut smallest = script.clone();
    let mut size = script.steps.len().div_ceil(2).max(1);
    let mut runs = 0;
    loop {
        let mut start = smallest.steps.len();
        let mut is_smaller = false;
        while start > 0 && runs < MAX_RUNS {
            // Later steps first: fewer depend on them.
            let end = start.min(smallest.steps.len());
            start = end.saturating_sub(size);
            let without = |(index, step): (usize, &Step)| {
                (!(start..end).contains(&index)).then(|| step.clone())
            };
            let candidate = Script {
                seed: smallest.seed,
                steps: smallest
                    .steps
                    .iter()
                    .enumerate()
                    .filter_map(without)
                    .collect(),
            };
            runs += 1;
            if fails(&candidate) {
                smallest = candidate;
                is_smaller = true;
            }
        }
        if runs >= MAX_RUNS || (size == 1 && !is_smaller) {
            return smallest;
        }
        size = size.div_ceil(2);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::script::Action;

    #[test]
    fn only_needed_steps_remain() {
        let step = |object| Step {
            at: Duration::ZERO,
            action: Action::Touch { object },
        };
        let script = Script {
            seed: 0,
            steps: (0..100).map(step).collect(),
        };
        let needed = [3, 57, 58].map(step);
        let fails = |script: &Script| needed.iter().all(|it| script.steps.contains(it));
        assert_eq!(shrink(&script, fails).steps, needed);
    }
}
