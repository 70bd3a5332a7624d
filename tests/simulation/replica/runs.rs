//! Runs by chance, and how large the logs grow in them.

use super::super::driver::disk_bytes;
use super::*;
use bsd::check::volume::{number, volume};

/// Runs.
impl Cluster {
    /// Many jobs to kick.
    fn prefill(&mut self) {
        while self.leader().queue().stats().jobs.buried < self.mood.buried as u64 {
            // As a clear of many has to be of one tube.
            let tubes = 2 - usize::from(self.mood.extended > 0);
            let tube = self.random.pick(&TUBES[..tubes]);
            let id = self.leader().queue().next_id();
            let (now, mut replies) = (self.now, Replies::default());
            if self.put_small(tube).unwrap_or(false) {
                while self.leader().wants_quiet() || !self.leader().has_room_for(0) {
                    self.commit_all();
                }
                let bury = self.lead().alter(id, &JobAction::Bury, now, &mut replies);
                bury.unwrap();
            }
            if self.random.percent(10) || self.leader().wants_quiet() {
                self.commit_all();
            }
        }
    }

    fn commit_all(&mut self) {
        let _ = self.end_turn();
        let last = self.last();
        let _ = self.release(last);
    }

    fn put_small(&mut self, tube: &'static str) -> Result<bool, Crashed> {
        let was = std::mem::replace(&mut self.mood.large, false);
        let size = std::mem::replace(&mut self.mood.size_max, 9);
        let done = self.put(tube, 700, 0);
        (self.mood.large, self.mood.size_max) = (was, size);
        done
    }

    fn run(&mut self, turns: usize) {
        self.limit_all(true);
        self.prefill();
        for turn in 0..turns {
            self.clear_many(turn);
            if self.random.one_in(200 / (1 + self.mood.crashes as u64)) && self.mood.crashes > 0 {
                let node = self.random.below(self.nodes.len());
                let fs = &self.nodes[node].fs;
                let at = fs.operations() + 1 + self.random.below(40u64);
                fs.crash_at(at);
            }
            let ms = self.random.pick(&[0, 0, 1, 1, 5, 30, 120, 700]);
            self.turn(ms);
            if self.random.percent(self.mood.images) {
                self.check_images(self.leader, self.released);
            }
            if self.random.percent(self.mood.changes) {
                self.change_leader();
            }
            for node in &self.nodes {
                node.fs.clear_trace();
            }
        }
        self.settle();
        self.check_all_same();
        self.check_last_beat();
        self.note_log(self.leader);
    }
}

/// Seeds that once failed, or that alone notice a mistake made on purpose.
const FOUND: [u64; 1] = [391];
const FOUND_FULL: [u64; 2] = [40, 87];

#[test]
fn random_runs_leave_all_disks_with_the_same_jobs_and_no_uncommitted_one() {
    for seed in runs(12, &FOUND) {
        let mut random = Random::new(seed ^ 0x5eed);
        let mood = Mood::any(&mut random);
        println!("seed {seed}: {mood:?}");
        let mut cluster = Cluster::begin(seed, mood);
        cluster.run(600);
        println!("    {:?}, {} entries", cluster.figures, cluster.last());
    }
}

#[test]
fn random_runs_on_disks_that_fill_up_lose_nothing_and_refuse_no_delete() {
    for seed in runs(12, &FOUND_FULL) {
        let mut random = Random::new(seed ^ 0xf011);
        let who = random.pick(&[Short::All, Short::First, Short::Others]);
        let size = 120_000 + random.below(400_000u64);
        let mood = Mood {
            short: Some((who, size)),
            jobs_max: 4000,
            size_max: random.pick(&[60, 3000, 9000]),
            buried: 0,
            ..Mood::any(&mut random)
        };
        println!("seed {seed}: {mood:?}");
        let mut cluster = Cluster::begin(seed, mood);
        cluster.run(600);
        let refused = cluster.refused;
        println!("    {refused} refused, {:?}", cluster.figures);
    }
}

/// Keys, deliveries, reasons, policies, clears and schedules.
#[test]
fn random_runs_under_policies_leave_all_disks_with_the_same() {
    for seed in runs(8, &[]) {
        let mut random = Random::new(seed ^ 0xca11);
        let mood = Mood {
            changes: 3,
            extended: 35,
            buried: [0, 1300, 0][seed as usize % 3],
            large: false,
            ..Mood::any(&mut random)
        };
        println!("seed {seed}: {mood:?}");
        let mut cluster = Cluster::begin(seed, mood);
        cluster.run(500);
        println!("    {:?}, {} entries", cluster.figures, cluster.last());
    }
}

/// P9, although something is held nearly always.
#[test]
fn the_logs_of_leader_and_followers_stay_bounded() {
    for (segment_size, size_max, turn, commits) in [
        (64 << 10, 1500, 3, 60),
        (256 << 10, 4000, 3, 60),
        (1 << 20, 16_000, 6, 30),
    ] {
        let mood = Mood {
            nodes: 2,
            sync: SyncPolicy::Interval(50),
            segment_size,
            size_max,
            jobs_max: 60,
            turn,
            commits,
            images: 0,
            changes: 0,
            crashes: 0,
            buried: 0,
            large: false,
            short: None,
            extended: 0,
        };
        let mut cluster = Cluster::begin(7, mood);
        let mut most = [0; 2];
        for _ in 0..2500 {
            let ms = cluster.random.pick(&[0, 1, 5]);
            cluster.turn(ms);
            cluster.forget();
            for (nth, node) in cluster.nodes.iter().enumerate() {
                node.fs.clear_trace();
                let live = state_of(node.engine.as_ref().unwrap(), cluster.now).live_bytes();
                let beyond = disk_bytes(&node.fs).saturating_sub(2 * live);
                most[nth] = beyond.max(most[nth]);
            }
        }
        let segment = u64::from(segment_size);
        let [leader, follower] = most.map(|most| most * 100 / segment);
        cluster.note_log(0);
        assert!(leader <= 300 && follower <= 300, "{leader} and {follower}");
        println!(
            "{segment_size}, {size_max}: {leader} and {follower} hundredths, {:?}",
            cluster.figures
        );
    }
}

impl Cluster {
    /// The data of entries that all have.
    fn forget(&mut self) {
        let least = self.nodes.iter().filter_map(|node| node.engine.as_ref());
        let least = least.map(|engine| engine.stamp().index).min().unwrap_or(0);
        let from = least.saturating_sub(64) as usize;
        for entry in &mut self.entries[from..least as usize] {
            entry.data = Vec::new();
            entry.state = None;
        }
    }
}

/// `BSD_REPLICA_SEED` repeats one run; `BSD_REPLICA_RUNS` says how many there are beside those that
/// once failed.
fn runs(count: u64, found: &[u64]) -> Vec<u64> {
    match number("BSD_REPLICA_SEED") {
        Some(seed) => vec![seed],
        None => {
            let count = volume("BSD_REPLICA_RUNS", count);
            found.iter().copied().chain(0..count).collect()
        }
    }
}
