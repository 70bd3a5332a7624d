//! The records of a frame as the data of one entry of a replicated log.
//!
//! ```text
//! +---------+------+--------+----------- - - -+
//! | RECORDS | SEED | OFFSET | records         |
//! | 4       | 4    | 4      | as in the frame |
//! +---------+------+--------+----------- - - -+
//! ```
//!
//! The records keep the checksums that they got when they were appended, so anyone who applies them
//! checks what the first server has computed. SEED and OFFSET say what these checksums start from.

use super::{FrameHeader, Record, Seed, frame_header, u32_at};

/// Bytes before the records.
const HEADER_SIZE: usize = 12;

/// The data of an entry: all records of the sound `frame`, which begins at `offset` of the file with
/// `seed`.
pub(in crate::storage) fn entry_data(frame: &[u8], seed: Seed, offset: u32) -> Vec<u8> {
    let size = FrameHeader::decode(frame, seed, offset).map_or(0, |header| header.body_size);
    let records = &frame[frame_header::SIZE..][..size as usize];
    let mut data = Vec::with_capacity(HEADER_SIZE + records.len());
    data.extend_from_slice(&frame[frame_header::RECORDS..][..4]);
    data.extend_from_slice(&seed.0.to_le_bytes());
    data.extend_from_slice(&(offset + frame_header::SIZE as u32).to_le_bytes());
    data.extend_from_slice(records);
    data
}

/// The records in the data of an entry, in order, and how many bytes they are together. `None`: it is
/// not what a log has formed, or is damaged.
#[must_use]
pub fn entry_records(data: &[u8]) -> Option<(Vec<Record<'_>>, u64)> {
    let (header, body) = data.split_at_checked(HEADER_SIZE)?;
    let (count, seed, offset) = (
        u32_at(header, 0),
        Seed(u32_at(header, 4)),
        u32_at(header, 8),
    );
    let mut records = Vec::new();
    let mut at = 0;
    for _ in 0..count {
        let place = offset.checked_add(u32::try_from(at).ok()?)?;
        let (record, size) = Record::decode_first(body.get(at..)?, seed, place)?;
        records.push(record);
        at += size;
    }
    (at == body.len()).then_some((records, at as u64))
}

#[cfg(test)]
mod tests {
    use super::super::FrameKind;
    use super::super::samples::{frame, identity, one_of_each, plain, position};
    use super::*;

    fn data() -> Vec<u8> {
        let (records, at) = (one_of_each(), 4096);
        let frame = frame(&identity(), at, FrameKind::Data, position(64), 0, &records).0;
        entry_data(&frame, identity().seed(), at)
    }

    #[test]
    fn the_records_of_a_frame_come_out_of_the_data_of_its_entry() {
        let data = data();
        let (records, size) = entry_records(&data).unwrap();
        let found: Vec<_> = records.iter().map(plain).collect();
        let put: Vec<_> = one_of_each().iter().map(plain).collect();
        assert_eq!(found, put);
        assert_eq!(size as usize, data.len() - HEADER_SIZE);
    }

    #[test]
    fn data_with_any_bit_flipped_or_any_end_missing_is_no_entry() {
        let data = data();
        for bit in 0..data.len() * 8 {
            let mut flipped = data.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(entry_records(&flipped).is_none(), "bit {bit}");
        }
        for size in 0..data.len() {
            assert!(entry_records(&data[..size]).is_none(), "{size} bytes");
        }
        let mut longer = data;
        longer.push(0);
        assert!(entry_records(&longer).is_none());
    }
}
