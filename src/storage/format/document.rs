//! Compares `storage-format.md` with the code.
//!
//! Whatever the code can generate, it does: the document has blocks between `<!-- from the code:
//! NAME -->` and `<!-- end -->`, and a test requires each to equal the code's text.
//! `BSD_WRITE_FORMAT=1 cargo test --lib document` writes them. In prose, only the names are
//! checked.

use super::samples::{Segment, identity, one_of_each, plain};
use super::*;
use crate::attributes::{LIST_SIZE_MAX, TAGS, TEXT_SIZE_MAX};
use crate::storage::format::SEGMENT_SIZE_MIN;
use crate::storage::format::any_bytes::MemoryFile;
use crate::storage::format::names::FIRST_SPARE;
use crate::storage::format::names::{
    ARCHIVE_MARKER, COMPACTION_NAME, LOCK_NAME, SECOND_ARCHIVE_MARKER, STANDBY_MARKER,
    parse_spare_name, unfinished_marker,
};
use crate::storage::read::scan::{END_RULES, Reader, Step};
use crate::types::{SETTING_NAME_MAX, SETTING_SIZE_MAX, SegmentId, TUBE_NAME_MAX};

const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/storage-format.md");

/// The generated blocks, in the document's order.
fn blocks() -> Vec<(&'static str, String)> {
    vec![
        ("limits", limits()),
        ("names", names()),
        ("segment header", table(segment_header::FIELDS)),
        ("frame header", table(frame_header::FIELDS)),
        ("frame trailer", table(frame_trailer::FIELDS)),
        ("put", table(put::FIELDS)),
        ("update", table(update::FIELDS)),
        ("delete", table(delete::FIELDS)),
        ("pause", table(pause::FIELDS)),
        ("kick", table(kick::FIELDS)),
        ("setting", table(setting::FIELDS)),
        ("attributes", table(attributes::FIELDS)),
        ("attribute", table(attribute::FIELDS)),
        ("tags", tags()),
        ("manifest", table(manifest::FIELDS)),
        ("switch", table(switch::FIELDS)),
        ("entry", table(entry::FIELDS)),
        ("decision", decision()),
        (
            "example",
            format!("```text\n{}```\n", super::example::text()),
        ),
    ]
}

fn table(fields: &[Field]) -> String {
    let mut text = String::from("| offset | bytes | field | meaning |\n|---|---|---|---|\n");
    for Field {
        name,
        offset,
        size,
        meaning,
    } in fields
    {
        text += &format!("| {offset} | {size} | `{name}` | {meaning} |\n");
    }
    text
}

fn tags() -> String {
    let mut text = String::from("| tag | bytes | attribute | meaning |\n|---|---|---|---|\n");
    for (tag, name, size, meaning) in TAGS {
        text += &format!("| {tag} | {size} | `{name}` | {meaning} |\n");
    }
    text
}

fn limits() -> String {
    let rows = [
        (
            "format version",
            format!("{VERSION_MIN}, or {VERSION} where a record needs it"),
        ),
        ("bytes of a segment file, at most", u32::MAX.to_string()),
        (
            "bytes of a segment file, at least, as set aside",
            SEGMENT_SIZE_MIN.to_string(),
        ),
        (
            "segments in the life of a log, at most",
            u32::MAX.to_string(),
        ),
        ("frames begin at multiples of", FRAME_ALIGN.to_string()),
        (
            "bytes of a segment header",
            segment_header::SIZE.to_string(),
        ),
        (
            "bytes of a frame without records",
            EMPTY_FRAME_SIZE.to_string(),
        ),
        (
            "bytes of a frame in addition to its records, at most",
            FRAME_OVERHEAD_MAX.to_string(),
        ),
        (
            "bytes of a put without tube name and body",
            put::SIZE.to_string(),
        ),
        (
            "bytes of an update; of a delete",
            format!("{}; {}", update::SIZE, delete::SIZE),
        ),
        ("bytes of a tube's name, at most", TUBE_NAME_MAX.to_string()),
        (
            "bytes of a setting's name, and of its value, at most",
            format!("{SETTING_NAME_MAX}; {SETTING_SIZE_MAX}"),
        ),
        (
            "bytes of a job's attributes, and of the text among them, at most",
            format!("{LIST_SIZE_MAX}; {TEXT_SIZE_MAX}"),
        ),
    ];
    let rows = rows.map(|(what, value)| format!("| {what} | {value} |\n"));
    format!("| limit | value |\n|---|---|\n{}", rows.concat())
}

fn names() -> String {
    let segment = file_name(SegmentId(12), 0);
    let rewritten = file_name(SegmentId(3), 2);
    let spare = "spare-7";
    assert_eq!(parse_spare_name(spare), Some(7));
    [
        "| name | what it is |\n|---|---|\n".to_owned(),
        format!("| `{segment}` | segment 12, as it was first written |\n"),
        format!(
            "| `{rewritten}` | what compaction has left of segment 3, and of the next ones where it \
             merged several; rewritten for the 2nd time |\n"
        ),
        format!(
            "| `{spare}` | space set aside; its content means nothing. An empty one is left of the \
             file for bodies on their way: a crash came before its name was removed. The number \
             {FIRST_SPARE} is that of a new log's first segment, before it has its name |\n"
        ),
        format!("| `{COMPACTION_NAME}` | what compaction is writing; not part of the log |\n"),
        "| `cut-0000000012-0000004096` | the torn tail that a start cut off segment 12 at byte \
         4096; not part of the log |\n"
            .to_owned(),
        format!(
            "| `cut-{segment}` | a whole segment after a torn tail; not part of the log. The \
             second of its number ends in `-2`, and so on |\n"
        ),
        format!("| `{LOCK_NAME}` | locked by the process that has the directory; empty |\n"),
        format!(
            "| `{STANDBY_MARKER}` | says that the log is the copy of a standby, and up to where it goes; \
             a server that is not started as a standby removes it before it appends. Not part of the \
             log |\n"
        ),
        format!(
            "| `{ARCHIVE_MARKER}`, `{SECOND_ARCHIVE_MARKER}` | which claims on an archive, and on a \
             second one, the server of this directory has made. Not part of the log |\n"
        ),
        format!(
            "| `{}`, `{}`, `{}` | the next one of these, which a crash left; a start removes it |\n",
            unfinished_marker(STANDBY_MARKER),
            unfinished_marker(ARCHIVE_MARKER),
            unfinished_marker(SECOND_ARCHIVE_MARKER)
        ),
    ]
    .concat()
}

fn decision() -> String {
    let fact = |wanted: Option<bool>| match wanted {
        None => "any",
        Some(true) => "yes",
        Some(false) => "no",
    };
    let mut text = String::from(
        "| complete | attested | garbage | verdict | how a disk gets there, and what is done |\n\
         |---|---|---|---|---|\n",
    );
    for rule in END_RULES {
        let facts = [rule.complete, rule.attested, rule.garbage]
            .map(fact)
            .join(" | ");
        text += &format!("| {facts} | `{:?}` | {} |\n", rule.end, rule.story);
    }
    text
}

fn document() -> String {
    std::fs::read_to_string(PATH).unwrap()
}

/// Where the block `name` lies in `document`, without its marks.
fn block(document: &str, name: &str) -> std::ops::Range<usize> {
    let mark = format!("<!-- from the code: {name} -->\n");
    assert_eq!(
        document.matches(&mark).count(),
        1,
        "one mark {mark:?} in storage-format.md"
    );
    let start = document.find(&mark).unwrap() + mark.len();
    let size = document[start..]
        .find("<!-- end -->")
        .expect("the block has an end");
    start..start + size
}

#[test]
fn the_document_says_what_the_code_does() {
    let mut document = document();
    let mut wrong = String::new();
    for (name, text) in blocks() {
        let place = block(&document, name);
        if document[place.clone()] != text {
            wrong += &format!("\n<!-- from the code: {name} -->\n{text}<!-- end -->\n");
            document.replace_range(place, &text);
        }
    }
    if !wrong.is_empty() && std::env::var_os("BSD_WRITE_FORMAT").is_some() {
        #[allow(clippy::disallowed_methods)] // no file of the server's
        std::fs::write(PATH, document).unwrap();
        return;
    }
    assert!(
        wrong.is_empty(),
        "storage-format.md should say (BSD_WRITE_FORMAT=1 writes it there):\n{wrong}"
    );
}

#[test]
fn every_block_of_the_document_is_known_to_the_code() {
    let document = document();
    let known = blocks();
    let named: Vec<&str> = document
        .lines()
        .filter_map(|line| {
            line.strip_prefix("<!-- from the code: ")?
                .strip_suffix(" -->")
        })
        .collect();
    let known: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
    assert_eq!(named, known);
}

/// The bytes in the lines `OFFSET  HEX … NAME` of the example, as the document has them.
fn example_bytes(document: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for line in document[block(document, "example")].lines() {
        let Some((offset, rest)) = line.split_once("  ") else {
            continue;
        };
        if line.starts_with('#') || line.starts_with("```") {
            continue;
        }
        assert_eq!(
            usize::from_str_radix(offset, 16).unwrap(),
            bytes.len(),
            "{line}"
        );
        let hex = &rest[..rest.len().min(24)];
        bytes.extend(
            hex.split_whitespace()
                .map(|byte| u8::from_str_radix(byte, 16).unwrap()),
        );
    }
    bytes
}

#[test]
fn the_example_is_read_from_the_document_as_it_was_written() {
    let bytes = example_bytes(&document());
    assert_eq!(SegmentHeader::decode(&bytes).unwrap().identity, identity());
    let (file, size) = (MemoryFile::holding(bytes.clone()), bytes.len() as u64);
    let mut reader = Reader::new(file, identity().seed(), size, segment_header::SIZE as u32);
    let (mut kinds, mut versions, mut records) = (Vec::new(), Vec::new(), Vec::new());
    while let Step::Frame(frame) = reader.step().unwrap() {
        kinds.push(frame.header.kind);
        versions.push(frame.header.version);
        records.extend(frame.records().map(|(_, record)| plain(&record)));
    }
    assert_eq!(u64::from(reader.at()), size);
    assert_eq!(records, one_of_each().iter().map(plain).collect::<Vec<_>>());
    use FrameKind::{CleanStop, Data, Idle, Seal};
    let expected = [Data, Data, Data, Idle, Data, Data, Data, CleanStop, Seal];
    assert_eq!(kinds, expected);
    assert_eq!(versions, [1, 1, 1, 1, 1, 1, 2, 1, 1]);
}

#[test]
fn the_example_is_written_today_as_it_stands_in_the_document() {
    let Segment { bytes, .. } = super::example::segment();
    assert_eq!(example_bytes(&document()), bytes);
}

#[test]
fn the_kinds_in_the_document_are_those_of_the_code() {
    let kinds = [
        FrameKind::Data,
        FrameKind::Idle,
        FrameKind::Seal,
        FrameKind::CleanStop,
    ];
    let named = kinds.map(|kind| kind as u8);
    assert_eq!(named, [0, 1, 2, 3]);
    let kind = frame_header::FIELDS
        .iter()
        .find(|field| field.name == "KIND")
        .unwrap();
    assert_eq!(kind.meaning, "0 data, 1 idle marker, 2 seal, 3 clean stop");
    for (record, fields) in one_of_each().iter().zip([
        manifest::FIELDS,
        put::FIELDS,
        update::FIELDS,
        pause::FIELDS,
        delete::FIELDS,
        kick::FIELDS,
        switch::FIELDS,
        setting::FIELDS,
        attributes::FIELDS,
    ]) {
        let mut bytes = Vec::new();
        record.encode(&mut bytes);
        let kind = fields.iter().find(|field| field.name == "KIND").unwrap();
        assert_eq!(kind.meaning, bytes[kind.offset].to_string());
    }
}
