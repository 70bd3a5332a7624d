//! Words of schedules, and their firings on the days on which the clock is changed.

use super::*;

const MINUTE_NS: i64 = 60 * SECOND_NS;
const HOUR_NS: i64 = 60 * MINUTE_NS;
const DAY_NS: i64 = 24 * HOUR_NS;

fn schedule(words: &str) -> Schedule {
    words
        .parse()
        .unwrap_or_else(|error| panic!("{words}: {error}"))
}

fn timetable(cron: &str, tz: &str) -> Timetable {
    let words = format!("cron={} tz={tz} tube=mail", cron.replace(' ', "_"));
    let made = schedule(&words).timetable();
    made.unwrap_or_else(|error| panic!("{words}: {error}"))
}

fn ns(time: &str) -> i64 {
    let time: Timestamp = time.parse().unwrap();
    i64::try_from(time.as_nanosecond()).unwrap()
}

/// The firings between these times, as they are shown.
fn between(timetable: &Timetable, from: &str, upto: &str) -> Vec<String> {
    let firings = timetable.after(ns(from)).take_while(|at| *at <= ns(upto));
    firings.map(|at| timetable.shown(at)).collect()
}

#[test]
fn a_schedule_is_read_and_written_in_one_form() {
    let all = "cron=0_8_*_*_1-5 tz=Europe/Berlin tube=mail pri=5 ttr=60 key=daily missed=once \
               paused=yes";
    assert_eq!(schedule(all).to_string(), all);
    assert_eq!(schedule(all).cron, "0 8 * * 1-5");
    let backwards: Vec<&str> = all.split(' ').rev().collect();
    assert_eq!(schedule(&backwards.join("  ")), schedule(all));
    let short = schedule("tube=mail cron=__0__8_*_*_*_ missed=skip paused=no");
    let long = "cron=0_8_*_*_* tz=UTC tube=mail pri=65536 ttr=120";
    assert_eq!(short.to_string(), long);
    for body in [&b""[..], b"body", b"\n", b"a\nb\r\n\xff\0"] {
        let with = Schedule {
            body: body.to_vec(),
            ..schedule(all)
        };
        let value = with.encode().unwrap();
        assert_eq!(Schedule::decode(&value), Ok(with));
    }
    assert_eq!(NAMES.len(), schedule(all).values().len());
}

#[test]
fn what_is_no_schedule_is_refused_with_the_reason() {
    for (words, reason) in [
        ("", "needs cron="),
        ("cron=*_*_*_*_*", "needs tube="),
        ("cron=*_*_*_*_* tube", "not a name and a value"),
        ("cron=*_*_*_*_* tube=a delay=5", "has no 'delay'"),
        ("cron=*_*_*_*_* tube=a tube=b", "tube is there twice"),
        ("cron=*_*_*_*_* tube=-a", "tube=-a: a tube"),
        ("cron=*_*_*_*_* tube=a pri=-1", "a number"),
        ("cron=*_*_*_*_* tube=a pri=4294967296", "a number"),
        ("cron=*_*_*_*_* tube=a ttr=0", "at least 1"),
        ("cron=*_*_*_*_* tube=a key=a*", "1 to 200"),
        ("cron=*_*_*_*_* tube=a missed=none", "skip, once or all"),
        ("cron=*_*_*_*_* tube=a paused=true", "yes or no"),
        ("cron=*_*_*_* tube=a", "five or six fields"),
        ("cron=*_*_*_*_*_*_* tube=a", "five or six fields"),
        ("cron=60_*_*_*_* tube=a", "five or six fields"),
        ("cron=*_24_*_*_* tube=a", "five or six fields"),
        ("cron=*_*_0_*_* tube=a", "five or six fields"),
        ("cron=*_*_*_13_* tube=a", "five or six fields"),
        ("cron=*/0_*_*_*_* tube=a", "five or six fields"),
        ("cron=@reboot tube=a", "five or six fields"),
        ("cron=nonsense tube=a", "five or six fields"),
        ("cron=*_*_*_*_\u{e4} tube=a", "characters of ASCII"),
        ("cron=0_0_30_2_* tube=a", "never fires"),
        ("cron=0_0_31_4,6_* tube=a", "never fires"),
        ("cron=*_*_*_*_* tube=a tz=", "is no time zone"),
        (
            "cron=*_*_*_*_* tube=a tz=Europe/Bielefeld",
            "is no time zone",
        ),
        (
            "cron=*_*_*_*_* tube=a tz=../../etc/passwd",
            "is no time zone",
        ),
    ] {
        let read = words.parse().and_then(|it: Schedule| it.encode());
        let error = read.unwrap_err().to_string();
        assert!(error.contains(reason), "{words}: {error}");
    }
    let long = format!("cron=*_*_*_*_{} tube=a", "0,".repeat(200));
    let read = long.parse().and_then(|it: Schedule| it.encode());
    assert!(read.unwrap_err().to_string().contains("at most 200"));
    for name in ["", "-a", "a b", "a=b", "\u{e4}", &"x".repeat(201)] {
        assert!(check_name(name).is_err(), "{name}");
    }
    assert!(check_name(&"x".repeat(200)).is_ok());
}

#[test]
fn the_largest_body_is_what_a_setting_has_room_for() {
    let mut largest = schedule("cron=*_*_*_*_* tube=a");
    largest.body = vec![b'x'; SETTING_SIZE_MAX - 1 - largest.to_string().len()];
    assert_eq!(largest.encode().unwrap().len(), SETTING_SIZE_MAX);
    largest.body.push(b'x');
    let error = largest.encode().unwrap_err().to_string();
    assert!(error.contains("1 bytes too many"), "{error}");
}

#[test]
fn an_expression_that_never_fires_is_found_and_the_rarest_that_do_are_not() {
    for (cron, is_one) in [
        ("0 0 30 2 *", false),
        ("0 0 31 2,4,6,9,11 *", false),
        ("* * * 30 2 *", false),
        ("0 0 29 2 *", true),
        ("0 0 29 2 +MON", true),
        ("0 0 29 2 +SUN", true),
        ("0 0 31 12 +WED", true),
        ("59 59 23 * 2 MON#5", true),
    ] {
        let words = format!("cron={} tube=a", cron.replace(' ', "_"));
        assert_eq!(schedule(&words).timetable().is_ok(), is_one, "{cron}");
    }
}

#[test]
fn six_fields_begin_with_seconds_and_names_stand_for_expressions() {
    let of = |cron| {
        let table = timetable(cron, "UTC");
        let firings = table.after(ns("2026-12-31T23:59:30.5Z")).take(3);
        let shown: Vec<_> = firings.map(|at| table.shown(at)).collect();
        shown.join(" ").replace("+00:00", "").replace('Z', "")
    };
    assert_eq!(
        of("*/15 * * * * *"),
        "2026-12-31T23:59:45 2027-01-01T00:00:00 2027-01-01T00:00:15"
    );
    assert_eq!(
        of("30 59 23 * * *"),
        "2027-01-01T23:59:30 2027-01-02T23:59:30 2027-01-03T23:59:30",
        "what has begun is over"
    );
    assert_eq!(
        of("@daily"),
        "2027-01-01T00:00:00 2027-01-02T00:00:00 2027-01-03T00:00:00"
    );
    assert_eq!(
        of("0 12 L FEB *"),
        "2027-02-28T12:00:00 2028-02-29T12:00:00 2029-02-28T12:00:00"
    );
    assert_eq!(
        of("0 8 * * MON-FRI"),
        "2027-01-01T08:00:00 2027-01-04T08:00:00 2027-01-05T08:00:00"
    );
    // As cron has it: a day of the month or a day of the week.
    assert_eq!(
        of("0 0 1 * 1"),
        "2027-01-01T00:00:00 2027-01-04T00:00:00 2027-01-11T00:00:00"
    );
}

#[test]
fn a_time_that_the_spring_day_leaves_out_fires_once_when_the_gap_ends() {
    let table = timetable("30 2 * * *", "Europe/Berlin");
    assert_eq!(
        between(&table, "2026-03-27T12:00:00Z", "2026-03-30T12:00:00Z"),
        [
            "2026-03-28T02:30:00+01:00",
            "2026-03-29T03:00:00+02:00",
            "2026-03-30T02:30:00+02:00"
        ]
    );
    assert_eq!(
        between(&table, "2027-03-27T12:00:00Z", "2027-03-29T12:00:00Z"),
        ["2027-03-28T03:00:00+02:00", "2027-03-29T02:30:00+02:00"]
    );
}

#[test]
fn a_time_that_the_autumn_day_has_twice_fires_once() {
    let table = timetable("30 2 * * *", "Europe/Berlin");
    assert_eq!(
        between(&table, "2026-10-24T12:00:00Z", "2026-10-26T12:00:00Z"),
        ["2026-10-25T02:30:00+02:00", "2026-10-26T02:30:00+01:00"]
    );
    assert_eq!(
        between(&table, "2027-10-30T12:00:00Z", "2027-11-01T12:00:00Z"),
        ["2027-10-31T02:30:00+02:00", "2027-11-01T02:30:00+01:00"]
    );
}

#[test]
fn every_half_hour_is_a_real_one_on_both_days() {
    let table = timetable("*/30 * * * *", "Europe/Berlin");
    for (from, upto) in [
        ("2026-03-28T20:00:00Z", "2026-03-29T20:00:00Z"),
        ("2026-10-24T20:00:00Z", "2026-10-25T20:00:00Z"),
        ("2027-03-27T20:00:00Z", "2027-03-28T20:00:00Z"),
        ("2027-10-30T20:00:00Z", "2027-10-31T20:00:00Z"),
    ] {
        let firings: Vec<i64> = table
            .after(ns(from))
            .take_while(|at| *at <= ns(upto))
            .collect();
        let wanted: Vec<i64> = (1..=48)
            .map(|nth| ns(from) + nth * 30 * MINUTE_NS)
            .collect();
        assert_eq!(firings, wanted, "{from}");
    }
}

#[test]
fn firings_go_on_in_order_over_all_changes_of_the_clock() {
    let zones = [
        "UTC",
        "Europe/Berlin",
        "America/New_York",
        "Australia/Lord_Howe",
        "America/St_Johns",
        "Asia/Kathmandu",
        "Africa/Casablanca",
        "Pacific/Apia",
    ];
    for zone in zones {
        for cron in [
            "30 2 * * *",
            "0 0 * * *",
            "*/20 * * * *",
            "15 1-3 * * 0",
            "59 23 31 12 *",
        ] {
            let table = timetable(cron, zone);
            let begin = ns("2026-01-01T00:00:00Z");
            let mut last = begin;
            while last < begin + 2 * 365 * DAY_NS {
                let next = table.next_after(last).expect("it goes on");
                assert!(next > last, "{zone} {cron}");
                // From any time before it the next one is the same.
                for before in [1, SECOND_NS - 1, SECOND_NS, 20 * MINUTE_NS] {
                    if next - before >= last {
                        let again = table.next_after(next - before);
                        assert_eq!(again, Some(next), "{zone} {cron} {}", table.shown(next));
                    }
                }
                last = next;
            }
        }
    }
}

#[test]
fn the_last_firings_are_found_without_a_look_at_all_of_them() {
    let table = timetable("* * * * * *", "Europe/Berlin");
    let (long_ago, now) = (0, ns("2026-11-28T12:00:00Z"));
    let last = table.last(long_ago, now, 100);
    let wanted: Vec<i64> = (0..100).rev().map(|nth| now - nth * SECOND_NS).collect();
    assert_eq!(last, wanted);
    assert_eq!(table.last(now, now, 100), []);
    assert_eq!(table.last(now - 2 * SECOND_NS, now, 100), wanted[98..]);
    assert_eq!(
        table.last(now - 2 * SECOND_NS, now - 1, 100),
        wanted[98..99]
    );
    assert_eq!(table.last(long_ago, now, 0), []);
    let rare = timetable("0 0 29 2 *", "UTC");
    let last = rare.last(long_ago, now, 2);
    let shown: Vec<_> = last.iter().map(|at| rare.shown(*at)).collect();
    assert!(shown[0].starts_with("2020-02-29T00") && shown[1].starts_with("2024-02-29T00"));
}

#[test]
fn a_zone_that_is_not_known_is_answered_with_the_one_that_may_be_meant() {
    for (name, said) in [
        ("Europe/Berlim", "is Europe/Berlin meant?"),
        ("berlin", "is Europe/Berlin meant?"),
        ("New_York", "is America/New_York meant?"),
        ("Amerika/New_York", "is America/New_York meant?"),
        ("Nowhere/At_All", "a name such as Europe/Berlin"),
        ("", "a name such as Europe/Berlin"),
        (&"x".repeat(1000), "a name such as Europe/Berlin"),
    ] {
        let error = zone(name).unwrap_err().to_string();
        assert!(error.ends_with(said), "{name}: {error}");
    }
    assert_eq!(letters_between("kitten", "sitting"), 3);
    assert_eq!(letters_between("", "ab"), 2);
}
