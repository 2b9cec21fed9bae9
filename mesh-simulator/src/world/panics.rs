//! Panics of the tasks of a world, which tokio keeps from its other tasks.

use std::cell::RefCell;
use std::panic::{self, PanicHookInfo};
use std::sync::Once;

thread_local! {
    /// `None` while no world runs on the thread.
    static PANICS: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

/// Records the panics of this thread until it is dropped.
pub(super) struct Recording;

/// From now on panics of this thread are recorded. Panics of a planted bug are not printed.
pub(super) fn record() -> Recording {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            add(info);
            if mesh_planted::planted().is_none() || cfg!(panic = "abort") {
                before(info);
            }
        }));
    });
    PANICS.set(Some(Vec::new()));
    Recording
}

fn add(info: &PanicHookInfo<'_>) {
    PANICS.with_borrow_mut(|panics| {
        if let Some(panics) = panics {
            let at = info.location().map(ToString::to_string);
            let at = at.unwrap_or_default();
            let message = info.payload_as_str().unwrap_or_default();
            panics.push(format!("panic at {at}: {message}"));
        }
    });
}

impl Recording {
    /// The panics up to now.
    pub(super) fn take(self) -> Vec<String> {
        PANICS.take().unwrap_or_default()
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        PANICS.set(None);
    }
}
