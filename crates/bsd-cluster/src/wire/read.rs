//! Numbers and bytes, taken one after the other from the front, as far as they are there.

use bytes::Bytes;

use super::WireError;
use crate::member::ADDRESS_SIZE_MAX;

const SHORT: WireError = WireError::Malformed("it ends too early");

/// The bytes that have not been read yet.
pub(super) struct Reader(Bytes);

impl Reader {
    pub(super) fn new(bytes: Bytes) -> Reader {
        Reader(bytes)
    }

    pub(super) fn left(&self) -> usize {
        self.0.len()
    }

    /// All that is left.
    pub(super) fn rest(&mut self) -> Bytes {
        std::mem::take(&mut self.0)
    }

    pub(super) fn as_slice(&self) -> &[u8] {
        &self.0
    }

    /// The next bytes. They share memory with all.
    pub(super) fn take(&mut self, count: usize) -> Result<Bytes, WireError> {
        match count <= self.0.len() {
            true => Ok(self.0.split_to(count)),
            false => Err(SHORT),
        }
    }

    fn chunk<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        let chunk = *self.0.first_chunk().ok_or(SHORT)?;
        let _ = self.0.split_to(N);
        Ok(chunk)
    }

    pub(super) fn u8(&mut self) -> Result<u8, WireError> {
        self.chunk().map(u8::from_le_bytes)
    }

    pub(super) fn u16(&mut self) -> Result<u16, WireError> {
        self.chunk().map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, WireError> {
        self.chunk().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, WireError> {
        self.chunk().map(u64::from_le_bytes)
    }

    pub(super) fn i64(&mut self) -> Result<i64, WireError> {
        self.chunk().map(i64::from_le_bytes)
    }

    pub(super) fn id(&mut self) -> Result<[u8; 16], WireError> {
        self.chunk()
    }

    /// A byte that is 0 or 1.
    pub(super) fn bool(&mut self) -> Result<bool, WireError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(WireError::Malformed("neither true nor false")),
        }
    }

    /// Bytes with their number before them.
    pub(super) fn counted(&mut self) -> Result<Bytes, WireError> {
        let size = self.u32()? as usize;
        self.take(size)
    }

    /// A count of things of which each takes at least `size_min` bytes: it is backed by bytes.
    pub(super) fn count(&mut self, size_min: usize) -> Result<usize, WireError> {
        let count = self.u32()? as usize;
        match count.checked_mul(size_min) {
            Some(size) if size <= self.left() => Ok(count),
            _ => Err(SHORT),
        }
    }

    /// A text with its size in a byte before it.
    pub(super) fn short(&mut self) -> Result<String, WireError> {
        let size = self.u8()?;
        text(&self.take(size.into())?)
    }
}

/// A text that may be shown: without control characters.
pub(super) fn text(bytes: &[u8]) -> Result<String, WireError> {
    let text = std::str::from_utf8(bytes).map_err(|_| WireError::Malformed("no UTF-8"))?;
    match text.chars().any(char::is_control) {
        true => Err(WireError::Malformed("a text with control characters")),
        false => Ok(text.to_owned()),
    }
}

/// Put bytes with their number before them. It has 32 bits: what does not fit is no frame anyway,
/// and is refused for its size.
pub(super) fn put_counted(bytes: &mut Vec<u8>, part: &[u8]) {
    bytes.extend_from_slice(&(part.len() as u32).to_le_bytes());
    bytes.extend_from_slice(part);
}

/// Put a text with its size in a byte before it.
pub(super) fn put_short(bytes: &mut Vec<u8>, part: &str) -> Result<(), WireError> {
    if part.len() > ADDRESS_SIZE_MAX {
        return Err(WireError::TooLarge("an address or a name"));
    }
    let part = text(part.as_bytes())?;
    bytes.push(part.len() as u8);
    bytes.extend_from_slice(part.as_bytes());
    Ok(())
}
