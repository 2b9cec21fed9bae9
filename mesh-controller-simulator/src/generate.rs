//! Scripts from a seed.

use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};

use crate::objects;
use crate::process::REPLACEABLE;
use crate::resources::Resource;
use crate::script::{Action, Answer, Cut, Requests, Script, Step};

/// Draws scripts.
struct Generator {
    random: SmallRng,
    steps: Vec<Step>,
    generation: u64,
    /// Whether the API server has gone back in time. Then no versions are skipped, so that the new
    /// history does not catch up with the old one unnoticed (docs/reliability.md, row 7).
    is_restored: bool,
}

/// Returns the script of a seed.
pub fn generate(seed: u64) -> Script {
    let mut generator = Generator {
        random: SmallRng::seed_from_u64(seed),
        steps: Vec::new(),
        generation: 0,
        is_restored: false,
    };
    generator.steps();
    let mut steps = generator.steps;
    steps.sort_by_key(|step| step.at);
    Script { seed, steps }
}

impl Generator {
    fn steps(&mut self) {
        for object in 0..objects::COUNT {
            if self.random.random_range(0..10) > 0 {
                self.write(Duration::ZERO, object);
            }
        }
        let length = Duration::from_secs(self.random.random_range(20..120));
        let (pace, faults) = (
            self.random.random_range(1..8),
            self.random.random_range(1..7),
        );
        let mut at = Duration::ZERO;
        let mut fault_at = self.times(faults, length);
        loop {
            at += self.up_to(Duration::from_secs(pace));
            if at > length {
                break;
            }
            while fault_at.last().is_some_and(|next| *next <= at) {
                if let Some(at) = fault_at.pop() {
                    self.fault(at);
                }
            }
            self.change(at);
        }
    }

    /// Draws times, the last one first.
    fn times(&mut self, count: usize, length: Duration) -> Vec<Duration> {
        let mut times: Vec<Duration> = (0..count).map(|_| self.up_to(length)).collect();
        times.sort_by(|a, b| b.cmp(a));
        times
    }

    fn up_to(&mut self, most: Duration) -> Duration {
        let most = most.as_millis() as u64;
        Duration::from_millis(self.random.random_range(0..=most))
    }

    fn push(&mut self, at: Duration, action: Action) {
        self.steps.push(Step { at, action });
    }

    fn write(&mut self, at: Duration, object: usize) {
        self.generation += 1;
        let (generation, skipped) = (self.generation, self.skipped());
        let write = Action::Write {
            object,
            generation,
            skipped,
        };
        self.push(at, write);
    }

    fn skipped(&mut self) -> u64 {
        if self.is_restored {
            0
        } else {
            self.random.random_range(0..100)
        }
    }

    fn change(&mut self, at: Duration) {
        let object = self.random.random_range(0..objects::COUNT);
        match self.random.random_range(0..10) {
            0..7 => self.write(at, object),
            7 => self.push(at, Action::Touch { object }),
            _ => {
                let skipped = self.skipped();
                self.push(at, Action::Delete { object, skipped });
            }
        }
    }

    fn fault(&mut self, at: Duration) {
        let action = match self.random.random_range(0..20) {
            0..6 => self.respond(),
            6..10 => Action::CutWatches {
                how: self.one_of(&[
                    Cut::Regularly,
                    Cut::WithinLine,
                    Cut::AfterPartOfLine,
                    Cut::Error(410),
                    Cut::Error(500),
                    Cut::Silent,
                    Cut::Repeat,
                    Cut::Garbled,
                ]),
                percent: self.one_of(&[10, 50, 100]),
            },
            10 => Action::Compact,
            11..13 => {
                self.is_restored = true;
                let down = self.up_to(Duration::from_secs(40));
                let undone = self.random.random_range(1..40);
                Action::Restart { down, undone }
            }
            13 => Action::Restart {
                down: self.up_to(Duration::from_secs(60)),
                undone: 0,
            },
            14 => Action::Lag {
                undone: self.random.random_range(1..20),
                lasting: self.up_to(Duration::from_secs(60)),
            },
            15 => Action::Partition {
                process: self.random.random_range(0..REPLACEABLE),
                lasting: self.up_to(Duration::from_secs(90)),
            },
            16..18 => Action::Kill {
                process: self.random.random_range(0..REPLACEABLE),
                down: Duration::from_secs(1) + self.up_to(Duration::from_secs(30)),
            },
            18 => Action::Stop {
                process: self.random.random_range(0..REPLACEABLE),
                down: Duration::from_secs(35) + self.up_to(Duration::from_secs(10)),
            },
            _ => {
                let custom: Vec<Resource> = Resource::all().filter(|it| it.is_custom()).collect();
                Action::Unserve {
                    resource: self.one_of(&custom),
                    lasting: self.up_to(Duration::from_secs(60)),
                }
            }
        };
        self.push(at, action);
    }

    fn respond(&mut self) -> Action {
        let code = self.one_of(&[409, 410, 429, 429, 500, 503, 504]);
        let retry_after = match code {
            429 | 503 => self.one_of(&[None, Some(1), Some(30), Some(3600)]),
            _ => None,
        };
        let late = self.up_to(Duration::from_secs(20));
        let with = match self.random.random_range(0..9) {
            0..4 => Answer::Status { code, retry_after },
            4 => Answer::Nothing,
            5 => Answer::Late(late),
            6 => Answer::Half,
            7 => Answer::Empty,
            _ => Answer::Expired,
        };
        let all = [
            Requests::All,
            Requests::Lists,
            Requests::Watches,
            Requests::Writes,
            Requests::Lease,
            Requests::Discovery,
        ];
        let to = match with {
            Answer::Empty | Answer::Expired => Requests::Watches,
            _ => self.one_of(&all),
        };
        Action::Respond {
            to,
            with,
            percent: self.one_of(&[20, 50, 100]),
            lasting: self.up_to(Duration::from_secs(60)),
        }
    }

    fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.random.random_range(0..choices.len())]
    }
}
