//! Models of the budget: no order of the threads' steps allows more retries than it has, or loses
//! a deposit.

use std::sync::Arc;

use mesh_models::{check, join};

use super::*;

/// A budget of deposits alone, each for one retry.
fn budget(deposits: usize) -> Arc<RetryBudget> {
    let budget = RetryBudget::new(Settings {
        ttl: Duration::from_secs(10),
        min_per_second: 0,
        ratio: 1.0,
    });
    for _ in 0..deposits {
        budget.deposit(budget.start);
    }
    Arc::new(budget)
}

/// Two threads withdraw, the second `later`. Returns how many of them may retry.
fn withdraw_twice(budget: &Arc<RetryBudget>, later: Duration) -> usize {
    let other = budget.clone();
    let first = budget.start;
    let (one, two) = join(
        move || other.withdraw(first + later),
        || budget.withdraw(first),
    );
    usize::from(one) + usize::from(two)
}

#[test]
fn last_retry_is_allowed_once() {
    check(|| {
        let budget = budget(1);
        let allowed = withdraw_twice(&budget, Duration::ZERO);
        assert!(allowed <= 1);
        // Each may have seen the other's withdrawal; nothing is lost then.
        let left = budget.withdraw(budget.start);
        assert_eq!(allowed + usize::from(left), 1);
    });
}

/// The threads write to different slots: one of them was interrupted at the end of the first.
#[test]
fn last_retry_is_allowed_once_by_threads_in_different_slots() {
    check(|| {
        let budget = budget(1);
        let allowed = withdraw_twice(&budget, budget.slot_length());
        assert!(allowed <= 1);
    });
}

#[test]
fn deposits_to_a_slot_of_an_earlier_turn_are_all_counted() {
    check(|| {
        let budget = budget(1);
        let now = budget.start + budget.settings.ttl;
        let other = budget.clone();
        join(move || other.deposit(now), || budget.deposit(now));
        assert_eq!(budget.balance(budget.turn(now)), i64::from(2 * COST));
    });
}
