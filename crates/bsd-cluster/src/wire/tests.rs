//! Valid and invalid messages.

use bytes::Bytes;
use raft::eraftpb::{Entry, EntryType, Message, MessageType};

use super::*;
use crate::member::{ClusterId, Member, Members, Votes};
use bsd::random::Random;

const FROM: NodeId = NodeId(11);
const TO: NodeId = NodeId(22);
const NONCE: u64 = 0x1234_5678_9abc_def0;

const TRAVEL: [MessageType; 13] = [
    MessageType::MsgAppend,
    MessageType::MsgAppendResponse,
    MessageType::MsgRequestVote,
    MessageType::MsgRequestVoteResponse,
    MessageType::MsgSnapshot,
    MessageType::MsgHeartbeat,
    MessageType::MsgHeartbeatResponse,
    MessageType::MsgTransferLeader,
    MessageType::MsgTimeoutNow,
    MessageType::MsgReadIndex,
    MessageType::MsgReadIndexResp,
    MessageType::MsgRequestPreVote,
    MessageType::MsgRequestPreVoteResponse,
];

const STAY: [MessageType; 6] = [
    MessageType::MsgHup,
    MessageType::MsgBeat,
    MessageType::MsgPropose,
    MessageType::MsgUnreachable,
    MessageType::MsgSnapStatus,
    MessageType::MsgCheckQuorum,
];

/// A message with something in every field that its kind may have.
fn message(kind: MessageType) -> Message {
    let mut message = Message {
        msg_type: kind,
        from: FROM.0,
        to: TO.0,
        term: 9,
        log_term: 4,
        index: 100,
        commit: 90,
        commit_term: 3,
        request_snapshot: 5,
        reject: true,
        reject_hint: 77,
        context: Bytes::from_static(b"context"),
        priority: -3,
        ..Message::default()
    };
    let count = match kind {
        MessageType::MsgAppend => 5,
        MessageType::MsgReadIndex | MessageType::MsgReadIndexResp => 1,
        _ => 0,
    };
    let entries: Vec<Entry> = (1..=count).map(|at| entry(100 + at, 4 + at)).collect();
    message.entries = entries.into();
    if kind == MessageType::MsgAppend {
        message.entries[3].entry_type = EntryType::EntryConfChangeV2;
        message.entries[2].entry_type = EntryType::EntryConfChange;
    }
    if kind == MessageType::MsgSnapshot {
        let snapshot = message.mut_snapshot();
        snapshot.data = Bytes::from_static(b"data");
        let metadata = snapshot.mut_metadata();
        (metadata.index, metadata.term) = (100, 4);
        let conf = metadata.mut_conf_state();
        (conf.voters, conf.learners) = (vec![1, 2, 3], vec![4]);
        (conf.voters_outgoing, conf.learners_next) = (vec![5, u64::MAX], vec![]);
        conf.auto_leave = true;
    }
    message
}

fn entry(index: u64, term: u64) -> Entry {
    Entry {
        index,
        term,
        data: Bytes::from(vec![index as u8; index as usize % 50]),
        context: Bytes::from_static(b"change"),
        ..Entry::default()
    }
}

fn members() -> Members {
    let mut members = Members {
        auto_leave: true,
        ..Members::default()
    };
    for id in [1, 2, 3] {
        members.put(Member {
            id: NodeId(id),
            peer: format!("10.0.0.{id}:11301"),
            client: "queue.example:11300".into(),
            votes: Votes {
                incoming: true,
                outgoing: id == 2,
                learner_next: false,
            },
        });
    }
    members
}

fn frames() -> Vec<Frame> {
    let mut frames: Vec<Frame> = TRAVEL
        .iter()
        .map(|kind| Frame::Raft(Box::new(message(*kind))))
        .collect();
    frames.extend([
        Frame::Begin(Begin {
            index: 7,
            term: 2,
            members: members(),
            files: vec![
                ("segment-2".into(), 5),
                ("empty".into(), 0),
                ("segment-1".into(), 9),
            ],
        }),
        Frame::Chunk(Bytes::from_static(b"some bytes")),
        Frame::End(End { crc: 77 }),
        Frame::Taken(Taken::Installed),
        Frame::Taken(Taken::Refused("the disk is full".into())),
        Frame::Join(Join {
            node: TO,
            peer: "a:1".into(),
            client: String::new(),
        }),
        Frame::Invite(JoinAnswer::Invited {
            cluster: ClusterId([7; 16]),
            members: members(),
        }),
        Frame::Invite(JoinAnswer::Elsewhere {
            node: TO,
            peer: "[::1]:1".into(),
        }),
        Frame::Invite(JoinAnswer::Refused("a change is under way".into())),
        Frame::Drains(true),
        Frame::Drains(false),
    ]);
    frames
}

fn encoded(frames: &[Frame]) -> Vec<Vec<u8>> {
    let mut encoder = Encoder::new(NONCE, Side::Dialer);
    let encode = |frame| {
        let mut bytes = Vec::new();
        encoder.encode(frame, &mut bytes).unwrap();
        bytes
    };
    frames.iter().map(encode).collect()
}

fn decoder() -> Decoder {
    Decoder::new(NONCE, Side::Dialer, FROM, TO)
}

fn decode(bytes: &[u8]) -> Result<Vec<Frame>, WireError> {
    let mut decoder = decoder();
    decoder.feed(bytes);
    let mut frames = Vec::new();
    while let Some(frame) = decoder.next()? {
        frames.push(frame);
    }
    Ok(frames)
}

fn me() -> Me {
    Me {
        cluster: ClusterId([3; 16]),
        node: TO,
        peer: "10.0.0.2:11301".into(),
        client: "10.0.0.2:11300".into(),
        http: "https://10.0.0.2:11380".into(),
        archives: true,
        versions: VERSIONS,
    }
}

fn hello() -> Hello {
    Hello {
        from: FROM,
        to: TO,
        members: 12,
        ..Hello::of(&me(), TO, Purpose::Messages)
    }
}

fn bytes_of(hello: &Hello) -> Vec<u8> {
    let mut bytes = Vec::new();
    hello.encode(&mut bytes).unwrap();
    bytes
}

#[test]
fn every_frame_is_read_as_it_was_written_whatever_the_pieces() {
    let frames = frames();
    let bytes = encoded(&frames).concat();
    for step in [1, 2, 7, 15, 16, 17, 100, bytes.len()] {
        let mut decoder = decoder();
        let mut read = Vec::new();
        for piece in bytes.chunks(step) {
            decoder.feed(piece);
            while let Some(frame) = decoder.next().unwrap() {
                read.push(frame);
            }
        }
        assert_eq!(read, frames, "{step} at a time");
        assert!(!decoder.has_part());
    }
}

#[test]
fn frames_that_are_repeated_left_out_or_reordered_do_not_parse() {
    let frames = frames();
    let parts = encoded(&frames);
    for at in 0..parts.len() {
        let with = |parts: Vec<&[u8]>| decode(&parts.concat());
        let all = || parts.iter().map(Vec::as_slice).collect::<Vec<_>>();
        let mut repeated = all();
        repeated.insert(at, &parts[at]);
        let checksum = Err(WireError::Checksum("the header of a frame"));
        assert_eq!(with(repeated), checksum, "{at} twice");
        if at + 1 < parts.len() {
            let mut dropped = all();
            dropped.remove(at);
            assert_eq!(with(dropped), checksum, "{at} left out");
            let mut swapped = all();
            swapped.swap(at, at + 1);
            assert_eq!(with(swapped), checksum, "{at} after the next");
        }
    }
}

#[test]
fn frames_of_another_connection_or_the_other_end_do_not_parse() {
    let bytes = encoded(&frames()).concat();
    for (nonce, side) in [(NONCE + 1, Side::Dialer), (NONCE, Side::Listener)] {
        let mut decoder = Decoder::new(nonce, side, FROM, TO);
        decoder.feed(&bytes);
        assert!(decoder.next().is_err());
    }
}

#[test]
fn a_flipped_bit_is_no_frame_and_a_part_of_one_waits() {
    for (index, frame) in frames().iter().enumerate() {
        let bytes = encoded(std::slice::from_ref(frame)).concat();
        for bit in 0..8 * bytes.len() {
            let mut bytes = bytes.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let read = decode(&bytes);
            assert!(
                matches!(read, Err(WireError::Checksum(_))),
                "frame {index}, bit {bit}"
            );
        }
        for size in 0..bytes.len() {
            assert_eq!(
                decode(&bytes[..size]),
                Ok(vec![]),
                "frame {index}, {size} bytes"
            );
        }
    }
}

#[test]
fn after_an_error_nothing_parses_and_nothing_is_kept() {
    let parts = encoded(&frames());
    let mut decoder = decoder();
    decoder.feed(&parts[1]);
    let error = decoder.next().unwrap_err();
    decoder.feed(&parts[0]);
    assert_eq!(decoder.next(), Err(error));
    assert!(!decoder.has_part());
}

#[test]
fn messages_that_never_travel_are_neither_written_nor_read() {
    for kind in STAY {
        let frame = Frame::Raft(Box::new(message(kind)));
        let mut bytes = b"before".to_vec();
        let refused = Encoder::new(NONCE, Side::Dialer).encode(&frame, &mut bytes);
        assert_eq!(refused, Err(WireError::Forbidden(kind as i32)));
        assert_eq!(bytes, b"before");
    }
    // Nor is there a number for one, with every checksum right.
    let bytes = encoded(&[Frame::Raft(Box::new(message(MessageType::MsgHeartbeat)))]).concat();
    let payload = &bytes[HEADER_SIZE..];
    let known = (0..=255).filter(|number| {
        let mut payload = payload.to_vec();
        payload[0] = *number;
        let frame = Frame::decode(1, payload.into());
        !matches!(frame, Err(WireError::Unknown("message of raft", _)))
    });
    assert_eq!(known.count(), TRAVEL.len());
}

#[test]
fn messages_for_or_from_another_are_refused() {
    for (from, to) in [(FROM.0, 23), (10, TO.0), (TO.0, FROM.0)] {
        let mut message = message(MessageType::MsgHeartbeat);
        (message.from, message.to) = (from, to);
        let error = decode(&encoded(&[Frame::Raft(Box::new(message))]).concat()).unwrap_err();
        let (said, due) = ((from, to), (FROM, TO));
        assert_eq!(error, WireError::Route { said, due });
    }
}

/// Raft 0.7.0 takes these for its own, or panics.
#[test]
fn what_raft_takes_for_granted_is_neither_written_nor_read() {
    type Change = fn(&mut Message);
    let table: [(MessageType, &str, Change); 11] = [
        (MessageType::MsgHeartbeat, "no term", |it| it.term = 0),
        (MessageType::MsgAppend, "no term", |it| it.term = 0),
        (MessageType::MsgReadIndex, "no entry", |it| {
            it.entries.clear()
        }),
        (MessageType::MsgReadIndexResp, "no entry", |it| {
            it.entries.clear()
        }),
        (MessageType::MsgHeartbeat, "an entry", |it| {
            it.entries.push(entry(101, 9))
        }),
        (MessageType::MsgSnapshot, "no snapshot", |it| {
            it.snapshot.clear()
        }),
        (MessageType::MsgAppend, "a snapshot", |it| {
            _ = it.mut_snapshot()
        }),
        (MessageType::MsgAppend, "a gap", |it| {
            it.entries[3].index += 1
        }),
        (MessageType::MsgAppend, "a term that falls", |it| {
            it.entries[3].term = 5
        }),
        (MessageType::MsgAppend, "a term to come", |it| {
            it.entries[4].term = 10
        }),
        (MessageType::MsgAppend, "the last index", |it| {
            it.index = u64::MAX
        }),
    ];
    for (kind, what, change) in table {
        let mut message = message(kind);
        change(&mut message);
        let frame = Frame::Raft(Box::new(message));
        let encoded = Encoder::new(NONCE, Side::Dialer).encode(&frame, &mut Vec::new());
        assert!(
            matches!(encoded, Err(WireError::Malformed(_))),
            "{kind:?} with {what}"
        );
    }
    // And when another program writes it: the term is at this place.
    let bytes = encoded(&[Frame::Raft(Box::new(message(MessageType::MsgHeartbeat)))]).concat();
    let mut payload = bytes[HEADER_SIZE..].to_vec();
    assert!(Frame::decode(1, payload.clone().into()).is_ok());
    payload[20..28].fill(0);
    assert!(matches!(
        Frame::decode(1, payload.into()),
        Err(WireError::Malformed(_))
    ));
}

#[test]
fn a_count_that_no_bytes_back_takes_no_memory() {
    let mut message = message(MessageType::MsgAppend);
    message.entries.clear();
    let bytes = encoded(&[Frame::Raft(Box::new(message))]).concat();
    let mut payload = bytes[HEADER_SIZE..].to_vec();
    let at = payload.len() - 4;
    payload[at..].copy_from_slice(&u32::MAX.to_le_bytes());
    let error = Frame::decode(1, payload.into()).unwrap_err();
    assert_eq!(error, WireError::Malformed("it ends too early"));
}

#[test]
fn a_count_is_as_large_as_the_bytes_behind_it_allow() {
    for (size, count) in [(0, None), (9, None), (10, Some(5)), (11, Some(5))] {
        let bytes = [&5_u32.to_le_bytes()[..], &vec![0; size]].concat();
        let read = Reader::new(bytes.into()).count(2);
        assert_eq!(read.ok(), count, "{size} bytes");
    }
}

#[test]
fn a_frame_has_a_largest_size_and_one_above_it_is_not_written() {
    let mut large = message(MessageType::MsgAppend);
    large.entries.truncate(1);
    let rest = encoded(&[Frame::Raft(Box::new(large.clone()))])[0].len();
    let room = FRAME_SIZE_MAX - rest + large.entries[0].data.len();
    large.entries[0].data = vec![7; room].into();
    let frame = Frame::Raft(Box::new(large.clone()));
    let bytes = encoded(std::slice::from_ref(&frame)).concat();
    assert_eq!(
        (bytes.len(), frame.size()),
        (FRAME_SIZE_MAX, FRAME_SIZE_MAX)
    );
    let mut decoder = decoder();
    for piece in bytes.chunks(64 << 10) {
        assert_eq!(decoder.next(), Ok(None));
        decoder.feed(piece);
        assert!(decoder.held() <= 2 * FRAME_SIZE_MAX);
    }
    assert_eq!(decoder.next(), Ok(Some(frame)));
    assert!(decoder.held() <= IDLE_BUFFER_SIZE, "memory is given back");
    large.entries[0].data = vec![7; room + 1].into();
    let mut bytes = Vec::new();
    let mut encoder = Encoder::new(NONCE, Side::Dialer);
    let error = encoder
        .encode(&Frame::Raft(Box::new(large)), &mut bytes)
        .unwrap_err();
    assert_eq!(error, WireError::TooLarge("a frame"));
    assert!(bytes.is_empty());
}

#[test]
fn greetings_are_read_as_they_were_written_and_nothing_else_is() {
    let welcome = Answer::Welcome(Welcome {
        version: 1,
        node: TO,
        nonce: NONCE,
        client: "a:1".into(),
        http: "http://a:2".into(),
        wall_ns: 1_800_000_000_000_000_000,
        archives: Some(false),
    });
    let refused = [
        Why::Version,
        Why::Cluster,
        Why::Node,
        Why::Itself,
        Why::Unreadable,
        Why::NoMember,
        Why::Other(99),
    ]
    .map(|why| {
        Answer::Refused(Refused {
            why,
            text: "für Menschen".into(),
            members: 70_000,
        })
    });
    for answer in refused.into_iter().chain([welcome]) {
        let mut bytes = Vec::new();
        answer.encode(&mut bytes).unwrap();
        let size = bytes.len();
        bytes.extend_from_slice(b"more");
        assert_eq!(Answer::decode(&bytes), Ok(Some((answer, size))));
        bytes.truncate(size);
        is_nothing_when_broken(&bytes, |bytes| Answer::decode(bytes).map(|it| it.is_some()));
    }
    let hello = hello();
    let bytes = bytes_of(&hello);
    assert_eq!(Hello::decode(&bytes), Ok(Some((hello, bytes.len()))));
    is_nothing_when_broken(&bytes, |bytes| Hello::decode(bytes).map(|it| it.is_some()));
}

fn is_nothing_when_broken(bytes: &[u8], decode: impl Fn(&[u8]) -> Result<bool, WireError>) {
    for size in 0..bytes.len() {
        assert_eq!(decode(&bytes[..size]), Ok(false), "{size} bytes");
    }
    for bit in 0..8 * bytes.len() {
        let mut bytes = bytes.to_vec();
        bytes[bit / 8] ^= 1 << (bit % 8);
        // A larger size waits for more; who listens does so for some seconds only.
        let is_size = (12..16).contains(&(bit / 8));
        let read = decode(&bytes);
        assert!(read.is_err() || is_size && read == Ok(false), "bit {bit}");
    }
}

#[test]
fn anyone_who_speaks_something_else_is_known_by_the_first_byte() {
    for bytes in [
        &b"GET / HTTP/1.1\r\n"[..],
        b"put 0 0 0 0",
        b"\x16\x03\x01",
        b"bsd-node",
    ] {
        assert_eq!(Hello::decode(bytes), Err(WireError::Foreign));
    }
    assert_eq!(Hello::decode(b"G"), Err(WireError::Foreign));
}

#[test]
fn the_highest_common_version_is_spoken() {
    let versions = |min, max| Versions { min, max };
    let table = [
        ((1, 1), (1, 1), Some(1)),
        ((1, 1), (1, 2), Some(1)),
        ((1, 3), (2, 5), Some(3)),
        ((2, 2), (1, 3), Some(2)),
        ((1, 1), (2, 2), None),
        ((3, 4), (1, 2), None),
        ((1, 2), (3, 1), None),
    ];
    for (one, other, common) in table {
        let (one, other) = (versions(one.0, one.1), versions(other.0, other.1));
        assert_eq!(one.common(other), common, "{one}, {other}");
        assert_eq!(other.common(one), common);
    }
}

/// Version 3, made up: it says more in its hello. Version 1 is that of older programs.
#[test]
fn a_peer_of_version_3_speaks_version_2_with_us_and_one_of_version_1_that() {
    let older = Hello {
        versions: Versions { min: 1, max: 1 },
        ..hello()
    };
    assert_eq!(older.judge(&me()), Ok(1));
    let hello = Hello {
        versions: Versions { min: 1, max: 3 },
        ..hello()
    };
    let mut bytes = bytes_of(&hello);
    bytes.extend_from_slice(b"what version 3 adds");
    seal_again(&mut bytes);
    assert_eq!(
        Hello::decode(&bytes),
        Ok(Some((hello.clone(), bytes.len())))
    );
    assert_eq!(hello.judge(&me()), Ok(2));
}

/// As they were sent before they named the entry.
#[test]
fn a_greeting_that_ends_before_the_entry_of_the_membership_has_0_there() {
    let refused = |members| {
        Answer::Refused(Refused {
            why: Why::NoMember,
            text: "no member".into(),
            members,
        })
    };
    let mut bytes = Vec::new();
    refused(7).encode(&mut bytes).unwrap();
    let bytes = without_end(bytes, 8);
    assert_eq!(Answer::decode(&bytes), Ok(Some((refused(0), bytes.len()))));
    let bytes = without_end(bytes_of(&hello()), 8 + 1 + hello().http.len() + 1);
    let without = Hello {
        members: 0,
        http: String::new(),
        archives: None,
        ..hello()
    };
    assert_eq!(Hello::decode(&bytes), Ok(Some((without, bytes.len()))));
}

/// As they were sent before they named it, and the time.
#[test]
fn g12_a_greeting_that_ends_before_the_http_address_names_none() {
    let bytes = without_end(bytes_of(&hello()), 1 + hello().http.len() + 1);
    let without = Hello {
        http: String::new(),
        archives: None,
        ..hello()
    };
    assert_eq!(Hello::decode(&bytes), Ok(Some((without, bytes.len()))));
    let welcome = |http: &str, wall_ns| {
        Answer::Welcome(Welcome {
            version: 1,
            node: TO,
            nonce: NONCE,
            client: "a:1".into(),
            http: http.into(),
            wall_ns,
            archives: None,
        })
    };
    let mut bytes = Vec::new();
    welcome("http://a:2", 7).encode(&mut bytes).unwrap();
    let bytes = without_end(bytes, 1 + "http://a:2".len() + 8 + 1);
    let expected = welcome("", 0);
    assert_eq!(Answer::decode(&bytes), Ok(Some((expected, bytes.len()))));
}

/// As they were sent before they said it; and a later program may say something else.
#[test]
fn a_greeting_that_does_not_say_whether_its_node_archives_is_read_nevertheless() {
    let unknown = Hello {
        archives: None,
        ..hello()
    };
    let whole = bytes_of(&hello());
    let bytes = without_end(whole.clone(), 1);
    assert_eq!(
        Hello::decode(&bytes),
        Ok(Some((unknown.clone(), bytes.len())))
    );
    let mut later = whole;
    *later.last_mut().unwrap() = 3;
    seal_again(&mut later);
    assert_eq!(Hello::decode(&later), Ok(Some((unknown, later.len()))));
}

/// A greeting without the last bytes of its body.
fn without_end(mut bytes: Vec<u8>, size: usize) -> Vec<u8> {
    bytes.truncate(bytes.len() - size);
    seal_again(&mut bytes);
    bytes
}

/// The size and the checksum of a greeting whose body has become another one.
fn seal_again(bytes: &mut [u8]) {
    let size = (bytes.len() - 20) as u32;
    bytes[12..16].copy_from_slice(&size.to_le_bytes());
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&bytes[..16]);
    hasher.update(&bytes[20..]);
    bytes[16..20].copy_from_slice(&hasher.finalize().to_le_bytes());
}

#[test]
fn a_peer_that_is_too_new_or_a_stranger_is_refused_in_words() {
    let other = ClusterId([4; 16]);
    let table = [
        (
            Hello {
                versions: Versions { min: 3, max: 4 },
                ..hello()
            },
            Why::Version,
            "upgrade",
        ),
        (
            Hello {
                cluster: other,
                ..hello()
            },
            Why::Cluster,
            "of cluster 0303",
        ),
        (
            Hello {
                cluster: ClusterId([0; 16]),
                ..hello()
            },
            Why::Cluster,
            "not 0000",
        ),
        (
            Hello {
                to: NodeId(9),
                ..hello()
            },
            Why::Node,
            "its disk is another one",
        ),
        (
            Hello {
                to: NodeId(0),
                ..hello()
            },
            Why::Node,
            "is here",
        ),
        (
            Hello {
                from: TO,
                ..hello()
            },
            Why::Itself,
            "no other node",
        ),
        (
            Hello {
                from: NodeId(0),
                ..hello()
            },
            Why::Itself,
            "no other node",
        ),
        (
            Hello {
                cluster: other,
                purpose: Purpose::Join,
                ..hello()
            },
            Why::Cluster,
            "not 0404",
        ),
    ];
    for (hello, why, part) in table {
        let refused = hello.judge(&me()).unwrap_err();
        assert_eq!(refused.why, why);
        assert!(refused.text.contains(part), "{refused}");
        let mut bytes = Vec::new();
        Answer::Refused(refused.clone()).encode(&mut bytes).unwrap();
        let size = bytes.len();
        assert_eq!(
            Answer::decode(&bytes),
            Ok(Some((Answer::Refused(refused), size)))
        );
    }
    let newcomer = Hello {
        cluster: ClusterId([0; 16]),
        to: NodeId(0),
        purpose: Purpose::Join,
        ..hello()
    };
    assert_eq!(newcomer.judge(&me()), Ok(2));
}

#[test]
fn an_address_that_is_too_long_or_no_text_is_not_said() {
    for peer in ["x".repeat(256), "a\nb".into()] {
        let hello = Hello { peer, ..hello() };
        assert!(hello.encode(&mut Vec::new()).is_err());
    }
}

#[test]
fn files_of_a_snapshot_stay_in_their_directory() {
    let begin = |names: &[&str], size| {
        Frame::Begin(Begin {
            index: 1,
            term: 1,
            members: members(),
            files: names
                .iter()
                .map(|name| ((*name).to_owned(), size))
                .collect(),
        })
    };
    let encode = |frame| Encoder::new(1, Side::Dialer).encode(&frame, &mut Vec::new());
    assert!(encode(begin(&["segment-1", "index_2.b"], 7)).is_ok());
    for name in [
        "",
        ".",
        "..",
        "../x",
        "/etc/passwd",
        "a/b",
        "a\\b",
        ".hidden",
        "c:",
        "a\0",
    ] {
        assert!(encode(begin(&[name], 7)).is_err(), "{name:?}");
    }
    assert!(encode(begin(&["a", "a"], 7)).is_err());
    assert!(encode(begin(&["a", "b"], u64::MAX)).is_err());
}

#[test]
fn chunks_become_files_and_no_byte_may_be_missing_or_too_much() {
    let sizes = [0, 5, 0, 0, 9, 1, 0];
    let files = sizes
        .iter()
        .enumerate()
        .map(|(at, size)| (format!("f{at}"), *size));
    let begin = Begin {
        index: 1,
        term: 1,
        members: members(),
        files: files.collect(),
    };
    let bytes: Vec<u8> = (0..15).collect();
    let end = End {
        crc: crc32fast::hash(&bytes),
    };
    for step in 1..=15 {
        let mut intake = Intake::new(begin.clone());
        let mut files = vec![Vec::new(); sizes.len()];
        for chunk in bytes.chunks(step) {
            for piece in intake.chunk(chunk).unwrap() {
                assert_eq!(piece.offset, files[piece.file].len() as u64);
                files[piece.file].extend_from_slice(piece.bytes);
            }
        }
        assert_eq!(
            files
                .iter()
                .map(|file| file.len() as u64)
                .collect::<Vec<_>>(),
            sizes
        );
        assert_eq!(files.concat(), bytes);
        assert_eq!(intake.end(end), Ok(begin.clone()));
    }
    for count in 0..15 {
        let mut intake = Intake::new(begin.clone());
        intake.chunk(&bytes[..count]).unwrap();
        assert!(
            matches!(intake.end(end), Err(WireError::Malformed(_))),
            "{count} bytes"
        );
    }
    let mut intake = Intake::new(begin.clone());
    intake.chunk(&bytes).unwrap();
    assert!(intake.chunk(b"x").is_err());
    let mut intake = Intake::new(begin);
    intake.chunk(&[9; 15]).unwrap();
    assert!(matches!(intake.end(end), Err(WireError::Checksum(_))));
}

/// The fuzz target `peers`, without a fuzzer.
#[test]
fn any_bytes_are_checked() {
    let mut random = Random::new(1);
    let frames = frames();
    let parts: Vec<Vec<u8>> = {
        let mut encoder = Encoder::new(0, Side::Dialer);
        let encode = |frame: &Frame| {
            let mut frame = frame.clone();
            if let Frame::Raft(message) = &mut frame {
                (message.from, message.to) = (1, 2);
            }
            let mut bytes = Vec::new();
            encoder.encode(&frame, &mut bytes).unwrap();
            bytes
        };
        frames.iter().map(encode).collect()
    };
    let mut answer = Vec::new();
    let welcome = Welcome {
        version: 1,
        node: TO,
        nonce: NONCE,
        client: "a:1".into(),
        http: "http://a:2".into(),
        wall_ns: 1_800_000_000_000_000_000,
        archives: Some(false),
    };
    Answer::Welcome(welcome).encode(&mut answer).unwrap();
    for round in 0..20_000 {
        let mut bytes = match round % 4 {
            0 => {
                let size = random.below(200_usize);
                random.bytes(size)
            }
            1 => [vec![0], random.pick(&[bytes_of(&hello()), answer.clone()])].concat(),
            2 => [vec![1, random.next() as u8], parts.concat()].concat(),
            _ => {
                let at = random.below(parts.len());
                let kind = 4 * frames[at].kind() + 2 + random.below(2_u8);
                [vec![kind], parts[at][HEADER_SIZE..].to_vec()].concat()
            }
        };
        check(&bytes);
        for _ in 0..random.below(4_usize) {
            mutate(&mut bytes, &mut random);
        }
        check(&bytes);
    }
}

fn mutate(bytes: &mut Vec<u8>, random: &mut Random) {
    if bytes.is_empty() {
        return;
    }
    let at = random.below(bytes.len());
    match random.below(6) {
        0 => bytes[at] ^= 1 << random.below(8_u32),
        1 => bytes[at] = random.pick(&[0, 1, 127, 128, 255]),
        2 => bytes.truncate(at),
        3 => bytes.insert(at, random.next() as u8),
        4 => _ = bytes.remove(at),
        _ => {
            let more = bytes[at..].to_vec();
            bytes.extend_from_slice(&more);
        }
    }
}
