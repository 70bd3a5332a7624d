//! Layers between a listening socket and the protocol, and their words in front of an address:
//! `tls:HOST:PORT`, `proxy:HOST:PORT`, `proxy+tls:HOST:PORT`.

use std::fmt;

/// The layers of the connections of one listener, the outermost first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Layers {
    /// A header of the PROXY protocol comes first.
    pub proxy: bool,
    /// Everything else is encrypted.
    pub tls: bool,
}

impl Layers {
    /// The socket's bytes are the protocol's.
    pub const NONE: Layers = Layers {
        proxy: false,
        tls: false,
    };

    /// All of them, by how they are said.
    const NAMES: [(&str, Layers); 3] = [
        ("proxy+tls:", Layers::new(true, true)),
        ("proxy:", Layers::new(true, false)),
        ("tls:", Layers::new(false, true)),
    ];

    const fn new(proxy: bool, tls: bool) -> Layers {
        Layers { proxy, tls }
    }

    /// Take the layers off the front of an address.
    pub(super) fn split(text: &str) -> (Layers, &str) {
        let mut found = Layers::NAMES.iter().filter_map(|(name, layers)| {
            let rest = text.strip_prefix(name)?;
            Some((*layers, rest))
        });
        found.next().unwrap_or((Layers::NONE, text))
    }

    /// True if there is any.
    #[must_use]
    pub fn is_some(self) -> bool {
        self != Layers::NONE
    }
}

impl fmt::Display for Layers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut names = Layers::NAMES.iter();
        let found = names.find(|(_, layers)| layers == self);
        f.write_str(found.map_or("", |(name, _)| name))
    }
}
