//! Models of the kept bytes: no order of the threads' steps exceeds the limit or loses bytes.

use mesh_models::{check, join};

use super::*;

#[test]
fn reservations_never_exceed_the_limit_and_are_returned() {
    check(|| {
        let memory = Arc::new(ReplayMemory::new(10));
        let other = memory.clone();
        let reserve = |memory: Arc<ReplayMemory>| {
            let mut reservation = memory.reservation();
            let is_granted = reservation.grow(6);
            assert!(memory.used() <= 10);
            let has_more = is_granted && reservation.grow(5);
            assert!(!has_more);
            is_granted
        };
        let (one, two) = join(move || reserve(other), || reserve(memory.clone()));
        assert!(one || two, "the first finds room");
        assert_eq!(memory.used(), 0);
    });
}
