//! Pseudo-random numbers from a seed: SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom
//! number generators", 2014).

/// A few nanoseconds per number; good enough for sizes and choices, not for secrets.
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`, which is at least 1.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        if bound <= 1 {
            return 0;
        }
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stay_below_their_bound_and_reach_it() {
        let mut random = Random::new(7);
        let mut seen = [false; 5];
        (0..1000).for_each(|_| seen[random.below(5) as usize] = true);
        assert_eq!(seen, [true; 5]);
        assert_eq!(random.below(1), 0);
    }
}
