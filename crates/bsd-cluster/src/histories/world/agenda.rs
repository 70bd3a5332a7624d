//! Future events, by time.

/// Events in the order of their times, the next one last; of one time, in the order in which they
/// were put. Mostly there are about thirty, which is why this is faster than a tree or a heap.
pub(super) struct Agenda<E>(Vec<(i64, E)>);

impl<E> Agenda<E> {
    pub(super) fn new() -> Agenda<E> {
        Agenda(Vec::new())
    }

    pub(super) fn put(&mut self, at: i64, event: E) {
        let place = self.0.partition_point(|later| later.0 > at);
        self.0.insert(place, (at, event));
    }

    /// The next event and its time, if that is not after `until`.
    pub(super) fn take(&mut self, until: i64) -> Option<(i64, E)> {
        self.0.pop_if(|next| next.0 <= until)
    }

    pub(super) fn retain(&mut self, keep: impl Fn(&E) -> bool) {
        self.0.retain(|(_, event)| keep(event));
    }
}
