//! One leader, driven by hand, with a follower or none: what chance seldom meets.

use super::*;

/// A leader without followers.
fn alone(fs: &SimFs, segment_size: u32) -> (Engine, Mood) {
    let mood = Mood {
        nodes: 1,
        sync: SyncPolicy::Always,
        segment_size,
        size_max: 0,
        jobs_max: 0,
        turn: 0,
        commits: 0,
        images: 0,
        changes: 0,
        crashes: 0,
        buried: 0,
        large: false,
        short: None,
        extended: 0,
    };
    let mut engine = Engine::follow(&options(fs, mood), beginning()).unwrap();
    lead(&mut engine, beginning());
    (engine, mood)
}

fn lead(engine: &mut Engine, now: Now) {
    let stamp = engine.stamp();
    engine.as_follower().unwrap().lead(stamp, now).unwrap();
}

fn apply_to(engine: &mut Engine, entry: &bsd::storage::Formed, now: Now) -> Result<(), ApplyError> {
    let mut follower = engine.as_follower().unwrap();
    follower.apply_entry(entry.stamp, &entry.data, now)
}

fn run(engine: &mut Engine, client: ClientId, command: Command<'_>, now: Now) -> Option<Said> {
    let mut replies = Replies::default();
    engine.run(client, Request::Command(command), now, &mut replies);
    replies.0.pop().map(|(_, _, said)| said)
}

fn put_command(body: &[u8]) -> Command<'_> {
    Command::put(1, 0, 1000, body)
}

/// Everything that was formed is committed at once. Returns it.
fn commit_all(engine: &mut Engine, now: Now) -> Vec<bsd::storage::Formed> {
    engine.commit(now).unwrap();
    let formed: Vec<_> = std::iter::from_fn(|| engine.as_leader().unwrap().take_formed()).collect();
    if let Some(last) = formed.last() {
        engine.release(last.stamp, now).unwrap();
    }
    engine.commit(now).unwrap();
    formed
}

/// Turns without requests, until there is nothing to do.
fn rest(engine: &mut Engine, now: Now) -> Vec<bsd::storage::Formed> {
    let mut all = Vec::new();
    for _ in 0..1000 {
        if engine.wants_quiet() {
            engine.use_quiet(now).unwrap();
        } else {
            engine.tick(now, &mut Replies::default()).unwrap();
        }
        let formed = commit_all(engine, now);
        let is_idle = formed.is_empty() && !engine.wants_quiet();
        all.extend(formed);
        if is_idle && engine.next_deadline(now).is_none_or(|due| due > now.mono) {
            return all;
        }
    }
    panic!("there is always more to do at once");
}

#[test]
fn counters_for_which_no_reply_waits_do_not_keep_the_log_from_a_quiet_moment() {
    let (mut engine, _) = alone(&SimFs::new(1), 64 << 10);
    let (client, mut now) = (engine.connect(), beginning());
    run(&mut engine, client, put_command(b"counted"), now);
    rest(&mut engine, now);
    let reserve = Command::reserve(Some(Duration::ZERO));
    run(&mut engine, client, reserve, now);
    engine.tick(now, &mut Replies::default()).unwrap();
    later(&mut now, 60);
    run(&mut engine, client, put_command(&[7; 10_000]), now);
    engine.commit(now).unwrap();
    engine.tick(now, &mut Replies::default()).unwrap();
    assert!(engine.log().unwrap().has_unwritten(), "the counters");
    let held = engine.as_leader().unwrap().take_formed().unwrap();
    engine.release(held.stamp, now).unwrap();
    assert!(engine.wants_quiet() && engine.is_holding());
    for _ in 0..3 {
        engine.use_quiet(now).unwrap();
        commit_all(&mut engine, now);
    }
    assert!(!engine.wants_quiet() && !engine.is_holding());
}

/// Neither what is held nor what was only counted is an entry that others have.
#[test]
fn a_leader_that_is_closed_leaves_what_is_committed_and_no_more() {
    for (is_holding, are_counters_due) in [(false, false), (false, true), (true, false)] {
        let mut now = beginning();
        let fs = SimFs::new(1);
        let (mut engine, mood) = alone(&fs, 64 << 10);
        let client = engine.connect();
        run(&mut engine, client, put_command(b"committed"), now);
        rest(&mut engine, now);
        let before = state_of(&engine, now);
        let stamp = engine.stamp();
        let reserve = Command::reserve(Some(Duration::ZERO));
        let said = run(&mut engine, client, reserve, now);
        assert!(matches!(said, Some(Said::Job(..))), "{said:?}");
        if is_holding {
            run(&mut engine, client, put_command(b"held"), now);
            engine.commit(now).unwrap();
        }
        if are_counters_due {
            later(&mut now, 60);
            engine.tick(now, &mut Replies::default()).unwrap();
            engine.commit(now).unwrap();
            assert!(engine.log().unwrap().has_unwritten(), "the counters");
        }
        assert_eq!(engine.is_holding(), is_holding || are_counters_due);
        let segments = engine.log().unwrap().segments();
        engine.close(now).unwrap();
        let options = options(&fs.crash_image(Crash::DropUnsynced), mood);
        let opened = Engine::follow(&options, now).unwrap();
        assert_eq!(opened.stamp(), stamp);
        // A log that ends in something else goes on in a new file.
        assert_eq!(opened.log().unwrap().segments(), segments);
        let after = state_of(&opened, now);
        assert_eq!(before.difference(&after, now, false), None);
    }
}

/// Anyone who asks without looking for room gets what there is: no segment ends with what is held.
#[test]
fn requests_for_which_the_open_segment_has_no_room_are_refused_while_something_is_held() {
    let now = beginning();
    for is_move in [false, true] {
        let fs = SimFs::new(1);
        let (mut engine, mood) = alone(&fs, 64 << 10);
        let client = engine.connect();
        run(&mut engine, client, put_command(&[1; 5000]), now);
        rest(&mut engine, now);
        let before = state_of(&engine, now);
        let stamp = engine.stamp();
        let mut kept = 0;
        for nth in 0.. {
            let is_done = match is_move {
                true => {
                    let id = JobId(engine.queue().next_id().0 - 1);
                    let tube = TUBES[1 + nth % 2];
                    let to = JobAction::move_to(tube, false);
                    let done = engine.alter(id, &to, now, &mut Replies::default());
                    done.unwrap() != Altered::NoRoom
                }
                false => {
                    let said = run(&mut engine, client, put_command(&[2; 5000]), now);
                    said != Some(Said::OutOfMemory)
                }
            };
            if !is_done {
                break;
            }
            kept += 1;
            assert!(nth < 10_000, "it is not held");
            engine.commit(now).unwrap();
            engine.tick(now, &mut Replies::default()).unwrap();
        }
        assert!(kept > 2 && !engine.has_room_for(5000));
        let opened = Engine::follow(&options(&fs.crash_image(Crash::KeepAll), mood), now);
        let opened = opened.unwrap();
        assert_eq!(opened.stamp(), stamp);
        assert_eq!(before.difference(&state_of(&opened, now), now, false), None);
        rest(&mut engine, now);
        let said = run(&mut engine, client, put_command(&[3; 5000]), now);
        assert!(matches!(said, Some(Said::Inserted(_))), "{said:?}");
    }
}

/// Compaction waits, and with it what only it can make room for.
#[test]
fn a_full_disk_is_not_compacted_while_something_is_held() {
    let now = beginning();
    let quotas = [200_000, 300_000, 500_000].into_iter();
    for (quota, size) in quotas.flat_map(|quota| [(quota, 20), (quota, 3000)]) {
        let fs = SimFs::new(1);
        let (mut engine, mood) = alone(&fs, 64 << 10);
        fs.set_quota(Some(quota));
        let (client, body) = (engine.connect(), vec![1; size]);
        while let Some(Said::Inserted(_)) = run(&mut engine, client, put_command(&body), now) {
            rest(&mut engine, now);
        }
        let (before, stamp) = (state_of(&engine, now), engine.stamp());
        for id in before.jobs.keys() {
            let delete = Command::Delete(JobId(*id));
            run(&mut engine, client, delete, now);
            engine.commit(now).unwrap();
            engine.tick(now, &mut Replies::default()).unwrap();
        }
        let image = fs.crash_image(Crash::KeepAll);
        let opened = Engine::follow(&options(&image, mood), now).unwrap();
        assert_eq!(opened.stamp(), stamp);
        assert_eq!(before.difference(&state_of(&opened, now), now, false), None);
        rest(&mut engine, now);
        for id in before.jobs.keys() {
            run(&mut engine, client, Command::Delete(JobId(*id)), now);
            rest(&mut engine, now);
        }
        assert_eq!(engine.queue().stats().jobs.total(), 0);
    }
}

/// Of one that followed where there was room, and leads when another has taken all of it that was not
/// set aside: what does not fit into the open segment waits until nothing is held and compaction can
/// make way.
#[test]
fn deletes_on_a_full_disk_wait_for_what_is_held_and_are_not_refused() {
    let now = beginning();
    for (jobs, size) in (1..200)
        .step_by(5)
        .flat_map(|jobs| [(8 * jobs, 20), (jobs, 3000)])
    {
        let (mut engine, mood) = alone(&SimFs::new(1), 64 << 10);
        let fs = SimFs::new(2);
        let mut heir = Engine::follow(&options(&fs, mood), now).unwrap();
        let (client, body) = (engine.connect(), vec![1; size]);
        for _ in 0..jobs {
            run(&mut engine, client, put_command(&body), now);
            for entry in rest(&mut engine, now) {
                apply_to(&mut heir, &entry, now).unwrap();
            }
        }
        fs.set_quota(Some(fs.used()));
        lead(&mut heir, now);
        let client = heir.connect();
        for id in state_of(&heir, now).jobs.into_keys().map(JobId) {
            while heir.wants_quiet() || !heir.has_room_for(0) {
                rest(&mut heir, now);
            }
            let said = run(&mut heir, client, Command::Delete(id), now);
            assert_eq!(said, Some(Said::Deleted), "{jobs}, {size}: {id:?}");
            heir.commit(now).unwrap();
            heir.tick(now, &mut Replies::default()).unwrap();
        }
        rest(&mut heir, now);
        assert_eq!(heir.queue().stats().jobs.total(), 0);
    }
}

/// The last frames that say so may be in files that compaction drops.
#[test]
fn stamps_outlive_rotation_compaction_and_clean_stops() {
    let mut bare = 0;
    for jobs in 1..30 {
        let fs = SimFs::new(1);
        let (mut engine, mood) = alone(&fs, 64 << 10);
        let (client, mut now) = (engine.connect(), beginning());
        for _ in 0..jobs {
            run(&mut engine, client, put_command(&[1; 4000]), now);
            rest(&mut engine, now);
        }
        for id in (1..=jobs).map(JobId) {
            run(&mut engine, client, Command::Delete(id), now);
            rest(&mut engine, now);
        }
        for _ in 0..5 {
            later(&mut now, 200);
            rest(&mut engine, now);
            let image = fs.crash_image(Crash::DropUnsynced);
            let opened = Engine::follow(&options(&image, mood), now).unwrap();
            assert_eq!(opened.stamp(), engine.stamp(), "{jobs} jobs");
        }
        let segments = engine.log().unwrap().segments();
        bare += u32::from(segments.0 == segments.1 && segments.0.0 > 1);
        let stamp = engine.stamp();
        engine.close(now).unwrap();
        for _ in 0..2 {
            let opened = Engine::follow(&options(&fs, mood), now).unwrap();
            assert_eq!(opened.stamp(), stamp, "{jobs} jobs");
            opened.close(now).unwrap();
        }
    }
    assert!(bare > 0, "all that was there was dropped, now and then");
}

/// Of more counters than there is room for beside what is held, the rest waits.
#[test]
fn no_counters_are_lost_for_want_of_room_beside_what_is_held() {
    let fs = SimFs::new(1);
    let (mut engine, mood) = alone(&fs, 64 << 10);
    let (client, mut now) = (engine.connect(), beginning());
    for _ in 0..600 {
        run(&mut engine, client, put_command(b""), now);
        rest(&mut engine, now);
    }
    let reserve = Command::reserve(Some(Duration::ZERO));
    for _ in 0..600 {
        run(&mut engine, client, reserve.clone(), now);
    }
    engine.tick(now, &mut Replies::default()).unwrap();
    later(&mut now, 60);
    while engine.has_room_for(1000) {
        run(&mut engine, client, put_command(&[1; 1000]), now);
        engine.commit(now).unwrap();
    }
    engine.tick(now, &mut Replies::default()).unwrap();
    for _ in 0..5 {
        rest(&mut engine, now);
        later(&mut now, 200);
    }
    rest(&mut engine, now);
    let state = state_of(&engine, now);
    drop(engine);
    let opened = Engine::follow(&options(&fs, mood), now).unwrap();
    assert_eq!(state.difference(&state_of(&opened, now), now, true), None);
}

/// Whatever is left of the segment that the follower has.
#[test]
fn a_follower_that_leads_finishes_the_kick_that_the_last_leader_had_begun() {
    let now = beginning();
    for fill in (0..60_000).step_by(7_000) {
        let (mut engine, mood) = alone(&SimFs::new(1), 64 << 10);
        let fs = SimFs::new(2);
        let mut follower = Engine::follow(&options(&fs, mood), now).unwrap();
        let client = engine.connect();
        let mut entries = Vec::new();
        let filler = vec![7; fill];
        for nth in 0..800 {
            let body: &[u8] = if nth == 799 { &filler } else { &[] };
            run(&mut engine, client, put_command(body), now);
            entries.extend(commit_all(&mut engine, now));
            entries.extend(rest(&mut engine, now));
            let id = JobId(nth + 1);
            let done = engine.alter(id, &JobAction::Bury, now, &mut Replies::default());
            assert_eq!(done.unwrap(), Altered::Done);
            entries.extend(commit_all(&mut engine, now));
            entries.extend(rest(&mut engine, now));
        }
        let said = run(
            &mut engine,
            client,
            Command::Kick {
                tube: None,
                bound: 790,
            },
            now,
        );
        assert_eq!(said, None, "it takes several turns");
        entries.extend(commit_all(&mut engine, now));
        for entry in &entries {
            apply_to(&mut follower, entry, now).unwrap();
            follower.follow_on(now).unwrap();
        }
        lead(&mut follower, now);
        rest(&mut follower, now);
        let jobs = follower.queue().stats().jobs;
        assert_eq!((jobs.buried, jobs.ready), (10, 790), "{fill}");
        assert!(follower.log().unwrap().kicks_under_way().is_empty());
    }
}

/// The leader's deletes need what is set aside for them; so do the followers'.
#[test]
fn followers_on_disks_as_full_as_the_leaders_apply_its_deletes() {
    let sizes = [20, 100, 700, 3000, 9000];
    for (quota, size) in [200_000, 300_000, 600_000, 1_000_000]
        .into_iter()
        .flat_map(|quota| sizes.map(|size| (quota, size)))
    {
        let mut now = beginning();
        let disks = [SimFs::new(1), SimFs::new(2)];
        let (mut engine, mood) = alone(&disks[0], 64 << 10);
        let mut follower = Engine::follow(&options(&disks[1], mood), now).unwrap();
        disks.iter().for_each(|disk| disk.set_quota(Some(quota)));
        let client = engine.connect();
        let mut fulls = [0, 0];
        let mut apply = |entries: Vec<bsd::storage::Formed>, now: &mut Now, what: usize| {
            for entry in entries {
                let mut applied = apply_to(&mut follower, &entry, *now);
                if matches!(applied, Err(ApplyError::NoRoom(_))) {
                    // As the owner of the disk does.
                    fulls[what] += 1;
                    disks[1].set_quota(None);
                    later(now, 200);
                    applied = apply_to(&mut follower, &entry, *now);
                    disks[1].set_quota(Some(quota.max(disks[1].used())));
                }
                applied.unwrap();
                while follower.follow_on(*now).unwrap() {}
            }
        };
        let mut jobs = 0;
        let body = vec![7; size];
        while let Some(Said::Inserted(id)) = run(&mut engine, client, put_command(&body), now) {
            jobs = id;
            apply(commit_all(&mut engine, now), &mut now, 0);
            apply(rest(&mut engine, now), &mut now, 0);
        }
        assert!(jobs > 3);
        for id in (1..=jobs).map(JobId) {
            let said = run(&mut engine, client, Command::Delete(id), now);
            assert_eq!(said, Some(Said::Deleted));
            apply(commit_all(&mut engine, now), &mut now, 1);
            apply(rest(&mut engine, now), &mut now, 1);
        }
        println!("{quota}, {size}: {jobs} jobs, {fulls:?} times full");
        assert_eq!(fulls[1], 0, "deletes make room");
    }
}

#[test]
fn the_directory_of_a_member_is_left_alone_unless_its_ledger_is_kept() {
    use bsd::storage::disk::Fs;
    let fs = SimFs::new(1);
    let (engine, mood) = alone(&fs, 64 << 10);
    engine.close(beginning()).unwrap();
    let plain = options(&fs, mood);
    drop(Engine::open(&plain, beginning()).unwrap());
    fs.create_dir(std::path::Path::new("/data/cluster"))
        .unwrap();
    // A member that never began has left no more than this: it was none.
    drop(Engine::open(&plain, beginning()).unwrap());
    fs.write("/data/cluster/ledger", b"what it promised")
        .unwrap();
    let before = (fs.names(DIR).unwrap(), fs.used());
    let error = Engine::open(&plain, beginning()).unwrap_err();
    assert!(error.to_string().contains("cluster"), "{error}");
    assert_eq!((fs.names(DIR).unwrap(), fs.used()), before);
    drop(Engine::follow(&options(&fs, mood), beginning()).unwrap());

    // A file of that name is a stranger's, and a directory elsewhere no one's.
    let fs = SimFs::new(2);
    drop(alone(&fs, 64 << 10));
    fs.write("/data/cluster", b"a file").unwrap();
    let plain = Options {
        fs: Arc::new(fs.clone()),
        ..plain
    };
    drop(Engine::open(&plain, beginning()).unwrap());
    assert_eq!(fs.read("/data/cluster").unwrap(), b"a file");
}

/// A schedule that fires each minute.
fn each_minute() -> bsd::Schedule {
    bsd::Schedule {
        cron: "* * * * *".to_owned(),
        tube: "mail".to_owned(),
        body: b"job".to_vec(),
        ..bsd::Schedule::default()
    }
}

/// Each firing puts one job, whichever of two servers leads when it comes, and whatever of it the other
/// one has.
#[test]
fn schedules_fire_once_over_changes_of_the_leader_and_followers_fire_nothing() {
    for is_committed in [true, false] {
        let (fs, other) = (SimFs::new(1), SimFs::new(2));
        let (mut leader, mood) = alone(&fs, 64 << 10);
        let mut follower = Engine::follow(&options(&other, mood), beginning()).unwrap();
        let mut now = beginning();
        let set = bsd::protocol::SetSchedule {
            name: "a".to_owned(),
            schedule: each_minute(),
            keeps_pause: false,
        };
        let set = leader.set_schedule(&set, now).unwrap();
        assert_eq!(set, bsd::engine::ScheduleChange::Done);
        let formed = rest(&mut leader, now);
        formed
            .iter()
            .for_each(|it| apply_to(&mut follower, it, now).unwrap());
        assert!(follower.schedule("a").is_some());
        // At the firing after this one it is another server that leads.
        for _ in 0..2 {
            later(&mut now, 60_000);
            leader.tick(now, &mut Replies::default()).unwrap();
            follower.follow_on(now).unwrap();
            assert_eq!(
                follower.next_deadline(now).filter(|due| *due <= now.mono),
                None
            );
            if !is_committed && leader.queue().stats().jobs.total() == 2 {
                break;
            }
            let formed = rest(&mut leader, now);
            formed
                .iter()
                .for_each(|it| apply_to(&mut follower, it, now).unwrap());
        }
        let jobs = |engine: &Engine| engine.queue().stats().jobs.total();
        assert_eq!(
            (jobs(&leader), jobs(&follower)),
            (2, if is_committed { 2 } else { 1 })
        );
        drop(leader);
        lead(&mut follower, now);
        rest(&mut follower, now);
        assert_eq!(jobs(&follower), 2);
        later(&mut now, 60_000);
        rest(&mut follower, now);
        assert_eq!(jobs(&follower), 3);
    }
}

/// What a leader wrote by a right clock does not expire by the wrong one of the member that leads next.
#[test]
fn a_follower_whose_clock_was_set_ahead_lets_nothing_expire_before_its_time_when_it_leads() {
    const DAY_MS: u32 = 86_400_000;
    let (mut engine, mood) = alone(&SimFs::new(1), 64 << 10);
    let (client, mut now) = (engine.connect(), beginning());
    for (tube, policy) in [
        ("default", &b"delivery-limit=1 dead-letter=dead"[..]),
        ("dead", b"expire-after=604800 expired=delete"),
    ] {
        let set = engine.set(bsd::types::SettingClass::Policy, tube, policy, now);
        assert!(set.unwrap(), "{tube}");
    }
    run(&mut engine, client, put_command(b"failed"), now);
    let reserve = |engine: &mut Engine, client, now| {
        let said = run(engine, client, Command::reserve(Some(Duration::ZERO)), now);
        assert!(matches!(said, Some(Said::Job(..))), "{said:?}");
    };
    reserve(&mut engine, client, now);
    engine.disconnect(client, now);
    let entries = rest(&mut engine, now);
    assert_eq!(engine.queue().job_count("dead"), 1);
    let mut next = Engine::follow(&options(&SimFs::new(2), mood), beginning()).unwrap();
    for entry in &entries {
        apply_to(&mut next, entry, now).unwrap();
    }
    now.wall_ns += 30 * u64::from(DAY_MS) * 1_000_000;
    lead(&mut next, now);
    later(&mut now, 6 * DAY_MS);
    rest(&mut next, now);
    let client = next.connect();
    run(&mut next, client, Command::Watch("dead".into()), now);
    reserve(&mut next, client, now);
}
