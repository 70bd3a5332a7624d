//! The property of any bytes: the fuzz target `peers`.

use bytes::Bytes;

use super::{Answer, Decoder, Encoder, Frame, HEADER_SIZE, Hello, Side};
use crate::member::NodeId;

/// Bytes of memory for each byte of input, at most: an empty entry is 25 bytes, and about 150 in
/// memory.
const MEMORY_PER_BYTE: usize = 16;

/// Any bytes, read as each thing that a peer may send: nothing panics, memory is bounded by the input, and
/// whatever decodes is the same after it was encoded and decoded again. The first byte says what the
/// others are.
pub fn check(bytes: &[u8]) {
    let Some((what, bytes)) = bytes.split_first() else {
        return;
    };
    match what % 4 {
        0 => greetings(bytes),
        1 => stream(bytes),
        _ => payload(what / 4, bytes),
    }
}

fn greetings(bytes: &[u8]) {
    let mut again = Vec::new();
    if let Ok(Some((hello, size))) = Hello::decode(bytes) {
        assert!(size <= bytes.len());
        assert!(hello.encode(&mut again).is_ok(), "{hello:?}");
        assert_eq!(Hello::decode(&again), Ok(Some((hello, again.len()))));
    }
    again.clear();
    if let Ok(Some((answer, size))) = Answer::decode(bytes) {
        assert!(size <= bytes.len());
        assert!(answer.encode(&mut again).is_ok(), "{answer:?}");
        assert_eq!(Answer::decode(&again), Ok(Some((answer, again.len()))));
    }
}

/// A connection with the nonce 0, of which pieces arrive.
fn stream(bytes: &[u8]) {
    let Some((step, bytes)) = bytes.split_first() else {
        return;
    };
    let mut decoder = Decoder::new(0, Side::Dialer, NodeId(1), NodeId(2));
    let mut encoder = Encoder::new(0, Side::Dialer);
    let mut again = Vec::new();
    for piece in bytes.chunks(usize::from(*step) + 1) {
        decoder.feed(piece);
        assert!(decoder.held() <= 2 * bytes.len() + 64, "{}", decoder.held());
        while let Ok(Some(frame)) = decoder.next() {
            assert!(encoder.encode(&frame, &mut again).is_ok(), "{frame:?}");
        }
    }
    // Every field has one form: what was read is what would be written.
    assert_eq!(again, bytes[..again.len()]);
}

/// One payload, as if its checksums were right.
fn payload(kind: u8, bytes: &[u8]) {
    let Ok(frame) = Frame::decode(kind, Bytes::copy_from_slice(bytes)) else {
        return;
    };
    assert!(
        memory(&frame) <= MEMORY_PER_BYTE * bytes.len() + 1024,
        "{frame:?}"
    );
    let mut again = Vec::new();
    let encoded = Encoder::new(7, Side::Listener).encode(&frame, &mut again);
    assert!(encoded.is_ok(), "{frame:?}");
    assert!(frame.size() >= again.len(), "a bound on what it takes");
    assert_eq!(again[HEADER_SIZE..], *bytes, "each field has one form");
    let (from, to) = match &frame {
        Frame::Raft(message) => (message.from, message.to),
        _ => (1, 2),
    };
    let mut decoder = Decoder::new(7, Side::Listener, NodeId(from), NodeId(to));
    decoder.feed(&again);
    assert_eq!(decoder.next(), Ok(Some(frame)));
}

/// Bytes of memory that a frame holds, about.
fn memory(frame: &Frame) -> usize {
    let size = match frame {
        Frame::Raft(message) => {
            message.entries.len() * size_of::<raft::eraftpb::Entry>()
                + size_of::<raft::eraftpb::Message>()
        }
        Frame::Begin(begin) => begin.files.capacity() * size_of::<(String, u64)>(),
        _ => 0,
    };
    size + frame.size().saturating_sub(16 << 10)
}

#[cfg(test)]
mod tests {
    use super::check;

    #[test]
    fn fuzz_target_peers() {
        let target = bsd::check::corpus::Target {
            name: "peers",
            check,
            size_max: 500,
            runs: 20_000,
        };
        target.check_corpus();
        target.check_random();
    }
}
