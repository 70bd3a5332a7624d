//! The way in: what must happen on a connection before its first command runs.
//!
//! On a listener with `proxy:` a proxy says who the client is; on one with `tls:` there is a
//! handshake; where tokens are asked for, `auth`. A handshake costs as much as hundreds of
//! requests, so it counts as [`HANDSHAKE_COST`] of them, and those who are coming in are served
//! after all who ask for little: however many connect, each turn continues a few handshakes, and at
//! least one. Anyone who has not come in after [`ENTRY_NS`] is closed.

use std::io;
use std::net::SocketAddr;

use tracing::{debug, error, info, warn};

use super::auth::{Auth, Guesses};
use super::bounds::StalledClients;
use super::connection::{Connection, Ending, slot};
use super::core::Core;
use super::layers::Layers;
use super::per_address::PerAddress;
use super::proxy::Network;
use super::pulse::CertificateOf;
use super::pulse::Pulse;
use super::socket::{Entry, Peer, Probing, Stream};
use super::tls::{Tls, TlsStream};
use super::{CONNECTIONS, Server};
use bsd::engine::ReplySink;
use bsd::protocol::Reply;
use bsd::types::{ClientId, SECOND_NS, Ticket, Time};

/// How long a client may take to come in.
pub(super) const ENTRY_NS: i64 = 10 * SECOND_NS;
/// Cost of a step of a handshake, in requests.
const HANDSHAKE_COST: usize = 512;
/// Why a connection is refused of which there are enough already.
const CROWDED: &str = "its address has all the connections of --max-connections-per-address";
/// At most one warning about clients that do not come in in this time.
const WARNING_INTERVAL_NS: i64 = 10 * SECOND_NS;

/// The checks of new clients.
#[derive(Debug, Default)]
pub struct Gate {
    tls: Option<Tls>,
    /// Until a server has it.
    auth: Option<Auth>,
    guesses: Guesses,
    /// Clients that have not come in, ordered by when they connected.
    entrants: StalledClients,
    /// Who may say who a client is.
    trusted: Vec<Network>,
    per_address: PerAddress,
    pub(super) probing: Probing,
    failures: u64,
    last_warning: Option<Time>,
}

impl Gate {
    /// Listeners with `tls:` use this.
    #[must_use]
    pub fn with_tls(mut self, tls: Option<Tls>) -> Gate {
        self.tls = tls;
        self
    }

    /// TLS of listeners with `tls:`.
    #[must_use]
    pub fn tls(&self) -> Option<&Tls> {
        self.tls.as_ref()
    }

    /// Let other threads see when the certificate ends, also before a server runs.
    pub fn show_certificate(&self, pulse: &Pulse) {
        if let Some(tls) = &self.tls {
            pulse.set_certificate_end(CertificateOf::Clients, tls.end());
        }
    }

    /// All listeners but Unix sockets ask for a token of these.
    #[must_use]
    pub fn with_auth(mut self, auth: Option<Auth>) -> Gate {
        self.auth = auth;
        self
    }

    /// Who has shown wrong tokens; HTTP is to have the same.
    #[must_use]
    pub fn guesses(&self) -> Guesses {
        self.guesses.clone()
    }

    /// Listeners with `proxy:` believe these.
    #[must_use]
    pub fn with_trusted(mut self, trusted: Vec<Network>) -> Gate {
        self.trusted = trusted;
        self
    }

    /// Bound the connections of one address.
    #[must_use]
    pub fn with_each_max(mut self, each_max: Option<u32>) -> Gate {
        self.per_address = PerAddress::of_at_most(each_max);
        self
    }

    /// Probe connections, to notice machines that are gone.
    #[must_use]
    pub fn with_probing(mut self, probing: Probing) -> Gate {
        self.probing = probing;
        self
    }

    /// Whether this one may connect, as far as its address says; then, whether it is counted.
    pub(super) fn admit(&mut self, peer: Peer, layers: Layers, now: Time) -> io::Result<bool> {
        let is_trusted = |address: SocketAddr| self.trusted.iter().any(|it| it.has(address.ip()));
        let refused = match layers.proxy {
            // It speaks for others, who are counted when they are known.
            true if peer.address().is_some_and(is_trusted) => return Ok(false),
            true => "it is not of --proxy-from",
            false => match self.per_address.come(peer) {
                Some(is_counted) => return Ok(is_counted),
                None => CROWDED,
            },
        };
        let error = io::Error::other(refused);
        self.note_failure(peer, &error, now);
        Err(error)
    }

    /// A connection is gone that [`Gate::admit`] or [`Gate::introduce`] has let in.
    pub(super) fn uncount(&mut self, peer: Peer, is_counted: bool) {
        if is_counted {
            self.per_address.leave(peer);
        }
    }

    /// A proxy has said who the client is. True if the client is counted from now on.
    pub(super) fn introduce(&mut self, peer: &mut Peer, source: SocketAddr) -> io::Result<bool> {
        let by = std::mem::replace(peer, Peer::at(source));
        debug!(target: CONNECTIONS, %peer, %by, "a proxy says who it is");
        let counted = self.per_address.come(*peer);
        counted.ok_or_else(|| io::Error::other(CROWDED))
    }

    /// Read the certificates again, and tell the outcome; false without certificates.
    fn reload(&mut self) -> bool {
        if let Some(tls) = &self.tls {
            match tls.reload() {
                Ok(()) => info!("SIGHUP: new connections get the certificates as they are now"),
                Err(why) => error!("SIGHUP: {why}; the certificates stay as they were"),
            }
            return true;
        }
        false
    }

    /// Put the layers of its listener around the socket of a new connection.
    pub(super) fn wrap(&self, stream: Stream, layers: Layers) -> io::Result<Stream> {
        match stream {
            Stream::Tcp(socket) if layers.tls => {
                let none = || io::Error::other("there is no certificate");
                let tls = self.tls.as_ref().ok_or_else(none)?;
                let session = tls.session().map_err(io::Error::other)?;
                Ok(Stream::Tls(Box::new(TlsStream::new(socket, session))))
            }
            _ if layers.tls => Err(io::Error::other("TLS is spoken on TCP alone")),
            stream => Ok(stream),
        }
    }

    /// A client has connected from which something is asked first.
    pub(super) fn expect(&mut self, client: ClientId, connection: &mut Connection, now: Time) {
        self.entrants
            .replace(client, &mut connection.entering, Some(now));
        connection.takes_much = connection.left.is_some();
    }

    /// A client that was asked for a token has been served: it has come in, or shown a wrong one.
    pub(super) fn look_at(
        &mut self,
        core: &mut Core,
        client: ClientId,
        connection: &mut Connection,
    ) {
        let is_wrong = std::mem::take(&mut connection.wrong_token);
        if let Some(auth) = core.auth.as_mut().filter(|_| is_wrong) {
            let due = self
                .guesses
                .note_of(core.outputs.peer(client), core.now.mono);
            auth.put_off(client, &mut connection.told_at, due);
        }
        if is_wrong || !connection.pass.is_asked() {
            self.forget(client, connection);
        }
    }

    /// It has come in, or it never will.
    pub(super) fn forget(&mut self, client: ClientId, connection: &mut Connection) {
        self.entrants
            .replace(client, &mut connection.entering, None);
    }

    /// When the next client has had its time.
    pub(super) fn next_deadline(&self) -> Option<Time> {
        let (since, _) = self.entrants.longest()?;
        Some(Time(since.0.saturating_add(ENTRY_NS)))
    }

    /// A client that has had its time.
    fn next_late(&self, now: Time) -> Option<ClientId> {
        let (since, client) = self.entrants.longest()?;
        (now.since(since) >= ENTRY_NS).then_some(client)
    }

    /// A client has failed to come in. Anyone can do that as often as he likes, so not every one
    /// is told of.
    pub(super) fn note_failure(&mut self, peer: Peer, error: &io::Error, now: Time) {
        self.failures += 1;
        debug!(target: CONNECTIONS, %peer, "did not come in: {error}");
        let is_due = |at| now.since(at) >= WARNING_INTERVAL_NS;
        if self.last_warning.is_none_or(is_due) {
            self.last_warning = Some(now);
            let failures = self.failures;
            warn!("clients did not come in: {failures} so far; the last one, {peer}: {error}");
        }
    }
}

impl Server {
    /// Ask this of those who connect.
    #[must_use]
    pub fn guarded_by(mut self, mut gate: Gate) -> Server {
        self.core.auth = gate.auth.take();
        self.gate = gate;
        self.certify_links();
        self
    }

    /// Read certificates and tokens again.
    pub(super) fn reload(&mut self) {
        let has_tls = self.gate.reload();
        let has_tls = self.member.as_mut().is_some_and(|it| it.reload()) | has_tls;
        self.certify_links();
        self.show_certificates();
        let has_auth = self.core.auth.is_some();
        if !has_tls && !has_auth {
            info!("SIGHUP: there is no configuration to read again; nothing has changed");
        }
        if has_auth {
            self.reload_tokens();
        }
    }

    /// Read the tokens again. Whose token is gone, or allows something else, is closed.
    fn reload_tokens(&mut self) {
        let Some(auth) = &mut self.core.auth else {
            return;
        };
        if let Err(why) = auth.reload() {
            return error!("SIGHUP: {why}; the tokens stay as they were");
        }
        info!("SIGHUP: the tokens are as the file has them now");
        let connections = (0..).map(ClientId).zip(&self.connections);
        let shown = connections.filter_map(|(client, it)| Some((client, it.as_deref()?)));
        let lost = shown.filter(|(_, it)| !auth.still_holds(&it.pass));
        let lost: Vec<ClientId> = lost.map(|(client, _)| client).collect();
        for client in lost {
            self.end(client, Ending::OldToken);
        }
    }

    /// Let a client take the next step on its way in.
    pub(super) fn continue_handshake(&mut self, client: ClientId) {
        let Some(connection) = slot(&mut self.connections, client) else {
            return;
        };
        let buffer = &mut self.read_buffer;
        let stepped = match connection.come_in(buffer) {
            Ok(entry @ Entry::Introduced(said)) => match said.source {
                None => Ok(entry),
                Some(source) => {
                    let mut peer = self.core.outputs.peer(client);
                    let counted = self.gate.introduce(&mut peer, source);
                    self.core.outputs.name(client, peer);
                    counted.map(|is_counted| {
                        connection.is_counted = is_counted;
                        entry
                    })
                }
            },
            stepped => stepped,
        };
        match &stepped {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Ok(Entry::Introduced(_)) => {}
            _ => self.core.charge(HANDSHAKE_COST),
        }
        self.core.count_held(client, connection);
        match stepped {
            Ok(_) if !connection.left.is_some() => self.welcome(client),
            Ok(_) => self.ask_on(client),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => connection.readable = false,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => self.ask_on(client),
            Err(error) => {
                if error.kind() != io::ErrorKind::UnexpectedEof {
                    let peer = self.core.outputs.peer(client);
                    self.gate.note_failure(peer, &error, self.core.now.mono);
                }
                self.end(client, Ending::NotIn);
            }
        }
    }

    /// List a client whose handshake is not over.
    fn ask_on(&mut self, client: ClientId) {
        if let Some(connection) = slot(&mut self.connections, client) {
            connection.queued = true;
            self.runnable.leave_over(client);
        }
    }

    /// A client has come in; perhaps its first request has arrived already.
    fn welcome(&mut self, client: ClientId) {
        let Some(connection) = slot(&mut self.connections, client) else {
            return;
        };
        if !connection.pass.is_asked() {
            self.gate.forget(client, connection);
        }
        connection.takes_much = false;
        connection.queued = true;
        self.runnable.come_again(client);
        let Some((version, name)) = connection.stream.agreed() else {
            return;
        };
        let peer = self.core.outputs.peer(client);
        let shown = name.as_deref().unwrap_or("without a certificate");
        debug!(target: CONNECTIONS, client = client.0, %peer, "{version}, {shown}");
        self.core.outputs.certify(client, name);
    }

    /// Tell those whose tokens were wrong and who have waited for that, and close those who have
    /// not come in in time.
    pub(super) fn turn_away(&mut self) {
        let now = self.core.now.mono;
        while let Some(auth) = &mut self.core.auth
            && let Some(client) = auth.next_due(now)
            && let Some(connection) = slot(&mut self.connections, client)
        {
            auth.forget(client, &mut connection.told_at);
            connection.ending = Some(Ending::WrongToken);
            let outputs = &mut self.core.outputs;
            outputs.reply(client, Ticket::NONE, Reply::NotAuthorized);
        }
        while let Some(client) = self.gate.next_late(self.core.now.mono) {
            let Some(connection) = slot(&mut self.connections, client) else {
                return;
            };
            self.gate.forget(client, connection);
            self.end(client, Ending::SlowIn);
        }
    }
}
