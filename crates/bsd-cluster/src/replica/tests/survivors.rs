//! The loss of two of three members at any instant, and a server made of the third: each of them in
//! turn is the third. A majority had what was acknowledged, so at most one of the three lacks it.

use super::*;
use crate::survivor::{Recovered, Survivor, SurvivorError};

const NEW: &str = "/recovered";

impl World {
    /// Judge each member as the last one that is left, after it loses power.
    pub(super) fn judge_survivors(&mut self) {
        let images: Vec<SimFs> = (0..3).map(|site| self.image(site)).collect();
        let recovered: Vec<BTreeSet<JobId>> = images.iter().map(|it| self.survive(it)).collect();
        let having = |id: &JobId| recovered.iter().filter(|jobs| jobs.contains(id)).count();
        for id in self.oracle.put.keys() {
            let may_be_gone = self.oracle.delete_asked.contains(id);
            assert!(
                may_be_gone || having(id) >= 2,
                "job {id} is had by {} of three that are recovered",
                having(id)
            );
        }
        for id in &self.oracle.deleted {
            let having = having(id);
            assert!(having < 2, "job {id} was deleted, and {having} have it");
        }
    }

    fn image(&mut self, site: usize) -> SimFs {
        let how = match self.random.below(3) {
            0 => Crash::KeepAll,
            1 => Crash::DropUnsynced,
            _ => Crash::Random {
                seed: self.random.next(),
            },
        };
        let image = self.sites[site].disk.crash_image(how);
        image.set_quota(None);
        image
    }

    /// The jobs of the server that is made of what is on this disk.
    fn survive(&mut self, disk: &SimFs) -> BTreeSet<JobId> {
        let done = match recover(disk, self.now) {
            // It is started once: that goes on with what it was getting.
            Err(SurvivorError::Refused(_)) => {
                Life::begin(disk, 1, self.now).unwrap();
                recover(disk, self.now)
            }
            done => done,
        };
        let done = done.unwrap_or_else(|error| panic!("nothing is made of a survivor: {error}"));
        self.seen.survivors += 1;
        self.seen.ledgers_ahead += u64::from(done.last > done.log);
        self.seen.uncertain += u64::from(done.uncertain.entries > 0);
        let engine = Engine::open(&alone(disk), self.now).unwrap();
        let queue = engine.queue();
        let bodies = &self.oracle.put;
        // Of an id that a leader gave out which was replaced, an entry that counts for nothing may be
        // here, with another body.
        let has = |(id, body): &(&JobId, &Vec<u8>)| {
            let job = queue.job(**id);
            job.is_some_and(|job| job.body_size as usize == body.len())
        };
        let ids = bodies.iter().filter(has).map(|(id, _)| *id).collect();
        assert_eq!(done.jobs, queue.stats().jobs.total());
        let newest = bodies.keys().next_back().copied().unwrap_or_default();
        assert!(queue.next_id().0 > newest.0 + (1 << 31), "ids are left out");
        ids
    }
}

fn alone(disk: &SimFs) -> Options {
    Options {
        dir: Some(NEW.into()),
        fs: Arc::new(disk.clone()),
        segment_size: 1 << 20,
        ..Options::default()
    }
}

fn recover(disk: &SimFs, now: Now) -> Result<Recovered, SurvivorError> {
    let fs: Arc<dyn Fs> = Arc::new(disk.clone());
    let survivor = Survivor::open(&fs, Path::new(DIR))?;
    survivor.recover(Path::new(NEW), false, now, &mut |_, _| {})
}

/// A world whose members have all of some jobs, of which the logs do not know yet that they are
/// committed.
fn some_jobs() -> World {
    let mut world = World::new(3);
    (world.busy, world.puts) = (100, 100);
    while world.oracle.put.len() < 20 {
        world.pass_time();
        (0..3).for_each(|site| world.turn(site, true));
    }
    world
}

#[test]
fn g03_the_tail_of_a_survivors_ledger_is_taken_over_and_named() {
    let mut world = some_jobs();
    let leader = world.leader().unwrap();
    let follower = (leader + 1) % 3;
    let disk = world.sites[follower].disk.crash_image(Crash::DropUnsynced);
    let done = recover(&disk, world.now).unwrap();
    assert!(
        done.log < done.committed || done.committed < done.last,
        "{done:?}"
    );
    assert_eq!(
        done.uncertain.entries > 0,
        !done.uncertain.put.is_empty(),
        "{done:?}"
    );
    world.judge_survivors();
    // The directory of the member is as it was: it can be done again, elsewhere.
    let fs: Arc<dyn Fs> = Arc::new(disk.clone());
    let survivor = Survivor::open(&fs, Path::new(DIR)).unwrap();
    let again = survivor.recover(Path::new("/again"), false, world.now, &mut |_, _| {});
    assert_eq!(again.unwrap(), done);
    let refused = survivor.recover(Path::new(NEW), false, world.now, &mut |_, _| {});
    assert!(matches!(
        refused,
        Err(SurvivorError::Open(OpenError::Foreign { .. }))
    ));
    drop(survivor);
    // It serves.
    let mut engine = Engine::open(&alone(&disk), world.now).unwrap();
    let client = engine.connect();
    let mut replies = Replies(Vec::new());
    let put = Command::put(0, 0, 60, b"new");
    engine.run(client, Request::Command(put), world.now, &mut replies);
    engine.close(world.now).unwrap();
    assert!(matches!(replies.0[..], [(_, _, Told::Inserted(_))]));
}

#[test]
fn g03_a_damaged_ledger_is_refused_and_what_is_before_the_damage_can_be_had() {
    let world = some_jobs();
    let leader = world.leader().unwrap();
    let disk = world.sites[leader].disk.crash_image(Crash::KeepAll);
    let whole = recover(&disk.crash_image(Crash::KeepAll), world.now).unwrap();
    let fs: Arc<dyn Fs> = Arc::new(disk.clone());
    let mut names = fs.read_dir(&ledger_dir(Path::new(DIR))).unwrap();
    names.retain(|entry| entry.name.starts_with("ledger-0"));
    names.sort_by(|one, other| one.name.cmp(&other.name));
    let path = ledger_dir(Path::new(DIR)).join(&names.last().unwrap().name);
    let file = fs
        .open(&path, bsd::storage::disk::OpenMode::ReadWrite)
        .unwrap();
    // Somewhere among its frames: what is behind shows that it was durable.
    let mut byte = [0];
    let at = (200..file.size().unwrap())
        .rev()
        .find(|at| {
            file.read_at(&mut byte, *at).unwrap();
            byte[0] != 0
        })
        .unwrap()
        / 2;
    file.read_at(&mut byte, at).unwrap();
    file.write_at(&[byte[0] ^ 0x10], at).unwrap();
    let survivor = Survivor::open(&fs, Path::new(DIR)).unwrap();
    let recover = |partial| survivor.recover(Path::new(NEW), partial, world.now, &mut |_, _| {});
    match recover(false) {
        Err(SurvivorError::Refused(why)) => assert!(why.contains("--partial"), "{why}"),
        other => panic!("{other:?}"),
    }
    let part = recover(true).unwrap();
    assert!(part.last < whole.last && part.last >= part.log, "{part:?}");
}
