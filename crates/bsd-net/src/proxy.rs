//! The PROXY protocol, versions 1 and 2: a proxy says first who its client is.
//!
//! [`parse`] and [`encode`] are pure. They follow `proxy-protocol.txt` of HAProxy, strictly: who speaks for others
//! does so by the letter. The header says nothing about rights; who may send one is the server's to
//! know.

use std::error::Error;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use bsd::UsageError;

/// The longest header that is read, bytes: version 1 has 107 at most, version 2 may have more
/// fields than anyone sends.
pub(super) const SIZE_MAX: usize = 2048;

/// The longest header of version 1, its CR LF included.
const TEXT_SIZE_MAX: usize = 107;
/// The beginnings of the versions.
const TEXT_BEGIN: &[u8] = b"PROXY ";
const BINARY_BEGIN: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
/// Bytes of version 2 before the addresses.
const BINARY_FIXED: usize = 16;
/// Rest after the fixed part: nothing, or addresses of these families over TCP.
const UNSPECIFIED: u8 = 0x00;
const TCP4: u8 = 0x11;
const TCP6: u8 = 0x21;
/// The field by which a node of a cluster says that it passes a client on: a type from the range
/// for applications, and a value that no other application uses.
const FORWARDED: (u8, &[u8]) = (0xe8, b"bsd:forwarded");

/// Result of reading the beginning of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Parsed {
    /// It may become a header.
    Incomplete,
    /// A header.
    Header {
        /// Its bytes.
        size: usize,
        /// Their content.
        said: Introduction,
    },
}

/// Why a connection does not begin with a header, however its bytes go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct HeaderError(&'static str);

impl fmt::Display for HeaderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl Error for HeaderError {}

/// Content of a header.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Introduction {
    /// The client; `None`: the proxy speaks for itself, or does not know.
    pub(super) source: Option<SocketAddr>,
    /// The proxy is another node of the cluster, which passes its client on to the leader.
    pub(super) is_forwarded: bool,
}

impl Introduction {
    /// By a proxy that is no node.
    fn of(source: Option<SocketAddr>) -> Introduction {
        Introduction {
            source,
            is_forwarded: false,
        }
    }
}

/// Read the header at the beginning of `bytes`.
pub(super) fn parse(bytes: &[u8]) -> Result<Parsed, HeaderError> {
    let begins = |begin: &[u8]| bytes.iter().zip(begin).all(|(one, other)| one == other);
    if begins(BINARY_BEGIN) {
        parse_binary(bytes)
    } else if begins(TEXT_BEGIN) {
        parse_text(bytes)
    } else {
        Err(HeaderError(
            "it does not begin with a header of the PROXY protocol",
        ))
    }
}

fn parse_text(bytes: &[u8]) -> Result<Parsed, HeaderError> {
    let window = &bytes[..bytes.len().min(TEXT_SIZE_MAX)];
    let Some(end) = window.windows(2).position(|pair| pair == b"\r\n") else {
        return match window.len() < TEXT_SIZE_MAX {
            true => Ok(Parsed::Incomplete),
            false => Err(HeaderError("its PROXY line has no end")),
        };
    };
    let line = std::str::from_utf8(&window[..end])
        .map_err(|_| HeaderError("its PROXY line is no text"))?;
    let words: Vec<&str> = line.split(' ').collect();
    let source = match words[..] {
        ["PROXY", "UNKNOWN", ..] => Ok(None),
        ["PROXY", "TCP4", from, to, port, to_port] => {
            text_source::<Ipv4Addr>([from, to], [port, to_port]).map(Some)
        }
        ["PROXY", "TCP6", from, to, port, to_port] => {
            text_source::<Ipv6Addr>([from, to], [port, to_port]).map(Some)
        }
        _ => Err(HeaderError("its PROXY line is malformed")),
    };
    Ok(Parsed::Header {
        size: end + 2,
        said: Introduction::of(source?),
    })
}

/// The destination is checked, though no one asks for it.
fn text_source<A>(addresses: [&str; 2], ports: [&str; 2]) -> Result<SocketAddr, HeaderError>
where
    A: FromStr + Into<IpAddr>,
{
    let address = |text: &str| text.parse::<A>().ok();
    let is_number = |text: &str| {
        text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'))
    };
    let port = |text: &str| text.parse::<u16>().ok().filter(|_| is_number(text));
    let [from, to] = addresses.map(address);
    let [from_port, to_port] = ports.map(port);
    match (from, to, from_port, to_port) {
        (Some(from), Some(_), Some(port), Some(_)) => Ok(SocketAddr::new(from.into(), port)),
        _ => Err(HeaderError(
            "its PROXY line has an address or a port that is not one",
        )),
    }
}

fn parse_binary(bytes: &[u8]) -> Result<Parsed, HeaderError> {
    let Some((fixed, rest)) = bytes.split_at_checked(BINARY_FIXED) else {
        return Ok(Parsed::Incomplete);
    };
    let (version, command, family) = (fixed[12] >> 4, fixed[12] & 0xf, fixed[13]);
    if version != 2 || command > 1 {
        return Err(HeaderError(
            "its PROXY header is of an unknown version or command",
        ));
    }
    let length = usize::from(u16::from_be_bytes([fixed[14], fixed[15]]));
    if BINARY_FIXED + length > SIZE_MAX {
        return Err(HeaderError("its PROXY header is too long"));
    }
    let Some(fields) = rest.get(..length) else {
        return Ok(Parsed::Incomplete);
    };
    let said = match (command, family) {
        // The proxy speaks for itself: a check of its own.
        (0, _) => Introduction::default(),
        // Who is at a Unix socket, or unknown, has no address.
        (_, 0x31) => Introduction::default(),
        (_, UNSPECIFIED) => Introduction {
            source: None,
            is_forwarded: has_field(fields, FORWARDED),
        },
        (_, TCP4) => binary_source::<4>(fields)?,
        (_, TCP6) => binary_source::<16>(fields)?,
        _ => return Err(HeaderError("its PROXY header is not about TCP")),
    };
    Ok(Parsed::Header {
        size: BINARY_FIXED + length,
        said,
    })
}

/// Source and destination address, then their ports; other fields follow.
fn binary_source<const SIZE: usize>(fields: &[u8]) -> Result<Introduction, HeaderError>
where
    IpAddr: From<[u8; SIZE]>,
{
    let address = fields.first_chunk::<SIZE>();
    let ports = fields.get(2 * SIZE..2 * SIZE + 4);
    match (address, ports) {
        (Some(address), Some(&[high, low, _, _])) => Ok(Introduction {
            source: Some(SocketAddr::new(
                IpAddr::from(*address),
                u16::from_be_bytes([high, low]),
            )),
            is_forwarded: has_field(&fields[2 * SIZE + 4..], FORWARDED),
        }),
        _ => Err(HeaderError(
            "its PROXY header is too short for its addresses",
        )),
    }
}

/// Whether one of these fields is that one. Each has a type, the length of its value in two bytes,
/// and the value. Where they are malformed they end: no one depends on the others.
fn has_field(mut fields: &[u8], (wanted, value): (u8, &[u8])) -> bool {
    while let [kind, high, low, rest @ ..] = fields {
        let length = usize::from(u16::from_be_bytes([*high, *low]));
        let Some((found, rest)) = rest.split_at_checked(length) else {
            return false;
        };
        if *kind == wanted && found == value {
            return true;
        }
        fields = rest;
    }
    false
}

/// The header of version 2 with which a node passes its client on: who the client is (`None`: a
/// process of this machine), where it connected, and that it is passed on. At most 68 bytes.
///
/// ```text
/// \r\n\r\n\0\r\nQUIT\n | 0x21 | family | length, u16 | source, destination, ports | fields
/// ```
pub(super) fn encode(source: Option<SocketAddr>, destination: Option<SocketAddr>) -> Vec<u8> {
    let (family, mut fields) = match source {
        None => (UNSPECIFIED, Vec::new()),
        Some(source) => {
            let nowhere = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0);
            encode_addresses(source, destination.unwrap_or(nowhere))
        }
    };
    fields.push(FORWARDED.0);
    fields.extend((FORWARDED.1.len() as u16).to_be_bytes());
    fields.extend(FORWARDED.1);
    let length = (fields.len() as u16).to_be_bytes();
    [BINARY_BEGIN, &[0x21, family], &length, &fields].concat()
}

/// Both are of one family: an address of IPv4 beside one of IPv6 is written as one of IPv6.
fn encode_addresses(source: SocketAddr, destination: SocketAddr) -> (u8, Vec<u8>) {
    let ports = [source.port(), destination.port()].map(u16::to_be_bytes);
    let long = |address| match address {
        IpAddr::V4(short) => Ipv4Addr::to_ipv6_mapped(&short).octets(),
        IpAddr::V6(long) => long.octets(),
    };
    match [source, destination].map(|address| address.ip().to_canonical()) {
        [IpAddr::V4(source), IpAddr::V4(destination)] => {
            let addresses = [source.octets(), destination.octets()];
            (TCP4, [addresses.concat(), ports.concat()].concat())
        }
        addresses => (
            TCP6,
            [addresses.map(long).concat(), ports.concat()].concat(),
        ),
    }
}

/// Addresses that begin alike: `10.0.0.0/8`, or one alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    bits: u32,
}

impl FromStr for Network {
    type Err = UsageError;

    fn from_str(text: &str) -> Result<Network, UsageError> {
        let wrong = || {
            let text = text.escape_debug();
            UsageError::new(format_args!(
                "'{text}' is no address, and no network such as 10.0.0.0/8"
            ))
        };
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let bits_max = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.map_or(Some(bits_max), |bits| bits.parse().ok());
        let bits = bits.filter(|bits| *bits <= bits_max).ok_or_else(wrong)?;
        Ok(Network { address, bits })
    }
}

impl Network {
    /// Whether an address is one of them. An address of IPv4 may be written as one of IPv6.
    pub(super) fn has(&self, address: IpAddr) -> bool {
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                let differ = own.to_bits() ^ other.to_bits();
                differ.checked_shr(32 - self.bits).unwrap_or(0) == 0
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                let differ = own.to_bits() ^ other.to_bits();
                differ.checked_shr(128 - self.bits).unwrap_or(0) == 0
            }
            _ => false,
        }
    }
}

/// A property that must hold for any bytes; the fuzz target `proxy` uses it. Panics unless a header
/// is found by its own bytes and by no fewer, whatever follows it, and a beginning that is refused
/// is refused however it goes on.
#[cfg(any(test, feature = "sim"))]
pub fn any_header(data: &[u8]) {
    let whole = parse(data);
    let cut = |size: usize| parse(&data[..size]);
    match whole {
        Ok(Parsed::Header { size, said }) => {
            assert!(size <= SIZE_MAX.min(data.len()), "{size}");
            assert_eq!(cut(size), Ok(Parsed::Header { size, said }));
            for shorter in 0..size {
                assert_eq!(cut(shorter), Ok(Parsed::Incomplete), "{shorter}");
            }
        }
        Ok(Parsed::Incomplete) => {
            assert!(data.len() < SIZE_MAX, "it would never end");
            for shorter in 0..data.len() {
                assert_eq!(cut(shorter), Ok(Parsed::Incomplete), "{shorter}");
            }
        }
        Err(_) => {
            for shorter in 0..data.len() {
                assert!(
                    !matches!(cut(shorter), Ok(Parsed::Header { .. })),
                    "{shorter}"
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fuzz_target_proxy() {
        let target = bsd::check::corpus::Target {
            name: "proxy",
            check: any_header,
            size_max: 300,
            runs: 2000,
        };
        target.check_corpus();
        target.check_random();
    }

    fn header(size: usize, source: &str) -> Result<Parsed, HeaderError> {
        let source = (!source.is_empty()).then(|| source.parse().unwrap());
        let said = Introduction::of(source);
        Ok(Parsed::Header { size, said })
    }

    fn binary(command: u8, family: u8, fields: &[u8]) -> Vec<u8> {
        let length = (fields.len() as u16).to_be_bytes();
        [BINARY_BEGIN, &[command, family], &length, fields].concat()
    }

    #[test]
    fn a_line_names_the_client() {
        for (line, source) in [
            ("PROXY TCP4 10.0.0.1 10.0.0.2 56324 443", "10.0.0.1:56324"),
            (
                "PROXY TCP4 255.255.255.255 0.0.0.0 65535 0",
                "255.255.255.255:65535",
            ),
            ("PROXY TCP6 2001:db8::1 ::1 1 2", "[2001:db8::1]:1"),
            ("PROXY UNKNOWN", ""),
            ("PROXY UNKNOWN ffff:: what ever 1 2", ""),
        ] {
            let bytes = format!("{line}\r\nstats\r\n");
            assert_eq!(
                parse(bytes.as_bytes()),
                header(line.len() + 2, source),
                "{line}"
            );
            any_header(bytes.as_bytes());
        }
    }

    #[test]
    fn what_is_no_line_is_refused() {
        let long = format!("PROXY UNKNOWN {}\r\n", "x".repeat(100));
        for line in [
            "stats\r\n",
            "proxy UNKNOWN\r\n",
            "PROXY TCP4 10.0.0.1 10.0.0.2 1\r\n",
            "PROXY TCP4 10.0.0.1 10.0.0.2 1 2 3\r\n",
            "PROXY TCP4 10.0.0.1  10.0.0.2 1 2\r\n",
            "PROXY TCP4 10.0.0.1 10.0.0.2 65536 2\r\n",
            "PROXY TCP4 10.0.0.1 10.0.0.2 +1 2\r\n",
            "PROXY TCP4 10.0.0.1 10.0.0.2 01 2\r\n",
            "PROXY TCP4 10.0.0.1 10.0.0.2  2\r\n",
            "PROXY TCP4 10.0.0.256 10.0.0.2 1 2\r\n",
            "PROXY TCP4 ::1 ::1 1 2\r\n",
            "PROXY TCP6 10.0.0.1 10.0.0.2 1 2\r\n",
            "PROXY UDP4 10.0.0.1 10.0.0.2 1 2\r\n",
            "PROXY \u{e4}\r\n",
            &long,
        ] {
            assert!(parse(line.as_bytes()).is_err(), "{line}");
            any_header(line.as_bytes());
        }
    }

    #[test]
    fn a_binary_header_names_the_client_whatever_fields_follow() {
        let v4 = [10, 0, 0, 1, 10, 0, 0, 2, 0x12, 0x34, 0, 80];
        let v6 = [&[0x20; 32][..], &[0, 1, 0, 2]].concat();
        let fields = [&v4[..], &[0x20, 0, 5, 1, 0, 0, 0, 0]].concat();
        for (command, family, fields, source) in [
            (0x21, 0x11, &v4[..], "10.0.0.1:4660"),
            (0x21, 0x11, &fields, "10.0.0.1:4660"),
            (
                0x21,
                0x21,
                &v6,
                "[2020:2020:2020:2020:2020:2020:2020:2020]:1",
            ),
            (0x21, 0x00, &[], ""),
            (0x21, 0x31, &[0; 216], ""),
            (0x20, 0x11, &v4, ""),
            (0x20, 0x00, &[], ""),
        ] {
            let mut bytes = binary(command, family, fields);
            let size = bytes.len();
            bytes.extend_from_slice(b"stats\r\n");
            assert_eq!(
                parse(&bytes),
                header(size, source),
                "{command:x} {family:x}"
            );
            any_header(&bytes);
        }
    }

    #[test]
    fn what_is_no_binary_header_is_refused() {
        let v4 = [0; 12];
        for (command, family, fields) in [
            (0x11, 0x11, &v4[..]),
            (0x22, 0x11, &v4),
            (0x21, 0x12, &v4),
            (0x21, 0x41, &v4),
            (0x21, 0x11, &v4[..11]),
            (0x21, 0x21, &v4),
            (0x21, 0x11, &[0; SIZE_MAX]),
        ] {
            let bytes = binary(command, family, fields);
            assert!(parse(&bytes).is_err(), "{command:x} {family:x}");
            any_header(&bytes);
        }
    }

    #[test]
    fn what_a_node_passes_on_reads_back_with_the_client_and_the_mark() {
        let at = |text: &str| Some(text.parse::<SocketAddr>().unwrap());
        for (source, destination, read_back) in [
            (None, None, None),
            (None, at("10.0.0.2:2"), None),
            (at("10.0.0.1:1"), at("10.0.0.2:2"), at("10.0.0.1:1")),
            (at("10.0.0.1:1"), None, at("10.0.0.1:1")),
            (at("[::1]:1"), at("[::2]:2"), at("[::1]:1")),
            (at("[::1]:1"), at("10.0.0.2:2"), at("[::1]:1")),
            (
                at("[::ffff:10.0.0.1]:1"),
                at("10.0.0.2:2"),
                at("10.0.0.1:1"),
            ),
            (at("10.0.0.1:1"), at("[::2]:2"), at("[::ffff:10.0.0.1]:1")),
        ] {
            let mut bytes = encode(source, destination);
            let said = Introduction {
                source: read_back,
                is_forwarded: true,
            };
            let size = bytes.len();
            assert!(size <= 68, "{size}");
            bytes.extend_from_slice(b"stats\r\n");
            assert_eq!(parse(&bytes), Ok(Parsed::Header { size, said }));
            any_header(&bytes);
        }
    }

    #[test]
    fn only_the_whole_field_is_the_mark_wherever_it_stands() {
        let field = |kind: u8, value: &[u8]| [&[kind, 0, value.len() as u8], value].concat();
        let mark = field(FORWARDED.0, FORWARDED.1);
        let marked = |fields: &[u8]| match parse(&binary(0x21, UNSPECIFIED, fields)) {
            Ok(Parsed::Header { said, .. }) => said.is_forwarded,
            other => panic!("{other:?}"),
        };
        assert!(marked(&mark));
        assert!(marked(&[&field(4, b"noop"), &mark[..], &[1]].concat()));
        for other in [
            &[][..],
            &field(FORWARDED.0, b"bsd:forward"),
            &field(FORWARDED.0 + 1, FORWARDED.1),
            &mark[..mark.len() - 1],
            &[&[9, 1, 0][..], &mark].concat(),
            &field(4, &mark),
        ] {
            assert!(!marked(other), "{}", other.escape_ascii());
        }
    }

    #[test]
    fn a_network_has_the_addresses_that_begin_like_it() {
        let has = |network: &str, address: &str| {
            let network: Network = network.parse().unwrap();
            network.has(address.parse().unwrap())
        };
        assert!(has("10.0.0.0/8", "10.255.0.1") && !has("10.0.0.0/8", "11.0.0.0"));
        assert!(has("10.0.0.1", "10.0.0.1") && !has("10.0.0.1", "10.0.0.0"));
        assert!(has("10.0.0.1", "::ffff:10.0.0.1"));
        assert!(has("0.0.0.0/0", "1.2.3.4") && !has("0.0.0.0/0", "::1"));
        assert!(has("::/0", "::1") && !has("::/0", "1.2.3.4"));
        assert!(has("2001:db8::/33", "2001:db8:7fff::1"));
        assert!(!has("2001:db8::/33", "2001:db8:8000::1"));
        for wrong in [
            "",
            "10.0.0",
            "10.0.0.0/33",
            "::/129",
            "10.0.0.0/-1",
            "10.0.0.0/",
            "a/8",
        ] {
            assert!(wrong.parse::<Network>().is_err(), "{wrong}");
        }
    }
}
