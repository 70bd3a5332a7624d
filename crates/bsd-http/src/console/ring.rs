//! The last samples of something, of which some are one.

use std::collections::VecDeque;

/// Samples of which two become one.
pub(super) trait Merge: Copy {
    /// The greater of each number, so that no peak is lost.
    fn merge(&mut self, other: &Self);
}

/// Samples, of which some are one.
#[derive(Debug)]
pub(super) struct Ring<T> {
    each: u32,
    most: usize,
    /// How many are in the last one.
    in_last: u32,
    samples: VecDeque<T>,
}

impl<T: Merge> Ring<T> {
    pub(super) fn new((each, most): (u32, usize)) -> Ring<T> {
        Ring {
            each,
            most,
            in_last: each,
            samples: VecDeque::with_capacity(most),
        }
    }

    /// The oldest first.
    pub(super) fn samples(&self) -> &VecDeque<T> {
        &self.samples
    }

    pub(super) fn push(&mut self, sample: &T) {
        if self.in_last < self.each {
            self.in_last += 1;
            if let Some(last) = self.samples.back_mut() {
                last.merge(sample);
            }
            return;
        }
        if self.samples.len() == self.most {
            self.samples.pop_front();
        }
        self.in_last = 1;
        self.samples.push_back(*sample);
    }
}
