//! Every command and every error of the protocol, as scripts for [`run_script`]: the commands in
//! order; the replies are beanstalkd's.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant};

use crate::differential::{run_on, run_script};
use crate::harness::Launch;
use crate::pair::Pair;

#[test]
fn put_takes_any_bytes_and_the_whole_range_of_its_numbers() {
    let script = r"
        a put 0 0 60 5\r\nhello
        a put 4294967295 0 4294967295 3\r\nmax
        a put 0 4294967295 1 5\r\nlater
        a put 0 0 60 0\r\n
        a put 10 0 60 9\r\n\x00\r\n\xff\n\r\r\n.
        # A time to run of 0 is 1.
        a put 1 0 0 4\r\nttr0
        a stats-job {6}
        # Blanks before a number are skipped.
        a put    7   0    60  1\r\nx
        a stats-job {7}
        a stats
        a peek {5}
        a peek {4}
    ";
    run_script(&[], script);
}

#[test]
fn put_refuses_what_is_no_number() {
    let script = r"
        a put
        a put 
        a put 1
        a put 1 2
        a put 1 2 3
        a put 1 2 3 
        a put a 0 60 1
        a put 0 a 60 1
        a put 0 0 a 1
        a put 0 0 60 a
        a put -1 0 60 1
        a put 0 -1 60 1
        a put 0 0 -1 1
        a put 0 0 60 -1
        a put +1 0 60 1
        a put 0x1 0 60 1
        a put 1.5 0 60 1
        a put 4294967296 0 60 1
        a put 0 4294967296 60 1
        a put 0 0 4294967296 1
        a put 0 0 60 4294967296
        a put 99999999999999999999 0 60 1
        a put\t0 0 60 1
        a put 0\t0 60 1
        # A number may be followed at once by what is no digit: then the next one is missing.
        a put 0,0 60 1
        a put 0 0 60 1x
        a put 0 0 60 1 
        a put 0 0 60 1 2
        # Which of these counted as a put?
        a stats
        a list-tubes
    ";
    run_script(&[], script);
}

#[test]
fn put_needs_its_body_to_end_where_it_says() {
    let script = r"
        # Three bytes and the two that should be CR LF are taken; what follows is a new line.
        a put 0 0 60 3\r\nabcde
        a?
        a put 0 0 60 3\r\nabc!?list-tube-used
        a?
        a put 0 0 60 3\r\nab\r
        a list-tube-used
        a| put 0 0 60 5\r\nhel
        b stats-tube default
        a| lo\r
        a| \n
        a?
        a| pu
        a| t 0 0 60
        a|  2\r
        a| \nab\r\n
        a?
        a stats
    ";
    run_script(&[], script);
}

#[test]
fn a_job_over_the_maximum_is_skipped_and_refused() {
    run_script(
        &["-z", "10"],
        r"
        a put 0 0 60 10\r\n0123456789
        a put 0 0 60 11\r\n0123456789a
        a put 0 0 60 300\r\n{x*300}
        a put 0 0 60 30000\r\n{x*30000}
        # Too big, and more on the line: the size counts.
        a put 0 0 60 11 and more\r\n0123456789a
        # The skipped bytes need not end as a body does.
        a put 0 0 60 11\r\n0123456789abc
        a?
        a put 0 0 60 1\r\nx
        a stats
    ",
    );
}

#[test]
fn a_job_of_the_default_maximum_comes_back_whole() {
    let script = r"
        a put 0 0 60 65535\r\n{m*65535}
        a put 0 0 60 65536\r\n{m*65536}
        a reserve
        a release {1} 0 0
        a peek-ready
    ";
    run_script(&[], script);
}

#[test]
fn reserve_takes_the_most_urgent_then_the_oldest_of_the_watched_tubes() {
    let script = r"
        p put 5 0 60 1\r\na
        p put 3 0 60 1\r\nb
        p put 3 0 60 1\r\nc
        p use other
        p put 3 0 60 1\r\nd
        p put 1 0 60 1\r\ne
        p use unwatched
        p put 0 0 60 1\r\nf
        w watch other
        w reserve
        w reserve
        w reserve-with-timeout 0
        w reserve-with-timeout 10
        w reserve
        w reserve-with-timeout 0
        w stats
        w stats-tube other
        w stats-tube default
    ";
    run_script(&[], script);
}

#[test]
fn reserve_with_timeout_looks_at_the_digits_alone() {
    let script = r"
        a reserve-with-timeout 0
        a reserve-with-timeout  0
        a reserve-with-timeout 0x10
        a reserve-with-timeout 0 0
        a reserve-with-timeout
        a reserve-with-timeout 99999999999999999999
        a reserve-with-timeout -99999999999999999999
        a reserve-with-timeout 9223372036854775808
        a reserve 
        a reserve 1
        a reserved
        a stats
    ";
    run_script(&[], script);
}

/// beanstalkd 1.12, which the comparison runs against, takes these as C does: it cuts them to 32
/// bits, and waits for ever where that is negative. 1.13 does not.
#[test]
fn f43_reserve_with_timeout_takes_seconds_below_2_to_the_31st_and_nothing_else() {
    let Some(launch) = Launch::bsd_alone().map(Launch::memory) else {
        return;
    };
    let server = launch.start();
    let mut wire = server.connect();
    for wrong in [
        "-1",
        "-0",
        "+0",
        "x",
        "",
        "\t0",
        "2147483648",
        "4294967295",
        "4294967296",
        "18446744073709551616",
    ] {
        let reply = wire.ask(&format!("reserve-with-timeout {wrong}"));
        assert_eq!(reply, "BAD_FORMAT", "{wrong:?}");
    }
    assert_eq!(wire.stat("stats", "cmd-reserve-with-timeout"), "0");
    let id = wire.put(b"x");
    let reserved = format!("RESERVED {id} 1\r\nx");
    assert_eq!(wire.ask("reserve-with-timeout 2147483647"), reserved);
}

#[test]
fn a_waiting_client_gets_the_next_job_and_its_later_commands_wait() {
    let script = r"
        w watch jobs
        w& reserve
        p stats
        p stats-tube jobs
        p stats-tube default
        p use jobs
        w| list-tube-used\r\n
        p put 9 0 60 1\r\nx
        w?
        w?
        p stats
        # A release, a kick and a delete of the client that waits.
        w& reserve-with-timeout 1000
        v watch jobs
        v reserve-with-timeout 0
        p put 9 0 60 1\r\ny
        w?
        w bury {2} 4
        w& reserve
        p kick 1
        w?
    ";
    run_script(&[], script);
}

#[test]
fn a_waiting_client_that_sends_no_more_times_out() {
    let script = r"
        w& reserve
        w/
        w?
        w!
        # One that does not wait is answered and closed.
        v| put 0 0 60 1\r\nx\r\npeek-ready\r\n
        v/
        v?
        v?
        v!
        # An unfinished command is dropped. (beanstalkd counts it: docs/migration.md.)
        u| put 0 0 60 10\r\nhal
        u/
        u!
        a stats-tube default
    ";
    run_script(&[], script);
}

/// beanstalkd 1.12 itself misses the end of about one time to run in a hundred, more under load: its
/// client waits on and times out. Then, and where more time has passed than the script allows for,
/// the servers are asked again; any other difference fails at once.
#[test]
fn g56_a_job_whose_time_to_run_is_over_is_ready_again() {
    const TRIES: usize = 100;
    const WAIT: &str = "b reserve-with-timeout 5";
    const SCRIPTS: [&str; 3] = [
        r"
            # In the last second of a time to run its owner is not made to wait.
            a put 0 0 1 1\r\nx
            a reserve
            a reserve
        ",
        WAIT,
        r"
            b stats-job {1}
            b stats-tube default
            a delete {1}
            a stats
            b delete {1}
        ",
    ];
    for _ in 0..TRIES {
        let Some(mut pair) = Pair::start(&[]) else {
            return;
        };
        let is_same = SCRIPTS.iter().all(|script| {
            let since = Instant::now();
            let same = catch_unwind(AssertUnwindSafe(|| run_on(&mut pair, script)));
            let is_late = *script != WAIT && since.elapsed() >= Duration::from_secs(1);
            match same {
                Err(difference) if !is_late && !pair.reference_has_timed_out() => {
                    resume_unwind(difference)
                }
                same => same.is_ok(),
            }
        });
        if is_same {
            return pair.finish();
        }
    }
    panic!("not answered in time in {TRIES} tries");
}

#[test]
fn delays_pauses_and_timeouts_end_when_they_should() {
    let script = r"
        a reserve-with-timeout 1
        a put 0 1 60 1\r\nx
        a stats-job {1}
        a reserve-with-timeout 5
        a release {1} 0 1
        a stats-job {1}
        a reserve-with-timeout 5
        a delete {1}
        p use paused
        w watch paused
        p pause-tube paused 1
        p put 0 0 60 1\r\ny
        w reserve-with-timeout 0
        w stats-tube paused
        w reserve-with-timeout 5
        w stats-tube paused
        w delete {2}
        # The safety margin arrives while the client waits.
        p put 0 0 2 1\r\nz
        w reserve
        w reserve
        w reserve-with-timeout 0
        w delete {3}
        w stats
    ";
    run_script(&[], script);
}

#[test]
fn a_job_that_is_ready_wins_over_the_safety_margin() {
    let script = r"
        a put 0 0 1 1\r\nx
        a put 0 0 60 1\r\ny
        a reserve
        a reserve
        a reserve
        a reserve-with-timeout 0
        a delete {1}
        a delete {2}
    ";
    run_script(&[], script);
}

#[test]
fn reserve_job_takes_one_that_is_ready_delayed_or_buried() {
    let script = r"
        a put 0 0 60 5\r\nready
        a put 0 1000 60 7\r\ndelayed
        a put 0 0 60 6\r\nburied
        a use elsewhere
        a put 0 0 60 7\r\nanother
        a reserve-job {1}
        a reserve-job {1}
        b reserve-job {1}
        a reserve-job {2}
        a stats-job {2}
        a reserve-job {3}
        a bury {3} 1
        a stats-job {3}
        b reserve-job {3}
        b stats-job {3}
        a stats
        b release {3} 2 0
        a release {2} 2 0
        a stats-job {2}
        # Reserved by id once, and what it says when that connection ends.
        b put 0 1000 60 1\r\nx
        b reserve-job {5}
        b| quit\r\n
        b!
        a stats-job {5}
        a reserve-job {4}
        a reserve-job {9}
        a reserve-job 0
        a reserve-job 
        a reserve-job
        a reserve-job x
        a reserve-job 1x
        a reserve-job -1
        a reserve-job 18446744073709551616
        a reserve-job 18446744073709551615
        a stats
    ";
    run_script(&[], script);
}

#[test]
fn delete_takes_what_is_not_reserved_by_another() {
    let script = r"
        a put 0 0 60 1\r\na
        a put 0 1000 60 1\r\nb
        a put 0 0 60 1\r\nc
        a put 1 0 60 1\r\nd
        a reserve
        a reserve
        a bury {3} 0
        b delete {1}
        a delete {1}
        a delete {1}
        b delete {2}
        b delete {3}
        b delete {4}
        b delete {9}
        b delete 0
        b delete
        b delete 
        b delete x
        b delete 1x
        b delete 1 
        b delete 1 2
        b delete  9
        b delete -1
        b delete 18446744073709551615
        b delete 18446744073709551616
        b stats-tube default
        b stats
    ";
    run_script(&[], script);
}

#[test]
fn release_puts_back_with_a_new_priority_and_delay() {
    let script = r"
        a put 5 0 60 1\r\na
        a reserve
        b release {1} 1 0
        a release {1} 7 0
        a stats-job {1}
        a release {1} 7 0
        a reserve
        a release {1} 8 1000
        a stats-job {1}
        a peek-delayed
        a peek-ready
        a release {9} 0 0
        a release
        a release 
        a release {1}
        a release {1} 
        a release {1} 1
        a release {1} 1 
        a release {1} x 0
        a release {1} 0 x
        a release {1} 0 0x
        a release {1} 0 0 0
        a release {1} 4294967296 0
        a release {1} 0 4294967296
        a release -1 0 0
        a release  {1}   0   0
        a stats
    ";
    run_script(&[], script);
}

#[test]
fn bury_sets_aside_and_kick_takes_back_the_oldest_first() {
    let script = r"
        a put 0 0 60 1\r\na
        a put 0 0 60 1\r\nb
        a put 0 0 60 1\r\nc
        a put 0 1000 60 1\r\nd
        a reserve
        a reserve
        a reserve
        b bury {1} 1
        a bury {2} 4294967295
        a bury {1} 2000
        a bury {3} 3
        a bury {3} 3
        a stats-job {2}
        a peek-buried
        a stats-tube default
        a stats
        a kick 1
        a stats-job {2}
        a peek-buried
        a kick 10
        # Only when none is buried, the delayed ones.
        a stats-job {4}
        a kick 10
        a stats-job {4}
        a kick 10
        a bury {9} 0
        a bury
        a bury 
        a bury {1}
        a bury {1} 
        a bury {1} x
        a bury {1} 1x
        a bury {1} 1 1
        a bury {1} 4294967296
        a bury x 1
        a stats
    ";
    run_script(&[], script);
}

#[test]
fn kick_is_lenient_about_its_number() {
    let script = r"
        a put 0 1000 60 1\r\na
        a put 0 1001 60 1\r\nb
        a put 0 1002 60 1\r\nc
        a kick 0
        a kick 1x
        a kick  1
        a kick +0
        a kick x
        a kick 
        a kick
        a kick\t0
        a kick 4294967296
        a kick 18446744073709551615
        a kick 18446744073709551616
        a put 0 1000 60 1\r\nd
        a kick -1
        a kick 1 2
        a use other
        a kick 1
        a stats
    ";
    run_script(&[], script);
}

#[test]
fn kick_job_takes_a_buried_or_delayed_one_of_any_tube() {
    let script = r"
        a use there
        a put 0 1000 60 1\r\na
        a put 0 0 60 1\r\nb
        a watch there
        a reserve
        b kick-job {2}
        a bury {2} 0
        b kick-job {1}
        b stats-job {1}
        b kick-job {1}
        b kick-job {2}
        b stats-job {2}
        b kick-job {9}
        b kick-job
        b kick-job 
        b kick-job x
        b kick-job {1}x
        b kick-job -1
        b stats
    ";
    run_script(&[], script);
}

#[test]
fn touch_is_for_the_owner() {
    let script = r"
        a put 0 0 60 1\r\na
        a touch {1}
        a reserve
        a touch {1}
        b touch {1}
        a stats-job {1}
        a touch {9}
        a touch
        a touch 
        a touch x
        a touch {1} 1
        a touch -1
        a stats
    ";
    run_script(&[], script);
}

#[test]
fn peek_shows_the_first_of_each_state() {
    let script = r"
        a peek-ready
        a peek-delayed
        a peek-buried
        a peek {1}
        a put 5 0 60 5\r\nready
        a put 4 0 60 6\r\nurgent
        a put 0 2000 60 5\r\nlater
        a put 0 1000 60 4\r\nsoon
        a peek-ready
        a peek-delayed
        a peek-buried
        a reserve
        a peek {2}
        a bury {2} 0
        a peek-buried
        b use empty
        b peek-ready
        b peek-delayed
        b peek-buried
        b peek {3}
        b peek {9}
        b peek
        b peek 
        b peek x
        b peek {3}x
        b peek -1
        b peek-ready 
        b peek-ready x
        b peek-delayed x
        b peek-buried x
        b peek-
        b peek-readyx
        b stats
    ";
    run_script(&[], script);
}

#[test]
fn tubes_come_and_go_with_their_last_user() {
    let script = r"
        a list-tubes
        a use one
        a watch two
        a watch three
        a watch two
        b watch three
        b watch four
        a list-tubes
        a list-tube-used
        a list-tubes-watched
        b list-tubes-watched
        a ignore two
        a ignore nowhere
        a list-tubes-watched
        a list-tubes
        a ignore default
        a ignore three
        a ignore three
        a ignore nowhere
        a use default
        b list-tubes
        b use three
        b put 0 1000 60 1\r\nx
        b ignore three
        b use default
        a| quit\r\n
        a!
        b list-tubes
        b stats-tube three
        b delete {1}
        b stats-tube three
        b stats-tube one
        b list-tubes
        b stats
    ";
    run_script(&[], script);
}

#[test]
fn removal_moves_the_last_tube_of_a_list_into_the_hole() {
    let script = r"
        a watch t1
        a watch t2
        a watch t3
        a watch t4
        a ignore t1
        a list-tubes-watched
        a list-tubes
        a ignore default
        a list-tubes-watched
        a watch t1
        a list-tubes-watched
        a list-tubes
    ";
    run_script(&[], script);
}

#[test]
fn names_are_up_to_200_of_the_allowed_bytes() {
    let script = r"
        a use {x*200}
        a stats-tube {x*200}
        a watch {x*200}
        a ignore {x*200}
        a use {x*201}
        a watch {x*201}
        a ignore {x*201}
        a stats-tube {x*201}
        a use azAZ09-+/;.$_()
        a stats-tube azAZ09-+/;.$_()
        a list-tubes
        a use -x
        a use
        a use 
        a use  x
        a use x 
        a use x y
        a use x\ty
        a use x\x00
        a use x\xc3\xa9
        a use x,y
        a use x'y
        a use x:y
        a watch
        a watch 
        a watch -x
        a watch x!
        a ignore
        a ignore 
        a ignore -x
        a stats-tube
        a stats-tube 
        a stats-tube -x
        a stats-tube none
        a stats-tube default
        a stats
    ";
    run_script(&[], script);
}

#[test]
fn pause_tube_holds_jobs_back_and_0_lifts_it() {
    let script = r"
        a pause-tube default 1000
        a put 0 0 60 1\r\nx
        a reserve-with-timeout 0
        a stats-tube default
        a reserve-job {1}
        a release {1} 0 0
        a pause-tube default 0
        a reserve-with-timeout 1
        a pause-tube default 4294967295
        a stats-tube default
        a pause-tube none 1
        a pause-tube
        a pause-tube 
        a pause-tube default
        a pause-tube default 
        a pause-tube default x
        a pause-tube default 1x
        a pause-tube default 1 2
        a pause-tube default -1
        a pause-tube default 4294967296
        a pause-tube -x 1
        a pause-tube {x*200} 1
        a pause-tube {x*201} 1
        a pause-tubedefault 5
        a pause-tube   default   6
        a pause-tube default7
        a pause-tube 1 1
        a pause-tube ,x 1
        a stats-tube default
        a stats
    ";
    run_script(&[], script);
}

#[test]
fn a_pause_is_forgotten_with_its_tube() {
    let script = r"
        a use t
        a pause-tube t 1000
        a stats-tube t
        a use default
        a stats-tube t
        a use t
        a stats-tube t
    ";
    run_script(&[], script);
}

#[test]
fn statistics_of_a_job_follow_its_life() {
    let script = r"
        a use t
        a watch t
        a put 7 0 99 1\r\nx
        a stats-job {1}
        a reserve
        a stats-job {1}
        a release {1} 8 0
        a reserve
        a bury {1} 9
        a stats-job {1}
        a kick-job {1}
        a stats-job {1}
        a reserve
        a release {1} 10 1000
        a stats-job {1}
        a kick 1
        a stats-job {1}
        a delete {1}
        a stats-job {1}
        a stats-job
        a stats-job 
        a stats-job x
        a stats-job {1}x
        a stats-job -1
        a stats-jobs
        a stats
        a stats 
        a stats x
        a stats
    ";
    run_script(&[], script);
}

#[test]
fn statistics_count_connections_producers_workers_and_commands() {
    let script = r"
        a stats
        b put 0 0 60 1\r\nx
        b put 2000 0 60 1\r\nx
        c reserve
        d use t
        d watch t
        d watch u
        a stats
        a stats-tube default
        a stats-tube t
        a list-tubes
        c| quit\r\n
        c!
        d| quit\r\n
        d!
        a stats
        a stats-tube default
        # A put that is refused makes a producer as well.
        e put 0 0 60 1\r\nxyz
        e?
        a stats
    ";
    run_script(&[], script);
}

#[test]
fn a_connection_that_ends_gives_its_jobs_back() {
    let script = r"
        a put 1 0 60 1\r\na
        a put 0 0 60 1\r\nb
        b reserve
        b reserve
        b watch t
        b use u
        b| quit\r\n
        b!
        a stats-job {1}
        a stats-job {2}
        a reserve
        a list-tubes
    ";
    run_script(&[], script);
}

#[test]
fn lists_take_no_argument() {
    let script = r"
        a list-tubes
        a list-tubes 
        a list-tubes x
        a list-tubesx
        a list-tube-used
        a list-tube-used x
        a list-tubes-watched
        a list-tubes-watched x
        a list-tubes-watche
        a list-tube
        a list
        a stats
    ";
    run_script(&[], script);
}

#[test]
fn what_is_no_command_is_unknown() {
    let script = r"
        a 
        a x
        a PUT 0 0 60 1
        a Stats
        a  stats
        a put0 0 60 1
        a puts 0 0 60 1
        a use\tx
        a \x00
        a stats\x00
        a use x\x00y
        a put 0 0 60 1\x00
        a reserve-with-timeout\x00 0
        a \xff\xfe
        a reserve-
        a deleted 1
        a touching
        # What only begins with it is a quit as well.
        a| quitting\r\n
        a!
    ";
    run_script(&[], script);
}

#[test]
fn a_line_over_224_bytes_is_refused_once() {
    let script = r"
        a use {x*218}
        a use {x*400}
        a {x*222}
        a {x*224}
        a {x*446}
        a {x*448}
        a {x*5000}
        a list-tube-used
        a put 0 0 60 1{ *208}
        a delete{ *214}1
        a delete{ *215}1
        a delete{ *217}1
        a stats
    ";
    run_script(&[], script);
}

#[test]
fn pipelined_commands_are_answered_in_order() {
    let script = r"
        a use t\r\nput 0 0 60 2\r\nab\r\nwatch t\r\nreserve\r\nbogus\r\nlist-tube-used
        a?
        a?
        a?
        a?
        a?
        a delete {1}\r\nreserve-with-timeout 0\r\nput 0 0 60 1\r\nx\r\nreserve-with-timeout 0
        a?
        a?
        a?
        a| list-tubes\r\nlist-tubes-watched\r\nquit\r\nlist-tubes\r\n
        a?
        a?
        a!
    ";
    run_script(&[], script);
}

/// A web page can make a browser send such things, and many a server can be made to.
#[test]
fn g49_a_request_of_http_ends_its_connection_and_none_of_its_lines_is_run() {
    let Some(launch) = Launch::bsd_alone() else {
        return;
    };
    let server = launch.memory().start();
    let put = "put 0 0 60 2\r\nhi\r\n";
    let long = format!("GET /{} HTTP/1.1", "x".repeat(1000));
    for line in ["POST / HTTP/1.1", "GET /a HTTP/1.0", &long] {
        let mut wire = server.connect();
        let rest = format!("{line}\r\nHost: localhost\r\nContent-Length: 20\r\n\r\n{put}");
        wire.send(rest);
        // What it had sent and was not read may end it with a reset.
        let came = wire.try_rest().unwrap_or_default();
        assert_eq!(came, b"");
        assert_eq!(server.connect().stat("stats", "total-jobs"), "0");
    }
    let mut wire = server.connect();
    assert_eq!(wire.ask("GET"), "UNKNOWN_COMMAND");
    assert_eq!(wire.ask("put 0 0 60 2\r\nhi"), "INSERTED 1");
    let told = server.stderr();
    let told = told.lines().filter(|line| line.contains("speaks HTTP"));
    assert_eq!(told.count(), 1, "one line in ten seconds");
}
