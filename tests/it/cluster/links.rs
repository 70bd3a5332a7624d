//! The network between members, as a relay in front of each: what one of them sends to another may be
//! held back or come late, in each direction by itself, and a member may say that it speaks more
//! versions than it does.
//!
//! Held bytes are not lost, as with TCP: they arrive when the link is there again, unless someone
//! has given the connection up.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use bsd_cluster::member::NodeId;
use bsd_cluster::wire::{Hello, Versions};

/// From one member to another.
type Way = (NodeId, NodeId);

#[derive(Debug, Clone, Copy, Default)]
struct Trouble {
    is_cut: bool,
    delay: Duration,
}

#[derive(Debug, Default)]
struct Network {
    troubles: HashMap<Way, Trouble>,
    /// The versions that these claim to speak.
    versions: HashMap<NodeId, Versions>,
}

/// All links between members; clones are the same ones.
#[derive(Debug, Clone, Default)]
pub(super) struct Links(Arc<(Mutex<Network>, Condvar)>);

impl Links {
    /// An address where whatever connects gets to `to`. The relay ends with the process of the tests.
    pub(super) fn lead_to(&self, to: SocketAddr) -> SocketAddr {
        let listener = TcpListener::bind((to.ip(), 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let links = self.clone();
        thread::spawn(move || {
            for caller in listener.incoming() {
                let links = links.clone();
                // A connection that ends, at whichever end, is all that can happen.
                thread::spawn(move || caller.and_then(|caller| links.relay(caller, to)));
            }
        });
        address
    }

    /// Hold back all that `from` sends to `to`.
    pub(super) fn cut(&self, from: NodeId, to: NodeId) {
        self.change(|network| network.troubles.entry((from, to)).or_default().is_cut = true);
    }

    /// Have all that `from` sends to `to` come this much later.
    pub(super) fn delay(&self, from: NodeId, to: NodeId, delay: Duration) {
        self.change(|network| network.troubles.entry((from, to)).or_default().delay = delay);
    }

    /// All links are well.
    pub(super) fn repair(&self) {
        self.change(|network| network.troubles.clear());
    }

    /// From its next connection on, `node` says that it speaks these versions, and says more in each
    /// hello than this version knows.
    pub(super) fn speaks(&self, node: NodeId, versions: Versions) {
        self.change(|network| _ = network.versions.insert(node, versions));
    }

    fn change(&self, change: impl FnOnce(&mut Network)) {
        change(&mut self.0.0.lock().unwrap());
        self.0.1.notify_all();
    }

    fn relay(&self, mut caller: TcpStream, to: SocketAddr) -> io::Result<()> {
        let mut bytes = Vec::new();
        let mut piece = [0; 1024];
        let (hello, size) = loop {
            match Hello::decode(&bytes) {
                Ok(Some(hello)) => break hello,
                Ok(None) => {}
                Err(error) => return Err(io::Error::other(error)),
            }
            match caller.read(&mut piece)? {
                0 => return Ok(()),
                count => bytes.extend_from_slice(&piece[..count]),
            }
        };
        // Who wants to join knows the address only.
        let way = (hello.from, hello.to);
        self.wait_until_open(way);
        let mut target = TcpStream::connect(to)?;
        for socket in [&caller, &target] {
            socket.set_nodelay(true)?;
        }
        let versions = self.0.0.lock().unwrap().versions.get(&way.0).copied();
        if let Some(versions) = versions {
            target.write_all(&as_of(versions, &hello))?;
            target.write_all(&bytes[size..])?;
        } else {
            target.write_all(&bytes)?;
        }
        let (back, links) = ((target.try_clone()?, caller.try_clone()?), self.clone());
        let there = thread::spawn(move || links.carry((way.1, way.0), back.0, back.1));
        self.carry(way, caller, target)?;
        there.join().unwrap()
    }

    fn carry(&self, way: Way, mut from: TcpStream, mut to: TcpStream) -> io::Result<()> {
        let mut piece = vec![0; 64 << 10];
        loop {
            let count = from.read(&mut piece).unwrap_or(0);
            self.wait_until_open(way);
            if count == 0 || to.write_all(&piece[..count]).is_err() {
                // Anyone who is there may have gone first.
                let _ = to.shutdown(Shutdown::Write);
                let _ = from.shutdown(Shutdown::Read);
                return Ok(());
            }
        }
    }

    fn wait_until_open(&self, way: Way) {
        let (network, changed) = &*self.0;
        let mut network = network.lock().unwrap();
        let trouble = loop {
            let trouble = network.troubles.get(&way).copied().unwrap_or_default();
            if !trouble.is_cut {
                break trouble;
            }
            network = changed.wait(network).unwrap();
        };
        drop(network);
        thread::sleep(trouble.delay);
    }
}

/// This hello as a version would say it that has more to say.
fn as_of(versions: Versions, hello: &Hello) -> Vec<u8> {
    const MORE: &[u8] = b"what a later version says of itself";
    const SIZE_AT: usize = 12;
    const CRC_AT: usize = 16;
    let mut bytes = Vec::new();
    let hello = Hello {
        versions,
        ..hello.clone()
    };
    hello.encode(&mut bytes).unwrap();
    bytes.extend_from_slice(MORE);
    let size = (bytes.len() - CRC_AT - 4) as u32;
    bytes[SIZE_AT..CRC_AT].copy_from_slice(&size.to_le_bytes());
    let mut crc = crc32fast::Hasher::new();
    crc.update(&bytes[..CRC_AT]);
    crc.update(&bytes[CRC_AT + 4..]);
    let crc = crc.finalize().to_le_bytes();
    bytes[CRC_AT..CRC_AT + 4].copy_from_slice(&crc);
    bytes
}
