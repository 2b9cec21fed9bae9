//! How many certificates one caller may ask for.
//!
//! The caller is the account that the token claims, looked at before the API server is asked: a
//! workload that asks in a loop uses up its own allowance and not the reviews that the others need.
//! Somebody who forges another's token can use up that one's allowance; he could use up the reviews
//! as well.

use std::{collections::HashMap, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::tokens::Account;
use crate::cluster::{Allowance, Rate};

/// One allowance for each account.
#[derive(Debug)]
pub(super) struct Limits {
    rate: Rate,
    // Taken for a few instructions by each request, and once a second at most for a sweep.
    callers: Mutex<Callers>,
}

#[derive(Debug, Default)]
struct Callers {
    allowances: HashMap<Account, Allowance>,
    swept: Option<Instant>,
}

/// Accounts in a row that are remembered. A cluster has hundreds; only who forges names has more,
/// and then the unused ones are forgotten.
const MOST_CALLERS: usize = 10_000;

const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

impl Limits {
    pub(super) fn new(rate: Rate) -> Self {
        Self {
            rate,
            callers: Mutex::default(),
        }
    }

    /// May this caller go on?
    pub(super) fn admit(&self, caller: &Account, now: Instant) -> bool {
        let callers = &mut *self.callers.lock();
        if let Some(allowance) = callers.allowances.get_mut(caller) {
            return allowance.take(self.rate, now).is_ok();
        }
        if callers.allowances.len() >= MOST_CALLERS {
            callers.sweep(now);
            if callers.allowances.len() >= MOST_CALLERS {
                return false;
            }
        }
        let mut allowance = Allowance::default();
        let admitted = allowance.take(self.rate, now).is_ok();
        callers.allowances.insert(caller.clone(), allowance);
        admitted
    }
}

impl Callers {
    /// Forgets who has not asked for a while. Looking through all of them for each forged name
    /// would itself be a way to keep us busy.
    fn sweep(&mut self, now: Instant) {
        let recently = |swept: Instant| now.saturating_duration_since(swept) < SWEEP_INTERVAL;
        if self.swept.is_some_and(recently) {
            return;
        }
        self.swept = Some(now);
        self.allowances
            .retain(|_, allowance| !allowance.is_whole(now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(name: &str) -> Account {
        Account {
            namespace: "shop".to_owned(),
            name: name.to_owned(),
        }
    }

    #[test]
    fn callers_do_not_disturb_each_other_and_are_not_remembered_for_ever() {
        let limits = Limits::new(Rate {
            per_second: 1.0,
            burst: 2,
        });
        let now = Instant::now();
        let (web, db) = (account("web"), account("db"));
        assert!(limits.admit(&web, now) && limits.admit(&web, now));
        assert!(!limits.admit(&web, now));
        assert!(limits.admit(&db, now));
        assert!(limits.admit(&web, now + Duration::from_secs(1)));
        for forged in 0..MOST_CALLERS * 2 {
            limits.admit(&account(&forged.to_string()), now);
        }
        assert_eq!(limits.callers.lock().allowances.len(), MOST_CALLERS);
        assert!(!limits.admit(&account("new"), now));
        assert!(limits.admit(&account("new"), now + Duration::from_secs(60)));
        assert_eq!(limits.callers.lock().allowances.len(), 1);
    }
}
