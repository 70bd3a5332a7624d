//! The small log that `storage-format.md` shows byte for byte: one segment, with every kind of
//! frame and record, and every field named.

use std::fmt::Write;

use super::samples::{Segment, identity, one_of_each};
use super::*;
use crate::attributes::TAGS;
use crate::storage::format::any_bytes::MemoryFile;
use crate::storage::read::scan::{Reader, Step};
use crate::types::{Position, SegmentId};

/// The segment: its events, in order.
pub(super) fn segment() -> Segment {
    let [
        manifest,
        put,
        update,
        pause,
        delete,
        kick,
        switch,
        setting,
        attributes,
    ] = one_of_each()[..]
    else {
        unreachable!("there are nine kinds of record");
    };
    let mut segment = Segment::new();
    // In segment 2 everything was durable except its last frame and the seal.
    let durable = Position::new(SegmentId(2), 39_800);
    segment.push_frame(FrameKind::Data, durable, &[manifest]);
    for frame in [&[put][..], &[update, pause]] {
        segment.push(segment.end(), frame);
    }
    segment.push_kind(FrameKind::Idle, segment.end(), &[]);
    segment.push(segment.end(), &[delete, kick]);
    segment.push(segment.end(), &[switch]);
    segment.push(segment.end(), &[setting, attributes]);
    segment.push_kind(FrameKind::CleanStop, segment.end(), &[]);
    segment.push_kind(FrameKind::Seal, segment.end(), &[]);
    segment
}

/// The segment as lines of text: offset, bytes, field, meaning.
pub(super) fn text() -> String {
    let bytes = segment().bytes;
    let mut page = Page {
        bytes: &bytes,
        at: 0,
        text: String::new(),
    };
    page.line("segment header");
    page.fields(segment_header::FIELDS);
    let file = MemoryFile::holding(bytes.clone());
    let start = segment_header::SIZE as u32;
    let mut reader = Reader::new(file, identity().seed(), bytes.len() as u64, start);
    while let Ok(Step::Frame(frame)) = reader.step() {
        page.line(&format!("frame: {:?}", frame.header.kind));
        page.fields(frame_header::FIELDS);
        for (_, record) in frame.records() {
            page.record(&record);
        }
        page.line("trailer");
        page.fields(frame_trailer::FIELDS);
        page.rest("padding", frame.end() as usize);
    }
    page.text
}

struct Page<'a> {
    bytes: &'a [u8],
    at: usize,
    text: String,
}

impl Page<'_> {
    fn line(&mut self, line: &str) {
        let gap = if self.text.is_empty() { "" } else { "\n" };
        self.text.push_str(&format!("{gap}# {line}\n"));
    }

    fn fields(&mut self, fields: &[Field]) {
        let start = self.at;
        for field in fields {
            let bytes = &self.bytes[start + field.offset..][..field.size];
            self.row(field.size, field.name, &meaning(field.name, bytes));
        }
    }

    fn rest(&mut self, name: &str, end: usize) {
        if self.at < end {
            self.row(end - self.at, name, "");
        }
    }

    /// At most eight bytes per line, the name on the first one.
    fn row(&mut self, size: usize, name: &str, meaning: &str) {
        let end = self.at + size;
        let mut label = format!("{name:<14} {meaning}");
        while self.at < end {
            let chunk = &self.bytes[self.at..end.min(self.at + 8)];
            let hex: Vec<String> = chunk.iter().map(|byte| format!("{byte:02x}")).collect();
            let line = format!("{:04x}  {:<24} {label}", self.at, hex.join(" "));
            let _ = writeln!(self.text, "{}", line.trim_end());
            self.at += chunk.len();
            label.clear();
        }
    }

    fn record(&mut self, record: &Record<'_>) {
        match record {
            Record::Put { tube, body, .. } => {
                self.line("put");
                self.fields(put::FIELDS);
                self.row(tube.len(), "tube", tube);
                self.row(body.len(), "body", &body.escape_ascii().to_string());
            }
            Record::Update { .. } => {
                self.line("update");
                self.fields(update::FIELDS);
            }
            Record::Delete { .. } => {
                self.line("delete");
                self.fields(delete::FIELDS);
            }
            Record::Pause { tube, .. } => {
                self.line("pause");
                self.fields(pause::FIELDS);
                self.row(tube.len(), "tube", tube);
            }
            Record::Kick { tube, .. } => {
                self.line("kick");
                self.fields(kick::FIELDS);
                self.row(tube.len(), "tube", tube);
            }
            Record::Setting { name, value, .. } => {
                self.line("setting");
                self.fields(setting::FIELDS);
                self.row(name.len(), "name", name);
                self.row(value.len(), "value", &value.escape_ascii().to_string());
            }
            Record::Attributes { list, .. } => {
                self.line("attributes");
                self.fields(attributes::FIELDS);
                self.attributes(list);
            }
            Record::Manifest { entries, .. } => {
                self.line("manifest");
                self.fields(manifest::FIELDS);
                self.entries("entry", *entries);
            }
            Record::Switch { removed, added } => {
                self.line("switch");
                self.fields(switch::FIELDS);
                self.entries("removed entry", *removed);
                self.entries("added entry", *added);
            }
        }
    }

    fn attributes(&mut self, list: &[u8]) {
        let end = self.at + list.len();
        while self.at < end {
            let tag = self.bytes[self.at + attribute::TAG];
            let size = u16_at(self.bytes, self.at + attribute::CONTENT_SIZE);
            let known = TAGS.iter().find(|(it, ..)| *it == tag);
            let name = known.map_or("", |(_, name, ..)| *name);
            self.line(&format!("attribute: {name}"));
            self.fields(attribute::FIELDS);
            let bytes = &self.bytes[self.at..self.at + usize::from(size)];
            self.row(bytes.len(), "content", &bytes.escape_ascii().to_string());
        }
    }

    fn entries(&mut self, what: &str, entries: Entries<'_>) {
        for entry in entries.to_vec() {
            self.line(&format!("{what}: {}", entry.file_name()));
            self.fields(entry::FIELDS);
        }
    }
}

/// The meaning of a field's bytes.
fn meaning(name: &str, bytes: &[u8]) -> String {
    let number = |bytes: &[u8]| {
        bytes
            .iter()
            .rev()
            .fold(0, |number: u64, byte| number << 8 | u64::from(*byte))
    };
    match name {
        "MAGIC" => bytes.escape_ascii().to_string(),
        "CRC" | "PREVIOUS" | "CHECKSUM" => format!("{:#010x}", number(bytes)),
        "DURABLE" | "FILTERED_AT" => {
            let position = Position::from_bits(number(bytes));
            format!(
                "segment {}, byte {:#06x}",
                position.segment(),
                position.offset()
            )
        }
        "RESERVED" | "LOG_ID" => String::new(),
        _ => number(bytes).to_string(),
    }
}
