//! The server as a member of a cluster: its address for peers, and what a start makes of its
//! directory.

use std::net::{IpAddr, SocketAddr, TcpListener};

use bsd::UsageError;
use bsd_archive::Turns;
use bsd_net::{
    Address, Archivist, ClusterConfig, ClusterDesk, Layers, Member, MemberError, Port, Setup,
};

use super::archive::ByTurns;
use super::{Clock, Config, Engine, Failure, Options, Reactor, Server, info};

/// The socket for the other members.
pub(super) fn bind_peers(config: &Config) -> Result<Option<TcpListener>, Failure> {
    let Some(cluster) = &config.cluster else {
        return Ok(None);
    };
    let address = cluster.listen;
    let bound = TcpListener::bind(address);
    let what = format_args!("listen for members of the cluster on {address}");
    bound
        .map(Some)
        .map_err(|error| Failure::cannot(what, error))
}

/// Where HTTP sees the cluster, and asks of it.
pub(super) fn cluster_desk(config: &Config, reactor: &Reactor) -> Option<ClusterDesk> {
    let is_member = config.cluster.is_some();
    is_member.then(|| ClusterDesk::new(reactor.waker()))
}

/// Be what the directory says: a member, or no one yet.
pub(super) fn open_member(
    config: &Config,
    listener: Option<TcpListener>,
    options: &Options,
    reactor: &Reactor,
    (desk, http): (Option<&ClusterDesk>, Option<(SocketAddr, bool)>),
    turns: Vec<Turns>,
    clock: Clock,
) -> Result<Option<(Member, Engine)>, Failure> {
    let (Some(cluster), Some(listener), Some(desk)) = (&config.cluster, listener, desk) else {
        return Ok(None);
    };
    let client = client_address(cluster, &config.listen).map_err(Failure::usage)?;
    let opened = Member::open(Setup {
        config: cluster,
        client,
        http: http.map_or_else(String::new, |http| console_address(cluster, http)),
        options: options.clone(),
        listener,
        reactor,
        desk: desk.clone(),
        archivist: (!turns.is_empty()).then(|| Box::new(ByTurns(turns)) as Box<dyn Archivist>),
        now: clock.now(),
    });
    let (member, engine) = opened.map_err(|error| match error {
        MemberError::Peers(why) => Failure::new(
            why.class(),
            format_args!("cannot be a member of a cluster: {why}"),
        ),
        error => Failure::new(error.class(), error),
    })?;
    let jobs = engine.queue().stats().jobs.total();
    let dir = options.dir.clone().unwrap_or_default();
    info!(
        "data directory {}: {jobs} jobs, as far as they are committed",
        dir.display()
    );
    info!("sync policy: before a reply, on a majority of the members");
    Ok(Some((member, engine)))
}

/// The server is this member.
pub(super) fn seat_member(server: Server, member: Option<Member>) -> Server {
    match member {
        Some(member) => server.one_of_several(member),
        None => server,
    }
}

/// Where other members pass clients on to: the given address, or the first one that others can
/// reach; with TLS if there is one and members have certificates, else one without.
fn client_address(cluster: &ClusterConfig, listen: &[Address]) -> Result<String, UsageError> {
    let has_certificate = cluster.files.is_some();
    let (layers, at) = match &cluster.client {
        Some(client) => {
            let address = Address::parse(client, &Port::Number(0)).ok();
            let said = address.as_ref().and_then(reached).ok_or_else(|| {
                format!(
                    "--cluster-client {client}: give IP:PORT, with tls:, proxy: or proxy+tls: before \
                     it as that listener has"
                )
            })?;
            if said.0.tls && !has_certificate {
                return Err(UsageError::new(format_args!(
                    "--cluster-client {client}: members pass clients on with TLS only if they have \
                     --cluster-cert"
                )));
            }
            said
        }
        None => {
            let can_be = |(layers, _): &(Layers, SocketAddr)| has_certificate || !layers.tls;
            let found: Vec<_> = listen.iter().filter_map(reached).filter(can_be).collect();
            let encrypted = found.iter().find(|(layers, _)| layers.tls);
            *encrypted.or(found.first()).ok_or(
                "members pass clients on to each other: say with --cluster-client IP:PORT where they \
                 reach this server (tls:IP:PORT only if they have --cluster-cert)",
            )?
        }
    };
    Ok(format!("{layers}{at}"))
}

/// Address of the console and the API for people and programs that have looked at another member;
/// empty if it is served to this machine alone, and there are members on others.
fn console_address(cluster: &ClusterConfig, (bound, has_tls): (SocketAddr, bool)) -> String {
    let peer = cluster.peer.ip();
    let ip = match bound.ip() {
        ip if ip.is_unspecified() => peer,
        ip if ip.is_loopback() && !peer.is_loopback() => return String::new(),
        ip => ip,
    };
    let scheme = if has_tls { "https" } else { "http" };
    format!("{scheme}://{}", SocketAddr::new(ip, bound.port()))
}

/// Where others reach that listener, if they can.
fn reached(address: &Address) -> Option<(Layers, SocketAddr)> {
    let Address::Tcp { host, port, layers } = address else {
        return None;
    };
    let ip: IpAddr = match &**host {
        "localhost" => IpAddr::from([127, 0, 0, 1]),
        host => host.parse().ok()?,
    };
    let Port::Number(port) = port else {
        return None;
    };
    let can_be = !ip.is_unspecified() && *port != 0;
    can_be.then(|| (*layers, SocketAddr::new(ip, *port)))
}
