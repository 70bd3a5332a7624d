//! Every call, with the blocking client and the asynchronous one, at bsd and at beanstalkd.

use std::time::Duration;

use bsd_client::{
    AsyncClient, Clear, Client, Conflict, DeadLetter, ErrorKind, Failed, Inserted, Policy, Put,
    Schedule, State, Unique,
};

use crate::harness::Server;

const NOW: Duration = Duration::ZERO;

fn kind<T: std::fmt::Debug>(result: Result<T, bsd_client::Error>) -> ErrorKind {
    result.expect_err("an error").kind()
}

#[test]
fn the_commands_of_beanstalkd_work_at_both_servers() {
    for server in [Server::bsd(&[]), Server::beanstalkd()]
        .into_iter()
        .flatten()
    {
        let mut client = server.client();
        client.use_tube("mail").unwrap();
        assert_eq!(client.used_tube().unwrap(), "mail");
        assert_eq!(client.watch("mail").unwrap(), 2);
        assert_eq!(client.ignore("default").unwrap(), 1);
        assert_eq!(kind(client.ignore("mail")), ErrorKind::NotIgnored);
        assert_eq!(client.watched_tubes().unwrap(), ["mail"]);

        let id = client.put(Put::new("one").pri(7)).unwrap().id();
        assert_eq!(client.peek_ready().unwrap().body, b"one");
        let job = client.reserve(NOW).unwrap().unwrap();
        assert_eq!((job.id, &*job.body), (id, &b"one"[..]));
        assert!(client.is_holding_jobs());
        assert_eq!(client.reserve(NOW).unwrap(), None);
        client.touch(id).unwrap();
        let stats = client.stats_job(id).unwrap();
        assert_eq!(
            (stats.state, stats.pri, stats.reserves),
            (State::Reserved, 7, 1)
        );
        client.release(id, 3, NOW).unwrap();
        assert!(!client.is_holding_jobs());
        assert_eq!(client.reserve_job(id).unwrap().id, id);
        client.bury(id, 9).unwrap();
        assert_eq!(client.peek_buried().unwrap().id, id);
        client.kick_job(id).unwrap();
        let later = client
            .put(Put::new("two").delay(Duration::from_secs(60)))
            .unwrap()
            .id();
        assert_eq!(client.peek_delayed().unwrap().id, later);
        assert_eq!(client.kick(10).unwrap(), 1);
        assert_eq!(client.stats_tube("mail").unwrap().ready, 2);
        client.pause_tube("mail", NOW).unwrap();
        assert_eq!(kind(client.pause_tube("nowhere", NOW)), ErrorKind::NotFound);
        client.delete(id).unwrap();
        assert_eq!(kind(client.delete(id)), ErrorKind::NotFound);
        assert_eq!(
            kind(client.put(Put::new(vec![0; 70_000]))),
            ErrorKind::JobTooBig
        );
        assert_eq!(client.stats().unwrap().ready, 1);
        assert!(client.tubes().unwrap().contains(&"mail".to_owned()));
        assert_eq!(client.peek(later).unwrap().body, b"two");
    }
}

#[test]
fn batches_work_at_both_servers() {
    for server in [Server::bsd(&[]), Server::beanstalkd()]
        .into_iter()
        .flatten()
    {
        let mut client = server.client();
        client.watch("many").unwrap();
        let puts: Vec<_> = (0..1500)
            .map(|n| Put::new(n.to_string()).tube("many"))
            .collect();
        let ids: Vec<_> = client
            .put_many(&puts)
            .unwrap()
            .into_iter()
            .map(|put| put.unwrap().id())
            .collect();
        assert_eq!(ids.len(), 1500);
        let jobs = client.reserve_batch(300, NOW).unwrap();
        assert_eq!(jobs.len(), 300);
        let some: Vec<_> = jobs.iter().map(|job| job.id).collect();
        let with_unknown = [&some[..10], &[999_999]].concat();
        assert_eq!(client.touch_batch(&with_unknown).unwrap(), [999_999]);
        assert!(
            client
                .release_batch(&some[..100], 1, NOW)
                .unwrap()
                .is_empty()
        );
        assert!(client.delete_batch(&some[100..]).unwrap().is_empty());
        assert_eq!(
            client.delete_batch(&some[100..102]).unwrap(),
            some[100..102]
        );
        assert_eq!(client.stats_tube("many").unwrap().ready, 1300);
        // Larger than any buffer of a socket: bodies in both directions.
        let large: Vec<_> = (0..300)
            .map(|_| Put::new(vec![b'x'; 60_000]).tube("large"))
            .collect();
        assert!(client.put_many(&large).unwrap().iter().all(Result::is_ok));
        client.watch("large").unwrap();
        client.ignore("many").unwrap();
        let jobs = client.reserve_batch(20, NOW).unwrap();
        assert!(jobs.len() > 10 && jobs.iter().all(|job| job.body.len() == 60_000));
    }
}

#[test]
fn at_beanstalkd_extended_calls_are_refused_without_sending_them() {
    let Some(server) = Server::beanstalkd() else {
        return;
    };
    let mut client = server.client();
    assert_eq!(client.capabilities().unwrap(), Vec::<String>::new());
    let victim = client.put(Put::new("victim")).unwrap().id();
    let keyed = client.put(Put::new(format!("delete {victim}")).key("k"));
    assert_eq!(kind(keyed), ErrorKind::Unsupported);
    assert_eq!(
        kind(client.fail(victim, format!("delete {victim}\r\n"))),
        ErrorKind::Unsupported
    );
    assert_eq!(
        kind(client.bury_with_reason(1, 1, "x")),
        ErrorKind::Unsupported
    );
    assert_eq!(
        kind(client.clear_tube("default", Clear::All)),
        ErrorKind::Unsupported
    );
    assert_eq!(kind(client.move_job(1, "b")), ErrorKind::Unsupported);
    assert_eq!(kind(client.stats_job_extended(1)), ErrorKind::Unsupported);
    assert_eq!(
        kind(client.set_policy("a", &Policy::default())),
        ErrorKind::Unsupported
    );
    client.peek(victim).unwrap();
    // A tube and a time have a fallback.
    let id = client
        .put(Put::new("x").tube("other").at(4_000_000_000))
        .unwrap()
        .id();
    let stats = client.stats_job(id).unwrap();
    assert_eq!((&*stats.tube, stats.state), ("other", State::Delayed));
}

fn policy() -> Policy {
    Policy {
        delivery_limit: Some(2),
        dead_letter: DeadLetter::Tube("dead".to_owned()),
        ..Policy::default()
    }
}

fn report() -> Schedule {
    Schedule {
        cron: "0 8 * * 1-5".to_owned(),
        tz: "Europe/Berlin".to_owned(),
        tube: "mail".to_owned(),
        body: b"daily".to_vec(),
        ..Schedule::default()
    }
}

#[test]
fn the_extended_commands_work() {
    let Some(server) = Server::bsd(&[]) else {
        return;
    };
    let mut client = server.client();
    assert!(client.supports("put-with").unwrap() && !client.supports("what").unwrap());
    let keyed = || Put::new("body").tube("mail").key("k").group("g");
    let Inserted::New(id) = client.put(keyed()).unwrap() else {
        panic!("a new job");
    };
    assert_eq!(client.put(keyed()).unwrap(), Inserted::Exists(id));
    let replaced = client.put(keyed().conflict(Conflict::Replace).unique(Unique::Waiting));
    let Inserted::New(id) = replaced.unwrap() else {
        panic!("a new job");
    };
    let known = client.stats_job_extended(id).unwrap();
    assert_eq!(
        (known.key.as_deref(), known.unique.as_deref()),
        (Some("k"), Some("waiting"))
    );
    client.set_policy("mail", &policy()).unwrap();
    client.watch("mail").unwrap();
    let job = client.reserve_batch(1, NOW).unwrap().remove(0);
    assert_eq!(job.tube.as_deref(), Some("mail"));
    assert_eq!(client.fail(id, "no route").unwrap(), Failed::Released);
    client.reserve(NOW).unwrap().unwrap();
    let failed = client.fail(id, "no route: \u{2260} \"\\").unwrap();
    assert_eq!(failed, Failed::DeadLettered("dead".to_owned()));
    let known = client.stats_job_extended(id).unwrap();
    assert_eq!(known.text.as_deref(), Some("no route: \u{2260} \"\\"));
    assert_eq!(
        (known.reason.as_deref(), known.failures),
        (Some("failed"), Some(2))
    );
    let stats = client.stats_policy("mail").unwrap();
    assert_eq!((stats.total_failed, stats.total_set_aside), (2, 1));
    assert_eq!(stats.get("dead-letter"), Some("dead"));

    let page = client.list_jobs("dead", State::Ready, None, 10).unwrap();
    assert_eq!((page.jobs, page.next), (vec![(id, 4)], None));
    client.move_job(id, "mail").unwrap();
    client.reserve(NOW).unwrap().unwrap();
    client.bury_with_reason(id, 1, "why").unwrap();
    assert_eq!(client.clear_tube("mail", Clear::Buried).unwrap(), 1);
    client.set_policy("mail", &Policy::default()).unwrap();
    assert_eq!(kind(client.stats_policy("mail")), ErrorKind::NotFound);

    client.set_schedule("report", &report()).unwrap();
    let known = client.stats_schedule("report").unwrap();
    assert_eq!(
        (&*known.cron, known.next.len(), known.bytes),
        ("0 8 * * 1-5", 5, 5)
    );
    client.delete_schedule("report").unwrap();
    let wrong = Schedule {
        tz: "Nowhere/Land".to_owned(),
        ..report()
    };
    assert_eq!(
        kind(client.set_schedule("report", &wrong)),
        ErrorKind::BadFormat
    );
    // Nothing of the body was run.
    assert_eq!(client.stats().unwrap().get("cmd-delete"), Some("0"));
}

#[tokio::test]
async fn the_asynchronous_client_is_the_same() {
    for server in [Server::bsd(&[]), Server::beanstalkd()]
        .into_iter()
        .flatten()
    {
        let mut client = AsyncClient::connect(server.address()).await.unwrap();
        client.watch("mail").await.unwrap();
        let id = client.put(Put::new("one").tube("mail")).await.unwrap().id();
        let job = client.reserve(NOW).await.unwrap().unwrap();
        assert_eq!((job.id, &*job.body), (id, &b"one"[..]));
        client.delete(id).await.unwrap();
        let puts: Vec<_> = (0..1000)
            .map(|n| Put::new(n.to_string()).tube("mail"))
            .collect();
        assert!(
            client
                .put_many(&puts)
                .await
                .unwrap()
                .iter()
                .all(Result::is_ok)
        );
        let jobs = client.reserve_batch(100, NOW).await.unwrap();
        let ids: Vec<_> = jobs.iter().map(|job| job.id).collect();
        assert!(client.delete_batch(&ids).await.unwrap().is_empty());

        // A call that is given up: the next one has a new connection, and the right reply.
        client.ignore("mail").await.unwrap();
        let wait = client.reserve(Duration::from_secs(60));
        let given_up = tokio::time::timeout(Duration::from_millis(50), wait).await;
        assert!(given_up.is_err());
        assert_eq!(client.stats_tube("mail").await.unwrap().ready, 900);
        assert_eq!(client.watched_tubes().await.unwrap(), ["default"]);

        let pool = bsd_client::AsyncPool::new(server.config(), 2);
        let tasks: Vec<_> = (0..8)
            .map(|_| {
                let pool = pool.clone();
                tokio::spawn(async move {
                    let mut client = pool.get().await.unwrap();
                    client.use_tube("other").await.unwrap();
                    client.put(Put::new("x")).await.unwrap();
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        let mut client = pool.get().await.unwrap();
        assert_eq!(client.used_tube().await.unwrap(), "default");
        assert_eq!(client.stats_tube("other").await.unwrap().ready, 8);
    }
}

#[test]
fn a_client_comes_back_to_the_pool_without_its_tubes_and_jobs() {
    for server in [Server::bsd(&[]), Server::beanstalkd()]
        .into_iter()
        .flatten()
    {
        let pool = bsd_client::Pool::new(server.config(), 1);
        let mut client = pool.get().unwrap();
        client.use_tube("mail").unwrap();
        client.watch("mail").unwrap();
        client.ignore("default").unwrap();
        let id = client.put(Put::new("x")).unwrap().id();
        client.reserve(NOW).unwrap().unwrap();
        assert_eq!(kind(pool.get_within(NOW)), ErrorKind::TimedOut);
        drop(client);
        let mut client = pool.get().unwrap();
        assert_eq!(client.used_tube().unwrap(), "default");
        assert_eq!(client.watched_tubes().unwrap(), ["default"]);
        // The server may see the end of the other connection later than this one's commands.
        client.watch("mail").unwrap();
        let job = client.reserve(Duration::from_secs(60)).unwrap();
        assert_eq!(job.map(|job| job.id), Some(id));
    }
}

#[test]
fn an_argument_that_is_wrong_is_refused_before_anything_is_sent() {
    let Some(server) = Server::bsd(&[]) else {
        return;
    };
    let mut client: Client = server.client();
    assert_eq!(kind(client.use_tube("a b")), ErrorKind::Usage);
    assert_eq!(kind(client.put(Put::new("").tube("-x"))), ErrorKind::Usage);
    assert_eq!(kind(client.auth("a b")), ErrorKind::Usage);
    let long = Duration::from_secs(u64::MAX);
    assert_eq!(kind(client.put(Put::new("").delay(long))), ErrorKind::Usage);
    assert_eq!(kind(client.fail(1, vec![0; 5000])), ErrorKind::JobTooBig);
    assert_eq!(client.stats().unwrap().get("cmd-put"), Some("0"));
}
