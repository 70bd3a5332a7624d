//! What becomes of jobs whose deliveries fail, spoken as a client speaks, in virtual time, and across
//! crashes.

use crate::engine::spoken::{BEGIN_NS, Replies, Server, engine};
use crate::engine::{Altered, Engine, JobAction, Options};
use crate::pattern::Pattern;
use crate::storage::SimFs;
use crate::storage::disk::sim::{Errno, Fault, OpKind};
use crate::types::{JobId, JobState, Now, SECOND_NS, Time};

const RESERVED: &str = "RESERVED 1 1\r\nx";
const PUT: (&str, &str) = ("put 0 0 10 1\r\nx", "INSERTED 1");
const RESERVE: (&str, &str) = ("reserve-with-timeout 0", RESERVED);
const NOTHING: (&str, &str) = ("reserve-with-timeout 0", "TIMED_OUT");

use JobState::{Buried, Delayed, Ready};

#[test]
fn a_job_is_delivered_as_often_as_the_limit_says_and_then_is_a_dead_letter() {
    let mut server = Server::with_policy("delivery-limit=3 dead-letter=dead");
    server.talk(&[PUT]);
    for _ in 0..3 {
        server.talk(&[RESERVE, ("release 1 7 0", "RELEASED")]);
    }
    server.talk(&[NOTHING]);
    server.is_at(1, "dead", Ready);
    for (key, value) in [
        ("reason", "\"released\""),
        ("dead-lettered-from", "\"default\""),
        ("dead-lettered-at", "1800000000"),
        ("failures", "3"),
        ("deliveries", "0"),
    ] {
        assert_eq!(server.says_of(1, key).as_deref(), Some(value), "{key}");
    }
    server.talk(&[
        ("watch dead", "WATCHING 2"),
        RESERVE,
        ("delete 1", "DELETED"),
    ]);
    let job = server.say("stats-policy default");
    assert!(
        job.contains("total-released: 3\n") && job.contains("total-set-aside: 1\n"),
        "{job}"
    );
}

#[test]
fn deliveries_fail_by_time_by_disconnect_and_at_a_workers_word() {
    let mut server = Server::with_policy("delivery-limit=3 dead-letter=dead");
    server.talk(&[PUT, RESERVE]);
    server.wait(11);
    let worker = server.engine.connect();
    assert_eq!(server.say_as(worker, RESERVE.0), format!("{RESERVED}\r\n"));
    server.engine.disconnect(worker, server.now);
    server.talk(&[RESERVE, ("fail 1 7\r\nno host", "DEAD_LETTERED dead")]);
    server.is_at(1, "dead", Ready);
    assert_eq!(server.says_of(1, "reason").as_deref(), Some("\"failed\""));
    assert_eq!(server.says_of(1, "text").as_deref(), Some("\"no host\""));
    server.talk(&[
        ("fail 1 1\r\nx", "NOT_FOUND"),
        ("fail 9 1\r\nx", "NOT_FOUND"),
    ]);
    for (last, reason) in [("time", "ttr"), ("leave", "disconnected")] {
        let mut server = Server::with_policy("delivery-limit=1 dead-letter=dead");
        server.talk(&[PUT, RESERVE]);
        match last {
            "time" => _ = server.wait(11),
            _ => server.engine.disconnect(server.client, server.now),
        }
        server.client = server.engine.connect();
        server.is_at(1, "dead", Ready);
        assert_eq!(server.says_of(1, "reason"), Some(format!("\"{reason}\"")));
    }
}

#[test]
fn failed_deliveries_come_again_after_the_delays_of_the_policy() {
    let mut server = Server::with_policy("retry-min=5 retry-max=12");
    server.talk(&[PUT]);
    for delay in [5, 10, 12, 12] {
        server.talk(&[RESERVE, ("release 1 0 0", "RELEASED")]);
        server.is_at(1, "default", Delayed);
        server.wait(delay - 1);
        server.talk(&[NOTHING]);
        server.wait(1);
        server.is_at(1, "default", Ready);
    }
    server.talk(&[RESERVE, ("release 1 0 2", "RELEASED")]);
    server.wait(2);
    server.is_at(1, "default", Ready);
    server.talk(&[RESERVE]);
    server.wait(11);
    server.is_at(1, "default", Delayed);
    server.wait(12);
    server.talk(&[RESERVE, ("fail 1 0\r\n", "RELEASED")]);
    server.is_at(1, "default", Delayed);
}

#[test]
fn without_a_policy_nothing_is_different_but_what_a_worker_says_is_kept() {
    let mut server = Server::new();
    server.talk(&[PUT]);
    for _ in 0..20 {
        server.talk(&[RESERVE, ("release 1 0 0", "RELEASED")]);
    }
    server.talk(&[RESERVE, ("fail 1 3\r\nwhy", "RELEASED")]);
    server.is_at(1, "default", Ready);
    assert_eq!(server.says_of(1, "text").as_deref(), Some("\"why\""));
    server.talk(&[RESERVE, ("bury-with-reason 1 9 5\r\nworse", "BURIED")]);
    server.crash();
    server.is_at(1, "default", Buried);
    assert_eq!(server.says_of(1, "text").as_deref(), Some("\"worse\""));
    assert_eq!(server.says_of(1, "reason").as_deref(), Some("\"buried\""));
    server.talk(&[("bury-with-reason 1 9 1\r\nx", "NOT_FOUND")]);
}

#[test]
fn no_crash_takes_a_delivery_back() {
    let mut server = Server::with_policy("delivery-limit=3 dead-letter=dead");
    server.talk(&[PUT]);
    for delivery in 1..=3 {
        server.talk(&[RESERVE]);
        server.crash();
        assert_eq!(server.engine.queue().deliveries(JobId(1)), delivery);
    }
    // Of the last one the server has not seen the end.
    server.is_at(1, "default", Ready);
    server.talk(&[NOTHING]);
    server.is_at(1, "dead", Ready);
    assert_eq!(
        server.says_of(1, "reason").as_deref(),
        Some("\"disconnected\"")
    );
    server.crash();
    server.is_at(1, "dead", Ready);
    server.talk(&[NOTHING, ("kick-job 1", "NOT_FOUND")]);
}

#[test]
fn a_client_that_waits_is_not_given_a_job_whose_limit_is_reached() {
    let mut server = Server::with_policy("delivery-limit=1");
    server.talk(&[PUT, RESERVE]);
    server.crash();
    let waiting = server.engine.connect();
    assert_eq!(server.say_as(waiting, "watch other"), "WATCHING 2\r\n");
    assert_eq!(server.say_as(waiting, "ignore default"), "WATCHING 1\r\n");
    assert_eq!(server.say_as(waiting, "reserve"), "");
    server.talk(&[NOTHING]);
    server.is_at(1, "default", Buried);
    let moved = server.say("move-job 1 other");
    assert_eq!(moved, "MOVED\r\n");
    assert!(server.say("kick-job 1").ends_with("RESERVED 1 1\r\nx\r\n"));
    // In the other tube no limit holds: there it is a job as any other.
    server.is_at(1, "other", JobState::Reserved);
}

#[test]
fn dead_letters_go_in_no_circle_and_a_tube_is_not_its_own() {
    let mut server = Server::with_policy("delivery-limit=1 dead-letter=other");
    server.policy("other", "delivery-limit=1 dead-letter=default");
    server.talk(&[PUT, ("watch other", "WATCHING 2")]);
    server.talk(&[RESERVE, ("release 1 0 0", "RELEASED")]);
    server.is_at(1, "other", Ready);
    server.talk(&[RESERVE, ("release 1 0 0", "RELEASED")]);
    server.is_at(1, "other", Buried);
    let mut server = Server::new();
    server.policy("*", "delivery-limit=1 dead-letter=default");
    server.talk(&[PUT, RESERVE, ("fail 1 0\r\n", "BURIED")]);
    server.is_at(1, "default", Buried);
}

#[test]
fn a_limit_may_delete_and_the_worker_hears_of_it_or_not() {
    let mut server = Server::with_policy("delivery-limit=1 dead-letter=delete");
    server.talk(&[
        PUT,
        RESERVE,
        ("release 1 0 0", "RELEASED"),
        ("peek 1", "NOT_FOUND"),
    ]);
    server.talk(&[("put 0 0 1 1\r\nx", "INSERTED 2")]);
    server.talk(&[
        ("reserve-job 2", "RESERVED 2 1\r\nx"),
        ("fail 2 0\r\n", "DELETED"),
    ]);
    server.crash();
    assert_eq!((server.state(1), server.state(2)), (None, None));
}

#[test]
fn a_limit_below_what_has_failed_already_holds_at_the_next_turn() {
    let mut server = Server::with_policy("delivery-limit=9");
    server.talk(&[PUT]);
    for _ in 0..4 {
        server.talk(&[RESERVE, ("release 1 0 0", "RELEASED")]);
    }
    server.policy("default", "delivery-limit=2 dead-letter=dead");
    server.is_at(1, "default", Ready);
    server.talk(&[NOTHING]);
    server.is_at(1, "dead", Ready);
    assert_eq!(server.says_of(1, "failures").as_deref(), Some("4"));
}

#[test]
fn a_kick_a_move_and_a_way_back_begin_a_new_count() {
    let mut server = Server::with_policy("delivery-limit=2");
    let fail = |server: &mut Server| server.talk(&[RESERVE, ("release 1 0 0", "RELEASED")]);
    server.talk(&[PUT]);
    for kick in ["kick 10", "kick-job 1", "kick 1"] {
        fail(&mut server);
        fail(&mut server);
        server.is_at(1, "default", Buried);
        server.crash();
        assert!(server.say(kick).starts_with("KICKED"));
        assert_eq!(server.engine.queue().deliveries(JobId(1)), 0);
    }
    fail(&mut server);
    server.talk(&[("move-job 1 other", "MOVED"), ("move-job 1 other", "MOVED")]);
    server.talk(&[
        ("move-job 1 default", "MOVED"),
        ("move-job 9 default", "NOT_FOUND"),
    ]);
    fail(&mut server);
    server.is_at(1, "default", Ready);
    server.policy("default", "delivery-limit=1 dead-letter=dead");
    server.talk(&[NOTHING]);
    server.is_at(1, "dead", Ready);
    assert_eq!(server.alter(1, &JobAction::Redrive), Altered::Done);
    server.is_at(1, "default", Ready);
    assert_eq!(server.alter(1, &JobAction::Redrive), Altered::Same);
    assert_eq!(server.says_of(1, "dead-lettered-from"), None);
    assert_eq!(
        server.says_of(1, "reason").as_deref(),
        Some("\"disconnected\"")
    );
    fail(&mut server);
    server.is_at(1, "dead", Ready);
    server.crash();
    server.is_at(1, "dead", Ready);
}

#[test]
fn jobs_that_were_buried_by_workers_before_there_was_a_policy_are_kicked_into_a_new_count() {
    let mut server = Server::new();
    for id in 1..=20 {
        assert_eq!(
            server.say("put 0 0 10 1\r\nx"),
            format!("INSERTED {id}\r\n")
        );
    }
    for id in 1..=20 {
        for _ in 0..3 {
            server.say(&format!("reserve-job {id}"));
            server.say(&format!("release {id} 0 0"));
        }
        server.say(&format!("reserve-job {id}"));
        assert_eq!(server.say(&format!("bury {id} 0")), "BURIED\r\n");
    }
    server.policy("default", "delivery-limit=3");
    let kicked = server.say("kick 100");
    let later = server.wait(1);
    assert_eq!(format!("{kicked}{later}"), "KICKED 20\r\n");
    server.crash();
    for id in 1..=20 {
        assert_eq!(server.engine.queue().deliveries(JobId(id)), 0, "job {id}");
        server.is_at(id, "default", Ready);
    }
}

#[test]
fn groups_take_turns_and_begin_afresh_after_a_crash() {
    let mut server = Server::with_policy("fair=on");
    for (id, group) in [(1, "a"), (2, "a"), (3, "a"), (4, "b")] {
        let put = format!("put-with 0 0 10 1 group={group}\r\nx");
        assert_eq!(server.say(&put), format!("INSERTED {id}\r\n"));
    }
    server.talk(&[("put 0 0 10 1\r\nx", "INSERTED 5")]);
    let shown = server.say("stats-policy default");
    assert!(shown.contains("\nfair: on\n"), "{shown}");
    for ids in [[1, 4, 5, 2], [1, 4, 5, 2]] {
        for id in ids {
            let of_job = |word| format!("{word} {id} 1\r\nx");
            server.talk(&[("peek-ready", &of_job("FOUND"))]);
            server.talk(&[("reserve-with-timeout 0", &of_job("RESERVED"))]);
        }
        server.engine.queue().assert_groups();
        server.crash();
        server.wait(1);
        server.engine.queue().assert_groups();
    }
    // A batch is as one after the other.
    let batch = server.say("reserve-batch 3 0");
    let ids: Vec<&str> = batch
        .lines()
        .filter(|line| line.starts_with("JOB"))
        .collect();
    assert_eq!(
        ids,
        ["JOB 1 default 1", "JOB 4 default 1", "JOB 5 default 1"]
    );
    server.talk(&[
        ("delete 4", "DELETED"),
        ("delete 5", "DELETED"),
        ("reserve-with-timeout 0", "RESERVED 2 1\r\nx"),
        ("reserve-with-timeout 0", "RESERVED 3 1\r\nx"),
    ]);
    server.policy("default", "");
    server.engine.queue().assert_groups();
}

#[test]
fn the_policy_of_the_longest_pattern_holds_for_tubes_that_come_later_and_after_a_crash() {
    let mut server = Server::new();
    server.policy("mail-*", "delivery-limit=1");
    server.policy("mail", "max-jobs=1");
    server.crash();
    assert!(
        server.say("list-tubes").contains("- mail\n"),
        "it exists while it has a policy"
    );
    let shown = server.say("stats-policy mail-b");
    assert!(
        shown.contains("set-for: \"mail-*\"\ndelivery-limit: 1\n"),
        "{shown}"
    );
    server.talk(&[
        ("use mail-b", "USING mail-b"),
        ("watch mail-b", "WATCHING 2"),
    ]);
    server.talk(&[PUT, RESERVE, ("release 1 0 0", "RELEASED")]);
    server.is_at(1, "mail-b", Buried);
    server.policy("mail-*", "");
    server.policy("mail", "");
    server.talk(&[
        ("stats-policy mail-b", "NOT_FOUND"),
        ("stats-policy mail", "NOT_FOUND"),
    ]);
    assert!(!server.say("list-tubes").contains("- mail\n"));
    server.crash();
    server.talk(&[("stats-policy mail-b", "NOT_FOUND")]);
}

/// The tube is there before the record that removes the last pattern is replayed.
#[test]
fn a_pattern_that_was_removed_holds_no_tube_after_a_crash() {
    let mut server = Server::new();
    server.policy("mail-*", "max-reserved=1 fair=on");
    server.talk(&[("use mail-b", "USING mail-b"), PUT]);
    server.talk(&[("put 0 0 100 1\r\nx", "INSERTED 2")]);
    server.policy("mail-*", "");
    server.crash();
    server.engine.queue().assert_groups();
    server.talk(&[
        ("watch mail-b", "WATCHING 2"),
        ("reserve-with-timeout 0", "RESERVED 1 1\r\nx"),
        ("reserve-with-timeout 0", "RESERVED 2 1\r\nx"),
    ]);
}

#[test]
fn what_a_policy_says_is_refused_if_it_is_wrong() {
    let mut server = Server::new();
    for line in [
        "set-policy default delivery-limit=0",
        "set-policy default limit=1",
        "set-policy -a delivery-limit=1",
        "set-policy default delivery-limit=1 ",
        "set-policy ",
    ] {
        assert_eq!(server.say(line), "BAD_FORMAT\r\n", "{line}");
    }
    assert!(!server.engine.queue().has_policies());
}

#[test]
fn puts_beyond_the_bounds_of_a_tube_are_refused_and_counted() {
    let mut server = Server::with_policy("max-jobs=2 max-bytes=5");
    server.talk(&[
        ("put 0 0 1 5\r\n12345", "INSERTED 1"),
        ("put 0 0 1 1\r\nx", "OUT_OF_MEMORY"),
    ]);
    server.talk(&[("delete 1", "DELETED"), ("put 0 0 1 1\r\nx", "INSERTED 2")]);
    server.crash();
    server.talk(&[
        ("put 0 9 1 1\r\nx", "INSERTED 3"),
        ("put 0 0 1 0\r\n", "OUT_OF_MEMORY"),
    ]);
    assert!(
        server
            .say("stats-policy default")
            .contains("total-puts-refused: 1\n")
    );
    server.talk(&[
        ("move-job 2 other", "MOVED"),
        ("put 0 0 1 5\r\n12345", "OUT_OF_MEMORY"),
    ]);
    server.talk(&[
        ("put 0 0 1 4\r\n1234", "INSERTED 4"),
        ("move-job 2 default", "MOVED"),
    ]);
    assert_eq!(
        server.engine.queue().body_bytes("default"),
        6,
        "what is moved is not refused"
    );
}

#[test]
fn no_more_jobs_are_reserved_than_a_tube_allows() {
    let mut server = Server::with_policy("max-reserved=2");
    for _ in 0..4 {
        server.say("put 0 0 10 1\r\nx");
    }
    server.talk(&[
        ("reserve", "RESERVED 1 1\r\nx"),
        ("reserve", "RESERVED 2 1\r\nx"),
        NOTHING,
    ]);
    let waiting = server.engine.connect();
    assert_eq!(server.say_as(waiting, "reserve"), "");
    let deleted = server.say("delete 1");
    let mut replies = Replies(deleted.into_bytes());
    server.tick(&mut replies);
    assert_eq!(replies.0, b"DELETED\r\nRESERVED 3 1\r\nx\r\n");
    server.policy("default", "max-reserved=3");
    server.talk(&[("reserve", "RESERVED 4 1\r\nx")]);
}

#[test]
fn reserves_come_no_faster_than_the_rate_allows_also_after_a_restart() {
    let mut server = Server::with_policy("rate=30/m");
    for _ in 0..6 {
        server.say("put 0 0 100 1\r\nx");
    }
    server.talk(&[("reserve-with-timeout 0", "RESERVED 1 1\r\nx"), NOTHING]);
    assert_eq!(server.say("reserve"), "");
    assert_eq!(server.wait(1), "");
    assert_eq!(server.wait(1), "RESERVED 2 1\r\nx\r\n");
    server.talk(&[NOTHING]);
    server.crash();
    server.talk(&[NOTHING]);
    server.wait(2);
    server.talk(&[("reserve-with-timeout 0", "RESERVED 1 1\r\nx"), NOTHING]);
    // What was not used is saved up for one second: here that is one reserve.
    server.wait(60);
    server.talk(&[("reserve-with-timeout 0", "RESERVED 2 1\r\nx"), NOTHING]);
    let mut server = Server::with_policy("rate=3/s");
    for _ in 0..9 {
        server.say("put 0 0 100 1\r\nx");
    }
    server.talk(&[("reserve-with-timeout 0", "RESERVED 1 1\r\nx"), NOTHING]);
    server.wait(5);
    for id in 2..=4 {
        let reserved = format!("RESERVED {id} 1\r\nx");
        server.talk(&[("reserve-with-timeout 0", &reserved)]);
    }
    server.talk(&[NOTHING]);
}

#[test]
fn a_tube_that_vanishes_is_held_to_its_rate_when_it_comes_back() {
    let mut server = Server::new();
    server.policy("slow*", "rate=1/h");
    server.talk(&[
        ("watch slow-a", "WATCHING 2"),
        ("use slow-a", "USING slow-a"),
    ]);
    server.talk(&[PUT, RESERVE, ("delete 1", "DELETED")]);
    server.talk(&[
        ("ignore slow-a", "WATCHING 1"),
        ("use default", "USING default"),
    ]);
    server.talk(&[
        ("watch slow-a", "WATCHING 2"),
        ("use slow-a", "USING slow-a"),
    ]);
    server.talk(&[("put 0 0 1 1\r\nx", "INSERTED 2"), NOTHING]);
    server.wait(3600);
    server.talk(&[
        ("reserve-with-timeout 0", "RESERVED 2 1\r\nx"),
        ("delete 2", "DELETED"),
    ]);
    server.talk(&[
        ("ignore slow-a", "WATCHING 1"),
        ("use default", "USING default"),
    ]);
    server.wait(3600);
    assert!(!server.engine.queue().tube_exists("slow-a"));
}

#[test]
fn a_job_that_was_not_reserved_in_time_is_deleted_or_a_dead_letter() {
    let mut server = Server::with_policy("expire-after=60");
    server.talk(&[
        PUT,
        ("put 0 0 10 1\r\nx", "INSERTED 2"),
        ("put 0 100 10 1\r\nx", "INSERTED 3"),
    ]);
    assert_eq!(
        server.says_of(1, "expires-at").as_deref(),
        Some("1800000060")
    );
    server.talk(&[RESERVE, ("release 1 0 0", "RELEASED")]);
    assert_eq!(server.says_of(1, "expires-at"), None);
    server.wait(59);
    server.is_at(2, "default", Ready);
    server.wait(5);
    assert_eq!(server.state(2), None);
    server.is_at(1, "default", Ready);
    server.is_at(3, "default", Delayed);
    server.wait(60);
    assert_eq!(server.state(3), None);
    server.policy(
        "default",
        "expire-after=5 expired=dead-letter dead-letter=late",
    );
    server.policy("late", "expire-after=7");
    server.talk(&[("put 0 0 10 1\r\nx", "INSERTED 4")]);
    server.crash();
    server.wait(6);
    server.is_at(4, "late", Ready);
    assert_eq!(server.says_of(4, "reason").as_deref(), Some("\"expired\""));
    server.wait(5);
    server.is_at(4, "late", Ready);
    server.wait(3);
    assert_eq!(server.state(4), None);
}

#[test]
fn a_job_that_has_expired_is_not_handed_out_before_it_is_found() {
    let mut server = Server::with_policy("expire-after=10");
    for id in 1..=40 {
        assert_eq!(
            server.say("put 0 0 10 1\r\nx"),
            format!("INSERTED {id}\r\n")
        );
    }
    server.now.mono = server.now.mono.plus_seconds(10);
    server.now.wall_ns += 10 * SECOND_NS as u64;
    server.say("put 5 0 10 1\r\nx");
    // More than one command looks through: the client waits, and gets what is left.
    assert_eq!(server.say("reserve-with-timeout 0"), "");
    let mut replies = Replies::default();
    server.tick(&mut replies);
    assert_eq!(
        String::from_utf8(replies.0).unwrap(),
        "RESERVED 41 1\r\nx\r\n"
    );
    assert_eq!(server.engine.queue().job_count("default"), 1);
}

#[test]
fn a_batch_that_is_released_follows_the_policy_and_is_one_frame() {
    let mut server = Server::with_policy("delivery-limit=1 dead-letter=dead");
    for id in 1..=5 {
        assert_eq!(
            server.say("put 0 0 10 1\r\nx"),
            format!("INSERTED {id}\r\n")
        );
    }
    let reserved = server.say("reserve-batch 4 0");
    assert!(reserved.starts_with("RESERVED_BATCH 4\r\n"), "{reserved}");
    let released = server.say("release-batch 3 0 7\r\n1 2 3 4");
    assert!(released.starts_with("RELEASED_BATCH 4 "), "{released}");
    server.crash();
    for id in 1..=4 {
        server.is_at(id, "dead", Ready);
    }
    server.is_at(5, "default", Ready);
}

#[test]
fn on_a_full_disk_no_job_is_lost_and_none_is_delivered_more_often() {
    let disk = SimFs::new(1);
    disk.set_quota(Some(600 << 10));
    let now = Now::new(Time(0), BEGIN_NS);
    let engine = engine(&disk, now);
    let mut server = Server::on(disk, engine, now);
    server.policy("default", "delivery-limit=2 dead-letter=dead");
    let put = format!("put 0 0 10 700\r\n{}", "x".repeat(700));
    let mut count = 0;
    while server.say(&put).starts_with("INSERTED") {
        count += 1;
        server.tick(&mut Replies::default());
    }
    assert!(count > 100, "{count} jobs");
    let mut delivered = 0;
    loop {
        let reserved = server.say("reserve-with-timeout 0");
        let Some(id) = reserved.strip_prefix("RESERVED ") else {
            assert_eq!(reserved, "TIMED_OUT\r\n");
            break;
        };
        delivered += 1;
        let id = id.split(' ').next().unwrap().to_owned();
        let released = server.say(&format!("release {id} 0 0"));
        if released == "OUT_OF_MEMORY\r\n" {
            server.wait(11);
        }
        server.tick(&mut Replies::default());
    }
    assert!(
        delivered <= 2 * count,
        "{delivered} deliveries of {count} jobs"
    );
    assert_eq!(
        server.engine.queue().stats().jobs.total(),
        count,
        "none is lost"
    );
    for id in 1..=count {
        let (tube, state) = server.state(id).unwrap();
        let is_dead = (&*tube, state) == ("dead", Ready) || state == Buried;
        assert!(is_dead, "job {id} is {state:?} in {tube}");
    }
}

/// A job that cannot be handed out holds up no one but the client whose turn it is.
#[test]
fn who_waits_for_a_job_that_cannot_be_read_now_is_told_so_and_others_go_on() {
    let mut server = Server::new();
    server.talk(&[("put 0 5 10 1\r\nx", "INSERTED 1")]);
    server.crash();
    let other = server.engine.connect();
    server.say_as(other, "watch b");
    server.say_as(other, "ignore default");
    assert_eq!(server.say("reserve-with-timeout 60"), "");
    assert_eq!(server.say_as(other, "reserve-with-timeout 8"), "");
    let fault = Fault::fail(OpKind::Read, Errno::MFILE);
    server.disk.inject(fault.for_ever());
    assert_eq!(server.wait(6), "OUT_OF_MEMORY\r\n");
    assert_eq!(server.wait(3), "TIMED_OUT\r\n");
    server.disk.clear_faults();
    server.talk(&[RESERVE]);
}

#[test]
fn there_are_no_more_policies_than_there_may_be() {
    let mut server = Server::new();
    for number in 0..crate::policy::PATTERNS_MAX {
        server.policy(&format!("a-{number}*"), "delivery-limit=1");
    }
    let one_more = Pattern::parse("b*").unwrap();
    assert!(!server.engine.queue().has_room_for_policy(&one_more));
    server.talk(&[("set-policy b* delivery-limit=1", "OUT_OF_MEMORY")]);
    server.policy("a-0*", "delivery-limit=2");
    server.policy("b", "delivery-limit=1");
}

#[test]
fn a_job_that_was_delivered_does_not_expire_when_it_is_kicked_or_sent_back() {
    let mut server = Server::with_policy("delivery-limit=1 expire-after=60");
    server.talk(&[PUT, RESERVE, ("release 1 0 0", "RELEASED")]);
    server.is_at(1, "default", Buried);
    server.wait(100);
    assert!(server.say("kick 1").starts_with("KICKED 1"));
    server.wait(100);
    server.is_at(1, "default", Ready);
    server.policy(
        "default",
        "expire-after=5 expired=dead-letter dead-letter=late",
    );
    server.talk(&[("put 9 0 10 1\r\nx", "INSERTED 2")]);
    server.wait(7);
    server.is_at(2, "late", Ready);
    assert_eq!(server.alter(2, &JobAction::Redrive), Altered::Done);
    server.wait(3);
    server.is_at(2, "default", Ready);
    server.talk(&[("move-job 2 default", "MOVED")]);
    server.wait(5);
    server.is_at(2, "late", Ready);
}

#[test]
fn a_clock_that_is_set_makes_no_dead_letter_expire_before_its_time() {
    for ahead in [86_400, -86_400] {
        let mut server = Server::with_policy("delivery-limit=1 dead-letter=dead");
        server.policy("dead", "expire-after=60");
        server.talk(&[PUT]);
        server.wait(100);
        server.talk(&[RESERVE, ("release 1 0 0", "RELEASED")]);
        let set = server.now.wall_ns.checked_add_signed(ahead * SECOND_NS);
        server.now.wall_ns = set.unwrap();
        server.wait(50);
        server.is_at(1, "dead", Ready);
        if ahead > 0 {
            server.wait(20);
            assert_eq!(server.engine.queue().job_count("dead"), 0);
            // One that comes later expires in time.
            server.talk(&[("put 0 0 10 1\r\nx", "INSERTED 2")]);
            server.say("reserve-with-timeout 0");
            server.talk(&[("release 2 0 0", "RELEASED")]);
            server.wait(70);
            assert_eq!(server.engine.queue().job_count("dead"), 0);
        }
    }
}

#[test]
fn a_failure_that_waits_to_be_decided_takes_the_job_from_no_one() {
    let mut server = Server::with_policy("delivery-limit=1 dead-letter=dead");
    server.talk(&[PUT]);
    let worker = server.engine.connect();
    server.say_as(worker, RESERVE.0);
    // As if there had been no room for the decision.
    server.policy("default", "delivery-limit=9 dead-letter=dead");
    server.engine.disconnect(worker, server.now);
    server.talk(&[("reserve-job 1", RESERVED)]);
    server.policy("default", "delivery-limit=1 dead-letter=dead");
    let queue = &mut server.engine.queue;
    queue.put_back_failure(JobId(1), crate::attributes::Reason::Disconnected);
    server.wait(1);
    server.is_at(1, "default", JobState::Reserved);
    server.talk(&[("delete 1", "DELETED")]);
}

#[test]
fn a_dead_letter_that_was_reserved_in_time_does_not_expire_when_it_is_kicked() {
    for bury in ["release 1 0 0", "bury 1 0"] {
        let mut server = Server::with_policy("delivery-limit=1 dead-letter=dead");
        server.policy("dead", "delivery-limit=1 expire-after=60");
        server.talk(&[PUT, RESERVE, ("release 1 0 0", "RELEASED")]);
        server.talk(&[("watch dead", "WATCHING 2"), RESERVE]);
        server.say(bury);
        server.is_at(1, "dead", Buried);
        server.wait(100);
        server.talk(&[("kick-job 1", "KICKED")]);
        server.wait(100);
        server.is_at(1, "dead", Ready);
        server.crash();
        server.wait(100);
        server.is_at(1, "dead", Ready);
        assert_eq!(server.says_of(1, "dead-lettered-at"), None);
    }
}

#[test]
fn a_reserve_of_a_job_that_would_expire_is_not_lost_in_a_crash() {
    let mut server = Server::with_policy("expire-after=60");
    server.talk(&[PUT, RESERVE]);
    server.crash();
    server.wait(100);
    server.is_at(1, "default", Ready);
}

#[test]
fn a_job_that_was_moved_is_not_delivered_more_often_after_a_crash() {
    let mut server = Server::new();
    server.policy("b", "delivery-limit=1");
    server.talk(&[PUT, RESERVE, ("move-job 1 b", "MOVED")]);
    server.crash();
    server.talk(&[("watch b", "WATCHING 2"), RESERVE]);
    server.talk(&[("release 1 0 0", "RELEASED")]);
    server.is_at(1, "b", Buried);
}

#[test]
fn a_dead_letter_that_is_moved_away_is_none_any_more() {
    let mut server = Server::with_policy("delivery-limit=1 dead-letter=dead");
    server.talk(&[PUT, RESERVE, ("release 1 0 0", "RELEASED")]);
    server.talk(&[("move-job 1 default", "MOVED")]);
    assert_eq!(server.says_of(1, "dead-lettered-from"), None);
    server.talk(&[RESERVE, ("release 1 0 0", "RELEASED")]);
    server.is_at(1, "dead", Ready);
}

#[test]
fn a_job_that_was_not_set_aside_is_not_sent_back() {
    let mut server = Server::with_policy("delivery-limit=5");
    server.talk(&[("put 0 9 1 1\r\nx", "INSERTED 1")]);
    assert_eq!(server.alter(1, &JobAction::Redrive), Altered::Same);
    server.is_at(1, "default", Delayed);
}

#[test]
fn without_a_log_policies_hold_as_long_as_the_process() {
    let mut server = Server::new();
    server.engine = Engine::open(&Options::default(), server.now).unwrap();
    server.client = server.engine.connect();
    server.policy("default", "delivery-limit=2 dead-letter=dead retry-min=1");
    server.talk(&[PUT, RESERVE, ("release 1 0 0", "RELEASED")]);
    server.wait(1);
    server.talk(&[RESERVE]);
    server.wait(11);
    server.is_at(1, "dead", Ready);
    assert_eq!(server.says_of(1, "reason").as_deref(), Some("\"ttr\""));
}
