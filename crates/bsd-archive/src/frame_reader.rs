//! From the bytes of links to records: frames may begin in one link and end in another.

use super::course::{Place, place};
use super::format::Fault;
use bsd::storage::format::{
    FrameHeader, FrameKind, HeaderFault, Identity, LogId, Record, SegmentHeader, check_frame,
    frame_header, records, segment_header,
};
use bsd::types::Position;

/// Puts the bytes of links together to frames.
#[derive(Debug)]
pub(super) struct FrameReader {
    log: LogId,
    /// Every frame before this position was applied, or is in the base.
    pub(super) at: Position,
    /// From `taken` on, the bytes from `at` on.
    bytes: Vec<u8>,
    taken: usize,
    /// The checksum of the frame before `at`, if it was read.
    previous: Option<u32>,
    /// The frame before `at` was a seal.
    is_sealed: bool,
    /// Records of the frame at `at` that were taken.
    records: usize,
}

impl FrameReader {
    pub(super) fn begin(log: LogId, at: Position) -> FrameReader {
        FrameReader {
            log,
            at,
            bytes: Vec::new(),
            taken: 0,
            previous: None,
            is_sealed: false,
            records: 0,
        }
    }

    /// Everything before `at` was taken, and `records` records of the frame there; `before` is as
    /// of [`FrameReader::frame_before`].
    pub(super) fn resume(
        log: LogId,
        at: Position,
        records: usize,
        before: (Option<u32>, bool),
    ) -> FrameReader {
        FrameReader {
            previous: before.0,
            is_sealed: before.1,
            records,
            ..FrameReader::begin(log, at)
        }
    }

    /// The checksum of the frame before `at`, if it is known, and whether that was a seal.
    pub(super) fn frame_before(&self) -> (Option<u32>, bool) {
        (self.previous, self.is_sealed)
    }

    /// Records that were taken of the frame at `at`.
    pub(super) fn records(&self) -> usize {
        self.records
    }

    /// True if no bytes wait for those after them.
    pub(super) fn is_drained(&self) -> bool {
        self.taken == self.bytes.len()
    }

    /// The history ends at `from`, and continues in another log with the same jobs, in a later
    /// segment. An incomplete frame at its end is dropped.
    ///
    /// # Errors
    /// It does not stand there.
    pub(super) fn take_over(&mut self, from: Position) -> Result<(), Fault> {
        if from != self.at || self.records > 0 {
            let at = self.at;
            return Err(format!("it goes on at {from}, the chain stands at {at}"));
        }
        self.bytes.clear();
        self.taken = 0;
        self.is_sealed = true;
        Ok(())
    }

    /// Take the bytes that begin at `from`, without those before `at`.
    pub(super) fn push(&mut self, from: Position, bytes: &[u8]) -> Result<(), Fault> {
        self.bytes.drain(..std::mem::take(&mut self.taken));
        let end = Position::new(from.segment(), from.offset() + bytes.len() as u32);
        let next = Position::new(
            self.at.segment(),
            self.at.offset() + self.bytes.len() as u32,
        );
        match place(next, from, end) {
            Place::Known => {}
            Place::Next(known) => self.bytes.extend_from_slice(&bytes[known as usize..]),
            Place::Segment if self.is_sealed && self.bytes.is_empty() => {
                (self.at, self.previous, self.is_sealed) = (from, Some(0), false);
                self.bytes.extend_from_slice(bytes);
            }
            Place::Segment | Place::Apart => {
                return Err(format!(
                    "its bytes begin at {from}, and those from {next} on are missing"
                ));
            }
        }
        Ok(())
    }

    /// Take the records of the next frame, one after another. `false`: it is not complete, or ends
    /// after `until`. After an error the next call goes on with the record that was refused.
    pub(super) fn step<E>(
        &mut self,
        until: Option<Position>,
        take: &mut dyn FnMut(&Record<'_>) -> Result<(), E>,
    ) -> Result<Result<bool, Fault>, E> {
        let segment = self.at.segment();
        let identity = Identity {
            log: self.log,
            first: segment,
            last: segment,
            generation: 0,
        };
        if self.at.offset() == 0 {
            let end = Position::new(segment, segment_header::SIZE as u32);
            return Ok(match until.is_some_and(|until| end > until) {
                true => Ok(false),
                false => self.pass_header(identity),
            });
        }
        let (seed, offset) = (identity.seed(), self.at.offset());
        let bytes = &self.bytes[self.taken..];
        if bytes.len() < frame_header::SIZE {
            return Ok(Ok(false));
        }
        let Some(header) = FrameHeader::decode(bytes, seed, offset) else {
            return Ok(Err(format!("there is no frame at {}", self.at)));
        };
        if header.kind == FrameKind::Newer {
            let version = header.version;
            return Ok(Err(format!(
                "the frame at {} has version {version}, use a newer bsd",
                self.at
            )));
        }
        let size = header.frame_size();
        if (bytes.len() as u64) < size {
            return Ok(Ok(false));
        }
        if self
            .previous
            .is_some_and(|previous| previous != header.previous)
        {
            return Ok(Err(format!(
                "the frame at {} does not follow the one before",
                self.at
            )));
        }
        let end = u64::from(offset) + size;
        let Ok(end) = u32::try_from(end) else {
            return Ok(Err(format!("the frame at {} is too long", self.at)));
        };
        let end = Position::new(segment, end);
        if until.is_some_and(|until| end > until) {
            return Ok(Ok(false));
        }
        let frame = &bytes[..size as usize];
        let checksum = match check_frame(frame, &header, seed, offset) {
            Ok(checksum) => checksum,
            Err(_) => return Ok(Err(format!("the frame at {} is damaged", self.at))),
        };
        for (_, record) in records(frame, &header, offset).skip(self.records) {
            take(&record)?;
            self.records += 1;
        }
        self.records = 0;
        self.taken += size as usize;
        self.at = end;
        self.previous = Some(checksum);
        self.is_sealed = header.kind == FrameKind::Seal;
        Ok(Ok(true))
    }

    fn pass_header(&mut self, identity: Identity) -> Result<bool, Fault> {
        match SegmentHeader::decode(&self.bytes[self.taken..]) {
            Err(HeaderFault::Short) => Ok(false),
            Ok(header) if header.identity == identity => {
                self.taken += segment_header::SIZE;
                self.at = Position::new(identity.first, segment_header::SIZE as u32);
                Ok(true)
            }
            _ => Err(format!("it does not begin segment {}", identity.first)),
        }
    }
}
