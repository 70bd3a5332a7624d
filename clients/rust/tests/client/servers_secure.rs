//! The asynchronous client of a list of servers, over TLS and with tokens, and lists of addresses with the
//! names of hosts.

use std::sync::Arc;
use std::time::Duration;

use bsd_client::{AsyncClient, Client, Config, ErrorKind, Put, Servers};
use tempfile::TempDir;

use crate::harness::Server;
use crate::secure::{tls_server, token};
use crate::servers::tube_on;
use crate::servers_async::{drops_at_any_time, putter};

const NOW: Duration = Duration::ZERO;
const LONG: Duration = Duration::from_secs(3600);
const NAMES: [&str; 2] = ["one", "two"];

/// Two servers over TLS, each with an authority and a token of its own.
struct Two {
    _dirs: [TempDir; 2],
    _servers: [Server; 2],
    configs: [Config; 2],
}

fn two() -> Option<Two> {
    let dirs = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let mut started = Vec::new();
    for dir in &dirs {
        let (token, file) = token(dir.path(), "all")?;
        let (server, config) = tls_server(dir.path(), &["--auth-file", &file])?;
        started.push((server, config.token(token)));
    }
    let (two, one) = (started.pop()?, started.pop()?);
    Some(Two {
        _dirs: dirs,
        _servers: [one.0, two.0],
        configs: [one.1, two.1],
    })
}

fn list(configs: [Config; 2]) -> Servers {
    Servers::new(NAMES.into_iter().zip(configs)).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_asynchronous_list_speaks_tls_to_each_server_with_its_own_authority_and_token() {
    let Some(two) = two() else {
        return;
    };
    let servers = list(two.configs.clone());
    let tubes = NAMES.map(|name| tube_on(&servers, name));
    let mut client = servers.async_client();
    client.watch_only(&tubes).unwrap();
    let large = vec![b'x'; 60_000];
    for tube in &tubes {
        for _ in 0..20 {
            let put = Put::new(large.clone()).tube(tube);
            client.put(put).await.unwrap();
        }
    }
    for _ in 0..20 {
        let mut given = Vec::new();
        for _ in NAMES {
            let job = client.reserve(NOW).await.unwrap().unwrap();
            assert_eq!(job.job.body, large);
            given.push(client.server_of(&job).to_owned());
            client.touch(&job).await.unwrap();
            client.delete(&job).await.unwrap();
        }
        given.sort_unstable();
        assert_eq!(given, NAMES);
    }
    assert_eq!(client.reserve(NOW).await.unwrap(), None);
    // It waits at both, and takes what comes at either.
    for index in [1, 0, 1] {
        let job = vec![(two.configs[index].clone(), tubes[index].clone())];
        let putter = putter(job, Arc::default());
        let job = client.reserve(LONG).await.unwrap().unwrap();
        assert_eq!(client.server_of(&job), NAMES[index]);
        client.delete(&job).await.unwrap();
        putter.join().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_asynchronous_list_is_refused_with_a_wrong_token_and_believes_no_other_authority() {
    let Some(two) = two() else {
        return;
    };
    let [one, other] = two.configs.clone();
    let unknown = one.clone().token("wrong");
    let servers = list([unknown, other]);
    let tubes = NAMES.map(|name| tube_on(&servers, name));
    let mut client = servers.async_client();
    let refused = client.put(Put::new("x").tube(&tubes[0])).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NotAuthorized, "{refused}");
    client.put(Put::new("x").tube(&tubes[1])).await.unwrap();

    let elsewhere = tempfile::tempdir().unwrap();
    let stranger = crate::secure::authority(elsewhere.path());
    let stranger = bsd_client::Tls::with_authorities(stranger.pem.as_bytes()).unwrap();
    let quick = one.timeout(Duration::from_secs(3)).tls(stranger);
    let servers = list([quick, two.configs[1].clone()]);
    let mut client = servers.async_client();
    let refused = client.put(Put::new("x").tube(&tubes[0])).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Connect, "{refused}");
    // The other one works on.
    client.watch_only(&tubes).unwrap();
    let job = client.reserve(LONG).await.unwrap().unwrap();
    assert_eq!(client.server_of(&job), "two");
    client.delete(&job).await.unwrap();
}

/// As `a_reserve_that_is_dropped_at_any_time_leaves_no_job_reserved`, with records of TLS that may be read
/// in part.
#[tokio::test(flavor = "multi_thread")]
async fn a_reserve_over_tls_that_is_dropped_at_any_time_leaves_no_job_reserved() {
    let Some(two) = two() else {
        return;
    };
    drops_at_any_time(two.configs.clone()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn members_of_a_cluster_may_be_given_by_the_names_of_their_hosts() {
    let Some(server) = Server::bsd(&[]) else {
        return;
    };
    let port = server.address().rsplit(':').next().unwrap();
    // No one listens at the first.
    let members = format!("localhost:1,localhost:{port}");
    let config: Config = members.parse().unwrap();
    let mut blocking = Client::connect(config.clone()).unwrap();
    let id = blocking.put(Put::new("x")).unwrap().id();
    let mut awaited = AsyncClient::connect(config.clone()).await.unwrap();
    assert_eq!(awaited.peek(id).await.unwrap().body, b"x");
    let servers = Servers::new([("cluster", config)]).unwrap();
    let mut client = servers.async_client();
    let job = client.reserve(NOW).await.unwrap().unwrap();
    assert_eq!(job.job.id, id);
}
