//! The asynchronous client of a list of servers: the same as the blocking one, and futures that are
//! dropped.

use std::future::poll_fn;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;
use std::thread::JoinHandle;
use std::time::Duration;

use bsd_client::{AsyncServersClient, Clear, Config, ErrorKind, Put, ServerJob, Servers, State};

use crate::harness::{Server, wait_until};
use crate::servers::tube_on;

const NOW: Duration = Duration::ZERO;
const LONG: Duration = Duration::from_secs(3600);

fn of(servers: &[&Server]) -> Servers {
    let names = ["one", "two", "three"].into_iter();
    Servers::new(names.zip(servers.iter().map(|server| server.config()))).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn tubes_are_placed_and_jobs_come_from_all_servers_in_turn() {
    let (Some(one), Some(two)) = (Server::bsd(&[]), Server::bsd(&[])) else {
        return;
    };
    let three = Server::beanstalkd();
    let mut list = vec![&one, &two];
    list.extend(three.as_ref());
    let count = list.len();
    let servers = of(&list).pin("pinned", "two").unwrap();
    let mut client = servers.async_client();
    let names = ["one", "two", "three"].into_iter().take(count);
    let tubes: Vec<_> = names.map(|name| tube_on(&servers, name)).collect();
    // In a task of its own: its futures can be sent to another thread.
    let task = tokio::spawn(async move {
        for tube in &tubes {
            for _ in 0..20 {
                client
                    .put(Put::new(tube.as_str()).tube(tube))
                    .await
                    .unwrap();
            }
        }
        client.watch_only(&tubes).unwrap();
        for turn in 0..20 {
            let mut given = Vec::new();
            for _ in 0..count {
                let job = client.reserve(NOW).await.unwrap().unwrap();
                given.push(client.server_of(&job).to_owned());
                client.touch(&job).await.unwrap();
                client.delete(&job).await.unwrap();
            }
            given.sort_unstable();
            given.dedup();
            assert_eq!(given.len(), count, "turn {turn}: {given:?}");
        }
        assert_eq!(client.reserve(NOW).await.unwrap(), None);
        client.put(Put::new("x").tube("pinned")).await.unwrap();
    });
    task.await.unwrap();
    assert_eq!(two.client().stats_tube("pinned").unwrap().ready, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_goes_its_way_at_the_server_that_gave_it() {
    let (Some(one), Some(two)) = (Server::bsd(&[]), Server::bsd(&[])) else {
        return;
    };
    let servers = of(&[&one, &two]);
    let mut client = servers.async_client();
    // The same id at both servers.
    for name in ["one", "two"] {
        let tube = tube_on(&servers, name);
        let put = Put::new(name).tube(&tube).key("k");
        assert_eq!(client.put_with(put).await.unwrap().id(), 1);
        client.watch_only([&tube]).unwrap();
        let job = client.reserve(NOW).await.unwrap().unwrap();
        assert_eq!((client.server_of(&job), job.job.id), (name, 1));
        client.release(&job, 7, NOW).await.unwrap();
        let again = client.reserve(NOW).await.unwrap().unwrap();
        assert_eq!(again, job);
        client.fail(&job, "why").await.unwrap();
        let job = client.reserve(NOW).await.unwrap().unwrap();
        let stats = client.of(&job).await.unwrap().stats_job(1).await.unwrap();
        assert_eq!((stats.pri, stats.reserves), (7, 3));
        client.bury(&job, 9).await.unwrap();
        let kicked = client.on(&tube).await.unwrap().kick_job(1).await;
        kicked.unwrap();
        client.delete(&job).await.unwrap();
        let gone = client.delete(&job).await.unwrap_err();
        assert_eq!(gone.kind(), ErrorKind::NotFound);
    }
}

/// Puts these jobs when a client waits at their server, or when `is_over`.
pub(crate) fn putter(jobs: Vec<(Config, String)>, is_over: Arc<AtomicBool>) -> JoinHandle<()> {
    std::thread::spawn(move || {
        for (config, tube) in jobs {
            let mut client = bsd_client::Client::connect(config).unwrap();
            wait_until("a client waits, or does not any more", || {
                is_over.load(Ordering::SeqCst) || client.stats().unwrap().waiting > 0
            });
            client.put(Put::new("x").tube(tube)).unwrap();
        }
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_is_found_at_whichever_server_it_comes_while_all_are_waited_for() {
    let (Some(one), Some(two)) = (Server::bsd(&[]), Server::bsd(&[])) else {
        return;
    };
    let three = Server::beanstalkd();
    let mut list = vec![&one, &two];
    list.extend(three.as_ref());
    let servers = of(&list);
    let names = ["one", "two", "three"];
    let tube = |index: usize| tube_on(&servers, names[index]);
    let mut client = servers.async_client();
    client.watch_only((0..list.len()).map(tube)).unwrap();
    for round in 0..6 {
        let index = round % list.len();
        let job = vec![(list[index].config(), tube(index))];
        let putter = putter(job, Arc::default());
        let job = client.reserve(LONG).await.unwrap().unwrap();
        assert_eq!(client.server_of(&job), names[index]);
        client.delete(&job).await.unwrap();
        putter.join().unwrap();
    }
    for server in [&one, &two] {
        let stats = server.client().stats().unwrap();
        assert_eq!((stats.reserved, stats.ready), (0, 0));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_away_keeps_its_tubes_and_the_others_work_on() {
    let dir = tempfile::tempdir().unwrap();
    let socket = format!("unix:{}", dir.path().join("socket").display());
    let data = dir.path().join("data").display().to_string();
    let start = || Server::bsd(&["-l", &socket, "-b", &data]);
    let (Some(one), Some(two)) = (Server::bsd(&[]), start()) else {
        return;
    };
    let quick = two.config().timeout(Duration::from_secs(3));
    let servers = Servers::new([("one", one.config()), ("two", quick)]).unwrap();
    let (here, away) = (tube_on(&servers, "one"), tube_on(&servers, "two"));
    let mut client = servers.async_client();
    client.watch_only([&here, &away]).unwrap();
    let put = Put::new("waits").tube(&away);
    let waiting = client.put(put.clone()).await.unwrap().id();
    two.kill();
    let refused = client.put(put.clone()).await.unwrap_err();
    assert!(
        matches!(refused.kind(), ErrorKind::Connect | ErrorKind::Unanswered),
        "{refused}"
    );
    for _ in 0..50 {
        client.put(Put::new("here").tube(&here)).await.unwrap();
        let job = client.reserve(LONG).await.unwrap().unwrap();
        assert_eq!(
            (client.server_of(&job), &*job.job.body),
            ("one", &b"here"[..])
        );
        client.delete(&job).await.unwrap();
    }
    let refused = client.put(put.clone()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Connect);
    let _two = start().unwrap();
    let job = client.reserve(LONG).await.unwrap().unwrap();
    assert_eq!((client.server_of(&job), job.job.id), ("two", waiting));
    client.put(put).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_whose_servers_are_all_away_waits_for_one_to_come() {
    let dir = tempfile::tempdir().unwrap();
    let socket = format!("unix:{}", dir.path().join("socket").display());
    let data = dir.path().join("data").display().to_string();
    let start = || Server::bsd(&["-l", &socket, "-b", &data]);
    let Some(server) = start() else {
        return;
    };
    let servers = Servers::new([("one", server.config())]).unwrap();
    let mut client = servers.async_client();
    let id = client.put(Put::new("x")).await.unwrap().id();
    server.kill();
    let error = client.reserve(NOW).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Connect);
    let starter = tokio::task::spawn_blocking(move || {
        let dir = dir;
        let server = Server::bsd(&["-l", &socket, "-b", &data]).unwrap();
        (dir, server)
    });
    let job = client.reserve(LONG).await.unwrap().unwrap();
    assert_eq!(job.job.id, id);
    drop(starter.await.unwrap());
}

/// Polls a future this many times at most, and drops it.
async fn polled<T>(times: usize, future: impl Future<Output = T>) -> Option<T> {
    let (mut future, mut left) = (pin!(future), times);
    poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match future.as_mut().poll(context) {
            Poll::Ready(result) => Poll::Ready(Some(result)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

async fn reserved(client: &mut AsyncServersClient, polls: usize) -> Option<ServerJob> {
    let reserved = polled(polls, client.reserve(LONG)).await;
    reserved.map(|result| result.unwrap().unwrap())
}

/// Wherever the future of a reserve is dropped, the jobs that were on their way are ready again, though
/// nothing more is done with the client.
#[tokio::test(flavor = "multi_thread")]
async fn a_reserve_that_is_dropped_at_any_time_leaves_no_job_reserved() {
    let (Some(one), Some(two)) = (Server::bsd(&[]), Server::bsd(&[])) else {
        return;
    };
    drops_at_any_time([one.config(), two.config()]).await;
}

/// The same at two servers that a client reaches so.
pub(crate) async fn drops_at_any_time(configs: [Config; 2]) {
    let named = ["one", "two"].into_iter().zip(configs.clone());
    let servers = Servers::new(named).unwrap();
    let tubes = ["one", "two"].map(|name| tube_on(&servers, name));
    let [mut at_one, mut at_two] = configs
        .clone()
        .map(|it| bsd_client::Client::connect(it).unwrap());
    let (mut dropped, mut polls) = (0, 0);
    loop {
        let mut client = servers.async_client();
        client.watch_only(&tubes).unwrap();
        let is_over = Arc::new(AtomicBool::new(false));
        let jobs = configs.clone().into_iter();
        let putter = putter(jobs.zip(tubes.clone()).collect(), is_over.clone());
        let job = reserved(&mut client, polls).await;
        is_over.store(true, Ordering::SeqCst);
        putter.join().unwrap();
        let is_done = job.is_some();
        dropped += usize::from(!is_done);
        if let Some(job) = job {
            client.delete(&job).await.unwrap();
        }
        let mut counts = (0, 0);
        wait_until("no job is reserved", || {
            let stats = [&mut at_one, &mut at_two].map(|it| it.stats().unwrap());
            counts = (
                stats[0].ready + stats[1].ready,
                stats[0].waiting + stats[1].waiting,
            );
            stats.iter().all(|it| it.reserved == 0 && it.waiting == 0)
        });
        assert_eq!(counts, (2 - u64::from(is_done), 0), "after {polls} polls");
        for (client, tube) in [(&mut at_one, &tubes[0]), (&mut at_two, &tubes[1])] {
            client.clear_tube(tube, Clear::All).unwrap();
        }
        if is_done {
            break;
        }
        polls += 1;
    }
    // How many polls a reserve takes is a matter of the machine; before the first it is never done.
    assert!(dropped > 0);
}

/// The same with a connection that has a job reserved: it keeps that, and the other one comes by the
/// next reserve, whether another call is before it or not.
#[tokio::test(flavor = "multi_thread")]
async fn a_reserve_that_is_dropped_takes_no_reserved_job_away() {
    let peers = [Server::bsd(&[]), Server::beanstalkd()];
    for server in peers.into_iter().flatten() {
        for is_touched in [true, false] {
            drops_while_holding(&server, is_touched).await;
        }
    }
}

async fn drops_while_holding(server: &Server, is_touched: bool) {
    let servers = of(&[server]);
    let mut client = servers.async_client();
    client.put(Put::new("held")).await.unwrap();
    let held = client.reserve(NOW).await.unwrap().unwrap();
    for polls in 0.. {
        let is_over = Arc::new(AtomicBool::new(false));
        let job = vec![(server.config(), "default".to_owned())];
        let putter = putter(job, is_over.clone());
        let job = reserved(&mut client, polls).await;
        is_over.store(true, Ordering::SeqCst);
        putter.join().unwrap();
        let is_done = job.is_some();
        if is_touched {
            let touched = client.touch(&held).await;
            touched.unwrap_or_else(|error| panic!("after {polls} polls: {error}"));
        }
        let job = match job {
            Some(job) => job,
            None => client.reserve(LONG).await.unwrap().unwrap(),
        };
        assert_ne!(job.job.id, held.job.id);
        let at = client.of(&job).await.unwrap();
        let stats = at.stats_job(job.job.id).await.unwrap();
        // No other call was before the reserve: the job has not been given back meanwhile.
        assert!(stats.releases <= u32::from(is_touched), "{stats:?}");
        client.delete(&job).await.unwrap();
        if is_done {
            break;
        }
    }
    client.touch(&held).await.unwrap();
    client.delete(&held).await.unwrap();
    let stats = server.client().stats().unwrap();
    assert_eq!((stats.ready, stats.reserved), (0, 0));
}

/// A job that came for other tubes than are watched now is not the result.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_of_a_dropped_reserve_is_given_back_if_its_tube_is_not_watched_any_more() {
    let Some(server) = Server::bsd(&[]) else {
        return;
    };
    let mut client = of(&[&server]).async_client();
    client.put(Put::new("held")).await.unwrap();
    client.put(Put::new("other").tube("other")).await.unwrap();
    let held = client.reserve(NOW).await.unwrap().unwrap();
    let mut at_server = server.client();
    let watcher = tokio::task::spawn_blocking(move || {
        wait_until("it waits", || at_server.stats().unwrap().waiting == 1);
        at_server
    });
    // The reserve is dropped when it waits.
    let mut watcher = pin!(watcher);
    let mut at_server = {
        let mut reserve = pin!(client.reserve(LONG));
        poll_fn(|context| {
            assert!(reserve.as_mut().poll(context).is_pending());
            watcher.as_mut().poll(context)
        })
        .await
        .unwrap()
    };
    let late = at_server.put(Put::new("late")).unwrap().id();
    client.watch_only(["other"]).unwrap();
    let job = client.reserve(LONG).await.unwrap().unwrap();
    assert_eq!(job.job.body, b"other");
    let stats = at_server.stats_job(late).unwrap();
    assert_eq!((stats.state, stats.releases), (State::Ready, 1));
    client.delete(&job).await.unwrap();
    client.delete(&held).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_that_is_ended_keeps_its_connections() {
    let (Some(one), Some(two)) = (Server::bsd(&[]), Server::bsd(&[])) else {
        return;
    };
    let servers = of(&[&one, &two]);
    let mut client = servers.async_client();
    let (mut at_one, mut at_two) = (one.client(), two.client());
    for _ in 0..3 {
        let (sender, over) = tokio::sync::oneshot::channel::<()>();
        let watcher = tokio::task::spawn_blocking(move || {
            wait_until("it waits at both", || {
                let stats = [&mut at_one, &mut at_two].map(|it| it.stats().unwrap());
                stats.iter().all(|it| it.waiting == 1)
            });
            sender.send(()).unwrap();
            (at_one, at_two)
        });
        let over = async { over.await.unwrap() };
        assert_eq!(client.reserve_until(LONG, over).await.unwrap(), None);
        (at_one, at_two) = watcher.await.unwrap();
    }
    for mut client in [at_one, at_two] {
        let stats = client.stats().unwrap();
        // Its own connection, and that of the list.
        assert_eq!(stats.waiting, 0);
        assert_eq!(stats.get("total-connections"), Some("2"));
    }
    let job = client.put(Put::new("x")).await.unwrap();
    // What is ready is given, even if the end has come.
    let over = std::future::ready(());
    let given = client.reserve_until(LONG, over).await.unwrap().unwrap();
    assert_eq!(given.job.id, job.id());
}

/// A server that greets, has no job at once, and then says nothing any more.
fn mute() -> Config {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let config: Config = listener.local_addr().unwrap().to_string().parse().unwrap();
    std::thread::spawn(move || {
        let mut kept = Vec::new();
        while let Ok((mut stream, _)) = listener.accept() {
            let mut input = BufReader::new(stream.try_clone().unwrap());
            for reply in ["OK 12\r\n---\n- abort\n\r\n", "TIMED_OUT\r\n"] {
                let mut line = String::new();
                input.read_line(&mut line).unwrap();
                stream.write_all(reply.as_bytes()).unwrap();
            }
            kept.push(stream);
        }
    });
    config.timeout(Duration::from_millis(200))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_does_not_answer_holds_up_a_job_of_another_no_longer_than_a_call() {
    let Some(server) = Server::bsd(&[]) else {
        return;
    };
    let servers = Servers::new([("mute", mute()), ("other", server.config())]).unwrap();
    let put = || {
        putter(
            vec![(server.config(), "default".to_owned())],
            Arc::default(),
        )
    };
    let putter = put();
    let mut client = servers.async_client();
    let job = client.reserve(LONG).await.unwrap().unwrap();
    assert_eq!(client.server_of(&job), "other");
    putter.join().unwrap();
    client.delete(&job).await.unwrap();
    let putter = put();
    let found = tokio::task::spawn_blocking(move || {
        let mut client = servers.client();
        let job = client.reserve(LONG).unwrap().unwrap();
        client.server_of(&job).to_owned()
    });
    assert_eq!(found.await.unwrap(), "other");
    putter.join().unwrap();
}

/// A server that has no job until it is told to end the wait for one: then it gives one, and does not
/// say that the wait has ended. Also how often it did so, and how many of these connections have ended.
fn late() -> (Config, Arc<[AtomicU64; 2]>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let config: Config = listener.local_addr().unwrap().to_string().parse().unwrap();
    let counts: Arc<[AtomicU64; 2]> = Arc::default();
    let given = counts.clone();
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            let given = given.clone();
            std::thread::spawn(move || {
                let input = BufReader::new(stream.try_clone().unwrap());
                let mut jobs = 0;
                for line in input.lines().map_while(Result::ok) {
                    let reply = match &*line {
                        "capabilities" => "OK 12\r\n---\n- abort\n\r\n",
                        "reserve-with-timeout 0" => "TIMED_OUT\r\n",
                        "abort" => "RESERVED 1 1\r\nx\r\n",
                        _ => "",
                    };
                    jobs += u64::from(line == "abort");
                    given[0].fetch_add(u64::from(line == "abort"), Ordering::SeqCst);
                    _ = stream.write_all(reply.as_bytes());
                }
                given[1].fetch_add(jobs, Ordering::SeqCst);
            });
        }
    });
    (config.timeout(Duration::from_millis(200)), counts)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_comes_while_its_wait_is_ended_is_not_kept_by_a_reserve_that_is_dropped() {
    let Some(server) = Server::bsd(&[]) else {
        return;
    };
    let (late, given) = late();
    let counts = || [&given[0], &given[1]].map(|it| it.load(Ordering::SeqCst));
    let servers = Servers::new([("late", late), ("other", server.config())]).unwrap();
    for polls in 0.. {
        let mut client = servers.async_client();
        let is_over = Arc::new(AtomicBool::new(false));
        let job = vec![(server.config(), "default".to_owned())];
        let putter = putter(job, is_over.clone());
        let job = reserved(&mut client, polls).await;
        is_over.store(true, Ordering::SeqCst);
        putter.join().unwrap();
        wait_until("no connection has a job", || {
            let [given, ended] = counts();
            given == ended
        });
        let is_done = job.is_some();
        if let Some(job) = job {
            assert_eq!(client.server_of(&job), "other");
        }
        drop(client);
        if is_done && counts()[0] > 1 {
            return;
        }
        let mut at_other = server.client();
        wait_until("the job is ready again", || {
            at_other.stats().unwrap().reserved == 0
        });
        at_other.clear_tube("default", Clear::All).unwrap();
    }
}
