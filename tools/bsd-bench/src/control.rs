//! A client for the setup and the results of a measurement.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use bsd_tools::address::Address;
use bsd_tools::client::Client;

/// A server without a reply for this long counts as dead.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// A connection that sends one command at a time.
///
/// # Errors
/// No one answers there.
pub(crate) fn connect(address: SocketAddr) -> io::Result<Client> {
    Ok(Client::connect(
        &Address::Tcp(address.to_string()),
        SILENCE_MAX,
    )?)
}
