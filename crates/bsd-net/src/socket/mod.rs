//! Addresses, listening sockets and accepted streams, TCP and Unix alike.
//!
//! | file | question |
//! |---|---|
//! | `address` | what does `-l` mean, and is it an address at all? |
//! | `listener` | who may bind, when does it listen, and whose is the socket file? |
//! | `refused` | why can it not listen there, and who does? |
//! | `stream` | which bytes come and go, through which layers, and from where? |
//!
//! Binding and listening are two steps. The server binds first: a privileged port needs root, and
//! an address in use should be found before a long replay. It listens last: a client must not
//! connect before there is a queue to serve.

mod address;
mod listener;
mod refused;
mod stream;

pub use self::address::{Address, Port};
pub use self::listener::{Bound, Listener, inherited_listeners};
pub use self::refused::who_has;
pub use self::refused::why_not_bound;
pub use self::stream::Probing;
pub(super) use self::stream::{Entry, Peer, Stream};
