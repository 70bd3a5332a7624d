//! A connection beside the loop: a snapshot, or a node that asks to be added. It blocks, so it belongs
//! on a thread of its own; each step of it ends in time.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::net::sockopt::{self, Timeout};

use super::channel::Channel;
use super::tls::PeerTls;
use super::{READ_SIZE, has_to_be_encrypted};
use bsd_cluster::member::NodeId;
use bsd_cluster::wire::{Answer, Decoder, Encoder, Frame, Hello, Me, Purpose, Side, Welcome};

/// An answer is not longer.
const ANSWER_SIZE_MAX: usize = 8 << 10;

/// A connection that has come past its greetings.
#[derive(Debug)]
pub(crate) struct BlockingLink {
    channel: Channel,
    encoder: Encoder,
    decoder: Decoder,
    out: Vec<u8>,
    buffer: Box<[u8]>,
}

impl BlockingLink {
    /// Call `to` (0: no matter who is there) at `HOST:PORT` and be welcome. Each step takes at most `patience`.
    ///
    /// # Errors
    /// No one is there, it is someone else, or it refuses: the text says why.
    pub(crate) fn dial(
        me: &Me,
        to: NodeId,
        address: &str,
        purpose: Purpose,
        tls: Option<&PeerTls>,
        patience: Duration,
    ) -> io::Result<(BlockingLink, Welcome)> {
        let socket = connect(address, patience)?;
        let is_plain = tls.is_none();
        if is_plain && has_to_be_encrypted(socket.peer_addr()?) {
            return Err(invalid("peers of other machines need TLS"));
        }
        limit(&socket, patience)?;
        let session = tls.map(|tls| tls.dial(address)).transpose();
        let socket = mio::net::TcpStream::from_std(socket);
        let mut channel = Channel::new(socket, session.map_err(invalid)?);
        channel.shake_hands()?;
        let mut hello = Vec::new();
        Hello::of(me, to, purpose)
            .encode(&mut hello)
            .map_err(invalid)?;
        channel.write_all(&hello)?;
        channel.flush()?;
        let welcome = answer(&mut channel)?;
        let is_expected = to.0 == 0 || to == welcome.node;
        if !is_expected || !me.versions.has(welcome.version) {
            let Welcome { node, version, .. } = welcome;
            return Err(invalid(format!(
                "node {node} answers, in version {version}"
            )));
        }
        let link = BlockingLink::over(channel, welcome.nonce, Side::Dialer, welcome.node, me.node);
        Ok((link, welcome))
    }

    /// Who called the loop is here from now on.
    pub(super) fn called(
        mut channel: Channel,
        nonce: u64,
        from: NodeId,
        me: NodeId,
        patience: Duration,
    ) -> io::Result<BlockingLink> {
        rustix::io::ioctl_fionbio(channel.socket(), false)?;
        limit(channel.socket(), patience)?;
        channel.unblock();
        Ok(BlockingLink::over(channel, nonce, Side::Listener, from, me))
    }

    fn over(channel: Channel, nonce: u64, side: Side, peer: NodeId, me: NodeId) -> BlockingLink {
        let other = match side {
            Side::Dialer => Side::Listener,
            Side::Listener => Side::Dialer,
        };
        BlockingLink {
            channel,
            encoder: Encoder::new(nonce, side),
            decoder: Decoder::new(nonce, other, peer, me),
            out: Vec::new(),
            buffer: vec![0; READ_SIZE].into_boxed_slice(),
        }
    }

    /// Send it; on return the system has it, not yet the peer.
    ///
    /// # Errors
    /// The connection is broken or takes nothing, or it is no frame that may be sent.
    pub(crate) fn send(&mut self, frame: &Frame) -> io::Result<()> {
        self.out.clear();
        self.encoder.encode(frame, &mut self.out).map_err(invalid)?;
        self.channel.write_all(&self.out)?;
        self.channel.flush()
    }

    /// Wait for the next frame.
    ///
    /// # Errors
    /// The connection is over or broken, nothing comes in time, or it is no frame that comes.
    pub(crate) fn receive(&mut self) -> io::Result<Frame> {
        loop {
            if let Some(frame) = self.decoder.next().map_err(invalid)? {
                return Ok(frame);
            }
            match self.channel.read(&mut self.buffer)? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                count => self.decoder.feed(&self.buffer[..count]),
            }
        }
    }
}

/// The first address of the name that answers.
fn connect(address: &str, patience: Duration) -> io::Result<TcpStream> {
    let mut failure = io::Error::new(ErrorKind::NotFound, "the name has no address");
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, patience) {
            Ok(socket) => return Ok(socket),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

fn limit(socket: impl AsFd, patience: Duration) -> rustix::io::Result<()> {
    sockopt::set_tcp_nodelay(&socket, true)?;
    sockopt::set_socket_timeout(&socket, Timeout::Recv, Some(patience))?;
    sockopt::set_socket_timeout(&socket, Timeout::Send, Some(patience))
}

fn answer(channel: &mut Channel) -> io::Result<Welcome> {
    let mut heard = Vec::new();
    let mut piece = [0; 1024];
    loop {
        match Answer::decode(&heard).map_err(invalid)? {
            Some((Answer::Refused(refused), _)) => return Err(invalid(refused.text)),
            Some((Answer::Welcome(welcome), size)) if size == heard.len() => return Ok(welcome),
            None if heard.len() < ANSWER_SIZE_MAX => {}
            _ => return Err(invalid("it says more than an answer")),
        }
        match channel.read(&mut piece)? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            count => heard.extend_from_slice(&piece[..count]),
        }
    }
}

fn invalid(why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, why)
}
