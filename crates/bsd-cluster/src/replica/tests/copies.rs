//! Copies of a log, from one member to another, as `server: member: snapshot` sends them, and a crash in
//! the middle.

use super::*;
use crate::replica::ReplicaError;
use bsd::ErrorClass;
use bsd::storage::convert::parts::LogParts;
use bsd::storage::convert::rebuild::Rebuild;
use bsd::storage::disk::ReadFs;
use bsd::storage::disk::sim::{Errno, Fault, OpKind};
use bsd::storage::format::LogId;

/// A copy on its way.
pub(super) struct Copy {
    comes_at: Time,
    from: usize,
    /// Of the sender.
    lives: u64,
    to: usize,
    base: Base,
    log: LogId,
    files: Files,
}

/// A node that does not go with its log, as a start says it.
pub(super) fn refused(why: &dyn std::fmt::Display) -> OpenError {
    OpenError::Foreign {
        path: ledger_dir(Path::new(DIR)),
        what: why.to_string(),
    }
}

type Files = Vec<(String, Vec<u8>)>;

/// The log on this disk as it is now, with what the node says of it.
fn take(disk: &SimFs, life: &Life) -> Option<(Base, LogId, Files)> {
    let parts = LogParts::take(disk, Path::new(DIR)).unwrap();
    let parts = parts.expect("no one writes meanwhile");
    // Entries after the last frame changed nothing: the copy has them too.
    let stamp = match parts.stamp() == life.engine.framed_stamp() {
        true => life.engine.stamp(),
        false => parts.stamp(),
    };
    let base = life.replica.base_at(stamp)?;
    let files = parts.files().enumerate().map(|(at, (name, size))| {
        let bytes = parts.read(at, 0, size as usize);
        (name, bytes.unwrap())
    });
    Some((base, parts.log(), files.collect()))
}

/// The copy is complete under `cluster/incoming`.
fn build(disk: &SimFs, copy: &Copy, now: Now) -> Result<(), OpenError> {
    let (fs, ledger_dir): (Arc<dyn Fs>, _) = (Arc::new(disk.clone()), ledger_dir(Path::new(DIR)));
    install::discard(&fs, &ledger_dir)?;
    let mut rebuild = Rebuild::begin(&fs, &install::incoming(&ledger_dir))?;
    for (name, bytes) in &copy.files {
        rebuild.write(name, 0, bytes)?;
    }
    let mut rebuilt = rebuild.open(copy.log, now)?;
    rebuilt.set_stamp(Stamp {
        index: copy.base.index,
        term: copy.base.term,
    });
    rebuilt.finish(None)
}

/// The copy is complete under `cluster/incoming`; then it takes the place of the log. `false`: it does
/// not; on a full disk (`is_full`) that may be for want of room.
fn install(
    disk: &SimFs,
    is_full: bool,
    life: &mut Life,
    copy: &Copy,
    now: Now,
) -> Result<bool, String> {
    match build(disk, copy, now) {
        Err(OpenError::Io(_)) if is_full && !disk.is_crashed() => {
            let (fs, ledger_dir): (Arc<dyn Fs>, _) =
                (Arc::new(disk.clone()), ledger_dir(Path::new(DIR)));
            return install::discard(&fs, &ledger_dir)
                .map(|()| false)
                .map_err(|error| error.to_string());
        }
        built => built.map_err(|error| error.to_string())?,
    }
    let installed = life
        .replica
        .install(&mut life.engine, copy.base.clone(), now);
    installed.map_err(|error| error.to_string())
}

impl World {
    pub(super) fn send_copy(&mut self, from: usize, to: NodeId) {
        let takes = match self.is_scripted {
            true => 20 * MS,
            false => MS + self.random.below(40 * MS),
        };
        let comes_at = Time(self.now.mono.0 + takes);
        let site = &mut self.sites[from];
        let Some(life) = &mut site.life else { return };
        let Some((base, log, files)) = take(&site.disk, life) else {
            return life.replica.snapshot_sent(to, None);
        };
        self.copies.push(Copy {
            comes_at,
            from,
            lives: site.lives,
            to: to.0 as usize - 1,
            base,
            log,
            files,
        });
    }

    pub(super) fn copies_come(&mut self) {
        let (due, rest) = std::mem::take(&mut self.copies)
            .into_iter()
            .partition(|copy| copy.comes_at <= self.now.mono);
        self.copies = rest;
        for copy in Vec::into_iter(due) {
            let has = self.copy_comes(&copy);
            let sender = &mut self.sites[copy.from];
            if let Some(life) = sender.life.as_mut().filter(|_| sender.lives == copy.lives) {
                let installed = has.then_some(copy.base.index);
                life.replica
                    .snapshot_sent(NodeId(copy.to as u64 + 1), installed);
            }
        }
    }

    /// Whether the receiver has what the copy has. It may crash instead.
    fn copy_comes(&mut self, copy: &Copy) -> bool {
        let is_lost = self.cut.contains(&(copy.from, copy.to));
        let crashes = self.is_stormy && self.random.one_in(3);
        let after = 1 + self.random.below(120_u64);
        let Site {
            disk,
            life,
            is_full,
            ..
        } = &mut self.sites[copy.to];
        let Some(life) = life.as_mut().filter(|_| !is_lost) else {
            return false;
        };
        if crashes {
            disk.crash_at(disk.operations() + after);
        }
        let installed = install(disk, *is_full, life, copy, self.now);
        if disk.is_crashed() {
            self.crash(copy.to);
            return false;
        }
        disk.crash_at(u64::MAX);
        let is_new = installed.unwrap_or_else(|error| panic!("member {}: {error}", copy.to));
        self.seen.installed += u64::from(is_new);
        if is_new {
            let (to, from, upto) = (copy.to + 1, copy.from + 1, copy.base.index);
            self.notes.push(format!(
                "{to} installs a snapshot of {from}, up to entry {upto}"
            ));
        }
        is_new || life.replica.has(copy.base.index)
    }
}

/// Content of a disk that has crashed, after a start: the jobs, the last entry, the term.
fn found(disk: &SimFs, now: Now, what: &str) -> (u64, Stamp, u64) {
    let life = Life::begin(disk, 7, now);
    let life = life.unwrap_or_else(|error| panic!("{what}: it does not start: {error}"));
    let status = life.replica.status();
    let stamp = life.engine.stamp();
    assert_eq!(status.applied, stamp.index, "{what}");
    (life.engine.queue().stats().jobs.total(), stamp, status.term)
}

/// The disk of one that was away, a copy of another's log, and the time.
fn one_that_was_away() -> (SimFs, Copy, Now) {
    let mut world = World::new(1);
    (world.busy, world.puts) = (100, 90);
    world.peace();
    world.sites[2].life = None;
    for _ in 0..600 {
        world.pass_time();
        (0..2).for_each(|site| world.turn(site, true));
    }
    let leader = world.leader().expect("one of two leads");
    let life = world.sites[leader].life.as_ref().unwrap();
    let (base, log, files) = take(&world.sites[leader].disk, life).unwrap();
    let copy = Copy {
        comes_at: world.now.mono,
        from: leader,
        lives: 0,
        to: 2,
        base,
        log,
        files,
    };
    let disk = world.sites[2].disk.crash_image(Crash::KeepAll);
    (disk, copy, world.now)
}

#[test]
fn on_a_full_disk_a_copy_is_installed_or_not_and_the_member_goes_on() {
    let (before, copy, now) = one_that_was_away();
    let old = found(&before.crash_image(Crash::KeepAll), now, "before");
    let (mut olds, mut news) = (0, 0);
    for room in (0..3 << 20).step_by(4 << 10) {
        let what = format!("{room} bytes");
        let disk = before.crash_image(Crash::KeepAll);
        let mut life = Life::begin(&disk, 7, now).unwrap();
        disk.set_quota(Some(disk.used() + room));
        let is_new = install(&disk, true, &mut life, &copy, now);
        let is_new = is_new.unwrap_or_else(|error| panic!("{what}: {error}"));
        let names = disk.read_dir(&ledger_dir(Path::new(DIR))).unwrap();
        let is_left = |name: &str| name == "incoming" || name == "installing";
        assert!(!names.iter().any(|it| is_left(&it.name)), "{what}");
        assert_eq!(life.replica.has(copy.base.index), is_new, "{what}");
        drop(life);
        let found = found(&disk.crash_image(Crash::DropUnsynced), now, &what);
        assert_eq!(found == old, !is_new, "{what}: {found:?}");
        (olds, news) = (olds + u32::from(!is_new), news + u32::from(is_new));
    }
    assert!(olds > 20 && news > 20, "{olds} and {news}");
}

#[test]
fn a_crash_at_any_operation_of_an_installation_leaves_the_old_log_or_the_new_one() {
    let (before, copy, now) = one_that_was_away();
    let old = found(&before.crash_image(Crash::KeepAll), now, "before");
    let stamp = Stamp {
        index: copy.base.index,
        term: copy.base.term,
    };
    let (mut olds, mut news) = (0, 0);
    for stop in 1.. {
        let disk = before.crash_image(Crash::KeepAll);
        let mut life = Life::begin(&disk, 7, now).unwrap();
        disk.crash_at(disk.operations() + stop);
        let is_new = install(&disk, false, &mut life, &copy, now) == Ok(true);
        let is_over = !disk.is_crashed();
        drop(life);
        let random = (0..4).map(|seed| Crash::Random { seed });
        for how in [Crash::KeepAll, Crash::DropUnsynced]
            .into_iter()
            .chain(random)
        {
            let what = format!("stopped at operation {stop}, {how:?}");
            let image = disk.crash_image(how);
            // The start may crash, too.
            let second = image.crash_image(Crash::KeepAll);
            second.crash_at(1 + stop % 40);
            let _ = Life::begin(&second, 7, now);
            for image in [image, second.crash_image(how)] {
                let found = found(&image, now, &what);
                let is_old = found == old && !is_new;
                assert!(
                    is_old || found.1 == stamp && found.0 > old.0 && found.2 >= old.2,
                    "{what}: {found:?} is neither {old:?} nor of {stamp:?}"
                );
                (olds, news) = (olds + u32::from(is_old), news + u32::from(!is_old));
            }
        }
        if is_over {
            break;
        }
    }
    assert!(olds > 100 && news > 100, "{olds} and {news}");
}

/// Errors of the disk that a person answers in different ways.
const ERRNOS: [(Errno, ErrorClass); 3] = [
    (Errno::NOSPC, ErrorClass::Full),
    (Errno::IO, ErrorClass::Disk),
    (Errno::MFILE, ErrorClass::Descriptors),
];

/// Let each call fail that `work` makes on a disk like `before`, one by one and with each error.
/// The reported class is the error's own, and the next start continues with the jobs of `may_be`.
/// Returns how often `work` failed.
fn fail_each_call(
    (before, now): (&SimFs, Now),
    work: impl Fn(&SimFs, &mut Life) -> Box<dyn FnOnce(&mut Life) -> Result<(), ReplicaError>>,
    may_be: &[u64],
) -> usize {
    let run = |fault: Option<Fault>| {
        let disk = before.crash_image(Crash::KeepAll);
        let mut life = Life::begin(&disk, 7, now).unwrap();
        let work = work(&disk, &mut life);
        disk.clear_trace();
        fault.into_iter().for_each(|fault| disk.inject(fault));
        let done = work(&mut life);
        let trace = disk.trace();
        drop(life);
        disk.clear_faults();
        (disk, done, trace)
    };
    let (_, done, calls) = run(None);
    done.unwrap_or_else(|error| panic!("without a fault: {error}"));
    let mut failures = 0;
    for kind in OpKind::ALL {
        let count = calls.iter().filter(|call| call.kind == kind).count() as u64;
        for (nth, (errno, class)) in (1..=count).flat_map(|nth| ERRNOS.map(|it| (nth, it))) {
            let what = format!("{kind:?} {nth} of {count}: {errno}");
            let (disk, done, _) = run(Some(Fault::fail(kind, errno).nth(nth)));
            if let Err(error) = done {
                assert_eq!(error.class(), class, "{what}: {error}");
                failures += 1;
            }
            let (jobs, ..) = found(&disk, now, &what);
            assert!(may_be.contains(&jobs), "{what}: {jobs} jobs");
        }
    }
    failures
}

#[test]
fn g02_whatever_fails_while_a_copy_is_installed_is_called_what_it_is_and_a_restart_goes_on() {
    let (before, copy, now) = one_that_was_away();
    let (old, ..) = found(&before.crash_image(Crash::KeepAll), now, "before");
    let after = before.crash_image(Crash::KeepAll);
    let mut life = Life::begin(&after, 7, now).unwrap();
    assert_eq!(install(&after, false, &mut life, &copy, now), Ok(true));
    let new = life.engine.queue().stats().jobs.total();
    let base = copy.base.clone();
    let work = move |disk: &SimFs, _: &mut Life| -> Box<dyn FnOnce(&mut Life) -> _> {
        build(disk, &copy, now).unwrap();
        let base = base.clone();
        Box::new(move |life| life.replica.install(&mut life.engine, base, now).map(drop))
    };
    let failures = fail_each_call((&before, now), work, &[old, new]);
    assert!(failures > 50, "only {failures} calls failed");
}

#[test]
fn g02_whatever_fails_while_a_former_leader_opens_its_log_again_is_called_what_it_is() {
    let (before, _, now) = one_that_was_away();
    let (jobs, ..) = found(&before.crash_image(Crash::KeepAll), now, "before");
    let work = move |_: &SimFs, _: &mut Life| -> Box<dyn FnOnce(&mut Life) -> _> {
        Box::new(move |life| life.replica.step_down(&mut life.engine, now))
    };
    let failures = fail_each_call((&before, now), work, &[jobs]);
    assert!(failures > 20, "only {failures} calls failed");
}

/// A directory may need room for a name.
#[test]
fn g05_a_copy_that_cannot_get_its_name_for_want_of_room_is_given_up_and_comes_again() {
    let (before, copy, now) = one_that_was_away();
    let disk = before.crash_image(Crash::KeepAll);
    let mut life = Life::begin(&disk, 7, now).unwrap();
    build(&disk, &copy, now).unwrap();
    disk.inject(Fault::fail(OpKind::Rename, Errno::NOSPC));
    let installed = life
        .replica
        .install(&mut life.engine, copy.base.clone(), now);
    assert!(!installed.unwrap(), "it has no name");
    let names = disk.read_dir(&ledger_dir(Path::new(DIR))).unwrap();
    assert!(
        !names.iter().any(|it| it.name.starts_with("in")),
        "{names:?}"
    );
    assert_eq!(install(&disk, false, &mut life, &copy, now), Ok(true));
}
