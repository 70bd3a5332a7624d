//! Pseudo-random numbers from a seed: for the simulated disk, and for tests that a seed repeats.

/// A sequence of numbers that a seed determines, on every machine and in every version (SplitMix64:
/// Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014). Not for secrets.
#[derive(Debug, Clone)]
pub struct Random(u64);

#[allow(
    clippy::should_implement_trait,
    reason = "the sequence has no end, and an iterator's `next` would say that it may"
)]
impl Random {
    /// The sequence of a seed.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// The sequence determined by this state and `name`.
    pub fn fork(&self, name: u64) -> Random {
        Random(Random(self.0).next() ^ Random(!name).next())
    }

    /// The next number, any of 64 bits.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// A number from 0 to `bound` - 1; 0 if `bound` is 0. Panics if `bound` is negative.
    pub fn below<N: TryInto<u64> + TryFrom<u64>>(&mut self, bound: N) -> N {
        let Ok(bound) = bound.try_into() else {
            panic!("a negative bound");
        };
        let Ok(number) = N::try_from(self.next() % bound.max(1)) else {
            unreachable!("a number below one of this type is of this type");
        };
        number
    }

    /// True `chance` times in a hundred.
    pub fn percent(&mut self, chance: impl TryInto<u64>) -> bool {
        chance
            .try_into()
            .is_ok_and(|chance| self.below(100) < chance)
    }

    /// True once in `times`.
    pub fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// One of `choices`, of which there is at least one.
    pub fn pick<T: Clone>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())].clone()
    }

    /// Puts the items into another order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }

    /// `count` random bytes.
    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.next() as u8).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_sequence_for_ever() {
        let mut random = Random::new(0);
        assert_eq!(random.next(), 0xe220_a839_7b1d_cdaf);
        assert_eq!(random.next(), 0x6e78_9e6a_a1b9_65f4);
    }

    #[test]
    fn numbers_stay_below_their_bound_and_reach_it() {
        let mut random = Random::new(7);
        let mut seen = [false; 5];
        (0..1000).for_each(|_| seen[random.below(5)] = true);
        assert_eq!(seen, [true; 5]);
        assert_eq!((random.below(1), random.below(0)), (0, 0));
        assert!(random.below(u64::MAX) > u64::from(u32::MAX));
        assert!((0..1000).all(|_| random.percent(100) && !random.percent(0)));
    }

    #[test]
    fn forks_differ_by_name_and_by_seed() {
        let first = |seed, name| Random::new(seed).fork(name).next();
        assert_ne!(first(1, 1), first(1, 2));
        assert_ne!(first(1, 1), first(2, 1));
        assert_ne!(first(1, 2), first(2, 1));
    }

    #[test]
    fn a_shuffle_loses_nothing() {
        let mut items: Vec<_> = (0..50).collect();
        Random::new(7).shuffle(&mut items);
        assert!(!items.is_sorted());
        items.sort_unstable();
        assert!(items.iter().copied().eq(0..50));
    }
}
