//! Which bug is planted on this thread. A world runs on one thread, so that worlds of other threads
//! stay sound.

use std::cell::Cell;

use crate::Bug;

thread_local! {
    static PLANTED: Cell<Option<Bug>> = const { Cell::new(None) };
    static HAS_STRUCK: Cell<bool> = const { Cell::new(false) };
}

/// Plants a bug, or none, until the guard is dropped.
pub fn plant(bug: impl Into<Option<Bug>>) -> Planted {
    rearm();
    Planted(PLANTED.replace(bug.into()))
}

/// The bug that is planted on this thread.
pub fn planted() -> Option<Bug> {
    PLANTED.get()
}

/// Lets a bug that strikes once strike again: a new world begins.
pub fn rearm() {
    HAS_STRUCK.set(false);
}

/// Ends [`plant`] when it is dropped.
#[must_use]
pub struct Planted(Option<Bug>);

impl Drop for Planted {
    fn drop(&mut self) {
        PLANTED.set(self.0);
    }
}

impl Bug {
    /// Whether the bug is planted on this thread.
    #[inline]
    pub fn is_planted(self) -> bool {
        PLANTED.get() == Some(self)
    }

    /// Whether the bug is planted on this thread and strikes for the first time in this world.
    pub fn strikes_once(self) -> bool {
        self.is_planted() && !HAS_STRUCK.replace(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bug_is_planted_until_the_guard_is_dropped() {
        let bug = Bug::ResetIsEnd;
        assert!(!bug.is_planted());
        let first = plant(bug);
        assert!(bug.is_planted() && !Bug::EndIsReset.is_planted());
        let none = plant(None);
        assert!(!bug.is_planted());
        drop(none);
        assert!(bug.is_planted());
        drop(first);
        assert_eq!(planted(), None);
    }

    #[test]
    fn bug_of_one_thread_is_not_planted_on_another() {
        let _planted = plant(Bug::ResetIsEnd);
        let elsewhere = std::thread::spawn(|| Bug::ResetIsEnd.is_planted());
        assert!(!elsewhere.join().unwrap());
    }

    #[test]
    fn bug_strikes_once_in_each_world() {
        let _planted = plant(Bug::ResetIsEnd);
        let strike = || Bug::ResetIsEnd.strikes_once();
        assert_eq!([strike(), strike()], [true, false]);
        rearm();
        assert!(strike());
    }
}
