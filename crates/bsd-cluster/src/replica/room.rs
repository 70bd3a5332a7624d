//! A member with a full disk. Others go on; it is tried again until there is room.
//!
//! | what has no room | so |
//! |---|---|
//! | the ledger | the member agrees to nothing, and says nothing to the others. If it led, another one is elected meanwhile, and its clients are closed |
//! | the log of one that follows | what is committed waits; the ledger has it. If it is elected all the same, it transfers leadership |
//! | the log of one that leads | puts are refused, as by a server that is alone; after a second it transfers leadership |
//! | the disks of several members, so that no majority has room | puts are refused; the leader stays. See `storage`: `kept` |
//!
//! Leadership is not transferred again for a while, so that members whose disks are all full do not pass
//! it around: then puts are refused. The while is shorter if another member says that it has room: a
//! leader may have lost leadership to this one for another reason.

use crate::ledger::LedgerError;
use bsd::ErrorClass;
use bsd::types::{SECOND_NS, Time};

/// After a full disk has refused something it is tried again after this long.
const AGAIN_NS: i64 = SECOND_NS / 10;
/// A leader whose ledger has no room for this time has sent nothing to the others, and they elect
/// another one.
const SILENCE_NS: i64 = SECOND_NS / 2;
/// A leader that has no room in its log for this time transfers leadership.
const SHORT_NS: i64 = SECOND_NS;
/// When it leads again it stays the leader for this time …
const KEEP_NS: i64 = 600 * SECOND_NS;
/// … or for this time, if another member could lead and has room.
const KEEP_FROM_HEIR_NS: i64 = 10 * SECOND_NS;
/// Another member is asked to lead once in this time. Within it, it does or it does not.
const ASK_NS: i64 = SECOND_NS;

/// Something that has no room.
#[derive(Debug, Clone, Copy)]
struct Want {
    since: Time,
    /// When it is tried again.
    again: Time,
}

impl Want {
    fn refused(known: Option<Want>, now: Time) -> Want {
        Want {
            since: known.map_or(now, |want| want.since),
            again: Time(now.0 + AGAIN_NS),
        }
    }
}

/// Where there is no room now.
#[derive(Debug, Default)]
pub(super) struct Room {
    /// In the ledger, and which room it is.
    ledger: Option<(Want, ErrorClass)>,
    /// In the log, for what is committed.
    log: Option<Want>,
    /// When the ledger's next file, for which there is no room, is tried again.
    spare_again: Option<Time>,
    /// In the log of a leader, for puts, since then.
    short_since: Option<Time>,
    /// When another member was asked to lead for that, and when one did.
    asked_at: Option<Time>,
    gave_up_at: Option<Time>,
}

impl Room {
    /// The ledger had no room.
    pub(super) fn refused_by_ledger(&mut self, error: &LedgerError, now: Time) {
        if self.ledger.is_none() {
            tracing::warn!("{error}");
        }
        let known = self.ledger.map(|(want, _)| want);
        self.ledger = Some((Want::refused(known, now), error.class()));
    }

    /// The ledger has room.
    pub(super) fn ledger_goes_on(&mut self) {
        if self.ledger.take().is_some() {
            tracing::warn!("the ledger has room again: this member agrees to entries again");
        }
    }

    /// The log had no room for a committed entry.
    pub(super) fn refused_by_log(&mut self, class: ErrorClass, now: Time) {
        if self.log.is_none() {
            let (lack, relief) = (class.lack(), class.relief());
            tracing::warn!("{lack}: this member does not follow until there is room; {relief}");
        }
        self.log = Some(Want::refused(self.log, now));
    }

    /// The log has all that is committed.
    pub(super) fn log_goes_on(&mut self) {
        if self.log.take().is_some() {
            tracing::warn!("the log has room again: this member follows");
        }
    }

    /// Whether the ledger is to be tried.
    pub(super) fn may_persist(&self, now: Time) -> bool {
        self.ledger.is_none_or(|(want, _)| now >= want.again)
    }

    /// Whether the log is to be tried.
    pub(super) fn may_apply(&self, now: Time) -> bool {
        self.log.is_none_or(|want| now >= want.again)
    }

    /// Whether the next file of a ledger that lacks it is to be tried; then it is.
    pub(super) fn may_try_spare(&mut self, now: Time) -> bool {
        let may = self.spare_again.is_none_or(|again| now >= again);
        if may {
            self.spare_again = Some(Time(now.0 + AGAIN_NS));
        }
        may
    }

    /// True while the ledger has no room.
    pub(super) fn is_ledger_full(&self) -> bool {
        self.ledger.is_some()
    }

    /// Which room the ledger lacks.
    pub(super) fn ledger_lacks(&self) -> Option<ErrorClass> {
        self.ledger.map(|(_, class)| class)
    }

    /// True while the log has no room for what is committed.
    pub(super) fn is_log_full(&self) -> bool {
        self.log.is_some()
    }

    /// When something is tried again. While the ledger has no room nothing is applied.
    pub(super) fn next_deadline(&self) -> Option<Time> {
        let ledger = self.ledger.map(|(want, _)| want);
        ledger.or(self.log).map(|want| want.again)
    }

    /// True if the others have not heard of this member for so long that they do without it.
    pub(super) fn has_been_silent(&self, now: Time) -> bool {
        self.ledger
            .is_some_and(|(want, _)| now.since(want.since) >= SILENCE_NS)
    }

    /// Whether a leader should transfer leadership now, if its log refuses puts (`is_short`), and
    /// another member could lead and has room (`has_heir`).
    pub(super) fn leads_in_vain(&mut self, is_short: bool, has_heir: bool, now: Time) -> bool {
        if !is_short {
            self.short_since = None;
            return false;
        }
        let since = *self.short_since.get_or_insert(now);
        let keep_ns = match has_heir {
            true => KEEP_FROM_HEIR_NS,
            false => KEEP_NS,
        };
        let has_just = |at: Time| now.since(at) < keep_ns;
        let is_vain = now.since(since) >= SHORT_NS;
        is_vain && !self.gave_up_at.is_some_and(has_just) && self.may_ask(now)
    }

    /// Whether one that was elected, and cannot lead because its log lacks entries, should hand the
    /// lead over now.
    pub(super) fn is_unfit(&self, now: Time) -> bool {
        self.is_log_full() && self.may_ask(now)
    }

    fn may_ask(&self, now: Time) -> bool {
        self.asked_at.is_none_or(|at| now.since(at) >= ASK_NS)
    }

    /// Another member was asked to lead; it may not come to that.
    pub(super) fn asked(&mut self, now: Time) {
        self.asked_at = Some(now);
    }

    /// This member does not lead any more.
    pub(super) fn fell(&mut self, now: Time) {
        self.short_since = None;
        if self.asked_at.is_some_and(|at| now.since(at) < ASK_NS) {
            self.gave_up_at = Some(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: i64 = SECOND_NS / 1000;

    /// It leads from `from` to `to`, in milliseconds, without room in its log, and no one has it: when it
    /// asks another one to lead.
    fn lead(room: &mut Room, from: i64, to: i64) -> Vec<i64> {
        lead_beside(room, false, from, to)
    }

    fn lead_beside(room: &mut Room, has_heir: bool, from: i64, to: i64) -> Vec<i64> {
        let mut asked = Vec::new();
        for ms in (from..to).step_by(10) {
            if room.leads_in_vain(true, has_heir, Time(ms * MS)) {
                room.asked(Time(ms * MS));
                asked.push(ms);
            }
        }
        asked
    }

    #[test]
    fn t19_a_leader_without_room_hands_over_once_and_keeps_the_lead_when_it_has_it_again() {
        let mut room = Room::default();
        // No one takes it: another try each second.
        assert_eq!(lead(&mut room, 0, 3_500), [1_000, 2_000, 3_000]);
        room.fell(Time(3_500 * MS));
        // All disks are full: it comes back.
        let again = 3_500 + KEEP_NS / MS;
        assert_eq!(lead(&mut room, 5_000, again), Vec::<i64>::new());
        assert_eq!(lead(&mut room, again, again + 500), [again]);
    }

    #[test]
    fn a_leader_without_room_hands_over_again_to_one_that_has_it() {
        let mut room = Room::default();
        assert_eq!(lead_beside(&mut room, true, 0, 1_500), [1_000]);
        room.fell(Time(1_500 * MS));
        // The other one did not answer, and this one was elected again.
        assert_eq!(lead_beside(&mut room, true, 3_000, 12_000), [11_500]);
    }

    #[test]
    fn t19_a_lead_that_was_lost_for_another_reason_is_handed_over_when_there_is_no_room() {
        let mut room = Room::default();
        assert_eq!(lead(&mut room, 0, 500), Vec::<i64>::new());
        room.fell(Time(500 * MS));
        assert_eq!(lead(&mut room, 1_000, 2_500), [2_000]);
        // It takes longer than that to lose leadership by being asked.
        room.fell(Time(4_000 * MS));
        assert_eq!(lead(&mut room, 5_000, 6_500), [6_000]);
    }

    #[test]
    fn t19_who_was_elected_and_lacks_entries_asks_once_a_second() {
        let mut room = Room::default();
        assert!(!room.is_unfit(Time(0)));
        room.refused_by_log(ErrorClass::Full, Time(0));
        let mut asked = 0;
        for ms in (0..5_000).step_by(10) {
            if room.is_unfit(Time(ms * MS)) {
                room.asked(Time(ms * MS));
                asked += 1;
            }
        }
        assert_eq!(asked, 5);
        room.log_goes_on();
        assert!(!room.is_unfit(Time(9_000 * MS)));
    }
}
