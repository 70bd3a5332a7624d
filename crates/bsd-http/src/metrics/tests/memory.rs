//! The metrics of memory, compared with the work of a client, and with the bound.

use super::*;

fn page(engine: &Engine, now: Now) -> String {
    let snapshot = Snapshot::sample(engine.figures(now), now, &[], 2);
    written(|page| of_memory(page, &snapshot.figures))
}

/// By use, in the order of the page.
fn uses(engine: &Engine, now: Now) -> [u64; 4] {
    ["jobs", "clients", "bodies", "pauses"].map(|of| {
        let sample = format!("bsd_memory_bytes{{use=\"{of}\"}}");
        value(&page(engine, now), &sample) as u64
    })
}

fn put(engine: &mut Engine, client: ClientId, body: &[u8], now: Now) -> bool {
    let before = engine.queue().stats().total_jobs;
    let put = Command::put(1, 0, 100, body);
    Yaml::of(engine, client, put, now);
    engine.queue().stats().total_jobs > before
}

/// Each command makes its own use grow, and no other.
#[test]
fn t22_memory_is_what_was_put_watched_and_paused() {
    let now = Clock::start().now();
    let mut engine = Engine::open(&Options::default(), now).unwrap();
    let client = engine.connect();
    assert!(put(&mut engine, client, b"", now));
    let begun = uses(&engine, now);
    for _ in 0..1000 {
        assert!(put(&mut engine, client, &[7; 1000], now));
    }
    let jobs = uses(&engine, now);
    let grown = |of: usize, from: [u64; 4], to: [u64; 4]| to[of] - from[of];
    assert!(
        (32_000..512_000).contains(&grown(0, begun, jobs)),
        "{jobs:?}"
    );
    assert!(grown(2, begun, jobs) >= 1_000_000, "{jobs:?}");
    assert!(grown(2, begun, jobs) < 1_200_000, "{jobs:?}");
    assert_eq!((jobs[1], jobs[3]), (begun[1], begun[3]));

    let names: Vec<String> = (0..500).map(|nth| format!("tube-{nth:0>100}")).collect();
    let watcher = engine.connect();
    let before = uses(&engine, now);
    for name in &names {
        Yaml::of(&mut engine, watcher, Command::Watch(name.into()), now);
    }
    let watched = uses(&engine, now);
    assert!(grown(1, before, watched) >= 500 * 100, "{watched:?}");
    assert_eq!((watched[2], watched[3]), (before[2], before[3]));

    for id in 1..=1001 {
        Yaml::of(&mut engine, client, Command::Delete(JobId(id)), now);
    }
    // Places of jobs are kept for others.
    assert!(uses(&engine, now)[2] < 32 * 1001);
}

/// Records of pauses are in a log.
#[test]
fn t22_memory_of_pauses_is_that_of_the_tubes_that_were_paused() {
    let now = Clock::start().now();
    let options = Options {
        dir: Some("/d".into()),
        fs: Arc::new(bsd::storage::SimFs::new(1)),
        ..Options::default()
    };
    let mut engine = Engine::open(&options, now).unwrap();
    let client = engine.connect();
    assert!(put(
        &mut engine,
        client,
        b"in the log, and not in memory",
        now
    ));
    assert_eq!(uses(&engine, now)[2..], [0, 0]);
    let pause = |engine: &mut Engine, name: &str, delay: u32| {
        Yaml::of(engine, client, Command::Use(name.into()), now);
        Yaml::of(engine, client, Command::pause_tube(name, delay), now);
    };
    let mut names = 0;
    for nth in 0..500 {
        let name = format!("tube-{nth:0>100}");
        names += name.len() as u64;
        pause(&mut engine, &name, 60);
    }
    let [_, _, bodies, pauses] = uses(&engine, now);
    assert_eq!(bodies, 0);
    assert!((names..names + 500 * 256).contains(&pauses), "{pauses}");
}

#[test]
fn t22_full_memory_is_full_on_the_page_until_there_is_what_is_said_to_be_missing() {
    const BOUND: u64 = 8 << 20;
    let now = Clock::start().now();
    let options = Options {
        memory_max: Some(BOUND),
        ..Options::default()
    };
    let mut engine = Engine::open(&options, now).unwrap();
    let client = engine.connect();
    let body = [7; 40_000];
    let mut count = 0;
    let of = |engine: &Engine, sample: &str| value(&page(engine, now), sample) as u64;
    assert_eq!(of(&engine, "bsd_memory_max_bytes"), BOUND);
    while put(&mut engine, client, &body, now) {
        assert_eq!(of(&engine, "bsd_memory_full"), 0);
        assert_eq!(of(&engine, "bsd_memory_missing_bytes"), 0);
        count += 1;
    }
    let sum: u64 = uses(&engine, now).iter().sum();
    assert!(
        sum <= BOUND && sum + 2 * 40_000 > BOUND,
        "{sum} after {count}"
    );
    assert_eq!(of(&engine, "bsd_memory_full"), 1);
    let missing = of(&engine, "bsd_memory_missing_bytes");
    assert!((1..=60_000).contains(&missing), "{missing}");
    // Two deletes give more than that. It is over when nothing was refused for a second.
    Yaml::of(&mut engine, client, Command::Delete(JobId(1)), now);
    Yaml::of(&mut engine, client, Command::Delete(JobId(2)), now);
    assert!(put(&mut engine, client, &body, now));
    assert_eq!(of(&engine, "bsd_memory_full"), 1);
    let later = Now::new(
        Time(now.mono.0 + 2_000_000_000),
        now.wall_ns + 2_000_000_000,
    );
    assert!(put(&mut engine, client, b"", later));
    assert_eq!(of(&engine, "bsd_memory_full"), 0);
    assert_eq!(of(&engine, "bsd_memory_missing_bytes"), 0);
    let engine = Engine::open(&Options::default(), now).unwrap();
    assert_eq!(of(&engine, "bsd_memory_max_bytes"), 0, "there is no bound");
}
