//! A world: one thread on virtual time, whose random numbers come from one seed.

use std::cell::RefCell;

use rand::SeedableRng as _;
use rand::rngs::SmallRng;
use tokio::runtime::Builder;
use tokio::task::LocalSet;

thread_local! {
    static GENERATOR: RefCell<Option<SmallRng>> = const { RefCell::new(None) };
}

/// Ends [`seed`] when it is dropped.
#[must_use]
pub struct Seeded(Option<SmallRng>);

/// Runs a world on a clock that jumps to the next timer. All random numbers of [`draw`] come from
/// `seed`. Tasks are spawned by [`tokio::task::spawn_local`]; without an I/O driver, a socket of
/// the kernel panics.
///
/// # Panics
///
/// The world panics, or is called within a runtime.
pub fn run<T>(seed: u64, world: impl AsyncFnOnce() -> T) -> T {
    let _seeded = self::seed(seed);
    let runtime = Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build();
    #[expect(
        clippy::expect_used,
        reason = "a runtime without I/O needs no resources"
    )]
    let runtime = runtime.expect("a runtime");
    LocalSet::new().block_on(&runtime, world())
}

/// Draws all random numbers of this thread from `seed`, until the guard is dropped.
pub fn seed(seed: u64) -> Seeded {
    Seeded(GENERATOR.replace(Some(SmallRng::seed_from_u64(seed))))
}

/// Draws from the generator of this thread's world; `None` outside of a world.
pub fn draw<T>(draw: impl FnOnce(&mut SmallRng) -> T) -> Option<T> {
    GENERATOR.with_borrow_mut(|generator| generator.as_mut().map(draw))
}

impl Drop for Seeded {
    fn drop(&mut self) {
        GENERATOR.set(self.0.take());
    }
}
