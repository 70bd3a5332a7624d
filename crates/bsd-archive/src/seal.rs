//! The bytes of an object that is compressed or encrypted: `archive-format.md` describes them.
//!
//! A sealed object says of itself what it is, so that those that are and those that are not can be
//! in one archive. Every object is encrypted with a key of its own, which is random, used for its two
//! pieces alone, and never again: no nonce can be used twice. That key is in the object, encrypted for
//! each of the keys that were given. What is authenticated includes the object's name: an object under
//! another name cannot be opened.
//!
//! No input makes a function here panic, and none makes it use more memory than the largest object
//! has.

use std::cell::RefCell;
use std::collections::BTreeSet;

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::error::Unspecified;
use ring::hkdf::{HKDF_SHA256, Salt};
use ring::rand::{SecureRandom, SystemRandom};
use zstd::bulk::Decompressor;

use super::format::{BODY_SIZE_MAX, Fault, HEAD_SIZE, u32_at, u64_at};
use super::keys::{KEY_SIZE, KEYS_MAX, Key, KeyId};

/// The version of the form.
const VERSION: u16 = 1;
const MAGIC: [u8; 8] = *b"BSDSEA\r\n";
/// Bytes of the header before the keys.
const FIXED_SIZE: usize = 64;
/// Bytes of it for each key: its id, and the key of the object.
const WRAPPED_SIZE: usize = 8 + KEY_SIZE + TAG_SIZE;
/// Two checksums end the header.
const SUMS_SIZE: usize = 8;
const TAG_SIZE: usize = 16;
/// Bytes of the first piece, at most: that is all that a look at the head of a link takes.
const FIRST_SIZE_MAX: usize = HEAD_SIZE;
/// Bytes of what is sealed, at most.
const SIZE_MAX: u64 = HEAD_SIZE as u64 + BODY_SIZE_MAX;
/// A sealed object is larger than what is in it by this, at most.
pub(super) const OVERHEAD_MAX: u64 = (header_size(KEYS_MAX) + 2 * TAG_SIZE) as u64;
/// Its first bytes that have the first piece, at most.
const PREFIX_SIZE_MAX: u64 = (header_size(KEYS_MAX) + FIRST_SIZE_MAX + TAG_SIZE) as u64;
/// What the keys of objects are derived for.
const PURPOSE: &[u8] = b"bsd-archive object 1";

mod at {
    pub(super) const VERSION: usize = 8;
    pub(super) const COMPRESSION: usize = 10;
    pub(super) const KEYS: usize = 11;
    pub(super) const FIRST_SIZE: usize = 12;
    pub(super) const SIZE: usize = 16;
    pub(super) const SEALED_SIZE: usize = 24;
    pub(super) const SALT: usize = 32;
}

const fn header_size(keys: usize) -> usize {
    FIXED_SIZE + keys * WRAPPED_SIZE + SUMS_SIZE
}

/// Why an object was not opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Closed {
    /// It is not as it was put.
    Broken(Fault),
    /// It is encrypted for these keys, of which none was given.
    For(Vec<KeyId>),
}

impl From<Fault> for Closed {
    fn from(fault: Fault) -> Closed {
        Closed::Broken(fault)
    }
}

/// The header of a sealed object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Header {
    is_compressed: bool,
    /// Of each key: its id, and the key of the object, encrypted with it.
    wrapped: Vec<(KeyId, [u8; KEY_SIZE + TAG_SIZE])>,
    first_size: usize,
    /// Bytes of what is sealed.
    pub(super) size: u64,
    /// Bytes of all of the object.
    sealed_size: u64,
    salt: [u8; KEY_SIZE],
    body_crc: u32,
}

/// True for the bytes of a sealed object, or for the first of them.
pub(super) fn is_sealed(bytes: &[u8]) -> bool {
    bytes.starts_with(&MAGIC)
}

/// True if the first piece does not have so much: then all of the object is read.
pub(super) fn is_whole(size_max: u64) -> bool {
    size_max > FIRST_SIZE_MAX as u64
}

/// Bytes of a sealed object that are enough to give the first `size` of what is in it.
pub(super) fn enough_for(size: u64) -> u64 {
    match is_whole(size) {
        false => PREFIX_SIZE_MAX,
        true => size.saturating_add(OVERHEAD_MAX),
    }
}

/// True if an object of this size may have just a head in it: it is not compressed then.
pub(super) fn may_be_head_alone(listed_size: u64) -> bool {
    let sealed = |keys| (header_size(keys) + HEAD_SIZE + 2 * TAG_SIZE) as u64;
    listed_size == HEAD_SIZE as u64 || (1..=KEYS_MAX).any(|keys| sealed(keys) == listed_size)
}

/// True if an object of this size may have `size` bytes in it.
pub(super) fn may_hold(listed_size: u64, size: u64) -> bool {
    let sizes = header_size(0) as u64..=size + OVERHEAD_MAX;
    listed_size == size || sizes.contains(&listed_size)
}

/// The checksum of a header, which is one of the name too: a copy under another name has another.
fn header_crc(name: &str, header: &[u8]) -> u32 {
    let mut sum = crc32fast::Hasher::new();
    sum.update(name.as_bytes());
    sum.update(header);
    sum.finalize()
}

/// What is authenticated beside what is encrypted: the name, and the header up to here.
fn bound(name: &str, header: &[u8]) -> Vec<u8> {
    [name.as_bytes(), b"\n", header].concat()
}

fn nonce(piece: u8) -> Nonce {
    let mut nonce = [0; NONCE_LEN];
    nonce[0] = piece;
    Nonce::assume_unique_for_key(nonce)
}

/// The key that encrypts the key of one object for `key`. Each object has a salt of its own.
fn wrapping(key: &Key, salt: &[u8]) -> Result<LessSafeKey, Unspecified> {
    let random = Salt::new(HKDF_SHA256, salt).extract(key.secret());
    let info = [PURPOSE];
    let derived = random.expand(&info, &AES_256_GCM)?;
    Ok(LessSafeKey::new(UnboundKey::from(derived)))
}

fn object_key(secret: &[u8]) -> Result<LessSafeKey, Unspecified> {
    Ok(LessSafeKey::new(UnboundKey::new(&AES_256_GCM, secret)?))
}

/// The object `name` with `plain` in it: compressed with this level, if that makes it smaller, and
/// encrypted for each of `keys`. `None`: it is put as it is.
///
/// # Errors
/// The system has no random bytes.
pub(super) fn seal(
    name: &str,
    plain: &[u8],
    level: Option<i32>,
    keys: &[Key],
) -> Result<Option<Vec<u8>>, Unspecified> {
    let (first, rest) = plain.split_at(plain.len().min(FIRST_SIZE_MAX));
    let saved = match keys.is_empty() {
        true => header_size(0),
        false => 0,
    };
    let packed = level.and_then(|level| zstd::bulk::compress(rest, level).ok());
    let packed = packed.filter(|packed| packed.len() + saved < rest.len());
    // What looks like a sealed object has to be one.
    if keys.is_empty() && packed.is_none() && !is_sealed(plain) {
        return Ok(None);
    }
    let is_compressed = packed.is_some();
    let (mut first, mut rest) = (first.to_vec(), packed.unwrap_or_else(|| rest.to_vec()));
    let tags = match keys.is_empty() {
        true => 0,
        false => 2 * TAG_SIZE,
    };
    let sealed_size = header_size(keys.len()) + first.len() + rest.len() + tags;
    let mut bytes = Vec::with_capacity(sealed_size);
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&[u8::from(is_compressed), keys.len() as u8]);
    bytes.extend_from_slice(&(first.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&(plain.len() as u64).to_le_bytes());
    bytes.extend_from_slice(&(sealed_size as u64).to_le_bytes());
    let (mut salt, mut secret) = ([0; KEY_SIZE], [0; KEY_SIZE]);
    if !keys.is_empty() {
        let random = SystemRandom::new();
        random.fill(&mut salt)?;
        random.fill(&mut secret)?;
    }
    bytes.extend_from_slice(&salt);
    let fixed = bound(name, &bytes);
    for key in keys {
        let mut wrapped = secret.to_vec();
        let by = wrapping(key, &salt)?;
        by.seal_in_place_append_tag(nonce(0), Aad::from(&fixed), &mut wrapped)?;
        bytes.extend_from_slice(&key.id().0);
        bytes.extend_from_slice(&wrapped);
    }
    if !keys.is_empty() {
        let (by, bound) = (object_key(&secret)?, bound(name, &bytes));
        by.seal_in_place_append_tag(nonce(0), Aad::from(&bound), &mut first)?;
        by.seal_in_place_append_tag(nonce(1), Aad::from(&bound), &mut rest)?;
    }
    let mut sum = crc32fast::Hasher::new();
    sum.update(&first);
    sum.update(&rest);
    bytes.extend_from_slice(&sum.finalize().to_le_bytes());
    let crc = header_crc(name, &bytes);
    bytes.extend_from_slice(&crc.to_le_bytes());
    bytes.extend_from_slice(&first);
    bytes.extend_from_slice(&rest);
    Ok(Some(bytes))
}

impl Header {
    fn decode(name: &str, bytes: &[u8]) -> Result<Header, Fault> {
        let cut = || format!("it is sealed, and has only {} bytes", bytes.len());
        if !is_sealed(bytes) {
            return Err("it is not sealed".to_owned());
        }
        let fixed = bytes.get(..FIXED_SIZE).ok_or_else(cut)?;
        let version = u16::from_le_bytes([fixed[at::VERSION], fixed[at::VERSION + 1]]);
        if version != VERSION {
            return Err(format!(
                "it is sealed in version {version} of the form, this program reads {VERSION}"
            ));
        }
        let keys = usize::from(fixed[at::KEYS]);
        let size = header_size(keys);
        let header = bytes.get(..size).ok_or_else(cut)?;
        let crc_at = size - 4;
        if u32_at(header, crc_at) != header_crc(name, &header[..crc_at]) {
            return Err(
                "it is sealed, and the checksum of its header does not hold under this name"
                    .to_owned(),
            );
        }
        let mut salt = [0; KEY_SIZE];
        salt.copy_from_slice(&fixed[at::SALT..]);
        let entries = header[FIXED_SIZE..].chunks_exact(WRAPPED_SIZE).take(keys);
        let wrapped = entries.map(|entry| {
            let (mut id, mut secret) = ([0; 8], [0; KEY_SIZE + TAG_SIZE]);
            id.copy_from_slice(&entry[..8]);
            secret.copy_from_slice(&entry[8..]);
            (KeyId(id), secret)
        });
        let found = Header {
            is_compressed: fixed[at::COMPRESSION] == 1,
            wrapped: wrapped.collect(),
            first_size: u32_at(fixed, at::FIRST_SIZE) as usize,
            size: u64_at(fixed, at::SIZE),
            sealed_size: u64_at(fixed, at::SEALED_SIZE),
            salt,
            body_crc: u32_at(header, size - SUMS_SIZE),
        };
        let is_known = fixed[at::COMPRESSION] <= 1 && keys <= KEYS_MAX;
        match is_known && found.is_possible() {
            true => Ok(found),
            false => Err("it is sealed, and its header says what cannot be".to_owned()),
        }
    }

    fn is_possible(&self) -> bool {
        let Some(rest) = self.size.checked_sub(self.first_size as u64) else {
            return false;
        };
        let least = (self.header_size() + self.first_size + self.tags()) as u64;
        let sealed_rest = self.sealed_size.checked_sub(least);
        let fits = |sealed| match self.is_compressed {
            true => sealed <= rest,
            false => sealed == rest,
        };
        self.first_size <= FIRST_SIZE_MAX && self.size <= SIZE_MAX && sealed_rest.is_some_and(fits)
    }

    fn header_size(&self) -> usize {
        header_size(self.wrapped.len())
    }

    /// Bytes of the tags of both pieces.
    fn tags(&self) -> usize {
        match self.wrapped.is_empty() {
            true => 0,
            false => 2 * TAG_SIZE,
        }
    }

    /// The keys that open it.
    pub(super) fn keys(&self) -> BTreeSet<KeyId> {
        self.wrapped.iter().map(|(id, _)| *id).collect()
    }

    /// The key of the object. `None`: it is not encrypted.
    fn unwrap(
        &self,
        name: &str,
        bytes: &[u8],
        keys: &[Key],
    ) -> Result<Option<LessSafeKey>, Closed> {
        if self.wrapped.is_empty() {
            return Ok(None);
        }
        let fixed = bound(name, &bytes[..FIXED_SIZE]);
        let given = self.wrapped.iter().find_map(|(id, wrapped)| {
            let key = keys.iter().find(|key| key.id() == *id)?;
            Some((key, wrapped))
        });
        let Some((key, wrapped)) = given else {
            return Err(Closed::For(self.keys().into_iter().collect()));
        };
        let mut secret = *wrapped;
        let mut opened = || {
            let by = wrapping(key, &self.salt)?;
            let secret = by.open_in_place(nonce(0), Aad::from(&fixed), &mut secret)?;
            object_key(secret)
        };
        match opened() {
            Ok(found) => Ok(Some(found)),
            Err(Unspecified) => Err(forged().into()),
        }
    }
}

fn forged() -> Fault {
    "its checksums hold, and it was not sealed with its key under this name: it was forged, or put \
     in the place of another"
        .to_owned()
}

/// Check the first [`enough_for`] `size_max` bytes of a sealed object, as far as that is possible
/// without a key.
///
/// # Errors
/// Its fault.
pub(super) fn check(name: &str, bytes: &[u8], size_max: u64) -> Result<Header, Fault> {
    let header = Header::decode(name, bytes)?;
    if !is_whole(size_max) {
        return Ok(header);
    }
    let size = bytes.len() as u64;
    if size != header.sealed_size {
        return Err(format!(
            "it is sealed, and has {size} bytes instead of {}",
            header.sealed_size
        ));
    }
    let found = crc32fast::hash(&bytes[header.header_size()..]);
    match found == header.body_crc {
        true => Ok(header),
        false => Err(format!(
            "it is sealed, and its content has the checksum {found:08x} instead of {:08x}",
            header.body_crc
        )),
    }
}

/// The first `size_max` bytes of what is in a sealed object, of which `bytes` are the first
/// [`enough_for`] that.
///
/// # Errors
/// See [`Closed`].
pub(super) fn open(
    name: &str,
    bytes: &[u8],
    size_max: u64,
    keys: &[Key],
) -> Result<Vec<u8>, Closed> {
    let header = check(name, bytes, size_max)?;
    let key = header.unwrap(name, bytes, keys)?;
    let bound = bound(name, &bytes[..header.header_size() - SUMS_SIZE]);
    let opened = |piece: u8, sealed: &[u8]| -> Result<Vec<u8>, Fault> {
        let mut sealed = sealed.to_vec();
        let Some(key) = &key else {
            return Ok(sealed);
        };
        let plain = key.open_in_place(nonce(piece), Aad::from(&bound), &mut sealed);
        let size = plain.map_err(|Unspecified| forged())?.len();
        sealed.truncate(size);
        Ok(sealed)
    };
    let after_header = &bytes[header.header_size()..];
    let first_end = header.first_size + header.tags() / 2;
    let (first, rest) = after_header
        .split_at_checked(first_end)
        .ok_or_else(|| format!("it is sealed, and has only {} bytes", bytes.len()))?;
    let mut plain = opened(0, first)?;
    if is_whole(size_max) {
        let rest = opened(1, rest)?;
        match header.is_compressed {
            true => unpack(&rest, header.size, &mut plain)?,
            false => plain.extend_from_slice(&rest),
        }
    }
    plain.truncate(usize::try_from(size_max).unwrap_or(usize::MAX));
    Ok(plain)
}

thread_local! {
    /// It takes longer to make than it takes for a link of a second.
    static DECOMPRESSOR: RefCell<Option<Decompressor<'static>>> = const { RefCell::new(None) };
}

/// Append what was compressed, so that there are `size` bytes in all.
fn unpack(packed: &[u8], size: u64, plain: &mut Vec<u8>) -> Result<(), Fault> {
    let begin = plain.len();
    plain.resize(size as usize, 0);
    let expected = plain.len() - begin;
    let found = DECOMPRESSOR.with_borrow_mut(|kept| {
        let decompressor = match kept {
            Some(decompressor) => decompressor,
            none => none.insert(Decompressor::new()?),
        };
        decompressor.decompress_to_buffer(packed, &mut plain[begin..])
    });
    match found {
        Ok(found) if found == expected => Ok(()),
        Ok(found) => Err(format!(
            "it is compressed, and has {found} bytes instead of {expected}"
        )),
        Err(error) => Err(format!("it is compressed, and cannot be read: {error}")),
    }
}
