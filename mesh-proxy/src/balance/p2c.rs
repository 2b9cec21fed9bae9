//! Power of two choices: picks the less loaded of two random candidates. Nearly as even as
//! comparing all candidates, at a constant cost, and without the herd effect of clients that all
//! pick the least loaded one.

use rand::{Rng, RngExt as _};

/// Returns the index of the picked candidate among `count`, or `None` when none is available.
pub(super) fn pick(
    count: usize,
    rng: &mut impl Rng,
    is_available: impl Fn(usize) -> bool,
    cost: impl Fn(usize) -> f64,
) -> Option<usize> {
    let (a, b) = two_of(count, rng)?;
    match (is_available(a), is_available(b)) {
        (true, true) => Some(lighter(a, b, cost)),
        // Rare: an endpoint is down. Picking the other one of the pair would send it twice its
        // share, so a new pair is drawn from the available ones.
        _ => {
            let available: Vec<usize> = (0..count).filter(|index| is_available(*index)).collect();
            let (a, b) = two_of(available.len(), rng)?;
            Some(lighter(available[a], available[b], cost))
        }
    }
}

fn lighter(a: usize, b: usize, cost: impl Fn(usize) -> f64) -> usize {
    if a == b || cost(a) <= cost(b) { a } else { b }
}

/// Returns two different indices below `count` in random order, or the same one twice if there is
/// only one.
fn two_of(count: usize, rng: &mut impl Rng) -> Option<(usize, usize)> {
    match count {
        0 => None,
        1 => Some((0, 0)),
        _ => {
            let a = rng.random_range(0..count);
            let b = rng.random_range(0..count - 1);
            Some((a, if b >= a { b + 1 } else { b }))
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng as _;
    use rand::rngs::SmallRng;

    use super::*;

    fn shares(costs: &[f64], up: &[bool]) -> Vec<usize> {
        let mut rng = SmallRng::seed_from_u64(1);
        let mut picked = vec![0; costs.len()];
        for _ in 0..10_000 {
            if let Some(index) = pick(costs.len(), &mut rng, |i| up[i], |i| costs[i]) {
                picked[index] += 1;
            }
        }
        picked
    }

    #[test]
    fn p2c_with_zero_or_one_candidate() {
        assert_eq!(shares(&[], &[]), Vec::<usize>::new());
        assert_eq!(shares(&[1.0], &[true]), [10_000]);
        assert_eq!(shares(&[1.0], &[false]), [0]);
        assert_eq!(shares(&[1.0, 1.0], &[false, false]), [0, 0]);
    }

    #[test]
    fn equal_candidates_get_equal_shares() {
        for share in shares(&[1.0; 4], &[true; 4]) {
            assert!((2_300..2_700).contains(&share), "{share}");
        }
    }

    #[test]
    fn candidate_with_highest_cost_is_never_picked() {
        let shares = shares(&[1.0, 9.0, 1.0], &[true; 3]);
        assert_eq!(shares[1], 0);
    }

    #[test]
    fn available_candidates_share_load_of_unavailable_ones() {
        let shares = shares(&[1.0; 4], &[true, false, true, true]);
        assert_eq!(shares[1], 0);
        for index in [0, 2, 3] {
            assert!((3_000..3_700).contains(&shares[index]), "{shares:?}");
        }
    }
}
